//! `/proc/key-users`, keyrings(7).

use crate::error::Errno;
use crate::process::keys::{KEYS, limits};
use crate::procfs::{Subject, Text};

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
