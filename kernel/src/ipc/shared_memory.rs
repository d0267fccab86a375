//! Shared memory: shmget(2), shmop(2), shmctl(2).
//!
//! The object behind a mapping is an [`SegmentAttachment`], one for each `shmat` and each space that inherited it; it
//! lives as long as a mapping refers to it, so that `munmap`, `execve` and the end of a process detach as `shmdt` does.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use heddle_kernel_core::sysv_ipc::permission::Permissions;
use heddle_kernel_core::sysv_ipc::registry::PRIVATE;
use linux_raw_sys::general as linux;

use crate::arch::paging::PAGE_SIZE;
use crate::call::{Call, SyscallResult, pending};
use crate::error::Errno;
use crate::fs::inode::device_number;
use crate::ipc::namespace::IpcNamespace;
use crate::ipc::{IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT, IpcObject, READ};
use crate::memory::source::{Object as Backing, SharedMemory};
use crate::memory::space::{Flags, MapRequest, Placement, Protection};
use crate::memory::{MapSource, PageRef, Space, fallible};
use crate::process::Thread;
use crate::process::namespaces::UpperNamespace;
use crate::process::pid_namespace::{Pids, shown};
use crate::process::{Credentials, Resource};
use crate::sync::SpinLock;

/// A flag of `shmget`: large pages, of which there are none. Memory is never reserved, so `SHM_NORESERVE` changes
/// nothing.
const SHM_HUGETLB: u32 = 0o4000;
/// Flags of `shmat`.
const SHM_RDONLY: u32 = 0o10_000;
const SHM_RND: u32 = 0o20_000;
const SHM_REMAP: u32 = 0o40_000;
const SHM_EXEC: u32 = 0o100_000;
/// Bits that `shmctl` shows in the mode: gone with the last attachment; locked.
const SHM_DEST: u32 = 0o1000;
const SHM_LOCKED: u32 = 0o2000;
/// Commands.
const SHM_LOCK: u32 = 11;
const SHM_UNLOCK: u32 = 12;
const SHM_STAT: u32 = 13;
const SHM_INFO: u32 = 14;
const SHM_STAT_ANY: u32 = 15;

/// Where segments can be attached.
const SHMLBA: usize = PAGE_SIZE;

/// A segment.
pub struct SharedSegment {
    id: i32,
    /// The key that it was made with, which its name tells.
    key: i32,
    bytes: usize,
    memory: SharedMemory,
    state: SpinLock<SegmentState>,
}

struct SegmentState {
    permissions: Permissions,
    attached_s: u64,
    detached_s: u64,
    changed_s: u64,
    creator: i32,
    last: i32,
    attachments: u64,
}

impl SharedSegment {
    const fn pages(&self) -> usize {
        self.bytes.div_ceil(PAGE_SIZE)
    }
}

impl IpcObject for SharedSegment {
    fn permissions(&self) -> Permissions {
        self.state.lock().permissions
    }
}

impl MapSource for SharedSegment {
    fn page(&self, index: u64, write: bool) -> Result<PageRef, Errno> {
        // A mapping that was made longer than the segment has nothing there.
        if index >= self.pages() as u64 { Err(Errno::EINVAL) } else { self.memory.page(index, write) }
    }
}

/// A segment in a space.
struct SegmentAttachment {
    segment: Arc<SharedSegment>,
    /// The namespace, which lives as long as its segments are attached.
    ipc: Arc<IpcNamespace>,
    /// The process.
    pid: AtomicI32,
    /// Whether it counts.
    is_counted: AtomicBool,
    /// Whether it was ever mapped; the end of one that was not is no event.
    is_mapped: AtomicBool,
}

impl SegmentAttachment {
    /// One that does not count yet.
    fn new(segment: Arc<SharedSegment>, ipc: Arc<IpcNamespace>, pid: i32) -> Result<Arc<Self>, Errno> {
        let (pid, is_counted, is_mapped) =
            (AtomicI32::new(pid), AtomicBool::new(false), AtomicBool::new(false));
        fallible::try_arc(Self { segment, ipc, pid, is_counted, is_mapped })
    }

    /// Counts it, if the segment has not been removed: it cannot be while it has attachments.
    fn count(&self) -> Result<(), Errno> {
        let segments = self.ipc.segments.lock();
        if !segments.get(self.segment.id).is_some_and(|(_, found)| Arc::ptr_eq(found, &self.segment)) {
            return Err(Errno::EIDRM);
        }
        self.segment.state.lock().attachments += 1;
        self.is_counted.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn note_mapped(&self) {
        let mut state = self.segment.state.lock();
        state.attached_s = crate::ipc::realtime_seconds();
        state.last = self.pid.load(Ordering::Relaxed);
        self.is_mapped.store(true, Ordering::Relaxed);
    }
}

impl Drop for SegmentAttachment {
    fn drop(&mut self) {
        if !*self.is_counted.get_mut() {
            return;
        }
        let mut segments = self.ipc.segments.lock();
        let mut state = self.segment.state.lock();
        state.attachments -= 1;
        if *self.is_mapped.get_mut() {
            state.detached_s = crate::ipc::realtime_seconds();
            state.last = *self.pid.get_mut();
        }
        let is_over = state.attachments == 0 && state.permissions.mode & SHM_DEST != 0;
        drop(state);
        let removed = if is_over { segments.remove(self.segment.id) } else { None };
        drop(segments);
        self.ipc.forget_pages(removed.as_ref());
        drop(removed);
    }
}

impl MapSource for SegmentAttachment {
    fn page(&self, index: u64, write: bool) -> Result<PageRef, Errno> {
        self.segment.page(index, write)
    }

    fn is_memory(&self) -> bool {
        true
    }

    fn serial(&self) -> (u64, u64) {
        self.segment.memory.serial()
    }

    fn for_child(&self) -> Option<Result<Arc<dyn MapSource>, Errno>> {
        let pid = self.pid.load(Ordering::Relaxed);
        let made = Self::new(self.segment.clone(), self.ipc.clone(), pid);
        Some(made.and_then(|attachment| {
            attachment.count()?;
            attachment.note_mapped();
            Ok(attachment as Arc<dyn MapSource>)
        }))
    }

    fn path(&self) -> Option<Vec<u8>> {
        let mut name = *b"/SYSV00000000 (deleted)";
        for (place, digit) in name[5..13].iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(self.segment.key as u32 >> (28 - 4 * place) & 15) as usize];
        }
        fallible::try_to_vec(&name).ok()
    }

    fn identity(&self) -> (u64, u64) {
        (device_number(0, 1), self.segment.id as u64)
    }
}

impl IpcNamespace {
    /// Counts the pages of a segment that is no longer among the others.
    fn forget_pages(&self, removed: Option<&Arc<SharedSegment>>) {
        if let Some(segment) = removed {
            self.segment_pages.fetch_sub(segment.pages(), Ordering::Relaxed);
        }
    }
}

/// The attachment behind a mapping.
fn attachment_of(object: &Backing) -> Option<Arc<SegmentAttachment>> {
    let Backing::Source(source) = object else { return None };
    let any: Arc<dyn Any + Send + Sync> = source.clone();
    any.downcast().ok()
}

/// Tells the attachments of a child, which were made before it had a number, whose they are.
pub fn inherited(space: &Space, pid: i32) {
    if !space.has_attachments() {
        return;
    }
    let mut at = 0;
    while let Some(mapping) = space.mapping_at_or_above(at) {
        at = mapping.end;
        if let Some(attachment) = attachment_of(&mapping.object) {
            attachment.pid.store(pid, Ordering::Relaxed);
        }
    }
}

/// shmget(2).
pub fn shmget(call: &mut Call<'_>) -> SyscallResult {
    let (key, bytes, flags) = (call.int(0), call.word(1), call.uint(2));
    let permissions = crate::ipc::permissions_of_new(call, flags);
    let creator = call.thread.process.pid;
    let ipc = IpcNamespace::of(call.thread)?;
    let make = |id| {
        if bytes == 0 || bytes > ipc.limits.shmmax.get() {
            return Err(Errno::EINVAL);
        }
        if flags & SHM_HUGETLB != 0 {
            return Err(Errno::ENOMEM);
        }
        let pages = bytes.div_ceil(PAGE_SIZE);
        let others = ipc.segment_pages.load(Ordering::Relaxed);
        if others.checked_add(pages).ok_or(Errno::ENOSPC)? > ipc.limits.shmall.get() {
            return Err(Errno::ENOSPC);
        }
        let state = SegmentState {
            permissions,
            attached_s: 0,
            detached_s: 0,
            changed_s: crate::ipc::realtime_seconds(),
            creator,
            last: 0,
            attachments: 0,
        };
        let (memory, state) = (SharedMemory::default(), SpinLock::new(state));
        let segment = fallible::try_arc(SharedSegment { id, key, bytes, memory, state })?;
        ipc.segment_pages.fetch_add(pages, Ordering::Relaxed);
        Ok(segment)
    };
    let fits = |segment: &SharedSegment| if bytes > segment.bytes { Err(Errno::EINVAL) } else { Ok(()) };
    Ok(crate::ipc::get(call, (ipc.owner(), &ipc.segments), flags, ipc.limits.shmmni.get(), fits, make)?
        .into())
}

/// Where a segment of this length is to be attached.
fn placement(call: &Call<'_>, space: &Space, address: usize, length: usize) -> Result<Placement, Errno> {
    let flags = call.uint(2);
    if address == 0 {
        return if flags & SHM_REMAP == 0 { Ok(Placement::Any) } else { Err(Errno::EINVAL) };
    }
    let rounded = address - address % SHMLBA;
    if rounded != address && flags & SHM_RND == 0 || rounded == 0 && flags & SHM_REMAP != 0 {
        return Err(Errno::EINVAL);
    }
    let end = rounded.checked_add(length).ok_or(Errno::EINVAL)?;
    if flags & SHM_REMAP != 0 {
        return Ok(Placement::Fixed(rounded));
    }
    let is_free = space.mapping_at_or_above(rounded).is_none_or(|above| above.start >= end);
    match rounded {
        0 => Ok(Placement::Any),
        _ if is_free => Ok(Placement::FixedIfFree(rounded)),
        _ => Err(Errno::EINVAL),
    }
}

/// shmat(2).
pub fn shmat(call: &mut Call<'_>) -> SyscallResult {
    let (id, address, flags) = (call.int(0), call.word(1), call.uint(2));
    let mut protection = Protection::READ;
    let mut mapping_flags = Flags::SHARED;
    let mut wanted = 0o444;
    if flags & SHM_RDONLY == 0 {
        protection |= Protection::WRITE;
        wanted |= 0o222;
    } else {
        mapping_flags |= Flags::NEVER_WRITABLE;
    }
    if flags & SHM_EXEC != 0 {
        protection |= Protection::EXECUTE;
        wanted |= 0o111;
    }
    if id < 0 {
        return Err(Errno::EINVAL.into());
    }
    let (space, ipc) = (call.thread.space(), IpcNamespace::of(call.thread)?);
    let (_, segment) = crate::ipc::find(&ipc.segments, id)?;
    let length = segment.pages() * PAGE_SIZE;
    let placement = placement(call, &space, address, length)?;
    crate::ipc::check(ipc.owner(), &segment.permissions(), &call.thread.credentials(), wanted)?;
    let limit = call.thread.process.limit(Resource::AddressSpace).soft;
    if (space.mapped_bytes() as u64).saturating_add(length as u64) > limit {
        return Err(Errno::ENOMEM.into());
    }
    let attachment = SegmentAttachment::new(segment, ipc, call.thread.process.pid)?;
    attachment.count()?;
    let request = MapRequest {
        placement,
        length,
        protection,
        flags: mapping_flags,
        object: Backing::Source(attachment.clone()),
        offset: 0,
        key: None,
    };
    pending(async move {
        space.note_attachment();
        let result = space.map(request).await;
        // Another thread took the range after it was looked at.
        let start = result.map_err(|error| if error == Errno::EEXIST { Errno::EINVAL } else { error })?;
        attachment.note_mapped();
        Ok(start)
    })
}

/// shmdt(2): takes out what is left of the attachment that began at an address.
pub fn shmdt(call: &mut Call<'_>) -> SyscallResult {
    let address = call.word(0);
    if !address.is_multiple_of(SHMLBA) {
        return Err(Errno::EINVAL.into());
    }
    let space = call.thread.space();
    if !space.has_attachments() {
        return Err(Errno::EINVAL.into());
    }
    pending(async move {
        let (mut at, mut end) = (address, usize::MAX);
        let mut found: Option<Arc<SegmentAttachment>> = None;
        while let Some(mapping) = space.mapping_at_or_above(at).filter(|mapping| mapping.start < end) {
            at = mapping.end;
            // A part that was moved has its old position no more.
            let begins = mapping.start.wrapping_sub(mapping.offset as usize) == address;
            let Some(attachment) = attachment_of(&mapping.object).filter(|_| begins) else { continue };
            match &found {
                Some(first) if !Arc::ptr_eq(first, &attachment) => continue,
                Some(_) => {}
                None => {
                    end = address.saturating_add(attachment.segment.pages() * PAGE_SIZE);
                    found = Some(attachment);
                }
            }
            space.unmap(mapping.start, mapping.end - mapping.start).await?;
        }
        if found.is_some() { Ok(0) } else { Err(Errno::EINVAL) }
    })
}

/// `struct shmid64_ds`.
fn description(viewer: &Thread, id: i32, key: i32, segment: &SharedSegment) -> [u64; 14] {
    let who = viewer.credentials();
    let shown = |pid| u64::from(viewer.process.shown(pid) as u32);
    let state = segment.state.lock();
    let mut words = [0; 14];
    words[..6].copy_from_slice(&crate::ipc::permission_words(&who, id, key, &state.permissions));
    words[6..12].copy_from_slice(&[
        segment.bytes as u64,
        state.attached_s,
        state.detached_s,
        state.changed_s,
        shown(state.creator) | shown(state.last) << 32,
        state.attachments,
    ]);
    words
}

/// shmctl(2).
pub fn shmctl(call: &mut Call<'_>) -> SyscallResult {
    let (id, command, buffer) = (call.int(0), call.uint(1), call.word(2));
    if id < 0 {
        return Err(Errno::EINVAL.into());
    }
    let who = call.thread.credentials();
    let ipc = IpcNamespace::of(call.thread)?;
    match command {
        IPC_INFO => {
            let segments = ipc.limits.shmmni.get() as u64;
            let (bytes, pages) = (ipc.limits.shmmax.get() as u64, ipc.limits.shmall.get() as u64);
            let limits = [bytes, 1, segments, segments, pages];
            crate::ipc::put_words(call, buffer, &limits)?;
            crate::ipc::put_words(call, buffer.wrapping_add(size_of_val(&limits)), &[0; 4])?;
            Ok(ipc.segments.lock().highest().into())
        }
        SHM_INFO => {
            let (count, highest) = {
                let segments = ipc.segments.lock();
                (segments.len(), segments.highest())
            };
            let pages = ipc.segment_pages.load(Ordering::Relaxed) as u64;
            crate::ipc::put_words(call, buffer, &[count as u64, pages, resident_pages(&ipc), 0, 0, 0])?;
            Ok(highest.into())
        }
        IPC_STAT | SHM_STAT | SHM_STAT_ANY => {
            let (id, key, segment) = if command == IPC_STAT {
                let (key, segment) = crate::ipc::find(&ipc.segments, id)?;
                (id, key, segment)
            } else {
                crate::ipc::find_at(&ipc.segments, id)?
            };
            if command != SHM_STAT_ANY {
                crate::ipc::check(ipc.owner(), &segment.permissions(), &who, READ)?;
            }
            crate::ipc::put_words(call, buffer, &description(call.thread, id, key, &segment))?;
            Ok((if command == IPC_STAT { 0 } else { id as usize }).into())
        }
        IPC_SET => {
            let (uid, gid, mode) = crate::ipc::read_owner(call, buffer)?;
            let (_, segment) = crate::ipc::find(&ipc.segments, id)?;
            let mut state = segment.state.lock();
            crate::ipc::check_owner(ipc.owner(), &state.permissions, &who)?;
            state.permissions.change(uid, gid, mode);
            state.changed_s = crate::ipc::realtime_seconds();
            Ok(0.into())
        }
        IPC_RMID => remove(call, &ipc, id),
        SHM_LOCK | SHM_UNLOCK => {
            let (_, segment) = crate::ipc::find(&ipc.segments, id)?;
            let mut state = segment.state.lock();
            let is_locking = command == SHM_LOCK;
            if !who.is_capable_in(ipc.owner(), linux::CAP_IPC_LOCK) {
                let limit = call.thread.process.limit(Resource::LockedMemory).soft;
                if !state.permissions.is_owned_by(who.euid) || is_locking && limit == 0 {
                    return Err(Errno::EPERM.into());
                }
            }
            // Nothing is ever swapped out, so the mark is all there is to it.
            let mode = state.permissions.mode;
            state.permissions.mode = if is_locking { mode | SHM_LOCKED } else { mode & !SHM_LOCKED };
            Ok(0.into())
        }
        _ => Err(Errno::EINVAL.into()),
    }
}

/// Removes a segment, at once or with its last attachment; its key is free at once.
fn remove(call: &Call<'_>, ipc: &IpcNamespace, id: i32) -> SyscallResult {
    let mut segments = ipc.segments.lock();
    let segment = segments.get(id).map(|(_, segment)| segment.clone()).ok_or(Errno::EINVAL)?;
    let mut state = segment.state.lock();
    crate::ipc::check_owner(ipc.owner(), &state.permissions, &call.thread.credentials())?;
    let mut removed = None;
    if state.attachments == 0 {
        removed = segments.remove(id);
    } else {
        state.permissions.mode |= SHM_DEST;
        segments.set_key(id, PRIVATE);
    }
    drop(state);
    drop(segments);
    ipc.forget_pages(removed.as_ref());
    drop(removed);
    Ok(0.into())
}

/// Pages of all segments that are in memory.
fn resident_pages(ipc: &IpcNamespace) -> u64 {
    let (mut place, mut pages) = (0, 0);
    while let Some((next, .., segment)) = crate::ipc::next(&ipc.segments, place) {
        place = next;
        pages += segment.memory.resident_pages() as u64;
    }
    pages
}

/// `/proc/sysvipc/shm`.
///
/// # Errors
/// The text's: there is no memory.
pub fn show(ipc: &IpcNamespace, pids: &Pids, who: &Credentials, text: &mut impl Write) -> fmt::Result {
    writeln!(
        text,
        "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      \
         atime      dtime      ctime                   rss                  swap"
    )?;
    let mut place = 0;
    while let Some((next, id, key, segment)) = crate::ipc::next(&ipc.segments, place) {
        place = next;
        let resident = segment.memory.resident_pages() * PAGE_SIZE;
        let state = segment.state.lock();
        let [creator, last] = [state.creator, state.last].map(|pid| shown(pid, pids));
        let p = &state.permissions;
        write!(text, "{key:10} {id:10}  {:4o} {:21} ", p.mode, segment.bytes)?;
        write!(text, "{:5} {:5}  {:5} ", creator, last, state.attachments)?;
        write!(text, "{} ", crate::ipc::shown(p, who))?;
        write!(text, "{:10} {:10} {:10} ", state.attached_s, state.detached_s, state.changed_s)?;
        writeln!(text, "{resident:21} {:21}", 0)?;
    }
    Ok(())
}
