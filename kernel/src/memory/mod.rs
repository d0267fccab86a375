//! Memory: frames, the kernel's heap, and the address spaces of programs.
//!
//! - [`frame`]: page frames of the machine; [`FrameRef`] is one reference to a counted frame.
//! - [`heap`]: the kernel's own allocations; [`fallible`]: how to make them so that running out is an error.
//! - [`space`]: the address space of a process; [`source`]: the interface of objects that can be mapped.
//! - [`user`]: copies between the kernel and a space; [`values`]: small structures of C.
//!
//! # Running out
//! Any allocation can fail, and becomes `ENOMEM`. `Arc::new` and `BTreeMap::insert` cannot report failure;
//! [`heap::reserve`] before such a call gives this CPU the frames that it may need.
//! Page faults, and what must not fail, wait for memory instead: [`oom`].

pub mod charge;
pub mod counters;
pub mod deferred_free;
pub mod fallible;
#[cfg(feature = "checking")]
pub mod fault_injection;
pub mod frame;
mod gather;
pub mod heap;
pub mod isolation;
pub mod large_policy;
pub mod oom;
pub mod overcommit;
pub mod process_pages;
pub mod raw;
pub mod reclaim;
mod roots;
pub mod shootdown;
mod slots;
pub mod source;
pub mod space;
mod table;
pub mod user;
pub mod values;
pub mod writeback;

pub use crate::memory::frame::{FrameRef, PageRef};
pub use crate::memory::source::MapSource;
pub use crate::memory::space::{Space, SpaceKind};

/// Takes possession of the machine's memory. The boot processor calls this before anything allocates.
pub fn initialize() {
    frame::initialize();
    isolation::initialize();
    space::initialize();
    ::log::info!(
        "memory: {} of {} frames free, image {:x?}",
        frame::free_frames(),
        frame::total_frames(),
        frame::image_range()
    );
}

/// Gives this CPU what it needs to run programs.
///
/// # Errors
/// `ENOMEM`.
pub fn start_cpu() -> Result<(), crate::error::Errno> {
    roots::start_cpu()
}

/// Starts the coroutines of the memory manager; the scheduler is ready for them.
///
/// # Errors
/// `ENOMEM`.
pub fn start() -> Result<(), crate::error::Errno> {
    crate::sched::spawn(crate::sched::Priority::BACKGROUND, deferred_free::reaper()).map(|_| ())
}
