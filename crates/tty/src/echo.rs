//! Echo that the line has no room for yet, or that waits for the output to be restarted.

use alloc::collections::{TryReserveError, VecDeque};

/// One thing to show for what was typed. It is stored unprocessed, because how wide a tab is and what a newline becomes
/// depends on the output before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Echo {
    /// A byte, subject to output processing.
    Byte(u8),
    /// A control character as `^X`.
    Caret(u8),
    /// Nothing is shown, but the cursor is one column further left than the bytes say.
    StepBack,
    /// The line that is being typed starts here.
    LineStart,
    /// Goes back over a tab that had `columns` columns of text before it, since the tab before or the line's start.
    EraseTab {
        /// Columns, modulo 128.
        columns: u8,
        /// Whether they are counted from a tab.
        after_tab: bool,
    },
}

/// How much echo is kept; when more comes, the oldest is forgotten.
const CAPACITY: usize = 1024;

/// Echo that waits, oldest first.
#[derive(Debug)]
pub(crate) struct EchoQueue(VecDeque<Echo>);

impl EchoQueue {
    pub(crate) fn try_new() -> Result<Self, TryReserveError> {
        let mut queue = VecDeque::new();
        queue.try_reserve_exact(CAPACITY)?;
        Ok(Self(queue))
    }

    pub(crate) fn push(&mut self, echo: Echo) {
        if self.0.len() == CAPACITY {
            self.0.pop_front();
        }
        self.0.push_back(echo);
    }

    pub(crate) fn first(&self) -> Option<Echo> {
        self.0.front().copied()
    }

    pub(crate) fn pop(&mut self) {
        self.0.pop_front();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
