//! The caller of a system call: a thread, whose coroutine awaits it, or a call that goes on by itself
//! ([`AsyncRequest`]).
//!
//! Both are seen through one type, so each call has one implementation. It behaves like the thread that made the call
//! (its identity, its directories), but what a call waits in, what ends its wait, and the space and the descriptors
//! it works on are the request's own where there is one: the thread may do something else meanwhile, or end.

use alloc::sync::Arc;
use core::future::Future;
use core::ops::Deref;

use crate::call::asynchronous::AsyncRequest;
use crate::call::{Restart, SyscallResult, pending};
use crate::error::Errno;
use crate::fs::{DescriptorTable, OpenFile};
use crate::memory::Space;
use crate::memory::user::PageFault;
use crate::memory::values as user;
use crate::process::Thread;
use crate::process::futex::Donation;
use crate::sched::Budget;
use crate::wait::node::{AwaitedThread, Interrupted, WaitKind, WaitNode, Waiter};
use crate::wait::operation::{Agent, Operation, Started, WaitOptions, pace};
use crate::wait::queue::Watch;
use crate::wait::{engine, operation};

/// See the module.
#[derive(Clone)]
pub enum Caller {
    /// The thread waits for the call.
    Thread(Arc<Thread>),
    /// The call goes on by itself.
    Request(Arc<AsyncRequest>),
}

impl Deref for Caller {
    type Target = Arc<Thread>;

    #[inline]
    fn deref(&self) -> &Arc<Thread> {
        match self {
            Self::Thread(thread) => thread,
            Self::Request(request) => &request.thread,
        }
    }
}

impl Caller {
    /// The address space that the call works on.
    #[inline]
    #[must_use]
    pub fn space(&self) -> Arc<Space> {
        match self {
            Self::Thread(thread) => thread.space(),
            Self::Request(request) => request.space(),
        }
    }

    /// The descriptors that the call works on.
    #[inline]
    #[must_use]
    pub fn descriptors(&self) -> Arc<DescriptorTable> {
        match self {
            Self::Thread(thread) => thread.descriptors(),
            Self::Request(request) => request.descriptors(),
        }
    }

    /// The file that the call is about, if that is not the one of its descriptor.
    #[inline]
    #[must_use]
    pub fn given_file(&self) -> Option<Arc<OpenFile>> {
        match self {
            Self::Thread(_) => None,
            Self::Request(request) => request.file(),
        }
    }

    /// Makes the coroutine that carries the call out ready.
    pub fn wake(&self) {
        match self {
            Self::Thread(thread) => thread.wake(),
            Self::Request(request) => request.wake(),
        }
    }

    /// Stores a result of a call whose effects are done, so that it must not start again. A page that has become
    /// missing or read-only since the call looked ([`Space::probe_write`]) is brought in before the call is over.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn store_result(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Thread(thread) => thread.store_result(address, bytes),
            Self::Request(request) if request.space().write_bytes(address, bytes).is_ok() => Ok(()),
            Self::Request(request) => request.late.put(address, bytes),
        }
    }

    /// Keeps what `restart_syscall` is to do. A cancelled call is not restarted.
    pub fn set_restart(&self, restart: Restart) {
        if let Self::Thread(thread) = self {
            thread.set_restart(restart);
        }
    }

    /// Whether a wait of this kind has to end: a signal is to be delivered, or the thread is to die; or the request
    /// has been cancelled.
    #[must_use]
    pub fn is_interrupted(&self, kind: WaitKind) -> bool {
        match self {
            Self::Thread(thread) => thread.is_interrupted(kind),
            Self::Request(request) => request.is_interrupted(kind),
        }
    }

    /// Whether a call has to end, because its thread is to die.
    #[must_use]
    pub fn is_dying(&self) -> bool {
        self.is_interrupted(WaitKind::Killable)
    }

    /// Repeats an access to user memory until it needs no page that is missing.
    ///
    /// # Errors
    /// `EFAULT`; `ENOMEM`, which nobody sees.
    pub async fn resolve<T>(&self, access: impl FnMut(&Space) -> Result<T, PageFault>) -> Result<T, Errno> {
        user::resolve_for(&self.space(), || self.is_dying(), access).await
    }

    /// Awaits `future` until it completes or the wait is interrupted: see [`engine::wait`].
    ///
    /// # Errors
    /// [`Interrupted`]; the future is dropped then.
    pub async fn wait<F: Future>(&self, kind: WaitKind, future: F) -> Result<F::Output, Interrupted> {
        engine::wait(self, kind, future).await
    }

    /// Waits until `check` gives an answer: see [`engine::answer`].
    ///
    /// # Errors
    /// The error of `check`, or `ERESTARTSYS` when interrupted.
    pub async fn wait_until<T>(
        &self,
        kind: WaitKind,
        check: impl FnMut(&Watch) -> Result<Option<T>, Errno>,
    ) -> Result<T, Errno> {
        let Self::Thread(thread) = self else { return engine::answer(self, kind, check).await };
        thread.set_waits_killably(kind == WaitKind::Killable);
        let result = engine::answer(self, kind, check).await;
        thread.set_waits_killably(false);
        result
    }

    /// A step of work whose amount the program chooses: see [`pace`].
    ///
    /// # Errors
    /// `EINTR`: the thread is to die.
    #[inline]
    pub async fn pace(&self, budget: &mut Budget, cost: u32) -> Result<(), Errno> {
        pace(self, budget, cost).await
    }
}

impl Waiter for Caller {
    fn node(&self) -> &Arc<WaitNode> {
        match self {
            Self::Thread(thread) => thread.node(),
            Self::Request(request) => &request.node,
        }
    }

    fn is_interrupted(&self, kind: WaitKind) -> bool {
        Self::is_interrupted(self, kind)
    }

    fn is_withdrawn(&self) -> bool {
        matches!(self, Self::Request(request) if request.is_interrupted(WaitKind::Interruptible))
    }

    type Donation = Donation;

    fn donate(&self, server: AwaitedThread) -> Option<Donation> {
        match self {
            Self::Thread(thread) => Donation::begin(thread, server),
            Self::Request(_) => None,
        }
    }
}

impl Agent for Caller {
    fn try_fault_in(&self, fault: PageFault) -> Option<Result<(), Errno>> {
        let tried = self.space().try_fault_in(fault);
        if tried == Some(Ok(())) {
            self.count_fault();
        }
        tried
    }

    async fn fault_in(&self, fault: PageFault) -> Result<(), Errno> {
        let space = self.space();
        space.fault_in_for(fault, || self.is_dying()).await.inspect(|()| self.count_fault())
    }
}

/// Carries an operation out for a system call: at once if it can be done, else as a future.
pub fn carry_out(caller: &Caller, options: WaitOptions, operation: impl Operation) -> SyscallResult {
    match operation::carry_out(caller, options, operation) {
        Started::Finished(result) => Ok(result?.into()),
        Started::Waits(future) => pending(future),
    }
}
