//! Ways to wait, each tried with wakers that misbehave.

use super::{Deed, On, ends, evil, noting};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::thread;

pub type Waiting = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Something that can be waited for.
pub struct Family {
    /// Another wait for it.
    pub wait: Arc<dyn Fn() -> Waiting + Send + Sync>,
    /// Lets one waiter go on, or all.
    pub fire: Box<dyn FnOnce() + Send>,
}

pub fn poll(future: &mut Waiting, waker: &Waker) -> Poll<()> {
    future.as_mut().poll(&mut Context::from_waker(waker))
}

/// One waiter has a waker that does `deed` on a call of `on`; another, behind it, is woken nevertheless.
fn one_evil_waiter(family: Family, on: On, panics: bool) {
    let Family { wait, fire } = family;
    let again = wait.clone();
    let deed: Deed = if panics {
        Arc::new(|| panic!("as planned"))
    } else {
        Arc::new(move || {
            let mut another = again();
            let _ = poll(&mut another, Waker::noop());
        })
    };
    let (waker, evil) = evil(on, deed);
    let mut first = wait();
    let mut second = wait();
    if on == On::Clone {
        evil.arm();
    }
    let _ = catch_unwind(AssertUnwindSafe(|| poll(&mut first, &waker)));
    if on != On::Clone {
        evil.arm();
    }
    let (good, noted) = noting();
    let is_ready = poll(&mut second, &good).is_ready();
    // Another waker takes the place of the evil one, which is dropped.
    if on == On::Drop {
        let _ = catch_unwind(AssertUnwindSafe(|| poll(&mut first, Waker::noop())));
    }
    let _ = catch_unwind(AssertUnwindSafe(fire));
    let _ = catch_unwind(AssertUnwindSafe(|| drop(first)));
    if !is_ready {
        while !noted.woken.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        while poll(&mut second, &good).is_pending() {
            thread::yield_now();
        }
    }
    let _ = catch_unwind(AssertUnwindSafe(|| drop(waker)));
}

/// The waker panics, or waits for the same, when it is woken, cloned or dropped.
pub fn every_way(family: fn() -> Family) {
    for on in [On::Wake, On::Clone, On::Drop] {
        for panics in [true, false] {
            ends(move || one_evil_waiter(family(), on, panics));
        }
    }
}
