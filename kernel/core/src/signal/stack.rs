//! The alternate signal stack, sigaltstack(2).

use linux_raw_sys::general as linux;

/// Why a stack was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlternateStackError {
    /// Unknown flags: `EINVAL`.
    Flags,
    /// Less than `MINSIGSTKSZ`: `ENOMEM`.
    TooSmall,
}

/// A thread's alternate stack; of size 0 when there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlternateStack {
    /// Its lowest address.
    pub base: usize,
    /// Its size in bytes.
    pub size: usize,
    flags: u32,
}

impl AlternateStack {
    /// `SS_AUTODISARM`: the stack is forgotten while a handler runs on it.
    const AUTODISARM: u32 = 1 << 31;
    const MINIMUM_BYTES: usize = linux::MINSIGSTKSZ as usize;

    /// Sets what a program passed to sigaltstack(2).
    ///
    /// # Errors
    /// See [`AlternateStackError`].
    pub const fn new(base: usize, flags: u32, size: usize) -> Result<Self, AlternateStackError> {
        match flags & !Self::AUTODISARM {
            linux::SS_DISABLE => Ok(Self { base: 0, size: 0, flags: 0 }),
            0 | linux::SS_ONSTACK => {
                if size < Self::MINIMUM_BYTES {
                    return Err(AlternateStackError::TooSmall);
                }
                Ok(Self { base, size, flags: flags & Self::AUTODISARM })
            }
            _ => Err(AlternateStackError::Flags),
        }
    }

    /// Whether a stack pointer lies on it. With `SS_AUTODISARM` the answer is no, since the stack is disarmed while
    /// in use.
    #[must_use]
    pub const fn contains(&self, stack_pointer: usize) -> bool {
        self.flags & Self::AUTODISARM == 0
            && stack_pointer > self.base
            && stack_pointer - self.base <= self.size
    }

    /// Whether a frame that begins at an address lies on it.
    #[must_use]
    pub const fn holds(&self, address: usize) -> bool {
        address > self.base && address - self.base <= self.size
    }

    /// Whether the stack is to be forgotten when a handler starts on it.
    #[must_use]
    pub const fn disarms(&self) -> bool {
        self.flags & Self::AUTODISARM != 0
    }

    /// Where a handler's frame ends: at the top of this stack if there is one and the thread isn't on it already.
    #[must_use]
    pub const fn top_for(&self, stack_pointer: usize) -> Option<usize> {
        if self.size == 0 || self.contains(stack_pointer) { None } else { Some(self.base + self.size) }
    }

    /// `ss_flags` as sigaltstack(2) reports them to a thread whose stack pointer is given.
    #[must_use]
    pub const fn flags_seen(&self, stack_pointer: usize) -> u32 {
        let state = if self.size == 0 {
            linux::SS_DISABLE
        } else if self.contains(stack_pointer) {
            linux::SS_ONSTACK
        } else {
            0
        };
        state | self.flags
    }
}
