//! `/etc/ld.so.cache`, the table by which glibc's loader finds libraries: reading the host's, writing the guest's.
//!
//! The format is glibc's "new" one: a header, entries sorted from the greatest name down, then the strings. Entries
//! for variants of a processor are neither used nor written.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::elf::Architecture;

/// Where the loader looks for it.
pub const PATH: &str = "/etc/ld.so.cache";

const MAGIC: &[u8; 20] = b"glibc-ld.so.cache1.1";
const HEADER_SIZE: usize = 48;
const ENTRY_SIZE: usize = 24;
/// The flag of a file whose cache is little-endian.
const LITTLE_ENDIAN: u8 = 2;

/// Flags of an entry: the kind of its library, which is for glibc, and its calling convention.
fn flags(architecture: Architecture) -> u32 {
    match architecture {
        Architecture::X86_64 => 0x0303,
        Architecture::Riscv64 => 0x1003,
    }
}

/// Where Debian's loader looks without being told.
pub fn default_directories(architecture: Architecture) -> Vec<PathBuf> {
    let triplet = architecture.triplet();
    let mut directories: Vec<PathBuf> =
        ["/lib", "/usr/lib"].iter().map(|directory| PathBuf::from(directory).join(triplet)).collect();
    directories.extend(["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from));
    directories
}

/// The libraries by name, or nothing if this is no cache.
pub fn parse(bytes: &[u8], architecture: Architecture) -> Option<HashMap<Vec<u8>, PathBuf>> {
    let word = |offset: usize| bytes.get(offset..)?.first_chunk().copied().map(u32::from_le_bytes);
    let string = |offset: u32| bytes.get(offset as usize..)?.split(|&byte| byte == 0).next();
    if !bytes.starts_with(MAGIC) {
        return None;
    }
    let count = word(20)? as usize;
    let mut libraries = HashMap::new();
    for entry in bytes.get(HEADER_SIZE..)?.chunks_exact(ENTRY_SIZE).take(count) {
        let word = |offset: usize| entry[offset..].first_chunk().copied().map(u32::from_le_bytes);
        let generic = entry[16..24] == [0; 8];
        if word(0)? == flags(architecture) && generic {
            let path = PathBuf::from(OsStr::from_bytes(string(word(8)?)?));
            libraries.entry(string(word(4)?)?.to_vec()).or_insert(path);
        }
    }
    Some(libraries)
}

/// A cache of `libraries`, by name.
pub fn write(libraries: &BTreeMap<Vec<u8>, PathBuf>, architecture: Architecture) -> Vec<u8> {
    let mut sorted: Vec<_> = libraries.iter().collect();
    sorted.sort_by(|a, b| compare(b.0, a.0));
    let mut entries = Vec::new();
    let mut strings = Vec::new();
    let start = HEADER_SIZE + sorted.len() * ENTRY_SIZE;
    for (name, path) in &sorted {
        let mut place = |text: &[u8]| {
            let offset = (start + strings.len()) as u32;
            strings.extend_from_slice(text);
            strings.push(0);
            offset.to_le_bytes()
        };
        entries.extend_from_slice(&flags(architecture).to_le_bytes());
        entries.extend_from_slice(&place(name));
        entries.extend_from_slice(&place(path.as_os_str().as_bytes()));
        entries.extend_from_slice(&[0; 12]);
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&(sorted.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(strings.len() as u32).to_le_bytes());
    bytes.push(LITTLE_ENDIAN);
    bytes.resize(HEADER_SIZE, 0);
    bytes.extend_from_slice(&entries);
    bytes.extend_from_slice(&strings);
    bytes
}

/// The order the loader searches by: numbers inside names compare as numbers.
fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let (mut a, mut b) = (a, b);
    while let (Some(&x), Some(&y)) = (a.first(), b.first()) {
        match (x.is_ascii_digit(), y.is_ascii_digit()) {
            (true, true) => {
                let (number_a, rest_a) = number(a);
                let (number_b, rest_b) = number(b);
                match number_a.cmp(&number_b) {
                    Ordering::Equal => (a, b) = (rest_a, rest_b),
                    other => return other,
                }
            }
            (true, false) => return Ordering::Greater,
            (false, true) => return Ordering::Less,
            (false, false) if x == y => (a, b) = (&a[1..], &b[1..]),
            (false, false) => return (x as i8).cmp(&(y as i8)),
        }
    }
    a.len().cmp(&b.len())
}

/// The number `text` starts with, and what follows. The loader counts in a C int, and wraps as one.
fn number(text: &[u8]) -> (i32, &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let add = |value: i32, digit: &u8| value.wrapping_mul(10).wrapping_add(i32::from(digit - b'0'));
    (digits.iter().fold(0, add), rest)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const ARCHITECTURE: Architecture = Architecture::X86_64;

    #[test]
    fn comes_back_in_the_loaders_order() {
        let names = ["liba.so.1", "liba.so.10", "liba.so.9", "libb.so", "lib", "liba-1.so"];
        let libraries = names.map(|name| (name.as_bytes().to_vec(), PathBuf::from("/lib").join(name)));
        let bytes = write(&libraries.clone().into(), ARCHITECTURE);
        assert_eq!(parse(&bytes, ARCHITECTURE).unwrap(), libraries.into());
        let position = |name: &str| memchr::memmem::find(&bytes, format!("\0{name}\0").as_bytes());
        assert!(position("liba.so.10") < position("liba.so.9"), "numbers compare as numbers");
        assert!(position("liba.so.9") < position("liba.so.1"));
        assert_eq!(compare(b"libb.so", b"liba.so.10"), Ordering::Greater);
        assert_eq!(compare(b"lib", b"lib"), Ordering::Equal);
    }

    #[test]
    fn damage_is_no_panic() {
        let libraries = BTreeMap::from([(b"liba.so".to_vec(), PathBuf::from("/lib/liba.so"))]);
        let bytes = write(&libraries, ARCHITECTURE);
        for length in 0..bytes.len() {
            let _ = parse(&bytes[..length], ARCHITECTURE);
        }
        for offset in 20..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[offset] = 0xff;
            let _ = parse(&damaged, ARCHITECTURE);
        }
    }

    /// Our reading of the host's cache is the same as ldconfig's.
    #[test]
    fn the_hosts_cache() {
        let printed = Command::new("/sbin/ldconfig").arg("-p").output();
        let (Ok(bytes), Ok(printed)) = (std::fs::read(PATH), printed) else {
            println!("skipped: 1 (no loader cache)");
            return;
        };
        let libraries = parse(&bytes, ARCHITECTURE).unwrap();
        let text = String::from_utf8(printed.stdout).unwrap();
        let lines = text.lines().filter_map(|line| line.trim().split_once(" (libc6,x86-64) => "));
        let mut count = 0;
        for (name, path) in lines {
            assert!(libraries.contains_key(name.as_bytes()), "{name} => {path}");
            count += 1;
        }
        assert!(count >= libraries.len(), "{count} printed, {} read", libraries.len());
    }
}
