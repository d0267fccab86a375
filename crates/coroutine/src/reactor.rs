//! Timers and file descriptors: one reactor for the process, run by whichever core has nothing better to do.
//!
//! A core that is about to sleep takes the reactor if it is free and sleeps in it; the others sleep on their own words.
//! While all are busy, each looks into it between turns, but not more often than every [`LOOK`]. So waking mostly
//! happens on the core that runs the coroutine anyway. A thread that is no core starts a thread for it, and so does one
//! that stops running coroutines while others may count on it.

use crate::core_entry::CoreEntry;
use crate::host::host;
use crate::sync::{AtomicPtr, AtomicUsize, Ordering, fence};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::task::Waker;
use core::time::Duration;
use polling::{Event, Events, PollMode, Poller};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;
use std::vec::Vec;

/// Shortest time between two looks of a busy core.
const LOOK: Duration = Duration::from_micros(20);

/// In the keys of descriptors that nobody owns as an [`Async`](crate::io::Async): the bit beside the number.
const RAW: usize = 1 << 40;

/// The process's reactor.
pub(crate) struct Reactor {
    /// Another one in a forked child; none is freed.
    sleep: AtomicPtr<Sleep>,
    state: Mutex<State>,
    /// Number of timers and waiting sources: nobody looks while it is 0.
    active: AtomicUsize,
}

/// What a thread sleeps in.
struct Sleep {
    poller: Poller,
    events: Mutex<Events>,
}

impl Sleep {
    fn new() -> io::Result<*mut Sleep> {
        let sleep = Sleep { poller: Poller::new()?, events: Mutex::new(Events::new()) };
        Ok(Box::into_raw(Box::new(sleep)))
    }
}

struct State {
    timers: BTreeMap<(Instant, u64), Waker>,
    next_timer: u64,
    sources: BTreeMap<usize, Source>,
    next_source: usize,
    /// Until when somebody sleeps in the poller.
    sleeps: Option<Option<Instant>>,
}

#[derive(Default)]
struct Source {
    fd: i32,
    readable: Vec<Waker>,
    writable: Vec<Waker>,
}

static REACTOR: OnceLock<Reactor> = OnceLock::new();

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reactor, if anybody uses timers or descriptors at the moment.
#[inline(always)]
pub(crate) fn active() -> Option<&'static Reactor> {
    REACTOR.get().filter(|reactor| reactor.active.load(Ordering::Relaxed) != 0)
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
pub(crate) fn lock() -> Option<impl Sized + 'static> {
    REACTOR.get().map(|reactor| locked(&reactor.state))
}

/// In a forked child, where the thread is gone.
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
        sleep: AtomicPtr::new(Sleep::new()?),
        state: Mutex::new(State {
            timers: BTreeMap::new(),
            next_timer: 0,
            sources: BTreeMap::new(),
            next_source: 1,
            sleeps: None,
        }),
        active: AtomicUsize::new(0),
    };
    Ok(REACTOR.get_or_init(|| reactor))
}

/// When a busy core last looked.
pub(crate) struct Looked(Option<Instant>);

impl Looked {
    pub const fn new() -> Looked {
        Looked(None)
    }

    /// Between turns of `entry`: shows the host what is ready, and looks into the reactor if it is time to.
    #[inline(always)]
    pub fn look(&mut self, entry: &CoreEntry) {
        if let Some(host) = host() {
            return host.before_turn(entry.state.ready().bitmap());
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

impl Reactor {
    fn sleep(&self) -> &'static Sleep {
        #[allow(unsafe_code)]
        // SAFETY: made by `Sleep::new`, and never freed.
        unsafe {
            &*self.sleep.load(Ordering::Acquire)
        }
    }

    /// In a forked child: the kernel's object is shared with the parent, and somebody who is gone may sleep in it.
    fn start_anew(&self) {
        let Ok(sleep) = Sleep::new() else { return };
        self.sleep.store(sleep, Ordering::Release);
        let mut state = locked(&self.state);
        state.sleeps = None;
        for (&key, source) in &state.sources {
            if key & RAW == 0 || !source.readable.is_empty() || !source.writable.is_empty() {
                #[allow(unsafe_code)]
                // SAFETY: its owner keeps it open, see `add_to_poller` and `watch_raw`.
                let fd = unsafe { BorrowedFd::borrow_raw(source.fd) };
                // A descriptor that has been closed since says nothing.
                let _ = self.add_to_poller(fd, key).and_then(|()| self.arm(key, source));
            }
        }
        let waiting = |source: &Source| source.readable.len() + source.writable.len();
        let active = state.timers.len() + state.sources.values().map(waiting).sum::<usize>();
        self.active.store(active, Ordering::Relaxed);
    }

    /// Waits up to `limit` for the first timer or descriptor, and wakes whom they concern. `false` if another thread
    /// is doing so.
    pub fn try_run(&self, limit: Option<Duration>) -> bool {
        let sleep = self.sleep();
        let Ok(mut events) = sleep.events.try_lock() else { return false };
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
            let Some(source) = state.sources.get_mut(&event.key) else { continue };
            if event.readable {
                wakers.append(&mut source.readable);
            }
            if event.writable {
                wakers.append(&mut source.writable);
            }
            // Interest is used up by an event; what is still waited for is asked again.
            if !source.readable.is_empty() || !source.writable.is_empty() {
                let _ = self.arm(event.key, source);
            }
        }
        let now = Instant::now();
        while let Some(timer) = state.timers.first_entry().filter(|timer| timer.key().0 <= now) {
            wakers.push(timer.remove());
        }
        drop(state);
        self.active.fetch_sub(wakers.len(), Ordering::Relaxed);
        wakers.into_iter().for_each(Waker::wake);
        true
    }

    /// Wakes `waker` at `when`; returns the timer's key.
    pub fn add_timer(&self, when: Instant, waker: &Waker) -> (Instant, u64) {
        let mut state = locked(&self.state);
        let key = (when, state.next_timer);
        state.next_timer += 1;
        state.timers.insert(key, waker.clone());
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
        locked(&self.state).timers.get_mut(&key).map(|old| old.clone_from(waker)).is_some()
    }

    /// Removes a timer, if it has not fired.
    pub fn remove_timer(&self, key: (Instant, u64)) {
        if locked(&self.state).timers.remove(&key).is_some() {
            self.active.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn count_one(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
        // Who sleeps in the host does not sleep here.
        if crate::threads::here().is_none() || host().is_some() {
            start_thread();
        }
    }

    /// Registers a descriptor, which stays open until [`Reactor::remove_source`]; returns its key.
    pub fn add_source(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let mut state = locked(&self.state);
        let key = state.next_source;
        // SAFETY-relevant contract of `add`: the source is removed before it is closed, see `Async`'s drop.
        self.add_to_poller(fd, key)?;
        state.next_source += 1;
        state.sources.insert(key, Source { fd: fd.as_raw_fd(), ..Source::default() });
        Ok(key)
    }

    #[allow(unsafe_code)]
    fn add_to_poller(&self, fd: BorrowedFd<'_>, key: usize) -> io::Result<()> {
        // SAFETY: the descriptor is deleted from the poller by `remove_source` before its owner closes it.
        unsafe { self.sleep().poller.add_with_mode(fd.as_raw_fd(), Event::none(key), PollMode::Oneshot) }
    }

    /// Forgets a descriptor and whoever waits for it.
    pub fn remove_source(&self, key: usize, fd: BorrowedFd<'_>) {
        let mut state = locked(&self.state);
        let _ = self.sleep().poller.delete(fd);
        if let Some(source) = state.sources.remove(&key) {
            let waiting = source.readable.len() + source.writable.len();
            self.active.fetch_sub(waiting, Ordering::Relaxed);
        }
    }

    /// Wakes `waker` when the descriptor `key` is readable, or else writable.
    pub fn watch(&self, key: usize, writable: bool, waker: &Waker) {
        let mut state = locked(&self.state);
        let Some(source) = state.sources.get_mut(&key) else { return };
        let list = if writable { &mut source.writable } else { &mut source.readable };
        if !list.iter().any(|old| old.will_wake(waker)) {
            list.push(waker.clone());
            self.count_one();
        }
        // It can only fail for a descriptor that is not registered.
        let _ = self.arm(key, source);
    }

    /// Wakes `waker` when the descriptor `fd`, which nobody has registered, is readable, or else writable. The poller
    /// keeps it until it is closed; then another file may have its number.
    pub fn watch_raw(&self, fd: RawFd, writable: bool, waker: &Waker) -> io::Result<()> {
        let key = RAW | fd as usize;
        let mut state = locked(&self.state);
        let source = state.sources.entry(key).or_insert_with(|| Source { fd, ..Source::default() });
        let list = if writable { &mut source.writable } else { &mut source.readable };
        let is_new = !list.iter().any(|old| old.will_wake(waker));
        if is_new {
            list.push(waker.clone());
            self.count_one();
        }
        let armed = match self.arm(key, source) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                #[allow(unsafe_code)]
                // SAFETY: the descriptor's owner waits, see `io::ready`.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                self.add_to_poller(fd, key).and_then(|()| self.arm(key, source))
            }
            armed => armed,
        };
        drop(state);
        if armed.is_err() && is_new {
            self.unwatch_raw(fd, writable, waker);
        }
        armed
    }

    /// Takes back [`Reactor::watch_raw`], if nothing has come.
    pub fn unwatch_raw(&self, fd: RawFd, writable: bool, waker: &Waker) {
        let mut state = locked(&self.state);
        let Some(source) = state.sources.get_mut(&(RAW | fd as usize)) else { return };
        let list = if writable { &mut source.writable } else { &mut source.readable };
        if let Some(position) = list.iter().position(|old| old.will_wake(waker)) {
            list.swap_remove(position);
            self.active.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Tells the poller what is waited for.
    fn arm(&self, key: usize, source: &Source) -> io::Result<()> {
        let interest = Event::new(key, !source.readable.is_empty(), !source.writable.is_empty());
        #[allow(unsafe_code)]
        // SAFETY: a registered descriptor is open, see `add_to_poller`.
        let fd = unsafe { BorrowedFd::borrow_raw(source.fd) };
        self.sleep().poller.modify_with_mode(fd.as_fd(), interest, PollMode::Oneshot)
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
