//! Making other CPUs forget translations.
//!
//! Nobody spins for another CPU. Whoever took entries out of a page table *posts* a generation to the CPUs that may
//! have them cached, and what it took out is released when all of those have *passed* it.
//!
//! A CPU passes by flushing. It has to before it next touches memory of programs, in user mode or in a copy; a CPU that
//! is idle or elsewhere in the kernel owes nothing until then, and counts as passed. So only CPUs in user mode are
//! waited for:
//! - in the *same space*: they get an interrupt, and the operation awaits them, because its effect must be seen
//!   before it returns;
//! - in *another space of the same page table*: they are left alone and pass when they next enter the kernel. What was
//!   taken out stays in [`quarantine`] until then, for the kernel's sake: a program that reaches into another's slot
//!   through a stale translation must not find memory that has a new owner.
//!
//! # Why no request is missed
//! The poster takes entries out, then reads which CPUs have used the space ([`Users`]), then writes their requests,
//! then reads their modes. A CPU records its use, then writes its mode, then reads its requests, then touches memory.
//! All of these are sequentially consistent: either the poster sees the use or the CPU's walk comes after the
//! removal; either the poster sees the mode and waits, or the CPU sees the request and flushes first.

use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use core::task::{Poll, Waker};

use super::counters::{self, count};
use super::quarantine;
use crate::arch::paging;
use crate::arch::{MAX_CPUS, cpu};
use crate::sync::SpinLock;

#[repr(align(128))]
struct Cpu {
    /// The space whose memory this CPU may touch at this moment, by its identity; 0 for none.
    mode: AtomicUsize,
    /// The space that was activated last.
    active: AtomicUsize,
    /// The last generation posted to this CPU.
    requested: AtomicU64,
    /// The last generation it passed.
    passed: AtomicU64,
}

static CPUS: [Cpu; MAX_CPUS] = [const {
    Cpu {
        mode: AtomicUsize::new(0),
        active: AtomicUsize::new(0),
        requested: AtomicU64::new(0),
        passed: AtomicU64::new(0),
    }
}; MAX_CPUS];
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// Coroutines that wait until some CPU passes.
static WAITING: SpinLock<Vec<Waker>> = SpinLock::new(Vec::new());

/// Which CPUs have used a space since they last changed their page table.
#[derive(Default)]
pub struct Users {
    epochs: [AtomicU64; MAX_CPUS],
}

impl Users {
    fn note(&self, cpu: usize) {
        let epoch = paging::root_epoch(cpu);
        if self.epochs[cpu].load(Ordering::Relaxed) != epoch {
            self.epochs[cpu].store(epoch, Ordering::SeqCst);
        }
    }

    fn contains(&self, cpu: usize) -> bool {
        self.epochs[cpu].load(Ordering::SeqCst) == paging::root_epoch(cpu)
    }
}

/// Whether this CPU has used a space last, and no other page table since.
pub fn is_active(space: usize) -> bool {
    CPUS[cpu::id()].active.load(Ordering::Relaxed) == space
}

/// Forgets which space this CPU used last: its page table changes.
fn deactivate() {
    CPUS[cpu::id()].active.store(0, Ordering::Relaxed);
}

/// Notes that this CPU uses a space from here on.
pub fn activated(space: usize, users: &Users) {
    let id = cpu::id();
    let me = &CPUS[id];
    if me.active.load(Ordering::Relaxed) != space {
        me.active.store(space, Ordering::Relaxed);
        count(&counters::SWITCHES);
    }
    users.note(id);
}

/// To be called before this CPU touches memory of the active space: in user mode or in a copy.
#[inline]
pub fn enter() {
    if cpu::count() > 1 {
        enter_with_others();
    }
}

fn enter_with_others() {
    let me = &CPUS[cpu::id()];
    me.mode.store(me.active.load(Ordering::Relaxed), Ordering::SeqCst);
    if me.requested.load(Ordering::SeqCst) != me.passed.load(Ordering::Relaxed) {
        pass(me);
    }
}

/// To be called when it no longer does.
#[inline]
pub fn leave() {
    if cpu::count() > 1 {
        leave_with_others();
    }
}

fn leave_with_others() {
    let me = &CPUS[cpu::id()];
    me.mode.store(0, Ordering::SeqCst);
    if me.requested.load(Ordering::SeqCst) != me.passed.load(Ordering::Relaxed) {
        pass(me);
    }
}

fn pass(me: &Cpu) {
    let generation = me.requested.load(Ordering::SeqCst);
    count(&counters::FLUSH_REMOTE);
    paging::flush_all();
    me.passed.store(generation, Ordering::SeqCst);
    let waiting = core::mem::take(&mut *WAITING.lock());
    waiting.into_iter().for_each(Waker::wake);
}

/// A generation and the CPUs it was posted to.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    generation: u64,
    cpus: u32,
}

impl Posted {
    /// Posted to nobody.
    pub const NOBODY: Self = Self { generation: 0, cpus: 0 };

    fn cpus(self) -> impl Iterator<Item = usize> {
        (0..MAX_CPUS).filter(move |cpu| self.cpus & 1 << cpu != 0)
    }

    fn is_passed_by(self, cpu: usize) -> bool {
        let other = &CPUS[cpu];
        other.passed.load(Ordering::SeqCst) >= self.generation || other.mode.load(Ordering::SeqCst) == 0
    }

    /// Whether all CPUs have passed.
    pub fn is_passed(self) -> bool {
        self.cpus().all(|cpu| self.is_passed_by(cpu))
    }

    /// Whether no CPU runs this space with old translations.
    pub fn is_seen_in(self, space: usize) -> bool {
        self.cpus().all(|cpu| CPUS[cpu].mode.load(Ordering::SeqCst) != space || self.is_passed_by(cpu))
    }

    /// Waits until no CPU runs this space with old translations.
    pub async fn seen_in(self, space: usize) {
        if self.is_seen_in(space) {
            return;
        }
        for cpu in self.cpus().filter(|&cpu| CPUS[cpu].mode.load(Ordering::SeqCst) == space) {
            count(&counters::SHOOTDOWN_IPIS);
            cpu::kick(cpu);
        }
        poll_fn(|context| {
            let mut waiting = WAITING.lock();
            if waiting.try_reserve(1).is_ok() {
                waiting.push(context.waker().clone());
            } else {
                context.waker().wake_by_ref();
            }
            drop(waiting);
            if self.is_seen_in(space) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Waits on the spot. For the one case where nothing else is possible: no memory to put things off.
    pub fn spin(self) {
        for cpu in self.cpus().filter(|&cpu| !self.is_passed_by(cpu)) {
            cpu::kick(cpu);
            while !self.is_passed_by(cpu) {
                core::hint::spin_loop();
            }
        }
    }
}

/// Asks all other CPUs that may have translations of a space cached to flush.
pub fn post(users: &Users) -> Posted {
    if cpu::count() == 1 {
        return Posted::NOBODY;
    }
    fence(Ordering::SeqCst);
    let me = cpu::id();
    let mut posted = Posted::NOBODY;
    for other in (0..cpu::count()).filter(|&other| other != me && users.contains(other)) {
        if posted.cpus == 0 {
            posted.generation = GENERATION.fetch_add(1, Ordering::SeqCst) + 1;
        }
        CPUS[other].requested.fetch_max(posted.generation, Ordering::SeqCst);
        posted.cpus |= 1 << other;
    }
    posted
}

/// Whether another CPU runs this space now.
pub fn is_elsewhere(space: usize) -> bool {
    let me = cpu::id();
    (0..cpu::count()).any(|other| other != me && CPUS[other].mode.load(Ordering::SeqCst) == space)
}

/// To be called before this CPU goes idle: gives up a page table that may be on its way out, and what others wait for.
pub fn before_idle() {
    deactivate();
    if paging::current_root() != paging::shared_root() {
        count(&counters::ROOT_CHANGES);
        load_shared();
    }
    quarantine::drain();
}

/// Makes this CPU use the shared root.
#[allow(unsafe_code, reason = "loads a page-table root")]
pub fn load_shared() {
    deactivate();
    // SAFETY: the shared root has the kernel's half and lives as long as the machine.
    unsafe { paging::load_root(paging::shared_root()) };
}
