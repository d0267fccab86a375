//! The order in which several waiters are served, against a list that is searched.

use super::Random;
use heddle_coroutine::wait::Semaphore;
use heddle_coroutine::{Builder, LocalExecutor, LocalJoinHandle, set_priority};
use std::cell::RefCell;
use std::rc::Rc;

#[test]
fn the_most_urgent_waiter_is_served_whoever_changes_or_gives_up() {
    super::seeds(300, play);
}

struct Waiter {
    level: u8,
    /// Since when it has waited at this level.
    since: u32,
    name: u32,
    handle: LocalJoinHandle<()>,
}

/// Plays a random game. The number is for messages.
pub fn play(random: &mut Random, seed: u64) {
    let executor = LocalExecutor::new();
    let (semaphore, served) = (Rc::new(Semaphore::new(0)), Rc::new(RefCell::new(Vec::new())));
    let (mut waiting, mut expected, mut permits): (Vec<Waiter>, _, _) = (Vec::new(), Vec::new(), 0);
    for now in 0..if cfg!(miri) { 30 } else { 200 } {
        match random.below(5) {
            0 | 1 => {
                let level = random.below(4) as u8 * 10;
                let (semaphore, served) = (semaphore.clone(), served.clone());
                let body = async move {
                    semaphore.acquire(1).await.forget();
                    served.borrow_mut().push(now);
                };
                let handle = executor.try_spawn(Builder::new().priority(level), body).unwrap();
                waiting.push(Waiter { level, since: now, name: now, handle });
            }
            2 if !waiting.is_empty() => {
                let at = random.below(waiting.len());
                waiting.swap_remove(at).handle.abort();
            }
            3 if !waiting.is_empty() => {
                let (at, level) = (random.below(waiting.len()), random.below(4) as u8 * 10);
                set_priority(waiting[at].handle.id(), level);
                if level > waiting[at].level {
                    // One that has become less urgent is filed anew when it comes to the front: not followed here.
                    waiting.swap_remove(at).handle.abort();
                } else if level < waiting[at].level {
                    (waiting[at].level, waiting[at].since) = (level, now);
                }
            }
            _ => {
                semaphore.release(1);
                permits += 1;
            }
        }
        executor.run_until_idle();
        let best = (0..waiting.len()).min_by_key(|at| (waiting[*at].level, waiting[*at].since));
        if let Some(best) = best.filter(|_| permits > 0) {
            permits -= 1;
            expected.push(waiting.swap_remove(best).name);
        }
        assert_eq!(*served.borrow(), expected, "seed {seed}");
        assert_eq!(semaphore.available(), permits, "seed {seed}");
    }
}
