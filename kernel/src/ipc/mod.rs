//! System V's shared memory, semaphores and message queues, sysvipc(7). The decisions are in `kernel/core`'s
//! `sysv_ipc`; here it meets processes and memory.
//!
//! Each kind has a registry in a [`namespace`] under a lock of its own, and each object a lock, taken in this order.
//! Neither is held while something is dropped or a space is worked on.

pub mod limits;
pub mod message;
pub mod mqueue;
pub mod namespace;
pub mod semaphore;
pub mod shared_memory;

use alloc::sync::Arc;

use heddle_kernel_core::sysv_ipc::OutOfMemory;
use heddle_kernel_core::sysv_ipc::permission::Permissions;
use heddle_kernel_core::sysv_ipc::registry::{Full, PRIVATE, sequence_of};
use linux_raw_sys::general as linux;

use crate::call::Call;
use crate::error::Errno;
use crate::ipc::namespace::Objects;
use crate::process::Credentials;
use crate::process::user_namespace::Users;
use crate::time::NS_PER_SECOND;

/// Create the object if there is none.
pub const IPC_CREAT: u32 = 0o1000;
/// It must not be there yet.
pub const IPC_EXCL: u32 = 0o2000;
/// Fail instead of waiting.
pub const IPC_NOWAIT: u32 = 0o4000;

/// Commands that all three kinds have.
pub const IPC_RMID: u32 = 0;
pub const IPC_SET: u32 = 1;
pub const IPC_STAT: u32 = 2;
pub const IPC_INFO: u32 = 3;

/// All rights to read, and all to change.
const READ: u32 = 0o444;
const WRITE: u32 = 0o222;

/// The 64-bit words of `struct ipc64_perm`.
const PERMISSION_WORDS: usize = 6;

impl From<OutOfMemory> for Errno {
    fn from(_: OutOfMemory) -> Self {
        Self::ENOMEM
    }
}

impl From<Full> for Errno {
    fn from(full: Full) -> Self {
        match full {
            Full::Limit => Self::ENOSPC,
            Full::Memory => Self::ENOMEM,
        }
    }
}

/// The interface that the three kinds have in common.
trait IpcObject {
    /// The object's permissions.
    fn permissions(&self) -> Permissions;
}

/// Checks whether a user has all rights in `wanted`; `owner` is the user namespace that owns the object's namespace.
fn check(owner: &Users, permissions: &Permissions, who: &Credentials, wanted: u32) -> Result<(), Errno> {
    let granted = permissions.allows(who.euid, |group| who.is_in_group(group), wanted);
    if granted || who.is_capable_in(owner, linux::CAP_IPC_OWNER) { Ok(()) } else { Err(Errno::EACCES) }
}

/// Checks whether a user may change or remove an object.
fn check_owner(owner: &Users, permissions: &Permissions, who: &Credentials) -> Result<(), Errno> {
    let may = permissions.is_owned_by(who.euid) || who.is_capable_in(owner, linux::CAP_SYS_ADMIN);
    if may { Ok(()) } else { Err(Errno::EPERM) }
}

/// The permissions of an object that a call makes.
fn permissions_of_new(call: &Call<'_>, flags: u32) -> Permissions {
    let who = call.thread.credentials();
    Permissions::new(who.euid, who.egid, flags)
}

/// Implements `shmget`, `semget` and `msgget`: finds the object with a key or makes one. `fits` checks an existing one.
fn get<T: IpcObject>(
    call: &Call<'_>,
    (owner, registry): (&Users, &Objects<T>),
    flags: u32,
    limit: usize,
    fits: impl FnOnce(&T) -> Result<(), Errno>,
    make: impl FnOnce(i32) -> Result<Arc<T>, Errno>,
) -> Result<usize, Errno> {
    let key = call.int(0);
    let mut registry = registry.lock();
    let id = match registry.find(key) {
        None if key != PRIVATE && flags & IPC_CREAT == 0 => return Err(Errno::ENOENT),
        None => registry.insert(key, limit, make)?,
        Some(_) if flags & IPC_CREAT != 0 && flags & IPC_EXCL != 0 => return Err(Errno::EEXIST),
        Some((id, object)) => {
            fits(object)?;
            check(owner, &object.permissions(), &call.thread.credentials(), flags)?;
            id
        }
    };
    Ok(id as usize)
}

/// The object with an identifier, and its key.
fn find<T>(registry: &Objects<T>, id: i32) -> Result<(i32, Arc<T>), Errno> {
    registry.lock().get(id).map(|(key, object)| (key, object.clone())).ok_or(Errno::EINVAL)
}

/// The object at a place in the registry: identifier, key, object.
fn find_at<T>(registry: &Objects<T>, place: i32) -> Result<(i32, i32, Arc<T>), Errno> {
    let place = usize::try_from(place).map_err(|_| Errno::EINVAL)?;
    let registry = registry.lock();
    registry.at(place).map(|(id, key, object)| (id, key, object.clone())).ok_or(Errno::EINVAL)
}

/// The first object from a place on, to walk a registry without holding its lock.
fn next<T>(registry: &Objects<T>, from: usize) -> Option<(usize, i32, i32, Arc<T>)> {
    let registry = registry.lock();
    (from..=registry.highest())
        .find_map(|place| registry.at(place).map(|(id, key, object)| (place + 1, id, key, object.clone())))
}

/// `struct ipc64_perm`.
fn permission_words(
    who: &Credentials,
    id: i32,
    key: i32,
    permissions: &Permissions,
) -> [u64; PERMISSION_WORDS] {
    const fn pair(low: u32, high: u32) -> u64 {
        low as u64 | (high as u64) << 32
    }
    let [uid, creator_uid] = [permissions.uid, permissions.creator_uid].map(|user| who.shown_user(user));
    let [gid, creator_gid] = [permissions.gid, permissions.creator_gid].map(|group| who.shown_group(group));
    [
        pair(key as u32, uid),
        pair(gid, creator_uid),
        pair(creator_gid, permissions.mode),
        sequence_of(id) as u64,
        0,
        0,
    ]
}

/// Owners and groups as a line of `/proc/sysvipc` shows them.
fn shown(permissions: &Permissions, who: &Credentials) -> ShownOwners {
    let (uid, gid) = (who.shown_user(permissions.uid), who.shown_group(permissions.gid));
    let (creator, group) =
        (who.shown_user(permissions.creator_uid), who.shown_group(permissions.creator_gid));
    ShownOwners([uid, gid, creator, group])
}

/// User and group of owner and creator.
struct ShownOwners([u32; 4]);

impl core::fmt::Display for ShownOwners {
    fn fmt(&self, text: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let [uid, gid, creator, group] = self.0;
        write!(text, "{uid:5} {gid:5} {creator:5} {group:5}")
    }
}

/// Owner, group and mode that `IPC_SET` finds in the `struct ipc64_perm` at an address.
fn read_owner(call: &Call<'_>, address: usize) -> crate::error::TryResult<(u32, u32, u32)> {
    let words: [u32; PERMISSION_WORDS] = call.thread.space().read(address)?;
    let who = call.thread.credentials();
    Ok((who.user(words[1])?, who.group(words[2])?, words[5]))
}

/// Now, in seconds of the time of day.
fn realtime_seconds() -> u64 {
    crate::time::realtime_ns() / NS_PER_SECOND
}

/// Writes results to a program's memory, word by word.
fn put_words(call: &Call<'_>, address: usize, words: &[u64]) -> crate::error::TryResult<()> {
    for (index, word) in words.iter().enumerate() {
        call.thread.space().write(address.wrapping_add(index * size_of::<u64>()), word)?;
    }
    Ok(())
}

/// The same for rows of C's `int`.
fn put_ints(call: &Call<'_>, address: usize, ints: &[i32]) -> crate::error::TryResult<()> {
    for (index, int) in ints.iter().enumerate() {
        call.thread.space().write(address.wrapping_add(index * size_of::<i32>()), int)?;
    }
    Ok(())
}

/// A number as C's `int`, which cannot say more.
fn int(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
