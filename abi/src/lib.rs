//! Layouts, names and protocols that two or more parts of Heddle must agree on.
//!
//! - [`boot`]: what the host tool tells the kernel before it runs, and the codes with which the machine ends.
//! - [`call`]: asynchronous system calls, between programs and the kernel.
//! - [`control`]: the framed messages on the control port while it runs.
//! - [`user_sched`]: the pages, records and calls of the shared scheduler, which kernel, vDSO and programs have in
//!   common.
//! - [`protocol`]: who changes which word of those pages in which order, and the ring of completions.
//!
//! The crate is `no_std`, allocates nothing and depends on nothing, so kernel, host tool and guest programs can
//! all use it.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod boot;
pub mod call;
pub mod control;
pub mod protocol;
pub mod user_sched;
