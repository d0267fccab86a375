//! Information about one signal: `siginfo_t`.

use crate::signal::Signal;

/// The origin of a signal, with the members of `siginfo_t` that belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Nothing more is known.
    None,
    /// A process sent it.
    #[allow(missing_docs, reason = "sigaction(2)'s names")]
    Sender { pid: i32, uid: u32 },
    /// A process sent it with a value.
    #[allow(missing_docs, reason = "sigaction(2)'s names")]
    Value { pid: i32, uid: u32, value: u64 },
    /// A child ended, stopped or continued; times in clock ticks.
    #[allow(missing_docs, reason = "sigaction(2)'s names")]
    Child { pid: i32, uid: u32, status: i32, utime: i64, stime: i64 },
    /// An instruction of the thread could not be carried out.
    #[allow(missing_docs, reason = "sigaction(2)'s names")]
    Fault { address: usize, trap: i32 },
    /// It accessed memory with a protection key to which it has no right.
    #[allow(missing_docs, reason = "sigaction(2)'s names")]
    Key { address: usize, key: u8 },
    /// A timer of timer_create(2) expired.
    #[allow(missing_docs, reason = "sigaction(2)'s names")]
    Timer { id: i32, overrun: i32, value: u64 },
    /// A filter refused a system call.
    #[allow(missing_docs, reason = "sigaction(2)'s names")]
    Call { address: usize, number: i32, architecture: u32 },
    /// A file is ready.
    #[allow(missing_docs, reason = "sigaction(2)'s names")]
    Poll { band: u64, fd: i32 },
    /// The part after the header, as a program passed it to rt_sigqueueinfo(2).
    Raw([u64; 14]),
}

impl Detail {
    /// The same with another number for the user, where there is one.
    #[must_use]
    pub fn with_user(mut self, number: impl FnOnce(u32) -> u32) -> Self {
        if let Self::Sender { uid, .. } | Self::Value { uid, .. } | Self::Child { uid, .. } = &mut self {
            *uid = number(*uid);
        }
        self
    }

    /// The same with another number for the process, where there is one.
    #[must_use]
    pub fn with_process(mut self, number: impl FnOnce(i32) -> i32) -> Self {
        if let Self::Sender { pid, .. } | Self::Value { pid, .. } | Self::Child { pid, .. } = &mut self {
            *pid = number(*pid);
        }
        self
    }
}

/// A signal with its `siginfo_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Information {
    /// Which signal.
    pub signal: Signal,
    /// Its cause: an `SI_`, `SEGV_`, `CLD_`… constant.
    pub code: i32,
    /// `si_errno`, 0 but for what a program passes.
    pub errno: i32,
    /// The rest.
    pub detail: Detail,
}

impl Information {
    /// The size of a `siginfo_t`.
    pub const BYTES: usize = 128;

    /// `SI_KERNEL`: sent by the kernel, with nothing more to say.
    pub const FROM_KERNEL: i32 = linux_raw_sys::general::SI_KERNEL as i32;

    /// A signal of the kernel itself.
    #[must_use]
    pub const fn kernel(signal: Signal) -> Self {
        Self { signal, code: Self::FROM_KERNEL, errno: 0, detail: Detail::None }
    }

    /// A signal that process `pid` of user `uid` sent with kill(2).
    #[must_use]
    pub const fn user(signal: Signal, pid: i32, uid: u32) -> Self {
        let code = linux_raw_sys::general::SI_USER as i32;
        Self { signal, code, errno: 0, detail: Detail::Sender { pid, uid } }
    }

    /// Whether it comes from the kernel, or from a process that the receiver does not see.
    #[must_use]
    pub const fn is_from_outside(&self) -> bool {
        match self.detail {
            Detail::Sender { pid, .. } | Detail::Value { pid, .. } => pid == 0,
            Detail::Raw(words) => words[0] as u32 == 0,
            _ => self.code == Self::FROM_KERNEL,
        }
    }

    /// The information for a signal whose own could not be kept for lack of memory.
    #[must_use]
    pub const fn lost(signal: Signal) -> Self {
        Self::user(signal, 0, 0)
    }

    /// A `siginfo_t`, as 16 words.
    #[must_use]
    pub const fn to_words(&self) -> [u64; 16] {
        let mut words = [0; 16];
        words[0] = pair(self.signal.number(), self.errno);
        words[1] = pair(self.code, 0);
        match self.detail {
            Detail::None => {}
            Detail::Sender { pid, uid } => words[2] = pair(pid, uid as i32),
            Detail::Value { pid, uid, value } => {
                words[2] = pair(pid, uid as i32);
                words[3] = value;
            }
            Detail::Child { pid, uid, status, utime, stime } => {
                words[2] = pair(pid, uid as i32);
                words[3] = pair(status, 0);
                words[4] = utime as u64;
                words[5] = stime as u64;
            }
            // The number of the trap is in the handler's registers only.
            Detail::Fault { address, .. } => words[2] = address as u64,
            Detail::Key { address, key } => {
                words[2] = address as u64;
                words[4] = key as u64;
            }
            Detail::Timer { id, overrun, value } => {
                words[2] = pair(id, overrun);
                words[3] = value;
            }
            Detail::Call { address, number, architecture } => {
                words[2] = address as u64;
                words[3] = pair(number, architecture as i32);
            }
            Detail::Poll { band, fd } => {
                words[2] = band;
                words[3] = pair(fd, 0);
            }
            Detail::Raw(raw) => {
                let mut index = 0;
                while index < raw.len() {
                    words[index + 2] = raw[index];
                    index += 1;
                }
            }
        }
        words
    }

    /// Reads what a program passed to rt_sigqueueinfo(2); the signal is the call's argument, not the structure's.
    #[must_use]
    pub const fn from_words(signal: Signal, words: &[u64; 16]) -> Self {
        let mut raw = [0; 14];
        let mut index = 0;
        while index < raw.len() {
            raw[index] = words[index + 2];
            index += 1;
        }
        Self { signal, code: words[1] as i32, errno: (words[0] >> 32) as i32, detail: Detail::Raw(raw) }
    }
}

const fn pair(low: i32, high: i32) -> u64 {
    low as u32 as u64 | (high as u32 as u64) << 32
}
