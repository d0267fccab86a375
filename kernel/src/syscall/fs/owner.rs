//! The owner of a file, who gets its signals: `F_SETOWN` and its like, `O_ASYNC`, `FIOASYNC`, `FIOSETOWN`.

use heddle_kernel_core::signal::Signal;

use crate::error::Errno;
use crate::fs::OpenFile;
use crate::process::io_signal::{FileOwner, is_supported, owner_of_number};
use crate::process::table;
use crate::syscall::fs::{get, put};
use crate::syscall::{Call, SyscallResult};

/// The kinds of owners in `struct f_owner_ex`.
const F_OWNER_TID: i32 = 0;
const F_OWNER_PID: i32 = 1;
const F_OWNER_PGRP: i32 = 2;

/// Turns the signals of a file on or off.
///
/// # Errors
/// `ENOMEM`.
pub fn set_async(open: &OpenFile, descriptor: i32, on: bool) -> Result<(), Errno> {
    if on && is_supported(open) {
        open.make_notice()?.start(open, descriptor)
    } else {
        if let Some(notice) = open.notice() {
            notice.stop();
        }
        Ok(())
    }
}

fn set(call: &Call<'_>, open: &OpenFile, owner: FileOwner) -> Result<(), Errno> {
    open.make_notice()?.set_owner(owner, &call.thread.credentials());
    Ok(())
}

fn get_owner(open: &OpenFile) -> FileOwner {
    open.notice().map_or_else(FileOwner::default, |notice| notice.owner())
}

/// `F_SETOWN`, `FIOSETOWN`.
///
/// # Errors
/// `EINVAL`, `ESRCH`, `ENOMEM`.
pub fn set_by_number(call: &Call<'_>, open: &OpenFile, number: i32) -> Result<(), Errno> {
    set(call, open, owner_of_number(&call.thread.process, number)?)
}

/// `F_GETOWN`, `FIOGETOWN`.
#[must_use]
pub fn number(call: &Call<'_>, open: &OpenFile) -> i32 {
    let viewer = &call.thread.process;
    match get_owner(open) {
        FileOwner::Thread(number) | FileOwner::Process(number) => viewer.shown(number),
        FileOwner::Group(number) => -viewer.shown(number),
    }
}

/// `F_SETOWN_EX`.
pub fn set_extended(call: &Call<'_>, open: &OpenFile) -> SyscallResult {
    let bytes: [u8; 8] = get(call, call.word(2))?;
    let [a, b, c, d, number @ ..] = bytes;
    let (kind, number) = (i32::from_ne_bytes([a, b, c, d]), i32::from_ne_bytes(number));
    let viewer = &call.thread.process;
    let named = viewer.named(number);
    let owner = match kind {
        F_OWNER_TID if number == 0 => FileOwner::Thread(0),
        F_OWNER_PID if number == 0 => FileOwner::Process(0),
        F_OWNER_PGRP if number == 0 => FileOwner::Group(0),
        F_OWNER_TID if table::thread(named).is_some() => FileOwner::Thread(named),
        F_OWNER_PID if number > 0 => owner_of_number(viewer, number)?,
        F_OWNER_PGRP if table::group(named).is_some() => FileOwner::Group(named),
        F_OWNER_TID | F_OWNER_PID | F_OWNER_PGRP => return Err(Errno::ESRCH.into()),
        _ => return Err(Errno::EINVAL.into()),
    };
    set(call, open, owner)?;
    Ok(0.into())
}

/// `F_GETOWN_EX`.
pub fn get_extended(call: &Call<'_>, open: &OpenFile) -> SyscallResult {
    let (kind, number) = match get_owner(open) {
        FileOwner::Thread(number) => (F_OWNER_TID, number),
        FileOwner::Process(number) => (F_OWNER_PID, number),
        FileOwner::Group(number) => (F_OWNER_PGRP, number),
    };
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&kind.to_ne_bytes());
    bytes[4..].copy_from_slice(&call.thread.process.shown(number).to_ne_bytes());
    put(call, call.word(2), &bytes)?;
    Ok(0.into())
}

/// `F_SETSIG`.
pub fn set_signal(open: &OpenFile, number: usize) -> SyscallResult {
    let signal = match number {
        0 => None,
        1..=Signal::COUNT => Signal::new(number as i32),
        _ => return Err(Errno::EINVAL.into()),
    };
    open.make_notice()?.set_signal(signal);
    Ok(0.into())
}

/// `F_GETSIG`.
#[must_use]
pub fn signal(open: &OpenFile) -> usize {
    let signal = open.notice().and_then(|notice| notice.signal());
    signal.map_or(0, |signal| signal.number() as usize)
}
