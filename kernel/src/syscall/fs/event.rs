//! Descriptors for events of other kinds: `eventfd`, `timerfd`, `memfd_create`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

use crate::arch::time::now_ns;
use crate::error::{Errno, TryResult};
use crate::fs::eventfd::EventCounter;
use crate::fs::inode::Contents;
use crate::fs::timerfd::{Expiries, Setting, TimerFile};
use crate::fs::{Dentry, File, OpenFile, Path, StatusFlags, downcast, downcast_arc, setup};
use crate::memory::fallible;
use crate::signal::SignalSet;
use crate::signal::fd::SignalFile;
use crate::syscall::fs::{get, get_file, get_string, put};
use crate::syscall::{Call, SyscallResult};
use crate::time::{Clock, ClockBase, NS_PER_SECOND, timespec_ns};

use heddle_kernel_core::fallible::extend_reserved;

/// eventfd(2), the old call without flags.
pub fn eventfd(call: &mut Call<'_>) -> SyscallResult {
    make_counter(call, 0)
}

/// eventfd2(2).
pub fn eventfd2(call: &mut Call<'_>) -> SyscallResult {
    make_counter(call, call.uint(1))
}

fn make_counter(call: &Call<'_>, flags: u32) -> SyscallResult {
    if flags & !(linux::EFD_CLOEXEC | linux::EFD_NONBLOCK | linux::EFD_SEMAPHORE) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let counter = EventCounter::new(call.uint(0).into(), flags)?;
    let status = StatusFlags::RDWR | StatusFlags::from_bits_retain(flags & linux::EFD_NONBLOCK);
    let open = fallible::try_arc(OpenFile::new(counter, status))?;
    crate::syscall::fs::add(call, open, flags & linux::EFD_CLOEXEC != 0)
}

/// signalfd(2), the old call without flags.
pub fn signalfd(call: &mut Call<'_>) -> SyscallResult {
    make_signal_file(call, 0)
}

/// signalfd4(2).
pub fn signalfd4(call: &mut Call<'_>) -> SyscallResult {
    make_signal_file(call, call.uint(3))
}

fn make_signal_file(call: &Call<'_>, flags: u32) -> SyscallResult {
    let wanted =
        crate::syscall::fs::poll::get_mask(call, call.word(1), call.word(2))?.ok_or(Errno::EFAULT)?;
    if flags & !(linux::O_CLOEXEC | linux::O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let wanted = wanted.difference(SignalSet::UNBLOCKABLE);
    if call.int(0) != -1 {
        let open = get_file(call, 0)?;
        downcast::<SignalFile>(&open).ok_or(Errno::EINVAL)?.set_wanted(wanted);
        return Ok((call.int(0) as usize).into());
    }
    let status = StatusFlags::from_bits_retain(flags & linux::O_NONBLOCK) | StatusFlags::RDWR;
    let open = fallible::try_arc(OpenFile::new(SignalFile::new(wanted, call.thread)?, status))?;
    crate::syscall::fs::add(call, open, flags & linux::O_CLOEXEC != 0)
}

/// timerfd_create(2).
pub fn timerfd_create(call: &mut Call<'_>) -> SyscallResult {
    let clock = match call.uint(0) {
        linux::CLOCK_REALTIME | linux::CLOCK_REALTIME_ALARM => Clock::Realtime,
        linux::CLOCK_MONOTONIC => Clock::Monotonic,
        linux::CLOCK_BOOTTIME | linux::CLOCK_BOOTTIME_ALARM => Clock::Boottime,
        _ => return Err(Errno::EINVAL.into()),
    };
    let flags = call.uint(1);
    if flags & !(linux::O_CLOEXEC | linux::O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let status = StatusFlags::RDWR | StatusFlags::from_bits_retain(flags & linux::O_NONBLOCK);
    let open = fallible::try_arc(OpenFile::new(TimerFile::new(clock)?, status))?;
    crate::syscall::fs::add(call, open, flags & linux::O_CLOEXEC != 0)
}

fn timer(call: &Call<'_>) -> Result<Arc<TimerFile>, Errno> {
    downcast_arc(&get_file(call, 0)?.file).ok_or(Errno::EINVAL)
}

/// timerfd_settime(2).
pub fn timerfd_settime(call: &mut Call<'_>) -> SyscallResult {
    const ABSOLUTE: u32 = linux::TFD_TIMER_ABSTIME;
    let flags = call.uint(1);
    let _: [u8; size_of::<linux::itimerspec>()] = get(call, call.word(2))?;
    if flags & !(ABSOLUTE | linux::TFD_TIMER_CANCEL_ON_SET) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let word = |index: usize| -> TryResult<u64> {
        Ok(u64::from_ne_bytes(get(call, call.word(2).wrapping_add(index * 8))?))
    };
    let interval = timespec_ns(word(0)?, word(1)?)?;
    let value = timespec_ns(word(2)?, word(3)?)?;
    let timer = timer(call)?;
    let next = match value {
        0 => None,
        value if flags & ABSOLUTE == 0 => Some(now_ns().saturating_add(value)),
        value if timer.clock == Clock::Realtime => Some(value),
        value => Some(call.thread.clock_moment(timer.clock, value)),
    };
    if call.word(3) != 0 {
        call.thread.space().probe_write(call.word(3), size_of::<linux::itimerspec>())?;
    }
    let is_of_day = flags & ABSOLUTE != 0 && timer.clock == Clock::Realtime;
    let (before, was_canceled) = timer.set(Expiries {
        next_ns: next,
        base: ClockBase::of(timer.clock, is_of_day),
        interval_ns: interval,
        cancels: is_of_day && flags & linux::TFD_TIMER_CANCEL_ON_SET != 0,
    });
    if was_canceled {
        return Err(Errno::ECANCELED.into());
    }
    if call.word(3) != 0 {
        call.thread.store_result(call.word(3), &setting_bytes(before))?;
    }
    Ok(0.into())
}

/// timerfd_gettime(2).
pub fn timerfd_gettime(call: &mut Call<'_>) -> SyscallResult {
    let setting = timer(call)?.setting();
    put(call, call.word(1), &setting_bytes(setting))?;
    Ok(0.into())
}

fn setting_bytes(setting: Setting) -> [u8; size_of::<linux::itimerspec>()] {
    let (interval, remaining) = (setting.interval_ns, setting.remaining_ns);
    let words = [
        interval / NS_PER_SECOND,
        interval % NS_PER_SECOND,
        remaining / NS_PER_SECOND,
        remaining % NS_PER_SECOND,
    ];
    let mut bytes = [0; size_of::<linux::itimerspec>()];
    bytes.copy_from_slice(words.map(u64::to_ne_bytes).as_flattened());
    bytes
}

/// memfd_create(2).
pub fn memfd_create(call: &mut Call<'_>) -> SyscallResult {
    /// The name shows with a prefix, and the two together are a file name.
    const NAME_LIMIT: usize = 250;
    const KNOWN: u32 = linux::MFD_CLOEXEC | linux::MFD_ALLOW_SEALING;
    let flags = call.uint(1);
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    let given = get_string(call, call.word(0), NAME_LIMIT, Errno::EINVAL)?;
    let mut name: Vec<u8> = fallible::try_with_capacity(given.len() + 7)?;
    extend_reserved(&mut name, b"/memfd:");
    extend_reserved(&mut name, &given);
    let (mount, tree) = setup::anonymous()?;
    let node = tree.unnamed(&Contents::Regular, 0o777, &call.thread.credentials())?;
    node.allow_seals(flags & linux::MFD_ALLOW_SEALING != 0);
    node.begin_writing()?;
    let entry = Dentry::new(node.clone(), None, &name)?;
    entry.mark_removed();
    let file: Arc<dyn File> = node;
    let place = Path { mount: mount.clone(), entry };
    let open = fallible::try_arc(OpenFile::at(file, StatusFlags::RDWR | StatusFlags::LARGEFILE, place))?;
    crate::syscall::fs::add(call, open, flags & linux::MFD_CLOEXEC != 0)
}
