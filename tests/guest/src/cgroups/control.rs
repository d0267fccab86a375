//! Control groups over their processes: limits on threads, freezing, killing, and what is counted.

use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{pause, pipe, read, write};

use crate::cgroups::{Hierarchy, end, put, text, value, wait_for, waiting_in};
use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    threads_are_limited
    a_limit_counts_all_below
    a_group_is_frozen
    a_frozen_wait_goes_on
    a_frozen_process_can_be_killed
    a_group_is_killed
    processor_time_is_the_groups
}

fn threads_are_limited() -> Outcome {
    let hierarchy = Hierarchy::new("limited")?;
    put(&hierarchy.root, "cgroup.subtree_control", "+pids").or_fail()?;
    for wrong in ["-1", "x", "4194305"] {
        expect_eq!((wrong, put(&hierarchy.group, "pids.max", wrong)), (wrong, Err(Errno::EINVAL)));
    }
    put(&hierarchy.group, "pids.max", "5").or_fail()?;
    expect_eq!(text(&hierarchy.group, "pids.max")?, "5\n");
    expect_eq!(text(&hierarchy.group, "pids.current")?, "0\n");
    expect_eq!(fork_until_refused(&hierarchy.group, 20)?, 4);
    expect_eq!(text(&hierarchy.group, "pids.events")?, "max 1\n");
    wait_for("the end of all", || Ok(text(&hierarchy.group, "pids.current")? == "0\n"))?;
    // A move is no fork.
    put(&hierarchy.group, "pids.max", "0").or_fail()?;
    let child = waiting_in(&hierarchy.group)?;
    expect_eq!(text(&hierarchy.group, "pids.current")?, "1\n");
    // A zombie counts until somebody has waited for it.
    kill(child, Signal::SIGKILL).or_fail()?;
    wait_for("the end", || Ok(value(&hierarchy.group, "cgroup.events", "populated")? == 0))?;
    expect_eq!(text(&hierarchy.group, "pids.current")?, "1\n");
    waitpid(child, None).or_fail()?;
    expect_eq!(text(&hierarchy.group, "pids.current")?, "0\n");
    // Threads count.
    put(&hierarchy.group, "pids.max", "3").or_fail()?;
    let child = spawn_child(|| {
        if put(&hierarchy.group, "cgroup.procs", "0").is_err() {
            return 100;
        }
        let builder = || std::thread::Builder::new().spawn(|| std::thread::sleep(Duration::from_millis(300)));
        let threads: Vec<_> = (0..5).map(|_| builder()).collect();
        let count = threads.iter().filter(|thread| thread.is_ok()).count();
        threads.into_iter().flatten().for_each(|thread| drop(thread.join()));
        count as i32
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 2)));
    Ok(())
}

fn a_limit_counts_all_below() -> Outcome {
    let hierarchy = Hierarchy::new("below")?;
    put(&hierarchy.root, "cgroup.subtree_control", "+pids").or_fail()?;
    put(&hierarchy.group, "cgroup.subtree_control", "+pids").or_fail()?;
    let (one, two) = (hierarchy.inner("one")?, hierarchy.inner("two")?);
    put(&hierarchy.group, "pids.max", "4").or_fail()?;
    let child = waiting_in(&one)?;
    expect_eq!(text(&hierarchy.group, "pids.current")?, "1\n");
    expect_eq!(fork_until_refused(&two, 20)?, 2);
    expect_eq!(text(&two, "pids.events")?, "max 1\n");
    end(child)
}

fn a_group_is_frozen() -> Outcome {
    let hierarchy = Hierarchy::new("frozen")?;
    let inner = hierarchy.inner("inner")?;
    let (reader, writer) = pipe().or_fail()?;
    let child = spawn_child(|| {
        loop {
            // A program that never waits.
            if write(&writer, b"x").is_err() {
                return 0;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    })?;
    drop(writer);
    put(&inner, "cgroup.procs", &child.to_string()).or_fail()?;
    put(&hierarchy.group, "cgroup.freeze", "1").or_fail()?;
    expect_eq!(text(&hierarchy.group, "cgroup.freeze")?, "1\n");
    expect_eq!(text(&inner, "cgroup.freeze")?, "0\n");
    wait_for("the freeze", || is_frozen(&hierarchy.group))?;
    expect!(is_frozen(&inner)?);
    // Nothing comes any more.
    let available = || -> Result<i32, String> {
        let mut count = 0;
        // SAFETY: the count is an int.
        Errno::result(unsafe { libc::ioctl(reader.as_raw_fd(), libc::FIONREAD, &raw mut count) })
            .or_fail()?;
        Ok(count)
    };
    let before = available()?;
    std::thread::sleep(Duration::from_millis(100));
    expect_eq!(available()?, before);
    // A signal waits, and so does a child that comes into the group.
    let late = spawn_child(|| {
        loop {
            pause();
        }
    })?;
    put(&inner, "cgroup.procs", &late.to_string()).or_fail()?;
    wait_for("the freeze of the other", || is_frozen(&inner))?;
    put(&hierarchy.root, "cgroup.procs", &late.to_string()).or_fail()?;
    end(late)?;
    put(&hierarchy.group, "cgroup.freeze", "0").or_fail()?;
    wait_for("the thaw", || Ok(!is_frozen(&inner)?))?;
    wait_for("more", || Ok(available()? > before))?;
    drop(reader);
    end(child)
}

fn a_frozen_wait_goes_on() -> Outcome {
    let hierarchy = Hierarchy::new("wait")?;
    let (reader, writer) = pipe().or_fail()?;
    let child = spawn_child(|| {
        let mut byte = [0];
        match read(&reader, &mut byte) {
            Ok(1) => i32::from(byte[0]),
            other => {
                println!("{other:?}");
                100
            }
        }
    })?;
    put(&hierarchy.group, "cgroup.procs", &child.to_string()).or_fail()?;
    put(&hierarchy.group, "cgroup.freeze", "1").or_fail()?;
    wait_for("the freeze", || is_frozen(&hierarchy.group))?;
    write(&writer, &[42]).or_fail()?;
    std::thread::sleep(Duration::from_millis(50));
    expect_eq!(waitpid(child, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive));
    put(&hierarchy.group, "cgroup.freeze", "0").or_fail()?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 42)));
    Ok(())
}

fn a_frozen_process_can_be_killed() -> Outcome {
    let hierarchy = Hierarchy::new("killed")?;
    let child = waiting_in(&hierarchy.group)?;
    put(&hierarchy.group, "cgroup.freeze", "1").or_fail()?;
    wait_for("the freeze", || is_frozen(&hierarchy.group))?;
    kill(child, Signal::SIGTERM).or_fail()?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Signaled(child, Signal::SIGTERM, false)));
    // A group that nobody is in is frozen when it is told to.
    wait_for("an empty frozen group", || is_frozen(&hierarchy.group))
}

fn a_group_is_killed() -> Outcome {
    let hierarchy = Hierarchy::new("kill")?;
    let inner = hierarchy.inner("inner")?;
    let (one, two) = (waiting_in(&hierarchy.group)?, waiting_in(&inner)?);
    put(&hierarchy.group, "cgroup.kill", "1").or_fail()?;
    for child in [one, two] {
        expect_eq!(waitpid(child, None), Ok(WaitStatus::Signaled(child, Signal::SIGKILL, false)));
    }
    expect_eq!(value(&hierarchy.group, "cgroup.events", "populated")?, 0);
    Ok(())
}

fn processor_time_is_the_groups() -> Outcome {
    let hierarchy = Hierarchy::new("time")?;
    let inner = hierarchy.inner("inner")?;
    expect_eq!(value(&inner, "cpu.stat", "usage_usec")?, 0);
    let child = spawn_child(|| {
        if put(&inner, "cgroup.procs", "0").is_err() {
            return 1;
        }
        let mut sum = 0_u64;
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(60) {
            sum = black_box(sum.wrapping_mul(3) + 1);
        }
        0
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    let used = value(&inner, "cpu.stat", "usage_usec")?;
    expect!(used > 0);
    let parts = value(&inner, "cpu.stat", "user_usec")? + value(&inner, "cpu.stat", "system_usec")?;
    expect!(parts.abs_diff(used) <= 2);
    expect!(value(&hierarchy.group, "cpu.stat", "usage_usec")? >= used);
    // Time that was used before stays where it was used.
    let other = hierarchy.inner("other")?;
    let child = waiting_in(&other)?;
    end(child)?;
    expect!(value(&other, "cpu.stat", "usage_usec")? < value(&hierarchy.group, "cpu.stat", "usage_usec")?);
    Ok(())
}

/// Starts children in a group until one is refused; returns how many there were.
fn fork_until_refused(group: &Path, most: usize) -> Result<usize, String> {
    let (reader, writer) = pipe().or_fail()?;
    let starter = spawn_child(|| {
        if put(group, "cgroup.procs", "0").is_err() {
            return 100;
        }
        let mut children = Vec::new();
        let mut refused = None;
        while children.len() < most && refused.is_none() {
            // SAFETY: the process has one thread.
            match unsafe { nix::unistd::fork() } {
                Ok(nix::unistd::ForkResult::Child) => {
                    let _ = read(&reader, &mut [0]);
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(0) }
                }
                Ok(nix::unistd::ForkResult::Parent { child }) => children.push(child),
                Err(error) => refused = Some(error),
            }
        }
        for child in &children {
            let _ = kill(*child, Signal::SIGKILL);
            let _ = waitpid(*child, None);
        }
        if refused.is_some_and(|error| error != Errno::EAGAIN) { 101 } else { children.len() as i32 }
    })?;
    drop(writer);
    match waitpid(starter, None).or_fail()? {
        WaitStatus::Exited(_, count @ 0..100) => Ok(count as usize),
        other => Err(format!("{other:?}")),
    }
}

fn is_frozen(group: &Path) -> Result<bool, String> {
    Ok(value(group, "cgroup.events", "frozen")? == 1)
}
