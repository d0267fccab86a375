//! How many descriptors of each user are in flight: sent, and not received yet. As in Linux, a user that has more of
//! them than a process may have open sends no more (`ETOOMANYREFS`), unless it is privileged.

use alloc::vec::Vec;

use heddle_kernel_core::fallible::insert_reserved;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::process::Thread;
use crate::sync::SpinLock;

/// Users with descriptors in flight, and how many, in the order of their numbers.
static USERS: SpinLock<Vec<(u32, usize)>> = SpinLock::new(Vec::new());

/// Descriptors in flight that count for a user. They are to be given back by [`InFlightCharge::release`].
#[derive(Debug)]
pub(super) struct InFlightCharge {
    uid: u32,
    count: usize,
}

impl InFlightCharge {
    /// So many more are in flight, sent by a thread.
    ///
    /// # Errors
    /// `ETOOMANYREFS`: there are too many already; `ENOMEM`.
    pub fn new(thread: &Thread, count: usize) -> Result<Self, Errno> {
        let credentials = thread.credentials();
        let is_privileged =
            credentials.is_capable(linux::CAP_SYS_RESOURCE) || credentials.is_capable(linux::CAP_SYS_ADMIN);
        let (uid, limit) = (credentials.uid, thread.process.descriptor_limit());
        let mut users = USERS.lock();
        match users.binary_search_by_key(&uid, |user| user.0) {
            Ok(index) if users[index].1 > limit && !is_privileged => return Err(Errno::ETOOMANYREFS),
            Ok(index) => users[index].1 += count,
            Err(index) => {
                users.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                insert_reserved(&mut users, index, (uid, count));
            }
        }
        Ok(Self { uid, count })
    }

    /// They are in flight no more.
    pub fn release(self) {
        let mut users = USERS.lock();
        let mut unused = Vec::new();
        if let Ok(index) = users.binary_search_by_key(&self.uid, |user| user.0) {
            users[index].1 -= self.count;
            if users[index].1 == 0 {
                users.remove(index);
            }
            if users.is_empty() {
                unused = core::mem::take(&mut *users);
            }
        }
        drop(users);
        drop(unused);
    }
}
