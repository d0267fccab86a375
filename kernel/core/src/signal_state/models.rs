//! Threads that change their masks, stop and end while others send: every interleaving of what is done under the lock
//! with what is not.

use alloc::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use loom::sync::{Mutex, MutexGuard};
use loom::thread;

use super::*;

const USR1: SignalSet = SignalSet::of(&[Signal::USR1]);

struct Thread {
    id: i32,
    blocked: AtomicU64,
    notes: AtomicU32,
    is_awake: AtomicBool,
    own: Mutex<Pending>,
    trace: Mutex<Option<Trace>>,
}

impl Thread {
    fn new(id: i32, blocked: SignalSet) -> Arc<Self> {
        Arc::new(Self {
            id,
            blocked: AtomicU64::new(blocked.0),
            notes: AtomicU32::new(0),
            is_awake: AtomicBool::new(false),
            own: Mutex::new(Pending::new()),
            trace: Mutex::new(None),
        })
    }
}

impl Member for Thread {
    fn id(&self) -> i32 {
        self.id
    }

    fn blocked(&self) -> SignalSet {
        SignalSet(self.blocked.load(Ordering::Relaxed))
    }

    fn set_blocked(&self, blocked: SignalSet) {
        self.blocked.store(blocked.0, Ordering::Relaxed);
    }

    fn awaited(&self) -> SignalSet {
        SignalSet::EMPTY
    }

    fn with_pending<R>(&self, access: impl FnOnce(&mut Pending) -> R) -> R {
        access(&mut self.own.lock().unwrap())
    }

    fn with_trace<R>(&self, access: impl FnOnce(Option<&mut Trace>) -> R) -> R {
        access(self.trace.lock().unwrap().as_mut())
    }

    fn notes(&self) -> Note {
        Note::from_bits_retain(self.notes.load(Ordering::Acquire))
    }

    fn add(&self, note: Note) {
        self.notes.fetch_or(note.bits(), Ordering::Release);
    }

    fn remove(&self, note: Note) {
        self.notes.fetch_and(!note.bits(), Ordering::AcqRel);
    }

    fn kick(&self) {
        self.is_awake.store(true, Ordering::Release);
    }
}

/// A group whose default actions are those of Linux, but that handles `SIGUSR1`.
struct Group {
    state: Mutex<GroupState<Thread>>,
    threads: Vec<Arc<Thread>>,
}

impl Group {
    fn new(masks: &[SignalSet]) -> Arc<Self> {
        let mut state = GroupState::new();
        let threads: Vec<_> = masks.iter().zip(1..).map(|(mask, id)| Thread::new(id, *mask)).collect();
        for thread in &threads {
            assert!(state.reserve());
            state.add(thread.clone()).unwrap();
        }
        Arc::new(Self { state: Mutex::new(state), threads })
    }

    fn lock(&self) -> MutexGuard<'_, GroupState<Thread>> {
        self.state.lock().unwrap()
    }

    fn action(signal: Signal) -> Action {
        let mut action = Action::default_action();
        if signal == Signal::USR1 {
            action.handler = 0x1000;
        }
        action
    }

    fn send(&self, signal: Signal) {
        let information = Information::kernel(signal);
        let _ = self.lock().send(None, None, information, &Self::action(signal), usize::MAX);
    }

    fn block(&self, thread: usize, blocked: SignalSet) {
        self.lock().set_blocked(&self.threads[thread], blocked);
    }

    /// A thread's work before it returns to user mode, up to the place where it would wait in a stop. Returns whether
    /// it handled a signal.
    fn return_to_user(&self, thread: usize) -> bool {
        let thread = &self.threads[thread];
        let mut actions = Actions::new();
        actions.set(Signal::USR1, Self::action(Signal::USR1));
        let mut handled = false;
        loop {
            let notes = thread.notes();
            if notes.contains(Note::STOP) {
                let _ = self.lock().enter_stop(thread);
                return handled;
            }
            if !notes.contains(Note::SIGNAL) {
                return handled;
            }
            let delivery = self.lock().deliver(thread, &mut actions);
            match delivery {
                Some(delivery) if delivery.action.has_handler() => handled = true,
                Some(delivery) => self.lock().begin_stop(delivery.token, delivery.information.signal),
                None => {}
            }
        }
    }

    /// A pending signal that a living thread does not block is noted at such a thread, which is awake.
    fn assert_no_signal_is_lost(&self) {
        let state = self.lock();
        let signals = state.pending();
        for signal in [Signal::USR1].into_iter().filter(|signal| signals.contains(*signal)) {
            let mut able = state.threads().iter().filter(|thread| takes(thread, signal)).peekable();
            let is_noted = |thread: &Arc<Thread>| {
                thread.notes().contains(Note::SIGNAL) && thread.is_awake.load(Ordering::Relaxed)
            };
            assert!(able.peek().is_none() || able.any(is_noted), "{signal:?} is pending and no thread looks");
        }
    }

    fn assert_runs(&self) {
        let state = self.lock();
        assert!(!state.is_stopping(), "the group is stopped after SIGCONT");
        let is_stopped = |thread: &Arc<Thread>| thread.notes().contains(Note::STOP);
        assert!(!state.threads().iter().any(is_stopped), "a thread is stopped after SIGCONT");
    }
}

#[test]
fn a_signal_finds_another_thread_when_the_first_blocks_it() {
    loom::model(|| {
        let group = Group::new(&[USR1, SignalSet::EMPTY]);
        let waiter = {
            let group = group.clone();
            thread::spawn(move || {
                // ppoll(2) with another mask, which ends for another reason.
                group.block(0, SignalSet::EMPTY);
                group.block(0, USR1);
                group.return_to_user(0)
            })
        };
        group.send(Signal::USR1);
        let by_first = waiter.join().unwrap();
        group.assert_no_signal_is_lost();
        let by_second = group.return_to_user(1);
        assert_eq!(u32::from(by_first) + u32::from(by_second), 1, "handled once");
    });
}

#[test]
fn a_signal_finds_another_thread_when_the_first_ends() {
    loom::model(|| {
        let group = Group::new(&[SignalSet::EMPTY, SignalSet::EMPTY]);
        let leaver = {
            let group = group.clone();
            thread::spawn(move || {
                let _ = group.lock().begin_leave(&group.threads[0]);
            })
        };
        group.send(Signal::USR1);
        leaver.join().unwrap();
        group.assert_no_signal_is_lost();
        drop(group.lock().remove(&group.threads[0], ExitStatus::Exited(0)));
        assert!(group.return_to_user(1), "handled by the one that is left");
    });
}

#[test]
fn a_signal_survives_two_threads_that_swap_their_masks() {
    loom::model(|| {
        let group = Group::new(&[SignalSet::EMPTY, USR1]);
        let first = {
            let group = group.clone();
            thread::spawn(move || group.block(0, USR1))
        };
        let second = {
            let group = group.clone();
            thread::spawn(move || group.block(1, SignalSet::EMPTY))
        };
        group.send(Signal::USR1);
        first.join().unwrap();
        second.join().unwrap();
        group.threads[1].kick();
        group.assert_no_signal_is_lost();
        assert!(group.return_to_user(1), "handled by the one that takes it now");
    });
}

#[test]
fn nothing_stays_stopped_after_a_continue() {
    loom::model(|| {
        let group = Group::new(&[SignalSet::EMPTY, SignalSet::EMPTY]);
        let first = {
            let group = group.clone();
            thread::spawn(move || group.return_to_user(0))
        };
        let second = {
            let group = group.clone();
            thread::spawn(move || group.return_to_user(1))
        };
        group.send(Signal::STOP);
        group.send(Signal::CONT);
        first.join().unwrap();
        second.join().unwrap();
        // A thread that waited in the stop looks at its notes again.
        for index in 0..2 {
            group.threads[index].remove(Note::STOPPED);
            group.return_to_user(index);
        }
        group.assert_runs();
    });
}

#[test]
fn a_stop_is_complete_though_a_thread_ends() {
    loom::model(|| {
        let group = Group::new(&[SignalSet::EMPTY, SignalSet::EMPTY]);
        group.send(Signal::STOP);
        let leaver = {
            let group = group.clone();
            thread::spawn(move || {
                let _ = group.lock().begin_leave(&group.threads[1]);
                let _ = group.lock().complete_stop();
                let gone = group.lock().remove(&group.threads[1], ExitStatus::Exited(0));
                drop(gone);
            })
        };
        group.return_to_user(0);
        leaver.join().unwrap();
        let state = group.lock();
        assert_eq!(state.change(), ChildChange::Stopped(Signal::STOP), "the parent is told");
    });
}

/// A traced thread makes a stop that its tracer asks for; its tracer lets it go on, and then leaves.
#[test]
fn a_traced_thread_goes_on_when_its_tracer_leaves() {
    loom::model(|| {
        let group = Group::new(&[SignalSet::EMPTY]);
        *group.threads[0].trace.lock().unwrap() = Some(Trace::new(TraceOptions::empty(), true));
        group.lock().begin_trace(&group.threads[0]);
        let traced = {
            let group = group.clone();
            thread::spawn(move || {
                let me = &group.threads[0];
                for _ in 0..2 {
                    let mut state = group.lock();
                    if state.enter_trap(me, 0).is_err() {
                        continue;
                    }
                    let _ = state.leave_trace_stop(me);
                }
            })
        };
        group.lock().interrupt(&group.threads[0]);
        let _ = group.lock().resume_traced(&group.threads[0], Resume::Run, None);
        {
            let state = group.lock();
            *group.threads[0].trace.lock().unwrap() = None;
            state.end_trace(&group.threads[0]);
        }
        traced.join().unwrap();
        // A thread that waited was woken, and looks again.
        assert!(group.threads[0].is_awake.load(Ordering::Acquire), "it was woken");
        assert_eq!(group.lock().leave_trace_stop(&group.threads[0]), Resumed::With(None));
        let notes = group.threads[0].notes();
        assert!(
            !notes.intersects(Note::TRAP | Note::TRACE_STOPPED | Note::TRACED),
            "nothing holds it: {notes:?}"
        );
    });
}

/// `SIGCONT` comes while a seized thread enters the stop of its group, and its tracer listens: the tracer is told that
/// the stop is over.
#[test]
fn the_end_of_a_stop_is_told_of_though_it_comes_at_any_time() {
    loom::model(|| {
        let group = Group::new(&[SignalSet::EMPTY]);
        let me = group.threads[0].clone();
        *me.trace.lock().unwrap() = Some(Trace::new(TraceOptions::empty(), true));
        group.send(Signal::STOP);
        group.return_to_user(0);
        group.lock().begin_trace(&me);
        let traced = {
            let (group, me) = (group.clone(), me.clone());
            thread::spawn(move || {
                let _ = group.lock().enter_trap(&me, 0);
            })
        };
        let sender = {
            let group = group.clone();
            thread::spawn(move || group.send(Signal::CONT))
        };
        let report = || me.trace.lock().unwrap().as_mut().and_then(|trace| trace.report(false));
        let stops = |code: Option<i32>| code.is_some_and(|code| code & 0xff == Signal::STOP.number());
        let mut last = report();
        if stops(last) {
            let _ = group.lock().listen(&me);
        }
        traced.join().unwrap();
        sender.join().unwrap();
        // The thread looks again when it was woken, and the tracer when it was told.
        for _ in 0..2 {
            if group.lock().leave_trace_stop(&me) != Resumed::Not {
                let _ = group.lock().enter_trap(&me, 0);
            }
            if let Some(code) = report() {
                last = Some(code);
                if stops(last) {
                    let _ = group.lock().listen(&me);
                }
            }
        }
        assert_eq!(last.map(|code| code & 0xff), Some(Signal::TRAP.number()), "the stop is over");
    });
}

/// `SIGKILL` comes while a traced thread enters a stop: it does not stay there.
#[test]
fn a_killed_thread_leaves_its_stop() {
    loom::model(|| {
        let group = Group::new(&[SignalSet::EMPTY]);
        *group.threads[0].trace.lock().unwrap() = Some(Trace::new(TraceOptions::empty(), false));
        group.lock().begin_trace(&group.threads[0]);
        let killer = {
            let group = group.clone();
            thread::spawn(move || group.send(Signal::KILL))
        };
        let stop = TraceStop::of_call(true, TraceOptions::empty(), 1, 0);
        let has_stopped = group.lock().enter_trace_stop(&group.threads[0], stop, 1).is_ok();
        killer.join().unwrap();
        assert!(!has_stopped || group.threads[0].is_awake.load(Ordering::Acquire), "it was woken");
        assert_eq!(group.lock().leave_trace_stop(&group.threads[0]), Resumed::With(None));
    });
}
