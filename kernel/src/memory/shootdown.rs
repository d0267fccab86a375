//! The translations that this CPU and the others must drop: the protocol of `kernel/core`'s `tlb` on this machine's
//! CPUs.
//!
//! - CPUs that run the *same space* get an interrupt, and the operation awaits them, because its effect must be seen
//!   before it returns.
//! - CPUs in *another space* whose root has this one's table are left alone, whether they ever used it or not. An entry
//!   that was taken out stays in [`crate::memory::deferred_free`] until they have been asked and have acknowledged, for
//!   the kernel's sake: a program that reaches into another's slot through a stale translation must not find memory
//!   that has a new owner.

use core::sync::atomic::{AtomicUsize, Ordering};

use heddle_kernel_core::tlb::shootdown as protocol;
use heddle_kernel_core::tlb::shootdown::Shootdown;
pub use heddle_kernel_core::tlb::tags::Removals;
use heddle_kernel_core::tlb::tags::Tags;

use crate::arch;
use crate::arch::{MAX_CPUS, cpu, paging, paravirt};
use crate::memory::counters::count;
use crate::memory::table::Root;
use crate::memory::{counters, deferred_free, roots};
use crate::sync::SpinLock;

static STATE: Shootdown<MAX_CPUS> = Shootdown::new();

/// The space that each CPU activated last.
static ACTIVE: [Active; MAX_CPUS] = [const { Active(AtomicUsize::new(0)) }; MAX_CPUS];

#[repr(align(64))]
struct Active(AtomicUsize);

/// The CPUs that have used a space since they last changed their page table.
pub type Users = protocol::Users<MAX_CPUS>;

/// Whether this CPU has used a space last, and no other page table since.
#[inline]
pub fn is_active(space: usize) -> bool {
    ACTIVE[cpu::id()].0.load(Ordering::Relaxed) == space
}

/// Notes that this CPU uses a space from here on, whose page table it has loaded.
#[inline]
pub fn activate(space: usize, users: &Users) {
    let me = cpu::id();
    let active = &ACTIVE[me].0;
    if active.load(Ordering::Relaxed) != space {
        active.store(space, Ordering::Relaxed);
        count(&counters::SWITCHES);
    }
    STATE.note(me, users);
}

/// Private page tables whose translations a CPU keeps, where processors have tags.
const TAGS: usize = 6;

/// Each CPU's tags.
static OWN_TAGS: [SpinLock<Tags<TAGS>>; MAX_CPUS] = [const { SpinLock::new(Tags::new()) }; MAX_CPUS];

/// This CPU has flushed what removal `number` took out of a private space.
pub fn has_flushed(space: usize, number: u64) {
    OWN_TAGS[cpu::id()].lock().has_flushed(space, number);
}

/// This CPU, which does not use a private space, forgets the few pages that removal `number` took out of it, if it can
/// and they are all that it would have to flush when it comes back.
#[allow(unsafe_code, reason = "an instruction that not every processor has")]
#[inline(never)]
pub fn flush_elsewhere(space: usize, number: u64, pages: impl ExactSizeIterator<Item = usize>) {
    if !paging::forgets_elsewhere() {
        return;
    }
    let mut tags = OWN_TAGS[cpu::id()].lock();
    let Some(tag) = tags.behind(space, number) else { return };
    counters::add(&counters::FLUSH_ELSEWHERE, pages.len() as u64);
    // SAFETY: the processors have the instruction.
    pages.for_each(|page| unsafe { paging::flush_tagged_page(number_of(tag), page) });
    tags.has_flushed(space, number);
}

/// The processor's number of a tag: those before are of CPUs' own roots.
const fn number_of(tag: usize) -> u16 {
    (roots::OWN_ROOTS + tag) as u16
}

/// To be called before this CPU flushes everything because it changes its page table: who has used it is not told of
/// removals any more, so nobody's tables stay in its root.
pub fn begin_root_change() {
    roots::clear();
    begin_kept_change();
}

/// To be called before this CPU changes its page table and keeps what its own roots have. Returns the number of the
/// change.
pub fn begin_kept_change() -> u64 {
    STATE.begin_root_change(cpu::id())
}

/// Makes this CPU use a space that has a root for itself, which it has not loaded.
#[allow(unsafe_code, reason = "loads a page-table root")]
pub fn load(root: u64, space: usize, users: &Users, removals: &Removals) {
    if paging::has_tags() {
        load_tagged(root, space, users, removals);
        return;
    }
    begin_root_change();
    activate(space, users);
    // SAFETY: the root of such a space has the kernel's half, and is not released while a CPU has it loaded.
    unsafe { paging::load_root(root) };
    STATE.end_root_change(cpu::id());
}

// Not inlined, so that the path without tags stays short.
#[allow(unsafe_code, reason = "loads a page-table root")]
#[inline(never)]
fn load_tagged(root: u64, space: usize, users: &Users, removals: &Removals) {
    begin_kept_change();
    activate(space, users);
    let choice = OWN_TAGS[cpu::id()].lock().choose(space, removals.count());
    if choice.keeps {
        count(&counters::ROOTS_KEPT);
    }
    // SAFETY: as in `load`; and a space has one root in its life, whose translations alone have its tag.
    unsafe { paging::load_tagged_root(root, number_of(choice.tag), choice.keeps) };
    STATE.end_root_change_keeping(cpu::id(), roots::oldest_kept());
}

/// Makes this CPU use its own root, and forget all translations of it.
#[allow(unsafe_code, reason = "loads a page-table root")]
pub fn load_own(root: Root) {
    // SAFETY: a CPU's own root has the kernel's half and lives as long as the machine.
    unsafe { paging::load_root(root.0) };
    STATE.end_root_change(cpu::id());
}

/// Makes this CPU use the one of its own roots that was selected last, whose number is `tag`; `oldest` is the change
/// from which on its uses count.
#[allow(unsafe_code, reason = "loads a page-table root")]
pub fn load_kept(tag: usize, keeps: bool, oldest: u64) {
    if keeps {
        count(&counters::ROOTS_KEPT);
    }
    // SAFETY: a CPU's own roots have the kernel's half and live as long as the machine, and each alone has its tag.
    unsafe { paging::load_tagged_root(roots::own().0, tag as u16, keeps) };
    STATE.end_root_change_keeping(cpu::id(), oldest);
}

/// Makes this CPU use its own root, and no space.
pub fn leave_space() {
    ACTIVE[cpu::id()].0.store(0, Ordering::Relaxed);
    if paging::has_tags() {
        begin_kept_change();
        roots::load_last();
        return;
    }
    begin_root_change();
    load_own(roots::own());
}

/// To be called before this CPU goes idle: gives up a page table that may be about to be freed, and acknowledges what
/// others wait for.
pub fn before_idle() {
    ACTIVE[cpu::id()].0.store(0, Ordering::Relaxed);
    if paging::current_root() != roots::own().0 {
        count(&counters::ROOT_CHANGES);
        leave_space();
    }
    catch_up();
    deferred_free::drain();
}

/// To be called now and then on a CPU that runs no program, and may owe a flush for a table that is to be freed.
pub fn catch_up() {
    if cpu::count() > 1 {
        STATE.catch_up(cpu::id(), flush);
    }
}

/// Says that this CPU takes no part any more.
pub fn retire() {
    STATE.retire(cpu::id());
}

/// To be called before this CPU touches memory of the active space: in user mode or in a copy.
#[inline]
pub fn enter() {
    if cpu::count() > 1 {
        enter_with_others();
    }
}

// Not inlined, so that a single CPU's path into a program stays short.
#[inline(never)]
fn enter_with_others() {
    let me = cpu::id();
    STATE.enter(me, ACTIVE[me].0.load(Ordering::Relaxed), flush);
}

/// To be called when it no longer does.
#[inline]
pub fn leave() {
    if cpu::count() > 1 {
        leave_with_others();
    }
}

#[inline(never)]
fn leave_with_others() {
    STATE.leave(cpu::id(), flush);
}

fn flush() {
    count(&counters::FLUSH_REMOTE);
    if paging::has_tags() {
        roots::mark_unloaded();
    }
    paging::flush_all();
}

fn others() -> impl Iterator<Item = usize> {
    let me = cpu::id();
    (0..cpu::count()).filter(move |&other| other != me)
}

/// Whether another CPU runs this space now.
pub fn is_elsewhere(space: usize) -> bool {
    others().any(|other| STATE.mode(other) == space)
}

/// A generation and the CPUs it was posted to.
#[derive(Clone, Copy, Debug)]
pub struct PendingFlush(protocol::Posted);

impl PendingFlush {
    /// No CPU has to flush.
    pub const NONE: Self = Self(protocol::Posted::NONE);

    /// Whether all CPUs have acknowledged.
    pub fn is_acknowledged(self) -> bool {
        STATE.is_acknowledged(self.0)
    }

    /// Whether no CPU runs this space with old translations.
    pub fn is_flushed_in(self, space: usize) -> bool {
        STATE.is_flushed_in(self.0, space)
    }

    /// Waits until no CPU runs this space with old translations.
    pub async fn flushed_in(self, space: usize) {
        STATE.flushed_in(self.0, space, |cpu| self.ask(cpu)).await;
    }

    /// Waits until all CPUs have acknowledged.
    pub async fn acknowledged(self) {
        STATE.acknowledged(self.0, |cpu| self.ask(cpu)).await;
    }

    /// Whether all CPUs have flushed, those in the kernel too: what tables wait for.
    pub fn is_flushed(self) -> bool {
        STATE.is_flushed(self.0)
    }

    /// Has a CPU flush: by an interrupt, or by its host if it does not run.
    fn ask(self, cpu: usize) {
        if !self.is_left_to_host(cpu) {
            interrupt(cpu);
        }
    }

    fn is_left_to_host(self, cpu: usize) -> bool {
        let is_left = paravirt::ask_for_flush(cpu);
        if is_left {
            STATE.note_flushed(self.0, cpu);
        }
        is_left
    }

    /// Interrupts the CPUs that have not acknowledged.
    pub fn interrupt(self) {
        self.interrupt_all(STATE.behind(self.0));
    }

    /// Interrupts the CPUs that have not flushed. Those in the kernel come to it by themselves.
    pub fn interrupt_unflushed(self) {
        self.interrupt_all(STATE.unflushed(self.0));
    }

    fn interrupt_all(self, cpus: impl Iterator<Item = usize>) {
        let mut set = 0u64;
        for cpu in cpus.filter(|&cpu| !self.is_left_to_host(cpu)) {
            count(&counters::SHOOTDOWN_IPIS);
            set |= 1 << cpu;
        }
        if set != 0 {
            cpu::kick_all(set);
        }
    }

    /// Waits on the spot until all CPUs have flushed. For when nothing else is possible: no memory to put things off.
    /// No spinlock may be held: CPUs in the kernel are waited for. Others that wait so are no obstacle, since who
    /// waits flushes meanwhile.
    pub fn spin(self) {
        #[cfg(feature = "checking")]
        crate::sync::order::expect_none("while all CPUs flush");
        self.interrupt_unflushed();
        while !self.is_flushed() {
            catch_up();
            core::hint::spin_loop();
        }
    }
}

/// A memory barrier on every other CPU that runs a space which `is_chosen` names by its identity.
#[derive(Clone, Copy, Debug)]
pub struct PendingBarrier(protocol::PostedBarrier);

impl PendingBarrier {
    /// Asks the CPUs for it, if there are any.
    pub fn post(is_chosen: impl Fn(usize) -> bool) -> Option<Self> {
        if cpu::count() == 1 {
            return None;
        }
        let posted = Self(STATE.post_barrier(others(), is_chosen));
        (!STATE.is_barrier_passed(posted.0)).then_some(posted)
    }

    /// Waits until they have passed it.
    pub async fn passed(self) {
        STATE.barrier_passed(self.0, interrupt).await;
    }
}

fn interrupt(cpu: usize) {
    count(&counters::SHOOTDOWN_IPIS);
    cpu::kick(cpu);
}

/// Asks all other CPUs to flush that may have translations of a space cached, in the root that they have loaded.
pub fn post(users: &Users) -> PendingFlush {
    if cpu::count() == 1 { PendingFlush::NONE } else { PendingFlush(STATE.post(others(), users)) }
}

/// The same for a space in a slot, in whatever roots the CPUs keep.
pub fn post_to_keepers(users: &Users) -> PendingFlush {
    match cpu::count() {
        1 => PendingFlush::NONE,
        _ if paging::has_tags() => PendingFlush(STATE.post_to_keepers(others(), users)),
        _ => post(users),
    }
}

/// Asks all other CPUs to flush.
pub fn post_to_all() -> PendingFlush {
    if cpu::count() == 1 { PendingFlush::NONE } else { PendingFlush(STATE.post_to_all(others())) }
}

/// Around the time in which a program runs: this CPU uses its address space.
pub struct ProgramRuns;

impl arch::UserHooks for ProgramRuns {
    #[inline]
    fn enter() {
        #[cfg(feature = "checking")]
        crate::sync::order::expect_none("while a program runs");
        enter();
    }

    #[inline]
    fn leave() {
        leave();
    }
}
