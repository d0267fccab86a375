//! Counters of the memory manager, for `/proc/heddle`.

use core::sync::atomic::{AtomicU64, Ordering};

/// A counter.
pub type Counter = AtomicU64;

/// Times a CPU went from one address space to another.
pub static SWITCHES: Counter = Counter::new(0);
/// Times that changed the page table.
pub static ROOT_CHANGES: Counter = Counter::new(0);
/// Of these, the ones that kept the table's translations from its last use.
pub static ROOTS_KEPT: Counter = Counter::new(0);
/// Flushes of all translations, because many were stale.
pub static FLUSH_ALL: Counter = Counter::new(0);
/// Translations flushed one by one.
pub static FLUSH_PAGE: Counter = Counter::new(0);
/// Translations flushed one by one that belong to a page table not in use.
pub static FLUSH_ELSEWHERE: Counter = Counter::new(0);
/// Flushes of all translations after a fork.
pub static FLUSH_FORK: Counter = Counter::new(0);
/// Flushes of all translations because a slot was given up.
pub static FLUSH_EXIT: Counter = Counter::new(0);
/// Flushes of all translations because another CPU asked.
pub static FLUSH_REMOTE: Counter = Counter::new(0);
/// Interrupts sent to other CPUs to make them flush.
pub static SHOOTDOWN_IPIS: Counter = Counter::new(0);
/// Page faults that were resolved.
pub static FAULTS: Counter = Counter::new(0);
/// Page faults that copied a page.
pub static COPIES: Counter = Counter::new(0);
/// Leaf tables that fork shared.
pub static TABLES_SHARED: Counter = Counter::new(0);
/// Shared leaf tables that were copied after all.
pub static TABLES_COPIED: Counter = Counter::new(0);

/// Large pages that a fault brought in, and faults that were to and found none.
pub static LARGE_FAULTS: Counter = Counter::new(0);
pub static LARGE_FALLBACKS: Counter = Counter::new(0);
/// Entries for large pages that were split, and that fork shared.
pub static LARGE_SPLITS: Counter = Counter::new(0);
pub static LARGE_SHARED: Counter = Counter::new(0);

/// Ranges of files that were held for a transfer, and how many of these had to wait for another.
pub static FILE_RANGES: Counter = Counter::new(0);
pub static FILE_RANGE_WAITS: Counter = Counter::new(0);

/// System calls in programs' text that became direct calls.
pub static CALLS_PATCHED: Counter = Counter::new(0);

/// All counters by name.
pub fn all() -> [(&'static str, u64); 21] {
    let value = |counter: &Counter| counter.load(Ordering::Relaxed);
    [
        ("switches", value(&SWITCHES)),
        ("page_table_changes", value(&ROOT_CHANGES)),
        ("page_tables_kept", value(&ROOTS_KEPT)),
        ("flushes_all", value(&FLUSH_ALL)),
        ("flushes_page", value(&FLUSH_PAGE)),
        ("flushes_elsewhere", value(&FLUSH_ELSEWHERE)),
        ("flushes_fork", value(&FLUSH_FORK)),
        ("flushes_exit", value(&FLUSH_EXIT)),
        ("flushes_remote", value(&FLUSH_REMOTE)),
        ("shootdown_ipis", value(&SHOOTDOWN_IPIS)),
        ("faults", value(&FAULTS)),
        ("copies", value(&COPIES)),
        ("tables_shared", value(&TABLES_SHARED)),
        ("tables_copied", value(&TABLES_COPIED)),
        ("large_faults", value(&LARGE_FAULTS)),
        ("large_fallbacks", value(&LARGE_FALLBACKS)),
        ("large_splits", value(&LARGE_SPLITS)),
        ("large_shared", value(&LARGE_SHARED)),
        ("file_ranges", value(&FILE_RANGES)),
        ("file_range_waits", value(&FILE_RANGE_WAITS)),
        ("calls_patched", value(&CALLS_PATCHED)),
    ]
}

/// Adds one.
pub fn count(counter: &Counter) {
    add(counter, 1);
}

/// Adds `amount`.
pub fn add(counter: &Counter, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}
