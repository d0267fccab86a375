//! Path resolution, path_resolution(7).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::error::Errno;
use crate::fs::dentry::{copy_name, moves};
use crate::fs::inode::{FileType, LinkTarget, NAME_LIMIT};
use crate::fs::{Dentry, Mount, Path, access, protection};
use crate::process::{Credentials, Thread};
use crate::sched::detour;

use heddle_kernel_core::fallible::{extend_reserved, push_reserved};

/// The most symbolic links that one path may lead over.
const SYMLINK_LIMIT: u32 = 40;

/// Directories that a climb passes between two turns of others.
const STEPS: u32 = 1024;

/// The longest path in bytes, with the NUL at its end.
pub const PATH_LIMIT: usize = 4096;

bitflags::bitflags! {
    /// LookupFlags a path is walked.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LookupFlags: u32 {
        /// A symbolic link at the end is followed.
        const FOLLOW = 1;
        /// The path may be empty and means its start then.
        const EMPTY = 2;
        /// `RESOLVE_NO_SYMLINKS`.
        const NO_SYMLINKS = 4;
        /// `RESOLVE_NO_MAGICLINKS`.
        const NO_MAGIC_LINKS = 8;
        /// `RESOLVE_NO_XDEV`.
        const ONE_MOUNT = 16;
        /// `RESOLVE_BENEATH`.
        const BENEATH = 32;
        /// `RESOLVE_IN_ROOT`.
        const IN_ROOT = 64;
    }
}

/// The last component of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Last {
    /// A name.
    Name(Box<[u8]>),
    /// `.`, or nothing but slashes.
    Dot,
    /// `..`.
    DotDot,
}

/// Where a path leads.
pub struct LookupResult {
    /// The directory in which the last component was looked up.
    pub directory: Path,
    /// The last component.
    pub last: Last,
    /// The file; nothing if only the last component doesn't exist.
    pub place: Option<Path>,
    /// Whether the path ends with a slash and so can only mean a directory.
    pub trailing_slash: bool,
}

impl LookupResult {
    /// The file that the path names.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR` (a slash at the end of something else).
    pub fn existing(self) -> Result<Path, Errno> {
        let place = self.place.ok_or(Errno::ENOENT)?;
        if self.trailing_slash && place.entry.node.kind() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        Ok(place)
    }

    /// The name to create where nothing is yet.
    ///
    /// # Errors
    /// `EEXIST`.
    pub fn vacant(&self) -> Result<&[u8], Errno> {
        match &self.last {
            Last::Name(name) if self.place.is_none() => Ok(name),
            _ => Err(Errno::EEXIST),
        }
    }
}

/// The caller of a lookup, and the directories where it starts.
pub struct Walker<'a> {
    /// For permissions.
    pub credentials: &'a Credentials,
    /// The directory of `/`.
    pub root: Path,
    /// Where relative paths start.
    pub start: Path,
    /// For links that depend on who looks, such as `/proc/self`.
    pub thread: Option<&'a Arc<Thread>>,
}

/// The part of the path that is still to be walked.
struct Rest {
    bytes: Vec<u8>,
    position: usize,
}

impl Rest {
    fn new(path: &[u8]) -> Result<Self, Errno> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(path.len()).map_err(|_| Errno::ENOMEM)?;
        extend_reserved(&mut bytes, path);
        Ok(Self { bytes, position: 0 })
    }

    /// The next component as a range, and whether it is the last; slashes around it are skipped.
    fn next(&mut self) -> Option<(core::ops::Range<usize>, bool)> {
        let skip = |from: usize, slash: bool| {
            self.bytes[from..]
                .iter()
                .position(|&byte| (byte == b'/') != slash)
                .map_or(self.bytes.len(), |length| from + length)
        };
        let start = skip(self.position, true);
        let end = skip(start, false);
        self.position = skip(end, true);
        (start < end).then_some((start..end, self.position == self.bytes.len()))
    }

    fn ends_with_slash(&self) -> bool {
        self.bytes.last() == Some(&b'/')
    }

    /// Puts the target of a link in front of what is left.
    fn insert(&mut self, target: &[u8]) -> Result<(), Errno> {
        let slash = self.bytes.get(self.position - 1) == Some(&b'/');
        let rest = self.bytes.len() - self.position;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(target.len() + 1 + rest).map_err(|_| Errno::ENOMEM)?;
        extend_reserved(&mut bytes, target);
        if slash {
            push_reserved(&mut bytes, b'/');
        }
        extend_reserved(&mut bytes, &self.bytes[self.position..]);
        *self = Self { bytes, position: 0 };
        Ok(())
    }
}

impl Walker<'_> {
    /// Walks `path`. Every directory on the way must exist; the last component need not.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES`, `ELOOP`, `ENAMETOOLONG`, `ENOMEM`, `EIO`; `EXDEV` for what `how` forbids;
    /// `EAGAIN` where a directory was moved that may lead out of where `how` lets the walk be.
    pub fn walk(&self, path: &[u8], how: LookupFlags) -> Result<LookupResult, Errno> {
        if path.is_empty() {
            if !how.contains(LookupFlags::EMPTY) {
                return Err(Errno::ENOENT);
            }
            let place = Some(self.start.clone());
            return Ok(LookupResult {
                directory: self.start.clone(),
                last: Last::Dot,
                place,
                trailing_slash: false,
            });
        }
        let root = if how.contains(LookupFlags::IN_ROOT) { self.start.clone() } else { self.root.clone() };
        let mut rest = Rest::new(path)?;
        let mut place = self.beginning(path, &root, how)?;
        let mut links = 0;
        let mut ascent = Ascent { connected: None, began: moves() };
        loop {
            let Some((range, is_last)) = rest.next() else {
                // Nothing but slashes.
                let directory = place.clone();
                return Ok(LookupResult {
                    directory,
                    last: Last::Dot,
                    place: Some(place),
                    trailing_slash: true,
                });
            };
            let name = &rest.bytes[range];
            if place.entry.node.kind() != FileType::Directory {
                return Err(Errno::ENOTDIR);
            }
            access::check_search(&place.entry, self.credentials)?;
            let trailing_slash = is_last && rest.ends_with_slash();
            let next = match name {
                b"." => Some(place.clone()),
                b".." => Some(self.up(&place, &root, how, &mut ascent)?),
                name if name.len() > NAME_LIMIT => return Err(Errno::ENAMETOOLONG),
                name => look_up(&place, name)?,
            };
            let Some(next) = next else {
                if !is_last {
                    return Err(Errno::ENOENT);
                }
                let last = last(name)?;
                return Ok(LookupResult { directory: place, last, place: None, trailing_slash });
            };
            if how.contains(LookupFlags::ONE_MOUNT) && !Arc::ptr_eq(&next.mount, &place.mount) {
                return Err(Errno::EXDEV);
            }
            let followed = !is_last || how.contains(LookupFlags::FOLLOW) || trailing_slash;
            if next.entry.node.kind() != FileType::Symlink || !followed {
                if is_last {
                    let last = last(name)?;
                    return Ok(LookupResult { directory: place, last, place: Some(next), trailing_slash });
                }
                place = next;
                continue;
            }
            links += 1;
            let is_forbidden = next.mount.flags() & linux_raw_sys::general::MS_NOSYMFOLLOW != 0;
            if links > SYMLINK_LIMIT || how.contains(LookupFlags::NO_SYMLINKS) || is_forbidden {
                return Err(Errno::ELOOP);
            }
            if is_last {
                protection::check_follow(&place, &*next.entry.node, self.credentials)?;
            }
            match next.entry.node.follow(self.thread)? {
                LinkTarget::Text(target) if target.is_empty() => return Err(Errno::ENOENT),
                LinkTarget::Text(target) => {
                    rest.insert(&target)?;
                    if target.first() == Some(&b'/') {
                        (place, ascent.connected) = (self.beginning(b"/", &root, how)?, None);
                    }
                }
                LinkTarget::Path(_) if how.contains(LookupFlags::NO_MAGIC_LINKS) => return Err(Errno::ELOOP),
                LinkTarget::Path(_) if how.intersects(LookupFlags::BENEATH | LookupFlags::IN_ROOT) => {
                    return Err(Errno::EXDEV);
                }
                LinkTarget::Path(target) if is_last => {
                    let last = last(name)?;
                    return Ok(LookupResult { directory: place, last, place: Some(target), trailing_slash });
                }
                LinkTarget::Path(target) => (place, ascent.connected) = (target, None),
            }
        }
    }

    /// The file that the path names, with a link at its end followed.
    ///
    /// # Errors
    /// As [`Walker::walk`] and [`LookupResult::existing`].
    pub fn find(&self, path: &[u8]) -> Result<Path, Errno> {
        self.walk(path, LookupFlags::FOLLOW)?.existing()
    }

    fn beginning(&self, path: &[u8], root: &Path, how: LookupFlags) -> Result<Path, Errno> {
        if path.first() != Some(&b'/') {
            return Ok(self.start.clone());
        }
        if how.contains(LookupFlags::BENEATH) {
            return Err(Errno::EXDEV);
        }
        if how.contains(LookupFlags::ONE_MOUNT) && !Arc::ptr_eq(&root.mount, &self.start.mount) {
            return Err(Errno::EXDEV);
        }
        Ok(root.clone())
    }

    /// The directory above. A directory that was moved out of the part of its file system that the mount shows has
    /// none: what is not shown is not reached from there. So has one that may have been moved out of the directory
    /// that the walk is to stay in.
    fn up(&self, place: &Path, root: &Path, how: LookupFlags, ascent: &mut Ascent) -> Result<Path, Errno> {
        if how.contains(LookupFlags::BENEATH) && place.is(&self.start) {
            return Err(Errno::EXDEV);
        }
        let parent = place.parent(root);
        if how.intersects(LookupFlags::BENEATH | LookupFlags::IN_ROOT) && moves() != ascent.began {
            return Err(Errno::EAGAIN);
        }
        if !parent.is(place) && parent.mount.root.parent().is_some() && !ascent.is_known(&parent.mount) {
            ascent.connect(&parent)?;
        }
        Ok(parent)
    }
}

/// A function for each step of a climb: programs decide how deep directories are, so others get their turn.
pub fn paced() -> impl FnMut() -> Result<(), Errno> {
    let mut steps = 0_u32;
    move || {
        steps = steps.wrapping_add(1);
        let is_alive = !steps.is_multiple_of(STEPS) || detour::give_way();
        if is_alive { Ok(()) } else { Err(Errno::EINTR) }
    }
}

/// The knowledge of a walk about the directories above it.
struct Ascent {
    /// A mount within which it is, and the number of moves at which that was so: no way up and down within the mount
    /// changes it, but a move may.
    connected: Option<(Arc<Mount>, u64)>,
    /// The number of moves when it began.
    began: u64,
}

impl Ascent {
    fn is_known(&self, mount: &Arc<Mount>) -> bool {
        self.connected.as_ref().is_some_and(|(known, at)| Arc::ptr_eq(known, mount) && *at == moves())
    }

    /// Finds out whether a place is in what its mount shows.
    fn connect(&mut self, place: &Path) -> Result<(), Errno> {
        let mut step = paced();
        loop {
            let at = moves();
            let is_in = place.entry.is_in_by_steps(&place.mount.root, &mut step)?;
            if at == moves() {
                self.connected = is_in.then(|| (place.mount.clone(), at));
                return if is_in { Ok(()) } else { Err(Errno::ENOENT) };
            }
            step()?;
        }
    }
}

fn last(name: &[u8]) -> Result<Last, Errno> {
    Ok(match name {
        b"." => Last::Dot,
        b".." => Last::DotDot,
        name => Last::Name(copy_name(name)?),
    })
}

/// The entry `name` of a directory, with what is mounted on it.
fn look_up(directory: &Path, name: &[u8]) -> Result<Option<Path>, Errno> {
    if !directory.entry.node.keeps_entries()
        && let Some(point) = directory.mount_point(name)
    {
        return Ok(Some(point.covered()));
    }
    let found: Result<Arc<Dentry>, Errno> = directory.entry.node.lookup(&directory.entry, name);
    match found {
        Ok(entry) => Ok(Some(Path { mount: directory.mount.clone(), entry }.covered())),
        Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}
