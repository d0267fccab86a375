//! The calls about signals.

use alloc::sync::Arc;
use heddle_kernel_core::protection_key::KeyRights;
use heddle_kernel_core::signal::{
    Action, AlternateStack, AlternateStackError, Detail, Information, Signal, SignalSet,
};
use linux_raw_sys::general as linux;

use crate::arch::float::key_rights_place;
use crate::arch::{protection_key, signal as frame};
use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::memory::fallible;
use crate::memory::values::read_timespec;
use crate::process::pid_namespace::shown;
use crate::process::{Process, Thread, executor, table};
use crate::signal;
use crate::signal::{Permission, force_segv, take_pending};
use crate::syscall::{Call, SyscallResult, pending, user};
use crate::time::Deadline;
use crate::wait::node::WaitKind;

/// The size of a signal set, which every call is told.
const SET_BYTES: usize = size_of::<u64>();

pub fn signal_argument(number: i32) -> Result<Option<Signal>, Errno> {
    if number == 0 {
        return Ok(None);
    }
    Signal::new(number).map(Some).ok_or(Errno::EINVAL)
}

fn check_set_size(size: usize) -> Result<(), Errno> {
    if size == SET_BYTES { Ok(()) } else { Err(Errno::EINVAL) }
}

/// rt_sigaction(2).
pub fn rt_sigaction(call: &mut Call<'_>) -> SyscallResult {
    check_set_size(call.word(3))?;
    let space = call.thread.space();
    let new = match call.word(1) {
        0 => None,
        address => Some(Action::from_words(user::read_words(&space, address)?)),
    };
    let signal = Signal::new(call.int(0)).ok_or(Errno::EINVAL)?;
    if new.is_some() && SignalSet::UNBLOCKABLE.contains(signal) {
        return Err(Errno::EINVAL.into());
    }
    let actions = call.thread.process.actions();
    let old = *actions.lock().get(signal);
    if call.word(2) != 0 {
        user::write_words(&space, call.word(2), &old.to_words())?;
    }
    if let Some(action) = new {
        actions.lock().set(signal, action);
        if action.ignores(signal) {
            signal::discard(&call.thread.process, signal);
        }
    }
    Ok(0.into())
}

/// rt_sigprocmask(2).
pub fn rt_sigprocmask(call: &mut Call<'_>) -> SyscallResult {
    check_set_size(call.word(3))?;
    let space = call.thread.space();
    let old = call.thread.blocked();
    let new = match call.word(1) {
        0 => None,
        address => {
            let [bits] = user::read_words(&space, address)?;
            let set = SignalSet(bits);
            Some(match call.uint(0) {
                linux::SIG_BLOCK => old.union(set),
                linux::SIG_UNBLOCK => old.difference(set),
                linux::SIG_SETMASK => set,
                _ => return Err(Errno::EINVAL.into()),
            })
        }
    };
    if call.word(2) != 0 {
        user::write_words(&space, call.word(2), &[old.0])?;
    }
    if let Some(mask) = new {
        call.thread.set_blocked(mask);
    }
    Ok(0.into())
}

/// rt_sigpending(2).
pub fn rt_sigpending(call: &mut Call<'_>) -> SyscallResult {
    if call.word(1) > SET_BYTES {
        return Err(Errno::EINVAL.into());
    }
    let thread = call.thread;
    let all = thread.process.pending_signals().union(thread.pending_signals());
    let bytes = all.intersection(thread.blocked()).0.to_ne_bytes();
    thread.space().write_bytes(call.word(0), &bytes[..call.word(1)])?;
    Ok(0.into())
}

/// rt_sigsuspend(2).
pub fn rt_sigsuspend(call: &mut Call<'_>) -> SyscallResult {
    check_set_size(call.word(1))?;
    let [bits] = user::read_words(&call.thread.space(), call.word(0))?;
    let thread = call.thread.clone();
    thread.set_blocked_for_wait(SignalSet(bits));
    pending(async move { Err(sleep_until_signal(&thread).await) })
}

/// pause(2).
pub fn pause(call: &mut Call<'_>) -> SyscallResult {
    let thread = call.thread.clone();
    pending(async move { Err(sleep_until_signal(&thread).await) })
}

async fn sleep_until_signal(thread: &Caller) -> Errno {
    // A future that never completes: only a signal ends the wait.
    let _ = thread.wait(WaitKind::Interruptible, core::future::pending::<()>()).await;
    Errno::ERESTARTNOHAND
}

/// rt_sigtimedwait(2).
pub fn rt_sigtimedwait(call: &mut Call<'_>) -> SyscallResult {
    check_set_size(call.word(3))?;
    let space = call.thread.space();
    let [bits] = user::read_words(&space, call.word(0))?;
    let wanted = SignalSet(bits).difference(SignalSet::UNBLOCKABLE);
    let information = call.word(1);
    let timeout = match call.word(2) {
        0 => None,
        address => Some(read_timespec(&space, address)?),
    };
    if information != 0 {
        space.probe_write(information, Information::BYTES)?;
    }
    let thread = call.thread.clone();
    if let Some(found) = take_pending(&thread, wanted) {
        if information != 0 {
            thread.store_result(information, found.to_words().map(u64::to_ne_bytes).as_flattened())?;
        }
        return Ok((found.signal.number() as usize).into());
    }
    if timeout == Some(0) {
        return Err(Errno::EAGAIN.into());
    }
    pending(async move {
        // Unblocked while waiting, so that senders choose this thread and wake it.
        let before = thread.blocked();
        thread.set_awaited(wanted);
        thread.set_blocked(before.difference(wanted));
        let deadline = Deadline::after(timeout);
        let slept = thread.wait(WaitKind::Interruptible, deadline.sleep()).await;
        let found = take_pending(&thread, wanted);
        thread.set_blocked(before);
        thread.set_awaited(SignalSet::EMPTY);
        let Some(found) = found else {
            return Err(if slept.is_ok() { Errno::EAGAIN } else { Errno::EINTR });
        };
        if information != 0 {
            thread.resolve(|space| user::write_words(space, information, &found.to_words())).await?;
        }
        Ok(found.signal.number() as usize)
    })
}

/// rt_sigreturn(2).
pub fn rt_sigreturn(call: &mut Call<'_>) -> SyscallResult {
    let thread = call.thread;
    match take_frame(call) {
        Err(crate::error::TryError::Fault(fault)) => Err(fault.into()),
        Err(_) => {
            force_segv(thread);
            Ok(call.context.result().into())
        }
        Ok(()) => Ok(call.context.result().into()),
    }
}

fn take_frame(call: &mut Call<'_>) -> TryResult<()> {
    let thread = call.thread;
    let space = thread.space();
    let words = user::read_words(&space, frame::frame_address(call.context))?;
    let mut context = call.context.clone();
    let restored = frame::restore(&mut context, &words);
    // What the frame does not name is as at the start.
    let mut rights = space.first_rights();
    thread.with_float(|float| {
        if restored.float_address == 0 {
            float.reset();
            return Ok(());
        }
        let mut bytes = fallible::try_filled(0, float.as_bytes().len())?;
        space.read_bytes(restored.float_address, &mut bytes)?;
        if protection_key::are_on() && frame::has_key_rights(&bytes) {
            rights = match key_rights_place(&bytes) {
                Some(offset) => KeyRights(space.read(restored.float_address.wrapping_add(offset))?),
                None => KeyRights(0),
            };
        }
        float.set_bytes(&bytes);
        TryResult::Ok(())
    })?;
    if rights != protection_key::rights() {
        protection_key::set_rights(rights);
    }
    let (base, flags, size) = restored.stack;
    // As in Linux, a stack in the frame that isn't valid is ignored.
    if let Ok(stack) = AlternateStack::new(base, flags & !linux::SS_ONSTACK, size) {
        thread.set_alternate_stack(stack);
    }
    thread.set_blocked(restored.mask);
    if restored.is_interruptible {
        executor::unmask(thread);
    }
    *call.context = context;
    Ok(())
}

/// sigaltstack(2).
pub fn sigaltstack(call: &mut Call<'_>) -> SyscallResult {
    let space = call.thread.space();
    let stack_pointer = call.context.sp();
    let old = call.thread.alternate_stack();
    let new = match call.word(0) {
        0 => None,
        address => {
            let [base, flags, size] = user::read_words(&space, address)?;
            let stack = AlternateStack::new(base as usize, flags as u32, size as usize);
            Some(stack.map_err(|error| match error {
                AlternateStackError::Flags => Errno::EINVAL,
                AlternateStackError::TooSmall => Errno::ENOMEM,
            })?)
        }
    };
    if new.is_some() && old.contains(stack_pointer) {
        return Err(Errno::EPERM.into());
    }
    if call.word(1) != 0 {
        let words = [old.base as u64, u64::from(old.flags_seen(stack_pointer)), old.size as u64];
        user::write_words(&space, call.word(1), &words)?;
    }
    if let Some(stack) = new {
        call.thread.set_alternate_stack(stack);
    }
    Ok(0.into())
}

/// Sends to one process, or only checks whether that is allowed.
pub fn send_checked(
    thread: &Thread,
    target: &Arc<Process>,
    information: Option<Information>,
) -> Result<(), Errno> {
    let credentials = thread.credentials();
    let permission = Permission { sender: &thread.process, credentials: &credentials };
    if !permission.allows(target, information.map(|information| information.signal)) {
        return Err(Errno::EPERM);
    }
    match information {
        Some(information) => signal::send_to_process(target, information),
        None => Ok(()),
    }
}

/// kill(2).
pub fn kill(call: &mut Call<'_>) -> SyscallResult {
    let thread = call.thread;
    let own = thread.process.pid;
    let signal = signal_argument(call.int(1));
    let with_uid = |signal| Information::user(signal, own, thread.credentials().uid);
    let group = match call.int(0) {
        i32::MIN => return Err(Errno::ESRCH.into()),
        pid if pid > 0 => {
            let target = table::process(thread.process.named(pid)).ok_or(Errno::ESRCH)?;
            let information = signal?.map(with_uid);
            send_checked(thread, &target, information)?;
            return Ok(0.into());
        }
        0 => Some(thread.process.group().id),
        -1 => None,
        pid => Some(thread.process.named(-pid)),
    };
    if let Some(id) = group
        && table::group(id).is_none()
    {
        return Err(Errno::ESRCH.into());
    }
    let information = signal?.map(with_uid);
    let (mut found, mut sent) = (false, Err(Errno::ESRCH));
    for target in table::each_process() {
        let is_chosen = match group {
            Some(id) => target.group_id() == id,
            None => target.pid != own && thread.process.shown(target.pid) > 1,
        };
        if is_chosen {
            let result = send_checked(thread, &target, information);
            // A signal for all counts as sent to those who may not have it.
            let result = if group.is_none() && result == Err(Errno::EPERM) { Ok(()) } else { result };
            if sent.is_err() && (!found || result.is_ok()) {
                sent = result;
            }
            found = true;
        }
    }
    sent?;
    Ok(0.into())
}

fn send_to_one(
    call: &Call<'_>,
    process: Option<i32>,
    tid: i32,
    number: i32,
    information: impl FnOnce(Signal) -> Information,
) -> SyscallResult {
    if tid <= 0 || process.is_some_and(|pid| pid <= 0) {
        return Err(Errno::EINVAL.into());
    }
    let own = &call.thread.process;
    let target = table::thread(own.named(tid)).ok_or(Errno::ESRCH)?;
    if process.is_some_and(|pid| target.process.pid != own.named(pid)) {
        return Err(Errno::ESRCH.into());
    }
    let signal = signal_argument(number)?;
    send_checked(call.thread, &target.process, None)?;
    if let Some(signal) = signal {
        signal::send_to_thread(&target, information(signal))?;
    }
    Ok(0.into())
}

fn thread_information(call: &Call<'_>) -> impl FnOnce(Signal) -> Information + use<> {
    let (pid, uid) = (call.thread.process.pid, call.thread.credentials().uid);
    move |signal| Information { signal, code: linux::SI_TKILL, errno: 0, detail: Detail::Sender { pid, uid } }
}

/// tgkill(2).
pub fn tgkill(call: &mut Call<'_>) -> SyscallResult {
    send_to_one(call, Some(call.int(0)), call.int(1), call.int(2), thread_information(call))
}

/// tkill(2).
pub fn tkill(call: &mut Call<'_>) -> SyscallResult {
    send_to_one(call, None, call.int(0), call.int(1), thread_information(call))
}

/// Reads the `siginfo_t` of a queueing call. Only the kernel says `SI_USER`, or a positive code, to others.
pub fn read_information(call: &Call<'_>, address: usize, target: i32) -> TryResult<[u64; 16]> {
    let words: [u64; 16] = user::read_words(&call.thread.space(), address)?;
    let code = words[1] as i32;
    if (code >= 0 || code == linux::SI_TKILL) && target != call.thread.process.pid {
        return Err(Errno::EPERM.into());
    }
    Ok(words)
}

/// A `siginfo_t` as another process gets it: it is told no number of a sender that it does not see.
pub fn passed_to(call: &Call<'_>, target: &Process, mut words: [u64; 16]) -> [u64; 16] {
    if target.pids.is_some() {
        let sender = shown(call.thread.process.pid, &target.pids);
        let told = words[2] as u32;
        // A sender outside has no number; for the first process of a namespace nobody inside may look like that.
        let number = if sender != 0 && !(told == 0 && target.is_init()) { told } else { sender as u32 };
        words[2] = words[2] & !u64::from(u32::MAX) | u64::from(number);
    }
    words
}

/// rt_sigqueueinfo(2).
pub fn rt_sigqueueinfo(call: &mut Call<'_>) -> SyscallResult {
    let (pid, number) = (call.int(0), call.int(1));
    let pid = call.thread.process.named(pid);
    let words = read_information(call, call.word(2), pid)?;
    let target = table::process(pid).ok_or(Errno::ESRCH)?;
    let words = passed_to(call, &target, words);
    let information = signal_argument(number)?.map(|signal| Information::from_words(signal, &words));
    send_checked(call.thread, &target, information)?;
    Ok(0.into())
}

/// rt_tgsigqueueinfo(2).
pub fn rt_tgsigqueueinfo(call: &mut Call<'_>) -> SyscallResult {
    let (pid, tid, number) = (call.int(0), call.int(1), call.int(2));
    if pid <= 0 || tid <= 0 {
        return Err(Errno::EINVAL.into());
    }
    let target = call.thread.process.named(pid);
    let mut words = read_information(call, call.word(3), target)?;
    if let Some(target) = table::process(target) {
        words = passed_to(call, &target, words);
    }
    send_to_one(call, Some(pid), tid, number, |signal| Information::from_words(signal, &words))
}

/// restart_syscall(2).
pub fn restart_syscall(call: &mut Call<'_>) -> SyscallResult {
    match call.thread.restart() {
        Some(restart) => restart(call),
        None => Err(Errno::EINTR.into()),
    }
}
