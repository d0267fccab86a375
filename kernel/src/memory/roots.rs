//! The CPUs' roots: each is composed of the tables of the programs that have run on its CPU, one a slot, by the rules
//! of `kernel/core`'s `tlb::roots`.
//!
//! A root belongs to an isolation *domain* ([`crate::memory::isolation`]) at a time: before a program of another domain
//! runs, it is emptied. Roots live as long as the machine, so a CPU may keep one loaded whoever ends.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use heddle_kernel_core::tlb::roots;
use heddle_kernel_core::tlb::roots::Change;

use crate::arch::{MAX_CPUS, cpu, paging};
use crate::error::Errno;
use crate::memory::counters::count;
use crate::memory::shootdown::Users;
use crate::memory::table::Root;
use crate::memory::{counters, shootdown};

struct CpuRoot {
    physical: AtomicU64,
    /// Used by the root's own CPU alone, as is the next.
    domain: AtomicUsize,
    /// One bit a slot that has been filled since the root was empty.
    filled: [AtomicU64; SLOT_WORDS],
}

const WORD_BITS: usize = 64;
const SLOT_WORDS: usize = paging::ROOT_USER_ENTRIES / WORD_BITS;

static ROOTS: [CpuRoot; MAX_CPUS] = [const {
    CpuRoot {
        physical: AtomicU64::new(0),
        domain: AtomicUsize::new(0),
        filled: [const { AtomicU64::new(0) }; SLOT_WORDS],
    }
}; MAX_CPUS];

/// Gives this CPU its root, before it runs a program. The boot processor keeps the one it has.
///
/// # Errors
/// `ENOMEM`.
pub fn start_cpu() -> Result<(), Errno> {
    let own = &ROOTS[cpu::id()].physical;
    if cpu::id() == 0 {
        own.store(paging::boot_root(), Ordering::Release);
        return Ok(());
    }
    let Root(physical) = Root::new()?;
    paging::adopt_kernel_half(physical);
    own.store(physical, Ordering::Release);
    shootdown::leave_space();
    Ok(())
}

fn root_of(cpu: usize) -> Option<Root> {
    let physical = ROOTS[cpu].physical.load(Ordering::Relaxed);
    (physical != 0).then_some(Root(physical))
}

/// This CPU's own root.
pub fn own() -> Root {
    root_of(cpu::id()).unwrap_or(Root(paging::boot_root()))
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
        shootdown::begin_root_change();
    }
    shootdown::activate(identity, users);
    if change == Change::Nothing {
        return;
    }
    cpu.domain.store(domain, Ordering::Relaxed);
    let filled = &cpu.filled[slot / WORD_BITS];
    filled.store(filled.load(Ordering::Relaxed) | 1 << (slot % WORD_BITS), Ordering::Relaxed);
    roots::put(own.user_entries(), slot, table);
    if change == Change::Replace {
        shootdown::load_own();
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
        let Some(root) = root_of(cpu) else { continue };
        let had = roots::take_out(root.user_entries(), slot, table);
        was_here |= had && cpu == me;
    }
    if was_here {
        if paging::current_root() == own().0 {
            paging::flush_all();
        }
        roots::forget(own().user_entries(), slot, table);
    }
    was_here
}

/// Says that all CPUs have flushed since [`withdraw`].
pub fn forget(slot: usize, table: u64) {
    for root in (0..cpu::count()).filter_map(root_of) {
        roots::forget(root.user_entries(), slot, table);
    }
}
