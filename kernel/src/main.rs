//! The Heddle kernel.
#![no_std]
#![no_main]

extern crate alloc;

use linux_raw_sys::general as linux;

mod arch;
mod boot;
mod call;
mod cgroupfs;
mod device;
mod error;
mod fs;
mod ipc;
mod log;
mod memory;
pub mod net;
mod panic;
mod process;
pub mod procfs;
mod random;
mod sched;
mod session;
pub mod signal;
mod sync;
mod syscall;
mod time;
pub mod tty;
mod user_sched;
pub mod wait;

/// How control groups are mounted, as service managers do it.
const GROUP_FLAGS: u32 = linux::MS_NOSUID | linux::MS_NODEV | linux::MS_NOEXEC;

/// The boot processor's work once the architecture has set it up.
fn main() -> ! {
    log::install();
    ::log::info!("heddle {} on {} CPU", env!("CARGO_PKG_VERSION"), arch::cpu::count());
    arch::mitigations::report();
    arch::paravirt::report();
    sched::usage::note_start_phase("entry");
    memory::initialize();
    sched::usage::note_start_phase("frames");
    if boot::is(heddle_abi::boot::KEY_STRACE, "1") {
        syscall::trace::enable();
    }
    if let Err(error) = initialize() {
        // Nothing would ever run; the host must hear of it.
        panic!("start failed: {error:?}");
    }
    arch::cpu::start_others(run_other_cpu, memory::frame::zeroed_for_good);
    sched::run_cpu()
}

/// The other processors' work.
fn run_other_cpu() -> ! {
    if let Err(error) = memory::start_cpu().and_then(|()| sched::start_cpu()).and_then(|()| keep_timers()) {
        // It would wait for timers that never come.
        ::log::error!("CPU {} cannot take part: {error:?}", arch::cpu::id());
        memory::shootdown::retire();
        arch::cpu::halt();
    }
    sched::run_cpu()
}

/// Starts the coroutine that looks after this processor's timers.
fn keep_timers() -> Result<(), error::Errno> {
    sched::spawn_on(sched::Priority::KERNEL, 1 << arch::cpu::id(), time::keeper()).map(drop)
}

/// Starts everything above memory; the last part runs the host's program.
fn initialize() -> Result<(), error::Errno> {
    heddle_kernel_core::hash::set_seed(arch::cpu::random());
    arch::time::set_handler(sched::on_timer);
    sched::set_before_halt(memory::shootdown::before_idle);
    sched::set_between_turns(memory::shootdown::catch_up);
    sched::detour::set_frames(memory::frame::zeroed_for_good);
    #[cfg(feature = "checking")]
    sync::order::set_current(sched::current);
    #[cfg(feature = "checking")]
    sched::stretch::initialize();
    memory::start_cpu()?;
    sched::start_cpu()?;
    memory::start()?;
    keep_timers()?;
    sched::spawn(sched::Priority::KERNEL, process::load::keep())?;
    sched::spawn(sched::Priority::KERNEL, process::control_group::memory::enforce())?;
    sched::spawn(sched::Priority::KERNEL, process::control_group::cpu::keep())?;
    sched::spawn(sched::Priority::KERNEL, process::control_group::bandwidth::keep())?;
    memory::reclaim::register(fs::drain_caches);
    memory::reclaim::register(net::namespace::drain);
    memory::reclaim::register(net::collector::collect);
    sched::spawn(sched::Priority::KERNEL, net::collector::run())?;
    sched::spawn(sched::Priority::BACKGROUND, fs::tree::deferred_contents::run())?;
    sched::spawn(sched::Priority::BACKGROUND, fs::tree::deferred_trees::run())?;
    sched::spawn(sched::Priority::BACKGROUND, fs::epoll::remains::run())?;
    sched::spawn(sched::Priority::BACKGROUND, wait::relay::relay_rest())?;
    memory::reclaim::register(fs::epoll::remains::drain);
    memory::reclaim::register(wait::forgotten::drain);
    sched::usage::note_start_phase("scheduler and heap");
    process::initialize()?;
    let network = net::namespace::NetNamespace::first()?;
    process::namespaces::Namespaces::set_first(ipc::namespace::first()?, network.clone());
    memory::reclaim::register(ipc::namespace::drain);
    sched::spawn(sched::Priority::BACKGROUND, ipc::namespace::run())?;
    time::system_page::set_clock();
    if let Some(ethernet) = net::interface::initialize(device::net::find)? {
        net::inet::attach(ethernet)?;
    }
    sched::usage::note_start_phase("processes, network");
    fs::setup::initialize(memory::frame::image(), &procfs::mount(None)?, &procfs::mount_sys(network)?)?;
    fs::setup::attach_at(&cgroupfs::mount(&None, b"cgroup2", GROUP_FLAGS)?, b"/sys/fs/cgroup")?;
    sched::usage::note_start_phase("file systems");
    tty::register()?;
    fs::share::mount_all(device::share::find_all()?)?;
    sched::usage::note_start_phase("terminals, shared folders");
    let console = device::initialize()?;
    sched::usage::note_start_phase("devices");
    session::start(console)
}
