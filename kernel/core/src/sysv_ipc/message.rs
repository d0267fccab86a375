//! A queue of messages, msgop(2).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::fallible::push_back_reserved;
use crate::sysv_ipc::OutOfMemory;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its type, above 0.
    pub kind: i64,
    /// Its text.
    pub text: Vec<u8>,
}

/// The message that a receiver asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The first one.
    First,
    /// The first of a type.
    Of(i64),
    /// The first of any other type.
    Except(i64),
    /// The first of the lowest type that is no higher than this.
    UpTo(i64),
    /// The one at this position.
    Position(usize),
}

impl Selection {
    /// Interprets the type argument of `msgrcv`.
    #[must_use]
    pub fn new(kind: i64, except: bool, by_position: bool) -> Self {
        match kind {
            _ if by_position => usize::try_from(kind).map_or(Self::Position(usize::MAX), Self::Position),
            0 => Self::First,
            kind if kind < 0 => Self::UpTo(kind.checked_neg().unwrap_or(i64::MAX)),
            kind if except => Self::Except(kind),
            kind => Self::Of(kind),
        }
    }
}

/// The messages, in the order in which they were sent.
#[derive(Default)]
pub struct Queue {
    messages: VecDeque<Message>,
    bytes: usize,
}

impl Queue {
    /// No messages.
    #[must_use]
    pub const fn new() -> Self {
        Self { messages: VecDeque::new(), bytes: 0 }
    }

    /// How many messages there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Bytes of text in all messages.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a message of `length` bytes fits into a queue of `limit` bytes. Empty messages count too.
    #[must_use]
    pub fn has_room(&self, length: usize, limit: usize) -> bool {
        length.saturating_add(self.bytes) <= limit && self.len() < limit
    }

    /// Adds a message.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn push(&mut self, message: Message) -> Result<(), OutOfMemory> {
        self.messages.try_reserve(1).map_err(|_| OutOfMemory)?;
        self.bytes += message.text.len();
        push_back_reserved(&mut self.messages, message);
        Ok(())
    }

    /// Where the message is that a receiver means.
    #[must_use]
    pub fn find(&self, selection: Selection) -> Option<usize> {
        let mut kinds = self.messages.iter().map(|message| message.kind);
        match selection {
            Selection::First => (!self.is_empty()).then_some(0),
            Selection::Of(kind) => kinds.position(|found| found == kind),
            Selection::Except(kind) => kinds.position(|found| found != kind),
            Selection::UpTo(limit) => {
                let below = kinds.enumerate().filter(|&(_, kind)| kind <= limit);
                below.min_by_key(|&(index, kind)| (kind, index)).map(|(index, _)| index)
            }
            Selection::Position(index) => (index < self.len()).then_some(index),
        }
    }

    /// The message at a position.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Message> {
        self.messages.get(index)
    }

    /// Takes the message at a position out.
    pub fn remove(&mut self, index: usize) -> Option<Message> {
        let message = self.messages.remove(index)?;
        self.bytes -= message.text.len();
        if self.messages.is_empty() {
            self.messages = VecDeque::new();
        }
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::{Message, Queue, Selection};
    use std::vec;

    fn queue(kinds: &[i64]) -> Queue {
        let mut queue = Queue::new();
        for &kind in kinds {
            queue.push(Message { kind, text: vec![0; 2] }).unwrap();
        }
        queue
    }

    #[test]
    fn receivers_get_what_they_mean() {
        let queue = queue(&[5, 3, 7, 3]);
        let find = |kind, except| queue.find(Selection::new(kind, except, false));
        assert_eq!(find(0, false), Some(0));
        assert_eq!(find(3, false), Some(1));
        assert_eq!(find(5, true), Some(1));
        assert_eq!(find(-6, false), Some(1));
        assert_eq!(find(-2, false), None);
        assert_eq!(find(i64::MIN, false), Some(1));
        assert_eq!(find(4, false), None);
        assert_eq!(queue.find(Selection::new(2, false, true)), Some(2));
        assert_eq!(queue.find(Selection::new(-1, false, true)), None);
    }

    #[test]
    fn room_is_counted_in_bytes_and_messages() {
        let mut queue = queue(&[1, 2]);
        assert_eq!(queue.bytes(), 4);
        assert!(queue.has_room(4, 8) && !queue.has_room(5, 8) && !queue.has_room(usize::MAX, 8));
        assert!(queue.has_room(0, 4));
        queue.push(Message { kind: 1, text: vec![] }).unwrap();
        queue.push(Message { kind: 1, text: vec![] }).unwrap();
        assert!(!queue.has_room(0, 4));
        assert_eq!(queue.remove(0).unwrap().text.len(), 2);
        assert_eq!((queue.len(), queue.bytes()), (3, 2));
    }
}
