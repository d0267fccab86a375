//! How many keys each user has, and how many bytes they are.

use alloc::vec::Vec;

use crate::OutOfMemory;
use crate::fallible::insert_reserved;
use crate::keys::KeyError;

/// The limits of a user.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// Keys.
    pub keys: u32,
    /// Bytes of descriptions, payloads and links.
    pub bytes: u32,
}

/// The limits of all users: whoever adds to another's keys is held to the limits of the other, who is charged.
#[derive(Clone, Copy, Debug)]
pub struct KeyLimits {
    /// Of the superuser.
    pub root: Quota,
    /// Of everybody else.
    pub others: Quota,
}

impl KeyLimits {
    /// As much as there is room for.
    pub const NONE: Self = Self::same(Quota { keys: u32::MAX, bytes: u32::MAX });

    /// The same for everybody.
    #[must_use]
    pub const fn same(quota: Quota) -> Self {
        Self { root: quota, others: quota }
    }

    /// The limits of a user.
    #[must_use]
    pub const fn of(self, uid: u32) -> Quota {
        if uid == 0 { self.root } else { self.others }
    }
}

/// The keys of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they say what they are")]
pub struct UserKeys {
    pub uid: u32,
    pub keys: u32,
    pub bytes: u32,
}

/// The users with keys, in the order of their numbers.
#[derive(Debug)]
pub(super) struct KeyUsers(Vec<UserKeys>);

impl KeyUsers {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    pub fn all(&self) -> &[UserKeys] {
        &self.0
    }

    fn find(&self, uid: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&uid, |user| user.uid)
    }

    /// A key more of so many bytes.
    pub fn enter(&mut self, uid: u32, bytes: u32, limits: KeyLimits) -> Result<(), KeyError> {
        let index = match self.find(uid) {
            Ok(index) => index,
            Err(index) => {
                self.0.try_reserve(1).map_err(|_| OutOfMemory)?;
                insert_reserved(&mut self.0, index, UserKeys { uid, keys: 0, bytes: 0 });
                index
            }
        };
        let (user, quota) = (&mut self.0[index], limits.of(uid));
        let all = user.bytes.saturating_add(bytes);
        if user.keys >= quota.keys || all > quota.bytes {
            if user.keys == 0 {
                self.0.remove(index);
            }
            return Err(KeyError::Quota);
        }
        (user.keys, user.bytes) = (user.keys + 1, all);
        Ok(())
    }

    /// Another amount of bytes for a key that is there.
    pub fn change(&mut self, uid: u32, more: u32, less: u32, limits: KeyLimits) -> Result<(), KeyError> {
        let Ok(index) = self.find(uid) else { return Ok(()) };
        let user = &mut self.0[index];
        let all = (user.bytes - less).saturating_add(more);
        if more > less && all > limits.of(uid).bytes {
            return Err(KeyError::Quota);
        }
        user.bytes = all;
        Ok(())
    }

    /// A key less.
    pub fn leave(&mut self, uid: u32, bytes: u32) {
        let Ok(index) = self.find(uid) else { return };
        let user = &mut self.0[index];
        (user.keys, user.bytes) = (user.keys - 1, user.bytes - bytes);
        if user.keys == 0 {
            self.0.remove(index);
        }
    }
}
