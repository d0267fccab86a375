//! Objects that are mapped through something of the space's own, as System V's shared memory is.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use crate::error::Errno;
use crate::memory::MapSource;
use crate::memory::source::Object;
use crate::memory::space::Space;

use heddle_kernel_core::fallible::insert_reserved;

impl Space {
    /// Whether there may be such objects.
    #[must_use]
    pub fn has_attachments(&self) -> bool {
        self.state.lock().has_attachments
    }

    /// Says that there may be, before one is mapped.
    pub fn note_attachment(&self) {
        self.state.lock().has_attachments = true;
    }

    /// In a child without running threads: puts its own in place of the parent's. They have the same pages.
    pub(super) fn renew_attachments(&self) -> Result<(), Errno> {
        if !self.has_attachments() {
            return Ok(());
        }
        // Several mappings can be parts of one object. The parent keeps the old ones, so their addresses stay theirs.
        let mut made: Vec<(usize, Arc<dyn MapSource>)> = Vec::new();
        let mut at = 0;
        while let Some((range, source)) = self.next_source(at) {
            at = range.end;
            let old = Arc::as_ptr(&source).addr();
            let new = match made.binary_search_by_key(&old, |&(old, _)| old) {
                Ok(index) => made[index].1.clone(),
                Err(index) => {
                    let Some(new) = source.for_child() else { continue };
                    made.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                    insert_reserved(&mut made, index, (old, new?));
                    made[index].1.clone()
                }
            };
            let new = Object::Source(new);
            let mut state = self.state.lock();
            state.mappings.change(range, |mapping| mapping.backing = new.clone())?;
        }
        Ok(())
    }

    /// The first mapping of an object from an address on.
    fn next_source(&self, at: usize) -> Option<(Range<usize>, Arc<dyn MapSource>)> {
        let state = self.state.lock();
        let mut rest = state.mappings.overlapping(at..usize::MAX);
        rest.find_map(|mapping| match &mapping.backing {
            Object::Source(source) => Some((mapping.range(), source.clone())),
            Object::Anonymous(_) => None,
        })
    }
}
