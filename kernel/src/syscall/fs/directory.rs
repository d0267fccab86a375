//! Directories: listing them, and where paths start.

use alloc::vec::Vec;
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryError};
use crate::fs::access::Access;
use crate::fs::inode::Listed;
use crate::fs::lookup::PATH_LIMIT;
use crate::fs::{FileType, OpenFile, Path, access};
use crate::sched::Budget;
use crate::syscall::fs::{encode, find, get_file, get_path, put};
use crate::syscall::{Call, SyscallResult, pending};

use heddle_kernel_core::fallible::{extend_reserved, push_reserved, resize_reserved};

/// The most bytes that one getdents64 fills, so that its buffer here stays small.
const LISTING_BYTES: usize = 16 << 10;
/// How many entries are looked at in one go, with the directory locked.
const LOOKS: usize = 256;
/// Positions 0 and 1 are `.` and `..`; the node's own positions follow.
const OWN_POSITIONS: u64 = 2;

/// getdents64(2).
pub fn getdents64(call: &mut Call<'_>) -> SyscallResult {
    list(call, Listing::push)
}

/// getdents(2): its entries have the type behind the name.
pub fn getdents(call: &mut Call<'_>) -> SyscallResult {
    list(call, Listing::push_old)
}

/// Writes an entry into a listing; false if there is no room for it.
type Push = fn(&mut Listing, &Listed<'_>) -> bool;

/// Fills the caller's buffer with entries as `push` writes them.
fn list(call: &Call<'_>, push: Push) -> SyscallResult {
    let open = get_file(call, 0)?;
    let place = open.place.as_ref().filter(|place| place.entry.node.kind() == FileType::Directory);
    let place = place.ok_or(Errno::ENOTDIR)?.clone();
    let size = (call.uint(2) as usize).min(LISTING_BYTES);
    let position = *open.offset.lock();
    let mut listing = Listing { bytes: Vec::new(), size, position, full: false, left: LOOKS };
    listing.bytes.try_reserve_exact(size).map_err(|_| Errno::ENOMEM)?;
    if place.entry.is_removed() {
        return Err(Errno::ENOENT.into());
    }
    let root = call.thread.directories().root();
    for (position, name) in [(0, &b"."[..]), (1, &b".."[..])] {
        if listing.position == position {
            let node = if position == 0 { place.clone() } else { place.parent(&root) };
            let inode = node.entry.node.metadata().inode;
            push(&mut listing, &Listed { name, inode, kind: FileType::Directory, next: position + 1 });
        }
    }
    listing.go_on(&place, push)?;
    if !listing.needs_more() {
        put(call, call.word(1), &listing.bytes)?;
        return listing.end(&open).map(Into::into).map_err(Into::into);
    }
    let (caller, address) = (call.thread.clone(), call.word(1));
    pending(async move {
        let mut budget = Budget::exhausted();
        while listing.needs_more() {
            caller.pace(&mut budget, Budget::ATTEMPT).await?;
            listing.go_on(&place, push)?;
        }
        caller.resolve(|space| space.write_bytes(address, &listing.bytes)).await?;
        listing.end(&open)
    })
}

struct Listing {
    bytes: Vec<u8>,
    size: usize,
    position: u64,
    full: bool,
    /// How many entries may still be looked at in this go.
    left: usize,
}

impl Listing {
    /// Looks at more entries of the directory, as many as one go may.
    fn go_on(&mut self, place: &Path, push: Push) -> Result<(), Errno> {
        self.left = LOOKS;
        if self.position < OWN_POSITIONS || self.full {
            return Ok(());
        }
        let cookie = self.position - OWN_POSITIONS;
        place.entry.node.list(cookie, &mut |listed| {
            let listed = Listed { next: listed.next + OWN_POSITIONS, ..listed };
            self.left -= 1;
            if listed.name.is_empty() {
                self.position = listed.next;
            } else if !push(self, &listed) {
                return false;
            }
            self.left > 0
        })
    }

    /// Whether nothing has been found yet, though there may be something.
    const fn needs_more(&self) -> bool {
        self.left == 0 && self.bytes.is_empty() && !self.full
    }

    /// The result of the call, once the program has the entries.
    fn end(&self, open: &OpenFile) -> Result<usize, Errno> {
        if self.bytes.is_empty() && self.full {
            return Err(Errno::EINVAL);
        }
        *open.offset.lock() = self.position;
        open.report(linux::IN_ACCESS);
        Ok(self.bytes.len())
    }

    /// Appends an entry; false if there is no room for it.
    fn push(&mut self, listed: &Listed<'_>) -> bool {
        const NAME: usize = core::mem::offset_of!(linux::linux_dirent64, d_name);
        let length = (NAME + listed.name.len() + 1).next_multiple_of(8);
        if self.full || self.bytes.len() + length > self.size {
            self.full = true;
            return false;
        }
        let head = encode!(linux::linux_dirent64 {
            d_ino: listed.inode,
            d_off: listed.next,
            d_reclen: length,
            d_type: listed.kind.directory_type(),
        });
        let start = self.bytes.len();
        extend_reserved(&mut self.bytes, &head[..NAME]);
        extend_reserved(&mut self.bytes, listed.name);
        resize_reserved(&mut self.bytes, start + length, 0);
        self.position = listed.next;
        true
    }

    /// The same for getdents(2): a zero ends the name, and the type is the last byte.
    fn push_old(&mut self, listed: &Listed<'_>) -> bool {
        /// Bytes before the name: two words and the length.
        const NAME: usize = 18;
        let length = (NAME + listed.name.len() + 2).next_multiple_of(8);
        if self.full || self.bytes.len() + length > self.size {
            self.full = true;
            return false;
        }
        let end = self.bytes.len() + length;
        extend_reserved(&mut self.bytes, &listed.inode.to_ne_bytes());
        extend_reserved(&mut self.bytes, &listed.next.to_ne_bytes());
        extend_reserved(&mut self.bytes, &(length as u16).to_ne_bytes());
        extend_reserved(&mut self.bytes, listed.name);
        resize_reserved(&mut self.bytes, end - 1, 0);
        push_reserved(&mut self.bytes, listed.kind.directory_type());
        self.position = listed.next;
        true
    }
}

/// getcwd(2).
pub fn getcwd(call: &mut Call<'_>) -> SyscallResult {
    let directories = call.thread.directories();
    let working = directories.working();
    if working.entry.is_removed() {
        return Err(Errno::ENOENT.into());
    }
    let mut path = working.path(&directories.root())?;
    path.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    push_reserved(&mut path, 0);
    if path.len() > PATH_LIMIT {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if path.len() > call.word(1) {
        return Err(Errno::ERANGE.into());
    }
    put(call, call.word(0), &path)?;
    Ok(path.len().into())
}

/// Checks that a place can be somebody's directory.
fn enterable(call: &Call<'_>, place: &Path) -> Result<(), TryError> {
    if place.entry.node.kind() != FileType::Directory {
        return Err(Errno::ENOTDIR.into());
    }
    access::check_place(place, &call.thread.credentials(), Access::EXECUTE)?;
    Ok(())
}

/// chdir(2).
pub fn chdir(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 0)?;
    let place = find(call, linux::AT_FDCWD, &path, 0)?;
    enterable(call, &place)?;
    call.thread.directories().set_working(place);
    Ok(0.into())
}

/// fchdir(2).
pub fn fchdir(call: &mut Call<'_>) -> SyscallResult {
    let open = call.thread.descriptors().get(call.int(0))?;
    let place = open.place.clone().ok_or(Errno::ENOTDIR)?;
    enterable(call, &place)?;
    call.thread.directories().set_working(place);
    Ok(0.into())
}

/// chroot(2).
pub fn chroot(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 0)?;
    let place = find(call, linux::AT_FDCWD, &path, 0)?;
    enterable(call, &place)?;
    if !call.thread.credentials().has_capability(linux::CAP_SYS_CHROOT) {
        return Err(Errno::EPERM.into());
    }
    call.thread.directories().set_root(place);
    Ok(0.into())
}

/// umask(2).
pub fn umask(call: &mut Call<'_>) -> SyscallResult {
    Ok((call.thread.directories().set_umask(call.uint(0)) as usize).into())
}
