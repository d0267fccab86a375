//! The rights on keys, and whether somebody has them.

use crate::keys::{Key, KeyError, Keys, Serial, Wanted};

/// The rights on a key, as the bits of a byte of its permissions.
#[allow(missing_docs, reason = "the names are those of keyrings(7)")]
pub mod rights {
    pub const VIEW: u32 = 1;
    pub const READ: u32 = 2;
    pub const WRITE: u32 = 4;
    pub const SEARCH: u32 = 8;
    pub const LINK: u32 = 16;
    pub const SETATTR: u32 = 32;
    pub const ALL: u32 = 0x3f;
    /// The possessor's byte, the owner's, the group's; others have the lowest.
    pub const POSSESSOR: u32 = 24;
    pub const USER: u32 = 16;
    pub const GROUP: u32 = 8;
}

/// The one who asks.
#[derive(Clone, Copy, Debug)]
pub struct KeyUser<'a> {
    /// User for accesses to files.
    pub uid: u32,
    /// Group likewise.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'a [u32],
    /// The keyrings of the thread, the process and the session: what they lead to is possessed.
    pub anchors: [Option<Serial>; 3],
    /// Seconds of real time.
    pub now_s: u64,
}

/// A key that somebody has named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// Its number.
    pub serial: Serial,
    /// The keyrings of whoever asks lead to it.
    pub is_possessed: bool,
}

impl<P> Key<P> {
    /// Whether all of `wanted` is allowed.
    #[must_use]
    pub fn allows(&self, who: &KeyUser<'_>, is_possessed: bool, wanted: u32) -> bool {
        let is_in_group = || self.gid == who.gid || who.groups.contains(&self.gid);
        let shift = if self.uid == who.uid {
            rights::USER
        } else if self.permissions >> rights::GROUP & rights::ALL != 0 && is_in_group() {
            rights::GROUP
        } else {
            0
        };
        let possessor = if is_possessed { self.permissions >> rights::POSSESSOR } else { 0 };
        (self.permissions >> shift | possessor) & wanted == wanted
    }
}

impl<P: Clone> Keys<P> {
    /// A key by its number.
    ///
    /// # Errors
    /// [`KeyError::NoKey`].
    pub fn reach(&mut self, serial: Serial, who: &KeyUser<'_>) -> Result<Reached, KeyError> {
        self.key(serial)?;
        let is_possessed = who.anchors.iter().flatten().any(|&anchor| {
            self.search(Reached { serial: anchor, is_possessed: true }, Wanted::Serial(serial), who).is_ok()
        });
        Ok(Reached { serial, is_possessed })
    }

    /// Checks that all of `wanted` is allowed.
    ///
    /// # Errors
    /// [`KeyError::Access`], [`KeyError::NoKey`].
    pub fn permit(&self, key: &Reached, who: &KeyUser<'_>, wanted: u32) -> Result<(), KeyError> {
        let is_allowed = self.key(key.serial)?.allows(who, key.is_possessed, wanted);
        if is_allowed { Ok(()) } else { Err(KeyError::Access) }
    }
}
