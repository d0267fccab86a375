//! Calls on signals, timers and futexes.

use super::{Shot, close, must, sys};

super::cases! {
    action mask send send_queued wait_for_signal signal_file alternate_stack timer_create timer_set interval_timer
    sleep futex_wait futex_wake pending inheriting_lock inheriting_lock_that_waits
}

type Outcome = Result<(), String>;

const SIGNAL: i32 = libc::SIGUSR1;
const SET_BYTES: usize = 8;
static SET: u64 = 1 << (SIGNAL - 1) | 1 << (libc::SIGALRM - 1);

fn block() -> Outcome {
    must("rt_sigprocmask", sys!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const SET, 0, SET_BYTES))
        .map(|_| ())
}

/// Takes what is pending.
fn take_all() {
    let now = [0i64; 2];
    while sys!(SYS_rt_sigtimedwait, &raw const SET, 0, now.as_ptr(), SET_BYTES) >= 0 {}
}

fn own() -> i64 {
    sys!(SYS_getpid)
}

fn action(shot: &mut Shot) -> Outcome {
    let mut action = [0u64; 4];
    let pointer = action.as_mut_ptr();
    shot.fire(|| sys!(SYS_rt_sigaction, SIGNAL, 0, pointer, SET_BYTES))?;
    shot.fire(|| sys!(SYS_rt_sigaction, SIGNAL, pointer, 0, SET_BYTES)).map(|_| ())
}

fn mask(shot: &mut Shot) -> Outcome {
    let mut old = 0u64;
    let old = &raw mut old;
    shot.fire(|| sys!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const SET, old, SET_BYTES)).map(|_| ())
}

fn send(shot: &mut Shot) -> Outcome {
    block()?;
    let own = own();
    shot.fire(|| sys!(SYS_kill, own, SIGNAL))?;
    shot.fire(|| sys!(SYS_tgkill, own, own, SIGNAL))?;
    take_all();
    Ok(())
}

fn send_queued(shot: &mut Shot) -> Outcome {
    block()?;
    let own = own();
    let mut information = [0i32; 32];
    information[..3].copy_from_slice(&[SIGNAL, 0, -1]);
    shot.fire(|| sys!(SYS_rt_sigqueueinfo, own, SIGNAL, information.as_ptr()))?;
    take_all();
    Ok(())
}

fn pending(shot: &mut Shot) -> Outcome {
    let mut set = 0u64;
    let set = &raw mut set;
    shot.fire(|| sys!(SYS_rt_sigpending, set, SET_BYTES)).map(|_| ())
}

fn wait_for_signal(shot: &mut Shot) -> Outcome {
    block()?;
    // Two, because a signal whose description could not be told is gone, as in Linux.
    must("kill", sys!(SYS_kill, own(), SIGNAL))?;
    must("kill", sys!(SYS_kill, own(), libc::SIGALRM))?;
    let mut information = [0u64; 16];
    let information = information.as_mut_ptr();
    let second = [1i64, 0];
    shot.fire(|| sys!(SYS_rt_sigtimedwait, &raw const SET, information, second.as_ptr(), SET_BYTES))?;
    take_all();
    Ok(())
}

fn signal_file(shot: &mut Shot) -> Outcome {
    block()?;
    let file = shot.fire(|| sys!(SYS_signalfd4, -1, &raw const SET, SET_BYTES, libc::SFD_NONBLOCK))?;
    must("kill", sys!(SYS_kill, own(), SIGNAL))?;
    must("kill", sys!(SYS_kill, own(), libc::SIGALRM))?;
    let mut information = [0u64; 16];
    let information = information.as_mut_ptr();
    shot.fire(|| sys!(SYS_read, file, information, 128))?;
    take_all();
    close(file)
}

fn alternate_stack(shot: &mut Shot) -> Outcome {
    let mut old = [0u64; 3];
    let old = old.as_mut_ptr();
    shot.fire(|| sys!(SYS_sigaltstack, 0, old)).map(|_| ())
}

fn timer_create(shot: &mut Shot) -> Outcome {
    let mut timer = 0i32;
    let pointer = &raw mut timer;
    shot.fire(|| sys!(SYS_timer_create, libc::CLOCK_MONOTONIC, 0, pointer))?;
    must("timer_delete", sys!(SYS_timer_delete, timer)).map(|_| ())
}

fn timer_set(shot: &mut Shot) -> Outcome {
    let mut timer = 0i32;
    must("timer_create", sys!(SYS_timer_create, libc::CLOCK_MONOTONIC, 0, &raw mut timer))?;
    let (when, mut old) = ([0i64, 0, 1000, 0], [0i64; 4]);
    let old = old.as_mut_ptr();
    shot.fire(|| sys!(SYS_timer_settime, timer, 0, when.as_ptr(), old))?;
    shot.fire(|| sys!(SYS_timer_gettime, timer, old))?;
    shot.fire(|| sys!(SYS_timer_delete, timer)).map(|_| ())
}

fn interval_timer(shot: &mut Shot) -> Outcome {
    let (when, none, mut old) = ([0i64, 0, 1000, 0], [0i64; 4], [0i64; 4]);
    let old = old.as_mut_ptr();
    shot.fire(|| sys!(SYS_setitimer, libc::ITIMER_REAL, when.as_ptr(), old))?;
    must("setitimer", sys!(SYS_setitimer, libc::ITIMER_REAL, none.as_ptr(), 0)).map(|_| ())
}

fn sleep(shot: &mut Shot) -> Outcome {
    let (time, mut left) = ([0i64, 1000], [0i64; 2]);
    let left = left.as_mut_ptr();
    shot.fire(|| sys!(SYS_clock_nanosleep, libc::CLOCK_MONOTONIC, 0, time.as_ptr(), left)).map(|_| ())
}

/// A wait that times out, which is no error here.
fn futex_wait(shot: &mut Shot) -> Outcome {
    let (word, time) = (1u32, [0i64, 1000]);
    shot.fire(|| {
        let result = sys!(SYS_futex, &raw const word, libc::FUTEX_WAIT, 1, time.as_ptr(), 0, 0);
        if result < 0 && super::errno() == libc::ETIMEDOUT { 0 } else { result }
    })
    .map(|_| ())
}

fn futex_wake(shot: &mut Shot) -> Outcome {
    let (word, other) = (1u32, 1u32);
    shot.fire(|| sys!(SYS_futex, &raw const word, libc::FUTEX_WAKE, 1, 0, 0, 0))?;
    shot.fire(|| sys!(SYS_futex, &raw const word, libc::FUTEX_CMP_REQUEUE, 1, 1, &raw const other, 1))
        .map(|_| ())
}

fn inheriting_lock(shot: &mut Shot) -> Outcome {
    let word = std::sync::atomic::AtomicU32::new(0);
    let pointer = word.as_ptr();
    shot.fire(|| sys!(SYS_futex, pointer, libc::FUTEX_LOCK_PI, 0, 0, 0, 0))?;
    shot.fire(|| sys!(SYS_futex, pointer, libc::FUTEX_UNLOCK_PI, 0, 0, 0, 0))?;
    shot.fire(|| sys!(SYS_futex, pointer, libc::FUTEX_TRYLOCK_PI, 0, 0, 0, 0))?;
    match word.into_inner() {
        0 => Err(String::from("taken, but the word says nothing")),
        _ => Ok(()),
    }
}

/// Another process has the lock, and the wait for it times out.
fn inheriting_lock_that_waits(shot: &mut Shot) -> Outcome {
    let child = super::must("fork", sys!(SYS_fork))?;
    if child == 0 {
        loop {
            let _ = sys!(SYS_pause);
        }
    }
    let word = std::sync::atomic::AtomicU32::new(child as u32);
    let (pointer, past) = (word.as_ptr(), [1i64, 0]);
    let result = shot.fire(|| {
        let result = sys!(SYS_futex, pointer, libc::FUTEX_LOCK_PI, 0, past.as_ptr(), 0, 0);
        if result < 0 && super::errno() == libc::ETIMEDOUT { 0 } else { result }
    });
    super::must("kill", sys!(SYS_kill, child, libc::SIGKILL))?;
    super::must("wait4", sys!(SYS_wait4, child, 0, 0, 0))?;
    result.map(|_| ())
}
