//! The calls about extended attributes, xattr(7).

use alloc::vec::Vec;
use heddle_kernel_core::id_map::NO_ID;
use heddle_kernel_core::posix_acl::{Acl, AclError, Tag};
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::fs::access::Access;
use crate::fs::acl::AclKind;
use crate::fs::inode::{Inode, InodeChange};
use crate::fs::xattr::{CAPABILITY, Extended, ServedValue, TRUSTED};
use crate::fs::{FileType, Path, access, flags, notify};
use crate::process::{Credentials, FileCapabilities};
use crate::syscall::fs::{find, get_bytes, get_file, get_path, get_string, put};
use crate::syscall::{Call, SyscallResult};

/// A name's bytes with the zero at its end.
const NAME_LIMIT: usize = linux::XATTR_NAME_MAX as usize + 1;
const VALUE_LIMIT: usize = linux::XATTR_SIZE_MAX as usize;

/// The file that the first argument names: a path, with or without a final link, or a descriptor.
#[derive(Clone, Copy)]
enum By {
    Path,
    /// A path whose last link is not followed.
    LinkPath,
    Descriptor,
}

fn place(call: &Call<'_>, by: By) -> TryResult<Path> {
    let flags = match by {
        By::Path => 0,
        By::LinkPath => linux::AT_SYMLINK_NOFOLLOW,
        By::Descriptor => return Ok(get_file(call, 0)?.place.clone().ok_or(Errno::EOPNOTSUPP)?),
    };
    let path = get_path(call, 0)?;
    Ok(find(call, linux::AT_FDCWD, &path, flags)?)
}

fn attributes(place: &Path) -> Result<&Extended, Errno> {
    place.entry.node.extended().ok_or(Errno::EOPNOTSUPP)
}

fn get_name(call: &Call<'_>) -> TryResult<Vec<u8>> {
    let name = get_string(call, call.word(1), NAME_LIMIT, Errno::ERANGE)?;
    if name.is_empty() { Err(Errno::ERANGE.into()) } else { Ok(name) }
}

/// Whether the caller may do this with an attribute of this name.
fn check(place: &Path, name: &[u8], who: &Credentials, access: Access) -> Result<(), Errno> {
    let is_write = access.contains(Access::WRITE);
    if !place.entry.node.shows_attribute(name) {
        return Err(Errno::EOPNOTSUPP);
    }
    if is_write && place.mount.is_read_only() {
        return Err(Errno::EROFS);
    }
    if is_write {
        flags::check_changeable(&*place.entry.node)?;
    }
    let is_privileged = who.is_capable(linux::CAP_SYS_ADMIN);
    let refused = Err(if is_write { Errno::EPERM } else { Errno::ENODATA });
    let rest = if let Some(rest) = name.strip_prefix(b"user.") {
        let metadata = place.entry.node.metadata();
        if !matches!(metadata.kind, FileType::Regular | FileType::Directory) {
            return refused;
        }
        let is_sticky = metadata.kind == FileType::Directory && metadata.permissions & linux::S_ISVTX != 0;
        if is_write && is_sticky && !access::owns(&metadata, who) {
            return refused;
        }
        access::check(&*place.entry.node, who, access)?;
        rest
    } else if let Some(rest) = name.strip_prefix(TRUSTED) {
        if !is_privileged {
            return refused;
        }
        rest
    } else if name == CAPABILITY {
        let metadata = place.entry.node.metadata();
        if is_write && !who.is_capable_over(metadata.uid, metadata.gid, linux::CAP_SETFCAP) {
            return refused;
        }
        &name[b"security.".len()..]
    } else if let Some(rest) = name.strip_prefix(b"security.") {
        if is_write && !is_privileged {
            return refused;
        }
        rest
    } else {
        return Err(Errno::EOPNOTSUPP);
    };
    if rest.is_empty() { Err(Errno::EINVAL) } else { Ok(()) }
}

/// The same for a file that a program serves, which has its own idea of names: the rules that hold everywhere.
fn check_served(place: &Path, name: &[u8], who: &Credentials, access: Access) -> Result<(), Errno> {
    let is_write = access.contains(Access::WRITE);
    if is_write && place.mount.is_read_only() {
        return Err(Errno::EROFS);
    }
    let refused = Err(if is_write { Errno::EPERM } else { Errno::ENODATA });
    if name.starts_with(b"security.") {
        // The server relies on it that nobody gives rights who may not.
        let owner = place.mount.file_system.owner();
        let may = if name == CAPABILITY {
            let metadata = place.entry.node.metadata();
            who.is_capable_over(metadata.uid, metadata.gid, linux::CAP_SETFCAP)
                && who.is_capable_in(owner, linux::CAP_SETFCAP)
        } else {
            who.is_capable(linux::CAP_SYS_ADMIN)
        };
        return if !is_write || may { Ok(()) } else { refused };
    }
    if name.starts_with(b"system.") {
        return Ok(());
    }
    if name.starts_with(TRUSTED) {
        return if who.is_capable(linux::CAP_SYS_ADMIN) { Ok(()) } else { refused };
    }
    let kind = place.entry.node.kind();
    if name.starts_with(b"user.") {
        if !matches!(kind, FileType::Regular | FileType::Directory) {
            return refused;
        }
        let metadata = place.entry.node.metadata();
        let is_sticky = kind == FileType::Directory && metadata.permissions & linux::S_ISVTX != 0;
        if is_write && is_sticky && !access::owns(&metadata, who) {
            return refused;
        }
    }
    access::check(&*place.entry.node, who, access)
}

fn set(call: &Call<'_>, by: By) -> SyscallResult {
    let (size, flags) = (call.word(3), call.uint(4));
    if flags & !(linux::XATTR_CREATE | linux::XATTR_REPLACE) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let name = get_name(call)?;
    if size > VALUE_LIMIT {
        return Err(Errno::E2BIG.into());
    }
    let mut value = get_bytes(call, call.word(2), size)?;
    let place = place(call, by)?;
    if let Some(served) = place.entry.node.served_attributes() {
        check_served(&place, &name, &call.thread.credentials(), Access::WRITE)?;
        if name == CAPABILITY && !FileCapabilities::is_valid(&value) {
            return Err(Errno::EINVAL.into());
        }
        served.set(&name, &value, flags)?;
        notify::report(&place.entry, linux::IN_ATTRIB);
        return Ok(0.into());
    }
    attributes(&place)?;
    if let Some(kind) = AclKind::of(&name) {
        let who = call.thread.credentials();
        translate(
            &mut value,
            &who,
            |user| who.user(user).unwrap_or(NO_ID),
            |group| who.group(group).unwrap_or(NO_ID),
        );
        return set_acl(call, &place, kind, &value);
    }
    check(&place, &name, &call.thread.credentials(), Access::WRITE)?;
    // The attribute names no namespace: it counts wherever the file system does, so it takes rights there.
    let owner = place.mount.file_system.owner();
    if name == CAPABILITY && !call.thread.credentials().is_capable_in(owner, linux::CAP_SETFCAP) {
        return Err(Errno::EPERM.into());
    }
    if name == CAPABILITY && !FileCapabilities::is_valid(&value) {
        return Err(Errno::EINVAL.into());
    }
    place.entry.node.prepare_change()?;
    attributes(&place)?.set(&name, &value, flags)?;
    place.entry.node.change(&InodeChange::default())?;
    notify::report(&place.entry, linux::IN_ATTRIB);
    Ok(0.into())
}

/// Replaces the users and groups that the value of an access control list names.
fn translate(value: &mut [u8], who: &Credentials, user: impl Fn(u32) -> u32, group: impl Fn(u32) -> u32) {
    if who.users.is_none() {
        return;
    }
    for entry in value.get_mut(Acl::HEADER_BYTES..).unwrap_or_default().as_chunks_mut::<8>().0 {
        let [tag, _, _, _, id @ ..] = entry;
        let named = u32::from_le_bytes(*id);
        *id = match u16::from(*tag) {
            tag if tag == Tag::User as u16 => user(named),
            tag if tag == Tag::Group as u16 => group(named),
            _ => named,
        }
        .to_le_bytes();
    }
}

/// Sets an access control list. A value without entries takes it away.
fn set_acl(call: &Call<'_>, place: &Path, kind: AclKind, value: &[u8]) -> SyscallResult {
    let (node, who) = (&place.entry.node, call.thread.credentials());
    if node.kind() == FileType::Symlink {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let list = if value.is_empty() { Ok(None) } else { Acl::parse(value) };
    let mut list = list.map_err(|refused| match refused {
        AclError::Invalid => Errno::EINVAL,
        AclError::Version => Errno::EOPNOTSUPP,
        AclError::OutOfMemory => Errno::ENOMEM,
    })?;
    if place.mount.is_read_only() {
        return Err(Errno::EROFS.into());
    }
    flags::check_changeable(&**node)?;
    let metadata = node.metadata();
    if kind == AclKind::Default && metadata.kind != FileType::Directory {
        return if list.is_some() { Err(Errno::EACCES.into()) } else { Ok(0.into()) };
    }
    if !access::owns(&metadata, &who) {
        return Err(Errno::EPERM.into());
    }
    let mut permissions = None;
    if kind == AclKind::Access
        && let Some(access) = &list
    {
        let mut mode = metadata.permissions & !0o777 | access.mode();
        let keeps_bits = who.is_capable_over(metadata.uid, metadata.gid, linux::CAP_FSETID);
        if !who.is_in_group(metadata.gid) && !keeps_bits {
            mode &= !linux::S_ISGID;
        }
        permissions = Some(mode);
        if access.equivalent_mode().is_some() {
            list = None;
        }
    }
    node.prepare_change()?;
    attributes(place)?.acls.set(kind, list)?;
    node.change(&InodeChange { permissions, ..InodeChange::default() })?;
    notify::report(&place.entry, linux::IN_ATTRIB);
    Ok(0.into())
}

/// Stores a result of which the caller may only want to know the size.
fn answer(call: &Call<'_>, bytes: &[u8], address: usize, size: usize) -> SyscallResult {
    if size > 0 {
        if bytes.len() > size {
            return Err(Errno::ERANGE.into());
        }
        put(call, address, bytes)?;
    }
    Ok(bytes.len().into())
}

/// Stores what a server answered.
fn answer_served(call: &Call<'_>, value: &ServedValue, address: usize) -> SyscallResult {
    match value {
        ServedValue::Bytes(bytes) => {
            put(call, address, bytes)?;
            Ok(bytes.len().into())
        }
        ServedValue::Length(length) => Ok((*length).into()),
    }
}

fn get(call: &Call<'_>, by: By) -> SyscallResult {
    let name = get_name(call)?;
    let place = place(call, by)?;
    if let Some(served) = place.entry.node.served_attributes() {
        check_served(&place, &name, &call.thread.credentials(), Access::READ)?;
        return answer_served(call, &served.get(&name, call.word(3))?, call.word(2));
    }
    let extended = attributes(&place)?;
    if let Some(kind) = AclKind::of(&name) {
        if place.entry.node.kind() == FileType::Symlink {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let (mut value, who) = (extended.acls.value(kind)?, call.thread.credentials());
        translate(&mut value, &who, |user| who.shown_user(user), |group| who.shown_group(group));
        return answer(call, &value, call.word(2), call.word(3));
    }
    check(&place, &name, &call.thread.credentials(), Access::READ)?;
    answer(call, &extended.get(&name)?, call.word(2), call.word(3))
}

fn list(call: &Call<'_>, by: By) -> SyscallResult {
    let place = place(call, by)?;
    if let Some(served) = place.entry.node.served_attributes() {
        return answer_served(call, &served.list(call.word(2))?, call.word(1));
    }
    // A file without attributes has none to list.
    let node = &place.entry.node;
    let mut names = match node.extended() {
        Some(extended) => extended.names(call.thread.credentials().is_capable(linux::CAP_SYS_ADMIN))?,
        None => Vec::new(),
    };
    hide_marks(&**node, &mut names);
    answer(call, &names, call.word(1), call.word(2))
}

/// Takes names out of a list that are marks of the file system.
fn hide_marks(node: &dyn Inode, names: &mut Vec<u8>) {
    let (mut at, mut kept) = (0, 0);
    while let Some(length) = names[at..].iter().position(|&letter| letter == 0) {
        let end = at + length + 1;
        if node.shows_attribute(&names[at..end - 1]) {
            names.copy_within(at..end, kept);
            kept += end - at;
        }
        at = end;
    }
    names.truncate(kept);
}

fn remove(call: &Call<'_>, by: By) -> SyscallResult {
    let name = get_name(call)?;
    let place = place(call, by)?;
    if let Some(served) = place.entry.node.served_attributes() {
        check_served(&place, &name, &call.thread.credentials(), Access::WRITE)?;
        served.remove(&name)?;
        notify::report(&place.entry, linux::IN_ATTRIB);
        return Ok(0.into());
    }
    attributes(&place)?;
    if let Some(kind) = AclKind::of(&name) {
        return set_acl(call, &place, kind, &[]);
    }
    check(&place, &name, &call.thread.credentials(), Access::WRITE)?;
    attributes(&place)?.get(&name)?;
    place.entry.node.prepare_change()?;
    attributes(&place)?.remove(&name)?;
    place.entry.node.change(&InodeChange::default())?;
    notify::report(&place.entry, linux::IN_ATTRIB);
    Ok(0.into())
}

/// setxattr(2).
pub fn setxattr(call: &mut Call<'_>) -> SyscallResult {
    set(call, By::Path)
}

/// lsetxattr(2).
pub fn lsetxattr(call: &mut Call<'_>) -> SyscallResult {
    set(call, By::LinkPath)
}

/// fsetxattr(2).
pub fn fsetxattr(call: &mut Call<'_>) -> SyscallResult {
    set(call, By::Descriptor)
}

/// getxattr(2).
pub fn getxattr(call: &mut Call<'_>) -> SyscallResult {
    get(call, By::Path)
}

/// lgetxattr(2).
pub fn lgetxattr(call: &mut Call<'_>) -> SyscallResult {
    get(call, By::LinkPath)
}

/// fgetxattr(2).
pub fn fgetxattr(call: &mut Call<'_>) -> SyscallResult {
    get(call, By::Descriptor)
}

/// listxattr(2).
pub fn listxattr(call: &mut Call<'_>) -> SyscallResult {
    list(call, By::Path)
}

/// llistxattr(2).
pub fn llistxattr(call: &mut Call<'_>) -> SyscallResult {
    list(call, By::LinkPath)
}

/// flistxattr(2).
pub fn flistxattr(call: &mut Call<'_>) -> SyscallResult {
    list(call, By::Descriptor)
}

/// removexattr(2).
pub fn removexattr(call: &mut Call<'_>) -> SyscallResult {
    remove(call, By::Path)
}

/// lremovexattr(2).
pub fn lremovexattr(call: &mut Call<'_>) -> SyscallResult {
    remove(call, By::LinkPath)
}

/// fremovexattr(2).
pub fn fremovexattr(call: &mut Call<'_>) -> SyscallResult {
    remove(call, By::Descriptor)
}
