//! `epoll_create`, `epoll_ctl`, `epoll_wait`.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::arch::paging::USER_END;
use crate::arch::time::now_ns;
use crate::call::caller::{Caller, carry_out};
use crate::error::{Errno, TryError, TryResult};
use crate::fs::epoll::{Epoll, ReadyReport, Reports};
use crate::fs::{OpenFile, StatusFlags, downcast_arc};
use crate::memory::fallible;
use crate::signal::SignalSet;
use crate::syscall::fs::{encode, field, get, get_file};
use crate::syscall::{Call, SyscallResult};
use crate::wait::operation::{Operation, Step, WaitOptions};
use crate::wait::queue::Watch;
use crate::wait::relay;

const EVENT: usize = size_of::<linux::epoll_event>();
/// The most reports that a call may ask for, as in Linux.
const REPORTS_MAX: usize = i32::MAX as usize / EVENT;
/// Reports that one step takes, so that they fit a small buffer here.
const STEP_REPORTS: usize = 128;

/// epoll_create(2).
pub fn epoll_create(call: &mut Call<'_>) -> SyscallResult {
    if call.int(0) <= 0 {
        return Err(Errno::EINVAL.into());
    }
    create(call, 0)
}

/// epoll_create1(2).
pub fn epoll_create1(call: &mut Call<'_>) -> SyscallResult {
    create(call, call.uint(0))
}

fn create(call: &Call<'_>, flags: u32) -> SyscallResult {
    if flags & !linux::EPOLL_CLOEXEC != 0 {
        return Err(Errno::EINVAL.into());
    }
    let open = fallible::try_arc(OpenFile::new(Epoll::new()?, StatusFlags::RDWR))?;
    crate::syscall::fs::add(call, open, flags != 0)
}

fn instance(call: &Call<'_>, index: usize) -> Result<(Arc<OpenFile>, Arc<Epoll>), Errno> {
    let open = get_file(call, index)?;
    let epoll = downcast_arc(&open.file).ok_or(Errno::EINVAL)?;
    Ok((open, epoll))
}

/// epoll_ctl(2).
pub fn epoll_ctl(call: &mut Call<'_>) -> SyscallResult {
    let (operation, descriptor) = (call.uint(1), call.int(2));
    let bytes: [u8; EVENT] =
        if operation == linux::EPOLL_CTL_DEL { [0; EVENT] } else { get(call, call.word(3))? };
    let (events, data) =
        (field!(&bytes, linux::epoll_event, events), field!(&bytes, linux::epoll_event, data));
    let (outer, open) = (get_file(call, 0)?, get_file(call, 2)?);
    if !open.file.is_pollable() {
        return Err(Errno::EPERM.into());
    }
    let epoll: Arc<Epoll> = downcast_arc(&outer.file).ok_or(Errno::EINVAL)?;
    if Arc::ptr_eq(&outer, &open) {
        return Err(Errno::EINVAL.into());
    }
    match operation {
        linux::EPOLL_CTL_ADD => epoll.add(descriptor, &open, events, data)?,
        linux::EPOLL_CTL_MOD => epoll.modify(descriptor, &open, events, data)?,
        linux::EPOLL_CTL_DEL => epoll.remove(descriptor, &open)?,
        _ => return Err(Errno::EINVAL.into()),
    }
    Ok(0.into())
}

/// epoll_wait(2).
pub fn epoll_wait(call: &mut Call<'_>) -> SyscallResult {
    let timeout = milliseconds(call);
    wait(call, timeout, None)
}

/// epoll_pwait(2).
pub fn epoll_pwait(call: &mut Call<'_>) -> SyscallResult {
    let mask = crate::syscall::fs::poll::get_mask(call, call.word(4), call.word(5))?;
    let timeout = milliseconds(call);
    wait(call, timeout, mask)
}

/// epoll_pwait2(2).
pub fn epoll_pwait2(call: &mut Call<'_>) -> SyscallResult {
    let timeout = crate::syscall::fs::poll::get_timeout(call, call.word(3))?;
    let mask = crate::syscall::fs::poll::get_mask(call, call.word(4), call.word(5))?;
    wait(call, timeout, mask)
}

fn milliseconds(call: &Call<'_>) -> Option<u64> {
    u64::try_from(call.int(3)).ok().map(|timeout| timeout * 1_000_000)
}

/// Steps in which a call that does not wait catches up with wakes: others may wake for ever.
const CATCH_UPS_MAX: u16 = 1024;

struct EpollWait {
    caller: Caller,
    /// Keeps the instance from ending.
    _open: Arc<OpenFile>,
    epoll: Arc<Epoll>,
    address: usize,
    limit: usize,
    /// Reports that were handed over.
    done: usize,
    /// Hints that were there when the first report was taken, less those that were looked at: nothing is reported
    /// twice. `None` before that.
    left: Option<usize>,
    /// How often it may still tell interests itself of what has happened before.
    catch_ups: u16,
}

impl EpollWait {
    /// Hands over some reports; whether there may be more for this call.
    fn report_some(&mut self, hints: usize) -> TryResult<bool> {
        let mut left = self.left.unwrap_or(hints);
        let wanted = (self.limit - self.done).min(left).min(STEP_REPORTS);
        let address = self.address + self.done * EVENT;
        // Events that are taken from the ready list must reach the program.
        if let Err(fault) = self.caller.space().probe_write(address, wanted * EVENT) {
            // With nothing to report, the buffer does not matter.
            return if self.done > 0 || self.epoll.is_ready()? { Err(fault.into()) } else { Ok(false) };
        }
        let mut reports = Reports::new();
        let collected = self.epoll.collect(wanted, &mut left, &mut reports);
        if !reports.is_empty() {
            put_reports(&self.caller, address, &reports)?;
            self.done += reports.len();
        }
        if self.done > 0 {
            self.left = Some(left);
        }
        collected?;
        Ok(left > 0 && self.done < self.limit && self.done > 0)
    }

    /// The end of a call that has reported something: the rest is for another thread that waits.
    fn finish(&self) -> usize {
        self.epoll.pass_on();
        self.done
    }
}

impl Operation for EpollWait {
    /// One step, as an attempt; the driver uses [`Operation::step`].
    fn attempt(&mut self) -> TryResult<usize> {
        match self.epoll.hints() {
            0 => Err(TryError::WouldBlock),
            hints => self.report_some(hints).map(usize::from),
        }
    }

    fn step(&mut self, no_wait: bool) -> Step {
        match self.attempt() {
            Ok(1) => Step::Again,
            Ok(_) | Err(TryError::WouldBlock) if self.done > 0 => Step::Finished(Ok(self.finish())),
            Ok(_) if !self.epoll.has_no_hints() => Step::Again,
            Err(TryError::Fault(fault)) => Step::Fault(fault),
            Err(TryError::Error(error)) => Step::Finished(self.end(error)),
            // A file that is ready by now may be watched by so many that its interest here has not been told.
            Ok(_) | Err(TryError::WouldBlock) if no_wait && relay::is_behind() && self.catch_ups > 0 => {
                self.catch_ups -= 1;
                relay::catch_up();
                Step::Again
            }
            Ok(_) | Err(TryError::WouldBlock) if no_wait => Step::Finished(Ok(0)),
            Ok(_) | Err(TryError::WouldBlock) => Step::Wait,
        }
    }

    /// The deadline is no error, and no handler makes the call start again.
    fn end(&self, error: Errno) -> Result<usize, Errno> {
        match error {
            _ if self.done > 0 => Ok(self.finish()),
            Errno::EAGAIN => Ok(0),
            Errno::ERESTARTSYS => Err(Errno::EINTR),
            error => Err(error),
        }
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        self.epoll.may_be_ready(watch)
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}

fn wait(call: &mut Call<'_>, timeout: Option<u64>, mask: Option<SignalSet>) -> SyscallResult {
    let limit = usize::try_from(call.int(2)).ok().filter(|limit| (1..=REPORTS_MAX).contains(limit));
    let limit = limit.ok_or(Errno::EINVAL)?;
    let address = call.word(1);
    if address.checked_add(limit * EVENT).is_none_or(|end| end > USER_END) {
        return Err(Errno::EFAULT.into());
    }
    let (open, epoll) = instance(call, 0)?;
    let caller = call.thread.clone();
    if let Some(mask) = mask {
        caller.set_blocked_for_wait(mask);
    }
    let no_wait = timeout == Some(0);
    let deadline_ns = timeout.filter(|_| !no_wait).map(|timeout| now_ns().saturating_add(timeout));
    let operation = EpollWait {
        caller,
        _open: open,
        epoll,
        address,
        limit,
        done: 0,
        left: None,
        catch_ups: CATCH_UPS_MAX,
    };
    carry_out(call.thread, WaitOptions { no_wait, deadline_ns }, operation)
}

/// Reports that are handed over in one copy.
const PIECE: usize = 8;

fn put_reports(caller: &Caller, address: usize, reports: &[ReadyReport]) -> Result<(), Errno> {
    let mut bytes = [0; PIECE * EVENT];
    for (number, piece) in reports.chunks(PIECE).enumerate() {
        for (event, report) in bytes.chunks_exact_mut(EVENT).zip(piece) {
            event.copy_from_slice(&encode!(linux::epoll_event { events: report.events, data: report.data }));
        }
        caller.store_result(address + number * PIECE * EVENT, &bytes[..piece.len() * EVENT])?;
    }
    Ok(())
}
