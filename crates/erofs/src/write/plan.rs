//! The layout: superblock, inodes with their inline tails, directory blocks, file data.

use std::collections::BTreeMap;
use std::io::{Seek, Write};

use super::output::Output;
use super::tree::{Content, Node, NodeId, Tree};
use super::{Source, WriteError};
use crate::checksum;
use crate::layout::{self, BLOCK_SIZE, DIRENT_SIZE, SLOT_SIZE, device, inode, superblock};

/// The name of a lower image in the table of devices.
const LOWER: &[u8] = b"lower";

/// A tree with every byte's place in the image settled.
#[derive(Debug)]
pub struct Plan<'a> {
    tree: &'a Tree,
    /// All reachable files, each directory's entries side by side.
    files: Vec<Placed>,
    /// Index into `files` by node.
    places: BTreeMap<NodeId, usize>,
    /// Blocks of all metadata, directories included; file data comes behind.
    metadata_blocks: u64,
    blocks: u32,
    /// Blocks of the image below, which follow.
    lower_blocks: u32,
}

#[derive(Debug)]
struct Placed {
    node: NodeId,
    /// For the entry `..`.
    parent: NodeId,
    links: u32,
    size: u64,
    /// Of the inode.
    offset: u64,
    /// How much of the data follows the inode.
    inline: usize,
    /// First block of the rest.
    block: u32,
    /// Whether the data is the lower image's.
    is_below: bool,
}

impl<'a> Plan<'a> {
    /// Lays out `tree`.
    pub fn new(tree: &'a Tree) -> Result<Self, WriteError> {
        Self::over(tree, None)
    }

    /// Lays out `tree`, a clone of the tree of `lower` that has been changed since, as an image whose files take from
    /// that of `lower` the data that they share with it. Where both are in memory, the lower image follows this one.
    ///
    /// `lower` itself must be laid out as a whole.
    pub fn above(tree: &'a Tree, lower: &Plan<'_>) -> Result<Self, WriteError> {
        Self::over(tree, Some(lower))
    }

    fn over(tree: &'a Tree, lower: Option<&Plan<'_>>) -> Result<Self, WriteError> {
        let (mut files, places) = visit(tree);
        let mut end = (layout::SUPER_OFFSET + layout::SUPER_SIZE) as u64;
        if lower.is_some() {
            end += device::SIZE as u64;
        }
        for file in &mut files {
            let below = lower.and_then(|lower| lower.data_of(file.node));
            file.is_below = below.is_some_and(|size| Some(size) == data_size(tree.node(file.node)));
            (file.size, file.inline) = sizes(tree.node(file.node));
            let need = (inode::EXTENDED_SIZE + file.inline) as u64;
            if end % BLOCK_SIZE as u64 + need > BLOCK_SIZE as u64 {
                end = end.next_multiple_of(BLOCK_SIZE as u64);
            }
            file.offset = end;
            end = (end + need).next_multiple_of(SLOT_SIZE as u64);
        }
        let mut blocks = end.div_ceil(BLOCK_SIZE as u64);
        let mut metadata_blocks = 0;
        for of_files in [false, true] {
            for file in &mut files {
                if data_size(tree.node(file.node)).is_some() == of_files && !file.is_below {
                    file.block = u32::try_from(blocks).map_err(|_| WriteError::TooLarge)?;
                    blocks += (file.size - file.inline as u64).div_ceil(BLOCK_SIZE as u64);
                }
            }
            if !of_files {
                metadata_blocks = blocks;
            }
        }
        let lower_blocks = lower.map_or(0, |lower| lower.blocks);
        u32::try_from(blocks + u64::from(lower_blocks)).map_err(|_| WriteError::TooLarge)?;
        let blocks = blocks as u32;
        if let Some(lower) = lower {
            for file in files.iter_mut().filter(|file| file.is_below) {
                file.block = blocks + lower.files[lower.places[&file.node]].block;
            }
        }
        Ok(Plan { tree, files, places, metadata_blocks, blocks, lower_blocks })
    }

    /// The length of a regular file whose data this image has.
    fn data_of(&self, node: NodeId) -> Option<u64> {
        let file = &self.files[*self.places.get(&node)?];
        data_size(self.tree.node(node)).filter(|_| !file.is_below)
    }

    /// The image's length in bytes, without that of an image below.
    #[must_use]
    pub fn length(&self) -> u64 {
        u64::from(self.blocks) << layout::BLOCK_BITS
    }

    /// How many files, directories included, the image has.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Writes the image from the output's present position on.
    ///
    /// Blocks of zeroes are skipped, so the output must read as zero where nothing was written. `progress` hears
    /// how many of [`Plan::length`] bytes are done.
    pub fn write<W: Write + Seek>(&self, out: W, progress: &mut dyn FnMut(u64)) -> Result<(), WriteError> {
        let mut out = Output::new(out, progress)?;
        out.bytes(&self.metadata())?;
        for file in self.files.iter().filter(|file| !file.is_below) {
            if let Node::Other(Content::File(source)) = self.tree.node(file.node) {
                debug_assert_eq!(out.position(), u64::from(file.block) << layout::BLOCK_BITS);
                match source {
                    Source::Bytes(bytes) => out.bytes(bytes)?,
                    Source::Path { path, size } => out.path(path, *size)?,
                    Source::Part { file, offset, size } => out.part(file, *offset, *size)?,
                }
            }
        }
        debug_assert_eq!(out.position(), self.length());
        out.finish()
    }

    /// All blocks before the file data.
    fn metadata(&self) -> Vec<u8> {
        let mut bytes = vec![0; (self.metadata_blocks as usize) << layout::BLOCK_BITS];
        for (index, file) in self.files.iter().enumerate() {
            self.write_inode(index, &mut bytes);
            let data = match self.tree.node(file.node) {
                Node::Directory(children) => self.directory(file, children),
                Node::Other(Content::Symlink(target)) => target.clone(),
                Node::Other(_) => continue,
            };
            let (body, tail) = data.split_at(data.len() - file.inline);
            put(&mut bytes, (file.block as usize) << layout::BLOCK_BITS, body);
            put(&mut bytes, file.offset as usize + inode::EXTENDED_SIZE, tail);
        }
        self.write_superblock(&mut bytes);
        bytes
    }

    fn write_superblock(&self, bytes: &mut [u8]) {
        let head = &mut bytes[layout::SUPER_OFFSET..];
        let root = self.nid(Tree::ROOT) as u16;
        put(head, superblock::MAGIC, &layout::MAGIC.to_le_bytes());
        let compatible = layout::COMPAT_CHECKSUM | layout::COMPAT_MTIME;
        put(head, superblock::FEATURE_COMPAT, &compatible.to_le_bytes());
        put(head, superblock::BLOCK_BITS, &[layout::BLOCK_BITS]);
        put(head, superblock::ROOT_NID, &root.to_le_bytes());
        put(head, superblock::INODES, &(self.files.len() as u64).to_le_bytes());
        put(head, superblock::BLOCKS, &self.blocks.to_le_bytes());
        if self.lower_blocks > 0 {
            let table = layout::SUPER_OFFSET + layout::SUPER_SIZE;
            put(head, superblock::FEATURE_INCOMPAT, &layout::INCOMPAT_DEVICE_TABLE.to_le_bytes());
            put(head, superblock::EXTRA_DEVICES, &1_u16.to_le_bytes());
            put(head, superblock::DEVICE_TABLE, &((table / device::SIZE) as u16).to_le_bytes());
            let entry = &mut bytes[table..];
            put(entry, device::TAG, LOWER);
            put(entry, device::BLOCKS, &self.lower_blocks.to_le_bytes());
            put(entry, device::FIRST_BLOCK, &self.blocks.to_le_bytes());
        }
        let checksum = checksum::of_superblock(bytes);
        put(bytes, layout::SUPER_OFFSET + superblock::CHECKSUM, &checksum.to_le_bytes());
    }

    fn write_inode(&self, index: usize, bytes: &mut [u8]) {
        let file = &self.files[index];
        let node = self.tree.node(file.node);
        let attributes = self.tree.attributes(file.node);
        let layout = if file.inline > 0 { layout::LAYOUT_INLINE } else { layout::LAYOUT_PLAIN };
        let location = match node {
            Node::Other(Content::CharacterDevice(device) | Content::BlockDevice(device)) => *device,
            _ => file.block,
        };
        let raw = &mut bytes[file.offset as usize..][..inode::EXTENDED_SIZE];
        put(raw, inode::FORMAT, &(layout::FORMAT_EXTENDED | layout << 1).to_le_bytes());
        put(raw, inode::MODE, &(node.file_type().mode() | attributes.permissions & 0o7777).to_le_bytes());
        put(raw, inode::SIZE, &file.size.to_le_bytes());
        put(raw, inode::LOCATION, &location.to_le_bytes());
        put(raw, inode::INO, &(index as u32 + 1).to_le_bytes());
        put(raw, inode::EXTENDED_UID, &attributes.uid.to_le_bytes());
        put(raw, inode::EXTENDED_GID, &attributes.gid.to_le_bytes());
        put(raw, inode::EXTENDED_MTIME, &attributes.mtime.seconds.to_le_bytes());
        put(raw, inode::EXTENDED_MTIME_NSEC, &attributes.mtime.nanoseconds.to_le_bytes());
        put(raw, inode::EXTENDED_NLINK, &file.links.to_le_bytes());
    }

    fn nid(&self, node: NodeId) -> u64 {
        self.files[self.places[&node]].offset / SLOT_SIZE as u64
    }

    /// The contents of a directory.
    fn directory(&self, file: &Placed, children: &BTreeMap<Vec<u8>, NodeId>) -> Vec<u8> {
        let mut data = Vec::with_capacity(file.size as usize);
        let names = names(children);
        for block in blocks_of(&names) {
            data.resize(data.len().next_multiple_of(BLOCK_SIZE), 0);
            let mut name_offset = block.len() * DIRENT_SIZE;
            for name in block {
                let node = match *name {
                    b"." => file.node,
                    b".." => file.parent,
                    name => children[name],
                };
                let kind = self.tree.node(node).file_type().entry_code();
                data.extend_from_slice(&self.nid(node).to_le_bytes());
                data.extend_from_slice(&(name_offset as u16).to_le_bytes());
                data.extend_from_slice(&[kind, 0]);
                name_offset += name.len();
            }
            for name in block {
                data.extend_from_slice(name);
            }
        }
        debug_assert_eq!(data.len() as u64, file.size);
        data
    }
}

fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
}

/// All files reachable from the root, breadth first, with their link counts.
fn visit(tree: &Tree) -> (Vec<Placed>, BTreeMap<NodeId, usize>) {
    let place = |node, parent, links| {
        let (size, offset, inline, block, is_below) = (0, 0, 0, 0, false);
        Placed { node, parent, links, size, offset, inline, block, is_below }
    };
    let mut files = vec![place(Tree::ROOT, Tree::ROOT, 2)];
    let mut places = BTreeMap::from([(Tree::ROOT, 0)]);
    let mut next = 0;
    while next < files.len() {
        let directory = files[next].node;
        if let Node::Directory(children) = tree.node(directory) {
            for &child in children.values() {
                let is_directory = matches!(tree.node(child), Node::Directory(_));
                // A directory has a link from its parent, one from itself, and one from each directory in it.
                files[next].links += u32::from(is_directory);
                if let Some(&known) = places.get(&child) {
                    files[known].links += 1;
                } else {
                    places.insert(child, files.len());
                    files.push(place(child, directory, if is_directory { 2 } else { 1 }));
                }
            }
        }
        next += 1;
    }
    (files, places)
}

/// The length of a regular file.
fn data_size(node: &Node) -> Option<u64> {
    match node {
        Node::Other(Content::File(source)) => Some(source.size()),
        _ => None,
    }
}

/// The length of a file's data, and how much of it goes beside the inode.
fn sizes(node: &Node) -> (u64, usize) {
    let (size, inline) = match node {
        Node::Directory(children) => {
            let names = names(children);
            let mut blocks =
                blocks_of(&names).map(|block| block.iter().map(|name| need(name)).sum::<usize>());
            let last = blocks.next_back().unwrap_or(0);
            (blocks.count() * BLOCK_SIZE + last, last)
        }
        Node::Other(Content::Symlink(target)) => (target.len(), target.len()),
        Node::Other(Content::File(source)) => return (source.size(), 0),
        Node::Other(_) => return (0, 0),
    };
    let fits = inode::EXTENDED_SIZE + inline <= BLOCK_SIZE;
    (size as u64, if fits { inline } else { 0 })
}

/// The names of a directory's entries, `.` and `..` at their places in the order.
fn names(children: &BTreeMap<Vec<u8>, NodeId>) -> Vec<&[u8]> {
    let mut names: Vec<&[u8]> = children.keys().map(Vec::as_slice).collect();
    for name in [&b"."[..], b".."] {
        names.insert(names.partition_point(|other| *other < name), name);
    }
    names
}

fn need(name: &[u8]) -> usize {
    DIRENT_SIZE + name.len()
}

/// Cuts `names` into runs of which each fills a directory block.
fn blocks_of<'a>(names: &'a [&'a [u8]]) -> impl DoubleEndedIterator<Item = &'a [&'a [u8]]> {
    let mut blocks = Vec::new();
    let (mut start, mut used) = (0, 0);
    for (index, name) in names.iter().enumerate() {
        if used + need(name) > BLOCK_SIZE {
            blocks.push(&names[start..index]);
            (start, used) = (index, 0);
        }
        used += need(name);
    }
    blocks.push(&names[start..]);
    blocks.into_iter()
}
