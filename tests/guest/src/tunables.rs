//! Numbers in `/proc/sys` that an administrator changes: what is written is read back, acts, and is checked.
#![allow(unsafe_code, reason = "some of the calls have no safe form")]

use std::fs::{self, File, OpenOptions};
use std::os::fd::FromRawFd;
use std::os::unix::fs::PermissionsExt;

use nix::errno::Errno;
use nix::sys::wait::WaitStatus;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use crate::harness::{OrFail, Outcome, Scratch, in_child, own_path};
use crate::{expect, expect_eq};

crate::tests! {
    numbers_read_back_and_are_checked
    process_numbers_stay_below_the_highest
    no_more_threads_than_allowed
    addresses_are_the_same_without_randomization
    the_log_is_open_to_all_or_not
    no_more_terminals_than_allowed
    users_make_no_namespaces_where_they_may_not
    instances_of_a_user_are_limited
    marks_of_a_user_are_limited
    an_instance_overflows_at_its_limit
    programs_with_other_rights_are_closed_or_not
    mappings_are_limited
    promises_have_a_limit_in_bytes
    caches_are_dropped
    what_can_only_be_read_is_refused_to_root
    the_pool_is_full
    directories_move_without_saying_what_they_are
    numbers_are_read_as_c_writes_them
    changed_names_are_told_to_pollers
    limits_of_a_user_namespace_are_its_roots
    who_opens_the_log_has_the_capability
}

pub const USER: u32 = 12_345;

fn path(name: &str) -> String {
    format!("/proc/sys/{name}")
}

pub fn shown(name: &str) -> Result<String, String> {
    Ok(fs::read_to_string(path(name)).or_fail()?.trim_end().to_owned())
}

fn write(name: &str, value: &str) -> Result<(), Errno> {
    fs::write(path(name), value).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
}

/// A file that has another value meanwhile.
pub struct Changed {
    name: &'static str,
    before: String,
}

impl Changed {
    /// Writes another value.
    pub fn to(name: &'static str, value: &str) -> Result<Self, String> {
        let before = shown(name)?;
        write(name, value).or_fail()?;
        Ok(Self { name, before })
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        let _ = write(self.name, &self.before);
    }
}

fn become_user(number: u32) -> Result<(), Errno> {
    let (user, group) = (Uid::from_raw(number), Gid::from_raw(number));
    setgroups(&[])?;
    setresgid(group, group, group)?;
    setresuid(user, user, user)
}

/// The error that a user gets; 0 for none.
pub fn as_user(body: impl FnOnce() -> Result<(), Errno>) -> Result<i32, String> {
    as_user_number(USER, body)
}

/// The same for a user with this number, whom no other test knows.
pub fn as_user_number(number: u32, body: impl FnOnce() -> Result<(), Errno>) -> Result<i32, String> {
    let status = in_child(|| match become_user(number).and_then(|()| body()) {
        Ok(()) => 0,
        Err(error) => error as i32,
    })?;
    match status {
        WaitStatus::Exited(_, code) => Ok(code),
        other => Err(format!("{other:?}")),
    }
}

pub fn last_error(result: libc::c_long) -> Result<libc::c_long, Errno> {
    Errno::result(result)
}

pub fn os(error: std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

fn numbers_read_back_and_are_checked() -> Outcome {
    for (name, value, wrong) in [
        ("kernel/pid_max", "20000", Some("300")),
        ("kernel/threads-max", "3000", Some("0")),
        ("kernel/randomize_va_space", "0", None),
        ("kernel/dmesg_restrict", "0", Some("2")),
        ("kernel/pty/max", "100", None),
        ("kernel/sched_rt_runtime_us", "900000", Some("1000001")),
        ("kernel/unprivileged_userns_clone", "0", None),
        ("fs/aio-max-nr", "1000", None),
        ("fs/inotify/max_queued_events", "1000", Some("-1")),
        ("fs/inotify/max_user_instances", "10", Some("-1")),
        ("fs/inotify/max_user_watches", "1000", Some("-1")),
        ("fs/nr_open", "4096", Some("8")),
        ("fs/pipe-max-size", "65536", Some("2147483649")),
        ("fs/protected_fifos", "1", Some("3")),
        ("fs/protected_hardlinks", "0", Some("2")),
        ("fs/protected_regular", "2", Some("3")),
        ("fs/protected_symlinks", "0", Some("2")),
        ("fs/suid_dumpable", "1", Some("3")),
        ("vm/max_map_count", "1000", Some("-1")),
        ("vm/overcommit_kbytes", "100000", None),
    ] {
        let before = shown(name)?;
        let other = if before == value { "1" } else { value };
        let ratio = shown("vm/overcommit_ratio")?;
        let changed = Changed::to(name, other)?;
        expect_eq!(shown(name)?, other);
        if let Some(wrong) = wrong {
            expect_eq!((name, write(name, wrong)), (name, Err(Errno::EINVAL)));
            expect_eq!(shown(name)?, other);
        }
        expect_eq!((name, write(name, "word")), (name, Err(Errno::EINVAL)));
        drop(changed);
        if name == "vm/overcommit_kbytes" {
            write("vm/overcommit_ratio", &ratio).or_fail()?;
        }
        expect_eq!((name, shown(name)?), (name, before));
        expect_eq!((name, as_user(|| write(name, value))?), (name, Errno::EACCES as i32));
    }
    expect_eq!(shown("kernel/random/poolsize")?, "256");
    expect_eq!(shown("kernel/random/entropy_avail")?, "256");
    expect!(shown("kernel/seccomp/actions_avail")?.starts_with("kill_process kill_thread trap errno"));
    Ok(())
}

fn process_numbers_stay_below_the_highest() -> Outcome {
    let _changed = Changed::to("kernel/pid_max", "600")?;
    for _ in 0..10 {
        let child = crate::harness::spawn_child(|| 0)?;
        nix::sys::wait::waitpid(child, None).or_fail()?;
        expect!(child.as_raw() < 600);
    }
    Ok(())
}

fn no_more_threads_than_allowed() -> Outcome {
    let _changed = Changed::to("kernel/threads-max", "20")?;
    let mut children = Vec::new();
    let refused = loop {
        match crate::harness::spawn_child(|| {
            nix::unistd::pause();
            0
        }) {
            Ok(child) => children.push(child),
            Err(error) => break error,
        }
        if children.len() > 20 {
            break "not refused".to_owned();
        }
    };
    for child in children {
        nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).or_fail()?;
        nix::sys::wait::waitpid(child, None).or_fail()?;
    }
    expect!(refused.contains("EAGAIN"));
    Ok(())
}

/// The first mapping and the stack of a program that is started now.
fn places() -> Result<[String; 2], String> {
    let output = std::process::Command::new("/bin/cat").arg("/proc/self/maps").output().or_fail()?;
    let text = String::from_utf8(output.stdout).or_fail()?;
    let start =
        |line: Option<&str>| line.unwrap_or_default().split('-').next().unwrap_or_default().to_owned();
    Ok([start(text.lines().next()), start(text.lines().find(|line| line.contains("[stack]")))])
}

fn addresses_are_the_same_without_randomization() -> Outcome {
    let changed = Changed::to("kernel/randomize_va_space", "0")?;
    expect_eq!(places()?, places()?);
    drop(changed);
    let first = places()?;
    expect!((0..4).map(|_| places()).collect::<Result<Vec<_>, _>>()?.iter().any(|places| *places != first));
    Ok(())
}

fn the_log_is_open_to_all_or_not() -> Outcome {
    const SIZE_BUFFER: i32 = 10;
    const CLEAR: i32 = 5;
    let call = |command: i32| {
        // SAFETY: neither command has a buffer.
        last_error(unsafe { libc::syscall(libc::SYS_syslog, command, 0, 0) }).map(drop)
    };
    let changed = Changed::to("kernel/dmesg_restrict", "1")?;
    expect_eq!(as_user(|| call(SIZE_BUFFER))?, Errno::EPERM as i32);
    drop(changed);
    let _changed = Changed::to("kernel/dmesg_restrict", "0")?;
    expect_eq!(as_user(|| call(SIZE_BUFFER))?, 0);
    expect_eq!(as_user(|| call(CLEAR))?, Errno::EPERM as i32);
    Ok(())
}

fn no_more_terminals_than_allowed() -> Outcome {
    let count = || shown("kernel/pty/nr")?.parse::<usize>().or_fail();
    let open = count()?;
    // The setting is one that is not reached.
    let _changed = Changed::to("kernel/pty/max", &(open + 3).to_string())?;
    let terminal = || File::open("/dev/ptmx");
    let both = [terminal().or_fail()?, terminal().or_fail()?];
    expect_eq!(count()?, open + 2);
    expect_eq!(terminal().map(drop).map_err(|error| error.raw_os_error()), Err(Some(libc::ENOSPC)));
    drop(both);
    drop(terminal().or_fail()?);
    expect_eq!(count()?, open);
    Ok(())
}

fn users_make_no_namespaces_where_they_may_not() -> Outcome {
    let make = || nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER);
    expect_eq!(as_user(make)?, 0);
    let _changed = Changed::to("kernel/unprivileged_userns_clone", "0")?;
    expect_eq!(as_user(make)?, Errno::EPERM as i32);
    let status = in_child(|| i32::from(make().is_err()))?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn instance() -> Result<File, Errno> {
    // SAFETY: no argument is a pointer; the descriptor is new.
    Ok(unsafe { File::from_raw_fd(Errno::result(libc::inotify_init1(libc::IN_NONBLOCK))?) })
}

fn watch(instance: &File, path: &str, mask: u32) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    let path = std::ffi::CString::new(path).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the path lives through the call.
    Errno::result(unsafe { libc::inotify_add_watch(instance.as_raw_fd(), path.as_ptr(), mask) }).map(drop)
}

fn instances_of_a_user_are_limited() -> Outcome {
    let _changed = Changed::to("fs/inotify/max_user_instances", "3")?;
    let result = as_user(|| {
        let mut all = (0..3).map(|_| instance()).collect::<Result<Vec<_>, _>>()?;
        if instance().err() != Some(Errno::EMFILE) {
            return Err(Errno::EBADMSG);
        }
        all.pop();
        instance().map(drop)
    })?;
    expect_eq!(result, 0);
    // Another user's do not count.
    instance().or_fail()?;
    Ok(())
}

fn marks_of_a_user_are_limited() -> Outcome {
    let _changed = Changed::to("fs/inotify/max_user_watches", "2")?;
    let result = as_user(|| {
        let (first, second) = (instance()?, instance()?);
        watch(&first, "/", libc::IN_OPEN)?;
        watch(&second, "/", libc::IN_OPEN)?;
        if watch(&first, "/proc", libc::IN_OPEN) != Err(Errno::ENOSPC) {
            return Err(Errno::EBADMSG);
        }
        // A mark that is changed is no other.
        watch(&first, "/", libc::IN_CLOSE)?;
        drop(second);
        watch(&first, "/tmp", libc::IN_OPEN)
    })?;
    expect_eq!(result, 0);
    Ok(())
}

fn an_instance_overflows_at_its_limit() -> Outcome {
    use std::io::Read;
    let scratch = Scratch::new("overflow")?;
    let _changed = Changed::to("fs/inotify/max_queued_events", "4")?;
    let mut instance = instance().or_fail()?;
    watch(&instance, &scratch.path("").to_string_lossy(), libc::IN_CREATE).or_fail()?;
    for number in 0..8 {
        File::create(scratch.path(&number.to_string())).or_fail()?;
    }
    let mut bytes = [0; 4096];
    let length = instance.read(&mut bytes).or_fail()?;
    let (mut at, mut masks) = (0, Vec::new());
    while at < length {
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        masks.push(word(at + 4));
        at += 16 + word(at + 12) as usize;
    }
    expect_eq!(masks.len(), 5);
    expect_eq!(masks[4], libc::IN_Q_OVERFLOW);
    Ok(())
}

fn programs_with_other_rights_are_closed_or_not() -> Outcome {
    let dumpable = || {
        as_user(|| {
            // SAFETY: the operation has no pointer.
            let is_dumpable = unsafe { libc::prctl(libc::PR_GET_DUMPABLE) };
            if is_dumpable == 1 { Ok(()) } else { Err(Errno::EBADMSG) }
        })
    };
    let closed = Changed::to("fs/suid_dumpable", "0")?;
    expect_eq!(dumpable()?, Errno::EBADMSG as i32);
    drop(closed);
    let _changed = Changed::to("fs/suid_dumpable", "1")?;
    expect_eq!(dumpable()?, 0);
    Ok(())
}

fn mappings_are_limited() -> Outcome {
    let map = |count: usize| {
        for index in 0..count {
            let protection = if index % 2 == 0 { libc::PROT_READ } else { libc::PROT_NONE };
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping reaches no other.
            let address = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
            if address == libc::MAP_FAILED {
                return Errno::last_raw();
            }
        }
        0
    };
    let _changed = Changed::to("vm/max_map_count", "300")?;
    for (count, expected) in [(100, 0), (400, libc::ENOMEM)] {
        let status = in_child(|| map(count))?;
        expect!(matches!(status, WaitStatus::Exited(_, code) if code == expected));
    }
    Ok(())
}

/// A line of `/proc/meminfo` in KiB.
fn memory(name: &str) -> Result<u64, String> {
    let text = fs::read_to_string("/proc/meminfo").or_fail()?;
    let line = text.lines().find(|line| line.starts_with(name)).ok_or_else(|| format!("no {name}"))?;
    line.split_whitespace().nth(1).unwrap_or_default().parse().or_fail()
}

fn promises_have_a_limit_in_bytes() -> Outcome {
    let ratio = shown("vm/overcommit_ratio")?;
    let outcome = (|| -> Outcome {
        write("vm/overcommit_kbytes", "123456").or_fail()?;
        expect_eq!(shown("vm/overcommit_ratio")?, "0");
        let limit = memory("CommitLimit:")?;
        expect_eq!(limit, 123_456);
        write("vm/overcommit_ratio", "40").or_fail()?;
        expect_eq!(shown("vm/overcommit_kbytes")?, "0");
        expect!(memory("CommitLimit:")?.abs_diff(memory("MemTotal:")? * 2 / 5) < 65_536);
        Ok(())
    })();
    write("vm/overcommit_ratio", &ratio).or_fail()?;
    outcome
}

fn caches_are_dropped() -> Outcome {
    expect_eq!(write("vm/drop_caches", "5"), Err(Errno::EINVAL));
    expect_eq!(write("vm/drop_caches", "0"), Err(Errno::EINVAL));
    write("vm/drop_caches", "3").or_fail()?;
    let before = fs::read(own_path()).or_fail()?.len();
    write("vm/drop_caches", "1").or_fail()?;
    expect_eq!(fs::read(own_path()).or_fail()?.len(), before);
    Ok(())
}

fn what_can_only_be_read_is_refused_to_root() -> Outcome {
    use nix::unistd::{AccessFlags, access};
    for (name, writable) in
        [("kernel/ngroups_max", false), ("kernel/osrelease", false), ("kernel/pid_max", true)]
    {
        let expected = if writable { Ok(()) } else { Err(Errno::EACCES) };
        let open = OpenOptions::new().write(true).open(path(name)).map(drop).map_err(os);
        expect_eq!((name, open), (name, expected));
        expect_eq!((name, access(path(name).as_str(), AccessFlags::W_OK)), (name, expected));
        expect_eq!((name, access(path(name).as_str(), AccessFlags::R_OK)), (name, Ok(())));
    }
    // Beyond `/proc/sys` root may open, and then write nothing.
    OpenOptions::new().write(true).open("/proc/version").or_fail()?;
    Ok(())
}

fn the_pool_is_full() -> Outcome {
    use std::os::fd::AsRawFd;
    const GET_POOL_BITS: libc::Ioctl = 0x8004_5200;
    let (file, mut bits) = (File::open("/dev/urandom").or_fail()?, 0_i32);
    // SAFETY: the number lives through the call.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), GET_POOL_BITS, &raw mut bits) }).or_fail()?;
    expect_eq!(bits, 256);
    let zero = File::open("/dev/zero").or_fail()?;
    // SAFETY: likewise.
    let result = Errno::result(unsafe { libc::ioctl(zero.as_raw_fd(), GET_POOL_BITS, &raw mut bits) });
    expect_eq!(result, Err(Errno::ENOTTY));
    Ok(())
}

fn directories_move_without_saying_what_they_are() -> Outcome {
    use std::io::Read;
    let scratch = Scratch::new("moves")?;
    let (old, new) = (scratch.path("old"), scratch.path("new"));
    fs::create_dir(&old).or_fail()?;
    let mut instance = instance().or_fail()?;
    watch(&instance, &old.to_string_lossy(), libc::IN_MOVE_SELF | libc::IN_DELETE_SELF | libc::IN_ATTRIB)
        .or_fail()?;
    fs::rename(&old, &new).or_fail()?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o700)).or_fail()?;
    fs::remove_dir(&new).or_fail()?;
    let (mut bytes, mut masks) = ([0; 1024], Vec::new());
    let length = instance.read(&mut bytes).or_fail()?;
    for event in bytes[..length].chunks_exact(16) {
        masks.push(u32::from_ne_bytes([event[4], event[5], event[6], event[7]]));
    }
    let expected =
        [libc::IN_MOVE_SELF, libc::IN_ATTRIB | libc::IN_ISDIR, libc::IN_DELETE_SELF, libc::IN_IGNORED];
    expect_eq!(masks, expected);
    Ok(())
}

fn numbers_are_read_as_c_writes_them() -> Outcome {
    let _changed = Changed::to("fs/inotify/max_queued_events", "0x100")?;
    expect_eq!(shown("fs/inotify/max_queued_events")?, "256");
    write("fs/inotify/max_queued_events", "010").or_fail()?;
    expect_eq!(shown("fs/inotify/max_queued_events")?, "8");
    expect_eq!(write("fs/inotify/max_queued_events", "+5"), Err(Errno::EINVAL));
    let _changed = Changed::to("kernel/sched_rt_runtime_us", "1000000")?;
    expect_eq!(shown("kernel/sched_rt_runtime_us")?, "1000000");
    write("kernel/sched_rt_runtime_us", "-1").or_fail()?;
    expect_eq!(shown("kernel/sched_rt_runtime_us")?, "-1");
    Ok(())
}

fn changed_names_are_told_to_pollers() -> Outcome {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    for name in ["kernel/hostname", "kernel/domainname"] {
        let file = File::open(path(name)).or_fail()?;
        let events = || {
            let mut polled = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
            poll(&mut polled, PollTimeout::ZERO).or_fail()?;
            Ok::<_, String>(polled[0].revents().unwrap_or(PollFlags::empty()))
        };
        expect_eq!(events()?, PollFlags::empty());
        let changed = Changed::to(name, "another")?;
        expect_eq!(events()?, PollFlags::POLLPRI | PollFlags::POLLERR);
        expect_eq!(events()?, PollFlags::empty());
        drop(changed);
        expect_eq!(events()?, PollFlags::POLLPRI | PollFlags::POLLERR);
    }
    Ok(())
}

fn limits_of_a_user_namespace_are_its_roots() -> Outcome {
    let name = "user/max_user_namespaces";
    let result = as_user(|| {
        if write(name, "5") != Err(Errno::EACCES) {
            return Err(Errno::EBADMSG);
        }
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER)?;
        write(name, "0")?;
        match nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER) {
            Err(Errno::ENOSPC) => Ok(()),
            other => other.and(Err(Errno::EBADMSG)),
        }
    })?;
    expect_eq!(result, 0);
    Ok(())
}

fn who_opens_the_log_has_the_capability() -> Outcome {
    let before = shown("kernel/dmesg_restrict")?;
    let status = in_child(|| {
        let header = [0x2008_0522_u32, 0];
        let data = [[0_u32; 3]; 2];
        // SAFETY: both structures live during the call and have the sizes that this version has.
        let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) };
        if result != 0 {
            return 100;
        }
        write("kernel/dmesg_restrict", "0").err().map_or(0, |error| error as i32)
    })?;
    let _ = write("kernel/dmesg_restrict", &before);
    expect!(matches!(status, WaitStatus::Exited(_, libc::EPERM)));
    Ok(())
}
