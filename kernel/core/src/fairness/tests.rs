//! Tests of this crate.

extern crate std;

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use super::*;

const TICK_NS: u64 = 100_000;

/// Runs threads that always want the processor, by nice value, and returns the time each got.
fn share(nices: &[i8], duration_ns: u64) -> Vec<u64> {
    let mut accounts: Vec<_> = nices.iter().map(|&nice| Account::new(Weight::of_nice(nice))).collect();
    let mut queues = [(0..nices.len()).collect::<VecDeque<_>>(), VecDeque::new()];
    let mut used = vec![0; nices.len()];
    let mut now = 0;
    while now < duration_ns {
        let queue = usize::from(queues[0].is_empty());
        let thread = queues[queue].pop_front().expect("a thread is always ready");
        if !accounts[thread].skips_turn() {
            let turn = accounts[thread].budget_ns();
            used[thread] += turn;
            now += turn;
            assert!(accounts[thread].ran(turn, Weight::of_nice(nices[thread])));
        }
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
    let used = share(&[0, 5, 19, -10, -20], 200_000_000_000);
    let ratio = |a: usize, b: usize| used[a] as f64 / used[b] as f64;
    // Linux's weights: 1024, 335, 15, 9548, 88761.
    assert!((3.0..3.1).contains(&ratio(0, 1)), "{used:?}");
    assert!((66.0..72.0).contains(&ratio(0, 2)), "{used:?}");
    assert!((9.0..9.6).contains(&ratio(3, 0)), "{used:?}");
    assert!((85.0..88.0).contains(&ratio(4, 0)), "{used:?}");
}

/// A thread that runs for a while and sleeps for a while, over and over: whether it stays fresh.
fn stays_fresh(run_ns: u64, sleep_ns: u64) -> bool {
    let mut account = Account::new(Weight::of_nice(0));
    (0..1000).all(|_| {
        let mut left = run_ns;
        while left > 0 {
            let step = left.min(TICK_NS);
            account.ran(step, Weight::of_nice(0));
            left -= step;
        }
        let was_fresh = !account.is_exhausted();
        account.slept(sleep_ns, Weight::of_nice(0));
        was_fresh
    })
}

#[test]
fn a_thread_that_sleeps_enough_stays_fresh() {
    assert!(stays_fresh(1_000_000, 5_000_000));
    assert!(stays_fresh(200_000, 1_000_000));
    assert!(!stays_fresh(2_000_000, 3_000_000));
}

#[test]
fn a_long_sleep_makes_fresh_again_and_saves_no_more_than_a_slice() {
    let mut account = Account::new(Weight::of_nice(0));
    assert!(account.ran(SLICE_NS, Weight::of_nice(0)));
    account.slept(SLICE_NS / 2, Weight::of_nice(0));
    assert!(account.is_exhausted());
    account.slept(1_000_000_000, Weight::of_nice(0));
    assert!(!account.is_exhausted());
    assert_eq!(account.budget_ns(), SLICE_NS);
}

#[test]
fn children_bring_no_time() {
    let mut parent = Account::new(Weight::of_nice(0));
    let before = parent.budget_ns();
    let child = parent.split();
    assert!(parent.budget_ns() + child.budget_ns() <= before);
}

#[test]
fn an_exhausted_parent_keeps_its_turns_however_many_children_it_makes() {
    let mut parent = Account::new(Weight::of_nice(0));
    assert!(parent.ran(SLICE_NS, Weight::of_nice(0)));
    assert!((0..1000).all(|_| parent.split().is_exhausted()));
    assert_eq!(parent.budget_ns(), SLICE_NS);
}

#[test]
fn slices_fall_with_nice() {
    let slice = |nice| Weight::of_nice(nice).slice_ns();
    assert!((-20..19).all(|nice| slice(nice) > slice(nice + 1)));
    assert_eq!([-10, 0, 5, 19].map(Weight::of_nice), [Weight(9537), Weight(1024), Weight(336), Weight(15)]);
    assert_eq!((slice(0), slice(19)), (SLICE_NS, 146_484));
}

#[test]
fn late_interrupts_are_paid_back() {
    let weights = [Weight::of_nice(0), Weight::of_nice(5)];
    let mut accounts = weights.map(Account::new);
    let mut used = [0; 2];
    for round in 0..10_000 {
        for (number, account) in accounts.iter_mut().enumerate() {
            if !account.skips_turn() {
                // Now and then the turn is much longer, for both alike.
                let late = if (round + number) % 3 == 0 { 5_000_000 } else { 0 };
                let ran = account.budget_ns() + late;
                used[number] += ran;
                account.ran(ran, weights[number]);
            }
        }
    }
    let ratio = used[0] as f64 / used[1] as f64;
    assert!((2.9..3.2).contains(&ratio), "{ratio}");
}

#[test]
fn an_idle_thread_gets_its_part_and_no_more() {
    let mut account = Account::new(Weight::IDLE);
    let (mut used, mut rounds) = (0, 0);
    while rounds < 10_000 {
        if !account.skips_turn() {
            used += account.budget_ns();
            account.ran(account.budget_ns(), Weight::IDLE);
        }
        rounds += 1;
    }
    // Beside one of nice value 0, which has a slice in each round: 3 to 1024.
    let ratio = (rounds * SLICE_NS) as f64 / used as f64;
    assert!((330.0..350.0).contains(&ratio), "{ratio}");
    // Alone it need not wait.
    assert!(account.ran(SLICE_NS, Weight::IDLE));
    account.is_alone();
    assert!(!account.skips_turn());
}

#[test]
fn a_light_thread_that_sleeps_a_little_stays_light() {
    let weight = Weight::of_nice(19);
    let mut account = Account::new(weight);
    account.ran(SLICE_NS, weight);
    account.slept(SLICE_NS / 2, weight);
    assert!(account.is_exhausted());
    account.slept(SLICE_NS, weight);
    assert!(!account.is_exhausted() && account.budget_ns() <= weight.slice_ns());
}
