//! Bringing files of the host into the root: with their attributes, and hard links as such.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use heddle_erofs::Time;
use heddle_erofs::write::{Attributes, Content, NodeId, Source, device_number};

use crate::stamp::Stamp;
use crate::{Error, Root};

/// Copies files of the host into a [`Root`]: their description at once, their bytes when the image is written.
#[derive(Debug)]
pub struct Importer<'a> {
    pub root: &'a mut Root,
    /// Whether an image stands only as long as the files that come now stay the same. Files of installed packages
    /// don't need that: the package database tells when they change.
    pub watch: bool,
    /// The state of the watched files when they were described.
    pub stamps: Vec<Stamp>,
    /// Whether directories come with their times.
    dated: bool,
    /// Files with several names, by device and inode number.
    shared: HashMap<(u64, u64), NodeId>,
}

impl<'a> Importer<'a> {
    pub fn new(root: &'a mut Root) -> Self {
        Importer { root, watch: true, stamps: Vec::new(), dated: false, shared: HashMap::new() }
    }

    /// Puts the host's file or directory `from` at `to`, without what is in a directory and with symbolic links as
    /// they are. Files that the user may not read are left out with a warning.
    pub fn entry(&mut self, from: &Path, to: &Path) -> Result<(), Error> {
        if self.watch {
            self.stamps.push(Stamp::of(from));
        }
        self.place(from, to)
    }

    fn place(&mut self, from: &Path, to: &Path) -> Result<(), Error> {
        match fs::symlink_metadata(from) {
            Ok(metadata) => self.place_with(from, to, &metadata),
            // Hosts leave out parts of packages (documentation in containers), and some files come and go.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.root.warn(format!("{}: left out: {error}", from.display()));
                Ok(())
            }
            Err(error) => Err(Error::Read(from.to_owned(), error)),
        }
    }

    fn place_with(&mut self, from: &Path, to: &Path, metadata: &Metadata) -> Result<(), Error> {
        let attributes = attributes_of(metadata);
        let kind = metadata.file_type();
        if kind.is_dir() {
            // Directories of the system change with files that are none of the image's; they get times in the end.
            let mtime = if self.dated { attributes.mtime } else { Time::default() };
            self.root.put_directory(to, Attributes { mtime, ..attributes })?;
            return Ok(());
        }
        let identity = (metadata.dev(), metadata.ino());
        if let Some(&known) = self.shared.get(&identity) {
            return self.root.put_hard_link(to, known);
        }
        let content = if kind.is_symlink() {
            let target = fs::read_link(from).map_err(|error| Error::Read(from.to_owned(), error))?;
            Content::Symlink(target.as_os_str().as_bytes().to_vec())
        } else if kind.is_file() {
            if !readable(from, metadata) {
                self.root.warn(format!("{}: left out: permission denied", from.display()));
                return Ok(());
            }
            Content::File(Source::Path { path: from.to_owned(), size: metadata.len() })
        } else if kind.is_char_device() {
            Content::CharacterDevice(device(metadata))
        } else if kind.is_block_device() {
            Content::BlockDevice(device(metadata))
        } else if kind.is_fifo() {
            Content::Fifo
        } else {
            Content::Socket
        };
        if self.root.is_link_to(to, &content) {
            return Ok(());
        }
        if kind.is_symlink() && self.root.is_directory(to) && self.root.find(to) == self.root.find_link(to) {
            self.root.warn(format!("{}: left out: a directory is in its place", from.display()));
            return Ok(());
        }
        let id = self.root.put(to, attributes, content)?;
        if metadata.nlink() > 1 {
            self.shared.insert(identity, id);
        }
        Ok(())
    }

    /// Puts everything in and below the host's `from` at `to`; directories of the kernel's own files stay empty.
    pub fn subtree(&mut self, from: &Path, to: &Path) -> Result<(), Error> {
        self.dated = true;
        let mut open = vec![(from.to_owned(), to.to_owned())];
        while let Some((from, to)) = open.pop() {
            self.entry(&from, &to)?;
            if !fs::symlink_metadata(&from).is_ok_and(|metadata| metadata.is_dir()) {
                continue;
            }
            if is_kernels(&from) {
                continue;
            }
            let entries = match fs::read_dir(&from) {
                Ok(entries) => entries,
                Err(error) => {
                    self.root.warn(format!("{}: left out: {error}", from.display()));
                    continue;
                }
            };
            for entry in entries {
                let name = entry.map_err(|error| Error::Read(from.clone(), error))?.file_name();
                open.push((from.join(&name), to.join(&name)));
            }
        }
        self.dated = false;
        Ok(())
    }

    /// Puts the file that the host's absolute `path` leads to into the root, at the same path, with all directories
    /// and symbolic links on the way; links that are there already stay.
    pub fn chain(&mut self, path: &Path) -> Result<(), Error> {
        for step in hops(path) {
            // Directories on the way change with every file that comes and goes in them.
            if step.is_symlink() || !step.is_dir() {
                self.entry(&step, &step)?;
            } else {
                self.place(&step, &step)?;
            }
        }
        Ok(())
    }
}

/// Every path that the host passes on the way to the file at the absolute `path`: directories, symbolic links, and
/// last the file itself. Each is free of symbolic links but for its last component.
pub fn hops(path: &Path) -> Vec<PathBuf> {
    let mut steps = Vec::new();
    let mut at = PathBuf::from("/");
    let mut todo: Vec<PathBuf> = vec![path.to_owned()];
    let mut links = 0;
    while let Some(rest) = todo.pop() {
        let mut components = rest.components();
        let Some(first) = components.next() else {
            continue;
        };
        let behind = components.as_path();
        if !behind.as_os_str().is_empty() {
            todo.push(behind.to_owned());
        }
        match first {
            Component::RootDir => at = PathBuf::from("/"),
            Component::ParentDir => {
                at.pop();
            }
            Component::Normal(name) => {
                at.push(name);
                steps.push(at.clone());
                if let (Ok(target), true) = (fs::read_link(&at), links < 40) {
                    links += 1;
                    at.pop();
                    todo.push(target);
                }
            }
            Component::CurDir | Component::Prefix(_) => {}
        }
    }
    steps
}

pub fn attributes_of(metadata: &Metadata) -> Attributes {
    Attributes {
        permissions: (metadata.mode() & 0o7777) as u16,
        uid: metadata.uid(),
        gid: metadata.gid(),
        mtime: Time {
            seconds: u64::try_from(metadata.mtime()).unwrap_or(0),
            nanoseconds: u32::try_from(metadata.mtime_nsec()).unwrap_or(0),
        },
    }
}

/// Whether a directory's files are the running kernel's own rather than data: `/proc`, `/sys` and what is
/// mounted inside them.
fn is_kernels(directory: &Path) -> bool {
    const PROC: i64 = 0x9fa0;
    const SYSFS: i64 = 0x6265_6572;
    const CGROUP2: i64 = 0x6367_7270;
    const DEVPTS: i64 = 0x1cd1;
    rustix::fs::statfs(directory).is_ok_and(|statistics| {
        let kind: i64 = statistics.f_type;
        [PROC, SYSFS, CGROUP2, DEVPTS].contains(&kind)
    })
}

/// Whether the user may read a file; what everyone may read needs no further question.
fn readable(path: &Path, metadata: &Metadata) -> bool {
    metadata.mode() & 0o004 != 0 || rustix::fs::access(path, rustix::fs::Access::READ_OK).is_ok()
}

fn device(metadata: &Metadata) -> u32 {
    device_number(rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_own_files_stay_out() {
        assert!(is_kernels(Path::new("/proc")) && is_kernels(Path::new("/proc/self")));
        assert!(!is_kernels(Path::new("/")) && !is_kernels(&std::env::temp_dir()));
        let mut root = Root::default();
        Importer::new(&mut root).subtree(Path::new("/proc"), Path::new("/proc")).unwrap();
        assert!(root.is_directory(Path::new("/proc")) && root.find(Path::new("/proc/self")).is_none());
    }

    #[test]
    fn every_hop_of_a_path() {
        let directory = tempfile::tempdir().unwrap();
        let place = fs::canonicalize(directory.path()).unwrap();
        fs::create_dir(place.join("real")).unwrap();
        fs::write(place.join("real/file"), "").unwrap();
        std::os::unix::fs::symlink("real", place.join("link")).unwrap();
        std::os::unix::fs::symlink("../link/file", place.join("real/second")).unwrap();
        let hops = hops(&place.join("link/./second"));
        let below =
            hops.iter().filter_map(|hop| hop.strip_prefix(&place).ok()).filter(|hop| *hop != Path::new(""));
        let expected = ["link", "real", "real/second", "link", "real", "real/file"];
        assert_eq!(below.collect::<Vec<_>>(), expected.map(Path::new));
    }

    #[test]
    fn loops_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("loop");
        std::os::unix::fs::symlink("loop", &path).unwrap();
        assert!(hops(&path).len() < 100);
    }
}
