//! The administrator's choice of who gets large pages: `/sys/kernel/mm/transparent_hugepage`.

use core::sync::atomic::{AtomicU8, Ordering};

use heddle_kernel_core::mapping::Flags;

/// The memory that may get large pages: `enabled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LargePolicy {
    /// All anonymous memory.
    Always,
    /// Memory for which a program has asked by `madvise(MADV_HUGEPAGE)`.
    Advised,
    /// None.
    Never,
}

impl LargePolicy {
    /// All, in the order of the file.
    pub const ALL: [Self; 3] = [Self::Always, Self::Advised, Self::Never];

    /// The name in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Advised => "madvise",
            Self::Never => "never",
        }
    }

    /// Whether memory with these flags may get large pages.
    #[must_use]
    pub const fn allows(self, flags: Flags) -> bool {
        match self {
            _ if flags.contains(Flags::SMALL_PAGES) => false,
            Self::Always => true,
            Self::Advised => flags.contains(Flags::LARGE_PAGES),
            Self::Never => false,
        }
    }
}

static POLICY: AtomicU8 = AtomicU8::new(LargePolicy::Always as u8);

/// The policy.
#[must_use]
#[inline]
pub fn current() -> LargePolicy {
    match POLICY.load(Ordering::Relaxed) {
        0 => LargePolicy::Always,
        1 => LargePolicy::Advised,
        _ => LargePolicy::Never,
    }
}

/// Sets the policy, for pages that come from now on.
pub fn set(policy: LargePolicy) {
    POLICY.store(policy as u8, Ordering::Relaxed);
}

/// The names of `defrag`, which says how hard the memory manager is to try when there is no large page.
pub const EFFORTS: [&str; 5] = ["always", "defer", "defer+madvise", "madvise", "never"];
/// The number of the chosen one.
static EFFORT: AtomicU8 = AtomicU8::new(3);

/// The effort's place among [`EFFORTS`].
#[must_use]
pub fn effort() -> usize {
    EFFORT.load(Ordering::Relaxed).into()
}

/// Chooses one.
pub fn set_effort(place: usize) {
    EFFORT.store(u8::try_from(place).unwrap_or(u8::MAX), Ordering::Relaxed);
}

/// Whether caches are emptied for a large page of memory with these flags that was not found.
#[must_use]
pub fn is_worth_an_effort(flags: Flags) -> bool {
    match effort() {
        0 => true,
        2 | 3 => flags.contains(Flags::LARGE_PAGES),
        _ => false,
    }
}
