//! The count of threads by user, for `RLIMIT_NPROC`.

use heddle_kernel_core::user_tasks::UserTasks;

use crate::error::Errno;
use crate::sync::SpinLock;

static TASKS: SpinLock<UserTasks> = SpinLock::new(UserTasks::new());

/// A thread, or a process that nobody has waited for, as it counts for its user. Root is not limited, and not counted.
#[derive(Debug)]
pub struct UserTask {
    uid: u32,
}

impl UserTask {
    /// One more for the user, who has fewer than `limit`.
    ///
    /// # Errors
    /// `EAGAIN` (the user has as many), `ENOMEM`.
    pub fn enter(uid: u32, limit: u64) -> Result<Option<Self>, Errno> {
        if uid == 0 {
            return Ok(None);
        }
        if TASKS.lock().enter(uid, limit)? { Ok(Some(Self { uid })) } else { Err(Errno::EAGAIN) }
    }
}

impl Drop for UserTask {
    fn drop(&mut self) {
        TASKS.lock().leave(self.uid);
    }
}
