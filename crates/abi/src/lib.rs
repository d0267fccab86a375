//! Layouts and names that two or more parts of Heddle must agree on, and nothing that behaves.
//!
//! - [`boot`]: what the host tool tells the kernel before it runs, and the codes with which the machine ends.
//! - [`call`]: asynchronous system calls, between programs and the kernel.
//! - [`control`]: the framed messages on the control port while it runs.
//! - [`shared`]: the pages, records and calls of the shared scheduler, which kernel, vDSO and programs have in common.
//!
//! The crate is `no_std`, allocates nothing and depends on nothing, so kernel, host tool and guest programs can
//! all use it.
#![no_std]

pub mod boot;
pub mod call;
pub mod control;
pub mod shared;
