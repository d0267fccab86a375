//! The file of a core dump, written front to back.

use alloc::sync::Arc;

use heddle_kernel_core::core_dump::PAGE_BYTES;

use crate::error::{Errno, TryError};
use crate::fs::{IoBuffer, OpenFile};
use crate::process::{Resource, Thread};
use crate::sched::Budget;
use crate::signal::PendingWork;

/// The result of a step: an error ends the dump, and what was written stays.
pub type Written = Result<(), Errno>;

/// The most bytes that are written at once.
const ATTEMPT_BYTES: usize = 4096;
/// The cost of that, in units of a [`Budget`].
const COST: u32 = 4;
/// The cost of a step of truncation.
const TRUNCATION_COST: u32 = 32;

/// See the module.
pub struct Output {
    thread: Arc<Thread>,
    open: Arc<OpenFile>,
    budget: Budget,
    position: u64,
    /// How many more bytes `RLIMIT_CORE` allows, not counting holes.
    left: u64,
    /// No byte of the file may be beyond this: `RLIMIT_FSIZE`.
    end: u64,
}

impl Output {
    pub fn new(thread: &Arc<Thread>, open: Arc<OpenFile>) -> Result<Self, Errno> {
        let left = thread.process.limit(Resource::Core).soft;
        let end = thread.process.limit(Resource::FileSize).soft;
        Ok(Self { thread: thread.clone(), open, budget: Budget::new(), position: 0, left, end })
    }

    /// Where the next byte goes.
    pub const fn position(&self) -> u64 {
        self.position
    }

    async fn truncate(&mut self, size: u64) -> Written {
        while !self.open.file.truncate(size)? {
            self.budget.step(TRUNCATION_COST).await;
        }
        Ok(())
    }

    /// A step of work; an error if the thread is to die.
    pub async fn pace(&mut self) -> Written {
        self.budget.step(COST).await;
        if self.thread.work().contains(PendingWork::DIE) { Err(Errno::EINTR) } else { Ok(()) }
    }

    /// Writes bytes.
    pub async fn put(&mut self, mut bytes: &[u8]) -> Written {
        while !bytes.is_empty() {
            self.pace().await?;
            let now = bytes.len().min(ATTEMPT_BYTES);
            let is_allowed = now as u64 <= self.left && self.position + now as u64 <= self.end;
            if !is_allowed {
                return Err(Errno::EFBIG);
            }
            let mut buffer = IoBuffer::kernel_in(&bytes[..now]);
            let result = self.open.file.write(&self.open, &mut buffer, self.position);
            let done = buffer.done();
            match result {
                Ok(0) if !buffer.is_unfinished() => return Err(Errno::EIO),
                Err(TryError::Error(error)) if done == 0 => return Err(error),
                Err(TryError::WouldBlock | TryError::Fault(_)) if done == 0 => return Err(Errno::EIO),
                _ => {}
            }
            bytes = &bytes[done..];
            self.position += done as u64;
            self.left -= done as u64;
        }
        Ok(())
    }

    /// Leaves a hole up to a position.
    pub fn skip_to(&mut self, position: u64) {
        self.position = self.position.max(position);
    }

    /// Leaves a hole up to the next page.
    pub fn skip_to_page(&mut self) {
        self.skip_to(self.position.next_multiple_of(PAGE_BYTES));
    }

    /// Makes the file as long as it should be if it ends in a hole.
    pub async fn finish(&mut self) -> Written {
        let is_short = self.open.file.size().is_some_and(|size| size < self.position);
        if is_short && self.position <= self.end { self.truncate(self.position).await } else { Ok(()) }
    }
}
