//! The names of a directory that are kept, and the bound on how many there are.
//!
//! A name is kept with its entry, so that a second look at it costs no request and finds the same node. That is a
//! circle: the directory's state keeps the entry, which keeps the directory. It is broken where a name goes: by the
//! guest's own change, because the server has many names ([`evict`]), or because memory is short.
//!
//! Names that another side may have changed are not thrown away at once, since a directory can have many names. Its
//! *generation* is counted up, and a name of an older one is asked about before it is used again.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use heddle_kernel_core::ninep::knowledge::Question;

use crate::error::Errno;
use crate::fs::Dentry;
use crate::fs::dentry::copy_name;
use crate::memory::fallible;

/// Names that are not there and are kept for one directory: the search paths of shells and compilers need some dozens,
/// and they go at once with their directory.
const ABSENT_MAX: usize = 256;

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
}

/// The names of a directory.
#[derive(Default)]
pub struct Names {
    present: BTreeMap<Box<[u8]>, PresentName>,
    absent: BTreeMap<Box<[u8]>, u64>,
    /// All entries as the server lists them, with the generation.
    listing: Option<(u64, Arc<Vec<u8>>)>,
    generation: u64,
    /// Used since `evict` came by.
    is_used: bool,
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
        if let Some(known) = self.present.get(name) {
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
        let known = PresentName { entry, generation: self.generation };
        fallible::try_insert(&mut self.present, copy_name(name)?, known)?;
        Ok((true, None))
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
        self.present.remove(name).map(|known| known.entry)
    }

    /// Forgets the name of an entry, if it is still the one.
    pub fn remove_entry(&mut self, entry: &Arc<Dentry>) -> OldName {
        let is_it = entry
            .with_name(|name| self.present.get(name).is_some_and(|known| Arc::ptr_eq(&known.entry, entry)));
        if is_it { entry.with_name(|name| self.present.remove(name)).map(|known| known.entry) } else { None }
    }

    /// The listing, if the directory has not changed since.
    pub fn listing(&self) -> Option<Arc<Vec<u8>>> {
        let (generation, listing) = self.listing.as_ref()?;
        (*generation == self.generation).then(|| listing.clone())
    }

    /// Keeps a listing, or none.
    pub fn set_listing(&mut self, listing: Option<Arc<Vec<u8>>>) -> Option<Arc<Vec<u8>>> {
        let new = listing.map(|listing| (self.generation, listing));
        core::mem::replace(&mut self.listing, new).map(|(_, listing)| listing)
    }

    /// Takes some of what is kept, unless it has been used since the last time. `forced` takes it all the same.
    pub fn take_some(&mut self, forced: bool) -> [OldName; TAKEN_MAX] {
        let mut taken = [const { None }; TAKEN_MAX];
        if core::mem::take(&mut self.is_used) && !forced {
            return taken;
        }
        for place in &mut taken {
            let Some((_, known)) = self.present.pop_first() else { break };
            *place = Some(known.entry);
        }
        if self.present.is_empty() {
            self.absent.clear();
            self.listing = None;
        }
        taken
    }
}

/// Entries that one step of [`Names::take_some`] takes.
pub const TAKEN_MAX: usize = 16;

/// A question about a directory's name, and what it was put on top of.
#[derive(Clone, Copy)]
pub struct NameQuestion {
    pub question: Question,
    pub generation: u64,
}
