//! How urgent a coroutine is.

/// How many places in the order a level has.
pub const ORDERS: u8 = 8;
const ORDER_SHIFT: u32 = 3;

/// A level, and a place in an order within the level: coroutines of one level whose orders differ are queued by order,
/// those of one order first come, first served. The smaller is the more urgent, of levels and of orders.
///
/// Most have order 0, the first, and never pay for it. It is for those who have more priorities than there are levels.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rank(u16);

impl Rank {
    /// A level above the last counts as the last, and so does an order.
    #[inline(always)]
    pub const fn new(level: u8, order: u8) -> Rank {
        let level = if level > 63 { 63 } else { level };
        let order = if order >= ORDERS { ORDERS - 1 } else { order };
        Rank((level as u16) << ORDER_SHIFT | order as u16)
    }

    /// [`Rank::new`] of numbers that are a level and an order.
    #[inline(always)]
    pub(super) const fn pack(level: u8, order: u8) -> Rank {
        Rank::from_bits((level as u16) << ORDER_SHIFT | order as u16)
    }

    /// 0 to 63.
    #[inline(always)]
    pub const fn level(self) -> u8 {
        (self.0 >> ORDER_SHIFT) as u8
    }

    /// 0 to 7.
    #[inline(always)]
    pub const fn order(self) -> u8 {
        self.0 as u8 & (ORDERS - 1)
    }

    /// As a number that orders ranks as they are ordered.
    #[inline(always)]
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// The rank that [`Rank::to_bits`] gave `bits` for; of more bits only those that a rank has count.
    #[inline(always)]
    pub const fn from_bits(bits: u16) -> Rank {
        Rank(bits & 0x1ff)
    }
}

/// The first of a level.
impl From<u8> for Rank {
    #[inline(always)]
    fn from(level: u8) -> Rank {
        Rank::new(level, 0)
    }
}
