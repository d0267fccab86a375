//! The rules of control groups, cgroups(7): which controllers a group may enable, where processes may be, and how
//! limits are written.

pub mod cpu;
#[cfg(all(test, not(heddle_loom)))]
mod tests;

use core::fmt;

/// The most levels of groups below the root. A fork counts at each of them.
pub const LEVELS_MAX: u32 = 32;

bitflags::bitflags! {
    /// Controllers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Controllers: u32 {
        /// Memory of the processes.
        const MEMORY = 1;
        /// Number of threads.
        const PIDS = 2;
        /// Processor time.
        const CPU = 4;
    }
}

/// A request to enable or disable controllers that can't be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// A word is no controller with a sign: `EINVAL`.
    Invalid,
    /// A controller is not there for this group: `ENOENT`.
    Absent,
}

impl Controllers {
    const NAMES: [(Self, &'static str); 3] =
        [(Self::CPU, "cpu"), (Self::MEMORY, "memory"), (Self::PIDS, "pids")];

    /// Those that may be used among the groups of one domain: only processes as a whole have memory.
    const THREADED: Self = Self::PIDS.union(Self::CPU);

    /// The names, in the order in which they are shown.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |&(each, _)| self.contains(each)).map(|(_, name)| name)
    }

    /// The value of `cgroup.subtree_control` after a text like `+pids -memory`, where `available` may be enabled.
    ///
    /// # Errors
    /// The text is no request, or not one for this group.
    pub fn changed(self, text: &str, available: Self) -> Result<Self, RequestError> {
        let (mut enabled, mut disabled) = (Self::empty(), Self::empty());
        for word in text.split_ascii_whitespace() {
            let known = |name: &str| {
                let found = Self::NAMES.into_iter().find(|&(_, known)| known == name);
                found.map(|(each, _)| each).ok_or(RequestError::Invalid)
            };
            if let Some(name) = word.strip_prefix('+') {
                let each = known(name)?;
                (enabled, disabled) = (enabled | each, disabled - each);
            } else {
                let each = known(word.strip_prefix('-').ok_or(RequestError::Invalid)?)?;
                (enabled, disabled) = (enabled - each, disabled | each);
            }
        }
        if !available.contains(enabled - self) {
            return Err(RequestError::Absent);
        }
        Ok((self | enabled) - disabled)
    }
}

/// The state of a group on which the rules about its processes depend.
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupShape {
    /// It is the root, to which no rule applies.
    pub is_root: bool,
    /// It has threads of its own.
    pub has_threads: bool,
    /// One of the groups in it has threads, or one below.
    pub has_populated_children: bool,
    /// The controllers that it has enabled for the groups in it.
    pub enabled: Controllers,
}

impl GroupShape {
    /// Whether threads in it and controllers for the groups in it go together: only controllers of threads are
    /// enabled, and no group in it has processes.
    fn can_be_thread_root(self) -> bool {
        self.is_root || !self.has_populated_children && Controllers::THREADED.contains(self.enabled)
    }

    /// Whether it has both, which makes it the root of a domain of threads.
    #[must_use]
    pub fn is_thread_root(self) -> bool {
        !self.is_root && self.has_threads && self.enabled.intersects(Controllers::THREADED)
    }

    /// Whether a process may come into it: where controllers are enabled for the groups in it, processes are in those.
    #[must_use]
    pub fn may_have_processes(self) -> bool {
        self.can_be_thread_root() || self.enabled.is_empty()
    }

    /// Whether these may be enabled for the groups in it.
    #[must_use]
    pub fn may_enable(self, added: Controllers) -> bool {
        if self.is_root || added.is_empty() {
            return true;
        }
        let is_threaded = Controllers::THREADED.contains(added);
        is_threaded && self.can_be_thread_root() || !self.has_threads
    }
}

/// A limit as files show and take it: a number, or `max` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimit(pub u64);

impl GroupLimit {
    /// No limit.
    pub const MAX: Self = Self(u64::MAX);

    /// The limit that a text says; `None` if it says none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "max" => Some(Self::MAX),
            _ => text.parse().ok().map(Self),
        }
    }

    /// The limit in bytes that a text says, where a number may have a unit.
    #[must_use]
    pub fn parse_bytes(text: &str) -> Option<Self> {
        if text == "max" {
            return Some(Self::MAX);
        }
        let (number, unit) = match text.as_bytes().last()? {
            b'k' | b'K' => (&text[..text.len() - 1], 10),
            b'm' | b'M' => (&text[..text.len() - 1], 20),
            b'g' | b'G' => (&text[..text.len() - 1], 30),
            b't' | b'T' => (&text[..text.len() - 1], 40),
            _ => (text, 0),
        };
        number.parse::<u64>().ok()?.checked_mul(1 << unit).map(Self)
    }
}

impl fmt::Display for GroupLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::MAX => formatter.write_str("max"),
            Self(number) => write!(formatter, "{number}"),
        }
    }
}
