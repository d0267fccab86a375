//! Descriptors: `close`, `dup`, `fcntl`, `ioctl`.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU8, Ordering};
use linux_raw_sys::{general as linux, ioctl as requests};

use crate::arch::time::now_ns;
use crate::call::caller::{Caller, carry_out};
use crate::error::Errno;
use crate::fs::descriptor::CLOSE_COST;
use crate::fs::flags::{FileFlags, check_open_without};
use crate::fs::pipe::{self, CAPACITY_MAX, PipeEnd};
use crate::fs::{DescriptorTable, FileType, OpenFile, StatusFlags, downcast};
use crate::net::inet::InetSocket;
use crate::process::io_signal;
use crate::process::seccomp::listener::ListenerFile;
use crate::sched::Budget;
use crate::syscall::fs::{flags, get, get_file, lease, owner, put};
use crate::syscall::process::seccomp_listener;
use crate::syscall::{Call, SyscallResult, pending};
use crate::wait::operation::WaitOptions;

/// The flags that `F_SETFL` changes.
const CHANGEABLE: StatusFlags = StatusFlags::APPEND
    .union(StatusFlags::NONBLOCK)
    .union(StatusFlags::DIRECT)
    .union(StatusFlags::NOATIME)
    .union(StatusFlags::from_bits_retain(linux::FASYNC));

/// A request of ioctl(2) that `linux-raw-sys` leaves out: the size of a block.
const FIGETBSZ: u32 = 2;
/// Flags of close_range(2), which `linux-raw-sys` leaves out.
const CLOSE_RANGE_UNSHARE: u32 = 2;
const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// close(2).
pub fn close(call: &mut Call<'_>) -> SyscallResult {
    let open = call.thread.descriptors().remove(call.int(0))?;
    if open.file.lingers() {
        open.closed_by(call.thread.process.pid)?;
        return close_lingering(call, open);
    }
    open.release_locks(call.thread.process.pid);
    Ok(0.into())
}

/// Closes a socket with `SO_LINGER` on: the call waits until the peer has all bytes, if nobody else has it open.
fn close_lingering(call: &Call<'_>, open: Arc<OpenFile>) -> SyscallResult {
    let is_last = Arc::strong_count(&open) == 1;
    let lingering = InetSocket::lingering(&open.file).filter(|_| is_last);
    drop(open);
    let Some(lingering) = lingering else { return Ok(0.into()) };
    let deadline_ns = Some(now_ns().saturating_add(lingering.limit_ns()));
    carry_out(call.thread, WaitOptions { no_wait: false, deadline_ns }, lingering)
}

/// close_range(2).
pub fn close_range(call: &mut Call<'_>) -> SyscallResult {
    let (first, last, flags) = (call.uint(0) as usize, call.uint(1) as usize, call.uint(2));
    if first > last || flags & !(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE) != 0 {
        return Err(Errno::EINVAL.into());
    }
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        call.thread.unshare_descriptors()?;
    }
    let table = call.thread.descriptors();
    let mut next = first;
    // A few of them at once; more of them as a call that waits.
    if close_some(call.thread, &table, &mut next, last, flags) {
        return Ok(0.into());
    }
    let caller = call.thread.clone();
    pending(async move {
        let mut budget = Budget::new();
        loop {
            caller.pace(&mut budget, CLOSE_AT_ONCE * CLOSE_COST).await?;
            if close_some(&caller, &table, &mut next, last, flags) {
                return Ok(0);
            }
        }
    })
}

/// Descriptors that are closed in one go.
const CLOSE_AT_ONCE: u32 = 8;

/// Closes some of the descriptors from `next` to `last`, or marks them. Returns whether these were all.
fn close_some(thread: &Caller, table: &DescriptorTable, next: &mut usize, last: usize, flags: u32) -> bool {
    for _ in 0..CLOSE_AT_ONCE {
        let Some(index) = table.next_in_use(*next).filter(|&index| index <= last) else { return true };
        *next = index + 1;
        let Ok(descriptor) = i32::try_from(index) else { return true };
        // Another thread may have closed it meanwhile.
        if flags & CLOSE_RANGE_CLOEXEC != 0 {
            let _ = table.set_close_on_exec(descriptor, true);
        } else if let Ok(open) = table.remove(descriptor) {
            let _ = open.closed_by(thread.process.pid);
        }
    }
    false
}

/// dup(2).
pub fn dup(call: &mut Call<'_>) -> SyscallResult {
    duplicate(call, 0, false)
}

fn duplicate(call: &Call<'_>, from: usize, close_on_exec: bool) -> SyscallResult {
    let table = call.thread.descriptors();
    let open = table.get(call.int(0))?;
    let descriptor = table.add(open, from, call.thread.process.descriptor_limit(), close_on_exec)?;
    Ok((descriptor as usize).into())
}

/// dup2(2).
pub fn dup2(call: &mut Call<'_>) -> SyscallResult {
    if call.int(0) == call.int(1) {
        call.thread.descriptors().get(call.int(0))?;
        return Ok((call.int(1) as usize).into());
    }
    replace(call, false)
}

/// dup3(2).
pub fn dup3(call: &mut Call<'_>) -> SyscallResult {
    let flags = call.uint(2);
    if flags & !linux::O_CLOEXEC != 0 || call.int(0) == call.int(1) {
        return Err(Errno::EINVAL.into());
    }
    replace(call, flags != 0)
}

fn replace(call: &Call<'_>, close_on_exec: bool) -> SyscallResult {
    let table = call.thread.descriptors();
    let open = table.get(call.int(0))?;
    let old = table.replace(call.int(1), open, call.thread.process.descriptor_limit(), close_on_exec)?;
    if let Some(old) = old {
        // As in Linux the error of what was closed is lost.
        let _ = old.closed_by(call.thread.process.pid);
    }
    Ok((call.int(1) as usize).into())
}

/// Whether a pipe is one of packets is decided when it is made.
fn check_packets(open: &OpenFile, before: StatusFlags, asked: StatusFlags) -> Result<(), Errno> {
    let (had, wants) = (before.contains(StatusFlags::DIRECT), asked.contains(StatusFlags::DIRECT));
    let is_kept = had == wants || pipe::end_of(open).is_none() || pipe::has_packets(open) != had;
    if is_kept { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `F_SETPIPE_SZ`.
fn set_pipe_capacity(call: &Call<'_>, pipe: &PipeEnd, capacity: usize) -> Result<usize, Errno> {
    // The next power of two is to fit 32 bits.
    if capacity > 1 << 31 {
        return Err(Errno::EINVAL);
    }
    let who = call.thread.credentials();
    let is_free = who.is_capable(linux::CAP_SYS_RESOURCE);
    if capacity > CAPACITY_MAX.load(Ordering::Relaxed) as usize && !is_free {
        return Err(Errno::EPERM);
    }
    pipe.set_capacity(capacity, &who)
}

/// fcntl(2).
pub fn fcntl(call: &mut Call<'_>) -> SyscallResult {
    let (descriptor, command, argument) = (call.int(0), call.uint(1), call.word(2));
    let table = call.thread.descriptors();
    let open = table.get(descriptor)?;
    let of_path = matches!(
        command,
        linux::F_DUPFD | linux::F_DUPFD_CLOEXEC | linux::F_GETFD | linux::F_SETFD | linux::F_GETFL
    );
    if open.flags().contains(StatusFlags::PATH) && !of_path {
        return Err(Errno::EBADF.into());
    }
    let value = match command {
        linux::F_DUPFD | linux::F_DUPFD_CLOEXEC => {
            let from = call.int(2);
            if from < 0 || from as usize >= call.thread.process.descriptor_limit() {
                return Err(Errno::EINVAL.into());
            }
            return duplicate(call, from as usize, command == linux::F_DUPFD_CLOEXEC);
        }
        linux::F_GETFD => usize::from(table.close_on_exec(descriptor)?),
        linux::F_SETFD => {
            table.set_close_on_exec(descriptor, argument as u32 & linux::FD_CLOEXEC != 0)?;
            0
        }
        linux::F_GETFL => open.flags().difference(StatusFlags::EXECUTE).bits() as usize,
        linux::F_SETFL => {
            let mut asked = StatusFlags::from_bits_retain(argument as u32).intersection(CHANGEABLE);
            if asked.bits() & linux::FASYNC != 0 && !io_signal::is_supported(&open) {
                asked.remove(StatusFlags::from_bits_retain(linux::FASYNC));
            }
            let before = open.flags();
            if before.symmetric_difference(asked).contains(StatusFlags::APPEND) {
                check_open_without(&open, FileFlags::APPEND)?;
            }
            check_packets(&open, before, asked)?;
            if before.symmetric_difference(asked).bits() & linux::FASYNC != 0 {
                owner::set_async(&open, descriptor, asked.bits() & linux::FASYNC != 0)?;
            }
            open.set_flags(before.difference(CHANGEABLE) | asked);
            0
        }
        linux::F_GETLK | linux::F_SETLK | linux::F_SETLKW => {
            return crate::syscall::fs::lock::fcntl(call, &open, false);
        }
        linux::F_OFD_GETLK | linux::F_OFD_SETLK | linux::F_OFD_SETLKW => {
            return crate::syscall::fs::lock::fcntl(call, &open, true);
        }
        linux::F_GETOWN => owner::number(call, &open) as isize as usize,
        linux::F_SETOWN => {
            owner::set_by_number(call, &open, call.int(2))?;
            0
        }
        linux::F_GETOWN_EX => return owner::get_extended(call, &open),
        linux::F_SETOWN_EX => return owner::set_extended(call, &open),
        linux::F_GETSIG => owner::signal(&open),
        linux::F_SETSIG => return owner::set_signal(&open, argument),
        linux::F_GETPIPE_SZ => pipe::end_of(&open).ok_or(Errno::EBADF)?.capacity(),
        linux::F_SETPIPE_SZ => {
            let pipe = pipe::end_of(&open).ok_or(Errno::EBADF)?;
            set_pipe_capacity(call, pipe, argument)?
        }
        linux::F_GET_RW_HINT => {
            let hint = write_hint(&open).map_or(0, |hint| hint.load(Ordering::Relaxed));
            put(call, argument, &u64::from(hint).to_ne_bytes())?;
            0
        }
        linux::F_SET_RW_HINT => {
            let hint = u64::from_ne_bytes(get(call, argument)?);
            if hint > RW_HINT_MAX {
                return Err(Errno::EINVAL.into());
            }
            write_hint(&open).ok_or(Errno::EINVAL)?.store(hint as u8, Ordering::Relaxed);
            0
        }
        linux::F_GET_SEALS => open.file.seals()? as usize,
        linux::F_GETLEASE => lease::get(&open),
        linux::F_SETLEASE => lease::set(call, &open)?,
        linux::F_NOTIFY => lease::watch_directory(call, &open)?,
        linux::F_ADD_SEALS => {
            if u32::try_from(argument).is_err() {
                return Err(Errno::EINVAL.into());
            }
            if !open.is_writable() {
                return Err(Errno::EPERM.into());
            }
            open.file.add_seals(argument as u32)?;
            0
        }
        _ => return Err(Errno::EINVAL.into()),
    };
    Ok(value.into())
}

/// `RWH_WRITE_LIFE_EXTREME`.
const RW_HINT_MAX: u64 = 5;

/// Where the hint of the file's node is kept.
fn write_hint(open: &OpenFile) -> Option<&AtomicU8> {
    open.place.as_ref().and_then(|place| place.entry.node.write_hint())
}

fn is_socket(open: &OpenFile) -> bool {
    open.kind() == FileType::Socket
}

/// ioctl(2). Requests on the descriptor or on any file are done here, the others are the file's.
pub fn ioctl(call: &mut Call<'_>) -> SyscallResult {
    let open = get_file(call, 0)?;
    let (descriptor, request, argument) = (call.int(0), call.uint(1), call.word(2));
    let table = call.thread.descriptors();
    match request {
        requests::FIOCLEX => table.set_close_on_exec(descriptor, true)?,
        requests::FIONCLEX => table.set_close_on_exec(descriptor, false)?,
        requests::FIONBIO => {
            let on = i32::from_ne_bytes(get(call, argument)?) != 0;
            let mut flags = open.flags();
            flags.set(StatusFlags::NONBLOCK, on);
            open.set_flags(flags);
        }
        requests::FIOASYNC => {
            let on = i32::from_ne_bytes(get(call, argument)?) != 0;
            let mut flags = open.flags();
            let is_on = flags.bits() & linux::FASYNC != 0;
            if on != is_on && !io_signal::is_supported(&open) {
                return Err(Errno::ENOTTY.into());
            }
            if on != is_on {
                owner::set_async(&open, descriptor, on)?;
                flags.set(StatusFlags::from_bits_retain(linux::FASYNC), on);
                open.set_flags(flags);
            }
        }
        requests::FIOSETOWN | requests::SIOCSPGRP if is_socket(&open) => {
            owner::set_by_number(call, &open, i32::from_ne_bytes(get(call, argument)?))?;
        }
        requests::FIOGETOWN | requests::SIOCGPGRP if is_socket(&open) => {
            put(call, argument, &owner::number(call, &open).to_ne_bytes())?;
        }
        requests::FIONREAD if open.file.size().is_some() => {
            let left = open.file.size().unwrap_or(0).saturating_sub(*open.offset.lock());
            put(call, argument, &(left as u32).to_ne_bytes())?;
        }
        FIGETBSZ if open.kind() == FileType::Regular => put(call, argument, &4096_u32.to_ne_bytes())?,
        _ => {
            // Its requests may wait, which a file's own cannot.
            if let Some(file) = downcast::<ListenerFile>(&open) {
                return seccomp_listener::ioctl(call, &file.0, request, argument);
            }
            if flags::is_request(request) {
                return flags::ioctl(call, &open, request, argument);
            }
            return Ok(open.file.ioctl(call, &open, request, argument)?.into());
        }
    }
    Ok(0.into())
}
