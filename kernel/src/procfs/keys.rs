//! `/proc/keys` and `/proc/key-users`, keyrings(7).

use heddle_kernel_core::keys::{Key, KeyKind, KeyUser, rights};

use crate::error::Errno;
use crate::process::keys::{KEYS, KeyViewer, limits, shown_group};
use crate::procfs::{Subject, Text};

/// Places of the table that a part looks at.
const PLACES: usize = 64;

/// How many keys each user has: all, those that are made, and those that count, with the limits.
pub fn users(_: &Subject, text: &mut Text) -> Result<(), Errno> {
    let (all, limits) = (KEYS.lock(), limits());
    for user in all.users() {
        let (keys, quota) = (user.keys, limits.of(user.uid));
        text.line(format_args!(
            "{:>5}: {:>5} {keys}/{keys} {keys}/{} {}/{}\n",
            user.uid, keys, quota.keys, user.bytes, quota.bytes,
        ))?;
    }
    Ok(())
}

/// The keys that somebody may view, a line each. One of which only its possessors may know takes a search, with which a
/// part ends.
pub fn list(viewer: &KeyViewer, text: &mut Text, from: u64) -> Result<Option<u64>, Errno> {
    let (mut all, user) = (KEYS.lock(), viewer.user());
    let from = usize::try_from(from).unwrap_or(usize::MAX);
    let mut place = from;
    while place < from.saturating_add(PLACES) {
        let Some((found, key)) = all.at_or_behind(place) else { return Ok(None) };
        place = found + 1;
        if key.allows(&user, false, rights::VIEW) {
            show(key, &user, text)?;
        } else if key.allows(&user, true, rights::VIEW) {
            let serial = key.serial();
            if all.reach(serial, &user).is_ok_and(|reached| reached.is_possessed)
                && let Ok(key) = all.key(serial)
            {
                show(key, &user, text)?;
            }
            break;
        }
    }
    Ok(Some(place as u64))
}

fn show<P>(key: &Key<P>, user: &KeyUser<'_>, text: &mut Text) -> Result<(), Errno> {
    let flag = |letter, is_set| if is_set { letter } else { '-' };
    let (revoked, invalid) = (flag('R', key.is_revoked), flag('i', key.is_invalid()));
    text.line(format_args!("{:08x} I{revoked}-Q--{invalid} {:5} ", key.serial(), key.references()))?;
    show_expiry(key.expires_s, user.now_s, text)?;
    text.line(format_args!(
        " {:08x} {:5} {:5} {:<9} ",
        key.permissions,
        key.uid,
        shown_group(key.gid),
        key.kind.name(),
    ))?;
    text.bytes(&key.description)?;
    match (key.kind, key.links().len()) {
        (KeyKind::Keyring, 0) => text.bytes(b": empty\n"),
        (KeyKind::Keyring, links) => text.line(format_args!(": {links}\n")),
        (KeyKind::User | KeyKind::Logon, _) => text.line(format_args!(": {}\n", key.payload_bytes())),
    }
}

/// The time that is left, in the largest unit of which there is one, four characters wide.
fn show_expiry(expires_s: Option<u64>, now_s: u64, text: &mut Text) -> Result<(), Errno> {
    const UNITS: [(u64, char); 5] = [(7 * 86_400, 'w'), (86_400, 'd'), (3_600, 'h'), (60, 'm'), (1, 's')];
    let Some(moment) = expires_s else { return text.bytes(b"perm") };
    let left = moment.saturating_sub(now_s);
    match UNITS.into_iter().find(|&(seconds, _)| left >= seconds) {
        Some((seconds, letter)) => text.line(format_args!("{:>3}{letter}", left / seconds)),
        None => text.bytes(b"expd"),
    }
}
