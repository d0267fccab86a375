//! The executor of several threads.
#![allow(unsafe_code)] // The main coroutine need not be `'static`; it stays on its core.

mod handle;
mod idle;
mod reserve;

use crate::builder::{Builder, SpawnError, StartError};
use crate::core_entry::{CoreEntry, Hooks};
#[cfg(feature = "scheduler")]
use crate::forks::forks;
use crate::handle::JoinHandle;
use crate::host::{Host, host};
#[cfg(feature = "scheduler")]
use crate::local::drop_coroutines;
use crate::local::{self, run_frame, tear_down};
use crate::machine::{MACHINE_CORES, Shared, elsewhere, spawn_on, steal_urgent};
use crate::reactor::Looked;
use crate::registry::{Global, acquire_core};
use crate::sched::{Picked, Stealing};
use crate::statistics::Statistics;
use crate::sync::{AtomicUsize, Ordering, fence};
use crate::{os, park, threads, turn};
use core::cell::Cell;
use core::fmt;
use core::future::Future;
use std::boxed::Box;
use std::sync::Mutex;
use std::thread;
use std::vec::Vec;

pub use handle::Handle;
use idle::Idler;

/// Every how many turns a core looks whether another has something more urgent than its own best.
const LOOK_EVERY: u32 = 32;

/// An executor of several threads, among which coroutines move.
///
/// Its first core is the thread that calls [`Executor::block_on`]; while no thread does, the others run its work.
pub struct Executor {
    shared: &'static Shared,
    main: &'static CoreEntry,
    handle: Handle,
    /// Held while a thread runs as the first core.
    entered: Mutex<()>,
    /// Which thread that is, see [`threads::token`].
    entered_by: AtomicUsize,
    workers: Vec<Worker>,
    reserve: Option<Worker>,
    /// In which process its threads are, see [`forks`].
    #[cfg(feature = "scheduler")]
    forks: u32,
}

impl Executor {
    /// An executor of `threads` threads, at least one and at most [`MACHINE_CORES`](crate::MACHINE_CORES): one less are
    /// started.
    ///
    /// # Panics
    /// See [`Executor::try_new`].
    pub fn new(threads: usize) -> Executor {
        Executor::try_new(threads).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Like [`Executor::new`].
    ///
    /// # Errors
    /// There is no memory or no thread, or there would be more threads than an executor, or all executors of the
    /// process, can have.
    pub fn try_new(threads: usize) -> Result<Executor, StartError> {
        Executor::build(threads, false)
    }

    /// Like [`Executor::new`], with one thread more in reserve: while all others run something, it runs what is more
    /// urgent than the least urgent of that, at once instead of when a turn ends; and when all others are blocked in
    /// system calls, it runs what they cannot. The process's host (feature `scheduler`) calls it; without one it is the
    /// same as [`Executor::new`].
    ///
    /// # Panics
    /// As [`Executor::new`]. The one in reserve counts among the threads.
    pub fn with_reserve(threads: usize) -> Executor {
        let with_reserve = host().is_some_and(Host::is_watching);
        Executor::build(threads, with_reserve).unwrap_or_else(|error| panic!("{error}"))
    }

    fn build(threads: usize, with_reserve: bool) -> Result<Executor, StartError> {
        let count = threads.max(1);
        if count > MACHINE_CORES - usize::from(with_reserve) {
            return Err(StartError::TooManyThreads);
        }
        let shared = take_shared();
        shared.set_lazy();
        shared.watching.store(with_reserve.into(), Ordering::Relaxed);
        let stealing = if os::has_heavy_barrier() { Stealing::Barrier } else { Stealing::Fenced };
        let mut cores = Vec::new();
        for number in 0..(count + usize::from(with_reserve)) as u32 {
            match acquire_core() {
                Ok(entry) => {
                    entry.set_up(number, &POOL_HOOKS, shared, stealing);
                    cores.push(entry);
                }
                Err(error) => {
                    end(shared, &cores, Vec::new());
                    return Err(error);
                }
            }
        }
        let main = *cores.first().ok_or(StartError::NoMemory)?;
        main.set_thread(false);
        main.state.inbox().leave();
        if with_reserve {
            shared.set_reserve(count as u32);
        }
        cores.iter().zip(0..).for_each(|(entry, number)| shared.add(number, entry));
        let mut workers = Vec::new();
        for entry in cores.iter().copied().skip(1) {
            let is_regular = (entry.state.number() as usize) < count;
            let run = if is_regular { work } else { reserve::work };
            let builder = thread::Builder::new().name(std::format!("heddle-{}", entry.state.number()));
            entry.set_thread(true);
            match builder.spawn(move || threads::enter(entry, || run(shared, entry))) {
                Ok(thread) => workers.push((entry, thread)),
                Err(_) => {
                    shared.close();
                    stop(&workers);
                    end(shared, &cores, workers);
                    return Err(StartError::NoThread);
                }
            }
        }
        let reserve = if with_reserve { workers.pop() } else { None };
        Ok(Executor {
            shared,
            main,
            handle: Handle::new(shared),
            entered: Mutex::new(()),
            entered_by: AtomicUsize::new(0),
            workers,
            reserve,
            #[cfg(feature = "scheduler")]
            forks: forks(),
        })
    }

    /// Serves a level below the most urgent ready one at every `every`-th turn of each core, in rotation. Without it,
    /// or with 0, less urgent coroutines run only when a core has nothing more urgent.
    pub fn share(self, every: u32) -> Executor {
        for core in (0..self.threads()).filter_map(|number| self.shared.core(number as u32)) {
            core.state.set_share(every);
        }
        self
    }

    /// Spawns `future` at the default priority.
    ///
    /// # Panics
    /// If there is no memory; see [`Executor::try_spawn`].
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.try_spawn(Builder::new(), future).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Spawns `future` as `builder` says.
    pub fn try_spawn<F>(&self, builder: Builder, future: F) -> Result<JoinHandle<F::Output>, SpawnError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let here = threads::here().filter(|_| self.is_running_here());
        spawn_on(self.shared, here, builder, future)
    }

    /// Runs `future` on the calling thread as a coroutine of the first core, and the others' coroutines beside it,
    /// until it has ended. A second thread that calls it waits until the first is done.
    ///
    /// # Panics
    /// Within a coroutine of this executor, which would wait for itself; or if there is no memory.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(
            !self.is_running_here() && self.entered_by.load(Ordering::Relaxed) != threads::token(),
            "Executor::block_on was called by a coroutine of the same executor, which it would block: \
             await the future, or spawn it"
        );
        let _alone = self.entered.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.entered_by.store(threads::token(), Ordering::Relaxed);
        let _leave = LeaveGuard(self);
        let entry = self.main;
        let builder = Builder::new().cores(1);
        entry.set_thread(true);
        entry.state.inbox().cover();
        let (mut look, mut idler) = ((0, Looked::new()), Idler::new());
        threads::enter(entry, || {
            run_frame(
                entry,
                builder,
                future,
                |entry| next(self.shared, entry, &mut look, || settle(self.shared, entry)),
                |entry| {
                    idler.idle(self.shared, entry);
                },
            )
        })
    }

    /// Whether the innermost executor that the calling thread runs is this one.
    fn is_running_here(&self) -> bool {
        threads::here().is_some_and(|entry| core::ptr::eq(entry.shared(), self.shared))
    }

    /// Something to spawn by from elsewhere, which may outlive the executor.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// How many threads it has, the caller of [`Executor::block_on`] included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The counters of core `number`.
    pub fn statistics(&self, number: usize) -> Option<Statistics<'_>> {
        self.shared.core(number as u32).map(|entry| Statistics(&entry.state))
    }
}

/// The calling thread stops being the first core, also when the main coroutine has panicked.
struct LeaveGuard<'a>(&'a Executor);

impl Drop for LeaveGuard<'_> {
    fn drop(&mut self) {
        let Executor { main, shared, entered_by, .. } = self.0;
        entered_by.store(0, Ordering::Relaxed);
        main.set_thread(false);
        if main.state.inbox().leave() || main.state.ready().bitmap() != 0 {
            // Coroutines that are ready here are the others' now.
            shared.kick_idle(u64::MAX);
        }
        reserve::take_over(shared);
    }
}

/// Machines of ended executors. They are not freed, because a late waker may still look for an idle core in one.
static UNUSED: Mutex<Vec<&'static Shared>> = Mutex::new(Vec::new());

/// Locks what executors share during a fork.
#[cfg(feature = "scheduler")]
pub(crate) fn lock() -> impl Sized + 'static {
    UNUSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn take_shared() -> &'static Shared {
    let unused = UNUSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
    unused.unwrap_or_else(|| Box::leak(Box::new(Shared::new())))
}

/// Cores of an [`Executor`]: the first may have no thread for a while, and then another must take its work.
static POOL_HOOKS: Hooks = Hooks {
    kick: |entry| {
        if entry.has_thread() {
            if !entry.pool().is_some_and(|shared| reserve::tell(shared, entry)) {
                park::kick(entry);
            }
        } else {
            // Parked or not, somebody has to steal it.
            entry.kick_another();
        }
    },
    is_here: |entry| threads::here().is_some_and(|here| core::ptr::eq(here, entry)),
    left: |_, _| {},
};

/// Applies what others posted to a core that is not in reserve, which from then on watches for what is more urgent than
/// all that is ready, if cores do. Returns the bitmap of the levels that are ready.
fn settle(shared: &Shared, entry: &CoreEntry) -> u64 {
    if shared.watching.load(Ordering::Relaxed) == 0 {
        return local::settle(entry);
    }
    loop {
        let announce = |level: u8| entry.running.store(level.into(), Ordering::Relaxed);
        let ready = entry.state.settle(&Global, false, announce);
        if !reserve::take_back(shared, entry) {
            return ready;
        }
    }
}

/// The next coroutine to run: now and then another core's, if it is more urgent. `settle` as in [`settle`].
#[inline(always)]
fn next(
    shared: &Shared,
    entry: &'static CoreEntry,
    (look, looked): &mut (u32, Looked),
    settle: impl Fn() -> u64,
) -> Option<Picked<'static>> {
    let ready = Cell::new(u64::MAX);
    looked.look(&|| {
        ready.set(settle());
        ready.get()
    });
    if ready.get() == 0 {
        // The host knows that nothing is ready. A post from here on is seen on the way to sleep.
        entry.state.count_idle();
        return None;
    }
    let is_watching = shared.watching.load(Ordering::Relaxed) != 0;
    *look += 1;
    if *look >= LOOK_EVERY {
        *look = 0;
        steal_urgent(shared, entry, os::heavy_barrier);
    }
    let announce = |level: u8| entry.running.store(level.into(), Ordering::Relaxed);
    loop {
        let picked = if is_watching {
            entry.state.pick_watched(&Global, announce)?
        } else {
            entry.state.pick(&Global).inspect(|picked| announce(picked.level))?
        };
        match elsewhere(shared, entry, &picked) {
            None => return Some(picked),
            Some(target) => entry.state.hand_over(&Global, picked.id, picked.slot, target),
        }
    }
}

fn work(shared: &Shared, entry: &'static CoreEntry) {
    let (mut look, mut idler) = ((0, Looked::new()), Idler::new());
    while !shared.is_closed() {
        match next(shared, entry, &mut look, || settle(shared, entry)) {
            Some(picked) => turn::run(entry, picked),
            None => idler.idle(shared, entry),
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.handle.end();
        self.shared.close();
        #[cfg(feature = "scheduler")]
        if self.forks != forks() {
            // The other threads are gone. Their coroutines, and their places, stay as they were in that moment.
            self.workers.drain(..).chain(self.reserve.take()).for_each(core::mem::forget);
            return drop_coroutines(self.main);
        }
        if let (Some(_), Some(host)) = (&self.reserve, host()) {
            fence(Ordering::SeqCst);
            host.urgent(0);
        }
        stop(&self.workers);
        let workers: Vec<_> = self.workers.drain(..).chain(self.reserve.take()).collect();
        let shared = self.shared;
        let cores: Vec<_> = [self.main].into_iter().chain(workers.iter().map(|(entry, _)| *entry)).collect();
        if workers.iter().all(|(_, thread)| thread.thread().id() != thread::current().id()) {
            return end(shared, &cores, workers);
        }
        // A coroutine of its own drops it. Its thread cannot wait for itself, so another does; without one, the
        // coroutines that are left stay where they are.
        let _ = thread::Builder::new().name("heddle-end".into()).spawn(move || end(shared, &cores, workers));
    }
}

type Worker = (&'static CoreEntry, thread::JoinHandle<()>);

/// Wakes the threads of an executor that is closed.
fn stop(workers: &[Worker]) {
    for (entry, _) in workers {
        park::kick(entry);
    }
}

/// Waits for the threads of an executor that is closed, and drops what is left on its cores.
fn end(shared: &'static Shared, cores: &[&'static CoreEntry], workers: Vec<Worker>) {
    for (_, thread) in workers {
        // A worker ends by itself: panics of coroutines are caught.
        let _ = thread.join();
    }
    tear_down(cores);
    shared.reset();
    UNUSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(shared);
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("threads", &self.threads()).finish()
    }
}
