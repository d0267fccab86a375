//! Signal numbers and sets of them.

use core::fmt;
use linux_raw_sys::general as linux;

/// A signal's number, 1 to 64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signal(u8);

macro_rules! signals {
    ($($name:ident = $number:ident)*) => {
        #[allow(missing_docs, reason = "the names are Linux's; signal(7) explains them")]
        impl Signal {
            $(pub const $name: Self = Self(linux::$number as u8);)*

            /// The symbolic name; `None` for a realtime signal.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($number)),)*
                    _ => None,
                }
            }
        }
    };
}

signals! {
    HUP = SIGHUP INT = SIGINT QUIT = SIGQUIT ILL = SIGILL TRAP = SIGTRAP ABRT = SIGABRT BUS = SIGBUS FPE = SIGFPE
    KILL = SIGKILL USR1 = SIGUSR1 SEGV = SIGSEGV USR2 = SIGUSR2 PIPE = SIGPIPE ALRM = SIGALRM TERM = SIGTERM
    STKFLT = SIGSTKFLT CHLD = SIGCHLD CONT = SIGCONT STOP = SIGSTOP TSTP = SIGTSTP TTIN = SIGTTIN TTOU = SIGTTOU
    URG = SIGURG XCPU = SIGXCPU XFSZ = SIGXFSZ VTALRM = SIGVTALRM PROF = SIGPROF WINCH = SIGWINCH IO = SIGIO
    PWR = SIGPWR SYS = SIGSYS
}

impl Signal {
    /// The number of signals.
    pub const COUNT: usize = 64;

    /// The first realtime signal, of which every instance is queued.
    pub const FIRST_REALTIME: Self = Self(linux::SIGRTMIN as u8);

    /// The signal of this number, if there is one.
    #[must_use]
    pub const fn new(number: i32) -> Option<Self> {
        if number >= 1 && number <= Self::COUNT as i32 { Some(Self(number as u8)) } else { None }
    }

    /// 1 to 64.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.0 as i32
    }

    /// 0 to 63.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize - 1
    }

    /// Whether every instance is queued.
    #[must_use]
    pub const fn is_realtime(self) -> bool {
        self.0 >= Self::FIRST_REALTIME.0
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "SIGRT_{}", self.0 - Self::FIRST_REALTIME.0),
        }
    }
}

/// A set of signals, as the kernel's `sigset_t`: bit `number - 1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalSet(pub u64);

impl SignalSet {
    /// No signal.
    pub const EMPTY: Self = Self(0);
    /// Every signal.
    pub const ALL: Self = Self(!0);
    /// Signals that can be neither blocked nor caught.
    pub const UNBLOCKABLE: Self = Self::of(&[Signal::KILL, Signal::STOP]);
    /// Signals that stop a process by default.
    pub const STOPS: Self = Self::of(&[Signal::STOP, Signal::TSTP, Signal::TTIN, Signal::TTOU]);
    /// Signals that an instruction of the thread itself causes; they are delivered before all others, so that the frame
    /// shows the instruction.
    pub const SYNCHRONOUS: Self =
        Self::of(&[Signal::SEGV, Signal::BUS, Signal::ILL, Signal::TRAP, Signal::FPE, Signal::SYS]);

    /// The set of `signals`.
    #[must_use]
    pub const fn of(signals: &[Signal]) -> Self {
        let (mut bits, mut index) = (0, 0);
        while index < signals.len() {
            bits |= 1 << signals[index].index();
            index += 1;
        }
        Self(bits)
    }

    /// Whether it has no signal.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether it has `signal`.
    #[must_use]
    pub const fn contains(self, signal: Signal) -> bool {
        self.0 & 1 << signal.index() != 0
    }

    /// With `signal` too.
    #[must_use]
    pub const fn with(self, signal: Signal) -> Self {
        Self(self.0 | 1 << signal.index())
    }

    /// Without `signal`.
    #[must_use]
    pub const fn without(self, signal: Signal) -> Self {
        Self(self.0 & !(1 << signal.index()))
    }

    /// The union.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The intersection.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The signals that are in `self` only.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The signal to deliver first: a synchronous one, else the lowest number.
    #[must_use]
    pub const fn first(self) -> Option<Signal> {
        let synchronous = self.intersection(Self::SYNCHRONOUS);
        let bits = if synchronous.is_empty() { self.0 } else { synchronous.0 };
        Signal::new(bits.trailing_zeros() as i32 + 1)
    }
}
