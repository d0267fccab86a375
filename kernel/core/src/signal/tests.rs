//! Tests of this crate.

extern crate std;

use linux_raw_sys::general as linux;
use std::vec::Vec;

use super::*;

fn signal(number: i32) -> Signal {
    Signal::new(number).expect("a signal's number")
}

#[test]
fn a_standard_signal_is_pending_once_and_keeps_its_first_information() {
    let mut pending = Pending::new();
    pending.push(Information::user(Signal::TERM, 7, 0), 10).unwrap();
    pending.push(Information::user(Signal::TERM, 8, 0), 10).unwrap();
    assert_eq!(pending.take(SignalSet::ALL), Some(Information::user(Signal::TERM, 7, 0)));
    assert_eq!(pending.take(SignalSet::ALL), None);
}

#[test]
fn realtime_signals_queue_in_order_and_up_to_the_limit() {
    let mut pending = Pending::new();
    let queued = |value| Information {
        signal: signal(40),
        code: linux::SI_QUEUE,
        errno: 0,
        detail: Detail::Value { pid: 1, uid: 0, value },
    };
    assert_eq!(pending.push(queued(1), 2), Ok(()));
    assert_eq!(pending.push(queued(2), 2), Ok(()));
    assert_eq!(pending.push(queued(3), 2), Err(Overflow));
    assert_eq!(pending.take(SignalSet::ALL), Some(queued(1)));
    assert!(pending.contains(signal(40)));
    assert_eq!(pending.take(SignalSet::ALL), Some(queued(2)));
    assert!(pending.set().is_empty());
}

#[test]
fn synchronous_signals_come_first_then_the_lowest_number() {
    let mut pending = Pending::new();
    for each in [Signal::TERM, Signal::HUP, Signal::SEGV] {
        pending.push(Information::kernel(each), 10).unwrap();
    }
    let wanted = SignalSet::ALL.without(Signal::HUP);
    let order: Vec<_> = core::iter::from_fn(|| pending.take(wanted).map(|taken| taken.signal)).collect();
    assert_eq!(order, [Signal::SEGV, Signal::TERM]);
    assert_eq!(pending.set(), SignalSet::of(&[Signal::HUP]));
}

#[test]
fn removing_forgets_queued_entries_too() {
    let mut pending = Pending::new();
    pending.push(Information::kernel(Signal::TSTP), 10).unwrap();
    pending.push(Information::kernel(Signal::CONT), 10).unwrap();
    pending.remove(SignalSet::STOPS);
    assert_eq!(pending.queued(), 1);
    assert_eq!(pending.take(SignalSet::ALL).map(|taken| taken.signal), Some(Signal::CONT));
}

#[test]
fn reset_hand_applies_once_and_exec_keeps_only_what_is_ignored() {
    let mut actions = Actions::new();
    let handler = |flags| Action { handler: 0x1000, flags: ActionFlags(flags), ..Action::default_action() };
    actions.set(Signal::INT, handler(u64::from(linux::SA_RESETHAND)));
    assert!(actions.take(Signal::INT).has_handler());
    assert!(!actions.get(Signal::INT).has_handler());
    actions.set(Signal::TERM, handler(0));
    actions.set(Signal::HUP, Action { handler: 1, ..Action::default_action() });
    actions.exec();
    assert!(actions.get(Signal::HUP).ignores(Signal::HUP));
    assert_eq!(*actions.get(Signal::TERM), Action::default_action());
}

#[test]
fn kill_and_stop_never_enter_a_mask() {
    let mut actions = Actions::new();
    actions.set(Signal::INT, Action { mask: SignalSet::ALL, ..Action::default_action() });
    let mask = actions.get(Signal::INT).mask;
    assert!(!mask.contains(Signal::KILL) && !mask.contains(Signal::STOP) && mask.contains(Signal::TERM));
}

#[test]
fn information_has_linux_offsets() {
    let detail = Detail::Child { pid: 5, uid: 6, status: 7, utime: 8, stime: 9 };
    let words = Information { signal: Signal::CHLD, code: 1, errno: 0, detail }.to_words();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let int = |offset: usize| i32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap());
    assert_eq!((int(0), int(8), int(16), int(20), int(24), int(32), int(40)), (17, 1, 5, 6, 7, 8, 9));
}

#[test]
fn raw_information_survives_the_way_through_the_kernel() {
    let mut words: [u64; 16] = core::array::from_fn(|index| index as u64 * 3 + 1);
    words[0] = 40 | 5 << 32;
    words[1] = u64::from(linux::SI_QUEUE as u32);
    assert_eq!(Information::from_words(signal(40), &words).to_words(), words);
}

#[test]
fn a_frame_reads_back_what_was_written_and_is_aligned_for_a_call() {
    let mut frame =
        x86_64::Frame { mask: SignalSet(0x55), float_state: 0x7000, flags: 7, ..Default::default() };
    frame.registers.rip = 0x1234;
    frame.registers.r8 = 1;
    frame.registers.eflags = 0x246;
    frame.segments = (0x33, 0x2b);
    frame.information[2] = 99;
    assert_eq!(x86_64::Frame::from_words(&frame.to_words()), frame);
    let (at, float) = x86_64::place(0x7fff_ffff_fff3, 512).unwrap();
    assert_eq!((at % 16, float % 64), (8, 0));
    assert!(at + x86_64::FRAME_BYTES as u64 <= float && float + 512 <= 0x7fff_ffff_fff3);
    assert_eq!(x86_64::place(100, 512), None);
}

#[test]
fn the_alternate_stack_is_used_once_and_can_disarm_itself() {
    let stack = AlternateStack::new(0x1000, 0, 0x2000).unwrap();
    assert_eq!(stack.top_for(0x9000), Some(0x3000));
    assert_eq!(stack.top_for(0x2000), None);
    assert_eq!(stack.flags_seen(0x2000), linux::SS_ONSTACK);
    assert_eq!(AlternateStack::new(0, 0, 100), Err(AlternateStackError::TooSmall));
    assert_eq!(AlternateStack::new(0, 77, 0x2000), Err(AlternateStackError::Flags));
    let disarming = AlternateStack::new(0x1000, 1 << 31, 0x2000).unwrap();
    assert_eq!(disarming.top_for(0x2000), Some(0x3000));
    assert_eq!(AlternateStack::new(0, linux::SS_DISABLE, 0).unwrap().flags_seen(0), linux::SS_DISABLE);
}
