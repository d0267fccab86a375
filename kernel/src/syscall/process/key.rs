//! `add_key` and `request_key`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use heddle_kernel_core::keys::{KeyKind, NewKey, PAYLOAD_MAX, Reached, Serial, Wanted, rights};

use crate::error::{Errno, TryResult};
use crate::memory::fallible;
use crate::process::keys::{KEYS, KeyCaller, OwnRing, errno, limits};
use crate::syscall::fs::{get_bytes, get_string};
use crate::syscall::{Call, SyscallResult};

/// Bytes of a type's name, with the zero at its end.
const TYPE_LIMIT: usize = 32;
/// Bytes of a description, likewise.
pub const DESCRIPTION_LIMIT: usize = 4096;
/// Bytes of a payload that are looked at.
const READ_LIMIT: usize = (1 << 20) - 1;
/// Permissions of a new key: all for its possessor, and its user sees it. Nobody reads a logon key.
const OF_KEY: u32 = 0x3f01_0000;
const OF_LOGON: u32 = 0x3d01_0000;

/// The name of a type.
///
/// # Errors
/// A page fault, `EINVAL`, `EPERM`, `ENOMEM`.
pub fn get_type(call: &Call<'_>, index: usize) -> TryResult<Vec<u8>> {
    let name = get_string(call, call.word(index), TYPE_LIMIT, Errno::EINVAL)?;
    match name.first() {
        None => Err(Errno::EINVAL.into()),
        // The kernel's own.
        Some(b'.') => Err(Errno::EPERM.into()),
        Some(_) => Ok(name),
    }
}

/// A payload in memory that its readers share.
///
/// # Errors
/// `EINVAL`, `ENOMEM`.
pub fn payload(bytes: Vec<u8>) -> Result<(Arc<Vec<u8>>, u32), Errno> {
    if bytes.is_empty() || bytes.len() > PAYLOAD_MAX {
        return Err(Errno::EINVAL);
    }
    let length = bytes.len() as u32;
    Ok((fallible::try_arc(bytes)?, length))
}

/// A key that the caller names, which can be used and which it has these rights on.
///
/// # Errors
/// `EINVAL`, `ENOKEY`, `EKEYREVOKED`, `EKEYEXPIRED`, `EACCES`, `EDQUOT`, `ENFILE`, `ENOMEM`.
pub fn lookup(caller: &mut KeyCaller<'_>, id: i32, make: bool, wanted: u32) -> Result<Reached, Errno> {
    let reached = caller.reach(id, make)?;
    let (keys, user) = (KEYS.lock(), caller.user());
    keys.key(reached.serial).and_then(|key| key.check(user.now_s)).map_err(errno)?;
    keys.permit(&reached, &user, wanted).map_err(errno)?;
    Ok(reached)
}

/// add_key(2).
pub fn add_key(call: &mut Call<'_>) -> SyscallResult {
    let length = call.word(3);
    if length > READ_LIMIT {
        return Err(Errno::EINVAL.into());
    }
    let kind = get_type(call, 0)?;
    let description = match call.word(1) {
        0 => Vec::new(),
        address => get_string(call, address, DESCRIPTION_LIMIT, Errno::EINVAL)?,
    };
    if description.first() == Some(&b'.') && kind.starts_with(b"keyring") {
        return Err(Errno::EPERM.into());
    }
    let bytes = if length == 0 { Vec::new() } else { get_bytes(call, call.word(2), length)? };
    let mut caller = KeyCaller::new(call.thread);
    let ring = lookup(&mut caller, call.int(4), true, rights::WRITE)?;
    let kind = KeyKind::named(&kind).ok_or(Errno::ENODEV)?;
    if KEYS.lock().key(ring.serial).map_err(errno)?.kind != KeyKind::Keyring {
        return Err(Errno::ENOTDIR.into());
    }
    let payload = match kind {
        KeyKind::Keyring if bytes.is_empty() => None,
        KeyKind::Keyring => return Err(Errno::EINVAL.into()),
        KeyKind::User | KeyKind::Logon => Some(payload(bytes)?),
    };
    let permissions = if kind == KeyKind::Logon { OF_LOGON } else { OF_KEY };
    let (uid, gid) = (caller.credentials.fsuid, caller.credentials.fsgid);
    let new = NewKey { kind, description: &description, uid, gid, permissions };
    let added = KEYS.lock().add(ring, &new, payload, &caller.user(), limits());
    Ok((added.map_err(errno)? as usize).into())
}

/// Links a key that was found to a keyring.
///
/// # Errors
/// `EACCES`, and those of linking.
pub fn link_found(
    caller: &KeyCaller<'_>,
    found: Serial,
    ring: Option<Reached>,
    is_possessed: bool,
) -> Result<(), Errno> {
    let Some(ring) = ring else { return Ok(()) };
    let mut keys = KEYS.lock();
    keys.permit(&Reached { serial: found, is_possessed }, &caller.user(), rights::LINK).map_err(errno)?;
    keys.link(ring.serial, found, limits()).map_err(errno)
}

/// Checks that the caller could write to the keyring where a key would go that is made on request, which is where
/// `KEYCTL_SET_REQKEY_KEYRING` says, or the next that is there.
///
/// # Errors
/// `EACCES`.
fn check_default_ring(call: &Call<'_>, caller: &mut KeyCaller<'_>) -> Result<(), Errno> {
    const IN_ORDER: [OwnRing; 4] =
        [OwnRing::Thread, OwnRing::Process, OwnRing::Session, OwnRing::UserSession];
    // `KEY_REQKEY_DEFL_`.
    let chosen = call.thread.process.keys().as_ref().map_or(0, |keys| keys.default_ring);
    let rings = match chosen {
        2 => &IN_ORDER[1..],
        3 => &IN_ORDER[2..],
        4 => &[OwnRing::User][..],
        5 => &IN_ORDER[3..],
        _ => &IN_ORDER[..],
    };
    let Some(serial) = rings.iter().find_map(|&ring| caller.own(ring, false).ok()) else { return Ok(()) };
    let reached = Reached { serial, is_possessed: true };
    KEYS.lock().permit(&reached, &caller.user(), rights::WRITE).map_err(errno)
}

/// request_key(2). Nobody makes keys on request: what is not there is `ENOKEY`.
pub fn request_key(call: &mut Call<'_>) -> SyscallResult {
    /// Bytes of what is told to whoever would make the key.
    const CALLOUT_LIMIT: usize = 4096;
    let kind = get_type(call, 0)?;
    let description = get_string(call, call.word(1), DESCRIPTION_LIMIT, Errno::EINVAL)?;
    if call.word(2) != 0 {
        get_string(call, call.word(2), CALLOUT_LIMIT, Errno::EINVAL)?;
    }
    let mut caller = KeyCaller::new(call.thread);
    let ring = match call.int(3) {
        0 => None,
        id => Some(lookup(&mut caller, id, true, rights::WRITE)?),
    };
    let kind = KeyKind::named(&kind).ok_or(Errno::ENOKEY)?;
    let found = KEYS.lock().search_anchors(Wanted::Named(kind, &description), &caller.user());
    let found = found.map_err(errno);
    if found == Err(Errno::ENOKEY) && call.word(2) != 0 && ring.is_none() {
        check_default_ring(call, &mut caller)?;
    }
    let found = found?;
    link_found(&caller, found, ring, true)?;
    Ok((found as usize).into())
}
