//! No damage to an image makes the reader panic, loop or leave the image.

mod common;

use std::collections::BTreeSet;

use heddle_erofs::write::{Attributes, Content, Source, Tree};
use heddle_erofs::{Error, FileType, Image, Page};
use proptest::prelude::*;

/// Calls everything on everything that can be reached, with a limit: a damaged directory may contain itself.
fn exercise(bytes: &[u8]) -> Result<usize, Error> {
    let image = Image::open(bytes)?;
    let mut open = vec![image.root()];
    let mut seen = BTreeSet::new();
    let mut failed = None;
    while let Some(nid) = open.pop() {
        if !seen.insert(nid) || seen.len() > 100 {
            continue;
        }
        let inode = match image.inode(nid) {
            Ok(inode) => inode,
            Err(error) => {
                failed = Some(error);
                continue;
            }
        };
        for index in [0, 1, inode.size / 4096, u64::MAX / 4096, u64::MAX] {
            match inode.page(index) {
                Some(Page::InPlace { offset }) => assert!(offset as usize + 4096 <= bytes.len()),
                Some(Page::Inline { offset, length }) => assert!(offset as usize + length <= bytes.len()),
                None => {}
            }
        }
        for offset in [0, 1, 4095, inode.size.saturating_sub(1), u64::MAX] {
            let count = image.read_at(&inode, offset, &mut [0; 100]);
            assert!(count as u64 <= inode.size);
        }
        if let Err(error) = image.symlink(&inode) {
            assert!(error == Error::NotSymlink || inode.file_type == FileType::Symlink);
        }
        for cookie in [0, 12, 13, 4096, inode.size, u64::MAX, u64::MAX - 4095] {
            let Ok(entries) = image.entries(&inode, cookie) else {
                assert_ne!(inode.file_type, FileType::Directory);
                break;
            };
            for entry in entries.take(500) {
                match entry {
                    Ok(entry) => {
                        assert!(!entry.name.is_empty() && entry.name.len() <= 255);
                        let _ = image.lookup(&inode, entry.name);
                        if open.len() < 300 {
                            open.push(entry.nid);
                        }
                    }
                    Err(error) => failed = Some(error),
                }
            }
        }
        for name in [&b""[..], b"a", b"\xff\xff", &[b'q'; 300]] {
            let _ = image.lookup(&inode, name);
        }
    }
    failed.map_or(Ok(seen.len()), Err)
}

/// A small image with directories of several blocks.
fn sample(checksummed: bool) -> Vec<u8> {
    let plain = Attributes::root(0o644);
    let mut tree = Tree::new(Attributes::root(0o755));
    let inner = tree.add_directory(Tree::ROOT, b"directory", plain).unwrap();
    for number in 0..60 {
        let name = format!("{number:0>200}");
        tree.add(inner, name.as_bytes(), plain, Content::File(Source::Bytes(vec![1; number]))).unwrap();
    }
    tree.add(Tree::ROOT, b"link", plain, Content::Symlink(b"directory".to_vec())).unwrap();
    tree.add(Tree::ROOT, b"long", plain, Content::Symlink(vec![b'l'; 4090])).unwrap();
    tree.add(Tree::ROOT, b"null", plain, Content::CharacterDevice(0x103)).unwrap();
    let mut bytes = common::image_of(&tree);
    if !checksummed {
        // Without the flag, damage to the first block gets past `open`.
        bytes[1024 + 8] &= !1;
    }
    bytes
}

#[test]
fn the_sample_is_sound() {
    for checksummed in [false, true] {
        assert_eq!(exercise(&sample(checksummed)), Ok(65));
    }
}

#[test]
fn many_lengths() {
    let bytes = sample(true);
    for length in (0..bytes.len()).step_by(4051).chain((0..1200).step_by(7)) {
        assert!(exercise(&bytes[..length]).is_err());
    }
    let longer = [&bytes[..], &[0xff; 5000]].concat();
    assert!(exercise(&longer).is_ok());
}

#[test]
fn checksum_covers_the_first_block() {
    let mut bytes = sample(true);
    bytes[4000] ^= 1;
    assert_eq!(exercise(&bytes), Err(Error::Checksum));
}

#[test]
fn unknown_features_are_refused() {
    for (offset, value) in [(12, 9), (80, 4), (80, 2), (84 + 2, 1), (90, 1), (80 + 3, 0x80)] {
        let mut bytes = sample(false);
        bytes[1024 + offset] = value;
        assert_eq!(exercise(&bytes), Err(Error::Unsupported), "byte {offset}");
    }
}

/// Bytes all over superblock, inodes and directories, changed in several ways.
#[test]
fn many_bytes() {
    let sound = sample(false);
    let mut refused = 0;
    for offset in (1024..8 * 4096).step_by(29) {
        for change in [0xff, 0x80, 1] {
            let mut bytes = sound.clone();
            bytes[offset] ^= change;
            refused += usize::from(exercise(&bytes).is_err());
        }
    }
    assert!(refused > 100, "{refused}: hardly any damage was noticed, so the test misses the metadata");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn several_words(changes in proptest::collection::vec((1024usize..6 * 4096, any::<u32>(), 0u8..4), 1..20)) {
        let mut bytes = sample(false);
        for (offset, value, kind) in changes {
            // Both wild values and plausible ones.
            let value = match kind { 0 => value, 1 => value & 0xff, 2 => value & 0xfff, _ => !0 };
            bytes[offset & !1..][..4].copy_from_slice(&value.to_le_bytes());
        }
        let _ = exercise(&bytes);
    }

    #[test]
    fn anything_behind_a_superblock(noise in proptest::collection::vec(any::<u8>(), 0..8192)) {
        let mut bytes = sample(false);
        for (index, byte) in noise.into_iter().enumerate() {
            bytes[1024 + 128 + index] = byte;
        }
        let _ = exercise(&bytes);
    }

    #[test]
    fn any_inode_number(nid in prop_oneof![any::<u64>(), 0u64..10_000]) {
        let bytes = sample(true);
        let image = Image::open(&bytes).unwrap();
        if let Ok(inode) = image.inode(nid) {
            let _ = image.entries(&inode, 0).map(Iterator::count);
            let _ = image.lookup(&inode, b"x");
        }
    }
}
