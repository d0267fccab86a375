//! Futexes that inherit priorities, and the C library's mutexes over them.

#![allow(unsafe_code)] // System calls and functions of the C library that have no safe form.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, gettid};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_lock_and_its_errors
    timeouts_of_a_lock
    waiters_get_the_lock_by_priority
    the_owner_inherits
    inheritance_passes_along_a_chain
    a_circle_is_a_deadlock
    an_owner_that_ends_gives_the_lock_up
    mutexes_of_the_library
    robust_mutexes_of_the_library
    waiters_move_from_a_word_to_a_lock
    the_most_urgent_waiter_is_woken_first
}

const WAITERS: u32 = libc::FUTEX_WAITERS;
const OWNER_DIED: u32 = libc::FUTEX_OWNER_DIED;
const LOCK_PI2: i32 = 13;

fn futex(
    word: &AtomicU32,
    operation: i32,
    value: u32,
    timeout: *const libc::timespec,
    other: Option<&AtomicU32>,
    last: u32,
) -> Result<i64, Errno> {
    let other = other.map_or(null(), AtomicU32::as_ptr_const);
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the words and the time live during the call.
    Errno::result(unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, timeout, other, last)
    })
}

trait AsConst {
    fn as_ptr_const(&self) -> *const u32;
}

impl AsConst for AtomicU32 {
    fn as_ptr_const(&self) -> *const u32 {
        self.as_ptr().cast_const()
    }
}

fn simple(word: &AtomicU32, operation: i32) -> Result<(), Errno> {
    futex(word, operation, 0, null(), None, 0).map(drop)
}

pub(crate) fn lock(word: &AtomicU32) -> Result<(), Errno> {
    simple(word, libc::FUTEX_LOCK_PI)
}

pub(crate) fn unlock(word: &AtomicU32) -> Result<(), Errno> {
    simple(word, libc::FUTEX_UNLOCK_PI)
}

fn own() -> u32 {
    gettid().as_raw() as u32
}

/// Makes the calling thread a realtime thread, or an ordinary one with 0.
pub(crate) fn become_fifo(priority: i32) -> Result<(), Errno> {
    let parameters = libc::sched_param { sched_priority: priority };
    let policy = if priority == 0 { libc::SCHED_OTHER } else { libc::SCHED_FIFO };
    // SAFETY: the parameters live during the call. The C library's function is not for threads.
    let result = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const parameters) };
    Errno::result(result).map(drop)
}

pub(crate) fn use_one_cpu() -> Outcome {
    let mut set = CpuSet::new();
    set.set(0).or_fail()?;
    sched_setaffinity(Pid::from_raw(0), &set).or_fail()
}

/// Whether a thread of this process sleeps, and neither runs nor waits for a disk.
fn is_asleep(number: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{number}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// Waits until a thread that has told its number does nothing any more: it waits.
pub(crate) fn wait_until_it_waits(tid: &AtomicI32) -> Outcome {
    let mut before = None;
    loop {
        std::thread::sleep(Duration::from_millis(10));
        let number = tid.load(Ordering::SeqCst);
        if number == 0 {
            continue;
        }
        let mut time = MaybeUninit::<libc::timespec>::zeroed();
        // SAFETY: the time is written to memory of its size, and any number is one.
        let time = unsafe {
            Errno::result(libc::clock_gettime(!number << 3 | 6, time.as_mut_ptr())).or_fail()?;
            time.assume_init()
        };
        let now = Some((time.tv_sec, time.tv_nsec));
        if now == before && is_asleep(number) {
            return Ok(());
        }
        before = now;
    }
}

fn a_lock_and_its_errors() -> Outcome {
    let word = AtomicU32::new(0);
    lock(&word).or_fail()?;
    expect_eq!(word.load(Ordering::SeqCst), own());
    expect_eq!(lock(&word), Err(Errno::EDEADLK));
    expect_eq!(simple(&word, libc::FUTEX_TRYLOCK_PI), Err(Errno::EDEADLK));
    let other = std::thread::scope(|scope| {
        let other = scope.spawn(|| (simple(&word, libc::FUTEX_TRYLOCK_PI), unlock(&word)));
        other.join().map_err(|_| "panicked")
    })?;
    expect_eq!(other, (Err(Errno::EAGAIN), Err(Errno::EPERM)));
    unlock(&word).or_fail()?;
    expect_eq!(word.load(Ordering::SeqCst), 0);
    expect_eq!(unlock(&word), Err(Errno::EPERM));
    simple(&word, libc::FUTEX_TRYLOCK_PI).or_fail()?;
    expect_eq!(word.load(Ordering::SeqCst), own());
    // An owner that does not exist, or no longer.
    let child = spawn_child(|| 0)?;
    waitpid(child, None).or_fail()?;
    word.store(child.as_raw() as u32, Ordering::SeqCst);
    expect_eq!(lock(&word), Err(Errno::ESRCH));
    // One that has died is told of, but no hindrance.
    word.store(OWNER_DIED, Ordering::SeqCst);
    lock(&word).or_fail()?;
    expect_eq!(word.load(Ordering::SeqCst), own() | OWNER_DIED);
    // The time of day is for those commands that take a clock.
    let realtime = libc::FUTEX_CLOCK_REALTIME;
    expect_eq!(simple(&word, libc::FUTEX_LOCK_PI | realtime), Err(Errno::ENOSYS));
    expect_eq!(simple(&word, libc::FUTEX_WAIT | realtime), Err(Errno::ENOSYS));
    Ok(())
}

fn timeouts_of_a_lock() -> Outcome {
    let word = AtomicU32::new(0);
    lock(&word).or_fail()?;
    let result = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let past = libc::timespec { tv_sec: 1, tv_nsec: 0 };
            let wrong = libc::timespec { tv_sec: 1, tv_nsec: 1_000_000_000 };
            let lock = |operation, time| futex(&word, operation, 0, time, None, 0);
            [
                lock(libc::FUTEX_LOCK_PI, &raw const past),
                lock(LOCK_PI2, &raw const past),
                lock(LOCK_PI2 | libc::FUTEX_CLOCK_REALTIME, &raw const past),
                lock(libc::FUTEX_LOCK_PI, &raw const wrong),
            ]
        });
        other.join().map_err(|_| "panicked")
    })?;
    let late = Err(Errno::ETIMEDOUT);
    expect_eq!(result, [late, late, late, Err(Errno::EINVAL)]);
    // The waiters have been there.
    expect_eq!(word.load(Ordering::SeqCst), own() | WAITERS);
    unlock(&word).or_fail()?;
    expect_eq!(word.load(Ordering::SeqCst), 0);
    Ok(())
}

fn waiters_get_the_lock_by_priority() -> Outcome {
    use_one_cpu()?;
    let (word, order) = (AtomicU32::new(0), Mutex::new(Vec::new()));
    let priorities = [10, 0, 30, 20, 30];
    let numbers = priorities.map(|_| AtomicI32::new(0));
    lock(&word).or_fail()?;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, priority) in priorities.into_iter().enumerate() {
            let (word, order, number) = (&word, &order, &numbers[index]);
            threads.push(scope.spawn(move || {
                become_fifo(priority).or_fail()?;
                number.store(gettid().as_raw(), Ordering::SeqCst);
                lock(word).or_fail()?;
                expect_eq!(word.load(Ordering::SeqCst) & libc::FUTEX_TID_MASK, own());
                order.lock().or_fail()?.push(index);
                unlock(word).or_fail()
            }));
            wait_until_it_waits(number)?;
        }
        expect_eq!(word.load(Ordering::SeqCst), own() | WAITERS);
        // Whoever waits for the lock is not woken otherwise.
        expect_eq!(futex(&word, libc::FUTEX_WAKE, 1, null(), None, 0), Err(Errno::EINVAL));
        unlock(&word).or_fail()?;
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "panicked")?)
    })?;
    expect_eq!(order.into_inner().or_fail()?, [2, 4, 3, 0, 1]);
    expect_eq!(word.load(Ordering::SeqCst), 0);
    Ok(())
}

/// Locks 0 to `length` are held by threads of low priority, each of which waits for the one before; a thread of high
/// priority waits for the last. One of middle priority takes the only processor, and must not keep the first owner from
/// it.
fn inherit_along(length: usize) -> Outcome {
    use_one_cpu()?;
    become_fifo(60).or_fail()?;
    let locks: Vec<AtomicU32> = (0..length).map(|_| AtomicU32::new(0)).collect();
    let numbers: Vec<AtomicI32> = (0..=length).map(|_| AtomicI32::new(0)).collect();
    let [middle_runs, is_done] = [const { AtomicBool::new(false) }; 2];
    let locks = &locks;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, number) in numbers.iter().enumerate() {
            let (middle_runs, is_done) = (&middle_runs, &is_done);
            threads.push(scope.spawn(move || {
                become_fifo(if index == length { 40 } else { 10 }).or_fail()?;
                if index < length {
                    lock(&locks[index]).or_fail()?;
                }
                number.store(gettid().as_raw(), Ordering::SeqCst);
                if index == 0 {
                    // Runs below the middle one, but for what it inherits.
                    while !middle_runs.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                } else {
                    lock(&locks[index - 1]).or_fail()?;
                    unlock(&locks[index - 1]).or_fail()?;
                }
                if index < length {
                    unlock(&locks[index]).or_fail()?;
                } else {
                    is_done.store(true, Ordering::SeqCst);
                }
                Ok::<_, String>(())
            }));
            while number.load(Ordering::SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            if index > 0 {
                wait_until_it_waits(number)?;
            }
        }
        let middle = scope.spawn(|| {
            become_fifo(20).or_fail()?;
            middle_runs.store(true, Ordering::SeqCst);
            // Not for ever, should nobody inherit anything.
            for _ in 0..400_000_000u64 {
                if is_done.load(Ordering::SeqCst) {
                    return Ok(true);
                }
            }
            Ok::<_, String>(false)
        });
        let is_done_in_time = middle.join().map_err(|_| "panicked")??;
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "panicked")?)?;
        expect!(is_done_in_time);
        Ok(())
    })
}

fn the_owner_inherits() -> Outcome {
    inherit_along(1)
}

fn inheritance_passes_along_a_chain() -> Outcome {
    inherit_along(4)
}

fn a_circle_is_a_deadlock() -> Outcome {
    let (a, b, c) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let numbers = [const { AtomicI32::new(0) }; 2];
    lock(&a).or_fail()?;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (number, held, wanted) in [(&numbers[0], &b, &a), (&numbers[1], &c, &b)] {
            threads.push(scope.spawn(move || {
                lock(held).or_fail()?;
                number.store(gettid().as_raw(), Ordering::SeqCst);
                lock(wanted).or_fail()?;
                unlock(wanted).or_fail()?;
                unlock(held).or_fail()
            }));
            wait_until_it_waits(number)?;
        }
        expect_eq!(lock(&c), Err(Errno::EDEADLK));
        expect_eq!(lock(&b), Err(Errno::EDEADLK));
        unlock(&a).or_fail()?;
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "panicked")?)
    })
}

fn an_owner_that_ends_gives_the_lock_up() -> Outcome {
    let (word, number, may_end) = (AtomicU32::new(0), AtomicI32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let locked = lock(&word);
            while !may_end.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            locked
        });
        while word.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let waiter = scope.spawn(|| {
            number.store(gettid().as_raw(), Ordering::SeqCst);
            lock(&word).or_fail()?;
            expect_eq!(word.load(Ordering::SeqCst), own() | WAITERS | OWNER_DIED);
            unlock(&word).or_fail()
        });
        wait_until_it_waits(&number)?;
        may_end.store(true, Ordering::SeqCst);
        owner.join().map_err(|_| "panicked")?.or_fail()?;
        waiter.join().map_err(|_| "panicked")?
    })?;
    expect_eq!(word.load(Ordering::SeqCst), 0);
    Ok(())
}

/// A mutex that inherits priorities, in memory that processes share.
struct LibraryMutex(*mut libc::pthread_mutex_t);

// SAFETY: the functions of the library are for several threads.
unsafe impl Sync for LibraryMutex {}

impl LibraryMutex {
    fn new(robust: bool) -> Result<Self, String> {
        // SAFETY: a new mapping large enough; the attributes live until the mutex has been made.
        unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            let memory = libc::mmap(null_mut(), 4096, access, flags, -1, 0);
            expect(memory != libc::MAP_FAILED)?;
            let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
            let attributes = attributes.as_mut_ptr();
            expect(libc::pthread_mutexattr_init(attributes) == 0)?;
            expect(libc::pthread_mutexattr_setprotocol(attributes, libc::PTHREAD_PRIO_INHERIT) == 0)?;
            expect(libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED) == 0)?;
            expect(libc::pthread_mutexattr_settype(attributes, libc::PTHREAD_MUTEX_ERRORCHECK) == 0)?;
            if robust {
                expect(libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST) == 0)?;
            }
            let mutex = memory.cast::<libc::pthread_mutex_t>();
            expect(libc::pthread_mutex_init(mutex, attributes) == 0)?;
            Ok(Self(mutex))
        }
    }

    fn lock(&self) -> i32 {
        // SAFETY: the mutex has been made, and its memory stays.
        unsafe { libc::pthread_mutex_lock(self.0) }
    }

    fn unlock(&self) -> i32 {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_unlock(self.0) }
    }
}

fn expect(holds: bool) -> Outcome {
    if holds { Ok(()) } else { Err("the mutex can't be made".to_owned()) }
}

fn mutexes_of_the_library() -> Outcome {
    let mutex = LibraryMutex::new(false)?;
    let counter = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..500 {
                    mutex.lock();
                    let seen = counter.load(Ordering::Relaxed);
                    if round % 50 == 0 {
                        std::thread::yield_now();
                    }
                    counter.store(seen + 1, Ordering::Relaxed);
                    mutex.unlock();
                }
            });
        }
    });
    expect_eq!(counter.load(Ordering::Relaxed), 2000);
    expect_eq!(mutex.lock(), 0);
    expect_eq!(mutex.lock(), libc::EDEADLK);
    expect_eq!(mutex.unlock(), 0);
    Ok(())
}

fn robust_mutexes_of_the_library() -> Outcome {
    let mutex = LibraryMutex::new(true)?;
    // The owner has died before anybody waits, and while this process waits.
    for pause_ms in [0, 100] {
        let (reader, writer) = nix::unistd::pipe().or_fail()?;
        let child = spawn_child(|| {
            let locked = mutex.lock();
            let _ = nix::unistd::write(&writer, b"x");
            std::thread::sleep(Duration::from_millis(pause_ms));
            locked
        })?;
        nix::unistd::read(&reader, &mut [0]).or_fail()?;
        if pause_ms == 0 {
            waitpid(child, None).or_fail()?;
        }
        expect_eq!(mutex.lock(), libc::EOWNERDEAD);
        // SAFETY: the mutex has been made, and this thread owns it.
        expect_eq!(unsafe { libc::pthread_mutex_consistent(mutex.0) }, 0);
        expect_eq!(mutex.unlock(), 0);
        if pause_ms != 0 {
            waitpid(child, None).or_fail()?;
        }
    }
    expect_eq!(mutex.lock(), 0);
    expect_eq!(mutex.unlock(), 0);
    Ok(())
}

fn waiters_move_from_a_word_to_a_lock() -> Outcome {
    let (word, target) = (AtomicU32::new(5), AtomicU32::new(0));
    let requeue = |count, moved: usize, expected| {
        let moved = std::ptr::without_provenance(moved);
        futex(&word, libc::FUTEX_CMP_REQUEUE_PI, count, moved, Some(&target), expected)
    };
    expect_eq!(requeue(2, 0, 5), Err(Errno::EINVAL));
    expect_eq!(requeue(1, 9, 6), Err(Errno::EAGAIN));
    expect_eq!(requeue(1, 9, 5), Ok(0));
    let wait = |time| futex(&word, libc::FUTEX_WAIT_REQUEUE_PI, 5, time, Some(&target), 0);
    let past = libc::timespec { tv_sec: 1, tv_nsec: 0 };
    expect_eq!(wait(&raw const past), Err(Errno::ETIMEDOUT));
    let numbers = [const { AtomicI32::new(0) }; 3];
    let holders = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in &numbers {
            let (wait, target, holders) = (&wait, &target, &holders);
            threads.push(scope.spawn(move || {
                number.store(gettid().as_raw(), Ordering::SeqCst);
                expect_eq!(wait(null()), Ok(0));
                expect_eq!(target.load(Ordering::SeqCst) & libc::FUTEX_TID_MASK, own());
                expect_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                std::thread::yield_now();
                holders.fetch_sub(1, Ordering::SeqCst);
                unlock(target).or_fail()
            }));
            wait_until_it_waits(number)?;
        }
        // The first gets the free lock, the others wait for it; then those who find it held.
        expect_eq!(requeue(1, 1, 5), Ok(2));
        threads.drain(..2).try_for_each(|thread| thread.join().map_err(|_| "panicked")?)?;
        lock(&target).or_fail()?;
        expect_eq!(requeue(1, 9, 5), Ok(1));
        expect_eq!(target.load(Ordering::SeqCst), own() | WAITERS);
        unlock(&target).or_fail()?;
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "panicked")?)
    })?;
    expect_eq!(target.load(Ordering::SeqCst), 0);
    Ok(())
}

fn the_most_urgent_waiter_is_woken_first() -> Outcome {
    use_one_cpu()?;
    let (word, order) = (AtomicU32::new(1), Mutex::new(Vec::new()));
    let priorities = [0, 10, 30, 0, 20];
    let numbers = priorities.map(|_| AtomicI32::new(0));
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, priority) in priorities.into_iter().enumerate() {
            let (word, order, number) = (&word, &order, &numbers[index]);
            threads.push(scope.spawn(move || {
                become_fifo(priority).or_fail()?;
                number.store(gettid().as_raw(), Ordering::SeqCst);
                expect_eq!(futex(word, libc::FUTEX_WAIT, 1, null(), None, 0), Ok(0));
                order.lock().or_fail()?.push(index);
                Ok::<_, String>(())
            }));
            wait_until_it_waits(number)?;
        }
        for woken in 1..=priorities.len() {
            expect_eq!(futex(&word, libc::FUTEX_WAKE, 1, null(), None, 0), Ok(1));
            while order.lock().or_fail()?.len() < woken {
                std::thread::yield_now();
            }
        }
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "panicked")?)
    })?;
    expect_eq!(order.into_inner().or_fail()?, [2, 4, 1, 0, 3]);
    Ok(())
}
