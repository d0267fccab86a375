//! Threads in detours ([`crate::sched::detour`]): what belongs to the end and the start of a turn, in the midst of one.
//!
//! `unsafe` here: the scheduler knows threads by pointers.
#![allow(unsafe_code)]

use alloc::sync::Arc;

use crate::arch::FloatState;
use crate::arch::debug::DebugRegisters;
use crate::arch::time::now_ns;
use crate::process::{Thread, cpu_time, executor, rseq};
use crate::sched::detour::{Hooks, set_hooks};
use crate::sched::usage;
use crate::signal::{self, PendingWork};
use crate::wait::node::WaitKind;

/// Has threads told of their detours.
pub fn initialize() {
    set_hooks(Hooks { leaves, returns, is_dying });
}

fn with<R>(thread: *const (), look: impl FnOnce(&Arc<Thread>) -> R) -> R {
    // SAFETY: `Thread::start_meter` is the only one that names threads to the scheduler, by a pointer to an `Arc` that
    // the thread's coroutine holds while its turn goes on; and during a detour that turn goes on. Whoever asks for the
    // thread of this CPU runs in that turn.
    look(unsafe { &*thread.cast::<Arc<Thread>>() })
}

/// Calls `look` with the thread whose turn goes on here, if there is one: asynchronous requests are coroutines of the
/// kernel.
pub fn with_thread_here<R>(look: impl FnOnce(&Arc<Thread>) -> R) -> Option<R> {
    usage::thread_here().map(|thread| with(thread, look))
}

fn leaves(thread: *const ()) {
    with(thread, |thread| {
        let now_ns = now_ns();
        if thread.work().contains(PendingWork::DEBUG) {
            DebugRegisters::unload();
        }
        thread.end_meter(now_ns);
        if thread.process.alarms().is_armed() {
            cpu_time::check(thread);
        }
        thread.end_sample();
        // Others use the registers meanwhile.
        thread.with_float(FloatState::save);
        thread.end_turn(now_ns);
        thread.count_switch(true);
        executor::turn_ends(thread, true);
        thread.begin_detour();
    });
}

fn returns(thread: *const ()) {
    with(thread, |thread| {
        thread.end_detour();
        rseq::leaves_program(thread);
        let now_ns = now_ns();
        // The turn that was put aside can't be so once more.
        let _ = thread.start_turn(now_ns);
        thread.start_meter(now_ns);
        if thread.process.alarms().is_armed() {
            cpu_time::plan(thread);
        }
        // Whoever set something to watch had the thread stopped, so before this turn: its end unloads it.
        let _ = signal::trace::watch(thread);
    });
}

fn is_dying(thread: *const ()) -> bool {
    with(thread, |thread| thread.is_interrupted(WaitKind::Killable))
}
