//! `io_uring`: requests that programs written for Linux submit in a ring.
//!
//! - [`ring`]: the memory of the rings, completions, and what is under way.
//! - [`operation`]: how an entry becomes a result, or the future of one. Most are system calls, made by an
//!   [`AsyncRequest`](crate::call::asynchronous::AsyncRequest).
//!   [`select`]: with buffers that the program provides, and with more than one completion; [`direct`]: with registered
//!   files; [`poll`], [`timeout`], [`cancel`], [`message_ring`].
//! - [`request`]: chains of entries and their coroutine; [`completions`]: what becomes of their results.
//! - [`submit`]: io_uring_enter(2); [`poller`]: the coroutine that takes submissions without it.
//! - [`register`]: io_uring_register(2); [`resources`], [`provided`], [`registered_rings`]: what is registered.

mod cancel;
mod completions;
mod direct;
mod message_ring;
mod operation;
mod poll;
mod poller;
mod provided;
pub mod register;
mod register_resources;
mod registered_rings;
mod request;
mod resources;
mod ring;
mod select;
mod submit;
mod timeout;

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::io_uring as abi;

use heddle_kernel_core::uring::{RingLayout, at};

use crate::call::caller::Caller;
use crate::error::Errno;
use crate::fs::{OpenFile, StatusFlags, downcast_arc};
use crate::memory::fallible;
use crate::syscall::fs::get;
use crate::syscall::uring::poller::Poller;
use crate::syscall::uring::ring::RingMemory;
use crate::syscall::{Call, SyscallResult, pending};

pub use crate::syscall::uring::request::level_of_priority;
pub use crate::syscall::uring::ring::Uring;
pub use crate::syscall::uring::submit::io_uring_enter;

const SETUP_KNOWN: u32 = abi::IORING_SETUP_IOPOLL
    | abi::IORING_SETUP_SQPOLL
    | abi::IORING_SETUP_SQ_AFF
    | abi::IORING_SETUP_CQSIZE
    | abi::IORING_SETUP_CLAMP
    | abi::IORING_SETUP_ATTACH_WQ
    | abi::IORING_SETUP_R_DISABLED
    | abi::IORING_SETUP_SUBMIT_ALL
    | abi::IORING_SETUP_COOP_TASKRUN
    | abi::IORING_SETUP_TASKRUN_FLAG
    | abi::IORING_SETUP_SQE128
    | abi::IORING_SETUP_CQE32
    | abi::IORING_SETUP_SINGLE_ISSUER
    | abi::IORING_SETUP_DEFER_TASKRUN;

const FEATURES: u32 = abi::IORING_FEAT_SINGLE_MMAP
    | abi::IORING_FEAT_NODROP
    | abi::IORING_FEAT_SUBMIT_STABLE
    | abi::IORING_FEAT_RW_CUR_POS
    | abi::IORING_FEAT_CUR_PERSONALITY
    | abi::IORING_FEAT_FAST_POLL
    | abi::IORING_FEAT_POLL_32BITS
    | abi::IORING_FEAT_SQPOLL_NONFIXED
    | abi::IORING_FEAT_EXT_ARG
    | abi::IORING_FEAT_NATIVE_WORKERS
    | abi::IORING_FEAT_RSRC_TAGS
    | abi::IORING_FEAT_CQE_SKIP
    | abi::IORING_FEAT_LINKED_FILE;

/// The idle time of a poller that asks for none, and the unit of what it asks for.
const IDLE_DEFAULT_NS: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;

/// Words of `struct io_uring_params`.
const PARAMETER_WORDS: usize = size_of::<abi::io_uring_params>() / size_of::<u32>();

/// io_uring_setup(2).
pub fn io_uring_setup(call: &mut Call<'_>) -> SyscallResult {
    let (entries, address) = (call.uint(0), call.word(1));
    let bytes: [u8; PARAMETER_WORDS * 4] = get(call, address)?;
    let mut given = [0; PARAMETER_WORDS];
    for (word, bytes) in given.iter_mut().zip(bytes.as_chunks().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    let setup = given[2];
    // Behind the features and the descriptor of another ring, which is not looked at, are reserved words.
    if setup & !SETUP_KNOWN != 0 || given[7..10].iter().any(|&word| word != 0) {
        return Err(Errno::EINVAL.into());
    }
    check_setup(setup)?;
    let layout = RingLayout::new(entries, given[1], setup).map_err(|_| Errno::EINVAL)?;
    let caller = call.thread.clone();
    pending(async move {
        let memory = RingMemory::new(layout).await?;
        let is_enabled = setup & abi::IORING_SETUP_R_DISABLED == 0;
        let ring = Uring::new(memory, setup, is_enabled)?;
        if is_enabled && setup & abi::IORING_SETUP_SINGLE_ISSUER != 0 {
            ring.issuer.store(caller.tid() as u32, Ordering::Relaxed);
        }
        start_poller(&ring, &caller, [given[3], given[4], given[6]])?;
        let open = fallible::try_arc(OpenFile::new(ring, StatusFlags::RDWR))?;
        let words = parameters(layout, setup, [given[3], given[4]]);
        let answer = words.map(u32::to_ne_bytes);
        caller.resolve(|space| space.write_bytes(address, answer.as_flattened())).await?;
        let limit = caller.process.descriptor_limit();
        Ok(caller.descriptors().add(open, 0, limit, true)? as usize)
    })
}

/// Flags that make no sense together.
fn check_setup(setup: u32) -> Result<(), Errno> {
    let has = |flag: u32| setup & flag != 0;
    const RUNS: u32 =
        abi::IORING_SETUP_COOP_TASKRUN | abi::IORING_SETUP_TASKRUN_FLAG | abi::IORING_SETUP_DEFER_TASKRUN;
    let is_wrong = if has(abi::IORING_SETUP_SQPOLL) {
        has(RUNS)
    } else {
        has(abi::IORING_SETUP_SQ_AFF)
            || has(abi::IORING_SETUP_TASKRUN_FLAG)
                && !has(abi::IORING_SETUP_COOP_TASKRUN | abi::IORING_SETUP_DEFER_TASKRUN)
    };
    let is_shared = has(abi::IORING_SETUP_DEFER_TASKRUN) && !has(abi::IORING_SETUP_SINGLE_ISSUER);
    if is_wrong || is_shared { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Starts the coroutine that takes submissions, or joins that of another ring.
fn start_poller(ring: &Arc<Uring>, caller: &Caller, [cpu, idle_ms, other]: [u32; 3]) -> Result<(), Errno> {
    let attached = if ring.setup & abi::IORING_SETUP_ATTACH_WQ == 0 {
        None
    } else {
        let open = caller.descriptors().get(other.cast_signed()).map_err(|_| Errno::ENXIO)?;
        Some(downcast_arc::<Uring>(&open.file).ok_or(Errno::EINVAL)?)
    };
    if ring.setup & abi::IORING_SETUP_SQPOLL == 0 {
        return Ok(());
    }
    let idle_ns = if idle_ms == 0 { IDLE_DEFAULT_NS } else { u64::from(idle_ms) * NS_PER_MS };
    let affinity = if ring.setup & abi::IORING_SETUP_SQ_AFF == 0 {
        u64::MAX
    } else {
        1_u64.checked_shl(cpu).ok_or(Errno::EINVAL)?
    };
    let shared = match &attached {
        Some(attached) => Some(attached.poller.get().ok_or(Errno::EINVAL)?),
        None => None,
    };
    // That of another process is not joined.
    let shared = shared.filter(|poller| poller.is_of(&caller.process) && !poller.is_over());
    let poller = match shared {
        Some(poller) => {
            poller.add(ring, idle_ns)?;
            poller.clone()
        }
        None => Poller::start(ring, caller, idle_ns, affinity)?,
    };
    ring.poller.call_once(|| poller);
    Ok(())
}

fn parameters(layout: RingLayout, setup: u32, [cpu, idle]: [u32; 2]) -> [u32; PARAMETER_WORDS] {
    let head = [layout.sq_entries, layout.cq_entries, setup, cpu, idle, FEATURES, 0, 0, 0, 0];
    let submission =
        [at::SQ_HEAD, at::SQ_TAIL, at::SQ_MASK, at::SQ_ENTRIES, at::SQ_FLAGS, at::SQ_DROPPED, layout.array()];
    let completion =
        [at::CQ_HEAD, at::CQ_TAIL, at::CQ_MASK, at::CQ_ENTRIES, at::CQ_OVERFLOW, at::CQES, at::CQ_FLAGS];
    let mut words = [0; PARAMETER_WORDS];
    words[..10].copy_from_slice(&head);
    for (word, offset) in words[10..].iter_mut().zip(submission) {
        *word = offset as u32;
    }
    for (word, offset) in words[20..].iter_mut().zip(completion) {
        *word = offset as u32;
    }
    words
}
