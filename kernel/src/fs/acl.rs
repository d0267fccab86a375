//! Access control lists of a node, acl(5), kept beside its extended attributes.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, Ordering};

use heddle_kernel_core::posix_acl::Acl;

use crate::error::Errno;
use crate::memory::fallible;
use crate::process::Credentials;
use crate::sync::SpinLock;

/// The two lists of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclKind {
    /// The one that decides who may use the file.
    Access,
    /// A directory's, for the files that are made in it.
    Default,
}

impl AclKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Access, Self::Default];

    /// The name of the extended attribute.
    #[must_use]
    pub const fn name(self) -> &'static [u8] {
        match self {
            Self::Access => b"system.posix_acl_access",
            Self::Default => b"system.posix_acl_default",
        }
    }

    /// The list that an extended attribute means.
    #[must_use]
    pub fn of(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The lists of a node; most have none, and their users look at one byte.
pub struct Acls {
    present: AtomicU8,
    lists: SpinLock<[Option<Box<Acl>>; 2]>,
}

impl Acls {
    /// No lists.
    #[must_use]
    pub const fn new() -> Self {
        Self { present: AtomicU8::new(0), lists: SpinLock::new([None, None]) }
    }

    /// Whether there is a list of this kind.
    #[inline]
    #[must_use]
    pub fn has(&self, kind: AclKind) -> bool {
        self.present.load(Ordering::Relaxed) & kind.bit() != 0
    }

    /// Replaces a list.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn set(&self, kind: AclKind, list: Option<Acl>) -> Result<(), Errno> {
        let list = list.map(fallible::try_box).transpose()?;
        let mut lists = self.lists.lock();
        if list.is_some() {
            self.present.fetch_or(kind.bit(), Ordering::Relaxed);
        } else {
            self.present.fetch_and(!kind.bit(), Ordering::Relaxed);
        }
        let before = core::mem::replace(&mut lists[kind as usize], list);
        drop(lists);
        drop(before);
        Ok(())
    }

    /// The value of the extended attribute.
    ///
    /// # Errors
    /// `ENODATA`, `ENOMEM`.
    pub fn value(&self, kind: AclKind) -> Result<Vec<u8>, Errno> {
        let lists = self.lists.lock();
        let list = lists[kind as usize].as_ref().ok_or(Errno::ENODATA)?;
        list.to_value().map_err(|_| Errno::ENOMEM)
    }

    /// A copy of a list.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn copy(&self, kind: AclKind) -> Result<Option<Acl>, Errno> {
        let lists = self.lists.lock();
        lists[kind as usize].as_ref().map(|list| list.try_clone().map_err(|_| Errno::ENOMEM)).transpose()
    }

    /// The permission bits of the file have changed.
    pub fn set_mode(&self, mode: u32) {
        if self.has(AclKind::Access)
            && let Some(list) = &mut self.lists.lock()[AclKind::Access as usize]
        {
            list.set_mode(mode);
        }
    }

    /// Whether the list lets somebody do what `wanted` says with a file of this owner and group. `None`: there is no
    /// list.
    #[must_use]
    pub fn permits(&self, wanted: u32, uid: u32, gid: u32, who: &Credentials) -> Option<bool> {
        if !self.has(AclKind::Access) {
            return None;
        }
        let lists = self.lists.lock();
        let list = lists[AclKind::Access as usize].as_ref()?;
        let is_in = |group: Option<u32>| who.is_in_group(group.unwrap_or(gid));
        Some(list.permits(wanted, who.fsuid == uid, who.fsuid, is_in))
    }
}

impl Default for Acls {
    fn default() -> Self {
        Self::new()
    }
}
