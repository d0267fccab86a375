//! Owners and modes of objects, sysvipc(7).

/// The owner of an object, and what others may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// The owner.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
    /// The creator.
    pub creator_uid: u32,
    /// The maker's group.
    pub creator_gid: u32,
    /// Rights in the lowest nine bits; above them what the kind of object adds.
    pub mode: u32,
}

impl Permissions {
    /// The permissions of an object that a process makes with these flags.
    #[must_use]
    pub const fn new(uid: u32, gid: u32, flags: u32) -> Self {
        Self { uid, gid, creator_uid: uid, creator_gid: gid, mode: flags & 0o777 }
    }

    /// Whether all rights that `wanted` names in any of its three places are granted. Execution is a right like the
    /// others here.
    pub fn allows(&self, uid: u32, is_in_group: impl Fn(u32) -> bool, wanted: u32) -> bool {
        let requested = wanted >> 6 | wanted >> 3 | wanted;
        let granted = if self.is_owned_by(uid) {
            self.mode >> 6
        } else if is_in_group(self.creator_gid) || is_in_group(self.gid) {
            self.mode >> 3
        } else {
            self.mode
        };
        requested & !granted & 0o7 == 0
    }

    /// Whether the user owns the object or made it.
    #[must_use]
    pub const fn is_owned_by(&self, uid: u32) -> bool {
        uid == self.uid || uid == self.creator_uid
    }

    /// Gives the object to others, with other rights.
    pub const fn change(&mut self, uid: u32, gid: u32, mode: u32) {
        self.uid = uid;
        self.gid = gid;
        self.mode = self.mode & !0o777 | mode & 0o777;
    }
}

#[cfg(test)]
mod tests {
    use super::Permissions;

    #[test]
    fn the_most_particular_class_decides() {
        let object = Permissions { gid: 7, ..Permissions::new(1, 5, 0o604) };
        assert!(object.allows(1, |_| false, 0o600));
        // Members of either group get the group's rights, which are fewer than those of others.
        assert!(!object.allows(2, |group| group == 5, 0o400));
        assert!(!object.allows(2, |group| group == 7, 0o400));
        assert!(object.allows(2, |_| false, 0o444));
        assert!(!object.allows(2, |_| false, 0o666));
    }

    #[test]
    fn a_change_keeps_what_is_above_the_rights() {
        let mut object = Permissions::new(1, 1, 0o1600);
        object.mode |= 0o2000;
        object.change(2, 3, 0o7777);
        assert_eq!((object.uid, object.gid, object.creator_uid, object.mode), (2, 3, 1, 0o2777));
    }
}
