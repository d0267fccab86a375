//! Counts beside a recount.

use proptest::prelude::*;

use super::UserTasks;

/// A change that calls make: a thread starts as some user, goes over to another, or is gone.
#[derive(Clone, Copy, Debug)]
enum Change {
    Start { uid: u32, limit: u64 },
    Become { thread: usize, uid: u32 },
    End { thread: usize },
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0..6_u32, 0..9_u64).prop_map(|(uid, limit)| Change::Start { uid, limit }),
        (any::<usize>(), 0..6_u32).prop_map(|(thread, uid)| Change::Become { thread, uid }),
        any::<usize>().prop_map(|thread| Change::End { thread }),
    ]
}

proptest! {
    #[test]
    fn counts_are_those_of_a_recount(changes in proptest::collection::vec(change(), 0..200)) {
        let mut counts = UserTasks::new();
        let mut threads: Vec<u32> = Vec::new();
        for change in changes {
            match change {
                Change::Start { uid, limit } => {
                    let before = threads.iter().filter(|&&user| user == uid).count() as u64;
                    let entered = counts.enter(uid, limit) == Ok(true);
                    prop_assert_eq!(entered, before < limit);
                    threads.extend(entered.then_some(uid));
                }
                Change::Become { thread, uid } if !threads.is_empty() => {
                    let index = thread % threads.len();
                    prop_assert_eq!(counts.enter(uid, u64::MAX), Ok(true));
                    counts.leave(std::mem::replace(&mut threads[index], uid));
                }
                Change::End { thread } if !threads.is_empty() => {
                    counts.leave(threads.swap_remove(thread % threads.len()));
                }
                _ => {}
            }
            for uid in 0..6 {
                let recount = threads.iter().filter(|&&user| user == uid).count();
                prop_assert_eq!(counts.count(uid) as usize, recount);
            }
        }
        threads.iter().for_each(|&uid| counts.leave(uid));
        prop_assert!(counts.users.is_empty());
    }
}
