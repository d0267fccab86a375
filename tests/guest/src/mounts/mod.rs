//! Mounts: mount(2), umount2(2), pivot_root(2), and what `/proc` tells of them.

#![allow(unsafe_code)] // Some of the calls have no safe forms.

pub mod detached;
pub mod handles;
pub mod hiding;
pub mod kinds;
pub mod namespace;
pub mod others;
pub mod overlay;
pub mod propagation;
pub mod writers;

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::WaitStatus;

use crate::harness::{OrFail, Outcome, Scratch, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_bind_mount_shows_the_same_files
    a_recursive_bind_takes_submounts_along
    bind_mounts_that_are_refused
    a_mount_moves_with_what_is_in_it
    moves_that_are_refused
    flags_are_each_mounts_own
    remounting_keeps_what_is_not_said
    a_file_system_can_be_read_only_for_all_its_mounts
    links_are_not_followed_where_a_mount_says_so
    mounts_lie_over_one_another
    unmounting_is_refused_while_something_is_used
    a_lazy_unmount_happens_at_once
    a_mount_that_nobody_uses_expires
    unmount_refuses_what_is_no_mount
    mount_refuses_in_the_order_of_linux
    the_root_is_exchanged
    exchanges_of_the_root_that_are_refused
    mountinfo_says_where_everything_hangs
    statx_tells_the_mount
}

/// A tmpfs in a mount namespace of the test's own, in which no change reaches others.
pub struct Stage {
    scratch: Scratch,
}

impl Stage {
    pub fn new(name: &str) -> Result<Self, String> {
        let scratch = Scratch::new(name)?;
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE).or_fail()?;
        mount(Some("stage"), &scratch.0, Some("tmpfs"), 0).or_fail()?;
        Ok(Self { scratch })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    /// A new directory.
    pub fn directory(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.path(name);
        fs::create_dir(&path).or_fail()?;
        Ok(path)
    }

    /// A new directory with a tmpfs on it.
    pub fn mounted(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.directory(name)?;
        mount(Some(name), &path, Some("tmpfs"), 0).or_fail()?;
        Ok(path)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        while umount(&self.scratch.0, libc::MNT_DETACH).is_ok() {}
    }
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

pub fn mount_with(
    source: Option<&Path>,
    target: &Path,
    kind: Option<&str>,
    flags: u64,
    data: Option<&str>,
) -> Result<(), Errno> {
    let (source, target) = (source.map(text), text(target));
    let kind = kind.map(|kind| CString::new(kind).unwrap_or_default());
    let data = data.map(|data| CString::new(data).unwrap_or_default());
    let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    // SAFETY: strings or null.
    let result = unsafe {
        libc::mount(pointer(&source), target.as_ptr(), pointer(&kind), flags, pointer(&data).cast())
    };
    Errno::result(result).map(drop)
}

pub fn mount(source: Option<&str>, target: &Path, kind: Option<&str>, flags: u64) -> Result<(), Errno> {
    mount_with(source.map(Path::new), target, kind, flags, None)
}

pub fn bind(source: &Path, target: &Path, flags: u64) -> Result<(), Errno> {
    mount_with(Some(source), target, None, libc::MS_BIND | flags, None)
}

pub fn umount(target: &Path, flags: i32) -> Result<(), Errno> {
    let target = text(target);
    // SAFETY: a string.
    Errno::result(unsafe { libc::umount2(target.as_ptr(), flags) }).map(drop)
}

pub fn pivot_root(new: &Path, old: &Path) -> Result<(), Errno> {
    let (new, old) = (text(new), text(old));
    // SAFETY: two strings.
    Errno::result(unsafe { libc::syscall(libc::SYS_pivot_root, new.as_ptr(), old.as_ptr()) }).map(drop)
}

/// A line of `/proc/self/mountinfo`.
#[derive(Debug)]
pub struct Line {
    id: u64,
    parent: u64,
    root: String,
    point: String,
    options: String,
    optional: Vec<String>,
    kind: String,
    source: String,
    common: String,
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let (own, rest) = line.split_once(" - ")?;
        let mut fields = own.split(' ').map(str::to_owned);
        let mut rest = rest.split(' ').map(str::to_owned);
        let (id, parent) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let _device = fields.next()?;
        Some(Self {
            id,
            parent,
            root: fields.next()?,
            point: fields.next()?,
            options: fields.next()?,
            optional: fields.collect(),
            kind: rest.next()?,
            source: rest.next()?,
            common: rest.next()?,
        })
    }

    /// Whether an optional field begins so, and what follows.
    pub fn number(&self, name: &str) -> Option<u32> {
        self.optional.iter().find_map(|field| field.strip_prefix(name)?.strip_prefix(':')?.parse().ok())
    }

    fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|own| own == option)
    }
}

/// The mounts at a path and below.
pub fn lines_below(path: &Path) -> Result<Vec<Line>, String> {
    let all = fs::read_to_string("/proc/self/mountinfo").or_fail()?;
    let parsed = all.lines().map(|line| Line::parse(line).ok_or_else(|| format!("what is {line:?}?")));
    let parsed = parsed.collect::<Result<Vec<_>, _>>()?;
    Ok(parsed.into_iter().filter(|line| Path::new(&line.point).starts_with(path)).collect())
}

/// The topmost mount at a path.
fn line_at(path: &Path) -> Result<Line, String> {
    let found = lines_below(path)?.into_iter().filter(|line| Path::new(&line.point) == path).last();
    found.ok_or_else(|| format!("nothing is mounted on {path:?}"))
}

fn a_bind_mount_shows_the_same_files() -> Outcome {
    let stage = Stage::new("bind")?;
    let (one, two) = (stage.directory("one")?, stage.directory("two")?);
    fs::create_dir(one.join("sub")).or_fail()?;
    fs::write(one.join("sub/file"), "text").or_fail()?;
    bind(&one.join("sub"), &two, 0).or_fail()?;
    expect_eq!(fs::read_to_string(two.join("file")).or_fail()?, "text");
    expect_eq!(
        fs::metadata(two.join("file")).or_fail()?.ino(),
        fs::metadata(one.join("sub/file")).or_fail()?.ino()
    );
    fs::write(two.join("new"), "").or_fail()?;
    expect!(one.join("sub/new").exists());
    expect_eq!(line_at(&two)?.root, "/one/sub");
    expect_eq!(line_at(&two)?.source, "stage");
    // A file on a file.
    fs::write(stage.path("target"), "below").or_fail()?;
    bind(&one.join("sub/file"), &stage.path("target"), 0).or_fail()?;
    expect_eq!(fs::read_to_string(stage.path("target")).or_fail()?, "text");
    umount(&stage.path("target"), 0).or_fail()?;
    expect_eq!(fs::read_to_string(stage.path("target")).or_fail()?, "below");
    umount(&two, 0).or_fail()?;
    expect!(!two.join("file").exists());
    Ok(())
}

fn a_recursive_bind_takes_submounts_along() -> Outcome {
    let stage = Stage::new("rbind")?;
    let (one, two, three) = (stage.mounted("one")?, stage.directory("two")?, stage.directory("three")?);
    let inner = stage.mounted("one/inner")?;
    let _deep = stage.mounted("one/inner/deep")?;
    fs::write(inner.join("file"), "").or_fail()?;
    bind(&one, &two, 0).or_fail()?;
    expect!(two.join("inner").exists() && !two.join("inner/file").exists());
    bind(&one, &three, libc::MS_REC).or_fail()?;
    expect!(three.join("inner/file").exists());
    expect_eq!(lines_below(&three)?.len(), 3);
    // Something is mounted in it.
    expect_eq!(umount(&three, 0), Err(Errno::EBUSY));
    umount(&three.join("inner/deep"), 0).or_fail()?;
    umount(&three.join("inner"), 0).or_fail()?;
    umount(&three, 0).or_fail()?;
    expect_eq!(lines_below(&one)?.len(), 3);
    Ok(())
}

fn bind_mounts_that_are_refused() -> Outcome {
    let stage = Stage::new("bind-errors")?;
    let directory = stage.directory("directory")?;
    fs::write(stage.path("file"), "").or_fail()?;
    expect_eq!(bind(&directory, &stage.path("file"), 0), Err(Errno::ENOTDIR));
    expect_eq!(bind(&stage.path("file"), &directory, 0), Err(Errno::ENOTDIR));
    expect_eq!(bind(&stage.path("nothing"), &directory, 0), Err(Errno::ENOENT));
    expect_eq!(bind(&directory, &stage.path("nothing"), 0), Err(Errno::ENOENT));
    expect_eq!(mount_with(None, &directory, None, libc::MS_BIND, None), Err(Errno::EINVAL));
    expect_eq!(bind(Path::new(""), &directory, 0), Err(Errno::EINVAL));
    // An unbindable mount can't be bound.
    let closed = stage.mounted("closed")?;
    mount(None, &closed, None, libc::MS_UNBINDABLE).or_fail()?;
    expect_eq!(bind(&closed, &directory, 0), Err(Errno::EINVAL));
    expect!(line_at(&closed)?.optional.contains(&"unbindable".to_owned()));
    // A recursive bind leaves it out.
    let target = stage.directory("target")?;
    bind(&stage.scratch.0, &target, libc::MS_REC).or_fail()?;
    expect_eq!(lines_below(&target)?.len(), 1);
    Ok(())
}

fn a_mount_moves_with_what_is_in_it() -> Outcome {
    let stage = Stage::new("move")?;
    let (one, two) = (stage.mounted("one")?, stage.directory("two")?);
    let _inner = stage.mounted("one/inner")?;
    fs::write(one.join("inner/file"), "").or_fail()?;
    let id = line_at(&one)?.id;
    mount_with(Some(&one), &two, None, libc::MS_MOVE, None).or_fail()?;
    expect!(two.join("inner/file").exists());
    expect!(!one.join("inner").exists());
    expect_eq!(line_at(&two)?.id, id);
    expect_eq!(line_at(&two.join("inner"))?.parent, id);
    expect_eq!(lines_below(&one)?.len(), 0);
    Ok(())
}

fn moves_that_are_refused() -> Outcome {
    let stage = Stage::new("move-errors")?;
    let move_to = |from: &Path, to: &Path| mount_with(Some(from), to, None, libc::MS_MOVE, None);
    let (one, two) = (stage.mounted("one")?, stage.directory("two")?);
    fs::create_dir(one.join("inner")).or_fail()?;
    fs::write(stage.path("file"), "").or_fail()?;
    expect_eq!(move_to(&two, &stage.directory("three")?), Err(Errno::EINVAL));
    expect_eq!(move_to(&one.join("inner"), &two), Err(Errno::EINVAL));
    expect_eq!(move_to(&one, &stage.path("file")), Err(Errno::EINVAL));
    expect_eq!(move_to(&one, &one.join("inner")), Err(Errno::ELOOP));
    expect_eq!(move_to(Path::new(""), &two), Err(Errno::EINVAL));
    // Out of a shared mount nothing moves.
    mount(None, &stage.scratch.0, None, libc::MS_SHARED).or_fail()?;
    expect_eq!(move_to(&one, &two), Err(Errno::EINVAL));
    Ok(())
}

fn flags_are_each_mounts_own() -> Outcome {
    let stage = Stage::new("flags")?;
    let (one, two) = (stage.mounted("one")?, stage.directory("two")?);
    bind(&one, &two, 0).or_fail()?;
    let all = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_NOATIME;
    mount(None, &two, None, libc::MS_REMOUNT | libc::MS_BIND | all).or_fail()?;
    let line = line_at(&two)?;
    expect_eq!(line.options, "ro,nosuid,nodev,noexec,noatime");
    expect!(line.common.starts_with("rw"));
    expect_eq!(line_at(&one)?.options, "rw,relatime");
    expect_eq!(fs::write(two.join("file"), "").map_err(|error| error.raw_os_error()), Err(Some(libc::EROFS)));
    fs::write(one.join("file"), "#!/bin/true\n").or_fail()?;
    expect_eq!(
        fs::remove_file(two.join("file")).map_err(|error| error.raw_os_error()),
        Err(Some(libc::EROFS))
    );
    let status = nix::sys::statvfs::statvfs(&two).or_fail()?.flags();
    expect!(status.contains(nix::sys::statvfs::FsFlags::ST_RDONLY));
    expect!(status.contains(nix::sys::statvfs::FsFlags::ST_NOSUID));
    expect!(status.contains(nix::sys::statvfs::FsFlags::ST_NOATIME));
    // A device cannot be opened.
    let device = nix::sys::stat::makedev(1, 3);
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
    nix::sys::stat::mknod(&one.join("null"), nix::sys::stat::SFlag::S_IFCHR, mode, device).or_fail()?;
    expect!(fs::read(one.join("null")).is_ok());
    expect_eq!(fs::read(two.join("null")).map_err(|error| error.raw_os_error()), Err(Some(libc::EACCES)));
    // A bind mount has the flags of what it shows.
    let three = stage.directory("three")?;
    bind(&two, &three, libc::MS_RDONLY).or_fail()?;
    expect_eq!(line_at(&three)?.options, "ro,nosuid,nodev,noexec,noatime");
    Ok(())
}

fn remounting_keeps_what_is_not_said() -> Outcome {
    let stage = Stage::new("remount")?;
    let one = stage.directory("one")?;
    let flags = libc::MS_NOSUID | libc::MS_NOATIME | libc::MS_NODIRATIME;
    mount(Some("one"), &one, Some("tmpfs"), flags).or_fail()?;
    expect_eq!(line_at(&one)?.options, "rw,nosuid,noatime,nodiratime");
    // Access times stay as they were; the other flags are those that are given.
    let again = libc::MS_REMOUNT | libc::MS_BIND;
    mount(None, &one, None, again | libc::MS_NOEXEC).or_fail()?;
    expect_eq!(line_at(&one)?.options, "rw,noexec,noatime,nodiratime");
    mount(None, &one, None, again | libc::MS_RELATIME).or_fail()?;
    expect_eq!(line_at(&one)?.options, "rw,relatime");
    mount(None, &one, None, again | libc::MS_STRICTATIME).or_fail()?;
    expect_eq!(line_at(&one)?.options, "rw");
    // Only mounts can be remounted.
    let plain = stage.directory("plain")?;
    expect_eq!(mount(None, &plain, None, again), Err(Errno::EINVAL));
    expect_eq!(mount(None, &plain, None, libc::MS_REMOUNT), Err(Errno::EINVAL));
    expect_eq!(mount(None, &plain, None, libc::MS_PRIVATE), Err(Errno::EINVAL));
    Ok(())
}

fn a_file_system_can_be_read_only_for_all_its_mounts() -> Outcome {
    let stage = Stage::new("readonly")?;
    let (one, two) = (stage.mounted("one")?, stage.directory("two")?);
    bind(&one, &two, 0).or_fail()?;
    mount(None, &one, None, libc::MS_REMOUNT | libc::MS_RDONLY).or_fail()?;
    expect_eq!(fs::write(two.join("file"), "").map_err(|error| error.raw_os_error()), Err(Some(libc::EROFS)));
    expect!(line_at(&two)?.common.starts_with("ro"));
    expect!(line_at(&two)?.has("rw") && line_at(&one)?.has("ro"));
    let mounts = fs::read_to_string("/proc/self/mounts").or_fail()?;
    let shown = mounts.lines().filter(|line| line.starts_with("one ")).count();
    let read_only = mounts.lines().filter(|line| line.starts_with("one ") && line.contains(" ro,")).count();
    expect_eq!((shown, read_only), (2, 2));
    mount(None, &two, None, libc::MS_REMOUNT).or_fail()?;
    expect!(line_at(&one)?.has("ro"));
    expect!(fs::write(two.join("file"), "").is_ok());
    Ok(())
}

fn links_are_not_followed_where_a_mount_says_so() -> Outcome {
    const MS_NOSYMFOLLOW: u64 = 256;
    let stage = Stage::new("nosymfollow")?;
    let one = stage.directory("one")?;
    mount(Some("one"), &one, Some("tmpfs"), MS_NOSYMFOLLOW).or_fail()?;
    fs::write(one.join("file"), "").or_fail()?;
    std::os::unix::fs::symlink("file", one.join("link")).or_fail()?;
    expect_eq!(fs::read(one.join("link")).map_err(|error| error.raw_os_error()), Err(Some(libc::ELOOP)));
    expect_eq!(fs::read_link(one.join("link")).or_fail()?, Path::new("file"));
    expect!(line_at(&one)?.has("nosymfollow"));
    Ok(())
}

fn mounts_lie_over_one_another() -> Outcome {
    let stage = Stage::new("stack")?;
    let one = stage.mounted("one")?;
    fs::write(one.join("lower"), "").or_fail()?;
    mount(Some("second"), &one, Some("tmpfs"), 0).or_fail()?;
    expect!(!one.join("lower").exists());
    fs::write(one.join("upper"), "").or_fail()?;
    let lines = lines_below(&one)?;
    expect_eq!(lines.len(), 2);
    expect_eq!(lines[1].parent, lines[0].id);
    expect_eq!(lines[1].kind, "tmpfs");
    umount(&one, 0).or_fail()?;
    expect!(one.join("lower").exists() && !one.join("upper").exists());
    // Over the root: paths go on to lead through what lies below.
    let status = in_child(|| {
        let covered = mount(Some("over"), Path::new("/"), Some("tmpfs"), 0).is_ok();
        let still_there = one.join("lower").exists();
        let up = Path::new("/..").join(one.strip_prefix("/").unwrap_or(&one)).join("lower").exists();
        i32::from(!(covered && still_there && !up))
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    let _ = umount(Path::new("/.."), libc::MNT_DETACH);
    Ok(())
}

fn unmounting_is_refused_while_something_is_used() -> Outcome {
    let stage = Stage::new("busy")?;
    let one = stage.mounted("one")?;
    let file = fs::File::create(one.join("file")).or_fail()?;
    expect_eq!(umount(&one, 0), Err(Errno::EBUSY));
    drop(file);
    std::env::set_current_dir(&one).or_fail()?;
    expect_eq!(umount(&one, 0), Err(Errno::EBUSY));
    std::env::set_current_dir("/").or_fail()?;
    let _inner = stage.mounted("one/inner")?;
    expect_eq!(umount(&one, 0), Err(Errno::EBUSY));
    umount(&one.join("inner"), 0).or_fail()?;
    // A place that was only looked at is not used.
    expect!(fs::metadata(&one).is_ok());
    umount(&one, 0).or_fail()?;
    Ok(())
}

fn a_lazy_unmount_happens_at_once() -> Outcome {
    let stage = Stage::new("lazy")?;
    let one = stage.mounted("one")?;
    let _inner = stage.mounted("one/inner")?;
    fs::write(one.join("file"), "text").or_fail()?;
    std::env::set_current_dir(&one).or_fail()?;
    umount(&one, libc::MNT_DETACH).or_fail()?;
    expect_eq!(lines_below(&one)?.len(), 0);
    expect!(!one.join("file").exists());
    // Whoever is inside can go on; what was mounted in it has gone.
    expect_eq!(fs::read_to_string("file").or_fail()?, "text");
    expect_eq!(fs::read_dir("inner").or_fail()?.count(), 0);
    // It can't be mounted, bound or unmounted again.
    let target = stage.directory("target")?;
    expect_eq!(bind(Path::new("."), &target, 0), Err(Errno::EINVAL));
    expect_eq!(umount(Path::new("."), 0), Err(Errno::EINVAL));
    expect_eq!(mount(Some("new"), Path::new("inner"), Some("tmpfs"), 0), Err(Errno::EINVAL));
    std::env::set_current_dir("/").or_fail()?;
    Ok(())
}

fn a_mount_that_nobody_uses_expires() -> Outcome {
    let stage = Stage::new("expire")?;
    let one = stage.mounted("one")?;
    expect_eq!(umount(&one, libc::MNT_EXPIRE), Err(Errno::EAGAIN));
    // A use takes the mark away.
    expect_eq!(fs::read_dir(&one).or_fail()?.count(), 0);
    expect_eq!(umount(&one, libc::MNT_EXPIRE), Err(Errno::EAGAIN));
    let file = fs::File::create(one.join("file")).or_fail()?;
    expect_eq!(umount(&one, libc::MNT_EXPIRE), Err(Errno::EBUSY));
    drop(file);
    expect_eq!(umount(&one, libc::MNT_EXPIRE), Err(Errno::EAGAIN));
    umount(&one, libc::MNT_EXPIRE).or_fail()?;
    expect_eq!(lines_below(&one)?.len(), 0);
    let two = stage.mounted("two")?;
    expect_eq!(umount(&two, libc::MNT_EXPIRE | libc::MNT_DETACH), Err(Errno::EINVAL));
    expect_eq!(umount(&two, libc::MNT_EXPIRE | libc::MNT_FORCE), Err(Errno::EINVAL));
    Ok(())
}

fn unmount_refuses_what_is_no_mount() -> Outcome {
    let stage = Stage::new("umount-errors")?;
    let one = stage.directory("one")?;
    expect_eq!(umount(&one, 0), Err(Errno::EINVAL));
    expect_eq!(umount(&stage.path("nothing"), 0), Err(Errno::ENOENT));
    expect_eq!(umount(&one, 0x100), Err(Errno::EINVAL));
    // A link at the end is followed unless the caller says otherwise.
    let two = stage.mounted("two")?;
    std::os::unix::fs::symlink(&two, stage.path("link")).or_fail()?;
    expect_eq!(umount(&stage.path("link"), libc::UMOUNT_NOFOLLOW), Err(Errno::EINVAL));
    umount(&stage.path("link"), libc::MNT_FORCE).or_fail()?;
    expect_eq!(lines_below(&two)?.len(), 0);
    Ok(())
}

fn mount_refuses_in_the_order_of_linux() -> Outcome {
    let stage = Stage::new("mount-errors")?;
    let one = stage.directory("one")?;
    fs::write(stage.path("file"), "").or_fail()?;
    expect_eq!(mount(Some("x"), &one, Some("nosuchfs"), 0), Err(Errno::ENODEV));
    expect_eq!(mount(Some("x"), &one, None, 0), Err(Errno::EINVAL));
    expect_eq!(mount(Some("x"), &stage.path("nothing"), Some("nosuchfs"), 0), Err(Errno::ENOENT));
    expect_eq!(mount(Some("x"), &stage.path("file"), Some("tmpfs"), 0), Err(Errno::ENOTDIR));
    expect_eq!(mount(None, &one, None, libc::MS_SHARED | libc::MS_PRIVATE), Err(Errno::EINVAL));
    expect_eq!(mount(None, &one, None, libc::MS_SHARED | libc::MS_NODEV), Err(Errno::EINVAL));
    expect_eq!(
        mount_with(Some(Path::new("x")), &one, Some("tmpfs"), 0, Some("nosuchoption")),
        Err(Errno::EINVAL)
    );
    let status = in_child(|| {
        let gone = nix::unistd::setuid(nix::unistd::Uid::from_raw(1000)).is_ok();
        let results = [
            mount(Some("x"), &one, Some("tmpfs"), 0),
            mount(Some("x"), &one, Some("nosuchfs"), 0),
            bind(&one, &one, 0),
            umount(&one, 0),
            unshare(CloneFlags::CLONE_NEWNS),
            pivot_root(&one, &one),
        ];
        let missing = mount(Some("x"), &stage.path("nothing"), Some("tmpfs"), 0);
        let all = results.iter().all(|result| *result == Err(Errno::EPERM));
        i32::from(!(gone && all && missing == Err(Errno::ENOENT)))
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn the_root_is_exchanged() -> Outcome {
    let stage = Stage::new("pivot")?;
    let new = stage.mounted("new")?;
    fs::create_dir(new.join("old")).or_fail()?;
    fs::write(new.join("mark"), "").or_fail()?;
    let status = in_child(|| {
        let run = || -> Outcome {
            unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
            // A second thread of control that does nothing but have directories, which move along.
            let root = fs::metadata("/").or_fail()?.ino();
            pivot_root(&new, &new.join("old")).or_fail()?;
            expect!(Path::new("/mark").exists());
            expect_eq!(fs::metadata("/old").or_fail()?.ino(), root);
            expect_eq!(std::env::current_dir().or_fail()?, Path::new("/"));
            expect!(fs::metadata("mark").is_ok());
            umount(Path::new("/old"), libc::MNT_DETACH).or_fail()?;
            expect_eq!(fs::read_dir("/old").or_fail()?.count(), 0);
            Ok(())
        };
        std::env::set_current_dir("/").map_or(1, |()| match run() {
            Ok(()) => 0,
            Err(error) => {
                println!("{error}");
                1
            }
        })
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    // The parent is in another namespace.
    expect!(new.join("mark").exists());
    Ok(())
}

fn exchanges_of_the_root_that_are_refused() -> Outcome {
    let stage = Stage::new("pivot-errors")?;
    let new = stage.mounted("new")?;
    let plain = stage.directory("plain")?;
    fs::create_dir(new.join("old")).or_fail()?;
    fs::write(stage.path("file"), "").or_fail()?;
    expect_eq!(pivot_root(&plain, &plain), Err(Errno::EINVAL));
    expect_eq!(pivot_root(&stage.path("file"), &plain), Err(Errno::ENOTDIR));
    expect_eq!(pivot_root(&stage.path("nothing"), &plain), Err(Errno::ENOENT));
    expect_eq!(pivot_root(&new, &plain), Err(Errno::EINVAL));
    expect_eq!(pivot_root(Path::new("/"), Path::new("/")), Err(Errno::EBUSY));
    mount(None, &new, None, libc::MS_SHARED).or_fail()?;
    expect_eq!(pivot_root(&new, &new.join("old")), Err(Errno::EINVAL));
    Ok(())
}

fn mountinfo_says_where_everything_hangs() -> Outcome {
    let stage = Stage::new("mountinfo")?;
    let base = line_at(&stage.scratch.0)?;
    let odd = stage.directory("a b\\c#d")?;
    mount(Some("so u#rce"), &odd, Some("tmpfs"), 0).or_fail()?;
    let text = fs::read_to_string("/proc/self/mountinfo").or_fail()?;
    let line =
        text.lines().find_map(|line| Line::parse(line).filter(|line| line.source == "so\\040u\\043rce"));
    let line = line.ok_or("the mount is not listed")?;
    expect!(line.point.ends_with("/a\\040b\\134c#d"));
    expect_eq!((line.parent, &*line.root, &*line.kind), (base.id, "/", "tmpfs"));
    let stats = fs::read_to_string("/proc/self/mountstats").or_fail()?;
    expect!(
        stats.lines().any(|line| line.starts_with("device so\\040u\\043rce mounted on ")
            && line.ends_with("with fstype tmpfs"))
    );
    // Only what can be reached from the root is shown, and by its path from there.
    let status = in_child(|| {
        let changed = nix::unistd::chroot(&stage.scratch.0).is_ok() && std::env::set_current_dir("/").is_ok();
        i32::from(!changed)
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn statx_tells_the_mount() -> Outcome {
    let stage = Stage::new("statx")?;
    let one = stage.mounted("one")?;
    fs::write(one.join("file"), "").or_fail()?;
    let look = |path: &Path| -> Result<libc::statx, Errno> {
        let path = text(path);
        // SAFETY: all zeros is a valid value, and the call fills it.
        let mut found: libc::statx = unsafe { std::mem::zeroed() };
        // SAFETY: a string and a structure.
        let result =
            unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_MNT_ID, &raw mut found) };
        Errno::result(result).map(|_| found)
    };
    let (top, file) = (look(&one).or_fail()?, look(&one.join("file")).or_fail()?);
    expect!(top.stx_mask & libc::STATX_MNT_ID != 0);
    expect_eq!(top.stx_mnt_id, line_at(&one)?.id);
    expect_eq!(file.stx_mnt_id, top.stx_mnt_id);
    let is_root = libc::STATX_ATTR_MOUNT_ROOT as u64;
    expect!(top.stx_attributes_mask & is_root != 0);
    expect_eq!((top.stx_attributes & is_root, file.stx_attributes & is_root), (is_root, 0));
    Ok(())
}
