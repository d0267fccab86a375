//! Coroutines that wait for a moment: a timer wheel for each CPU, whose own timer and own coroutine look after it.

use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use heddle_kernel_core::timer_wheel::{Step, TimerKey, TimerWheel};

use crate::arch;
use crate::arch::MAX_CPUS;
use crate::arch::time::now_ns;
use crate::sync::SpinLock;

/// One CPU's timers.
struct CpuTimers {
    wheel: SpinLock<TimerWheel<Waker>>,
    /// When there is something to do, or an earlier moment, for a look without the lock; `u64::MAX` for never.
    next_ns: AtomicU64,
    /// The waker of the CPU's [`keeper`].
    keeper: spin::Once<Waker>,
}

static TIMERS: [CpuTimers; MAX_CPUS] = [const {
    CpuTimers {
        wheel: SpinLock::new(TimerWheel::new()),
        next_ns: AtomicU64::new(u64::MAX),
        keeper: spin::Once::new(),
    }
}; MAX_CPUS];

impl CpuTimers {
    /// Those of this CPU.
    fn here() -> &'static Self {
        &TIMERS[arch::cpu::id()]
    }

    /// Notes when there is something to do, and sets this CPU's timer for it.
    fn plan(&self, next_ns: u64) {
        self.next_ns.store(next_ns, Ordering::Relaxed);
        arch::time::set_timer(next_ns);
    }
}

/// Completes when the monotonic clock has reached `deadline_ns`.
#[must_use]
pub const fn sleep_until(deadline_ns: u64) -> Sleep {
    Sleep { deadline_ns, registered: None }
}

/// See [`sleep_until`]. It is polled by one coroutine.
#[derive(Debug)]
pub struct Sleep {
    deadline_ns: u64,
    /// The CPU whose timer it is, and which.
    registered: Option<(u32, TimerKey)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.deadline_ns == u64::MAX {
            // Never.
            return Poll::Pending;
        }
        if now_ns() >= self.deadline_ns {
            return Poll::Ready(());
        }
        if self.registered.is_some() {
            return Poll::Pending;
        }
        let here = CpuTimers::here();
        let mut wheel = here.wheel.lock();
        let Ok(key) = wheel.insert(self.deadline_ns, context.waker().clone()) else {
            // Without memory for a timer, look again when everyone else has had a turn.
            context.waker().wake_by_ref();
            return Poll::Pending;
        };
        let next_ns = wheel.next_ns();
        if next_ns < here.next_ns.load(Ordering::Relaxed) {
            here.plan(next_ns);
        }
        drop(wheel);
        self.registered = Some((arch::cpu::id() as u32, key));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((cpu, key)) = self.registered {
            let waker = TIMERS[cpu as usize].wheel.lock().remove(key);
            drop(waker);
        }
    }
}

/// The timer's interrupt handler: tells [`keeper`] if something is due, and sets the timer again if not.
pub fn on_timer() {
    let here = CpuTimers::here();
    let next_ns = here.next_ns.load(Ordering::Relaxed);
    if next_ns == u64::MAX {
        return;
    }
    if now_ns() < next_ns {
        arch::time::set_timer(next_ns);
    } else if let Some(waker) = here.keeper.get() {
        waker.wake_by_ref();
    }
}

/// Steps that are made before others have a turn.
const STEPS_MAX: usize = 32;

/// The coroutine of a CPU that wakes what is due and sets the timer for the next. It does what the interrupt handler
/// may not: take a lock and free memory. It must run on one CPU only.
pub async fn keeper() {
    core::future::poll_fn(|context| {
        let here = CpuTimers::here();
        here.keeper.call_once(|| context.waker().clone());
        for _ in 0..STEPS_MAX {
            let step = {
                let mut wheel = here.wheel.lock();
                let step = wheel.step(now_ns());
                if let Step::Idle(next_ns) = &step {
                    here.plan(*next_ns);
                }
                step
            };
            match step {
                Step::Due(waker) => waker.wake(),
                Step::Moved => {}
                Step::Idle(_) => return Poll::Pending,
            }
        }
        context.waker().wake_by_ref();
        Poll::<()>::Pending
    })
    .await;
}
