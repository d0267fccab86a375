//! Several composed roots for each processor, whose translations it keeps while it uses another one (PCID, ASID).
//!
//! With tags a processor has a few roots of its own ([`crate::tlb::roots`]) where it has one without. Programs that
//! claim one slot, or that may not share a root, get different ones, and going from one to the other loads a root
//! whose translations are still there. [`KeptRoots`] says which root a program runs on; the root that was used least
//! recently is emptied for a program that fits on none.
//!
//! # Why nothing stale is used
//! - A processor keeps its records of use for as long as the root stays composed in which the program's table may be:
//!   each root has the number of the change of the page table with which it was emptied last, a record of use is at
//!   least that of each root that has the table, and removals are told to all processors whose records are not older
//!   than their oldest root ([`KeptRoots::oldest`], [`crate::tlb::shootdown::Shootdown::post`]). So a processor is
//!   told of removals from tables in roots that it has not loaded, too.
//! - One that is told flushes the root that it has loaded, and marks all others *stale* ([`KeptRoots::mark_others`]):
//!   their translations go when they are loaded next. Until then nothing walks them, so as for the release of tables it
//!   has flushed.
//! - One that takes something out itself flushes that in the root that it has loaded, and forgets it in each other root
//!   with this table: at once where it can forget single translations, or by marking the root.
//! - A table that leaves for good is taken out of all roots of all processors.
//!
//! Spaces that lie in no slot have roots and tags of their own ([`crate::tlb::tags`]).

use crate::tlb::roots::Change;

#[derive(Clone, Copy, Debug)]
struct KeptRoot {
    /// Whose programs may be on it.
    domain: usize,
    /// The change of the page table with which it was emptied last.
    emptied: u64,
    /// When it was selected last; 0 for never.
    selected: u64,
    /// Its translations must be flushed when it is loaded next.
    is_stale: bool,
}

/// One processor's `N` roots, 32 at most. Only that processor uses the record.
#[derive(Debug)]
pub struct KeptRoots<const N: usize> {
    roots: [KeptRoot; N],
    available: usize,
    current: usize,
    selections: u64,
}

/// On which root a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectedRoot {
    /// The number of the root, which is also that of its tag.
    pub root: usize,
    /// The change that the root needs. One of which something must be replaced is to be emptied first.
    pub change: Change,
    /// Whether what is cached with the root's tag is good. If not, it must be flushed by the load.
    pub keeps: bool,
}

impl<const N: usize> Default for KeptRoots<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> KeptRoots<N> {
    /// The first root alone is there, and in use since the start.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(0 < N && N <= 32, "a processor has a root, and its roots are a set of 32") };
        let unused = KeptRoot { domain: 0, emptied: 0, selected: 0, is_stale: true };
        let mut roots = [unused; N];
        // Changes are counted from 1, and no use has been recorded before that.
        (roots[0].selected, roots[0].emptied) = (1, 1);
        Self { roots, available: 1, current: 0, selections: 1 }
    }

    /// Says how many roots the processor has.
    pub fn set_available(&mut self, available: usize) {
        self.available = available.clamp(1, N);
    }

    /// The root that was selected last.
    #[must_use]
    pub const fn current(&self) -> usize {
        self.current
    }

    /// The root for a program of a domain; `needed` says what each would need for it. `change` is the number of the
    /// change of the page table that is under way.
    pub fn select(&mut self, domain: usize, change: u64, needed: impl Fn(usize) -> Change) -> SelectedRoot {
        let last_with = |wanted: Change| {
            (0..self.available)
                .filter(|&root| self.roots[root].selected != 0 && self.roots[root].domain == domain)
                .filter(|&root| needed(root) == wanted)
                .max_by_key(|&root| self.roots[root].selected)
        };
        let found =
            [Change::Nothing, Change::Add].into_iter().find_map(|wanted| Some((last_with(wanted)?, wanted)));
        let oldest = || (0..self.available).min_by_key(|&root| self.roots[root].selected).unwrap_or(0);
        let (number, needed) = found.unwrap_or_else(|| (oldest(), Change::Replace));
        self.selections += 1;
        self.current = number;
        let root = &mut self.roots[number];
        if needed == Change::Replace {
            (root.domain, root.emptied, root.is_stale) = (domain, change, true);
        }
        root.selected = self.selections;
        SelectedRoot { root: number, change: needed, keeps: self.load_current() }
    }

    /// The current root is loaded: whether what is cached with its tag is good.
    pub fn load_current(&mut self) -> bool {
        !core::mem::replace(&mut self.roots[self.current].is_stale, false)
    }

    /// The change of the page table from which on records of use count.
    #[must_use]
    pub fn oldest(&self) -> u64 {
        let in_use = self.roots.iter().filter(|root| root.selected != 0);
        in_use.map(|root| root.emptied).min().unwrap_or(0)
    }

    /// Whether a root is flushed when it is loaded next, so that nothing of it has to be forgotten singly.
    #[must_use]
    pub fn is_stale(&self, root: usize) -> bool {
        self.roots[root].is_stale
    }

    /// A root that is not loaded is flushed when it is loaded next.
    pub fn mark(&mut self, root: usize) {
        self.roots[root].is_stale = true;
    }

    /// So are all but the one that is loaded, if one is.
    pub fn mark_others(&mut self, loaded: Option<usize>) {
        for (number, root) in self.roots.iter_mut().enumerate() {
            root.is_stale |= Some(number) != loaded;
        }
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests;

#[cfg(all(test, heddle_loom))]
mod models;
