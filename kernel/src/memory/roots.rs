//! The CPUs' roots: each is composed of the tables of the programs that have run on its CPU, one a slot, by the rules
//! of `kernel/core`'s `tlb::roots`.
//!
//! A root belongs to an isolation *domain* ([`crate::memory::isolation`]) at a time: before a program of another domain
//! runs, it is emptied. Roots live as long as the machine, so a CPU may keep one loaded whoever ends.
//!
//! Where translations have tags, a CPU has several roots and keeps what they have (`tlb::kept`).

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use heddle_kernel_core::tlb::kept::KeptRoots;
use heddle_kernel_core::tlb::roots;
use heddle_kernel_core::tlb::roots::Change;

use crate::arch::{MAX_CPUS, cpu, paging};
use crate::error::Errno;
use crate::memory::counters::count;
use crate::memory::shootdown::Users;
use crate::memory::table::Root;
use crate::memory::{counters, shootdown};
use crate::sync::SpinLock;

struct CpuRoot {
    /// The root that the CPU composes now; used by itself alone, as are the next two.
    physical: AtomicU64,
    domain: AtomicUsize,
    /// One bit a slot that has been filled since the root was empty.
    filled: [AtomicU64; SLOT_WORDS],
    /// All of its roots: one, if translations have no tags.
    all: [AtomicU64; OWN_ROOTS],
}

/// The roots of a CPU whose translations have tags, by which it keeps them apart.
pub const OWN_ROOTS: usize = 6;

/// The record that a CPU with several roots has of them.
struct CpuKept {
    roots: KeptRoots<OWN_ROOTS>,
    /// The bits of those that it does not compose now.
    filled: [[u64; SLOT_WORDS]; OWN_ROOTS],
}

static KEPT: [SpinLock<CpuKept>; MAX_CPUS] =
    [const { SpinLock::new(CpuKept { roots: KeptRoots::new(), filled: [[0; SLOT_WORDS]; OWN_ROOTS] }) };
        MAX_CPUS];

const WORD_BITS: usize = 64;
const SLOT_WORDS: usize = paging::ROOT_USER_ENTRIES / WORD_BITS;

static ROOTS: [CpuRoot; MAX_CPUS] = [const {
    CpuRoot {
        physical: AtomicU64::new(0),
        domain: AtomicUsize::new(0),
        filled: [const { AtomicU64::new(0) }; SLOT_WORDS],
        all: [const { AtomicU64::new(0) }; OWN_ROOTS],
    }
}; MAX_CPUS];

/// Gives this CPU its root, before it runs a program. The boot processor keeps the one it has.
///
/// # Errors
/// `ENOMEM`.
pub fn start_cpu() -> Result<(), Errno> {
    let own = &ROOTS[cpu::id()];
    let first = if cpu::id() == 0 { paging::boot_root() } else { empty_root()?.0 };
    own.all[0].store(first, Ordering::Release);
    own.physical.store(first, Ordering::Release);
    if paging::has_tags() {
        // With fewer of them a CPU only keeps less.
        let more = own.all[1..].iter().map_while(|root| Some((root, empty_root().ok()?)));
        let count = more.map(|(root, Root(physical))| root.store(physical, Ordering::Release)).count();
        KEPT[cpu::id()].lock().roots.set_available(1 + count);
    }
    if cpu::id() != 0 {
        shootdown::leave_space();
    }
    Ok(())
}

fn empty_root() -> Result<Root, Errno> {
    let root = Root::new()?;
    paging::adopt_kernel_half(root.0);
    Ok(root)
}

/// A CPU's own roots with their numbers. Before it has started there are none.
fn roots_of(cpu: usize) -> impl Iterator<Item = (usize, Root)> {
    let count = if paging::has_tags() { OWN_ROOTS } else { 1 };
    let all = ROOTS[cpu].all[..count].iter().map(|root| Root(root.load(Ordering::Relaxed)));
    all.enumerate().filter(|(_, root)| root.0 != 0)
}

/// The root that this CPU composes now.
pub fn own() -> Root {
    match ROOTS[cpu::id()].physical.load(Ordering::Relaxed) {
        0 => Root(paging::boot_root()),
        physical => Root(physical),
    }
}

/// Makes a program's table part of this CPU's root, and this root the one in use.
#[inline]
pub fn run(slot: usize, table: u64, domain: usize, identity: usize, users: &Users) {
    let cpu = &ROOTS[cpu::id()];
    let own = Root(cpu.physical.load(Ordering::Relaxed));
    let is_at_home = paging::current_root() == own.0 && cpu.domain.load(Ordering::Relaxed) == domain;
    let change = match roots::needed(own.user_entries(), slot, table) {
        change if is_at_home => change,
        _ => Change::Replace,
    };
    if change == Change::Replace {
        count(&counters::ROOT_CHANGES);
        if paging::has_tags() {
            run_on_another(slot, table, domain, identity, users);
            return;
        }
        shootdown::begin_root_change();
    }
    shootdown::activate(identity, users);
    if change == Change::Nothing {
        return;
    }
    cpu.domain.store(domain, Ordering::Relaxed);
    fill(cpu, own, slot, table);
    if change == Change::Replace {
        shootdown::load_own(own);
    }
}

/// Puts a table into the root that this CPU composes.
#[inline]
fn fill(cpu: &CpuRoot, root: Root, slot: usize, table: u64) {
    let filled = &cpu.filled[slot / WORD_BITS];
    filled.store(filled.load(Ordering::Relaxed) | 1 << (slot % WORD_BITS), Ordering::Relaxed);
    roots::put(root.user_entries(), slot, table);
}

/// The same as [`run`] where this CPU has several roots, and the program can't run on the one in use.
#[inline(never)]
fn run_on_another(slot: usize, table: u64, domain: usize, identity: usize, users: &Users) {
    let me = cpu::id();
    let cpu = &ROOTS[me];
    let number = shootdown::begin_kept_change();
    let mut kept = KEPT[me].lock();
    let before = kept.roots.current();
    let selection = kept.roots.select(domain, number, |root| {
        roots::needed(Root(cpu.all[root].load(Ordering::Relaxed)).user_entries(), slot, table)
    });
    if selection.root != before {
        for (index, word) in cpu.filled.iter().enumerate() {
            kept.filled[before][index] = word.load(Ordering::Relaxed);
            word.store(kept.filled[selection.root][index], Ordering::Relaxed);
        }
        cpu.physical.store(cpu.all[selection.root].load(Ordering::Relaxed), Ordering::Relaxed);
    }
    let oldest = kept.roots.oldest();
    drop(kept);
    cpu.domain.store(domain, Ordering::Relaxed);
    if selection.change == Change::Replace {
        clear();
    }
    shootdown::activate(identity, users);
    if selection.change != Change::Nothing {
        fill(cpu, own(), slot, table);
    }
    shootdown::load_kept(selection.root, selection.keeps, oldest);
}

/// Loads the root that this CPU composes, where it has several. Its translations stay, if they are good.
pub fn load_last() {
    let mut kept = KEPT[cpu::id()].lock();
    let (root, keeps, oldest) = (kept.roots.current(), kept.roots.load_current(), kept.roots.oldest());
    drop(kept);
    shootdown::load_kept(root, keeps, oldest);
}

/// The change of the page table from which on this CPU's uses of tables in slots count, where it has several roots.
pub fn oldest_kept() -> u64 {
    KEPT[cpu::id()].lock().roots.oldest()
}

/// The number of the own root that this CPU has loaded, if it has one loaded.
fn loaded(kept: &CpuKept) -> Option<usize> {
    (paging::current_root() == own().0).then(|| kept.roots.current())
}

/// This CPU flushes all that it keeps of its own roots before it uses them again, but for the one that is loaded, which
/// the caller flushes.
pub fn mark_unloaded() {
    let mut kept = KEPT[cpu::id()].lock();
    let loaded = loaded(&kept);
    kept.roots.mark_others(loaded);
}

/// Forgets what this CPU keeps of a table in roots that are not loaded: these few `pages`, or all of a root.
#[allow(unsafe_code, reason = "an instruction that not every processor has")]
pub fn flush_kept(slot: usize, table: u64, pages: Option<impl ExactSizeIterator<Item = usize> + Clone>) {
    let pages = pages.filter(|_| paging::forgets_elsewhere());
    let mut kept = KEPT[cpu::id()].lock();
    let loaded = loaded(&kept);
    for (number, root) in roots_of(cpu::id()) {
        let is_meant = Some(number) != loaded && !kept.roots.is_stale(number);
        if !is_meant || roots::needed(root.user_entries(), slot, table) != Change::Nothing {
            continue;
        }
        let Some(pages) = pages.clone() else {
            kept.roots.mark(number);
            continue;
        };
        counters::add(&counters::FLUSH_ELSEWHERE, pages.len() as u64);
        // SAFETY: the processors have the instruction.
        pages.for_each(|page| unsafe { paging::flush_tagged_page(number as u16, page) });
    }
}

/// Empties this CPU's root, where its uses become void.
pub fn clear() {
    for (index, word) in ROOTS[cpu::id()].filled.iter().enumerate() {
        let mut left = word.load(Ordering::Relaxed);
        if left == 0 {
            continue;
        }
        word.store(0, Ordering::Relaxed);
        let slots = core::iter::from_fn(|| {
            let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(index * WORD_BITS + bit)
        });
        roots::clear(own().user_entries(), slots);
    }
}

/// Whether translations of a table may be cached here: it is in this CPU's root, and that is in use.
pub fn is_here(slot: usize, table: u64) -> bool {
    let own = own();
    paging::current_root() == own.0 && roots::needed(own.user_entries(), slot, table) == Change::Nothing
}

/// Takes a table out of this CPU's root again that was put there too late. Nothing of it has been used.
pub fn take_back(slot: usize, table: u64) {
    roots::take_out(own().user_entries(), slot, table);
}

/// Takes a table out of all CPUs' roots. Other CPUs may have it cached until they have been asked to flush; this one
/// flushes if it had it. Returns whether it did.
pub fn withdraw(slot: usize, table: u64) -> bool {
    let me = cpu::id();
    let mut was_here = false;
    for cpu in 0..cpu::count() {
        for (number, root) in roots_of(cpu) {
            if !roots::take_out(root.user_entries(), slot, table) || cpu != me {
                continue;
            }
            was_here = true;
            if paging::current_root() == root.0 {
                paging::flush_all();
            } else if paging::has_tags() {
                KEPT[me].lock().roots.mark(number);
            }
            roots::forget(root.user_entries(), slot, table);
        }
    }
    was_here
}

/// Says that all CPUs have flushed since [`withdraw`].
pub fn forget(slot: usize, table: u64) {
    for (_, root) in (0..cpu::count()).flat_map(roots_of) {
        roots::forget(root.user_entries(), slot, table);
    }
}
