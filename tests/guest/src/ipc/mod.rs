//! System V's IPC: shared memory, semaphores and message queues; and POSIX's message queues.

pub mod posix;
pub mod queues;
pub mod segments;
pub mod semaphores;

use std::fs;

use nix::errno::Errno;
use nix::sys::wait::WaitStatus;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use crate::harness::{OrFail, Outcome, in_child};

/// A key that no other test uses: each test's process has a number of its own.
fn key(number: i32) -> i32 {
    0x4845_0000 | (std::process::id() as i32 & 0xfff) << 4 | number
}

/// Runs `body` as another user, in a child. It says what is wrong.
fn as_nobody(body: impl FnOnce() -> Outcome) -> Outcome {
    let scratch = crate::harness::Scratch::new("reason")?;
    let path = scratch.path("text");
    fs::write(&path, "").or_fail()?;
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).or_fail()?;
    let status = in_child(|| {
        let (uid, gid) = (Uid::from_raw(4321), Gid::from_raw(4321));
        let changed = setgroups(&[])
            .and_then(|()| setresgid(gid, gid, gid))
            .and_then(|()| setresuid(uid, uid, uid))
            .map_err(|error| error.to_string());
        match changed.and_then(|()| body()) {
            Ok(()) => 0,
            Err(reason) => {
                let _ = fs::write(&path, reason);
                1
            }
        }
    })?;
    match status {
        WaitStatus::Exited(_, 0) => Ok(()),
        status => Err(format!("{status:?}: {}", fs::read_to_string(&path).unwrap_or_default())),
    }
}

/// The fields of the line of `/proc/sysvipc/FILE` about an object.
fn listed(file: &str, id: i32) -> Result<Option<Vec<String>>, String> {
    let text = fs::read_to_string(format!("/proc/sysvipc/{file}")).or_fail()?;
    let rows = text.lines().skip(1).map(|line| line.split_whitespace().map(str::to_owned).collect());
    Ok(rows.into_iter().find(|row: &Vec<String>| row.get(1) == Some(&id.to_string())))
}

/// The result of a call that returns -1 for an error.
fn check(result: i32) -> Result<i32, Errno> {
    Errno::result(result)
}
