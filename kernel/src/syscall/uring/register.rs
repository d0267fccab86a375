//! io_uring_register(2): files, buffers, an eventfd, and what there is.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use linux_raw_sys::io_uring::{self as abi, IORING_REGISTER_FILES_SKIP, io_uring_register_op as Register};

use heddle_kernel_core::fallible::push_reserved;

use crate::error::{Errno, TryResult};
use crate::fs::eventfd::EventCounter;
use crate::fs::{OpenFile, downcast, downcast_arc};
use crate::memory::fallible;
use crate::syscall::fs::{get_bytes, put};
use crate::syscall::uring::operation::is_known;
use crate::syscall::uring::ring::Uring;
use crate::syscall::uring::submit::get_ring;
use crate::syscall::{Call, SyscallResult};

const FILES_MAX: usize = 1 << 15;
/// As in Linux.
const BUFFERS_MAX: usize = 1 << 14;
/// The largest buffer, as in Linux.
const BUFFER_BYTES_MAX: u64 = 1 << 30;

const OP_SUPPORTED: u16 = 1;

/// io_uring_register(2).
pub fn io_uring_register(call: &mut Call<'_>) -> SyscallResult {
    let ring = get_ring(call)?;
    let (operation, address, count) = (call.uint(1), call.word(2), call.uint(3) as usize);
    let is = |register: Register| operation == register as u32;
    if is(Register::IORING_REGISTER_BUFFERS) {
        return register_buffers(call, &ring, address, count);
    }
    if is(Register::IORING_REGISTER_FILES) {
        return register_files(call, &ring, address, count);
    }
    if is(Register::IORING_REGISTER_FILES_UPDATE) {
        return update_files(call, &ring, address, count);
    }
    if is(Register::IORING_REGISTER_PROBE) {
        return probe(call, address, count);
    }
    if is(Register::IORING_REGISTER_EVENTFD) {
        return register_counter(call, &ring, address, count);
    }
    if address != 0 || count != 0 {
        return Err(Errno::EINVAL.into());
    }
    if is(Register::IORING_REGISTER_ENABLE_RINGS) {
        let was_enabled = ring.is_enabled.swap(true, Ordering::AcqRel);
        return if was_enabled { Err(Errno::EBADFD.into()) } else { Ok(0.into()) };
    }
    if is(Register::IORING_UNREGISTER_BUFFERS) {
        let buffers = core::mem::take(&mut ring.registered.lock().buffers);
        return if buffers.is_empty() { Err(Errno::ENXIO.into()) } else { Ok(0.into()) };
    }
    if is(Register::IORING_UNREGISTER_FILES) {
        let files = core::mem::take(&mut ring.registered.lock().files);
        return if files.is_empty() { Err(Errno::ENXIO.into()) } else { Ok(0.into()) };
    }
    if is(Register::IORING_UNREGISTER_EVENTFD) {
        let counter = ring.registered.lock().counter.take();
        return counter.map(|_| 0.into()).ok_or(Errno::ENXIO.into());
    }
    Err(Errno::EINVAL.into())
}

fn register_buffers(call: &Call<'_>, ring: &Uring, address: usize, count: usize) -> SyscallResult {
    const IOVEC: usize = 16;
    if !ring.registered.lock().buffers.is_empty() {
        return Err(Errno::EBUSY.into());
    }
    if count == 0 || count > BUFFERS_MAX {
        return Err(Errno::EINVAL.into());
    }
    let bytes = get_bytes(call, address, count * IOVEC)?;
    let mut buffers = fallible::try_with_capacity(count)?;
    for entry in bytes.as_chunks::<8>().0.as_chunks::<2>().0 {
        let [start, length] = entry.map(u64::from_ne_bytes);
        let is_there = length > 0 && length <= BUFFER_BYTES_MAX && start.checked_add(length).is_some();
        if !is_there {
            return Err(if length > BUFFER_BYTES_MAX || length == 0 {
                Errno::EFAULT
            } else {
                Errno::EOVERFLOW
            }
            .into());
        }
        push_reserved(&mut buffers, (start, length));
    }
    ring.registered.lock().buffers = buffers;
    Ok(0.into())
}

/// The files of descriptors; -1 stands for none. A ring is refused: it would keep itself.
fn files_of(call: &Call<'_>, address: usize, count: usize) -> TryResult<Vec<(i32, Option<Arc<OpenFile>>)>> {
    let bytes = get_bytes(call, address, count * size_of::<i32>())?;
    let table = call.thread.descriptors();
    let mut files = fallible::try_with_capacity(count)?;
    for entry in bytes.as_chunks::<4>().0 {
        let descriptor = i32::from_ne_bytes(*entry);
        let open = match descriptor {
            -1 | IORING_REGISTER_FILES_SKIP => None,
            descriptor => Some(table.get(descriptor)?),
        };
        if open.as_ref().is_some_and(|open| downcast::<Uring>(open).is_some()) {
            return Err(Errno::EBADF.into());
        }
        push_reserved(&mut files, (descriptor, open));
    }
    Ok(files)
}

fn register_files(call: &Call<'_>, ring: &Uring, address: usize, count: usize) -> SyscallResult {
    if !ring.registered.lock().files.is_empty() {
        return Err(Errno::EBUSY.into());
    }
    if count == 0 {
        return Err(Errno::EINVAL.into());
    }
    if count > FILES_MAX || count > call.thread.process.descriptor_limit() {
        return Err(Errno::EMFILE.into());
    }
    let given = files_of(call, address, count)?;
    let mut files = fallible::try_with_capacity(count)?;
    for (descriptor, open) in given {
        if descriptor == IORING_REGISTER_FILES_SKIP {
            return Err(Errno::EBADF.into());
        }
        push_reserved(&mut files, open);
    }
    ring.registered.lock().files = files;
    Ok(0.into())
}

fn update_files(call: &Call<'_>, ring: &Uring, address: usize, count: usize) -> SyscallResult {
    if count == 0 {
        return Err(Errno::EINVAL.into());
    }
    let [numbers, list] = call.thread.space().read::<[u64; 2]>(address)?;
    let (offset, reserved) = (numbers as u32 as usize, numbers >> 32);
    let known = ring.registered.lock().files.len();
    if reserved != 0 || count > FILES_MAX {
        return Err(Errno::EINVAL.into());
    }
    if known == 0 {
        return Err(Errno::ENXIO.into());
    }
    if offset.checked_add(count).is_none_or(|end| end > known) {
        return Err(Errno::EINVAL.into());
    }
    let list = usize::try_from(list).map_err(|_| Errno::EFAULT)?;
    for (index, (descriptor, open)) in files_of(call, list, count)?.into_iter().enumerate() {
        if descriptor == IORING_REGISTER_FILES_SKIP {
            continue;
        }
        let before = {
            let mut registered = ring.registered.lock();
            registered.files.get_mut(offset + index).and_then(|place| core::mem::replace(place, open))
        };
        drop(before);
    }
    Ok(count.into())
}

fn register_counter(call: &Call<'_>, ring: &Uring, address: usize, count: usize) -> SyscallResult {
    if count != 1 {
        return Err(Errno::EINVAL.into());
    }
    let descriptor = call.thread.space().read::<u32>(address)?.cast_signed();
    let counter: Arc<EventCounter> =
        downcast_arc(&call.thread.descriptors().get(descriptor)?.file).ok_or(Errno::EINVAL)?;
    let mut registered = ring.registered.lock();
    if registered.counter.is_some() {
        return Err(Errno::EBUSY.into());
    }
    registered.counter = Some(counter);
    Ok(0.into())
}

/// Says which operations there are.
fn probe(call: &Call<'_>, address: usize, count: usize) -> SyscallResult {
    const HEADER: usize = size_of::<abi::io_uring_probe>();
    const ENTRY: usize = size_of::<abi::io_uring_probe_op>();
    const ENTRIES_MAX: usize = 256;
    let last = (0..=u8::MAX).rev().find(|&opcode| is_known(opcode)).unwrap_or(0);
    let count = count.min(ENTRIES_MAX);
    let mut answer = get_bytes(call, address, HEADER + count * ENTRY)?;
    if answer.iter().any(|&byte| byte != 0) {
        return Err(Errno::EINVAL.into());
    }
    let told = count.min(usize::from(last) + 1);
    (answer[0], answer[1]) = (last, told as u8);
    for (opcode, entry) in answer[HEADER..].chunks_exact_mut(ENTRY).take(told).enumerate() {
        entry[0] = opcode as u8;
        if is_known(opcode as u8) {
            entry[2..4].copy_from_slice(&OP_SUPPORTED.to_ne_bytes());
        }
    }
    put(call, address, &answer)?;
    Ok(0.into())
}
