//! The filters of a thread's system calls, seccomp(2).
//!
//! A thread has a chain of filters, the newest first, which its children and what they execute inherit. Chains share
//! their older parts; nothing is ever taken off one. The word of a thread's work has a bit for it
//! ([`PendingWork::FILTERED`]), so calls of other threads pay nothing.

pub mod listener;

use alloc::sync::Arc;

use heddle_kernel_core::seccomp::{CallData, FilterAction, Program, stricter};

use crate::arch::UserContext;
use crate::error::Errno;
use crate::memory::fallible;
use crate::process::seccomp::listener::FilterListener;
use crate::process::{Process, Thread};
use crate::signal::PendingWork;

/// The most instructions of a chain; each filter counts for some more.
const CHAIN_MAX: usize = 32_768;
const FILTER_COST: usize = 4;

/// A filter with those that were installed before it.
pub struct Filter {
    program: Program,
    is_logged: bool,
    /// The listener that decides where the program wants to ask.
    listener: Option<Arc<FilterListener>>,
    older: Option<Arc<Filter>>,
    /// Instructions of the chain, and filters in it.
    cost: usize,
    depth: u32,
}

impl Filter {
    /// Puts a program before a chain.
    ///
    /// # Errors
    /// `ENOMEM`, also if the chain becomes too long.
    fn new(new: NewFilter, older: Option<Arc<Self>>) -> Result<Arc<Self>, Errno> {
        let NewFilter { program, is_logged, listener } = new;
        let (cost, depth) = older.as_ref().map_or((0, 0), |older| (older.cost, older.depth));
        let cost = cost + program.len() + if depth > 0 { FILTER_COST } else { 0 };
        if cost > CHAIN_MAX {
            return Err(Errno::ENOMEM);
        }
        fallible::try_arc(Self { program, is_logged, listener, older, cost, depth: depth + 1 })
    }

    /// Filters in the chain.
    #[must_use]
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// The filter at this place of the chain, the oldest first.
    #[must_use]
    pub fn at(&self, place: u64) -> Option<&Self> {
        let mut next = Some(self);
        while let Some(filter) = next {
            if u64::from(filter.depth) == place + 1 {
                return Some(filter);
            }
            next = filter.older.as_deref();
        }
        None
    }

    /// The chain's answer for a call, and the filter that gave it.
    #[must_use]
    pub fn answer(&self, data: &CallData) -> (u32, &Self) {
        let (mut answer, mut giver, mut next) = (FilterAction::Allow.constant(), self, Some(self));
        while let Some(filter) = next {
            let own = filter.program.run(data);
            if stricter(answer, own) != answer {
                (answer, giver) = (own, filter);
            } else if filter.depth == self.depth {
                answer = own;
            }
            next = filter.older.as_deref();
        }
        (answer, giver)
    }

    /// Whether what the filter decides is to be logged.
    #[must_use]
    pub const fn is_logged(&self) -> bool {
        self.is_logged
    }

    /// The listener of this filter.
    #[must_use]
    pub const fn listener(&self) -> Option<&Arc<FilterListener>> {
        self.listener.as_ref()
    }

    /// Whether somebody listens to a filter of the chain.
    fn has_listener(&self) -> bool {
        let mut next = Some(self);
        while let Some(filter) = next {
            if filter.listener.as_ref().is_some_and(|listener| !listener.is_closed()) {
                return true;
            }
            next = filter.older.as_deref();
        }
        false
    }

    /// Whether `chain` consists of the older filters of this chain, or of all.
    fn extends(self: &Arc<Self>, chain: Option<&Arc<Self>>) -> bool {
        let Some(chain) = chain else { return true };
        let mut own = self;
        while own.depth > chain.depth {
            let Some(older) = &own.older else { return false };
            own = older;
        }
        Arc::ptr_eq(own, chain)
    }
}

impl Drop for Filter {
    /// A chain is unwound step by step: a program decides how long it is. Listeners learn that nobody asks any more.
    fn drop(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener.filter_ends();
        }
        let mut next = self.older.take();
        while let Some(mut filter) = next.and_then(Arc::into_inner) {
            next = filter.older.take();
        }
    }
}

/// The mode of a thread, seccomp(2).
#[derive(Clone, Default)]
pub enum Mode {
    /// Every call is carried out.
    #[default]
    Disabled,
    /// Nothing but `read`, `write`, `exit` and `rt_sigreturn`.
    Strict,
    /// Filters decide.
    Filters(Arc<Filter>),
}

impl Mode {
    /// The number that `PR_GET_SECCOMP` and `/proc/PID/status` show.
    #[must_use]
    pub const fn number(&self) -> u32 {
        match self {
            Self::Disabled => 0,
            Self::Strict => 1,
            Self::Filters(_) => 2,
        }
    }

    /// How many filters there are.
    #[must_use]
    pub fn depth(&self) -> u32 {
        if let Self::Filters(filter) = self { filter.depth() } else { 0 }
    }
}

/// The call that the registers describe, as a filter sees it.
#[must_use]
pub fn call_data(context: &UserContext) -> CallData {
    CallData {
        number: context.syscall_number() as u32,
        instruction_pointer: context.ip() as u64,
        arguments: core::array::from_fn(|index| context.argument(index) as u64),
    }
}

/// A filter that is to be installed.
pub struct NewFilter {
    /// Its program.
    pub program: Program,
    /// Whether its decisions are logged.
    pub is_logged: bool,
    /// The listener that its program may ask.
    pub listener: Option<Arc<FilterListener>>,
}

/// Installs a filter for a thread, and with `for_all` for all threads of its process.
///
/// # Errors
/// `EINVAL` (the thread is in strict mode), `EBUSY` (an older filter has a listener as well), `ENOMEM`; the number of
/// a thread whose filters are others.
pub fn install(thread: &Arc<Thread>, new: NewFilter, for_all: bool) -> Result<Option<i32>, Errno> {
    let process: &Process = &thread.process;
    let state = process.signal_state();
    let older = match thread.seccomp() {
        Mode::Disabled => None,
        Mode::Strict => return Err(Errno::EINVAL),
        Mode::Filters(filter) => Some(filter),
    };
    if for_all {
        let is_compatible = |mode: &Mode| match mode {
            Mode::Disabled => true,
            Mode::Strict => false,
            Mode::Filters(theirs) => older.as_ref().is_some_and(|own| own.extends(Some(theirs))),
        };
        let others = state.threads().iter().filter(|other| !Arc::ptr_eq(other, thread));
        if let Some(other) = others.into_iter().find(|other| !is_compatible(&other.seccomp())) {
            return Ok(Some(other.tid()));
        }
    }
    if new.listener.is_some() && older.as_ref().is_some_and(|older| older.has_listener()) {
        return Err(Errno::EBUSY);
    }
    let filter = Filter::new(new, older)?;
    if for_all {
        for other in state.threads() {
            if thread.has_no_new_privileges() {
                other.forbid_new_privileges();
            }
            other.set_seccomp(Mode::Filters(filter.clone()));
        }
    }
    thread.set_seccomp(Mode::Filters(filter));
    drop(state);
    Ok(None)
}

/// Gives a new thread the mode of its parent. The signal state of the new thread's process is locked, so that
/// no change for all threads comes between.
pub fn inherit(parent: &Thread, child: &Thread) {
    if parent.work().contains(PendingWork::FILTERED) {
        child.set_seccomp(parent.seccomp());
        if parent.has_no_new_privileges() {
            child.forbid_new_privileges();
        }
    }
}
