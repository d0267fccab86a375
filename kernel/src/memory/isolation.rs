//! Isolation: which programs may reach one another's memory. Where a program lies is another question ([`Space`]).
//!
//! Programs of one *domain* may share a CPU's root; before a program of another domain runs, the root is emptied. The
//! policy says what a domain is: everything, the programs of one set of credentials, or one program. A program may
//! have a policy of its own, which its children and the programs that it executes inherit.
//!
//! [`Space`]: crate::memory::Space

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use heddle_abi::boot::KEY_ISOLATION;

use crate::boot;

/// The policy: which programs may reach one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IsolationPolicy {
    /// Of a program: as the machine's. Of the machine: [`Self::None`] while all programs have had one set of
    /// credentials, [`Self::User`] from the first of a second set on.
    Default,
    /// Only the kernel is protected.
    None,
    /// Programs with other credentials are out of reach.
    User,
    /// All other programs are.
    Private,
    /// Of the machine only: nothing is protected, the kernel neither ([`crate::arch::direct`]).
    Direct,
    /// Programs with other credentials are out of reach, and a stray pointer into any other program faults.
    Keys,
}

impl IsolationPolicy {
    /// All policies by name.
    const NAMES: [(&'static str, Self); 6] = [
        ("default", Self::Default),
        ("none", Self::None),
        ("user", Self::User),
        ("private", Self::Private),
        ("direct", Self::Direct),
        ("keys", Self::Keys),
    ];

    /// The policy of a name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|&(_, policy)| policy)
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }

    /// How much it protects, compared with others.
    #[must_use]
    pub const fn strength(self) -> u8 {
        match self {
            Self::Direct => 0,
            Self::Default => 1,
            Self::None => 2,
            Self::User => 3,
            Self::Keys => 4,
            Self::Private => 5,
        }
    }

    /// The policy of a number, by which programs name it.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::NAMES.get(usize::from(number)).map(|&(_, policy)| policy)
    }
}

/// A policy that changes.
#[derive(Debug)]
pub struct IsolationCell(AtomicU8);

impl IsolationCell {
    /// A cell with this policy.
    pub const fn new(policy: IsolationPolicy) -> Self {
        Self(AtomicU8::new(policy as u8))
    }

    /// The policy.
    pub fn get(&self) -> IsolationPolicy {
        IsolationPolicy::of_number(self.0.load(Ordering::Relaxed)).unwrap_or(IsolationPolicy::Private)
    }

    /// Another policy.
    pub fn set(&self, policy: IsolationPolicy) {
        self.0.store(policy as u8, Ordering::Relaxed);
    }
}

static MACHINE: IsolationCell = IsolationCell::new(IsolationPolicy::Default);
static HAS_USERS: AtomicBool = AtomicBool::new(false);
/// Whether some program may have to be isolated. Until then every switch reads this alone.
static IS_IN_USE: AtomicBool = AtomicBool::new(false);

/// In the domain of one space.
const OWN: usize = 1 << (usize::BITS - 1);
/// In the domain of a set of credentials whose programs have protection keys: those that have none have memory that all
/// keys' rights admit.
const KEYED: usize = OWN >> 1;

/// A set of credentials: [`Self::FIRST`], one with a number, or one that is shared with no other program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CredentialSet(pub usize);

impl CredentialSet {
    /// That of the first program.
    pub const FIRST: Self = Self(1);
    /// One that no other program has.
    pub const UNIQUE: Self = Self(usize::MAX);
}

/// Reads the boot option.
pub fn initialize() {
    let mut buffer = [0; 8];
    let policy = boot::option(KEY_ISOLATION, &mut buffer).and_then(IsolationPolicy::of_name);
    MACHINE.set(policy.unwrap_or(IsolationPolicy::Default));
    if chosen() != IsolationPolicy::Default {
        note_choice();
    }
    ::log::info!("isolation: {}", machine().name());
}

/// The machine's policy, as it was chosen.
#[must_use]
pub fn chosen() -> IsolationPolicy {
    MACHINE.get()
}

/// The machine's policy, as it is now.
#[must_use]
pub fn machine() -> IsolationPolicy {
    match MACHINE.get() {
        IsolationPolicy::Default if HAS_USERS.load(Ordering::Acquire) => IsolationPolicy::User,
        IsolationPolicy::Default => IsolationPolicy::None,
        chosen => chosen,
    }
}

/// Says that there is a program of a second set of credentials.
pub fn note_second_set() {
    HAS_USERS.store(true, Ordering::Release);
    IS_IN_USE.store(true, Ordering::Release);
}

/// The policy for a program that has chosen `own`.
#[must_use]
pub fn of_program(own: IsolationPolicy) -> IsolationPolicy {
    if own == IsolationPolicy::Default { machine() } else { own }
}

/// Says that a program has a policy of its own, before it has.
pub(super) fn note_choice() {
    IS_IN_USE.store(true, Ordering::Release);
}

/// Whether programs may be in different domains.
#[inline]
pub(super) fn is_in_use() -> bool {
    IS_IN_USE.load(Ordering::Acquire)
}

/// The domain of all programs while none is isolated.
pub(super) const EVERYTHING: usize = 0;

/// The domain of a space. A program that is to be told from others by a protection key, and has none, is on its own.
pub(super) fn domain(own: IsolationPolicy, set: CredentialSet, identity: usize, key: u8) -> usize {
    match of_program(own) {
        IsolationPolicy::None | IsolationPolicy::Direct => EVERYTHING,
        IsolationPolicy::Keys if key == 0 => OWN | identity,
        IsolationPolicy::Keys if set != CredentialSet::UNIQUE => set.0 | KEYED,
        IsolationPolicy::Default | IsolationPolicy::User if set != CredentialSet::UNIQUE => set.0,
        _ => OWN | identity,
    }
}
