//! How much each user has of something: threads and zombies, for `RLIMIT_NPROC`, and what settings limit, such as pages
//! of pipes.
//!
//! A list of users in the order of their numbers: few act at a time, and a user without a thread is not in it.

#[cfg(all(test, not(heddle_loom)))]
mod tests;

use alloc::vec::Vec;

use crate::fallible::{AllocError, insert_reserved};

/// The counts.
#[derive(Debug, Default)]
pub struct UserTasks {
    users: Vec<(u32, u32)>,
}

impl UserTasks {
    /// Nobody has any.
    #[must_use]
    pub const fn new() -> Self {
        Self { users: Vec::new() }
    }

    fn find(&self, uid: u32) -> Result<usize, usize> {
        self.users.binary_search_by_key(&uid, |&(user, _)| user)
    }

    /// How many the user has.
    #[must_use]
    pub fn count(&self, uid: u32) -> u32 {
        self.find(uid).map_or(0, |index| self.users[index].1)
    }

    /// The user has one more, unless that would be more than `limit`; whether it has.
    ///
    /// # Errors
    /// There is no memory to count.
    pub fn enter(&mut self, uid: u32, limit: u64) -> Result<bool, AllocError> {
        if u64::from(self.count(uid)) >= limit {
            return Ok(false);
        }
        match self.find(uid) {
            Ok(index) => self.users[index].1 += 1,
            Err(index) => {
                self.users.try_reserve(1).map_err(|_| AllocError)?;
                insert_reserved(&mut self.users, index, (uid, 1));
            }
        }
        Ok(true)
    }

    /// The user has so many more, whatever there may be.
    ///
    /// # Errors
    /// There is no memory to count, or no number for so many.
    pub fn add(&mut self, uid: u32, count: u32) -> Result<(), AllocError> {
        match self.find(uid) {
            Ok(index) => {
                let sum = &mut self.users[index].1;
                *sum = sum.checked_add(count).ok_or(AllocError)?;
            }
            Err(_) if count == 0 => {}
            Err(index) => {
                self.users.try_reserve(1).map_err(|_| AllocError)?;
                insert_reserved(&mut self.users, index, (uid, count));
            }
        }
        Ok(())
    }

    /// The user has one less.
    pub fn leave(&mut self, uid: u32) {
        self.remove(uid, 1);
    }

    /// The user has so many less.
    pub fn remove(&mut self, uid: u32, count: u32) {
        let Ok(index) = self.find(uid) else { return };
        self.users[index].1 = self.users[index].1.saturating_sub(count);
        if self.users[index].1 == 0 {
            self.users.remove(index);
        }
    }
}
