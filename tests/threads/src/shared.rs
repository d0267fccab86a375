//! Objects that threads share: locks, condition variables, barriers, and values that are made once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, LazyLock, Mutex, Once, OnceLock, RwLock};
use std::thread;
use std::time::Duration;

use crate::agree;
use crate::text::{self, Counts, PAGES};

/// A queue with room for a few, which is closed in the end.
struct Queue {
    state: Mutex<(VecDeque<u64>, bool)>,
    changed: Condvar,
}

impl Queue {
    const ROOM: usize = 3;

    fn put(&self, number: u64) {
        let state = self.state.lock().unwrap();
        let mut state = self.changed.wait_while(state, |(queue, _)| queue.len() >= Self::ROOM).unwrap();
        state.0.push_back(number);
        self.changed.notify_all();
    }

    fn take(&self) -> Option<u64> {
        let state = self.state.lock().unwrap();
        let mut state =
            self.changed.wait_while(state, |(queue, closed)| queue.is_empty() && !*closed).unwrap();
        self.changed.notify_all();
        state.0.pop_front()
    }

    fn close(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

pub fn queue() -> Result<String, String> {
    let queue = Queue { state: Mutex::new((VecDeque::new(), false)), changed: Condvar::new() };
    let all = Mutex::new(Counts::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(number) = queue.take() {
                    let counts = text::count(&text::page(number));
                    text::merge(&mut all.lock().unwrap(), counts);
                }
            });
        }
        thread::scope(|scope| {
            for producer in 0..3 {
                let queue = &queue;
                scope.spawn(move || (producer..PAGES).step_by(3).for_each(|number| queue.put(number)));
            }
        });
        queue.close();
    });
    let all = all.into_inner().map_err(|error| error.to_string())?;
    agree(&all, text::expected())?;
    // Nobody notifies: the wait ends by itself.
    let state = queue.state.lock().map_err(|error| error.to_string())?;
    let waited = queue.changed.wait_timeout_while(state, Duration::from_millis(20), |_| true);
    agree(waited.map_err(|error| error.to_string())?.1.timed_out(), true)?;
    Ok(text::describe(&all))
}

/// Writers keep two numbers equal, and no reader sees them differ.
pub fn readers_and_writers() -> Result<String, String> {
    let pair = RwLock::new((0_usize, 0_usize));
    let torn = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..400 {
                    let mut pair = pair.write().unwrap();
                    pair.0 += 1;
                    std::hint::spin_loop();
                    pair.1 += 1;
                }
            });
        }
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..400 {
                    let pair = pair.read().unwrap();
                    torn.fetch_add(usize::from(pair.0 != pair.1), Ordering::Relaxed);
                }
            });
        }
    });
    agree(torn.into_inner(), 0)?;
    let pair = pair.into_inner().map_err(|error| error.to_string())?;
    agree(pair, (1200, 1200))?;
    Ok(format!("{pair:?}"))
}

/// Threads compute rounds of a cellular automaton together, each its part.
pub fn rounds() -> Result<String, String> {
    const CELLS: usize = 96;
    const THREADS: usize = 4;
    const ROUNDS: usize = 60;
    let rule = |left: usize, middle: usize, right: usize| left ^ (middle | right);
    let step_of = |cells: &[usize], at: usize| {
        rule(cells[(at + CELLS - 1) % CELLS], cells[at], cells[(at + 1) % CELLS])
    };
    let mut alone = vec![0; CELLS];
    alone[CELLS / 2] = 1;
    let together: [Vec<AtomicUsize>; 2] =
        std::array::from_fn(|_| alone.iter().map(|&cell| AtomicUsize::new(cell)).collect());
    for _ in 0..ROUNDS {
        alone = (0..CELLS).map(|at| step_of(&alone, at)).collect();
    }
    let barrier = Barrier::new(THREADS);
    let leaders = AtomicUsize::new(0);
    thread::scope(|scope| {
        for part in 0..THREADS {
            let (together, barrier, leaders) = (&together, &barrier, &leaders);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let old: Vec<usize> =
                        together[round % 2].iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
                    let mine = part * CELLS / THREADS..(part + 1) * CELLS / THREADS;
                    for (cell, at) in together[(round + 1) % 2][mine.clone()].iter().zip(mine) {
                        cell.store(step_of(&old, at), Ordering::Relaxed);
                    }
                    leaders.fetch_add(usize::from(barrier.wait().is_leader()), Ordering::Relaxed);
                }
            });
        }
    });
    let found: Vec<usize> = together[ROUNDS % 2].iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
    agree(leaders.into_inner(), ROUNDS)?;
    agree(&found, &alone)?;
    Ok(format!("{} of {CELLS} live", found.iter().sum::<usize>()))
}

/// Whoever comes first makes it, and all see the same.
pub fn once() -> Result<String, String> {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    static LAZY: LazyLock<Vec<u64>> = LazyLock::new(|| {
        MADE.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(5));
        vec![1, 2, 3]
    });
    static ONCE: Once = Once::new();
    static CELL: OnceLock<Arc<str>> = OnceLock::new();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            thread::spawn(|| {
                ONCE.call_once(|| {
                    MADE.fetch_add(10, Ordering::Relaxed);
                });
                let text = CELL.get_or_init(|| {
                    MADE.fetch_add(100, Ordering::Relaxed);
                    Arc::from("made")
                });
                (LAZY.iter().sum::<u64>(), Arc::as_ptr(text).addr())
            })
        })
        .collect();
    let mut seen = Vec::new();
    for thread in threads {
        seen.push(thread.join().map_err(|_| "a thread panicked")?);
    }
    agree(seen.iter().all(|one| *one == seen[0]), true)?;
    agree(MADE.load(Ordering::Relaxed), 111)?;
    Ok(format!("{} by each of {}", seen[0].0, seen.len()))
}
