//! The memory controller of control groups.

use std::path::Path;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, pause, pipe, read, write};

use crate::cgroups::{Hierarchy, end, put, text, value, wait_for, waiting_in};
use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    memory_of_a_group_is_counted
    a_group_that_has_too_much_loses_a_process
    a_limit_holds_for_all_below
    a_group_ends_as_a_whole
    copies_of_a_parents_pages_count
    limits_of_memory_are_read_and_taken
}

const MIB: usize = 1 << 20;

fn number(group: &Path, file: &str) -> Result<usize, String> {
    text(group, file)?.trim().parse().or_fail()
}

/// A group with the controller.
fn hierarchy(name: &str) -> Result<Hierarchy, String> {
    let hierarchy = Hierarchy::new(name)?;
    put(&hierarchy.root, "cgroup.subtree_control", "+memory").or_fail()?;
    Ok(hierarchy)
}

/// A child in a group that fills so much memory, tells so, and waits.
fn filling(group: &Path, bytes: usize) -> Result<(Pid, std::os::fd::OwnedFd), String> {
    let (reader, writer) = pipe().or_fail()?;
    let child = spawn_child(|| {
        if put(group, "cgroup.procs", "0").is_err() {
            return 100;
        }
        let filled = std::hint::black_box(vec![1u8; bytes]);
        let _ = write(&writer, &filled[..1]);
        loop {
            pause();
        }
    })?;
    Ok((child, reader))
}

fn is_filled(reader: &std::os::fd::OwnedFd) -> bool {
    read(reader, &mut [0]) == Ok(1)
}

fn memory_of_a_group_is_counted() -> Outcome {
    let hierarchy = hierarchy("memory-counted")?;
    expect_eq!(number(&hierarchy.group, "memory.current")?, 0);
    let (child, reader) = filling(&hierarchy.group, 24 * MIB)?;
    expect!(is_filled(&reader));
    let current = number(&hierarchy.group, "memory.current")?;
    expect!(current >= 23 * MIB && current < 40 * MIB);
    expect!(value(&hierarchy.group, "memory.stat", "anon")? as usize >= 23 * MIB);
    end(child)?;
    wait_for("the memory", || Ok(number(&hierarchy.group, "memory.current")? < MIB))
}

fn a_group_that_has_too_much_loses_a_process() -> Outcome {
    let hierarchy = hierarchy("memory-max")?;
    put(&hierarchy.group, "memory.max", "24M").or_fail()?;
    let _ = put(&hierarchy.group, "memory.swap.max", "0");
    let small = waiting_in(&hierarchy.group)?;
    let (child, reader) = filling(&hierarchy.group, 64 * MIB)?;
    expect!(!is_filled(&reader) || value(&hierarchy.group, "memory.events", "oom_kill")? > 0);
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Signaled(child, Signal::SIGKILL, false)));
    expect_eq!(value(&hierarchy.group, "memory.events", "oom_kill")?, 1);
    expect!(value(&hierarchy.group, "memory.events", "max")? > 0);
    expect!(value(&hierarchy.group, "memory.events", "oom")? > 0);
    expect_eq!(value(&hierarchy.group, "memory.events", "oom_group_kill")?, 0);
    // The one with less is left.
    expect_eq!(kill(small, None), Ok(()));
    end(small)
}

fn a_limit_holds_for_all_below() -> Outcome {
    let hierarchy = hierarchy("memory-below")?;
    put(&hierarchy.group, "cgroup.subtree_control", "+memory").or_fail()?;
    let (one, two) = (hierarchy.inner("one")?, hierarchy.inner("two")?);
    put(&hierarchy.group, "memory.max", "40M").or_fail()?;
    let _ = put(&hierarchy.group, "memory.swap.max", "0");
    let (first, reader) = filling(&one, 16 * MIB)?;
    expect!(is_filled(&reader));
    let (second, reader) = filling(&two, 32 * MIB)?;
    drop(reader);
    expect_eq!(waitpid(second, None), Ok(WaitStatus::Signaled(second, Signal::SIGKILL, false)));
    expect_eq!(value(&two, "memory.events", "oom_kill")?, 1);
    expect_eq!(value(&one, "memory.events", "oom_kill")?, 0);
    expect_eq!(value(&hierarchy.group, "memory.events", "oom_kill")?, 1);
    expect_eq!(value(&hierarchy.group, "memory.events.local", "oom_kill")?, 0);
    end(first)
}

fn a_group_ends_as_a_whole() -> Outcome {
    let hierarchy = hierarchy("memory-whole")?;
    expect_eq!(put(&hierarchy.group, "memory.oom.group", "2"), Err(Errno::EINVAL));
    put(&hierarchy.group, "memory.oom.group", "1").or_fail()?;
    put(&hierarchy.group, "memory.max", "24M").or_fail()?;
    let _ = put(&hierarchy.group, "memory.swap.max", "0");
    let other = waiting_in(&hierarchy.group)?;
    let (child, _reader) = filling(&hierarchy.group, 64 * MIB)?;
    for child in [child, other] {
        expect_eq!(waitpid(child, None), Ok(WaitStatus::Signaled(child, Signal::SIGKILL, false)));
    }
    // Linux counts the one that it has chosen twice.
    expect!(value(&hierarchy.group, "memory.events", "oom_kill")? >= 2);
    expect_eq!(value(&hierarchy.group, "memory.events", "oom_group_kill")?, 1);
    Ok(())
}

fn copies_of_a_parents_pages_count() -> Outcome {
    let hierarchy = hierarchy("memory-copies")?;
    put(&hierarchy.group, "memory.max", "48M").or_fail()?;
    let _ = put(&hierarchy.group, "memory.swap.max", "0");
    // The parent, whose pages two children copy, must not keep all three; a dead child with the most points is in
    // nobody's way.
    let child = spawn_child(|| {
        if put(&hierarchy.group, "cgroup.procs", "0").is_err() {
            return 100;
        }
        let dead = spawn_child(|| i32::from(std::fs::write("/proc/self/oom_score_adj", "1000").is_err()));
        let mut filled = std::hint::black_box(vec![1u8; 20 * MIB]);
        let copies: Vec<_> = (0..2)
            .filter_map(|_| {
                spawn_child(|| {
                    filled.iter_mut().step_by(4096).for_each(|byte| *byte = 2);
                    loop {
                        pause();
                    }
                })
                .ok()
            })
            .collect();
        let _ = wait_for("a kill", || Ok(value(&hierarchy.group, "memory.events", "oom_kill")? > 0));
        let has_killed = copies.iter().any(|&child| {
            waitpid(child, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status.pid() == Some(child))
        });
        copies.into_iter().for_each(|child| drop(end(child)));
        i32::from(dead.is_err() || !has_killed) * 102
    })?;
    let status = waitpid(child, None);
    // The one that ends may be the parent of the others, which has as much as they.
    let killed = WaitStatus::Signaled(child, Signal::SIGKILL, false);
    expect!(status == Ok(WaitStatus::Exited(child, 0)) || status == Ok(killed));
    put(&hierarchy.group, "cgroup.kill", "1").or_fail()?;
    // A group with processes is not removed at the end of the test.
    wait_for("the end of all", || Ok(value(&hierarchy.group, "cgroup.events", "populated")? == 0))
}

fn limits_of_memory_are_read_and_taken() -> Outcome {
    let hierarchy = hierarchy("memory-limits")?;
    let group = &hierarchy.group;
    expect_eq!(text(group, "memory.max")?, "max\n");
    for (written, shown) in [
        ("1048576", "1048576\n"),
        ("5000", "4096\n"),
        ("3k", "0\n"),
        ("2M", "2097152\n"),
        ("1G\n", "1073741824\n"),
        ("max", "max\n"),
    ] {
        put(group, "memory.max", written).or_fail()?;
        expect_eq!(text(group, "memory.max")?, shown);
    }
    for wrong in ["x", "-1", "1Q", ""] {
        let refused = put(group, "memory.max", wrong);
        expect!(refused == Err(Errno::EINVAL) || wrong.is_empty());
    }
    put(group, "memory.max", "8M").or_fail()?;
    // A limit goes with its controller.
    put(&hierarchy.root, "cgroup.subtree_control", "-memory").or_fail()?;
    expect!(!group.join("memory.max").exists());
    put(&hierarchy.root, "cgroup.subtree_control", "+memory").or_fail()?;
    expect_eq!(text(group, "memory.max")?, "max\n");
    Ok(())
}
