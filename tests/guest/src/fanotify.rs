//! fanotify(7).
#![allow(unsafe_code, reason = "its calls have no safe form")]

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount, umount};
use nix::sys::wait::WaitStatus;

use crate::harness::{OrFail, Outcome, Scratch, in_child, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    groups_are_made_with_flags_that_go_together
    marks_are_made_with_masks_that_go_together
    a_marked_file_tells_of_its_use
    a_directory_tells_of_its_children_on_request
    a_mount_and_its_file_system_tell_of_all_in_them
    what_is_ignored_is_not_told
    events_tell_by_handles_and_names
    opening_waits_for_permission
    a_denied_opening_changes_nothing
    programs_are_run_with_permission
    a_program_is_asked_for_by_itself
    who_waits_for_permission_goes_on_without_the_group
    groups_are_counted_by_user
    ordinary_users_have_groups_with_handles_only
}

fn init(flags: libc::c_uint, access: i32) -> Result<File, Errno> {
    // SAFETY: the call takes numbers only.
    let number = Errno::result(unsafe { libc::fanotify_init(flags, access.cast_unsigned()) })?;
    // SAFETY: the descriptor is new.
    Ok(unsafe { OwnedFd::from_raw_fd(number) }.into())
}

fn mark(group: &File, flags: libc::c_uint, mask: u64, path: &Path) -> Result<(), Errno> {
    let path = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the path lives during the call.
    let result =
        unsafe { libc::fanotify_mark(group.as_raw_fd(), flags, mask, libc::AT_FDCWD, path.as_ptr()) };
    Errno::result(result).map(drop)
}

/// An event: its mask, the file's path by its descriptor, and the records behind it.
struct Event {
    mask: u64,
    path: String,
    descriptor: Option<OwnedFd>,
    pid: i32,
    records: Vec<u8>,
}

const METADATA: usize = size_of::<libc::fanotify_event_metadata>();

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut word = [0; N];
    word.copy_from_slice(&bytes[at..at + N]);
    word
}

/// The events that wait.
fn read(group: &File) -> Result<Vec<Event>, String> {
    let mut bytes = [0; 4096];
    let length = match (&*group).read(&mut bytes) {
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return Ok(Vec::new()),
        read => read.or_fail()?,
    };
    let (mut events, mut at) = (Vec::new(), 0);
    while at < length {
        let total = u32::from_ne_bytes(number(&bytes, at)) as usize;
        expect_or(bytes[at + 4] == 3, "version")?;
        let descriptor = i32::from_ne_bytes(number(&bytes, at + 16));
        // SAFETY: the kernel has just made it.
        let descriptor = (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) });
        let path =
            descriptor.as_ref().map(|open| fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd())));
        events.push(Event {
            mask: u64::from_ne_bytes(number(&bytes, at + 8)),
            path: path.transpose().or_fail()?.map(|path| path.display().to_string()).unwrap_or_default(),
            descriptor,
            pid: i32::from_ne_bytes(number(&bytes, at + 20)),
            records: bytes[at + METADATA..at + total].to_vec(),
        });
        at += total;
    }
    Ok(events)
}

fn expect_or(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

fn masks(group: &File) -> Result<Vec<u64>, String> {
    Ok(read(group)?.iter().map(|event| event.mask).collect())
}

/// A tmpfs, where files have handles on both kernels.
struct Tmpfs(Scratch);

impl Tmpfs {
    fn new(name: &str) -> Result<Self, String> {
        let scratch = Scratch::new(name)?;
        mount(Some("none"), &scratch.0, Some("tmpfs"), MsFlags::empty(), None::<&str>).or_fail()?;
        Ok(Self(scratch))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = umount(&self.0.0);
    }
}

fn groups_are_made_with_flags_that_go_together() -> Outcome {
    for (flags, access) in [
        (0x8000_0000, 0),
        (libc::FAN_CLASS_CONTENT | libc::FAN_CLASS_PRE_CONTENT, 0),
        (libc::FAN_REPORT_NAME, 0),
        (libc::FAN_REPORT_FID | libc::FAN_CLASS_CONTENT, 0),
        (libc::FAN_REPORT_PIDFD | libc::FAN_REPORT_TID, 0),
        (0, libc::O_CREAT),
        (0, 3),
    ] {
        expect_eq!(init(flags, access).err(), Some(Errno::EINVAL));
    }
    let group =
        init(libc::FAN_CLASS_NOTIF | libc::FAN_NONBLOCK | libc::FAN_CLOEXEC, libc::O_RDWR).or_fail()?;
    expect_eq!(masks(&group)?, Vec::<u64>::new());
    // Answers to nobody.
    let mut allow = [0; 8];
    allow[4..].copy_from_slice(&libc::FAN_ALLOW.to_ne_bytes());
    expect_eq!((&group).write(&allow).err().and_then(|error| error.raw_os_error()), Some(libc::ENOENT));
    expect_eq!((&group).write(&[0; 8]).err().and_then(|error| error.raw_os_error()), Some(libc::EINVAL));
    Ok(())
}

fn marks_are_made_with_masks_that_go_together() -> Outcome {
    let scratch = Scratch::new("fan-marks")?;
    let path = scratch.path("file");
    fs::write(&path, b"text").or_fail()?;
    let group = init(libc::FAN_CLASS_NOTIF | libc::FAN_NONBLOCK, 0).or_fail()?;
    for (flags, mask, error) in [
        (libc::FAN_MARK_ADD, 0, Errno::EINVAL),
        (0, libc::FAN_OPEN, Errno::EINVAL),
        (libc::FAN_MARK_ADD | libc::FAN_MARK_REMOVE, libc::FAN_OPEN, Errno::EINVAL),
        (libc::FAN_MARK_ADD, 1 << 40, Errno::EINVAL),
        (libc::FAN_MARK_ADD, libc::FAN_OPEN_PERM, Errno::EINVAL),
        (libc::FAN_MARK_ADD, libc::FAN_CREATE, Errno::EINVAL),
        (libc::FAN_MARK_ADD, libc::FAN_ATTRIB, Errno::EINVAL),
        (libc::FAN_MARK_FLUSH | libc::FAN_MARK_ONLYDIR, 0, Errno::EINVAL),
        (libc::FAN_MARK_ADD | libc::FAN_MARK_ONLYDIR, libc::FAN_OPEN, Errno::ENOTDIR),
        (libc::FAN_MARK_REMOVE, libc::FAN_OPEN, Errno::ENOENT),
    ] {
        expect_eq!(mark(&group, flags, mask, &path), Err(error));
    }
    expect_eq!(
        mark(&File::open(&path).or_fail()?, libc::FAN_MARK_ADD, libc::FAN_OPEN, &path),
        Err(Errno::EINVAL)
    );
    let missing = scratch.path("missing");
    expect_eq!(mark(&group, libc::FAN_MARK_ADD, libc::FAN_OPEN, &missing), Err(Errno::ENOENT));
    Ok(())
}

fn a_marked_file_tells_of_its_use() -> Outcome {
    let scratch = Scratch::new("fan-file")?;
    let path = scratch.path("file");
    fs::write(&path, b"text").or_fail()?;
    let group = init(libc::FAN_CLASS_NOTIF | libc::FAN_NONBLOCK, libc::O_RDONLY).or_fail()?;
    let all = libc::FAN_ACCESS | libc::FAN_MODIFY | libc::FAN_CLOSE | libc::FAN_OPEN;
    mark(&group, libc::FAN_MARK_ADD, all, &path).or_fail()?;
    let mut file = OpenOptions::new().read(true).write(true).open(&path).or_fail()?;
    let events = read(&group)?;
    expect_eq!(events.len(), 1);
    expect_eq!(events[0].mask, libc::FAN_OPEN);
    expect_eq!(events[0].path, path.display().to_string());
    expect_eq!(events[0].pid, std::process::id().cast_signed());
    expect_eq!(events[0].records.len(), 0);
    // Nobody is told of what the reader does with its descriptor.
    let descriptor = events[0].descriptor.as_ref().ok_or("none")?.try_clone().or_fail()?;
    let mut text = String::new();
    File::from(descriptor).read_to_string(&mut text).or_fail()?;
    expect_eq!(text, "text");
    drop(events);
    expect_eq!(masks(&group)?, Vec::<u64>::new());
    // Alike events are joined.
    file.write_all(b"more").or_fail()?;
    file.write_all(b"more").or_fail()?;
    expect_eq!(masks(&group)?, [libc::FAN_MODIFY]);
    drop(file);
    expect_eq!(masks(&group)?, [libc::FAN_CLOSE_WRITE]);
    drop(File::open(&path).or_fail()?);
    expect_eq!(masks(&group)?, [libc::FAN_OPEN | libc::FAN_CLOSE_NOWRITE]);
    let mut few = [0; METADATA - 1];
    drop(File::open(&path).or_fail()?);
    expect_eq!((&group).read(&mut few).err().and_then(|error| error.raw_os_error()), Some(libc::EINVAL));
    mark(&group, libc::FAN_MARK_FLUSH, 0, &path).or_fail()?;
    drop(read(&group)?);
    drop(File::open(&path).or_fail()?);
    expect_eq!(masks(&group)?, Vec::<u64>::new());
    Ok(())
}

fn a_directory_tells_of_its_children_on_request() -> Outcome {
    let scratch = Scratch::new("fan-children")?;
    let path = scratch.path("file");
    fs::write(&path, b"text").or_fail()?;
    let group = init(libc::FAN_CLASS_NOTIF | libc::FAN_NONBLOCK, libc::O_RDONLY).or_fail()?;
    mark(&group, libc::FAN_MARK_ADD, libc::FAN_OPEN, &scratch.0).or_fail()?;
    drop(File::open(&path).or_fail()?);
    drop(File::open(&scratch.0).or_fail()?);
    expect_eq!(masks(&group)?, Vec::<u64>::new());
    mark(&group, libc::FAN_MARK_ADD, libc::FAN_EVENT_ON_CHILD, &scratch.0).or_fail()?;
    drop(File::open(&path).or_fail()?);
    drop(File::open(&scratch.0).or_fail()?);
    let events = read(&group)?;
    expect_eq!(
        events.iter().map(|event| event.path.clone()).collect::<Vec<_>>(),
        [path.display().to_string()]
    );
    mark(&group, libc::FAN_MARK_ADD, libc::FAN_ONDIR, &scratch.0).or_fail()?;
    drop(File::open(&scratch.0).or_fail()?);
    expect_eq!(masks(&group)?, [libc::FAN_OPEN]);
    Ok(())
}

fn a_mount_and_its_file_system_tell_of_all_in_them() -> Outcome {
    let scratch = Tmpfs::new("fan-mount")?;
    fs::create_dir(scratch.0.path("folder")).or_fail()?;
    let path = scratch.0.path("folder/file");
    fs::write(&path, b"text").or_fail()?;
    let elsewhere = Scratch::new("fan-elsewhere")?;
    fs::write(elsewhere.path("file"), b"text").or_fail()?;
    for kind in [libc::FAN_MARK_MOUNT, libc::FAN_MARK_FILESYSTEM] {
        let group = init(libc::FAN_CLASS_NOTIF | libc::FAN_NONBLOCK, libc::O_RDONLY).or_fail()?;
        mark(&group, libc::FAN_MARK_ADD | kind, libc::FAN_OPEN, &scratch.0.0).or_fail()?;
        drop(File::open(elsewhere.path("file")).or_fail()?);
        drop(File::open(&path).or_fail()?);
        let events = read(&group)?;
        expect_eq!(
            events.iter().map(|event| event.path.clone()).collect::<Vec<_>>(),
            [path.display().to_string()]
        );
        drop(events);
        mark(&group, libc::FAN_MARK_REMOVE | kind, libc::FAN_OPEN, &scratch.0.0).or_fail()?;
        drop(File::open(&path).or_fail()?);
        expect_eq!(masks(&group)?, Vec::<u64>::new());
    }
    Ok(())
}

fn what_is_ignored_is_not_told() -> Outcome {
    let scratch = Tmpfs::new("fan-ignored")?;
    let (path, other) = (scratch.0.path("file"), scratch.0.path("other"));
    fs::write(&path, b"text").or_fail()?;
    fs::write(&other, b"text").or_fail()?;
    let group = init(libc::FAN_CLASS_NOTIF | libc::FAN_NONBLOCK, libc::O_RDONLY).or_fail()?;
    mark(&group, libc::FAN_MARK_ADD | libc::FAN_MARK_MOUNT, libc::FAN_OPEN, &scratch.0.0).or_fail()?;
    mark(&group, libc::FAN_MARK_ADD | libc::FAN_MARK_IGNORED_MASK, libc::FAN_OPEN, &path).or_fail()?;
    drop(File::open(&path).or_fail()?);
    expect_eq!(masks(&group)?, Vec::<u64>::new());
    drop(File::open(&other).or_fail()?);
    expect_eq!(masks(&group)?, [libc::FAN_OPEN]);
    // A change of the file ends that, unless it is to last.
    fs::write(&path, b"more").or_fail()?;
    drop(read(&group)?);
    drop(File::open(&path).or_fail()?);
    expect_eq!(masks(&group)?, [libc::FAN_OPEN]);
    let lasting = libc::FAN_MARK_IGNORED_MASK | libc::FAN_MARK_IGNORED_SURV_MODIFY;
    mark(&group, libc::FAN_MARK_ADD | lasting, libc::FAN_OPEN, &path).or_fail()?;
    fs::write(&path, b"text").or_fail()?;
    drop(File::open(&path).or_fail()?);
    expect_eq!(masks(&group)?, Vec::<u64>::new());
    Ok(())
}

/// The names in the records of an event.
fn name(event: &Event) -> String {
    // A head, the file system, and a handle whose length is told.
    let handle = u32::from_ne_bytes(number(&event.records, 12)) as usize;
    let name = &event.records[20 + handle..];
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

fn events_tell_by_handles_and_names() -> Outcome {
    let scratch = Tmpfs::new("fan-handles")?;
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_NONBLOCK | libc::FAN_REPORT_DIR_FID | libc::FAN_REPORT_NAME;
    let group = init(flags, 0).or_fail()?;
    let names = libc::FAN_CREATE | libc::FAN_DELETE | libc::FAN_MOVE | libc::FAN_ONDIR;
    mark(&group, libc::FAN_MARK_ADD, names, &scratch.0.0).or_fail()?;
    fs::write(scratch.0.path("first"), b"text").or_fail()?;
    fs::create_dir(scratch.0.path("folder")).or_fail()?;
    fs::rename(scratch.0.path("first"), scratch.0.path("second")).or_fail()?;
    fs::remove_file(scratch.0.path("second")).or_fail()?;
    let events = read(&group)?;
    let told: Vec<_> = events.iter().map(|event| (event.mask, name(event))).collect();
    let expected = [
        (libc::FAN_CREATE, "first"),
        (libc::FAN_CREATE | libc::FAN_ONDIR, "folder"),
        (libc::FAN_MOVED_FROM, "first"),
        (libc::FAN_MOVED_TO | libc::FAN_DELETE, "second"),
    ];
    let expected: Vec<_> = expected.map(|(mask, name)| (mask, name.to_owned())).into();
    // Alike events are joined wherever they wait.
    let joined = [
        (libc::FAN_CREATE | libc::FAN_MOVED_FROM, "first"),
        (libc::FAN_CREATE | libc::FAN_ONDIR, "folder"),
        (libc::FAN_MOVED_TO | libc::FAN_DELETE, "second"),
    ];
    let joined: Vec<_> = joined.map(|(mask, name)| (mask, name.to_owned())).into();
    expect!(told == expected || told == joined);
    expect!(events.iter().all(|event| event.descriptor.is_none() && event.records[0] == 2));
    // The handle is that of name_to_handle_at(2).
    let by_file = init(libc::FAN_CLASS_NOTIF | libc::FAN_NONBLOCK | libc::FAN_REPORT_FID, 0).or_fail()?;
    let path = scratch.0.path("third");
    fs::write(&path, b"text").or_fail()?;
    mark(&by_file, libc::FAN_MARK_ADD, libc::FAN_ATTRIB, &path).or_fail()?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&path, mode).or_fail()?;
    let events = read(&by_file)?;
    expect_eq!(events.len(), 1);
    expect_eq!((events[0].mask, events[0].records[0]), (libc::FAN_ATTRIB, 1));
    let mut handle = [0_u8; 8 + 128];
    handle[..4].copy_from_slice(&128_u32.to_ne_bytes());
    let (c_path, mut mount_id) = (CString::new(path.as_os_str().as_encoded_bytes()).or_fail()?, 0_i32);
    // SAFETY: path and handle live during the call, and the handle says its length.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            c_path.as_ptr(),
            handle.as_mut_ptr(),
            &raw mut mount_id,
            0,
        )
    };
    Errno::result(result).or_fail()?;
    let length = 8 + u32::from_ne_bytes(number(&handle, 0)) as usize;
    expect_eq!(events[0].records[12..12 + length], handle[..length]);
    Ok(())
}

fn opening_waits_for_permission() -> Outcome {
    let scratch = Scratch::new("fan-permission")?;
    let path = scratch.path("file");
    fs::write(&path, b"text").or_fail()?;
    let group = init(libc::FAN_CLASS_CONTENT, libc::O_RDONLY).or_fail()?;
    mark(&group, libc::FAN_MARK_ADD, libc::FAN_OPEN_PERM, &path).or_fail()?;
    for (answer, expected) in [(libc::FAN_ALLOW, 0), (libc::FAN_DENY, libc::EPERM)] {
        let child = spawn_child(|| match File::open(&path) {
            Ok(_) => 0,
            Err(error) => error.raw_os_error().unwrap_or(-1),
        })?;
        let events = read(&group)?;
        expect_eq!((events.len(), events[0].mask), (1, libc::FAN_OPEN_PERM));
        expect_eq!(events[0].pid, child.as_raw());
        let descriptor = events[0].descriptor.as_ref().ok_or("none")?.as_raw_fd();
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&descriptor.to_ne_bytes());
        bytes[4..].copy_from_slice(&7_u32.to_ne_bytes());
        expect_eq!((&group).write(&bytes).err().and_then(|error| error.raw_os_error()), Some(libc::EINVAL));
        bytes[4..].copy_from_slice(&answer.to_ne_bytes());
        expect_eq!((&group).write(&bytes).or_fail()?, 8);
        expect_eq!((&group).write(&bytes).err().and_then(|error| error.raw_os_error()), Some(libc::ENOENT));
        drop(events);
        let status = nix::sys::wait::waitpid(child, None).or_fail()?;
        expect_eq!(status, WaitStatus::Exited(child, expected));
    }
    Ok(())
}

/// Answers the one question that waits, or comes.
fn answer(group: &File, answer: u32) -> Outcome {
    answer_to(group, libc::FAN_OPEN_PERM, answer)
}

/// The same of a question of this kind.
fn answer_to(group: &File, question: u64, answer: u32) -> Outcome {
    let events = read(group)?;
    expect_eq!((events.len(), events[0].mask), (1, question));
    let descriptor = events[0].descriptor.as_ref().ok_or("none")?.as_raw_fd();
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&descriptor.to_ne_bytes());
    bytes[4..].copy_from_slice(&answer.to_ne_bytes());
    let mut group = group;
    expect_eq!(group.write(&bytes).or_fail()?, 8);
    Ok(())
}

fn a_denied_opening_changes_nothing() -> Outcome {
    let scratch = Scratch::new("fan-denied")?;
    let path = scratch.path("file");
    fs::write(&path, b"text").or_fail()?;
    let group = init(libc::FAN_CLASS_CONTENT, libc::O_RDONLY).or_fail()?;
    mark(&group, libc::FAN_MARK_ADD, libc::FAN_OPEN_PERM, &path).or_fail()?;
    let child = spawn_child(|| match OpenOptions::new().write(true).truncate(true).open(&path) {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(-1),
    })?;
    answer(&group, libc::FAN_DENY)?;
    let status = nix::sys::wait::waitpid(child, None).or_fail()?;
    expect_eq!(status, WaitStatus::Exited(child, libc::EPERM));
    drop(group);
    expect_eq!(fs::read(&path).or_fail()?, b"text");
    Ok(())
}

fn programs_are_run_with_permission() -> Outcome {
    let scratch = Scratch::new("fan-exec")?;
    let path = scratch.path("program");
    fs::copy("/bin/true", &path).or_fail()?;
    let group = init(libc::FAN_CLASS_CONTENT, libc::O_RDONLY).or_fail()?;
    mark(&group, libc::FAN_MARK_ADD, libc::FAN_OPEN_PERM, &path).or_fail()?;
    for (verdict, expected) in [(libc::FAN_ALLOW, 0), (libc::FAN_DENY, libc::EPERM)] {
        let child = spawn_child(|| {
            let error = std::os::unix::process::CommandExt::exec(&mut std::process::Command::new(&path));
            error.raw_os_error().unwrap_or(-1)
        })?;
        answer(&group, verdict)?;
        let status = nix::sys::wait::waitpid(child, None).or_fail()?;
        expect_eq!(status, WaitStatus::Exited(child, expected));
    }
    Ok(())
}

fn a_program_is_asked_for_by_itself() -> Outcome {
    let scratch = Scratch::new("fan-program")?;
    let path = scratch.path("program");
    fs::copy("/bin/true", &path).or_fail()?;
    let group = init(libc::FAN_CLASS_CONTENT, libc::O_RDONLY).or_fail()?;
    let both = libc::FAN_OPEN_EXEC_PERM | libc::FAN_OPEN_PERM;
    mark(&group, libc::FAN_MARK_ADD, both, &path).or_fail()?;
    let run = || {
        spawn_child(|| {
            let error = std::os::unix::process::CommandExt::exec(&mut std::process::Command::new(&path));
            error.raw_os_error().unwrap_or(-1)
        })
    };
    let child = run()?;
    answer_to(&group, libc::FAN_OPEN_EXEC_PERM, libc::FAN_ALLOW)?;
    answer_to(&group, libc::FAN_OPEN_PERM, libc::FAN_ALLOW)?;
    expect_eq!(nix::sys::wait::waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    let child = run()?;
    answer_to(&group, libc::FAN_OPEN_EXEC_PERM, libc::FAN_DENY)?;
    expect_eq!(nix::sys::wait::waitpid(child, None).or_fail()?, WaitStatus::Exited(child, libc::EPERM));
    // Reading it as a file is another question.
    mark(&group, libc::FAN_MARK_REMOVE, libc::FAN_OPEN_PERM, &path).or_fail()?;
    drop(File::open(&path).or_fail()?);
    Ok(())
}

fn groups_are_counted_by_user() -> Outcome {
    let status = in_child(|| {
        // SAFETY: the call takes a number only.
        if unsafe { libc::setuid(65534) } != 0 {
            return 1;
        }
        let mut groups = Vec::new();
        let error = loop {
            match init(libc::FAN_REPORT_FID, 0) {
                Ok(group) => groups.push(group),
                Err(error) => break error,
            }
        };
        if (groups.len(), error) == (128, Errno::EMFILE) { 0 } else { 2 }
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    drop(init(libc::FAN_CLASS_NOTIF, 0).or_fail()?);
    Ok(())
}

fn who_waits_for_permission_goes_on_without_the_group() -> Outcome {
    let scratch = Scratch::new("fan-gone")?;
    let path = scratch.path("file");
    fs::write(&path, b"text").or_fail()?;
    for is_read in [false, true] {
        let group = init(libc::FAN_CLASS_CONTENT, libc::O_RDONLY).or_fail()?;
        mark(&group, libc::FAN_MARK_ADD, libc::FAN_OPEN_PERM, &path).or_fail()?;
        // The child has the group open too, and closes it first.
        let number = group.as_raw_fd();
        let child = spawn_child(|| {
            // SAFETY: nobody in the child uses it any more.
            unsafe { libc::close(number) };
            File::open(&path).map_or(1, |_| 0)
        })?;
        let mut ready =
            [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&group), nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut ready, nix::poll::PollTimeout::NONE).or_fail()?;
        if is_read {
            drop(read(&group)?);
        }
        drop(group);
        expect_eq!(nix::sys::wait::waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    }
    Ok(())
}

fn ordinary_users_have_groups_with_handles_only() -> Outcome {
    let status = in_child(|| {
        // SAFETY: the call takes a number only.
        if unsafe { libc::setuid(65534) } != 0 {
            return 1;
        }
        if init(libc::FAN_CLASS_NOTIF, 0).err() != Some(Errno::EPERM)
            || init(libc::FAN_CLASS_CONTENT, 0).err() != Some(Errno::EPERM)
        {
            return 2;
        }
        let Ok(group) = init(libc::FAN_REPORT_FID, 0) else { return 3 };
        let whole = mark(&group, libc::FAN_MARK_ADD | libc::FAN_MARK_MOUNT, libc::FAN_OPEN, Path::new("/"));
        if whole == Err(Errno::EPERM) { 0 } else { 4 }
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}
