//! Messages to other rings: `IORING_OP_MSG_RING`.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::io_uring::IORING_MSG_RING_CQE_SKIP;

use heddle_kernel_core::uring::Sqe;

use crate::error::{Errno, TryResult};
use crate::fs::{OpenFile, downcast_arc};
use crate::syscall::uring::completions::{Completion, Origin};
use crate::syscall::uring::direct::DirectSlot;
use crate::syscall::uring::operation::StartedEntry;
use crate::syscall::uring::ring::Uring;

/// A completion with data of the sender.
const DATA: u64 = 0;
/// A registered file, and a completion.
const SEND_FD: u64 = 1;

/// Sends a message to the ring that is `open`.
///
/// # Errors
/// `EBADFD` (no ring, or one that is disabled), `EINVAL`, `EBADF`, and those of [`Uring::install`].
pub fn start(ring: &Arc<Uring>, sqe: &Sqe, open: &OpenFile) -> TryResult<StartedEntry> {
    let (source, slot, flags) = (sqe.addr3, sqe.file_index, sqe.op_flags);
    if sqe.buf_index != 0 || flags & !IORING_MSG_RING_CQE_SKIP != 0 {
        return Err(Errno::EINVAL.into());
    }
    let target: Arc<Uring> = downcast_arc(&open.file).ok_or(Errno::EBADFD)?;
    match sqe.addr {
        DATA if source != 0 || slot != 0 || flags != 0 => Err(Errno::EINVAL.into()),
        DATA => {
            if !target.is_enabled.load(Ordering::Acquire) {
                return Err(Errno::EBADFD.into());
            }
            target.post(Completion::new(sqe.off, sqe.len.cast_signed(), 0), Origin::Elsewhere);
            Ok(StartedEntry::Done(0, 0))
        }
        SEND_FD => {
            if Arc::ptr_eq(ring, &target) {
                return Err(Errno::EINVAL.into());
            }
            if !target.is_enabled.load(Ordering::Acquire) {
                return Err(Errno::EBADFD.into());
            }
            let source = i32::try_from(source).map_err(|_| Errno::EBADF)?;
            let file = ring.fixed_file(source)?;
            let slot = DirectSlot::from_field(slot).ok_or(Errno::EINVAL)?;
            // The result at both ends is the chosen slot; the entry's length means nothing.
            let chosen = target.install(slot.number(), file.value.clone())? as i32;
            if flags & IORING_MSG_RING_CQE_SKIP == 0 {
                target.post(Completion::new(sqe.off, chosen, 0), Origin::Elsewhere);
            }
            Ok(StartedEntry::Done(chosen, 0))
        }
        _ => Err(Errno::EINVAL.into()),
    }
}
