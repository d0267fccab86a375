//! Landlock's rules about files, landlock(7): what a domain permits in which part of the tree.
//!
//! A *ruleset* names the rights that it handles, and beneath which files which of them are permitted. A *domain* is
//! up to sixteen rulesets, its layers, each of which restricts further: a right is granted if every layer that
//! handles it has a rule that permits it on the file itself or on a directory above. So a check walks up once and
//! keeps, for each right, the layers that have not granted it yet ([`Missing`]).
//!
//! A move to another directory also changes the rules that a file is under. It is permitted if nothing can be done
//! with the file at its new place that was not permitted at the old one ([`Domain::permits_reparenting`]).

#[cfg(all(test, not(heddle_loom)))]
mod tests;

use alloc::vec::Vec;

use crate::fallible::{AllocError, insert_reserved, push_reserved};

/// The version of the interface: that with [`Rights::REFER`].
pub const VERSION: usize = 2;
/// The most layers of a domain.
pub const LAYERS_MAX: usize = 16;
/// The most files that the rules of a ruleset or a domain name; Linux has no limit but memory.
pub const RULES_MAX: usize = 2048;
/// The number of rights.
const RIGHTS: usize = 14;

bitflags::bitflags! {
    /// Rights, with the values of `LANDLOCK_ACCESS_FS_`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Rights: u16 {
        /// Execute a file.
        const EXECUTE = 1;
        /// Open a file to write.
        const WRITE_FILE = 1 << 1;
        /// Open a file to read.
        const READ_FILE = 1 << 2;
        /// Open a directory.
        const READ_DIR = 1 << 3;
        /// Remove an empty directory.
        const REMOVE_DIR = 1 << 4;
        /// Remove anything else.
        const REMOVE_FILE = 1 << 5;
        /// Make a character device.
        const MAKE_CHAR = 1 << 6;
        /// Make a directory.
        const MAKE_DIR = 1 << 7;
        /// Make a regular file.
        const MAKE_REG = 1 << 8;
        /// Make a socket.
        const MAKE_SOCK = 1 << 9;
        /// Make a FIFO.
        const MAKE_FIFO = 1 << 10;
        /// Make a block device.
        const MAKE_BLOCK = 1 << 11;
        /// Make a symbolic link.
        const MAKE_SYM = 1 << 12;
        /// Link or move files to another directory. Each ruleset forbids it where it does not permit it, whether it
        /// names it or not.
        const REFER = 1 << 13;
    }
}

impl Rights {
    /// Those that are about a file that is no directory.
    pub const OF_FILES: Self = Self::EXECUTE.union(Self::WRITE_FILE).union(Self::READ_FILE);
}

/// A file by what no other one has as long as a rule holds it.
pub type Key = (u64, u64);

/// The rights that a ruleset or each layer of a domain grants beneath a file; `P` holds the file.
#[derive(Clone, Debug)]
struct Rule<P, const LAYERS: usize> {
    key: Key,
    holder: P,
    granted: [Rights; LAYERS],
}

/// The reason why a ruleset or a domain can't have a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleRefused {
    /// There are as many as there may be.
    TooMany,
    /// There is no memory for it.
    OutOfMemory,
}

impl From<AllocError> for RuleRefused {
    fn from(_: AllocError) -> Self {
        Self::OutOfMemory
    }
}

/// Rules in the making.
#[derive(Debug)]
pub struct Ruleset<P> {
    handled: Rights,
    rules: Vec<Rule<P, 1>>,
}

impl<P> Ruleset<P> {
    /// A ruleset that grants none of the rights that it handles.
    #[must_use]
    pub const fn new(handled: Rights) -> Self {
        Self { handled, rules: Vec::new() }
    }

    /// The rights that it handles.
    #[must_use]
    pub const fn handled(&self) -> Rights {
        self.handled
    }

    /// Grants rights beneath a file, besides those that are granted there already.
    ///
    /// # Errors
    /// See [`RuleRefused`].
    pub fn add(&mut self, key: Key, holder: P, granted: Rights) -> Result<(), RuleRefused> {
        let place = match self.rules.binary_search_by_key(&key, |rule| rule.key) {
            Ok(place) => {
                self.rules[place].granted[0] |= granted;
                return Ok(());
            }
            Err(place) => place,
        };
        if self.rules.len() >= RULES_MAX {
            return Err(RuleRefused::TooMany);
        }
        self.rules.try_reserve(1).map_err(|_| RuleRefused::OutOfMemory)?;
        insert_reserved(&mut self.rules, place, Rule { key, holder, granted: [granted] });
        Ok(())
    }
}

/// The layers that have not granted a right yet, one bit each, for each right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing([u16; RIGHTS]);

impl Missing {
    /// Nothing.
    const NONE: Self = Self([0; RIGHTS]);

    fn each(rights: Rights) -> impl Iterator<Item = usize> {
        (0..RIGHTS).filter(move |right| rights.bits() & 1 << right != 0)
    }

    /// Whether every layer has granted these rights.
    fn grants(&self, rights: Rights) -> bool {
        Self::each(rights).all(|right| self.0[right] == 0)
    }

    /// Looks at these rights only from now on.
    fn narrow(&mut self, rights: Rights) {
        for right in Self::each(rights.complement()) {
            self.0[right] = 0;
        }
    }
}

/// Rulesets that a program has put on itself, one after the other.
#[derive(Debug)]
pub struct Domain<P> {
    handled: Vec<Rights>,
    rules: Vec<Rule<P, LAYERS_MAX>>,
}

/// One side of a link or a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// The file that leaves the directory of this side.
    pub key: Key,
    /// Whether that is a directory.
    pub is_directory: bool,
}

/// A link or a move of a file to another directory.
pub struct Reparenting<From, To, Above> {
    /// The file, and what it is exchanged with.
    pub moved: Side,
    /// See `moved`.
    pub exchanged: Option<Side>,
    /// The rights that are used in the directory where it was, and in that where it will be.
    pub wanted: [Rights; 2],
    /// The directory where it was and those above it, up to the root of the mount.
    pub from: From,
    /// The directory where it will be likewise.
    pub to: To,
    /// From the root of the mount upwards.
    pub above: Above,
}

/// The reason why a file can't be linked or moved to another directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotMoved {
    /// A right is missing in one of the directories: `EACCES`.
    Forbidden,
    /// The file would be under fewer restrictions: `EXDEV`, so that programs copy it.
    Loosened,
}

impl<P: Clone> Domain<P> {
    /// A domain with the layers of `older` and one more.
    ///
    /// # Errors
    /// [`RuleRefused::TooMany`] layers or files; no memory.
    pub fn new(older: Option<&Self>, newest: &Ruleset<P>) -> Result<Self, RuleRefused> {
        let level = older.map_or(0, |older| older.handled.len());
        if level >= LAYERS_MAX {
            return Err(RuleRefused::TooMany);
        }
        let inherited: &[Rule<P, LAYERS_MAX>] = older.map_or(&[], |older| &older.rules);
        let (mut handled, mut rules) = (Vec::new(), Vec::new());
        handled.try_reserve_exact(level + 1).map_err(|_| RuleRefused::OutOfMemory)?;
        for &layer in older.map_or(&[][..], |older| &older.handled) {
            push_reserved(&mut handled, layer);
        }
        push_reserved(&mut handled, newest.handled);
        // Both are sorted.
        rules
            .try_reserve_exact(inherited.len() + newest.rules.len())
            .map_err(|_| RuleRefused::OutOfMemory)?;
        let (mut old, mut new) = (inherited.iter().peekable(), newest.rules.iter().peekable());
        while let Some(key) =
            [old.peek().map(|rule| rule.key), new.peek().map(|rule| rule.key)].into_iter().flatten().min()
        {
            let (before, added) = (old.next_if(|rule| rule.key == key), new.next_if(|rule| rule.key == key));
            let holder = before.map(|rule| &rule.holder).or(added.map(|rule| &rule.holder));
            let Some(holder) = holder.cloned() else { break };
            let mut granted = before.map_or([Rights::empty(); LAYERS_MAX], |rule| rule.granted);
            granted[level] = added.map_or(Rights::empty(), |rule| rule.granted[0]);
            push_reserved(&mut rules, Rule { key, holder, granted });
        }
        if rules.len() > RULES_MAX {
            return Err(RuleRefused::TooMany);
        }
        Ok(Self { handled, rules })
    }
}

impl<P> Domain<P> {
    /// All rights that one of its layers handles.
    fn handled(&self) -> Rights {
        self.handled.iter().fold(Rights::REFER, |all, &layer| all | layer)
    }

    /// The layers that would have to grant these rights.
    fn missing(&self, rights: Rights) -> Missing {
        let mut missing = Missing::NONE;
        for (level, &handled) in self.handled.iter().enumerate() {
            for right in Missing::each(rights & (handled | Rights::REFER)) {
                missing.0[right] |= 1 << level;
            }
        }
        missing
    }

    /// Takes off what the rule of a file grants, if there is one.
    fn look(&self, key: Key, missing: &mut [&mut Missing]) {
        let Ok(place) = self.rules.binary_search_by_key(&key, |rule| rule.key) else { return };
        for (level, &granted) in self.rules[place].granted.iter().enumerate().take(self.handled.len()) {
            for right in Missing::each(granted) {
                for missing in &mut *missing {
                    missing.0[right] &= !(1 << level);
                }
            }
        }
    }

    /// Whether rights are granted on a file: `keys` are the file and what it is beneath.
    pub fn permits(&self, rights: Rights, keys: impl Iterator<Item = Key>) -> bool {
        let mut missing = self.missing(rights);
        if missing.grants(rights) {
            return true;
        }
        for key in keys {
            self.look(key, &mut [&mut missing]);
            if missing.grants(rights) {
                return true;
            }
        }
        false
    }

    /// Whether a link or a move to another directory is granted.
    ///
    /// # Errors
    /// See [`NotMoved`].
    pub fn permits_reparenting(
        &self,
        moving: Reparenting<impl Iterator<Item = Key>, impl Iterator<Item = Key>, impl Iterator<Item = Key>>,
    ) -> Result<(), NotMoved> {
        let wanted = moving.wanted.map(|wanted| wanted | Rights::REFER);
        let mut parents = [self.missing(Rights::all()), self.missing(Rights::all())];
        // Where everything is granted on both sides, nothing is loosened.
        let mut is_free = [false; 2];
        let mut collect = |index: usize, keys: &mut dyn Iterator<Item = Key>| {
            for key in keys {
                self.look(key, &mut [&mut parents[index]]);
                if parents[index].grants(Rights::all()) {
                    is_free[index] = true;
                    return;
                }
            }
        };
        collect(0, &mut { moving.from });
        collect(1, &mut { moving.to });
        if is_free == [true; 2] {
            return Ok(());
        }
        let of_file = |side: Side| {
            let mut missing = self.missing(Rights::all());
            self.look(side.key, &mut [&mut missing]);
            (missing, side.is_directory)
        };
        let (moved, exchanged) = (of_file(moving.moved), moving.exchanged.map(of_file));
        let mut is_compared = false;
        for key in moving.above {
            if !is_compared && keeps_restrictions(&parents, moved, exchanged) {
                is_compared = true;
                parents[0].narrow(wanted[0]);
                parents[1].narrow(wanted[1]);
            }
            if is_compared && self.are_granted(&parents, wanted) {
                return Ok(());
            }
            let [first, second] = &mut parents;
            self.look(key, &mut [first, second]);
            let all = if is_compared { wanted } else { [self.handled(); 2] };
            if self.are_granted(&parents, all) {
                return Ok(());
            }
        }
        // A missing right counts more than what the move would loosen.
        let own = wanted.map(|wanted| wanted - Rights::REFER);
        if self.are_granted(&parents, own) { Err(NotMoved::Loosened) } else { Err(NotMoved::Forbidden) }
    }

    fn are_granted(&self, parents: &[Missing; 2], wanted: [Rights; 2]) -> bool {
        parents[0].grants(wanted[0]) && parents[1].grants(wanted[1])
    }
}

/// Whether each layer that forbids something on a file where it was forbids it also where it will be; for an exchange
/// in both directions. Rights about directories do not matter to other files.
fn keeps_restrictions(
    parents: &[Missing; 2],
    moved: (Missing, bool),
    exchanged: Option<(Missing, bool)>,
) -> bool {
    let keeps = |from: &Missing, (own, is_directory): &(Missing, bool), to: &Missing| {
        let matters = if *is_directory { Rights::all() } else { Rights::OF_FILES };
        Missing::each(matters).all(|right| from.0[right] & own.0[right] & !to.0[right] == 0)
    };
    keeps(&parents[0], &moved, &parents[1])
        && exchanged.is_none_or(|exchanged| keeps(&parents[1], &exchanged, &parents[0]))
}
