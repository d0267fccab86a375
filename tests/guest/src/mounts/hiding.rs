//! Rules by which a mount of `/proc` shows processes: `hidepid`, `gid` and `subset`, proc(5).

use std::fs;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, getpid, getppid, setresgid, setresuid};

use crate::harness::{OrFail, Outcome};
use crate::mounts::namespace::apart;
use crate::mounts::{Stage, mount_with, umount};
use crate::{expect, expect_eq};

crate::tests! {
    processes_of_others_are_hidden
    a_remount_changes_what_is_hidden
    a_subset_has_processes_only
    options_that_are_refused
}

const OTHER: u32 = 1234;

fn proc(place: &Path, flags: u64, options: &str) -> Result<(), Errno> {
    let kind = if flags & libc::MS_REMOUNT == 0 { Some("proc") } else { None };
    mount_with(Some(Path::new("proc")), place, kind, flags, Some(options))
}

fn error_of<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw)
}

fn become_other(group: u32) -> Outcome {
    let (group, user) = (Gid::from_raw(group), Uid::from_raw(OTHER));
    setresgid(group, group, group).or_fail()?;
    setresuid(user, user, user).or_fail()
}

/// The errors of a look at the parent's directory and into it, and whether it is listed, for another user.
fn seen(place: &Path, group: u32) -> Result<(Option<Errno>, Option<Errno>, bool), String> {
    let (parent, own) = (place.join(getppid().to_string()), place.join(getpid().to_string()));
    become_other(group)?;
    fs::read(own.join("comm")).or_fail()?;
    let listed = fs::read_dir(place).or_fail()?.flatten().any(|entry| entry.path() == parent);
    Ok((error_of(fs::metadata(&parent)), error_of(fs::read(parent.join("comm"))), listed))
}

fn processes_of_others_are_hidden() -> Outcome {
    let stage = Stage::new("hiding")?;
    let place = stage.directory("proc")?;
    let (denied, absent) = (Some(Errno::EPERM), Some(Errno::ENOENT));
    for (options, group, expected) in [
        ("", OTHER, (None, None, true)),
        ("hidepid=off", OTHER, (None, None, true)),
        ("hidepid=1", OTHER, (None, denied, true)),
        ("hidepid=noaccess", OTHER, (None, denied, true)),
        ("hidepid=2", OTHER, (absent, absent, false)),
        ("hidepid=invisible,gid=77", OTHER, (absent, absent, false)),
        ("hidepid=2,gid=77", 77, (None, None, true)),
        ("hidepid=1,gid=77", 77, (None, None, true)),
        ("hidepid=ptraceable,gid=77", 77, (absent, absent, false)),
    ] {
        proc(&place, 0, options).or_fail()?;
        apart(|| {
            expect_eq!((options, seen(&place, group)?), (options, expected));
            Ok(())
        })?;
        // Root may look into all.
        expect!(place.join(getppid().to_string()).join("comm").exists());
        umount(&place, 0).or_fail()?;
    }
    Ok(())
}

fn a_remount_changes_what_is_hidden() -> Outcome {
    let stage = Stage::new("hiding-anew")?;
    let place = stage.directory("proc")?;
    proc(&place, 0, "hidepid=2").or_fail()?;
    proc(&place, libc::MS_REMOUNT, "hidepid=0").or_fail()?;
    apart(|| {
        expect_eq!(seen(&place, OTHER)?, (None, None, true));
        Ok(())
    })?;
    proc(&place, libc::MS_REMOUNT, "hidepid=invisible").or_fail()?;
    apart(|| {
        expect_eq!(seen(&place, OTHER)?, (Some(Errno::ENOENT), Some(Errno::ENOENT), false));
        Ok(())
    })
}

fn a_subset_has_processes_only() -> Outcome {
    let stage = Stage::new("subset")?;
    let place = stage.directory("proc")?;
    proc(&place, 0, "subset=pid").or_fail()?;
    for entry in fs::read_dir(&place).or_fail()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        expect!(name.parse::<u32>().is_ok() || ["self", "thread-self"].contains(&&*name));
    }
    for name in ["meminfo", "sys", "net", "mounts"] {
        expect_eq!((name, error_of(fs::metadata(place.join(name)))), (name, Some(Errno::ENOENT)));
    }
    expect!(place.join("self/comm").exists() && place.join("thread-self/comm").exists());
    Ok(())
}

fn options_that_are_refused() -> Outcome {
    let stage = Stage::new("hiding-refused")?;
    let place = stage.directory("proc")?;
    let wrong =
        ["hidepid=3", "hidepid=", "hidepid", "hidepid=nothing", "subset=all", "subset", "nonsense", "gid=x"];
    for options in wrong {
        expect_eq!((options, proc(&place, 0, options)), (options, Err(Errno::EINVAL)));
    }
    Ok(())
}
