//! The guest's root under construction: a tree that is spoken to in paths, as a system that unpacks packages would.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use heddle_erofs::write::{Attributes, Content, Node, NodeId, Tree, WriteError};

use crate::Error;
use crate::elf::Reader;
use crate::view::View;

/// How many symbolic links a path may lead through, as in Linux.
const LINK_LIMIT: usize = 40;

/// A file hierarchy, and what could not be put into it.
#[derive(Clone, Debug)]
pub struct Root {
    tree: Tree,
    warnings: Vec<String>,
}

impl Default for Root {
    /// An empty root directory.
    fn default() -> Self {
        Root { tree: Tree::new(Attributes::root(0o755)), warnings: Vec::new() }
    }
}

impl Root {
    /// The files.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(crate) fn tree_mut(&mut self) -> &mut Tree {
        &mut self.tree
    }

    /// Notes that something was left out.
    pub(crate) fn warn(&mut self, text: String) {
        self.warnings.push(text);
    }

    /// Takes the warnings: each file that was left out, and why.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// The file that `path` leads to, symbolic links followed.
    pub(crate) fn find(&self, path: &Path) -> Option<NodeId> {
        self.walk(path, true).map(|(trail, _)| trail.last().map_or(Tree::ROOT, |(id, _)| *id))
    }

    /// The file at `path` itself, should it be a symbolic link.
    pub(crate) fn find_link(&self, path: &Path) -> Option<NodeId> {
        self.walk(path, false).map(|(trail, _)| trail.last().map_or(Tree::ROOT, |(id, _)| *id))
    }

    /// The path without symbolic links of the file that `path` leads to.
    pub(crate) fn real_path(&self, path: &Path) -> Option<PathBuf> {
        let (trail, _) = self.walk(path, true)?;
        Some(Path::new("/").join(trail.into_iter().map(|(_, name)| name).collect::<PathBuf>()))
    }

    /// The text of the regular file that `path` leads to, empty if there is none or it is not text.
    pub(crate) fn text(&self, path: &Path) -> String {
        let mut text = String::new();
        let reader = self.file(path).and_then(|found| Reader::open(&found.source).ok());
        match reader.map(|mut reader| reader.read_to_string(&mut text)) {
            Some(Ok(_)) => text,
            _ => String::new(),
        }
    }

    pub(crate) fn is_directory(&self, path: &Path) -> bool {
        self.find(path).is_some_and(|id| matches!(self.tree.node(id), Node::Directory(_)))
    }

    /// Whether `path` is a symbolic link just like `content`.
    pub(crate) fn is_link_to(&self, path: &Path, content: &Content) -> bool {
        let present = self.find_link(path).map(|id| self.tree.node(id));
        match (present, content) {
            (Some(Node::Other(Content::Symlink(present))), Content::Symlink(target)) => present == target,
            _ => false,
        }
    }

    /// Makes `path` a directory, with those above it, unless it is one or leads to one; gives it `attributes`.
    pub(crate) fn put_directory(&mut self, path: &Path, attributes: Attributes) -> Result<NodeId, Error> {
        let id = self.directory(path).map_err(|error| Error::Place(path.to_owned(), error))?;
        *self.tree.attributes_mut(id) = attributes;
        Ok(id)
    }

    /// Makes `path` a directory if there is nothing.
    pub(crate) fn ensure_directory(&mut self, path: &Path, permissions: u16) -> Result<(), Error> {
        if self.find(path).is_none() {
            self.put_directory(path, Attributes::root(permissions))?;
        }
        Ok(())
    }

    /// Puts a file at `path`, in place of what was there, a directory excepted.
    pub(crate) fn put(
        &mut self,
        path: &Path,
        attributes: Attributes,
        content: Content,
    ) -> Result<NodeId, Error> {
        let place = |error| Error::Place(path.to_owned(), error);
        let (parent, name) = self.vacate(path).map_err(place)?;
        self.tree.add(parent, name.as_bytes(), attributes, content).map_err(place)
    }

    /// Puts a file of text at `path`, unless there is something.
    pub(crate) fn put_default(
        &mut self,
        path: &str,
        permissions: u16,
        text: impl Into<Vec<u8>>,
    ) -> Result<(), Error> {
        if self.find_link(Path::new(path)).is_none() {
            let content = Content::File(heddle_erofs::write::Source::Bytes(text.into()));
            self.put(Path::new(path), Attributes::root(permissions), content)?;
        }
        Ok(())
    }

    /// Puts a symbolic link at `path`, unless there is something.
    pub(crate) fn link_default(&mut self, path: &Path, target: &Path) -> Result<(), Error> {
        if self.find_link(path).is_none() {
            let content = Content::Symlink(target.as_os_str().as_bytes().to_vec());
            self.put(path, Attributes::root(0o777), content)?;
        }
        Ok(())
    }

    /// Gives `file` the name `path` too.
    pub(crate) fn put_hard_link(&mut self, path: &Path, file: NodeId) -> Result<(), Error> {
        let place = |error| Error::Place(path.to_owned(), error);
        if self.find_link(path) == Some(file) {
            return Ok(());
        }
        let (parent, name) = self.vacate(path).map_err(place)?;
        self.tree.link(parent, name.as_bytes(), file).map_err(place)
    }

    /// Makes the directories above `path` and takes away what is at `path`, if that is no directory.
    fn vacate(&mut self, path: &Path) -> Result<(NodeId, OsString), WriteError> {
        let name = path.file_name().ok_or_else(|| WriteError::Name(path.as_os_str().as_bytes().to_vec()))?;
        let parent = self.directory(path.parent().unwrap_or(Path::new("/")))?;
        match self.tree.child(parent, name.as_bytes()).map(|id| self.tree.node(id)) {
            Some(Node::Directory(_)) => return Err(WriteError::Exists(name.as_bytes().to_vec())),
            Some(Node::Other(_)) => {
                self.tree.remove(parent, name.as_bytes());
            }
            None => {}
        }
        Ok((parent, name.to_owned()))
    }

    /// The directory that `path` leads to; what is missing on the way is made, behind dangling links too.
    fn directory(&mut self, path: &Path) -> Result<NodeId, WriteError> {
        if let Some(id) = self.find(path) {
            return match self.tree.node(id) {
                Node::Directory(_) => Ok(id),
                Node::Other(_) => Err(WriteError::NotDirectory),
            };
        }
        let mut trail: Vec<NodeId> = Vec::new();
        let mut todo = components(path);
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if name == ".." {
                trail.pop();
                continue;
            }
            let parent = trail.last().copied().unwrap_or(Tree::ROOT);
            let id = match self.tree.child(parent, name.as_bytes()) {
                Some(id) => id,
                None => self.tree.add_directory(parent, name.as_bytes(), Attributes::root(0o755))?,
            };
            match self.tree.node(id) {
                Node::Other(Content::Symlink(target)) if links < LINK_LIMIT => {
                    links += 1;
                    if target.starts_with(b"/") {
                        trail.clear();
                    }
                    todo.extend(components(Path::new(OsStr::from_bytes(target))));
                }
                Node::Directory(_) => trail.push(id),
                Node::Other(_) => return Err(WriteError::NotDirectory),
            }
        }
        Ok(trail.last().copied().unwrap_or(Tree::ROOT))
    }

    /// Follows `path` and returns the files from the root's entry down to the last, with how many links there were.
    fn walk(&self, path: &Path, follow_last: bool) -> Option<(Vec<(NodeId, OsString)>, usize)> {
        let mut trail: Vec<(NodeId, OsString)> = Vec::new();
        let mut todo = components(path);
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if name == ".." {
                trail.pop();
                continue;
            }
            let parent = trail.last().map_or(Tree::ROOT, |(id, _)| *id);
            let id = self.tree.child(parent, name.as_bytes())?;
            match self.tree.node(id) {
                Node::Other(Content::Symlink(target)) if follow_last || !todo.is_empty() => {
                    links += 1;
                    if links > LINK_LIMIT {
                        return None;
                    }
                    if target.starts_with(b"/") {
                        trail.clear();
                    }
                    todo.extend(components(Path::new(OsStr::from_bytes(target))));
                }
                _ => trail.push((id, name)),
            }
        }
        Some((trail, links))
    }
}

/// The names of a path, last first; no `.`.
fn components(path: &Path) -> Vec<OsString> {
    let name = |component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from_vec(b"..".to_vec())),
        _ => None,
    };
    path.components().rev().filter_map(name).collect()
}
