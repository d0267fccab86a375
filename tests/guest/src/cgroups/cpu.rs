//! The controller of processor time.

use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::cgroups::{Hierarchy, put, text, value, wait_for};
use crate::harness::{OrFail, Outcome, is_heddle, spawn_child};
use crate::pi::use_one_cpu;
use crate::{expect, expect_eq};

crate::tests! {
    weights_are_read_and_taken
    limits_on_time_are_read_and_taken
    groups_share_by_weight
}

/// A group with the controller.
fn hierarchy(name: &str) -> Result<Hierarchy, String> {
    let hierarchy = Hierarchy::new(name)?;
    put(&hierarchy.root, "cgroup.subtree_control", "+cpu").or_fail()?;
    Ok(hierarchy)
}

/// A child that computes, in a group.
fn computing(group: &Path) -> Result<Pid, String> {
    spawn_child(|| {
        if put(group, "cgroup.procs", "0").is_err() {
            return 100;
        }
        loop {
            std::hint::spin_loop();
        }
    })
}

fn end(child: Pid) -> Outcome {
    kill(child, Signal::SIGKILL).or_fail()?;
    waitpid(child, None).or_fail().map(drop)
}

fn weights_are_read_and_taken() -> Outcome {
    let hierarchy = hierarchy("cpu-weights")?;
    let group = &hierarchy.group;
    expect_eq!(text(group, "cpu.weight")?, "100\n");
    expect_eq!(text(group, "cpu.weight.nice")?, "0\n");
    for (written, nice) in [("1", "19\n"), ("10000", "-20\n"), ("50", "3\n"), ("101", "0\n")] {
        put(group, "cpu.weight", written).or_fail()?;
        expect_eq!(text(group, "cpu.weight")?, format!("{written}\n"));
        expect_eq!(text(group, "cpu.weight.nice")?, nice);
    }
    for (written, weight) in [("0", "100\n"), ("-20", "8668\n"), ("19", "1\n"), ("5", "33\n")] {
        put(group, "cpu.weight.nice", written).or_fail()?;
        expect_eq!(text(group, "cpu.weight")?, weight);
    }
    for (file, wrong, error) in [
        ("cpu.weight", "0", Errno::ERANGE),
        ("cpu.weight", "10001", Errno::ERANGE),
        ("cpu.weight", "x", Errno::EINVAL),
        ("cpu.weight.nice", "20", Errno::ERANGE),
        ("cpu.weight.nice", "-21", Errno::ERANGE),
        ("cpu.weight.nice", "x", Errno::EINVAL),
    ] {
        expect_eq!((file, wrong, put(group, file, wrong)), (file, wrong, Err(error)));
    }
    Ok(())
}

fn limits_on_time_are_read_and_taken() -> Outcome {
    let hierarchy = hierarchy("cpu-limits")?;
    let group = &hierarchy.group;
    expect_eq!(text(group, "cpu.max")?, "max 100000\n");
    put(group, "cpu.max", "max").or_fail()?;
    for wrong in ["x", "-1", "999", "5000 999", "5000 1000001"] {
        expect_eq!((wrong, put(group, "cpu.max", wrong)), (wrong, Err(Errno::EINVAL)));
    }
    // Heddle has no limits, and does not say that it had.
    expect_eq!(put(group, "cpu.max", "5000").err(), is_heddle().then_some(Errno::EOPNOTSUPP));
    expect_eq!(text(group, "cpu.max")?, if is_heddle() { "max 100000\n" } else { "5000 100000\n" });
    put(&hierarchy.root, "cgroup.subtree_control", "-cpu").or_fail()?;
    expect!(!group.join("cpu.max").exists());
    Ok(())
}

fn groups_share_by_weight() -> Outcome {
    let hierarchy = hierarchy("cpu-share")?;
    put(&hierarchy.group, "cgroup.subtree_control", "+cpu").or_fail()?;
    let (one, two) = (hierarchy.inner("one")?, hierarchy.inner("two")?);
    put(&two, "cpu.weight", "300").or_fail()?;
    use_one_cpu()?;
    // The first has three times as many threads, which are one group all the same.
    let children: Vec<_> =
        [&one, &one, &one, &two].into_iter().map(|group| computing(group)).collect::<Result<_, _>>()?;
    // Until the fresh budgets of new threads are used up.
    std::thread::sleep(Duration::from_millis(500));
    let used = |group: &Path| value(group, "cpu.stat", "usage_usec");
    let before = (used(&one)?, used(&two)?);
    wait_for("some time", || Ok(used(&two)? > before.1 + 1_500_000))?;
    let (first, second) = (used(&one)? - before.0, used(&two)? - before.1);
    children.into_iter().try_for_each(end)?;
    let ratio = second as f64 / first as f64;
    if (1.8..5.0).contains(&ratio) { Ok(()) } else { Err(format!("{second} to {first} µs: {ratio}")) }
}
