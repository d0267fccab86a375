//! Direct descriptors: opened files that go into the table of registered ones, and changes of that table by entries.

use alloc::sync::Arc;
use linux_raw_sys::general::{__NR_io_uring_enter, O_CLOEXEC};
use linux_raw_sys::io_uring::io_uring_op as Op;

use heddle_kernel_core::uring::Sqe;

use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::fs::DescriptorTable;
use crate::memory::fallible;
use crate::sched::Budget;
use crate::syscall::uring::operation::{StartedEntry, new_active, pin};
use crate::syscall::uring::register_resources::{FileUpdate, update_files};
use crate::syscall::uring::request::{Submitter, UringRequest, Uses};
use crate::syscall::uring::ring::Uring;

/// As `IORING_FILE_INDEX_ALLOC`: any free slot.
const ANY: u32 = u32::MAX;
/// Units of work of a change of one slot.
const SLOT_COST: u32 = 2;

/// The slot that an opened file goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectSlot {
    Any,
    Number(u32),
}

impl DirectSlot {
    /// The slot of a field of entries, where 0 stands for none.
    pub const fn from_field(field: u32) -> Option<Self> {
        match field {
            0 => None,
            ANY => Some(Self::Any),
            slot => Some(Self::Number(slot - 1)),
        }
    }

    /// As the number of a slot; none for any.
    pub const fn number(self) -> Option<u32> {
        match self {
            Self::Any => None,
            Self::Number(slot) => Some(slot),
        }
    }

    /// The slot that an entry names for what it opens.
    ///
    /// # Errors
    /// `EINVAL`: a registered file has no flag of a descriptor; a page fault.
    pub fn of(caller: &Caller, sqe: &Sqe) -> TryResult<Option<Self>> {
        let flags = if sqe.is(Op::IORING_OP_OPENAT) || sqe.is(Op::IORING_OP_ACCEPT) {
            sqe.op_flags
        } else if sqe.is(Op::IORING_OP_SOCKET) {
            sqe.off as u32
        } else if sqe.is(Op::IORING_OP_OPENAT2) && sqe.file_index != 0 {
            let how = usize::try_from(sqe.off).map_err(|_| Errno::EFAULT)?;
            caller.space().read::<[u64; 1]>(how)?[0] as u32
        } else {
            return Ok(None);
        };
        let slot = Self::from_field(sqe.file_index);
        if slot.is_some() && flags & O_CLOEXEC != 0 { Err(Errno::EINVAL.into()) } else { Ok(slot) }
    }

    /// Lets a request open into a table of its own, so that no descriptor of the process stands for the file.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn prepare(self, active: &UringRequest) -> Result<(), Errno> {
        active.request.set_descriptors(fallible::try_arc(DescriptorTable::new())?);
        Ok(())
    }

    /// Registers what the request has opened. The result is 0, or the slot if the kernel has chosen it.
    ///
    /// # Errors
    /// Those of the opening, and of [`Uring::install`].
    pub fn install(
        self,
        ring: &Arc<Uring>,
        active: &UringRequest,
        opened: Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let open = active.request.descriptors().remove(opened? as i32)?;
        ring.install(self.number(), open).map(|slot| slot as usize)
    }
}

/// `IORING_OP_CLOSE` of a registered file.
///
/// # Errors
/// `EINVAL`, and those of [`Uring::close_fixed`].
pub fn close(ring: &Uring, sqe: &Sqe) -> Result<(), Errno> {
    if sqe.fd != 0 {
        return Err(Errno::EINVAL);
    }
    ring.close_fixed(sqe.file_index - 1)
}

/// `IORING_OP_FILES_UPDATE`.
pub fn start_update(ring: &Arc<Uring>, submitter: &mut Submitter<'_>, sqe: &Sqe) -> TryResult<StartedEntry> {
    if sqe.op_flags != 0 || sqe.file_index != 0 || sqe.len == 0 {
        return Err(Errno::EINVAL.into());
    }
    let active = new_active(submitter, sqe, __NR_io_uring_enter, (0, Uses::default()))?;
    let caller = Caller::Request(active.request.clone());
    let (ring, list, count) = (ring.clone(), sqe.addr, sqe.len);
    let first = sqe.off as u32;
    if first == ANY {
        return Ok(StartedEntry::Waits(active, pin(add_files(ring, caller, list, count))?));
    }
    let update = FileUpdate { first, list, tags: 0, count };
    Ok(StartedEntry::Waits(active, pin(async move { update_files(&ring, &caller, update).await })?))
}

/// Registers files of descriptors in free slots, whose numbers take the place of the descriptors.
async fn add_files(ring: Arc<Uring>, caller: Caller, list: u64, count: u32) -> Result<usize, Errno> {
    if ring.files.lock().len() == 0 {
        return Err(Errno::ENXIO);
    }
    let mut budget = Budget::new();
    for index in 0..count {
        caller.pace(&mut budget, SLOT_COST).await?;
        let added = add_file(&ring, &caller, list.wrapping_add(u64::from(index) * 4)).await;
        if let Err(error) = added {
            return if index > 0 { Ok(index as usize) } else { Err(error) };
        }
    }
    Ok(count as usize)
}

async fn add_file(ring: &Arc<Uring>, caller: &Caller, address: u64) -> Result<(), Errno> {
    let address = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    let descriptor = caller.resolve(|space| space.read::<[u32; 1]>(address)).await?[0];
    let open = caller.descriptors().get(descriptor.cast_signed())?;
    let slot = ring.install(None, open)?;
    let stored = caller.resolve(|space| space.write_bytes(address, &slot.to_ne_bytes())).await;
    if stored.is_err() {
        ring.close_fixed(slot)?;
    }
    stored
}
