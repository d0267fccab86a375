//! The signatures that every architecture offers, each checked by the compiler: a constant of a function's type, or an
//! implementation of a trait for what is generic.

use core::fmt;
use core::ops::Range;

use heddle_kernel_core::signal::Signal;
use heddle_kernel_core::tlb::tags::Abilities;

use crate::arch::{SignalCause, UserHooks, current};
use crate::error::Errno;

use current::paging::{PageTableEntry, Rights};
use current::signal::{HandlerCall, Restored, Setup};
use current::user::Stopped;
use current::{FloatState, Trap, UserContext};

/// Running a program until its next trap.
mod entry {
    use super::*;

    struct NoHooks;
    impl UserHooks for NoHooks {
        fn enter() {}
        fn leave() {}
    }

    const _: fn(&mut UserContext) -> Trap = current::enter_user::<NoHooks>;
    const _: fn(u8, u64) -> SignalCause = current::exception_signal;
}

/// The registers of a program.
mod context {
    use super::*;

    const _: fn() -> UserContext = UserContext::new_user;
    const _: fn(&UserContext) -> usize = UserContext::syscall_number;
    const _: fn(&mut UserContext) = UserContext::restart_syscall;
    const _: fn() -> bool = current::stray::is_unknown;
    const _: fn(bool) = current::stray::settle;
    const _: fn(&UserContext, usize) -> bool = UserContext::is_at_entry;
    const _: fn(&UserContext, usize) -> Option<usize> = UserContext::strayed_call;
    const _: fn(&mut UserContext) = UserContext::adopt_call;
    const _: &[u8] = &current::CALL_INSTRUCTION;
    const _: fn(&UserContext, usize) -> usize = UserContext::argument;
    const _: fn(&mut UserContext, usize, usize) = UserContext::set_argument;
    const _: fn(&UserContext) -> usize = UserContext::result;
    const _: fn(&mut UserContext, usize) = UserContext::set_result;
    const _: fn(&UserContext) -> usize = UserContext::ip;
    const _: fn(&mut UserContext, usize) = UserContext::set_ip;
    const _: fn(&UserContext) -> usize = UserContext::sp;
    const _: fn(&mut UserContext, usize) = UserContext::set_sp;
    const _: fn(&UserContext) -> usize = UserContext::tls;
    const _: fn(&mut UserContext, usize) = UserContext::set_tls;
    const _: fn(&UserContext) -> usize = UserContext::flags;
    const _: fn(&mut UserContext, usize) = UserContext::set_flags;
    const _: fn(&UserContext) -> u64 = UserContext::error_code;
    const _: fn(&UserContext) -> u64 = UserContext::trap_number;
    const _: fn(&UserContext) -> bool = UserContext::in_syscall;
    const _: fn(&mut UserContext, u32, usize) -> Result<Option<u64>, Errno> = current::control;
}

/// Calls in place of system calls.
mod direct_calls {
    use super::*;
    use current::direct::{CallPlaces, instructions_have_changed, is_on, use_places};
    use heddle_kernel_core::call_place::{JUMP_LENGTH, PlaceKind};

    const _: fn() -> bool = is_on;
    const _: fn() -> CallPlaces = CallPlaces::new;
    const _: fn(&CallPlaces, &CallPlaces) = CallPlaces::copy;
    const _: fn(&CallPlaces, usize, PlaceKind, u32) -> Option<[u8; JUMP_LENGTH]> = CallPlaces::add;
    const _: fn(&CallPlaces, usize) = CallPlaces::forget;
    const _: fn(Option<&CallPlaces>) = use_places;
    const _: fn() = instructions_have_changed;
}

/// Floating-point and vector registers.
mod float {
    use super::*;

    const _: fn() -> Result<FloatState, Errno> = FloatState::new;
    const _: fn(&FloatState) -> Result<FloatState, Errno> = FloatState::try_clone;
    const _: fn(&mut FloatState) = FloatState::reset;
    const _: fn(&mut FloatState) = FloatState::save;
    const _: fn(&mut FloatState) = FloatState::restore;
    const _: fn(&FloatState) -> &[u8] = FloatState::as_bytes;
    const _: fn(&mut FloatState, &[u8]) = FloatState::set_bytes;
}

/// Frames of signal handlers.
mod signal {
    use super::*;
    use heddle_kernel_core::signal::x86_64::FRAME_WORDS;

    use current::signal::{frame_address, minimum_stack_bytes, prepare, restore};

    const _: fn() -> usize = minimum_stack_bytes;
    const _: fn(&UserContext, &Setup<'_>) -> Option<HandlerCall> = prepare;
    const _: fn(&HandlerCall) -> &'static [u8] = HandlerCall::float_tail;
    const _: fn(&HandlerCall, &mut UserContext, usize, Signal) = HandlerCall::enter;
    const _: fn(&UserContext) -> usize = frame_address;
    const _: fn(&mut UserContext, &[u64; FRAME_WORDS]) -> Restored = restore;
}

/// Page tables and translations.
mod paging {
    use super::*;
    use current::paging as offered;

    const _: [usize; 5] = [
        offered::PAGE_SIZE,
        offered::LEVELS,
        offered::ENTRIES,
        offered::ROOT_USER_ENTRIES,
        offered::USER_END,
    ];
    const _: fn(u64, Rights, bool, bool) -> PageTableEntry = PageTableEntry::page;
    const _: fn(u64, bool) -> PageTableEntry = PageTableEntry::table;
    const _: fn(PageTableEntry) -> bool = PageTableEntry::is_present;
    const _: fn(PageTableEntry) -> bool = PageTableEntry::is_hidden;
    const _: fn(PageTableEntry) -> PageTableEntry = PageTableEntry::hidden;
    const _: fn(PageTableEntry) -> u64 = PageTableEntry::physical;
    const _: fn(PageTableEntry) -> bool = PageTableEntry::is_writable;
    const _: fn(PageTableEntry) -> bool = PageTableEntry::is_executable;
    const _: fn(PageTableEntry) -> bool = PageTableEntry::is_counted;
    const _: fn(PageTableEntry) -> PageTableEntry = PageTableEntry::read_only;
    const _: fn(PageTableEntry, Rights) -> PageTableEntry = PageTableEntry::with_rights;
    const _: fn(PageTableEntry) -> bool = PageTableEntry::is_shared;
    const _: fn(PageTableEntry) -> bool = PageTableEntry::is_locked;
    const _: fn(PageTableEntry) -> PageTableEntry = PageTableEntry::locked;
    const _: fn(u64) -> *mut u8 = offered::direct_map;
    const _: fn(*const u8) -> u64 = offered::physical_of;
    const _: fn(usize) -> bool = offered::is_kernel_data;
    const _: fn(usize, usize) -> usize = offered::index;
    const _: fn(usize) -> usize = offered::span;
    const _: fn() -> u64 = offered::boot_root;
    const _: fn(u64) = offered::adopt_kernel_half;
    const _: fn() -> u64 = offered::current_root;
    const _: fn(usize) -> u64 = offered::root_of;
    const _: unsafe fn(u64) = offered::load_root;
    const _: fn() -> bool = offered::has_tags;
    const _: fn() -> bool = offered::forgets_elsewhere;
    const _: fn(bool) -> Abilities = offered::use_tags;
    const _: unsafe fn(u16, usize) = offered::flush_tagged_page;
    const _: unsafe fn(u64, u16, bool) = offered::load_tagged_root;
    const _: fn(usize) = offered::flush_page;
    const _: fn() = offered::flush_all;
    const _: fn() -> Range<u64> = offered::image_range;
}

/// Copies between kernel and user memory.
mod user {
    use super::*;
    use current::user as offered;

    const _: unsafe fn(*mut u8, usize, usize) -> Result<(), Stopped> = offered::copy_from;
    const _: unsafe fn(usize, *const u8, usize) -> Result<(), Stopped> = offered::copy_to;
    const _: unsafe fn(usize, usize) -> Result<(), Stopped> = offered::clear;
    const _: fn(usize) -> usize = offered::masked;
    const _: unsafe fn(usize) -> Result<u32, Stopped> = offered::load;
    const _: unsafe fn(usize, u32, u32) -> Result<u32, Stopped> = offered::compare_exchange;
    #[cfg(feature = "checking")]
    const _: unsafe fn(usize) -> u32 = offered::provoke_access;
}

/// CPUs, interrupts, the clock.
mod cpu {
    use super::*;

    type Frames = fn() -> Option<u64>;
    const _: usize = current::MAX_CPUS;
    const _: fn() -> usize = current::cpu::id;
    const _: fn() -> usize = current::cpu::count;
    const _: fn(fn() -> !, Frames) = current::cpu::start_others;
    const _: fn() = current::cpu::idle;
    const _: fn() = current::cpu::poll_interrupts;
    #[cfg(feature = "checking")]
    const _: fn() -> bool = current::cpu::are_interrupts_on;
    const _: fn(usize) = current::cpu::kick;
    const _: fn(u64) = current::cpu::kick_all;
    const _: fn() -> ! = current::cpu::halt;
    const _: fn() -> u64 = current::cpu::random;
    const _: fn(u32, fn()) = current::interrupt::register;
    const _: fn() -> bool = current::interrupt::is_in_handler;
    #[cfg(feature = "checking")]
    const _: fn(fn()) = current::interrupt::provoke_handler;
    const _: fn() -> u64 = current::interrupt::count;
    const _: usize = current::interrupt::LINES;
    const _: fn(usize) -> Option<u64> = current::interrupt::taken_of;
    const _: fn(usize) -> u64 = current::interrupt::timers;
    const _: fn(usize) -> u64 = current::interrupt::kicks;
    const _: fn(fn()) = current::time::set_handler;
    const _: fn() -> u64 = current::time::counter;
    const _: fn() -> u64 = current::time::now_ns;
    const _: fn(u64) = current::time::set_timer;
    const _: fn() -> u64 = current::time::wall_clock_offset;
    const _: fn() -> (u64, u64) = current::time::parameters;
}

/// Kernel stacks.
mod stack {
    use super::*;
    use current::stack as offered;

    const _: usize = offered::SPARE_STACKS;
    /// Gives a zeroed frame.
    type GiveFrame = fn() -> Option<u64>;
    const _: fn(usize, GiveFrame) -> Option<usize> = offered::top;
    const _: unsafe fn(usize, extern "C" fn() -> !, *mut usize) = offered::call_on;
    const _: unsafe fn(usize, *mut usize) = offered::switch_to;
}

/// The machine, and what programs are told of it.
mod machine {
    use super::*;

    const _: (&str, u16) = (current::MACHINE_NAME, current::ELF_MACHINE);
    const _: fn(usize) -> Option<&'static str> = current::syscall_name;
    const _: fn() -> u64 = current::hardware_capabilities;
    const _: fn(usize, &mut dyn fmt::Write) -> fmt::Result = current::features::describe;
    const _: fn(&[u8]) = current::machine::write_console;
    const _: fn(u8) -> ! = current::machine::exit;
    const _: fn(fn(usize)) = current::machine::backtrace;
}

/// Measures against processors' faults, and offers of the hypervisor.
mod around {
    use super::*;
    use current::{mitigations, paravirt};
    use heddle_kernel_core::mitigations::Fault;

    const _: fn() -> bool = mitigations::has_barrier;
    const _: fn(usize) = mitigations::enter_domain;
    const _: fn() = mitigations::forget_domains;
    const _: fn(Fault, &mut dyn fmt::Write) -> fmt::Result = mitigations::describe;
    const _: fn() = mitigations::report;
    const _: fn(usize) -> bool = paravirt::ask_for_flush;
    const _: fn(usize) -> u64 = paravirt::stolen_ns;
    const _: fn() = paravirt::report;
}
