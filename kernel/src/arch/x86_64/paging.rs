//! Page-table entries, roots, translations, and the kernel's own mappings.
//!
//! Every root has the same upper half: the direct map of the first 512 GiB of physical memory (one top-level entry,
//! pages of 1 GiB, or of 2 MiB where the processor lacks those) and the kernel's image (another). The lower half
//! belongs to programs. `unsafe` here: writes to page tables and control registers.
#![allow(unsafe_code)]

use core::arch::asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ::x86_64::instructions::tlb::{InvPcidCommand, Pcid, flush_pcid};
use ::x86_64::registers::control::{Cr3, Cr3Flags, Cr4, Cr4Flags};
use ::x86_64::structures::paging::PhysFrame;
use ::x86_64::{PhysAddr, VirtAddr};
use heddle_abi::boot::KEY_CLEAR_CPUID;
use heddle_kernel_core::tlb::tags::Abilities;

use crate::arch::x86_64::local::MAX_CPUS;
use crate::arch::x86_64::stack::SPARE_STACKS;
use crate::arch::x86_64::{direct, local};
use crate::boot;

/// Bytes of a page.
pub const PAGE_SIZE: usize = 4096;
/// Log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
/// Entries of a page-table page.
pub const ENTRIES: usize = 512;
/// Levels of page tables; the root is level `LEVELS - 1`, leaves for pages are in level 0.
pub const LEVELS: usize = 4;
/// Entries of a root below this index are the program's, the others the kernel's.
pub const ROOT_USER_ENTRIES: usize = 256;
/// End of the addresses that programs can have. The last page stays free: a `syscall` there would return to an
/// address that `sysret` refuses.
pub const USER_END: usize = 0x7fff_ffff_f000;
/// Where physical address 0 is mapped.
pub const DIRECT_MAP: usize = 0xffff_8000_0000_0000;
/// How much of physical memory the direct map covers.
pub const DIRECT_MAP_BYTES: u64 = 512 << 30;

const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// Tables of 2 MiB each for the kernel's image and, from their end down, its stacks.
const IMAGE_TABLES: usize = 7;
/// Those of the image and of stacks; the last one is for what direct calls jump through.
const IMAGE_AND_STACK_TABLES: usize = IMAGE_TABLES - 1;

/// An entry of a page table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageTableEntry(pub u64);

/// The permitted accesses to a page; reading is always allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// Stores.
    pub write: bool,
    /// Instruction fetches.
    pub execute: bool,
    /// The protection key, below 16.
    pub key: u8,
}

impl PageTableEntry {
    const PRESENT: u64 = 1;
    const WRITE: u64 = 1 << 1;
    const USER: u64 = 1 << 2;
    const ACCESSED: u64 = 1 << 5;
    const DIRTY: u64 = 1 << 6;
    /// In an entry of a table above the leaf tables: it leads to a large page.
    const LARGE: u64 = 1 << 7;
    const GLOBAL: u64 = 1 << 8;
    /// Ignored by the processor: the frame is counted, and the entry holds one reference.
    const COUNTED: u64 = 1 << 9;
    /// In an entry that the processor takes for absent: it holds a page all the same. (The bit is [`Self::GLOBAL`] in
    /// others, which pages of programs never are.)
    const HIDDEN: u64 = 1 << 8;
    /// Ignored by the processor: stores to the page are visible to all who map it.
    const SHARED: u64 = 1 << 10;
    /// Ignored by the processor: one CPU is replacing the table behind this entry.
    const LOCKED: u64 = 1 << 11;
    const NO_EXECUTE: u64 = 1 << 63;
    /// The protection key; ignored by processors that have none, and where they are off.
    pub(super) const KEY: u64 = 0xf << Self::KEY_SHIFT;
    pub(super) const KEY_SHIFT: u32 = 59;
    const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

    /// An entry that maps nothing.
    pub const EMPTY: Self = Self(0);

    /// An entry for a page of a program. `counted`: it holds a reference to a counted frame. `shared`: it belongs to a
    /// shared mapping, and fork leaves its right to store.
    #[must_use]
    pub const fn page(physical: u64, rights: Rights, counted: bool, shared: bool) -> Self {
        // Accessed and dirty are set ahead, which spares the processor a locked update at the first use.
        let mut bits = physical | Self::PRESENT | Self::USER | Self::ACCESSED;
        bits |= (rights.key as u64) << Self::KEY_SHIFT;
        if rights.write {
            bits |= Self::WRITE | Self::DIRTY;
        }
        if !rights.execute {
            bits |= Self::NO_EXECUTE;
        }
        if counted {
            bits |= Self::COUNTED;
        }
        if shared {
            bits |= Self::SHARED;
        }
        Self(bits)
    }

    /// An entry for the next table. Without `write`, nothing below it can be written.
    #[must_use]
    pub const fn table(physical: u64, write: bool) -> Self {
        let bits = physical | Self::PRESENT | Self::USER | Self::ACCESSED;
        Self(if write { bits | Self::WRITE } else { bits })
    }

    /// An entry for a large page of a program's own memory, which holds a reference to it. Nothing is executed from
    /// large pages: some processors cannot bear to have an instruction's page cached in two sizes, as it may be after a
    /// split.
    #[must_use]
    pub const fn large_page(physical: u64, write: bool, key: u8) -> Self {
        Self(Self::page(physical, Rights { write, execute: false, key }, true, false).0 | Self::LARGE)
    }

    /// Whether an entry of a table above the leaf tables leads to a large page.
    #[must_use]
    pub const fn is_large(self) -> bool {
        self.0 & Self::LARGE != 0
    }

    /// The entry of a leaf table for the page at an address, in place of an entry for the large page that it lies in.
    #[must_use]
    pub const fn part(self, address: usize) -> Self {
        let offset = (address & (span(1) - 1) & !(PAGE_SIZE - 1)) as u64;
        Self((self.0 & !(Self::LARGE | Self::LOCKED)) + offset)
    }

    /// The entry for the large page whose first page this entry of a leaf table is for; [`Self::part`] turned around.
    #[must_use]
    pub const fn large(self) -> Self {
        Self(self.0 | Self::LARGE)
    }

    /// Whether an entry of a table above the leaf tables leads to a leaf table of which entries can be changed.
    #[must_use]
    pub const fn is_own_table(self) -> bool {
        self.0 & (Self::LARGE | Self::WRITE) == Self::WRITE
    }

    /// Whether it leads to something, hidden or not.
    #[must_use]
    pub const fn is_present(self) -> bool {
        self.0 & (Self::PRESENT | Self::HIDDEN) != 0
    }

    /// Whether every access to its page faults, although the entry holds it.
    #[must_use]
    pub const fn is_hidden(self) -> bool {
        self.0 & Self::PRESENT == 0
    }

    /// The same page, without any right. [`Self::with_rights`] brings it back, without the right to store.
    #[must_use]
    pub const fn hidden(self) -> Self {
        Self(self.0 & !(Self::PRESENT | Self::WRITE) | Self::HIDDEN)
    }

    /// Physical address of the page or table.
    #[must_use]
    pub const fn physical(self) -> u64 {
        self.0 & Self::ADDRESS
    }

    /// Whether it allows stores.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        self.0 & Self::WRITE != 0
    }

    /// Whether it allows instruction fetches.
    #[must_use]
    pub const fn is_executable(self) -> bool {
        self.0 & Self::NO_EXECUTE == 0
    }

    /// Whether it holds a reference to a counted frame.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        self.0 & Self::COUNTED != 0
    }

    /// The same page or table without the right to store.
    #[must_use]
    pub const fn read_only(self) -> Self {
        Self(self.0 & !Self::WRITE)
    }

    /// The same page with other rights.
    #[must_use]
    pub const fn with_rights(self, rights: Rights) -> Self {
        Self::page(self.physical(), rights, self.is_counted(), self.is_shared())
    }

    /// Whether it belongs to a shared mapping.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        self.0 & Self::SHARED != 0
    }

    /// Whether a CPU is replacing the table behind it.
    #[must_use]
    pub const fn is_locked(self) -> bool {
        self.0 & Self::LOCKED != 0
    }

    /// The same entry, marked as being replaced.
    #[must_use]
    pub const fn locked(self) -> Self {
        Self(self.0 | Self::LOCKED)
    }
}

/// The address at which the kernel reaches a physical address.
#[must_use]
pub const fn direct_map<T>(physical: u64) -> *mut T {
    core::ptr::without_provenance_mut(DIRECT_MAP + physical as usize)
}

/// The physical address behind an address of the direct map or of the kernel's image.
#[must_use]
pub fn physical_of<T>(pointer: *const T) -> u64 {
    let address = pointer as u64;
    if address >= KERNEL_BASE { address - KERNEL_BASE } else { address - DIRECT_MAP as u64 }
}

/// Whether a word at this address can be read without a fault: the kernel's data, its stacks and the direct map of
/// the memory it may use.
#[must_use]
pub fn is_kernel_data(address: usize) -> bool {
    let image = (&raw const heddle_text_end) as usize..(&raw const heddle_image_end) as usize;
    let stacks = exception_stacks_end(MAX_CPUS)..STACKS_END;
    if stacks.contains(&address) {
        let entry = image_entry(address);
        // SAFETY: an aligned word of the tables, which are never freed.
        return unsafe { entry.read_volatile() } & PageTableEntry::PRESENT != 0;
    }
    let direct = DIRECT_MAP..DIRECT_MAP + DIRECT_MAP_BYTES as usize;
    let stack_guard = (&raw const heddle_boot_stack) as usize;
    if (stack_guard..stack_guard + PAGE_SIZE).contains(&address) {
        return false;
    }
    image.contains(&address) || direct.contains(&address)
}

/// The index of `address` in a table of `level`.
#[must_use]
pub const fn index(address: usize, level: usize) -> usize {
    address >> (PAGE_SHIFT as usize + 9 * level) & (ENTRIES - 1)
}

/// Bytes that one entry of a table of `level` covers.
#[must_use]
pub const fn span(level: usize) -> usize {
    PAGE_SIZE << (9 * level)
}

/// Physical address of the root that the machine starts with, whose lower half starts empty.
#[must_use]
pub fn boot_root() -> u64 {
    physical_of(&raw const heddle_boot_pml4)
}

/// Gives a new root (a zeroed page) the kernel's half.
pub fn adopt_kernel_half(root: u64) {
    let from: *const u64 = direct_map(boot_root());
    let to: *mut u64 = direct_map(root);
    for index in ROOT_USER_ENTRIES..ENTRIES {
        // SAFETY: both are page-table pages, and the kernel's half of the boot root never changes after start.
        unsafe { to.add(index).write(from.add(index).read()) };
    }
}

/// The root that this CPU uses.
#[must_use]
pub fn current_root() -> u64 {
    local::current().root.load(Ordering::Relaxed)
}

/// The root that a CPU uses.
#[must_use]
pub fn root_of(cpu: usize) -> u64 {
    local::of(cpu).root.load(Ordering::SeqCst)
}

/// Makes this CPU use a root, and forgets all translations of programs.
///
/// # Safety
/// The root has the kernel's half, and stays valid until another is loaded.
pub unsafe fn load_root(root: u64) {
    let frame = PhysFrame::containing_address(PhysAddr::new_truncate(root));
    // SAFETY: the caller's promise.
    unsafe { Cr3::write(frame, Cr3Flags::empty()) };
    note_root(root, 0);
}

fn note_root(root: u64, tag: u64) {
    local::current().tag.store(tag, Ordering::Relaxed);
    // Only now: once others read that this CPU uses another root, the one before may be released.
    local::current().root.store(root, Ordering::SeqCst);
}

/// Whether the processors keep translations by tags: only then are those but 0 in use.
static HAS_TAGS: AtomicBool = AtomicBool::new(false);
/// Whether the processors have no tags, and everything but the tags' effect happens all the same.
static IS_DRY_RUN: AtomicBool = AtomicBool::new(false);
/// Whether they forget single translations of tags that are not in use.
static FORGETS_ELSEWHERE: AtomicBool = AtomicBool::new(false);

/// Whether the processors keep translations by tags.
#[must_use]
#[inline]
pub fn has_tags() -> bool {
    HAS_TAGS.load(Ordering::Relaxed)
}

/// Whether they have [`flush_tagged_page`].
#[must_use]
pub fn forgets_elsewhere() -> bool {
    FORGETS_ELSEWHERE.load(Ordering::Relaxed)
}

/// Makes the processors use what they have of tags, this one at once and others when they start. In a dry run every
/// load of a root flushes, as without tags, and all else is done as with them, on any processor.
pub fn use_tags(is_dry_run: bool) -> Abilities {
    if is_dry_run {
        IS_DRY_RUN.store(true, Ordering::Relaxed);
        HAS_TAGS.store(true, Ordering::Relaxed);
        return Abilities { has_tags: true, forgets_elsewhere: false };
    }
    let basic = core::arch::x86_64::__cpuid(1).ecx;
    let has_leaf = core::arch::x86_64::__cpuid(0).eax >= 7;
    let structured = if has_leaf { core::arch::x86_64::__cpuid_count(7, 0).ebx } else { 0 };
    let mut abilities = Abilities::of(basic, structured);
    abilities.forgets_elsewhere &= !boot::is_listed(KEY_CLEAR_CPUID, "invpcid");
    HAS_TAGS.store(abilities.has_tags, Ordering::Relaxed);
    FORGETS_ELSEWHERE.store(abilities.forgets_elsewhere, Ordering::Relaxed);
    install_tags();
    abilities
}

/// Makes this CPU use tags if the others do.
pub(super) fn install_tags() {
    if has_tags() && !IS_DRY_RUN.load(Ordering::Relaxed) {
        // SAFETY: the processor has them, as `use_tags` found out, and the tag in use is 0, as it must be now.
        unsafe { Cr4::update(|flags| flags.insert(Cr4Flags::PCID)) };
    }
}

/// The same as [`load_root`] with a tag. If it `keeps`, what is cached with the tag remains.
///
/// # Safety
/// As for [`load_root`]. The processors use tags, and what remains was cached from this root.
pub unsafe fn load_tagged_root(root: u64, tag: u16, keeps: bool) {
    let frame = PhysFrame::containing_address(PhysAddr::new_truncate(root));
    let Ok(pcid) = Pcid::new(tag) else { return };
    if IS_DRY_RUN.load(Ordering::Relaxed) {
        // SAFETY: the caller's promise.
        unsafe { Cr3::write(frame, Cr3Flags::empty()) };
        note_root(root, tag.into());
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { if keeps { Cr3::write_pcid_no_flush(frame, pcid) } else { Cr3::write_pcid(frame, pcid) } }
    note_root(root, tag.into());
}

/// Forgets this CPU's translation of one page of the current root.
pub fn flush_page(address: usize) {
    ::x86_64::instructions::tlb::flush(VirtAddr::new_truncate(address as u64));
}

/// Forgets this CPU's translation of one page with a tag that is not in use.
///
/// # Safety
/// The processors have INVPCID ([`forgets_elsewhere`]).
pub unsafe fn flush_tagged_page(tag: u16, address: usize) {
    let Ok(pcid) = Pcid::new(tag) else { return };
    // SAFETY: the caller's promise.
    unsafe { flush_pcid(InvPcidCommand::Address(VirtAddr::new_truncate(address as u64), pcid)) };
}

/// Forgets this CPU's translations of programs; with tags, those of the root in use.
pub fn flush_all() {
    let root = current_root();
    match local::current().tag.load(Ordering::Relaxed) as u16 {
        // SAFETY: the root in use stays in use.
        0 => unsafe { load_root(root) },
        // SAFETY: likewise, and a root is loaded with a tag only where there are tags.
        tag => unsafe { load_tagged_root(root, tag, false) },
    }
}

/// Bytes of a processor's kernel stack, and of the unmapped page below it.
const STACK_BYTES: usize = 64 << 10;
const STACK_SPACING: usize = STACK_BYTES + PAGE_SIZE;

/// The entry that maps a page of the image or of a stack.
fn image_entry(address: usize) -> *mut u64 {
    let number = (address - KERNEL_BASE as usize) >> PAGE_SHIFT;
    // The page directory comes first.
    IMAGE.0.get().cast::<u64>().wrapping_add(ENTRIES + number)
}

/// The stacks of processors, spare ones and those for exceptions lie below this, the unused top of the image's tables.
const STACKS_END: usize = KERNEL_BASE as usize + (IMAGE_AND_STACK_TABLES << 21);

/// The kernel stack of processor `id`, or the spare one of this number, a page that is not mapped below it; returns its
/// upper end. Only one caller at a time may ask for a stack. Pages that were mapped stay mapped, also if there is no
/// memory for the rest.
pub(super) fn map_stack(id: usize, zeroed_frame: fn() -> Option<u64>) -> Option<usize> {
    let top = STACKS_END - (id - 1) * STACK_SPACING;
    map(top - STACK_BYTES..top, zeroed_frame).then_some(top)
}

/// Bytes of a processor's stacks for exceptions, together, and of the unmapped page below them.
pub(super) const EXCEPTION_STACK_BYTES: usize = 3 * PAGE_SIZE;
const EXCEPTION_STACK_SPACING: usize = EXCEPTION_STACK_BYTES + PAGE_SIZE;

/// The upper end of the stacks for exceptions of processor `id`, which is not the boot processor.
pub(super) const fn exception_stacks_end(id: usize) -> usize {
    STACKS_END - (MAX_CPUS + SPARE_STACKS - 1) * STACK_SPACING - (id - 1) * EXCEPTION_STACK_SPACING
}

/// Maps them, as [`map_stack`] does. `false`: there is no memory for them.
pub(super) fn map_exception_stacks(id: usize, zeroed_frame: fn() -> Option<u64>) -> bool {
    let top = exception_stacks_end(id);
    map(top - EXCEPTION_STACK_BYTES..top, zeroed_frame)
}

/// Maps pages of the image's tables that were not. `false`: there is no memory for them, or the image is there.
fn map(range: core::ops::Range<usize>, zeroed_frame: fn() -> Option<u64>) -> bool {
    if range.start - PAGE_SIZE < (&raw const heddle_image_end) as usize {
        return false;
    }
    for page in range.step_by(PAGE_SIZE) {
        let place = image_entry(page);
        // SAFETY: a word of the tables, which nobody else writes: see `map_stack`.
        if unsafe { place.read_volatile() } != 0 {
            continue;
        }
        let Some(frame) = zeroed_frame() else { return false };
        let entry = frame
            | PageTableEntry::PRESENT
            | PageTableEntry::WRITE
            | PageTableEntry::DIRTY
            | PageTableEntry::ACCESSED
            | PageTableEntry::NO_EXECUTE;
        // SAFETY: as above; the entry was empty, so no translation is stale.
        unsafe { place.write_volatile(entry) };
    }
    true
}

/// The part of physical memory that entry.s maps directly on every processor.
pub(super) const BOOT_MAP_BYTES: u64 = 4 << 30;
const GIB: u64 = 1 << 30;
/// The end of the direct map.
pub(super) fn direct_map_end() -> u64 {
    DIRECT_MAP_END.load(Ordering::Relaxed)
}

static DIRECT_MAP_END: AtomicU64 = AtomicU64::new(BOOT_MAP_BYTES);

/// How many bytes of tables [`extend_direct_map`] needs so that physical memory is mapped up to `end`: none where the
/// processor has pages of 1 GiB.
pub(super) fn direct_map_table_bytes(end: u64) -> u64 {
    const HAS_1GIB_PAGES: u32 = 1 << 26;
    // The leaf is there: entry.s has looked.
    if core::arch::x86_64::__cpuid(0x8000_0001).edx & HAS_1GIB_PAGES != 0 {
        DIRECT_MAP_END.store(DIRECT_MAP_BYTES, Ordering::Relaxed);
        return 0;
    }
    end.min(DIRECT_MAP_BYTES).saturating_sub(BOOT_MAP_BYTES).div_ceil(GIB) * PAGE_SIZE as u64
}

/// Continues the direct map beyond [`BOOT_MAP_BYTES`] in pages of 2 MiB, with tables in unused memory from `tables` on.
pub(super) fn extend_direct_map(tables: u64, table_bytes: u64) {
    let upper: *mut u64 = direct_map(physical_of(&raw const heddle_boot_direct_pdpt));
    let leaf = PageTableEntry::PRESENT
        | PageTableEntry::WRITE
        | PageTableEntry::GLOBAL
        | PageTableEntry::NO_EXECUTE
        | PageTableEntry::ACCESSED
        | PageTableEntry::DIRTY
        | PageTableEntry::LARGE;
    let count = table_bytes / PAGE_SIZE as u64;
    for number in 0..count {
        let table = tables + number * PAGE_SIZE as u64;
        let physical = BOOT_MAP_BYTES + number * GIB;
        let entries: *mut u64 = direct_map(table);
        for index in 0..ENTRIES {
            // SAFETY: the caller hands over unused memory that is mapped.
            unsafe { entries.add(index).write(leaf | (physical + ((index as u64) << 21))) };
        }
        let slot = (physical / GIB) as usize;
        // SAFETY: the boot processor alone runs, and the entry was absent, so no translation is stale.
        unsafe { upper.add(slot).write_volatile(table | PageTableEntry::PRESENT | PageTableEntry::WRITE) };
    }
    DIRECT_MAP_END.store(BOOT_MAP_BYTES + count * GIB, Ordering::Relaxed);
}

/// Maps physical memory at its own address, or no longer, for processors that are just switching paging on. The lower
/// half of the boot root is not used meanwhile.
pub(super) fn set_identity_map(on: bool) {
    let root: *mut u64 = direct_map(boot_root());
    let entry =
        physical_of(&raw const heddle_boot_identity_pdpt) | PageTableEntry::PRESENT | PageTableEntry::WRITE;
    // SAFETY: the first entry of the boot root covers slot 0, which is never given out.
    unsafe { root.write_volatile(if on { entry } else { 0 }) };
    flush_all();
}

unsafe extern "C" {
    static heddle_boot_identity_pdpt: u8;
    static heddle_boot_pml4: u8;
    static heddle_boot_direct_pdpt: u8;
    static heddle_boot_kernel_pdpt: u8;
    static heddle_boot_stack: u8;
    static heddle_image_start: u8;
    static heddle_text_end: u8;
    static heddle_rodata_end: u8;
    static heddle_image_end: u8;
}

/// Physical addresses of the kernel's image.
#[must_use]
pub fn image_range() -> core::ops::Range<u64> {
    physical_of(&raw const heddle_image_start)..physical_of(&raw const heddle_image_end)
}

#[repr(C, align(4096))]
struct Tables(UnsafeCell<[[u64; ENTRIES]; IMAGE_TABLES + 1]>);

// SAFETY: written by the boot processor in `install`, before others run, and for each stack by one caller at a time.
unsafe impl Sync for Tables {}

static IMAGE: Tables = Tables(UnsafeCell::new([[0; ENTRIES]; IMAGE_TABLES + 1]));

/// Replaces the boot mappings: the image page by page with the rights its parts need, no identity map.
pub(super) fn install() {
    let text = (&raw const heddle_image_start) as u64..(&raw const heddle_text_end) as u64;
    let rodata = text.end..(&raw const heddle_rodata_end) as u64;
    let data = rodata.end..(&raw const heddle_image_end) as u64;
    let guard = (&raw const heddle_boot_stack) as u64;
    assert!(
        data.end - KERNEL_BASE <= (IMAGE_AND_STACK_TABLES as u64) << 21,
        "the kernel's image outgrew its page tables"
    );
    // SAFETY: the boot processor alone runs; the tables become visible to the hardware only below.
    let tables = unsafe { &mut *IMAGE.0.get() };
    let [directory, pages @ ..] = tables;
    let parts = [
        (text, 0),
        (rodata, PageTableEntry::NO_EXECUTE),
        (data, PageTableEntry::NO_EXECUTE | PageTableEntry::WRITE | PageTableEntry::DIRTY),
    ];
    let common = PageTableEntry::PRESENT | PageTableEntry::GLOBAL | PageTableEntry::ACCESSED;
    let pages_flat = pages.as_flattened_mut();
    for (part, rights) in parts {
        for physical in (part.start - KERNEL_BASE..part.end - KERNEL_BASE).step_by(PAGE_SIZE) {
            if physical != guard - KERNEL_BASE {
                pages_flat[(physical >> PAGE_SHIFT) as usize] = physical | rights | common;
            }
        }
    }
    if direct::is_on() {
        let number = (direct::WINDOW - KERNEL_BASE as usize) >> PAGE_SHIFT;
        pages_flat[number] = physical_of(direct::window_page()) | PageTableEntry::NO_EXECUTE | common;
    }
    for (entry, table) in directory.iter_mut().zip(pages.iter()) {
        *entry =
            physical_of(table) | PageTableEntry::PRESENT | PageTableEntry::WRITE | PageTableEntry::ACCESSED;
    }
    let upper: *mut u64 = direct_map(physical_of(&raw const heddle_boot_kernel_pdpt));
    let root: *mut u64 = direct_map(boot_root());
    // SAFETY: the new mappings cover the code, data and stack in use at the addresses in use; the reload of the root
    // drops the old ones, which are not global.
    unsafe {
        upper
            .add(510)
            .write(physical_of(&raw const *directory) | PageTableEntry::PRESENT | PageTableEntry::WRITE);
        root.write(0);
        load_root(boot_root());
        asm!("", options(nostack));
    }
}
