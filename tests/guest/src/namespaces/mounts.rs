//! Mounts across user namespaces, and what one user's namespaces leave to others: user_namespaces(7).
#![allow(unsafe_code, reason = "most of the calls have no safe forms")]

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::mounts::namespace::{apart, clone_with};
use crate::mounts::others::beside;
use crate::mounts::{Stage, bind, lines_below, mount, pivot_root, umount};
use crate::namespaces::users::{USER, become_root_inside, become_user, errno, inside, leave, leave_as};
use crate::{expect, expect_eq};

crate::tests! {
    mounts_that_arrive_keep_their_settings
    unmounting_above_reveals_what_it_shows
    what_is_kept_below_stays_covered
    what_arrived_goes_again
    a_new_root_stays_as_the_old_one_did
    propagation_is_set_by_the_owner_only
    closed_processes_stay_closed_from_inside
    maps_ask_the_writer_too
    limits_are_each_users_own
    one_user_does_not_take_all_mounts
}

fn leave_with_mounts() -> Outcome {
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).or_fail()
}

/// A shared mount `one` with a directory `point`.
fn shared(stage: &Stage) -> Result<(PathBuf, PathBuf), String> {
    let one = stage.mounted("one")?;
    let point = one.join("point");
    fs::create_dir(&point).or_fail()?;
    mount(None, &one, None, libc::MS_SHARED).or_fail()?;
    Ok((one, point))
}

/// A tree of two mounts, of which the first has flags.
fn tree(stage: &Stage) -> Result<PathBuf, String> {
    let tree = stage.directory("tree")?;
    mount(Some("tree"), &tree, Some("tmpfs"), libc::MS_NOSUID | libc::MS_NODEV).or_fail()?;
    fs::create_dir(tree.join("inner")).or_fail()?;
    mount(Some("inner"), &tree.join("inner"), Some("tmpfs"), 0).or_fail()?;
    Ok(tree)
}

fn mounts_that_arrive_keep_their_settings() -> Outcome {
    const AGAIN: u64 = libc::MS_REMOUNT | libc::MS_BIND;
    let stage = Stage::new("arrive")?;
    let (_, point) = shared(&stage)?;
    let tree = tree(&stage)?;
    beside(
        leave_with_mounts,
        |_| bind(&tree, &point, libc::MS_REC).or_fail(),
        |()| {
            expect_eq!(lines_below(&point)?.len(), 2);
            expect_eq!(mount(None, &point, None, AGAIN), Err(Errno::EPERM));
            expect_eq!(mount(None, &point, None, AGAIN | libc::MS_NOSUID), Err(Errno::EPERM));
            expect_eq!(mount(None, &point, None, AGAIN | libc::MS_NOSUID | libc::MS_NODEV), Ok(()));
            // Its inner mount can't be taken from it, but it as a whole can go.
            let inner = point.join("inner");
            expect_eq!(umount(&inner, 0), Err(Errno::EINVAL));
            expect_eq!(umount(&inner, libc::MNT_DETACH), Err(Errno::EINVAL));
            expect_eq!(umount(&point, libc::MNT_DETACH), Ok(()));
            expect_eq!(lines_below(&point)?.len(), 0);
            Ok(())
        },
    )?;
    // In the namespace where it was mounted nothing is kept.
    mount(None, &point, None, AGAIN).or_fail()?;
    umount(&point.join("inner"), 0).or_fail()?;
    umount(&point, 0).or_fail()
}

/// Unmounts above what a namespace below has got; there `first` may do more before, and so many mounts are left.
fn unmount_above(first: impl FnOnce(&Path) -> Outcome, left: usize) -> Outcome {
    let stage = Stage::new("reveal")?;
    let (_, point) = shared(&stage)?;
    fs::write(point.join("covered"), "x").or_fail()?;
    mount(Some("new"), &point, Some("tmpfs"), 0).or_fail()?;
    fs::create_dir(point.join("inner")).or_fail()?;
    fs::create_dir(point.join("own")).or_fail()?;
    mount(Some("new"), &point.join("inner"), Some("tmpfs"), 0).or_fail()?;
    beside(
        || {
            leave_with_mounts()?;
            first(&point)
        },
        |_| umount(&point, libc::MNT_DETACH).or_fail(),
        |()| {
            expect_eq!(lines_below(&point)?.len(), left);
            expect_eq!(point.join("covered").exists(), left == 0);
            Ok(())
        },
    )?;
    expect_eq!(lines_below(&point)?.len(), 0);
    expect!(point.join("covered").exists());
    Ok(())
}

fn unmounting_above_reveals_what_it_shows() -> Outcome {
    unmount_above(|_| Ok(()), 0)
}

fn what_is_kept_below_stays_covered() -> Outcome {
    // A mount of its own keeps the first, and that the second, which could go.
    unmount_above(|point| mount(Some("own"), &point.join("own"), Some("tmpfs"), 0).or_fail(), 3)
}

fn what_arrived_goes_again() -> Outcome {
    let stage = Stage::new("again")?;
    let (_, point) = shared(&stage)?;
    let tree = tree(&stage)?;
    beside(
        leave_with_mounts,
        |_| {
            bind(&tree, &point, libc::MS_REC).or_fail()?;
            umount(&point, libc::MNT_DETACH).or_fail()
        },
        |()| {
            expect_eq!(lines_below(&point)?.len(), 0);
            Ok(())
        },
    )
}

fn a_new_root_stays_as_the_old_one_did() -> Outcome {
    let stage = Stage::new("pivoted")?;
    let new = stage.directory("new")?;
    apart(|| {
        leave_as(0, 0)?;
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        // The root came from above.
        expect_eq!(umount(Path::new("/"), libc::MNT_DETACH), Err(Errno::EINVAL));
        mount(Some("root"), &new, Some("tmpfs"), 0).or_fail()?;
        fs::create_dir(new.join("old")).or_fail()?;
        std::env::set_current_dir(&new).or_fail()?;
        pivot_root(Path::new("."), Path::new("old")).or_fail()?;
        std::env::set_current_dir("/").or_fail()?;
        // It covers now the same as the old one did.
        expect_eq!(umount(Path::new("/"), libc::MNT_DETACH), Err(Errno::EINVAL));
        expect_eq!(umount(Path::new("/old"), libc::MNT_DETACH), Ok(()));
        expect_eq!(fs::read_dir("/old").or_fail()?.count(), 0);
        Ok(())
    })
}

fn propagation_is_set_by_the_owner_only() -> Outcome {
    let stage = Stage::new("owner")?;
    let one = stage.mounted("one")?;
    let held = fs::File::open(&one).or_fail()?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    apart(|| {
        leave_with_mounts()?;
        expect_eq!(mount(None, &path, None, libc::MS_SHARED), Err(Errno::EPERM));
        expect_eq!(mount(None, &path, None, libc::MS_REC | libc::MS_UNBINDABLE), Err(Errno::EPERM));
        expect_eq!(mount(None, &one, None, libc::MS_SHARED), Ok(()));
        Ok(())
    })?;
    apart(|| {
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        expect_eq!(mount(None, &path, None, libc::MS_SHARED), Ok(()));
        Ok(())
    })?;
    expect!(lines_below(&one)?.iter().all(|line| line.number("shared").is_some()));
    Ok(())
}

fn closed_processes_stay_closed_from_inside() -> Outcome {
    let looks = |child: nix::unistd::Pid| {
        let opened = fs::read_link(format!("/proc/{child}/cwd")).map(drop);
        opened.err().and_then(|error| errno(&error))
    };
    let hold = |dumpable: libc::c_ulong| {
        let (mut told, mut tell) = std::io::pipe().or_fail()?;
        let child = spawn_child(|| {
            // SAFETY: numbers.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, dumpable) };
            let _ = tell.write_all(b"x");
            loop {
                nix::unistd::pause();
            }
        })?;
        told.read_exact(&mut [0]).or_fail()?;
        Ok::<_, String>(child)
    };
    apart(|| {
        become_root_inside()?;
        let (open, closed) = (hold(1)?, hold(0)?);
        let seen = (looks(open), looks(closed));
        for child in [open, closed] {
            nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).or_fail()?;
            nix::sys::wait::waitpid(child, None).or_fail()?;
        }
        // Its memory is from before there was the namespace, and may hold what is not the namespace's.
        expect_eq!(seen, (None, Some(Errno::EACCES)));
        Ok(())
    })
}

fn maps_ask_the_writer_too() -> Outcome {
    beside(
        leave,
        |child| {
            let open = |name: &str| {
                fs::OpenOptions::new().write(true).open(format!("/proc/{child}/{name}")).or_fail()
            };
            let (users, groups) = (open("uid_map")?, open("gid_map")?);
            let write = |mut file: &fs::File, text: &str| {
                file.write_all(text.as_bytes()).err().and_then(|error| errno(&error))
            };
            apart(|| {
                become_user()?;
                expect_eq!(write(&users, "0 0 2"), Some(Errno::EPERM));
                expect_eq!(write(&groups, "0 0 2"), Some(Errno::EPERM));
                // A text that is no map is none for anybody.
                expect_eq!(write(&users, "0 0"), Some(Errno::EINVAL));
                Ok(())
            })?;
            expect_eq!(write(&users, "0 0 2"), None);
            expect_eq!(write(&groups, "0 0 2"), None);
            expect_eq!(write(&open("uid_map")?, "0 0 1"), Some(Errno::EPERM));
            Ok(())
        },
        |()| {
            expect_eq!(nix::unistd::getuid().as_raw(), 0);
            Ok(())
        },
    )
}

fn limits_are_each_users_own() -> Outcome {
    const NO_SETUID_FIXUP: libc::c_ulong = 4;
    inside("0 0 10", "0 0 10", || {
        fs::write("/proc/sys/user/max_uts_namespaces", "1").or_fail()?;
        unshare(CloneFlags::CLONE_NEWUTS).or_fail()?;
        expect_eq!(clone_with(libc::CLONE_NEWUTS, || 0), Err(Errno::ENOSPC));
        // Another user with all rights.
        // SAFETY: numbers.
        Errno::result(unsafe { libc::prctl(libc::PR_SET_SECUREBITS, NO_SETUID_FIXUP) }).or_fail()?;
        // SAFETY: numbers.
        Errno::result(unsafe { libc::setresuid(u32::MAX, 3, u32::MAX) }).or_fail()?;
        expect_eq!(clone_with(libc::CLONE_NEWUTS, || 0), Ok(0));
        unshare(CloneFlags::CLONE_NEWUTS).or_fail()?;
        expect_eq!(clone_with(libc::CLONE_NEWUTS, || 0), Err(Errno::ENOSPC));
        Ok(())
    })
}

fn one_user_does_not_take_all_mounts() -> Outcome {
    const COUNT: usize = 1000;
    if !crate::harness::is_heddle() {
        crate::harness::skip("a limit of Heddle's");
        return Ok(());
    }
    let stage = Stage::new("taken")?;
    let (one, many) = (stage.directory("one")?, stage.directory("many")?);
    beside(
        || {
            become_root_inside()?;
            unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
            mount(Some("many"), &many, Some("tmpfs"), 0).or_fail()?;
            for number in 0..COUNT {
                let place = many.join(number.to_string());
                fs::create_dir(&place).or_fail()?;
                bind(&place, &place, 0).or_fail()?;
            }
            // As many again with each copy.
            let mut kept = Vec::new();
            while kept.len() < 20 {
                kept.push(fs::File::open("/proc/self/ns/mnt").or_fail()?);
                if let Err(error) = unshare(CloneFlags::CLONE_NEWNS) {
                    expect_eq!(error, Errno::ENOSPC);
                    return Ok(kept);
                }
            }
            Err("nothing limits them".to_owned())
        },
        |_| {
            mount(Some("new"), &one, Some("tmpfs"), 0).or_fail()?;
            apart(|| {
                nix::unistd::setuid(nix::unistd::Uid::from_raw(USER + 1)).or_fail()?;
                leave_with_mounts()?;
                mount(Some("new"), &one, Some("tmpfs"), 0).or_fail()
            })?;
            umount(&one, 0).or_fail()
        },
        |_| Ok(()),
    )
}
