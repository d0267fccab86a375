//! A lock-free range lock: exclusive and shared locks on ranges of any ordered type.
#![no_std]

extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

#[cfg(all(feature = "std", not(heddle_loom)))]
mod blocking;
#[cfg(all(feature = "capi", not(heddle_loom)))]
pub mod capi;
mod chunk;
mod epoch;
mod index;
mod inspect;
mod lock;
mod node;
mod raw;
mod request;
mod reshape;
mod span;
mod sync;
mod table;

#[cfg(not(heddle_loom))]
pub use epoch::SharedEpoch;
pub use epoch::{Context, DefaultEpoch, Domain, Epoch, OutOfMemory, Participant};
#[cfg(all(feature = "std", not(heddle_loom)))]
pub use epoch::{ThreadEpoch, ThreadSlot};
pub use inspect::Holder;
pub use lock::{LockError, Mode, RangeLock};
pub use raw::RawGuard;
pub use request::{Guard, Handle, LockFuture, OwnedGuard, RangeGuard, Request};
pub use span::Span;
