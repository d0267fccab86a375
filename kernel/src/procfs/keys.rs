//! `/proc/key-users`, keyrings(7).

use heddle_kernel_core::keys::Quota;

use crate::error::Errno;
use crate::process::keys::{KEYS, quota_of};
use crate::procfs::{Subject, Text};

/// How many keys each user has: all, those that are made, and those that count, with the limits.
pub fn users(_: &Subject, text: &mut Text) -> Result<(), Errno> {
    let all = KEYS.lock();
    for user in all.users() {
        let (keys, limits): (u32, Quota) = (user.keys, quota_of(user.uid));
        text.line(format_args!(
            "{:>5}: {:>5} {keys}/{keys} {keys}/{} {}/{}\n",
            user.uid, keys, limits.keys, user.bytes, limits.bytes,
        ))?;
    }
    Ok(())
}
