//! Which thread takes a signal, stops against `SIGCONT`, orphaned groups, futexes and locks against threads that go.

#![allow(unsafe_code)] // The C library has no safe forms of these calls.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{
    SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, kill, pthread_sigmask, sigaction,
};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid, gettid, pipe, read, setsid, write};

use crate::harness::{OrFail, Outcome, Scratch, in_child, own_path, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_signal_finds_a_thread_when_the_first_blocks_it
    a_signal_finds_a_thread_when_the_first_ends
    the_thread_that_used_the_time_takes_its_signal
    a_thread_that_comes_during_a_stop_stops
    nothing_stays_stopped_after_sigcont
    a_members_end_leaves_an_orphaned_group_alone
    the_end_of_the_last_minder_continues_its_group
    a_handler_that_overflows_its_stack_ends
    a_wake_finds_no_waiter_of_memory_that_is_gone
    a_requeue_that_is_refused_wakes_nobody
    two_holders_of_a_shared_flock_both_get_more
    the_end_of_all_threads_releases_record_locks
    exec_passes_on_no_descriptor_that_was_closed
    threads_move_the_heap_one_after_another
    threads_that_are_gone_have_no_entry
}

static HANDLED: AtomicI32 = AtomicI32::new(0);

extern "C" fn note_thread(_: i32) {
    HANDLED.store(gettid().as_raw(), Ordering::SeqCst);
}

fn handle(signal: Signal) -> Result<(), String> {
    let action = SigAction::new(SigHandler::Handler(note_thread), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler stores a number.
    unsafe { sigaction(signal, &action) }.or_fail()?;
    Ok(())
}

fn block(signal: Signal) -> Result<(), String> {
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::from(signal)), None).or_fail()
}

fn unblock(signal: Signal) {
    let _ = pthread_sigmask(SigmaskHow::SIG_UNBLOCK, Some(&SigSet::from(signal)), None);
}

/// Waits for something that must happen; the test's own limit ends it otherwise.
fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_exit(status: &WaitStatus, code: i32) -> bool {
    matches!(status, WaitStatus::Exited(_, found) if *found == code)
}

fn a_signal_finds_a_thread_when_the_first_blocks_it() -> Outcome {
    handle(Signal::SIGUSR1)?;
    block(Signal::SIGUSR1)?;
    let (is_over, other) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI32::new(0)));
    let thread = {
        let (is_over, other) = (is_over.clone(), other.clone());
        std::thread::spawn(move || {
            unblock(Signal::SIGUSR1);
            other.store(gettid().as_raw(), Ordering::SeqCst);
            wait_until(|| is_over.load(Ordering::SeqCst));
        })
    };
    wait_until(|| other.load(Ordering::SeqCst) != 0);
    let (reader, writer) = pipe().or_fail()?;
    let parent = getpid();
    for _ in 0..20 {
        HANDLED.store(0, Ordering::SeqCst);
        let child = spawn_child(|| {
            // The event ends the call, and the signal has to find the other thread then, if it came to this one.
            let is_sent = write(&writer, b"x").is_ok() && kill(parent, Signal::SIGUSR1).is_ok();
            i32::from(!is_sent)
        })?;
        let mut set = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let empty = SigSet::empty();
        // SAFETY: the set and the mask live during the call.
        unsafe { libc::ppoll(&raw mut set, 1, std::ptr::null(), empty.as_ref()) };
        wait_until(|| HANDLED.load(Ordering::SeqCst) != 0);
        read(&reader, &mut [0]).or_fail()?;
        expect!(is_exit(&waitpid(child, None).or_fail()?, 0));
    }
    is_over.store(true, Ordering::SeqCst);
    thread.join().map_err(|_| "the thread panicked".to_owned())
}

fn a_signal_finds_a_thread_when_the_first_ends() -> Outcome {
    handle(Signal::SIGUSR1)?;
    for _ in 0..20 {
        block(Signal::SIGUSR1)?;
        HANDLED.store(0, Ordering::SeqCst);
        let (is_ready, parent) = (Arc::new(AtomicBool::new(false)), getpid());
        let leaver = {
            let is_ready = is_ready.clone();
            std::thread::spawn(move || {
                unblock(Signal::SIGUSR1);
                is_ready.store(true, Ordering::SeqCst);
            })
        };
        wait_until(|| is_ready.load(Ordering::SeqCst));
        kill(parent, Signal::SIGUSR1).or_fail()?;
        unblock(Signal::SIGUSR1);
        wait_until(|| HANDLED.load(Ordering::SeqCst) != 0);
        leaver.join().map_err(|_| "the thread panicked".to_owned())?;
    }
    Ok(())
}

fn the_thread_that_used_the_time_takes_its_signal() -> Outcome {
    handle(Signal::SIGPROF)?;
    HANDLED.store(0, Ordering::SeqCst);
    let worker = std::thread::spawn(|| {
        // The first thread sleeps by then; only this one uses time.
        std::thread::sleep(Duration::from_millis(10));
        let value = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
        let interval = libc::itimerval { it_interval: value, it_value: value };
        // SAFETY: the value lives during the call.
        let set =
            unsafe { libc::syscall(libc::SYS_setitimer, libc::ITIMER_PROF, &raw const interval, 0_usize) };
        loop {
            let handled = HANDLED.load(Ordering::SeqCst);
            if set != 0 || handled != 0 {
                return (set, handled, gettid().as_raw());
            }
            std::hint::spin_loop();
        }
    });
    let (set, handled, busy) = worker.join().map_err(|_| "the thread panicked".to_owned())?;
    expect_eq!((set, handled), (0, busy));
    Ok(())
}

fn a_thread_that_comes_during_a_stop_stops() -> Outcome {
    // Threads come and go while the process is stopped; each stop must be reported, and each end again.
    let child = spawn_child(|| {
        loop {
            let _ = std::thread::spawn(|| {}).join();
        }
    })?;
    for _ in 0..50 {
        kill(child, Signal::SIGSTOP).or_fail()?;
        let stopped = waitpid(child, Some(WaitPidFlag::WUNTRACED)).or_fail()?;
        expect!(matches!(stopped, WaitStatus::Stopped(_, Signal::SIGSTOP)));
        kill(child, Signal::SIGCONT).or_fail()?;
        let continued = waitpid(child, Some(WaitPidFlag::WCONTINUED)).or_fail()?;
        expect!(matches!(continued, WaitStatus::Continued(_)));
    }
    kill(child, Signal::SIGKILL).or_fail()?;
    expect!(matches!(waitpid(child, None).or_fail()?, WaitStatus::Signaled(_, Signal::SIGKILL, _)));
    Ok(())
}

/// A page that this process shares with its children.
fn shared_counter() -> Result<&'static AtomicU64, String> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses where.
    let place = unsafe { libc::mmap(std::ptr::null_mut(), 4096, both, flags, -1, 0) };
    expect_mapped(place)?;
    // SAFETY: the page is mapped until the process ends, and an atomic may have any value.
    Ok(unsafe { &*place.cast::<AtomicU64>() })
}

fn expect_mapped(place: *mut libc::c_void) -> Outcome {
    expect!(place != libc::MAP_FAILED);
    Ok(())
}

fn nothing_stays_stopped_after_sigcont() -> Outcome {
    let counter = shared_counter()?;
    let child = spawn_child(|| {
        loop {
            counter.fetch_add(1, Ordering::SeqCst);
            nix::unistd::getppid();
        }
    })?;
    wait_until(|| counter.load(Ordering::SeqCst) != 0);
    for round in 0..20_000_u32 {
        kill(child, Signal::SIGSTOP).or_fail()?;
        for _ in 0..round % 400 {
            std::hint::spin_loop();
        }
        kill(child, Signal::SIGCONT).or_fail()?;
        if round % 200 == 0 {
            let seen = counter.load(Ordering::SeqCst);
            wait_until(|| counter.load(Ordering::SeqCst) != seen);
        }
    }
    kill(child, Signal::SIGKILL).or_fail()?;
    waitpid(child, None).or_fail()?;
    Ok(())
}

/// Runs `body` as the leader of a session whose parent is elsewhere: its group is orphaned.
fn as_session_leader(body: impl FnOnce() -> Result<bool, Errno>) -> Outcome {
    let ended = in_child(|| {
        let is_right = setsid().and_then(|_| body());
        i32::from(is_right != Ok(true))
    })?;
    expect!(is_exit(&ended, 0));
    Ok(())
}

fn sleeping_child() -> Result<Pid, Errno> {
    spawn_child(|| {
        // SAFETY: the default action.
        let _ = unsafe { nix::sys::signal::signal(Signal::SIGHUP, SigHandler::SigDfl) };
        loop {
            nix::unistd::pause();
        }
    })
    .map_err(|_| Errno::EAGAIN)
}

fn a_members_end_leaves_an_orphaned_group_alone() -> Outcome {
    as_session_leader(|| {
        handle(Signal::SIGHUP).map_err(|_| Errno::EINVAL)?;
        let stopped = sleeping_child()?;
        kill(stopped, Signal::SIGSTOP)?;
        waitpid(stopped, Some(WaitPidFlag::WUNTRACED))?;
        let sibling = spawn_child(|| 0).map_err(|_| Errno::EAGAIN)?;
        waitpid(sibling, None)?;
        // The group was orphaned before, so nothing has changed for it.
        let is_left = HANDLED.load(Ordering::SeqCst) == 0
            && waitpid(stopped, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WCONTINUED))?
                == WaitStatus::StillAlive;
        kill(stopped, Signal::SIGKILL)?;
        waitpid(stopped, None)?;
        Ok(is_left)
    })
}

fn the_end_of_the_last_minder_continues_its_group() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    as_session_leader(|| {
        // The minder is in the session's group, its child in one of its own, and stopped.
        let minder = spawn_child(|| {
            let Ok(child) = spawn_child(|| {
                let _ = nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0));
                let _ = handle(Signal::SIGHUP);
                let _ = kill(getpid(), Signal::SIGSTOP);
                // Only SIGCONT brings it here, and SIGHUP has come with it.
                let both = if HANDLED.load(Ordering::SeqCst) != 0 { b"y" } else { b"n" };
                i32::from(write(&writer, both).is_err())
            }) else {
                return 1;
            };
            i32::from(waitpid(child, Some(WaitPidFlag::WUNTRACED)).is_err())
        })
        .map_err(|_| Errno::EAGAIN)?;
        waitpid(minder, None)?;
        let mut byte = [0];
        read(&reader, &mut byte)?;
        Ok(byte == *b"y")
    })
}

extern "C" fn fault_again(_: i32) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    if COUNT.fetch_add(1, Ordering::Relaxed) == 100_000 {
        // SAFETY: `_exit` has no preconditions.
        unsafe { libc::_exit(42) };
    }
    // SAFETY: it is the fault that is wanted.
    unsafe { std::ptr::null_mut::<u8>().write_volatile(1) };
}

fn a_handler_that_overflows_its_stack_ends() -> Outcome {
    let ended = in_child(|| {
        let mut room = vec![0_u8; 1 << 20];
        let stack =
            libc::stack_t { ss_sp: room[1 << 19..].as_mut_ptr().cast(), ss_flags: 0, ss_size: 16 << 10 };
        let flags = SaFlags::SA_ONSTACK | SaFlags::SA_NODEFER;
        let action = SigAction::new(SigHandler::Handler(fault_again), flags, SigSet::empty());
        // SAFETY: the stack is the vector's, and the handler ends the process sooner or later.
        unsafe {
            libc::sigaltstack(&raw const stack, std::ptr::null_mut());
            let _ = sigaction(Signal::SIGSEGV, &action);
            std::ptr::null_mut::<u8>().write_volatile(1);
        }
        1
    })?;
    expect!(matches!(ended, WaitStatus::Signaled(_, Signal::SIGSEGV, _)));
    Ok(())
}

fn futex(word: &AtomicU32, operation: i32, value: u32, rest: [usize; 3]) -> Result<i64, Errno> {
    let [timeout, other, third] = rest;
    // SAFETY: the words live as long as the process; the kernel checks the rest.
    let result =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, timeout, other, third) };
    Errno::result(result)
}

/// A word in a page of its own, shared between processes.
fn shared_word() -> Result<&'static AtomicU32, String> {
    let counter = shared_counter()?;
    // SAFETY: half of an atomic that lives as long.
    Ok(unsafe { AtomicU32::from_ptr(counter.as_ptr().cast()) })
}

/// A thread that waits at a word, and tells when it has been woken.
fn waiter(word: &'static AtomicU32) -> (Arc<AtomicBool>, std::thread::JoinHandle<()>) {
    let is_woken = Arc::new(AtomicBool::new(false));
    let (started, seen) = (Arc::new(AtomicI32::new(0)), is_woken.clone());
    let own = started.clone();
    let thread = std::thread::spawn(move || {
        own.store(gettid().as_raw(), Ordering::SeqCst);
        let _ = futex(word, libc::FUTEX_WAIT, 0, [0; 3]);
        seen.store(true, Ordering::SeqCst);
    });
    wait_until(|| started.load(Ordering::SeqCst) != 0);
    let path = format!("/proc/self/task/{}/stat", started.load(Ordering::SeqCst));
    wait_until(|| fs::read_to_string(&path).is_ok_and(|text| text.contains(") S ")));
    (is_woken, thread)
}

fn a_wake_finds_no_waiter_of_memory_that_is_gone() -> Outcome {
    let mut left = Vec::new();
    for _ in 0..10 {
        let first = shared_word()?;
        let (is_stolen, thread) = waiter(first);
        left.push(thread);
        // SAFETY: the kernel has the waiter, which touches the page no more.
        unsafe { libc::munmap(first.as_ptr().cast(), 4096) };
        let second = shared_word()?;
        let (is_woken, thread) = waiter(second);
        expect_eq!(futex(second, libc::FUTEX_WAKE, 1, [0; 3]), Ok(1));
        thread.join().map_err(|_| "the thread panicked".to_owned())?;
        expect!(is_woken.load(Ordering::SeqCst) && !is_stolen.load(Ordering::SeqCst));
    }
    // The waiters of what is gone wait until the process ends.
    drop(left);
    Ok(())
}

fn a_requeue_that_is_refused_wakes_nobody() -> Outcome {
    let (word, other) = (shared_word()?, shared_word()?);
    let (is_woken, thread) = waiter(word);
    let address = other.as_ptr() as usize;
    let operation = libc::FUTEX_CMP_REQUEUE;
    let limit = 1_usize;
    expect_eq!(futex(word, operation, 1, [limit, address, 7]), Err(Errno::EAGAIN));
    expect_eq!(futex(word, operation, 1, [limit, address + 1, 0]), Err(Errno::EINVAL));
    expect_eq!(futex(word, operation, u32::MAX, [limit, address, 0]), Err(Errno::EINVAL));
    expect!(!is_woken.load(Ordering::SeqCst));
    expect_eq!(futex(word, operation, 0, [limit, address, 0]), Ok(1));
    expect_eq!(futex(other, libc::FUTEX_WAKE, 1, [0; 3]), Ok(1));
    thread.join().map_err(|_| "the thread panicked".to_owned())
}

fn flock(file: &File, operation: i32) -> Result<(), Errno> {
    // SAFETY: the call takes two numbers.
    Errno::result(unsafe { libc::flock(file.as_raw_fd(), operation) }).map(drop)
}

fn two_holders_of_a_shared_flock_both_get_more() -> Outcome {
    let scratch = Scratch::new("flock")?;
    let path = scratch.path("file");
    fs::write(&path, "x").or_fail()?;
    let (reader, writer) = pipe().or_fail()?;
    let file = File::open(&path).or_fail()?;
    flock(&file, libc::LOCK_SH).or_fail()?;
    let child = spawn_child(|| {
        let Ok(file) = File::open(&path) else { return 1 };
        let has_both = flock(&file, libc::LOCK_SH).is_ok()
            && write(&writer, b"x").is_ok()
            && flock(&file, libc::LOCK_EX).is_ok()
            && flock(&file, libc::LOCK_UN).is_ok();
        i32::from(!has_both)
    })?;
    read(&reader, &mut [0]).or_fail()?;
    flock(&file, libc::LOCK_EX).or_fail()?;
    flock(&file, libc::LOCK_UN).or_fail()?;
    expect!(is_exit(&waitpid(child, None).or_fail()?, 0));
    // A process that is refused has lost the lock it had.
    let (other, third) = (File::open(&path).or_fail()?, File::open(&path).or_fail()?);
    flock(&file, libc::LOCK_SH).or_fail()?;
    flock(&other, libc::LOCK_SH).or_fail()?;
    expect_eq!(flock(&file, libc::LOCK_EX | libc::LOCK_NB), Err(Errno::EWOULDBLOCK));
    flock(&other, libc::LOCK_UN).or_fail()?;
    expect_eq!(flock(&third, libc::LOCK_EX | libc::LOCK_NB), Ok(()));
    Ok(())
}

fn the_end_of_all_threads_releases_record_locks() -> Outcome {
    let scratch = Scratch::new("lastlock")?;
    let path = scratch.path("file");
    fs::write(&path, [0; 100]).or_fail()?;
    let file = OpenOptions::new().read(true).write(true).open(&path).or_fail()?;
    let range = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 10,
        l_pid: 0,
    };
    for _ in 0..50 {
        let child = spawn_child(|| {
            if fcntl(&file, FcntlArg::F_SETLK(&range)).is_err() {
                return 1;
            }
            for _ in 0..3 {
                std::thread::spawn(|| {
                    loop {
                        std::hint::spin_loop();
                    }
                });
            }
            0
        })?;
        expect!(is_exit(&waitpid(child, None).or_fail()?, 0));
        expect_eq!(fcntl(&file, FcntlArg::F_SETLK(&range)), Ok(0));
        let mut none = range;
        none.l_type = libc::F_UNLCK as i16;
        fcntl(&file, FcntlArg::F_SETLK(&none)).or_fail()?;
    }
    Ok(())
}

fn exec_passes_on_no_descriptor_that_was_closed() -> Outcome {
    use std::os::unix::process::CommandExt;
    let path = own_path();
    let closed = shared_counter()?;
    for round in 0..60_u32 {
        closed.store(0, Ordering::SeqCst);
        let ended = in_child(|| {
            let Ok(file) = File::open("/proc/self/status") else { return 9 };
            let number = file.as_raw_fd();
            // Without the flag that closes it by itself.
            // SAFETY: the command takes a number.
            unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
            let may_start = Arc::new(AtomicBool::new(false));
            let has_started = may_start.clone();
            std::thread::spawn(move || {
                while !has_started.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
                // Somewhere between the beginning of the call and this thread's end.
                for _ in 0..round * 20_000 {
                    std::hint::spin_loop();
                }
                drop(file);
                closed.store(1, Ordering::SeqCst);
                loop {
                    std::hint::spin_loop();
                }
            });
            let mut command = std::process::Command::new(&path);
            command.arg("--as=has-descriptor").arg(number.to_string());
            may_start.store(true, Ordering::SeqCst);
            drop(command.exec());
            9
        })?;
        let (was_closed, is_open) = (closed.load(Ordering::SeqCst) == 1, is_exit(&ended, 1));
        expect!(is_open || is_exit(&ended, 0));
        expect!(!(was_closed && is_open));
    }
    Ok(())
}

fn threads_move_the_heap_one_after_another() -> Outcome {
    let ended = in_child(|| {
        // Not the C library's heap: it uses other memory from here on.
        // SAFETY: the call takes an address; this process allocates nothing by `brk` meanwhile.
        let brk = |address: usize| unsafe { libc::syscall(libc::SYS_brk, address) as usize };
        let start = brk(0).next_multiple_of(4096);
        let threads: Vec<_> = (0..4_usize)
            .map(|number| {
                std::thread::spawn(move || {
                    for round in 0..500_usize {
                        let pages = (round * 7 + number * 3) % 9 + 1;
                        brk(start + pages * 4096);
                    }
                })
            })
            .collect();
        let are_done = threads.into_iter().all(|thread| thread.join().is_ok());
        let end = brk(0);
        // Every page below the end is there.
        for address in (start..end).step_by(4096) {
            // SAFETY: the heap reaches to here.
            unsafe { (address as *mut u8).write_volatile(1) };
        }
        i32::from(!are_done || end <= start)
    })?;
    expect!(is_exit(&ended, 0));
    Ok(())
}

fn threads_that_are_gone_have_no_entry() -> Outcome {
    let number = std::thread::spawn(gettid).join().map_err(|_| "the thread panicked".to_owned())?;
    let path = format!("/proc/self/task/{number}");
    wait_until(|| !fs::exists(&path).unwrap_or(true));
    let error = fs::metadata(&path).err().and_then(|error| error.raw_os_error());
    expect_eq!(error, Some(libc::ENOENT));
    Ok(())
}
