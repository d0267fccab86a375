//! Threads that panic, and what is left behind.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::agree;

struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn fall(depth: usize, dropped: &AtomicUsize) {
    let _one = Counted(dropped);
    if depth == 0 {
        panic!("at the bottom");
    }
    fall(depth - 1, dropped);
}

pub fn caught() -> Result<String, String> {
    // The message of a panic goes to standard error and has numbers of threads in it.
    panic::set_hook(Box::new(|_| {}));
    let result = check();
    let _ = panic::take_hook();
    result
}

fn check() -> Result<String, String> {
    let dropped = AtomicUsize::new(0);
    let fallen = panic::catch_unwind(AssertUnwindSafe(|| fall(20, &dropped)));
    let reason = fallen.err().and_then(|reason| reason.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    agree(reason.as_deref(), Some("at the bottom"))?;
    agree(dropped.into_inner(), 21)?;
    let shared = Arc::new(Mutex::new(0));
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut value = shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                *value += number;
                assert!(number % 2 == 0, "thread {number} fails");
                number
            })
        })
        .collect();
    let mut failed = Vec::new();
    for thread in threads {
        if let Err(reason) = thread.join() {
            failed.push(reason.downcast_ref::<String>().cloned().unwrap_or_default());
        }
    }
    agree(shared.is_poisoned(), true)?;
    agree(shared.lock().map_or_else(|poisoned| *poisoned.into_inner(), |value| *value), 28)?;
    shared.clear_poison();
    agree(shared.lock().is_ok(), true)?;
    let scoped = panic::catch_unwind(|| thread::scope(|scope| drop(scope.spawn(|| panic!("in a scope")))));
    agree(scoped.is_err(), true)?;
    Ok(failed.join(", "))
}
