//! The decisions, one after another.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Mutex;

use super::*;

#[derive(Default)]
struct Thread {
    id: i32,
    blocked: AtomicU64,
    awaited: AtomicU64,
    notes: AtomicU32,
    own: Mutex<Pending>,
    trace: Mutex<Option<Trace>>,
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
        SignalSet(self.awaited.load(Ordering::Relaxed))
    }

    fn with_pending<R>(&self, access: impl FnOnce(&mut Pending) -> R) -> R {
        access(&mut self.own.lock().unwrap())
    }

    fn with_trace<R>(&self, access: impl FnOnce(Option<&mut Trace>) -> R) -> R {
        access(self.trace.lock().unwrap().as_mut())
    }

    fn notes(&self) -> Note {
        Note::from_bits_retain(self.notes.load(Ordering::Relaxed))
    }

    fn add(&self, note: Note) {
        self.notes.fetch_or(note.bits(), Ordering::Relaxed);
    }

    fn remove(&self, note: Note) {
        self.notes.fetch_and(!note.bits(), Ordering::Relaxed);
    }

    fn kick(&self) {}
}

fn group(ids: &[i32]) -> (GroupState<Thread>, Vec<Arc<Thread>>) {
    let mut state = GroupState::new();
    let threads: Vec<_> = ids.iter().map(|&id| Arc::new(Thread { id, ..Thread::default() })).collect();
    for thread in &threads {
        assert!(state.reserve());
        state.add(thread.clone()).unwrap();
    }
    (state, threads)
}

fn handled() -> Action {
    Action { handler: 0x1000, ..Action::default_action() }
}

fn send(
    state: &mut GroupState<Thread>,
    preferred: Option<&Arc<Thread>>,
    signal: Signal,
    action: &Action,
) -> Sent {
    state.send(None, preferred, Information::kernel(signal), action, usize::MAX)
}

fn is_noted(thread: &Thread) -> bool {
    thread.notes().contains(Note::SIGNAL)
}

#[test]
fn threads_are_found_by_number() {
    let (state, threads) = group(&[7, 3, 12]);
    assert_eq!(state.threads().iter().map(|thread| thread.id).collect::<Vec<_>>(), [3, 7, 12]);
    assert_eq!(state.next_from(4).unwrap().id, 7);
    assert!(state.next_from(13).is_none());
    assert!(Arc::ptr_eq(state.main(7).unwrap(), &threads[0]));
    assert_eq!(state.main(8).unwrap().id, 3, "any when that one has ended");
}

#[test]
fn the_preferred_thread_takes_the_signal_if_it_can() {
    let (mut state, threads) = group(&[1, 2, 3]);
    let _ = send(&mut state, Some(&threads[2]), Signal::PROF, &handled());
    assert!(is_noted(&threads[2]) && !is_noted(&threads[0]));
    let (mut state, threads) = group(&[1, 2, 3]);
    state.set_blocked(&threads[1], SignalSet::of(&[Signal::USR1]));
    let _ = send(&mut state, Some(&threads[1]), Signal::USR1, &handled());
    assert!(is_noted(&threads[0]) && !is_noted(&threads[1]));
}

#[test]
fn a_fatal_signal_ends_the_group_unless_it_is_awaited() {
    let (mut state, threads) = group(&[1, 2]);
    threads[0].awaited.store(SignalSet::of(&[Signal::TERM]).0, Ordering::Relaxed);
    let _ = send(&mut state, None, Signal::TERM, &Action::default_action());
    assert!(state.ending().is_none() && is_noted(&threads[0]));
    let _ = send(&mut state, None, Signal::KILL, &Action::default_action());
    assert_eq!(state.ending(), Some(ExitStatus::Signaled { signal: Signal::KILL, core: false }));
    assert!(threads.iter().all(|thread| thread.notes().contains(Note::DIE)));
}

#[test]
fn a_thread_that_comes_during_a_stop_stops_too() {
    let (mut state, threads) = group(&[1]);
    let _ = send(&mut state, None, Signal::STOP, &Action::default_action());
    let delivery = state.deliver(&threads[0], &mut Actions::new()).unwrap();
    state.begin_stop(delivery.token, Signal::STOP);
    let late = Arc::new(Thread { id: 2, ..Thread::default() });
    assert!(state.reserve());
    state.add(late.clone()).unwrap();
    assert_eq!(state.enter_stop(&threads[0]), Some(false), "one is missing");
    assert_eq!(state.enter_stop(&late), Some(true), "the last one tells the parent");
    assert_eq!(state.change(), ChildChange::Stopped(Signal::STOP));
    assert!(send(&mut state, None, Signal::CONT, &Action::default_action()).has_continued);
    assert_eq!(state.enter_stop(&late), None);
}

#[test]
fn a_continue_voids_a_stop_that_was_dequeued() {
    let (mut state, threads) = group(&[1]);
    let _ = send(&mut state, None, Signal::STOP, &Action::default_action());
    let delivery = state.deliver(&threads[0], &mut Actions::new()).unwrap();
    let _ = send(&mut state, None, Signal::CONT, &Action::default_action());
    state.begin_stop(delivery.token, Signal::STOP);
    assert!(!state.is_stopping());
}

#[test]
fn a_closed_group_takes_no_thread() {
    let (mut state, threads) = group(&[1, 2]);
    assert_eq!(state.begin_exec(&threads[1]), Ok(true));
    assert_eq!(state.begin_exec(&threads[0]), Err(Closed));
    assert_eq!(state.add(Arc::new(Thread::default())), Err(Closed));
    assert!(threads[0].notes().contains(Note::DIE) && !threads[1].notes().contains(Note::DIE));
    let (gone, is_last) = state.remove(&threads[0], ExitStatus::Exited(0));
    assert!(gone.is_some() && !is_last);
    state.end_exec();
    state.begin_exit(ExitStatus::Exited(3));
    assert!(state.begin_leave(&threads[1]));
    assert!(state.remove(&threads[1], ExitStatus::Exited(0)).1);
    drop(state.finish());
    assert_eq!(state.ended(), Some(ExitStatus::Exited(3)), "the first status counts");
}

#[test]
fn orphans_have_no_parent_in_another_group_of_their_session() {
    let link = |parent_group, parent_session| Link { parent_group, parent_session };
    assert!(is_orphaned(5, 1, []));
    assert!(is_orphaned(5, 1, [link(5, 1), link(9, 9)]));
    assert!(!is_orphaned(5, 1, [link(5, 1), link(4, 1)]));
}

/// Makes a thread traced.
fn trace(state: &GroupState<Thread>, thread: &Arc<Thread>, is_seized: bool) {
    *thread.trace.lock().unwrap() = Some(Trace::new(TraceOptions::empty(), is_seized));
    state.begin_trace(thread);
}

fn report(thread: &Thread) -> Option<i32> {
    thread.with_trace(|trace| trace.unwrap().report(false))
}

#[test]
fn a_tracer_is_asked_before_a_signal_is_delivered() {
    let (mut state, threads) = group(&[1]);
    trace(&state, &threads[0], false);
    let _ = send(&mut state, None, Signal::TERM, &Action::default_action());
    assert!(state.ending().is_none(), "it is fatal only if the tracer lets it pass");
    let mut actions = Actions::new();
    let delivery = state.deliver(&threads[0], &mut actions).unwrap();
    assert!(delivery.is_traced);
    state.enter_trace_stop(&threads[0], TraceStop::of_signal(delivery.information), 0).unwrap();
    assert_eq!(report(&threads[0]), Some(Signal::TERM.number()));
    assert_eq!(report(&threads[0]), None, "a stop is told once");
    assert_eq!(state.leave_trace_stop(&threads[0]), Resumed::Not);
    state.resume_traced(&threads[0], Resume::Step, Some(Signal::INT)).unwrap();
    assert_eq!(state.resume_traced(&threads[0], Resume::Run, None), Err(NotStopped));
    assert_eq!(state.leave_trace_stop(&threads[0]), Resumed::With(Some(Signal::INT)));
    let passed = Information::kernel(Signal::INT);
    let delivery = state.deliver_traced(&threads[0], passed, delivery.token, &mut actions).unwrap();
    assert!(!delivery.is_traced && delivery.information.signal == Signal::INT);
    // An ignored signal is told of, too; SIGKILL is not.
    let _ = send(&mut state, None, Signal::CHLD, &Action::default_action());
    assert!(state.deliver(&threads[0], &mut actions).unwrap().is_traced);
    let _ = send(&mut state, None, Signal::KILL, &Action::default_action());
    assert!(state.ending().is_some());
}

#[test]
fn a_stop_of_the_group_is_told_to_tracer_and_parent() {
    for is_seized in [false, true] {
        let (mut state, threads) = group(&[1]);
        trace(&state, &threads[0], is_seized);
        let _ = send(&mut state, None, Signal::STOP, &Action::default_action());
        let delivery = state.deliver(&threads[0], &mut Actions::new()).unwrap();
        state.begin_stop(delivery.token, Signal::STOP);
        let (stop, is_complete) = state.enter_trap(&threads[0], 0).unwrap();
        let event = if is_seized { 128 << 8 } else { 0 };
        assert_eq!((stop.code, stop.information.is_some()), (Signal::STOP.number() | event, is_seized));
        assert!(is_complete, "the parent is told");
        if is_seized {
            state.listen(&threads[0]).unwrap();
            assert_eq!(report(&threads[0]), None);
            assert_eq!(state.resume_traced(&threads[0], Resume::Run, None), Err(NotStopped));
        } else {
            assert_eq!(state.listen(&threads[0]), Err(NotStopped));
        }
        let _ = send(&mut state, None, Signal::CONT, &Action::default_action());
        if is_seized {
            assert_eq!(state.leave_trace_stop(&threads[0]), Resumed::With(None));
            let (stop, _) = state.enter_trap(&threads[0], 0).unwrap();
            assert_eq!(stop.code, Signal::TRAP.number() | event, "it tells that the stop is over");
        } else {
            assert_eq!(state.leave_trace_stop(&threads[0]), Resumed::Not, "only its tracer lets it go on");
        }
    }
}

#[test]
fn a_resumed_thread_is_not_stopped_again_unless_its_tracer_leaves() {
    let (mut state, threads) = group(&[1]);
    trace(&state, &threads[0], false);
    let _ = send(&mut state, None, Signal::STOP, &Action::default_action());
    let delivery = state.deliver(&threads[0], &mut Actions::new()).unwrap();
    state.begin_stop(delivery.token, Signal::STOP);
    assert!(state.enter_trap(&threads[0], 0).is_ok_and(|(_, is_complete)| is_complete));
    state.resume_traced(&threads[0], Resume::Run, None).unwrap();
    assert_eq!(state.leave_trace_stop(&threads[0]), Resumed::With(None));
    assert_eq!(state.enter_trap(&threads[0], 0), Err(NotStopped));
    *threads[0].trace.lock().unwrap() = None;
    state.end_trace(&threads[0]);
    assert_eq!(state.enter_stop(&threads[0]), Some(false), "the group has told of its stop before");
}

#[test]
fn death_ends_a_stop_and_only_sigkill_the_last() {
    let (mut state, threads) = group(&[1]);
    trace(&state, &threads[0], false);
    let stop = TraceStop::of_call(true, TraceOptions::SYSGOOD, 1, 0);
    assert_eq!(stop.code, Signal::TRAP.number() | 0x80);
    state.enter_trace_stop(&threads[0], stop, 1).unwrap();
    state.begin_exit(ExitStatus::Exited(0));
    assert_eq!(state.leave_trace_stop(&threads[0]), Resumed::With(None));
    assert_eq!(state.enter_trace_stop(&threads[0], stop, 1), Err(NotStopped));
    let last = TraceStop::of_event(TraceEvent::Exit, 1, 0);
    state.enter_trace_stop(&threads[0], last, 0).unwrap();
    assert_eq!(state.leave_trace_stop(&threads[0]), Resumed::Not);
    let _ = send(&mut state, None, Signal::KILL, &Action::default_action());
    assert_eq!(state.leave_trace_stop(&threads[0]), Resumed::With(None));
}

const ABORTED: ExitStatus = ExitStatus::Signaled { signal: Signal::ABRT, core: false };

#[test]
fn a_signal_with_a_dump_waits_for_a_thread_only_where_dumps_are_wanted() {
    let (mut state, threads) = group(&[1, 2]);
    let _ = send(&mut state, None, Signal::ABRT, &Action::default_action());
    assert_eq!(state.ending(), Some(ABORTED));
    let (mut state, with_dumps) = group(&[1, 2]);
    state.set_dumps(true);
    let _ = send(&mut state, None, Signal::ABRT, &Action::default_action());
    assert!(state.ending().is_none() && is_noted(&with_dumps[0]));
    let _ = send(&mut state, None, Signal::TERM, &Action::default_action());
    assert!(state.ending().is_some());
    // A fault that is blocked is taken all the same.
    let (mut state, _) = group(&[1]);
    state.set_dumps(true);
    state.set_blocked(&threads[0], SignalSet::of(&[Signal::SEGV]));
    state.force(&threads[0], Information::kernel(Signal::SEGV), false, &mut Actions::new());
    assert!(
        state.ending().is_none() && !threads[0].blocked().contains(Signal::SEGV) && is_noted(&threads[0])
    );
}

#[test]
fn a_dump_waits_for_the_others_and_they_for_it() {
    let (mut state, threads) = group(&[1, 2, 3]);
    // The third is past the point at which it would wait.
    assert!(!state.begin_leave(&threads[2]));
    state.begin_dump(&threads[0], Signal::ABRT).unwrap();
    assert!(state.begin_dump(&threads[1], Signal::ABRT).is_err());
    assert!(!threads[0].notes().contains(Note::DIE) && threads[1].notes().contains(Note::DIE));
    assert!(!state.park(&threads[0]) && !state.are_others_parked());
    assert!(state.park(&threads[1]) && state.are_others_parked());
    assert_eq!(state.ending(), Some(ABORTED));
    state.end_dump(&threads[0], true);
    assert!(!state.is_dumping() && threads[0].notes().contains(Note::DIE));
    assert_eq!(state.ending().map(ExitStatus::to_wait_status), Some(Signal::ABRT.number() | 0x80));
}

#[test]
fn a_kill_reaches_the_thread_that_writes_a_dump() {
    let (mut state, threads) = group(&[1, 2]);
    state.begin_dump(&threads[1], Signal::SEGV).unwrap();
    let _ = send(&mut state, None, Signal::TERM, &Action::default_action());
    assert!(!threads[1].notes().contains(Note::DIE));
    let _ = send(&mut state, None, Signal::KILL, &Action::default_action());
    assert!(threads[1].notes().contains(Note::DIE));
    state.end_dump(&threads[1], false);
    assert_eq!(state.ending(), Some(ExitStatus::Signaled { signal: Signal::SEGV, core: false }));
    // In execve, and at the end, there is none.
    let (mut state, threads) = group(&[1, 2]);
    assert_eq!(state.begin_exec(&threads[0]), Ok(true));
    assert!(state.begin_dump(&threads[0], Signal::SEGV).is_err());
}
