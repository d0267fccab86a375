//! How many namespaces there are, and may be: `/proc/sys/user/max_*_namespaces`, namespaces(7).
//!
//! As Linux's ucounts, a namespace counts for the user who made it in the user namespace that owns it, there for
//! whoever made that one, and so on up to the first. A limit belongs to a user namespace and holds for each of its
//! users, so that none of them takes what others need.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use heddle_kernel_core::fallible::insert_reserved;

use crate::error::Errno;
use crate::memory::fallible;
use crate::process::Credentials;
use crate::process::user_namespace::Users;
use crate::sync::SpinLock;

/// The kinds of namespaces that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of namespaces(7)")]
pub enum NamespaceKind {
    User,
    Mounts,
    Names,
    Ipc,
    Network,
    Groups,
    Pids,
    Times,
}

const KINDS: usize = 8;
/// The limit of the first user namespace, for each of its users.
const FIRST_MAX: u32 = 32_768;

/// The limits of a user namespace, and those of its users who have made namespaces.
pub struct NamespaceLimits {
    max: [AtomicU32; KINDS],
    /// By user, in order.
    makers: SpinLock<Vec<(u32, Weak<NamespaceMaker>)>>,
}

const fn limit(max: u32) -> AtomicU32 {
    AtomicU32::new(max)
}

static FIRST: NamespaceLimits = NamespaceLimits::new(FIRST_MAX);

impl NamespaceLimits {
    pub(super) const fn new(max: u32) -> Self {
        Self {
            max: [
                limit(max),
                limit(max),
                limit(max),
                limit(max),
                limit(max),
                limit(max),
                limit(max),
                limit(max),
            ],
            makers: SpinLock::new(Vec::new()),
        }
    }

    fn of(users: &Users) -> &Self {
        users.as_ref().map_or(&FIRST, |users| &users.limits)
    }
}

/// The most namespaces of a kind that a user of this user namespace may have.
#[must_use]
pub fn namespaces_max(users: &Users, kind: NamespaceKind) -> u32 {
    NamespaceLimits::of(users).max[kind as usize].load(Ordering::Relaxed)
}

/// Changes that.
pub fn set_namespaces_max(users: &Users, kind: NamespaceKind, max: u32) {
    NamespaceLimits::of(users).max[kind as usize].store(max, Ordering::Relaxed);
}

/// A user who has made namespaces, in one user namespace.
pub struct NamespaceMaker {
    users: Users,
    user: u32,
    used: [AtomicU32; KINDS],
    /// Mounts in all namespaces that this user is to answer for; counted for users of the first namespace.
    mounts: AtomicU32,
}

impl NamespaceMaker {
    /// The one for these credentials.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn of(maker: &Credentials) -> Result<Arc<Self>, Errno> {
        let (users, user) = (&maker.users, maker.euid);
        let mut makers = NamespaceLimits::of(users).makers.lock();
        let place = makers.binary_search_by_key(&user, |&(user, _)| user);
        if let Ok(index) = place
            && let Some(known) = makers[index].1.upgrade()
        {
            return Ok(known);
        }
        makers.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let made = fallible::try_arc_with(|| Self {
            users: users.clone(),
            user,
            used: [const { AtomicU32::new(0) }; KINDS],
            mounts: AtomicU32::new(0),
        })?;
        let known = Arc::downgrade(&made);
        match place {
            // The one before is about to go, and finds that this place is no more its own.
            Ok(index) => makers[index].1 = known,
            Err(index) => insert_reserved(&mut makers, index, (user, known)),
        }
        Ok(made)
    }

    /// The user who made the user namespace, in that one's parent.
    fn above(&self) -> Option<&Arc<Self>> {
        self.users.as_ref().map(|users| users.maker())
    }

    /// The user of the first namespace who is to answer for it.
    fn top(self: &Arc<Self>) -> &Arc<Self> {
        let mut top = self;
        while let Some(above) = top.above() {
            top = above;
        }
        top
    }

    /// Counts one more, here and above.
    fn count(&self, kind: NamespaceKind) -> Result<(), Errno> {
        let mut next = Some(self);
        while let Some(maker) = next {
            let used = maker.used[kind as usize].fetch_add(1, Ordering::Relaxed);
            if used >= namespaces_max(&maker.users, kind) {
                self.forget(kind, Some(maker));
                return Err(Errno::ENOSPC);
            }
            next = maker.above().map(|above| &**above);
        }
        Ok(())
    }

    /// Counts one less, here and above up to `last`.
    fn forget(&self, kind: NamespaceKind, last: Option<&Self>) {
        let mut next = Some(self);
        while let Some(maker) = next {
            maker.used[kind as usize].fetch_sub(1, Ordering::Relaxed);
            if last.is_some_and(|last| core::ptr::eq(maker, last)) {
                return;
            }
            next = maker.above().map(|above| &**above);
        }
    }

    /// Whether it is the superuser of the first user namespace.
    #[must_use]
    pub const fn is_root(&self) -> bool {
        self.users.is_none() && self.user == 0
    }

    /// The mounts that it answers for.
    #[must_use]
    pub fn mounts(&self) -> u32 {
        self.mounts.load(Ordering::Relaxed)
    }

    /// Counts a mount more.
    pub fn add_mount(&self) {
        self.mounts.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a mount less.
    pub fn remove_mount(&self) {
        self.mounts.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for NamespaceMaker {
    fn drop(&mut self) {
        let own = core::ptr::from_ref(&*self);
        let mut makers = NamespaceLimits::of(&self.users).makers.lock();
        let place = makers.binary_search_by_key(&self.user, |&(user, _)| user);
        let is_own = |index: &usize| core::ptr::eq(makers[*index].1.as_ptr(), own);
        let index = place.ok().filter(is_own);
        let gone = index.map(|index| makers.remove(index));
        let unused = if makers.is_empty() { core::mem::take(&mut *makers) } else { Vec::new() };
        drop(makers);
        drop((gone, unused));
    }
}

/// A namespace, as it counts for whoever made it.
pub struct CountedNamespace {
    maker: Arc<NamespaceMaker>,
    kind: NamespaceKind,
}

impl CountedNamespace {
    /// One more, made with these credentials and owned by their user namespace.
    ///
    /// # Errors
    /// `ENOSPC` (there are as many as there may be), `ENOMEM`.
    pub fn new(maker: &Credentials, kind: NamespaceKind) -> Result<Self, Errno> {
        let maker = NamespaceMaker::of(maker)?;
        maker.count(kind)?;
        Ok(Self { maker, kind })
    }

    /// The user namespace that owns it.
    #[must_use]
    pub fn owner(&self) -> &Users {
        &self.maker.users
    }

    /// The user who made it.
    pub(super) const fn maker(&self) -> &Arc<NamespaceMaker> {
        &self.maker
    }

    /// The user of the first namespace who is to answer for it.
    #[must_use]
    pub fn top(&self) -> &Arc<NamespaceMaker> {
        self.maker.top()
    }
}

impl Drop for CountedNamespace {
    fn drop(&mut self) {
        self.maker.forget(self.kind, None);
    }
}
