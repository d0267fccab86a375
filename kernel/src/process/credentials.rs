//! Who a thread acts as.

use alloc::sync::Arc;
use alloc::vec::Vec;

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

impl Capabilities {
    /// The capabilities of Linux 6.1, `CAP_CHOWN` to `CAP_CHECKPOINT_RESTORE`.
    pub const ALL: u64 = (1 << 41) - 1;
    const FULL: Self =
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
}

impl Credentials {
    /// Whether all ids are the superuser's: such programs share a page table, others have one each.
    #[must_use]
    pub fn is_root_owned(&self) -> bool {
        [self.uid, self.euid, self.suid, self.gid, self.egid].iter().all(|&id| id == 0)
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
    };

    /// Whether capability `number` (a `CAP_` constant) is effective.
    #[must_use]
    pub const fn is_capable(&self, number: u32) -> bool {
        number < 64 && self.capabilities.effective & 1 << number != 0
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
