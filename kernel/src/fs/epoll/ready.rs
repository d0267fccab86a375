//! The ready list of an epoll instance, and who waits for it.

use alloc::sync::Arc;

use core::sync::atomic::Ordering;

use crate::error::Errno;
use crate::fs::epoll::EpollInterest;
use crate::memory::fallible;
use crate::sync::SpinLock;
use crate::wait::queue::RelayQueue;

/// Interests out of use that the list keeps at least before it drops some.
const GONE_KEPT: usize = 16;
/// Interests that one removal looks at.
const GONE_STEPS: usize = 4;

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
    /// How many of them were taken out of use while they were here, about.
    gone: usize,
    /// The instance has gone.
    is_closed: bool,
}

impl Ready {
    /// An empty list.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Self>, Errno> {
        let list = ReadyList { head: None, tail: None, length: 0, gone: 0, is_closed: false };
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
        list.append(interest);
    }

    /// Notes that an interest in the list was taken out of use. As nobody else may ever look into the list, some of
    /// such interests leave it here when they are more than the others: each step takes the first one out, or puts it
    /// last.
    pub fn drop_gone(&self) {
        let mut dropped: [Option<Arc<EpollInterest>>; GONE_STEPS] = [const { None }; GONE_STEPS];
        let mut list = self.list.lock();
        list.gone += 1;
        if list.gone <= GONE_KEPT.max(list.length / 2) {
            return;
        }
        for dropped in &mut dropped {
            let Some(first) = list.take_first() else { break };
            if first.is_gone() {
                list.gone = list.gone.saturating_sub(1);
                first.queued.store(false, Ordering::Release);
                *dropped = Some(first);
            } else {
                list.append(first);
            }
        }
        drop(list);
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
    fn append(&mut self, interest: Arc<EpollInterest>) {
        self.length += 1;
        match self.tail.replace(interest.clone()) {
            Some(last) => *last.next.lock() = Some(interest),
            None => self.head = Some(interest),
        }
    }

    /// Takes the first interest out, which counts as queued still.
    fn take_first(&mut self) -> Option<Arc<EpollInterest>> {
        let first = self.head.take()?;
        self.head = first.next.lock().take();
        if self.head.is_none() {
            self.tail = None;
        }
        self.length -= 1;
        Some(first)
    }

    fn pop(&mut self) -> Option<Arc<EpollInterest>> {
        let first = self.take_first()?;
        if first.is_gone() {
            self.gone = self.gone.saturating_sub(1);
        }
        first.queued.store(false, Ordering::Release);
        Some(first)
    }
}
