//! The names of a directory that are kept, and the bound on how many there are.
//!
//! A name is kept with its entry, so that a second look at it costs no request and finds the same node. That is a
//! circle: the directory's state keeps the entry, which keeps the directory. It is broken where a name goes: by the
//! guest's own change, because the server has many names, or because memory is short. In the last two cases only names
//! go whose entries and nodes nobody else has, since announcements of the host find what is in use by its names.
//!
//! Names that another side may have changed are not thrown away at once, since a directory can have many names. Its
//! *generation* is counted up, and a name of an older one is asked about before it is used again.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::{Bound, Range};

use heddle_kernel_core::ninep::ahead::AskedAhead;
use heddle_kernel_core::ninep::knowledge::FileQuestion;

use crate::device::share::BATCH_MAX;
use crate::error::Errno;
use crate::fs::Dentry;
use crate::fs::dentry::copy_name;
use crate::fs::inode::NAME_LIMIT;
use crate::fs::share::listing::name_at;
use crate::fs::share::node::SharedNode;
use crate::memory::fallible;

/// Names that are not there and are kept for one directory: the search paths of shells and compilers need some dozens,
/// and they go at once with their directory.
const ABSENT_MAX: usize = 256;

/// Names that are asked for together with one that somebody needs, and entries of the listing at which one step looks.
pub const AHEAD_MAX: usize = BATCH_MAX - 1;
const LOOKS_MAX: usize = 64;

/// The generation of a name that somebody else may have changed.
const DISTRUSTED: u64 = u64::MAX;

/// The state of a name, as far as it is kept.
pub enum KnownName {
    /// Nothing.
    Nothing,
    /// It is not there.
    Absent,
    /// It is this entry, or was in an older generation.
    Present { entry: Arc<Dentry>, is_current: bool },
}

struct PresentName {
    entry: Arc<Dentry>,
    generation: u64,
    /// It was asked for ahead, and nobody has needed it yet.
    is_unused: bool,
}

impl PresentName {
    /// The entry, of a name that goes.
    fn forget(self, ahead: &mut AskedAhead) -> Arc<Dentry> {
        if self.is_unused {
            ahead.lose_one();
        }
        self.entry
    }
}

/// The names of a directory.
#[derive(Default)]
pub struct Names {
    present: BTreeMap<Box<[u8]>, PresentName>,
    absent: BTreeMap<Box<[u8]>, u64>,
    /// All entries as the server lists them, with the generation.
    listing: Option<(u64, Arc<Vec<u8>>)>,
    generation: u64,
    /// Used since `take_some` came by.
    is_used: bool,
    /// Names that are asked for ahead, by the listing.
    ahead: AskedAhead,
    /// The same for files that are read ahead.
    read_ahead: AskedAhead,
}

/// Names that are to be asked for together with one that somebody needs.
pub struct NamePlan {
    listing: Arc<Vec<u8>>,
    /// Their places in the listing.
    names: [Range<usize>; AHEAD_MAX],
    count: usize,
}

impl NamePlan {
    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.names[..self.count].iter().filter_map(|place| self.listing.get(place.clone()))
    }
}

/// Where [`Names::take_some`] goes on: a name, without memory of its own.
pub struct Hand {
    bytes: [u8; NAME_LIMIT],
    length: usize,
}

impl Hand {
    /// The first of all names.
    pub const fn new() -> Self {
        Self { bytes: [0; NAME_LIMIT], length: 0 }
    }

    fn name(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn set(&mut self, name: &[u8]) {
        self.length = name.len().min(NAME_LIMIT);
        self.bytes[..self.length].copy_from_slice(&name[..self.length]);
    }
}

/// An entry that was replaced, to be dropped without a lock held.
pub type OldName = Option<Arc<Dentry>>;

impl Names {
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Somebody else may have changed the directory.
    pub fn distrust(&mut self) -> Option<Arc<Vec<u8>>> {
        self.generation += 1;
        self.listing.take().map(|(_, listing)| listing)
    }

    /// Somebody else may have changed a name.
    pub fn distrust_name(&mut self, name: &[u8]) {
        self.absent.remove(name);
        if let Some(known) = self.present.get_mut(name) {
            known.generation = DISTRUSTED;
        }
    }

    /// Looks a name up.
    pub fn find(&mut self, name: &[u8]) -> KnownName {
        self.is_used = true;
        if let Some(known) = self.present.get_mut(name) {
            if core::mem::take(&mut known.is_unused) {
                self.ahead.use_one();
            }
            let is_current = known.generation == self.generation;
            return KnownName::Present { entry: known.entry.clone(), is_current };
        }
        match self.absent.get(name) {
            Some(&generation) if generation == self.generation => KnownName::Absent,
            _ => KnownName::Nothing,
        }
    }

    /// Keeps an entry. The difference in the number of entries, and the one that was replaced.
    pub fn insert(&mut self, name: &[u8], entry: Arc<Dentry>) -> Result<(bool, OldName), Errno> {
        self.absent.remove(name);
        if let Some(known) = self.present.get_mut(name) {
            known.generation = self.generation;
            return Ok((false, Some(core::mem::replace(&mut known.entry, entry))));
        }
        let known = PresentName { entry, generation: self.generation, is_unused: false };
        fallible::try_insert(&mut self.present, copy_name(name)?, known)?;
        Ok((true, None))
    }

    /// Keeps an entry that nobody has asked for yet, unless there is one. Whether there was none.
    pub fn insert_ahead(&mut self, name: &[u8], entry: &Arc<Dentry>) -> Result<bool, Errno> {
        if self.present.contains_key(name) {
            return Ok(false);
        }
        self.absent.remove(name);
        let known = PresentName { entry: entry.clone(), generation: self.generation, is_unused: true };
        fallible::try_insert(&mut self.present, copy_name(name)?, known)?;
        self.ahead.add(1);
        Ok(true)
    }

    /// Somebody asks for a name that is not known: further ones to ask for, by their places in the listing.
    pub fn plan_names(&mut self, name: &[u8]) -> Option<NamePlan> {
        let listing = self.listing()?;
        let wanted = self.ahead.miss(AHEAD_MAX);
        let mut plan = NamePlan { listing, names: [const { 0..0 }; AHEAD_MAX], count: 0 };
        let mut at = self.ahead.at;
        for _ in 0..LOOKS_MAX {
            if plan.count == wanted {
                break;
            }
            let Some((place, next)) = name_at(&plan.listing, at) else { break };
            at = next;
            let found = &plan.listing[place.clone()];
            if found != name && !matches!(found, b"." | b"..") && !self.present.contains_key(found) {
                plan.names[plan.count] = place;
                plan.count += 1;
            }
        }
        self.ahead.at = at;
        Some(plan)
    }

    /// Somebody reads a file of which no bytes are kept: entries of further ones that may be read with it.
    pub fn plan_reads(&mut self) -> [OldName; AHEAD_MAX] {
        let mut entries = [const { None }; AHEAD_MAX];
        let Some(listing) = self.listing() else { return entries };
        let wanted = self.read_ahead.miss(AHEAD_MAX);
        let (mut at, mut count) = (self.read_ahead.at, 0);
        for _ in 0..LOOKS_MAX {
            if count == wanted {
                break;
            }
            let Some((place, next)) = name_at(&listing, at) else { break };
            at = next;
            let known = self.present.get(&listing[place]);
            if let Some(known) = known.filter(|known| known.generation == self.generation) {
                entries[count] = Some(known.entry.clone());
                count += 1;
            }
        }
        self.read_ahead.at = at;
        entries
    }

    /// Files that are read ahead, to be counted.
    pub const fn read_ahead(&mut self) -> &mut AskedAhead {
        &mut self.read_ahead
    }

    /// Keeps that a name is not there.
    pub fn insert_absent(&mut self, name: &[u8]) -> Result<(), Errno> {
        while self.absent.len() >= ABSENT_MAX {
            self.absent.pop_first();
        }
        fallible::try_insert(&mut self.absent, copy_name(name)?, self.generation).map(drop)
    }

    /// Forgets a name.
    pub fn remove(&mut self, name: &[u8]) -> OldName {
        self.absent.remove(name);
        self.present.remove(name).map(|known| known.forget(&mut self.ahead))
    }

    /// Forgets the name of an entry, if it is still the one.
    pub fn remove_entry(&mut self, entry: &Arc<Dentry>) -> OldName {
        let is_it = entry
            .with_name(|name| self.present.get(name).is_some_and(|known| Arc::ptr_eq(&known.entry, entry)));
        if !is_it {
            return None;
        }
        entry.with_name(|name| self.present.remove(name)).map(|known| known.forget(&mut self.ahead))
    }

    /// The listing, if the directory has not changed since.
    pub fn listing(&self) -> Option<Arc<Vec<u8>>> {
        let (generation, listing) = self.listing.as_ref()?;
        (*generation == self.generation).then(|| listing.clone())
    }

    /// Keeps a listing, or none.
    pub fn set_listing(&mut self, listing: Option<Arc<Vec<u8>>>) -> Option<Arc<Vec<u8>>> {
        if listing.is_some() {
            // Whoever goes through the directory does so from its beginning.
            (self.ahead.at, self.read_ahead.at) = (0, 0);
        }
        let new = listing.map(|listing| (self.generation, listing));
        core::mem::replace(&mut self.listing, new).map(|(_, listing)| listing)
    }

    /// Takes some of the entries behind `hand` that nobody uses, unless the directory has been used since the last
    /// time. `forced` takes them all the same.
    pub fn take_some(&mut self, forced: bool, hand: &mut Hand) -> Taken {
        let mut taken = Taken { entries: [const { None }; TAKEN_MAX], are_more: false };
        if core::mem::take(&mut self.is_used) && !forced {
            return taken;
        }
        self.absent.clear();
        self.listing = None;
        for place in &mut taken.entries {
            let behind = (Bound::Excluded(hand.name()), Bound::Unbounded);
            let Some((name, known)) = self.present.range::<[u8], _>(behind).next() else { return taken };
            hand.set(name);
            if is_unused(&known.entry) {
                let known = self.present.remove(hand.name());
                *place = known.map(|known| known.forget(&mut self.ahead));
            }
        }
        taken.are_more = true;
        taken
    }

    /// Whether entries are kept.
    pub fn has_any(&self) -> bool {
        !self.present.is_empty()
    }

    /// Takes any entry.
    pub fn pop(&mut self) -> OldName {
        self.present.pop_first().map(|(_, known)| known.forget(&mut self.ahead))
    }
}

/// Whether nobody but its name has an entry, its node, or the state of its file.
fn is_unused(entry: &Arc<Dentry>) -> bool {
    let node: &dyn Any = &*entry.node;
    Arc::strong_count(entry) == 1
        && Arc::strong_count(&entry.node) == 1
        && node.downcast_ref::<SharedNode>().is_none_or(|node| Arc::strong_count(&node.state) == 1)
}

/// Entries at which one step of [`Names::take_some`] looks.
const TAKEN_MAX: usize = 16;

/// The result of such a step.
pub struct Taken {
    pub entries: [OldName; TAKEN_MAX],
    /// There are further ones behind those that were looked at.
    pub are_more: bool,
}

/// A question about a directory's name, and what it was put on top of.
#[derive(Clone, Copy)]
pub struct NameQuestion {
    pub question: FileQuestion,
    pub generation: u64,
}
