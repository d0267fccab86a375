//! PID namespaces, pid_namespaces(7): the numbers in `/proc`, and those that descriptors, sockets and locks tell.
#![allow(unsafe_code, reason = "most of the calls have no safe forms")]

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, getpid, setsid};

use crate::harness::{OrFail, Outcome};
use crate::mounts::namespace::apart;
use crate::mounts::{Stage, mount};
use crate::namespaces::pid::{inside, leave, sleeper};
use crate::{expect, expect_eq};

crate::tests! {
    a_listing_is_of_the_mounts_namespace
    status_tells_all_numbers
    descriptors_of_processes_know_both_sides
    credentials_name_the_sender_for_the_receiver
    locks_name_their_holder
    the_last_number_is_the_readers
}

/// The processes that a `/proc` lists.
fn listed(place: &Path) -> Result<Vec<i32>, String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(place).or_fail()? {
        found.extend(entry.or_fail()?.file_name().to_string_lossy().parse::<i32>());
    }
    found.sort_unstable();
    Ok(found)
}

fn a_listing_is_of_the_mounts_namespace() -> Outcome {
    let stage = Stage::new("pid-listing")?;
    let place = stage.directory("one")?;
    apart(|| {
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        leave()?;
        apart(|| {
            // That of the first namespace does not know the reader by a number of its own.
            expect!(fs::read_link("/proc/self").or_fail()? != Path::new("1"));
            mount(Some("proc"), &place, Some("proc"), 0).or_fail()?;
            expect_eq!(fs::read_link(place.join("self")).or_fail()?, Path::new("1"));
            let child = sleeper()?;
            expect_eq!(listed(&place)?, [1, child.as_raw()]);
            let stat = fs::read_to_string(place.join("2/stat")).or_fail()?;
            expect!(stat.starts_with("2 (") && stat.contains(" 1 0 0 "));
            expect_eq!(listed(&place.join("2/task"))?, [2]);
            expect!(!place.join("3").exists());
            kill(child, Signal::SIGKILL).or_fail()?;
            waitpid(child, None).map(drop).or_fail()?;
            expect_eq!(listed(&place)?, [1]);
            Ok(())
        })
    })
}

/// The numbers behind a name in a status file.
fn numbers(pid: i32, name: &str) -> Result<Vec<i32>, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).or_fail()?;
    let line = text.lines().find(|line| line.starts_with(name)).ok_or("no such line")?;
    line.split_whitespace().skip(1).map(|number| number.parse().or_fail()).collect()
}

fn status_tells_all_numbers() -> Outcome {
    apart(|| {
        setsid().or_fail()?;
        leave()?;
        let child = sleeper()?;
        let (own, inner) = (getpid().as_raw(), child.as_raw());
        expect_eq!(numbers(inner, "NSpid")?, [inner, 1]);
        expect_eq!(numbers(inner, "NStgid")?, [inner, 1]);
        // The group and the session are the parent's, which has no number inside.
        expect_eq!(numbers(inner, "NSpgid")?, [own, 0]);
        expect_eq!(numbers(inner, "NSsid")?, [own, 0]);
        expect_eq!(numbers(own, "NSpid")?, [own]);
        kill(child, Signal::SIGKILL).or_fail()?;
        waitpid(child, None).map(drop).or_fail()
    })
}

fn open_process(pid: Pid) -> Result<OwnedFd, Errno> {
    // SAFETY: numbers.
    let number = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })?;
    // SAFETY: it was just opened.
    Ok(unsafe { OwnedFd::from_raw_fd(number as i32) })
}

fn descriptors_of_processes_know_both_sides() -> Outcome {
    apart(|| {
        let outer = open_process(getpid()).or_fail()?;
        leave()?;
        let told = |file: &OwnedFd| -> Result<Vec<String>, String> {
            let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).or_fail()?;
            Ok(text
                .lines()
                .filter(|line| line.starts_with("Pid:") || line.starts_with("NSpid:"))
                .map(str::to_owned)
                .collect())
        };
        let child = sleeper()?;
        let inner = open_process(child).or_fail()?;
        expect_eq!(told(&inner)?, [format!("Pid:\t{child}"), format!("NSpid:\t{child}\t1")]);
        expect_eq!(told(&outer)?.len(), 2);
        kill(child, Signal::SIGKILL).or_fail()?;
        waitpid(child, None).map(drop).or_fail()
    })?;
    inside(|| {
        expect_eq!(open_process(Pid::from_raw(9)).map(drop), Err(Errno::ESRCH));
        open_process(getpid()).map(drop).or_fail()
    })
}

/// The process number that a socket tells of its peer.
fn peer(socket: &impl AsRawFd) -> Result<i32, Errno> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as u32;
    // SAFETY: the structure and its length.
    Errno::result(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    })?;
    Ok(credentials.pid)
}

fn credentials_name_the_sender_for_the_receiver() -> Outcome {
    use std::os::unix::net::UnixStream;
    apart(|| {
        let (outer, _other) = UnixStream::pair().or_fail()?;
        expect_eq!(peer(&outer), Ok(getpid().as_raw()));
        leave()?;
        apart(|| {
            // Made by one that has no number here.
            expect_eq!(peer(&outer), Ok(0));
            let (inner, _other) = UnixStream::pair().or_fail()?;
            expect_eq!(peer(&inner), Ok(1));
            Ok(())
        })
    })
}

fn locks_name_their_holder() -> Outcome {
    let stage = Stage::new("pid-locks")?;
    let path = stage.directory("one")?.join("file");
    fs::write(&path, "text").or_fail()?;
    let request = |file: &fs::File, what: i32| -> Result<libc::flock, Errno> {
        // SAFETY: all zeros is a lock of the whole file.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as i16;
        // SAFETY: the structure that the request is about.
        Errno::result(unsafe { libc::fcntl(file.as_raw_fd(), what, &raw mut lock) })?;
        Ok(lock)
    };
    let open = || fs::OpenOptions::new().read(true).write(true).open(&path).or_fail();
    apart(|| {
        let own = open()?;
        request(&own, libc::F_SETLK).or_fail()?;
        leave()?;
        apart(|| {
            let theirs = open()?;
            let found = request(&theirs, libc::F_GETLK).or_fail()?;
            expect_eq!((found.l_type, found.l_pid), (libc::F_WRLCK as i16, 0));
            // SAFETY: a descriptor and numbers.
            unsafe {
                expect_eq!(Errno::result(libc::fcntl(theirs.as_raw_fd(), libc::F_SETOWN, 1)), Ok(0));
                expect_eq!(Errno::result(libc::fcntl(theirs.as_raw_fd(), libc::F_GETOWN)), Ok(1));
                let nobody = libc::fcntl(theirs.as_raw_fd(), libc::F_SETOWN, 9);
                expect_eq!(Errno::result(nobody), Err(Errno::ESRCH));
            }
            Ok(())
        })
    })
}

fn the_last_number_is_the_readers() -> Outcome {
    let last = || -> Result<String, String> {
        let text = fs::read_to_string("/proc/loadavg").or_fail()?;
        Ok(text.trim_end().rsplit(' ').next().unwrap_or_default().to_owned())
    };
    apart(|| {
        leave()?;
        // By the first namespace's `/proc`.
        apart(|| {
            expect_eq!(last()?, "1");
            apart(|| Ok(()))?;
            expect_eq!(last()?, "2");
            Ok(())
        })
    })
}
