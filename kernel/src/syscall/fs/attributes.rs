//! Changing metadata: mode, owner, times.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::fs::access::Access;
use crate::fs::flags::FileFlags;
use crate::fs::inode::{InodeChange, Timestamp};
use crate::fs::{FileType, Metadata, OpenFile, Path, access, flags, notify};
use crate::process::Credentials;
use crate::syscall::fs::{find, get, get_path};
use crate::syscall::{Call, SyscallResult};

/// Changes the attributes of a file that has none of the `barring` flags.
fn change(place: &Path, change: &InodeChange, barring: FileFlags) -> SyscallResult {
    if place.mount.is_read_only() {
        return Err(Errno::EROFS.into());
    }
    flags::check_without(&*place.entry.node, barring)?;
    place.entry.node.change(change)?;
    notify::report(&place.entry, linux::IN_ATTRIB);
    Ok(0.into())
}

/// A file whose metadata is to be changed.
enum ChangedFile {
    /// One that has a place.
    Place(Path),
    /// An open one that has none.
    Open(Arc<OpenFile>),
}

impl ChangedFile {
    fn metadata(&self) -> Metadata {
        match self {
            Self::Place(place) => place.entry.node.metadata(),
            Self::Open(open) => open.file.metadata(),
        }
    }

    fn change(&self, changes: &InodeChange, barring: FileFlags) -> SyscallResult {
        match self {
            Self::Place(place) => change(place, changes, barring),
            Self::Open(open) => {
                flags::check_open_without(open, barring)?;
                open.file.change(changes)?;
                Ok(0.into())
            }
        }
    }
}

/// The file that the descriptor in argument 0 names.
fn changed_file(call: &Call<'_>) -> Result<ChangedFile, Errno> {
    let open = crate::syscall::fs::get_file(call, 0)?;
    Ok(match &open.place {
        Some(place) => ChangedFile::Place(place.clone()),
        None => ChangedFile::Open(open),
    })
}

/// The place of an open file; what has none keeps its metadata to itself.
fn place_of(call: &Call<'_>) -> Result<Path, Errno> {
    let open = crate::syscall::fs::get_file(call, 0)?;
    open.place.clone().ok_or(Errno::EPERM)
}

/// chmod(2).
pub fn chmod(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 0)?;
    let place = find(call, linux::AT_FDCWD, &path, 0)?;
    change_mode(call, &ChangedFile::Place(place), call.uint(1))
}

/// fchmod(2).
pub fn fchmod(call: &mut Call<'_>) -> SyscallResult {
    change_mode(call, &changed_file(call)?, call.uint(1))
}

/// fchmodat(2), the system call, which has no flags.
pub fn fchmodat(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 1)?;
    let place = find(call, call.int(0), &path, 0)?;
    change_mode(call, &ChangedFile::Place(place), call.uint(2))
}

fn change_mode(call: &Call<'_>, file: &ChangedFile, mode: u32) -> SyscallResult {
    let credentials = call.thread.credentials();
    let metadata = file.metadata();
    if !access::owns(&metadata, &credentials) {
        return Err(Errno::EPERM.into());
    }
    let mut permissions = mode & 0o7777;
    let keeps_bits = credentials.is_capable_over(metadata.uid, metadata.gid, linux::CAP_FSETID);
    if !credentials.is_in_group(metadata.gid) && !keeps_bits {
        permissions &= !linux::S_ISGID;
    }
    let change = InodeChange { permissions: Some(permissions), ..InodeChange::default() };
    file.change(&change, FileFlags::FIXED)
}

/// chown(2).
pub fn chown(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 0)?;
    let place = find(call, linux::AT_FDCWD, &path, 0)?;
    change_owner(call, &ChangedFile::Place(place), call.uint(1), call.uint(2))
}

/// lchown(2).
pub fn lchown(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 0)?;
    let place = find(call, linux::AT_FDCWD, &path, linux::AT_SYMLINK_NOFOLLOW)?;
    change_owner(call, &ChangedFile::Place(place), call.uint(1), call.uint(2))
}

/// fchown(2).
pub fn fchown(call: &mut Call<'_>) -> SyscallResult {
    change_owner(call, &changed_file(call)?, call.uint(1), call.uint(2))
}

/// fchownat(2).
pub fn fchownat(call: &mut Call<'_>) -> SyscallResult {
    let flags = call.uint(4);
    if flags & !(linux::AT_SYMLINK_NOFOLLOW | linux::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let path = get_path(call, 1)?;
    let place = find(call, call.int(0), &path, flags)?;
    change_owner(call, &ChangedFile::Place(place), call.uint(2), call.uint(3))
}

fn change_owner(call: &Call<'_>, file: &ChangedFile, uid: u32, gid: u32) -> SyscallResult {
    let credentials = call.thread.credentials();
    let metadata = file.metadata();
    let uid = if uid == u32::MAX { None } else { Some(credentials.user(uid)?) };
    let gid = if gid == u32::MAX { None } else { Some(credentials.group(gid)?) };
    let owns = credentials.fsuid == metadata.uid;
    let allowed = credentials.is_capable_over(metadata.uid, metadata.gid, linux::CAP_CHOWN)
        || (uid.is_none() || owns && uid == Some(metadata.uid))
            && (gid.is_none() || owns && gid.is_some_and(|gid| credentials.is_in_group(gid)));
    if !allowed {
        return Err(Errno::EPERM.into());
    }
    let is_member = credentials.is_in_group(metadata.gid)
        || credentials.is_capable_over(metadata.uid, metadata.gid, linux::CAP_FSETID);
    let permissions = (metadata.kind != FileType::Directory).then(|| without_set_id(&metadata, is_member));
    // To name neither changes nothing.
    let barring = if uid.is_none() && gid.is_none() { FileFlags::empty() } else { FileFlags::FIXED };
    file.change(&InodeChange { permissions, uid, gid, ..InodeChange::default() }, barring)
}

/// Permissions that no longer lend the rights of an owner who has changed.
const fn without_set_id(metadata: &Metadata, is_member: bool) -> u32 {
    let is_group = metadata.permissions & linux::S_IXGRP != 0 || !is_member;
    let group = if is_group { linux::S_ISGID } else { 0 };
    metadata.permissions & !(linux::S_ISUID | group)
}

/// utimensat(2).
pub fn utimensat(call: &mut Call<'_>) -> SyscallResult {
    let flags = call.uint(3);
    if flags & !(linux::AT_SYMLINK_NOFOLLOW | linux::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let times = match call.word(2) {
        0 => [When::Now; 2],
        address => [get_when(call, address)?, get_when(call, address + size_of::<linux::timespec>())?],
    };
    // Nothing is to be done, so not even the path counts.
    if times.iter().all(|when| matches!(when, When::Stays)) {
        return Ok(0.into());
    }
    let place = if call.word(1) == 0 && call.int(0) != linux::AT_FDCWD {
        if flags != 0 {
            return Err(Errno::EINVAL.into());
        }
        place_of(call)?
    } else {
        let path = get_path(call, 1)?;
        find(call, call.int(0), &path, flags)?
    };
    change_times(call, &place, times)
}

/// utimes(2).
pub fn utimes(call: &mut Call<'_>) -> SyscallResult {
    change_times_by_path(call, linux::AT_FDCWD, 0)
}

/// futimesat(2).
pub fn futimesat(call: &mut Call<'_>) -> SyscallResult {
    change_times_by_path(call, call.int(0), 1)
}

fn change_times_by_path(call: &Call<'_>, descriptor: i32, index: usize) -> SyscallResult {
    let times = match call.word(index + 1) {
        0 => [When::Now; 2],
        address => {
            let bytes: [u8; 32] = get(call, address)?;
            let number = |at: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
                i64::from_ne_bytes(word)
            };
            let when = |seconds, microseconds: i64| match u32::try_from(microseconds) {
                Ok(part) if part < 1_000_000 => Ok(When::At(Timestamp { seconds, nanoseconds: part * 1000 })),
                _ => Err(Errno::EINVAL),
            };
            [when(number(0), number(1))?, when(number(2), number(3))?]
        }
    };
    let place = if call.word(index) == 0 && descriptor != linux::AT_FDCWD {
        place_of(call)?
    } else {
        let path = get_path(call, index)?;
        find(call, descriptor, &path, 0)?
    };
    change_times(call, &place, times)
}

/// utime(2).
pub fn utime(call: &mut Call<'_>) -> SyscallResult {
    let times = match call.word(1) {
        0 => [When::Now; 2],
        address => {
            let seconds = |bytes| When::At(Timestamp { seconds: i64::from_ne_bytes(bytes), nanoseconds: 0 });
            [seconds(get(call, address)?), seconds(get(call, address + 8)?)]
        }
    };
    let path = get_path(call, 0)?;
    let place = find(call, linux::AT_FDCWD, &path, 0)?;
    change_times(call, &place, times)
}

/// A new value of a time stamp.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Now,
    Stays,
    At(Timestamp),
}

fn get_when(call: &Call<'_>, address: usize) -> TryResult<When> {
    let seconds = i64::from_ne_bytes(get(call, address)?);
    let nanoseconds = i64::from_ne_bytes(get(call, address + 8)?);
    Ok(match u32::try_from(nanoseconds).map_err(|_| Errno::EINVAL)? {
        linux::UTIME_NOW => When::Now,
        linux::UTIME_OMIT => When::Stays,
        nanoseconds if nanoseconds < 1_000_000_000 => When::At(Timestamp { seconds, nanoseconds }),
        _ => return Err(Errno::EINVAL.into()),
    })
}

fn change_times(call: &Call<'_>, place: &Path, times: [When; 2]) -> SyscallResult {
    if times == [When::Stays; 2] {
        return Ok(0.into());
    }
    let credentials: &Credentials = &call.thread.credentials();
    let metadata = place.entry.node.metadata();
    // To say that it is now is what writing does.
    let is_touch = times == [When::Now; 2];
    if !access::owns(&metadata, credentials) {
        if !is_touch {
            return Err(Errno::EPERM.into());
        }
        access::check(&*place.entry.node, credentials, Access::WRITE)?;
    }
    let now = Timestamp::now();
    let resolve = |when| match when {
        When::Now => Some(now),
        When::Stays => None,
        When::At(time) => Some(time),
    };
    let [accessed, modified] = times.map(resolve);
    let barring = if is_touch { FileFlags::IMMUTABLE } else { FileFlags::FIXED };
    change(place, &InodeChange { accessed, modified, ..InodeChange::default() }, barring)
}
