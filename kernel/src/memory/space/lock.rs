//! The lock of a space's addresses: operations on disjoint ranges run in parallel, others one after another, in the
//! order of their arrival, as suspended coroutines.
//!
//! Each space has a concurrent range lock of its own, so processes share no cache line here. The boot option
//! [`KEY_SPACE_LOCK`]`=one` takes one lock per space instead, for comparison.
//!
//! `unsafe` here: the range lock's memory reclamation is told which participant belongs to this CPU, and objects of
//! mappings are followed because addresses of theirs are locked.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::{Deref, Range};
#[cfg(feature = "checking")]
use core::panic::Location;
use core::sync::atomic::{AtomicBool, Ordering};

use heddle_abi::boot::KEY_SPACE_LOCK;
use heddle_kernel_core::mapping::{Mapping, MappingOutline};
use heddle_kernel_core::tlb::{OneGuard, OneLock};
use heddle_range_lock::{
    Context, Domain, Epoch, Guard, OutOfMemory, Participant, RangeLock, Record, TryLockError,
};

use crate::arch::{MAX_CPUS, cpu};
use crate::boot;
use crate::error::Errno;
use crate::memory::source::Object;
#[cfg(feature = "checking")]
use crate::sync::order::Suspending;

static DOMAIN: Domain = Domain::new();
static PARTICIPANTS: [Participant; MAX_CPUS] = [const { Participant::new() }; MAX_CPUS];

/// Whether spaces have one lock each.
static IS_ONE: AtomicBool = AtomicBool::new(false);

/// Each CPU has its own participant, for good.
pub struct CpuEpoch;

// SAFETY: the participant is this CPU's own (`initialize` claims all of them), the kernel is cooperative, so nothing
// else runs on this CPU until the closure returns, and all participants belong to one domain.
unsafe impl Epoch for CpuEpoch {
    fn with<R>(f: impl FnOnce(Context) -> R) -> Result<R, OutOfMemory> {
        Ok(Self::with_any(f))
    }

    fn at_hand() -> Option<Context> {
        // SAFETY: as above.
        Some(unsafe { Context::new(&DOMAIN, &PARTICIPANTS[cpu::id()]) })
    }

    fn with_any<R>(f: impl FnOnce(Context) -> R) -> R {
        // SAFETY: as above.
        f(unsafe { Context::new(&DOMAIN, &PARTICIPANTS[cpu::id()]) })
    }
}

/// Gives each CPU its participant, and reads the boot option.
pub fn initialize() {
    IS_ONE.store(boot::is(KEY_SPACE_LOCK, "one"), Ordering::Relaxed);
    for participant in &PARTICIPANTS {
        DOMAIN.attach(participant);
        let _ = DOMAIN.claim_attached(participant);
    }
    #[cfg(feature = "checking")]
    crate::sync::order::set_reading(|| PARTICIPANTS[cpu::id()].is_reading());
}

/// Gives back the memory that this CPU's participant keeps for the next requests.
pub fn drain() {
    let participant = &PARTICIPANTS[cpu::id()];
    // SAFETY: this CPU holds the claim and is in no operation of a range lock; nothing runs here before the claim is
    // taken again, and other CPUs only ever take their own.
    unsafe { DOMAIN.release(participant) };
    let _ = DOMAIN.claim_attached(participant);
}

/// The lock of one space.
pub struct SpaceLock {
    #[cfg(feature = "checking")]
    class: heddle_kernel_core::lock_order::LockClass,
    kind: LockKind,
}

enum LockKind {
    /// By range.
    Ranges(RangeLock<usize, (), CpuEpoch>),
    /// All at once.
    One(OneLock),
}

/// The right to change the mappings and page-table entries of a range.
pub struct SpaceGuard<'a> {
    /// In the checking build every range is also reported to [`crate::sync::order`].
    #[cfg(feature = "checking")]
    #[allow(dead_code, reason = "held for its drop")]
    note: crate::sync::order::Suspending,
    guard: KindGuard<'a>,
}

/// The record of a mapping, found without the lock of all of them.
pub(super) type MappingRecord = Record<Mapping<Object>>;

/// The parts of a recorded mapping that own nothing.
#[inline]
pub(super) fn outline(record: &MappingRecord) -> MappingOutline {
    // SAFETY: an outline is made of the record's own bytes.
    unsafe { record.value() }.outline()
}

impl SpaceGuard<'_> {
    fn holds_part_of(&self, mapping: &MappingOutline) -> bool {
        match &self.guard {
            KindGuard::Range(guard) => guard.range().overlaps(&(mapping.start..mapping.end).into()),
            KindGuard::One(_) => true,
        }
    }

    /// The mapping that a record tells of, found in this space before or since its addresses were locked. `None` if that
    /// was before, and the record has been replaced.
    #[inline]
    pub(super) fn mapping(&self, record: &MappingRecord, is_found_since: bool) -> Option<LockedMapping<'_>> {
        debug_assert!(self.holds_part_of(&outline(record)), "addresses of the mapping are locked");
        // SAFETY: whoever changes what is mapped holds the lock of the addresses that it changes, and replaces records of
        // others by such with the same object (`kernel/core`'s `mapping`). So the object is mapped as long as this guard
        // holds an address of it.
        let copy = || unsafe { core::ptr::read(record.value()) };
        (is_found_since || record.is_current())
            .then(|| LockedMapping { copy: ManuallyDrop::new(copy()), guard: PhantomData })
    }
}

/// A mapping of which addresses are locked: a copy of its record that owns nothing, because the lock keeps the object. So
/// what comes of it may take longer than a pin may last.
pub(super) struct LockedMapping<'a> {
    copy: ManuallyDrop<Mapping<Object>>,
    guard: PhantomData<&'a SpaceGuard<'a>>,
}

impl Deref for LockedMapping<'_> {
    type Target = Mapping<Object>;

    #[inline]
    fn deref(&self) -> &Mapping<Object> {
        &self.copy
    }
}

enum KindGuard<'a> {
    /// Of the range lock.
    Range(Guard<'a, usize, (), CpuEpoch>),
    /// Of the one lock.
    One(#[allow(dead_code, reason = "held for its drop")] OneGuard<'a>),
}

impl SpaceLock {
    /// An unlocked lock of the kind that the machine was started with.
    pub fn new() -> Self {
        let is_one = IS_ONE.load(Ordering::Relaxed);
        Self {
            #[cfg(feature = "checking")]
            class: heddle_kernel_core::lock_order::LockClass::new(),
            kind: if is_one { LockKind::One(OneLock::default()) } else { LockKind::Ranges(RangeLock::new()) },
        }
    }

    /// Locks a range if no overlapping one is locked or waited for.
    ///
    /// # Errors
    /// `ENOMEM`.
    #[cfg_attr(feature = "checking", track_caller)]
    pub fn try_lock(&self, range: Range<usize>) -> Result<Option<SpaceGuard<'_>>, Errno> {
        #[cfg(feature = "checking")]
        let (part, place) = (self.part(&range), Location::caller());
        let guard = match &self.kind {
            LockKind::Ranges(lock) => match lock.try_lock(range) {
                Ok(guard) => Some(KindGuard::Range(guard)),
                Err(TryLockError::OutOfMemory) => return Err(Errno::ENOMEM),
                Err(_) => None,
            },
            LockKind::One(lock) => lock.try_lock().map(KindGuard::One),
        };
        Ok(guard.map(|guard| SpaceGuard {
            #[cfg(feature = "checking")]
            note: Suspending::had(&self.class, core::ptr::from_ref(self).addr(), part, place),
            guard,
        }))
    }

    /// Waits until no overlapping range is locked, and locks it.
    ///
    /// # Errors
    /// `ENOMEM`.
    #[cfg(not(feature = "checking"))]
    pub async fn lock(&self, range: Range<usize>) -> Result<SpaceGuard<'_>, Errno> {
        Ok(SpaceGuard { guard: self.wait(range).await? })
    }

    /// As in the ordinary build, and its order is checked.
    #[cfg(feature = "checking")]
    #[track_caller]
    pub fn lock(&self, range: Range<usize>) -> impl Future<Output = Result<SpaceGuard<'_>, Errno>> + Send {
        let (part, place) = (self.part(&range), Location::caller());
        let address = core::ptr::from_ref(self).addr();
        async move {
            Suspending::waiting(&self.class, address, part.clone(), place);
            let guard = self.wait(range).await?;
            Ok(SpaceGuard { note: Suspending::had(&self.class, address, part, place), guard })
        }
    }

    async fn wait(&self, range: Range<usize>) -> Result<KindGuard<'_>, Errno> {
        match &self.kind {
            LockKind::Ranges(lock) => {
                lock.lock_async(range).await.map(KindGuard::Range).map_err(|_| Errno::ENOMEM)
            }
            LockKind::One(lock) => Ok(KindGuard::One(lock.lock().await)),
        }
    }

    /// The part of the space that is locked when `range` is.
    #[cfg(feature = "checking")]
    fn part(&self, range: &Range<usize>) -> Range<usize> {
        match &self.kind {
            LockKind::Ranges(_) => range.clone(),
            LockKind::One(_) => 0..usize::MAX,
        }
    }
}
