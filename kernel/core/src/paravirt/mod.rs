//! The offers of KVM to its guests beyond a processor: the choice among them, pages and words that a guest shares with
//! it, and the arguments of its hypercalls. Machine access is behind [`GuestProcessor`]; tests play the host.
//!
//! - [`offers`]: which offers there are, and how their pages are announced.
//! - [`clock`]: the counter's frequency.
//! - [`steal`]: time that the host took away, and processors that it does not run.

use core::sync::atomic::{AtomicU32, Ordering};

pub mod clock;
pub mod offers;
mod preempted;
pub mod steal;

pub use clock::ClockPage;
pub use offers::{GuestProcessor, Offer, Offers};
pub use steal::StealWords;

/// The word by which KVM says that the end of the interrupt in service need not be told.
#[repr(C, align(4))]
#[derive(Debug, Default)]
pub struct EndWord(AtomicU32);

impl EndWord {
    /// The host has said nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Ends the interrupt in service by the word; `false` if the interrupt controller has to be told.
    #[must_use]
    pub fn end(&self) -> bool {
        self.0.load(Ordering::Relaxed) & 1 != 0 && self.0.swap(0, Ordering::AcqRel) & 1 != 0
    }
}

/// The hypercall that sends an interrupt to up to 128 processors.
pub const CALL_INTERRUPTS: u64 = 10;

/// Arguments of [`CALL_INTERRUPTS`] for processors with these APIC ids: two words of bits and the id of the first bit.
/// `None` if there are none, or they are too far apart.
#[must_use]
pub fn interrupt_set(ids: impl Iterator<Item = u32> + Clone) -> Option<[u64; 3]> {
    let first = ids.clone().min()?;
    let mut words = [0u64; 2];
    for id in ids {
        let bit = id - first;
        *words.get_mut((bit / u64::BITS) as usize)? |= 1 << (bit % u64::BITS);
    }
    Some([words[0], words[1], first.into()])
}

#[cfg(all(test, not(heddle_loom)))]
mod tests;
