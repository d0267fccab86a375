//! Two places where programs and libraries are looked for, the host and the finished root, seen alike.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use heddle_erofs::write::{Content, Node, Source};

use crate::Root;

/// A regular file that a path leads to.
#[derive(Debug)]
pub struct Found {
    /// Where it is, without symbolic links.
    pub real_path: PathBuf,
    /// Its permissions.
    pub permissions: u32,
    pub source: Source,
}

/// The target of a path.
#[derive(Debug)]
pub enum Target {
    Missing,
    /// A directory, or a device.
    Other,
    File(Found),
}

/// A file system to look for programs in.
pub trait View {
    /// Looks up the absolute `path`.
    fn look(&self, path: &Path) -> Target;

    /// The regular file that `path` leads to.
    fn file(&self, path: &Path) -> Option<Found> {
        match self.look(path) {
            Target::File(found) => Some(found),
            _ => None,
        }
    }
}

/// The host's own files.
#[derive(Debug)]
pub struct Host;

impl View for Host {
    fn look(&self, path: &Path) -> Target {
        let Ok(metadata) = fs::metadata(path) else {
            return Target::Missing;
        };
        match fs::canonicalize(path) {
            Ok(real_path) if metadata.is_file() => Target::File(Found {
                source: Source::Path { path: real_path.clone(), size: metadata.len() },
                real_path,
                permissions: metadata.mode() & 0o7777,
            }),
            Ok(_) => Target::Other,
            Err(_) => Target::Missing,
        }
    }
}

impl View for Root {
    fn look(&self, path: &Path) -> Target {
        let (Some(id), Some(real_path)) = (self.find(path), self.real_path(path)) else {
            return Target::Missing;
        };
        match self.tree().node(id) {
            Node::Other(Content::File(source)) => Target::File(Found {
                real_path,
                permissions: self.tree().attributes(id).permissions.into(),
                source: source.clone(),
            }),
            _ => Target::Other,
        }
    }
}
