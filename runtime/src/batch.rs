//! Several calls with one entry into the kernel.

use crate::heddle;
use core::future::{Future, poll_fn};
use core::task::Poll;

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
    let mut waiting: Vec<_> = calls.into_iter().map(|call| Some(Box::pin(call))).collect();
    let mut outputs: Vec<Option<F::Output>> = waiting.iter().map(|_| None).collect();
    let mut left = waiting.len();
    poll_fn(|context| {
        loop {
            let some_done = heddle::collect(|| {
                for (call, output) in waiting.iter_mut().zip(&mut outputs) {
                    let polled = call.as_mut().map(|call| call.as_mut().poll(context));
                    if let Some(Poll::Ready(ready)) = polled {
                        (*call, *output) = (None, Some(ready));
                        left -= 1;
                    }
                }
            });
            if left == 0 {
                return Poll::Ready(());
            }
            if !some_done {
                return Poll::Pending;
            }
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
