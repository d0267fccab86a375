//! Waiting at several words at once: futex_waitv(2).
#![allow(unsafe_code, reason = "the C library has no form of this call")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::wait::waitpid;

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_wake_tells_which_word
    the_first_word_that_differs_ends_the_call
    arguments_are_checked
    time_limits_by_both_clocks
    a_signal_ends_the_wait
    processes_share_the_words
    many_waiters_and_wakers
}

const FUTEX_32: u32 = 2;
const WORDS_MAX: usize = 128;
const PRIVATE: u32 = libc::FUTEX_PRIVATE_FLAG as u32;

/// A word to wait at, as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Waited {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

fn at(word: &AtomicU32, value: u32, flags: u32) -> Waited {
    Waited { value: value.into(), address: word.as_ptr() as u64, flags: FUTEX_32 | flags, reserved: 0 }
}

fn wait_with(
    words: *const Waited,
    count: usize,
    flags: u32,
    time: Option<&libc::timespec>,
    clock: libc::clockid_t,
) -> Result<i64, Errno> {
    let time = time.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the kernel reads the list and the words, and answers `EFAULT` where there are none.
    Errno::result(unsafe { libc::syscall(libc::SYS_futex_waitv, words, count, flags, time, clock) })
}

fn wait(words: &[Waited]) -> Result<i64, Errno> {
    wait_with(words.as_ptr(), words.len(), 0, None, libc::CLOCK_MONOTONIC)
}

fn wake(word: &AtomicU32, flags: u32) -> Result<i64, Errno> {
    let operation = libc::FUTEX_WAKE | flags as i32;
    // SAFETY: the kernel only compares the address.
    Errno::result(unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 1) })
}

/// A moment `ms` from now.
fn moment(clock: libc::clockid_t, ms: i64) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is written.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    let ns = time.tv_nsec + ms * 1_000_000;
    libc::timespec { tv_sec: time.tv_sec + ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 }
}

fn a_wake_tells_which_word() -> Outcome {
    for count in [1, 2, 31, WORDS_MAX] {
        let words: Arc<Vec<AtomicU32>> = Arc::new((0..count).map(|_| AtomicU32::new(7)).collect());
        for chosen in [0, count / 2, count - 1] {
            let waker = {
                let words = words.clone();
                std::thread::spawn(move || while wake(&words[chosen], PRIVATE) == Ok(0) {})
            };
            let list: Vec<_> = words.iter().map(|word| at(word, 7, PRIVATE)).collect();
            expect_eq!(wait(&list), Ok(chosen as i64));
            waker.join().map_err(|_| "the waker panicked")?;
            // The call has left all of them.
            expect!(words.iter().all(|word| wake(word, PRIVATE) == Ok(0)));
        }
    }
    Ok(())
}

fn the_first_word_that_differs_ends_the_call() -> Outcome {
    let words = [0, 1, 2].map(AtomicU32::new);
    expect_eq!(wait(&[at(&words[0], 0, PRIVATE), at(&words[1], 0, PRIVATE)]), Err(Errno::EAGAIN));
    expect!(words.iter().all(|word| wake(word, PRIVATE) == Ok(0)));
    Ok(())
}

fn arguments_are_checked() -> Outcome {
    let word = AtomicU32::new(0);
    let good = at(&word, 1, PRIVATE);
    let monotonic = libc::CLOCK_MONOTONIC;
    expect_eq!(wait(&[good]), Err(Errno::EAGAIN));
    expect_eq!(wait(&[]), Err(Errno::EINVAL));
    expect_eq!(wait(&[good; WORDS_MAX + 1]), Err(Errno::EINVAL));
    expect_eq!(wait_with(std::ptr::null(), 1, 0, None, monotonic), Err(Errno::EINVAL));
    expect_eq!(wait_with(&raw const good, 1, 1, None, monotonic), Err(Errno::EINVAL));
    expect_eq!(wait_with(8 as *const Waited, 1, 0, None, monotonic), Err(Errno::EFAULT));
    expect_eq!(wait(&[Waited { flags: 0, ..good }]), Err(Errno::EINVAL));
    expect_eq!(wait(&[Waited { flags: good.flags | 0x100, ..good }]), Err(Errno::EINVAL));
    expect_eq!(wait(&[Waited { reserved: 1, ..good }]), Err(Errno::EINVAL));
    expect_eq!(wait(&[Waited { address: good.address + 1, ..good }]), Err(Errno::EINVAL));
    expect_eq!(wait(&[Waited { address: 0, ..good }]), Err(Errno::EFAULT));
    // A bad word is found before the first is looked at.
    expect_eq!(wait(&[good, Waited { flags: 0, ..good }]), Err(Errno::EINVAL));
    let time = moment(monotonic, 1);
    expect_eq!(wait_with(&raw const good, 1, 0, Some(&time), libc::CLOCK_BOOTTIME), Err(Errno::EINVAL));
    // Without a time nobody looks at the clock.
    expect_eq!(wait_with(&raw const good, 1, 0, None, libc::CLOCK_BOOTTIME), Err(Errno::EAGAIN));
    let bad = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000_000 };
    expect_eq!(wait_with(&raw const good, 1, 0, Some(&bad), monotonic), Err(Errno::EINVAL));
    Ok(())
}

fn time_limits_by_both_clocks() -> Outcome {
    let words = [0, 0].map(AtomicU32::new);
    let list = [at(&words[0], 0, PRIVATE), at(&words[1], 0, 0)];
    for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME] {
        for ms in [0, 20] {
            let end = moment(clock, ms);
            expect_eq!(wait_with(list.as_ptr(), 2, 0, Some(&end), clock), Err(Errno::ETIMEDOUT));
            let now = moment(clock, 0);
            expect!((now.tv_sec, now.tv_nsec) >= (end.tv_sec, end.tv_nsec));
        }
    }
    expect_eq!(wake(&words[0], PRIVATE), Ok(0));
    Ok(())
}

extern "C" fn nothing(_: i32) {}

fn a_signal_ends_the_wait() -> Outcome {
    // Without SA_RESTART, so that the call ends.
    // SAFETY: the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
    }
    let word = AtomicU32::new(0);
    let timer = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
        it_value: libc::timeval { tv_sec: 0, tv_usec: 20_000 },
    };
    // SAFETY: the timer is read.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    expect_eq!(wait(&[at(&word, 0, PRIVATE)]), Err(Errno::EINTR));
    expect_eq!(wake(&word, PRIVATE), Ok(0));
    Ok(())
}

fn processes_share_the_words() -> Outcome {
    // SAFETY: a new mapping.
    let page = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0)
    };
    expect!(page != libc::MAP_FAILED);
    // SAFETY: the mapping stays, and has room for both words.
    let words = unsafe { std::slice::from_raw_parts(page.cast::<AtomicU32>(), 2) };
    let child = spawn_child(|| {
        let list = [at(&words[0], 0, 0), at(&words[1], 0, 0)];
        i32::from(wait(&list) != Ok(1))
    })?;
    while wake(&words[1], 0) == Ok(0) {
        std::thread::yield_now();
    }
    expect_eq!(waitpid(child, None).or_fail()?, nix::sys::wait::WaitStatus::Exited(child, 0));
    Ok(())
}

/// Tokens that wakers put into words, and that waiters take: none is lost though each waits at all words.
fn many_waiters_and_wakers() -> Outcome {
    const WORDS: usize = 8;
    const TOKENS: u32 = 400;
    let words: Arc<Vec<AtomicU32>> = Arc::new((0..WORDS).map(|_| AtomicU32::new(0)).collect());
    let taken = Arc::new(AtomicU32::new(0));
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let (words, taken) = (words.clone(), taken.clone());
            std::thread::spawn(move || {
                let list: Vec<_> = words.iter().map(|word| at(word, 0, PRIVATE)).collect();
                while taken.load(Ordering::SeqCst) < TOKENS {
                    for word in words.iter() {
                        let take = |count: u32| count.checked_sub(1);
                        if word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
                            taken.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    let limit = moment(libc::CLOCK_MONOTONIC, 200);
                    let waited = wait_with(list.as_ptr(), WORDS, 0, Some(&limit), libc::CLOCK_MONOTONIC);
                    assert!(matches!(waited, Ok(_) | Err(Errno::EAGAIN | Errno::ETIMEDOUT)), "{waited:?}");
                }
            })
        })
        .collect();
    for token in 0..TOKENS {
        let word = &words[token as usize * 5 % WORDS];
        word.fetch_add(1, Ordering::SeqCst);
        wake(word, PRIVATE).or_fail()?;
        if token % 16 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    for waiter in waiters {
        waiter.join().map_err(|_| "a waiter panicked")?;
    }
    expect_eq!(taken.load(Ordering::SeqCst), TOKENS);
    Ok(())
}
