//! The orders that have been seen.

use core::sync::atomic::{AtomicU64, Ordering};

use spin::mutex::SpinMutex;

use crate::lock_order::{Edge, Held, LockClass, PATH_MAX, Place, Report, Taken};

/// The most classes, levels counted apart.
pub const CLASSES: usize = 256;
/// The most orders.
pub const EDGES: usize = 4096;

/// The number of a class that has none yet.
pub(crate) const UNKNOWN: u16 = u16::MAX;

const WORD_BITS: usize = 64;
const WORDS: usize = CLASSES / WORD_BITS;

type Bits = [u64; WORDS];

/// Classes and the orders in which they were taken.
#[derive(Debug)]
pub struct Graph {
    /// By class, the classes that were taken while it was held: what was seen before costs one look.
    after: [[AtomicU64; WORDS]; CLASSES],
    records: SpinMutex<Records>,
}

#[derive(Debug)]
struct Records {
    /// Where the locks of a class are made, and their level.
    classes: [Option<(Place, u8)>; CLASSES],
    class_count: usize,
    edges: [Option<(u16, u16, Edge)>; EDGES],
    edge_count: usize,
}

impl Graph {
    /// Nothing was seen.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            after: [const { [const { AtomicU64::new(0) }; WORDS] }; CLASSES],
            records: SpinMutex::new(Records {
                classes: [None; CLASSES],
                class_count: 0,
                edges: [None; EDGES],
                edge_count: 0,
            }),
        }
    }

    /// The number of a class; locks of one class that may be held together are told apart by `level`, which must grow
    /// from one to the next.
    ///
    /// # Errors
    /// [`Report::Full`].
    pub fn number(&self, class: &LockClass, level: u8) -> Result<u16, Report> {
        let known = class.number.load(Ordering::Relaxed);
        if level == 0 && known != UNKNOWN {
            return Ok(known);
        }
        let number = self.records.lock().number(class.place, level)?;
        if level == 0 {
            class.number.store(number, Ordering::Relaxed);
        }
        Ok(number)
    }

    /// Takes note that `wanted` is about to be taken, waiting if need be, by the holder of `held`.
    ///
    /// # Errors
    /// The order can deadlock.
    pub fn take<const MAX: usize>(&self, held: &Held<MAX>, wanted: &Taken) -> Result<(), Report> {
        for taken in held.iter() {
            if taken.overlaps(wanted) {
                let made = self.made(wanted.class);
                return Err(Report::SelfDeadlock { held: taken.clone(), wanted: wanted.clone(), made });
            }
            if taken.class == wanted.class {
                // Parts of one lock have an order: that of the addresses.
                if taken.lock == wanted.lock && taken.part.start < wanted.part.start {
                    continue;
                }
                let made = self.made(wanted.class);
                return Err(Report::SameClass { held: taken.clone(), wanted: wanted.clone(), made });
            }
            if !self.is_known(taken.class, wanted.class) {
                self.add(taken, wanted)?;
            }
        }
        Ok(())
    }

    fn made(&self, class: u16) -> Place {
        self.records.lock().made(class)
    }

    fn is_known(&self, from: u16, to: u16) -> bool {
        let (word, bit) = place_of(to);
        self.after[usize::from(from)][word].load(Ordering::Relaxed) & bit != 0
    }

    fn add(&self, held: &Taken, wanted: &Taken) -> Result<(), Report> {
        let mut records = self.records.lock();
        if self.is_known(held.class, wanted.class) {
            return Ok(());
        }
        let now = Edge {
            from: records.made(held.class),
            to: records.made(wanted.class),
            held_at: held.place,
            taken_at: wanted.place,
        };
        if let Some(before) = self.way(&records, wanted.class, held.class) {
            return Err(Report::Inversion { now, before });
        }
        let count = records.edge_count;
        *records.edges.get_mut(count).ok_or(Report::Full)? = Some((held.class, wanted.class, now));
        records.edge_count += 1;
        let (word, bit) = place_of(wanted.class);
        self.after[usize::from(held.class)][word].fetch_or(bit, Ordering::Relaxed);
        Ok(())
    }

    /// A shortest path of orders from one class to another, at most the first [`PATH_MAX`] of it.
    fn way(&self, records: &Records, from: u16, to: u16) -> Option<[Option<Edge>; PATH_MAX]> {
        let mut seen: Bits = [0; WORDS];
        let mut reached_from = [UNKNOWN; CLASSES];
        let mut queue = [0u16; CLASSES];
        let (mut first, mut end) = (0, 1);
        queue[0] = from;
        mark(&mut seen, from);
        while first < end {
            let class = queue[first];
            first += 1;
            if class == to {
                return Some(records.path(&reached_from, from, to));
            }
            for next in 0..records.class_count as u16 {
                if self.is_known(class, next) && mark(&mut seen, next) {
                    reached_from[usize::from(next)] = class;
                    queue[end] = next;
                    end += 1;
                }
            }
        }
        None
    }
}

impl Default for Graph {
    fn default() -> Self {
        Self::new()
    }
}

impl Records {
    fn number(&mut self, place: Place, level: u8) -> Result<u16, Report> {
        let known = &self.classes[..self.class_count];
        // One place may have several addresses, one in each unit of the compiler's work.
        if let Some(number) = known.iter().position(|class| *class == Some((place, level))) {
            return Ok(number as u16);
        }
        *self.classes.get_mut(self.class_count).ok_or(Report::Full)? = Some((place, level));
        self.class_count += 1;
        Ok(self.class_count as u16 - 1)
    }

    fn made(&self, class: u16) -> Place {
        let known = self.classes.get(usize::from(class)).copied().flatten();
        known.map_or(core::panic::Location::caller(), |(place, _)| place)
    }

    fn path(&self, reached_from: &[u16; CLASSES], from: u16, to: u16) -> [Option<Edge>; PATH_MAX] {
        let edge = |a: u16, b: u16| {
            let mut edges = self.edges[..self.edge_count].iter().flatten();
            edges.find(|(from, to, _)| (*from, *to) == (a, b)).map(|(_, _, edge)| *edge)
        };
        let mut path = [None; PATH_MAX];
        let mut class = to;
        while class != from {
            let before = reached_from[usize::from(class)];
            path.rotate_right(1);
            path[0] = edge(before, class);
            class = before;
        }
        path
    }
}

fn place_of(class: u16) -> (usize, u64) {
    (usize::from(class) / WORD_BITS, 1 << (usize::from(class) % WORD_BITS))
}

/// Sets a bit; `false` if it was set.
fn mark(bits: &mut Bits, class: u16) -> bool {
    let (word, bit) = place_of(class);
    let is_new = bits[word] & bit == 0;
    bits[word] |= bit;
    is_new
}
