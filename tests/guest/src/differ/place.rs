//! The surroundings of a sequence: a folder with files, open descriptors, and memory for arguments and results.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::Random;

/// The first descriptor of a sequence.
pub const FIRST_DESCRIPTOR: i64 = 50;
const PAGE: usize = 4096;
/// A number of System V IPC that nothing has.
const NO_ID: i64 = 0x7000_0000;
/// Bytes of memory that calls about mappings may do anything with.
const REGION_PAGES: usize = 16;

const NAMES: &[&str] = &[
    "a",
    "b",
    "d",
    "d/x",
    "new",
    "d/new",
    "",
    "missing/x",
    "a/x",
    "link",
    "loop",
    "dangling",
    ".",
    "..",
    "d/",
    "a/",
    "/",
    "d/../a",
    "secret",
    "fifo",
    "LONG",
    "VERY",
];

/// See the module.
pub struct Place {
    directory: i32,
    strings: Vec<CString>,
    input: Vec<Vec<u64>>,
    out: *mut u8,
    region: usize,
    id: i64,
    /// The calls that take away what a sequence has made in System V IPC.
    made: Vec<(libc::c_long, i64)>,
}

/// A folder for all sequences of a run.
pub fn make_folder() -> PathBuf {
    let folder = std::env::temp_dir().join("differ");
    remove(&folder);
    folder
}

/// Takes the folder away, whatever a sequence has made of it.
pub fn remove(folder: &Path) {
    if fs::remove_dir_all(folder).is_err() {
        let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
        let _ = fs::remove_dir_all(folder);
    }
}

/// Makes the folder anew.
pub fn prepare(folder: &Path) {
    remove(folder);
    fs::create_dir_all(folder.join("d")).expect("a folder");
    let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o777));
    let text: Vec<u8> = (0..100).collect();
    fs::write(folder.join("a"), &text).expect("a file");
    let _ = fs::set_permissions(folder.join("a"), fs::Permissions::from_mode(0o666));
    fs::write(folder.join("b"), b"b").expect("a file");
    fs::write(folder.join("d/x"), b"x").expect("a file");
    fs::write(folder.join("secret"), b"s").expect("a file");
    let _ = fs::set_permissions(folder.join("secret"), fs::Permissions::from_mode(0o600));
    symlink("a", folder.join("link")).expect("a link");
    symlink("loop", folder.join("loop")).expect("a link");
    symlink("nowhere", folder.join("dangling")).expect("a link");
    let _ = nix::unistd::mkfifo(&folder.join("fifo"), nix::sys::stat::Mode::from_bits_truncate(0o644));
}

/// Makes the folder the working directory.
pub fn enter(folder: &Path) {
    std::env::set_current_dir(folder).expect("the folder is there");
}

fn open(name: &str, flags: i32) -> i32 {
    let name = CString::new(name).expect("no zeros");
    // SAFETY: a valid string.
    unsafe { libc::open(name.as_ptr(), flags | libc::O_NONBLOCK, 0o644) }
}

impl Place {
    /// Opens the descriptors and maps the memory.
    pub fn new(random: &mut Random) -> Self {
        let mut ends = [0; 2];
        let mut sockets = [0; 2];
        // SAFETY: the arrays are valid.
        unsafe {
            libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK);
            libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0, sockets.as_mut_ptr());
        }
        let directory = open("d", libc::O_RDONLY | libc::O_DIRECTORY);
        // SAFETY: no pointers.
        let event = unsafe { libc::eventfd(3, libc::EFD_NONBLOCK) };
        // SAFETY: a valid string.
        let memory = unsafe { libc::memfd_create(c"m".as_ptr(), libc::MFD_ALLOW_SEALING) };
        let descriptors = [
            open("a", libc::O_RDWR),
            open("a", libc::O_RDONLY),
            open("b", libc::O_WRONLY | libc::O_APPEND),
            directory,
            ends[0],
            ends[1],
            sockets[0],
            sockets[1],
            event,
            open("/dev/null", libc::O_RDWR),
            open("a", libc::O_PATH),
            memory,
        ];
        for (index, &descriptor) in descriptors.iter().enumerate() {
            // SAFETY: no pointers.
            unsafe { libc::dup2(descriptor, FIRST_DESCRIPTOR as i32 + index as i32) };
        }
        // SAFETY: no pointers.
        unsafe { libc::close_range(3, FIRST_DESCRIPTOR as u32 - 1, 0) };
        let map = |pages: usize| {
            // SAFETY: new memory.
            let memory = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    (pages + 1) * PAGE,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                )
            };
            // SAFETY: the last page, of which nobody knows.
            unsafe { libc::munmap(memory.wrapping_byte_add(pages * PAGE), PAGE) };
            memory
        };
        let _ = random;
        Self {
            directory: FIRST_DESCRIPTOR as i32 + 3,
            strings: Vec::new(),
            input: Vec::new(),
            out: map(1).cast(),
            region: map(REGION_PAGES) as usize,
            id: NO_ID,
            made: Vec::new(),
        }
    }

    /// Before a call: results go to empty memory.
    pub fn begin(&mut self) {
        // SAFETY: the page is ours.
        unsafe { self.out.write_bytes(0, PAGE) };
        self.strings.clear();
        self.input.clear();
    }

    pub const fn directory(&self) -> i32 {
        self.directory
    }

    pub const fn id(&self) -> i64 {
        self.id
    }

    /// Notes the number that a call has returned, and how what it stands for is taken away.
    pub fn set_id(&mut self, id: i64, call: libc::c_long) {
        self.id = id;
        let remove = match call {
            libc::SYS_shmget => libc::SYS_shmctl,
            libc::SYS_semget => libc::SYS_semctl,
            _ => libc::SYS_msgctl,
        };
        self.made.push((remove, id));
    }

    /// Takes away what would outlive the sequence.
    pub fn clean(&self) {
        for &(call, id) in &self.made {
            // SAFETY: no pointers. Two numbers come before the command of semctl.
            unsafe {
                if call == libc::SYS_semctl {
                    libc::syscall(call, id, 0, libc::IPC_RMID);
                } else {
                    libc::syscall(call, id, libc::IPC_RMID, 0);
                }
            }
        }
    }

    fn keep(&mut self, string: String) -> u64 {
        let string = CString::new(string).unwrap_or_default();
        let address = string.as_ptr() as u64;
        self.strings.push(string);
        address
    }

    /// A path, or a pointer that is none.
    pub fn path(&mut self, random: &mut Random) -> (u64, String) {
        match random.below(16) {
            0 => (0, String::from("NULL")),
            1 => (1, String::from("BAD")),
            _ => {
                let name = random.pick(NAMES);
                let text = match name {
                    "LONG" => "x".repeat(256),
                    "VERY" => "y/".repeat(2100),
                    name => name.to_owned(),
                };
                (self.keep(text), format!("{name:?}"))
            }
        }
    }

    fn pointer(&self, random: &mut Random) -> (u64, String) {
        match random.below(10) {
            0 => (0, String::from("NULL")),
            1 => (1, String::from("BAD")),
            // The memory ends after four bytes.
            2 => (self.out as u64 + PAGE as u64 - 4, String::from("END")),
            _ => (self.out as u64, String::from("buf")),
        }
    }

    /// Memory for a result.
    pub fn out(&mut self, random: &mut Random) -> (u64, String) {
        self.pointer(random)
    }

    /// Memory that is there.
    pub fn room(&self) -> (u64, String) {
        (self.out as u64, String::from("buf"))
    }

    /// Memory with bytes in it.
    pub fn input(&mut self, random: &mut Random) -> (u64, String) {
        for index in 0..PAGE {
            // SAFETY: the page is ours.
            unsafe { self.out.add(index).write(index as u8) };
        }
        match self.pointer(random) {
            // How much of what ends early is written depends on the file.
            (_, shown) if shown == "END" => (self.out as u64, String::from("buf")),
            pointer => pointer,
        }
    }

    /// A structure of 8-byte words, each one of a list.
    pub fn words(&mut self, fields: &[&[i64]], random: &mut Random) -> (u64, String) {
        match random.below(12) {
            0 => return (0, String::from("NULL")),
            1 => return (1, String::from("BAD")),
            _ => {}
        }
        let mut words: Vec<u64> = fields.iter().map(|list| random.pick(list) as u64).collect();
        let shown = words.iter().map(|&word| (word as i64).to_string()).collect::<Vec<_>>().join(" ");
        words.resize(words.len() + 32, 0);
        let address = words.as_ptr() as u64;
        self.input.push(words);
        (address, format!("{{{shown}}}"))
    }

    /// An address in the region or at its edges.
    pub fn address(&mut self, random: &mut Random) -> (u64, String) {
        let page = random.below(REGION_PAGES as u64 + 2) as usize;
        match random.below(12) {
            0 | 1 => (u64::MAX & !(PAGE as u64 - 1), String::from("TOP")),
            2 => ((self.region + page * PAGE + 8) as u64, format!("p{page}+8")),
            _ => ((self.region + page * PAGE) as u64, format!("p{page}")),
        }
    }

    /// An address as a word.
    pub fn relative(&self, address: usize) -> String {
        let distance = address.wrapping_sub(self.region);
        if distance <= REGION_PAGES * PAGE && distance.is_multiple_of(PAGE) {
            format!("p{}", distance / PAGE)
        } else {
            String::from("elsewhere")
        }
    }

    /// A sum over the results' memory (FNV-1a).
    pub fn sum(&self) -> u32 {
        // SAFETY: the page is ours.
        let bytes = unsafe { std::slice::from_raw_parts(self.out, PAGE) };
        bytes.iter().fold(0x811c_9dc5, |sum, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }

    /// The files and descriptors as the sequence leaves them.
    pub fn state(&self) -> String {
        let mut text = String::from("|");
        for name in ["a", "b", "new", "d/x", "d/new"] {
            if let Ok(metadata) = fs::symlink_metadata(name) {
                use std::os::unix::fs::MetadataExt;
                let size = if metadata.is_dir() { 0 } else { metadata.len() };
                text.push_str(&format!(" {name}:{:o},{size},{}", metadata.mode(), metadata.uid()));
            }
        }
        for index in 0..3 {
            // SAFETY: no pointers.
            let at = unsafe { libc::lseek(FIRST_DESCRIPTOR as i32 + index, 0, libc::SEEK_CUR) };
            text.push_str(&format!(" @{at}"));
        }
        text
    }
}
