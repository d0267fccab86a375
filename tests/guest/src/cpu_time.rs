//! Clocks of processor time, timers and sleeps on them, `RLIMIT_CPU`.

#![allow(unsafe_code)] // The C library's timers, and system calls as such, have no safe form.

use std::mem::{MaybeUninit, zeroed};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, getpid, gettid, pipe, read};

use crate::harness::{OrFail, Outcome, in_child, spawn_child};
use crate::pi::use_one_cpu;
use crate::{expect, expect_eq};

crate::tests! {
    a_threads_clock_goes_on_within_its_turn
    a_waiting_process_uses_no_time
    clocks_by_number
    a_timer_on_the_processs_time
    a_timer_on_a_threads_time
    interval_timers_of_processor_time
    timers_of_processor_time_stay_with_their_process
    a_sleep_on_the_processs_time
    sleeps_that_would_never_end
    the_limit_of_processor_time
    threads_that_mostly_sleep_leave_time_to_one_that_computes
}

const PROCESS: i32 = libc::CLOCK_PROCESS_CPUTIME_ID;
const THREAD: i32 = libc::CLOCK_THREAD_CPUTIME_ID;
const MS: u64 = 1_000_000;

fn clock_call(number: i64, id: i32) -> Result<u64, Errno> {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the time is written to memory of its size.
    let result = unsafe { libc::syscall(number, id, time.as_mut_ptr()) };
    Errno::result(result)?;
    // SAFETY: it was zeroed, and any number is one.
    let time = unsafe { time.assume_init() };
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn now(id: i32) -> Result<u64, Errno> {
    clock_call(libc::SYS_clock_gettime, id)
}

/// The number of another process's clock: all its time, or that of one thread.
const fn clock_of(pid: i32, bits: i32) -> i32 {
    !pid << 3 | bits
}

/// Uses so much time of this thread.
fn burn(ns: u64) -> Outcome {
    let until = now(THREAD).or_fail()? + ns;
    while now(THREAD).or_fail()? < until {
        std::hint::spin_loop();
    }
    Ok(())
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Uses time until `signal`, which is blocked, is pending, and takes it.
fn burn_until(signal: Signal) -> Outcome {
    let set = SigSet::from(signal);
    let none = timespec(0);
    loop {
        // SAFETY: set and time live during the call.
        let taken = unsafe { libc::sigtimedwait(set.as_ref(), std::ptr::null_mut(), &raw const none) };
        if taken == signal as i32 {
            return Ok(());
        }
    }
}

fn is_pending(signal: Signal) -> Result<bool, String> {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is written to memory of its size, and read as what was written.
    unsafe {
        Errno::result(libc::sigpending(set.as_mut_ptr())).or_fail()?;
        Ok(libc::sigismember(set.as_ptr(), signal as i32) == 1)
    }
}

struct Timer(libc::timer_t);

impl Timer {
    fn new(clock: i32, signal: Signal) -> Result<Self, Errno> {
        let mut timer = std::ptr::null_mut();
        // SAFETY: all zeros are a valid event; it and the timer live during the call.
        unsafe {
            let mut event: libc::sigevent = zeroed();
            event.sigev_notify = libc::SIGEV_SIGNAL;
            event.sigev_signo = signal as i32;
            Errno::result(libc::timer_create(clock, &raw mut event, &raw mut timer))?;
        }
        Ok(Self(timer))
    }

    fn set(&self, value_ns: u64, interval_ns: u64, flags: i32) -> Result<(), Errno> {
        let new = libc::itimerspec { it_interval: timespec(interval_ns), it_value: timespec(value_ns) };
        // SAFETY: the setting lives during the call.
        let result = unsafe { libc::timer_settime(self.0, flags, &raw const new, std::ptr::null_mut()) };
        Errno::result(result).map(drop)
    }

    fn left_ns(&self) -> Result<u64, Errno> {
        // SAFETY: all zeros are a setting, and it lives during the call.
        unsafe {
            let mut found: libc::itimerspec = zeroed();
            Errno::result(libc::timer_gettime(self.0, &raw mut found))?;
            Ok(found.it_value.tv_sec as u64 * 1_000_000_000 + found.it_value.tv_nsec as u64)
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer is this value's.
        unsafe { libc::timer_delete(self.0) };
    }
}

fn a_threads_clock_goes_on_within_its_turn() -> Outcome {
    let (process, thread) = (now(PROCESS).or_fail()?, now(THREAD).or_fail()?);
    let mut last = thread;
    while last < thread + 3 * MS {
        let next = now(THREAD).or_fail()?;
        expect!(next >= last);
        last = next;
    }
    expect!(now(PROCESS).or_fail()? >= process + 3 * MS);
    Ok(())
}

fn a_waiting_process_uses_no_time() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let child = spawn_child(|| {
        let _ = read(&reader, &mut [0]);
        0
    })?;
    let clock = clock_of(child.as_raw(), 2);
    // Once it has come to its read, the clock stands still, however long others run.
    let mut before = 0;
    while before == 0 || now(clock) != Ok(before) {
        before = now(clock).or_fail()?;
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    burn(20 * MS)?;
    expect_eq!(now(clock), Ok(before));
    let mut by_library = 0;
    // SAFETY: the number is written to memory of its size.
    expect_eq!(unsafe { libc::clock_getcpuclockid(child.as_raw(), &raw mut by_library) }, 0);
    expect_eq!(now(by_library), Ok(before));
    kill(child, Signal::SIGKILL).or_fail()?;
    waitpid(child, None).or_fail()?;
    drop(writer);
    expect_eq!(now(clock), Err(Errno::EINVAL));
    Ok(())
}

fn clocks_by_number() -> Outcome {
    let own =
        [clock_of(0, 2), clock_of(getpid().as_raw(), 2), clock_of(0, 6), clock_of(gettid().as_raw(), 6)];
    for id in own {
        expect!(now(id).is_ok());
        expect_eq!(clock_call(libc::SYS_clock_getres, id), Ok(1));
        // They can't be set.
        expect_eq!(clock_call(libc::SYS_clock_settime, id), Err(Errno::EPERM));
    }
    expect_eq!(clock_call(libc::SYS_clock_settime, PROCESS), Err(Errno::EINVAL));
    expect_eq!(clock_call(libc::SYS_clock_getres, THREAD), Ok(1));
    expect_eq!(clock_call(libc::SYS_clock_getres, clock_of(0, 0)), Ok(4 * MS));
    expect!(now(clock_of(0, 1)).or_fail()? <= now(clock_of(0, 0)).or_fail()?);
    // The clock of no process, another process's thread, a file that is none, no clock at all.
    let parent = nix::unistd::getppid().as_raw();
    expect!(now(clock_of(parent, 2)).is_ok());
    for id in [clock_of(parent, 6), clock_of(4_000_000, 2), clock_of(0, 3), clock_of(0, 7), 77] {
        expect_eq!(now(id), Err(Errno::EINVAL));
        let is_file = id < 0 && id & 7 == 3;
        let error = if is_file { Errno::EOPNOTSUPP } else { Errno::EINVAL };
        expect_eq!(Timer::new(id, Signal::SIGUSR1).err(), Some(error));
    }
    expect_eq!(Timer::new(libc::CLOCK_MONOTONIC_RAW, Signal::SIGUSR1).err(), Some(Errno::EOPNOTSUPP));
    Ok(())
}

fn a_timer_on_the_processs_time() -> Outcome {
    SigSet::from(Signal::SIGUSR1).thread_block().or_fail()?;
    let timer = Timer::new(PROCESS, Signal::SIGUSR1).or_fail()?;
    expect_eq!(timer.left_ns(), Ok(0));
    let start = now(PROCESS).or_fail()?;
    timer.set(10 * MS, 10 * MS, 0).or_fail()?;
    let left = timer.left_ns().or_fail()?;
    expect!(left > 0 && left <= 10 * MS);
    for round in 1..=3 {
        burn_until(Signal::SIGUSR1)?;
        expect!(now(PROCESS).or_fail()? >= start + round * 10 * MS);
    }
    timer.set(0, 0, 0).or_fail()?;
    expect_eq!(timer.left_ns(), Ok(0));
    // A moment that has passed already.
    timer.set(start, 0, libc::TIMER_ABSTIME).or_fail()?;
    burn_until(Signal::SIGUSR1)?;
    expect_eq!(timer.left_ns(), Ok(0));
    // Another thread moves the clock, too.
    timer.set(10 * MS, 0, 0).or_fail()?;
    std::thread::scope(|scope| scope.spawn(|| burn(20 * MS)).join()).map_err(|_| "panicked")??;
    // Linux looks when its clock ticks.
    burn(8 * MS)?;
    expect!(is_pending(Signal::SIGUSR1)?);
    Ok(())
}

fn a_timer_on_a_threads_time() -> Outcome {
    SigSet::from(Signal::SIGUSR1).thread_block().or_fail()?;
    let timer = Timer::new(THREAD, Signal::SIGUSR1).or_fail()?;
    let start = now(THREAD).or_fail()?;
    timer.set(20 * MS, 0, 0).or_fail()?;
    std::thread::scope(|scope| scope.spawn(|| burn(40 * MS)).join()).map_err(|_| "panicked")??;
    let is_early = is_pending(Signal::SIGUSR1)?;
    expect!(!is_early || now(THREAD).or_fail()? >= start + 20 * MS);
    burn_until(Signal::SIGUSR1)?;
    expect!(now(THREAD).or_fail()? >= start + 20 * MS);
    Ok(())
}

fn interval_timer(which: libc::c_int, value_us: i64) -> Result<libc::itimerval, Errno> {
    // SAFETY: all zeros are a setting; both live during the call.
    unsafe {
        let mut new: libc::itimerval = zeroed();
        new.it_value.tv_usec = value_us;
        let mut old: libc::itimerval = zeroed();
        Errno::result(libc::setitimer(which, &raw const new, &raw mut old))?;
        Ok(old)
    }
}

fn interval_timers_of_processor_time() -> Outcome {
    for (which, signal, bits) in
        [(libc::ITIMER_PROF, Signal::SIGPROF, 0), (libc::ITIMER_VIRTUAL, Signal::SIGVTALRM, 1)]
    {
        SigSet::from(signal).thread_block().or_fail()?;
        let start = now(clock_of(0, bits)).or_fail()?;
        expect_eq!(interval_timer(which, 20_000).or_fail()?.it_value.tv_usec, 0);
        let old = interval_timer(which, 20_000).or_fail()?;
        expect!(old.it_value.tv_sec == 0 && old.it_value.tv_usec > 0);
        burn_until(signal)?;
        expect!(now(clock_of(0, bits)).or_fail()? >= start + 20 * MS);
        expect_eq!(interval_timer(which, 0).or_fail()?.it_value.tv_usec, 0);
    }
    Ok(())
}

fn timers_of_processor_time_stay_with_their_process() -> Outcome {
    interval_timer(libc::ITIMER_PROF, 900_000).or_fail()?;
    let ended = in_child(|| {
        let old = interval_timer(libc::ITIMER_PROF, 0);
        i32::from(!old.is_ok_and(|old| old.it_value.tv_usec == 0 && old.it_value.tv_sec == 0))
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    let left = interval_timer(libc::ITIMER_PROF, 0).or_fail()?.it_value.tv_usec;
    expect!(left > 0);
    Ok(())
}

fn cpu_sleep(clock: i32, ns: u64, flags: i32) -> Result<(), Errno> {
    let time = timespec(ns);
    // SAFETY: the time lives during the call.
    let result = unsafe {
        let nothing = std::ptr::null_mut::<libc::timespec>();
        libc::syscall(libc::SYS_clock_nanosleep, clock, flags, &raw const time, nothing)
    };
    Errno::result(result).map(drop)
}

fn a_sleep_on_the_processs_time() -> Outcome {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let start = now(PROCESS).or_fail()?;
            let slept = cpu_sleep(PROCESS, 20 * MS, 0);
            let end = now(PROCESS).or_fail()?;
            is_over.store(true, Ordering::SeqCst);
            expect_eq!(slept, Ok(()));
            expect!(end >= start + 20 * MS);
            expect_eq!(cpu_sleep(PROCESS, start, libc::TIMER_ABSTIME), Ok(()));
            Ok(())
        });
        while !is_over.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        sleeper.join().map_err(|_| "panicked".to_owned())?
    })
}

fn sleeps_that_would_never_end() -> Outcome {
    expect_eq!(cpu_sleep(THREAD, MS, 0), Err(Errno::EOPNOTSUPP));
    expect_eq!(cpu_sleep(clock_of(0, 6), MS, 0), Err(Errno::EINVAL));
    expect_eq!(cpu_sleep(clock_of(gettid().as_raw(), 6), MS, 0), Err(Errno::EINVAL));
    expect_eq!(cpu_sleep(libc::CLOCK_MONOTONIC_RAW, MS, 0), Err(Errno::EOPNOTSUPP));
    expect_eq!(cpu_sleep(libc::CLOCK_MONOTONIC_COARSE, MS, 0), Err(Errno::EOPNOTSUPP));
    expect_eq!(cpu_sleep(clock_of(4_000_000, 2), MS, 0), Err(Errno::EINVAL));
    Ok(())
}

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_signal(_: i32) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

fn the_limit_of_processor_time() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let limited = |hard| {
        let limit = libc::rlimit { rlim_cur: 1, rlim_max: hard };
        // SAFETY: the limit lives during the call.
        unsafe { libc::setrlimit(libc::RLIMIT_CPU, &raw const limit) }
    };
    // Without a handler the soft limit is the end.
    let child: Pid = spawn_child(|| {
        limited(libc::RLIM_INFINITY);
        loop {
            std::hint::spin_loop();
        }
    })?;
    // A child inherits the limit, not the time.
    let other = spawn_child(|| {
        limited(2);
        in_child(|| {
            // SAFETY: the handler only counts.
            unsafe { libc::signal(libc::SIGXCPU, count_signal as *const () as usize) };
            let start = now(clock_of(0, 0)).unwrap_or(0);
            while SIGNALS.load(Ordering::SeqCst) == 0 {
                std::hint::spin_loop();
            }
            let is_late = now(clock_of(0, 0)).is_ok_and(|now| start < 900 * MS && now >= 1000 * MS);
            let _ = nix::unistd::write(&writer, &[u8::from(is_late)]);
            loop {
                std::hint::spin_loop();
            }
        })
        .map_or(1, |ended| i32::from(!matches!(ended, WaitStatus::Signaled(_, Signal::SIGKILL, _))))
    })?;
    expect!(matches!(waitpid(child, None), Ok(WaitStatus::Signaled(_, Signal::SIGXCPU, _))));
    expect_eq!(waitpid(other, None), Ok(WaitStatus::Exited(other, 0)));
    let mut answer = [0];
    read(&reader, &mut answer).or_fail()?;
    expect_eq!(answer, [1]);
    Ok(())
}

/// Each of them needs little, and all together more than there is.
fn threads_that_mostly_sleep_leave_time_to_one_that_computes() -> Outcome {
    const SLEEPERS: usize = 64;
    const COMPUTED: u64 = 20 * MS;
    /// By then the one that computes should have had a part in two hundred: it gets one in fifty, and time that the
    /// host takes from the machine counts as used.
    const SPENT_MAX: u64 = 200 * COMPUTED;
    use_one_cpu()?;
    let before = now(PROCESS).or_fail()?;
    let is_over = AtomicBool::new(false);
    let spent = std::thread::scope(|scope| {
        for _ in 0..SLEEPERS {
            scope.spawn(|| {
                let is_time_up = || now(PROCESS).is_ok_and(|spent| spent - before > 2 * SPENT_MAX);
                while !is_over.load(Ordering::Relaxed) && !is_time_up() {
                    let _ = burn(MS / 2);
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            });
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        let started = now(PROCESS).or_fail()?;
        burn(COMPUTED)?;
        is_over.store(true, Ordering::Relaxed);
        Ok::<u64, String>(now(PROCESS).or_fail()? - started)
    })?;
    if spent > SPENT_MAX {
        return Err(format!("the others used {spent} ns meanwhile"));
    }
    Ok(())
}
