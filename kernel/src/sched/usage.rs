//! How each CPU has spent its time, for `/proc/stat` and `/proc/uptime`.
//!
//! A CPU measures how long it halts and how long it runs threads, and takes over the threads' estimates of their time
//! in the kernel. The rest is the kernel's own: its coroutines and interrupts. The figures are the CPU's and not sums
//! over threads, so the time of threads that have ended stays in them.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use heddle_abi::boot::START_PHASE;

use crate::arch;
use crate::arch::MAX_CPUS;
use crate::arch::time::now_ns;

/// A clock that goes on at times, in one word, so that whoever reads it never sees it go back.
#[derive(Debug, Default)]
pub struct Meter(AtomicU64);

impl Meter {
    /// While the clock goes on the word has this bit, and the time at which it would have been 0.
    const RUNNING: u64 = 1 << 63;

    /// A clock that shows 0.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The clock goes on from now on.
    pub fn start(&self, now_ns: u64) {
        let used = self.0.load(Ordering::Relaxed) & !Self::RUNNING;
        self.0.store(now_ns.wrapping_sub(used) | Self::RUNNING, Ordering::Release);
    }

    /// The clock stands.
    pub fn end(&self, now_ns: u64) {
        let zero = self.0.load(Ordering::Relaxed) & !Self::RUNNING;
        self.0.store(now_ns.wrapping_sub(zero), Ordering::Release);
    }

    /// Whether it goes on.
    fn is_running(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::RUNNING != 0
    }

    /// Nanoseconds that it shows.
    pub fn used_ns(&self) -> u64 {
        match self.0.load(Ordering::Acquire) {
            word if word & Self::RUNNING == 0 => word,
            word => now_ns().wrapping_sub(word & !Self::RUNNING),
        }
    }
}

/// The meters of a CPU. Only that CPU writes them, but for `told`.
struct CpuMeters {
    /// Time in which a thread had the CPU.
    threads: Meter,
    /// The thread that has it while `threads` runs.
    thread: AtomicPtr<()>,
    /// The part of it in the kernel, as far as it is estimated.
    system_ns: AtomicU64,
    /// Time in which the CPU halted.
    idle: Meter,
    /// The most that anybody was told of user, system and idle time.
    told: [AtomicU64; 3],
}

static METERS: [CpuMeters; MAX_CPUS] = [const {
    CpuMeters {
        threads: Meter::new(),
        thread: AtomicPtr::new(ptr::null_mut()),
        system_ns: AtomicU64::new(0),
        idle: Meter::new(),
        told: [const { AtomicU64::new(0) }; 3],
    }
}; MAX_CPUS];

/// How a CPU has spent its time since the machine started, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuUsage {
    /// In programs.
    pub user_ns: u64,
    /// In the kernel.
    pub system_ns: u64,
    /// Halted.
    pub idle_ns: u64,
    /// Taken by the host, as far as it tells.
    pub stolen_ns: u64,
}

/// A thread has this CPU from now on. Whoever calls this knows what the pointer leads to, and that it does until
/// [`thread_ends`].
#[inline]
pub fn thread_starts(now_ns: u64, thread: *const ()) {
    let meters = &METERS[arch::cpu::id()];
    meters.thread.store(thread.cast_mut(), Ordering::Relaxed);
    meters.threads.start(now_ns);
}

/// The thread that has this CPU, as [`thread_starts`] named it.
pub fn thread_here() -> Option<*const ()> {
    let meters = &METERS[arch::cpu::id()];
    meters.threads.is_running().then(|| meters.thread.load(Ordering::Relaxed).cast_const())
}

/// The thread leaves this CPU.
pub fn thread_ends(now_ns: u64) {
    METERS[arch::cpu::id()].threads.end(now_ns);
}

/// A thread has spent so much of its time on this CPU in the kernel.
pub fn add_system_ns(spent_ns: u64) {
    let system_ns = &METERS[arch::cpu::id()].system_ns;
    system_ns.store(system_ns.load(Ordering::Relaxed).wrapping_add(spent_ns), Ordering::Relaxed);
}

/// This CPU halts from now on.
pub(super) fn halts() {
    METERS[arch::cpu::id()].idle.start(now_ns());
}

/// This CPU goes on.
pub(super) fn goes_on() {
    METERS[arch::cpu::id()].idle.end(now_ns());
}

/// Notes the end of a part of the machine's start in the log, with the time that this CPU has not idled since the
/// kernel's first instruction.
pub fn note_start_phase(name: &str) {
    let idle_ns = METERS[arch::cpu::id()].idle.used_ns();
    ::log::info!("{START_PHASE}{} {name}", now_ns().saturating_sub(idle_ns));
}

/// How a CPU has spent its time. No figure is ever lower than one that was told before.
#[must_use]
pub fn of_cpu(number: usize) -> CpuUsage {
    let Some(meters) = METERS.get(number) else { return CpuUsage::default() };
    let (threads, idle_ns) = (meters.threads.used_ns(), meters.idle.used_ns());
    let user_ns = threads.saturating_sub(meters.system_ns.load(Ordering::Relaxed));
    let told = |index: usize, value: u64| meters.told[index].fetch_max(value, Ordering::Relaxed).max(value);
    // The estimate of the kernel's part grows in steps, but no figure goes back; the rest is the kernel's.
    let (user_ns, idle_ns) = (told(0, user_ns), told(2, idle_ns));
    let system_ns = told(1, now_ns().saturating_sub(idle_ns).saturating_sub(user_ns));
    CpuUsage { user_ns, system_ns, idle_ns, stolen_ns: arch::paravirt::stolen_ns(number) }
}
