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

/// The host's files, and those that are added to a root, at their paths in the guest.
#[derive(Debug)]
pub struct HostWithAdded<'a>(pub &'a [(PathBuf, PathBuf)]);

impl HostWithAdded<'_> {
    /// Where a path of the guest comes from, if it is added: by the last addition that has it.
    pub fn origin(&self, path: &Path) -> Option<PathBuf> {
        self.0.iter().rev().find_map(|(from, to)| {
            let rest = path.strip_prefix(to).ok()?;
            let origin = if rest.as_os_str().is_empty() { from.clone() } else { from.join(rest) };
            origin.exists().then_some(origin)
        })
    }
}

impl View for HostWithAdded<'_> {
    fn look(&self, path: &Path) -> Target {
        Host.look(self.origin(path).as_deref().unwrap_or(path))
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
