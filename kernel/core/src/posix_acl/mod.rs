//! POSIX access control lists, acl(5), in the form of the extended attributes `system.posix_acl_access` and
//! `system.posix_acl_default`.
//!
//! A list that says no more than the permission bits is not kept ([`Acl::equivalent_mode`]). In one that is kept the
//! group bits of the mode are the mask, so [`Acl::set_mode`] and [`Acl::mode`] keep the two the same.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use crate::OutOfMemory;
use crate::fallible::push_reserved;

/// The version in the header of the attribute.
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The identifier of an entry that needs none.
const NO_ID: u32 = u32::MAX;
/// The most entries of a list: what fits in an attribute's value.
const ENTRIES_MAX: usize = (65536 - HEADER_BYTES) / ENTRY_BYTES;

/// Whom an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "acl(5)'s names")]
pub enum Tag {
    UserOwner = 0x01,
    User = 0x02,
    GroupOwner = 0x04,
    Group = 0x08,
    Mask = 0x10,
    Other = 0x20,
}

impl Tag {
    fn of(raw: u16) -> Option<Self> {
        [Self::UserOwner, Self::User, Self::GroupOwner, Self::Group, Self::Mask, Self::Other]
            .into_iter()
            .find(|&tag| tag as u16 == raw)
    }

    const fn has_id(self) -> bool {
        matches!(self, Self::User | Self::Group)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: Tag,
    permissions: u16,
    id: u32,
}

/// A valid list.
#[derive(Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

/// A value that is no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclError {
    /// `EINVAL`.
    Invalid,
    /// `EOPNOTSUPP`: another version.
    Version,
    /// `ENOMEM`.
    OutOfMemory,
}

impl From<OutOfMemory> for AclError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl Acl {
    /// The length of the header before the entries.
    pub const HEADER_BYTES: usize = HEADER_BYTES;

    /// Reads the value of an attribute. `None`: it has no entries, which takes the list away.
    ///
    /// # Errors
    /// See [`AclError`].
    pub fn parse(value: &[u8]) -> Result<Option<Self>, AclError> {
        let (version, rest) = value.split_first_chunk::<HEADER_BYTES>().ok_or(AclError::Invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(AclError::Version);
        }
        let (raw, rest) = rest.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() || raw.len() > ENTRIES_MAX {
            return Err(AclError::Invalid);
        }
        if raw.is_empty() {
            return Ok(None);
        }
        let mut entries = Vec::new();
        entries.try_reserve_exact(raw.len()).map_err(|_| AclError::OutOfMemory)?;
        for &[tag_low, tag_high, low, high, id @ ..] in raw {
            let tag = Tag::of(u16::from_le_bytes([tag_low, tag_high])).ok_or(AclError::Invalid)?;
            let (permissions, id) = (u16::from_le_bytes([low, high]), u32::from_le_bytes(id));
            if permissions > 7 || tag.has_id() && id == NO_ID {
                return Err(AclError::Invalid);
            }
            let id = if tag.has_id() { id } else { NO_ID };
            push_reserved(&mut entries, AclEntry { tag, permissions, id });
        }
        let acl = Self { entries };
        if acl.is_valid() { Ok(Some(acl)) } else { Err(AclError::Invalid) }
    }

    /// The entries are in the order of their tags, the three of the mode are there once, and a mask is where users or
    /// groups are named.
    fn is_valid(&self) -> bool {
        let count = |tag| self.entries.iter().filter(|entry| entry.tag == tag).count();
        let is_named = count(Tag::User) + count(Tag::Group) > 0;
        self.entries.is_sorted_by_key(|entry| entry.tag)
            && [Tag::UserOwner, Tag::GroupOwner, Tag::Other].into_iter().all(|tag| count(tag) == 1)
            && count(Tag::Mask) <= 1
            && (!is_named || count(Tag::Mask) == 1)
    }

    /// The value of the attribute.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn to_value(&self) -> Result<Vec<u8>, OutOfMemory> {
        let mut value = Vec::new();
        let bytes = HEADER_BYTES + self.entries.len() * ENTRY_BYTES;
        value.try_reserve_exact(bytes).map_err(|_| OutOfMemory)?;
        let mut put = |bytes: &[u8]| bytes.iter().for_each(|&byte| push_reserved(&mut value, byte));
        put(&VERSION.to_le_bytes());
        for entry in &self.entries {
            put(&(entry.tag as u16).to_le_bytes());
            put(&entry.permissions.to_le_bytes());
            put(&entry.id.to_le_bytes());
        }
        Ok(value)
    }

    fn find(&self, tag: Tag) -> Option<&AclEntry> {
        self.entries.iter().find(|entry| entry.tag == tag)
    }

    fn permissions(&self, tag: Tag) -> u32 {
        self.find(tag).map_or(0, |entry| u32::from(entry.permissions))
    }

    /// The permission bits of a file that has this list: its group's are the mask.
    #[must_use]
    pub fn mode(&self) -> u32 {
        let group = self
            .find(Tag::Mask)
            .map_or(self.permissions(Tag::GroupOwner), |mask| u32::from(mask.permissions));
        self.permissions(Tag::UserOwner) << 6 | group << 3 | self.permissions(Tag::Other)
    }

    /// The permission bits that say the same as the whole list, if there are such.
    #[must_use]
    pub fn equivalent_mode(&self) -> Option<u32> {
        let is_minimal = self.entries.iter().all(|entry| !entry.tag.has_id() && entry.tag != Tag::Mask);
        is_minimal.then(|| self.mode())
    }

    fn set(&mut self, tag: Tag, permissions: u32) {
        for entry in self.entries.iter_mut().filter(|entry| entry.tag == tag) {
            entry.permissions = (permissions & 7) as u16;
        }
    }

    /// Carries a `chmod` over to the list.
    pub fn set_mode(&mut self, mode: u32) {
        self.set(Tag::UserOwner, mode >> 6);
        let group = if self.find(Tag::Mask).is_some() { Tag::Mask } else { Tag::GroupOwner };
        self.set(group, mode >> 3);
        self.set(Tag::Other, mode);
    }

    /// Makes a directory's default list that of a file created in it with these permission bits; returns the file's.
    pub fn create(&mut self, mode: u32) -> u32 {
        let mode = mode & (self.mode() | !0o777);
        self.set_mode(mode);
        mode
    }

    /// Whether the list lets somebody do what `wanted` says (with the bits of access(2)) with a file of this owner.
    pub fn permits(
        &self,
        wanted: u32,
        is_owner: bool,
        uid: u32,
        is_in: impl Fn(Option<u32>) -> bool,
    ) -> bool {
        let masked = |permissions: u16| {
            let mask = self.find(Tag::Mask).map_or(7, |mask| mask.permissions);
            u32::from(permissions & mask) & wanted == wanted
        };
        if is_owner {
            return self.permissions(Tag::UserOwner) & wanted == wanted;
        }
        if let Some(entry) = self.entries.iter().find(|entry| entry.tag == Tag::User && entry.id == uid) {
            return masked(entry.permissions);
        }
        let mut is_member = false;
        for entry in &self.entries {
            let applies = match entry.tag {
                Tag::GroupOwner => is_in(None),
                Tag::Group => is_in(Some(entry.id)),
                _ => false,
            };
            // One of the groups that permits it all is enough.
            if applies && masked(entry.permissions) {
                return true;
            }
            is_member |= applies;
        }
        !is_member && self.permissions(Tag::Other) & wanted == wanted
    }

    /// A copy.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn try_clone(&self) -> Result<Self, OutOfMemory> {
        let mut entries = Vec::new();
        entries.try_reserve_exact(self.entries.len()).map_err(|_| OutOfMemory)?;
        self.entries.iter().for_each(|&entry| push_reserved(&mut entries, entry));
        Ok(Self { entries })
    }
}
