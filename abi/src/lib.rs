//! Layouts, names and protocols that two or more parts of Heddle must agree on.
//!
//! - [`boot`]: the host tool's parameters for the kernel, and the codes with which the machine ends.
//! - [`call`]: asynchronous system calls, between programs and the kernel.
//! - [`control`]: the framed messages on the control port while it runs.
//! - [`prctl`]: Heddle's own options of that call.
//! - [`trace`]: the record of a system call in the kernel's log.
//! - [`user_sched`]: the pages, records and calls of the shared scheduler, which kernel, vDSO and programs have in
//!   common.
//! - [`protocol`]: the order in which kernel and programs change the words of those pages, and the ring of completions.
//!
//! The crate is `no_std`, allocates nothing and depends on nothing, so kernel, host tool and guest programs can
//! all use it.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod boot;
pub mod call;
pub mod control;
pub mod prctl;
pub mod protocol;
pub mod trace;
pub mod user_sched;
