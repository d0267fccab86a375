//! The scheduler: every task, thread of a program or kernel work, is a coroutine with one of 64 priority levels.
//!
//! Level 0 is the most urgent. A level's queue is FIFO. See [`priority`] for what each level is for. The kernel is
//! cooperative: a coroutine runs until its future returns `Pending`. Programs are preempted: the timer interrupt
//! returns control to the thread's coroutine, which asks [`should_yield`] and, if so, awaits [`preempted`].

mod parameters;
pub mod priority;
mod slice;
mod task;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll};

use crate::arch;
use crate::error::Errno;
use crate::sync::SpinLock;

pub use parameters::{Parameters, Policy};
pub use priority::Priority;
pub use slice::{SLICE_NS, Slice};
pub use task::TaskRef;

/// Ready coroutines, by level.
struct ReadyQueues {
    levels: [VecDeque<Arc<task::Task>>; Priority::COUNT],
    bitmap: u64,
}

static READY: SpinLock<ReadyQueues> =
    SpinLock::new(ReadyQueues { levels: [const { VecDeque::new() }; Priority::COUNT], bitmap: 0 });

/// Mirror of the bitmap of [`READY`], so that [`should_yield`] takes no lock.
static READY_BITMAP: AtomicU64 = AtomicU64::new(0);

/// Creates a coroutine and makes it ready.
///
/// # Errors
/// `ENOMEM`.
pub fn spawn(
    priority: Priority,
    future: impl Future<Output = ()> + Send + 'static,
) -> Result<TaskRef, Errno> {
    let task = task::Task::new(priority, crate::memory::fallible::try_box(future)?)?;
    let reference = TaskRef(task.clone());
    task.wake_by_ref();
    Ok(reference)
}

/// Runs ready coroutines on this CPU, most urgent first, and halts when there are none. Every CPU ends up here.
pub fn run_cpu() -> ! {
    loop {
        match pop() {
            Some(task) => task.poll(),
            None => arch::cpu::idle(),
        }
    }
}

/// Whether a thread of this level should give way at this moment: something at least as urgent is ready.
#[must_use]
pub fn should_yield(priority: Priority) -> bool {
    READY_BITMAP.load(Ordering::Relaxed) & priority.at_least_as_urgent() != 0
}

/// Whether something more urgent than this level is ready.
#[must_use]
pub fn is_more_urgent_ready(priority: Priority) -> bool {
    READY_BITMAP.load(Ordering::Relaxed) & priority.more_urgent() != 0
}

/// Called by the timer interrupt: wakes what is due. The preempted thread then asks [`should_yield`].
pub fn on_timer() {
    crate::time::on_timer();
}

/// Goes to the end of the coroutine's level once.
pub fn yield_now() -> impl Future<Output = ()> {
    YieldNow { yielded: false }
}

/// What a thread awaits when its slice is over.
pub fn preempted() -> impl Future<Output = ()> {
    yield_now()
}

struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

fn push(task: Arc<task::Task>) {
    let mut ready = READY.lock();
    let level = task.priority().level();
    ready.levels[level].push_back(task);
    ready.bitmap |= 1 << level;
    READY_BITMAP.store(ready.bitmap, Ordering::Release);
}

fn pop() -> Option<Arc<task::Task>> {
    if READY_BITMAP.load(Ordering::Acquire) == 0 {
        return None;
    }
    let mut ready = READY.lock();
    let level = (ready.bitmap != 0).then(|| ready.bitmap.trailing_zeros() as usize)?;
    let task = ready.levels[level].pop_front();
    if ready.levels[level].is_empty() {
        ready.bitmap &= !(1 << level);
        READY_BITMAP.store(ready.bitmap, Ordering::Release);
    }
    task
}
