//! Debian's kernel package: the files to take out of it, and their form.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Sectors of real-mode code when the header says 0.
const DEFAULT_SETUP_SECTORS: usize = 4;
const SECTOR_BYTES: usize = 512;
const OFFSET_SETUP_SECTORS: usize = 0x1f1;
const OFFSET_PAYLOAD: usize = 0x248;
const OFFSET_PAYLOAD_LENGTH: usize = 0x24c;

/// Takes the ELF kernel out of a `bzImage`: a guest that need not unpack it starts seconds earlier under TCG.
///
/// # Errors
/// If the file is no `bzImage`, or is packed otherwise than Debian does.
pub fn unpack_kernel(image: &[u8]) -> Result<Vec<u8>> {
    let word = |offset: usize| {
        let bytes = image.get(offset..offset + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(|bytes| u32::from_le_bytes(bytes) as usize).context("not a Linux kernel")
    };
    let setup = match image.get(OFFSET_SETUP_SECTORS).context("not a Linux kernel")? {
        0 => DEFAULT_SETUP_SECTORS,
        &sectors => usize::from(sectors),
    };
    let start = (setup + 1) * SECTOR_BYTES + word(OFFSET_PAYLOAD)?;
    let payload = image
        .get(start..)
        .and_then(|rest| rest.get(..word(OFFSET_PAYLOAD_LENGTH).ok()?))
        .context("cut off")?;
    let kernel = unpack(payload).context("unpacking the kernel")?;
    if !kernel.starts_with(b"\x7fELF") {
        bail!("the kernel is packed in an unknown way");
    }
    Ok(kernel)
}

fn unpack(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    // The length of the kernel follows the packed stream, and is not part of it.
    liblzma::read::XzDecoder::new(bytes).read_to_end(&mut unpacked)?;
    Ok(unpacked)
}

/// The modules of a kernel by name.
pub struct Modules {
    paths: BTreeMap<String, PathBuf>,
}

impl Modules {
    /// Finds all modules below a folder.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn below(folder: &Path) -> Result<Self> {
        let mut paths = BTreeMap::new();
        let mut folders = vec![folder.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    folders.push(entry.path());
                } else if let Some((name, "ko" | "ko.xz")) =
                    entry.file_name().to_string_lossy().split_once('.')
                {
                    paths.insert(name.replace('-', "_"), entry.path());
                }
            }
        }
        Ok(Self { paths })
    }

    /// The contents of the named modules and all that they depend on, each after its dependencies.
    ///
    /// # Errors
    /// If a module is missing.
    pub fn in_load_order(&self, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let mut loaded = Vec::new();
        for name in names {
            self.add(name, &mut loaded)?;
        }
        Ok(loaded)
    }

    fn add(&self, name: &str, loaded: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
        if loaded.iter().any(|(other, _)| other == name) {
            return Ok(());
        }
        let path = self.paths.get(name).with_context(|| format!("the kernel has no module {name}"))?;
        let mut contents = std::fs::read(path).with_context(|| path.display().to_string())?;
        if path.extension().is_some_and(|extension| extension == "xz") {
            contents = unpack(&contents).with_context(|| path.display().to_string())?;
        }
        for dependency in dependencies(&contents) {
            self.add(&dependency, loaded)?;
        }
        loaded.push((name.to_owned(), contents));
        Ok(())
    }
}

/// The modules that a module says it depends on: a string in its `.modinfo` section, among others that end in zero.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = module.windows(KEY.len()).position(|part| part == KEY) else {
        return Vec::new();
    };
    let rest = &module[start + KEY.len()..];
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
    let names = String::from_utf8_lossy(&rest[..end]).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_the_module() {
        let module = b"...license=GPL\0depends=virtio-ring,virtio\0name=virtio_blk\0";
        assert_eq!(dependencies(module), ["virtio_ring", "virtio"]);
        assert!(dependencies(b"x\0depends=\0name=y\0").is_empty());
        assert!(dependencies(b"").is_empty());
    }

    #[test]
    fn other_packages_are_refused() {
        assert!(unpack_kernel(b"short").is_err());
        assert!(unpack_kernel(&[0; 4096]).is_err());
    }
}
