//! One call that goes on by itself.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use heddle_abi::protocol::Fate;

use crate::call::caller::Caller;
use crate::call::{CallFuture, DeferredCopyOut};
use crate::error::Errno;
use crate::fs::{DescriptorTable, OpenFile};
use crate::memory::{Space, fallible};
use crate::process::{Thread, executor};
use crate::sched::TaskRef;
use crate::sync::SpinLock;
use crate::wait::node::{WaitKind, WaitNode};

/// The resources that a call works on.
struct Holds {
    space: Arc<Space>,
    descriptors: Arc<DescriptorTable>,
}

/// The state that a call has of its own, where a synchronous call uses its thread's.
pub struct AsyncRequest {
    /// The thread that made it.
    pub thread: Arc<Thread>,
    /// The resources it works on, until it ends: wait queues of its files may refer to the request for longer.
    holds: SpinLock<Option<Holds>>,
    /// The number of the system call.
    pub number: u32,
    /// The program's level for it.
    level: AtomicU8,
    /// Results that have to be stored still.
    pub late: DeferredCopyOut,
    /// The file that it is about, in place of the one that its descriptor stands for.
    file: SpinLock<Option<Arc<OpenFile>>>,
    cookie: u64,
    coroutine: u64,
    token: AtomicU64,
    /// The request in wait queues.
    pub node: Arc<WaitNode>,
    /// When its coroutine was made, and how often that was polled.
    since_ns: AtomicU64,
    polls: AtomicU64,
    pub fate: Fate,
}

impl AsyncRequest {
    /// A call of `caller`, a thread, whose result is to carry `cookie` and `coroutine`. It takes the place of `unused`,
    /// one of the same thread and the same [`calls::submit`](crate::syscall::asynchronous::calls::submit), if nobody
    /// refers to that any more.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(
        unused: Option<Arc<Self>>,
        caller: &Caller,
        (number, level): (u32, u8),
        [cookie, coroutine]: [u64; 2],
    ) -> Result<Arc<Self>, Errno> {
        if let Some(mut request) = unused
            && let Some(fields) = Arc::get_mut(&mut request)
            && fields.late.is_empty()
        {
            fields.number = number;
            *fields.level.get_mut() = level;
            fields.release_file();
            (fields.cookie, fields.coroutine) = (cookie, coroutine);
            return Ok(request);
        }
        fallible::try_arc(Self {
            thread: Arc::clone(caller),
            holds: SpinLock::new(Some(Holds { space: caller.space(), descriptors: caller.descriptors() })),
            number,
            level: AtomicU8::new(level),
            late: DeferredCopyOut::default(),
            file: SpinLock::new(None),
            cookie,
            coroutine,
            token: AtomicU64::new(0),
            node: WaitNode::new()?,
            since_ns: AtomicU64::new(0),
            polls: AtomicU64::new(0),
            fate: Fate::new(),
        })
    }

    /// The space that it works on.
    pub fn space(&self) -> Arc<Space> {
        let own = self.holds.lock().as_ref().map(|holds| holds.space.clone());
        own.unwrap_or_else(|| self.thread.space())
    }

    /// The descriptors that it works on.
    pub fn descriptors(&self) -> Arc<DescriptorTable> {
        let own = self.holds.lock().as_ref().map(|holds| holds.descriptors.clone());
        own.unwrap_or_else(|| self.thread.descriptors())
    }

    /// Gives it a table of descriptors of its own, for what it opens.
    pub fn set_descriptors(&self, descriptors: Arc<DescriptorTable>) {
        let before = {
            let mut holds = self.holds.lock();
            holds.as_mut().map(|holds| core::mem::replace(&mut holds.descriptors, descriptors))
        };
        drop(before);
    }

    /// Gives it a file, in place of the one that its first argument names.
    pub fn set_file(&self, open: Arc<OpenFile>) {
        let before = self.file.lock().replace(open);
        drop(before);
    }

    /// The file that it was given.
    pub fn file(&self) -> Option<Arc<OpenFile>> {
        self.file.lock().clone()
    }

    /// Gives that file up.
    pub fn release_file(&self) {
        let file = self.file.lock().take();
        drop(file);
    }

    /// Notes a poll of its coroutine.
    pub fn polled(&self, context: &core::task::Context<'_>) {
        self.node.set_waker(context.waker());
        self.polls.store(self.polls() + 1, Ordering::Relaxed);
    }

    /// Its coroutine begins.
    pub fn begin(&self) {
        self.since_ns.store(crate::arch::time::now_ns(), Ordering::Relaxed);
    }

    /// Gives up what it works on, at its end.
    pub fn release(&self) {
        let holds = self.holds.lock().take();
        drop(holds);
    }

    pub(super) fn token(&self) -> u64 {
        self.token.load(Ordering::Relaxed)
    }

    pub(super) fn set_token(&self, token: u64) {
        self.token.store(token, Ordering::Relaxed);
    }

    /// The program's level for it.
    pub fn level(&self) -> u8 {
        self.level.load(Ordering::Relaxed)
    }

    /// Gives it another level, from now on and for what its end makes ready.
    pub fn set_level(&self, level: u8) {
        self.level.store(level, Ordering::Relaxed);
        self.take_place();
        if let Some(task) = self.task() {
            task.set_priority(executor::priority_of(&self.thread, level), false);
        }
    }

    /// It stands by its level among those who wait for the same.
    pub fn take_place(&self) {
        self.node.set_place(executor::place_of(&self.thread, self.level()));
    }

    /// Its coroutine has been made.
    pub fn is_carried_by(&self, task: TaskRef) {
        self.take_place();
        self.node.set_waker(&task.waker());
    }

    /// Its coroutine, if it has one.
    #[must_use]
    pub fn task(&self) -> Option<TaskRef> {
        self.node.waker().and_then(TaskRef::of)
    }

    /// When it began to go on by itself.
    #[must_use]
    pub fn since_ns(&self) -> u64 {
        self.since_ns.load(Ordering::Relaxed)
    }

    /// How often its coroutine was polled.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Ends its interruptible waits.
    pub fn cancel(&self) {
        self.fate.cancel();
        self.wake();
    }

    /// Ends its waits.
    pub fn kill(&self) {
        self.fate.kill();
        self.wake();
    }

    /// Whether a wait of this kind has to end.
    #[must_use]
    pub fn is_interrupted(&self, kind: WaitKind) -> bool {
        match kind {
            WaitKind::Uninterruptible => false,
            WaitKind::Killable => self.fate.is_killed(),
            WaitKind::Interruptible => self.fate.is_cancelled(),
        }
    }

    /// Makes its coroutine ready. Before its first turn it is ready anyway.
    pub fn wake(&self) {
        self.node.wake();
    }

    /// The result as a program sees it. A restart is for signals, which end no call that goes on by itself.
    pub fn outcome(&self, result: Result<usize, Errno>) -> i64 {
        let error = match result {
            Ok(value) => return value as i64,
            Err(error) if error.is_restart() || error == Errno::EINTR => {
                if self.is_interrupted(WaitKind::Interruptible) { Errno::ECANCELED } else { Errno::EINTR }
            }
            Err(error) => error,
        };
        error.to_result() as i64
    }
}

/// The coroutine of a call that waits.
pub async fn run(request: Arc<AsyncRequest>, mut future: CallFuture) {
    request.begin();
    let result = core::future::poll_fn(|context| {
        request.polled(context);
        request.fate.work();
        let polled = future.as_mut().poll(context);
        request.fate.pause();
        polled
    })
    .await;
    // Resources of the call are given back before its result is seen.
    drop(future);
    let result =
        request.late.store(&request.space(), || request.is_interrupted(WaitKind::Killable)).await.and(result);
    let result = request.outcome(result);
    let space = request.space();
    request.release();
    let calls = &request.thread.process.asynchronous;
    loop {
        let missing = {
            let mut state = calls.state.lock();
            let (cookie, coroutine) = (request.cookie, request.coroutine);
            match state.ring.as_mut().map(|ring| ring.put(&space, cookie, coroutine, result)) {
                Some(Err(fault)) => fault,
                Some(Ok(())) | None => break,
            }
        };
        if space.fault_in_for(missing, || request.is_interrupted(WaitKind::Killable)).await.is_err() {
            // The program has unmapped its ring, and with it the result, or ends.
            break;
        }
    }
    drop(space);
    calls.leave(&request, 1);
    executor::completed(&request.thread.process, request.level());
}
