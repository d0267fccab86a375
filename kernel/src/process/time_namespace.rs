//! Time namespaces, time_namespaces(7): how far the clocks that run since the start are ahead for those inside.
//!
//! The kernel keeps the first namespace's time everywhere, and calls translate at their edge: [`Thread::clock_now`]
//! what goes out, [`Thread::clock_moment`] what comes in. The first is `None`. Offsets can be set until a process comes
//! in; from then on programs read them from a page of the namespace, beside the system page.

use alloc::sync::Arc;

use heddle_kernel_core::time_offsets::TimeOffsets;

use crate::error::Errno;
use crate::fs::mount::next_namespace_number;
use crate::memory::{MapSource, fallible};
use crate::process::namespace_counts::{CountedNamespace, NamespaceKind};
use crate::process::user_namespace::Users;
use crate::process::{Credentials, Thread};
use crate::sync::SpinLock;
use crate::time::Clock;
use crate::user_sched;

/// A time namespace; none for the first.
pub type Times = Option<Arc<TimeNamespace>>;

/// The number of the first one, which is the same on every Linux.
const FIRST_NUMBER: u64 = 0xefff_fffa;

/// A time namespace other than the first.
pub struct TimeNamespace {
    number: u64,
    counted: CountedNamespace,
    offsets: SpinLock<TimeOffsets>,
    /// The pages of the one that it was made from, if processes are in that, and what they say.
    inherited: Option<(Arc<dyn MapSource>, TimeOffsets)>,
    /// The page that programs read, with the system page, once a process has come in.
    source: spin::Once<Arc<dyn MapSource>>,
}

impl TimeNamespace {
    /// A namespace with the offsets of another, made with these credentials.
    ///
    /// # Errors
    /// `ENOSPC` (there are as many as there may be), `ENOMEM`.
    pub fn new(from: &Times, maker: &Credentials) -> Result<Arc<Self>, Errno> {
        let counted = CountedNamespace::new(maker, NamespaceKind::Times)?;
        let known = offsets(from);
        let inherited = match from {
            None => Some(user_sched::first_clock()?),
            Some(from) => from.source.get().cloned(),
        };
        fallible::try_arc(Self {
            number: next_namespace_number(),
            counted,
            offsets: SpinLock::new(known),
            inherited: inherited.map(|source| (source, known)),
            source: spin::Once::new(),
        })
    }

    /// Sets offsets, before a process comes in.
    ///
    /// # Errors
    /// `EACCES` (one has), and what `change` says.
    pub fn change(
        &self,
        change: impl FnOnce(TimeOffsets) -> Result<TimeOffsets, Errno>,
    ) -> Result<(), Errno> {
        let mut offsets = self.offsets.lock();
        let changed = change(*offsets)?;
        if self.source.get().is_some() {
            return Err(Errno::EACCES);
        }
        *offsets = changed;
        Ok(())
    }
}

/// The number of a namespace.
#[must_use]
pub fn number(times: &Times) -> u64 {
    times.as_ref().map_or(FIRST_NUMBER, |times| times.number)
}

/// The user namespace that owns it.
#[must_use]
pub fn owner(times: &Times) -> Users {
    times.as_ref().and_then(|times| times.counted.owner().clone())
}

/// Its offsets.
#[must_use]
pub fn offsets(times: &Times) -> TimeOffsets {
    times.as_ref().map_or_else(TimeOffsets::default, |times| *times.offsets.lock())
}

/// Whether two are the same.
#[must_use]
pub fn is_same(one: &Times, other: &Times) -> bool {
    number(one) == number(other)
}

/// The pages that a program in it maps; its offsets stay as they are from now on.
///
/// # Errors
/// `ENOMEM`.
pub fn pages(times: &Times) -> Result<Arc<dyn MapSource>, Errno> {
    let Some(times) = times else { return user_sched::first_clock() };
    let offsets = times.offsets.lock();
    let make = || match &times.inherited {
        // A child that begins in it has these already.
        Some((source, known)) if *known == *offsets => Ok(source.clone()),
        _ => user_sched::clock(offsets.monotonic_ns as u64, offsets.boottime_ns as u64),
    };
    times.source.try_call_once(make).cloned()
}

/// How far a clock is ahead.
fn offset_ns(times: &Times, clock: Clock) -> i64 {
    match clock {
        Clock::Realtime => 0,
        Clock::Monotonic => offsets(times).monotonic_ns,
        Clock::Boottime => offsets(times).boottime_ns,
    }
}

/// The time that a clock shows in a namespace.
#[must_use]
pub fn now_ns(times: &Times, clock: Clock) -> u64 {
    clock.now_ns().saturating_add_signed(offset_ns(times, clock))
}

impl Thread {
    /// The time that a clock shows in the thread's namespace.
    #[must_use]
    pub fn clock_now(&self, clock: Clock) -> u64 {
        now_ns(&self.namespaces().times, clock)
    }

    /// The time of the first namespace's clock when that of the thread's shows `time_ns`, which is not 0 if that
    /// isn't.
    #[must_use]
    pub fn clock_moment(&self, clock: Clock, time_ns: u64) -> u64 {
        if clock == Clock::Realtime || time_ns == 0 {
            return time_ns;
        }
        let offset = offset_ns(&self.namespaces().times, clock);
        let moment = i128::from(time_ns) - i128::from(offset);
        u64::try_from(moment.max(1)).unwrap_or(u64::MAX)
    }
}
