//! Results that few programs look at: the order of checks, what is told of locked memory, who can be waited for.
#![allow(unsafe_code, reason = "wrong arguments have no safe form")]

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::ptr::null_mut;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::harness::{OrFail, Outcome, Scratch, own_path, spawn_child};
use crate::rare_arguments::{PAGE, call, number};
use crate::{expect, expect_eq};

crate::tests! {
    an_address_for_nobody_is_not_looked_at
    the_times_of_an_open_file
    io_priorities_are_of_groups_too
    the_generator_tells_its_entropy
    what_a_process_has_cannot_be_waited_for
    only_own_memory_is_wiped_in_children
    locked_memory_is_told
    scripts_are_found_by_descriptors
    slack_is_shown_and_set
    ports_are_of_the_internet_only
}

fn an_address_for_nobody_is_not_looked_at() -> Outcome {
    let nobody = |file: &dyn AsRawFd| call(libc::SYS_accept, [file.as_raw_fd() as usize, 3, 3, 0, 0]);
    for family in [AddressFamily::Inet, AddressFamily::Unix] {
        let socket = socket(family, SockType::Stream, SockFlag::empty(), None).or_fail()?;
        expect_eq!(nobody(&socket), Err(Errno::EINVAL));
    }
    let scratch = Scratch::new("accept")?;
    let listener = UnixListener::bind(scratch.path("name")).or_fail()?;
    listener.set_nonblocking(true).or_fail()?;
    expect_eq!(nobody(&listener), Err(Errno::EAGAIN));
    let _connection = UnixStream::connect(scratch.path("name")).or_fail()?;
    expect_eq!(nobody(&listener), Err(Errno::EFAULT));
    Ok(())
}

fn the_times_of_an_open_file() -> Outcome {
    let scratch = Scratch::new("times")?;
    let file = File::create_new(scratch.path("file")).or_fail()?;
    let times = [5_i64, 0, 7, 0];
    expect_eq!(call(libc::SYS_futimesat, [number(&file), 0, times.as_ptr() as usize, 0, 0]), Ok(0));
    let status = file.metadata().or_fail()?;
    expect_eq!((status.atime(), status.mtime()), (5, 7));
    expect_eq!(call(libc::SYS_futimesat, [libc::AT_FDCWD as usize, 0, 0, 0, 0]), Err(Errno::EFAULT));
    Ok(())
}

fn io_priorities_are_of_groups_too() -> Outcome {
    const PROCESS: usize = 1;
    const GROUP: usize = 2;
    const USER: usize = 3;
    let best_effort = |level: usize| 2 << 13 | level;
    let set = |which, value| call(libc::SYS_ioprio_set, [which, 0, value, 0, 0]);
    let get = |which| call(libc::SYS_ioprio_get, [which, 0, 0, 0, 0]);
    expect_eq!(set(PROCESS, 1), Err(Errno::EINVAL));
    expect_eq!(set(PROCESS, 4 << 13), Err(Errno::EINVAL));
    expect_eq!(set(0, best_effort(3)), Err(Errno::EINVAL));
    expect_eq!(set(4, best_effort(3)), Err(Errno::EINVAL));
    nix::unistd::setpgid(nix::unistd::Pid::this(), nix::unistd::Pid::from_raw(0)).or_fail()?;
    expect_eq!(set(GROUP, best_effort(3)), Ok(0));
    expect_eq!(get(PROCESS), Ok(best_effort(3)));
    expect_eq!(get(GROUP), Ok(best_effort(3)));
    // The group's is that of the first among its members.
    let child =
        spawn_child(|| i32::from(set(PROCESS, best_effort(1)).is_err() || get(GROUP) != Ok(best_effort(1))))?;
    let status = nix::sys::wait::waitpid(child, None).or_fail()?;
    expect!(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)));
    expect!(get(USER).is_ok());
    expect_eq!(call(libc::SYS_ioprio_get, [GROUP, 1 << 29, 0, 0, 0]), Err(Errno::ESRCH));
    Ok(())
}

fn the_generator_tells_its_entropy() -> Outcome {
    const RNDGETENTCNT: usize = 0x8004_5200;
    for name in ["/dev/random", "/dev/urandom"] {
        let (file, mut bits) = (File::open(name).or_fail()?, 0_i32);
        expect_eq!(
            call(libc::SYS_ioctl, [number(&file), RNDGETENTCNT, (&raw mut bits) as usize, 0, 0]),
            Ok(0)
        );
        expect_eq!(bits, 256);
    }
    Ok(())
}

fn what_a_process_has_cannot_be_waited_for() -> Outcome {
    let epoll = Epoll::new(EpollCreateFlags::empty()).or_fail()?;
    let add = |file: &File| epoll.add(file.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 1));
    for name in ["maps", "status", "mem", "pagemap", "smaps", "mountstats", "fdinfo/0", "task/self/stat"] {
        let name = name.replace("self", &std::process::id().to_string());
        let file = File::open(format!("/proc/self/{name}")).or_fail()?;
        expect_eq!((name.as_str(), add(&file)), (name.as_str(), Err(Errno::EPERM)));
    }
    for name in ["/proc/self/mounts", "/proc/self/mountinfo", "/proc/uptime"] {
        expect_eq!((name, add(&File::open(name).or_fail()?)), (name, Ok(())));
    }
    Ok(())
}

/// Memory that is mapped until this is dropped.
struct Mapped(usize, usize);

impl Mapped {
    fn new(pages: usize, flags: i32, file: Option<&File>) -> Result<Self, String> {
        let (length, descriptor) = (pages * PAGE, file.map_or(-1, AsRawFd::as_raw_fd));
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping replaces nothing.
        let at = unsafe { libc::mmap(null_mut(), length, protection, flags, descriptor, 0) };
        if at == libc::MAP_FAILED { Err(Errno::last().to_string()) } else { Ok(Self(at as usize, length)) }
    }

    fn advise(&self, advice: i32) -> Result<usize, Errno> {
        call(libc::SYS_madvise, [self.0, self.1, advice as usize, 0, 0])
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = call(libc::SYS_munmap, [self.0, self.1, 0, 0, 0]);
    }
}

fn only_own_memory_is_wiped_in_children() -> Outcome {
    let scratch = Scratch::new("wiped")?;
    fs::write(scratch.path("file"), [1; PAGE]).or_fail()?;
    let file = File::options().read(true).write(true).open(scratch.path("file")).or_fail()?;
    for (flags, file, expected) in [
        (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None, Ok(0)),
        (libc::MAP_SHARED | libc::MAP_ANONYMOUS, None, Err(Errno::EINVAL)),
        (libc::MAP_PRIVATE, Some(&file), Err(Errno::EINVAL)),
        (libc::MAP_SHARED, Some(&file), Err(Errno::EINVAL)),
    ] {
        expect_eq!(Mapped::new(1, flags, file)?.advise(libc::MADV_WIPEONFORK), expected);
    }
    Ok(())
}

fn locked_memory_is_told() -> Outcome {
    const PAGES: usize = 8;
    let mapped = Mapped::new(PAGES, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None)?;
    expect_eq!(call(libc::SYS_mlock, [mapped.0, mapped.1, 0, 0, 0]), Ok(0));
    let start = format!("{:x}-", mapped.0);
    let text = fs::read_to_string("/proc/self/smaps").or_fail()?;
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&start)).skip(1);
    let mut field = |name: &str| {
        lines.find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default().to_owned()
    };
    expect_eq!(field("Size:"), "32 kB");
    // Memory that can be written is there as if it had been.
    expect_eq!(field("Rss:"), "32 kB");
    expect_eq!(field("Locked:"), "32 kB");
    expect!(field("VmFlags:").split(' ').any(|flag| flag == "lo"));
    Ok(())
}

fn scripts_are_found_by_descriptors() -> Outcome {
    let scratch = Scratch::new("descriptor")?;
    let script = scratch.path("script");
    fs::write(&script, format!("#!{} --as=echo\n", own_path().display())).or_fail()?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).or_fail()?;
    let folder = File::open(&scratch.0).or_fail()?;
    let file = File::open(&script).or_fail()?;
    let run = |from: &File, name: &str, flags: i32, keeps: bool| -> Result<(i32, String), String> {
        let flag = if keeps { FdFlag::empty() } else { FdFlag::FD_CLOEXEC };
        fcntl(from, FcntlArg::F_SETFD(flag)).or_fail()?;
        let (reader, writer) = nix::unistd::pipe().or_fail()?;
        let name = CString::new(name).or_fail()?;
        let child = spawn_child(|| {
            let arguments = [c"zero".as_ptr(), c"more".as_ptr(), std::ptr::null()];
            let _ = nix::unistd::dup2_stdout(&writer);
            let list =
                [name.as_ptr() as usize, arguments.as_ptr() as usize, (&raw const arguments[2]) as usize];
            let result = call(libc::SYS_execveat, [number(from), list[0], list[1], list[2], flags as usize]);
            result.map_or_else(|error| error as i32, |_| 0)
        })?;
        drop(writer);
        let mut text = String::new();
        File::from(reader).read_to_string(&mut text).or_fail()?;
        match nix::sys::wait::waitpid(child, None).or_fail()? {
            nix::sys::wait::WaitStatus::Exited(_, status) => Ok((status, text)),
            other => Err(format!("{other:?}")),
        }
    };
    let first = |text: &str| text.split('|').next().unwrap_or_default().to_owned();
    let (_, text) = run(&file, "", libc::AT_EMPTY_PATH, true)?;
    expect_eq!(first(&text), format!("/dev/fd/{}\u{1}more", file.as_raw_fd()));
    let (_, text) = run(&folder, "script", 0, true)?;
    expect_eq!(first(&text), format!("/dev/fd/{}/script\u{1}more", folder.as_raw_fd()));
    expect_eq!(run(&file, "", libc::AT_EMPTY_PATH, false)?.0, libc::ENOENT);
    expect_eq!(run(&folder, "script", 0, false)?.0, libc::ENOENT);
    Ok(())
}

fn slack_is_shown_and_set() -> Outcome {
    let shown = || fs::read_to_string("/proc/self/timerslack_ns").or_fail();
    expect_eq!(shown()?, "50000\n");
    expect_eq!(call(libc::SYS_prctl, [libc::PR_SET_TIMERSLACK as usize, 1234, 0, 0, 0]), Ok(0));
    expect_eq!(shown()?, "1234\n");
    fs::write("/proc/self/timerslack_ns", "5678").or_fail()?;
    expect_eq!(call(libc::SYS_prctl, [libc::PR_GET_TIMERSLACK as usize, 0, 0, 0, 0]), Ok(5678));
    fs::write("/proc/self/timerslack_ns", "0").or_fail()?;
    expect_eq!(shown()?, "50000\n");
    Ok(())
}

fn ports_are_of_the_internet_only() -> Outcome {
    let socket = UnixDatagram::unbound().or_fail()?;
    let set = |value: i32| {
        let address = (&raw const value) as usize;
        let (level, option) = (libc::SOL_SOCKET as usize, libc::SO_REUSEPORT as usize);
        call(libc::SYS_setsockopt, [number(&socket), level, option, address, 4])
    };
    expect_eq!(set(1), Err(Errno::EOPNOTSUPP));
    expect_eq!(set(0), Ok(0));
    Ok(())
}
