//! Calls in place of system calls: a machine whose programs run at the kernel's privilege level, by choice.
//!
//! A program's `syscall` then changes no level, and most of them become a jump into the kernel. The kernel checks
//! every argument as ever, so a wrong one does no harm; a wrong *program* can, since nothing keeps it from the
//! kernel's memory.
//!
//! # How a place is patched
//! `mov $NUMBER, %eax; syscall` is 5 + 2 bytes, as most of the C library's calls are, and `jmp *ADDRESS`, with an
//! address of 32 bits that is extended by its sign, is 7: `ff 24 25` and the address. So a program jumps through a
//! word of the kernel's image, at [`WINDOW`] on, to a stub, which says which of the program's places it was; a table
//! of the program has the address after the place, and the number. A `call` would push its return address onto the
//! program's stack, where a function without calls keeps data below the stack pointer. Which other places are patched,
//! `kernel/core`'s `call_place` says; all other places stay as they are.
//!
//! Some code jumps to a `syscall` past the `mov`; a thread may have been interrupted between the two; and a call that
//! a signal has interrupted is made again by going back two bytes, with the number in the register. The last two
//! bytes of the address are all that these execute. They are `cd 80`: `int $0x80`, which is a system call here, if
//! the address after it is that of a place in the table. This fixes the window's address.
//!
//! Other ways that were considered: `call *%rax`, of two bytes, fits everywhere, but needs page 0, so that programs
//! could read through null pointers, and pushes. A jump to memory near the text would have to be mapped among the
//! program's own. Overwriting what follows a `syscall` needs proof that nobody jumps there.
//!
//! # Traps on the way
//! Until a stub has switched interrupts off, the program may be interrupted there. It goes back to its place then,
//! where it loses nothing, since a system call changes the register that the stub has set. A step by a debugger into
//! the stub is the call, as a step onto a `syscall` is.
//!
//! `unsafe` here: addresses of the entries in direct.s, and the table that these read.
#![allow(unsafe_code)]

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use heddle_abi::boot::KEY_ISOLATION;
use heddle_kernel_core::call_place::{CALL_LENGTH, JUMP_LENGTH, PlaceKind, jump};

use crate::arch::x86_64::paging::{PAGE_SIZE, USER_END};
use crate::arch::x86_64::{UserContext, debug, local, trap, user};
use crate::boot;

/// The kernel's address at which what patched places jump through begins. The upper half of its lower four bytes is
/// `int $0x80`.
pub(super) const WINDOW: usize = 0xffff_ffff_80cd_0000;
const _: () = {
    let [.., x, y] = jump(WINDOW + PAGE_SIZE - 1);
    assert!(x == 0xcd && y == VECTOR_WINDOW as u8);
};
const VECTOR_WINDOW: u64 = 0x80;

/// The most places of a program that are patched, by their kind.
pub(super) const PLACES_MOVE: usize = 96;
pub(super) const PLACES_PADDING: usize = 48;
pub(super) const PLACES_NINTH: usize = 16;
const PLACES_MAX: usize = PLACES_MOVE + PLACES_PADDING + PLACES_NINTH;
/// Bytes of an entry of the table, as direct.s reads it.
pub(super) const PLACE_BYTES: usize = size_of::<DirectPlace>();
/// Bytes of a stub.
const STUB_BYTES: u64 = 16;

unsafe extern "C" {
    static heddle_site_enter: u8;
    static heddle_enter_direct: u8;
    static heddle_direct_stubs: u8;
    static heddle_direct_call_begun: u8;
    static heddle_direct_syscall_entry: u8;
    static heddle_direct_trap_entries: u8;
    static heddle_direct_debug_entry: u8;
    static heddle_direct_fatal_entries: u8;
    static heddle_direct_window: u8;
}

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Whether programs run at the kernel's privilege level.
#[must_use]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Reads the boot option, before the processor's ways into the kernel are set up.
pub(super) fn choose() {
    IS_ON.store(boot::is(KEY_ISOLATION, "direct"), Ordering::Relaxed);
}

/// The places of a kind, by their numbers.
const fn range_of(kind: PlaceKind) -> Range<usize> {
    match kind {
        PlaceKind::Move => 0..PLACES_MOVE,
        PlaceKind::Padding(_) => PLACES_MOVE..PLACES_MOVE + PLACES_PADDING,
        PlaceKind::Ninth => PLACES_MOVE + PLACES_PADDING..PLACES_MAX,
    }
}

/// The processor's ways into the kernel in such a machine.
pub(super) struct Entries {
    /// The first of 256, 16 bytes apart.
    pub(super) traps: u64,
    pub(super) debug: u64,
    /// Those of `FATAL_VECTORS` of `descriptor`, in their order, 16 bytes apart.
    pub(super) fatal: u64,
    /// That of the instruction `syscall`.
    pub(super) calls: u64,
}

/// Those of this machine; `None` in an ordinary one.
pub(super) fn entries() -> Option<Entries> {
    is_on().then_some(Entries {
        traps: (&raw const heddle_direct_trap_entries) as u64,
        debug: (&raw const heddle_direct_debug_entry) as u64,
        fatal: (&raw const heddle_direct_fatal_entries) as u64,
        calls: (&raw const heddle_direct_syscall_entry) as u64,
    })
}

/// Where the words that patched places jump through are in their page.
fn window_offset() -> usize {
    (&raw const heddle_direct_window) as usize % PAGE_SIZE
}

/// The page of the image that has these words, to be mapped at [`WINDOW`].
pub(super) fn window_page() -> *const u8 {
    (&raw const heddle_direct_window).wrapping_sub(window_offset())
}

/// Has programs entered the other way. The boot processor does this before others run.
pub(super) fn install() {
    if !is_on() {
        return;
    }
    let (site, target) = (&raw const heddle_site_enter, &raw const heddle_enter_direct);
    let [a, b, c, d] = (target as usize).wrapping_sub(site as usize + 5).to_le_bytes()[..4] else { return };
    user::patch(site, &[0xe9, a, b, c, d]);
}

/// A place that is patched: the address after it, and the number of its call, or the address of the jump where that
/// lies elsewhere. direct.s reads it.
#[repr(C)]
struct DirectPlace {
    end: AtomicU64,
    number: AtomicU64,
}

/// The places of a program.
pub struct CallPlaces {
    places: [DirectPlace; PLACES_MAX],
}

impl CallPlaces {
    /// No places.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            places: [const { DirectPlace { end: AtomicU64::new(0), number: AtomicU64::new(0) } }; PLACES_MAX],
        }
    }

    /// Takes over those of a program whose text is shared from here on.
    pub fn copy(&self, other: &Self) {
        for (to, from) in self.places.iter().zip(other.places.iter()) {
            to.end.store(from.end.load(Ordering::Relaxed), Ordering::Relaxed);
            to.number.store(from.number.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Notes a place before the address `end`, of call `number`. Returns the jump that is to be in its stead. `None`:
    /// there is no room for it. Only one caller at a time.
    pub fn add(&self, end: usize, kind: PlaceKind, number: u32) -> Option<[u8; JUMP_LENGTH]> {
        // One at the same address was of a mapping that is gone.
        let is_free = |place: &DirectPlace| [0, end as u64].contains(&place.end.load(Ordering::Relaxed));
        let range = range_of(kind);
        let index = range.start + self.places[range].iter().position(is_free)?;
        let word = match kind {
            PlaceKind::Padding(distance) => end as u64 + u64::from(distance),
            PlaceKind::Move | PlaceKind::Ninth => number.into(),
        };
        self.places[index].number.store(word, Ordering::Relaxed);
        self.places[index].end.store(end as u64, Ordering::Release);
        Some(jump_of(index))
    }

    /// Forgets the last place, which was not patched after all.
    pub fn forget(&self, end: usize) {
        if let Some(place) = self.places.iter().find(|place| place.end.load(Ordering::Relaxed) == end as u64)
        {
            place.end.store(0, Ordering::Relaxed);
        }
    }
}

/// The jump of a place, by its number.
fn jump_of(index: usize) -> [u8; JUMP_LENGTH] {
    jump(WINDOW + window_offset() + index * size_of::<u64>())
}

/// Says which places are patched in the program that this CPU runs next. The table stays until another is named.
pub fn use_places(places: Option<&CallPlaces>) {
    let address = places.map_or(0, |table| table.places.as_ptr() as usize);
    local::current().call_places.store(address, Ordering::Relaxed);
}

/// Sees to it that this CPU fetches instructions anew that were written.
pub fn instructions_have_changed() {
    let _ = core::arch::x86_64::__cpuid(0);
}

/// The places of the program that has just run here.
fn places_here() -> &'static [DirectPlace] {
    let address = local::current().call_places.load(Ordering::Relaxed);
    if address == 0 {
        return &[];
    }
    // SAFETY: `use_places` has stored the address of a table that outlives the program's turn, and so the trap under
    // way.
    unsafe { core::slice::from_raw_parts(address as *const DirectPlace, PLACES_MAX) }
}

/// The address after the place whose jump, behind its function, is what this program was to execute next.
fn end_of_padding(context: &UserContext) -> Option<u64> {
    // A page that is missing needs no change of the address, and the copy here must not fault.
    if context.vector == trap::VECTOR_PAGE_FAULT {
        return None;
    }
    let range = PLACES_MOVE..PLACES_MOVE + PLACES_PADDING;
    let places = places_here().get(range.clone())?;
    let found = places.iter().position(|place| place.number.load(Ordering::Relaxed) == context.rip)?;
    // The mapping may be gone, and other code be there.
    let mut code = [0; JUMP_LENGTH];
    read(context.rip, &mut code)?;
    (code == jump_of(range.start + found)).then(|| places[found].end.load(Ordering::Relaxed))
}

fn make_call(context: &mut UserContext, number: u64, end: u64) {
    context.set_syscall(number as usize);
    context.rax = number;
    context.rip = end;
    context.rcx = end;
    context.r11 = context.rflags;
}

/// Looks at a trap of a program before anybody else does.
#[unsafe(no_mangle)]
extern "C" fn heddle_direct_trapped(context: &mut UserContext) {
    let stubs = (&raw const heddle_direct_stubs) as u64;
    let offset = context.rip.wrapping_sub(stubs);
    if offset < (&raw const heddle_direct_call_begun) as u64 - stubs {
        trapped_on_the_way(context, offset);
    } else if context.vector == VECTOR_WINDOW {
        trapped_in_window(context);
    } else if let Some(end) = end_of_padding(context) {
        // Between the two jumps: as in a stub.
        if context.vector == trap::VECTOR_DEBUG {
            debug::forget_status();
            make_call(context, context.rax, end);
        } else {
            context.rip = end.wrapping_sub(CALL_LENGTH as u64);
        }
    }
}

/// The program was on its way into the kernel.
#[cold]
fn trapped_on_the_way(context: &mut UserContext, offset: u64) {
    let is_first = offset.is_multiple_of(STUB_BYTES) && offset < STUB_BYTES * PLACES_MAX as u64;
    let index = if is_first { offset / STUB_BYTES } else { context.rcx / PLACE_BYTES as u64 } as usize;
    let place = places_here().get(index);
    let (end, number) = place
        .map_or((0, 0), |place| (place.end.load(Ordering::Relaxed), place.number.load(Ordering::Relaxed)));
    let is_step = context.vector == trap::VECTOR_DEBUG;
    if is_step {
        debug::forget_status();
    }
    if is_step && index < PLACES_MOVE {
        make_call(context, number, end);
    } else if is_step && index < PLACES_MOVE + PLACES_PADDING {
        make_call(context, context.rax, end);
    } else if is_step && let Some(ninth) = word_at(context.rsp.wrapping_add(8)) {
        context.r9 = ninth;
        make_call(context, context.rax, end);
    } else {
        let length = if (PLACES_MOVE..PLACES_MOVE + PLACES_PADDING).contains(&index) {
            CALL_LENGTH
        } else {
            JUMP_LENGTH
        };
        context.rip = end.wrapping_sub(length as u64);
    }
}

/// Reads memory of the program that has just run. `None`: it is not there.
fn read(address: u64, bytes: &mut [u8]) -> Option<()> {
    if address > (USER_END - bytes.len()) as u64 {
        return None;
    }
    // SAFETY: all of it lies in the lower half, and the slice has room for it.
    unsafe { user::copy_from(bytes.as_mut_ptr(), address as usize, bytes.len()) }.ok()
}

fn word_at(address: u64) -> Option<u64> {
    let mut bytes = [0; size_of::<u64>()];
    read(address, &mut bytes).map(|()| u64::from_le_bytes(bytes))
}

/// The second half of a patched place was executed for itself.
#[cold]
fn trapped_in_window(context: &mut UserContext) {
    let end = context.rip;
    if places_here().iter().any(|place| place.end.load(Ordering::Relaxed) == end) {
        let number = context.rax;
        make_call(context, number, end);
        return;
    }
    // As where no program may do it.
    context.vector = trap::VECTOR_PROTECTION;
    context.error = VECTOR_WINDOW << 3 | 2;
    context.rip = end.wrapping_sub(CALL_LENGTH as u64);
}
