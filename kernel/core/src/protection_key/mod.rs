//! Protection keys: which a space has given out, and what the rights register of a thread says about them.
//!
//! Each page of a program has one of 16 keys. A register that the program itself changes says, for each key, whether
//! pages with it may be loaded from and stored to ([`KeyRights`]). A space gives keys out ([`SpaceKeys`]); one of them
//! may be the kernel's own, for memory that can be executed only.

/// How many keys there are.
pub const KEYS: u8 = 16;
/// Accesses to a key's pages that pkey_alloc(2) may forbid: all, or stores.
pub const ACCESS_MASK: u32 = 3;

/// The rights register (PKRU): two bits a key, from key 0 up: all accesses are forbidden, stores are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRights(pub u32);

impl KeyRights {
    /// Pages with key 0 alone: what programs start with, as on Linux.
    pub const INITIAL: Self = Self(0x5555_5554);
    const FORBIDDEN: u32 = 1;
    const READ_ONLY: u32 = 2;

    /// Whether they allow an access to the data of a page with this key.
    #[must_use]
    pub const fn allow(self, key: u8, write: bool) -> bool {
        let bits = self.of(key);
        bits & Self::FORBIDDEN == 0 && !(write && bits & Self::READ_ONLY != 0)
    }

    /// The two bits of a key.
    #[must_use]
    pub const fn of(self, key: u8) -> u32 {
        self.0 >> (2 * (key % KEYS)) & ACCESS_MASK
    }

    /// The same with other bits for a key.
    #[must_use]
    pub const fn with(self, key: u8, bits: u32) -> Self {
        let shift = 2 * (key % KEYS);
        Self(self.0 & !(ACCESS_MASK << shift) | (bits & ACCESS_MASK) << shift)
    }

    /// The same, with a key whose pages may only be executed.
    #[must_use]
    pub const fn without(self, key: u8) -> Self {
        self.with(key, Self::FORBIDDEN)
    }
}

/// The key is not the program's to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownKey;

/// The keys that a space has given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceKeys {
    /// One bit a key.
    given: u16,
    /// The keys that are never given out.
    reserved: u16,
    /// The key of memory that can be executed only, once there is such memory.
    execute_only: Option<u8>,
}

impl Default for SpaceKeys {
    fn default() -> Self {
        Self::new()
    }
}

impl SpaceKeys {
    /// Those of a new program: key 0 is given out.
    #[must_use]
    pub const fn new() -> Self {
        Self { given: 1, reserved: 0, execute_only: None }
    }

    /// Those of a program where groups of programs have keys: the last key is its own to use.
    #[must_use]
    pub const fn beside_groups() -> Self {
        Self { given: 0, reserved: (1 << (GROUPS + 1)) - 1, execute_only: None }
    }

    /// Those of a program on a processor without keys: as on Linux, there is one to be given out, to nobody.
    #[must_use]
    pub const fn none() -> Self {
        Self { given: 0, reserved: u16::MAX, execute_only: None }
    }

    /// Gives the lowest free key out; `None` if there is none.
    pub const fn allocate(&mut self) -> Option<u8> {
        let key = (self.given | self.reserved).trailing_ones() as u8;
        if key >= KEYS {
            return None;
        }
        self.given |= 1 << key;
        Some(key)
    }

    /// Whether a number is that of a key which the program may use.
    #[must_use]
    pub fn is_given(&self, number: i32) -> bool {
        let key = u8::try_from(number).ok().filter(|&key| key < KEYS);
        key.is_some_and(|key| self.given >> key & 1 != 0 && self.execute_only != Some(key))
    }

    /// Takes a key back. Pages may still have it, as on Linux.
    ///
    /// # Errors
    /// [`UnknownKey`].
    pub fn free(&mut self, number: i32) -> Result<(), UnknownKey> {
        if !self.is_given(number) {
            return Err(UnknownKey);
        }
        self.given &= !(1 << number);
        Ok(())
    }

    /// The key of memory that can be executed only, if there is such memory.
    #[must_use]
    pub const fn execute_only(&self) -> Option<u8> {
        self.execute_only
    }

    /// The same, given out if it was not; `None` if no key is left.
    pub fn take_execute_only(&mut self) -> Option<u8> {
        if self.execute_only.is_none() {
            self.execute_only = self.allocate();
        }
        self.execute_only
    }
}

/// How many of the keys isolation may give to groups of programs: key 0 is everybody's, and the last is left to
/// programs.
pub const GROUPS: usize = KEYS as usize - 2;

/// The groups of programs that have a key each, and how many spaces each group has.
#[derive(Debug)]
pub struct KeyGroups {
    spaces: [u32; GROUPS],
}

impl Default for KeyGroups {
    fn default() -> Self {
        Self::new()
    }
}

impl KeyGroups {
    /// No groups.
    #[must_use]
    pub const fn new() -> Self {
        Self { spaces: [0; GROUPS] }
    }

    /// A key for a new group of one space; `None` if all are in use.
    pub fn begin(&mut self) -> Option<u8> {
        let free = self.spaces.iter().position(|&spaces| spaces == 0)?;
        self.spaces[free] = 1;
        Some(free as u8 + 1)
    }

    /// Another space joins the group with this key.
    pub const fn join(&mut self, key: u8) {
        self.spaces[key as usize - 1] += 1;
    }

    /// One has left it.
    pub const fn leave(&mut self, key: u8) {
        self.spaces[key as usize - 1] -= 1;
    }

    /// How many groups there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spaces.iter().filter(|&&spaces| spaces != 0).count()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
