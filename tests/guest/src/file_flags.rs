//! The flags of files that keep them from being changed: ioctl_iflags(2) and its wider form.
#![allow(unsafe_code, reason = "the requests have no safe form")]

use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use linux_raw_sys::general::{
    FS_APPEND_FL, FS_COMPR_FL, FS_IMMUTABLE_FL, FS_NOATIME_FL, FS_NODUMP_FL, FS_XFLAG_APPEND,
    FS_XFLAG_COWEXTSIZE, FS_XFLAG_EXTSIZE, FS_XFLAG_IMMUTABLE, FS_XFLAG_NODUMP, FS_XFLAG_SYNC,
    STATX_ATTR_APPEND, STATX_ATTR_IMMUTABLE, STATX_ATTR_NODUMP, fsxattr,
};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, RenameFlags, fallocate, fcntl, renameat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::wait::WaitStatus;

use crate::extended;
use crate::harness::{OrFail, Outcome, Scratch, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    flags_are_kept_and_told
    the_wider_form_has_the_same_flags
    flags_have_owners_and_rights
    immutable_files_stay
    immutable_directories_keep_their_names
    append_only_files_only_grow
    append_only_directories_lose_no_names
    new_files_have_some_flags_of_their_directory
    memory_files_have_flags
    reading_may_leave_the_access_time
}

nix::ioctl_read!(get_flags, b'f', 1, libc::c_long);
nix::ioctl_write_ptr!(set_flags, b'f', 2, libc::c_long);
nix::ioctl_read!(get_extended, b'X', 31, fsxattr);
nix::ioctl_write_ptr!(set_extended, b'X', 32, fsxattr);

/// A file system in memory of the test's own: that of the root may be another kind.
struct FlagTree(Scratch);

impl FlagTree {
    fn new(name: &str) -> Result<Self, String> {
        let scratch = Scratch::new(name)?;
        mount(Some("none"), &scratch.0, Some("tmpfs"), MsFlags::empty(), None::<&str>).or_fail()?;
        Ok(Self(scratch))
    }
}

impl Drop for FlagTree {
    fn drop(&mut self) {
        let _ = umount2(&self.0.0, MntFlags::MNT_DETACH);
    }
}

fn flags(file: &File) -> Result<u32, Errno> {
    let mut bits: libc::c_long = 0;
    // SAFETY: the number lives during the call, which stores 32 bits.
    unsafe { get_flags(file.as_raw_fd(), &raw mut bits) }.map(|_| bits as u32)
}

fn set(file: &File, bits: u32) -> Result<(), Errno> {
    let bits = libc::c_long::from(bits);
    // SAFETY: the number lives during the call.
    unsafe { set_flags(file.as_raw_fd(), &raw const bits) }.map(drop)
}

fn set_at(path: &Path, bits: u32) -> Result<(), String> {
    set(&File::open(path).or_fail()?, bits).or_fail()
}

const NOTHING: fsxattr = fsxattr {
    fsx_xflags: 0,
    fsx_extsize: 0,
    fsx_nextents: 0,
    fsx_projid: 0,
    fsx_cowextsize: 0,
    fsx_pad: [0; 8],
};

fn extended_flags(file: &File) -> Result<u32, Errno> {
    let mut all = NOTHING;
    // SAFETY: the structure lives during the call.
    unsafe { get_extended(file.as_raw_fd(), &raw mut all) }.map(|_| all.fsx_xflags)
}

fn set_wide(file: &File, wanted: fsxattr) -> Result<(), Errno> {
    // SAFETY: the structure lives during the call.
    unsafe { set_extended(file.as_raw_fd(), &raw const wanted) }.map(drop)
}

fn error<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw)
}

/// The attributes that statx(2) tells, and those that it could tell.
fn status(path: &Path) -> Result<(u64, u64), String> {
    let path = CString::new(path.as_os_str().as_bytes()).or_fail()?;
    // SAFETY: zeros are a value of it.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path and the structure live during the call.
    let result =
        unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_BASIC_STATS, &raw mut status) };
    Errno::result(result).or_fail()?;
    Ok((status.stx_attributes, status.stx_attributes_mask))
}

fn flags_are_kept_and_told() -> Outcome {
    let tree = FlagTree::new("flags")?;
    let path = tree.0.path("file");
    let file = File::create(&path).or_fail()?;
    expect_eq!(flags(&file), Ok(0));
    let known = u64::from(STATX_ATTR_APPEND | STATX_ATTR_IMMUTABLE | STATX_ATTR_NODUMP);
    let (told, could) = status(&path)?;
    expect_eq!((told & known, could & known), (0, known));
    for bits in [
        FS_NODUMP_FL | FS_NOATIME_FL,
        FS_IMMUTABLE_FL,
        FS_APPEND_FL,
        FS_IMMUTABLE_FL | FS_APPEND_FL | FS_NODUMP_FL,
        0,
    ] {
        expect_eq!(set(&file, bits), Ok(()));
        expect_eq!(flags(&file), Ok(bits));
        // The numbers are the same.
        expect_eq!(status(&path)?.0 & known, u64::from(bits) & known);
    }
    expect_eq!(set(&file, FS_COMPR_FL), Err(Errno::EOPNOTSUPP));
    expect_eq!(set(&file, 1 << 31), Err(Errno::EOPNOTSUPP));
    let directory = File::open(&tree.0.0).or_fail()?;
    expect_eq!(set(&directory, FS_NODUMP_FL), Ok(()));
    expect_eq!(flags(&directory), Ok(FS_NODUMP_FL));
    // A file without flags doesn't know the request.
    let (reading, _writing) = nix::unistd::pipe().or_fail()?;
    expect_eq!(flags(&File::from(reading)), Err(Errno::ENOTTY));
    expect_eq!(flags(&File::open("/proc/self/status").or_fail()?), Err(Errno::ENOTTY));
    Ok(())
}

fn the_wider_form_has_the_same_flags() -> Outcome {
    let tree = FlagTree::new("wide")?;
    let file = File::create(tree.0.path("file")).or_fail()?;
    expect_eq!(set(&file, FS_APPEND_FL | FS_NODUMP_FL), Ok(()));
    expect_eq!(extended_flags(&file), Ok(FS_XFLAG_APPEND | FS_XFLAG_NODUMP));
    expect_eq!(set_wide(&file, fsxattr { fsx_xflags: FS_XFLAG_IMMUTABLE, ..NOTHING }), Ok(()));
    expect_eq!(flags(&file), Ok(FS_IMMUTABLE_FL));
    expect_eq!(set_wide(&file, NOTHING), Ok(()));
    expect_eq!(flags(&file), Ok(0));
    for (wanted, refused) in [
        (fsxattr { fsx_xflags: FS_XFLAG_SYNC, ..NOTHING }, Errno::EOPNOTSUPP),
        (fsxattr { fsx_projid: 7, ..NOTHING }, Errno::EOPNOTSUPP),
        (fsxattr { fsx_xflags: FS_XFLAG_COWEXTSIZE, fsx_cowextsize: 4096, ..NOTHING }, Errno::EOPNOTSUPP),
    ] {
        expect_eq!(set_wide(&file, wanted), Err(refused));
    }
    let directory = File::open(&tree.0.0).or_fail()?;
    let wanted = fsxattr { fsx_xflags: FS_XFLAG_EXTSIZE, fsx_extsize: 4096, ..NOTHING };
    expect_eq!(set_wide(&directory, wanted), Err(Errno::EINVAL));
    Ok(())
}

/// Runs `body` as a user without rights; it returns the number of what was wrong, or 0.
fn as_nobody(body: impl FnOnce() -> i32) -> Outcome {
    let ended = in_child(|| {
        let user = nix::unistd::Uid::from_raw(12_345);
        let _ = nix::unistd::setgroups(&[]);
        if nix::unistd::setresuid(user, user, user).is_err() {
            return 100;
        }
        body()
    })?;
    let WaitStatus::Exited(_, code) = ended else { return Err(format!("{ended:?}")) };
    expect_eq!(code, 0);
    Ok(())
}

fn flags_have_owners_and_rights() -> Outcome {
    let tree = FlagTree::new("rights")?;
    fs::set_permissions(&tree.0.0, Permissions::from_mode(0o777)).or_fail()?;
    let (own, other) = (tree.0.path("own"), tree.0.path("other"));
    fs::write(&own, "own").or_fail()?;
    fs::write(&other, "other").or_fail()?;
    std::os::unix::fs::chown(&own, Some(12_345), None).or_fail()?;
    as_nobody(|| {
        let (Ok(own), Ok(other)) = (File::open(&own), File::open(&other)) else { return 99 };
        let answers = [
            set(&own, FS_NODUMP_FL) == Ok(()),
            set(&own, FS_NODUMP_FL | FS_IMMUTABLE_FL) == Err(Errno::EPERM),
            set(&own, FS_APPEND_FL) == Err(Errno::EPERM),
            flags(&own) == Ok(FS_NODUMP_FL),
            set(&other, FS_NODUMP_FL) == Err(Errno::EPERM),
            flags(&other) == Ok(0),
        ];
        answers.iter().position(|&is_right| !is_right).map_or(0, |at| at as i32 + 1)
    })?;
    // Nor does the owner take away what another has set.
    set_at(&own, FS_IMMUTABLE_FL)?;
    as_nobody(|| {
        let Ok(own) = File::open(&own) else { return 99 };
        let answers = [
            set(&own, 0) == Err(Errno::EPERM),
            set(&own, FS_IMMUTABLE_FL | FS_NODUMP_FL) == Ok(()),
            flags(&own) == Ok(FS_IMMUTABLE_FL | FS_NODUMP_FL),
        ];
        answers.iter().position(|&is_right| !is_right).map_or(0, |at| at as i32 + 1)
    })?;
    // A mount that may not be written keeps flags as well.
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount(None::<&str>, &tree.0.0, None::<&str>, flags, None::<&str>).or_fail()?;
    expect_eq!(set(&File::open(&other).or_fail()?, FS_NODUMP_FL), Err(Errno::EROFS));
    Ok(())
}

fn times(path: &Path, times: Option<[libc::timespec; 2]>) -> Result<(), Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
    let times = times.as_ref().map_or(std::ptr::null(), |times| times.as_ptr());
    // SAFETY: the path and the times live during the call.
    Errno::result(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times, 0) }).map(drop)
}

fn link(from: &Path, to: &Path) -> Option<Errno> {
    error(fs::hard_link(from, to))
}

/// The rules for a file's names and attributes if it is immutable or append-only.
fn check_fixed(tree: &FlagTree, path: &Path) -> Outcome {
    let other = tree.0.path("another");
    fs::write(&other, "another").or_fail()?;
    expect_eq!(error(fs::remove_file(path)), Some(Errno::EPERM));
    expect_eq!(error(fs::rename(path, tree.0.path("moved"))), Some(Errno::EPERM));
    expect_eq!(error(fs::rename(&other, path)), Some(Errno::EPERM));
    let here = File::open("/").or_fail()?;
    expect_eq!(renameat2(&here, &other, &here, path, RenameFlags::RENAME_EXCHANGE), Err(Errno::EPERM));
    expect_eq!(link(path, &tree.0.path("linked")), Some(Errno::EPERM));
    expect_eq!(error(fs::set_permissions(path, Permissions::from_mode(0o600))), Some(Errno::EPERM));
    expect_eq!(error(std::os::unix::fs::chown(path, Some(0), None)), Some(Errno::EPERM));
    let long_ago = libc::timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    expect_eq!(times(path, Some([long_ago; 2])), Err(Errno::EPERM));
    expect_eq!(extended::set(path, "trusted.name", b"value", 0), Err(Errno::EPERM));
    let reader = File::open(path).or_fail()?;
    expect_eq!(error(reader.set_permissions(Permissions::from_mode(0o600))), Some(Errno::EPERM));
    // A lie about nothing is none.
    expect_eq!(error(std::os::unix::fs::chown(path, None, None)), None);
    Ok(())
}

fn immutable_files_stay() -> Outcome {
    let tree = FlagTree::new("immutable")?;
    let path = tree.0.path("file");
    let mut early = File::create(&path).or_fail()?;
    early.write_all(b"text").or_fail()?;
    set(&early, FS_IMMUTABLE_FL).or_fail()?;
    check_fixed(&tree, &path)?;
    expect_eq!(times(&path, None), Err(Errno::EPERM));
    for mut options in [OpenOptions::new().write(true).clone(), OpenOptions::new().append(true).clone()] {
        expect_eq!(error(options.open(&path)), Some(Errno::EPERM));
        expect_eq!(error(options.create(true).open(&path)), Some(Errno::EPERM));
    }
    expect_eq!(
        error(OpenOptions::new().read(true).custom_flags(libc::O_TRUNC).open(&path)),
        Some(Errno::EPERM)
    );
    expect_eq!(nix::unistd::truncate(&path, 1), Err(Errno::EPERM));
    expect_eq!(nix::unistd::access(&path, nix::unistd::AccessFlags::W_OK), Err(Errno::EPERM));
    expect_eq!(fallocate(&early, FallocateFlags::empty(), 0, 100), Err(Errno::EPERM));
    let mut text = String::new();
    File::open(&path).or_fail()?.read_to_string(&mut text).or_fail()?;
    expect_eq!(text, "text");
    set(&early, 0).or_fail()?;
    fs::remove_file(&path).or_fail()?;
    Ok(())
}

fn immutable_directories_keep_their_names() -> Outcome {
    let tree = FlagTree::new("directory")?;
    let folder = tree.0.path("folder");
    fs::create_dir(&folder).or_fail()?;
    fs::write(folder.join("file"), "text").or_fail()?;
    set_at(&folder, FS_IMMUTABLE_FL)?;
    expect_eq!(error(File::create(folder.join("new"))), Some(Errno::EPERM));
    expect_eq!(error(fs::create_dir(folder.join("new"))), Some(Errno::EPERM));
    expect_eq!(error(fs::remove_file(folder.join("file"))), Some(Errno::EPERM));
    expect_eq!(error(fs::rename(folder.join("file"), tree.0.path("file"))), Some(Errno::EPERM));
    expect_eq!(link(&folder.join("file"), &folder.join("linked")), Some(Errno::EPERM));
    let unnamed = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(&folder);
    expect_eq!(error(unnamed), Some(Errno::EPERM));
    expect_eq!(error(fs::rename(&folder, tree.0.path("other"))), Some(Errno::EPERM));
    expect_eq!(error(fs::remove_dir(&folder)), Some(Errno::EPERM));
    // A file in it is another one.
    fs::write(folder.join("file"), "other text").or_fail()?;
    set_at(&folder, 0)?;
    fs::remove_dir_all(&folder).or_fail()
}

fn append_only_files_only_grow() -> Outcome {
    let tree = FlagTree::new("append")?;
    let path = tree.0.path("file");
    let mut early = OpenOptions::new().read(true).write(true).create_new(true).open(&path).or_fail()?;
    early.write_all(b"text").or_fail()?;
    set(&early, FS_APPEND_FL).or_fail()?;
    check_fixed(&tree, &path)?;
    // That it was written now may be said.
    expect_eq!(times(&path, None), Ok(()));
    expect_eq!(error(OpenOptions::new().write(true).open(&path)), Some(Errno::EPERM));
    let truncating = OpenOptions::new().append(true).custom_flags(libc::O_TRUNC).open(&path);
    expect_eq!(error(truncating), Some(Errno::EPERM));
    expect_eq!(
        error(OpenOptions::new().read(true).custom_flags(libc::O_TRUNC).open(&path)),
        Some(Errno::EPERM)
    );
    let mut writer = OpenOptions::new().append(true).open(&path).or_fail()?;
    writer.write_all(b" and more").or_fail()?;
    expect_eq!(fs::read_to_string(&path).or_fail()?, "text and more");
    expect_eq!(fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())), Err(Errno::EPERM));
    expect_eq!(fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_APPEND | OFlag::O_NONBLOCK)).map(drop), Ok(()));
    expect_eq!(nix::unistd::ftruncate(&writer, 1), Err(Errno::EPERM));
    expect_eq!(nix::unistd::truncate(&path, 100), Err(Errno::EPERM));
    expect_eq!(fallocate(&writer, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, 8192), Ok(()));
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    expect_eq!(fallocate(&writer, punch, 0, 4096), Err(Errno::EPERM));
    // A descriptor of before writes anywhere, but maps nothing that it could write.
    // SAFETY: nothing is mapped.
    let mapped = unsafe {
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, early.as_raw_fd(), 0)
    };
    expect_eq!((mapped, Errno::last()), (libc::MAP_FAILED, Errno::EACCES));
    set(&early, 0).or_fail()?;
    fs::remove_file(&path).or_fail()
}

fn append_only_directories_lose_no_names() -> Outcome {
    let tree = FlagTree::new("grows")?;
    let folder = tree.0.path("folder");
    fs::create_dir(&folder).or_fail()?;
    set_at(&folder, FS_APPEND_FL)?;
    fs::write(folder.join("file"), "text").or_fail()?;
    fs::create_dir(folder.join("inner")).or_fail()?;
    expect_eq!(error(fs::remove_file(folder.join("file"))), Some(Errno::EPERM));
    expect_eq!(error(fs::remove_dir(folder.join("inner"))), Some(Errno::EPERM));
    expect_eq!(error(fs::rename(folder.join("file"), folder.join("other"))), Some(Errno::EPERM));
    fs::write(tree.0.path("outside"), "text").or_fail()?;
    expect_eq!(error(fs::rename(tree.0.path("outside"), folder.join("file"))), Some(Errno::EPERM));
    expect_eq!(error(fs::rename(tree.0.path("outside"), folder.join("moved"))), None);
    set_at(&folder, 0)?;
    fs::remove_dir_all(&folder).or_fail()
}

fn new_files_have_some_flags_of_their_directory() -> Outcome {
    let tree = FlagTree::new("inherited")?;
    let folder = tree.0.path("folder");
    fs::create_dir(&folder).or_fail()?;
    set_at(&folder, FS_NODUMP_FL | FS_NOATIME_FL | FS_APPEND_FL)?;
    let file = File::create(folder.join("file")).or_fail()?;
    expect_eq!(flags(&file), Ok(FS_NODUMP_FL | FS_NOATIME_FL));
    fs::create_dir(folder.join("inner")).or_fail()?;
    expect_eq!(flags(&File::open(folder.join("inner")).or_fail()?), Ok(FS_NODUMP_FL | FS_NOATIME_FL));
    let unnamed = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(&folder).or_fail()?;
    expect_eq!(flags(&unnamed), Ok(FS_NODUMP_FL | FS_NOATIME_FL));
    set_at(&folder, 0)
}

fn memory_files_have_flags() -> Outcome {
    let file = File::from(memfd_create("flags", MFdFlags::empty()).or_fail()?);
    (&file).write_all(b"text").or_fail()?;
    expect_eq!(flags(&file), Ok(0));
    expect_eq!(set(&file, FS_APPEND_FL), Ok(()));
    expect_eq!(flags(&file), Ok(FS_APPEND_FL));
    expect_eq!(nix::unistd::ftruncate(&file, 0), Err(Errno::EPERM));
    expect_eq!(error(file.set_permissions(Permissions::from_mode(0o600))), Some(Errno::EPERM));
    expect_eq!(set(&file, 0), Ok(()));
    expect_eq!(nix::unistd::ftruncate(&file, 0), Ok(()));
    Ok(())
}

fn reading_may_leave_the_access_time() -> Outcome {
    let tree = FlagTree::new("access-time")?;
    let path = tree.0.path("file");
    fs::write(&path, "text").or_fail()?;
    let file = File::open(&path).or_fail()?;
    let moment = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    file.set_times(fs::FileTimes::new().set_accessed(moment)).or_fail()?;
    set(&file, FS_NOATIME_FL).or_fail()?;
    fs::read(&path).or_fail()?;
    expect_eq!(fs::metadata(&path).or_fail()?.accessed().or_fail()?, moment);
    set(&file, 0).or_fail()?;
    fs::read(&path).or_fail()?;
    expect!(fs::metadata(&path).or_fail()?.accessed().or_fail()? > moment);
    Ok(())
}
