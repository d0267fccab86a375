//! Mount and UTS namespaces: unshare(2), clone(2), setns(2), `/proc/PID/ns`.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::wait::WaitStatus;

use crate::harness::{OrFail, Outcome, in_child};
use crate::mounts::{Stage, bind, line_at, lines_below, mount, umount};
use crate::{expect, expect_eq};

crate::tests! {
    a_namespace_has_mounts_of_its_own
    shared_mounts_reach_other_namespaces
    a_slave_namespace_gets_and_does_not_give
    a_child_starts_in_a_namespace_of_its_own
    a_namespace_is_a_file
    a_namespace_can_be_entered
    entering_is_refused
    a_process_leads_to_its_namespaces
    names_of_the_machine_are_the_namespaces_own
    flags_that_exclude_one_another
}

/// Runs a part of a test in a child, whose failure it is.
pub fn apart(body: impl FnOnce() -> Outcome) -> Outcome {
    let status = in_child(|| match body() {
        Ok(()) => 0,
        Err(error) => {
            println!("{error}");
            1
        }
    })?;
    if matches!(status, WaitStatus::Exited(_, 0)) { Ok(()) } else { Err(format!("the child: {status:?}")) }
}

pub fn gethostname() -> Result<String, Errno> {
    Ok(nix::sys::utsname::uname()?.nodename().to_string_lossy().into_owned())
}

pub fn sethostname(name: &str) -> Result<(), Errno> {
    // SAFETY: bytes and their number.
    Errno::result(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

/// The name of a namespace of the caller's.
pub fn link(name: &str) -> Result<String, String> {
    Ok(fs::read_link(format!("/proc/self/ns/{name}")).or_fail()?.to_string_lossy().into_owned())
}

fn a_namespace_has_mounts_of_its_own() -> Outcome {
    let stage = Stage::new("own")?;
    let one = stage.mounted("one")?;
    let two = stage.directory("two")?;
    apart(|| {
        let before = link("mnt")?;
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        expect!(link("mnt")? != before);
        mount(Some("new"), &two, Some("tmpfs"), 0).or_fail()?;
        umount(&one, 0).or_fail()?;
        fs::write(two.join("file"), "").or_fail()?;
        Ok(())
    })?;
    expect_eq!(lines_below(&one)?.len(), 1);
    expect_eq!(lines_below(&two)?.len(), 0);
    // A file system that is used in one namespace can be unmounted in another.
    let file = fs::File::create(one.join("file")).or_fail()?;
    apart(|| {
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        umount(&one, 0).or_fail()
    })?;
    drop(file);
    // The working directory is the same place among the new mounts.
    std::env::set_current_dir(&one).or_fail()?;
    apart(|| {
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        expect_eq!(std::env::current_dir().or_fail()?, one.as_path());
        expect_eq!(umount(&one, 0), Err(Errno::EBUSY));
        std::env::set_current_dir("/").or_fail()?;
        umount(&one, 0).or_fail()
    })?;
    std::env::set_current_dir("/").or_fail()
}

fn shared_mounts_reach_other_namespaces() -> Outcome {
    let stage = Stage::new("ns-shared")?;
    let one = stage.mounted("one")?;
    fs::create_dir(one.join("point")).or_fail()?;
    mount(None, &one, None, libc::MS_SHARED).or_fail()?;
    let group = line_at(&one)?.number("shared");
    apart(|| {
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        expect_eq!(line_at(&one)?.number("shared"), group);
        mount(Some("new"), &one.join("point"), Some("tmpfs"), 0).or_fail()
    })?;
    // The namespace has ended, and its mounts with it; what it mounted here stays.
    expect_eq!(line_at(&one.join("point"))?.source, "new");
    umount(&one.join("point"), 0).or_fail()
}

fn a_slave_namespace_gets_and_does_not_give() -> Outcome {
    let stage = Stage::new("ns-slave")?;
    let one = stage.mounted("one")?;
    fs::create_dir(one.join("point")).or_fail()?;
    fs::create_dir(one.join("other")).or_fail()?;
    mount(None, &one, None, libc::MS_SHARED).or_fail()?;
    let group = line_at(&one)?.number("shared");
    let (mut up, mut down) = (std::io::pipe().or_fail()?, std::io::pipe().or_fail()?);
    let child = crate::harness::spawn_child(|| {
        use std::io::{Read, Write};
        let mut run = || -> Outcome {
            unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
            mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_SLAVE).or_fail()?;
            expect_eq!(line_at(&one)?.number("master"), group);
            mount(Some("own"), &one.join("other"), Some("tmpfs"), 0).or_fail()?;
            up.1.write_all(b"x").or_fail()?;
            down.0.read_exact(&mut [0]).or_fail()?;
            expect_eq!(line_at(&one.join("point"))?.source, "new");
            Ok(())
        };
        match run() {
            Ok(()) => 0,
            Err(error) => {
                println!("{error}");
                1
            }
        }
    })?;
    use std::io::{Read, Write};
    drop(up.1);
    let mut byte = [0];
    let begun = up.0.read_exact(&mut byte);
    expect_eq!(lines_below(&one)?.len(), 1);
    mount(Some("new"), &one.join("point"), Some("tmpfs"), 0).or_fail()?;
    down.1.write_all(b"x").or_fail()?;
    let status = nix::sys::wait::waitpid(child, None).or_fail()?;
    expect!(begun.is_ok() && matches!(status, WaitStatus::Exited(_, 0)));
    umount(&one.join("point"), 0).or_fail()
}

/// Starts a child with clone(2) flags; returns its status.
pub fn clone_with(flags: i32, body: fn() -> i32) -> Result<i32, Errno> {
    // SAFETY: a copy of the space, as fork.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) };
    match Errno::result(pid)? {
        0 => {
            let status = body();
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) }
        }
        pid => match nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid as i32), None)? {
            WaitStatus::Exited(_, status) => Ok(status),
            _ => Ok(-1),
        },
    }
}

fn a_child_starts_in_a_namespace_of_its_own() -> Outcome {
    let stage = Stage::new("clone")?;
    let one = stage.mounted("one")?;
    std::env::set_current_dir(&one).or_fail()?;
    let status = clone_with(libc::CLONE_NEWNS | libc::CLONE_NEWUTS, || {
        let moved = std::env::set_current_dir("..").is_ok() && umount(Path::new("one"), 0).is_ok();
        let named = sethostname("inside").is_ok();
        i32::from(!(moved && named))
    });
    std::env::set_current_dir("/").or_fail()?;
    expect_eq!(status, Ok(0));
    expect_eq!(lines_below(&one)?.len(), 1);
    expect!(gethostname().or_fail()? != "inside");
    Ok(())
}

const NS_GET_NSTYPE: u64 = 0xb703;
const NS_GET_PARENT: u64 = 0xb702;
const NS_GET_OWNER_UID: u64 = 0xb704;

/// Asks a namespace's file for a number.
pub fn ask(file: &fs::File, request: u64) -> Result<i32, Errno> {
    // SAFETY: the requests take no argument, or one that is not reached.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), request, 0) })
}

fn a_namespace_is_a_file() -> Outcome {
    for (name, flag) in [
        ("mnt", libc::CLONE_NEWNS),
        ("uts", libc::CLONE_NEWUTS),
        ("ipc", libc::CLONE_NEWIPC),
        ("cgroup", libc::CLONE_NEWCGROUP),
    ] {
        let path = format!("/proc/self/ns/{name}");
        let file = fs::File::open(&path).or_fail()?;
        let number = fs::metadata(&path).or_fail()?.ino();
        expect_eq!(link(name)?, format!("{name}:[{number}]"));
        expect_eq!(file.metadata().or_fail()?.ino(), number);
        expect_eq!(file.metadata().or_fail()?.mode() & 0o777, 0o444);
        expect_eq!(fs::metadata(format!("/proc/thread-self/ns/{name}")).or_fail()?.ino(), number);
        expect_eq!(ask(&file, NS_GET_NSTYPE), Ok(flag));
        expect_eq!(ask(&file, NS_GET_PARENT), Err(Errno::EINVAL));
        expect_eq!(ask(&file, NS_GET_OWNER_UID), Err(Errno::EINVAL));
        expect_eq!(ask(&file, 0xb7ff), Err(Errno::ENOTTY));
        // A child has the same, and another once it leaves.
        apart(|| {
            expect_eq!(fs::metadata(&path).or_fail()?.ino(), number);
            unshare(CloneFlags::from_bits_retain(flag)).or_fail()?;
            expect!(fs::metadata(&path).or_fail()?.ino() != number);
            Ok(())
        })?;
    }
    Ok(())
}

fn a_namespace_can_be_entered() -> Outcome {
    let stage = Stage::new("setns")?;
    let one = stage.directory("one")?;
    let outside = fs::File::open("/proc/self/ns/mnt").or_fail()?;
    apart(|| {
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        mount(Some("new"), &one, Some("tmpfs"), 0).or_fail()?;
        fs::write(one.join("file"), "").or_fail()?;
        let inside = fs::File::open("/proc/self/ns/mnt").or_fail()?;
        std::env::set_current_dir(&one).or_fail()?;
        setns(&outside, CloneFlags::CLONE_NEWNS).or_fail()?;
        expect!(!one.join("file").exists());
        // Root and working directory are the root of the namespace.
        expect_eq!(std::env::current_dir().or_fail()?, Path::new("/"));
        setns(&inside, CloneFlags::empty()).or_fail()?;
        expect!(one.join("file").exists());
        // The namespace lives by its descriptor alone, and so do its mounts.
        setns(&outside, CloneFlags::empty()).or_fail()?;
        setns(&inside, CloneFlags::empty()).or_fail()?;
        expect!(one.join("file").exists());
        Ok(())
    })
}

fn entering_is_refused() -> Outcome {
    let stage = Stage::new("setns-errors")?;
    let own = fs::File::open("/proc/self/ns/mnt").or_fail()?;
    expect_eq!(setns(&own, CloneFlags::CLONE_NEWUTS), Err(Errno::EINVAL));
    let plain = fs::File::open("/").or_fail()?;
    expect_eq!(setns(&plain, CloneFlags::empty()), Err(Errno::EINVAL));
    // SAFETY: a number.
    expect_eq!(Errno::result(unsafe { libc::setns(-1, 0) }), Err(Errno::EBADF));
    // Others that use the same directories would be moved, too.
    let result = std::thread::scope(|scope| {
        let (tell, wait) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || wait.recv());
        let result = setns(&own, CloneFlags::CLONE_NEWNS);
        drop(tell);
        result
    });
    expect_eq!(result, Err(Errno::EINVAL));
    apart(|| {
        nix::unistd::setuid(nix::unistd::Uid::from_raw(1000)).or_fail()?;
        expect_eq!(setns(&own, CloneFlags::CLONE_NEWNS), Err(Errno::EPERM));
        expect_eq!(unshare(CloneFlags::CLONE_NEWUTS), Err(Errno::EPERM));
        Ok(())
    })?;
    drop(stage);
    Ok(())
}

fn a_process_leads_to_its_namespaces() -> Outcome {
    let stage = Stage::new("pidfd")?;
    let one = stage.directory("one")?;
    // SAFETY: the process's own number.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) } as i32;
    expect!(pidfd >= 0);
    let enter = |flags: i32| {
        // SAFETY: two numbers.
        Errno::result(unsafe { libc::setns(pidfd, flags) }).map(drop)
    };
    expect_eq!(enter(0), Err(Errno::EINVAL));
    expect_eq!(enter(libc::CLONE_FS), Err(Errno::EINVAL));
    apart(|| {
        let before = (link("mnt")?, link("uts")?);
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS).or_fail()?;
        sethostname("elsewhere").or_fail()?;
        mount(Some("new"), &one, Some("tmpfs"), 0).or_fail()?;
        expect!(link("mnt")? != before.0 && link("uts")? != before.1);
        enter(libc::CLONE_NEWNS | libc::CLONE_NEWUTS).or_fail()?;
        expect_eq!((link("mnt")?, link("uts")?), before);
        expect!(gethostname().or_fail()? != "elsewhere");
        expect_eq!(lines_below(&one)?.len(), 0);
        Ok(())
    })?;
    // SAFETY: closes what was opened above.
    unsafe { libc::close(pidfd) };
    Ok(())
}

fn names_of_the_machine_are_the_namespaces_own() -> Outcome {
    let before = gethostname().or_fail()?;
    apart(|| {
        unshare(CloneFlags::CLONE_NEWUTS).or_fail()?;
        expect_eq!(gethostname().or_fail()?, before);
        sethostname("another").or_fail()?;
        expect_eq!(gethostname().or_fail()?, "another");
        expect_eq!(fs::read_to_string("/proc/sys/kernel/hostname").or_fail()?, "another\n");
        fs::write("/proc/sys/kernel/hostname", "third\n").or_fail()?;
        expect_eq!(gethostname().or_fail()?, "third");
        fs::write("/proc/sys/kernel/domainname", "domain").or_fail()?;
        // SAFETY: all zeros is a valid value, and the call fills it.
        let mut names: libc::utsname = unsafe { std::mem::zeroed() };
        // SAFETY: a structure.
        Errno::result(unsafe { libc::uname(&raw mut names) }).or_fail()?;
        expect_eq!(names.domainname[..7].iter().map(|&byte| byte as u8).collect::<Vec<_>>(), b"domain\0");
        Ok(())
    })?;
    expect_eq!(gethostname().or_fail()?, before);
    Ok(())
}

fn flags_that_exclude_one_another() -> Outcome {
    let nothing = || 0;
    expect_eq!(clone_with(libc::CLONE_NEWNS | libc::CLONE_FS, nothing), Err(Errno::EINVAL));
    // SAFETY: a flag that there is not.
    expect_eq!(Errno::result(unsafe { libc::unshare(1) }), Err(Errno::EINVAL));
    // Leaving the mounts leaves the directories that are shared with others.
    let stage = Stage::new("exclude")?;
    let (one, two) = (stage.directory("one")?, stage.directory("two")?);
    std::env::set_current_dir(&one).or_fail()?;
    let moved = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                unshare(CloneFlags::CLONE_NEWNS).is_ok()
                    && std::env::set_current_dir(&two).is_ok()
                    && bind(&two, &one, 0).is_ok()
            })
            .join()
    });
    expect!(moved.is_ok_and(|moved| moved));
    expect_eq!(std::env::current_dir().or_fail()?, one.as_path());
    expect_eq!(lines_below(&one)?.len(), 0);
    std::env::set_current_dir("/").or_fail()
}
