//! Tests of this crate.

extern crate std;

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use super::*;

const TICK_NS: u64 = 100_000;

/// Runs threads that always want the processor, by nice value, and returns the time each got.
fn share(nices: &[i8], duration_ns: u64) -> Vec<u64> {
    let mut accounts: Vec<_> = nices.iter().map(|&nice| Account::new(nice)).collect();
    let mut queues = [(0..nices.len()).collect::<VecDeque<_>>(), VecDeque::new()];
    let mut used = vec![0; nices.len()];
    let mut now = 0;
    while now < duration_ns {
        let queue = usize::from(queues[0].is_empty());
        let thread = queues[queue].pop_front().expect("somebody always wants to run");
        let turn = accounts[thread].budget_ns();
        used[thread] += turn;
        now += turn;
        assert!(accounts[thread].ran(turn, nices[thread]));
        queues[1].push_back(thread);
    }
    used
}

#[test]
fn equal_threads_get_equal_shares() {
    let used = share(&[0, 0, 0], 3_000_000_000);
    let (least, most) = (used.iter().min().unwrap(), used.iter().max().unwrap());
    assert!(most - least <= SLICE_NS);
}

#[test]
fn nice_values_set_the_proportion_and_starve_nobody() {
    let used = share(&[0, 19, -20], 10_000_000_000);
    let ratio = |a: usize, b: usize| used[a] as f64 / used[b] as f64;
    assert!((19.0..21.0).contains(&ratio(0, 1)), "{used:?}");
    assert!((7.5..8.5).contains(&ratio(2, 0)), "{used:?}");
}

/// A thread that runs for a while and sleeps for a while, over and over: whether it stays fresh.
fn stays_fresh(run_ns: u64, sleep_ns: u64) -> bool {
    let mut account = Account::new(0);
    (0..1000).all(|_| {
        let mut left = run_ns;
        while left > 0 {
            let step = left.min(TICK_NS);
            account.ran(step, 0);
            left -= step;
        }
        let was_fresh = !account.is_spent();
        account.slept(sleep_ns, 0);
        was_fresh
    })
}

#[test]
fn who_sleeps_enough_stays_fresh() {
    assert!(stays_fresh(1_000_000, 5_000_000));
    assert!(stays_fresh(200_000, 1_000_000));
    assert!(!stays_fresh(2_000_000, 3_000_000));
}

#[test]
fn a_long_sleep_makes_fresh_again_and_saves_no_more_than_a_slice() {
    let mut account = Account::new(0);
    assert!(account.ran(SLICE_NS, 0));
    account.slept(SLICE_NS / 2, 0);
    assert!(account.is_spent());
    account.slept(1_000_000_000, 0);
    assert!(!account.is_spent());
    assert_eq!(account.budget_ns(), SLICE_NS);
}

#[test]
fn children_bring_no_time() {
    let mut parent = Account::new(0);
    let before = parent.budget_ns();
    let child = parent.split();
    assert!(parent.budget_ns() + child.budget_ns() <= before);
}

#[test]
fn a_spent_parent_keeps_its_turns_however_many_children_it_makes() {
    let mut parent = Account::new(0);
    assert!(parent.ran(SLICE_NS, 0));
    assert!((0..1000).all(|_| parent.split().is_spent()));
    assert_eq!(parent.budget_ns(), SLICE_NS);
}

#[test]
fn slices_fall_with_nice() {
    assert!((-20..19).all(|nice| slice_ns(nice) > slice_ns(nice + 1)));
    assert_eq!((slice_ns(-20), slice_ns(0), slice_ns(19)), (80_000_000, SLICE_NS, 500_000));
}
