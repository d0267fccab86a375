//! The violation, in words that name both sides.

use core::fmt;

use crate::lock_order::{Place, Taken};

/// The longest circle that is shown whole.
pub const PATH_MAX: usize = 8;

/// An order that was seen: a lock made at `to` was taken while one made at `from` was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Where the held lock was made.
    pub from: Place,
    /// Where the new one was made.
    pub to: Place,
    /// Where the held one had been taken.
    pub held_at: Place,
    /// Where the new one was taken.
    pub taken_at: Place,
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (made at {}) was taken while {} (made at {}) was held",
            self.taken_at, self.to, self.held_at, self.from
        )
    }
}

/// An order that can deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A holder of the lock takes it again.
    SelfDeadlock {
        /// The lock as it is held.
        held: Taken,
        /// The lock as it is wanted.
        wanted: Taken,
        /// Where it was made.
        made: Place,
    },
    /// Two locks of one class are held together, and nothing says which comes first.
    SameClass {
        /// The lock that is held.
        held: Taken,
        /// The lock that is wanted.
        wanted: Taken,
        /// Where both were made.
        made: Place,
    },
    /// Two locks are taken in both orders.
    Inversion {
        /// The order now.
        now: Edge,
        /// The order seen before: a path from the new lock's class to that of the held one.
        before: [Option<Edge>; PATH_MAX],
    },
    /// There are more classes or orders than the graph has room for.
    Full,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SelfDeadlock { held, wanted, made } => write!(
                f,
                "lock order: the lock made at {made} is held since {} and taken again at {}",
                held.place, wanted.place
            ),
            Self::SameClass { held, wanted, made } => write!(
                f,
                "lock order: two locks made at {made} are held together: {} and {}",
                held.place, wanted.place
            ),
            Self::Inversion { now, before } => {
                write!(f, "lock order: {now}; before, ")?;
                for (number, edge) in before.iter().flatten().enumerate() {
                    write!(f, "{}{edge}", if number == 0 { "" } else { ", and " })?;
                }
                Ok(())
            }
            Self::Full => write!(f, "lock order: more classes or orders than the checker has room for"),
        }
    }
}
