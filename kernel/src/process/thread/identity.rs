//! A thread's number, name and rights.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use crate::error::Errno;
use crate::memory::isolation::CredentialSet;
use crate::process::user_task::UserTask;
use crate::process::{Credentials, Thread, credential_set, seccomp};
use crate::signal::PendingWork;
use crate::sync::SpinLock;

pub(super) struct ThreadIdentity {
    tid: AtomicI32,
    /// The number in the thread's own namespace.
    own_tid: AtomicI32,
    name: SpinLock<[u8; Thread::NAME_BYTES]>,
    credentials: SpinLock<Arc<Credentials>>,
    /// `PR_SET_NO_NEW_PRIVS`: set once, and inherited by everything that the thread makes.
    no_new_privileges: AtomicBool,
    /// personality(2).
    personality: AtomicU32,
    /// `PR_MCE_KILL`.
    failure_policy: AtomicU32,
    /// seccomp(2).
    seccomp: SpinLock<seccomp::Mode>,
    /// The calls that the program takes itself.
    dispatch: SpinLock<Option<UserDispatch>>,
    /// The thread as it counts for its user, as long as it does.
    task: SpinLock<Option<UserTask>>,
}

impl ThreadIdentity {
    pub(super) const fn new(
        (tid, own_tid): (i32, i32),
        name: [u8; Thread::NAME_BYTES],
        credentials: Arc<Credentials>,
        no_new_privileges: bool,
    ) -> Self {
        Self {
            tid: AtomicI32::new(tid),
            own_tid: AtomicI32::new(own_tid),
            name: SpinLock::new(name),
            credentials: SpinLock::new(credentials),
            no_new_privileges: AtomicBool::new(no_new_privileges),
            personality: AtomicU32::new(0),
            failure_policy: AtomicU32::new(linux_raw_sys::prctl::PR_MCE_KILL_DEFAULT),
            seccomp: SpinLock::new(seccomp::Mode::Disabled),
            dispatch: SpinLock::new(None),
            task: SpinLock::new(None),
        }
    }
}

/// The calls of a thread that its program takes itself, by `SIGSYS`: `PR_SET_SYSCALL_USER_DISPATCH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserDispatch {
    /// The first of the instructions from which calls are the kernel's, and their length.
    pub first: usize,
    /// See above.
    pub length: usize,
    /// The address of the byte that says whose the other calls are; 0: the program's.
    pub selector: usize,
}

impl Thread {
    /// The size of a thread's name with its final zero.
    pub const NAME_BYTES: usize = 16;
    /// The bit of personality(2) that asks for the same addresses each time: `ADDR_NO_RANDOMIZE`.
    pub const NO_RANDOMIZATION: u32 = 0x0004_0000;
    /// `READ_IMPLIES_EXEC`: memory that may be read may be executed.
    pub const READ_IMPLIES_EXECUTE: u32 = 0x0040_0000;
    /// `STICKY_TIMEOUTS`: select(2) and its relatives leave the time that is left.
    pub const STICKY_TIMEOUTS: u32 = 0x0400_0000;
    /// `UNAME26`: the release is told as one of Linux 2.6.
    pub const UNAME26: u32 = 0x0002_0000;
    /// The kind of system, in the lower byte.
    pub const PERSONALITY_KIND: u32 = 0xff;
    /// `PER_LINUX32`: the machine is told as one of 32 bits.
    pub const LINUX32: u32 = 8;
    /// Bits that a program with more rights than its caller loses: also `ADDR_COMPAT_LAYOUT` and `MMAP_PAGE_ZERO`.
    pub const PERSONALITY_CLEARED: u32 =
        Self::NO_RANDOMIZATION | Self::READ_IMPLIES_EXECUTE | 0x0020_0000 | 0x0010_0000;

    /// Its number.
    #[must_use]
    pub fn tid(&self) -> i32 {
        self.identity.tid.load(Ordering::Relaxed)
    }

    /// Its number in its own namespace.
    #[must_use]
    pub fn own_tid(&self) -> i32 {
        self.identity.own_tid.load(Ordering::Relaxed)
    }

    /// Gives the thread another number: `execve` by a thread that isn't the first makes it the first.
    pub(in crate::process) fn set_tid(&self, (tid, own_tid): (i32, i32)) {
        self.identity.tid.store(tid, Ordering::Relaxed);
        self.renumber_mark(tid);
        self.identity.own_tid.store(own_tid, Ordering::Relaxed);
    }

    /// The credentials that the thread acts with.
    #[must_use]
    pub fn credentials(&self) -> Arc<Credentials> {
        self.identity.credentials.lock().clone()
    }

    /// Says how the thread counts for its user from now on; returns how it did.
    pub fn set_user_task(&self, task: Option<UserTask>) -> Option<UserTask> {
        core::mem::replace(&mut *self.identity.task.lock(), task)
    }

    /// Changes the credentials that the thread acts with, and with them who may reach its memory.
    pub fn set_credentials(&self, credentials: Arc<Credentials>) {
        let (space, set) = (self.space(), credential_set::of(&credentials));
        if space.credentials() != set {
            // A child of vfork changes what is its parent's as well: then nobody else may reach it.
            let is_own = space.thread_count() <= self.process.thread_count();
            let set = if is_own { set } else { CredentialSet::UNIQUE };
            space.set_isolation(set, space.isolation());
            self.add_work(PendingWork::ISOLATE);
        }
        self.process.set_uid(credentials.uid);
        let after = credentials.clone();
        let before = core::mem::replace(&mut *self.identity.credentials.lock(), credentials);
        if after.closes(&before) {
            self.process.set_dumpable(crate::process::privilege::closed_is_dumpable());
            self.process.set_parent_death_signal(None);
        }
    }

    /// Whether `execve` must not give the thread more rights than it has.
    #[must_use]
    pub fn has_no_new_privileges(&self) -> bool {
        self.identity.no_new_privileges.load(Ordering::Relaxed)
    }

    /// `PR_SET_NO_NEW_PRIVS`.
    pub fn forbid_new_privileges(&self) {
        self.identity.no_new_privileges.store(true, Ordering::Relaxed);
    }

    /// The mode of seccomp(2).
    #[must_use]
    pub fn seccomp(&self) -> seccomp::Mode {
        self.identity.seccomp.lock().clone()
    }

    /// Changes the mode of seccomp(2), which never goes back.
    pub(in crate::process) fn set_seccomp(&self, mode: seccomp::Mode) {
        let before = core::mem::replace(&mut *self.identity.seccomp.lock(), mode);
        self.add_work(PendingWork::FILTERED);
        drop(before);
    }

    /// Permits the thread nothing but `read`, `write`, `exit` and `rt_sigreturn`.
    ///
    /// # Errors
    /// `EINVAL`: it has filters.
    pub fn restrict(&self) -> Result<(), Errno> {
        if matches!(self.seccomp(), seccomp::Mode::Filters(_)) {
            return Err(Errno::EINVAL);
        }
        self.set_seccomp(seccomp::Mode::Strict);
        Ok(())
    }

    /// The calls that the program takes itself.
    #[must_use]
    pub fn user_dispatch(&self) -> Option<UserDispatch> {
        *self.identity.dispatch.lock()
    }

    /// Changes them. Children, and programs that are executed, take none.
    pub fn set_user_dispatch(&self, dispatch: Option<UserDispatch>) {
        *self.identity.dispatch.lock() = dispatch;
        if dispatch.is_some() {
            self.add_work(PendingWork::DISPATCHED);
        } else {
            self.remove_work(PendingWork::DISPATCHED);
        }
    }

    /// The word of personality(2).
    #[must_use]
    pub fn personality(&self) -> u32 {
        self.identity.personality.load(Ordering::Relaxed)
    }

    /// personality(2); also after a change of rights, and for a child.
    pub fn set_personality(&self, personality: u32) {
        self.identity.personality.store(personality, Ordering::Relaxed);
    }

    /// The setting of `PR_MCE_KILL`.
    #[must_use]
    pub fn failure_policy(&self) -> u32 {
        self.identity.failure_policy.load(Ordering::Relaxed)
    }

    /// `PR_MCE_KILL`; also for a child.
    pub fn set_failure_policy(&self, policy: u32) {
        self.identity.failure_policy.store(policy, Ordering::Relaxed);
    }

    /// The name that `/proc/PID/comm` shows, filled up with zeros.
    #[must_use]
    pub fn name(&self) -> [u8; Self::NAME_BYTES] {
        *self.identity.name.lock()
    }

    /// Changes the name; what is too long is cut.
    pub fn set_name(&self, name: &[u8]) {
        let mut bytes = [0; Self::NAME_BYTES];
        let length = name.len().min(Self::NAME_BYTES - 1);
        bytes[..length].copy_from_slice(&name[..length]);
        *self.identity.name.lock() = bytes;
    }
}
