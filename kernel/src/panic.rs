//! The end of a kernel that found a bug in itself: a report that the host tool reads and symbolizes.

use core::panic::PanicInfo;

use heddle_abi::boot::{DEBUG_EXIT_PANIC, PANIC_PREFIX};

use crate::arch::{cpu, machine};
use crate::log;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    if !log::begin_panic() {
        cpu::halt();
    }
    match info.location() {
        Some(place) => log::write_raw(format_args!("{PANIC_PREFIX}message {} at {place}", info.message())),
        None => log::write_raw(format_args!("{PANIC_PREFIX}message {}", info.message())),
    }
    machine::backtrace(|address| log::write_raw(format_args!("{PANIC_PREFIX}frame {address:#x}")));
    log::write_raw(format_args!("{PANIC_PREFIX}end"));
    machine::exit(DEBUG_EXIT_PANIC)
}
