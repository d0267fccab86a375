//! Setting the time of day while somebody waits for a moment of it.
#![allow(unsafe_code, reason = "timers have no safe form")]

use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId as FileClock, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep, clock_settime};

use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    sleepers_see_the_clock_being_set
    timers_see_the_clock_being_set
    timer_files_see_the_clock_being_set
    timer_files_are_canceled_on_request
}

const FAR: i64 = 1000;

/// Puts the clock back at the end.
struct ClockSetter {
    /// The time of day minus the monotonic clock.
    offset: TimeSpec,
}

fn now(clock: ClockId) -> Result<TimeSpec, String> {
    clock_gettime(clock).or_fail()
}

impl ClockSetter {
    fn new() -> Result<Self, String> {
        Ok(Self { offset: now(ClockId::CLOCK_REALTIME)? - now(ClockId::CLOCK_MONOTONIC)? })
    }

    /// Sets the clock so many seconds before or after what it showed in the beginning.
    fn set(&self, seconds: i64) -> Outcome {
        let monotonic = now(ClockId::CLOCK_MONOTONIC)?;
        clock_settime(ClockId::CLOCK_REALTIME, monotonic + self.offset + TimeSpec::new(seconds, 0)).or_fail()
    }
}

impl Drop for ClockSetter {
    fn drop(&mut self) {
        let _ = self.set(0);
    }
}

fn in_future(seconds: i64) -> Result<TimeSpec, String> {
    Ok(now(ClockId::CLOCK_REALTIME)? + TimeSpec::new(seconds, 0))
}

/// Long enough for a thread to begin a wait; one that comes later shows nothing.
fn let_others_wait() {
    std::thread::sleep(Duration::from_millis(50));
}

fn sleepers_see_the_clock_being_set() -> Outcome {
    let setter = ClockSetter::new()?;
    let moment = in_future(FAR)?;
    let sleeper = std::thread::spawn(move || {
        clock_nanosleep(ClockId::CLOCK_REALTIME, ClockNanosleepFlags::TIMER_ABSTIME, &moment).map(drop)
    });
    let_others_wait();
    // Back, and so far on that the moment has passed.
    setter.set(-FAR)?;
    let_others_wait();
    expect!(!sleeper.is_finished());
    setter.set(2 * FAR)?;
    expect_eq!(sleeper.join().map_err(|_| "the sleeper panicked")?, Ok(()));
    Ok(())
}

/// A timer of timer_create(2) that sends `SIGUSR1`.
struct DayTimer(libc::timer_t);

impl DayTimer {
    fn new() -> Result<Self, String> {
        let mut timer = null_mut();
        // SAFETY: zeros are a value of it.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, libc::SIGUSR1);
        // SAFETY: event and number live during the call.
        let result = unsafe { libc::timer_create(libc::CLOCK_REALTIME, &raw mut event, &raw mut timer) };
        Errno::result(result).or_fail()?;
        Ok(Self(timer))
    }

    fn set(&self, value: TimeSpec, flags: i32) -> Outcome {
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = libc::itimerspec { it_interval: none, it_value: *value.as_ref() };
        // SAFETY: the setting lives during the call.
        Errno::result(unsafe { libc::timer_settime(self.0, flags, &raw const setting, null_mut()) })
            .map(drop)
            .or_fail()
    }

    /// Seconds until it expires.
    fn left(&self) -> Result<i64, String> {
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let mut setting = libc::itimerspec { it_interval: none, it_value: none };
        // SAFETY: the setting lives during the call.
        Errno::result(unsafe { libc::timer_gettime(self.0, &raw mut setting) }).or_fail()?;
        Ok(setting.it_value.tv_sec)
    }
}

impl Drop for DayTimer {
    fn drop(&mut self) {
        // SAFETY: it is this value's.
        unsafe { libc::timer_delete(self.0) };
    }
}

fn timers_see_the_clock_being_set() -> Outcome {
    let setter = ClockSetter::new()?;
    let signals = SigSet::from(Signal::SIGUSR1);
    signals.thread_block().or_fail()?;
    let (absolute, relative) = (DayTimer::new()?, DayTimer::new()?);
    absolute.set(in_future(FAR)?, libc::TIMER_ABSTIME)?;
    relative.set(TimeSpec::new(FAR, 0), 0)?;
    let_others_wait();
    setter.set(-FAR)?;
    expect!((FAR + FAR / 2..=2 * FAR).contains(&absolute.left()?));
    expect!((FAR / 2..=FAR).contains(&relative.left()?));
    setter.set(2 * FAR)?;
    expect_eq!(signals.wait(), Ok(Signal::SIGUSR1));
    expect_eq!(absolute.left()?, 0);
    expect!((FAR / 2..=FAR).contains(&relative.left()?));
    Ok(())
}

fn timer_file(flags: TimerSetTimeFlags) -> Result<TimerFd, String> {
    let timer = TimerFd::new(FileClock::CLOCK_REALTIME, TimerFlags::TFD_NONBLOCK).or_fail()?;
    let moment = if flags.contains(TimerSetTimeFlags::TFD_TIMER_ABSTIME) {
        in_future(FAR)?
    } else {
        TimeSpec::new(FAR, 0)
    };
    timer.set(Expiration::OneShot(moment), flags).or_fail()?;
    Ok(timer)
}

fn is_ready(timer: &TimerFd, timeout: PollTimeout) -> Result<bool, String> {
    let mut polled = [PollFd::new(timer.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut polled, timeout).or_fail()? == 1)
}

fn read(timer: &TimerFd) -> Result<u64, Errno> {
    let mut count = 0_u64;
    // SAFETY: the count lives during the call.
    Errno::result(unsafe { libc::read(timer.as_fd().as_raw_fd(), (&raw mut count).cast(), 8) }).map(|_| count)
}

fn timer_files_see_the_clock_being_set() -> Outcome {
    let setter = ClockSetter::new()?;
    let absolute = timer_file(TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
    let relative = timer_file(TimerSetTimeFlags::empty())?;
    expect_eq!(read(&absolute), Err(Errno::EAGAIN));
    setter.set(-FAR)?;
    expect_eq!(read(&absolute), Err(Errno::EAGAIN));
    let other = std::thread::scope(|scope| {
        let other = scope.spawn(|| is_ready(&absolute, PollTimeout::NONE));
        let_others_wait();
        setter.set(2 * FAR)?;
        other.join().map_err(|_| "the waiter panicked")?
    })?;
    expect!(other);
    expect_eq!(read(&absolute), Ok(1));
    expect_eq!(read(&absolute), Err(Errno::EAGAIN));
    expect_eq!(read(&relative), Err(Errno::EAGAIN));
    Ok(())
}

fn timer_files_are_canceled_on_request() -> Outcome {
    let setter = ClockSetter::new()?;
    let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
    let timer = timer_file(flags)?;
    expect!(!is_ready(&timer, PollTimeout::ZERO)?);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| is_ready(&timer, PollTimeout::NONE));
        let_others_wait();
        setter.set(10)?;
        expect!(other.join().map_err(|_| "the waiter panicked")??);
        Ok::<(), String>(())
    })?;
    expect_eq!(read(&timer), Err(Errno::ECANCELED));
    expect_eq!(read(&timer), Err(Errno::EAGAIN));
    setter.set(20)?;
    let again = timer.set(Expiration::OneShot(in_future(FAR)?), flags);
    expect_eq!(again, Err(Errno::ECANCELED));
    expect_eq!(read(&timer), Err(Errno::EAGAIN));
    // It was set all the same.
    setter.set(2 * FAR)?;
    expect_eq!(read(&timer), Err(Errno::ECANCELED));
    // A timer of the other clock has nothing to be canceled by.
    let other = TimerFd::new(FileClock::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK).or_fail()?;
    let moment = now(ClockId::CLOCK_MONOTONIC)? + TimeSpec::new(FAR, 0);
    expect_eq!(other.set(Expiration::OneShot(moment), flags), Ok(()));
    setter.set(0)?;
    expect_eq!(read(&other), Err(Errno::EAGAIN));
    Ok(())
}
