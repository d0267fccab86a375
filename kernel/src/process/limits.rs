//! Resource limits, getrlimit(2).

use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general as linux;

use crate::memory::Space;

/// A soft and a hard limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    /// The limit in force.
    pub soft: u64,
    /// How far an ordinary user may raise it.
    pub hard: u64,
}

impl ResourceLimit {
    /// The largest value that `fs.nr_open` may have.
    pub const OPEN_FILES_MAX: u64 = 1 << 20;
    /// The largest value of `RLIMIT_NOFILE`: `fs.nr_open`.
    #[must_use]
    pub fn open_files_max() -> u64 {
        DESCRIPTORS_MAX.load(Ordering::Relaxed).into()
    }

    /// The hard limit of descriptors that the first process starts with.
    const OPEN_FILES_HARD: u64 = 4096;
}

/// `fs.nr_open`.
pub static DESCRIPTORS_MAX: AtomicU32 = AtomicU32::new(ResourceLimit::OPEN_FILES_MAX as u32);

/// Resources that can be limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are those of getrlimit(2)")]
pub enum Resource {
    CpuTime = linux::RLIMIT_CPU,
    FileSize = linux::RLIMIT_FSIZE,
    Data = linux::RLIMIT_DATA,
    Stack = linux::RLIMIT_STACK,
    Core = linux::RLIMIT_CORE,
    ResidentSet = linux::RLIMIT_RSS,
    Processes = linux::RLIMIT_NPROC,
    OpenFiles = linux::RLIMIT_NOFILE,
    LockedMemory = linux::RLIMIT_MEMLOCK,
    AddressSpace = linux::RLIMIT_AS,
    FileLocks = linux::RLIMIT_LOCKS,
    PendingSignals = linux::RLIMIT_SIGPENDING,
    MessageQueues = linux::RLIMIT_MSGQUEUE,
    Nice = linux::RLIMIT_NICE,
    RealtimePriority = linux::RLIMIT_RTPRIO,
    RealtimeTime = linux::RLIMIT_RTTIME,
}

/// The limits of a process.
#[derive(Clone, Copy, Debug)]
pub struct Limits([ResourceLimit; Self::COUNT]);

impl Limits {
    /// The number of resources.
    pub const COUNT: usize = linux::RLIM_NLIMITS as usize;
    /// No limit.
    pub const INFINITY: u64 = u64::MAX;

    /// The limits of the first process: Linux's own defaults.
    #[must_use]
    pub const fn initial() -> Self {
        const NONE: ResourceLimit = ResourceLimit { soft: Limits::INFINITY, hard: Limits::INFINITY };
        let mut limits = [NONE; Self::COUNT];
        limits[linux::RLIMIT_STACK as usize].soft = 8 << 20;
        limits[linux::RLIMIT_CORE as usize].soft = 0;
        limits[linux::RLIMIT_NOFILE as usize] =
            ResourceLimit { soft: 1024, hard: ResourceLimit::OPEN_FILES_HARD };
        limits[linux::RLIMIT_MEMLOCK as usize] = ResourceLimit { soft: 8 << 20, hard: 8 << 20 };
        limits[linux::RLIMIT_SIGPENDING as usize] = ResourceLimit { soft: 4096, hard: 4096 };
        limits[linux::RLIMIT_NPROC as usize] = ResourceLimit { soft: 30_000, hard: 30_000 };
        limits[linux::RLIMIT_MSGQUEUE as usize] = ResourceLimit { soft: 819_200, hard: 819_200 };
        limits[linux::RLIMIT_NICE as usize] = ResourceLimit { soft: 0, hard: 0 };
        limits[linux::RLIMIT_RTPRIO as usize] = ResourceLimit { soft: 0, hard: 0 };
        Self(limits)
    }

    /// Limits a space by what the soft limits say of memory.
    pub fn limit_space(&self, space: &Space) {
        let soft = |resource: Resource| {
            let limit = self.get(resource as u32).map_or(Self::INFINITY, |limit| limit.soft);
            usize::try_from(limit).unwrap_or(usize::MAX)
        };
        space.set_limits(soft(Resource::AddressSpace), soft(Resource::Data), soft(Resource::Stack));
    }

    /// The limit of a resource by its number, if there is one.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<ResourceLimit> {
        self.0.get(number as usize).copied()
    }

    /// Changes a limit; the number must be one that [`Limits::get`] knows.
    pub fn set(&mut self, number: u32, limit: ResourceLimit) {
        if let Some(place) = self.0.get_mut(number as usize) {
            *place = limit;
        }
    }
}
