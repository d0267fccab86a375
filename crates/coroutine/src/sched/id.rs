//! Names of coroutines.

use core::fmt;
use core::num::NonZeroU64;

/// How many slots a table may have: an index has 24 bits.
pub const MAX_SLOTS: u32 = 1 << 24;

/// The name of a coroutine: the index of its slot and the generation of its use.
///
/// Ids are generational: when a coroutine ends, its slot's generation moves on, so an id that was kept reaches
/// nothing, and never the next coroutine in the slot. A slot whose 2^31 generations are used up is not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Id(NonZeroU64);

impl Id {
    /// Makes the id of slot `index` in generation `generation`; `None` unless it could name a live coroutine, whose
    /// generations are odd.
    #[inline(always)]
    pub const fn new(index: u32, generation: u32) -> Option<Id> {
        Id::from_bits(((generation as u64) << 32) | index as u64)
    }

    /// [`Id::new`] of a slot in which a coroutine lives.
    #[inline(always)]
    pub(super) const fn of_living(index: u32, generation: u32) -> Option<Id> {
        match NonZeroU64::new(((generation as u64) << 32) | index as u64) {
            Some(bits) => Some(Id(bits)),
            None => None,
        }
    }

    /// The id that [`Id::to_bits`] gave `bits` for; `None` if no id has these bits.
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> Option<Id> {
        let index = bits as u32;
        if index == 0 || index >= MAX_SLOTS || (bits >> 32) & 1 == 0 {
            return None;
        }
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Id(bits)),
            None => None,
        }
    }

    /// The id as an integer, to be kept where there is room for nothing else.
    #[inline(always)]
    pub const fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// Index of the slot.
    #[inline(always)]
    pub const fn index(self) -> u32 {
        self.0.get() as u32
    }

    /// Generation of the slot's use.
    #[inline(always)]
    pub const fn generation(self) -> u32 {
        (self.0.get() >> 32) as u32
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({}.{})", self.index(), self.generation())
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index(), self.generation())
    }
}
