//! The parts of a program's memory that a core dump has, core(5).

use heddle_kernel_core::core_dump::filter;

use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::memory::source::Object;
use crate::memory::space::{Flags, MappingView, Protection, RemoteAccess, Space, Usage};
use crate::sched::Budget;

/// The cost of a look at the pages of a leaf table, in units of a [`Budget`].
const TABLE_COST: u32 = 32;
/// The start of a program or library.
const ELF_MAGIC: &[u8] = b"\x7fELF";

impl Space {
    /// How many bytes of a mapping, from its start on, are in a core dump with this filter.
    pub async fn dumped_bytes(&self, mapping: &MappingView, filter: u32, budget: &mut Budget) -> usize {
        let (whole, has) = (mapping.end - mapping.start, |bit| filter & bit != 0);
        let path = match &mapping.object {
            Object::Source(source) => source.path().unwrap_or_default(),
            Object::Anonymous(_) => alloc::vec::Vec::new(),
        };
        if path == b"[vdso]" {
            return whole;
        }
        // The kernel's own pages are not the program's.
        if mapping.flags.contains(Flags::NOT_DUMPED) || path.first() == Some(&b'[') {
            return 0;
        }
        let Object::Source(source) = &mapping.object else {
            let is_dumped = has(filter::ANONYMOUS_PRIVATE) && self.has_own_pages(mapping, budget).await;
            return if is_dumped { whole } else { 0 };
        };
        if mapping.flags.contains(Flags::SHARED) {
            let is_memory = source.is_memory() || path.ends_with(b" (deleted)");
            let bit = if is_memory { filter::ANONYMOUS_SHARED } else { filter::FILE_SHARED };
            return if has(bit) { whole } else { 0 };
        }
        let is_dumped = has(filter::FILE_PRIVATE)
            || has(filter::ANONYMOUS_PRIVATE) && self.has_own_pages(mapping, budget).await;
        if is_dumped {
            return whole;
        }
        let may_be_program =
            has(filter::ELF_HEADERS) && mapping.offset == 0 && mapping.protection.contains(Protection::READ);
        let mut start = [0; ELF_MAGIC.len()];
        let is_program = may_be_program
            && self.read_remote(mapping.start, &mut start, RemoteAccess::Forced, || true).await.is_ok()
            && start == ELF_MAGIC;
        if is_program { PAGE_SIZE } else { 0 }
    }

    /// Whether a mapping has pages that belong to the program alone, and not to what it maps.
    async fn has_own_pages(&self, mapping: &MappingView, budget: &mut Budget) -> bool {
        let (mut at, mut usage) = (mapping.start, Usage::default());
        while at < mapping.end && usage.anonymous == 0 {
            budget.step(TABLE_COST).await;
            at = self.add_usage(mapping, at, &mut usage);
        }
        usage.anonymous > 0
    }

    /// The next address from `at` on at which a mapping may have something: where it has no page tables, memory of its
    /// own is not there.
    ///
    /// # Errors
    /// `ENOMEM` without memory for the lock's record.
    pub async fn skip_untouched(&self, mapping: &MappingView, at: usize) -> Result<usize, Errno> {
        if matches!(mapping.object, Object::Source(_)) {
            return Ok(at);
        }
        let _guard = self.lock.lock(at..mapping.end).await?;
        let root = self.root();
        Ok(if root.has_table(at) { at } else { root.next_table(at).min(mapping.end) })
    }
}
