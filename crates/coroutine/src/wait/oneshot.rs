//! A channel for one message.

use crate::foreign;
use crate::lock::Lock;
use alloc::sync::Arc;
use core::fmt;
use core::future::Future;
use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

/// A channel for one message, say the answer to a request.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = OneshotState { message: None, waker: None, sender: true, receiver: true };
    let shared = Arc::new(Lock::new(state));
    (Sender(shared.clone()), Receiver(shared))
}

struct OneshotState<T> {
    message: Option<T>,
    /// Of the receiver.
    waker: Option<Waker>,
    sender: bool,
    receiver: bool,
}

/// The end that sends, once.
pub struct Sender<T>(Arc<Lock<OneshotState<T>>>);

/// The end that receives: a future of the message.
#[must_use = "futures do nothing unless awaited"]
pub struct Receiver<T>(Arc<Lock<OneshotState<T>>>);

impl<T> Sender<T> {
    /// Sends `message`; gives it back if the receiver is gone.
    ///
    /// # Errors
    /// The message, if nobody can receive it.
    pub fn send(self, message: T) -> Result<(), T> {
        self.0.with(|state| {
            if !state.receiver {
                return Err(message);
            }
            state.message = Some(message);
            Ok(())
        })
        // The drop of the sender wakes the receiver.
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.0.with(|state| !state.receiver)
    }
}

impl<T> Receiver<T> {
    /// The message, if it is there.
    pub fn try_recv(&mut self) -> Option<T> {
        self.0.with(|state| state.message.take())
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Closed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, Closed>> {
        let mut waker = Some(cx.waker().clone());
        self.0.with(|state| match state.message.take() {
            Some(message) => Poll::Ready(Ok(message)),
            None if !state.sender => Poll::Ready(Err(Closed)),
            None => {
                // The former one is dropped outside of the lock.
                mem::swap(&mut state.waker, &mut waker);
                Poll::Pending
            }
        })
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = self.0.with(|state| {
            state.sender = false;
            state.waker.take()
        });
        waker.into_iter().for_each(foreign::wake);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let left = self.0.with(|state| {
            state.receiver = false;
            (state.message.take(), state.waker.take())
        });
        drop(left);
    }
}

/// The sender of a one-message channel is gone, and has sent nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sender is gone")
    }
}

impl core::error::Error for Closed {}

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
