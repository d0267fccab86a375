//! Control groups of version 2, cgroups(7): the hierarchy, its files, and cgroup namespaces.

#![allow(unsafe_code)] // clone3 has no safe form.

pub mod control;
pub mod cpu;
pub mod memory;

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{Signal, kill};
use nix::sys::statfs::statfs;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, getpid, pause, pipe, read, write};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::mounts::namespace::apart;
use crate::mounts::{Stage, mount, umount};
use crate::{expect, expect_eq};

crate::tests! {
    a_group_is_a_directory_with_files
    groups_are_made_and_removed
    names_in_a_group_cannot_be_made_otherwise
    a_process_moves_with_its_number
    a_process_is_seen_where_it_is
    moves_that_are_refused
    a_populated_group_stays
    events_tell_of_the_last_process
    controllers_are_passed_down
    controllers_and_processes_exclude_each_other
    levels_and_groups_are_limited
    a_namespace_begins_at_its_makers_group
    a_child_starts_in_a_group
    a_group_can_be_delegated
    threads_are_listed
}

/// How long something may take that another process does.
const PATIENCE: Duration = Duration::from_secs(20);

/// The hierarchy, mounted for one test, and a group in it.
struct Hierarchy {
    stage: Stage,
    root: PathBuf,
    group: PathBuf,
}

impl Hierarchy {
    fn new(name: &str) -> Result<Self, String> {
        let stage = Stage::new(name)?;
        let root = stage.directory("groups")?;
        mount(Some("none"), &root, Some("cgroup2"), 0).or_fail()?;
        let group = root.join(format!("heddle-{name}-{}", getpid()));
        fs::create_dir(&group).or_fail()?;
        Ok(Self { stage, root, group })
    }

    /// The group's path in the hierarchy.
    fn name(&self) -> String {
        format!("/{}", self.group.file_name().unwrap_or_default().to_string_lossy())
    }

    /// A group in the group.
    fn inner(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.group.join(name);
        fs::create_dir(&path).or_fail()?;
        Ok(path)
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        let _ = fs::write(self.root.join("cgroup.procs"), "0");
        remove_all(&self.group);
    }
}

fn remove_all(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_all(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}

fn text(group: &Path, file: &str) -> Result<String, String> {
    fs::read_to_string(group.join(file)).or_fail()
}

/// Writes to a file of a group; the error is the call's.
fn put(group: &Path, file: &str, text: &str) -> Result<(), Errno> {
    let error = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(0));
    let mut file = File::options().write(true).open(group.join(file)).map_err(error)?;
    file.write_all(text.as_bytes()).map_err(error)
}

fn error_of<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw)
}

/// A line of a file with keys and values.
fn value(group: &Path, file: &str, key: &str) -> Result<u64, String> {
    let text = text(group, file)?;
    let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    found.and_then(|value| value.parse().ok()).ok_or_else(|| format!("{key} is not in {text:?}"))
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> Result<bool, String>) -> Outcome {
    let start = Instant::now();
    while !is_so()? {
        if start.elapsed() > PATIENCE {
            return Err(format!("waited in vain for {what}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A child that waits, in a group.
fn waiting_in(group: &Path) -> Result<Pid, String> {
    let child = spawn_child(|| {
        loop {
            pause();
        }
    })?;
    put(group, "cgroup.procs", &child.to_string()).or_fail()?;
    Ok(child)
}

fn end(child: Pid) -> Outcome {
    kill(child, Signal::SIGKILL).or_fail()?;
    waitpid(child, None).or_fail()?;
    Ok(())
}

fn a_group_is_a_directory_with_files() -> Outcome {
    let hierarchy = Hierarchy::new("files")?;
    expect_eq!(statfs(&hierarchy.root).or_fail()?.filesystem_type().0, 0x6367_7270);
    let mode = |name: &str| fs::metadata(hierarchy.group.join(name)).map(|found| found.mode()).or_fail();
    expect_eq!(mode("")? & 0o7777, 0o755);
    for (name, permissions) in [
        ("cgroup.controllers", 0o444),
        ("cgroup.events", 0o444),
        ("cgroup.freeze", 0o644),
        ("cgroup.kill", 0o200),
        ("cgroup.max.depth", 0o644),
        ("cgroup.max.descendants", 0o644),
        ("cgroup.procs", 0o644),
        ("cgroup.stat", 0o444),
        ("cgroup.subtree_control", 0o644),
        ("cgroup.threads", 0o644),
        ("cgroup.type", 0o644),
        ("cpu.stat", 0o444),
    ] {
        expect_eq!((name, mode(name)?), (name, libc::S_IFREG | permissions));
    }
    for name in ["cgroup.type", "cgroup.events", "cgroup.freeze", "cgroup.kill", "pids.max"] {
        expect!(!hierarchy.root.join(name).exists());
    }
    expect_eq!(text(&hierarchy.group, "cgroup.type")?, "domain\n");
    expect_eq!(text(&hierarchy.group, "cgroup.events")?, "populated 0\nfrozen 0\n");
    expect_eq!(text(&hierarchy.group, "cgroup.procs")?, "");
    expect_eq!(text(&hierarchy.group, "cgroup.freeze")?, "0\n");
    expect_eq!(text(&hierarchy.group, "cgroup.max.depth")?, "max\n");
    expect!(text(&hierarchy.root, "cgroup.controllers")?.split_whitespace().any(|name| name == "pids"));
    // Root may open what nobody can read or write.
    expect_eq!(error_of(fs::read(hierarchy.group.join("cgroup.kill"))), Some(Errno::EINVAL));
    expect_eq!(put(&hierarchy.group, "cgroup.events", "1"), Err(Errno::EINVAL));
    let listed: Vec<_> =
        fs::read_dir(&hierarchy.group).or_fail()?.flatten().map(|entry| entry.file_name()).collect();
    expect!(listed.iter().any(|name| name == "cgroup.procs"));
    Ok(())
}

fn groups_are_made_and_removed() -> Outcome {
    let hierarchy = Hierarchy::new("made")?;
    let inner = hierarchy.inner("inner")?;
    expect_eq!(value(&hierarchy.group, "cgroup.stat", "nr_descendants")?, 1);
    expect_eq!(error_of(fs::create_dir(&inner)), Some(Errno::EEXIST));
    expect_eq!(error_of(fs::create_dir(inner.join("cgroup.procs"))), Some(Errno::EEXIST));
    expect_eq!(error_of(fs::create_dir(inner.join("a\nb"))), Some(Errno::EINVAL));
    // Not `ENOTEMPTY`, as elsewhere.
    expect_eq!(error_of(fs::remove_dir(&hierarchy.group)), Some(Errno::EBUSY));
    let file = File::open(inner.join("cgroup.procs")).or_fail()?;
    std::env::set_current_dir(&inner).or_fail()?;
    fs::remove_dir(&inner).or_fail()?;
    expect_eq!(value(&hierarchy.group, "cgroup.stat", "nr_descendants")?, 0);
    expect_eq!(fs::read_dir("/proc/self/cwd").or_fail()?.count(), 0);
    expect_eq!(error_of((&file).read(&mut [0; 16])), Some(Errno::ENODEV));
    std::env::set_current_dir("/").or_fail()?;
    expect_eq!(error_of(fs::metadata(&inner)), Some(Errno::ENOENT));
    for count in 0..40 {
        hierarchy.inner(&format!("group-{count}"))?;
    }
    let directories = fs::read_dir(&hierarchy.group).or_fail()?.flatten();
    expect_eq!(directories.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).count(), 40);
    Ok(())
}

fn names_in_a_group_cannot_be_made_otherwise() -> Outcome {
    let hierarchy = Hierarchy::new("names")?;
    let inner = hierarchy.inner("inner")?;
    expect_eq!(error_of(File::create(hierarchy.group.join("new"))), Some(Errno::EACCES));
    expect_eq!(error_of(std::os::unix::fs::symlink("a", hierarchy.group.join("new"))), Some(Errno::EPERM));
    expect_eq!(error_of(fs::remove_file(hierarchy.group.join("cgroup.procs"))), Some(Errno::EPERM));
    expect_eq!(error_of(fs::rename(&inner, hierarchy.group.join("other"))), Some(Errno::EPERM));
    Ok(())
}

fn a_process_moves_with_its_number() -> Outcome {
    let hierarchy = Hierarchy::new("moves")?;
    let child = waiting_in(&hierarchy.group)?;
    expect_eq!(text(&hierarchy.group, "cgroup.procs")?, format!("{child}\n"));
    expect_eq!(text(&hierarchy.group, "cgroup.events")?, "populated 1\nfrozen 0\n");
    let elsewhere = hierarchy.inner("elsewhere")?;
    put(&elsewhere, "cgroup.procs", &format!("{child}\n")).or_fail()?;
    expect_eq!(text(&hierarchy.group, "cgroup.procs")?, "");
    expect_eq!(text(&elsewhere, "cgroup.procs")?, format!("{child}\n"));
    // The group above is populated by it.
    expect_eq!(value(&hierarchy.group, "cgroup.events", "populated")?, 1);
    end(child)?;
    expect_eq!(value(&hierarchy.group, "cgroup.events", "populated")?, 0);
    // A zero is the writer, whose children start where it is.
    put(&elsewhere, "cgroup.procs", "0").or_fail()?;
    let (reader, writer) = pipe().or_fail()?;
    let child = spawn_child(|| i32::from(read(&reader, &mut [0]).is_err()))?;
    let both = text(&elsewhere, "cgroup.procs")?;
    put(&hierarchy.root, "cgroup.procs", "0").or_fail()?;
    write(&writer, b"x").or_fail()?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    let mut found: Vec<_> = both.lines().map(str::to_owned).collect();
    found.sort_unstable();
    let mut wanted = vec![getpid().to_string(), child.to_string()];
    wanted.sort_unstable();
    expect_eq!(found, wanted);
    Ok(())
}

fn a_process_is_seen_where_it_is() -> Outcome {
    let hierarchy = Hierarchy::new("seen")?;
    let inner = hierarchy.inner("inner")?;
    let child = waiting_in(&inner)?;
    let path = format!("/proc/{child}/cgroup");
    let line = |path: &str| -> Result<String, String> {
        let text = fs::read_to_string(path).or_fail()?;
        text.lines().find(|line| line.starts_with("0::")).map(str::to_owned).ok_or(text)
    };
    expect_eq!(line(&path)?, format!("0::{}/inner", hierarchy.name()));
    // A zombie keeps the group that is removed under it.
    kill(child, Signal::SIGKILL).or_fail()?;
    wait_for("the end", || Ok(value(&inner, "cgroup.events", "populated")? == 0))?;
    fs::remove_dir(&inner).or_fail()?;
    expect_eq!(line(&path)?, format!("0::{}/inner (deleted)", hierarchy.name()));
    waitpid(child, None).or_fail()?;
    expect!(fs::read_to_string("/proc/cgroups").or_fail()?.contains("\npids\t"));
    expect!(fs::read_to_string("/proc/filesystems").or_fail()?.contains("nodev\tcgroup2\n"));
    Ok(())
}

fn moves_that_are_refused() -> Outcome {
    let hierarchy = Hierarchy::new("refused")?;
    for (what, error) in
        [("-1", Errno::EINVAL), ("x", Errno::EINVAL), (" ", Errno::EINVAL), ("4194303", Errno::ESRCH)]
    {
        expect_eq!((what, put(&hierarchy.group, "cgroup.procs", what)), (what, Err(error)));
    }
    for (file, what, error) in [
        ("cgroup.freeze", "2", Errno::ERANGE),
        ("cgroup.freeze", "x", Errno::EINVAL),
        ("cgroup.kill", "0", Errno::ERANGE),
        ("cgroup.type", "domain", Errno::EINVAL),
        ("cgroup.max.depth", "-1", Errno::ERANGE),
        ("cgroup.max.depth", "x", Errno::EINVAL),
        ("cgroup.subtree_control", "pids", Errno::EINVAL),
        ("cgroup.subtree_control", "+none", Errno::EINVAL),
    ] {
        expect_eq!((file, what, put(&hierarchy.group, file, what)), (file, what, Err(error)));
    }
    let child = spawn_child(|| {
        pause();
        0
    })?;
    // A thread alone leaves its process only within one domain.
    expect_eq!(put(&hierarchy.group, "cgroup.threads", &child.to_string()), Err(Errno::EOPNOTSUPP));
    end(child)
}

fn a_populated_group_stays() -> Outcome {
    let hierarchy = Hierarchy::new("stays")?;
    let inner = hierarchy.inner("inner")?;
    let child = waiting_in(&inner)?;
    expect_eq!(error_of(fs::remove_dir(&inner)), Some(Errno::EBUSY));
    end(child)?;
    fs::remove_dir(&inner).or_fail()
}

fn events_tell_of_the_last_process() -> Outcome {
    let hierarchy = Hierarchy::new("events")?;
    let path = hierarchy.group.join("cgroup.events");
    let mut events = File::open(&path).or_fail()?;
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK).or_fail()?;
    inotify.add_watch(&path, AddWatchFlags::IN_MODIFY).or_fail()?;
    let mut content = String::new();
    events.read_to_string(&mut content).or_fail()?;
    let told = |events: &File, patience: u16| -> Result<bool, String> {
        let mut set = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
        poll(&mut set, PollTimeout::from(patience)).or_fail()?;
        Ok(set[0].revents().is_some_and(|seen| seen.contains(PollFlags::POLLPRI)))
    };
    expect!(!told(&events, 0)?);
    let child = waiting_in(&hierarchy.group)?;
    expect!(told(&events, 20_000)?);
    events.rewind().or_fail()?;
    content.clear();
    events.read_to_string(&mut content).or_fail()?;
    expect_eq!(content, "populated 1\nfrozen 0\n");
    expect!(!told(&events, 0)?);
    end(child)?;
    expect!(told(&events, 20_000)?);
    wait_for("inotify", || Ok(inotify.read_events().is_ok_and(|events| !events.is_empty())))?;
    Ok(())
}

fn controllers_are_passed_down() -> Outcome {
    let hierarchy = Hierarchy::new("passed")?;
    let inner = hierarchy.inner("inner")?;
    put(&hierarchy.root, "cgroup.subtree_control", "+pids").or_fail()?;
    expect!(text(&hierarchy.group, "cgroup.controllers")?.contains("pids"));
    expect_eq!(text(&hierarchy.group, "pids.max")?, "max\n");
    expect_eq!(text(&hierarchy.group, "cgroup.subtree_control")?, "");
    expect!(!inner.join("pids.max").exists());
    // The group in it can't enable what it hasn't got.
    expect_eq!(put(&inner, "cgroup.subtree_control", "+pids"), Err(Errno::ENOENT));
    put(&hierarchy.group, "cgroup.subtree_control", "+pids").or_fail()?;
    expect_eq!(text(&hierarchy.group, "cgroup.subtree_control")?, "pids\n");
    expect!(inner.join("pids.max").exists());
    put(&inner, "cgroup.subtree_control", "+pids").or_fail()?;
    expect_eq!(put(&hierarchy.group, "cgroup.subtree_control", "-pids"), Err(Errno::EBUSY));
    put(&inner, "cgroup.subtree_control", "-pids").or_fail()?;
    put(&inner, "pids.max", "7").or_fail()?;
    put(&hierarchy.group, "cgroup.subtree_control", "-pids").or_fail()?;
    expect!(!inner.join("pids.max").exists());
    // The limit went with its controller.
    put(&hierarchy.group, "cgroup.subtree_control", "+pids").or_fail()?;
    expect_eq!(text(&inner, "pids.max")?, "max\n");
    Ok(())
}

fn controllers_and_processes_exclude_each_other() -> Outcome {
    let hierarchy = Hierarchy::new("exclude")?;
    put(&hierarchy.root, "cgroup.subtree_control", "+pids").or_fail()?;
    let inner = hierarchy.inner("inner")?;
    let child = waiting_in(&hierarchy.group)?;
    // The controller of threads goes with processes, in a domain of threads.
    put(&hierarchy.group, "cgroup.subtree_control", "+pids").or_fail()?;
    expect_eq!(text(&hierarchy.group, "cgroup.type")?, "domain threaded\n");
    expect_eq!(text(&inner, "cgroup.type")?, "domain invalid\n");
    expect_eq!(put(&inner, "cgroup.procs", &child.to_string()), Err(Errno::EOPNOTSUPP));
    put(&hierarchy.root, "cgroup.procs", &child.to_string()).or_fail()?;
    expect_eq!(text(&hierarchy.group, "cgroup.type")?, "domain\n");
    put(&inner, "cgroup.procs", &child.to_string()).or_fail()?;
    // Now processes are in the groups in it.
    let other = spawn_child(|| {
        pause();
        0
    })?;
    expect_eq!(put(&hierarchy.group, "cgroup.procs", &other.to_string()), Err(Errno::EBUSY));
    end(other)?;
    end(child)
}

fn levels_and_groups_are_limited() -> Outcome {
    let hierarchy = Hierarchy::new("levels")?;
    put(&hierarchy.group, "cgroup.max.depth", "1").or_fail()?;
    let inner = hierarchy.inner("inner")?;
    expect_eq!(error_of(fs::create_dir(inner.join("deep"))), Some(Errno::EAGAIN));
    put(&hierarchy.group, "cgroup.max.depth", "max").or_fail()?;
    put(&hierarchy.group, "cgroup.max.descendants", "2").or_fail()?;
    fs::create_dir(inner.join("deep")).or_fail()?;
    expect_eq!(error_of(fs::create_dir(inner.join("more"))), Some(Errno::EAGAIN));
    Ok(())
}

fn own_line() -> Result<String, String> {
    let text = fs::read_to_string("/proc/self/cgroup").or_fail()?;
    text.lines().find(|line| line.starts_with("0::")).map(str::to_owned).ok_or(text)
}

fn a_namespace_begins_at_its_makers_group() -> Outcome {
    let hierarchy = Hierarchy::new("namespace")?;
    let inner = hierarchy.inner("inner")?;
    let other = hierarchy.inner("other")?;
    let stranger = waiting_in(&other)?;
    apart(|| {
        let first = File::open("/proc/self/ns/cgroup").or_fail()?;
        put(&inner, "cgroup.procs", "0").or_fail()?;
        unshare(CloneFlags::CLONE_NEWCGROUP).or_fail()?;
        expect_eq!(own_line()?, "0::/");
        let theirs = fs::read_to_string(format!("/proc/{stranger}/cgroup")).or_fail()?;
        expect!(theirs.ends_with("0::/../other\n"));
        // A mount shows the namespace's root.
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        let own = hierarchy.stage.directory("own")?;
        mount(Some("none"), &own, Some("cgroup2"), 0).or_fail()?;
        expect_eq!(text(&own, "cgroup.procs")?, format!("{}\n", getpid()));
        fs::create_dir(own.join("below")).or_fail()?;
        expect!(inner.join("below").exists());
        put(&own.join("below"), "cgroup.procs", "0").or_fail()?;
        expect_eq!(own_line()?, "0::/below");
        setns(&first, CloneFlags::CLONE_NEWCGROUP).or_fail()?;
        expect_eq!(own_line()?, format!("0::{}/inner/below", hierarchy.name()));
        put(&hierarchy.root, "cgroup.procs", "0").or_fail()?;
        fs::remove_dir(own.join("below")).or_fail()?;
        umount(&own, 0).or_fail()
    })?;
    end(stranger)
}

#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    unused: [u64; 3],
    exit_signal: u64,
    others: [u64; 5],
    group: u64,
}

const INTO_GROUP: u64 = 0x2_0000_0000;

fn clone_into(descriptor: u64, flags: u64, size: usize) -> Result<Pid, Errno> {
    let arguments = CloneArguments {
        flags: INTO_GROUP | flags,
        exit_signal: libc::SIGCHLD as u64,
        group: descriptor,
        ..CloneArguments::default()
    };
    // SAFETY: a copy of the space, as fork.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size) };
    match Errno::result(pid)? {
        0 => {
            let is_there = own_line().is_ok_and(|line| line.ends_with("/inner"));
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_there)) }
        }
        pid => Ok(Pid::from_raw(pid as i32)),
    }
}

fn a_child_starts_in_a_group() -> Outcome {
    let hierarchy = Hierarchy::new("into")?;
    let inner = hierarchy.inner("inner")?;
    let whole = size_of::<CloneArguments>();
    let directory = File::open(&inner).or_fail()?;
    let number = directory.as_raw_fd() as u64;
    let child = clone_into(number, 0, whole).or_fail()?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    expect!(own_line()? != format!("0::{}/inner", hierarchy.name()));
    expect_eq!(clone_into(number, 0, whole - 8), Err(Errno::EINVAL));
    expect_eq!(clone_into(u64::MAX, 0, whole), Err(Errno::EINVAL));
    let other = File::open("/").or_fail()?;
    expect_eq!(clone_into(other.as_raw_fd() as u64, 0, whole), Err(Errno::EBADF));
    fs::remove_dir(&inner).or_fail()?;
    expect_eq!(clone_into(number, 0, whole), Err(Errno::ENOENT));
    Ok(())
}

const NOBODY: u32 = 65534;

fn a_group_can_be_delegated() -> Outcome {
    let hierarchy = Hierarchy::new("delegated")?;
    let (one, two) = (hierarchy.inner("one")?, hierarchy.inner("two")?);
    let (group, root) = (hierarchy.group.clone(), hierarchy.root.clone());
    for path in [group.clone(), group.join("cgroup.procs"), one.clone(), one.join("cgroup.procs")] {
        std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).or_fail()?;
    }
    expect_eq!(fs::metadata(one.join("cgroup.procs")).or_fail()?.uid(), NOBODY);
    fs::set_permissions(one.join("cgroup.events"), fs::Permissions::from_mode(0o400)).or_fail()?;
    expect_eq!(fs::metadata(one.join("cgroup.events")).or_fail()?.mode() & 0o777, 0o400);
    // Root may write in its stead from here on, since the mount namespace's directory is its own.
    apart(|| {
        put(&one, "cgroup.procs", "0").or_fail()?;
        nix::unistd::setresuid(NOBODY.into(), NOBODY.into(), NOBODY.into()).or_fail()?;
        let new = group.join("new");
        fs::create_dir(&new).or_fail()?;
        expect_eq!(fs::metadata(new.join("cgroup.procs")).or_fail()?.uid(), NOBODY);
        put(&new, "cgroup.procs", "0").or_fail()?;
        // Those of others can't be written, nor left to.
        expect_eq!(put(&two, "cgroup.procs", "0"), Err(Errno::EACCES));
        expect_eq!(put(&root, "cgroup.procs", "0"), Err(Errno::EACCES));
        put(&one, "cgroup.procs", "0").or_fail()?;
        fs::remove_dir(&new).or_fail()
    })
}

fn threads_are_listed() -> Outcome {
    let hierarchy = Hierarchy::new("threads")?;
    let (reader, writer) = pipe().or_fail()?;
    let child = spawn_child(|| {
        let threads: Vec<_> =
            (0..3).map(|_| std::thread::spawn(|| std::thread::sleep(Duration::from_secs(60)))).collect();
        let _ = write(&writer, b"x");
        drop(threads);
        loop {
            pause();
        }
    })?;
    put(&hierarchy.group, "cgroup.procs", &child.to_string()).or_fail()?;
    expect_eq!(read(&reader, &mut [0]), Ok(1));
    let threads = text(&hierarchy.group, "cgroup.threads")?;
    expect_eq!(threads.lines().count(), 4);
    expect!(threads.lines().any(|line| line == child.to_string()));
    expect_eq!(text(&hierarchy.group, "cgroup.procs")?, format!("{child}\n"));
    end(child)
}
