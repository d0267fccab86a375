//! The orders of two and three locks, of parts of one, and what a report says.

use core::panic::Location;
use std::boxed::Box;
use std::string::{String, ToString};

use crate::lock_order::{CLASSES, Graph, Held, LockClass, Report, Taken};

/// A graph is too large for a test's stack.
fn graph() -> Box<Graph> {
    Box::new(Graph::new())
}

#[track_caller]
fn taken(graph: &Graph, class: &LockClass, lock: usize) -> Taken {
    let number = graph.number(class, 0).unwrap();
    Taken { class: number, lock, part: 0..usize::MAX, place: Location::caller() }
}

fn take(graph: &Graph, held: &mut Held<8>, wanted: Taken) -> Result<(), Report> {
    graph.take(held, &wanted)?;
    assert!(held.push(wanted));
    Ok(())
}

#[test]
fn the_same_order_twice_is_fine() {
    let (graph, a, b) = (graph(), LockClass::new(), LockClass::new());
    for _ in 0..2 {
        let mut held = Held::new();
        take(&graph, &mut held, taken(&graph, &a, 1)).unwrap();
        take(&graph, &mut held, taken(&graph, &b, 2)).unwrap();
        assert!(held.remove(1, 0) && held.remove(2, 0) && held.is_empty());
    }
}

#[test]
fn both_orders_of_two_locks_are_reported_with_their_places() {
    let (graph, a, b) = (graph(), LockClass::new(), LockClass::new());
    let mut held = Held::new();
    let first = (taken(&graph, &a, 1), taken(&graph, &b, 2));
    take(&graph, &mut held, first.0.clone()).unwrap();
    take(&graph, &mut held, first.1.clone()).unwrap();
    // Another processor, and other locks of the same classes.
    let mut held = Held::new();
    let second = (taken(&graph, &b, 3), taken(&graph, &a, 4));
    take(&graph, &mut held, second.0.clone()).unwrap();
    let report = take(&graph, &mut held, second.1.clone()).unwrap_err();
    let text = report.to_string();
    let Report::Inversion { now, before } = report else { panic!("{text}") };
    assert_eq!((now.held_at, now.taken_at), (second.0.place, second.1.place));
    let before = before[0].unwrap();
    assert_eq!((before.held_at, before.taken_at), (first.0.place, first.1.place));
    for place in [&first.0, &first.1, &second.0, &second.1] {
        assert!(text.contains(&place.place.to_string()), "{text} lacks {}", place.place);
    }
}

#[test]
fn a_circle_of_three_is_reported_whole() {
    let (graph, classes) = (graph(), [LockClass::new(), LockClass::default(), LockClass::new()]);
    for (from, to) in [(0, 1), (1, 2)] {
        let mut held = Held::new();
        take(&graph, &mut held, taken(&graph, &classes[from], from)).unwrap();
        take(&graph, &mut held, taken(&graph, &classes[to], to)).unwrap();
    }
    let mut held = Held::new();
    take(&graph, &mut held, taken(&graph, &classes[2], 2)).unwrap();
    let report = take(&graph, &mut held, taken(&graph, &classes[0], 0)).unwrap_err();
    let Report::Inversion { before, .. } = report else { panic!("{report}") };
    assert_eq!(before.iter().flatten().count(), 2);
}

#[test]
fn a_released_lock_orders_nothing() {
    let (graph, a, b) = (graph(), LockClass::new(), LockClass::new());
    let mut held = Held::new();
    take(&graph, &mut held, taken(&graph, &a, 1)).unwrap();
    assert!(held.remove(1, 0));
    take(&graph, &mut held, taken(&graph, &b, 2)).unwrap();
    take(&graph, &mut held, taken(&graph, &a, 1)).unwrap();
    assert!(!held.remove(7, 0), "what is not held cannot be released");
}

#[test]
fn a_lock_that_is_held_is_not_taken_again() {
    let (graph, a) = (graph(), LockClass::new());
    let mut held = Held::new();
    take(&graph, &mut held, taken(&graph, &a, 1)).unwrap();
    let report = take(&graph, &mut held, taken(&graph, &a, 1)).unwrap_err();
    assert!(matches!(report, Report::SelfDeadlock { .. }), "{report}");
}

#[test]
fn two_locks_of_one_class_need_levels() {
    let (graph, a) = (graph(), LockClass::new());
    let mut held = Held::new();
    take(&graph, &mut held, taken(&graph, &a, 1)).unwrap();
    let report = take(&graph, &mut held, taken(&graph, &a, 2)).unwrap_err();
    assert!(matches!(report, Report::SameClass { .. }), "{report}");
    let number = graph.number(&a, 1).unwrap();
    let below = Taken { class: number, ..taken(&graph, &a, 2) };
    take(&graph, &mut held, below.clone()).unwrap();
    let mut held = Held::new();
    take(&graph, &mut held, below).unwrap();
    let report = take(&graph, &mut held, taken(&graph, &a, 1)).unwrap_err();
    assert!(matches!(report, Report::Inversion { .. }), "{report}");
}

#[test]
fn parts_of_one_lock_are_taken_from_low_to_high() {
    let (graph, a) = (graph(), LockClass::new());
    let part = |part| Taken { part, ..taken(&graph, &a, 1) };
    let mut held = Held::new();
    take(&graph, &mut held, part(0..10)).unwrap();
    take(&graph, &mut held, part(20..30)).unwrap();
    let report = take(&graph, &mut held, part(10..20)).unwrap_err();
    assert!(matches!(report, Report::SameClass { .. }), "{report}");
    let report = take(&graph, &mut held, part(29..40)).unwrap_err();
    assert!(matches!(report, Report::SelfDeadlock { .. }), "{report}");
    assert!(held.remove(1, 0) && held.remove(1, 20) && held.is_empty());
}

#[test]
fn more_than_there_is_room_for_is_said() {
    let (graph, a) = (graph(), LockClass::new());
    for level in 0..=u8::MAX {
        assert!(graph.number(&a, level).is_ok());
    }
    assert_eq!(usize::from(u8::MAX) + 1, CLASSES);
    assert_eq!(graph.number(&LockClass::new(), 0), Err(Report::Full));
    assert_eq!(
        Report::Full.to_string(),
        String::from("lock order: more classes or orders than the checker has room for")
    );
}
