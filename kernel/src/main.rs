//! The Heddle kernel.
#![no_std]
#![no_main]
#![allow(dead_code, unused_imports, reason = "the parts that use the machine layer land next")]

extern crate alloc;

mod arch;
mod boot;
mod error;
mod log;
mod memory;
mod panic;
mod schedule;
mod sync;
mod time;

/// What the boot processor runs once the architecture has set it up.
fn main() -> ! {
    ::log::info!("heddle {} on {} CPU", env!("CARGO_PKG_VERSION"), arch::cpu::count());
    memory::initialize();
    schedule::run_cpu()
}
