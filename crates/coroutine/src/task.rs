//! A coroutine's memory: header, then the future or its output, in one allocation.
#![allow(unsafe_code)] // Futures of any type are kept behind one pointer, in memory whose allocation may fail.

#[cfg(feature = "std")]
use crate::blocks::{give as give_block, take as take_block};
use crate::builder::Builder;
use crate::foreign::contain;
use crate::join::{JoinCell, Leave};
use crate::sched::Slot;
use crate::sync::Ordering;
#[cfg(not(feature = "std"))]
use alloc::alloc::{alloc as take_block, dealloc as give_block};
#[cfg(feature = "std")]
use alloc::boxed::Box;
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::future::Future;
use core::mem::{self, ManuallyDrop, MaybeUninit};
use core::pin::Pin;
use core::ptr::{self, NonNull};
use core::task::{Context, Poll};

/// Why a coroutine gave no output.
pub struct JoinError(pub(crate) Failure);

pub(crate) enum Failure {
    /// It was aborted, or its executor ended first.
    Cancelled,
    /// Its future panicked, with this payload. Boxed twice, so that a result takes two words and not three.
    #[cfg(feature = "std")]
    Panicked(Box<Payload>),
}

#[cfg(feature = "std")]
type Payload = Box<dyn core::any::Any + Send + 'static>;

/// The part of a task that is the same for every coroutine.
#[repr(C)]
pub(crate) struct Header {
    vtable: &'static Vtable,
    pub join: JoinCell,
}

const _: () = assert!(size_of::<Header>() == 24, "figures of bytes per coroutine rest on this");

struct Vtable {
    poll: unsafe fn(NonNull<Header>, &mut Context<'_>) -> bool,
    cancel: unsafe fn(NonNull<Header>),
    read_output: unsafe fn(NonNull<Header>, *mut ()),
    drop_output: unsafe fn(NonNull<Header>),
    free: unsafe fn(NonNull<Header>),
    extras: unsafe fn(NonNull<Header>) -> Extras,
}

#[repr(C)]
struct Task<F: Future> {
    header: Header,
    stage: UnsafeCell<Stage<F>>,
}

/// The future until the end, its output or the failure after.
union Stage<F: Future> {
    future: ManuallyDrop<F>,
    output: ManuallyDrop<Result<F::Output, JoinError>>,
}

/// Attributes of a coroutine that the scheduler has no use for.
#[derive(Clone, Copy)]
pub(crate) struct Extras {
    pub name: Option<&'static str>,
    pub kind: u32,
}

const NO_EXTRAS: Extras = Extras { name: None, kind: 0 };

/// A coroutine with a name or a kind, for which others don't pay: they lie before the header.
#[repr(C)]
struct Named<F: Future> {
    extras: Extras,
    task: Task<F>,
}

/// A mask of cores as a coroutine keeps it, in the 32 bits that its memory has room for: the last one stands for all
/// cores from that number on.
const fn kept(mask: u64) -> u32 {
    let beyond = mask >> (u32::BITS - 1) != 0;
    mask as u32 & (u32::MAX >> 1) | (beyond as u32) << (u32::BITS - 1)
}

/// The mask that was kept: its last bit is that of all cores from there on.
#[inline(always)]
const fn spread(kept: u32) -> u64 {
    kept as i32 as i64 as u64
}

/// Which cores the coroutine in `slot` may run on. The caller holds the gate of its owner, and it is queued, or the
/// caller runs its turn: so its memory is there.
pub(crate) fn cores_of(slot: &Slot) -> u64 {
    let task = slot.task().cast::<Header>();
    // SAFETY: the task pointer of a queued coroutine is that of its header, valid until its last turn ends.
    unsafe { task.as_ref() }.map_or(u64::MAX, |header| spread(header.join.cores.load(Ordering::Relaxed)))
}

/// Sets which cores the coroutine in `slot`, whose turn the caller runs, may run on. `false` if it has to stay on its
/// thread: its future need not be `Send`, and may lie in a frame there.
pub(crate) fn set_cores(slot: &Slot, mask: u64) -> bool {
    let task = slot.task().cast::<Header>();
    // SAFETY: the task pointer of a running coroutine is that of its header, valid until its last turn ends.
    let header = unsafe { task.as_ref() }.filter(|header| !header.join.is_local());
    header.map(|header| header.join.cores.store(kept(mask), Ordering::Relaxed)).is_some()
}

/// Puts `future` into memory of its own; gives it back if there is none.
pub(crate) fn allocate<F: Future>(future: F, local: bool, builder: Builder) -> Result<NonNull<Header>, F> {
    let extras = Extras { name: builder.name, kind: builder.kind };
    let plain = extras.name.is_none() && extras.kind == 0;
    let layout = if plain { Layout::new::<Task<F>>() } else { Layout::new::<Named<F>>() };
    // SAFETY: the layout is not zero-sized, since the header is not.
    let Some(memory) = NonNull::new(unsafe { take_block(layout) }) else { return Err(future) };
    let task = |vtable| Task {
        header: Header { vtable, join: JoinCell::new(local, kept(builder.cores)) },
        stage: UnsafeCell::new(Stage { future: ManuallyDrop::new(future) }),
    };
    if plain {
        // SAFETY: freshly allocated with this layout.
        unsafe { memory.cast().write(task(&Task::<F>::VTABLE)) };
        return Ok(memory.cast());
    }
    // SAFETY: freshly allocated with this layout.
    unsafe { memory.cast().write(Named { extras, task: task(&Task::<F>::NAMED_VTABLE) }) };
    // SAFETY: the offset of a field is within its structure.
    Ok(unsafe { memory.byte_add(mem::offset_of!(Named<F>, task)) }.cast())
}

/// A coroutine in its caller's stack frame, which stays until it has ended.
#[cfg(feature = "std")]
pub(crate) struct Framed<F: Future>(Task<F>);

#[cfg(feature = "std")]
impl<F: Future> Framed<F> {
    pub fn new(future: F, builder: Builder) -> Framed<F> {
        let vtable = &Task::<F>::FRAMED_VTABLE;
        Framed(Task {
            header: Header { vtable, join: JoinCell::new(true, kept(builder.cores)) },
            stage: UnsafeCell::new(Stage { future: ManuallyDrop::new(future) }),
        })
    }

    /// The pointer for a slot. The frame must not move or end before the coroutine has.
    pub fn task(self: Pin<&mut Self>) -> TaskRef {
        // SAFETY: nothing is moved out; the pointer is to the whole task.
        TaskRef(NonNull::from(unsafe { self.get_unchecked_mut() }).cast())
    }
}

impl<F: Future> Task<F> {
    #[cfg(feature = "std")]
    const FRAMED_VTABLE: Vtable = Vtable { free: |_| (), ..Task::<F>::VTABLE };

    const VTABLE: Vtable = Vtable {
        poll: Task::<F>::poll,
        cancel: Task::<F>::cancel,
        read_output: Task::<F>::read_output,
        drop_output: Task::<F>::drop_output,
        free: Task::<F>::free,
        extras: |_| NO_EXTRAS,
    };

    const NAMED_VTABLE: Vtable =
        Vtable { free: Task::<F>::free_named, extras: Task::<F>::extras, ..Task::<F>::VTABLE };

    /// Polls the future; at its end drops it and stores the output. Returns whether it ended.
    unsafe fn poll(task: NonNull<Header>, cx: &mut Context<'_>) -> bool {
        // SAFETY: `task` heads a `Task<F>`; the executor, its only poller, holds the stage until completion.
        let stage = unsafe { task.cast::<Task<F>>().as_ref() }.stage.get();
        // SAFETY: before completion the stage is the future, which never moves after its first poll.
        let future = unsafe { Pin::new_unchecked(&mut *(*stage).future) };
        match guarded(|| future.poll(cx)) {
            Ok(Poll::Pending) => false,
            Ok(Poll::Ready(output)) => {
                // SAFETY: `stage` as above; from here on it is not the future any more.
                unsafe { Self::end(stage, Ok(output)) };
                true
            }
            Err(failure) => {
                // SAFETY: as above.
                unsafe { Self::end(stage, Err(failure)) };
                true
            }
        }
    }

    unsafe fn cancel(task: NonNull<Header>) {
        // SAFETY: as in `poll`.
        let stage = unsafe { task.cast::<Task<F>>().as_ref() }.stage.get();
        // SAFETY: as in `poll`.
        unsafe { Self::end(stage, Err(JoinError(Failure::Cancelled))) };
    }

    /// Drops the future and stores `output`. If the drop panics, that is the result.
    unsafe fn end(stage: *mut Stage<F>, output: Result<F::Output, JoinError>) {
        // SAFETY: the stage is the future; it is dropped once, here, in place.
        let dropped = guarded(|| unsafe { ManuallyDrop::drop(&mut (*stage).future) });
        let output = match dropped {
            Ok(()) => output,
            Err(failure) => {
                contain(|| drop(output));
                Err(failure)
            }
        };
        // SAFETY: the stage's memory is large enough for the output and holds nothing that needs a drop.
        unsafe { ptr::addr_of_mut!((*stage).output).write(ManuallyDrop::new(output)) };
    }

    unsafe fn read_output(task: NonNull<Header>, to: *mut ()) {
        // SAFETY: after completion the stage is the output; the join state lets one party take it once. `to` is a
        // place for an output by the caller's contract.
        unsafe {
            let output = ManuallyDrop::take(&mut (*task.cast::<Task<F>>().as_ref().stage.get()).output);
            to.cast::<Result<F::Output, JoinError>>().write(output);
        }
    }

    unsafe fn drop_output(task: NonNull<Header>) {
        // SAFETY: after completion the stage is the output; the join state lets one party drop it once.
        unsafe { ManuallyDrop::drop(&mut (*task.cast::<Task<F>>().as_ref().stage.get()).output) };
    }

    unsafe fn free(task: NonNull<Header>) {
        // SAFETY: `task` came from `allocate::<F>` and nobody refers to it any more.
        unsafe { give_block(task.cast().as_ptr(), Layout::new::<Task<F>>()) };
    }

    unsafe fn free_named(task: NonNull<Header>) {
        // SAFETY: `task` lies within a `Named<F>` that `allocate::<F>` made, and nobody refers to it any more.
        unsafe { give_block(Self::named(task).cast().as_ptr(), Layout::new::<Named<F>>()) };
    }

    unsafe fn extras(task: NonNull<Header>) -> Extras {
        // SAFETY: `task` lies within a `Named<F>`, which is there while a party is.
        unsafe { Self::named(task).as_ref() }.extras
    }

    unsafe fn named(task: NonNull<Header>) -> NonNull<Named<F>> {
        // SAFETY: `task` lies at this offset of a `Named<F>`.
        unsafe { task.byte_sub(mem::offset_of!(Named<F>, task)) }.cast()
    }
}

/// Runs `f`; under `std` a panic becomes a failure, elsewhere it is the platform's to handle.
#[inline(always)]
fn guarded<R>(f: impl FnOnce() -> R) -> Result<R, JoinError> {
    #[cfg(feature = "std")]
    return std::panic::catch_unwind(std::panic::AssertUnwindSafe(f))
        .map_err(|payload| JoinError(Failure::Panicked(Box::new(payload))));
    #[cfg(not(feature = "std"))]
    Ok(f())
}

/// A coroutine's memory as its executor or its handle holds it: not counted, see [`JoinCell`].
#[derive(Clone, Copy)]
pub(crate) struct TaskRef(pub NonNull<Header>);

impl TaskRef {
    #[inline(always)]
    pub fn header(&self) -> &Header {
        // SAFETY: whoever holds a `TaskRef` is a party that has not left, so the memory is there.
        unsafe { self.0.as_ref() }
    }

    /// # Safety
    /// The caller runs the coroutine's turn.
    #[inline(always)]
    pub unsafe fn poll(self, cx: &mut Context<'_>) -> bool {
        // SAFETY: by contract; the vtable is that of the task's type.
        unsafe { (self.header().vtable.poll)(self.0, cx) }
    }

    /// # Safety
    /// The caller runs the coroutine's last turn: `complete` follows.
    pub unsafe fn cancel(self) {
        // SAFETY: by contract.
        unsafe { (self.header().vtable.cancel)(self.0) }
    }

    /// Executor: announces the stored output and leaves.
    ///
    /// # Safety
    /// The output is stored, and the executor does not use `self` again.
    #[inline(always)]
    pub unsafe fn complete(self) {
        match self.header().join.complete() {
            Leave::Nothing => {}
            // SAFETY: the join state says that both parties have left.
            Leave::Free => unsafe { self.free() },
            Leave::DropOutput => {
                // SAFETY: the handle is gone, so the output is the executor's to drop.
                contain(|| unsafe { (self.header().vtable.drop_output)(self.0) });
                // SAFETY: the handle is gone, and the executor leaves.
                unsafe { self.free() };
            }
        }
    }

    /// Handle: moves the output out.
    ///
    /// # Safety
    /// `T` is the future's output; the join state said that the output is there and was not taken.
    pub unsafe fn read_output<T>(self) -> Result<T, JoinError> {
        let mut output = MaybeUninit::<Result<T, JoinError>>::uninit();
        // SAFETY: by contract `T` is the type that the task stored, so the place fits and is filled.
        unsafe {
            (self.header().vtable.read_output)(self.0, output.as_mut_ptr().cast());
            output.assume_init()
        }
    }

    /// Handle: leaves.
    ///
    /// # Safety
    /// The handle does not use `self` again.
    #[inline(always)]
    pub unsafe fn drop_handle(self) {
        match self.header().join.drop_handle() {
            Leave::Nothing => {}
            // SAFETY: the join state says that both parties have left.
            Leave::Free => unsafe { self.free() },
            Leave::DropOutput => {
                let free = FreeOnDrop(self);
                // SAFETY: complete and not taken: the output is the handle's. If its drop panics, `free` still runs.
                unsafe { (self.header().vtable.drop_output)(self.0) };
                drop(free);
            }
        }
    }

    /// Drops a future that was never spawned.
    ///
    /// # Safety
    /// Nobody else has the task.
    pub unsafe fn discard(self) {
        // SAFETY: by contract the caller is both parties.
        unsafe {
            self.cancel();
            (self.header().vtable.drop_output)(self.0);
            self.free();
        }
    }

    unsafe fn free(self) {
        self.header().join.clear();
        // SAFETY: by the callers' argument both parties have left.
        unsafe { (self.header().vtable.free)(self.0) };
    }

    pub fn extras(&self) -> Extras {
        // SAFETY: the vtable is that of the task's type.
        unsafe { (self.header().vtable.extras)(self.0) }
    }
}

/// Leaves on the handle's behalf once the output is dropped.
struct FreeOnDrop(TaskRef);

impl Drop for FreeOnDrop {
    fn drop(&mut self) {
        if self.0.header().join.output_dropped() {
            // SAFETY: the join state says that both parties have left.
            unsafe { self.0.free() };
        }
    }
}
