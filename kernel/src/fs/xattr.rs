//! Extended attributes of a node, xattr(7).

use alloc::boxed::Box;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::acl::{AclKind, Acls};
use crate::fs::dentry::copy_name;
use crate::memory::fallible;
use crate::sync::SpinLock;

use heddle_kernel_core::fallible::{extend_reserved, push_reserved};

/// The most bytes that the names and values of one node may have together.
const TOTAL_LIMIT: usize = 1 << 20;
/// The capabilities that a program gets from its file: see capabilities(7).
pub const CAPABILITY: &[u8] = b"security.capability";
/// Names that begin so are for the privileged only, who alone see them listed.
pub const TRUSTED: &[u8] = b"trusted.";

/// A server's answer about an attribute.
pub enum ServedValue {
    /// Its bytes.
    Bytes(Vec<u8>),
    /// How many there are, to whoever has room for none.
    Length(usize),
}

/// The extended attributes of a file that a program serves, which keeps them as it likes. Each call asks it.
///
/// # Errors
/// The program's; `EOPNOTSUPP` where it knows of no attributes.
#[allow(clippy::missing_errors_doc, reason = "they are those above")]
pub trait ServedAttributes {
    /// A value, which may have so many bytes.
    fn get(&self, name: &[u8], room: usize) -> Result<ServedValue, Errno>;

    /// The names, each with a zero byte behind it.
    fn list(&self, room: usize) -> Result<ServedValue, Errno>;

    /// Sets one; `flags` are those of setxattr(2).
    fn set(&self, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno>;

    /// Takes one away.
    fn remove(&self, name: &[u8]) -> Result<(), Errno>;
}

struct Attribute {
    name: Box<[u8]>,
    value: Box<[u8]>,
}

/// The attributes of a node, in the order in which they were made.
pub struct Extended {
    list: SpinLock<Vec<Attribute>>,
    /// Those that are access control lists.
    pub acls: Acls,
}

impl Default for Extended {
    fn default() -> Self {
        Self::new()
    }
}

impl Extended {
    /// No attributes.
    #[must_use]
    pub const fn new() -> Self {
        Self { list: SpinLock::new(Vec::new()), acls: Acls::new() }
    }

    /// Sets an attribute; `flags` may have `XATTR_CREATE` or `XATTR_REPLACE`.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA` (nothing to replace), `ENOSPC`, `ENOMEM`.
    pub fn set(&self, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
        let attribute = Attribute { name: copy_name(name)?, value: copy_name(value)? };
        let mut list = self.list.lock();
        let place = list.iter().position(|known| *known.name == *name);
        let used: usize = list.iter().map(|known| known.name.len() + known.value.len()).sum();
        if used + name.len() + value.len() > TOTAL_LIMIT {
            return Err(Errno::ENOSPC);
        }
        let old = match place {
            Some(_) if flags & linux::XATTR_CREATE != 0 => return Err(Errno::EEXIST),
            None if flags & linux::XATTR_REPLACE != 0 => return Err(Errno::ENODATA),
            Some(place) => Some(core::mem::replace(&mut list[place], attribute)),
            None => {
                fallible::try_push(&mut list, attribute)?;
                None
            }
        };
        drop(list);
        drop(old);
        Ok(())
    }

    /// Whether there is such an attribute.
    #[must_use]
    pub fn has(&self, name: &[u8]) -> bool {
        self.list.lock().iter().any(|known| *known.name == *name)
    }

    /// A copy of an attribute's value.
    ///
    /// # Errors
    /// `ENODATA`, `ENOMEM`.
    pub fn get(&self, name: &[u8]) -> Result<Box<[u8]>, Errno> {
        let list = self.list.lock();
        let found = list.iter().find(|known| *known.name == *name).ok_or(Errno::ENODATA)?;
        copy_name(&found.value)
    }

    /// Takes an attribute away.
    ///
    /// # Errors
    /// `ENODATA`.
    pub fn remove(&self, name: &[u8]) -> Result<(), Errno> {
        let mut list = self.list.lock();
        let place = list.iter().position(|known| *known.name == *name).ok_or(Errno::ENODATA)?;
        let old = list.remove(place);
        drop(list);
        drop(old);
        Ok(())
    }

    /// The names, each with a zero byte behind it.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn names(&self, with_trusted: bool) -> Result<Vec<u8>, Errno> {
        let list = self.list.lock();
        let mut names = Vec::new();
        for kind in AclKind::ALL.into_iter().filter(|&kind| self.acls.has(kind)) {
            names.try_reserve(kind.name().len() + 1).map_err(|_| Errno::ENOMEM)?;
            extend_reserved(&mut names, kind.name());
            push_reserved(&mut names, 0);
        }
        for attribute in list.iter().filter(|known| with_trusted || !known.name.starts_with(TRUSTED)) {
            names.try_reserve(attribute.name.len() + 1).map_err(|_| Errno::ENOMEM)?;
            extend_reserved(&mut names, &attribute.name);
            push_reserved(&mut names, 0);
        }
        Ok(names)
    }
}
