//! The Heddle kernel.
#![no_std]
#![no_main]
#![allow(dead_code, unused_imports, reason = "the parts that use the machine layer land next")]

extern crate alloc;

mod arch;
mod boot;
mod device;
mod error;
mod file;
mod ipc;
mod log;
mod memory;
mod panic;
mod process;
mod random;
mod schedule;
mod sync;
mod syscall;
mod time;
mod user_sched;

/// What the boot processor runs once the architecture has set it up.
fn main() -> ! {
    ::log::info!("heddle {} on {} CPU", env!("CARGO_PKG_VERSION"), arch::cpu::count());
    memory::initialize();
    if boot::is(heddle_abi::boot::KEY_STRACE, "1") {
        syscall::trace::enable();
    }
    if let Err(error) = initialize() {
        // Nothing would ever run; the host must hear of it.
        panic!("start failed: {error:?}");
    }
    arch::cpu::start_others();
    schedule::run_cpu()
}

/// Starts everything above memory; the last part runs the host's program.
fn initialize() -> Result<(), error::Errno> {
    schedule::start_cpu()?;
    memory::start()?;
    schedule::spawn(schedule::Priority::KERNEL, time::keeper())?;
    schedule::spawn(schedule::Priority::KERNEL, time::load::keep())?;
    memory::pressure::register(file::drain_caches);
    memory::pressure::register(memory::stored::drain);
    process::initialize()?;
    user_sched::set_clock();
    file::setup::initialize(memory::frame::image())?;
    device::initialize()
}
