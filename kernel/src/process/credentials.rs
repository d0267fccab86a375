//! Credentials: the users, groups and capabilities of a thread.

use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

use crate::fs::landlock::Restrictions;
use crate::process::user_namespace::Users;

/// The capability sets of capabilities(7), one bit a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of capabilities(7)")]
pub struct Capabilities {
    pub permitted: u64,
    pub effective: u64,
    pub inheritable: u64,
    pub bounding: u64,
    pub ambient: u64,
}

/// `SECBIT_` bits, which change what user 0 means: capabilities(7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SecureBits(pub u32);

impl SecureBits {
    /// User 0 gets no capabilities by `execve`.
    pub const NO_ROOT: Self = Self(1);
    /// Changes of the user leave the sets as they are.
    pub const NO_SETUID_FIXUP: Self = Self(1 << 2);
    /// Giving up the last user id 0 leaves the permitted set: `PR_SET_KEEPCAPS`. `execve` clears the bit.
    pub const KEEP_CAPABILITIES: Self = Self(1 << 4);
    /// No capability becomes ambient.
    pub const NO_AMBIENT_RAISE: Self = Self(1 << 6);
    /// Every bit that can be set.
    pub const BITS: u32 = 0x55;
    /// For each of them the one that keeps it as it is.
    pub const LOCKS: u32 = 0xaa;

    /// Whether a bit is set.
    #[must_use]
    pub const fn has(self, bit: Self) -> bool {
        self.0 & bit.0 != 0
    }

    /// Whether a bit is kept as it is.
    #[must_use]
    pub const fn is_locked(self, bit: Self) -> bool {
        self.0 & bit.0 << 1 != 0
    }

    /// Whether the locks allow other bits in place of these.
    #[must_use]
    pub const fn may_become(self, new: Self) -> bool {
        let locks = self.0 & Self::LOCKS;
        (locks >> 1) & (self.0 ^ new.0) == 0
            && locks & !new.0 == 0
            && new.0 & !(Self::LOCKS | Self::BITS) == 0
    }
}

impl Capabilities {
    /// Capabilities of user 0 for file accesses: capabilities(7), "Effect of user ID changes on capabilities".
    const OF_FILES: u64 = 1 << linux::CAP_CHOWN
        | 1 << linux::CAP_DAC_OVERRIDE
        | 1 << linux::CAP_DAC_READ_SEARCH
        | 1 << linux::CAP_FOWNER
        | 1 << linux::CAP_FSETID
        | 1 << linux::CAP_LINUX_IMMUTABLE
        | 1 << linux::CAP_MKNOD
        | 1 << linux::CAP_MAC_OVERRIDE;

    /// Whether this is the number of a capability.
    #[must_use]
    pub const fn is_known(number: usize) -> bool {
        number < 64 && Self::ALL & 1 << number != 0
    }

    /// The capabilities of Linux 6.1, `CAP_CHOWN` to `CAP_CHECKPOINT_RESTORE`.
    pub const ALL: u64 = (1 << 41) - 1;
    pub(in crate::process) const FULL: Self =
        Self { permitted: Self::ALL, effective: Self::ALL, inheritable: 0, bounding: Self::ALL, ambient: 0 };
}

/// User and group ids, as in credentials(7). Immutable: a change makes a new value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of credentials(7)")]
pub struct Credentials {
    pub uid: u32,
    pub euid: u32,
    pub suid: u32,
    pub fsuid: u32,
    pub gid: u32,
    pub egid: u32,
    pub sgid: u32,
    pub fsgid: u32,
    /// Supplementary groups; `None` when there are none.
    pub groups: Option<Arc<Vec<u32>>>,
    pub capabilities: Capabilities,
    pub secure_bits: SecureBits,
    /// The user namespace. All numbers are those of the first.
    pub users: Users,
    /// The restrictions of landlock(7).
    pub restrictions: Restrictions,
}

impl Credentials {
    /// Whether all ids are the superuser's: such programs share a page table, others have one each.
    #[must_use]
    pub fn is_root_owned(&self) -> bool {
        self.users.is_none()
            && [self.uid, self.euid, self.suid, self.gid, self.egid].iter().all(|&id| id == 0)
    }

    /// The superuser.
    pub const ROOT: Self = Self {
        uid: 0,
        euid: 0,
        suid: 0,
        fsuid: 0,
        gid: 0,
        egid: 0,
        sgid: 0,
        fsgid: 0,
        groups: None,
        capabilities: Capabilities::FULL,
        secure_bits: SecureBits(0),
        users: None,
        restrictions: Restrictions::NONE,
    };

    fn has(&self, user: u32) -> bool {
        self.uid == user || self.euid == user || self.suid == user
    }

    /// Changes the user ids, and the capabilities with them.
    pub fn set_user_ids(&mut self, real: u32, effective: u32, saved: u32) {
        let root = self.root_user();
        let (had_root, was_effective) = (self.has(root), self.euid == root);
        (self.uid, self.euid, self.suid, self.fsuid) = (real, effective, saved, effective);
        if self.secure_bits.has(SecureBits::NO_SETUID_FIXUP) {
            return;
        }
        let has_root = self.has(root);
        let sets = &mut self.capabilities;
        if had_root && !has_root {
            if !self.secure_bits.has(SecureBits::KEEP_CAPABILITIES) {
                (sets.permitted, sets.effective) = (0, 0);
            }
            sets.ambient = 0;
        }
        if was_effective && effective != root {
            sets.effective = 0;
        } else if !was_effective && effective == root {
            sets.effective = sets.permitted;
        }
    }

    /// Changes the user id for accesses to files, and the capabilities that are about files with it.
    pub fn set_file_user_id(&mut self, fsuid: u32) {
        let root = self.root_user();
        let was_root = self.fsuid == root;
        self.fsuid = fsuid;
        if self.secure_bits.has(SecureBits::NO_SETUID_FIXUP) {
            return;
        }
        let sets = &mut self.capabilities;
        if was_root && fsuid != root {
            sets.effective &= !Capabilities::OF_FILES;
        } else if !was_root && fsuid == root {
            sets.effective |= sets.permitted & Capabilities::OF_FILES;
        }
    }

    /// Whether a program that has changed to these from `old` is closed to others of its user: it may hold what they
    /// may not see.
    #[must_use]
    pub fn closes(&self, old: &Self) -> bool {
        self.euid != old.euid
            || self.egid != old.egid
            || self.fsuid != old.fsuid
            || self.fsgid != old.fsgid
            || !self.has_no_more_than(old)
    }

    /// Whether capability `number` (a `CAP_` constant) is effective towards what belongs to the first user namespace.
    #[inline]
    #[must_use]
    pub const fn is_capable(&self, number: u32) -> bool {
        self.has_capability(number) && self.users.is_none()
    }

    /// The supplementary groups.
    #[must_use]
    pub fn supplementary_groups(&self) -> &[u32] {
        self.groups.as_ref().map_or(&[], |groups| groups.as_slice())
    }

    /// Whether files of group `gid` are accessed by their group bits.
    #[must_use]
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.fsgid == gid || self.supplementary_groups().contains(&gid)
    }
}
