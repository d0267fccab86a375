//! A bounded channel of many senders and receivers, in which the most urgent go first.
#![allow(unsafe_code)] // Waiters are linked by address.

use super::list::{Node, Polled, Waiters};
use crate::foreign;
use crate::lock::Lock;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::fmt;
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Poll, Waker};

/// A channel that holds up to `capacity` messages (at least 1), in the order in which they were sent. When it is full
/// the most urgent sender is the next to send, and when it is empty the most urgent receiver the next to receive.
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let state = ChannelState {
        messages: VecDeque::new(),
        capacity: capacity.max(1),
        senders: 1,
        receivers: 1,
        sending: Waiters::new(),
        receiving: Waiters::new(),
    };
    let shared = Arc::new(Lock::new(state));
    (Sender(shared.clone()), Receiver(shared))
}

struct ChannelState<T> {
    messages: VecDeque<T>,
    capacity: usize,
    senders: usize,
    receivers: usize,
    sending: Waiters<()>,
    receiving: Waiters<()>,
}

/// The end that sends; when the last is dropped, receivers get what is left and then `None`.
pub struct Sender<T>(Arc<Lock<ChannelState<T>>>);

/// The end that receives; when the last is dropped, senders get their messages back, and what nobody has received is
/// dropped.
pub struct Receiver<T>(Arc<Lock<ChannelState<T>>>);

impl<T> ChannelState<T> {
    /// Wakes one of those who could go on; if it is gone by then, its drop wakes the next.
    fn next_sender(&mut self) -> Option<Waker> {
        let room = self.messages.len() < self.capacity || self.receivers == 0;
        if room { self.sending.pop_best().map(|waiter| waiter.waker) } else { None }
    }

    fn next_receiver(&mut self) -> Option<Waker> {
        let some = !self.messages.is_empty() || self.senders == 0;
        if some { self.receiving.pop_best().map(|waiter| waiter.waker) } else { None }
    }
}

/// A wait of one end, which passes its wake on if it is dropped before it could use it.
struct ChannelWait<'a, T> {
    shared: &'a Lock<ChannelState<T>>,
    list: fn(&mut ChannelState<T>) -> &mut Waiters<()>,
    next: fn(&mut ChannelState<T>) -> Option<Waker>,
    node: Node<()>,
    /// It has become a waiter, and does not know of its wake yet.
    waits: bool,
}

impl<T> ChannelWait<'_, T> {
    fn node(self: Pin<&mut Self>) -> Pin<&Node<()>> {
        // SAFETY: it is a part of the wait, which is pinned.
        unsafe { self.into_ref().map_unchecked(|wait| &wait.node) }
    }

    fn set_waits(self: Pin<&mut Self>, waits: bool) {
        // SAFETY: nothing is moved.
        unsafe { self.get_unchecked_mut() }.waits = waits;
    }

    /// Whether it has been woken, or does not wait yet. Otherwise `waker` is woken later.
    fn is_ready(mut self: Pin<&mut Self>, waker: &Waker) -> bool {
        if !self.waits {
            return true;
        }
        let (shared, list) = (self.shared, self.list);
        let mut waker = Some(waker.clone());
        let node = self.as_mut().node();
        // SAFETY: the node is used with this list only, and the wait's drop removes it.
        let polled = shared.with(|state| unsafe { list(state).refresh(node, &mut waker) });
        let waits = polled == Polled::Waits;
        self.set_waits(waits);
        !waits
    }

    /// Waits in the list, with the lock in hand.
    fn begin(mut self: Pin<&mut Self>, state: &mut ChannelState<T>, waker: &mut Option<Waker>) {
        let list = (self.list)(state);
        // SAFETY: as above; it does not wait.
        unsafe { list.push(self.as_mut().node(), waker, ()) };
        self.set_waits(true);
    }
}

impl<T> Drop for ChannelWait<'_, T> {
    fn drop(&mut self) {
        if !self.waits {
            return;
        }
        // SAFETY: it waits, so it is pinned.
        let node = unsafe { Pin::new_unchecked(&self.node) };
        let (waiter, next) = self.shared.with(|state| {
            // SAFETY: the node is used with this list only.
            let waiter = unsafe { (self.list)(state).remove(node) };
            let next = if waiter.is_none() { (self.next)(state) } else { None };
            (waiter, next)
        });
        next.into_iter().for_each(foreign::wake);
        drop(waiter);
    }
}

impl<T> Sender<T> {
    /// Sends `message`, waiting for room; gives it back if no receiver is left.
    pub fn send(&self, message: T) -> impl Future<Output = Result<(), T>> + '_ {
        let wait = ChannelWait {
            shared: &*self.0,
            list: |state| &mut state.sending,
            next: ChannelState::next_sender,
            node: Node::new(()),
            waits: false,
        };
        async move {
            let (mut wait, mut message) = (pin!(wait), Some(message));
            let outcome = poll_fn(move |cx| {
                if !wait.as_mut().is_ready(cx.waker()) {
                    return Poll::Pending;
                }
                let Some(sent) = message.take() else { return Poll::Pending };
                let mut waker = Some(cx.waker().clone());
                let (outcome, wake) = self.0.with(|state| {
                    if state.receivers == 0 {
                        return (Poll::Ready(Err(sent)), None);
                    }
                    if state.messages.len() >= state.capacity {
                        wait.as_mut().begin(state, &mut waker);
                        message = Some(sent);
                        return (Poll::Pending, None);
                    }
                    state.messages.push_back(sent);
                    (Poll::Ready(Ok(())), state.next_receiver())
                });
                wake.into_iter().for_each(foreign::wake);
                outcome
            });
            outcome.await
        }
    }

    /// Sends `message` if there is room and a receiver; gives it back otherwise.
    pub fn try_send(&self, message: T) -> Result<(), T> {
        let wake = self.0.with(|state| {
            if state.receivers == 0 || state.messages.len() >= state.capacity {
                return Err(message);
            }
            state.messages.push_back(message);
            Ok(state.next_receiver())
        })?;
        wake.into_iter().for_each(foreign::wake);
        Ok(())
    }
}

impl<T> Receiver<T> {
    /// Waits for a message; `None` when none is left and no sender either.
    pub fn recv(&self) -> impl Future<Output = Option<T>> + '_ {
        let wait = ChannelWait {
            shared: &*self.0,
            list: |state| &mut state.receiving,
            next: ChannelState::next_receiver,
            node: Node::new(()),
            waits: false,
        };
        async move {
            let mut wait = pin!(wait);
            let outcome = poll_fn(move |cx| {
                if !wait.as_mut().is_ready(cx.waker()) {
                    return Poll::Pending;
                }
                let mut waker = Some(cx.waker().clone());
                let (outcome, wake) = self.0.with(|state| match state.messages.pop_front() {
                    Some(message) => (Poll::Ready(Some(message)), state.next_sender()),
                    None if state.senders == 0 => (Poll::Ready(None), None),
                    None => {
                        wait.as_mut().begin(state, &mut waker);
                        (Poll::Pending, None)
                    }
                });
                wake.into_iter().for_each(foreign::wake);
                outcome
            });
            outcome.await
        }
    }

    /// A message, if there is one.
    pub fn try_recv(&self) -> Option<T> {
        let (message, wake) = self.0.with(|state| {
            let message = state.messages.pop_front();
            (message, state.next_sender())
        });
        wake.into_iter().for_each(foreign::wake);
        message
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.with(|state| state.senders += 1);
        Sender(self.0.clone())
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        self.0.with(|state| state.receivers += 1);
        Receiver(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.with(|state| state.senders -= 1);
        while let Some(waker) =
            self.0.with(|state| if state.senders == 0 { state.next_receiver() } else { None })
        {
            foreign::wake(waker);
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let unread = self.0.with(|state| {
            state.receivers -= 1;
            if state.receivers == 0 { core::mem::take(&mut state.messages) } else { VecDeque::new() }
        });
        while let Some(waker) =
            self.0.with(|state| if state.receivers == 0 { state.next_sender() } else { None })
        {
            foreign::wake(waker);
        }
        drop(unread);
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
