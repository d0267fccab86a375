//! Page faults: checks the access of a program (or of the kernel for it), and brings the page in.

use core::ops::Range;
use core::sync::atomic::Ordering;

use heddle_kernel_core::mapping::Totals;
use linux_raw_sys::general as linux;

use crate::arch::paging::{PAGE_SIZE, PageTableEntry};
use crate::arch::{SignalCause, paging};
use crate::error::Errno;
use crate::memory::counters::count;
use crate::memory::gather::Gather;
use crate::memory::oom::Shortage;
use crate::memory::source::Object;
use crate::memory::space::ahead::PAGES_MAX;
use crate::memory::space::keys::check_key;
use crate::memory::space::large::large_around;
use crate::memory::space::{Flags, Mapping, Protection, STACK_GUARD_BYTES, Space, resident};
use crate::memory::table::{LargePlace, Leaves, Root, rights};
use crate::memory::user::PageFault;
use crate::memory::{FrameRef, PageRef, counters, shootdown};

/// The access that faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FaultAccess {
    /// A store.
    pub write: bool,
    /// An instruction fetch.
    pub execute: bool,
    /// It is none of the program's own: protection keys do not count.
    pub is_remote: bool,
}

/// Why a fault cannot be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// Nothing is mapped there.
    Unmapped,
    /// The mapping there does not allow the access.
    Forbidden,
    /// The thread has no right to pages with this protection key.
    Key(u8),
    /// The object has no such page, for example behind the end of a file.
    Bus,
    /// No memory is left.
    OutOfMemory,
}

impl FaultError {
    /// The signal that the program gets; `None` if memory ran out, which is not its fault alone.
    #[must_use]
    pub const fn signal(self) -> Option<SignalCause> {
        match self {
            Self::Unmapped => Some(SignalCause { signal: linux::SIGSEGV, code: 1 }),
            Self::Forbidden => Some(SignalCause { signal: linux::SIGSEGV, code: 2 }),
            Self::Key(_) => Some(SignalCause { signal: linux::SIGSEGV, code: 4 }),
            Self::Bus => Some(SignalCause { signal: linux::SIGBUS, code: 2 }),
            Self::OutOfMemory => None,
        }
    }
}

impl From<Errno> for FaultError {
    fn from(error: Errno) -> Self {
        if error == Errno::ENOMEM { Self::OutOfMemory } else { Self::Bus }
    }
}

impl From<FaultError> for Errno {
    fn from(error: FaultError) -> Self {
        if error == FaultError::OutOfMemory { Self::ENOMEM } else { Self::EFAULT }
    }
}

/// The pages that a fault may bring in.
struct FaultPlan {
    /// Small pages, or a stack's growth.
    range: Range<usize>,
    /// A large page is to come, if there is one and its place is still empty.
    wants_large: bool,
}

impl FaultPlan {
    /// The addresses to lock.
    fn locked(&self) -> Range<usize> {
        if self.wants_large { large_around(self.range.start) } else { self.range.clone() }
    }
}

impl Space {
    /// How long memory is waited for where nobody can say that it is over.
    pub const MEMORY_WAIT_NS: u64 = 500_000_000;

    /// Resolves a fault without waiting; `None` if another operation holds the range.
    pub fn try_fault(&self, address: usize, access: FaultAccess) -> Option<Result<(), FaultError>> {
        let plan = match self.plan_fault(address, access) {
            Ok(plan) => plan,
            Err(error) => return Some(Err(error)),
        };
        // A store may replace a page that another CPU reads: it would have to be waited for.
        if access.write && shootdown::is_elsewhere(self.identity()) {
            return None;
        }
        let _guard = match self.lock.try_lock(plan.locked()) {
            Ok(guard) => guard?,
            Err(error) => return Some(Err(error.into())),
        };
        // A large page is cleared in steps.
        if plan.wants_large && self.root().large_place(address) == LargePlace::Empty {
            return None;
        }
        let mut gather = Gather::new();
        let result = self.resolve(address, access, &plan.range, &mut gather);
        // A CPU may have begun to run the space meanwhile; then the caller has to wait for it after all.
        self.finish_now(&mut gather).then_some(result)
    }

    /// Resolves a fault. When memory is short, room is made for it, as [`Shortage`] says.
    ///
    /// # Errors
    /// [`FaultError`]; that memory is short only when `is_over` says that there is no use for it any more.
    pub async fn fault(
        &self,
        address: usize,
        access: FaultAccess,
        is_over: impl Fn() -> bool,
    ) -> Result<(), FaultError> {
        let mut shortage = Shortage::default();
        loop {
            let tried = match self.try_fault(address, access) {
                Some(tried) => tried,
                None => self.wait_and_fault(address, access).await,
            };
            match tried {
                Err(FaultError::OutOfMemory) => shortage.make_room(&is_over).await?,
                resolved => return resolved,
            }
        }
    }

    /// Whether the program may execute what lies at so many addresses.
    #[must_use]
    pub fn is_executable(&self, address: usize, length: usize) -> bool {
        let state = self.state.lock();
        let mut bytes = address..address.saturating_add(length);
        bytes.all(|byte| {
            state.mappings.get(byte).is_some_and(|mapping| mapping.protection.contains(Protection::EXECUTE))
        })
    }

    /// Says that the process was chosen to end because memory ran out: nobody waits for memory for it any more.
    pub fn doom(&self) {
        self.is_doomed.store(true, Ordering::Relaxed);
    }

    async fn wait_and_fault(&self, address: usize, access: FaultAccess) -> Result<(), FaultError> {
        let mut plan = self.plan_fault(address, access)?;
        if plan.wants_large && !self.deserves_large(address & !(PAGE_SIZE - 1)) {
            // The walk is over, so that little comes, or a large page that the space has earned.
            plan = self.plan_fault(address, access)?;
        }
        let _guard = self.lock.lock(plan.locked()).await?;
        if plan.wants_large && self.bring_in_large(address & !(PAGE_SIZE - 1)).await? {
            return Ok(());
        }
        let mut gather = Gather::new();
        // A fault may skip the shootdown of posted flushes only if an earlier fault's wait for them has completed:
        // concurrent faults each wait themselves.
        let unseen = self.unseen.load(Ordering::Acquire);
        if unseen != self.seen.load(Ordering::Acquire) {
            gather.mark(plan.range.clone());
        }
        let result = self.resolve(address, access, &plan.range, &mut gather);
        self.finish(&mut gather).await;
        self.seen.fetch_max(unseen, Ordering::AcqRel);
        result
    }

    /// Brings in the page that an access to user memory missed. The caller waits for memory until `is_dying`.
    ///
    /// # Errors
    /// `EFAULT`; `ENOMEM`, which nobody sees.
    pub async fn fault_in_for(&self, fault: PageFault, is_dying: impl Fn() -> bool) -> Result<(), Errno> {
        self.fault_in_until(fault, || is_dying() || self.is_doomed.load(Ordering::Relaxed)).await
    }

    /// The same where it is not known who asks: memory is waited for a while only.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub async fn fault_in(&self, fault: PageFault) -> Result<(), Errno> {
        let until_ns = crate::arch::time::now_ns().saturating_add(Self::MEMORY_WAIT_NS);
        let is_over = || self.is_doomed.load(Ordering::Relaxed) || crate::arch::time::now_ns() >= until_ns;
        self.fault_in_until(fault, is_over).await
    }

    /// The same as long as `is_over` does not say otherwise.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub async fn fault_in_until(&self, fault: PageFault, is_over: impl Fn() -> bool) -> Result<(), Errno> {
        #[cfg(feature = "checking")]
        if crate::memory::fault_injection::is_unmapped() {
            return Err(Errno::EFAULT);
        }
        let access = FaultAccess { write: fault.write, ..FaultAccess::default() };
        self.fault(fault.address, access, is_over).await.map_err(Errno::from)
    }

    /// The same without waiting; `None` if it would have to wait.
    pub fn try_fault_in(&self, fault: PageFault) -> Option<Result<(), Errno>> {
        #[cfg(feature = "checking")]
        if crate::memory::fault_injection::is_unmapped() {
            return Some(Err(Errno::EFAULT));
        }
        let access = FaultAccess { write: fault.write, ..FaultAccess::default() };
        self.try_fault(fault.address, access).map(|result| result.map_err(Errno::from))
    }

    /// The pages that a fault may bring in.
    fn plan_fault(&self, address: usize, access: FaultAccess) -> Result<FaultPlan, FaultError> {
        let page = address & !(PAGE_SIZE - 1);
        let small = |range| Ok(FaultPlan { range, wants_large: false });
        let state = self.state.lock();
        if let Some(mapping) = state.mappings.get(address) {
            if access.write && is_filled_in_order(mapping) {
                let pages = self.ahead.pages(page);
                let range = page..(page + pages * PAGE_SIZE).min(mapping.end);
                return Ok(FaultPlan { range, wants_large: self.wants_large(mapping, page, pages) });
            }
            return small(self.around(page, mapping, access));
        }
        let above = state.mappings.at_or_above(address).ok_or(FaultError::Unmapped)?;
        if !above.flags.contains(Flags::GROWS_DOWN) || !self.range().contains(&address) {
            return Err(FaultError::Unmapped);
        }
        small(page..above.start + PAGE_SIZE)
    }

    /// The pages around `page` that a fault may bring in: one leaf table's at most.
    fn around(&self, page: usize, mapping: &Mapping<Object>, access: FaultAccess) -> Range<usize> {
        if access.write || matches!(mapping.backing, Object::Anonymous(_)) {
            return page..page + PAGE_SIZE;
        }
        let window = self.ahead.file_window(page);
        window.start.max(mapping.start)..window.end.min(mapping.end)
    }

    /// Resolves a fault with `range` locked.
    fn resolve(
        &self,
        address: usize,
        access: FaultAccess,
        range: &Range<usize>,
        gather: &mut Gather,
    ) -> Result<(), FaultError> {
        let page = address & !(PAGE_SIZE - 1);
        let Some(mapping) = self.mapping_for(page, range)? else { return Ok(()) };
        // As on Linux, what a key forbids comes before what the mapping forbids.
        if mapping.key != 0 {
            check_key(&mapping, access)?;
        }
        check(&mapping, access)?;
        let Some(leaves) = self.root().leaves_or_large(page, gather, |large| {
            resolve_large(self.root(), large, &mapping, page, access)
        })?
        else {
            gather.mark_here(page..page + PAGE_SIZE);
            return check_key(&mapping, access);
        };
        let leaf = leaves.leaf(page);
        let old = leaf.get();
        let usable = old.is_present() && !old.is_hidden();
        if usable && (!access.write || old.is_writable()) && (!access.execute || old.is_executable()) {
            // Another thread was faster, or this CPU had a stale translation; or the thread has no right to any page.
            gather.mark_here(page..page + PAGE_SIZE);
            return check_key(&mapping, access);
        }
        count(&counters::FAULTS);
        let new = new_entry(&mapping, page, access, old)?;
        leaf.replace(new);
        if resident::counts(new) && !resident::counts(old) {
            self.pages_came(1);
        }
        if old.is_present() {
            if new.physical() == old.physical() {
                gather.mark_here(page..page + PAGE_SIZE);
            } else {
                gather.take(old, 0, page..page + PAGE_SIZE);
            }
        } else if !access.write {
            self.pages_came(bring_in_around(leaves, &mapping, page, range));
            if range.len() > PAGE_SIZE {
                self.ahead.brought_file(page, range.end);
            }
        } else if is_filled_in_order(&mapping) {
            let pages = 1 + bring_in_ahead(leaves, &mapping, page, range);
            self.pages_came(pages - 1);
            self.ahead.brought(page, pages);
        }
        Ok(())
    }

    /// The mapping of a page, after the growth of a stack if that is what the page needs. `None` if the stack has moved
    /// since the range was locked: the program faults again, and another range is locked.
    fn mapping_for(&self, page: usize, locked: &Range<usize>) -> Result<Option<Mapping<Object>>, FaultError> {
        let mut state = self.state.lock();
        if let Some(mapping) = state.mappings.get(page) {
            return Ok(Some(mapping.clone()));
        }
        let above = state.mappings.at_or_above(page).ok_or(FaultError::Unmapped)?;
        let (start, end) = (above.start, above.end);
        let added = Totals::of(above.protection, above.flags, start.saturating_sub(page));
        let may_grow = above.flags.contains(Flags::GROWS_DOWN)
            && end - page <= self.limits.stack()
            && self.range().contains(&page)
            && state.mappings.below(start).is_none_or(|below| below.end + STACK_GUARD_BYTES <= page);
        if !may_grow {
            return Err(FaultError::Unmapped);
        }
        if !locked.contains(&start) {
            return Ok(None);
        }
        // As in Linux, a stack that may not grow is a bad address.
        let checked = self.check_growth(&state, Totals::default(), added);
        checked.map_err(|_| FaultError::Unmapped)?;
        state.mappings.reserve(1).map_err(Errno::from)?;
        state.mappings.extend_down(start, page);
        state.note_promises();
        state.mappings.get(page).cloned().map(Some).ok_or(FaultError::Unmapped)
    }
}

/// Resolves a fault in a large page, if that need not be split. `false` if it must.
fn resolve_large(
    root: Root,
    large: PageTableEntry,
    mapping: &Mapping<Object>,
    page: usize,
    access: FaultAccess,
) -> bool {
    if large.is_hidden() || access.execute {
        return false;
    }
    if !access.write || large.is_writable() {
        // Another thread was faster, or this CPU had a stale translation.
        return true;
    }
    // The rest of the page gets the right to store too.
    let around = large_around(page);
    let is_all = mapping.start <= around.start && around.end <= mapping.end;
    let is_taken = is_all && root.take_over_large(page);
    if is_taken {
        count(&counters::FAULTS);
    }
    is_taken
}

/// Maps pages next to a fault that cost nothing, out of the same leaf table. Returns how many count.
fn bring_in_around(leaves: Leaves, mapping: &Mapping<Object>, page: usize, range: &Range<usize>) -> usize {
    let Object::Source(source) = &mapping.backing else { return 0 };
    let mut count = 0;
    // The mapping may have changed before the range was locked, which may have been meant for a stack's growth then.
    let table = page & !(paging::span(1) - 1);
    let range =
        range.start.max(mapping.start).max(table)..range.end.min(mapping.end).min(table + paging::span(1));
    for near in range.step_by(PAGE_SIZE).filter(|&near| near != page) {
        let leaf = leaves.leaf(near);
        if leaf.get().is_present() {
            continue;
        }
        if let Some(found) = source.resident(mapping.offset_of(near) / PAGE_SIZE as u64) {
            let new = entry_for(found, mapping, false);
            leaf.replace(new);
            count += usize::from(resident::counts(new));
        }
    }
    count
}

/// Whether stores to the mapping bring in pages ahead: private memory that no stack grows into.
fn is_filled_in_order(mapping: &Mapping<Object>) -> bool {
    matches!(mapping.backing, Object::Anonymous(_))
        && !mapping.flags.intersects(Flags::SHARED | Flags::GROWS_DOWN)
}

/// Maps the pages of the range behind a page that a store has brought in, up to the first that is there already, as
/// long as there is plenty of memory. Returns how many.
fn bring_in_ahead(leaves: Leaves, mapping: &Mapping<Object>, page: usize, range: &Range<usize>) -> usize {
    // The mapping may have changed before the range was locked, which may have been meant for a stack's growth then.
    let table = page & !(paging::span(1) - 1);
    let most = (table + paging::span(1)).min(page + PAGES_MAX * PAGE_SIZE);
    let end = range.end.min(mapping.end).min(most);
    let mut count = 0;
    for next in (page + PAGE_SIZE..end).step_by(PAGE_SIZE) {
        let leaf = leaves.leaf(next);
        if leaf.get().is_present() || !crate::memory::frame::is_plentiful() {
            break;
        }
        let Ok(frame) = FrameRef::allocate_zeroed() else { break };
        leaf.replace(entry_for(PageRef::Counted(frame), mapping, true));
        count += 1;
    }
    count
}

fn check(mapping: &Mapping<Object>, access: FaultAccess) -> Result<(), FaultError> {
    let wanted = if access.write {
        Protection::WRITE
    } else if access.execute {
        Protection::EXECUTE
    } else {
        // The processor cannot forbid reading what may be written or executed.
        Protection::all()
    };
    if mapping.protection.intersects(wanted) { Ok(()) } else { Err(FaultError::Forbidden) }
}

fn entry_for(page: PageRef, mapping: &Mapping<Object>, write: bool) -> PageTableEntry {
    let shared = mapping.flags.contains(Flags::SHARED);
    match page {
        PageRef::Static(physical) => PageTableEntry::page(physical, rights(mapping, false), false, shared),
        PageRef::Counted(frame) => {
            PageTableEntry::page(frame.into_physical(), rights(mapping, write), true, shared)
        }
    }
}

/// The entry that replaces `old`, which does not allow the access that the mapping allows.
fn new_entry(
    mapping: &Mapping<Object>,
    page: usize,
    access: FaultAccess,
    old: PageTableEntry,
) -> Result<PageTableEntry, FaultError> {
    let index = mapping.offset_of(page) / PAGE_SIZE as u64;
    if mapping.flags.contains(Flags::SHARED) {
        let Object::Source(source) = &mapping.backing else { return Err(FaultError::Bus) };
        let mut found = source.page(index, access.write)?;
        if found.physical() == PageRef::zero().physical() {
            // A hole that another process may fill: all mappings of it must see that.
            found = source.page(index, true)?;
        }
        if old.is_present() && found.physical() == old.physical() {
            // The entry keeps the reference it has.
            return Ok(old.with_rights(rights(mapping, access.write)));
        }
        return Ok(entry_for(found, mapping, access.write));
    }
    if old.is_present() {
        if !access.write {
            return Ok(old.with_rights(rights(mapping, old.is_writable())));
        }
        if old.is_counted() && crate::memory::frame::references(old.physical()) == 1 {
            return Ok(old.with_rights(rights(mapping, true)));
        }
        return copy_of(old.physical(), mapping);
    }
    match &mapping.backing {
        Object::Anonymous(_) if access.write => {
            Ok(entry_for(PageRef::Counted(FrameRef::allocate_zeroed()?), mapping, true))
        }
        Object::Anonymous(_) => Ok(entry_for(PageRef::zero(), mapping, false)),
        Object::Source(source) => {
            let found = source.page(index, false)?;
            if access.write {
                copy_of(found.physical(), mapping)
            } else {
                Ok(entry_for(found, mapping, false))
            }
        }
    }
}

pub(super) fn copy_of(physical: u64, mapping: &Mapping<Object>) -> Result<PageTableEntry, FaultError> {
    count(&counters::COPIES);
    let frame = if physical == PageRef::zero().physical() {
        FrameRef::allocate_zeroed()?
    } else {
        FrameRef::allocate_copy(physical)?
    };
    Ok(entry_for(PageRef::Counted(frame), mapping, true))
}
