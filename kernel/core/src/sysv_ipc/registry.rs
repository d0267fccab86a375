//! Objects by key and by identifier. An identifier is a place in the table and, above it, a number that counts up when
//! a place is used again, so that an old identifier does not lead to a new object.

use alloc::vec::Vec;

use crate::fallible::push_reserved;

/// Bits of an identifier that are the place.
const PLACE_BITS: u32 = 15;
/// The most objects there can be.
pub const PLACES: usize = 1 << PLACE_BITS;
/// Sequence numbers stay below this, so that identifiers are positive.
const SEQUENCES: u32 = 1 << (31 - PLACE_BITS);

/// The key of objects that have none.
pub const PRIVATE: i32 = 0;

struct RegistryEntry<T> {
    key: i32,
    sequence: u32,
    value: T,
}

/// The objects of one kind.
pub struct Registry<T> {
    places: Vec<Option<RegistryEntry<T>>>,
    count: usize,
    sequence: u32,
    last_place: Option<usize>,
    /// The identifier that the next object is to have.
    wanted: Option<i32>,
}

/// Why an object could not be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// There are as many as there may be.
    Limit,
    /// There is no memory.
    Memory,
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Registry<T> {
    /// No objects.
    #[must_use]
    pub const fn new() -> Self {
        Self { places: Vec::new(), count: 0, sequence: 0, last_place: None, wanted: None }
    }

    /// How many objects there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The highest place in use, 0 if there is none.
    #[must_use]
    pub fn highest(&self) -> usize {
        self.places.iter().rposition(Option::is_some).unwrap_or(0)
    }

    /// The object with a key, and its identifier.
    #[must_use]
    pub fn find(&self, key: i32) -> Option<(i32, &T)> {
        self.iter().find(|&(_, found, _)| found == key && key != PRIVATE).map(|(id, _, value)| (id, value))
    }

    /// All objects: identifier, key, object.
    pub fn iter(&self) -> impl Iterator<Item = (i32, i32, &T)> {
        (0..).zip(&self.places).filter_map(|(place, entry)| {
            let entry = entry.as_ref()?;
            Some((identifier(place, entry.sequence), entry.key, &entry.value))
        })
    }

    /// The object at a place: identifier, key, object.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<(i32, i32, &T)> {
        let entry = self.places.get(place)?.as_ref()?;
        Some((identifier(place, entry.sequence), entry.key, &entry.value))
    }

    /// The object with an identifier, and its key.
    #[must_use]
    pub fn get(&self, id: i32) -> Option<(i32, &T)> {
        let (found, key, value) = self.at(place_of(id)?)?;
        (found == id).then_some((key, value))
    }

    /// Changes an object's key.
    pub fn set_key(&mut self, id: i32, key: i32) {
        if self.get(id).is_some()
            && let Some(entry) = place_of(id).and_then(|place| self.places[place].as_mut())
        {
            entry.key = key;
        }
    }

    /// The identifier that the next object is to have, if one was asked for.
    #[must_use]
    pub const fn wanted(&self) -> Option<i32> {
        self.wanted
    }

    /// Asks for the identifier of the next object, which gets it if its place is free, and else the next free one.
    pub const fn want(&mut self, id: i32) {
        self.wanted = Some(id);
    }

    /// A place that nothing has, from one on.
    fn free_place(&mut self, from: usize) -> Result<usize, Full> {
        let place = (from..self.places.len()).find(|&place| self.places[place].is_none());
        let place = place.unwrap_or(self.places.len().max(from));
        if place >= PLACES {
            return Err(Full::Limit);
        }
        self.places.try_reserve((place + 1).saturating_sub(self.places.len())).map_err(|_| Full::Memory)?;
        while self.places.len() <= place {
            push_reserved(&mut self.places, None);
        }
        Ok(place)
    }

    /// Enters what `make` makes for its identifier.
    ///
    /// # Errors
    /// [`Full`] as what `make` fails with, or its own failure.
    pub fn insert<E: From<Full>>(
        &mut self,
        key: i32,
        limit: usize,
        make: impl FnOnce(i32) -> Result<T, E>,
    ) -> Result<i32, E> {
        if self.count >= limit.min(PLACES) {
            return Err(Full::Limit.into());
        }
        let wanted = self.wanted.take();
        let place = self.free_place(wanted.and_then(place_of).unwrap_or(0))?;
        // Places that come again get a new number; while they only go up, the identifier is new anyway.
        let again = self.last_place.is_some_and(|last| place <= last);
        let sequence = match wanted {
            Some(id) => u32::from(sequence_of(id)),
            None if again => (self.sequence + 1) % SEQUENCES,
            None => self.sequence,
        };
        let id = identifier(place, sequence);
        let value = make(id)?;
        self.places[place] = Some(RegistryEntry { key, sequence, value });
        (self.sequence, self.last_place) = (sequence, Some(place));
        self.count += 1;
        Ok(id)
    }

    /// Takes an object out. The caller drops it when it has unlocked what it holds.
    pub fn remove(&mut self, id: i32) -> Option<T> {
        self.get(id)?;
        let entry = self.places[place_of(id)?].take()?;
        self.count -= 1;
        if self.count == 0 {
            self.places = Vec::new();
        }
        Some(entry.value)
    }

    /// Takes out the object at the highest place: for when all of them are to go.
    pub fn remove_any(&mut self) -> Option<T> {
        while let Some(entry) = self.places.pop() {
            if let Some(entry) = entry {
                self.count -= 1;
                return Some(entry.value);
            }
        }
        None
    }
}

/// The number that tells an identifier from others of its place.
#[must_use]
pub const fn sequence_of(id: i32) -> u16 {
    (id >> PLACE_BITS) as u16
}

fn place_of(id: i32) -> Option<usize> {
    Some(usize::try_from(id).ok()? % PLACES)
}

const fn identifier(place: usize, sequence: u32) -> i32 {
    (sequence << PLACE_BITS) as i32 | place as i32
}

#[cfg(test)]
mod tests {
    use super::{Full, Registry};

    #[test]
    fn an_identifier_can_be_asked_for() {
        let mut objects = Registry::new();
        let add = |objects: &mut Registry<u8>| objects.insert(0, 10, |_| Ok::<_, Full>(1)).unwrap();
        assert_eq!(add(&mut objects), 0);
        objects.want(3 << 15 | 5);
        assert_eq!(objects.wanted(), Some(3 << 15 | 5));
        assert_eq!(add(&mut objects), 3 << 15 | 5);
        assert_eq!(objects.wanted(), None);
        // Its place is taken, and the next one is not.
        objects.want(7 << 15);
        assert_eq!(add(&mut objects), 7 << 15 | 1);
        assert_eq!((objects.len(), objects.highest()), (3, 5));
        objects.want(i32::MAX);
        assert_eq!(add(&mut objects), i32::MAX);
        objects.want(i32::MAX);
        assert_eq!(objects.insert(0, 10, |_| Ok::<_, Full>(1)), Err(Full::Limit));
    }

    #[test]
    fn identifiers_do_not_come_again_soon() {
        let mut objects = Registry::new();
        let add = |objects: &mut Registry<u8>, key| objects.insert(key, 3, |_| Ok::<_, Full>(1)).unwrap();
        let first = add(&mut objects, 10);
        assert_eq!(first, 0);
        let second = add(&mut objects, 0);
        assert_eq!(objects.find(10), Some((first, &1)));
        assert_eq!(objects.find(0), None, "private objects have no key");
        objects.remove(first).unwrap();
        let third = add(&mut objects, 10);
        assert_ne!(third, first);
        assert_eq!(objects.get(first), None);
        assert_eq!((objects.len(), objects.highest()), (2, 1));
        add(&mut objects, 11);
        assert_eq!(objects.insert(12, 3, |_| Ok::<_, Full>(1)), Err(Full::Limit));
        for id in [second, third] {
            objects.remove(id).unwrap();
            assert_eq!(objects.remove(id), None);
        }
        add(&mut objects, 10);
        assert_eq!([(); 3].map(|()| objects.remove_any()), [Some(1), Some(1), None]);
        assert_eq!(objects.len(), 0);
    }

    #[test]
    fn identifiers_are_positive_for_ever() {
        let mut objects = Registry::new();
        for _ in 0..200_000 {
            let id = objects.insert(1, 1, |_| Ok::<_, Full>(())).unwrap();
            assert!(id >= 0);
            objects.remove(id).unwrap();
        }
    }
}
