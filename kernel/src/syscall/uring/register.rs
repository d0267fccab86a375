//! io_uring_register(2).

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::io_uring::{
    self as abi, IORING_SETUP_R_DISABLED, IORING_SETUP_SINGLE_ISSUER, io_uring_register_op as Register,
};

use heddle_kernel_core::uring::{Restriction, Restrictions};

use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::fs::downcast_arc;
use crate::syscall::fs::{get_bytes, put};
use crate::syscall::uring::completions::Notification;
use crate::syscall::uring::operation::is_known;
use crate::syscall::uring::register_resources::{
    FileUpdate, ResourceList, register_buffers, register_files, update_buffers, update_files,
};
use crate::syscall::uring::ring::Uring;
use crate::syscall::uring::submit::{check_issuer, get_ring};
use crate::syscall::uring::{cancel, registered_rings};
use crate::syscall::{Call, SyscallResult, pending};

const OP_SUPPORTED: u16 = 1;
/// The registrations of Linux 6.1.
const KNOWN: u32 = Register::IORING_REGISTER_FILE_ALLOC_RANGE as u32;

/// io_uring_register(2).
pub fn io_uring_register(call: &mut Call<'_>) -> SyscallResult {
    let operation = call.uint(1);
    if operation > KNOWN {
        return Err(Errno::EINVAL.into());
    }
    let ring = get_ring(call)?;
    check_issuer(call, &ring)?;
    // They hold from the moment on in which the ring is enabled.
    if ring.setup & IORING_SETUP_R_DISABLED != 0
        && ring.is_enabled.load(Ordering::Acquire)
        && !ring.rules.lock().restrictions.allows_register(operation as u8)
    {
        return Err(Errno::EACCES.into());
    }
    let is = |register: Register| operation == register as u32;
    if is(Register::IORING_REGISTER_BUFFERS) || is(Register::IORING_REGISTER_FILES) {
        let list = ResourceList { count: call.uint(3), list: call.word(2) as u64, tags: 0 };
        let is_files = is(Register::IORING_REGISTER_FILES);
        return if is_files {
            register_files(call, &ring, list)
        } else {
            register_buffers(call, &ring, list)
        };
    }
    if is(Register::IORING_REGISTER_BUFFERS2) || is(Register::IORING_REGISTER_FILES2) {
        let list = ResourceList::read(call, call.word(2), call.uint(3) as usize)?;
        let is_files = is(Register::IORING_REGISTER_FILES2);
        return if is_files {
            register_files(call, &ring, list)
        } else {
            register_buffers(call, &ring, list)
        };
    }
    if is(Register::IORING_REGISTER_FILES_UPDATE) || is(Register::IORING_REGISTER_FILES_UPDATE2) {
        return change_files(call, &ring, is(Register::IORING_REGISTER_FILES_UPDATE2));
    }
    if is(Register::IORING_REGISTER_BUFFERS_UPDATE) {
        let update = FileUpdate::read(call, call.word(2), call.uint(3) as usize)?;
        return update_buffers(call, &ring, update);
    }
    register_other(call, &ring, &is)
}

fn change_files(call: &Call<'_>, ring: &Arc<Uring>, has_tags: bool) -> SyscallResult {
    let (address, count) = (call.word(2), call.uint(3));
    let update = if has_tags {
        FileUpdate::read(call, address, count as usize)?
    } else {
        FileUpdate::read_plain(call, address, count)?
    };
    let (caller, ring) = (call.thread.clone(), ring.clone());
    pending(async move { update_files(&ring, &caller, update).await })
}

/// All but files and buffers.
fn register_other(call: &Call<'_>, ring: &Arc<Uring>, is: &impl Fn(Register) -> bool) -> SyscallResult {
    let (address, count) = (call.word(2), call.uint(3) as usize);
    if is(Register::IORING_REGISTER_PROBE) {
        return probe(call, address, count);
    }
    if is(Register::IORING_REGISTER_EVENTFD) || is(Register::IORING_REGISTER_EVENTFD_ASYNC) {
        return register_counter(call, ring, is(Register::IORING_REGISTER_EVENTFD_ASYNC));
    }
    if is(Register::IORING_REGISTER_RESTRICTIONS) {
        return register_restrictions(call, ring, address, count);
    }
    if is(Register::IORING_REGISTER_IOWQ_MAX_WORKERS) {
        return set_workers(call, ring, address, count);
    }
    if is(Register::IORING_REGISTER_IOWQ_AFF) {
        // Requests have no workers whose CPUs could be chosen.
        let is_given = address != 0 && count != 0;
        return if is_given {
            get_bytes(call, address, count).map(|_| 0.into())
        } else {
            Err(Errno::EINVAL.into())
        };
    }
    if is(Register::IORING_REGISTER_PBUF_RING) || is(Register::IORING_UNREGISTER_PBUF_RING) {
        let is_new = is(Register::IORING_REGISTER_PBUF_RING);
        return change_buffer_ring(call, ring, (address, count), is_new);
    }
    if is(Register::IORING_REGISTER_RING_FDS) {
        return registered_rings::register(call, address, count);
    }
    if is(Register::IORING_UNREGISTER_RING_FDS) {
        return registered_rings::unregister(call, address, count);
    }
    if is(Register::IORING_REGISTER_SYNC_CANCEL) {
        return if address == 0 || count != 1 {
            Err(Errno::EINVAL.into())
        } else {
            cancel::cancel_and_wait(call, ring, address)
        };
    }
    if is(Register::IORING_REGISTER_FILE_ALLOC_RANGE) {
        if address == 0 || count != 0 {
            return Err(Errno::EINVAL.into());
        }
        let [numbers, reserved] = call.thread.space().read::<[u64; 2]>(address)?;
        let (first, length) = (numbers as u32, (numbers >> 32) as u32);
        first.checked_add(length).ok_or(Errno::EOVERFLOW)?;
        if reserved != 0 {
            return Err(Errno::EINVAL.into());
        }
        ring.files.lock().set_range(first, length)?;
        return Ok(0.into());
    }
    if address != 0 || count != 0 {
        return Err(Errno::EINVAL.into());
    }
    if is(Register::IORING_REGISTER_ENABLE_RINGS) {
        return enable(call, ring);
    }
    if is(Register::IORING_UNREGISTER_IOWQ_AFF) {
        return Ok(0.into());
    }
    if is(Register::IORING_UNREGISTER_BUFFERS) {
        let buffers = core::mem::take(&mut *ring.buffers.lock());
        return if buffers.is_empty() { Err(Errno::ENXIO.into()) } else { Ok(0.into()) };
    }
    if is(Register::IORING_UNREGISTER_FILES) {
        let files = core::mem::take(&mut *ring.files.lock());
        return if files.len() == 0 { Err(Errno::ENXIO.into()) } else { Ok(0.into()) };
    }
    if is(Register::IORING_UNREGISTER_EVENTFD) {
        let counter = ring.completions.notification.lock().take();
        return counter.map(|_| 0.into()).ok_or(Errno::ENXIO.into());
    }
    Err(Errno::EINVAL.into())
}

fn enable(call: &Call<'_>, ring: &Uring) -> SyscallResult {
    if ring.is_enabled.swap(true, Ordering::AcqRel) {
        return Err(Errno::EBADFD.into());
    }
    if ring.setup & IORING_SETUP_SINGLE_ISSUER != 0 {
        ring.issuer.store(call.thread.tid() as u32, Ordering::Relaxed);
    }
    if let Some(poller) = ring.poller.get() {
        poller.wake();
    }
    Ok(0.into())
}

fn register_counter(call: &Call<'_>, ring: &Uring, is_async: bool) -> SyscallResult {
    if call.uint(3) != 1 {
        return Err(Errno::EINVAL.into());
    }
    let descriptor = call.thread.space().read::<u32>(call.word(2))?.cast_signed();
    let mut notification = ring.completions.notification.lock();
    if notification.is_some() {
        return Err(Errno::EBUSY.into());
    }
    let open = call.thread.descriptors().get(descriptor)?;
    let counter = downcast_arc(&open.file).ok_or(Errno::EINVAL)?;
    *notification = Some(Notification { counter, is_async });
    Ok(0.into())
}

/// The list of `struct io_uring_restriction`, of 16 bytes each.
fn register_restrictions(call: &Call<'_>, ring: &Uring, address: usize, count: usize) -> SyscallResult {
    const ENTRY: usize = 16;
    const COUNT_MAX: usize = 128;
    if ring.is_enabled.load(Ordering::Acquire) {
        return Err(Errno::EBADFD.into());
    }
    if ring.rules.lock().restrictions.is_set {
        return Err(Errno::EBUSY.into());
    }
    if address == 0 || count > COUNT_MAX {
        return Err(Errno::EINVAL.into());
    }
    let bytes = get_bytes(call, address, count * ENTRY)?;
    let mut restrictions = Restrictions::default();
    restrictions.is_set = true;
    for entry in bytes.as_chunks::<ENTRY>().0 {
        let kind = u32::from(u16::from_ne_bytes([entry[0], entry[1]]));
        let value = entry[2];
        let restriction = match kind {
            0 => Restriction::Register(value),
            1 => Restriction::Entry(value),
            2 => Restriction::FlagsAllowed(value),
            3 => Restriction::FlagsRequired(value),
            _ => return Err(Errno::EINVAL.into()),
        };
        restrictions.add(restriction).map_err(|_| Errno::EINVAL)?;
    }
    ring.rules.lock().restrictions = restrictions;
    Ok(0.into())
}

/// Sets the most workers of both kinds, and tells the numbers from before. 0 leaves a number as it is.
fn set_workers(call: &Call<'_>, ring: &Uring, address: usize, count: usize) -> SyscallResult {
    if address == 0 || count != 2 {
        return Err(Errno::EINVAL.into());
    }
    let space = call.thread.space();
    let wanted = space.read::<[u32; 2]>(address)?;
    if wanted.iter().any(|&number| number > i32::MAX as u32) {
        return Err(Errno::EINVAL.into());
    }
    space.probe_write(address, size_of::<[u32; 2]>())?;
    let before = {
        let mut rules = ring.rules.lock();
        let before = rules.workers;
        for (number, wanted) in rules.workers.iter_mut().zip(wanted) {
            *number = if wanted == 0 { *number } else { wanted };
        }
        before
    };
    call.thread.store_result(address, before.map(u32::to_ne_bytes).as_flattened())?;
    Ok(0.into())
}

/// The `struct io_uring_buf_reg` of a ring of provided buffers.
fn change_buffer_ring(
    call: &Call<'_>,
    ring: &Uring,
    (address, count): (usize, usize),
    is_new: bool,
) -> SyscallResult {
    const ENTRIES_MAX: u32 = 1 << 15;
    if address == 0 || count != 1 {
        return Err(Errno::EINVAL.into());
    }
    let [start, numbers, reserved @ ..] = call.thread.space().read::<[u64; 5]>(address)?;
    let (entries, group, padding) = (numbers as u32, (numbers >> 32) as u16, numbers >> 48);
    if reserved != [0; 3] || padding != 0 {
        return Err(Errno::EINVAL.into());
    }
    if !is_new {
        ring.provided.lock().unregister(group)?;
        return Ok(0.into());
    }
    if start == 0 {
        return Err(Errno::EFAULT.into());
    }
    if !start.is_multiple_of(PAGE_SIZE as u64) || !entries.is_power_of_two() || entries > ENTRIES_MAX {
        return Err(Errno::EINVAL.into());
    }
    let at = usize::try_from(start).map_err(|_| Errno::EFAULT)?;
    call.thread.space().probe_write(at, 1)?;
    ring.provided.lock().register(group, start, entries as u16)?;
    Ok(0.into())
}

/// Says which operations there are.
fn probe(call: &Call<'_>, address: usize, count: usize) -> SyscallResult {
    const HEADER: usize = size_of::<abi::io_uring_probe>();
    const ENTRY: usize = size_of::<abi::io_uring_probe_op>();
    const ENTRIES_MAX: usize = 256;
    let last = (0..=u8::MAX).rev().find(|&opcode| is_known(opcode)).unwrap_or(0);
    if address == 0 || count > ENTRIES_MAX {
        return Err(Errno::EINVAL.into());
    }
    let count = count.min(usize::from(last) + 1);
    let mut answer = get_bytes(call, address, HEADER + count * ENTRY)?;
    if answer.iter().any(|&byte| byte != 0) {
        return Err(Errno::EINVAL.into());
    }
    (answer[0], answer[1]) = (last, count as u8);
    for (opcode, entry) in answer[HEADER..].chunks_exact_mut(ENTRY).enumerate() {
        entry[0] = opcode as u8;
        if is_known(opcode as u8) {
            entry[2..4].copy_from_slice(&OP_SUPPORTED.to_ne_bytes());
        }
    }
    put(call, address, &answer)?;
    Ok(0.into())
}
