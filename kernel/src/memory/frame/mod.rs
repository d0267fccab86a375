//! The machine's page frames.
//!
//! One buddy allocator under a spinlock, and in front of it a small cache of single frames per CPU, so that faults on
//! different CPUs rarely meet. The root image lies in memory that is not the allocator's: its pages are *static*, have
//! no descriptor, and are mapped into programs without being counted.
//!
//! `unsafe` here: frames' contents through the direct map.
#![allow(unsafe_code)]

mod large;

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicUsize};

use heddle_abi::boot::{KEY_IMAGE, KEY_MEMORY};
use heddle_kernel_core::frame::{Buddy, Descriptor, Layout, Region, slab};

use crate::arch::paging::PAGE_SIZE;
use crate::arch::{MAX_CPUS, cpu, paging, user as copy};
use crate::boot;
use crate::error::Errno;
use crate::memory::oom;
use crate::memory::raw::FrameSlice;
use crate::sync::SpinLock;

pub use large::{LARGE_BYTES, LargeFrame, large_bytes};
pub(super) use large::{add_mapper, drop_mapper, free_whole, is_whole, is_zero, mappers, pages, take_table};

/// The most frames that only small allocations of the kernel's heap may use.
const EMERGENCY_FRAMES_MAX: usize = 64;
/// The least, as a part of all frames: a machine of a few MiB has no more to spare.
const EMERGENCY_PART: usize = 16;
/// A machine with so many frames has all buffers of its devices.
const AMPLE_FRAMES: usize = (32 << 20) / PAGE_SIZE;
/// Memory below this is reserved for the firmware and for the start of other processors.
const LOW_MEMORY_BYTES: u64 = 1 << 20;
/// Frames that each CPU keeps for its own allocations that cannot report failure: see [`keep`].
const KEPT_FRAMES: usize = 8;
const CACHE_FRAMES: usize = 32;
const REFILL_FRAMES: usize = 16;

struct FrameMachine {
    layout: Layout,
    descriptors: &'static [Descriptor],
    total: usize,
}

struct FrameCache {
    frames: [u32; CACHE_FRAMES],
    length: usize,
    kept: [u32; KEPT_FRAMES],
    kept_length: usize,
}

impl FrameCache {
    const EMPTY: Self = Self { frames: [0; CACHE_FRAMES], length: 0, kept: [0; KEPT_FRAMES], kept_length: 0 };
}

static MACHINE: spin::Once<FrameMachine> = spin::Once::new();
static BUDDY: SpinLock<Buddy<'static>> = SpinLock::new(Buddy::new(&[]));
/// Free frames of `BUDDY` when it was last unlocked.
static FREE_IN_BUDDY: AtomicUsize = AtomicUsize::new(0);
/// See [`emergency_frames`].
static EMERGENCY: AtomicUsize = AtomicUsize::new(EMERGENCY_FRAMES_MAX);
/// How often frames have come back to `BUDDY` that a program may have.
static FREED: AtomicUsize = AtomicUsize::new(0);
static CACHES: [SpinLock<FrameCache>; MAX_CPUS] = [const { SpinLock::new(FrameCache::EMPTY) }; MAX_CPUS];

#[repr(C, align(4096))]
struct Page([u8; PAGE_SIZE]);

static ZERO_PAGE: Page = Page([0; PAGE_SIZE]);

/// The bytes of the page of zeros, for reads that find nothing.
pub fn zeros() -> &'static [u8; PAGE_SIZE] {
    &ZERO_PAGE.0
}

fn machine() -> &'static FrameMachine {
    MACHINE.get().expect("memory is initialized before it is used")
}

/// Frames that only small allocations of the kernel's heap may use.
pub fn emergency_frames() -> usize {
    EMERGENCY.load(Relaxed)
}

/// A number of buffers or bytes in proportion to the machine's memory: `most` in an ordinary machine, and at least
/// `least`.
pub fn in_proportion(most: usize, least: usize) -> usize {
    (most * total_frames().min(AMPLE_FRAMES) / AMPLE_FRAMES).max(least.min(most))
}

/// Physical addresses of the root image; `None` if the machine was given none.
pub fn image_range() -> Option<Range<u64>> {
    let (start, length) = boot::pair(KEY_IMAGE)?;
    (length > 0).then(|| start..start.saturating_add(length))
}

/// The root image, where it lies.
pub fn image() -> Option<&'static [u8]> {
    let range = image_range()?;
    let length = usize::try_from(range.end - range.start).ok()?;
    if range.end > paging::DIRECT_MAP_BYTES {
        return None;
    }
    // SAFETY: the direct map covers the range, `initialize` keeps it out of the allocator, and nothing writes to it.
    Some(unsafe { core::slice::from_raw_parts(paging::direct_map(range.start), length) })
}

/// Hands the usable memory to the allocator, but for what is in use, up to the limit of the command line.
pub fn initialize() {
    let image = image_range().unwrap_or(0..0);
    let image =
        image.start / PAGE_SIZE as u64 * PAGE_SIZE as u64..image.end.next_multiple_of(PAGE_SIZE as u64);
    let kernel = paging::image_range();
    let limit = boot::number(KEY_MEMORY).unwrap_or(u64::MAX).saturating_sub(kernel.end - kernel.start);
    let mut left = limit;
    let mut layout = Layout::new();
    for region in boot::regions() {
        let end = region.end.min(paging::DIRECT_MAP_BYTES);
        let start = region.start.max(LOW_MEMORY_BYTES);
        for (from, to) in outside(start, end, [&kernel, &image]).into_iter().flatten() {
            let to = to.min(from.saturating_add(left));
            if layout.add(Region { start: from, end: to }) {
                left -= to.saturating_sub(from);
            }
        }
    }
    // The last block's end has no frames.
    let last = layout.regions().filter_map(|region| layout.index(region.end - PAGE_SIZE as u64)).max();
    let count = last.map_or(0, |last| last as usize + 1);
    let bytes = (count * size_of::<Descriptor>()).next_multiple_of(PAGE_SIZE) as u64;
    let home = layout
        .regions()
        .find(|region| region.end - region.start >= bytes)
        .expect("the machine has room for its frame descriptors");
    let first: *mut Descriptor = paging::direct_map(home.start);
    // SAFETY: the region is usable memory in the direct map, large enough, and kept out of the allocator below. Any
    // value is valid for an atomic word, so also what the machine left there: the allocator writes a descriptor before
    // it first reads it.
    let descriptors = unsafe { core::slice::from_raw_parts(first, count) };
    let mut buddy = Buddy::new(descriptors);
    let mut total = 0;
    for region in layout.regions() {
        let start = if region == home { region.start + bytes } else { region.start };
        let frames = ((region.end - start) / PAGE_SIZE as u64) as u32;
        total += frames as usize;
        if let Some(index) = layout.index(start) {
            // There is room for as many ranges as the layout has regions.
            buddy.add_untouched(index, frames);
        }
    }
    EMERGENCY.store((total / EMERGENCY_PART).min(EMERGENCY_FRAMES_MAX), Relaxed);
    note_free(&buddy);
    *BUDDY.lock() = buddy;
    MACHINE.call_once(|| FrameMachine { layout, descriptors, total });
}

/// The up to three parts of `start..end` that lie outside two ranges.
fn outside(start: u64, end: u64, holes: [&Range<u64>; 2]) -> [Option<(u64, u64)>; 3] {
    let [first, second] = if holes[0].start <= holes[1].start { holes } else { [holes[1], holes[0]] };
    let part = |from: u64, to: u64| {
        let (from, to) = (from.max(start), to.min(end));
        (from < to).then_some((from, to))
    };
    [part(start, first.start), part(first.end, second.start), part(first.end.max(second.end), end)]
}

/// Frames that programs and the kernel share, whether free or used.
pub fn total_frames() -> usize {
    machine().total
}

/// Free frames, those in caches included. Exact when no other CPU allocates meanwhile.
pub fn free_frames() -> usize {
    let length = |cache: &FrameCache| cache.length + cache.kept_length;
    let cached: usize = CACHES.iter().map(|cache| length(&cache.lock())).sum();
    BUDDY.lock().free() + cached
}

/// Whether this CPU has more free frames within reach than the emergency reserve: the caches of other CPUs don't help
/// it. Asked before each small allocation of the kernel.
pub fn is_above_reserve() -> bool {
    FREE_IN_BUDDY.load(Relaxed) > emergency_frames() || {
        let cached = CACHES[cpu::id()].lock().length;
        BUDDY.lock().free() + cached > emergency_frames()
    }
}

/// Whether so many frames are free that some may be used before they are needed.
pub fn is_plentiful() -> bool {
    FREE_IN_BUDDY.load(Relaxed) > total_frames() / 8
}

/// Releases caches: empty slabs, cached frames, and deferred frees, for which all CPUs are asked to flush.
pub fn drain_caches() {
    crate::memory::deferred_free::drain_everywhere();
    crate::memory::space::drain_locks();
    crate::memory::heap::drain();
    drain_cached();
}

/// Gives back the frames that CPUs have cached.
pub(super) fn drain_cached() {
    for cache in &CACHES {
        let mut cache = cache.lock();
        let mut buddy = BUDDY.lock();
        for &index in &cache.frames[..cache.length] {
            buddy.release(index, 0);
        }
        if cache.length > 0 {
            note_released(&buddy);
        }
        cache.length = 0;
    }
}

/// To be called before the allocator is unlocked after a change.
fn note_free(buddy: &Buddy<'_>) {
    FREE_IN_BUDDY.store(buddy.free(), Relaxed);
}

/// The same after frames have come back.
fn note_released(buddy: &Buddy<'_>) {
    note_free(buddy);
    if buddy.free() > emergency_frames() {
        FREED.fetch_add(1, Relaxed);
        oom::frames_were_freed();
    }
}

/// A number that changes when frames are freed that a program may have, but for those that a CPU keeps to itself.
pub fn freed() -> usize {
    FREED.load(Relaxed)
}

/// Whether `count` contiguous frames can be allocated without using the emergency reserve.
pub(super) fn can_allocate(count: usize) -> bool {
    let buddy = BUDDY.lock();
    let order = count.next_power_of_two().trailing_zeros() as usize;
    buddy.free() >= emergency_frames() + count && buddy.has_block(order)
}

/// Makes sure that this CPU keeps `count` frames, which only its own allocations of the heap take, and only when there
/// are no others. `urgent` may take them out of the emergency reserve.
pub(super) fn keep(count: usize, urgent: bool) -> bool {
    debug_assert!(count <= KEPT_FRAMES);
    let mut cache = CACHES[cpu::id()].lock();
    if cache.kept_length >= count {
        return true;
    }
    let mut buddy = BUDDY.lock();
    while cache.kept_length < KEPT_FRAMES && (urgent || buddy.free() > emergency_frames()) {
        let Some(index) = buddy.allocate(0) else { break };
        let length = cache.kept_length;
        cache.kept[length] = index;
        cache.kept_length += 1;
    }
    note_free(&buddy);
    cache.kept_length >= count
}

/// Takes one frame; `urgent` may use the emergency reserve, and then what this CPU keeps.
fn take(urgent: bool) -> Option<u32> {
    let mut cache = CACHES[cpu::id()].lock();
    if cache.length == 0 {
        let mut buddy = BUDDY.lock();
        while cache.length < REFILL_FRAMES && buddy.free() > emergency_frames() {
            let Some(index) = buddy.allocate(0) else { break };
            let length = cache.length;
            cache.frames[length] = index;
            cache.length += 1;
        }
        let last = if cache.length == 0 && urgent { buddy.allocate(0) } else { None };
        note_free(&buddy);
        if cache.length == 0 {
            return last.or_else(|| {
                cache.kept_length = cache.kept_length.checked_sub(usize::from(urgent))?;
                urgent.then(|| cache.kept[cache.kept_length])
            });
        }
    }
    cache.length -= 1;
    Some(cache.frames[cache.length])
}

/// Gives one frame back.
fn give(index: u32) {
    let mut cache = CACHES[cpu::id()].lock();
    if cache.length == CACHE_FRAMES {
        let mut buddy = BUDDY.lock();
        for &index in &cache.frames[REFILL_FRAMES..] {
            buddy.release(index, 0);
        }
        note_released(&buddy);
        cache.length = REFILL_FRAMES;
    }
    let length = cache.length;
    cache.frames[length] = index;
    cache.length += 1;
}

/// Takes a frame for the heap, from the emergency reserve if it must be.
pub(super) fn take_single() -> Option<NonNull<u8>> {
    take(true).map(memory_of)
}

/// Takes contiguous frames for the heap; leaves the emergency reserve alone.
pub(super) fn take_contiguous(count: usize) -> Option<NonNull<u8>> {
    let mut buddy = BUDDY.lock();
    if buddy.free() < emergency_frames() + count {
        return None;
    }
    let index = buddy.allocate_exact(u32::try_from(count).ok()?)?;
    note_free(&buddy);
    Some(memory_of(index))
}

/// Gives frames of [`take_contiguous`] back.
pub(super) fn give_contiguous(memory: NonNull<u8>, count: usize) {
    if let Some(index) = machine().layout.index(paging::physical_of(memory.as_ptr())) {
        let mut buddy = BUDDY.lock();
        buddy.release_range(index, count as u32);
        note_released(&buddy);
    }
}

fn memory_of(index: u32) -> NonNull<u8> {
    let pointer = paging::direct_map(machine().layout.physical(index));
    NonNull::new(pointer).expect("the direct map is not at address 0")
}

/// Where the heap's slabs come from.
pub(super) struct Slabs;

impl slab::Source for Slabs {
    fn allocate(&self) -> Option<u32> {
        take(true)
    }
    fn release(&self, index: u32) {
        give(index);
    }
    fn descriptor(&self, index: u32) -> &Descriptor {
        &machine().descriptors[index as usize]
    }
    fn memory(&self, index: u32) -> NonNull<u8> {
        memory_of(index)
    }
    fn index(&self, address: NonNull<u8>) -> u32 {
        machine().layout.index(paging::physical_of(address.as_ptr())).expect("an object of a slab")
    }
}

/// One reference to a counted frame; the frame is free when the last one is dropped.
///
/// The contents may be mapped into programs and change at any time, so nothing may be concluded from reading them
/// twice. Two kernel users of one frame must agree between themselves which of them writes.
#[derive(Debug)]
pub struct FrameRef {
    physical: u64,
}

/// The physical address of a frame of zeros that is never given back.
pub fn zeroed_for_good() -> Option<u64> {
    FrameRef::allocate_zeroed().ok().map(FrameRef::into_physical)
}

impl FrameRef {
    /// A frame with unspecified contents.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn allocate() -> Result<Self, Errno> {
        #[cfg(feature = "checking")]
        if crate::memory::fault_injection::fails(crate::memory::fault_injection::FailurePoint::Frame) {
            return Err(Errno::ENOMEM);
        }
        let index = take(false).ok_or(Errno::ENOMEM)?;
        let machine = machine();
        machine.descriptors[index as usize].set_references(1);
        Ok(Self { physical: machine.layout.physical(index) })
    }

    /// A frame of zeros.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn allocate_zeroed() -> Result<Self, Errno> {
        let frame = Self::allocate()?;
        // SAFETY: the frame is this function's own; the routine is an ordinary loop of stores.
        let _ = unsafe { copy::clear(frame.address() as usize, PAGE_SIZE) };
        Ok(frame)
    }

    /// A frame with the contents of another page.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn allocate_copy(page: u64) -> Result<Self, Errno> {
        let frame = Self::allocate()?;
        let from: *const u8 = paging::direct_map(page);
        // SAFETY: both are whole pages of the direct map, and the target is this function's own.
        let _ = unsafe { copy::copy_to(frame.address() as usize, from, PAGE_SIZE) };
        Ok(frame)
    }

    /// The physical address.
    #[must_use]
    pub const fn physical(&self) -> u64 {
        self.physical
    }

    fn address(&self) -> *mut u8 {
        paging::direct_map(self.physical)
    }

    /// The contents, which programs may read and write at the same time.
    #[must_use]
    pub fn bytes(&self) -> FrameSlice<'_> {
        // SAFETY: the reference keeps the frame, the direct map covers it, and counted frames are ordinary memory.
        unsafe { FrameSlice::new(self.address(), PAGE_SIZE) }
    }

    /// The contents as words that programs may read and write at the same time.
    #[must_use]
    pub fn words(&self) -> &[AtomicU32; PAGE_SIZE / size_of::<u32>()] {
        // SAFETY: a whole frame at a page boundary, which the reference keeps; an atomic word may have any value.
        unsafe { &*paging::direct_map(self.physical) }
    }

    /// Writes into the frame, which the caller may do by the agreement among the frame's users.
    ///
    /// # Panics
    /// If the bytes don't fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= PAGE_SIZE && bytes.len() <= PAGE_SIZE - offset);
        // SAFETY: inside the frame, which the reference keeps.
        let _ = unsafe { copy::copy_to(self.address() as usize + offset, bytes.as_ptr(), bytes.len()) };
    }

    /// Fills a part of the frame with zeros.
    ///
    /// # Panics
    /// If the part is not inside the frame.
    pub fn clear(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= PAGE_SIZE);
        // SAFETY: inside the frame, which the reference keeps.
        let _ = unsafe { copy::clear(self.address() as usize + range.start, range.len()) };
    }

    /// Whether this is the only reference.
    #[must_use]
    pub fn is_unique(&self) -> bool {
        self.descriptor().references() == 1
    }

    /// How many references there are.
    #[must_use]
    pub fn references(&self) -> u32 {
        self.descriptor().references()
    }

    fn descriptor(&self) -> &'static Descriptor {
        descriptor(self.physical)
    }

    /// The address. Its new owner, a page-table entry, takes the reference over.
    #[must_use]
    pub fn into_physical(self) -> u64 {
        let physical = self.physical;
        core::mem::forget(self);
        physical
    }

    /// Takes over the reference that [`Self::into_physical`] left.
    pub(super) const fn from_physical(physical: u64) -> Self {
        Self { physical }
    }
}

fn descriptor(physical: u64) -> &'static Descriptor {
    let machine = machine();
    let index = machine.layout.index(physical).expect("the frame is counted");
    &machine.descriptors[index as usize]
}

/// Adds a reference to a counted frame that a page-table entry holds.
pub(super) fn add_reference(physical: u64) {
    descriptor(physical).add_reference();
}

/// Drops a reference to a counted frame; `true` if it was the last.
pub(super) fn drop_reference(physical: u64) -> bool {
    descriptor(physical).drop_reference()
}

/// Frees a counted frame without references.
pub(super) fn free(physical: u64) {
    give(machine().layout.index(physical).expect("the frame is counted"));
}

/// References to a counted frame.
pub(super) fn references(physical: u64) -> u32 {
    descriptor(physical).references()
}

impl Clone for FrameRef {
    fn clone(&self) -> Self {
        self.descriptor().add_reference();
        Self { physical: self.physical }
    }
}

impl Drop for FrameRef {
    fn drop(&mut self) {
        if self.descriptor().drop_reference() {
            let index = machine().layout.index(self.physical).expect("the frame is counted");
            give(index);
        }
    }
}

/// A page that can be mapped into a program.
#[derive(Clone, Debug)]
pub enum PageRef {
    /// A page that exists as long as the machine, at this physical address: one of the root image, or the zero page.
    /// It is never mapped writable.
    Static(u64),
    /// A page in a counted frame.
    Counted(FrameRef),
}

impl PageRef {
    /// The page of zeros.
    #[must_use]
    pub fn zero() -> Self {
        Self::Static(paging::physical_of(&raw const ZERO_PAGE))
    }

    /// A page of the root image, given by its bytes in [`image`]; `None` if they are not one whole page at a page
    /// boundary.
    #[must_use]
    pub fn from_image(bytes: &'static [u8]) -> Option<Self> {
        let address = bytes.as_ptr();
        (bytes.len() == PAGE_SIZE && (address as usize).is_multiple_of(PAGE_SIZE))
            .then(|| Self::Static(paging::physical_of(address)))
    }

    /// A page of the kernel's own image, for programs to read: at a page boundary, and in it as long as the machine.
    #[must_use]
    pub fn of_kernel<T>(address: *const T) -> Self {
        debug_assert!((address as usize).is_multiple_of(PAGE_SIZE));
        Self::Static(paging::physical_of(address))
    }

    /// The physical address.
    #[must_use]
    pub const fn physical(&self) -> u64 {
        match self {
            Self::Static(physical) => *physical,
            Self::Counted(frame) => frame.physical(),
        }
    }
}
