//! Landlock, landlock(7): what a thread has forbidden itself in the tree.
//!
//! Restrictions are part of credentials, so children and programs that are executed inherit them and nothing takes
//! them off. A file is known by its node, which the rule's entry holds; in file systems that make nodes anew for each
//! look at a name by its device and number. A check walks from the file up to the topmost mount, whatever the
//! thread's root is.

use alloc::sync::Arc;

use heddle_kernel_core::landlock::{Domain, Key, NotMoved, Reparenting, Rights, RuleRefused, Ruleset, Side};

use crate::error::{Errno, TryResult};
use crate::fs::access::Access;
use crate::fs::inode::Contents;
use crate::fs::{Dentry, File, FileType, IoBuffer, OpenFile, Path, setup};
use crate::memory::fallible;
use crate::process::Credentials;
use crate::sync::SpinLock;

/// The most directories above a file that are looked at; beneath more of them nothing is granted. Linux looks at all,
/// but this is one stretch of the kernel.
const DEPTH_MAX: usize = 1024;

impl From<RuleRefused> for Errno {
    fn from(reason: RuleRefused) -> Self {
        match reason {
            RuleRefused::TooMany => Self::E2BIG,
            RuleRefused::OutOfMemory => Self::ENOMEM,
        }
    }
}

/// The open file of a ruleset.
pub struct RulesetFile(SpinLock<Ruleset<Arc<Dentry>>>);

impl RulesetFile {
    /// A ruleset without rules.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(handled: Rights) -> Result<Arc<Self>, Errno> {
        fallible::try_arc(Self(SpinLock::new(Ruleset::new(handled))))
    }

    /// Grants rights beneath a file.
    ///
    /// # Errors
    /// `EINVAL` (rights that the ruleset does not handle, or that only a directory has), `EBADFD` (a file that is in
    /// no directory), `E2BIG`, `ENOMEM`.
    pub fn add(&self, place: &Path, granted: Rights) -> Result<(), Errno> {
        if is_unplaced(place) {
            return Err(Errno::EBADFD);
        }
        let is_directory = place.entry.node.kind() == FileType::Directory;
        if !is_directory && !Rights::OF_FILES.contains(granted) {
            return Err(Errno::EINVAL);
        }
        let key = key(&place.entry);
        Ok(self.0.lock().add(key, place.entry.clone(), granted)?)
    }

    /// The rights that it handles.
    #[must_use]
    pub fn handled(&self) -> Rights {
        self.0.lock().handled()
    }
}

impl File for RulesetFile {
    fn write(&self, _: &OpenFile, _: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        Err(Errno::EINVAL.into())
    }

    fn is_pollable(&self) -> bool {
        false
    }

    fn name(&self) -> &'static str {
        "anon_inode:[landlock-ruleset]"
    }
}

/// A domain, with that of which it is a further restriction.
struct Restriction {
    domain: Domain<Arc<Dentry>>,
    older: Option<Arc<Restriction>>,
}

/// The restrictions of some credentials; none for most.
#[derive(Clone, Default)]
pub struct Restrictions(Option<Arc<Restriction>>);

impl Restrictions {
    /// None.
    pub const NONE: Self = Self(None);

    /// Whether there are none.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// These and those of a ruleset.
    ///
    /// # Errors
    /// `E2BIG`, `ENOMEM`.
    pub fn with(&self, ruleset: &RulesetFile) -> Result<Self, Errno> {
        let domain = {
            let ruleset = ruleset.0.lock();
            Domain::new(self.0.as_ref().map(|older| &older.domain), &ruleset)?
        };
        Ok(Self(Some(fallible::try_arc(Restriction { domain, older: self.0.clone() })?)))
    }

    /// Whether a thread with these may look into one with `other`: whoever is restricted looks only into those with
    /// the same restrictions, and maybe more.
    #[must_use]
    pub fn may_look_into(&self, other: &Self) -> bool {
        let Some(own) = &self.0 else { return true };
        let mut next = other.0.as_ref();
        while let Some(restriction) = next {
            if Arc::ptr_eq(restriction, own) {
                return true;
            }
            next = restriction.older.as_ref();
        }
        false
    }
}

impl PartialEq for Restrictions {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }
}

impl Eq for Restrictions {}

impl core::fmt::Debug for Restrictions {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str(if self.is_none() { "none" } else { "some" })
    }
}

/// Whether a place is in no directory: pipes, sockets, namespaces. No rule is about those, and they are permitted.
fn is_unplaced(place: &Path) -> bool {
    let is_at = |mount| Arc::ptr_eq(mount, &place.mount);
    setup::anonymous().is_ok_and(|(mount, _)| is_at(mount)) || setup::namespaces().is_ok_and(is_at)
}

fn key(entry: &Dentry) -> Key {
    if entry.node.keeps_entries() {
        return (0, Arc::as_ptr(&entry.node).cast::<()>().addr() as u64);
    }
    let metadata = entry.node.metadata();
    (metadata.device.wrapping_add(1), metadata.inode)
}

/// An entry and those above it, through the mounts; what is mounted over is left out.
struct Climb {
    next: Option<Path>,
    left: usize,
}

impl Climb {
    fn from(place: &Path) -> Self {
        Self { next: Some(place.clone()), left: DEPTH_MAX }
    }

    /// As far as the root of the mount, and from there on.
    fn in_two(place: &Path) -> (impl Iterator<Item = Key> + use<>, Self) {
        let root = place.mount.top();
        let mut next = Some(place.clone());
        let within = core::iter::from_fn(move || {
            let place = next.take()?;
            if !place.is_mount_root()
                && let Some(entry) = place.entry.parent()
            {
                next = Some(Path { mount: place.mount.clone(), entry });
            }
            Some(key(&place.entry))
        });
        (within.take(DEPTH_MAX), Self::from(&root))
    }
}

/// Whether the root of the mount is farther up than a climb goes.
fn is_too_deep(place: &Path) -> bool {
    let mut entry = Some(place.entry.clone());
    for _ in 1..DEPTH_MAX {
        match entry.take() {
            Some(below) if !Arc::ptr_eq(&below, &place.mount.root) => entry = below.parent(),
            _ => return false,
        }
    }
    entry.is_some()
}

impl Iterator for Climb {
    type Item = Key;

    fn next(&mut self) -> Option<Key> {
        let place = self.next.take()?;
        self.left = self.left.checked_sub(1)?;
        let found = key(&place.entry);
        self.next = above(place);
        Some(found)
    }
}

/// The directory above, whichever mount that is in; `None` above the topmost root. Above the root of a file system of
/// which the mount shows a part, since a directory was moved out of that, is the mount's root.
fn above(place: Path) -> Option<Path> {
    let mut place = place;
    while place.is_mount_root() {
        place = place.mount.at()?;
    }
    match place.entry.parent() {
        Some(entry) => Some(Path { mount: place.mount, entry }),
        None => Some(place.mount.top()),
    }
}

fn check(credentials: &Credentials, rights: Rights, place: &Path) -> Result<(), Errno> {
    let Some(restriction) = &credentials.restrictions.0 else { return Ok(()) };
    if is_unplaced(place) || restriction.domain.permits(rights, Climb::from(place)) {
        return Ok(());
    }
    Err(Errno::EACCES)
}

/// Checks whether a file may be opened, or executed.
///
/// # Errors
/// `EACCES`.
pub fn check_open(credentials: &Credentials, place: &Path, access: Access) -> Result<(), Errno> {
    if credentials.restrictions.is_none() {
        return Ok(());
    }
    if place.entry.node.kind() == FileType::Directory {
        return check(credentials, Rights::READ_DIR, place);
    }
    let mut rights = Rights::empty();
    // A program is read as well.
    rights.set(Rights::READ_FILE, access.intersects(Access::READ | Access::EXECUTE));
    rights.set(Rights::WRITE_FILE, access.contains(Access::WRITE));
    rights.set(Rights::EXECUTE, access.contains(Access::EXECUTE));
    check(credentials, rights, place)
}

/// The right to make a file of this kind.
const fn to_make(kind: FileType) -> Rights {
    match kind {
        FileType::Regular => Rights::MAKE_REG,
        FileType::Directory => Rights::MAKE_DIR,
        FileType::Symlink => Rights::MAKE_SYM,
        FileType::Fifo => Rights::MAKE_FIFO,
        FileType::Socket => Rights::MAKE_SOCK,
        FileType::Character => Rights::MAKE_CHAR,
        FileType::Block => Rights::MAKE_BLOCK,
    }
}

/// The right to make what an entry names, were it not there.
fn to_make_again(entry: &Dentry) -> Rights {
    let kind = entry.node.kind();
    let is_whiteout = kind == FileType::Character && entry.node.metadata().special == 0;
    if is_whiteout { Rights::MAKE_REG } else { to_make(kind) }
}

const fn to_remove(is_directory: bool) -> Rights {
    if is_directory { Rights::REMOVE_DIR } else { Rights::REMOVE_FILE }
}

/// Checks whether a file may be made in a directory.
///
/// # Errors
/// `EACCES`.
pub fn check_make(credentials: &Credentials, directory: &Path, contents: &Contents<'_>) -> Result<(), Errno> {
    let rights = if contents.is_whiteout() { Rights::MAKE_REG } else { to_make(contents.kind()) };
    check(credentials, rights, directory)
}

/// Checks whether a name may be removed from a directory, by rmdir(2) or unlink(2).
///
/// # Errors
/// `EACCES`.
pub fn check_remove(credentials: &Credentials, directory: &Path, is_rmdir: bool) -> Result<(), Errno> {
    check(credentials, to_remove(is_rmdir), directory)
}

/// A way in which a file gets a name in another directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Referring {
    /// It keeps its name.
    Link,
    /// It loses its name, and so does what had the new one.
    Move,
    /// The same, and a whiteout takes its place.
    MoveForWhiteout,
    /// Two files change places.
    Exchange,
}

/// Checks whether a file of the directory `from` may get a name in the directory `to` of the same mount, where
/// `existing` has that name.
///
/// # Errors
/// `EACCES`; `EXDEV` if the file would be under fewer restrictions.
pub fn check_refer(
    credentials: &Credentials,
    (from, file): (&Path, &Dentry),
    (to, existing): (&Path, Option<&Dentry>),
    how: Referring,
) -> Result<(), Errno> {
    let Some(restriction) = &credentials.restrictions.0 else { return Ok(()) };
    if is_unplaced(from) {
        return Ok(());
    }
    let is_directory = |entry: &Dentry| entry.node.kind() == FileType::Directory;
    let side = |entry: &Dentry| Side { key: key(entry), is_directory: is_directory(entry) };
    let mut wanted = [Rights::empty(), to_make_again(file)];
    let mut exchanged = None;
    if how == Referring::Exchange {
        let other = existing.ok_or(Errno::ENOENT)?;
        wanted[0] |= to_make_again(other);
        exchanged = Some(side(other));
    }
    if how == Referring::MoveForWhiteout {
        wanted[0] |= Rights::MAKE_REG;
    }
    if how != Referring::Link {
        wanted[0] |= to_remove(is_directory(file));
        wanted[1] |= existing.map_or(Rights::empty(), |existing| to_remove(is_directory(existing)));
    }
    if key(&from.entry) == key(&to.entry) {
        return check(credentials, wanted[0] | wanted[1], to);
    }
    // A rule farther up than the climb goes would not be seen, and what it grants count as missing already.
    if is_too_deep(from) || is_too_deep(to) {
        return Err(Errno::EXDEV);
    }
    let ((from, above), (to, _)) = (Climb::in_two(from), Climb::in_two(to));
    let moving = Reparenting { moved: side(file), exchanged, wanted, from, to, above };
    restriction.domain.permits_reparenting(moving).map_err(|reason| match reason {
        NotMoved::Forbidden => Errno::EACCES,
        NotMoved::Loosened => Errno::EXDEV,
    })
}

/// Checks whether the thread may change mounts: whoever is restricted may not, since rules are about places.
///
/// # Errors
/// `EPERM`.
pub fn check_mounts(credentials: &Credentials) -> Result<(), Errno> {
    if credentials.restrictions.is_none() { Ok(()) } else { Err(Errno::EPERM) }
}
