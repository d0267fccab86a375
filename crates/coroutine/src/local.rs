//! The executor of one thread.
#![allow(unsafe_code)] // Coroutines need not be `Send`, and the main one need not be `'static`.

use crate::builder::{Builder, SpawnError, StartError};
use crate::core_entry::CoreEntry;
#[cfg(feature = "scheduler")]
use crate::global::{Place, Step, System};
use crate::handle::{JoinHandle, LocalJoinHandle};
use crate::machine::spawn_by;
use crate::park::Patience;
use crate::reactor::Looked;
use crate::registry::{Global, acquire_core, for_each_slot_of_cores, spill, why_no_slot};
use crate::sched::{Picked, Stealing, WATCH_PARKED};
use crate::statistics::Statistics;
use crate::task::{Framed, JoinError};
use crate::{park, threads, turn};
use core::fmt;
use core::future::Future;
use core::marker::PhantomData;
use core::mem;
use core::pin::pin;
use core::ptr;
use std::panic::resume_unwind;

/// An executor of one thread, whose coroutines need not be `Send`.
///
/// Spawning, running, yielding and waking among its own coroutines takes no atomic read-modify-write. Wakers may
/// still be used from every thread, and from signal handlers.
pub struct LocalExecutor {
    entry: &'static CoreEntry,
    not_send: PhantomData<*const ()>,
}

impl LocalExecutor {
    /// An executor without coroutines.
    ///
    /// # Panics
    /// If there is no memory, or [`MAX_CORES`](crate::MAX_CORES) executors are alive.
    pub fn new() -> LocalExecutor {
        LocalExecutor::try_new().unwrap_or_else(|error| panic!("{error}"))
    }

    /// An executor without coroutines.
    ///
    /// # Errors
    /// There is no memory, or [`MAX_CORES`](crate::MAX_CORES) executors are alive.
    pub fn try_new() -> Result<LocalExecutor, StartError> {
        let entry = acquire_core()?;
        entry.set_up(0, &park::THREAD_HOOKS, ptr::null(), Stealing::Never);
        Ok(LocalExecutor { entry, not_send: PhantomData })
    }

    /// Serves a level below the most urgent ready one at every `every`-th turn, in rotation. Without it, or with 0,
    /// less urgent coroutines run only when nothing more urgent is ready.
    pub fn share(self, every: u32) -> LocalExecutor {
        self.entry.state.set_share(every);
        self
    }

    /// Spawns `future` at the default priority.
    ///
    /// # Panics
    /// If there is no memory; see [`LocalExecutor::try_spawn`].
    #[inline]
    pub fn spawn<F: Future + 'static>(&self, future: F) -> LocalJoinHandle<F::Output> {
        self.try_spawn(Builder::new(), future).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Spawns `future` as `builder` says.
    #[inline]
    pub fn try_spawn<F: Future + 'static>(
        &self,
        builder: Builder,
        future: F,
    ) -> Result<LocalJoinHandle<F::Output>, SpawnError> {
        spawn_into(self.entry, builder, future)
    }

    /// Runs one turn of the most urgent ready coroutine; `false` if none is ready.
    pub fn run_one(&self) -> bool {
        threads::enter(self.entry, || run_one(self.entry))
    }

    /// Runs until no coroutine is ready.
    pub fn run_until_idle(&self) {
        threads::enter(self.entry, || while run_one(self.entry) {});
    }

    /// Runs `future` as a coroutine, and the others beside it, until it has ended; sleeps when none is ready.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.block_on_with(Builder::new(), future)
    }

    /// Like [`LocalExecutor::block_on`], with a priority.
    pub fn block_on_with<F: Future>(&self, builder: Builder, future: F) -> F::Output {
        let mut patience = Patience::new();
        threads::enter(self.entry, || {
            let mut looked = Looked::new();
            let next = |entry| {
                looked.look(&|| settle(entry));
                pick(entry)
            };
            run_frame(self.entry, builder, future, next, |entry| sleep(entry, &mut patience))
        })
    }

    /// Runs until every coroutine has ended; sleeps when none is ready.
    pub fn run(&self) {
        let mut patience = Patience::new();
        threads::enter(self.entry, || {
            let mut looked = Looked::new();
            while self.entry.live() != 0 {
                looked.look(&|| settle(self.entry));
                if !run_one(self.entry) {
                    sleep(self.entry, &mut patience);
                }
            }
        });
    }

    /// Runs one turn as one of several processes: see [`global`](crate::global).
    #[cfg(feature = "scheduler")]
    pub fn run_one_in<S: System>(&self, place: &Place<S>) -> Step {
        self.entry.state.drain(&Global);
        let bitmap = self.entry.state.ready().bitmap();
        if bitmap == 0 {
            place.publish(0);
            return Step::Idle;
        }
        if place.before_turn(bitmap) {
            return Step::GaveWay;
        }
        let ran = self.run_one();
        place.publish(self.entry.state.ready().bitmap());
        if ran { Step::Ran } else { Step::Idle }
    }

    /// Its counters.
    pub fn statistics(&self) -> Statistics<'_> {
        Statistics(&self.entry.state)
    }
}

/// Applies what others posted; returns the bitmap of the levels that are ready.
pub(crate) fn settle(entry: &CoreEntry) -> u64 {
    entry.state.drain(&Global);
    entry.state.ready().bitmap()
}

#[inline(always)]
fn pick(entry: &'static CoreEntry) -> Option<Picked<'static>> {
    entry.state.pick(&Global)
}

#[inline(always)]
fn run_one(entry: &'static CoreEntry) -> bool {
    let Some(picked) = pick(entry) else { return false };
    turn::run(entry, picked);
    true
}

/// Sleeps until something is posted.
fn sleep(entry: &'static CoreEntry, patience: &mut Patience) {
    if !patience.spin(entry) && entry.state.expose(WATCH_PARKED) {
        patience.sleep(entry, None);
        entry.state.inbox().cover();
    }
}

/// Spawns into `entry`, an executor of one thread on whose thread the caller is.
#[inline]
pub(crate) fn spawn_into<F: Future + 'static>(
    entry: &'static CoreEntry,
    builder: Builder,
    future: F,
) -> Result<LocalJoinHandle<F::Output>, SpawnError> {
    let spawned = spawn_by(builder, future, true, |task| {
        entry.spawn(&Global, task, builder.rank).ok_or_else(why_no_slot)
    });
    spawned.map(LocalJoinHandle::new)
}

/// Runs `future` as a coroutine of `entry`, from the caller's frame, until it has ended. `next` picks, and `idle` is
/// called when it finds nothing. The caller has entered `entry`.
pub(crate) fn run_frame<F: Future>(
    entry: &'static CoreEntry,
    builder: Builder,
    future: F,
    mut next: impl FnMut(&'static CoreEntry) -> Option<Picked<'static>>,
    mut idle: impl FnMut(&'static CoreEntry),
) -> F::Output {
    let mut frame = pin!(Framed::new(future, builder));
    let task = frame.as_mut().task();
    if entry.spawn(&Global, task.0.as_ptr().cast(), builder.rank).is_none() {
        // SAFETY: it was not spawned, so nobody else has it.
        unsafe { task.discard() };
        panic!("{}", why_no_slot());
    }
    // Panics of coroutines, wakers and subscribers are caught, so nothing unwinds from here before the coroutine has
    // ended, unless a host breaks its promise.
    let frame_is_named = AbortGuard;
    while !task.header().join.is_complete() {
        match next(entry) {
            Some(picked) => turn::run(entry, picked),
            None => idle(entry),
        }
    }
    mem::forget(frame_is_named);
    // SAFETY: complete; nobody else takes the output, whose type is the future's.
    match unsafe { task.read_output::<F::Output>() } {
        Ok(output) => output,
        Err(error) => resume_unwind(cause(error)),
    }
}

/// Ends the process rather than unwind a frame that a slot still leads to.
struct AbortGuard;

impl Drop for AbortGuard {
    fn drop(&mut self) {
        std::eprintln!("a panic left the loop of an executor in which a coroutine lives: the process ends");
        std::process::abort();
    }
}

fn cause(error: JoinError) -> std::boxed::Box<dyn core::any::Any + Send> {
    error.into_panic().unwrap_or_else(|| std::boxed::Box::new("the main coroutine was aborted"))
}

/// Drops every coroutine of `cores`, one executor's, whose owner the caller now is and on which nothing runs, and gives
/// the cores back.
pub(crate) fn tear_down(cores: &[&'static CoreEntry]) {
    let live = || cores.iter().fold(0u64, |sum, entry| sum.wrapping_add(entry.live()));
    // The drop of a future may spawn or wake; it cannot go on for ever unless the program wants it to.
    while live() != 0 {
        for entry in cores {
            cancel_all(entry, cores, || live() != 0);
        }
    }
    for entry in cores {
        entry.state.drain(&Global);
        spill(&entry.state, true);
        entry.blocks.clear();
        entry.give_back();
    }
}

/// Drops every coroutine of `entry`, on which nothing runs, and no other core's.
#[cfg(feature = "scheduler")]
pub(crate) fn drop_coroutines(entry: &'static CoreEntry) {
    let cores = entry.cores_of_machine();
    while cancel_all(entry, &cores, || true) {}
}

/// Drops each coroutine of `entry` that is there, as long as `go_on` says; `cores` are all of its executor. Whether
/// there was one.
fn cancel_all(entry: &'static CoreEntry, cores: &[&'static CoreEntry], go_on: impl Fn() -> bool) -> bool {
    let mut found = false;
    threads::enter(entry, || {
        entry.state.drain(&Global);
        for_each_slot_of_cores(cores, |index, slot| {
            if let Some(picked) = entry.state.pick_to_cancel(&Global, index, slot) {
                turn::run(entry, picked);
                found = true;
                return go_on();
            }
            true
        });
    });
    found
}

impl Default for LocalExecutor {
    fn default() -> LocalExecutor {
        LocalExecutor::new()
    }
}

impl Drop for LocalExecutor {
    fn drop(&mut self) {
        tear_down(&[self.entry]);
    }
}

impl fmt::Debug for LocalExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalExecutor").field("coroutines", &self.entry.live()).finish()
    }
}

/// Runs `future` to its end on the calling thread, and what it spawns beside it; what is left then is dropped.
pub fn block_on<F: Future>(future: F) -> F::Output {
    LocalExecutor::new().block_on(future)
}

/// The papers' one entry: makes `main` a coroutine of level `priority`. On a thread that runs an executor it is
/// spawned there, and the call returns at once. Elsewhere it is the first, which starts an executor: the call returns
/// when `main` and everything spawned by it have ended.
pub fn coroutine_run<F: Future<Output = ()> + Send + 'static>(
    main: F,
    priority: u8,
) -> Result<(), SpawnError> {
    let builder = Builder::new().priority(priority);
    if threads::here().is_some() {
        return threads::try_spawn(builder, main).map(JoinHandle::detach);
    }
    let executor = LocalExecutor::try_new()?;
    executor.try_spawn(builder, main)?.detach();
    executor.run();
    Ok(())
}
