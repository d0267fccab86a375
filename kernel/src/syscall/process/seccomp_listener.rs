//! Requests about the listener of a filter, seccomp_unotify(2).

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use heddle_kernel_core::seccomp::notify::ListenerReply;

use crate::call::Caller;
use crate::call::caller::carry_out;
use crate::error::{Errno, TryResult};
use crate::process::seccomp::listener::{FilterListener, NOTIFICATION_BYTES, NewDescriptor};
use crate::syscall::{Call, SyscallResult, get};
use crate::wait::operation::{Operation, WaitOptions};
use crate::wait::queue::Watch;

/// `SECCOMP_IOCTL_NOTIF_RECV`, `…_SEND`, `…_ID_VALID` in its two spellings, and `…_ADDFD` without its size.
const RECEIVE: u32 = 0xc050_2100;
const SEND: u32 = 0xc018_2101;
const IS_VALID: u32 = 0x4008_2102;
const IS_VALID_OF_OLD: u32 = 0x8008_2102;
const ADD_DESCRIPTOR: u32 = 0x2103;
/// The bits of a request that say how long its structure is, and in which direction it goes.
const SIZE_BITS: u32 = 0x3fff_0000;
const SIZE_SHIFT: u32 = 16;
const DIRECTION_BITS: u32 = 0xc000_0000;

/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`.
const FLAG_CONTINUE: u32 = 1;
/// `SECCOMP_ADDFD_FLAG_SETFD`, `SECCOMP_ADDFD_FLAG_SEND`.
const ADD_SET: u32 = 1;
const ADD_SEND: u32 = 2;
/// Bytes of `struct seccomp_notif_addfd`, and the most of a later one.
const ADD_BYTES: usize = 24;
const ADD_BYTES_MAX: usize = 4096;

/// ioctl(2) on a listener.
pub fn ioctl(call: &Call<'_>, listener: &Arc<FilterListener>, request: u32, address: usize) -> SyscallResult {
    match request {
        RECEIVE => receive(call, listener, address),
        SEND => {
            let reply: [u8; 24] = get(call, address)?;
            send(listener, reply)
        }
        IS_VALID | IS_VALID_OF_OLD => {
            let id = u64::from_ne_bytes(get(call, address)?);
            if listener.is_valid(id) { Ok(0.into()) } else { Err(Errno::ENOENT.into()) }
        }
        _ if request & !(SIZE_BITS | DIRECTION_BITS) == ADD_DESCRIPTOR => {
            add_descriptor(call, listener, ((request & SIZE_BITS) >> SIZE_SHIFT) as usize, address)
        }
        _ => Err(Errno::EINVAL.into()),
    }
}

struct Receive {
    caller: Caller,
    listener: Arc<FilterListener>,
    address: usize,
}

impl Operation for Receive {
    fn attempt(&mut self) -> TryResult<usize> {
        self.listener.receive(&self.caller, &self.caller.space(), self.address)
    }

    /// As in Linux, a signal ends it for good.
    fn end(&self, error: Errno) -> Result<usize, Errno> {
        Err(if error == Errno::ERESTARTSYS { Errno::EINTR } else { error })
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        self.listener.watch(watch)
    }
}

/// Waits for a call, whatever the file's flags say, as in Linux.
fn receive(call: &Call<'_>, listener: &Arc<FilterListener>, address: usize) -> SyscallResult {
    let given: [u8; NOTIFICATION_BYTES] = get(call, address)?;
    if given.iter().any(|&byte| byte != 0) {
        return Err(Errno::EINVAL.into());
    }
    let (caller, listener) = (call.thread.clone(), listener.clone());
    carry_out(call.thread, WaitOptions::default(), Receive { caller, listener, address })
}

/// A `struct seccomp_notif_resp`.
fn send(listener: &FilterListener, bytes: [u8; 24]) -> SyscallResult {
    let ([id, value], [error, flags]) = (words(&bytes, 0), halves(&bytes, 16));
    let reply =
        ListenerReply { value: value as i64, error: error as i32, is_continued: flags & FLAG_CONTINUE != 0 };
    if flags & !FLAG_CONTINUE != 0 || reply.is_continued && (reply.error != 0 || reply.value != 0) {
        return Err(Errno::EINVAL.into());
    }
    listener.reply(id, reply)?;
    Ok(0.into())
}

/// A `struct seccomp_notif_addfd` of this size, of which only zeros may follow what is known.
fn add_descriptor(call: &Call<'_>, listener: &FilterListener, size: usize, address: usize) -> SyscallResult {
    if !(ADD_BYTES..ADD_BYTES_MAX).contains(&size) {
        return Err(Errno::EINVAL.into());
    }
    let bytes: [u8; ADD_BYTES] = get(call, address)?;
    let rest = crate::syscall::get_bytes(call, address.wrapping_add(ADD_BYTES), size - ADD_BYTES)?;
    if rest.iter().any(|&byte| byte != 0) {
        return Err(Errno::E2BIG.into());
    }
    let ([id], [flags, source, number, descriptor_flags]) = (words(&bytes, 0), halves(&bytes, 8));
    if descriptor_flags & !linux::O_CLOEXEC != 0
        || flags & !(ADD_SET | ADD_SEND) != 0
        || number != 0 && flags & ADD_SET == 0
    {
        return Err(Errno::EINVAL.into());
    }
    let open = call.thread.descriptors().get(source as i32)?;
    if open.flags().contains(crate::fs::StatusFlags::PATH) {
        return Err(Errno::EBADF.into());
    }
    let new = NewDescriptor {
        open,
        number: (flags & ADD_SET != 0).then_some(number as i32),
        close_on_exec: descriptor_flags != 0,
        is_reply: flags & ADD_SEND != 0,
    };
    Ok((listener.give(id, new)? as usize).into())
}

/// 64-bit words of a structure, from a byte offset on.
fn words<const N: usize>(bytes: &[u8], from: usize) -> [u64; N] {
    core::array::from_fn(|index| {
        let at = from + index * size_of::<u64>();
        bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_ne_bytes(*word))
    })
}

/// 32-bit words likewise.
fn halves<const N: usize>(bytes: &[u8], from: usize) -> [u32; N] {
    core::array::from_fn(|index| {
        let at = from + index * size_of::<u32>();
        bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_ne_bytes(*word))
    })
}
