//! Timers and file descriptors: one reactor for the process, run by whichever core has nothing better to do.
//!
//! A core that is about to sleep takes the reactor if it is free and sleeps in it; the others sleep on their own words.
//! While all are busy, each looks into it between turns, but not more often than every [`LOOK`]. So waking mostly
//! happens on the core that runs the coroutine anyway. A thread that is no core starts a thread for it, and so does one
//! that stops running coroutines while others may count on it.

use crate::core_entry::CoreEntry;
use crate::foreign;
use crate::host::host;
use crate::os::{self, BorrowedFd, RawFd};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering, fence};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::mem;
use core::task::Waker;
use core::time::Duration;
use polling::{Event, Events, PollMode, Poller};
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread;
use std::time::Instant;
use std::vec::Vec;

/// Shortest time between two looks of a busy core.
const LOOK: Duration = Duration::from_micros(20);

/// The process's reactor.
pub(crate) struct Reactor {
    /// Another one in a forked child; none is freed.
    sleep: AtomicPtr<SleepPoller>,
    state: Mutex<ReactorState>,
}

/// The place where a thread sleeps.
struct SleepPoller {
    poller: Poller,
    events: Mutex<Events>,
}

impl SleepPoller {
    fn new() -> io::Result<*mut SleepPoller> {
        let sleep = SleepPoller { poller: Poller::new()?, events: Mutex::new(Events::new()) };
        Ok(Box::into_raw(Box::new(sleep)))
    }
}

/// Wakers are cloned before the lock around this is taken, and dropped after it is released: both may be anybody's
/// code.
struct ReactorState {
    timers: BTreeMap<(Instant, u64), Waker>,
    /// The last number that a timer or a wait was given.
    last: u64,
    /// By descriptor, which is also the key in the poller.
    sources: BTreeMap<RawFd, Source>,
    /// Until when somebody sleeps in the poller.
    sleeps: Option<Option<Instant>>,
}

/// A descriptor, and who waits for it, each by the number of the wait.
#[derive(Default)]
struct Source {
    /// How many [`Async`](crate::io::Async) have it.
    owners: usize,
    readable: Vec<(u64, Waker)>,
    writable: Vec<(u64, Waker)>,
}

impl Source {
    fn list(&mut self, writable: bool) -> &mut Vec<(u64, Waker)> {
        if writable { &mut self.writable } else { &mut self.readable }
    }

    fn waiting(&self) -> usize {
        self.readable.len() + self.writable.len()
    }
}

static REACTOR: OnceLock<Reactor> = OnceLock::new();
/// Number of timers and of waits for descriptors: nobody looks while it is 0.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reactor, if anybody uses timers or descriptors at the moment.
#[inline(always)]
pub(crate) fn active() -> Option<&'static Reactor> {
    if ACTIVE.load(Ordering::Relaxed) == 0 { None } else { REACTOR.get() }
}

/// For a thread that runs no more coroutines: who sleeps on another executor may have found the reactor in its hands,
/// so if anybody uses it, a thread of its own takes it over.
#[inline]
pub(crate) fn hand_over() {
    if REACTOR.get().is_some() {
        // Either a user is seen here, or that one finds the reactor free (`sleep_in`).
        fence(Ordering::SeqCst);
        if active().is_some() {
            start_thread();
        }
    }
}

/// Locks the reactor's lists during a fork.
#[cfg(feature = "scheduler")]
pub(crate) fn lock() -> Option<impl Sized + 'static> {
    REACTOR.get().map(|reactor| locked(&reactor.state))
}

/// In a forked child, where the thread is gone.
#[cfg(feature = "scheduler")]
pub(crate) fn start_anew() {
    HAS_THREAD.store(0, Ordering::Relaxed);
    if let Some(reactor) = REACTOR.get() {
        reactor.start_anew();
        if active().is_some() && (host().is_some() || crate::threads::here().is_none()) {
            start_thread();
        }
    }
}

/// 1: a thread of its own runs the reactor.
static HAS_THREAD: AtomicUsize = AtomicUsize::new(0);

/// Starts a thread for the reactor, if there is none yet.
#[cold]
fn start_thread() {
    if HAS_THREAD.swap(1, Ordering::Relaxed) == 0 {
        let run = || {
            loop {
                if !get().is_ok_and(|reactor| reactor.try_run(None)) {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        };
        // Without the thread the waiter is woken as soon as an executor sleeps.
        let _ = thread::Builder::new().name("heddle-reactor".into()).spawn(run);
    }
}

/// Ends the sleep of whoever sleeps in the reactor.
pub(crate) fn notify() {
    if let Some(reactor) = REACTOR.get() {
        let _ = reactor.sleep().poller.notify();
    }
}

/// The reactor; the first caller makes it.
pub(crate) fn get() -> io::Result<&'static Reactor> {
    if let Some(reactor) = REACTOR.get() {
        return Ok(reactor);
    }
    let reactor = Reactor {
        sleep: AtomicPtr::new(SleepPoller::new()?),
        state: Mutex::new(ReactorState {
            timers: BTreeMap::new(),
            last: 0,
            sources: BTreeMap::new(),
            sleeps: None,
        }),
    };
    Ok(REACTOR.get_or_init(|| reactor))
}

/// When a busy core last looked.
pub(crate) struct Looked(Option<Instant>);

impl Looked {
    pub const fn new() -> Looked {
        Looked(None)
    }

    /// Between turns: shows the host what is ready, which `settle` works out, and looks into the reactor if it is time
    /// to.
    #[inline(always)]
    pub fn look(&mut self, settle: &dyn Fn() -> u64) {
        if let Some(host) = host() {
            return host.before_turn(settle);
        }
        if let Some(reactor) = active() {
            self.look_into(reactor);
        }
    }

    #[cold]
    fn look_into(&mut self, reactor: &Reactor) {
        let now = Instant::now();
        if self.0.is_none_or(|last| now.duration_since(last) >= LOOK) {
            self.0 = Some(now);
            reactor.try_run(Some(Duration::ZERO));
        }
    }
}

impl ReactorState {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl Reactor {
    fn sleep(&self) -> &'static SleepPoller {
        #[allow(unsafe_code)]
        // SAFETY: made by `Sleep::new`, and never freed.
        unsafe {
            &*self.sleep.load(Ordering::Acquire)
        }
    }

    #[cfg(feature = "scheduler")]
    /// In a forked child: the kernel's object is shared with the parent, and somebody who is gone may sleep in it.
    fn start_anew(&self) {
        let Ok(sleep) = SleepPoller::new() else { return };
        self.sleep.store(sleep, Ordering::Release);
        let mut state = locked(&self.state);
        state.sleeps = None;
        for (&fd, source) in &state.sources {
            // A descriptor that has been closed since says nothing.
            let _ = self.add_to_poller(fd).and_then(|()| self.arm(fd, source));
        }
        let active = state.timers.len() + state.sources.values().map(Source::waiting).sum::<usize>();
        ACTIVE.store(active, Ordering::Relaxed);
    }

    /// Waits up to `limit` for the first timer or descriptor, and wakes whom they concern. `false` if another thread
    /// is doing so.
    pub fn try_run(&self, limit: Option<Duration>) -> bool {
        let sleep = self.sleep();
        let mut events = match sleep.events.try_lock() {
            Ok(events) => events,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let now = Instant::now();
        let timeout = {
            let mut state = locked(&self.state);
            let first = state.timers.keys().next().map(|timer| timer.0.saturating_duration_since(now));
            let timeout = first.into_iter().chain(limit).min();
            state.sleeps = Some(timeout.map(|timeout| now + timeout));
            timeout
        };
        events.clear();
        // An error (a signal, say) is no event; whoever called looks again.
        let _ = sleep.poller.wait(&mut events, timeout);
        let mut wakers = Vec::new();
        let mut state = locked(&self.state);
        state.sleeps = None;
        for event in events.iter() {
            let fd = event.key as RawFd;
            let Some(source) = state.sources.get_mut(&fd) else { continue };
            if event.readable {
                wakers.extend(source.readable.drain(..).map(|wait| wait.1));
            }
            if event.writable {
                wakers.extend(source.writable.drain(..).map(|wait| wait.1));
            }
            // Interest is used up by an event; what is still waited for is asked again.
            if source.waiting() != 0 {
                let _ = self.arm(fd, source);
            }
            self.forget_if_unused(&mut state, fd);
        }
        let now = Instant::now();
        while let Some(timer) = state.timers.first_entry().filter(|timer| timer.key().0 <= now) {
            wakers.push(timer.remove());
        }
        drop(state);
        // A waker may sleep in the reactor itself.
        drop(events);
        ACTIVE.fetch_sub(wakers.len(), Ordering::Relaxed);
        wakers.into_iter().for_each(foreign::wake);
        true
    }

    /// Wakes `waker` at `when`; returns the timer's key.
    pub fn add_timer(&self, when: Instant, waker: &Waker) -> (Instant, u64) {
        let waker = waker.clone();
        let mut state = locked(&self.state);
        let key = (when, state.number());
        state.timers.insert(key, waker);
        let late = state.sleeps.is_some_and(|until| until.is_none_or(|until| until > when));
        drop(state);
        self.count_one();
        if late {
            let _ = self.sleep().poller.notify();
        }
        key
    }

    /// Whether the timer `key` has not fired; then it wakes `waker`.
    pub fn refresh_timer(&self, key: (Instant, u64), waker: &Waker) -> bool {
        let mut waker = waker.clone();
        let mut state = locked(&self.state);
        let place = state.timers.get_mut(&key);
        let waits = place.is_some();
        if let Some(place) = place {
            mem::swap(place, &mut waker);
        }
        drop(state);
        waits
    }

    /// Removes a timer, if it has not fired.
    pub fn remove_timer(&self, key: (Instant, u64)) {
        let removed = locked(&self.state).timers.remove(&key);
        if removed.is_some() {
            ACTIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn count_one(&self) {
        ACTIVE.fetch_add(1, Ordering::Relaxed);
        // A thread that sleeps in the host does not sleep here.
        if crate::threads::here().is_none() || host().is_some() {
            start_thread();
        }
    }

    /// Registers a descriptor, which stays open until [`Reactor::remove_source`].
    pub fn add_source(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let fd = os::raw(fd);
        let mut state = locked(&self.state);
        if !state.sources.contains_key(&fd) {
            match self.add_to_poller(fd) {
                // Left there by a wait that is over.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                added => added?,
            }
        }
        state.sources.entry(fd).or_default().owners += 1;
        Ok(())
    }

    #[allow(unsafe_code)]
    fn add_to_poller(&self, fd: RawFd) -> io::Result<()> {
        // SAFETY: a descriptor of `add_source` is deleted from the poller by `remove_source` before its owner closes
        // it; one that is only waited for is not armed any more when its wait is over, before its owner may close it.
        unsafe { self.sleep().poller.add_with_mode(fd, Event::none(fd as usize), PollMode::Oneshot) }
    }

    /// Takes back [`Reactor::add_source`]. Whoever waited for it as its owner does so no more.
    pub fn remove_source(&self, fd: BorrowedFd<'_>) {
        let mut state = locked(&self.state);
        let Some(source) = state.sources.get_mut(&os::raw(fd)) else { return };
        source.owners -= 1;
        if source.owners == 0 && source.waiting() == 0 {
            let _ = self.sleep().poller.delete(fd);
            state.sources.remove(&os::raw(fd));
        }
    }

    /// Wakes `waker` when the descriptor `fd` is readable, or else writable, on behalf of the wait `number`, which is 0
    /// before the first call; returns the number. The descriptor stays open until [`Reactor::unwatch`], unless that has
    /// nothing to take back any more.
    pub fn watch(&self, fd: RawFd, writable: bool, number: u64, waker: &Waker) -> io::Result<u64> {
        let waker = waker.clone();
        let mut state = locked(&self.state);
        let number = if number == 0 { state.number() } else { number };
        let source = state.sources.entry(fd).or_default();
        let list = source.list(writable);
        let old = match list.iter_mut().find(|wait| wait.0 == number) {
            Some(wait) => Some(mem::replace(&mut wait.1, waker)),
            None => {
                list.push((number, waker));
                None
            }
        };
        let armed = match self.arm(fd, source) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.add_to_poller(fd).and_then(|()| self.arm(fd, source))
            }
            armed => armed,
        };
        drop(state);
        if old.is_none() {
            self.count_one();
        }
        drop(old);
        if let Err(error) = armed {
            self.unwatch(fd, writable, number);
            return Err(error);
        }
        Ok(number)
    }

    /// Ends the wait `number`, if nothing has come.
    pub fn unwatch(&self, fd: RawFd, writable: bool, number: u64) {
        let mut state = locked(&self.state);
        let Some(source) = state.sources.get_mut(&fd) else { return };
        let list = source.list(writable);
        let Some(position) = list.iter().position(|wait| wait.0 == number) else { return };
        let removed = list.swap_remove(position);
        self.forget_if_unused(&mut state, fd);
        drop(state);
        ACTIVE.fetch_sub(1, Ordering::Relaxed);
        drop(removed);
    }

    /// Whether the wait `number` has had no event yet.
    #[cfg(any(not(unix), heddle_portable))]
    pub fn is_watched(&self, fd: RawFd, writable: bool, number: u64) -> bool {
        let mut state = locked(&self.state);
        let list = state.sources.get_mut(&fd).map(|source| source.list(writable));
        list.is_some_and(|list| list.iter().any(|wait| wait.0 == number))
    }

    /// Forgets a descriptor that nobody has or waits for. Where closing it is enough for the poller, that keeps it,
    /// disarmed, until then.
    fn forget_if_unused(&self, state: &mut ReactorState, fd: RawFd) {
        if state.sources.get(&fd).is_some_and(|source| source.owners == 0 && source.waiting() == 0) {
            state.sources.remove(&fd);
            if !os::CLOSING_FORGETS {
                #[allow(unsafe_code)]
                // SAFETY: whoever waited for it keeps it open until the wait has ended, which is now.
                let _ = self.sleep().poller.delete(unsafe { os::borrow_raw(fd) });
            }
        }
    }

    /// Tells the poller what is waited for.
    fn arm(&self, fd: RawFd, source: &Source) -> io::Result<()> {
        let interest = Event::new(fd as usize, !source.readable.is_empty(), !source.writable.is_empty());
        #[allow(unsafe_code)]
        // SAFETY: a registered descriptor is open, see `add_to_poller`.
        let fd = unsafe { os::borrow_raw(fd) };
        self.sleep().poller.modify_with_mode(fd, interest, PollMode::Oneshot)
    }
}

/// Sleeps in the reactor on behalf of `entry`, if somebody uses it and no other thread does. `false` if not.
pub(crate) fn sleep_in(entry: &CoreEntry, limit: Option<Duration>, kicked: impl FnOnce() -> bool) -> bool {
    let Some(reactor) = active() else { return false };
    entry.polling.store(1, Ordering::Relaxed);
    // See `hand_over`.
    fence(Ordering::SeqCst);
    // The look at the parker's word comes after, so a kick is seen there or ends the wait.
    let done = kicked() || reactor.try_run(limit);
    entry.polling.store(0, Ordering::Relaxed);
    done
}
