//! User namespaces, user_namespaces(7): numbers of users and groups as some threads see them, and what their
//! capabilities count towards.
//!
//! The kernel keeps the numbers of the first namespace everywhere; calls translate at their edge, by
//! [`Credentials::user`] what a program passes, and by [`Credentials::shown_user`] what it gets. The first namespace is
//! `None` in [`Users`], so that its programs translate nothing and `capable` is one comparison more.

use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use heddle_kernel_core::id_map::{Extent, IdMap, IdMapError, NO_ID, OVERFLOW_ID};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::mount::next_namespace_number;
use crate::memory::fallible;
use crate::process::namespace_counts::{CountedNamespace, NamespaceKind, NamespaceLimits, NamespaceMaker};
use crate::process::{Capabilities, Credentials, SecureBits};
use crate::sync::SpinLock;

/// A user namespace; `None` is the first.
pub type Users = Option<Arc<UserNamespace>>;

/// The number of the first one, which is the same on every Linux.
pub const FIRST_NUMBER: u64 = 0xefff_fffd;
/// A namespace of a higher level has no children.
const LEVEL_MAX: u32 = 32;

/// Whether a thread without privilege may make one: Debian's `kernel.unprivileged_userns_clone`.
pub static MADE_BY_ALL: AtomicU32 = AtomicU32::new(1);

/// Whether there has ever been another namespace than the first: until then nothing is to be translated.
static IS_IN_USE: AtomicBool = AtomicBool::new(false);

/// Whether numbers may have to be translated.
#[inline]
#[must_use]
pub fn is_in_use() -> bool {
    IS_IN_USE.load(Ordering::Relaxed)
}

/// The kinds of numbers that have maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdKind {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects, which nothing here has.
    Project,
}

/// A namespace other than the first.
pub struct UserNamespace {
    /// Its number, as `/proc/PID/ns/user` shows it.
    pub number: u64,
    /// The one in which it was made.
    pub parent: Users,
    /// 1 for a child of the first.
    level: u32,
    /// The user who made it.
    pub owner: u32,
    /// Whether whoever made it could give capabilities to files.
    could_set_file_capabilities: bool,
    /// The maps, which are written once, by [`IdKind`].
    maps: [spin::Once<IdMap>; 3],
    /// Whether setgroups(2) is allowed once there is a map of groups. The lock is held while a map is written.
    may_set_groups: SpinLock<bool>,
    /// How many namespaces each of its users may have.
    pub(super) limits: NamespaceLimits,
    counted: CountedNamespace,
}

impl fmt::Debug for UserNamespace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "user:[{}]", self.number)
    }
}

impl PartialEq for UserNamespace {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for UserNamespace {}

/// Whether two are the same.
#[must_use]
pub fn is_same(one: &Users, other: &Users) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        _ => false,
    }
}

/// How deep a namespace lies.
fn level(users: &Users) -> u32 {
    users.as_ref().map_or(0, |users| users.level)
}

/// Whether `users` is `above` or lies below it.
#[must_use]
pub fn is_within(users: &Users, above: &Users) -> bool {
    let mut next = users;
    loop {
        if is_same(next, above) {
            return true;
        }
        let Some(inner) = next else { return false };
        next = &inner.parent;
    }
}

/// The number of a namespace.
#[must_use]
pub fn number(users: &Users) -> u64 {
    users.as_ref().map_or(FIRST_NUMBER, |users| users.number)
}

/// The number in the first namespace for one of a namespace's.
#[must_use]
pub fn lower(users: &Users, kind: IdKind, id: u32) -> Option<u32> {
    lower_range(users, kind, id, 1)
}

fn lower_range(users: &Users, kind: IdKind, id: u32, count: u32) -> Option<u32> {
    match users {
        None => (id != NO_ID).then_some(id),
        Some(users) => users.maps[kind as usize].get()?.range_to_lower(id, count),
    }
}

/// A namespace's number for one of the first namespace's.
#[must_use]
pub fn upper(users: &Users, kind: IdKind, id: u32) -> Option<u32> {
    match users {
        None => Some(id),
        Some(users) => users.maps[kind as usize].get()?.to_upper(id),
    }
}

impl UserNamespace {
    /// The namespace that a thread with these credentials makes, and enters with what [`Credentials::entering`] says.
    /// `is_rooted`: its root directory is the root of its mounts.
    ///
    /// # Errors
    /// `ENOSPC` (too deep, or too many), `EPERM` (its user or group has no number in its own namespace, or it sees a
    /// part of the files only), `ENOMEM`.
    pub fn new(creator: &Credentials, is_rooted: bool) -> Result<Arc<Self>, Errno> {
        let parent = creator.users.clone();
        let level = level(&parent) + 1;
        if level > LEVEL_MAX + 1 {
            return Err(Errno::ENOSPC);
        }
        let counted = CountedNamespace::new(creator, NamespaceKind::User)?;
        let is_known = upper(&parent, IdKind::User, creator.euid).is_some()
            && upper(&parent, IdKind::Group, creator.egid).is_some();
        if !is_rooted || !is_known {
            return Err(Errno::EPERM);
        }
        let may_set_groups = parent.as_ref().is_none_or(|parent| *parent.may_set_groups.lock());
        IS_IN_USE.store(true, Ordering::Relaxed);
        fallible::try_arc(Self {
            number: next_namespace_number(),
            parent,
            level,
            owner: creator.euid,
            could_set_file_capabilities: creator.has_capability(linux::CAP_SETFCAP),
            maps: [const { spin::Once::new() }; 3],
            may_set_groups: SpinLock::new(may_set_groups),
            limits: NamespaceLimits::new(i32::MAX as u32),
            counted,
        })
    }

    /// The user who made it, as its namespaces count.
    pub(super) const fn maker(&self) -> &Arc<NamespaceMaker> {
        self.counted.maker()
    }

    /// Whether its programs may call setgroups(2).
    #[must_use]
    pub fn may_set_groups(&self) -> bool {
        self.maps[IdKind::Group as usize].is_completed() && *self.may_set_groups.lock()
    }

    /// Whether `/proc/PID/setgroups` says `allow`.
    #[must_use]
    pub fn allows_groups(&self) -> bool {
        *self.may_set_groups.lock()
    }

    /// Writes `/proc/PID/setgroups`.
    ///
    /// # Errors
    /// `EPERM`: it has been denied before, or there is a map of groups.
    pub fn allow_groups(&self, allow: bool) -> Result<(), Errno> {
        let mut may = self.may_set_groups.lock();
        let has_map = self.maps[IdKind::Group as usize].is_completed();
        if if allow { !*may } else { has_map } {
            return Err(Errno::EPERM);
        }
        *may = allow;
        Ok(())
    }

    /// The extents of a map, with numbers of the first namespace as the lower ones.
    #[must_use]
    pub fn extents(&self, kind: IdKind) -> &[Extent] {
        self.maps[kind as usize].get().map_or(&[], IdMap::extents)
    }

    /// Writes a map, as far as both may who opened the file and who writes to it.
    ///
    /// # Errors
    /// `EPERM` (there is one, or they may not), `EINVAL` (it is none), `ENOMEM`.
    pub fn write_map(
        self: &Arc<Self>,
        kind: IdKind,
        text: &[u8],
        opener: &Credentials,
        writer: &Credentials,
    ) -> Result<(), Errno> {
        let own = Some(self.clone());
        if !is_same(&opener.users, &own) && !is_same(&opener.users, &self.parent) {
            return Err(Errno::EPERM);
        }
        let place = &self.maps[kind as usize];
        let is_free = kind == IdKind::Project;
        if place.is_completed() || !is_free && !opener.is_capable_in(&own, linux::CAP_SYS_ADMIN) {
            return Err(Errno::EPERM);
        }
        let errno = |error| match error {
            IdMapError::Invalid => Errno::EINVAL,
            IdMapError::Unmapped => Errno::EPERM,
            IdMapError::OutOfMemory => Errno::ENOMEM,
        };
        let map = IdMap::parse(text).map_err(errno)?;
        let may_set_groups = self.may_set_groups.lock();
        // Somebody else may have written it meanwhile.
        if place.is_completed() || !self.may_write(kind, &map, (opener, writer), *may_set_groups) {
            return Err(Errno::EPERM);
        }
        let map = map.lowered(|id, count| lower_range(&self.parent, kind, id, count)).map_err(errno)?;
        place.call_once(|| map);
        drop(may_set_groups);
        Ok(())
    }

    fn may_write(
        self: &Arc<Self>,
        kind: IdKind,
        map: &IdMap,
        (opener, writer): (&Credentials, &Credentials),
        may_set_groups: bool,
    ) -> bool {
        let has_root = map.extents().iter().any(|extent| extent.lower == 0);
        if kind == IdKind::User && has_root {
            // Whoever is root below could make a file's capabilities count above.
            let is_inside = opener.users.as_ref().is_some_and(|users| Arc::ptr_eq(users, self));
            let may = if is_inside {
                self.could_set_file_capabilities
            } else {
                opener.is_capable_in(&self.parent, linux::CAP_SETFCAP)
            };
            if !may {
                return false;
            }
        }
        if let [Extent { lower: id, count: 1, .. }] = *map.extents()
            && self.owner == opener.euid
        {
            let own = lower(&self.parent, kind, id);
            if kind == IdKind::User && own == Some(opener.euid)
                || kind == IdKind::Group && !may_set_groups && own == Some(opener.egid)
            {
                return true;
            }
        }
        let capability = match kind {
            IdKind::User => linux::CAP_SETUID,
            IdKind::Group => linux::CAP_SETGID,
            IdKind::Project => return true,
        };
        [opener, writer].iter().all(|who| who.is_capable_in(&self.parent, capability))
    }
}

impl Credentials {
    /// The user for whom a program's number stands.
    ///
    /// # Errors
    /// `EINVAL`: nobody.
    #[inline]
    pub fn user(&self, id: u32) -> Result<u32, Errno> {
        lower(&self.users, IdKind::User, id).ok_or(Errno::EINVAL)
    }

    /// The group for which a program's number stands.
    ///
    /// # Errors
    /// `EINVAL`: none.
    #[inline]
    pub fn group(&self, id: u32) -> Result<u32, Errno> {
        lower(&self.users, IdKind::Group, id).ok_or(Errno::EINVAL)
    }

    /// The number of a user as the program sees it.
    #[inline]
    #[must_use]
    pub fn shown_user(&self, user: u32) -> u32 {
        if self.users.is_none() {
            user
        } else {
            upper(&self.users, IdKind::User, user).unwrap_or(OVERFLOW_ID)
        }
    }

    /// The number of a group as the program sees it.
    #[inline]
    #[must_use]
    pub fn shown_group(&self, group: u32) -> u32 {
        if self.users.is_none() {
            group
        } else {
            upper(&self.users, IdKind::Group, group).unwrap_or(OVERFLOW_ID)
        }
    }

    /// Its namespace's user 0; [`NO_ID`] if that has none.
    #[must_use]
    pub fn root_user(&self) -> u32 {
        if self.users.is_none() { 0 } else { lower(&self.users, IdKind::User, 0).unwrap_or(NO_ID) }
    }

    /// Whether capability `number` is effective towards what belongs to the program's own namespace.
    #[inline]
    #[must_use]
    pub const fn has_capability(&self, number: u32) -> bool {
        number < 64 && self.capabilities.effective & 1 << number != 0
    }

    /// Whether capability `number` is effective towards what belongs to a namespace: its own, one below it, or one that
    /// its user made in it.
    #[must_use]
    pub fn is_capable_in(&self, target: &Users, number: u32) -> bool {
        let mut next = target;
        loop {
            if is_same(next, &self.users) {
                return self.has_capability(number);
            }
            let Some(inner) = next.as_ref().filter(|inner| inner.level > level(&self.users)) else {
                return false;
            };
            if inner.owner == self.euid && is_same(&inner.parent, &self.users) {
                return true;
            }
            next = &inner.parent;
        }
    }

    /// Whether capability `number` is effective towards a file of this owner and group: both have numbers in the
    /// program's namespace.
    #[inline]
    #[must_use]
    pub fn is_capable_over(&self, user: u32, group: u32, number: u32) -> bool {
        self.has_capability(number) && (self.users.is_none() || self.knows(user, group))
    }

    /// Whether a user and a group have numbers in the program's namespace.
    #[must_use]
    pub fn knows(&self, user: u32, group: u32) -> bool {
        upper(&self.users, IdKind::User, user).is_some() && upper(&self.users, IdKind::Group, group).is_some()
    }

    /// The same in another namespace, with all capabilities there.
    #[must_use]
    pub fn entering(&self, users: Users) -> Self {
        let secure_bits = SecureBits::default();
        Self { users, capabilities: Capabilities::FULL, secure_bits, ..self.clone() }
    }

    /// Whether these have no more permitted capabilities than `old`. All that there are in a namespace that the user
    /// of `old` made are no more.
    #[must_use]
    pub fn has_no_more_than(&self, old: &Self) -> bool {
        if is_same(&self.users, &old.users) {
            return self.capabilities.permitted & !old.capabilities.permitted == 0;
        }
        let mut next = &self.users;
        while let Some(inner) = next {
            if inner.owner == old.euid && is_same(&inner.parent, &old.users) {
                return true;
            }
            next = &inner.parent;
        }
        false
    }
}
