//! User namespaces, user_namespaces(7): their maps, and the numbers that programs see.
#![allow(unsafe_code, reason = "most of the calls have no safe forms")]

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{
    Gid, Uid, getegid, geteuid, getgid, getuid, setgid, setgroups, setresgid, setresuid, setuid,
};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::mounts::Stage;
use crate::mounts::namespace::{apart, link};
use crate::{expect, expect_eq};

crate::tests! {
    a_namespace_without_maps_has_nobody
    an_ordinary_user_becomes_root
    maps_are_written_once
    maps_have_a_form
    maps_need_rights
    groups_are_denied_for_good
    numbers_are_translated
    files_of_others_stay_theirs
    changes_of_owner_need_numbers
    namespaces_lie_in_one_another
    signals_name_users
    waits_name_users
    sockets_name_users
}

pub const USER: u32 = 4321;
pub const GROUP: u32 = 5432;
pub const NOBODY: u32 = 65534;

pub fn become_user() -> Outcome {
    let (user, group) = (Uid::from_raw(USER), Gid::from_raw(GROUP));
    setgroups(&[]).or_fail()?;
    setresgid(group, group, group).or_fail()?;
    setresuid(user, user, user).or_fail()?;
    // A change of users closes a process: its files in /proc are root's until it is open again.
    // SAFETY: two numbers.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) }).map(drop).or_fail()
}

pub fn leave() -> Outcome {
    unshare(CloneFlags::CLONE_NEWUSER).or_fail()
}

pub fn write(name: &str, text: &str) -> Result<(), Errno> {
    use std::io::Write;
    let errno = |error: std::io::Error| error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
    let mut file = fs::OpenOptions::new().write(true).open(format!("/proc/self/{name}")).map_err(errno)?;
    file.write_all(text.as_bytes()).map_err(errno)
}

pub fn read(name: &str) -> Result<String, String> {
    fs::read_to_string(format!("/proc/self/{name}")).or_fail()
}

pub fn rows(name: &str) -> Result<Vec<Vec<u32>>, String> {
    let text = read(name)?;
    text.lines().map(|line| line.split_whitespace().map(|word| word.parse().or_fail()).collect()).collect()
}

/// Runs a part of a test in a namespace whose maps the parent writes, which may write any.
pub fn inside(users: &str, groups: &str, body: impl FnOnce() -> Outcome) -> Outcome {
    use std::io::{Read, Write};
    let (mut told, mut tell) = std::io::pipe().or_fail()?;
    let (mut go, mut may_go) = std::io::pipe().or_fail()?;
    let child = spawn_child(|| {
        let mut run = || {
            leave()?;
            tell.write_all(b"x").or_fail()?;
            go.read_exact(&mut [0]).or_fail()
        };
        match run().and_then(|()| body()) {
            Ok(()) => 0,
            Err(error) => {
                println!("{error}");
                1
            }
        }
    })?;
    told.read_exact(&mut [0]).or_fail()?;
    let written = fs::write(format!("/proc/{child}/uid_map"), users)
        .and_then(|()| fs::write(format!("/proc/{child}/gid_map"), groups));
    may_go.write_all(b"x").or_fail()?;
    let status = nix::sys::wait::waitpid(child, None).or_fail()?;
    written.or_fail()?;
    expect!(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)));
    Ok(())
}

/// The superuser in a namespace in which it has numbers.
pub fn leave_as(user: u32, group: u32) -> Outcome {
    leave()?;
    write("setgroups", "deny").or_fail()?;
    write("uid_map", &format!("{user} 0 1")).or_fail()?;
    write("gid_map", &format!("{group} 0 1")).or_fail()
}

/// An ordinary user's namespace in which it is root.
pub fn become_root_inside() -> Outcome {
    become_user()?;
    leave()?;
    write("setgroups", "deny").or_fail()?;
    write("uid_map", &format!("0 {USER} 1")).or_fail()?;
    write("gid_map", &format!("0 {GROUP} 1")).or_fail()
}

pub fn effective() -> Result<u64, String> {
    let status = read("status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).ok_or("no CapEff")?;
    u64::from_str_radix(line.trim(), 16).or_fail()
}

pub fn errno(error: &std::io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw)
}

fn a_namespace_without_maps_has_nobody() -> Outcome {
    expect_eq!(rows("uid_map")?, [[0, 0, u32::MAX]]);
    apart(|| {
        let before = link("user")?;
        leave()?;
        expect!(link("user")? != before);
        expect_eq!((getuid().as_raw(), geteuid().as_raw(), getgid().as_raw()), (NOBODY, NOBODY, NOBODY));
        expect_eq!((read("uid_map")?, read("gid_map")?), (String::new(), String::new()));
        expect_eq!(fs::metadata("/").or_fail()?.uid(), NOBODY);
        expect!(effective()? != 0);
        // There is no user to become.
        expect_eq!(setuid(Uid::from_raw(0)), Err(Errno::EINVAL));
        expect_eq!(setgid(Gid::from_raw(0)), Err(Errno::EINVAL));
        expect_eq!(setgroups(&[]), Err(Errno::EPERM));
        Ok(())
    })
}

fn an_ordinary_user_becomes_root() -> Outcome {
    apart(|| {
        become_user()?;
        expect_eq!(effective()?, 0);
        leave()?;
        // All rights, from the start.
        expect!(effective()? != 0);
        write("setgroups", "deny").or_fail()?;
        write("gid_map", &format!("0 {GROUP} 1\n")).or_fail()?;
        write("uid_map", &format!("0 {USER} 1\n")).or_fail()?;
        expect_eq!((getuid().as_raw(), geteuid().as_raw()), (0, 0));
        expect_eq!((getgid().as_raw(), getegid().as_raw()), (0, 0));
        expect_eq!(read("uid_map")?, format!("{:10} {USER:10} {:10}\n", 0, 1));
        expect_eq!(rows("gid_map")?, [[0, GROUP, 1]]);
        // Its own files are root's now.
        expect_eq!(fs::metadata("/proc/self/status").or_fail()?.uid(), 0);
        let status = read("status")?;
        expect!(status.contains("Uid:\t0\t0\t0\t0\n") && status.contains("Gid:\t0\t0\t0\t0\n"));
        expect_eq!(setuid(Uid::from_raw(1)), Err(Errno::EINVAL));
        setuid(Uid::from_raw(0)).or_fail()
    })
}

fn maps_are_written_once() -> Outcome {
    apart(|| {
        leave()?;
        expect_eq!(write("uid_map", "nonsense"), Err(Errno::EINVAL));
        // Those in it may no longer do with others' numbers what the parent may.
        expect_eq!(write("uid_map", "0 0 10"), Err(Errno::EPERM));
        write("uid_map", "0 0 1\n").or_fail()?;
        expect_eq!(write("uid_map", "0 0 1"), Err(Errno::EPERM));
        expect_eq!(write("uid_map", "nonsense"), Err(Errno::EPERM));
        expect_eq!(rows("uid_map")?, [[0, 0, 1]]);
        write("setgroups", "deny").or_fail()?;
        write("gid_map", "5 0 1").or_fail()?;
        expect_eq!((getuid().as_raw(), getgid().as_raw()), (0, 5));
        write("projid_map", "7 7 7").or_fail()?;
        expect_eq!(rows("projid_map")?, [[7, 7, 7]]);
        Ok(())
    })?;
    // Nobody writes those of the first.
    expect_eq!(write("uid_map", "0 0 1"), Err(Errno::EPERM));
    Ok(())
}

fn maps_have_a_form() -> Outcome {
    let lines = |count: u32| -> String { (0..count).map(|n| format!("{n} {n} 1\n")).collect() };
    apart(|| {
        leave()?;
        for text in [
            "",
            "0 0",
            "0 0 0",
            "0 0 1 1",
            "0 0 2\n1 10 1",
            "0 0 2\n10 1 1",
            "0 4294967295 1",
            "4294967290 0 6",
        ] {
            // Nothing is written with an empty text, so nothing is refused.
            if !text.is_empty() {
                expect_eq!(write("uid_map", text), Err(Errno::EINVAL));
            }
        }
        expect_eq!(write("uid_map", &lines(341)), Err(Errno::EINVAL));
        Ok(())
    })?;
    inside(&lines(340), "60 6 1\n50 5 1\n40 4 1\n30 3 1\n20 2 1\n10 1 1", || {
        expect_eq!(rows("uid_map")?.len(), 340);
        // So many are shown in order.
        expect_eq!(rows("gid_map")?[0], [10, 1, 1]);
        Ok(())
    })
}

fn maps_need_rights() -> Outcome {
    apart(|| {
        become_user()?;
        leave()?;
        // Others' numbers, or more than the own one, are for who may take any; so are groups while they can be dropped.
        for text in ["0 0 1".to_owned(), format!("0 {USER} 2"), format!("0 {USER} 1\n1 1 1")] {
            expect_eq!(write("uid_map", &text), Err(Errno::EPERM));
        }
        expect_eq!(write("gid_map", &format!("0 {GROUP} 1")), Err(Errno::EPERM));
        write("uid_map", &format!("{USER} {USER} 1")).or_fail()?;
        expect_eq!(getuid().as_raw(), USER);
        write("setgroups", "deny").or_fail()?;
        write("gid_map", &format!("{GROUP} {GROUP} 1")).or_fail()
    })?;
    // The parent's root may write any map of a child.
    let (mut told, mut tell) = std::io::pipe().or_fail()?;
    let (mut go, mut may_go) = std::io::pipe().or_fail()?;
    use std::io::{Read, Write};
    let child = spawn_child(|| {
        let left = become_user().is_ok() && leave().is_ok() && tell.write_all(b"x").is_ok();
        let mapped = go.read_exact(&mut [0]).is_ok() && getuid().as_raw() == 7 && getgid().as_raw() == 8;
        i32::from(!(left && mapped && setuid(Uid::from_raw(9)).is_ok()))
    })?;
    told.read_exact(&mut [0]).or_fail()?;
    let set = |name: &str, text: String| fs::write(format!("/proc/{child}/{name}"), text);
    let written = set("uid_map", format!("7 {USER} 3")).and_then(|()| set("gid_map", format!("8 {GROUP} 1")));
    let shown = fs::read_to_string(format!("/proc/{child}/uid_map"));
    may_go.write_all(b"x").or_fail()?;
    let status = nix::sys::wait::waitpid(child, None).or_fail()?;
    written.or_fail()?;
    expect_eq!(shown.or_fail()?, format!("{:10} {USER:10} {:10}\n", 7, 3));
    expect!(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)));
    Ok(())
}

fn groups_are_denied_for_good() -> Outcome {
    expect_eq!(read("setgroups")?, "allow\n");
    expect_eq!(write("setgroups", "deny"), Err(Errno::EPERM));
    apart(|| {
        leave()?;
        expect_eq!(read("setgroups")?, "allow\n");
        for text in ["no", "denyx", "deny\nallow", ""] {
            if !text.is_empty() {
                expect_eq!(write("setgroups", text), Err(Errno::EINVAL));
            }
        }
        write("setgroups", "allow\n").or_fail()
    })?;
    inside("0 0 1", "0 0 2", || {
        expect_eq!(write("setgroups", "deny"), Err(Errno::EPERM));
        setgroups(&[Gid::from_raw(1)]).or_fail()?;
        expect_eq!(setgroups(&[Gid::from_raw(2)]), Err(Errno::EINVAL));
        expect_eq!(nix::unistd::getgroups().or_fail()?, [Gid::from_raw(1)]);
        Ok(())
    })?;
    apart(|| {
        leave()?;
        write("setgroups", "deny").or_fail()?;
        expect_eq!(write("setgroups", "allow"), Err(Errno::EPERM));
        write("gid_map", "0 0 1").or_fail()?;
        expect_eq!(setgroups(&[]), Err(Errno::EPERM));
        // A child inherits it.
        write("uid_map", "0 0 1").or_fail()?;
        leave()?;
        expect_eq!(read("setgroups")?, "deny\n");
        Ok(())
    })
}

fn numbers_are_translated() -> Outcome {
    let stage = Stage::new("users")?;
    let one = stage.directory("one")?;
    let (own, other) = (one.join("own"), one.join("other"));
    fs::write(&own, "").or_fail()?;
    fs::write(&other, "").or_fail()?;
    chown(&own, Some(1005), Some(1006)).or_fail()?;
    chown(&other, Some(3000), Some(0)).or_fail()?;
    inside("0 0 1\n100 1000 100", "0 0 1\n200 1000 100", || {
        let owner = |path: &Path| fs::metadata(path).map(|found| (found.uid(), found.gid())).or_fail();
        expect_eq!(owner(&own)?, (105, 206));
        expect_eq!(owner(&other)?, (NOBODY, 0));
        chown(&own, Some(110), Some(210)).or_fail()?;
        expect_eq!(owner(&own)?, (110, 210));
        expect_eq!(chown(&own, Some(1000), None).map_err(|error| errno(&error)), Err(Some(Errno::EINVAL)));
        expect_eq!(chown(&own, None, Some(99)).map_err(|error| errno(&error)), Err(Some(Errno::EINVAL)));
        let (user, group) = (Uid::from_raw(150), Gid::from_raw(250));
        setresgid(group, group, group).or_fail()?;
        setresuid(user, user, user).or_fail()?;
        expect_eq!(effective()?, 0);
        let status = nix::unistd::getresuid().or_fail()?;
        expect_eq!((status.real, status.effective, status.saved), (user, user, user));
        Ok(())
    })?;
    let found = fs::metadata(&own).or_fail()?;
    expect_eq!((found.uid(), found.gid()), (1010, 1010));
    Ok(())
}

fn files_of_others_stay_theirs() -> Outcome {
    let stage = Stage::new("others")?;
    let one = stage.directory("one")?;
    fs::set_permissions(&one, fs::Permissions::from_mode(0o755)).or_fail()?;
    let (secret, known) = (one.join("secret"), one.join("known"));
    for path in [&secret, &known] {
        fs::write(path, "text").or_fail()?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).or_fail()?;
    }
    chown(&known, Some(1001), Some(1001)).or_fail()?;
    inside("0 4000 1\n1 1000 10", "0 4000 1\n1 1000 10", || {
        let root = (Uid::from_raw(0), Gid::from_raw(0));
        setresgid(root.1, root.1, root.1).or_fail()?;
        setresuid(root.0, root.0, root.0).or_fail()?;
        expect!(effective()? != 0);
        expect_eq!(fs::read(&secret).map_err(|error| errno(&error)), Err(Some(Errno::EACCES)));
        expect_eq!(fs::read_to_string(&known).or_fail()?, "text");
        let closed = fs::Permissions::from_mode(0o000);
        expect_eq!(
            fs::set_permissions(&secret, closed.clone()).map_err(|e| errno(&e)),
            Err(Some(Errno::EPERM))
        );
        fs::set_permissions(&known, closed).or_fail()?;
        expect_eq!(fs::remove_file(&known).map_err(|error| errno(&error)), Err(Some(Errno::EACCES)));
        Ok(())
    })
}

fn changes_of_owner_need_numbers() -> Outcome {
    let stage = Stage::new("owners")?;
    let one = stage.directory("one")?;
    let (mapped, foreign, group) = (one.join("mapped"), one.join("foreign"), one.join("group"));
    for (path, owner) in [(&mapped, (0, 0)), (&foreign, (77, 0)), (&group, (0, 77))] {
        fs::write(path, "").or_fail()?;
        chown(path, Some(owner.0), Some(owner.1)).or_fail()?;
    }
    inside("0 0 10", "0 0 10", || {
        let give = |path: &Path| chown(path, Some(5), None).map_err(|error| errno(&error));
        expect_eq!(give(&mapped), Ok(()));
        // Both owner and group must have numbers inside.
        expect_eq!(give(&foreign), Err(Some(Errno::EPERM)));
        expect_eq!(give(&group), Err(Some(Errno::EPERM)));
        Ok(())
    })
}

fn namespaces_lie_in_one_another() -> Outcome {
    apart(|| {
        let mut made = 0;
        let refused = loop {
            if let Err(error) = unshare(CloneFlags::CLONE_NEWUSER) {
                break error;
            }
            made += 1;
            write("uid_map", "0 0 1").or_fail()?;
            write("setgroups", "deny").or_fail()?;
            write("gid_map", "0 0 1").or_fail()?;
            expect!(made < 100);
        };
        expect_eq!((made, refused), (33, Errno::ENOSPC));
        Ok(())
    })?;
    inside("10 0 1\n20 1000 10", "10 0 1", || {
        leave()?;
        expect_eq!(write("uid_map", "0 11 1"), Err(Errno::EPERM));
        write("uid_map", "0 10 1").or_fail()?;
        expect_eq!(getuid().as_raw(), 0);
        expect_eq!(rows("uid_map")?, [[0, 10, 1]]);
        Ok(())
    })
}

fn signals_name_users() -> Outcome {
    apart(|| {
        use nix::sys::signal::{SigSet, Signal};
        let mut set = SigSet::empty();
        set.add(Signal::SIGUSR1);
        set.thread_block().or_fail()?;
        let parent = nix::unistd::getpid();
        let child = spawn_child(|| {
            let sent = leave().is_ok()
                && write("uid_map", "40 0 1").is_ok()
                && nix::sys::signal::kill(parent, Signal::SIGUSR1).is_ok()
                && nix::sys::signal::kill(nix::unistd::getpid(), Signal::SIGUSR1).is_ok();
            let received = wait_for(&set);
            i32::from(!(sent && received == Ok(40)))
        })?;
        // As the receiver sees the sender.
        let received = wait_for(&set);
        let status = nix::sys::wait::waitpid(child, None).or_fail()?;
        expect_eq!(received, Ok(0));
        expect!(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)));
        Ok(())
    })
}

fn wait_for(set: &nix::sys::signal::SigSet) -> Result<u32, Errno> {
    let mut information = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the call fills the structure; the signal is one that a process sends.
    unsafe {
        Errno::result(libc::sigwaitinfo(set.as_ref(), information.as_mut_ptr()))?;
        Ok(information.assume_init().si_uid())
    }
}

fn waits_name_users() -> Outcome {
    apart(|| {
        leave()?;
        write("uid_map", "30 0 1").or_fail()?;
        let child = spawn_child(|| 0)?;
        let mut information = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the call fills the structure for a child that has ended.
        let user = unsafe {
            let id = child.as_raw().cast_unsigned();
            Errno::result(libc::waitid(libc::P_PID, id, information.as_mut_ptr(), libc::WEXITED))
                .or_fail()?;
            information.assume_init().si_uid()
        };
        expect_eq!(user, 30);
        Ok(())
    })
}

fn sockets_name_users() -> Outcome {
    use std::os::unix::net::UnixStream;
    let peer = |socket: &UnixStream| -> Result<(u32, u32), String> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as u32;
        // SAFETY: a structure and its length.
        let result = unsafe {
            let place = std::ptr::from_mut(&mut found).cast();
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut length)
        };
        Errno::result(result).or_fail()?;
        Ok((found.uid, found.gid))
    };
    let (outside, _other) = UnixStream::pair().or_fail()?;
    apart(|| {
        leave()?;
        expect_eq!(peer(&outside)?, (NOBODY, NOBODY));
        write("uid_map", "20 0 1").or_fail()?;
        write("setgroups", "deny").or_fail()?;
        write("gid_map", "21 0 1").or_fail()?;
        expect_eq!(peer(&outside)?, (20, 21));
        let (inside, _other) = UnixStream::pair().or_fail()?;
        expect_eq!(peer(&inside)?, (20, 21));
        Ok(())
    })
}
