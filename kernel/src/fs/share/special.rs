//! FIFOs and sockets in shared folders.
//!
//! QEMU refuses to make them, and to change their permissions: newer versions open no special file. The host tool does
//! both instead, beneath the folder only. It is asked by the session's control port, one request after the other, and
//! whoever asks waits as for QEMU.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use heddle_abi::control::SpecialFile;
use heddle_kernel_core::fallible::extend_reserved;

use crate::error::Errno;
use crate::fs::Dentry;
use crate::memory::fallible;
use crate::sched::detour;
use crate::sched::detour::DetourLock;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue};

/// The longest path of such a file in its folder: it has to fit into a message's buffer.
pub const PATH_MAX: usize = 1900;

/// A request to the host tool.
pub struct SpecialRequest {
    /// The path in the folder.
    pub path: Vec<u8>,
    /// The rest, with an empty path.
    pub fields: SpecialFile<'static>,
}

/// Held by who asks.
static ASKING: DetourLock = DetourLock::new();
static NEXT: AtomicU32 = AtomicU32::new(1);
static REQUEST: SpinLock<Option<SpecialRequest>> = SpinLock::new(None);
/// The number of the request and the host's error, zero for none.
static ANSWER: SpinLock<(u32, u32)> = SpinLock::new((0, 0));
/// Woken when there is a request.
pub static REQUESTED: WaitQueue = WaitQueue::new();

/// Whether there is a request.
pub fn has_request() -> bool {
    REQUEST.lock().is_some()
}

/// Takes the request, to be sent to the host tool.
pub fn take_request() -> Option<SpecialRequest> {
    REQUEST.lock().take()
}

/// The host tool has answered.
pub fn answer(number: u32, error: u32) {
    *ANSWER.lock() = (number, error);
    detour::look_again();
}

/// Asks the host tool to make a file, or to change its permissions.
///
/// # Errors
/// The host's; `EINTR` if the thread was killed meanwhile.
pub fn ask(path: Vec<u8>, fields: SpecialFile<'static>) -> Result<(), Errno> {
    let _asking = ASKING.lock_killably().ok_or(Errno::EINTR)?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let request = SpecialRequest { path, fields: SpecialFile { number, ..fields } };
    let before = REQUEST.lock().replace(request);
    drop(before);
    REQUESTED.wake(Events::all());
    if !detour::wait_killably(&|| ANSWER.lock().0 == number) {
        return Err(Errno::EINTR);
    }
    match ANSWER.lock().1 {
        0 => Ok(()),
        error => Err(Errno(u16::try_from(error).unwrap_or(Errno::EIO.0))),
    }
}

/// The path of a name in a directory, from the folder on.
///
/// # Errors
/// `ENAMETOOLONG`, `ENOMEM`.
pub fn path(directory: &Arc<Dentry>, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut names = Vec::new();
    let (mut at, mut length) = (directory.clone(), name.len());
    while let Some(above) = at.parent() {
        let part = at.name()?;
        length += part.len() + 1;
        if length > PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        fallible::try_push(&mut names, part)?;
        at = above;
    }
    let mut path = fallible::try_with_capacity(length)?;
    for part in names.iter().rev() {
        extend_reserved(&mut path, part);
        extend_reserved(&mut path, b"/");
    }
    extend_reserved(&mut path, name);
    Ok(path)
}
