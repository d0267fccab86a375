//! File operations of `execve`.

use alloc::sync::Arc;

use heddle_kernel_core::fanotify::event;

use crate::error::{Errno, TryError};
use crate::fs::access::Access;
use crate::fs::fanotify;
use crate::fs::inode::Opening;
use crate::fs::lookup::LookupFlags;
use crate::fs::view::find_from;
use crate::fs::{FileType, IoBuffer, OpenFile, Path, StatusFlags, access, landlock};
use crate::memory::fallible;
use crate::process::Thread;

/// Opens a program to be run: a regular file that the thread may execute. While it is open nobody can open it to
/// write; keep it as long as the program runs.
///
/// # Errors
/// Those of execve(2) that are about the file: `EACCES`, `ENOENT`, `ETXTBSY`, `ELOOP`…
pub fn open(
    thread: &Arc<Thread>,
    descriptor: i32,
    path: &[u8],
    how: LookupFlags,
) -> Result<Arc<OpenFile>, Errno> {
    again_if_stale(|| {
        let (place, credentials) = find_from(thread, descriptor, path, how).map_err(as_error)?;
        open_place(thread, place, &credentials)
    })
}

/// How often a file is looked up at most whose name changes hands all the time.
const LOOKS_MAX: usize = 16;

/// Looks a file up and opens it, and again if that says `ESTALE`: a shared folder's word for a name that the host has
/// given to another file, or taken away, since it was looked up.
///
/// # Errors
/// Those of opening it.
pub fn again_if_stale<T, E: From<Errno> + PartialEq>(open: impl Fn() -> Result<T, E>) -> Result<T, E> {
    let stale = E::from(Errno::ESTALE);
    for _ in 1..LOOKS_MAX {
        match open() {
            Err(error) if error == stale => {}
            result => return result,
        }
    }
    open()
}

fn open_place(
    thread: &Arc<Thread>,
    place: Path,
    credentials: &crate::process::Credentials,
) -> Result<Arc<OpenFile>, Errno> {
    match place.entry.node.kind() {
        FileType::Regular => {}
        FileType::Symlink => return Err(Errno::ELOOP),
        _ => return Err(Errno::EACCES),
    }
    access::check_place(&place, credentials, Access::EXECUTE)?;
    landlock::check_open(credentials, &place, Access::EXECUTE)?;
    let flags = StatusFlags::EXECUTE;
    let opening = Opening { flags, place: &place, thread: Some(thread), flags_of_call: 0 };
    let file = place.entry.node.clone().open(&opening)?;
    if !fanotify::is_idle() {
        fanotify::report(&place.entry, Some(&place.mount), event::OPEN | event::OPEN_EXEC);
    }
    fallible::try_arc(OpenFile::at(file, flags, place))
}

/// Reads a file's bytes into a kernel buffer; fewer only where the file ends.
///
/// # Errors
/// The error of the read.
pub fn read_at(open: &OpenFile, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
    let mut buffer = IoBuffer::kernel_out(bytes);
    while buffer.remaining() > 0 {
        let at = offset.saturating_add(buffer.done() as u64);
        if open.file.read(open, &mut buffer, at).map_err(as_error)? == 0 {
            break;
        }
    }
    Ok(buffer.done())
}

/// A halt of something that neither waits nor touches user memory.
pub const fn as_error(halt: TryError) -> Errno {
    match halt {
        TryError::Error(error) => error,
        TryError::Fault(_) => Errno::EFAULT,
        TryError::WouldBlock => Errno::EAGAIN,
    }
}
