//! Images from the writer, read by the reader and by Debian's `fsck.erofs`.

mod common;

use std::io::{Cursor, Seek, SeekFrom, Write};
use std::process::Command;

use common::{compare, contents_of, image_of, plant};
use heddle_erofs::write::{Attributes, Content, Plan, Source, Tree, WriteError};
use heddle_erofs::{FileType, Image, Page};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_tree(root in common::attributes(), files in common::directory()) {
        let mut tree = Tree::new(root);
        plant(&mut tree, Tree::ROOT, &files);
        let bytes = image_of(&tree);
        prop_assert!(bytes == image_of(&tree), "same tree, same bytes");
        let image = Image::open(&bytes).unwrap();
        compare(&image, image.root(), image.root(), &tree, Tree::ROOT);
    }

    #[test]
    fn any_tree_above(lower in common::directory(), more in common::directory(), gone in any::<prop::sample::Index>()) {
        let mut below = Tree::new(Attributes::root(0o755));
        plant(&mut below, Tree::ROOT, &lower);
        let mut tree = below.clone();
        if !lower.is_empty() {
            let names: Vec<&Vec<u8>> = lower.keys().collect();
            tree.remove(Tree::ROOT, names[gone.index(names.len())]);
        }
        let added = tree.add_directory(Tree::ROOT, b"the added ones", Attributes::root(0o700)).unwrap();
        plant(&mut tree, added, &more);
        *tree.attributes_mut(Tree::ROOT) = Attributes::root(0o711);
        let (bytes, upper) = above(&tree, &below);
        let image = Image::open(&bytes).unwrap();
        prop_assert_eq!(image.bytes().len(), bytes.len());
        compare(&image, image.root(), image.root(), &tree, Tree::ROOT);
        prop_assert_eq!(Image::open(&bytes[..upper]).unwrap_err(), heddle_erofs::Error::Truncated);
    }

    #[test]
    fn any_lookup(files in common::directory(), names in proptest::collection::vec(common::name(), 20)) {
        let mut tree = Tree::new(Attributes::root(0o755));
        plant(&mut tree, Tree::ROOT, &files);
        let bytes = image_of(&tree);
        let image = Image::open(&bytes).unwrap();
        let root = image.inode(image.root()).unwrap();
        for name in names {
            prop_assert_eq!(image.lookup(&root, &name).unwrap().is_some(), files.contains_key(&name));
        }
    }
}

/// The image of `tree` above that of `below`, as memory would have both, and how much of it is the upper one.
fn above(tree: &Tree, below: &Tree) -> (Vec<u8>, usize) {
    let lower = Plan::new(below).unwrap();
    let plan = Plan::above(tree, &lower).unwrap();
    let mut bytes = Cursor::new(Vec::new());
    plan.write(&mut bytes, &mut |_| {}).unwrap();
    let mut bytes = bytes.into_inner();
    let upper = bytes.len();
    assert_eq!(upper as u64, plan.length());
    bytes.extend(image_of(below));
    (bytes, upper)
}

/// A tree with one of everything, a directory of many blocks, and hard links.
fn everything() -> Tree {
    let plain = Attributes::root(0o644);
    let mut tree = Tree::new(Attributes::root(0o755));
    let many = tree.add_directory(Tree::ROOT, b"many", Attributes::root(0o1777)).unwrap();
    for number in 0..5000 {
        let name = format!("file-{number:>width$}", width = number % 60);
        let contents = Source::Bytes(name.clone().into_bytes());
        tree.add(many, name.as_bytes(), plain, Content::File(contents)).unwrap();
    }
    let big = (0..3_000_000u32).map(|index| (index >> 10) as u8).collect();
    let big = tree.add(Tree::ROOT, b"big", plain, Content::File(Source::Bytes(big))).unwrap();
    tree.link(many, b"hard", big).unwrap();
    tree.link(Tree::ROOT, b"-first", big).unwrap();
    tree.add(Tree::ROOT, b"empty", plain, Content::File(Source::Bytes(Vec::new()))).unwrap();
    tree.add(Tree::ROOT, b"holes", plain, Content::File(Source::Bytes(vec![0; 1 << 20]))).unwrap();
    tree.add(Tree::ROOT, b"link", plain, Content::Symlink(b"many/hard".to_vec())).unwrap();
    tree.add(Tree::ROOT, b"long", plain, Content::Symlink(vec![b'x'; 4095])).unwrap();
    tree.add(Tree::ROOT, b"null", plain, Content::CharacterDevice(0x103)).unwrap();
    tree.add(Tree::ROOT, b"disk", plain, Content::BlockDevice(0x800)).unwrap();
    tree.add(Tree::ROOT, b"fifo", plain, Content::Fifo).unwrap();
    tree.add(Tree::ROOT, b"socket", plain, Content::Socket).unwrap();
    tree
}

#[test]
fn one_of_everything() {
    let tree = everything();
    let bytes = image_of(&tree);
    let image = Image::open(&bytes).unwrap();
    compare(&image, image.root(), image.root(), &tree, Tree::ROOT);

    let root = image.inode(image.root()).unwrap();
    let entry = |name: &[u8]| image.lookup(&root, name).unwrap().unwrap();
    let many = image.inode(entry(b"many").nid).unwrap();
    assert_eq!(image.lookup(&many, b"hard").unwrap().unwrap().nid, entry(b"big").nid);
    assert_eq!(image.inode(entry(b"-first").nid).unwrap().nlink, 3);

    let big = image.inode(entry(b"big").nid).unwrap();
    let contents = contents_of(&image, &big);
    let mut part = vec![0; 10_000];
    assert_eq!(image.read_at(&big, 1_000_001, &mut part), 10_000);
    assert!(part == contents[1_000_001..][..10_000]);
    assert_eq!(image.read_at(&big, 2_999_990, &mut part), 10);
    assert_eq!(image.read_at(&big, u64::MAX, &mut part), 0);
}

#[test]
fn removed_files_leave_no_trace() {
    let mut tree = everything();
    let before = image_of(&tree);
    tree.add(Tree::ROOT, b"passing", Attributes::root(0), Content::Fifo).unwrap();
    tree.remove(Tree::ROOT, b"passing").unwrap();
    assert!(image_of(&tree) == before);
    assert!(tree.remove(Tree::ROOT, b"passing").is_none());
}

#[test]
fn refuses_what_no_file_system_has() {
    let root = Attributes::root(0o755);
    let mut tree = Tree::new(root);
    let directory = tree.add_directory(Tree::ROOT, b"a", root).unwrap();
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
        assert!(matches!(tree.add_directory(Tree::ROOT, name, root), Err(WriteError::Name(_))));
    }
    for target in [&b""[..], b"a\0b", &[b'x'; 4096]] {
        let link = Content::Symlink(target.to_vec());
        assert!(matches!(tree.add(Tree::ROOT, b"b", root, link), Err(WriteError::Target(_))));
    }
    assert!(matches!(tree.add_directory(Tree::ROOT, b"a", root), Err(WriteError::Exists(_))));
    assert!(matches!(tree.link(Tree::ROOT, b"b", directory), Err(WriteError::DirectoryLink)));
    let fifo = tree.add(Tree::ROOT, b"f", root, Content::Fifo).unwrap();
    assert!(matches!(tree.add_directory(fifo, b"a", root), Err(WriteError::NotDirectory)));
}

#[test]
fn sources_that_changed() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[7; 5000]).unwrap();
    let attempt = |source| {
        let mut tree = Tree::new(Attributes::root(0o755));
        tree.add(Tree::ROOT, b"file", Attributes::root(0), Content::File(source)).unwrap();
        Plan::new(&tree)?.write(Cursor::new(Vec::new()), &mut |_| {})
    };
    let path = |size| Source::Path { path: file.path().to_owned(), size };
    let part = |offset, size| Source::Part { file: file.reopen().unwrap().into(), offset, size };
    attempt(path(5000)).unwrap();
    assert!(matches!(attempt(path(4999)), Err(WriteError::Changed(_))));
    assert!(matches!(attempt(path(5001)), Err(WriteError::Changed(_))));
    attempt(part(4000, 1000)).unwrap();
    assert!(matches!(attempt(part(4000, 1001)), Err(WriteError::Changed(_))));
    let missing = Source::Path { path: file.path().join("missing"), size: 1 };
    assert!(matches!(attempt(missing), Err(WriteError::Read(..))));
    let huge = Source::Path { path: file.path().to_owned(), size: 1 << 45 };
    assert!(matches!(attempt(huge), Err(WriteError::TooLarge)));
}

/// A file of more than 4 GiB, all hole but its last byte: layout and sparse output.
#[test]
fn more_than_four_gibibytes() {
    let size = (5 << 30) + 1;
    let mut source = tempfile::tempfile().unwrap();
    source.seek(SeekFrom::Start(size - 1)).unwrap();
    source.write_all(b"!").unwrap();
    let mut tree = Tree::new(Attributes::root(0o755));
    let part = Source::Part { file: source.into(), offset: (5 << 30) - (1 << 20), size: (1 << 20) + 1 };
    tree.add(Tree::ROOT, b"part", Attributes::root(0), Content::File(part)).unwrap();
    let whole = tempfile::NamedTempFile::new().unwrap();
    whole.as_file().set_len(size).unwrap();
    let path = Source::Path { path: whole.path().to_owned(), size };
    tree.add(Tree::ROOT, b"whole", Attributes::root(0), Content::File(path)).unwrap();

    let plan = Plan::new(&tree).unwrap();
    assert!(plan.length() > size);
    let out = tempfile::tempfile().unwrap();
    plan.write(&out, &mut |_| {}).unwrap();
    assert_eq!(out.metadata().unwrap().len(), plan.length());
    let blocks = std::os::unix::fs::MetadataExt::blocks(&out.metadata().unwrap());
    assert!(blocks * 512 < 1 << 20, "zeroes take no space");

    // Half of the image is enough to see the inode; the location of its data is then outside.
    let mut head = vec![0; 8192];
    std::os::unix::fs::FileExt::read_exact_at(&out, &mut head, 0).unwrap();
    assert_eq!(Image::open(&head).unwrap_err(), heddle_erofs::Error::Truncated);
}

/// Runs a tool of Debian's erofs-utils, or says that it isn't there.
fn tool(name: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(name).args(arguments).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(output.status.success(), "{name}: {text}");
            Some(text)
        }
        Err(_) => {
            println!("skipped: 1 ({name} is not installed)");
            None
        }
    }
}

#[test]
fn fsck_agrees() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    std::fs::write(&path, image_of(&everything())).unwrap();
    let path = path.to_str().unwrap();
    if let Some(text) = tool("fsck.erofs", &["-d3", "--extract", path]) {
        assert!(text.contains("No errors found"), "{text}");
    }
    if let Some(text) = tool("dump.erofs", &["--path=/big", path]) {
        assert!(text.contains("Size: 3000000"), "{text}");
        assert!(text.contains("Links: 3"), "{text}");
    }
}

#[test]
fn a_layer_has_what_is_new() {
    let below = everything();
    let mut tree = below.clone();
    let file = Content::File(Source::Bytes(vec![7; 5000]));
    tree.add(Tree::ROOT, b"added", Attributes::root(0o600), file).unwrap();
    let (bytes, upper) = above(&tree, &below);
    assert!(upper < bytes.len() / 4, "{upper} of {} bytes: names, attributes, one file", bytes.len());
}

/// Images from `mkfs.erofs` have inline tails in regular files.
#[test]
fn reads_what_mkfs_writes() {
    let directory = tempfile::tempdir().unwrap();
    let (root, path) = (directory.path().join("root"), directory.path().join("image"));
    std::fs::create_dir(&root).unwrap();
    let contents = |size: usize| (0..size).map(|index| (index / 7) as u8).collect::<Vec<u8>>();
    let sizes = [0, 1, 4000, 4096, 5000, 8191, 100_000];
    for size in sizes {
        std::fs::write(root.join(size.to_string()), contents(size)).unwrap();
    }
    std::os::unix::fs::symlink("4000", root.join("link")).unwrap();
    if tool("mkfs.erofs", &[path.to_str().unwrap(), root.to_str().unwrap()]).is_none() {
        return;
    }
    let bytes = std::fs::read(&path).unwrap();
    let image = Image::open(&bytes).unwrap();
    let root = image.inode(image.root()).unwrap();
    let mut inline = 0;
    for size in sizes {
        let entry = image.lookup(&root, size.to_string().as_bytes()).unwrap().unwrap();
        let inode = image.inode(entry.nid).unwrap();
        let mut found = vec![0; size + 1];
        assert_eq!(image.read_at(&inode, 0, &mut found), size);
        assert!(found[..size] == contents(size));
        if let Some(Page::Inline { length, .. }) = inode.page((size as u64).saturating_sub(1) / 4096) {
            assert_eq!(length, size % 4096);
            inline += 1;
        }
    }
    assert!(inline > 0, "no tail was inline: the test doesn't test what it is for");
    let link = image.lookup(&root, b"link").unwrap().unwrap();
    assert_eq!(link.file_type, FileType::Symlink);
    assert_eq!(image.symlink(&image.inode(link.nid).unwrap()).unwrap(), b"4000");
}

/// Linux mounts an image, in a mount namespace that ends with the test, and reads what was written.
#[test]
fn linux_mounts_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    std::fs::write(&path, image_of(&everything())).unwrap();
    let script = "mount -t erofs -o ro,loop image /mnt 2>/dev/null || { echo unable; exit; }
        ls -f /mnt/many | wc -l; cksum < /mnt/big; cmp /mnt/big /mnt/many/hard; readlink /mnt/link
        stat -c '%a %h %t:%T %F' /mnt/many /mnt/big /mnt/null /mnt/disk /mnt/fifo /mnt/socket; umount /mnt";
    let output =
        Command::new("unshare").current_dir(&directory).args(["--mount", "sh", "-c", script]).output();
    let text = output.map(|output| String::from_utf8(output.stdout).unwrap()).unwrap_or_default();
    if text.is_empty() || text == "unable\n" {
        println!("skipped: 1 (no right to mount, or no EROFS in the kernel)");
        return;
    }
    let big: Vec<u8> = (0..3_000_000u32).map(|index| (index >> 10) as u8).collect();
    std::fs::write(&path, big).unwrap();
    let sum = Command::new("cksum").stdin(std::fs::File::open(&path).unwrap()).output().unwrap().stdout;
    let sum = String::from_utf8(sum).unwrap();
    let expected = [
        "5003",
        sum.trim(),
        "many/hard",
        "1777 2 0:0 directory",
        "644 3 0:0 regular file",
        "644 1 1:3 character special file",
        "644 1 8:0 block special file",
        "644 1 0:0 fifo",
        "644 1 0:0 socket",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}
