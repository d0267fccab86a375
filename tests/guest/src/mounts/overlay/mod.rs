//! Overlays: directories laid over one another, with changes in the uppermost.

pub mod edges;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::statfs::statfs;

use crate::harness::{OrFail, Outcome};
use crate::mounts::{Stage, mount_with, umount};
use crate::{expect, expect_eq};

crate::tests! {
    upper_files_hide_lower_ones
    directories_are_shown_as_one
    a_change_makes_a_copy
    a_copy_is_whole
    what_is_open_follows_the_copy
    a_removed_file_leaves_a_whiteout
    a_removed_directory_can_be_made_anew
    only_empty_directories_are_removed
    files_get_other_names
    directories_of_a_lower_layer_keep_their_names
    directories_of_the_upper_layer_are_renamed
    links_are_made_in_the_upper_layer
    lists_stay_in_order_under_changes
    several_lower_layers
    an_overlay_without_an_upper_layer
}

/// The directories of an overlay, and where it is mounted.
struct Layers {
    stage: Stage,
    lower: PathBuf,
    upper: PathBuf,
    work: PathBuf,
    merged: PathBuf,
}

impl Layers {
    fn new(name: &str) -> Result<Self, String> {
        let stage = Stage::new(name)?;
        let lower = stage.directory("lower")?;
        let (upper, work) = (stage.directory("upper")?, stage.directory("work")?);
        let merged = stage.directory("merged")?;
        Ok(Self { stage, lower, upper, work, merged })
    }

    fn options(&self) -> String {
        let [lower, upper, work] = [&self.lower, &self.upper, &self.work].map(|path| path.display());
        format!("lowerdir={lower},upperdir={upper},workdir={work}")
    }

    fn mount(&self) -> Outcome {
        overlay(&self.merged, &self.options()).or_fail()
    }
}

impl Drop for Layers {
    fn drop(&mut self) {
        let _ = umount(&self.merged, libc::MNT_DETACH);
    }
}

fn overlay(target: &Path, options: &str) -> Result<(), Errno> {
    mount_with(Some(Path::new("overlay")), target, Some("overlay"), 0, Some(options))
}

fn error_of<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw)
}

fn names(directory: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(directory).or_fail()?;
    let mut names: Vec<_> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    Ok(names)
}

fn text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).or_fail()
}

fn is_whiteout(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_char_device() && found.rdev() == 0)
}

fn upper_files_hide_lower_ones() -> Outcome {
    let layers = Layers::new("hide")?;
    fs::write(layers.lower.join("one"), "lower").or_fail()?;
    fs::write(layers.lower.join("both"), "lower").or_fail()?;
    fs::write(layers.upper.join("both"), "upper").or_fail()?;
    fs::write(layers.upper.join("two"), "upper").or_fail()?;
    layers.mount()?;
    expect_eq!(names(&layers.merged)?, ["both", "one", "two"]);
    expect_eq!(text(&layers.merged.join("one"))?, "lower");
    expect_eq!(text(&layers.merged.join("both"))?, "upper");
    expect_eq!(text(&layers.merged.join("two"))?, "upper");
    expect_eq!(statfs(&layers.merged).or_fail()?.filesystem_type().0, 0x794c_7630);
    expect!(fs::read_to_string("/proc/filesystems").or_fail()?.contains("nodev\toverlay\n"));
    // The working directory has one for the kernel.
    expect!(layers.work.join("work").is_dir());
    Ok(())
}

fn directories_are_shown_as_one() -> Outcome {
    let layers = Layers::new("merge")?;
    for (layer, name) in
        [(&layers.lower, "a"), (&layers.lower, "b"), (&layers.upper, "b"), (&layers.upper, "c")]
    {
        fs::create_dir_all(layer.join("directory")).or_fail()?;
        fs::write(layer.join("directory").join(name), "").or_fail()?;
    }
    fs::set_permissions(layers.upper.join("directory"), fs::Permissions::from_mode(0o711)).or_fail()?;
    fs::set_permissions(layers.lower.join("directory"), fs::Permissions::from_mode(0o755)).or_fail()?;
    // A file hides a directory, and the other way round.
    fs::create_dir(layers.lower.join("file")).or_fail()?;
    fs::write(layers.upper.join("file"), "").or_fail()?;
    fs::write(layers.lower.join("tree"), "").or_fail()?;
    fs::create_dir(layers.upper.join("tree")).or_fail()?;
    layers.mount()?;
    expect_eq!(names(&layers.merged.join("directory"))?, ["a", "b", "c"]);
    expect_eq!(fs::metadata(layers.merged.join("directory")).or_fail()?.mode() & 0o777, 0o711);
    expect!(layers.merged.join("file").is_file());
    expect!(layers.merged.join("tree").is_dir());
    expect_eq!(names(&layers.merged.join("tree"))?, [""; 0]);
    Ok(())
}

fn a_change_makes_a_copy() -> Outcome {
    let layers = Layers::new("change")?;
    let deep = Path::new("one/two");
    fs::create_dir_all(layers.lower.join(deep)).or_fail()?;
    fs::set_permissions(layers.lower.join("one"), fs::Permissions::from_mode(0o705)).or_fail()?;
    for name in ["write", "append", "mode", "owner", "times", "cut"] {
        fs::write(layers.lower.join(deep).join(name), "0123456789").or_fail()?;
    }
    fs::set_permissions(layers.lower.join(deep).join("write"), fs::Permissions::from_mode(0o640))
        .or_fail()?;
    layers.mount()?;
    let (lower, upper, merged) = (layers.lower.join(deep), layers.upper.join(deep), layers.merged.join(deep));
    // Reading makes none.
    expect_eq!(text(&merged.join("write"))?, "0123456789");
    expect!(!layers.upper.join("one").exists());
    let before = fs::metadata(merged.join("write")).or_fail()?;
    let file = File::options().write(true).open(merged.join("write")).or_fail()?;
    file.write_at(b"xx", 4).or_fail()?;
    expect_eq!(text(&merged.join("write"))?, "0123xx6789");
    expect_eq!(text(&upper.join("write"))?, "0123xx6789");
    expect_eq!(text(&lower.join("write"))?, "0123456789");
    let after = fs::metadata(merged.join("write")).or_fail()?;
    expect_eq!((after.ino(), after.dev()), (before.ino(), before.dev()));
    expect_eq!(after.mode() & 0o777, 0o640);
    expect_eq!(fs::metadata(layers.upper.join("one")).or_fail()?.mode() & 0o777, 0o705);
    File::options().append(true).open(merged.join("append")).or_fail()?.write_all(b"!").or_fail()?;
    expect_eq!(text(&merged.join("append"))?, "0123456789!");
    fs::set_permissions(merged.join("mode"), fs::Permissions::from_mode(0o600)).or_fail()?;
    expect_eq!(fs::metadata(merged.join("mode")).or_fail()?.mode() & 0o777, 0o600);
    expect_eq!(text(&upper.join("mode"))?, "0123456789");
    std::os::unix::fs::chown(merged.join("owner"), Some(12), Some(34)).or_fail()?;
    let found = fs::metadata(upper.join("owner")).or_fail()?;
    expect_eq!((found.uid(), found.gid()), (12, 34));
    expect_eq!(fs::metadata(lower.join("owner")).or_fail()?.uid(), 0);
    File::options().write(true).truncate(true).open(merged.join("cut")).or_fail()?;
    expect_eq!((text(&merged.join("cut"))?.len(), text(&lower.join("cut"))?.len()), (0, 10));
    nix::unistd::truncate(&merged.join("times"), 4).or_fail()?;
    expect_eq!((text(&merged.join("times"))?, text(&lower.join("times"))?.len()), ("0123".to_owned(), 10));
    Ok(())
}

fn a_copy_is_whole() -> Outcome {
    const BYTES: usize = 700_001;
    let layers = Layers::new("whole")?;
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 7 % 251) as u8).collect();
    fs::write(layers.lower.join("large"), &bytes).or_fail()?;
    // Holes stay holes.
    let sparse = File::create(layers.lower.join("sparse")).or_fail()?;
    sparse.write_at(b"end", 40 << 20).or_fail()?;
    layers.mount()?;
    let path = layers.merged.join("large");
    File::options().append(true).open(&path).or_fail()?.write_all(b"x").or_fail()?;
    let copied = fs::read(&path).or_fail()?;
    expect!(copied.len() == BYTES + 1 && copied.starts_with(&bytes) && copied.ends_with(b"x"));
    let path = layers.merged.join("sparse");
    File::options().append(true).open(&path).or_fail()?.write_all(b"x").or_fail()?;
    let found = fs::metadata(&path).or_fail()?;
    expect_eq!(found.len(), (40 << 20) + 4);
    expect!(found.blocks() < 8192);
    let mut end = [0; 4];
    File::open(&path).or_fail()?.read_exact_at(&mut end, 40 << 20).or_fail()?;
    expect_eq!(&end, b"endx");
    Ok(())
}

fn what_is_open_follows_the_copy() -> Outcome {
    let layers = Layers::new("follow")?;
    fs::write(layers.lower.join("file"), "old").or_fail()?;
    layers.mount()?;
    let path = layers.merged.join("file");
    let mut reader = File::open(&path).or_fail()?;
    fs::write(&path, "newer").or_fail()?;
    let mut content = String::new();
    reader.read_to_string(&mut content).or_fail()?;
    expect_eq!(content, "newer");
    expect_eq!(reader.metadata().or_fail()?.len(), 5);
    expect_eq!(reader.seek(SeekFrom::End(0)).or_fail()?, 5);
    // A file without a name stays what it was.
    fs::remove_file(&path).or_fail()?;
    reader.rewind().or_fail()?;
    content.clear();
    reader.read_to_string(&mut content).or_fail()?;
    expect_eq!(content, "newer");
    Ok(())
}

fn a_removed_file_leaves_a_whiteout() -> Outcome {
    let layers = Layers::new("whiteout")?;
    for name in ["one", "two", "both"] {
        fs::write(layers.lower.join(name), "lower").or_fail()?;
    }
    fs::write(layers.upper.join("both"), "upper").or_fail()?;
    fs::write(layers.upper.join("own"), "upper").or_fail()?;
    layers.mount()?;
    let open = File::open(layers.merged.join("one")).or_fail()?;
    for name in ["one", "both", "own"] {
        fs::remove_file(layers.merged.join(name)).or_fail()?;
        expect_eq!(error_of(fs::metadata(layers.merged.join(name))), Some(Errno::ENOENT));
    }
    expect!(is_whiteout(&layers.upper.join("one")));
    expect!(is_whiteout(&layers.upper.join("both")));
    expect!(!layers.upper.join("own").exists());
    expect_eq!(text(&layers.lower.join("one"))?, "lower");
    expect_eq!(names(&layers.merged)?, ["two"]);
    let mut content = String::new();
    (&open).read_to_string(&mut content).or_fail()?;
    expect_eq!(content, "lower");
    expect_eq!(error_of(fs::remove_file(layers.merged.join("one"))), Some(Errno::ENOENT));
    // A new file takes the whiteout's place.
    fs::write(layers.merged.join("one"), "new").or_fail()?;
    expect_eq!(text(&layers.upper.join("one"))?, "new");
    expect_eq!(names(&layers.merged)?, ["one", "two"]);
    // Another mount of the layers sees the same.
    drop(open);
    umount(&layers.merged, 0).or_fail()?;
    layers.mount()?;
    expect_eq!(names(&layers.merged)?, ["one", "two"]);
    Ok(())
}

fn a_removed_directory_can_be_made_anew() -> Outcome {
    let layers = Layers::new("anew")?;
    fs::create_dir(layers.lower.join("tree")).or_fail()?;
    fs::write(layers.lower.join("tree/a"), "").or_fail()?;
    fs::create_dir(layers.lower.join("other")).or_fail()?;
    fs::write(layers.lower.join("other/b"), "").or_fail()?;
    layers.mount()?;
    let tree = layers.merged.join("tree");
    fs::remove_dir_all(&tree).or_fail()?;
    expect!(is_whiteout(&layers.upper.join("tree")));
    fs::create_dir(&tree).or_fail()?;
    expect_eq!(names(&tree)?, [""; 0]);
    fs::write(tree.join("new"), "").or_fail()?;
    expect_eq!(names(&tree)?, ["new"]);
    // It stays so in another mount.
    umount(&layers.merged, 0).or_fail()?;
    layers.mount()?;
    expect_eq!(names(&tree)?, ["new"]);
    expect_eq!(names(&layers.merged.join("other"))?, ["b"]);
    Ok(())
}

fn only_empty_directories_are_removed() -> Outcome {
    let layers = Layers::new("empty")?;
    fs::create_dir(layers.lower.join("tree")).or_fail()?;
    fs::write(layers.lower.join("tree/a"), "").or_fail()?;
    layers.mount()?;
    let tree = layers.merged.join("tree");
    expect_eq!(error_of(fs::remove_dir(&tree)), Some(Errno::ENOTEMPTY));
    fs::write(tree.join("b"), "").or_fail()?;
    fs::remove_file(tree.join("a")).or_fail()?;
    expect_eq!(error_of(fs::remove_dir(&tree)), Some(Errno::ENOTEMPTY));
    fs::remove_file(tree.join("b")).or_fail()?;
    // Nothing but a whiteout is left of it.
    fs::remove_dir(&tree).or_fail()?;
    expect!(is_whiteout(&layers.upper.join("tree")));
    expect_eq!(names(&layers.merged)?, [""; 0]);
    expect_eq!(error_of(fs::remove_dir(&tree)), Some(Errno::ENOENT));
    Ok(())
}

fn files_get_other_names() -> Outcome {
    let layers = Layers::new("rename")?;
    fs::create_dir(layers.lower.join("directory")).or_fail()?;
    for name in ["one", "two", "directory/three"] {
        fs::write(layers.lower.join(name), name).or_fail()?;
    }
    layers.mount()?;
    let merged = |name: &str| layers.merged.join(name);
    fs::rename(merged("one"), merged("new")).or_fail()?;
    expect_eq!(names(&layers.merged)?, ["directory", "new", "two"]);
    expect_eq!(text(&merged("new"))?, "one");
    expect!(is_whiteout(&layers.upper.join("one")));
    // A file that is there goes.
    fs::rename(merged("new"), merged("two")).or_fail()?;
    expect_eq!(text(&merged("two"))?, "one");
    expect_eq!(names(&layers.merged)?, ["directory", "two"]);
    expect_eq!(text(&layers.lower.join("two"))?, "two");
    fs::rename(merged("two"), merged("directory/three")).or_fail()?;
    expect_eq!(text(&merged("directory/three"))?, "one");
    expect_eq!(names(&merged("directory"))?, ["three"]);
    // To a name that was removed.
    fs::rename(merged("directory/three"), merged("one")).or_fail()?;
    expect_eq!(names(&layers.merged)?, ["directory", "one"]);
    expect_eq!(names(&merged("directory"))?, [""; 0]);
    expect_eq!(error_of(fs::rename(merged("one"), merged("directory"))), Some(Errno::EISDIR));
    Ok(())
}

fn directories_of_a_lower_layer_keep_their_names() -> Outcome {
    let layers = Layers::new("fixed")?;
    fs::create_dir_all(layers.lower.join("tree/in")).or_fail()?;
    layers.mount()?;
    let tree = layers.merged.join("tree");
    expect_eq!(error_of(fs::rename(&tree, layers.merged.join("new"))), Some(Errno::EXDEV));
    fs::write(tree.join("file"), "").or_fail()?;
    expect_eq!(error_of(fs::rename(&tree, layers.merged.join("new"))), Some(Errno::EXDEV));
    expect_eq!(names(&tree)?, ["file", "in"]);
    Ok(())
}

fn directories_of_the_upper_layer_are_renamed() -> Outcome {
    let layers = Layers::new("moved")?;
    fs::create_dir(layers.lower.join("gone")).or_fail()?;
    fs::write(layers.lower.join("gone/old"), "").or_fail()?;
    layers.mount()?;
    let merged = |name: &str| layers.merged.join(name);
    fs::create_dir_all(merged("new/in")).or_fail()?;
    fs::write(merged("new/in/file"), "text").or_fail()?;
    fs::rename(merged("new"), merged("other")).or_fail()?;
    expect_eq!(text(&merged("other/in/file"))?, "text");
    expect_eq!(error_of(fs::rename(merged("other"), merged("other/in/deeper"))), Some(Errno::EINVAL));
    expect_eq!(error_of(fs::rename(merged("other"), merged("gone"))), Some(Errno::ENOTEMPTY));
    fs::remove_file(merged("gone/old")).or_fail()?;
    fs::rename(merged("other"), merged("gone")).or_fail()?;
    expect_eq!(names(&merged("gone"))?, ["in"]);
    expect_eq!(names(&layers.merged)?, ["gone"]);
    umount(&layers.merged, 0).or_fail()?;
    layers.mount()?;
    expect_eq!(names(&merged("gone"))?, ["in"]);
    Ok(())
}

fn links_are_made_in_the_upper_layer() -> Outcome {
    let layers = Layers::new("links")?;
    fs::write(layers.lower.join("file"), "text").or_fail()?;
    symlink("file", layers.lower.join("symbolic")).or_fail()?;
    layers.mount()?;
    let (file, link) = (layers.merged.join("file"), layers.merged.join("link"));
    fs::hard_link(&file, &link).or_fail()?;
    fs::write(&link, "changed").or_fail()?;
    expect_eq!(text(&file)?, "changed");
    let (one, two) = (fs::metadata(&file).or_fail()?, fs::metadata(&link).or_fail()?);
    expect_eq!((one.ino(), one.nlink()), (two.ino(), 2));
    expect_eq!(error_of(fs::hard_link(&file, &link)), Some(Errno::EEXIST));
    fs::remove_file(&file).or_fail()?;
    expect_eq!(text(&link)?, "changed");
    expect_eq!(error_of(fs::read(layers.merged.join("symbolic"))), Some(Errno::ENOENT));
    expect_eq!(fs::read_link(layers.merged.join("symbolic")).or_fail()?, Path::new("file"));
    fs::rename(&link, &file).or_fail()?;
    expect_eq!(text(&layers.merged.join("symbolic"))?, "changed");
    fs::rename(layers.merged.join("symbolic"), &link).or_fail()?;
    expect_eq!(fs::read_link(&link).or_fail()?, Path::new("file"));
    Ok(())
}

fn lists_stay_in_order_under_changes() -> Outcome {
    let layers = Layers::new("lists")?;
    for number in 0..300 {
        let layer = if number % 3 == 0 { &layers.upper } else { &layers.lower };
        fs::write(layer.join(format!("file-{number}")), "").or_fail()?;
    }
    layers.mount()?;
    // Removing while listing, as rm does.
    let mut seen = Vec::new();
    for entry in fs::read_dir(&layers.merged).or_fail()? {
        let entry = entry.or_fail()?;
        fs::remove_file(entry.path()).or_fail()?;
        seen.push(entry.file_name());
    }
    seen.sort_unstable();
    seen.dedup();
    expect_eq!(seen.len(), 300);
    expect_eq!(names(&layers.merged)?, [""; 0]);
    Ok(())
}

fn several_lower_layers() -> Outcome {
    let layers = Layers::new("several")?;
    let second = layers.stage.directory("second:part")?;
    let third = layers.stage.directory("third")?;
    fs::write(layers.lower.join("a"), "1").or_fail()?;
    for (layer, value) in [(&second, "2"), (&third, "3")] {
        fs::write(layer.join("a"), value).or_fail()?;
        fs::write(layer.join("b"), value).or_fail()?;
        fs::create_dir(layer.join("tree")).or_fail()?;
        fs::write(layer.join("tree").join(value), value).or_fail()?;
    }
    fs::write(third.join("c"), "3").or_fail()?;
    nix::sys::stat::mknod(
        &layers.lower.join("c"),
        nix::sys::stat::SFlag::S_IFCHR,
        nix::sys::stat::Mode::empty(),
        0,
    )
    .or_fail()?;
    let second = second.display().to_string().replace(':', "\\:");
    let [lower, upper, work] = [&layers.lower, &layers.upper, &layers.work].map(|path| path.display());
    let third = third.display();
    let options = format!("lowerdir={lower}:{second}:{third},upperdir={upper},workdir={work}");
    overlay(&layers.merged, &options).or_fail()?;
    // The whiteout of the first hides the third's.
    expect_eq!(names(&layers.merged)?, ["a", "b", "tree"]);
    expect_eq!(text(&layers.merged.join("a"))?, "1");
    expect_eq!(text(&layers.merged.join("b"))?, "2");
    expect_eq!(names(&layers.merged.join("tree"))?, ["2", "3"]);
    fs::remove_dir_all(layers.merged.join("tree")).or_fail()?;
    expect_eq!(names(&layers.merged)?, ["a", "b"]);
    Ok(())
}

fn an_overlay_without_an_upper_layer() -> Outcome {
    let layers = Layers::new("read-only")?;
    fs::write(layers.lower.join("a"), "1").or_fail()?;
    fs::write(layers.upper.join("b"), "2").or_fail()?;
    let (one, two) = (layers.lower.display(), layers.upper.display());
    expect_eq!(overlay(&layers.merged, &format!("lowerdir={one}")), Err(Errno::EINVAL));
    overlay(&layers.merged, &format!("lowerdir={one}:{two}")).or_fail()?;
    expect_eq!(names(&layers.merged)?, ["a", "b"]);
    expect_eq!(error_of(File::create(layers.merged.join("c"))), Some(Errno::EROFS));
    expect_eq!(error_of(File::options().write(true).open(layers.merged.join("a"))), Some(Errno::EROFS));
    expect_eq!(error_of(fs::remove_file(layers.merged.join("a"))), Some(Errno::EROFS));
    let readonly = fs::Permissions::from_mode(0o600);
    expect_eq!(error_of(fs::set_permissions(layers.merged.join("a"), readonly)), Some(Errno::EROFS));
    Ok(())
}
