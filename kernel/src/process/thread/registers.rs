//! The state with which a thread returns to its program: registers, and results that are stored late.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use heddle_kernel_core::protection_key::KeyRights;

use crate::arch::{FloatState, UserContext, direct, protection_key};
use crate::call::Restart;
use crate::error::Errno;
use crate::process::Thread;
use crate::process::thread::copy_out::DeferredCopyOut;
use crate::signal::PendingWork;
use crate::sync::SpinLock;

pub(super) struct ProgramRegisters {
    /// Reached through [`Thread::with_float`].
    float: SpinLock<FloatState>,
    /// The registers of the CPU may not be the thread's.
    float_stale: AtomicBool,
    /// ProgramRegisters to go on with instead of those that the coroutine holds: `execve`.
    next_context: SpinLock<Option<Box<UserContext>>>,
    restart: SpinLock<Option<Restart>>,
    /// Results that found their page missing, with their addresses.
    late: DeferredCopyOut,
    /// The rights to protection keys, while the thread's turn does not go on.
    key_rights: AtomicU32,
}

impl ProgramRegisters {
    pub(super) fn new(float: FloatState, key_rights: KeyRights) -> Self {
        Self {
            float: SpinLock::new(float),
            float_stale: AtomicBool::new(true),
            next_context: SpinLock::new(None),
            restart: SpinLock::new(None),
            late: DeferredCopyOut::default(),
            key_rights: AtomicU32::new(key_rights.0),
        }
    }
}

impl Thread {
    /// Looks at or changes the saved floating-point registers; a CPU loads them again before the program runs on.
    pub fn with_float<R>(&self, access: impl FnOnce(&mut FloatState) -> R) -> R {
        self.registers.float_stale.store(true, Ordering::Relaxed);
        access(&mut self.registers.float.lock())
    }

    /// Makes the CPU's floating-point registers the thread's.
    pub fn load_float(&self) {
        if self.registers.float_stale.load(Ordering::Relaxed) {
            self.registers.float.lock().restore();
            self.registers.float_stale.store(false, Ordering::Relaxed);
        }
    }

    /// Keeps the rights to protection keys that the CPU's register has: at the end of the thread's turn.
    #[inline]
    pub fn save_key_rights(&self) {
        if let Some(rights) = protection_key::take_rights() {
            self.set_key_rights(rights);
        }
    }

    /// Gives the CPU's register the thread's rights, if they were kept: at the start of a turn.
    pub fn load_key_rights(&self) {
        if self.work().contains(PendingWork::KEYS) {
            self.remove_work(PendingWork::KEYS);
            let kept = self.registers.key_rights.swap(KeyRights::INITIAL.0, Ordering::Relaxed);
            protection_key::set_rights(KeyRights(kept));
        }
    }

    /// Gives a thread rights to protection keys whose turn does not go on.
    pub fn set_key_rights(&self, rights: KeyRights) {
        self.registers.key_rights.store(rights.0, Ordering::Relaxed);
        self.add_work(PendingWork::KEYS);
    }

    /// The rights of a thread whose turn does not go on.
    #[must_use]
    pub fn key_rights(&self) -> KeyRights {
        KeyRights(self.registers.key_rights.load(Ordering::Relaxed))
    }

    /// Stores a result of a call whose effects are done, so that it must not start again. A page that has become
    /// missing or read-only since the call looked ([`crate::memory::Space::probe_write`]) is brought in before the
    /// program goes on.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn store_result(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        if self.space().write_bytes(address, bytes).is_ok() {
            return Ok(());
        }
        self.registers.late.put(address, bytes)?;
        self.add_work(PendingWork::STORE);
        Ok(())
    }

    /// Results of [`Thread::store_result`] that are not stored yet.
    #[must_use]
    pub const fn deferred_results(&self) -> &DeferredCopyOut {
        &self.registers.late
    }

    /// Keeps what `restart_syscall` is to do; the call then returns `ERESTART_RESTARTBLOCK`.
    pub fn set_restart(&self, restart: Restart) {
        let before = self.registers.restart.lock().replace(restart);
        drop(before);
    }

    /// The call that `restart_syscall` is to repeat.
    #[must_use]
    pub fn restart(&self) -> Option<Restart> {
        self.registers.restart.lock().clone()
    }

    /// Forgets what `restart_syscall` is to do.
    pub(in crate::process) fn forget_restart(&self) {
        let restart = self.registers.restart.lock().take();
        drop(restart);
    }

    /// Names the places of the thread's program that make direct calls, in a machine that has such: at the start of
    /// each turn, and when the thread has got another program.
    #[inline]
    pub fn use_call_places(&self) {
        if direct::is_on() {
            self.use_direct_calls();
        }
    }

    #[inline(never)]
    fn use_direct_calls(&self) {
        direct::use_places(self.space().call_places());
    }

    /// Makes the thread go on with these registers once the call under way has ended.
    pub(in crate::process) fn replace_context(&self, context: Box<UserContext>) {
        let before = self.registers.next_context.lock().replace(context);
        drop(before);
        self.add_work(PendingWork::CONTEXT);
    }

    /// Keeps the registers of a thread that waits before its end, for a core dump.
    pub(in crate::process) fn keep_context(&self, context: Box<UserContext>) {
        let before = self.registers.next_context.lock().replace(context);
        drop(before);
    }

    /// Looks at the registers of a thread that waits before its end.
    pub fn with_kept_context<R>(&self, look: impl FnOnce(&UserContext) -> R) -> Option<R> {
        self.registers.next_context.lock().as_deref().map(look)
    }

    /// The registers of [`Thread::replace_context`].
    #[must_use]
    pub fn take_context(&self) -> Option<Box<UserContext>> {
        self.remove_work(PendingWork::CONTEXT);
        self.registers.next_context.lock().take()
    }
}
