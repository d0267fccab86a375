//! The action of a signal: a process's table of actions.

use linux_raw_sys::general as linux;

use crate::signal::{Signal, SignalSet};

/// The effect on a process that has no handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultAction {
    /// It ends.
    Terminate,
    /// It ends, with the note that it would have left a core file.
    Core,
    /// Nothing.
    Ignore,
    /// It stops.
    Stop,
    /// The process continues if it was stopped.
    Continue,
}

impl DefaultAction {
    /// The default of a signal; see the table of signal(7).
    #[must_use]
    pub const fn of(signal: Signal) -> Self {
        match signal {
            Signal::CHLD | Signal::URG | Signal::WINCH => Self::Ignore,
            Signal::CONT => Self::Continue,
            Signal::STOP | Signal::TSTP | Signal::TTIN | Signal::TTOU => Self::Stop,
            Signal::QUIT
            | Signal::ILL
            | Signal::TRAP
            | Signal::ABRT
            | Signal::BUS
            | Signal::FPE
            | Signal::SEGV
            | Signal::XCPU
            | Signal::XFSZ
            | Signal::SYS => Self::Core,
            _ => Self::Terminate,
        }
    }
}

/// The `SA_` flags of sigaction(2), kept as the program passed them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActionFlags(pub u64);

impl ActionFlags {
    /// Whether every bit of `flag` (an `SA_` constant) is set.
    #[must_use]
    pub const fn has(self, flag: u32) -> bool {
        self.0 & flag as u64 == flag as u64
    }
}

/// The action that a program set with sigaction(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// The handler's address, or 0 (`SIG_DFL`) or 1 (`SIG_IGN`).
    pub handler: usize,
    /// Its flags.
    pub flags: ActionFlags,
    /// Where the handler returns to.
    pub restorer: usize,
    /// Signals that are blocked besides while the handler runs.
    pub mask: SignalSet,
}

impl Action {
    /// `SIG_DFL`.
    pub const DEFAULT: usize = 0;
    /// `SIG_IGN`.
    pub const IGNORE: usize = 1;

    /// The default action.
    #[must_use]
    pub const fn default_action() -> Self {
        Self { handler: Self::DEFAULT, flags: ActionFlags(0), restorer: 0, mask: SignalSet::EMPTY }
    }

    /// Whether a function of the program is called.
    #[must_use]
    pub const fn has_handler(&self) -> bool {
        self.handler != Self::DEFAULT && self.handler != Self::IGNORE
    }

    /// Whether a `signal` with this action has no effect on delivery (`SIGCONT` has its effect when it is sent).
    #[must_use]
    pub const fn ignores(&self, signal: Signal) -> bool {
        self.handler == Self::IGNORE
            || self.handler == Self::DEFAULT
                && matches!(DefaultAction::of(signal), DefaultAction::Ignore | DefaultAction::Continue)
    }

    /// Reads a `struct kernel_sigaction`: handler, flags, restorer, mask.
    #[must_use]
    pub const fn from_words(words: [u64; 4]) -> Self {
        Self {
            handler: words[0] as usize,
            flags: ActionFlags(words[1]),
            restorer: words[2] as usize,
            mask: SignalSet(words[3]),
        }
    }

    /// Writes a `struct kernel_sigaction`.
    #[must_use]
    pub const fn to_words(&self) -> [u64; 4] {
        [self.handler as u64, self.flags.0, self.restorer as u64, self.mask.0]
    }
}

/// The actions of a process, shared by the processes that `CLONE_SIGHAND` joins.
#[derive(Clone, Debug)]
pub struct Actions([Action; Signal::COUNT]);

impl Default for Actions {
    fn default() -> Self {
        Self::new()
    }
}

impl Actions {
    /// The default action everywhere.
    #[must_use]
    pub const fn new() -> Self {
        Self([Action::default_action(); Signal::COUNT])
    }

    /// The action of `signal`.
    #[must_use]
    pub const fn get(&self, signal: Signal) -> &Action {
        &self.0[signal.index()]
    }

    /// Changes what `signal` does, and returns what it did.
    pub const fn set(&mut self, signal: Signal, mut action: Action) -> Action {
        action.mask = action.mask.difference(SignalSet::UNBLOCKABLE);
        core::mem::replace(&mut self.0[signal.index()], action)
    }

    /// The action to carry out now; a handler with `SA_RESETHAND` is gone afterwards.
    pub const fn take(&mut self, signal: Signal) -> Action {
        let slot = &mut self.0[signal.index()];
        let action = *slot;
        if action.has_handler() && action.flags.has(linux::SA_RESETHAND) {
            *slot = Action { handler: Action::DEFAULT, ..action };
        }
        action
    }

    /// The signals that are ignored by wish and those that have handlers, for `/proc/PID/status`.
    #[must_use]
    pub fn sets(&self) -> (SignalSet, SignalSet) {
        let (mut ignored, mut caught) = (SignalSet::EMPTY, SignalSet::EMPTY);
        for (index, action) in self.0.iter().enumerate() {
            let Some(signal) = Signal::new(index as i32 + 1) else { continue };
            if action.has_handler() {
                caught = caught.with(signal);
            } else if action.handler == Action::IGNORE {
                ignored = ignored.with(signal);
            }
        }
        (ignored, caught)
    }

    /// Changes the table as `execve` does: ignored signals stay ignored, all others get the default.
    pub fn exec(&mut self) {
        for action in &mut self.0 {
            let handler = if action.handler == Action::IGNORE { Action::IGNORE } else { Action::DEFAULT };
            *action = Action { handler, ..Action::default_action() };
        }
    }
}
