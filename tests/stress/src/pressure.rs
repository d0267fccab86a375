//! Every family of calls while memory is short all the time, from several processes: a program may be refused, or be
//! killed; the machine goes on, and gets everything back.
//!
//! One process takes all memory that there is and asks to be killed first, so that the others meet each shortage in the
//! middle of their calls. `steps` is the number of seconds.
//!
//! Before that, one that may not be killed either takes all memory for a while: who needs a page then waits, and a
//! thread that ends is joined. With 0 seconds nothing else is done.
#![allow(unsafe_code, reason = "fork has no safe form")]

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::arguments::Plan;
use crate::random::Random;
use crate::{hostile, inject};

const PAGE_BYTES: usize = 4096;
/// The one that takes all memory asks for so much at a time.
const PIECE_BYTES: usize = 256 << 10;
/// A worker that a call left waiting is ended after this long.
const WORKER_SECONDS: u32 = 10;
/// Pressure before memory is weighed.
const WARM_UP: Duration = Duration::from_secs(5);
/// A killed process that has not ended by then never will.
const DEATH: Duration = Duration::from_secs(60);
/// How long all memory is taken, and for how long nobody may have got a page to be sure that there is none.
const HOLD_SECONDS: u32 = 3;
const SHORT: Duration = Duration::from_millis(300);
const ALTERNATE_STACK_PAGES: usize = 16;
/// The C library's registration of restartable sequences.
const RSEQ_BYTES: usize = 32;
const RSEQ_SIGNATURE: u32 = 0x5305_3053;
const RSEQ_UNREGISTER: i32 = 1;
/// The processor that the thread with an area stays on: the area of one on processor 0 would stay empty.
const RSEQ_PROCESSOR: usize = 1;
const ADJUSTMENT: &str = "/proc/self/oom_score_adj";

/// Puts the machine under pressure, and compares its memory before and after.
pub fn run(plan: &Plan) -> Result<(), String> {
    fs::write(ADJUSTMENT, "-1000").map_err(|error| format!("{ADJUSTMENT}: {error}"))?;
    // Objects that the machine makes once and keeps are made first: tables that grow to what is in use at a time (of
    // processes, spaces, waiters, locks), and the nodes of the files of the root image that the programs use.
    outlast()?;
    if plan.steps == 0 {
        return Ok(());
    }
    squeeze(plan, WARM_UP)?;
    hostile::weigh(|| squeeze(plan, Duration::from_secs(plan.steps)))
}

/// Needs pages of several kinds at a time when there are none, and nobody who may be killed for them: the kernel writes
/// a handler's frame, the area of restartable sequences, and results of calls to pages that are not there yet.
fn outlast() -> Result<(), String> {
    let taken = shared_count()?;
    // SAFETY: this process has one thread.
    let child = match unsafe { fork() }.map_err(|error| format!("fork: {error}"))? {
        ForkResult::Child => hold_all(taken),
        ForkResult::Parent { child } => child,
    };
    let result = need_pages(taken);
    match waitpid(child, None) {
        Ok(WaitStatus::Signaled(_, Signal::SIGALRM, _)) => result,
        other => Err(format!("the one that held all memory: {other:?}")),
    }
}

/// A number that children share.
fn shared_count() -> Result<&'static AtomicUsize, String> {
    let page = fresh_pages(1, libc::MAP_SHARED)?;
    // SAFETY: the mapping stays; a page of zeros is a number, and all access to it is atomic.
    let count = unsafe { &*page.cast::<AtomicUsize>() };
    count.store(0, Ordering::Relaxed);
    Ok(count)
}

/// Mapped pages that nobody has touched.
fn fresh_pages(count: usize, kind: i32) -> Result<*mut u8, String> {
    let (length, protection) = (count * PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE);
    let flags = kind | libc::MAP_ANONYMOUS;
    // SAFETY: a mapping at a place of the kernel's choice.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED { Err(String::from("mmap failed")) } else { Ok(page.cast()) }
}

/// Waits until memory has run out: nobody has got a page for a while. It needs none itself, nor does it sleep, since
/// the kernel needs memory for that.
fn wait_for_shortage(taken: &AtomicUsize) {
    let (mut before, mut since) = (0, Instant::now());
    while since.elapsed() < SHORT {
        let now = taken.load(Ordering::Relaxed);
        if now != before || now <= 1 {
            (before, since) = (now, Instant::now());
        }
        std::thread::yield_now();
    }
}

/// Takes all memory once `taken` is not 0 any more, counting the pages, until the alarm ends it.
fn hold_all(taken: &'static AtomicUsize) -> ! {
    while taken.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: the call takes a number.
    unsafe { libc::alarm(HOLD_SECONDS) };
    loop {
        let Ok(piece) = fresh_pages(PIECE_BYTES / PAGE_BYTES, libc::MAP_PRIVATE) else { continue };
        for offset in (0..PIECE_BYTES).step_by(PAGE_BYTES) {
            // SAFETY: the byte lies in the mapping.
            unsafe { piece.add(offset).write_volatile(1) };
            taken.fetch_add(1, Ordering::Relaxed);
        }
    }
}

unsafe extern "C" {
    /// Where the C library's area is, from the thread pointer.
    static __rseq_offset: isize;
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn note_signal(_: i32) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

fn need_pages(taken: &AtomicUsize) -> Result<(), String> {
    let stack = fresh_pages(ALTERNATE_STACK_PAGES, libc::MAP_PRIVATE)?;
    let area = fresh_pages(1, libc::MAP_PRIVATE)?;
    let status = fresh_pages(1, libc::MAP_PRIVATE)?;
    let stack =
        libc::stack_t { ss_sp: stack.cast(), ss_flags: 0, ss_size: ALTERNATE_STACK_PAGES * PAGE_BYTES };
    // SAFETY: the handler only counts; the stack is used by nobody else.
    let is_set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note_signal as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigaltstack(&raw const stack, std::ptr::null_mut()) == 0
            && libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) == 0
    };
    if !is_set {
        return Err(String::from("no handler"));
    }
    // A child that has ended, to be asked for when memory is out.
    // SAFETY: this process has one thread.
    let child = match unsafe { fork() }.map_err(|error| format!("fork: {error}"))? {
        // SAFETY: `_exit` has no preconditions.
        ForkResult::Child => unsafe { libc::_exit(0) },
        ForkResult::Parent { child } => child,
    };
    let sequences = std::thread::spawn({
        let (area, taken) = (area as usize, taken as *const AtomicUsize as usize);
        move || need_area(area as *mut libc::c_void, taken)
    });
    taken.store(1, Ordering::Relaxed);
    wait_for_shortage(taken);
    // SAFETY: a signal to this thread, whose handler is `note_signal`; and a number that is written to its mapping.
    let waited = unsafe {
        libc::raise(libc::SIGUSR1);
        libc::waitpid(child.as_raw(), status.cast(), 0)
    };
    let has_area =
        sequences.join().map_err(|_| String::from("the thread with an area of its own has panicked"))?;
    let handled = HANDLED.load(Ordering::Relaxed);
    if handled != 2 || waited != child.as_raw() || !has_area {
        return Err(format!("without memory: {handled} handled, {waited} waited for, area {has_area}"));
    }
    Ok(())
}

/// Registers an area of restartable sequences and has its page taken away: the kernel looks at it before a handler
/// runs.
fn need_area(area: *mut libc::c_void, taken: usize) -> bool {
    // SAFETY: the number is in a mapping that stays; the area too, until the thread ends. The area of the C library is
    // where its variable says.
    unsafe {
        let taken = &*(taken as *const AtomicUsize);
        let thread: *mut u8;
        std::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly));
        let own = thread.offset(__rseq_offset);
        let mut processors: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(RSEQ_PROCESSOR, &mut processors);
        let is_there = libc::sched_setaffinity(0, size_of_val(&processors), &raw const processors) == 0;
        let expected = if is_there { RSEQ_PROCESSOR as u32 } else { 0 };
        if libc::syscall(libc::SYS_rseq, own, RSEQ_BYTES, RSEQ_UNREGISTER, RSEQ_SIGNATURE) != 0
            || libc::syscall(libc::SYS_rseq, area, RSEQ_BYTES, 0, RSEQ_SIGNATURE) != 0
        {
            return false;
        }
        wait_for_shortage(taken);
        libc::madvise(area, PAGE_BYTES, libc::MADV_DONTNEED);
        libc::raise(libc::SIGUSR1);
        area.cast::<u32>().read_volatile() == expected
    }
}

/// A process that this one keeps running until the time is over.
struct Kept {
    body: fn(Random),
    pid: Option<Pid>,
    ends: u64,
}

impl Kept {
    /// Starts it again if it has ended. Without memory for it, the next look does.
    fn look(&mut self, seed: &mut Random) -> Result<(), String> {
        if let Some(pid) = self.pid {
            match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => return Ok(()),
                Ok(_) => self.ends += 1,
                Err(error) => return Err(format!("waiting for {pid}: {error}")),
            }
        }
        let random = Random::new(seed.next(), 0);
        // SAFETY: this process has one thread.
        self.pid = match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                (self.body)(random);
                // SAFETY: `_exit` has no preconditions.
                unsafe { libc::_exit(0) }
            }
            Ok(ForkResult::Parent { child }) => Some(child),
            Err(_) => None,
        };
        Ok(())
    }

    fn end(&self) -> Result<(), String> {
        let Some(pid) = self.pid else { return Ok(()) };
        let _ = kill(pid, Signal::SIGKILL);
        let start = Instant::now();
        while start.elapsed() < DEATH {
            if !matches!(waitpid(pid, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive)) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        Err(format!("it lives on after SIGKILL: {status}"))
    }
}

fn squeeze(plan: &Plan, time: Duration) -> Result<(), String> {
    let mut seed = Random::new(plan.seed, 0);
    let glutton = Kept { body: take_all, pid: None, ends: 0 };
    let worker = |_| Kept { body: work, pid: None, ends: 0 };
    let mut kept: Vec<Kept> = std::iter::once(glutton).chain((0..plan.processes).map(worker)).collect();
    let end = Instant::now() + time;
    let mut result = Ok(());
    while result.is_ok() && Instant::now() < end {
        result = kept.iter_mut().try_for_each(|kept| kept.look(&mut seed));
        std::thread::sleep(Duration::from_millis(5));
    }
    let ended = kept.iter().try_for_each(Kept::end);
    println!("{} gluttons, {} workers", kept[0].ends, kept[1..].iter().map(|kept| kept.ends).sum::<u64>());
    inject::clean_up();
    result.and(ended)
}

/// Takes all memory, again and again; when there is none, it is killed or waits.
fn take_all(_: Random) {
    let _ = fs::write(ADJUSTMENT, "1000");
    loop {
        let mut piece = Vec::<u8>::new();
        if piece.try_reserve_exact(PIECE_BYTES).is_err() {
            return;
        }
        piece.resize(PIECE_BYTES, 0);
        for byte in piece.iter_mut().step_by(PAGE_BYTES) {
            *byte = 1;
        }
        std::mem::forget(piece);
    }
}

/// One call of each kind.
fn work(mut random: Random) {
    let _ = fs::write(ADJUSTMENT, "0");
    // SAFETY: a session of its own keeps signals to a group from others; the alarm ends a worker that waits.
    unsafe {
        libc::setsid();
        libc::alarm(WORKER_SECONDS);
    }
    inject::run_each(random.next() as usize);
}
