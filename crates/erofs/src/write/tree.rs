//! The tree that an image is made of.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use super::WriteError;
use crate::{FileType, NAME_LIMIT, SYMLINK_LIMIT, Time};

/// A file's attributes as `stat` reports them, its type aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Permissions: the lower 12 bits of a mode.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last modification.
    pub mtime: Time,
}

impl Attributes {
    /// Attributes of a file that belongs to root and was modified at the epoch.
    #[must_use]
    pub fn root(permissions: u16) -> Self {
        Attributes { permissions, uid: 0, gid: 0, mtime: Time::default() }
    }
}

/// Where a regular file's bytes come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// These bytes.
    Bytes(Vec<u8>),
    /// A file as a whole.
    Path {
        /// The file, opened when the image is written.
        path: PathBuf,
        /// Its length; writing fails if the file has another.
        size: u64,
    },
    /// A part of an open file, such as a member of an archive.
    Part {
        /// The file.
        file: Arc<File>,
        /// The part's first byte.
        offset: u64,
        /// The part's length.
        size: u64,
    },
}

impl Source {
    /// Length in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::Path { size, .. } | Source::Part { size, .. } => *size,
        }
    }
}

/// The contents of a file that is no directory.
#[derive(Clone, Debug)]
pub enum Content {
    /// A regular file.
    File(Source),
    /// A symbolic link with its target.
    Symlink(Vec<u8>),
    /// A character device with its number, in Linux's 32-bit encoding.
    CharacterDevice(u32),
    /// A block device with its number, in Linux's 32-bit encoding.
    BlockDevice(u32),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// A device number in Linux's 32-bit encoding.
#[must_use]
pub fn device_number(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Names a file of a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(super) usize);

/// A file of a [`Tree`].
#[derive(Clone, Debug)]
pub enum Node {
    /// A directory with its entries.
    Directory(BTreeMap<Vec<u8>, NodeId>),
    /// Anything else.
    Other(Content),
}

impl Node {
    pub(super) fn file_type(&self) -> FileType {
        match self {
            Node::Directory(_) => FileType::Directory,
            Node::Other(Content::File(_)) => FileType::Regular,
            Node::Other(Content::Symlink(_)) => FileType::Symlink,
            Node::Other(Content::CharacterDevice(_)) => FileType::CharacterDevice,
            Node::Other(Content::BlockDevice(_)) => FileType::BlockDevice,
            Node::Other(Content::Fifo) => FileType::Fifo,
            Node::Other(Content::Socket) => FileType::Socket,
        }
    }
}

/// A file hierarchy to make an image of.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(super) nodes: Vec<(Attributes, Node)>,
}

impl Tree {
    /// The root directory of every tree.
    pub const ROOT: NodeId = NodeId(0);

    /// A tree with nothing but its root directory.
    #[must_use]
    pub fn new(root: Attributes) -> Self {
        Tree { nodes: vec![(root, Node::Directory(BTreeMap::new()))] }
    }

    /// A file's node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0].1
    }

    /// A file's attributes.
    #[must_use]
    pub fn attributes(&self, id: NodeId) -> &Attributes {
        &self.nodes[id.0].0
    }

    /// A file's attributes, to change them.
    pub fn attributes_mut(&mut self, id: NodeId) -> &mut Attributes {
        &mut self.nodes[id.0].0
    }

    /// The file that `name` stands for in `directory`.
    #[must_use]
    pub fn child(&self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        match self.node(directory) {
            Node::Directory(children) => children.get(name).copied(),
            Node::Other(_) => None,
        }
    }

    /// Adds an empty directory.
    pub fn add_directory(
        &mut self,
        parent: NodeId,
        name: &[u8],
        attributes: Attributes,
    ) -> Result<NodeId, WriteError> {
        self.insert(parent, name, attributes, Node::Directory(BTreeMap::new()))
    }

    /// Adds anything else.
    pub fn add(
        &mut self,
        parent: NodeId,
        name: &[u8],
        attributes: Attributes,
        content: Content,
    ) -> Result<NodeId, WriteError> {
        match &content {
            Content::Symlink(target)
                if target.is_empty() || target.len() > SYMLINK_LIMIT || target.contains(&0) =>
            {
                return Err(WriteError::Target(target.clone()));
            }
            _ => {}
        }
        self.insert(parent, name, attributes, Node::Other(content))
    }

    /// Gives a file that is not a directory one more name.
    pub fn link(&mut self, parent: NodeId, name: &[u8], file: NodeId) -> Result<(), WriteError> {
        if let Node::Directory(_) = self.node(file) {
            return Err(WriteError::DirectoryLink);
        }
        self.enter(parent, name, file)
    }

    /// Removes a name, with all that is below it; files that have another name remain.
    pub fn remove(&mut self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        match &mut self.nodes[parent.0].1 {
            Node::Directory(children) => children.remove(name),
            Node::Other(_) => None,
        }
    }

    fn insert(
        &mut self,
        parent: NodeId,
        name: &[u8],
        attributes: Attributes,
        node: Node,
    ) -> Result<NodeId, WriteError> {
        let id = NodeId(self.nodes.len());
        self.enter(parent, name, id)?;
        self.nodes.push((attributes, node));
        Ok(id)
    }

    fn enter(&mut self, parent: NodeId, name: &[u8], id: NodeId) -> Result<(), WriteError> {
        let plain =
            (1..=NAME_LIMIT).contains(&name.len()) && !name.iter().any(|&byte| byte == 0 || byte == b'/');
        if !plain || name == b"." || name == b".." {
            return Err(WriteError::Name(name.to_vec()));
        }
        let Node::Directory(children) = &mut self.nodes[parent.0].1 else {
            return Err(WriteError::NotDirectory);
        };
        if children.contains_key(name) {
            return Err(WriteError::Exists(name.to_vec()));
        }
        children.insert(name.to_vec(), id);
        Ok(())
    }
}
