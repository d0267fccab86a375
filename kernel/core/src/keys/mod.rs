//! Keys and keyrings, keyrings(7): the table of all keys of a machine, and what may be done with them.
//!
//! A key is named by its serial number, which says where in the table it is. It lives as long as a keyring links it or
//! somebody holds it as one of the keyrings of a process or user. Keyrings form no circle and are nested
//! [`DEPTH_MAX`] deep at most. The table as a whole is small, so that each operation is a bounded amount of work.

mod access;
mod quota;
mod search;
#[cfg(all(test, not(heddle_loom)))]
mod tests;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::OutOfMemory;
use crate::fallible::{push_reserved, try_box, try_to_vec};

pub use crate::keys::access::{KeyUser, Reached, rights};
pub use crate::keys::quota::{KeyLimits, Quota, UserKeys};
pub use crate::keys::search::Wanted;

/// The number of a key: positive.
pub type Serial = i32;

/// Keys of a machine.
pub const KEYS_MAX: usize = 1 << SLOT_BITS;
/// Links of all its keyrings.
pub const LINKS_MAX: usize = 16_384;
/// Keyrings within keyrings.
pub const DEPTH_MAX: usize = 6;
/// Bytes of a payload.
pub const PAYLOAD_MAX: usize = 32_767;
/// Bytes that a link counts for its user.
const LINK_BYTES: u32 = 4;
const SLOT_BITS: u32 = 12;
/// A serial has the number of its slot, and above it one of so many that say which of the slot's keys it is.
const GENERATIONS: u32 = (1 << (31 - SLOT_BITS)) - 1;

/// The type of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// Bytes.
    User,
    /// Bytes that no program reads again.
    Logon,
    /// Links to keys.
    Keyring,
}

impl KeyKind {
    /// The kind of this name.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<Self> {
        [Self::User, Self::Logon, Self::Keyring].into_iter().find(|kind| kind.name().as_bytes() == name)
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Logon => "logon",
            Self::Keyring => "keyring",
        }
    }
}

/// The reasons why an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the errors in keyctl(2)")]
pub enum KeyError {
    Access,
    NoKey,
    Revoked,
    Expired,
    NotDirectory,
    NoEntry,
    Invalid,
    Quota,
    Deadlock,
    TooDeep,
    TableFull,
    NotSupported,
    NoMemory,
}

impl From<OutOfMemory> for KeyError {
    fn from(_: OutOfMemory) -> Self {
        Self::NoMemory
    }
}

impl From<crate::fallible::AllocError> for KeyError {
    fn from(_: crate::fallible::AllocError) -> Self {
        Self::NoMemory
    }
}

/// A key to be made.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are those of keyrings(7)")]
pub struct NewKey<'a> {
    pub kind: KeyKind,
    pub description: &'a [u8],
    pub uid: u32,
    pub gid: u32,
    pub permissions: u32,
}

/// A key.
#[derive(Debug)]
pub struct Key<P> {
    serial: Serial,
    /// The type.
    pub kind: KeyKind,
    /// The description.
    pub description: Vec<u8>,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// A byte each for the possessor, the owner, the group and others.
    pub permissions: u32,
    /// When it expires, in seconds of real time.
    pub expires_s: Option<u64>,
    /// It was revoked.
    pub is_revoked: bool,
    is_invalid: bool,
    payload: Option<P>,
    payload_bytes: u32,
    links: Vec<Serial>,
    references: u32,
    /// Bytes that count for its owner.
    charged: u32,
    /// The walk that came by last, and how deep.
    visited: (u32, usize),
    /// The next of those that are being removed.
    next: Option<Box<Self>>,
}

impl<P> Key<P> {
    /// Its number.
    #[must_use]
    pub const fn serial(&self) -> Serial {
        self.serial
    }

    /// Bytes of its payload.
    #[must_use]
    pub const fn payload_bytes(&self) -> u32 {
        self.payload_bytes
    }

    /// The keys that it links.
    #[must_use]
    pub fn links(&self) -> &[Serial] {
        &self.links
    }

    /// Whether it was invalidated, and goes when nothing refers to it any more.
    #[must_use]
    pub const fn is_invalid(&self) -> bool {
        self.is_invalid
    }

    /// How many refer to it.
    #[must_use]
    pub const fn references(&self) -> u32 {
        self.references
    }

    /// Whether it can be used.
    ///
    /// # Errors
    /// [`KeyError::NoKey`], [`KeyError::Revoked`], [`KeyError::Expired`].
    pub fn check(&self, now_s: u64) -> Result<(), KeyError> {
        if self.is_invalid {
            Err(KeyError::NoKey)
        } else if self.is_revoked {
            Err(KeyError::Revoked)
        } else if self.expires_s.is_some_and(|moment| moment <= now_s) {
            Err(KeyError::Expired)
        } else {
            Ok(())
        }
    }

    fn is(&self, kind: KeyKind, description: &[u8]) -> bool {
        self.kind == kind && self.description == description
    }
}

/// All keys; a payload is kept as a `P`.
#[derive(Debug)]
pub struct Keys<P> {
    slots: Vec<Option<Box<Key<P>>>>,
    users: quota::KeyUsers,
    links: usize,
    searches: u32,
    /// Keys that were made, modulo [`GENERATIONS`]: a serial comes again only after so many others, so that a key that
    /// went between two steps of a call is missed and not taken for another.
    made: u32,
}

impl<P: Clone> Default for Keys<P> {
    fn default() -> Self {
        Self::new()
    }
}

const fn slot_of(serial: Serial) -> usize {
    serial as usize & (KEYS_MAX - 1)
}

impl<P: Clone> Keys<P> {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self { slots: Vec::new(), users: quota::KeyUsers::new(), links: 0, searches: 0, made: 0 }
    }

    /// A key.
    ///
    /// # Errors
    /// [`KeyError::NoKey`].
    pub fn key(&self, serial: Serial) -> Result<&Key<P>, KeyError> {
        let key = self.slots.get(slot_of(serial)).and_then(Option::as_deref);
        key.filter(|key| key.serial == serial).ok_or(KeyError::NoKey)
    }

    fn key_mut(&mut self, serial: Serial) -> Result<&mut Key<P>, KeyError> {
        let key = self.slots.get_mut(slot_of(serial)).and_then(Option::as_deref_mut);
        key.filter(|key| key.serial == serial).ok_or(KeyError::NoKey)
    }

    /// The first key whose place in the table is `from` or behind that, and its place.
    #[must_use]
    pub fn at_or_behind(&self, from: usize) -> Option<(usize, &Key<P>)> {
        let mut rest = self.slots.iter().enumerate().skip(from);
        rest.find_map(|(place, slot)| Some((place, slot.as_deref()?)))
    }

    /// The users who have keys.
    #[must_use]
    pub fn users(&self) -> &[UserKeys] {
        self.users.all()
    }

    /// Makes a key that has one reference, the caller's.
    ///
    /// # Errors
    /// [`KeyError::Invalid`], [`KeyError::Quota`], [`KeyError::TableFull`], [`KeyError::NoMemory`].
    pub fn make(
        &mut self,
        new: &NewKey<'_>,
        payload: Option<(P, u32)>,
        limits: KeyLimits,
    ) -> Result<Serial, KeyError> {
        let place = new.description.iter().position(|&byte| byte == b':');
        if new.description.is_empty() || new.kind == KeyKind::Logon && matches!(place, None | Some(0)) {
            return Err(KeyError::Invalid);
        }
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if slot >= KEYS_MAX {
            return Err(KeyError::TableFull);
        }
        self.made = self.made % GENERATIONS + 1;
        let serial = (self.made << SLOT_BITS) as Serial | slot as Serial;
        let (payload, payload_bytes) = match payload {
            Some((payload, bytes)) => (Some(payload), bytes),
            None => (None, 0),
        };
        let charged = new.description.len() as u32 + 1 + payload_bytes;
        let key = try_box(Key {
            serial,
            kind: new.kind,
            description: try_to_vec(new.description)?,
            uid: new.uid,
            gid: new.gid,
            permissions: new.permissions,
            expires_s: None,
            is_revoked: false,
            is_invalid: false,
            payload,
            payload_bytes,
            links: Vec::new(),
            references: 1,
            charged,
            visited: (0, 0),
            next: None,
        })?;
        if slot == self.slots.len() {
            self.slots.try_reserve(1).map_err(|_| OutOfMemory)?;
            push_reserved(&mut self.slots, None);
        }
        self.users.enter(new.uid, charged, limits)?;
        self.slots[slot] = Some(key);
        Ok(serial)
    }

    /// One more refers to a key.
    ///
    /// # Errors
    /// [`KeyError::NoKey`].
    pub fn hold(&mut self, serial: Serial) -> Result<(), KeyError> {
        self.key_mut(serial)?.references += 1;
        Ok(())
    }

    /// One less refers to a key, which goes with the last, and what only it links goes with it.
    pub fn release(&mut self, serial: Serial) {
        let mut first = self.release_one(serial);
        while let Some(mut key) = first.take() {
            let Some(link) = key.links.pop() else {
                first = key.next.take();
                continue;
            };
            self.links -= 1;
            let inner = self.release_one(link);
            first = Some(key);
            if let Some(mut inner) = inner {
                inner.next = first.take();
                first = Some(inner);
            }
        }
    }

    fn release_one(&mut self, serial: Serial) -> Option<Box<Key<P>>> {
        let key = self.key_mut(serial).ok()?;
        key.references -= 1;
        if key.references > 0 {
            return None;
        }
        let (uid, charged) = (key.uid, key.charged);
        self.users.leave(uid, charged);
        self.slots[slot_of(serial)].take()
    }

    /// A keyring, which can be used.
    fn ring(&self, serial: Serial) -> Result<&Key<P>, KeyError> {
        let ring = self.key(serial)?;
        if ring.kind == KeyKind::Keyring { Ok(ring) } else { Err(KeyError::NotDirectory) }
    }

    fn charge(&mut self, serial: Serial, more: u32, less: u32, limits: KeyLimits) -> Result<(), KeyError> {
        let uid = self.key(serial)?.uid;
        self.users.change(uid, more, less, limits)?;
        let key = self.key_mut(serial)?;
        key.charged = key.charged + more - less;
        Ok(())
    }

    /// Links a key to a keyring, in place of one of the same type and description.
    ///
    /// # Errors
    /// [`KeyError::NotDirectory`], [`KeyError::Revoked`], [`KeyError::NoKey`], [`KeyError::Deadlock`],
    /// [`KeyError::TooDeep`], [`KeyError::Quota`], [`KeyError::TableFull`], [`KeyError::NoMemory`].
    pub fn link(&mut self, ring: Serial, serial: Serial, limits: KeyLimits) -> Result<(), KeyError> {
        let key = self.key(serial)?;
        let same =
            |other: &&Serial| self.key(**other).is_ok_and(|other| other.is(key.kind, &key.description));
        if self.ring(ring)?.is_revoked {
            return Err(KeyError::Revoked);
        }
        // Invalidation has taken its links away for ever.
        if key.is_invalid {
            return Err(KeyError::NoKey);
        }
        let links = &self.ring(ring)?.links;
        let place = links.iter().find(same).and_then(|&old| links.iter().position(|&link| link == old));
        if key.kind == KeyKind::Keyring {
            self.check_nesting(ring, serial)?;
        }
        if let Some(place) = place {
            self.hold(serial)?;
            let old = core::mem::replace(&mut self.key_mut(ring)?.links[place], serial);
            self.release(old);
            return Ok(());
        }
        if self.links >= LINKS_MAX {
            return Err(KeyError::TableFull);
        }
        self.key_mut(ring)?.links.try_reserve(1).map_err(|_| OutOfMemory)?;
        self.charge(ring, LINK_BYTES, 0, limits)?;
        self.hold(serial)?;
        push_reserved(&mut self.key_mut(ring)?.links, serial);
        self.links += 1;
        Ok(())
    }

    /// Takes a link away.
    ///
    /// # Errors
    /// [`KeyError::NotDirectory`], [`KeyError::NoEntry`].
    pub fn unlink(&mut self, ring: Serial, serial: Serial) -> Result<(), KeyError> {
        let place =
            self.ring(ring)?.links.iter().position(|&link| link == serial).ok_or(KeyError::NoEntry)?;
        self.key_mut(ring)?.links.remove(place);
        self.links -= 1;
        self.charge(ring, 0, LINK_BYTES, KeyLimits::NONE)?;
        self.release(serial);
        Ok(())
    }

    /// Takes all links away.
    ///
    /// # Errors
    /// [`KeyError::NotDirectory`].
    pub fn clear(&mut self, ring: Serial) -> Result<(), KeyError> {
        self.ring(ring)?;
        while let Some(link) = self.key_mut(ring)?.links.pop() {
            self.links -= 1;
            self.charge(ring, 0, LINK_BYTES, KeyLimits::NONE)?;
            self.release(link);
        }
        Ok(())
    }

    /// Adds a key to a keyring, or gives the one of the same type and description there another payload.
    ///
    /// # Errors
    /// Those of [`Keys::make`], [`Keys::link`] and [`Keys::update`]; [`KeyError::Access`].
    pub fn add(
        &mut self,
        ring: Reached,
        new: &NewKey<'_>,
        payload: Option<(P, u32)>,
        who: &KeyUser<'_>,
        limits: KeyLimits,
    ) -> Result<Serial, KeyError> {
        let is_same = |key: &Key<P>| key.is(new.kind, new.description) && !key.is_revoked && !key.is_invalid;
        let mut links = self.ring(ring.serial)?.links.iter().copied();
        let before = links.find(|&link| self.key(link).is_ok_and(is_same));
        if let (Some(before), Some(payload)) = (before, payload.clone()) {
            // It is as much the caller's as the keyring is.
            let reached = Reached { serial: before, is_possessed: ring.is_possessed };
            self.permit(&reached, who, rights::WRITE)?;
            self.update(before, payload, limits)?;
            return Ok(before);
        }
        let serial = self.make(new, payload, limits)?;
        let linked = self.link(ring.serial, serial, limits);
        // The link holds it now.
        self.release(serial);
        linked.map(|()| serial)
    }

    /// Gives a key another payload.
    ///
    /// # Errors
    /// [`KeyError::NotSupported`], [`KeyError::Quota`].
    pub fn update(&mut self, serial: Serial, payload: (P, u32), limits: KeyLimits) -> Result<(), KeyError> {
        let key = self.key(serial)?;
        if key.kind == KeyKind::Keyring {
            return Err(KeyError::NotSupported);
        }
        let before = key.payload_bytes;
        self.charge(serial, payload.1, before, limits)?;
        let key = self.key_mut(serial)?;
        (key.payload, key.payload_bytes, key.expires_s) = (Some(payload.0), payload.1, None);
        Ok(())
    }

    /// The payload of a key, if programs may have it: for a keyring nothing.
    ///
    /// # Errors
    /// [`KeyError::NotSupported`].
    pub fn payload(&self, serial: Serial) -> Result<Option<P>, KeyError> {
        let key = self.key(serial)?;
        if key.kind == KeyKind::Logon { Err(KeyError::NotSupported) } else { Ok(key.payload.clone()) }
    }

    /// Makes a key useless; its links stay.
    ///
    /// # Errors
    /// [`KeyError::NoKey`].
    pub fn revoke(&mut self, serial: Serial) -> Result<(), KeyError> {
        let key = self.key_mut(serial)?;
        key.is_revoked = true;
        key.payload = None;
        let (is_ring, bytes) = (key.kind == KeyKind::Keyring, core::mem::take(&mut key.payload_bytes));
        self.charge(serial, 0, bytes, KeyLimits::NONE)?;
        if is_ring { self.clear(serial) } else { Ok(()) }
    }

    /// Takes a key out of all keyrings.
    ///
    /// # Errors
    /// [`KeyError::NoKey`].
    pub fn invalidate(&mut self, serial: Serial) -> Result<(), KeyError> {
        self.key_mut(serial)?.is_invalid = true;
        // Its last link may be the last reference.
        self.hold(serial)?;
        for slot in 0..self.slots.len() {
            let Some(ring) = self.slots[slot].as_deref().filter(|key| key.links.contains(&serial)) else {
                continue;
            };
            let ring = ring.serial;
            self.unlink(ring, serial)?;
        }
        self.release(serial);
        Ok(())
    }

    /// Changes the owner and the group.
    ///
    /// # Errors
    /// [`KeyError::Quota`], [`KeyError::NoMemory`].
    pub fn change_owner(
        &mut self,
        serial: Serial,
        uid: Option<u32>,
        gid: Option<u32>,
        limits: KeyLimits,
    ) -> Result<(), KeyError> {
        let key = self.key(serial)?;
        let (old, charged) = (key.uid, key.charged);
        if let Some(new) = uid.filter(|&new| new != old) {
            self.users.enter(new, charged, limits)?;
            self.users.leave(old, charged);
        }
        let key = self.key_mut(serial)?;
        (key.uid, key.gid) = (uid.unwrap_or(old), gid.unwrap_or(key.gid));
        Ok(())
    }

    /// Changes the permissions.
    ///
    /// # Errors
    /// [`KeyError::NoKey`].
    pub fn set_permissions(&mut self, serial: Serial, permissions: u32) -> Result<(), KeyError> {
        self.key_mut(serial)?.permissions = permissions;
        Ok(())
    }

    /// Changes when it expires.
    ///
    /// # Errors
    /// [`KeyError::NoKey`].
    pub fn set_expiry(&mut self, serial: Serial, expires_s: Option<u64>) -> Result<(), KeyError> {
        self.key_mut(serial)?.expires_s = expires_s;
        Ok(())
    }
}
