//! The contents of packages. `dpkg-deb` takes the archive apart and decompresses, because it is there wherever apt is
//! and knows every compression in use; the tar file that it gives is kept open, and files of the image are parts
//! of it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use heddle_erofs::Time;
use heddle_erofs::write::{Attributes, Content, Source, device_number};
use tar::{Archive, Entry, EntryType};

use crate::{Error, Root};

/// A package, decompressed.
#[derive(Debug)]
pub struct UnpackedPackage {
    path: PathBuf,
    /// The tar file of its contents, which has no name in the file system.
    data: Arc<File>,
    /// The scripts that an installation would run.
    pub scripts: Vec<String>,
}

/// Decompresses packages, several at a time; temporary files are in `directory`. `done` is called with the number that
/// are finished.
pub fn read_all(
    archives: &[PathBuf],
    directory: &Path,
    done: &mut dyn FnMut(usize),
) -> Result<Vec<UnpackedPackage>, Error> {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    let worker = |sender: mpsc::Sender<_>| {
        while let Some((index, path)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            archives.get(index).map(|path| (index, path))
        } {
            // The receiver is gone after an error.
            if sender.send((index, read_one(path, directory))).is_err() {
                return;
            }
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from).min(4);
    let mut packages: Vec<Option<UnpackedPackage>> = archives.iter().map(|_| None).collect();
    thread::scope(|scope| {
        for _ in 0..workers {
            let sender = sender.clone();
            scope.spawn(|| worker(sender));
        }
        drop(sender);
        for (count, (index, package)) in receiver.into_iter().enumerate() {
            packages[index] = Some(package?);
            done(count + 1);
        }
        Ok(())
    })?;
    Ok(packages.into_iter().flatten().collect())
}

fn read_one(path: &Path, directory: &Path) -> Result<UnpackedPackage, Error> {
    let data = tar_of(path, "--fsys-tarfile", directory)?;
    let control = tar_of(path, "--ctrl-tarfile", directory)?;
    let damaged = |error: io::Error| Error::Package(path.to_owned(), error.to_string());
    let mut scripts = Vec::new();
    for entry in Archive::new(control).entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        let name = entry.path_bytes().rsplit(|&byte| byte == b'/').next().map(<[u8]>::to_vec);
        if matches!(name.as_deref(), Some(b"preinst" | b"postinst")) {
            // Some few are programs instead, and tell nothing.
            let mut script = Vec::new();
            entry.read_to_end(&mut script).map_err(damaged)?;
            scripts.extend(String::from_utf8(script));
        }
    }
    Ok(UnpackedPackage { path: path.to_owned(), data: Arc::new(data), scripts })
}

/// One of the two tar files of a package.
fn tar_of(path: &Path, which: &str, directory: &Path) -> Result<File, Error> {
    let at = |error| Error::Cache(directory.to_owned(), error);
    let mut file = tempfile::tempfile_in(directory).map_err(at)?;
    let output = file.try_clone().map_err(at)?;
    let mut command = Command::new("dpkg-deb");
    let command = command.arg(which).arg(path).stdin(Stdio::null()).stdout(output).stderr(Stdio::piped());
    let result = command.spawn().and_then(|child| child.wait_with_output());
    let result = result.map_err(|error| Error::Package(path.to_owned(), format!("dpkg-deb: {error}")))?;
    if !result.status.success() {
        let text = String::from_utf8_lossy(&result.stderr).trim().to_owned();
        return Err(Error::Package(path.to_owned(), text));
    }
    file.rewind().map_err(at)?;
    Ok(file)
}

/// Puts a package's files into the root.
pub fn place(package: &UnpackedPackage, root: &mut Root) -> Result<(), Error> {
    let damaged = |error: io::Error| Error::Package(package.path.clone(), error.to_string());
    let mut data = &*package.data;
    data.rewind().map_err(damaged)?;
    for entry in Archive::new(data).entries_with_seek().map_err(damaged)? {
        let entry = entry.map_err(damaged)?;
        place_entry(package, &entry, root)?;
    }
    Ok(())
}

fn place_entry<R: Read>(
    package: &UnpackedPackage,
    entry: &Entry<'_, R>,
    root: &mut Root,
) -> Result<(), Error> {
    let damaged = |error: io::Error| Error::Package(package.path.clone(), error.to_string());
    let path = absolute(&entry.path_bytes());
    let header = entry.header();
    let attributes = Attributes {
        permissions: (header.mode().map_err(damaged)? & 0o7777) as u16,
        uid: header.uid().map_err(damaged)? as u32,
        gid: header.gid().map_err(damaged)? as u32,
        mtime: Time { seconds: header.mtime().map_err(damaged)?, nanoseconds: 0 },
    };
    let device = || -> io::Result<u32> {
        let (major, minor) = (header.device_major()?.unwrap_or(0), header.device_minor()?.unwrap_or(0));
        Ok(device_number(major, minor))
    };
    let target = entry.link_name_bytes().map(|target| target.to_vec()).unwrap_or_default();
    let content = match header.entry_type() {
        EntryType::Directory => {
            if path != Path::new("/") {
                root.put_directory(&path, attributes)?;
            }
            return Ok(());
        }
        EntryType::Link => {
            let target = absolute(&target);
            let file = root.find_link(&target).ok_or_else(|| {
                let text = format!("{}: link to a missing {}", path.display(), target.display());
                Error::Package(package.path.clone(), text)
            })?;
            return root.put_hard_link(&path, file);
        }
        EntryType::Symlink => Content::Symlink(target),
        EntryType::Char => Content::CharacterDevice(device().map_err(damaged)?),
        EntryType::Block => Content::BlockDevice(device().map_err(damaged)?),
        EntryType::Fifo => Content::Fifo,
        EntryType::Regular | EntryType::Continuous => {
            let (offset, size) = (entry.raw_file_position(), entry.size());
            Content::File(Source::Part { file: package.data.clone(), offset, size })
        }
        other => {
            let text = format!("{}: unknown type of entry {other:?}", path.display());
            return Err(Error::Package(package.path.clone(), text));
        }
    };
    // A link may name what another package brings as a directory; dpkg keeps the directory.
    if matches!(content, Content::Symlink(_)) && root.is_directory(&path) {
        return Ok(());
    }
    root.put(&path, attributes, content)?;
    Ok(())
}

/// The path that a member's name `./usr/bin/x` means. A path that would leave the root stays in it.
fn absolute(name: &[u8]) -> PathBuf {
    let plain = Path::new(OsStr::from_bytes(name)).components();
    let names = plain.filter(|component| matches!(component, std::path::Component::Normal(_)));
    Path::new("/").join(names.collect::<PathBuf>())
}
