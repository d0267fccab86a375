//! Tests of what is relied on, and when.

use super::Attributes;
use super::knowledge::{FileQuestion, Horizon, Judgement, Knowledge, ServerClock};

const OLD: (u64, u64) = (1000, 0);
const NOW: u64 = 5000;
/// When the client changes something.
const OWN: u64 = 2000;

fn question(begun: u64, asked_ns: u64) -> FileQuestion {
    FileQuestion { begun, asked_ns, epoch: 0, is_watched: false, wall_seconds: NOW, server_seconds: NOW }
}

/// One that is put right after the client's change.
fn at_once(begun: u64, asked_ns: u64) -> FileQuestion {
    FileQuestion { wall_seconds: OWN + 1, server_seconds: OWN + 1, ..question(begun, asked_ns) }
}

fn horizon(now_ns: u64) -> Horizon {
    Horizon { now_ns, valid_ns: 100, valid_doubtful_ns: 50, epoch: 0 }
}

fn answer(size: u64, time: (u64, u64)) -> Attributes {
    Attributes { size, links: 1, modified: time, changed: time, ..Attributes::default() }
}

#[test]
fn an_answer_is_relied_on_for_a_time() {
    let mut file = Knowledge::default();
    assert_eq!(file.current(&horizon(0)), None);
    assert_eq!(file.learn(&question(0, 10), &answer(1, OLD)), Judgement::Same);
    assert_eq!(file.current(&horizon(109)).map(|known| known.size), Some(1));
    assert_eq!(file.current(&horizon(110)), None);
    assert!(file.last().is_some(), "it is what was known last all the same");
}

#[test]
fn a_file_with_several_names_is_asked_about_sooner() {
    for (mode, links, is_current) in [(0o100_644, 1, true), (0o100_644, 2, false), (0o040_755, 2, true)] {
        let mut file = Knowledge::default();
        file.learn(&question(0, 10), &Attributes { mode, links, ..answer(1, OLD) });
        assert_eq!(file.current(&horizon(100)).is_some(), is_current, "{mode:o} {links}");
    }
}

#[test]
fn an_announcement_ends_the_time() {
    let mut file = Knowledge::default();
    file.learn(&question(0, 10), &answer(1, OLD));
    assert_eq!(file.current(&Horizon { epoch: 1, ..horizon(11) }), None);
    file.learn(&FileQuestion { epoch: 1, ..question(0, 11) }, &answer(1, OLD));
    assert!(file.current(&Horizon { epoch: 1, ..horizon(11) }).is_some());
    let asked = FileQuestion { epoch: 1, ..question(0, 12) };
    file.expire(1);
    file.learn(&asked, &answer(1, OLD));
    assert_eq!(file.current(&Horizon { epoch: 1, ..horizon(11) }), None);
}

#[test]
fn changes_by_others_are_seen_in_length_and_times() {
    for other in [answer(2, OLD), answer(1, (1000, 1))] {
        let mut file = Knowledge::default();
        file.learn(&question(0, 10), &answer(1, OLD));
        assert_eq!(file.learn(&question(0, 200), &answer(1, OLD)), Judgement::Same);
        assert_eq!(file.learn(&question(0, 400), &other), Judgement::Changed);
        assert_eq!(file.learn(&question(0, 600), &other), Judgement::Same);
    }
}

#[test]
fn own_changes_are_no_evidence() {
    let mut file = Knowledge::default();
    file.learn(&question(0, 10), &answer(1, OLD));
    file.change(1, OWN);
    file.grow(5);
    assert_eq!(file.current(&horizon(11)), None, "the times are not known");
    assert!(file.is_current_but_for_own_changes(&horizon(11)));
    assert_eq!(file.last().map(|known| known.size), Some(5));
    assert_eq!(file.learn(&at_once(1, 20), &answer(5, (2000, 0))), Judgement::Same);
    file.change(2, OWN);
    assert_eq!(file.learn(&at_once(2, 30), &answer(9, (2001, 0))), Judgement::Changed, "not as we wrote it");
}

#[test]
fn a_change_by_others_right_after_the_clients_is_seen_a_little_later() {
    let after = answer(1, (OWN + 1, 0));
    let mut file = Knowledge::default();
    file.learn(&question(0, 10), &answer(1, OLD));
    file.change(1, OWN);
    assert_eq!(file.learn(&at_once(1, 20), &after), Judgement::Same, "it may be the client's");
    assert!(file.current(&horizon(69)).is_some());
    assert_eq!(file.current(&horizon(70)), None, "it is asked about again soon");
    assert_eq!(file.learn(&question(1, 80), &after), Judgement::Changed);
    assert_eq!(file.learn(&question(1, 200), &after), Judgement::Same);
    assert!(file.current(&horizon(299)).is_some());
    file.change(2, OWN);
    assert_eq!(file.learn(&question(2, 300), &after), Judgement::Changed, "nobody asked in time");
}

#[test]
fn permissions_outlive_the_clients_other_changes() {
    let mut file = Knowledge::default();
    file.learn(&question(0, 10), &answer(1, OLD));
    file.change(1, OWN);
    assert!(file.access(&horizon(11)).is_some());
    assert_eq!(file.access(&horizon(110)), None);
    file.change_access();
    assert_eq!(file.access(&horizon(11)), None);
    file.learn(&question(1, 20), &answer(1, OLD));
    assert!(file.access(&horizon(21)).is_some());
}

#[test]
fn an_answer_that_a_change_has_overtaken_is_not_kept() {
    let mut file = Knowledge::default();
    file.learn(&question(0, 10), &answer(1, OLD));
    let asked = question(0, 20);
    file.change(1, OWN);
    file.set_size(7);
    assert_eq!(file.learn(&asked, &answer(1, OLD)), Judgement::Same);
    assert_eq!(file.last().map(|known| known.size), Some(7));
    assert_eq!(file.current(&horizon(21)), None);
}

#[test]
fn young_times_are_looked_at_twice() {
    let young = (NOW - 1, 0);
    let mut file = Knowledge::default();
    file.learn(&question(0, 10), &answer(1, young));
    assert!(!file.is_settled());
    let later = |seconds| FileQuestion { server_seconds: NOW + seconds, ..question(0, 200) };
    assert_eq!(file.learn(&later(5), &answer(1, young)), Judgement::Changed, "perhaps in the same step");
    assert_eq!(file.learn(&later(6), &answer(1, young)), Judgement::Same);
    assert!(file.is_settled());
    file.change(1, OWN);
    assert!(!file.is_settled());
}

#[test]
fn names_are_counted_and_all_is_forgotten() {
    let mut file = Knowledge::default();
    assert_eq!(file.count_name(true), None);
    file.learn(&question(0, 10), &answer(1, OLD));
    assert_eq!(
        (file.count_name(true), file.count_name(false), file.count_name(false)),
        (Some(2), Some(1), Some(0))
    );
    assert_eq!(file.count_name(false), Some(0));
    file.forget(3);
    assert_eq!((file.last(), file.changed_at()), (None, 3));
    file.learn(&question(2, 10), &answer(1, OLD));
    assert_eq!(file.last(), None);
}

#[test]
fn others_beside_the_client_are_only_seen_in_a_directory_that_is_watched() {
    for is_watched in [false, true] {
        let mut directory = Knowledge::default();
        let answer = Attributes { mode: 0o040_755, ..answer(1, OLD) };
        directory.learn(&question(0, 10), &answer);
        directory.change(1, OWN);
        let judgement = directory.learn(&FileQuestion { is_watched, ..question(1, 20) }, &answer);
        assert_eq!(judgement == Judgement::Same, is_watched);
    }
}

#[test]
fn a_change_by_others_long_after_the_clients_is_seen() {
    for mode in [0o100_644, 0o040_755] {
        let mut file = Knowledge::default();
        file.learn(&question(0, 10), &Attributes { mode, ..answer(1, OLD) });
        file.change(1, OWN);
        let later = Attributes { mode, ..answer(1, (OWN + 3, 0)) };
        assert_eq!(file.learn(&question(1, 20), &later), Judgement::Changed);
        assert_eq!(file.learn(&question(1, 30), &later), Judgement::Same);
    }
}

#[test]
fn what_is_known_of_a_numbers_last_file_goes_with_it() {
    let mut file = Knowledge::default();
    file.learn(&question(0, 10), &answer(3, OLD));
    // The number belongs to another file now, whose name is replaced while it is asked about.
    file.expire(5);
    assert_eq!(file.learn(&question(4, 20), &answer(20, OLD)), Judgement::Changed);
    assert_eq!(file.last().map(|known| known.size), Some(20));
    assert_eq!(file.current(&horizon(21)), None);
    // An answer from before the client's own change is not known at all.
    file.change(9, OWN);
    file.set_size(7);
    assert_eq!(file.learn(&question(8, 30), &answer(20, OLD)), Judgement::Same);
    assert_eq!(file.last().map(|known| known.size), Some(7));
}

#[test]
fn one_doubtful_answer_does_not_follow_another() {
    let mut file = Knowledge::default();
    file.learn(&question(0, 10), &answer(5, OLD));
    for moment in 1..5 {
        file.change(moment, OWN);
        let judgement = file.learn(&at_once(moment, 10 * moment), &answer(5, (2000, 0)));
        assert_eq!(judgement, if moment % 2 == 1 { Judgement::Same } else { Judgement::Changed });
    }
}

#[test]
fn a_client_whose_clock_is_ahead_settles_nothing_early() {
    let mut file = Knowledge::default();
    let ahead = |server_seconds| FileQuestion { wall_seconds: NOW + 100, server_seconds, ..question(0, 10) };
    // The host may change the file once more in the same step of its clock.
    file.learn(&ahead(NOW), &answer(1, (NOW, 0)));
    assert!(!file.is_settled());
    assert_eq!(file.learn(&ahead(NOW + 3), &answer(1, (NOW, 0))), Judgement::Changed);
    assert!(file.is_settled());
}

#[test]
fn the_servers_clock_is_known_by_what_it_has_shown() {
    const SECOND: u64 = 1_000_000_000;
    let mut clock = ServerClock::new();
    assert!(clock.seconds(5 * SECOND) < NOW);
    clock.show(NOW, 5 * SECOND);
    assert_eq!(clock.seconds(5 * SECOND), NOW);
    assert_eq!(clock.seconds(8 * SECOND), NOW + 2, "less than three seconds for sure");
    // Times of old files say nothing new.
    clock.show(NOW - 50, 9 * SECOND);
    assert_eq!(clock.seconds(9 * SECOND), NOW + 3);
    clock.show(NOW + 60, 9 * SECOND);
    assert_eq!(clock.seconds(9 * SECOND), NOW + 60);
    // A client whose clock is fast: after a day it is not ahead.
    assert!(clock.seconds(9 * SECOND + 86_400 * SECOND) <= NOW + 60 + 86_400 - 86);
    assert_eq!(clock.seconds(0), NOW + 60, "and a question from before is no reason to panic");
}

#[test]
fn a_version_confirms_what_is_known() {
    let mut file = Knowledge::default();
    assert!(!file.is_confirmed(0), "nothing is");
    file.learn(&question(0, 10), &Attributes { version: 7, ..answer(1, OLD) });
    assert!(file.is_confirmed(7) && !file.is_confirmed(8));
    file.change(1, OWN);
    assert!(!file.is_confirmed(7), "another file may have been like this one before the client changed it");
}

#[test]
fn a_change_time_tells_files_of_one_number_apart() {
    let mut file = Knowledge::default();
    assert!(!file.is_unchanged(&answer(1, OLD)), "nothing is known");
    file.learn(&question(0, 10), &answer(1, OLD));
    assert!(file.is_unchanged(&answer(1, OLD)));
    assert!(!file.is_unchanged(&answer(1, (1000, 1))), "it was changed, or is another");
    assert!(!file.is_unchanged(&Attributes { number: 7, ..answer(1, OLD) }));
    assert!(!file.is_unchanged(&Attributes { mode: 0o120_777, ..answer(1, OLD) }));
    // One that has its number now may have been made in the same step of the clock.
    let young = (NOW - 1, 0);
    file.learn(&question(0, 20), &answer(1, young));
    assert!(!file.is_unchanged(&answer(1, young)));
    // A directory's change time is not what says whether it is settled.
    let directory = Attributes { mode: 0o040_755, ..answer(1, OLD) };
    file.learn(&FileQuestion { is_watched: true, ..question(0, 30) }, &directory);
    assert!(!file.is_unchanged(&directory));
}

#[test]
fn a_generation_is_asked_for_when_it_may_be_another() {
    let mut file = Knowledge::default();
    let counted = Attributes { generation: Some(5), ..answer(1, OLD) };
    let mut unasked = answer(1, OLD);
    assert!(!file.lacks_generation(&mut unasked), "none is known to compare with");
    file.learn(&question(0, 10), &counted);
    assert!(!file.lacks_generation(&mut unasked));
    assert_eq!(unasked.generation, Some(5), "the change time says that it is the same file");
    let mut changed = answer(1, (1001, 0));
    assert!(file.lacks_generation(&mut changed));
    assert!(!file.lacks_generation(&mut Attributes { generation: Some(6), ..changed }), "it is there");
    assert!(!file.wants_generation());
    file.change(1, OWN);
    assert!(file.wants_generation(), "the change time will be another");
}
