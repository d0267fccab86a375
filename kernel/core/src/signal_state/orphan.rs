//! Orphaned process groups: no process could continue one after a stop.

/// The relations of a group's member that decide whether the group is orphaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The group of the member's parent.
    pub parent_group: i32,
    /// The session of the member's parent.
    pub parent_session: i32,
}

impl Link {
    /// Whether the parent could continue a member of the group: it is of another group of the same session.
    #[must_use]
    pub const fn minds(&self, group: i32, session: i32) -> bool {
        self.parent_group != group && self.parent_session == session
    }
}

/// Whether a group of a session is orphaned, by the links of its living members.
pub fn is_orphaned(group: i32, session: i32, members: impl IntoIterator<Item = Link>) -> bool {
    !members.into_iter().any(|link| link.minds(group, session))
}
