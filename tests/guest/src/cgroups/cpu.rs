//! The controller of processor time.

use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::cgroups::{Hierarchy, put, text, value, wait_for};
use crate::harness::{OrFail, Outcome, spawn_child};
use crate::pi::use_one_cpu;
use crate::{expect, expect_eq};

crate::tests! {
    weights_are_read_and_taken
    limits_on_time_are_read_and_taken
    groups_share_by_weight
    a_group_gets_its_quota_and_no_more
    a_limit_holds_for_those_below_and_those_that_end
    throttled_threads_can_be_killed_and_moved
    a_limit_does_not_count_what_was_used_before
    a_file_goes_with_its_controller_and_its_group
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
    for (written, read) in [
        ("5000", "5000 100000\n"),
        ("20000 50000", "20000 50000\n"),
        ("30000", "30000 50000\n"),
        ("max", "max 50000\n"),
    ] {
        put(group, "cpu.max", written).or_fail()?;
        expect_eq!(text(group, "cpu.max")?, read);
    }
    for name in ["nr_periods", "nr_throttled", "throttled_usec"] {
        value(group, "cpu.stat", name)?;
    }
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

/// The microseconds that a group uses in a second or somewhat more, and those that pass.
fn used_in_a_second(group: &Path) -> Result<(u64, u64), String> {
    let start = std::time::Instant::now();
    let before = value(group, "cpu.stat", "usage_usec")?;
    std::thread::sleep(Duration::from_secs(1));
    let used = value(group, "cpu.stat", "usage_usec")? - before;
    Ok((used, start.elapsed().as_micros() as u64))
}

fn a_group_gets_its_quota_and_no_more() -> Outcome {
    let hierarchy = hierarchy("cpu-quota")?;
    let group = &hierarchy.group;
    put(group, "cpu.max", "20000 100000").or_fail()?;
    let children: Vec<_> = (0..2).map(|_| computing(group)).collect::<Result<_, _>>()?;
    wait_for("a throttled period", || Ok(value(group, "cpu.stat", "nr_throttled")? > 2))?;
    let (used, passed) = used_in_a_second(group)?;
    // A fifth of one processor, up to what is used before somebody looks.
    expect!(used < passed * 2 / 5);
    expect!(value(group, "cpu.stat", "throttled_usec")? > 0);
    expect!(value(group, "cpu.stat", "nr_periods")? >= value(group, "cpu.stat", "nr_throttled")?);
    // And no less: it goes on in each period.
    let before = value(group, "cpu.stat", "usage_usec")?;
    wait_for("the quotas", || Ok(value(group, "cpu.stat", "usage_usec")? > before + 100_000))?;
    // Without the limit they go on.
    put(group, "cpu.max", "max").or_fail()?;
    let before = value(group, "cpu.stat", "usage_usec")?;
    wait_for("more time", || Ok(value(group, "cpu.stat", "usage_usec")? > before + 300_000))?;
    let throttled = value(group, "cpu.stat", "nr_throttled")?;
    std::thread::sleep(Duration::from_millis(300));
    expect_eq!(value(group, "cpu.stat", "nr_throttled")?, throttled);
    children.into_iter().try_for_each(end)
}

fn a_limit_holds_for_those_below_and_those_that_end() -> Outcome {
    let hierarchy = hierarchy("cpu-below")?;
    let inner = hierarchy.inner("inner")?;
    put(&hierarchy.group, "cpu.max", "10000 50000").or_fail()?;
    // Processes that live shorter than the time between two looks.
    let parent = spawn_child(|| {
        if put(&inner, "cgroup.procs", "0").is_err() {
            return 100;
        }
        loop {
            let Ok(child) = spawn_child(|| {
                (0..200_000).for_each(|_| std::hint::spin_loop());
                0
            }) else {
                return 101;
            };
            let _ = waitpid(child, None);
        }
    })?;
    wait_for("throttled periods", || Ok(value(&hierarchy.group, "cpu.stat", "nr_throttled")? > 3))?;
    let (used, passed) = used_in_a_second(&hierarchy.group)?;
    expect!(used < passed * 2 / 5);
    let before = value(&hierarchy.group, "cpu.stat", "usage_usec")?;
    wait_for("the quotas", || Ok(value(&hierarchy.group, "cpu.stat", "usage_usec")? > before + 50_000))?;
    put(&inner, "cgroup.kill", "1").or_fail()?;
    waitpid(parent, None).or_fail()?;
    wait_for("an empty group", || Ok(text(&inner, "cgroup.procs")?.is_empty()))
}

fn throttled_threads_can_be_killed_and_moved() -> Outcome {
    let hierarchy = hierarchy("cpu-throttled")?;
    let group = &hierarchy.group;
    put(group, "cpu.max", "1000 1000000").or_fail()?;
    let (killed, moved) = (computing(group)?, computing(group)?);
    wait_for("a throttled group", || Ok(value(group, "cpu.stat", "throttled_usec")? > 100_000))?;
    end(killed)?;
    put(&hierarchy.root, "cgroup.procs", &moved.to_string()).or_fail()?;
    let path = format!("/proc/{moved}/stat");
    let used = || {
        let text = std::fs::read_to_string(&path).or_fail()?;
        let rest = text.rsplit_once(") ").map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        rest.split_whitespace().nth(11).unwrap_or_default().parse::<u64>().or_fail()
    };
    let before = used()?;
    wait_for("time of the moved process", || Ok(used()? > before + 20))?;
    end(moved)
}

fn a_limit_does_not_count_what_was_used_before() -> Outcome {
    let hierarchy = hierarchy("cpu-history")?;
    put(&hierarchy.group, "cgroup.subtree_control", "+cpu").or_fail()?;
    let (one, two) = (hierarchy.inner("one")?, hierarchy.inner("two")?);
    // One has a limit already, so that somebody looks.
    put(&one, "cpu.max", "10000 100000").or_fail()?;
    let children = [computing(&one)?, computing(&two)?];
    let used = || value(&two, "cpu.stat", "usage_usec");
    wait_for("some time", || Ok(used()? > 1_000_000))?;
    for _ in 0..20 {
        put(&two, "cpu.max", "max").or_fail()?;
        put(&two, "cpu.max", "5000 10000").or_fail()?;
        let before = used()?;
        wait_for("the quotas", || Ok(used()? > before + 15_000))?;
    }
    children.into_iter().try_for_each(end)
}

fn a_file_goes_with_its_controller_and_its_group() -> Outcome {
    use std::io::Read;
    let hierarchy = hierarchy("cpu-gone")?;
    let group = &hierarchy.group;
    let mut file = std::fs::File::open(group.join("cpu.max")).or_fail()?;
    let directory = std::fs::File::open(group).or_fail()?;
    put(&hierarchy.root, "cgroup.subtree_control", "-cpu").or_fail()?;
    let mut text = String::new();
    let error = |result: std::io::Result<usize>| result.err().and_then(|error| error.raw_os_error());
    expect_eq!(error(file.read_to_string(&mut text)), Some(libc::ENODEV));
    std::fs::remove_dir(group).or_fail()?;
    let flags = nix::fcntl::OFlag::O_RDONLY;
    let opened = nix::fcntl::openat(&directory, "cgroup.procs", flags, nix::sys::stat::Mode::empty());
    expect_eq!(opened.map(drop), Err(Errno::ENOENT));
    Ok(())
}
