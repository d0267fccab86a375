//! The calls of sched(7), and nice values.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::arch::paging::PAGE_SIZE;
use crate::error::{Errno, TryResult};
use crate::process::{Resource, Thread, table};
use crate::sched::{Parameters, Policy};
use crate::syscall::{Call, SyscallResult, SyscallState, user};
use crate::time::timespec_words;
use crate::{arch, sched};

const REALTIME_MIN: u8 = 1;
const REALTIME_MAX: u8 = 99;
const MASK_BYTES: usize = size_of::<u64>();

/// sched_yield(2).
pub fn sched_yield(_: &mut Call<'_>) -> SyscallResult {
    Ok(SyscallState::Yield)
}

fn named(call: &Call<'_>, tid: i32) -> Result<Arc<Thread>, Errno> {
    match tid {
        0 => Ok(Arc::clone(call.thread)),
        tid if tid < 0 => Err(Errno::EINVAL),
        tid => table::thread(call.thread.process.named(tid)).ok_or(Errno::ESRCH),
    }
}

/// Whether the caller may change how `target` is scheduled.
fn check_owner(call: &Call<'_>, target: &Thread) -> Result<(), Errno> {
    let (own, theirs) = (call.thread.credentials(), target.credentials());
    let is_same_user = own.euid == theirs.uid || own.euid == theirs.euid;
    if is_same_user || own.is_capable_in(&theirs.users, linux::CAP_SYS_NICE) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

fn apply(call: &Call<'_>, target: &Arc<Thread>, new: Parameters) -> Result<(), Errno> {
    check_owner(call, target)?;
    let old = target.scheduling();
    let is_privileged = call.thread.credentials().is_capable(linux::CAP_SYS_NICE);
    if !is_privileged {
        let rt_limit = target.process.limit(Resource::RealtimePriority).soft;
        let nice_limit = target.process.limit(Resource::Nice).soft as i64;
        let raises_realtime =
            new.policy.is_realtime() && new.realtime > old.realtime && u64::from(new.realtime) > rt_limit;
        let raises_nice = new.nice < old.nice && i64::from(new.nice) < 20 - nice_limit;
        if raises_realtime || raises_nice || old.reset_on_fork && !new.reset_on_fork {
            return Err(Errno::EPERM);
        }
    }
    target.set_scheduling(new);
    crate::process::futex::pi::level_changed(target);
    Ok(())
}

/// The policy, with the flag that may be added to its number.
fn decode_policy(number: u32) -> Result<(Policy, bool), Errno> {
    let policy = Policy::from_number(number & !linux::SCHED_RESET_ON_FORK).ok_or(Errno::EINVAL)?;
    Ok((policy, number & linux::SCHED_RESET_ON_FORK != 0))
}

fn check_realtime(policy: Policy, priority: i32) -> Result<u8, Errno> {
    let allowed = if policy.is_realtime() { REALTIME_MIN..=REALTIME_MAX } else { 0..=0 };
    u8::try_from(priority).ok().filter(|priority| allowed.contains(priority)).ok_or(Errno::EINVAL)
}

/// sched_setscheduler(2).
pub fn sched_setscheduler(call: &mut Call<'_>) -> SyscallResult {
    if call.word(2) == 0 || call.int(0) < 0 || call.int(1) < 0 {
        return Err(Errno::EINVAL.into());
    }
    let priority = user::read_int(&call.thread.space(), call.word(2))? as i32;
    let target = named(call, call.int(0))?;
    let (policy, reset_on_fork) = decode_policy(call.uint(1))?;
    let realtime = check_realtime(policy, priority)?;
    let old = target.scheduling();
    apply(call, &target, Parameters { policy, realtime, reset_on_fork, ..old })?;
    Ok(0.into())
}

/// sched_getscheduler(2).
pub fn sched_getscheduler(call: &mut Call<'_>) -> SyscallResult {
    let parameters = named(call, call.int(0))?.scheduling();
    let flag = if parameters.reset_on_fork { linux::SCHED_RESET_ON_FORK } else { 0 };
    Ok(((parameters.policy.number() | flag) as usize).into())
}

/// sched_setparam(2).
pub fn sched_setparam(call: &mut Call<'_>) -> SyscallResult {
    if call.word(1) == 0 || call.int(0) < 0 {
        return Err(Errno::EINVAL.into());
    }
    let priority = user::read_int(&call.thread.space(), call.word(1))? as i32;
    let target = named(call, call.int(0))?;
    let old = target.scheduling();
    let realtime = check_realtime(old.policy, priority)?;
    apply(call, &target, Parameters { realtime, ..old })?;
    Ok(0.into())
}

/// sched_getparam(2).
pub fn sched_getparam(call: &mut Call<'_>) -> SyscallResult {
    if call.word(1) == 0 {
        return Err(Errno::EINVAL.into());
    }
    let parameters = named(call, call.int(0))?.scheduling();
    user::write_int(&call.thread.space(), call.word(1), u32::from(parameters.realtime))?;
    Ok(0.into())
}

/// sched_get_priority_max(2).
pub fn sched_get_priority_max(call: &mut Call<'_>) -> SyscallResult {
    if call.uint(0) == linux::SCHED_DEADLINE {
        return Ok(0.into());
    }
    let policy = Policy::from_number(call.uint(0)).ok_or(Errno::EINVAL)?;
    Ok(if policy.is_realtime() { usize::from(REALTIME_MAX).into() } else { 0.into() })
}

/// sched_get_priority_min(2).
pub fn sched_get_priority_min(call: &mut Call<'_>) -> SyscallResult {
    if call.uint(0) == linux::SCHED_DEADLINE {
        return Ok(0.into());
    }
    let policy = Policy::from_number(call.uint(0)).ok_or(Errno::EINVAL)?;
    Ok(if policy.is_realtime() { usize::from(REALTIME_MIN).into() } else { 0.into() })
}

/// sched_rr_get_interval(2).
pub fn sched_rr_get_interval(call: &mut Call<'_>) -> SyscallResult {
    let policy = named(call, call.int(0))?.scheduling().policy;
    let slice = match policy {
        Policy::Fifo => 0,
        Policy::RoundRobin => sched::ROUND_ROBIN_NS,
        _ => sched::SLICE_NS,
    };
    user::write_words(&call.thread.space(), call.word(1), &timespec_words(slice))?;
    Ok(0.into())
}

/// Words of `struct sched_attr` in its first version.
const ATTRIBUTE_WORDS: usize = 6;
/// The same with the hints about utilization, of which there are none.
const FULL_ATTRIBUTE_WORDS: usize = 7;

/// sched_setattr(2).
pub fn sched_setattr(call: &mut Call<'_>) -> SyscallResult {
    if call.uint(2) != 0 || call.word(1) == 0 {
        return Err(Errno::EINVAL.into());
    }
    let words: [u64; ATTRIBUTE_WORDS] = user::read_words(&call.thread.space(), call.word(1))?;
    let size = words[0] as u32 as usize;
    if size != 0 && !(ATTRIBUTE_WORDS * 8..=PAGE_SIZE).contains(&size) {
        // The program is told which size is known.
        user::write_int(&call.thread.space(), call.word(1), (FULL_ATTRIBUTE_WORDS * 8) as u32)?;
        return Err(Errno::E2BIG.into());
    }
    let policy = Policy::from_number((words[0] >> 32) as u32).ok_or(Errno::EINVAL)?;
    let nice = (words[2] as i32).clamp(-20, 19) as i8;
    if words[1] & !1 != 0 {
        return Err(Errno::EINVAL.into());
    }
    let realtime = check_realtime(policy, (words[2] >> 32) as i32)?;
    let target = named(call, call.int(0))?;
    let old = target.scheduling();
    let nice = if policy.is_realtime() { old.nice } else { nice };
    apply(call, &target, Parameters { policy, nice, realtime, reset_on_fork: words[1] & 1 != 0, ..old })?;
    Ok(0.into())
}

/// sched_getattr(2).
pub fn sched_getattr(call: &mut Call<'_>) -> SyscallResult {
    let size = call.uint(2) as usize;
    if call.word(1) == 0 || call.uint(3) != 0 || !(ATTRIBUTE_WORDS * 8..=PAGE_SIZE).contains(&size) {
        return Err(Errno::EINVAL.into());
    }
    let parameters = named(call, call.int(0))?.scheduling();
    let size = size.min(FULL_ATTRIBUTE_WORDS * 8);
    let nice = if parameters.policy.is_realtime() { 0 } else { parameters.nice };
    let words = [
        size as u64 | u64::from(parameters.policy.number()) << 32,
        u64::from(parameters.reset_on_fork),
        u64::from(i32::from(nice) as u32) | u64::from(parameters.realtime) << 32,
        0,
        0,
        0,
        0,
    ];
    let words: [u64; FULL_ATTRIBUTE_WORDS] = words;
    let mut bytes = [0; FULL_ATTRIBUTE_WORDS * 8];
    for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
        slot.copy_from_slice(&word.to_ne_bytes());
    }
    call.thread.space().write_bytes(call.word(1), &bytes[..size])?;
    Ok(0.into())
}

/// The CPUs that exist, a bit each.
fn existing_cpus() -> u64 {
    u64::MAX >> (64 - arch::cpu::count().clamp(1, 64))
}

/// sched_setaffinity(2).
pub fn sched_setaffinity(call: &mut Call<'_>) -> SyscallResult {
    let mut bytes = [0; MASK_BYTES];
    let length = call.word(1).min(MASK_BYTES);
    call.thread.space().read_bytes(call.word(2), &mut bytes[..length])?;
    let affinity = u64::from_ne_bytes(bytes) & existing_cpus();
    if affinity == 0 {
        return Err(Errno::EINVAL.into());
    }
    let target = named(call, call.int(0))?;
    let old = target.scheduling();
    apply(call, &target, Parameters { affinity, ..old })?;
    Ok(0.into())
}

/// sched_getaffinity(2).
pub fn sched_getaffinity(call: &mut Call<'_>) -> SyscallResult {
    if call.word(1) < MASK_BYTES || !call.word(1).is_multiple_of(MASK_BYTES) {
        return Err(Errno::EINVAL.into());
    }
    let target = if call.int(0) < 0 { Err(Errno::ESRCH) } else { named(call, call.int(0)) };
    let affinity = target?.scheduling().affinity & existing_cpus();
    user::write_words(&call.thread.space(), call.word(2), &[affinity])?;
    Ok(MASK_BYTES.into())
}

/// getcpu(2).
pub fn getcpu(call: &mut Call<'_>) -> SyscallResult {
    let space = call.thread.space();
    for (address, value) in [(call.word(0), arch::cpu::id() as u32), (call.word(1), 0)] {
        if address != 0 {
            user::write_int(&space, address, value)?;
        }
    }
    Ok(0.into())
}

/// Calls `each` for every thread that getpriority(2) or setpriority(2) names.
fn for_each_named(call: &Call<'_>, each: impl FnMut(&Arc<Thread>) -> TryResult<()>) -> TryResult<bool> {
    for_each_of(call, call.uint(0), each)
}

/// The same with one of `PRIO_` given; the call's second argument is whose. Returns whether there was any.
fn for_each_of(
    call: &Call<'_>,
    which: u32,
    mut each: impl FnMut(&Arc<Thread>) -> TryResult<()>,
) -> TryResult<bool> {
    let who = call.int(1);
    if which == linux::PRIO_PROCESS {
        let Ok(thread) = named(call, who) else { return Ok(false) };
        each(&thread)?;
        return Ok(true);
    }
    if which != linux::PRIO_PGRP && which != linux::PRIO_USER {
        return Err(Errno::EINVAL.into());
    }
    let own_process = &call.thread.process;
    let group = if who == 0 { own_process.group().id } else { own_process.named(who) };
    let own = call.thread.credentials();
    let own_user = own.uid;
    // A number that stands for nobody finds nobody.
    let named_user = own.user(who as u32).unwrap_or(u32::MAX);
    let mut found = false;
    for process in table::each_process() {
        let is_named = if which == linux::PRIO_PGRP {
            process.group().id == group
        } else {
            let user = if who == 0 { own_user } else { named_user };
            process.credentials().is_some_and(|credentials| credentials.uid == user)
        };
        for thread in process.threads().take_while(|_| is_named) {
            found = true;
            each(&thread)?;
        }
    }
    Ok(found)
}

/// getpriority(2): the system call returns 20 - nice, so that no result is negative.
pub fn getpriority(call: &mut Call<'_>) -> SyscallResult {
    let mut lowest = i8::MAX;
    let found = for_each_named(call, |thread| {
        lowest = lowest.min(thread.scheduling().nice);
        Ok(())
    })?;
    if found { Ok(((20 - i32::from(lowest)) as usize).into()) } else { Err(Errno::ESRCH.into()) }
}

/// setpriority(2).
pub fn setpriority(call: &mut Call<'_>) -> SyscallResult {
    let nice = call.int(2).clamp(-20, 19) as i8;
    let found = for_each_named(call, |thread| {
        let old = thread.scheduling();
        let result = apply(call, thread, Parameters { nice, ..old });
        // Only nice values below the limit are EACCES rather than EPERM.
        let is_owner = check_owner(call, thread).is_ok();
        result.map_err(|error| if is_owner { Errno::EACCES } else { error })?;
        Ok(())
    })?;
    if found { Ok(0.into()) } else { Err(Errno::ESRCH.into()) }
}

const IO_CLASS_SHIFT: u32 = 13;
const IO_CLASS_REALTIME: u32 = 1;
const IO_CLASS_BEST_EFFORT: u32 = 2;
const IO_CLASS_IDLE: u32 = 3;
/// The numbers of `IOPRIO_WHO_` are those of `PRIO_` and one.
const IO_WHO_PROCESS: u32 = linux::PRIO_PROCESS + 1;
/// The level of who has set none.
const IO_LEVEL_DEFAULT: u32 = 4;

/// Calls `each` for every thread that ioprio_get(2) or ioprio_set(2) names.
fn for_each_io_named(call: &Call<'_>, each: impl FnMut(&Arc<Thread>) -> TryResult<()>) -> TryResult<()> {
    let which = call.uint(0).checked_sub(IO_WHO_PROCESS).ok_or(Errno::EINVAL)?;
    if for_each_of(call, which, each)? { Ok(()) } else { Err(Errno::ESRCH.into()) }
}

/// ioprio_get(2): of several threads, the priority that goes first.
pub fn ioprio_get(call: &mut Call<'_>) -> SyscallResult {
    let mut first = None;
    for_each_io_named(call, |thread| {
        let priority = thread.io_priority();
        // Whoever has set none is in the middle of the class between.
        let rank =
            if priority == 0 { IO_CLASS_BEST_EFFORT << IO_CLASS_SHIFT | IO_LEVEL_DEFAULT } else { priority };
        first = Some(first.map_or((rank, priority), |other| (rank, priority).min(other)));
        Ok(())
    })?;
    let (rank, priority) = first.ok_or(Errno::ESRCH)?;
    let is_one = call.uint(0) == IO_WHO_PROCESS;
    Ok((if is_one { priority } else { rank } as usize).into())
}

/// ioprio_set(2): kept for whoever asks; there is no device whose requests it could order.
pub fn ioprio_set(call: &mut Call<'_>) -> SyscallResult {
    let priority = call.uint(2);
    let (class, level) = (priority >> IO_CLASS_SHIFT, priority & ((1 << IO_CLASS_SHIFT) - 1));
    // Above the three bits of a level are hints for devices.
    if class > IO_CLASS_IDLE || class == 0 && level != 0 {
        return Err(Errno::EINVAL.into());
    }
    let is_capable = |right| call.thread.credentials().is_capable(right);
    let may_be_first = || is_capable(linux::CAP_SYS_ADMIN) || is_capable(linux::CAP_SYS_NICE);
    if class == IO_CLASS_REALTIME && !may_be_first() {
        return Err(Errno::EPERM.into());
    }
    for_each_io_named(call, |thread| {
        check_owner(call, thread)?;
        thread.set_io_priority(priority);
        Ok(())
    })?;
    Ok(0.into())
}
