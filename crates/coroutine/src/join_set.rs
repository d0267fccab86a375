//! Coroutines that are awaited together, in the order in which they end.

use crate::builder::{Builder, SpawnError};
use crate::foreign;
use crate::handle::JoinHandle;
use crate::lock::Lock;
use crate::task::JoinError;
use crate::threads;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

/// Coroutines with one type of output, awaited as they end. Dropping the set aborts those that are left.
pub struct JoinSet<T> {
    /// By number; `None` where none is any more.
    handles: Vec<Option<JoinHandle<T>>>,
    /// Numbers not in use.
    free: Vec<usize>,
    /// One that has ended, or is in its last turn, and whose output is taken next.
    next: Option<usize>,
    ended: Arc<Lock<Ended>>,
}

struct Ended {
    numbers: VecDeque<usize>,
    /// Of whoever awaits the next.
    waker: Option<Waker>,
}

/// Tells the set of the end of a coroutine, however it ends.
struct Tell {
    ended: Arc<Lock<Ended>>,
    number: usize,
}

impl Drop for Tell {
    fn drop(&mut self) {
        let waker = self.ended.with(|ended| {
            ended.numbers.push_back(self.number);
            ended.waker.take()
        });
        waker.into_iter().for_each(foreign::wake);
    }
}

impl<T: Send + 'static> JoinSet<T> {
    /// An empty set.
    pub fn new() -> JoinSet<T> {
        let ended = Arc::new(Lock::new(Ended { numbers: VecDeque::new(), waker: None }));
        JoinSet { handles: Vec::new(), free: Vec::new(), next: None, ended }
    }

    /// Spawns `future` at the default priority on the executor on which the caller runs.
    ///
    /// # Panics
    /// Outside of an executor, or if there is no memory; see [`JoinSet::try_spawn`].
    pub fn spawn<F: Future<Output = T> + Send + 'static>(&mut self, future: F) {
        self.try_spawn(Builder::new(), future).expect("spawn");
    }

    /// Spawns `future` as `builder` says on the executor on which the caller runs.
    ///
    /// # Errors
    /// There is no memory, or no executor.
    pub fn try_spawn<F>(&mut self, builder: Builder, future: F) -> Result<(), SpawnError>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let number = self.free.pop().unwrap_or(self.handles.len());
        let tell = Tell { ended: self.ended.clone(), number };
        let spawned = threads::try_spawn(builder, async move {
            let _tell = tell;
            future.await
        });
        match spawned {
            Ok(handle) => {
                if number == self.handles.len() {
                    self.handles.push(None);
                }
                self.handles[number] = Some(handle);
                Ok(())
            }
            Err(error) => {
                // A future that was not spawned has reported its end.
                self.ended.with(|ended| ended.numbers.retain(|other| *other != number));
                if number < self.handles.len() {
                    self.free.push(number);
                }
                Err(error)
            }
        }
    }

    /// The output of the next that ends, or has; `None` if none is left. May be dropped and called again.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        if self.is_empty() {
            return Poll::Ready(None);
        }
        let mut waker = Some(cx.waker().clone());
        let next = self.next.or_else(|| {
            self.ended.with(|ended| {
                let number = ended.numbers.pop_front();
                if number.is_none() {
                    // The former one is dropped outside of the lock.
                    core::mem::swap(&mut ended.waker, &mut waker);
                }
                number
            })
        });
        self.next = next;
        let Some(number) = next else { return Poll::Pending };
        let Some(place) = self.handles.get_mut(number) else { return Poll::Pending };
        let Some(handle) = place else { return Poll::Pending };
        let output = Pin::new(handle).poll(cx);
        if output.is_ready() {
            *place = None;
            self.next = None;
            self.free.push(number);
        }
        output.map(Some)
    }
}

impl<T> JoinSet<T> {
    /// How many have not been joined.
    pub fn len(&self) -> usize {
        self.handles.len() - self.free.len()
    }

    /// Whether all have been joined.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Aborts all; they are still to be joined.
    pub fn abort_all(&self) {
        self.handles.iter().flatten().for_each(JoinHandle::abort);
    }

    /// Lets all run on, and forgets them.
    pub fn detach_all(&mut self) {
        self.handles.clear();
        self.free.clear();
        self.next = None;
        // Those tell nobody.
        self.ended = Arc::new(Lock::new(Ended { numbers: VecDeque::new(), waker: None }));
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.abort_all();
    }
}

impl<T: Send + 'static> Default for JoinSet<T> {
    fn default() -> JoinSet<T> {
        JoinSet::new()
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinSet").field("len", &self.len()).finish()
    }
}
