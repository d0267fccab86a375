//! Trees to make images of, and what a reader should then see.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::io::Cursor;

use heddle_erofs::write::{Attributes, Content, Node, NodeId, Plan, Source, Tree};
use heddle_erofs::{BLOCK_SIZE, FileType, Image, Inode, Page, Time};
use proptest::prelude::*;

/// A file as a test describes it.
#[derive(Clone, Debug)]
pub enum File {
    Directory(BTreeMap<Vec<u8>, (Attributes, File)>),
    Regular(Vec<u8>),
    Symlink(Vec<u8>),
    Character(u32),
    Block(u32),
    Fifo,
    Socket,
}

pub fn attributes() -> impl Strategy<Value = Attributes> {
    (0u16..0o10000, any::<u32>(), any::<u32>(), 0u64..1 << 40, 0u32..1_000_000_000).prop_map(
        |(permissions, uid, gid, seconds, nanoseconds)| Attributes {
            permissions,
            uid,
            gid,
            mtime: Time { seconds, nanoseconds },
        },
    )
}

pub fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = (1u8..).prop_filter("a name's byte", |&byte| byte != b'/');
    prop_oneof![
        4 => proptest::collection::vec(proptest::sample::select(b"!-.ab".to_vec()), 1..5),
        1 => (1usize..=255, byte).prop_map(|(length, byte)| vec![byte; length]),
    ]
    .prop_filter("not special", |name| name != b"." && name != b"..")
}

/// File lengths around block boundaries, with runs of zeroes.
fn contents() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![0usize..100, 4090usize..4100, 8190usize..8194, 0usize..20000];
    (length, any::<u8>(), any::<bool>()).prop_map(|(length, seed, sparse)| {
        let byte = |index: usize| {
            if sparse && (index / 4096).is_multiple_of(2) { 0 } else { seed.wrapping_add(index as u8) }
        };
        (0..length).map(byte).collect()
    })
}

pub fn file() -> impl Strategy<Value = File> {
    let target = (1usize..=4095, 1u8..).prop_map(|(length, byte)| vec![byte; length]);
    let leaf = prop_oneof![
        4 => contents().prop_map(File::Regular),
        2 => prop_oneof![proptest::collection::vec(1u8.., 1..40), target].prop_map(File::Symlink),
        1 => any::<u32>().prop_map(File::Character),
        1 => any::<u32>().prop_map(File::Block),
        1 => Just(File::Fifo),
        1 => Just(File::Socket),
    ];
    leaf.prop_recursive(4, 60, 20, |inner| {
        proptest::collection::btree_map(name(), (attributes(), inner), 0..20).prop_map(File::Directory)
    })
}

pub fn directory() -> impl Strategy<Value = BTreeMap<Vec<u8>, (Attributes, File)>> {
    proptest::collection::btree_map(name(), (attributes(), file()), 0..30)
}

/// Puts `files` into `tree`.
pub fn plant(tree: &mut Tree, parent: NodeId, files: &BTreeMap<Vec<u8>, (Attributes, File)>) {
    for (name, (attributes, file)) in files {
        let content = match file {
            File::Directory(children) => {
                let directory = tree.add_directory(parent, name, *attributes).unwrap();
                plant(tree, directory, children);
                continue;
            }
            File::Regular(bytes) => Content::File(Source::Bytes(bytes.clone())),
            File::Symlink(target) => Content::Symlink(target.clone()),
            File::Character(device) => Content::CharacterDevice(*device),
            File::Block(device) => Content::BlockDevice(*device),
            File::Fifo => Content::Fifo,
            File::Socket => Content::Socket,
        };
        tree.add(parent, name, *attributes, content).unwrap();
    }
}

pub fn image_of(tree: &Tree) -> Vec<u8> {
    let plan = Plan::new(tree).unwrap();
    let mut out = Cursor::new(Vec::new());
    plan.write(&mut out, &mut |_| {}).unwrap();
    let bytes = out.into_inner();
    assert_eq!(bytes.len() as u64, plan.length());
    bytes
}

/// Reads a whole file through its pages, which must be mappable.
pub fn contents_of(image: &Image<'_>, inode: &Inode) -> Vec<u8> {
    let mut contents = Vec::new();
    for index in 0.. {
        match inode.page(index) {
            Some(Page::InPlace { offset }) => {
                assert_eq!(offset % BLOCK_SIZE, 0);
                contents.extend_from_slice(&image.bytes()[offset as usize..][..BLOCK_SIZE as usize]);
            }
            Some(Page::Inline { .. }) => panic!("a page that can't be mapped"),
            None => break,
        }
    }
    let padding = contents.split_off(inode.size as usize);
    assert!(padding.len() < BLOCK_SIZE as usize && padding.iter().all(|&byte| byte == 0));
    contents
}

/// Checks that directory number `nid` of the image is directory `id` of the tree, with all below it.
pub fn compare(image: &Image<'_>, nid: u64, parent: u64, tree: &Tree, id: NodeId) {
    let inode = image.inode(nid).unwrap();
    let attributes = tree.attributes(id);
    assert_eq!(inode.mode & 0o7777, attributes.permissions);
    assert_eq!((inode.uid, inode.gid, inode.mtime), (attributes.uid, attributes.gid, attributes.mtime));
    match tree.node(id) {
        Node::Directory(children) => {
            assert_eq!(inode.file_type, FileType::Directory);
            let entries: Vec<_> = image.entries(&inode, 0).unwrap().map(Result::unwrap).collect();
            assert!(entries.is_sorted_by(|a, b| a.name < b.name));
            assert_eq!(entries.len(), children.len() + 2);
            let directories = entries.iter().filter(|entry| entry.file_type == FileType::Directory).count();
            assert_eq!(inode.nlink as usize, directories, "`.`, `..` and one for each subdirectory");
            for (index, entry) in entries.iter().enumerate() {
                assert_eq!(image.lookup(&inode, entry.name).unwrap().unwrap(), *entry);
                let next = image.entries(&inode, entry.next).unwrap().next().map(Result::unwrap);
                assert_eq!(next, entries.get(index + 1).copied(), "going on from a cookie");
                match entry.name {
                    b"." => assert_eq!(entry.nid, nid),
                    b".." => assert_eq!(entry.nid, parent),
                    name => compare(image, entry.nid, nid, tree, children[name]),
                }
                assert_eq!(image.inode(entry.nid).unwrap().file_type, entry.file_type);
            }
        }
        Node::Other(Content::File(Source::Bytes(bytes))) => {
            assert_eq!(inode.file_type, FileType::Regular);
            assert!(contents_of(image, &inode) == *bytes);
        }
        Node::Other(Content::File(source)) => assert_eq!(inode.size, source.size()),
        Node::Other(Content::Symlink(target)) => assert_eq!(image.symlink(&inode).unwrap(), target),
        Node::Other(Content::CharacterDevice(device)) => {
            assert_eq!((inode.file_type, inode.device), (FileType::CharacterDevice, *device));
        }
        Node::Other(Content::BlockDevice(device)) => {
            assert_eq!((inode.file_type, inode.device), (FileType::BlockDevice, *device));
        }
        Node::Other(Content::Fifo) => assert_eq!(inode.file_type, FileType::Fifo),
        Node::Other(Content::Socket) => assert_eq!(inode.file_type, FileType::Socket),
    }
}
