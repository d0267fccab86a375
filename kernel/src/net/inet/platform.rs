//! The kernel as the TCP/IP engine sees it.

use alloc::sync::{Arc, Weak};
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use core::task::Poll;
use heddle_inet::engine::Engine;
use heddle_inet::interface::LOOPBACK_INDEX;
use heddle_inet::platform::{OutOfMemory, Platform, Readiness, Waiters};
use heddle_inet::tcp::{TcpSocket, Work};
use heddle_kernel_core::netlink::InterfaceKind;

use crate::arch::cpu;
use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::memory::fallible;
use crate::net::packet::registry::{Checksums, Frame, PacketKind, PacketRegistry};
use crate::process::{Thread, running};
use crate::sched::{Priority, TaskRef};
use crate::sync::SpinLock;
use crate::wait::node::{AwaitedThread, ThreadMark};
use crate::wait::queue::{Events, WaitQueue};
use crate::{random, sched, time};

/// The kernel.
pub struct Kernel;

/// Those who wait for a socket.
pub struct SocketWaiters {
    /// Where they wait.
    pub queue: WaitQueue,
    /// The coroutine that does the protocol's work of a connection over the link, and its level.
    worker: SpinLock<Option<TaskRef>>,
    has_worker: AtomicBool,
    level: AtomicU16,
    has_work: AtomicBool,
    /// The mark of the thread that accepted the connection, or received from it last.
    server: AtomicU64,
}

impl SocketWaiters {
    /// A thread waits for the connection, or works on it: the protocol's work is done at its level.
    #[inline]
    pub fn used_by(&self, thread: &Thread) {
        if self.has_worker.load(Ordering::Relaxed) {
            self.set_level(thread.priority());
        }
    }

    /// The thread that runs serves what is sent here.
    #[inline]
    pub fn set_server(&self) {
        self.server.store(running::mark().0, Ordering::Relaxed);
    }

    /// The thread that serves what is sent here, whom a client awaits.
    pub fn server(&self) -> AwaitedThread {
        AwaitedThread { mark: ThreadMark(self.server.load(Ordering::Relaxed)), is_chosen: true }
    }

    fn set_level(&self, priority: Priority) {
        let bits = priority.to_bits();
        if self.level.load(Ordering::Relaxed) == bits {
            return;
        }
        self.level.store(bits, Ordering::Relaxed);
        let worker = *self.worker.lock();
        if let Some(worker) = worker {
            worker.set_priority(priority, false);
        }
    }
}

/// Readiness as poll(2) says it.
pub fn events(ready: Readiness) -> Events {
    let mut events = Events::empty();
    events.set(Events::IN | Events::RDNORM, ready.contains(Readiness::IN));
    events.set(Events::OUT | Events::WRNORM, ready.contains(Readiness::OUT));
    events.set(Events::ERR, ready.contains(Readiness::ERROR));
    events.set(Events::HUP, ready.contains(Readiness::HANG_UP));
    events.set(Events::RDHUP, ready.contains(Readiness::READ_HANG_UP));
    events.set(Events::PRI, ready.contains(Readiness::PRIORITY));
    events
}

impl Waiters for SocketWaiters {
    fn wake(&self, ready: Readiness) {
        self.queue.wake(events(ready));
    }

    fn work(&self) {
        self.has_work.store(true, Ordering::Release);
        let worker = *self.worker.lock();
        if let Some(worker) = worker {
            worker.wake();
        }
    }

    fn follow(&self, listener: &Self) {
        self.server.store(listener.server.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Platform for Kernel {
    type Waiters = SocketWaiters;
    type Alarm = EngineAlarm;

    fn now_ns() -> u64 {
        time::now_ns()
    }

    fn random(bytes: &mut [u8]) {
        random::fill(bytes);
    }

    fn reserved<R>(bytes: usize, make: impl FnOnce() -> R) -> Result<R, OutOfMemory> {
        if bytes > PAGE_SIZE {
            return Err(OutOfMemory);
        }
        fallible::reserved(1, make).map_err(|_| OutOfMemory)
    }

    #[inline]
    fn stripe() -> usize {
        cpu::id()
    }

    fn waiters() -> Result<Arc<SocketWaiters>, OutOfMemory> {
        let waiters = SocketWaiters {
            queue: WaitQueue::new(),
            worker: SpinLock::new(None),
            has_worker: AtomicBool::new(false),
            level: AtomicU16::new(Priority::NORMAL.to_bits()),
            has_work: AtomicBool::new(false),
            server: AtomicU64::new(ThreadMark::NOBODY.0),
        };
        fallible::try_arc(waiters).map_err(|_| OutOfMemory)
    }

    fn tick_at(alarm: &EngineAlarm, moment_ns: u64) {
        if moment_ns < alarm.state.next_ns.load(Ordering::Acquire) {
            alarm.state.wake();
        }
    }

    #[inline]
    fn watches_loopback(alarm: &EngineAlarm) -> bool {
        alarm.packets.is_watched()
    }

    fn show_on_loopback(alarm: &EngineAlarm, frame: &[u8]) {
        for kind in [PacketKind::Outgoing, PacketKind::Host] {
            let checksums = Checksums::Right;
            let hardware = InterfaceKind::Loopback.number();
            let frame = Frame { bytes: frame, interface: LOOPBACK_INDEX, hardware, kind, checksums };
            alarm.packets.offer(&frame, None);
        }
    }

    fn start_worker(socket: Arc<TcpSocket<Self>>) -> Result<(), OutOfMemory> {
        let waiters = socket.waiters().clone();
        waiters.has_work.store(true, Ordering::Release);
        let level = Priority::from_bits(waiters.level.load(Ordering::Relaxed));
        let worker = sched::spawn(level, serve(socket)).map_err(|_| OutOfMemory)?;
        *waiters.worker.lock() = Some(worker);
        waiters.has_worker.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Does the protocol's work of a connection over the link, until it is over.
async fn serve(socket: Arc<TcpSocket<Kernel>>) {
    let mut until_ns = u64::MAX;
    let mut sleep = time::sleep_until(until_ns);
    poll_fn(|context| {
        loop {
            let has_work = socket.waiters().has_work.swap(false, Ordering::AcqRel);
            if !has_work && Pin::new(&mut sleep).poll(context).is_pending() {
                return Poll::Pending;
            }
            match socket.work() {
                Work::Over => return Poll::Ready(()),
                // A tick that is due at once lets others run first.
                Work::At(Some(next_ns)) if next_ns > time::now_ns() => {
                    if next_ns != until_ns {
                        until_ns = next_ns;
                        sleep = time::sleep_until(next_ns);
                    }
                }
                Work::At(None) => {
                    until_ns = u64::MAX;
                    sleep = time::sleep_until(until_ns);
                }
                Work::Again | Work::At(Some(_)) => {
                    socket.waiters().has_work.store(true, Ordering::Release);
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    })
    .await;
}

/// The alarm of an engine: it has the engine called when something is due, and ends with it.
pub struct EngineAlarm {
    state: Arc<AlarmState>,
    /// Those who look at what is on the loopback.
    packets: Arc<PacketRegistry>,
}

struct AlarmState {
    /// The coroutine that calls the engine, and when it will.
    ticker: spin::Once<TaskRef>,
    next_ns: AtomicU64,
}

impl AlarmState {
    fn wake(&self) {
        if let Some(ticker) = self.ticker.get() {
            ticker.wake();
        }
    }
}

impl Drop for EngineAlarm {
    fn drop(&mut self) {
        // It finds that there is no engine any more.
        self.state.wake();
    }
}

/// Makes an engine, and what calls it.
///
/// # Errors
/// `ENOMEM`.
pub fn start(packets: Arc<PacketRegistry>) -> Result<Arc<Engine<Kernel>>, Errno> {
    let state = AlarmState { ticker: spin::Once::new(), next_ns: AtomicU64::new(u64::MAX) };
    let state = fallible::try_arc(state)?;
    let engine = Engine::new(EngineAlarm { state: state.clone(), packets }).map_err(|_| Errno::ENOMEM)?;
    let ticker = sched::spawn(Priority::KERNEL, tick(Arc::downgrade(&engine), state.clone()))?;
    state.ticker.call_once(|| ticker);
    Ok(engine)
}

/// Calls the engine whenever something is due, as long as there is one.
async fn tick(engine: Weak<Engine<Kernel>>, alarm: Arc<AlarmState>) {
    let mut until_ns = u64::MAX;
    let mut sleep = time::sleep_until(until_ns);
    poll_fn(|context| {
        loop {
            let Some(engine) = engine.upgrade() else { return Poll::Ready(()) };
            let next_ns = engine.tick().unwrap_or(u64::MAX);
            // It may be the last to know the engine; then the alarm wakes it once more.
            drop(engine);
            alarm.next_ns.store(next_ns, Ordering::Release);
            if next_ns != until_ns {
                until_ns = next_ns;
                sleep = time::sleep_until(next_ns);
            }
            if Pin::new(&mut sleep).poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}
