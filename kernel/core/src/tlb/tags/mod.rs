//! Tagged translations: page tables whose translations a processor keeps while it uses another one (PCID, ASID).
//!
//! A processor has a few tags and gives them to the page tables that it used last ([`Tags`]). Coming back to one, it
//! keeps what it had cached, unless something was taken out of the table meanwhile. It is not told of that: only
//! processors that *use* a table are asked to flush ([`crate::tlb::shootdown`]). It finds out by a count of removals
//! that belongs to the table ([`Removals`]), so a table that no processor uses costs its owner nothing.
//!
//! # Why no removal is missed
//! An operation that takes entries out counts first and then reads which processors use the table. A processor that
//! comes back records its use and then reads the count. Between the two each has a fence, that of
//! [`crate::tlb::shootdown::Shootdown::post`] and that of [`crate::tlb::shootdown::Shootdown::note`]: either the count
//! is new, and the processor flushes the tag while it loads the table, or its use is seen, and it is asked to.
//!
//! A processor that takes entries out of a table which it does not use may forget them at once, if it can forget single
//! translations of another tag (INVPCID): [`Tags::behind`] says where that is worth it.
//!
//! A table is named by a number that is never given again, so a tag cannot be taken for that of a table which had the
//! same memory before.

use crate::tlb::sync::{AtomicU64, Ordering};

/// The parts of tags that a processor has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Its translations have tags.
    pub has_tags: bool,
    /// It forgets single translations of tags that it does not use.
    pub forgets_elsewhere: bool,
}

impl Abilities {
    /// By CPUID: ECX of leaf 1 and EBX of leaf 7, which is 0 where there is no such leaf.
    #[must_use]
    pub const fn of(leaf1_ecx: u32, leaf7_ebx: u32) -> Self {
        const PCID: u32 = 1 << 17;
        const INVPCID: u32 = 1 << 10;
        let has_tags = leaf1_ecx & PCID != 0;
        // The instruction is there without tags, too, and has nothing to do then.
        Self { has_tags, forgets_elsewhere: has_tags && leaf7_ebx & INVPCID != 0 }
    }
}

/// How often something was taken out of a page table.
pub struct Removals(AtomicU64);

impl Default for Removals {
    fn default() -> Self {
        Self::new()
    }
}

impl Removals {
    /// Never.
    #[cfg(not(heddle_loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The same for models.
    #[cfg(heddle_loom)]
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// To be called when entries have been taken out, and before [`crate::tlb::shootdown::Shootdown::post`]. Returns
    /// the number of this removal.
    pub fn add(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// To be read after [`crate::tlb::shootdown::Shootdown::note`], and before the table is loaded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The page table that a tag belongs to.
#[derive(Clone, Copy)]
struct Context {
    /// The page table's number.
    table: usize,
    /// All removals up to this one are forgotten.
    removals: u64,
    /// When it was chosen last; 0 for never.
    chosen: u64,
}

/// One processor's `N` tags. Only that processor uses them.
pub struct Tags<const N: usize> {
    contexts: [Context; N],
    choices: u64,
}

/// How to load a page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The tag, from 0.
    pub tag: usize,
    /// Whether what is cached with the tag is good. If not, it must be flushed by the load.
    pub keeps: bool,
}

impl<const N: usize> Default for Tags<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Tags<N> {
    /// None in use.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(N > 0, "a processor needs a tag") };
        Self { contexts: [Context { table: 0, removals: 0, chosen: 0 }; N], choices: 0 }
    }

    /// A tag for page table `table`, of which `removals` has been read: the one it has, or else the one whose table was
    /// not used for the longest time.
    pub fn choose(&mut self, table: usize, removals: u64) -> Choice {
        self.choices += 1;
        let found = self.contexts.iter().position(|context| context.chosen != 0 && context.table == table);
        let keeps = found.is_some_and(|tag| self.contexts[tag].removals == removals);
        let oldest = || (0..N).min_by_key(|&tag| self.contexts[tag].chosen).unwrap_or(0);
        let tag = found.unwrap_or_else(oldest);
        self.contexts[tag] = Context { table, removals, chosen: self.choices };
        Choice { tag, keeps }
    }

    /// The tag of a table that this processor does not use, if what removal `number` took out is all of it that is not
    /// good. A caller that forgets it there says so ([`Self::has_flushed`]); else the tag is flushed when the table is
    /// loaded.
    #[must_use]
    pub fn behind(&self, table: usize, number: u64) -> Option<usize> {
        let is_it = |context: &Context| {
            context.chosen != 0 && context.table == table && context.removals + 1 == number
        };
        self.contexts.iter().position(is_it)
    }

    /// This processor has flushed what removal `number` took out of the table.
    pub fn has_flushed(&mut self, table: usize, number: u64) {
        let own = |context: &&mut Context| context.chosen != 0 && context.table == table;
        // Removals of others between are not forgotten by that.
        if let Some(context) = self.contexts.iter_mut().find(own)
            && context.removals + 1 == number
        {
            context.removals = number;
        }
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests;

#[cfg(all(test, heddle_loom))]
mod models;
