//! Mount namespaces and one another: names that go away, files of namespaces as mounts, lists that are polled.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::mpsc;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::mounts::namespace::{apart, gethostname, link, sethostname};
use crate::mounts::{Stage, bind, line_at, lines_below, mount, umount};
use crate::{expect, expect_eq};

crate::tests! {
    mounts_of_others_keep_no_names
    own_mounts_keep_names_wherever_they_show
    whoever_is_in_a_mount_that_goes_stays_there
    a_name_that_others_have_mounted_moves
    a_namespace_lives_by_a_mount
    a_namespace_is_mounted_in_older_ones_only
    namespaces_that_keep_one_another_end
    lists_of_mounts_can_be_polled
    a_change_wakes_who_polls
    a_file_system_with_many_files_ends
    what_a_bind_mount_does_not_show_is_not_above_it
}

/// Runs `first` in a child, then `between` here, then `last` in the child with what `first` made.
pub fn beside<T>(
    first: impl FnOnce() -> Result<T, String>,
    between: impl FnOnce(nix::unistd::Pid) -> Outcome,
    last: impl FnOnce(T) -> Outcome,
) -> Outcome {
    let (mut told, mut tell) = std::io::pipe().or_fail()?;
    let (mut go, mut may_go) = std::io::pipe().or_fail()?;
    let child = spawn_child(|| {
        let run = || {
            let made = first()?;
            tell.write_all(b"x").or_fail()?;
            go.read_exact(&mut [0]).or_fail()?;
            last(made)
        };
        match run() {
            Ok(()) => 0,
            Err(error) => {
                println!("{error}");
                1
            }
        }
    })?;
    drop(tell);
    let begun = told.read_exact(&mut [0]);
    let done = if begun.is_ok() { between(child) } else { Ok(()) };
    let _ = may_go.write_all(b"x");
    let status = nix::sys::wait::waitpid(child, None).or_fail()?;
    done?;
    expect_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
    Ok(())
}

fn mounts_of_others_keep_no_names() -> Outcome {
    let stage = Stage::new("names")?;
    let (directory, replaced) = (stage.directory("directory")?, stage.directory("replaced")?);
    let (file, other, moved) = (stage.path("file"), stage.path("other"), stage.directory("moved")?);
    fs::write(&file, "below").or_fail()?;
    fs::write(&other, "above").or_fail()?;
    beside(
        || {
            unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
            mount(Some("new"), &directory, Some("tmpfs"), 0).or_fail()?;
            fs::create_dir(directory.join("inner")).or_fail()?;
            mount(Some("new"), &directory.join("inner"), Some("tmpfs"), 0).or_fail()?;
            mount(Some("new"), &replaced, Some("tmpfs"), 0).or_fail()?;
            mount(Some("again"), &replaced, Some("tmpfs"), 0).or_fail()?;
            bind(&other, &file, 0).or_fail()
        },
        |_| {
            fs::remove_dir(&directory).or_fail()?;
            fs::remove_file(&file).or_fail()?;
            fs::rename(&moved, &replaced).or_fail()
        },
        |()| {
            expect_eq!(lines_below(&directory)?.len(), 0);
            expect_eq!(lines_below(&file)?.len(), 0);
            expect_eq!(lines_below(&replaced)?.len(), 0);
            expect!(!directory.exists() && !file.exists() && replaced.exists());
            // The name can be used again.
            fs::create_dir(&directory).or_fail()?;
            mount(Some("new"), &directory, Some("tmpfs"), 0).or_fail()
        },
    )?;
    expect!(directory.exists() && !moved.exists());
    Ok(())
}

fn own_mounts_keep_names_wherever_they_show() -> Outcome {
    let stage = Stage::new("kept-names")?;
    let (one, two) = (stage.mounted("one")?, stage.directory("two")?);
    let point = one.join("point");
    fs::create_dir(&point).or_fail()?;
    bind(&one, &two, 0).or_fail()?;
    mount(Some("new"), &point, Some("tmpfs"), 0).or_fail()?;
    let busy = |result: std::io::Result<()>| result.err().and_then(|error| error.raw_os_error());
    let expected = Some(Errno::EBUSY as i32);
    expect_eq!(busy(fs::remove_dir(&point)), expected);
    // It does not show here, but it is the namespace's.
    expect_eq!(busy(fs::remove_dir(two.join("point"))), expected);
    expect_eq!(busy(fs::rename(two.join("point"), two.join("new"))), expected);
    fs::create_dir(two.join("empty")).or_fail()?;
    expect_eq!(busy(fs::rename(two.join("empty"), two.join("point"))), expected);
    umount(&point, 0).or_fail()?;
    fs::remove_dir(two.join("point")).or_fail()
}

fn whoever_is_in_a_mount_that_goes_stays_there() -> Outcome {
    let stage = Stage::new("inside")?;
    let directory = stage.directory("directory")?;
    beside(
        || {
            unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
            mount(Some("new"), &directory, Some("tmpfs"), 0).or_fail()?;
            let inner = directory.join("inner");
            fs::create_dir(&inner).or_fail()?;
            mount(Some("new"), &inner, Some("tmpfs"), 0).or_fail()?;
            fs::write(inner.join("file"), "").or_fail()?;
            std::env::set_current_dir(&directory).or_fail()
        },
        |_| fs::remove_dir(&directory).or_fail(),
        |()| {
            expect!(Path::new("inner/file").exists());
            // The tree is in no namespace any more.
            expect_eq!(mount(Some("new"), Path::new("inner"), Some("tmpfs"), 0), Err(Errno::EINVAL));
            expect_eq!(umount(Path::new("inner"), libc::MNT_DETACH), Err(Errno::EINVAL));
            Ok(())
        },
    )
}

fn a_name_that_others_have_mounted_moves() -> Outcome {
    let stage = Stage::new("moves")?;
    let (old, new) = (stage.directory("old")?, stage.path("new"));
    beside(
        || {
            unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
            mount(Some("new"), &old, Some("tmpfs"), 0).or_fail()
        },
        |_| fs::rename(&old, &new).or_fail(),
        |()| {
            expect_eq!(lines_below(&old)?.len(), 0);
            expect_eq!(line_at(&new)?.source, "new");
            umount(&new, 0).or_fail()
        },
    )
}

fn a_namespace_lives_by_a_mount() -> Outcome {
    let stage = Stage::new("bound")?;
    let file = stage.path("names");
    fs::write(&file, "").or_fail()?;
    apart(|| {
        unshare(CloneFlags::CLONE_NEWUTS).or_fail()?;
        sethostname("bound").or_fail()?;
        bind(Path::new("/proc/self/ns/uts"), &file, 0).or_fail()
    })?;
    let line = line_at(&file)?;
    expect_eq!((line.kind.as_str(), line.source.as_str()), ("nsfs", "nsfs"));
    expect!(line.root.starts_with("uts:["));
    let outside = link("uts")?;
    apart(|| {
        let opened = fs::File::open(&file).or_fail()?;
        setns(&opened, CloneFlags::CLONE_NEWUTS).or_fail()?;
        expect_eq!(gethostname().or_fail()?, "bound");
        expect_eq!(link("uts")?, line.root);
        expect!(link("uts")? != outside);
        Ok(())
    })?;
    // A copy of the mounts has it, too.
    apart(|| {
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        expect_eq!(line_at(&file)?.root, line.root);
        umount(&file, 0).or_fail()
    })?;
    umount(&file, 0).or_fail()?;
    expect_eq!(fs::read(&file).or_fail()?, b"");
    Ok(())
}

fn a_namespace_is_mounted_in_older_ones_only() -> Outcome {
    let stage = Stage::new("older")?;
    let (file, point) = (stage.path("mounts"), stage.directory("point")?);
    fs::write(&file, "").or_fail()?;
    expect_eq!(bind(Path::new("/proc/self/ns/mnt"), &file, 0), Err(Errno::EINVAL));
    let outside = fs::File::open("/proc/self/ns/mnt").or_fail()?;
    let own = format!("/proc/{}/ns/mnt", std::process::id());
    beside(
        || {
            unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
            mount(Some("inside"), &point, Some("tmpfs"), 0).or_fail()?;
            // That would keep both for ever.
            expect_eq!(bind(Path::new(&own), &file, 0), Err(Errno::EINVAL));
            Ok(())
        },
        |child| bind(Path::new(&format!("/proc/{child}/ns/mnt")), &file, 0).or_fail(),
        |()| Ok(()),
    )?;
    expect!(line_at(&file)?.root.starts_with("mnt:["));
    expect_eq!(lines_below(&point)?.len(), 0);
    apart(|| {
        let opened = fs::File::open(&file).or_fail()?;
        setns(&opened, CloneFlags::CLONE_NEWNS).or_fail()?;
        expect_eq!(line_at(&point)?.source, "inside");
        setns(&outside, CloneFlags::CLONE_NEWNS).or_fail()
    })?;
    // A younger namespace does not get it.
    apart(|| {
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        expect_eq!(lines_below(&file)?.len(), 0);
        Ok(())
    })?;
    umount(&file, 0).or_fail()
}

fn namespaces_that_keep_one_another_end() -> Outcome {
    const COUNT: usize = 100;
    let stage = Stage::new("chain")?;
    let file = stage.path("file");
    fs::write(&file, "").or_fail()?;
    apart(|| {
        let mut next = fs::File::open("/proc/self/ns/mnt").or_fail()?;
        for _ in 0..COUNT {
            unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
            let younger = fs::File::open("/proc/self/ns/mnt").or_fail()?;
            setns(&next, CloneFlags::CLONE_NEWNS).or_fail()?;
            let path = format!("/proc/self/fd/{}", younger.as_raw_fd());
            bind(Path::new(&path), &file, 0).or_fail()?;
            setns(&younger, CloneFlags::CLONE_NEWNS).or_fail()?;
            next = younger;
        }
        Ok(())
    })?;
    // The first one lives, and all others by its mount.
    umount(&file, 0).or_fail()
}

/// The events of a list of mounts; waits for one if it is to.
fn events(list: &fs::File, waits: bool) -> Result<PollFlags, String> {
    let mut entries = [PollFd::new(list.as_fd(), PollFlags::POLLPRI)];
    let timeout = if waits { PollTimeout::NONE } else { PollTimeout::ZERO };
    poll(&mut entries, timeout).or_fail()?;
    entries[0].revents().ok_or_else(|| "unknown events".to_owned())
}

fn lists_of_mounts_can_be_polled() -> Outcome {
    let stage = Stage::new("polled")?;
    let one = stage.directory("one")?;
    let changed = PollFlags::POLLPRI | PollFlags::POLLERR;
    for name in ["mounts", "mountinfo"] {
        let list = fs::File::open(format!("/proc/self/{name}")).or_fail()?;
        expect_eq!(events(&list, false)?, PollFlags::empty());
        mount(Some("new"), &one, Some("tmpfs"), 0).or_fail()?;
        expect_eq!(events(&list, false)?, changed);
        expect_eq!(events(&list, false)?, PollFlags::empty());
        mount(None, &one, None, libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY).or_fail()?;
        expect_eq!(events(&list, false)?, changed);
        umount(&one, 0).or_fail()?;
        expect_eq!(events(&list, false)?, changed);
        // Another namespace's changes are none here.
        apart(|| {
            unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
            mount(Some("new"), &one, Some("tmpfs"), 0).or_fail()
        })?;
        expect_eq!(events(&list, false)?, PollFlags::empty());
    }
    Ok(())
}

fn a_change_wakes_who_polls() -> Outcome {
    let stage = Stage::new("woken")?;
    let one = stage.directory("one")?;
    let list = fs::File::open("/proc/self/mountinfo").or_fail()?;
    let (tell, wait) = mpsc::channel();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let _ = tell.send(());
            events(&list, true)
        });
        wait.recv().or_fail()?;
        std::thread::sleep(std::time::Duration::from_millis(20));
        mount(Some("new"), &one, Some("tmpfs"), 0).or_fail()?;
        let woken = waiter.join().map_err(|_| "a panic".to_owned())??;
        expect_eq!(woken, PollFlags::POLLPRI | PollFlags::POLLERR);
        Ok(())
    })
}

fn a_file_system_with_many_files_ends() -> Outcome {
    let stage = Stage::new("many")?;
    let one = stage.mounted("one")?;
    let mut directory = one.clone();
    for number in 0..10 {
        directory = directory.join("inner");
        fs::create_dir(&directory).or_fail()?;
        for file in 0..200 {
            fs::write(directory.join(format!("{number}-{file}")), "x").or_fail()?;
        }
    }
    umount(&one, 0).or_fail()?;
    // The same without anybody who unmounts: with the last descriptor, or the last process of a namespace.
    apart(|| {
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        mount(Some("new"), &one, Some("tmpfs"), 0).or_fail()?;
        for file in 0..1000 {
            fs::write(one.join(format!("{file}")), "x").or_fail()?;
        }
        let held = fs::File::open(one.join("7")).or_fail()?;
        umount(&one, libc::MNT_DETACH).or_fail()?;
        drop(held);
        mount(Some("new"), &one, Some("tmpfs"), 0).or_fail()?;
        for file in 0..1000 {
            fs::write(one.join(format!("{file}")), "x").or_fail()?;
        }
        Ok(())
    })
}

fn what_a_bind_mount_does_not_show_is_not_above_it() -> Outcome {
    let stage = Stage::new("mounts-connected")?;
    let (shown, at) = (stage.directory("shown")?, stage.directory("at")?);
    fs::create_dir_all(shown.join("inner/deep")).or_fail()?;
    fs::write(stage.path("secret"), "x").or_fail()?;
    bind(&shown, &at, 0).or_fail()?;
    std::env::set_current_dir(at.join("inner/deep")).or_fail()?;
    expect_eq!(fs::read_dir("../..").or_fail()?.count(), 1);
    // The directory leaves what the mount shows, and takes the caller along.
    fs::rename(shown.join("inner"), stage.path("outer")).or_fail()?;
    let error = |path: &str| fs::metadata(path).map(drop).map_err(|error| error.raw_os_error());
    expect_eq!(error("."), Ok(()));
    expect_eq!(error(".."), Err(Some(libc::ENOENT)));
    expect_eq!(error("../../secret"), Err(Some(libc::ENOENT)));
    expect_eq!(error("/proc/self/cwd/.."), Err(Some(libc::ENOENT)));
    fs::rename(stage.path("outer"), shown.join("inner")).or_fail()?;
    expect_eq!(error("../../inner"), Ok(()));
    Ok(())
}
