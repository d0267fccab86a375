//! Protection keys of a space: those that its program has, and the one by which isolation tells its group of programs
//! from others.
//!
//! A mapping's record has the key, and each of its pages' entries; so faults, moves, splits and forks keep it. The
//! register that says which keys a thread may use is the thread's ([`protection_key`]). Only the program's own accesses
//! ask it, and the kernel's by the program's addresses.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use heddle_kernel_core::protection_key::{KeyGroups, KeyRights, SpaceKeys};

use crate::arch::protection_key;
use crate::error::Errno;
use crate::memory::isolation;
use crate::memory::isolation::IsolationPolicy;
use crate::memory::source::Object;
use crate::memory::space::fault::{FaultAccess, FaultError};
use crate::memory::space::{Mapping, Space};
use crate::sync::SpinLock;

/// The key that a change of rights gives to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// None: keys stay, but for that of memory that could be executed only.
    Keep,
    /// This one.
    Set(u8),
}

/// The groups of all programs that isolation tells apart by keys.
static GROUPS: SpinLock<KeyGroups> = SpinLock::new(KeyGroups::new());

/// A space's part in a group.
#[derive(Debug)]
pub(super) struct GroupKey(u8);

impl GroupKey {
    fn begin() -> Option<Self> {
        if protection_key::are_on() { GROUPS.lock().begin().map(Self) } else { None }
    }

    /// The part of another space in the same group.
    pub(super) fn join(&self) -> Self {
        GROUPS.lock().join(self.0);
        Self(self.0)
    }
}

impl Drop for GroupKey {
    fn drop(&mut self) {
        GROUPS.lock().leave(self.0);
    }
}

/// What can be read of a space's keys without its lock.
pub(super) struct KeysSeen {
    /// The key of the space's group; 0 for none.
    group: AtomicU8,
    /// Whether the program may have given keys to its memory.
    has_keys: AtomicBool,
}

impl KeysSeen {
    pub(super) const fn new() -> Self {
        Self { group: AtomicU8::new(0), has_keys: AtomicBool::new(false) }
    }

    /// The same for a child.
    pub(super) fn copy(&self, parent: &Self) {
        self.group.store(parent.group.load(Ordering::Relaxed), Ordering::Relaxed);
        self.has_keys.store(parent.has_keys.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The keys of a new space.
pub(super) fn first_keys() -> SpaceKeys {
    if protection_key::are_on() { SpaceKeys::new() } else { SpaceKeys::none() }
}

impl Space {
    /// The key of the space's group of programs; 0 if it has none.
    #[must_use]
    pub fn group_key(&self) -> u8 {
        self.keys.group.load(Ordering::Relaxed)
    }

    /// The rights with which a program starts here, and a signal handler.
    #[must_use]
    pub fn first_rights(&self) -> KeyRights {
        match self.group_key() {
            0 => KeyRights::INITIAL,
            key => KeyRights::INITIAL.with(key, 0),
        }
    }

    /// Whether the program may have given keys to its memory.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.keys.has_keys.load(Ordering::Relaxed)
    }

    /// Gives a key out; `None` if there is none.
    #[must_use]
    pub fn allocate_key(&self) -> Option<u8> {
        self.keys.has_keys.store(true, Ordering::Relaxed);
        self.state.lock().keys.allocate()
    }

    /// Takes a key back.
    ///
    /// # Errors
    /// `EINVAL`: it was not given out.
    pub fn free_key(&self, key: i32) -> Result<(), Errno> {
        self.state.lock().keys.free(key).map_err(|_| Errno::EINVAL)
    }

    /// The key of a number, if it was given out.
    ///
    /// # Errors
    /// `EINVAL`: it was not.
    pub fn given_key(&self, number: i32) -> Result<u8, Errno> {
        if self.state.lock().keys.is_given(number) { Ok(number as u8) } else { Err(Errno::EINVAL) }
    }

    /// The key of memory that can be executed only; `None` if there is none left for it. The thread that asks takes the
    /// right to read such memory from itself, as on Linux.
    #[must_use]
    pub fn execute_only_key(&self) -> Option<u8> {
        if !protection_key::are_on() {
            return None;
        }
        let key = self.state.lock().keys.take_execute_only()?;
        self.keys.has_keys.store(true, Ordering::Relaxed);
        Some(key)
    }

    /// Gives a new program a group of its own, if isolation tells it from others by keys and there is a key left. All
    /// of its memory gets the key but `shared`, which other programs may look at.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub async fn begin_group(&self, shared: Range<usize>) -> Result<(), Errno> {
        if isolation::of_program(self.isolation()) != IsolationPolicy::Keys {
            return Ok(());
        }
        let Some(group) = GroupKey::begin() else { return Ok(()) };
        let key = group.0;
        {
            let mut state = self.state.lock();
            state.group = Some(group);
            state.keys = SpaceKeys::beside_groups();
        }
        self.keys.group.store(key, Ordering::Relaxed);
        let all = self.range();
        let _guard = self.lock.lock(all.clone()).await?;
        for range in [all.start..shared.start, shared.end..all.end] {
            self.each_part(range.clone(), |state, part| {
                state.mappings.reserve(2)?;
                state.mappings.change(part, |mapping| mapping.key = key);
                Ok(())
            })
            .await?;
            self.change(range, |entry| entry.with_key(key)).await?;
        }
        Ok(())
    }
}

/// Refuses an access for which the thread has no right by the mapping's key. To be asked where its turn goes on.
pub(super) fn check_key(mapping: &Mapping<Object>, access: FaultAccess) -> Result<(), FaultError> {
    if access.execute || access.is_remote || protection_key::rights().allow(mapping.key, access.write) {
        return Ok(());
    }
    Err(FaultError::Key(mapping.key))
}
