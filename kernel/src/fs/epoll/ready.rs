//! The ready list of an epoll instance, and who waits for it.

use alloc::sync::Arc;

use core::sync::atomic::Ordering;

use crate::error::Errno;
use crate::fs::epoll::EpollInterest;
use crate::memory::fallible;
use crate::sync::SpinLock;
use crate::wait::queue::RelayQueue;

/// See the module.
pub struct Ready {
    list: SpinLock<ReadyList>,
    /// Woken when something may be ready.
    pub relay: Arc<RelayQueue>,
}

/// Interests that link one another.
struct ReadyList {
    head: Option<Arc<EpollInterest>>,
    tail: Option<Arc<EpollInterest>>,
    length: usize,
    /// The instance has gone.
    is_closed: bool,
}

impl Ready {
    /// An empty list.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Self>, Errno> {
        let list = ReadyList { head: None, tail: None, length: 0, is_closed: false };
        fallible::try_arc(Self { list: SpinLock::new(list), relay: RelayQueue::new()? })
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        self.list.lock().length
    }

    /// Appends an interest, which has just been marked as queued.
    pub fn push(&self, interest: Arc<EpollInterest>) {
        let mut list = self.list.lock();
        if list.is_closed {
            return;
        }
        list.length += 1;
        match list.tail.replace(interest.clone()) {
            Some(last) => *last.next.lock() = Some(interest),
            None => list.head = Some(interest),
        }
    }

    /// The first interest, which stays.
    pub fn first(&self) -> Option<Arc<EpollInterest>> {
        self.list.lock().head.clone()
    }

    /// Takes the first interest out.
    pub fn pop(&self) -> Option<Arc<EpollInterest>> {
        self.list.lock().pop()
    }

    /// Takes an interest out if it is the first.
    pub fn remove_first(&self, interest: &Arc<EpollInterest>) -> bool {
        let mut list = self.list.lock();
        let is_first = list.head.as_ref().is_some_and(|head| Arc::ptr_eq(head, interest));
        is_first && list.pop().is_some()
    }

    /// Takes nothing in any more. The list is to be emptied then.
    pub fn close(&self) {
        self.list.lock().is_closed = true;
        self.relay.clear();
    }
}

impl ReadyList {
    fn pop(&mut self) -> Option<Arc<EpollInterest>> {
        let first = self.head.take()?;
        self.head = first.next.lock().take();
        if self.head.is_none() {
            self.tail = None;
        }
        self.length -= 1;
        first.queued.store(false, Ordering::Release);
        Some(first)
    }
}
