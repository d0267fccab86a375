//! File handles: name_to_handle_at(2) and open_by_handle_at(2), on a tmpfs.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Gid, Uid, pipe, setresgid, setresuid};

use super::Stage;
use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_handle_opens_its_file
    a_handle_that_does_not_fit_tells_its_length
    handles_are_of_some_file_systems
    handles_of_descriptors_and_links
    a_handle_outlives_its_name
    a_handle_is_stale_without_its_file
    a_handle_does_not_open_other_file_systems
    handles_open_directories_and_links
    handles_open_with_flags
    handles_need_a_privilege
    handles_are_refused_in_the_order_of_linux
}

/// As much as any file system needs.
const ROOM: usize = 128;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Handle {
    bytes: u32,
    kind: i32,
    value: [u8; ROOM],
}

impl Handle {
    const fn with_room(bytes: u32) -> Self {
        Self { bytes, kind: 0, value: [0; ROOM] }
    }
}

fn encode_into(at: RawFd, path: &Path, flags: i32, handle: &mut Handle) -> Result<i32, Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    let mut mount = 0;
    // SAFETY: a string, a handle with as much room as it says, and an integer.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            at,
            path.as_ptr(),
            std::ptr::from_mut(handle),
            &raw mut mount,
            flags,
        )
    };
    Errno::result(result).map(|_| mount)
}

fn encode(path: &Path) -> Result<Handle, Errno> {
    let mut handle = Handle::with_room(ROOM as u32);
    encode_into(libc::AT_FDCWD, path, 0, &mut handle).map(|_| handle)
}

fn encode_open(file: &impl AsRawFd) -> Result<Handle, Errno> {
    let mut handle = Handle::with_room(ROOM as u32);
    encode_into(file.as_raw_fd(), Path::new(""), libc::AT_EMPTY_PATH, &mut handle).map(|_| handle)
}

fn open(mount: RawFd, handle: &Handle, flags: i32) -> Result<File, Errno> {
    // SAFETY: a handle; the descriptor is new.
    unsafe {
        let handle = std::ptr::from_ref(handle);
        let descriptor = Errno::result(libc::syscall(libc::SYS_open_by_handle_at, mount, handle, flags))?;
        Ok(File::from_raw_fd(descriptor as RawFd))
    }
}

fn read(mount: RawFd, handle: &Handle) -> Result<String, String> {
    let mut text = String::new();
    open(mount, handle, libc::O_RDONLY).or_fail()?.read_to_string(&mut text).or_fail()?;
    Ok(text)
}

fn target_of(file: &impl AsRawFd) -> Result<String, String> {
    let target = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).or_fail()?;
    Ok(target.to_string_lossy().into_owned())
}

/// The number of the mount that lies over a path.
fn mount_number(path: &Path) -> Result<i32, String> {
    let text = fs::read_to_string("/proc/self/mountinfo").or_fail()?;
    let path = path.to_string_lossy();
    let line = text.lines().rfind(|line| line.split(' ').nth(4) == Some(&*path)).ok_or("no such mount")?;
    line.split(' ').next().unwrap_or_default().parse().or_fail()
}

fn a_handle_opens_its_file() -> Outcome {
    let stage = Stage::new("handle")?;
    let (top, file) = (File::open(&stage.scratch.0).or_fail()?, stage.path("file"));
    fs::write(&file, "content").or_fail()?;
    let mut handle = Handle::with_room(ROOM as u32);
    let number = encode_into(libc::AT_FDCWD, &file, 0, &mut handle).or_fail()?;
    expect_eq!(number, mount_number(&stage.scratch.0)?);
    expect_eq!((handle.bytes, handle.kind), (12, 1));
    expect_eq!(encode(&file), Ok(handle));
    let opened = open(top.as_raw_fd(), &handle, libc::O_RDONLY).or_fail()?;
    expect_eq!(opened.metadata().or_fail()?.ino(), fs::metadata(&file).or_fail()?.ino());
    expect_eq!(target_of(&opened)?, file.to_string_lossy());
    expect_eq!(read(top.as_raw_fd(), &handle)?, "content");
    // Any file of the file system names it.
    let other = File::create(stage.path("other")).or_fail()?;
    expect_eq!(read(other.as_raw_fd(), &handle)?, "content");
    expect!(encode(&stage.path("other")).or_fail()? != handle);
    std::env::set_current_dir(&stage.scratch.0).or_fail()?;
    expect_eq!(read(libc::AT_FDCWD, &handle)?, "content");
    std::env::set_current_dir("/").or_fail()?;
    Ok(())
}

fn a_handle_that_does_not_fit_tells_its_length() -> Outcome {
    let stage = Stage::new("fit")?;
    for room in [0, 4, 11] {
        let mut handle = Handle::with_room(room);
        let result = encode_into(libc::AT_FDCWD, &stage.scratch.0, 0, &mut handle);
        expect_eq!(result, Err(Errno::EOVERFLOW));
        expect_eq!((handle.bytes, handle.value), (12, [0; ROOM]));
    }
    let mut handle = Handle::with_room(12);
    encode_into(libc::AT_FDCWD, &stage.scratch.0, 0, &mut handle).or_fail()?;
    expect_eq!(handle, encode(&stage.scratch.0).or_fail()?);
    Ok(())
}

fn handles_are_of_some_file_systems() -> Outcome {
    let stage = Stage::new("kinds")?;
    let ramfs = stage.directory("ramfs")?;
    super::mount(Some("ramfs"), &ramfs, Some("ramfs"), 0).or_fail()?;
    for path in [&ramfs, Path::new("/proc/self/status"), Path::new("/proc"), Path::new("/sys")] {
        expect_eq!(encode(path), Err(Errno::EOPNOTSUPP));
    }
    let (from, _to) = pipe().or_fail()?;
    expect_eq!(encode_open(&from), Err(Errno::EOPNOTSUPP));
    let (socket, _other) = std::os::unix::net::UnixStream::pair().or_fail()?;
    expect_eq!(encode_open(&socket), Err(Errno::EOPNOTSUPP));
    expect!(encode(Path::new("/dev/null")).is_ok());
    expect!(encode(Path::new("/dev/shm")).is_ok());
    // One on which something is mounted is what it is mounted on.
    let inner = stage.mounted("inner")?;
    expect_eq!(
        encode_into(libc::AT_FDCWD, &inner, 0, &mut Handle::with_room(64)).or_fail()?,
        mount_number(&inner)?
    );
    super::umount(&ramfs, 0).or_fail()
}

fn handles_of_descriptors_and_links() -> Outcome {
    let stage = Stage::new("links")?;
    let (file, link) = (stage.path("file"), stage.path("link"));
    fs::write(&file, "content").or_fail()?;
    symlink("file", &link).or_fail()?;
    let (of_file, of_link) = (encode(&file).or_fail()?, encode(&link).or_fail()?);
    expect!(of_file != of_link);
    let mut followed = Handle::with_room(ROOM as u32);
    encode_into(libc::AT_FDCWD, &link, libc::AT_SYMLINK_FOLLOW, &mut followed).or_fail()?;
    expect_eq!(followed, of_file);
    expect_eq!(encode_open(&File::open(&file).or_fail()?), Ok(of_file));
    let top = File::open(&stage.scratch.0).or_fail()?;
    let mut relative = Handle::with_room(ROOM as u32);
    encode_into(top.as_raw_fd(), Path::new("file"), 0, &mut relative).or_fail()?;
    expect_eq!(relative, of_file);
    let result = encode_into(top.as_raw_fd(), Path::new(""), 0, &mut relative);
    expect_eq!(result, Err(Errno::ENOENT));
    // A memfd is in no directory, but in a file system with handles.
    let memory = memfd_create(c"memory", MFdFlags::empty()).or_fail()?;
    nix::unistd::write(&memory, b"in memory").or_fail()?;
    expect_eq!(read(memory.as_raw_fd(), &encode_open(&memory).or_fail()?)?, "in memory");
    Ok(())
}

fn a_handle_outlives_its_name() -> Outcome {
    let stage = Stage::new("name")?;
    let (top, file) = (File::open(&stage.scratch.0).or_fail()?, stage.path("file"));
    fs::write(&file, "content").or_fail()?;
    let handle = encode(&file).or_fail()?;
    let directory = stage.directory("directory")?;
    let inner = encode(&directory).or_fail()?;
    fs::rename(&file, directory.join("moved")).or_fail()?;
    let opened = open(top.as_raw_fd(), &handle, libc::O_RDONLY).or_fail()?;
    expect_eq!(target_of(&opened)?, directory.join("moved").display().to_string());
    drop(opened);
    fs::rename(&directory, stage.path("elsewhere")).or_fail()?;
    let opened = open(top.as_raw_fd(), &inner, libc::O_RDONLY | libc::O_DIRECTORY).or_fail()?;
    expect_eq!(target_of(&opened)?, stage.path("elsewhere").display().to_string());
    // Another name keeps the file.
    fs::hard_link(stage.path("elsewhere/moved"), stage.path("second")).or_fail()?;
    fs::remove_file(stage.path("elsewhere/moved")).or_fail()?;
    expect_eq!(read(top.as_raw_fd(), &handle)?, "content");
    fs::write(stage.path("second"), "changed").or_fail()?;
    expect_eq!(read(top.as_raw_fd(), &handle)?, "changed");
    expect_eq!(encode(&stage.path("second")), Ok(handle));
    Ok(())
}

fn a_handle_is_stale_without_its_file() -> Outcome {
    let stage = Stage::new("stale")?;
    let (top, file) = (File::open(&stage.scratch.0).or_fail()?, stage.path("file"));
    fs::write(&file, "content").or_fail()?;
    let handle = encode(&file).or_fail()?;
    let held = File::open(&file).or_fail()?;
    fs::remove_file(&file).or_fail()?;
    // It is there as long as somebody has it open.
    expect_eq!(read(top.as_raw_fd(), &handle)?, "content");
    drop(held);
    expect_eq!(open(top.as_raw_fd(), &handle, libc::O_RDONLY).err(), Some(Errno::ESTALE));
    fs::write(&file, "another").or_fail()?;
    expect_eq!(open(top.as_raw_fd(), &handle, libc::O_RDONLY).err(), Some(Errno::ESTALE));
    let directory = stage.directory("directory")?;
    let handle = encode(&directory).or_fail()?;
    fs::remove_dir(&directory).or_fail()?;
    expect_eq!(open(top.as_raw_fd(), &handle, libc::O_RDONLY).err(), Some(Errno::ESTALE));
    Ok(())
}

fn a_handle_does_not_open_other_file_systems() -> Outcome {
    let stage = Stage::new("others")?;
    let (one, two) = (stage.mounted("one")?, stage.mounted("two")?);
    for directory in [&one, &two] {
        fs::write(directory.join("file"), "content").or_fail()?;
    }
    let (first, second) = (File::open(&one).or_fail()?, File::open(&two).or_fail()?);
    let handle = encode(&one.join("file")).or_fail()?;
    let other = encode(&two.join("file")).or_fail()?;
    expect!(handle != other);
    expect_eq!(read(first.as_raw_fd(), &handle)?, "content");
    for (mount, handle) in [(&first, &other), (&second, &handle)] {
        expect_eq!(open(mount.as_raw_fd(), handle, libc::O_RDONLY).err(), Some(Errno::ESTALE));
    }
    let (proc, (from, _to)) = (File::open("/proc").or_fail()?, pipe().or_fail()?);
    for mount in [proc.as_raw_fd(), from.as_raw_fd()] {
        expect_eq!(open(mount, &handle, libc::O_RDONLY).err(), Some(Errno::ESTALE));
    }
    // A file of which nobody has made a handle can't be guessed: neither its number nor the tree's is enough.
    for index in 0..12 {
        let mut forged = handle;
        forged.value[index] ^= 1;
        expect_eq!(open(first.as_raw_fd(), &forged, libc::O_RDONLY).err(), Some(Errno::ESTALE));
    }
    let cut = Handle { bytes: 8, ..handle };
    expect_eq!(open(first.as_raw_fd(), &cut, libc::O_RDONLY).err(), Some(Errno::ESTALE));
    let longer = Handle { bytes: 16, ..handle };
    expect_eq!(read(first.as_raw_fd(), &longer)?, "content");
    Ok(())
}

fn handles_open_directories_and_links() -> Outcome {
    let stage = Stage::new("directories")?;
    let (top, directory) = (File::open(&stage.scratch.0).or_fail()?, stage.directory("directory")?);
    fs::write(directory.join("file"), "content").or_fail()?;
    symlink("file", directory.join("link")).or_fail()?;
    let handle = encode(&directory).or_fail()?;
    let opened = open(top.as_raw_fd(), &handle, libc::O_RDONLY | libc::O_DIRECTORY).or_fail()?;
    let names = fs::read_dir(format!("/proc/self/fd/{}", opened.as_raw_fd())).or_fail()?;
    expect_eq!(names.count(), 2);
    expect_eq!(open(top.as_raw_fd(), &handle, libc::O_RDWR).err(), Some(Errno::EISDIR));
    let link = encode(&directory.join("link")).or_fail()?;
    expect_eq!(open(top.as_raw_fd(), &link, libc::O_RDONLY).err(), Some(Errno::ELOOP));
    let opened = open(top.as_raw_fd(), &link, libc::O_PATH).or_fail()?;
    expect_eq!(target_of(&opened)?, directory.join("link").display().to_string());
    let file = encode(&directory.join("file")).or_fail()?;
    expect_eq!(open(top.as_raw_fd(), &file, libc::O_DIRECTORY).err(), Some(Errno::ENOTDIR));
    // A mount that shows a part reaches the rest, too.
    let part = stage.directory("part")?;
    super::bind(&directory, &part, 0).or_fail()?;
    let through = File::open(&part).or_fail()?;
    let top_handle = encode(&stage.scratch.0).or_fail()?;
    expect!(open(through.as_raw_fd(), &top_handle, libc::O_RDONLY).is_ok());
    Ok(())
}

fn handles_open_with_flags() -> Outcome {
    let stage = Stage::new("flags")?;
    let (top, file) = (File::open(&stage.scratch.0).or_fail()?, stage.path("file"));
    fs::write(&file, "content").or_fail()?;
    let handle = encode(&file).or_fail()?;
    let flags_of = |file: &File| {
        // SAFETY: no pointers are passed.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) }
    };
    let opened = open(top.as_raw_fd(), &handle, libc::O_RDONLY | libc::O_CLOEXEC).or_fail()?;
    expect_eq!(flags_of(&opened), libc::FD_CLOEXEC);
    expect_eq!(flags_of(&open(top.as_raw_fd(), &handle, libc::O_RDONLY).or_fail()?), 0);
    drop(open(top.as_raw_fd(), &handle, libc::O_WRONLY | libc::O_TRUNC).or_fail()?);
    expect_eq!(fs::metadata(&file).or_fail()?.len(), 0);
    let exclusive = libc::O_RDONLY | libc::O_CREAT | libc::O_EXCL;
    expect_eq!(open(top.as_raw_fd(), &handle, exclusive).err(), Some(Errno::EEXIST));
    expect!(open(top.as_raw_fd(), &handle, libc::O_RDONLY | libc::O_CREAT).is_ok());
    // A mount that can only be read is one here, too.
    super::bind(&stage.scratch.0, &stage.scratch.0, 0).or_fail()?;
    let again = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY;
    super::mount(None, &stage.scratch.0, None, again).or_fail()?;
    let top = File::open(&stage.scratch.0).or_fail()?;
    expect_eq!(open(top.as_raw_fd(), &handle, libc::O_WRONLY).err(), Some(Errno::EROFS));
    expect_eq!(read(top.as_raw_fd(), &handle)?, "");
    Ok(())
}

fn handles_need_a_privilege() -> Outcome {
    let stage = Stage::new("privilege")?;
    let (top, file) = (File::open(&stage.scratch.0).or_fail()?, stage.path("file"));
    fs::write(&file, "content").or_fail()?;
    let handle = encode(&file).or_fail()?;
    let child = spawn_child(|| {
        let attempt = || {
            setresgid(Gid::from_raw(78), Gid::from_raw(78), Gid::from_raw(78))?;
            setresuid(Uid::from_raw(78), Uid::from_raw(78), Uid::from_raw(78))?;
            // Everybody may ask for one.
            let own = encode_open(&top)?;
            assert_ne!(own, handle);
            open(top.as_raw_fd(), &handle, libc::O_RDONLY)
        };
        i32::from(attempt().err() != Some(Errno::EPERM))
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    Ok(())
}

fn handles_are_refused_in_the_order_of_linux() -> Outcome {
    let stage = Stage::new("refused")?;
    let (top, file) = (File::open(&stage.scratch.0).or_fail()?, stage.path("file"));
    fs::write(&file, "content").or_fail()?;
    let handle = encode(&file).or_fail()?;
    let mut room = Handle::with_room(ROOM as u32);
    let missing = Path::new("/missing");
    expect_eq!(encode_into(-1, missing, 1, &mut room), Err(Errno::EINVAL));
    expect_eq!(encode_into(-1, missing, 0, &mut room), Err(Errno::ENOENT));
    expect_eq!(encode_into(-1, Path::new("x"), 0, &mut room), Err(Errno::EBADF));
    let mut large = Handle::with_room(ROOM as u32 + 1);
    expect_eq!(encode_into(-1, &file, 0, &mut large), Err(Errno::EINVAL));
    expect_eq!(encode_into(-1, Path::new("/proc"), 0, &mut large), Err(Errno::EOPNOTSUPP));
    expect_eq!(open(-1, &large, 0).err(), Some(Errno::EINVAL));
    expect_eq!(open(-1, &Handle::with_room(0), 0).err(), Some(Errno::EINVAL));
    expect_eq!(open(-1, &handle, 0).err(), Some(Errno::EBADF));
    let place = open(top.as_raw_fd(), &handle, libc::O_PATH).or_fail()?;
    expect_eq!(open(place.as_raw_fd(), &handle, 0).err(), Some(Errno::EBADF));
    let null = std::ptr::null_mut::<Handle>();
    let path = CString::new(file.as_os_str().as_bytes()).or_fail()?;
    let mut mount = 0;
    // SAFETY: what is no address is refused.
    unsafe {
        let call = |handle: *mut Handle, mount: *mut i32| {
            let at = libc::AT_FDCWD;
            Errno::result(libc::syscall(libc::SYS_name_to_handle_at, at, path.as_ptr(), handle, mount, 0))
        };
        expect_eq!(call(null, &raw mut mount), Err(Errno::EFAULT));
        expect_eq!(call(&raw mut room, std::ptr::null_mut()), Err(Errno::EFAULT));
        let result = libc::syscall(libc::SYS_open_by_handle_at, -1, null, 0);
        expect_eq!(Errno::result(result), Err(Errno::EFAULT));
    }
    let _: OwnedFd = top.into();
    Ok(())
}
