//! The system calls about mappings: mmap(2) and its relatives.

use alloc::sync::Arc;
use core::ops::Range;
use heddle_kernel_core::mapping::Backing;
use heddle_kernel_core::protection_key::ACCESS_MASK;
use linux_raw_sys::general as linux;

use crate::arch::paging::{PAGE_SIZE, USER_END};
use crate::arch::protection_key;
use crate::call::caller::Caller;
use crate::error::Errno;
use crate::fs::{OpenFile, StatusFlags};
use crate::memory::source::Object;
use crate::memory::space::{Flags, FutureLocks, KeyChange, MapRequest, MappingView, Placement, Protection};
use crate::memory::{Space, overcommit};
use crate::process::{Resource, Thread};
use crate::sched::Budget;
use crate::syscall::{Call, SyscallResult, pending};

const KNOWN_PROTECTION: u32 = linux::PROT_READ | linux::PROT_WRITE | linux::PROT_EXEC | linux::PROT_SEM;

/// Log2 of the sizes of large pages that `MAP_HUGETLB` may ask for.
const HUGE_SIZES: [u32; 2] = [21, 30];
/// The flags of mmap(2) that `MAP_SHARED_VALIDATE` lets pass.
const VALIDATED: u32 = linux::MAP_SHARED_VALIDATE
    | linux::MAP_FIXED
    | linux::MAP_GROWSDOWN
    | linux::MAP_DENYWRITE
    | linux::MAP_EXECUTABLE
    | linux::MAP_LOCKED
    | linux::MAP_NORESERVE
    | linux::MAP_POPULATE
    | linux::MAP_NONBLOCK
    | linux::MAP_STACK
    | linux::MAP_HUGETLB
    | linux::MAP_32BIT
    | (HUGE_SIZES[0] | HUGE_SIZES[1]) << linux::MAP_HUGE_SHIFT;

/// The error that `MAP_HUGETLB` comes to: there are no file systems of large pages, and the pool of them is empty.
const fn from_pool(flags: u32) -> Errno {
    let size = flags >> linux::MAP_HUGE_SHIFT & linux::MAP_HUGE_MASK;
    let is_known = size == 0 || size == HUGE_SIZES[0] || size == HUGE_SIZES[1];
    if flags & linux::MAP_ANONYMOUS != 0 && is_known { Errno::ENOMEM } else { Errno::EINVAL }
}

fn protection(bits: u32) -> Result<Protection, Errno> {
    if bits & !KNOWN_PROTECTION != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(Protection::from_bits_truncate(bits as u8))
}

/// The rights that a mapping gets: who asks for reading may execute too, if its personality says so.
fn implied(call: &Call<'_>, wanted: Protection) -> Protection {
    let is_implied = call.thread.personality() & Thread::READ_IMPLIES_EXECUTE != 0;
    if is_implied && wanted.contains(Protection::READ) { wanted | Protection::EXECUTE } else { wanted }
}

/// mmap(2).
pub fn mmap(call: &mut Call<'_>) -> SyscallResult {
    let (address, length, flags) = (call.word(0), call.word(1), call.uint(3));
    let (descriptor, offset) = (call.int(4), call.word(5) as u64);
    if !offset.is_multiple_of(PAGE_SIZE as u64) {
        return Err(Errno::EINVAL.into());
    }
    let open = if flags & linux::MAP_ANONYMOUS == 0 {
        let open = call.thread.descriptors().get(descriptor)?;
        if open.flags().contains(StatusFlags::PATH) {
            return Err(Errno::EBADF.into());
        }
        Some(open)
    } else {
        None
    };
    if length == 0 {
        return Err(Errno::EINVAL.into());
    }
    if length.checked_next_multiple_of(PAGE_SIZE).is_none_or(|length| length > USER_END) {
        return Err(Errno::ENOMEM.into());
    }
    if flags & linux::MAP_FIXED != 0 && address > USER_END - length.next_multiple_of(PAGE_SIZE) {
        return Err(Errno::ENOMEM.into());
    }
    if flags & linux::MAP_HUGETLB != 0 {
        return Err(from_pool(flags).into());
    }
    let wanted = implied(call, Protection::from_bits_truncate(call.uint(2) as u8));
    let kind = flags & linux::MAP_TYPE;
    let is_shared = match kind {
        linux::MAP_PRIVATE => false,
        linux::MAP_SHARED | linux::MAP_SHARED_VALIDATE => true,
        _ => return Err(Errno::EINVAL.into()),
    };
    let placement = if flags & linux::MAP_FIXED_NOREPLACE != 0 {
        Placement::FixedIfFree(address)
    } else if flags & linux::MAP_FIXED != 0 {
        Placement::Fixed(address)
    } else if flags & linux::MAP_32BIT != 0 {
        Placement::Low(address)
    } else if address != 0 {
        Placement::Hint(address)
    } else {
        Placement::Any
    };
    let mut request = MapRequest { protection: wanted, ..MapRequest::anonymous(placement, length) };
    request.flags.set(Flags::SHARED, is_shared);
    request.flags.set(Flags::GROWS_DOWN, flags & linux::MAP_GROWSDOWN != 0);
    if kind == linux::MAP_SHARED_VALIDATE {
        if flags & linux::MAP_ANONYMOUS != 0 {
            return Err(Errno::EINVAL.into());
        }
        if flags & !VALIDATED != 0 {
            return Err(Errno::EOPNOTSUPP.into());
        }
    }
    request.flags.set(Flags::NO_RESERVE, flags & linux::MAP_NORESERVE != 0 && !overcommit::is_limited());
    if let Some(open) = open {
        back_with_file(&mut request, &open, is_shared, offset)?;
    }
    let space = call.thread.space();
    request.key = execute_only_key(&space, wanted);
    let future_locks = space.future_locks();
    if flags & linux::MAP_LOCKED != 0 || future_locks != FutureLocks::Off {
        let limit = match lock_limit(call) {
            Err(_) if flags & linux::MAP_LOCKED == 0 => Some(0),
            limit => limit?,
        };
        if limit.is_some_and(|limit| space.locked_bytes().saturating_add(length) > limit) {
            return Err(Errno::EAGAIN.into());
        }
        request.flags |= Flags::LOCKED;
    }
    let populates = (flags & (linux::MAP_POPULATE | linux::MAP_LOCKED) != 0
        || future_locks == FutureLocks::Populated)
        && flags & linux::MAP_NONBLOCK == 0;
    let caller = call.thread.clone();
    pending(async move {
        let start = space.map(request).await?;
        if populates && !wanted.is_empty() {
            let end = start + length.next_multiple_of(PAGE_SIZE);
            // The mapping stands even if its pages can't be had in advance.
            let _ =
                space.populate(start..end, wanted.contains(Protection::WRITE), &|| caller.is_dying()).await;
        }
        Ok(start)
    })
}

fn back_with_file(
    request: &mut MapRequest,
    open: &Arc<OpenFile>,
    is_shared: bool,
    offset: u64,
) -> Result<(), Errno> {
    if !open.is_readable() {
        return Err(Errno::EACCES);
    }
    if is_shared && !open.is_writable() {
        if request.protection.contains(Protection::WRITE) {
            return Err(Errno::EACCES);
        }
        request.flags |= Flags::NEVER_WRITABLE;
    }
    if open.flags().contains(StatusFlags::PATH) {
        return Err(Errno::EBADF);
    }
    const SEALS: u32 = linux::F_SEAL_WRITE | linux::F_SEAL_FUTURE_WRITE;
    let mut may_write = is_shared && open.is_writable();
    if may_write && open.file.seals().unwrap_or(0) & SEALS != 0 {
        may_write = false;
        if request.protection.contains(Protection::WRITE) {
            return Err(Errno::EPERM);
        }
        request.flags |= Flags::NEVER_WRITABLE;
    }
    let file = open.file.clone();
    request.object = Object::Source(if may_write { file.map_shared()? } else { file.map_source()? });
    request.offset = offset;
    open.file.accessed_by(open);
    Ok(())
}

/// munmap(2).
pub fn munmap(call: &mut Call<'_>) -> SyscallResult {
    let (start, length) = (call.word(0), call.word(1));
    let space = call.thread.space();
    pending(async move {
        space.unmap(start, length).await?;
        Ok(0)
    })
}

/// The key of memory that may be executed and nothing else; `None` for other memory, or if there is no key for it.
fn execute_only_key(space: &Space, protection: Protection) -> Option<u8> {
    if protection != Protection::EXECUTE {
        return None;
    }
    let key = space.execute_only_key()?;
    protection_key::set_rights(protection_key::rights().without(key));
    Some(key)
}

/// mprotect(2).
pub fn mprotect(call: &mut Call<'_>) -> SyscallResult {
    change_protection(call, None)
}

/// pkey_mprotect(2).
pub fn pkey_mprotect(call: &mut Call<'_>) -> SyscallResult {
    let key = call.int(3);
    change_protection(call, (key != -1).then_some(key))
}

/// pkey_alloc(2).
pub fn pkey_alloc(call: &mut Call<'_>) -> SyscallResult {
    let (flags, access) = (call.word(0), call.word(1));
    if flags != 0 || access & !(ACCESS_MASK as usize) != 0 {
        return Err(Errno::EINVAL.into());
    }
    if !protection_key::are_on() {
        // As on Linux, where the first key is given out and can't be used.
        return Err(Errno::EINVAL.into());
    }
    let key = call.thread.space().allocate_key().ok_or(Errno::ENOSPC)?;
    protection_key::set_rights(protection_key::rights().with(key, access as u32));
    Ok(usize::from(key).into())
}

/// pkey_free(2).
pub fn pkey_free(call: &mut Call<'_>) -> SyscallResult {
    call.thread.space().free_key(call.int(0))?;
    Ok(0.into())
}

fn change_protection(call: &Call<'_>, key: Option<i32>) -> SyscallResult {
    const GROWS: u32 = linux::PROT_GROWSDOWN | linux::PROT_GROWSUP;
    let (start, length) = (call.word(0), call.word(1));
    if call.uint(2) & GROWS == GROWS {
        return Err(Errno::EINVAL.into());
    }
    if !start.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL.into());
    }
    if length == 0 {
        return Ok(0.into());
    }
    if start.checked_add(length).is_none_or(|end| end.checked_next_multiple_of(PAGE_SIZE).is_none()) {
        return Err(Errno::ENOMEM.into());
    }
    let protection = implied(call, protection(call.uint(2) & !GROWS)?);
    let space = call.thread.space();
    let key = match key {
        Some(number) => KeyChange::Set(space.given_key(number)?),
        None => execute_only_key(&space, protection).map_or(KeyChange::Keep, KeyChange::Set),
    };
    let (mut start, mut length) = (start, length);
    if call.uint(2) & GROWS != 0 {
        // From the start of a stack on; nothing grows upwards.
        let found = space.mapping_at_or_above(start).ok_or(Errno::ENOMEM)?;
        if found.start >= start.saturating_add(length)
            || call.uint(2) & linux::PROT_GROWSUP != 0 && found.start > start
        {
            return Err(Errno::ENOMEM.into());
        }
        if !found.flags.contains(Flags::GROWS_DOWN) || call.uint(2) & linux::PROT_GROWSUP != 0 {
            return Err(Errno::EINVAL.into());
        }
        let end = start.checked_add(length).ok_or(Errno::ENOMEM)?;
        (start, length) = (found.start, end - found.start);
    }
    pending(async move {
        space.protect(start, length, protection, key).await?;
        Ok(0)
    })
}

/// mremap(2).
pub fn mremap(call: &mut Call<'_>) -> SyscallResult {
    let (start, old_length, new_length, flags) = (call.word(0), call.word(1), call.word(2), call.uint(3));
    let target = call.word(4);
    let has = |flag: u32| flags & flag != 0;
    let known = linux::MREMAP_MAYMOVE | linux::MREMAP_FIXED | linux::MREMAP_DONTUNMAP;
    let needs_move = has(linux::MREMAP_FIXED | linux::MREMAP_DONTUNMAP) && !has(linux::MREMAP_MAYMOVE);
    let shrinks_away = has(linux::MREMAP_DONTUNMAP)
        && old_length.checked_next_multiple_of(PAGE_SIZE) != new_length.checked_next_multiple_of(PAGE_SIZE);
    if flags & !known != 0 || needs_move || shrinks_away || !start.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL.into());
    }
    let placement = if has(linux::MREMAP_FIXED) {
        Some(Placement::Fixed(target))
    } else {
        has(linux::MREMAP_MAYMOVE).then_some(Placement::Any)
    };
    let space = call.thread.space();
    pending(async move {
        space.remap(start, old_length, new_length, placement, flags & linux::MREMAP_DONTUNMAP != 0).await
    })
}

/// remap_file_pages(2): the pages are mapped anew, as in Linux since 4.0.
pub fn remap_file_pages(call: &mut Call<'_>) -> SyscallResult {
    let [start, length] = [call.word(0), call.word(1)].map(|value| value & !(PAGE_SIZE - 1));
    let (first, flags) = (call.word(3) as u64, call.uint(4));
    let end = start.wrapping_add(length);
    if call.word(2) != 0 || end <= start || first.checked_add((length / PAGE_SIZE) as u64).is_none() {
        return Err(Errno::EINVAL.into());
    }
    let offset = first.checked_mul(PAGE_SIZE as u64).ok_or(Errno::EOVERFLOW)?;
    let caller = call.thread.clone();
    pending(async move {
        let space = caller.space();
        let view = shared_mapping(&caller, &space, start..end).await?;
        let kept = Flags::SHARED | Flags::NEVER_WRITABLE | Flags::LOCKED;
        let is_writable = view.protection.contains(Protection::WRITE);
        let request = MapRequest {
            placement: Placement::Fixed(start),
            length,
            protection: view.protection,
            flags: view.flags & kept,
            object: view.object,
            offset,
            key: Some(view.key),
        };
        space.map(request).await?;
        if flags & linux::MAP_NONBLOCK == 0 {
            // The mapping stands even if its pages can't be had in advance.
            let _ = space.populate(start..end, is_writable, &|| caller.is_dying()).await;
        }
        Ok(0)
    })
}

/// A shared mapping that holds all of a range, or the first of several that are alike and leave no gap.
///
/// # Errors
/// `EINVAL`; `EINTR`: the thread is to die.
async fn shared_mapping(caller: &Caller, space: &Space, range: Range<usize>) -> Result<MappingView, Errno> {
    let at = |address| {
        let found = space.mapping_at_or_above(address).filter(|view| view.start <= address);
        found.ok_or(Errno::EINVAL)
    };
    let first = at(range.start)?;
    if !first.flags.contains(Flags::SHARED) {
        return Err(Errno::EINVAL);
    }
    let (mut budget, mut end) = (Budget::new(), first.end);
    while end < range.end {
        let next = at(end)?;
        let is_alike =
            next.flags == first.flags && next.protection == first.protection && next.key == first.key;
        if !is_alike || !next.object.is_same(&first.object) {
            return Err(Errno::EINVAL);
        }
        end = next.end;
        caller.pace(&mut budget, 1).await?;
    }
    Ok(first)
}

/// madvise(2).
pub fn madvise(call: &mut Call<'_>) -> SyscallResult {
    let (start, length, advice) = (call.word(0), call.word(1), call.uint(2));
    let (caller, space) = (call.thread.clone(), call.thread.space());
    pending(async move {
        space.advise(start, length, advice, &|| caller.is_dying()).await?;
        Ok(0)
    })
}

/// brk(2).
pub fn brk(call: &mut Call<'_>) -> SyscallResult {
    let end = call.word(0);
    let space = call.thread.space();
    let heap = space.brk_range();
    if end < heap.start {
        return Ok(heap.end.into());
    }
    let limit = call.thread.process.limit(Resource::Data).soft;
    if (end - heap.start) as u64 > limit {
        return Ok(heap.end.into());
    }
    let locks = space.future_locks();
    if locks != FutureLocks::Off && end > heap.end {
        let limit = lock_limit(call).unwrap_or(Some(0));
        if limit.is_some_and(|limit| space.locked_bytes().saturating_add(end - heap.end) > limit) {
            return Ok(heap.end.into());
        }
    }
    let caller = call.thread.clone();
    pending(async move {
        let reached = space.brk(end).await;
        if locks == FutureLocks::Populated && reached > heap.end {
            let pages = heap.end & !(PAGE_SIZE - 1)..reached.next_multiple_of(PAGE_SIZE);
            let _ = space.populate(pages, true, &|| caller.is_dying()).await;
        }
        Ok(reached)
    })
}

/// msync(2).
pub fn msync(call: &mut Call<'_>) -> SyscallResult {
    let flags = call.uint(2);
    let both = linux::MS_ASYNC | linux::MS_SYNC;
    if flags & !(both | linux::MS_INVALIDATE) != 0 || flags & both == both {
        return Err(Errno::EINVAL.into());
    }
    if !call.word(0).is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL.into());
    }
    // A length at the end of all addresses is none: Linux rounds it up to 0.
    let Some(length) = call.word(1).checked_next_multiple_of(PAGE_SIZE) else { return Ok(0.into()) };
    let space = call.thread.space();
    let range = space.check_sync(call.word(0), length)?;
    if flags & linux::MS_INVALIDATE != 0 && space.has_locked(&range) {
        return Err(Errno::EBUSY.into());
    }
    if flags & linux::MS_SYNC == 0 || !space.has_written(&range) {
        return Ok(0.into());
    }
    pending(async move {
        space.sync(range).await?;
        Ok(0)
    })
}

/// mincore(2).
pub fn mincore(call: &mut Call<'_>) -> SyscallResult {
    let (start, length, vector) = (call.word(0), call.word(1), call.word(2));
    if !start.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL.into());
    }
    let (caller, space) = (call.thread.clone(), call.thread.space());
    let end = length.checked_next_multiple_of(PAGE_SIZE).and_then(|length| start.checked_add(length));
    let end = end.filter(|&end| end <= USER_END).ok_or(Errno::ENOMEM)?;
    pending(async move {
        let (mut budget, mut bytes, mut at) = (Budget::new(), [0; RESIDENCY_PAGES], start);
        while at < end {
            caller.pace(&mut budget, RESIDENCY_COST).await?;
            let pages = ((end - at) / PAGE_SIZE).min(RESIDENCY_PAGES);
            let told = space.residency(at..at + pages * PAGE_SIZE, &mut bytes[..pages]).await?;
            let target = vector.wrapping_add((at - start) / PAGE_SIZE);
            caller.resolve(|space| space.write_bytes(target, &bytes[..told])).await?;
            if told < pages {
                return Err(Errno::ENOMEM);
            }
            at += pages * PAGE_SIZE;
        }
        Ok(0)
    })
}

/// Pages that mincore(2) looks at in one step, and the step's cost.
const RESIDENCY_PAGES: usize = 256;
const RESIDENCY_COST: u32 = 16;

/// A range that is to be locked or unlocked, which must be mapped.
fn lock_range(space: &Space, start: usize, length: usize) -> Result<core::ops::Range<usize>, Errno> {
    let first = start & !(PAGE_SIZE - 1);
    // A length at the end of all addresses is none: Linux rounds it up to 0.
    let bytes = length.checked_add(start - first).and_then(|bytes| bytes.checked_next_multiple_of(PAGE_SIZE));
    let bytes = bytes.unwrap_or(0);
    let end = first.checked_add(bytes).ok_or(Errno::EINVAL)?;
    if bytes > 0 {
        space.check_sync(first, bytes)?;
    }
    Ok(first..end)
}

/// How much memory the caller may lock, in bytes; `None` for any amount.
///
/// # Errors
/// `EPERM`: none.
fn lock_limit(call: &Call<'_>) -> Result<Option<usize>, Errno> {
    if call.thread.credentials().is_capable(linux::CAP_IPC_LOCK) {
        return Ok(None);
    }
    match call.thread.process.limit(Resource::LockedMemory).soft {
        0 => Err(Errno::EPERM),
        limit => Ok(Some(usize::try_from(limit).unwrap_or(usize::MAX) & !(PAGE_SIZE - 1))),
    }
}

/// mlock(2).
pub fn mlock(call: &mut Call<'_>) -> SyscallResult {
    lock(call, true)
}

/// mlock2(2).
pub fn mlock2(call: &mut Call<'_>) -> SyscallResult {
    match call.uint(2) {
        0 => lock(call, true),
        linux::MLOCK_ONFAULT => lock(call, false),
        _ => Err(Errno::EINVAL.into()),
    }
}

fn lock(call: &Call<'_>, populates: bool) -> SyscallResult {
    let limit = lock_limit(call)?;
    let space = call.thread.space();
    let range = lock_range(&space, call.word(0), call.word(1))?;
    let caller = call.thread.clone();
    pending(async move {
        if range.is_empty() {
            return Ok(0);
        }
        space.lock_memory(range.clone(), true, limit).await?;
        if populates {
            space.populate_locked(range, &|| caller.is_dying()).await?;
        }
        Ok(0)
    })
}

/// munlock(2).
pub fn munlock(call: &mut Call<'_>) -> SyscallResult {
    let space = call.thread.space();
    let range = lock_range(&space, call.word(0), call.word(1))?;
    pending(async move {
        if !range.is_empty() {
            space.lock_memory(range, false, None).await?;
        }
        Ok(0)
    })
}

/// mlockall(2): what is mapped is counted; it stays in memory anyway, and so does what will be mapped.
pub fn mlockall(call: &mut Call<'_>) -> SyscallResult {
    let known = linux::MCL_CURRENT | linux::MCL_FUTURE | linux::MCL_ONFAULT;
    let flags = call.uint(0);
    if flags == 0 || flags & !known != 0 || flags == linux::MCL_ONFAULT {
        return Err(Errno::EINVAL.into());
    }
    let limit = lock_limit(call)?;
    let future = match flags & (linux::MCL_FUTURE | linux::MCL_ONFAULT) {
        0 | linux::MCL_ONFAULT => FutureLocks::Off,
        linux::MCL_FUTURE => FutureLocks::Populated,
        _ => FutureLocks::OnFault,
    };
    let space = call.thread.space();
    if flags & linux::MCL_CURRENT == 0 {
        space.lock_future(future);
        return Ok(0.into());
    }
    pending(async move {
        space.lock_all_memory(true, limit).await?;
        space.lock_future(future);
        Ok(0)
    })
}

/// munlockall(2).
pub fn munlockall(call: &mut Call<'_>) -> SyscallResult {
    let space = call.thread.space();
    space.lock_future(FutureLocks::Off);
    pending(async move {
        space.lock_all_memory(false, None).await?;
        Ok(0)
    })
}
