//! x86-64: QEMU's microvm, entered through PVH.

mod boot;
mod context;
pub mod cpu;
mod descriptor;
pub mod float;
pub mod interrupt;
mod local;
pub mod machine;
pub mod paging;
mod smp;
pub mod time;
mod trap;
pub mod user;

pub use context::UserContext;
pub use float::FloatState;
pub use local::MAX_CPUS;
pub use trap::{Trap, enter_user, exception_signal};
