//! Values that belong to one thread.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::agree;
use crate::text::{self, Counts, PAGES};

static ENDED: AtomicUsize = AtomicUsize::new(0);

/// Its end is seen.
struct Own(Counts);

impl Drop for Own {
    fn drop(&mut self) {
        ENDED.fetch_add(self.0.values().sum::<usize>(), Ordering::Relaxed);
    }
}

thread_local! {
    static PAGES_SEEN: Cell<u64> = const { Cell::new(0) };
    static COUNTED: RefCell<Own> = const { RefCell::new(Own(Counts::new())) };
}

pub fn values() -> Result<String, String> {
    const THREADS: u64 = 8;
    let threads: Vec<_> = (0..THREADS)
        .map(|first| {
            thread::spawn(move || {
                for number in (first..PAGES).step_by(THREADS as usize) {
                    PAGES_SEEN.set(PAGES_SEEN.get() + 1);
                    COUNTED.with_borrow_mut(|own| text::add(&mut own.0, &text::page(number)));
                }
                PAGES_SEEN.get()
            })
        })
        .collect();
    let mut seen = 0;
    for thread in threads {
        seen += thread.join().map_err(|_| "a thread panicked")?;
    }
    agree(seen, PAGES)?;
    agree(PAGES_SEEN.get(), 0)?;
    let ended = ENDED.load(Ordering::Relaxed);
    agree(ended, text::expected().values().sum())?;
    Ok(format!("{ended} words at the ends of {THREADS} threads"))
}

fn depth(left: usize) -> usize {
    let room = [left as u8; 1024];
    if left == 0 {
        0
    } else {
        depth(left - 1) + usize::from(std::hint::black_box(room)[left % 1024] == left as u8)
    }
}

pub fn named() -> Result<String, String> {
    let builder = thread::Builder::new().name(String::from("deep")).stack_size(32 << 20);
    let deep = builder.spawn(|| (thread::current().name().map(str::to_owned), depth(20_000)));
    let (name, reached) =
        deep.map_err(|error| error.to_string())?.join().map_err(|_| "the deep thread panicked")?;
    agree(name.as_deref(), Some("deep"))?;
    // The kernel knows the name as well, and every thread has a number of its own.
    let comm = thread::Builder::new()
        .name(String::from("known"))
        .spawn(|| std::fs::read_to_string("/proc/thread-self/comm").unwrap_or_default());
    let comm = comm.map_err(|error| error.to_string())?.join().map_err(|_| "a thread panicked")?;
    agree(comm.trim(), "known")?;
    agree(thread::available_parallelism().is_ok_and(|count| count.get() > 0), true)?;
    Ok(format!("{reached} calls deep, {}", comm.trim()))
}
