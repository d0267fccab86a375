//! The line discipline of Linux terminals.
//!
//! A terminal has two sides: the *line* (a console, or the master of a pseudoterminal), where a person types and
//! reads, and the *program*. [`LineDiscipline`] is what happens between them: editing and echo of what is typed,
//! signal characters, flow control, and the processing of what programs print. It follows termios(3), and where
//! that leaves room, what Linux does; `tests/linux.rs` compares both.
//!
//! Everything here is state: no waiting, no locks, no devices. Bytes from the line go into
//! [`LineDiscipline::receive`], bytes for the line come out through an [`Output`], and what concerns others (signals
//! to send, readers to wake) is returned in [`Received`].

#![no_std]

extern crate alloc;

mod discipline;
mod echo;
mod edit;
mod input;
mod output;
mod receive;
mod termios;

pub use discipline::LineDiscipline;
pub use input::CAPACITY_BYTES;
pub use output::{Output, WORST_EXPANSION};
pub use receive::{Received, SignalRequests};
pub use termios::{Character, InputModes, LocalModes, OutputModes, Termios};
