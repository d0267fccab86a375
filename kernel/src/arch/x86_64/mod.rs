//! x86-64: QEMU's microvm, entered through PVH.

mod boot;
mod context;
pub mod cpu;
pub mod debug;
mod descriptor;
pub mod direct;
pub mod features;
pub mod float;
pub mod interrupt;
mod local;
pub mod machine;
pub mod mitigations;
mod names;
pub mod paging;
pub mod paravirt;
mod program;
pub mod protection_key;
pub mod signal;
mod smp;
pub mod stack;
pub mod stray;
pub mod time;
mod trap;
pub mod user;

pub use crate::arch::x86_64::context::{CALL_INSTRUCTION, UserContext};
pub use crate::arch::x86_64::float::FloatState;
pub use crate::arch::x86_64::local::MAX_CPUS;
pub use crate::arch::x86_64::names::syscall_name;
pub use crate::arch::x86_64::program::{ELF_MACHINE, MACHINE_NAME, control, hardware_capabilities};
pub use crate::arch::x86_64::trap::{Trap, enter_user, exception_signal};
