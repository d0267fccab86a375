//! The calls of threads whose records go to the log: `heddle.strace=1`.

use alloc::boxed::Box;
use core::fmt::Write;

use heddle_abi::trace::SIGNAL;
use heddle_kernel_core::signal::Information;

use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::memory::fallible;
use crate::process::Thread;
use crate::signal::PendingWork;

/// Bytes of a record's memory, in hexadecimal: with its other fields it fits into a page.
const RECORD_BYTES: usize = 3968;

/// A call that is under way.
pub struct LoggedCall {
    /// When it began.
    pub start_ns: u64,
    /// Its number.
    pub number: usize,
    /// Its arguments.
    pub arguments: [usize; 6],
    /// The memory that they stand for, as far as it was copied.
    pub memory: MemoryText,
}

impl LoggedCall {
    /// A call that begins now.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(number: usize, arguments: [usize; 6]) -> Result<Box<Self>, Errno> {
        const { assert!(size_of::<Self>() <= PAGE_SIZE, "a frame holds it") };
        let memory = MemoryText { text: [0; RECORD_BYTES], length: 0 };
        fallible::try_box(Self { start_ns: crate::arch::time::now_ns(), number, arguments, memory })
    }
}

/// Memory of a program as text.
pub struct MemoryText {
    text: [u8; RECORD_BYTES],
    length: usize,
}

impl MemoryText {
    /// `ADDRESS:BYTES,…`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.text[..self.length]).unwrap_or_default()
    }

    /// Adds the bytes at an address; nothing if they do not fit.
    pub fn add(&mut self, address: usize, bytes: &[u8]) {
        let before = self.length;
        if self.try_add(address, bytes).is_err() {
            self.length = before;
        }
    }

    fn try_add(&mut self, address: usize, bytes: &[u8]) -> core::fmt::Result {
        write!(self, "{address:x}:")?;
        bytes.iter().try_for_each(|byte| write!(self, "{byte:02x}"))?;
        self.write_char(',')
    }
}

impl Write for MemoryText {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let end = self.length + text.len();
        let room = self.text.get_mut(self.length..end).ok_or(core::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// Writes that a signal is delivered to the thread, if its calls are noted.
pub fn log_signal(thread: &Thread, information: &Information) {
    if thread.work().contains(PendingWork::LOGGED) {
        let now_ns = crate::arch::time::now_ns();
        let (tid, signal, code) = (thread.tid(), information.signal.number(), information.code);
        ::log::info!("strace {tid} {now_ns} 0 {SIGNAL} {signal} {code}");
    }
}
