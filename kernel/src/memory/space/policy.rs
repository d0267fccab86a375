//! Memory policies of mappings, and where pages are: `mbind`, `get_mempolicy`, `move_pages`.

use core::ops::Range;

use heddle_kernel_core::mempolicy::MemoryPolicy;

use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::memory::source::Object;
use crate::memory::space::{Mapping, Space, resident};
use crate::sched::Budget;

/// The cost of a look at a leaf table, in units of a [`Budget`].
const TABLE_COST: u32 = 16;

impl Space {
    /// The policy of the mapping at an address; `None` if there is no mapping.
    #[must_use]
    pub fn policy_at(&self, address: usize) -> Option<MemoryPolicy> {
        self.state.lock().mappings.get(address).map(|mapping| mapping.policy)
    }

    /// Gives a range a policy: mbind(2). With `must_be_empty` it may have no pages.
    ///
    /// # Errors
    /// `EFAULT` (it has holes, or no mapping at all if the policy is the default one), `EIO` (it has pages), `ENOMEM`.
    pub async fn set_policy(
        &self,
        range: Range<usize>,
        policy: MemoryPolicy,
        must_be_empty: bool,
    ) -> Result<(), Errno> {
        let all = self.range();
        let part = range.start.max(all.start)..range.end.min(all.end);
        if part.is_empty() {
            return Err(Errno::EFAULT);
        }
        let _guard = self.lock.lock(part.clone()).await?;
        let is_mapped = {
            let state = self.state.lock();
            if policy.is_default() {
                !state.mappings.is_free(part.clone())
            } else {
                part == range && state.mappings.covers(part.clone())
            }
        };
        if !is_mapped {
            return Err(Errno::EFAULT);
        }
        if must_be_empty && self.has_pages(part.clone()).await {
            return Err(Errno::EIO);
        }
        self.each_part(part, |state, part| {
            state.mappings.change(part, |mapping| mapping.policy = policy)?;
            Ok(())
        })
        .await
    }

    /// Gives the policies in a range a home: set_mempolicy_home_node(2).
    ///
    /// # Errors
    /// `ENOENT` (there is no policy), `EOPNOTSUPP` (one that has no home; those before it have theirs), `ENOMEM`.
    pub async fn set_policy_home(&self, range: Range<usize>) -> Result<(), Errno> {
        let all = self.range();
        let range = range.start.max(all.start)..range.end.min(all.end);
        if range.is_empty() {
            return Err(Errno::ENOENT);
        }
        let _guard = self.lock.lock(range.clone()).await?;
        let mut is_found = false;
        self.each_part(range, |state, part| {
            let is_homeless =
                |at: &&Mapping<Object>| !at.policy.is_default() && at.policy.at_home().is_none();
            let homeless = state.mappings.overlapping(part.clone()).find(is_homeless);
            let homeless = homeless.map(|at| at.start.max(part.start));
            let end = homeless.unwrap_or(part.end);
            if part.start < end {
                state.mappings.change(part.start..end, |mapping| {
                    if let Some(policy) = mapping.policy.at_home().filter(|_| !mapping.policy.is_default()) {
                        mapping.policy = policy;
                        is_found = true;
                    }
                })?;
            }
            if homeless.is_some() { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
        })
        .await?;
        if is_found { Ok(()) } else { Err(Errno::ENOENT) }
    }

    /// Whether a locked range has any page.
    async fn has_pages(&self, range: Range<usize>) -> bool {
        let (mut at, mut budget) = (range.start, Budget::new());
        while at < range.end {
            let next = self.root().next_table(at).min(range.end);
            let mut pages = (at..next).step_by(PAGE_SIZE);
            if self.root().sharers(at) > 0 && pages.any(|page| resident::counts(self.root().look(page))) {
                return true;
            }
            at = next;
            budget.step(TABLE_COST).await;
        }
        false
    }

    /// The node of the page at an address, as move_pages(2) tells it.
    ///
    /// # Errors
    /// `EFAULT` (nothing is mapped, or memory that was never written), `ENOENT` (a page that is not there), `ENOMEM`.
    pub async fn node_of_page(&self, address: usize) -> Result<u32, Errno> {
        let page = address & !(PAGE_SIZE - 1);
        if !self.range().contains(&page) {
            return Err(Errno::EFAULT);
        }
        let _guard = self.lock.lock(page..page + PAGE_SIZE).await?;
        let is_anonymous = {
            let state = self.state.lock();
            let mapping = state.mappings.get(page).ok_or(Errno::EFAULT)?;
            matches!(mapping.backing, Object::Anonymous(_))
        };
        let entry = self.root().look(page);
        if resident::counts(entry) {
            return Ok(0);
        }
        // The page of zeros has no node.
        Err(if is_anonymous || entry.is_present() { Errno::EFAULT } else { Errno::ENOENT })
    }
}
