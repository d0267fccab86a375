//! A lock-free range lock: exclusive and shared locks on ranges of any ordered type.
//!
//! ```
//! # #[cfg(feature = "std")] {
//! use heddle_range_lock::{RangeLock, TryLockError};
//!
//! let lock = RangeLock::<u64>::new();
//! let header = lock.try_lock(0..4096)?;
//! let rest = lock.lock_shared(4096..)?;
//! assert_eq!(lock.try_lock(100..200).unwrap_err(), TryLockError::Conflict);
//! drop(header);
//! assert!(lock.try_lock(100..200).is_ok());
//! # drop(rest);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The paper this begins with (Nguyen, "Concurrent Range Locking", 2024) keeps one skip-list node for each held
//! range. Here the key space is cut into buckets that hold a dozen ranges each: an acquisition is a binary search
//! in an array, a look through a few neighbouring cache lines, and one compare-and-swap; a release is one exchange.
//! `PROTOCOL.md` has the rules and the proof, `README.md` the uses, the memory and the figures.
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

mod append;
#[cfg(all(feature = "std", not(heddle_loom)))]
mod blocking;
#[cfg(all(feature = "capi", not(heddle_loom)))]
pub mod capi;
mod chunk;
mod epoch;
mod error;
#[cfg(all(test, feature = "std", not(any(heddle_loom, miri))))]
mod exhausted;
mod index;
mod inspect;
mod lock;
mod merge;
mod node;
#[cfg(all(feature = "std", not(heddle_loom)))]
mod parker;
mod queue;
mod raw;
mod records;
mod request;
mod reshape;
mod scatter;
mod slice;
mod span;
mod sync;
mod table;
mod wakers;

#[cfg(not(heddle_loom))]
pub use epoch::SharedEpoch;
pub use epoch::{Context, DefaultEpoch, Domain, Epoch, OutOfMemory, Participant};
#[cfg(all(feature = "std", not(heddle_loom)))]
pub use epoch::{ThreadEpoch, ThreadSlot};
pub use error::{LockError, TimeoutError, TryLockError};
pub use inspect::Holder;
pub use lock::{Mode, RangeLock};
pub use raw::RawGuard;
pub use records::{Record, RecordCursor, RecordIndex, RecordReader, Records, SpareRecords};
pub use request::{Guard, Handle, LockFuture, OwnedGuard, RangeGuard, Request};
pub use slice::{LockedSlice, SliceGuard, SliceGuardMut};
pub use span::Span;

/// The README's programs, compiled and run.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
