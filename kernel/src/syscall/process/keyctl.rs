//! keyctl(2).

use alloc::vec::Vec;
use core::fmt::Write;
use heddle_kernel_core::fallible::{extend_items_reserved, extend_reserved};
use heddle_kernel_core::keys::{KeyError, KeyKind, Wanted, rights};
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::process::keys::{KEYS, KeyCaller, OwnRing, errno, limits, now_s, shown_group};
use crate::syscall::fs::{get_bytes, get_string, put};
use crate::syscall::process::key::{DESCRIPTION_LIMIT, get_type, link_found, lookup, payload};
use crate::syscall::{Call, SyscallResult};

/// The operations, as `keyctl.h` numbers them.
mod operation {
    pub const GET_KEYRING_ID: u32 = 0;
    pub const JOIN_SESSION_KEYRING: u32 = 1;
    pub const UPDATE: u32 = 2;
    pub const REVOKE: u32 = 3;
    pub const CHOWN: u32 = 4;
    pub const SETPERM: u32 = 5;
    pub const DESCRIBE: u32 = 6;
    pub const CLEAR: u32 = 7;
    pub const LINK: u32 = 8;
    pub const UNLINK: u32 = 9;
    pub const SEARCH: u32 = 10;
    pub const READ: u32 = 11;
    pub const INSTANTIATE: u32 = 12;
    pub const NEGATE: u32 = 13;
    pub const SET_REQKEY_KEYRING: u32 = 14;
    pub const SET_TIMEOUT: u32 = 15;
    pub const ASSUME_AUTHORITY: u32 = 16;
    pub const GET_SECURITY: u32 = 17;
    pub const REJECT: u32 = 19;
    pub const INSTANTIATE_IOV: u32 = 20;
    pub const INVALIDATE: u32 = 21;
    pub const CAPABILITIES: u32 = 31;
}

/// Bytes that an update brings at most.
const UPDATE_LIMIT: usize = 4096;

/// keyctl(2).
pub fn keyctl(call: &mut Call<'_>) -> SyscallResult {
    let mut caller = KeyCaller::new(call.thread);
    let id = call.int(1);
    let value = match call.uint(0) {
        operation::GET_KEYRING_ID => {
            lookup(&mut caller, id, call.int(2) != 0, rights::SEARCH)?.serial as usize
        }
        operation::JOIN_SESSION_KEYRING => join_session(call, &mut caller)?,
        operation::UPDATE => update(call, &mut caller)?,
        operation::REVOKE => revoke(&mut caller, id)?,
        operation::CHOWN => change_owner(call, &mut caller)?,
        operation::SETPERM => set_permissions(call, &mut caller)?,
        operation::DESCRIBE => describe(call, &mut caller)?,
        operation::CLEAR => {
            let ring = lookup(&mut caller, id, true, rights::WRITE)?;
            KEYS.lock().clear(ring.serial).map_err(errno)?;
            0
        }
        operation::LINK => {
            let ring = lookup(&mut caller, call.int(2), true, rights::WRITE)?;
            let key = lookup(&mut caller, id, true, rights::LINK)?;
            KEYS.lock().link(ring.serial, key.serial, limits()).map_err(errno)?;
            0
        }
        operation::UNLINK => {
            let ring = lookup(&mut caller, call.int(2), false, rights::WRITE)?;
            // The key itself need not be usable.
            let key = caller.reach(id, false)?;
            KEYS.lock().unlink(ring.serial, key.serial).map_err(errno)?;
            0
        }
        operation::SEARCH => search(call, &mut caller)?,
        operation::READ => read(call, &mut caller)?,
        // Only whoever was asked to make a key may, and nobody is.
        operation::INSTANTIATE | operation::NEGATE | operation::REJECT | operation::INSTANTIATE_IOV => {
            return Err(Errno::EPERM.into());
        }
        operation::SET_REQKEY_KEYRING => set_default_ring(call, &mut caller)?,
        operation::SET_TIMEOUT => set_timeout(call, &mut caller)?,
        operation::ASSUME_AUTHORITY => match id {
            ..0 => return Err(Errno::EINVAL.into()),
            0 => 0,
            _ => return Err(Errno::ENOKEY.into()),
        },
        operation::GET_SECURITY => {
            lookup(&mut caller, id, false, rights::VIEW)?;
            // No security module labels keys.
            if call.word(2) != 0 && call.word(3) > 0 {
                put(call, call.word(2), &[0])?;
            }
            1
        }
        operation::INVALIDATE => {
            let key = lookup(&mut caller, id, false, rights::SEARCH)?;
            KEYS.lock().invalidate(key.serial).map_err(errno)?;
            0
        }
        operation::CAPABILITIES => capabilities(call)?,
        _ => return Err(Errno::EOPNOTSUPP.into()),
    };
    Ok(value.into())
}

fn join_session(call: &Call<'_>, caller: &mut KeyCaller<'_>) -> TryResult<usize> {
    let name = match call.word(1) {
        0 => None,
        address => Some(get_string(call, address, DESCRIPTION_LIMIT, Errno::EINVAL)?),
    };
    if name.as_ref().is_some_and(|name| name.first() == Some(&b'.')) {
        return Err(Errno::EPERM.into());
    }
    let found = name.as_ref().and_then(|name| KEYS.lock().ring_named(name, &caller.user()));
    let current = call.thread.process.keys().as_ref().and_then(|keys| keys.session());
    if found.is_some() && found == current {
        return Ok(0);
    }
    let session = match found {
        Some(found) => {
            KEYS.lock().hold(found).map_err(errno)?;
            found
        }
        None => caller.new_session(name.as_deref())?,
    };
    Ok(caller.join(session)? as usize)
}

fn update(call: &Call<'_>, caller: &mut KeyCaller<'_>) -> TryResult<usize> {
    let length = call.word(3);
    if length > UPDATE_LIMIT {
        return Err(Errno::EINVAL.into());
    }
    let bytes = if length == 0 { Vec::new() } else { get_bytes(call, call.word(2), length)? };
    let key = lookup(caller, call.int(1), false, rights::WRITE)?.serial;
    if KEYS.lock().key(key).map_err(errno)?.kind == KeyKind::Keyring {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let payload = payload(bytes)?;
    KEYS.lock().update(key, payload, limits()).map_err(errno)?;
    Ok(0)
}

fn revoke(caller: &mut KeyCaller<'_>, id: i32) -> Result<usize, Errno> {
    let key = match lookup(caller, id, false, rights::WRITE) {
        Err(Errno::EACCES) => lookup(caller, id, false, rights::SETATTR)?,
        found => found?,
    };
    KEYS.lock().revoke(key.serial).map_err(errno)?;
    Ok(0)
}

fn change_owner(call: &Call<'_>, caller: &mut KeyCaller<'_>) -> Result<usize, Errno> {
    const SAME: u32 = u32::MAX;
    let given = |index| Some(call.uint(index)).filter(|&id| id != SAME);
    let (uid, gid) = (given(2), given(3));
    if uid.is_none() && gid.is_none() {
        return Ok(0);
    }
    let key = lookup(caller, call.int(1), true, rights::SETATTR)?.serial;
    let mut keys = KEYS.lock();
    let (old_uid, old_gid) = keys.key(key).map(|key| (key.uid, key.gid)).map_err(errno)?;
    if !caller.credentials.is_capable(linux::CAP_SYS_ADMIN) {
        let is_foreign = gid.is_some_and(|gid| gid != old_gid && !caller.credentials.is_in_group(gid));
        if uid.is_some_and(|uid| uid != old_uid) || is_foreign {
            return Err(Errno::EACCES);
        }
    }
    keys.change_owner(key, uid, gid, limits()).map_err(errno)?;
    Ok(0)
}

fn set_permissions(call: &Call<'_>, caller: &mut KeyCaller<'_>) -> Result<usize, Errno> {
    const KNOWN: u32 = rights::ALL * 0x0101_0101;
    let permissions = call.uint(2);
    if permissions & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let key = lookup(caller, call.int(1), true, rights::SETATTR)?.serial;
    let mut keys = KEYS.lock();
    let owner = keys.key(key).map_err(errno)?.uid;
    if owner != caller.credentials.fsuid && !caller.credentials.is_capable(linux::CAP_SYS_ADMIN) {
        return Err(Errno::EACCES);
    }
    keys.set_permissions(key, permissions).map_err(errno)?;
    Ok(0)
}

/// Stores what a key says if there is room for all of it; returns how much it is.
fn put_whole(call: &Call<'_>, bytes: &[u8]) -> TryResult<usize> {
    let (address, room) = (call.word(2), call.word(3));
    if address != 0 && room >= bytes.len() {
        put(call, address, bytes)?;
    }
    Ok(bytes.len())
}

struct KeyText(Vec<u8>);

impl Write for KeyText {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.0.try_reserve(text.len()).map_err(|_| core::fmt::Error)?;
        extend_reserved(&mut self.0, text.as_bytes());
        Ok(())
    }
}

fn describe(call: &Call<'_>, caller: &mut KeyCaller<'_>) -> TryResult<usize> {
    let key = lookup(caller, call.int(1), false, rights::VIEW)?.serial;
    let line = {
        let keys = KEYS.lock();
        let key = keys.key(key).map_err(errno)?;
        let mut line = KeyText(Vec::new());
        write!(line, "{};{};{};{:08x};", key.kind.name(), key.uid, shown_group(key.gid), key.permissions)
            .map_err(|_| Errno::ENOMEM)?;
        line.0.try_reserve(key.description.len() + 1).map_err(|_| Errno::ENOMEM)?;
        extend_reserved(&mut line.0, &key.description);
        extend_reserved(&mut line.0, &[0]);
        line.0
    };
    put_whole(call, &line)
}

fn search(call: &Call<'_>, caller: &mut KeyCaller<'_>) -> TryResult<usize> {
    let kind = get_type(call, 2)?;
    let description = get_string(call, call.word(3), DESCRIPTION_LIMIT, Errno::EINVAL)?;
    let ring = lookup(caller, call.int(1), false, rights::SEARCH)?;
    let target = match call.int(4) {
        0 => None,
        id => Some(lookup(caller, id, true, rights::WRITE)?),
    };
    let kind = KeyKind::named(&kind).ok_or(Errno::ENOKEY)?;
    let found = KEYS.lock().search(ring, Wanted::Named(kind, &description), &caller.user()).map_err(errno)?;
    link_found(caller, found, target, ring.is_possessed)?;
    Ok(found as usize)
}

fn read(call: &Call<'_>, caller: &mut KeyCaller<'_>) -> TryResult<usize> {
    let key = caller.reach(call.int(1), false).map_err(|_| Errno::ENOKEY)?;
    let (payload, links) = {
        let (keys, user) = (KEYS.lock(), caller.user());
        let found = keys.key(key.serial).map_err(errno)?;
        // Whatever can be searched can be read.
        match keys.permit(&key, &user, rights::READ) {
            Err(KeyError::Access) if key.is_possessed => {}
            permitted => permitted.map_err(errno)?,
        }
        found.check(user.now_s).map_err(errno)?;
        let payload = keys.payload(key.serial).map_err(errno)?;
        let mut links: Vec<u8> = Vec::new();
        links.try_reserve_exact(size_of_val(found.links())).map_err(|_| Errno::ENOMEM)?;
        extend_items_reserved(&mut links, found.links().iter().flat_map(|link| link.to_ne_bytes()));
        (payload, links)
    };
    match payload {
        Some(payload) => put_whole(call, &payload),
        None => put_whole(call, &links),
    }
}

fn set_default_ring(call: &Call<'_>, caller: &mut KeyCaller<'_>) -> Result<usize, Errno> {
    const NO_CHANGE: i32 = -1;
    const THREAD: i32 = 1;
    const PROCESS: i32 = 2;
    let asked = call.int(1);
    let old = call.thread.process.keys().as_ref().map_or(0, |keys| keys.default_ring);
    match asked {
        NO_CHANGE => return Ok(old as usize),
        THREAD => drop(caller.own(OwnRing::Thread, true)?),
        PROCESS => drop(caller.own(OwnRing::Process, true)?),
        0 | 3..=5 | 7 => {}
        _ => return Err(Errno::EINVAL),
    }
    call.thread.process.change_keys(|keys| {
        keys.default_ring = asked.cast_unsigned();
        Ok(())
    })?;
    Ok(old as usize)
}

fn set_timeout(call: &Call<'_>, caller: &mut KeyCaller<'_>) -> Result<usize, Errno> {
    let key = lookup(caller, call.int(1), true, rights::SETATTR)?.serial;
    let seconds = call.uint(2);
    let moment = (seconds > 0).then(|| now_s() + u64::from(seconds));
    KEYS.lock().set_expiry(key, moment).map_err(errno)?;
    Ok(0)
}

fn capabilities(call: &Call<'_>) -> TryResult<usize> {
    /// This call, and invalidation of keys.
    const KNOWN: [u8; 2] = [0x01 | 0x20, 0];
    let (address, length) = (call.word(1), call.word(2));
    if length > 0 {
        let told = KNOWN.len().min(length);
        put(call, address, &KNOWN[..told])?;
        let zeros = [0; 64];
        let mut at = told;
        // Bytes that later kernels fill.
        while at < length.min(UPDATE_LIMIT) {
            let piece = (length - at).min(zeros.len());
            put(call, address + at, &zeros[..piece])?;
            at += piece;
        }
    }
    Ok(KNOWN.len())
}
