//! The metadata of a socket, which fstat(2) tells and `fchmod` and `fchown` change.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::fs::inode::InodeChange;
use crate::fs::{FileType, Metadata};

/// See the module.
pub struct SocketNode {
    /// Its number.
    pub inode: u64,
    permissions: AtomicU32,
    uid: AtomicU32,
    gid: AtomicU32,
}

static NEXT_INODE: AtomicU64 = AtomicU64::new(1);

impl SocketNode {
    /// That of a new socket, which belongs to a user and a group.
    pub fn new(owner: (u32, u32)) -> Self {
        Self {
            inode: NEXT_INODE.fetch_add(1, Ordering::Relaxed),
            permissions: AtomicU32::new(0o777),
            uid: AtomicU32::new(owner.0),
            gid: AtomicU32::new(owner.1),
        }
    }

    /// The user and the group it belongs to.
    pub fn owner(&self) -> (u32, u32) {
        (self.uid.load(Ordering::Relaxed), self.gid.load(Ordering::Relaxed))
    }

    /// The metadata as `fstat` tells it.
    pub fn metadata(&self) -> Metadata {
        let (uid, gid) = self.owner();
        let permissions = self.permissions.load(Ordering::Relaxed);
        Metadata { permissions, uid, gid, ..Metadata::anonymous(FileType::Socket, self.inode) }
    }

    /// Changes permissions and owner.
    pub fn change(&self, change: &InodeChange) {
        let places =
            [(&self.permissions, change.permissions), (&self.uid, change.uid), (&self.gid, change.gid)];
        for (place, value) in places {
            if let Some(value) = value {
                place.store(value, Ordering::Relaxed);
            }
        }
    }
}
