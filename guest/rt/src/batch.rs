//! Several calls with one entry into the kernel.
#![allow(unsafe_code)] // Futures are pinned in one piece of memory.

use crate::heddle::{self, Collected};
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll};

/// A call of a batch, where it is pinned until its end; its output then.
enum Part<F: Future> {
    Call(F),
    Done(Option<F::Output>),
}

impl<F: Future> Part<F> {
    /// Polls it if it is not done; whether it is now and was not before.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> bool {
        // SAFETY: the future is not moved: it is polled in place, or dropped in place by the assignment.
        let part = unsafe { self.get_unchecked_mut() };
        let Part::Call(call) = part else { return false };
        // SAFETY: pinned as the part is.
        let Poll::Ready(output) = unsafe { Pin::new_unchecked(call) }.poll(context) else { return false };
        *part = Part::Done(Some(output));
        true
    }
}

/// Awaits all of `calls`, which are handed to the kernel together. Gives their outputs in the same order.
///
/// On Linux, and for futures that are no calls, this is a plain join.
///
/// ```
/// # #[heddle_rt::main]
/// # async fn main() -> std::io::Result<()> {
/// let (reader, writer) = std::io::pipe()?;
/// let written = heddle_rt::batch((0..3).map(|_| heddle_rt::write(&writer, "abc"))).await;
/// assert!(written.iter().all(|(result, _)| matches!(result, Ok(3))));
/// # drop(reader);
/// # Ok(())
/// # }
/// ```
pub async fn batch<F: Future>(calls: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let parts: Box<[Part<F>]> = calls.into_iter().map(Part::Call).collect();
    let mut left = parts.len();
    let mut parts = Box::into_pin(parts);
    let mut is_together = true;
    poll_fn(|context| {
        loop {
            let mut poll = || {
                // SAFETY: the parts stay where they are.
                for part in unsafe { parts.as_mut().get_unchecked_mut() } {
                    // SAFETY: pinned, since the slice is.
                    left -= usize::from(unsafe { Pin::new_unchecked(part) }.poll(context));
                }
            };
            let collected = if is_together {
                heddle::collect(poll)
            } else {
                poll();
                Collected::None
            };
            if left == 0 {
                return Poll::Ready(());
            }
            // Calls that were handed over may be done, and those that are not know their waker by the next poll only.
            match collected {
                Collected::None => return Poll::Pending,
                Collected::Some => {}
                Collected::Refused => is_together = false,
            }
        }
    })
    .await;
    // SAFETY: no part is a future any more.
    let parts = unsafe { Pin::into_inner_unchecked(parts) };
    let output = |part| match part {
        Part::Done(output) => output,
        Part::Call(_) => None,
    };
    parts.into_vec().into_iter().filter_map(output).collect()
}
