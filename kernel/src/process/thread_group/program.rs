//! The program that a process runs, and how much it may use.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use heddle_kernel_core::{core_dump, oom};

use crate::error::Errno;
use crate::fs::OpenFile;
use crate::process::user_namespace::Users;
use crate::process::{Limits, Process, Resource, ResourceLimit, dump};
use crate::sync::SpinLock;

pub(super) struct RunningProgram {
    limits: SpinLock<Limits>,
    layout: SpinLock<ProcessLayout>,
    /// The program's file, for `/proc/PID/exe`.
    executable: SpinLock<Option<Arc<OpenFile>>>,
    /// Registrations of membarrier(2): bits of its commands.
    barriers: AtomicU32,
    /// Whether others of the same user may look into the process: `PR_SET_DUMPABLE`.
    is_dumpable: AtomicBool,
    /// The user namespace whose rights it takes to look into the process while it is closed.
    memory_users: SpinLock<Users>,
    /// `PR_SET_THP_DISABLE`, which a new program's space is told.
    huge_pages_are_off: AtomicBool,
    oom: SpinLock<OomAdjustment>,
    /// The mappings that a core dump has: `coredump_filter`.
    dump_filter: AtomicU32,
}

/// How willingly a process ends when memory runs out: `oom_score_adj`.
#[derive(Clone, Copy, Debug, Default)]
struct OomAdjustment {
    value: i32,
    /// How far it may be lowered without `CAP_SYS_RESOURCE`: what was set with it.
    lowest: i32,
}

/// Where things are in a program's memory, for `/proc`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessLayout {
    /// The strings of `argv`: start and end.
    pub arguments: (usize, usize),
    /// The strings of `envp`: start and end.
    pub environment: (usize, usize),
    /// The auxiliary vector: start and end.
    pub auxiliary: (usize, usize),
    /// The code of the program: start and end.
    pub code: (usize, usize),
    /// The stack pointer at the start.
    pub stack: usize,
}

impl RunningProgram {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits: SpinLock::new(limits),
            layout: SpinLock::new(ProcessLayout::default()),
            executable: SpinLock::new(None),
            barriers: AtomicU32::new(0),
            is_dumpable: AtomicBool::new(true),
            memory_users: SpinLock::new(None),
            huge_pages_are_off: AtomicBool::new(false),
            oom: SpinLock::new(OomAdjustment::default()),
            dump_filter: AtomicU32::new(core_dump::filter::DEFAULT),
        }
    }
}

impl Process {
    /// The user namespace whose rights it takes to look into the process while it is closed.
    #[must_use]
    pub fn memory_users(&self) -> Users {
        self.program.memory_users.lock().clone()
    }

    /// Says which that is: at `execve`, and for a child.
    pub fn set_memory_users(&self, users: Users) {
        let before = core::mem::replace(&mut *self.program.memory_users.lock(), users);
        drop(before);
    }

    /// All resource limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        *self.program.limits.lock()
    }

    /// A resource limit.
    #[must_use]
    pub fn limit(&self, resource: Resource) -> ResourceLimit {
        let none = ResourceLimit { soft: Limits::INFINITY, hard: Limits::INFINITY };
        self.program.limits.lock().get(resource as u32).unwrap_or(none)
    }

    /// Changes the resource limits in one step.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn change_limits<R>(&self, change: impl FnOnce(&mut Limits) -> Result<R, Errno>) -> Result<R, Errno> {
        let changed = change(&mut self.program.limits.lock())?;
        self.look_at_dump_limit();
        Ok(changed)
    }

    /// The limit of core dumps has changed, or is that of a new process.
    pub(in crate::process) fn look_at_dump_limit(&self) {
        let mut state = self.signal_state();
        state.set_dumps(self.limit(Resource::Core).soft >= dump::SIZE_MIN);
    }

    /// Whether the process leaves a core dump when a signal asks for one.
    #[must_use]
    pub fn dumps_core(&self) -> bool {
        self.is_dumpable() && self.limit(Resource::Core).soft >= dump::SIZE_MIN
    }

    /// The mappings that a core dump has, by kind: bits of core(5).
    #[must_use]
    pub fn dump_filter(&self) -> u32 {
        self.program.dump_filter.load(Ordering::Relaxed)
    }

    /// Sets the mappings that a core dump has; also for a child.
    pub fn set_dump_filter(&self, filter: u32) {
        self.program.dump_filter.store(filter & core_dump::filter::ALL, Ordering::Relaxed);
    }

    /// The number of descriptors the process may have: what `RLIMIT_NOFILE` says.
    #[must_use]
    pub fn descriptor_limit(&self) -> usize {
        usize::try_from(self.limit(Resource::OpenFiles).soft).unwrap_or(usize::MAX)
    }

    /// Where things are in the program's memory.
    #[must_use]
    pub fn layout(&self) -> ProcessLayout {
        *self.program.layout.lock()
    }

    /// The program's file.
    #[must_use]
    pub fn executable(&self) -> Option<Arc<OpenFile>> {
        self.program.executable.lock().clone()
    }

    /// The process runs this program from now on; with `None`, at its end, no program.
    pub fn set_program(&self, layout: ProcessLayout, executable: Option<Arc<OpenFile>>) {
        *self.program.layout.lock() = layout;
        let before = core::mem::replace(&mut *self.program.executable.lock(), executable);
        drop(before);
    }

    /// Whether others of the same user may look into the process.
    #[must_use]
    pub fn is_dumpable(&self) -> bool {
        self.program.is_dumpable.load(Ordering::Relaxed)
    }

    /// `PR_SET_THP_DISABLE`.
    pub fn set_huge_pages_off(&self, is_off: bool) {
        self.program.huge_pages_are_off.store(is_off, Ordering::Relaxed);
    }

    /// `PR_GET_THP_DISABLE`.
    #[must_use]
    pub fn huge_pages_are_off(&self) -> bool {
        self.program.huge_pages_are_off.load(Ordering::Relaxed)
    }

    /// `PR_SET_DUMPABLE`; also after a change of rights, and by `execve`.
    pub fn set_dumpable(&self, is_dumpable: bool) {
        self.program.is_dumpable.store(is_dumpable, Ordering::Relaxed);
    }

    /// How willingly the process ends when memory runs out: `oom_score_adj`.
    #[must_use]
    pub fn oom_adjustment(&self) -> i32 {
        self.program.oom.lock().value
    }

    /// Writes `oom_score_adj`, or with `is_legacy` `oom_adj`, which is measured against the value there is.
    ///
    /// # Errors
    /// `EINVAL`, `EACCES`: only the privileged lower it below the lowest value that one of them has set.
    pub fn set_oom_adjustment(&self, value: i32, is_privileged: bool, is_legacy: bool) -> Result<(), Errno> {
        if !(oom::ADJUSTMENT_MIN..=oom::ADJUSTMENT_MAX).contains(&value) {
            return Err(Errno::EINVAL);
        }
        let mut own = self.program.oom.lock();
        let lowest = if is_legacy { own.value } else { own.lowest };
        if value < lowest && !is_privileged {
            return Err(Errno::EACCES);
        }
        own.value = value;
        if is_privileged && !is_legacy {
            own.lowest = value;
        }
        Ok(())
    }

    /// The process is as willing as the one that makes it: `fork`.
    pub fn inherit_oom_adjustment(&self, parent: &Self) {
        let of_parent = *parent.program.oom.lock();
        *self.program.oom.lock() = of_parent;
    }

    /// Registrations of membarrier(2).
    #[must_use]
    pub fn barriers(&self) -> u32 {
        self.program.barriers.load(Ordering::Relaxed)
    }

    /// Registers commands of membarrier(2).
    pub fn add_barriers(&self, commands: u32) {
        self.program.barriers.fetch_or(commands, Ordering::Relaxed);
    }

    /// Replaces the registrations of membarrier(2): `fork`, `execve`.
    pub fn set_barriers(&self, commands: u32) {
        self.program.barriers.store(commands, Ordering::Relaxed);
    }
}
