//! Who a thread acts as.

/// User and group ids, as in credentials(7). Immutable: a change makes a new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

impl Credentials {
    /// The superuser.
    pub const ROOT: Self =
        Self { uid: 0, euid: 0, suid: 0, fsuid: 0, gid: 0, egid: 0, sgid: 0, fsgid: 0 };
}
