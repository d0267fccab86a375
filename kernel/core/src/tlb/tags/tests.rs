//! The processor is played by a map of what it has cached for each tag.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const PROCESSORS: usize = 2;
const TABLES: usize = 5;
const TAGS: usize = 3;

#[test]
fn as_many_tables_as_tags_are_flushed_once_each() {
    let mut tags = Tags::<TAGS>::new();
    for round in 0..4 {
        for table in 0..TAGS {
            assert_eq!(tags.choose(table, 7).keeps, round > 0);
        }
    }
}

#[test]
fn the_table_that_was_used_last_keeps_its_tag() {
    let mut tags = Tags::<2>::new();
    let first = tags.choose(1, 0).tag;
    let second = tags.choose(2, 0).tag;
    assert_ne!(first, second);
    assert_eq!(tags.choose(1, 0), Choice { tag: first, keeps: true });
    assert_eq!(tags.choose(3, 0), Choice { tag: second, keeps: false });
    assert_eq!(tags.choose(1, 0), Choice { tag: first, keeps: true });
    assert_eq!(tags.choose(2, 0), Choice { tag: second, keeps: false });
}

#[test]
fn a_removal_is_forgotten_by_the_next_load() {
    let (removals, mut tags) = (Removals::new(), Tags::<2>::new());
    tags.choose(1, removals.count());
    removals.add();
    assert!(!tags.choose(1, removals.count()).keeps);
    assert!(tags.choose(1, removals.count()).keeps);
}

#[test]
fn own_removals_need_no_flush_later_unless_others_came_between() {
    let (removals, mut tags) = (Removals::new(), Tags::<2>::new());
    tags.choose(1, removals.count());
    tags.has_flushed(1, removals.add());
    assert!(tags.choose(1, removals.count()).keeps);
    removals.add();
    tags.has_flushed(1, removals.add());
    assert!(!tags.choose(1, removals.count()).keeps);
}

#[test]
fn only_the_last_removal_can_be_forgotten_by_itself() {
    let (removals, mut tags) = (Removals::new(), Tags::<2>::new());
    let tag = tags.choose(1, removals.count()).tag;
    tags.choose(2, 0);
    let number = removals.add();
    assert_eq!(tags.behind(1, number), Some(tag));
    assert_eq!(tags.behind(3, number), None, "a table that has no tag");
    tags.has_flushed(1, number);
    assert_eq!(tags.choose(1, removals.count()), Choice { tag, keeps: true });
    tags.choose(2, 0);
    removals.add();
    assert_eq!(tags.behind(1, removals.add()), None, "one between has not been forgotten");
    assert!(!tags.choose(1, removals.count()).keeps);
}

#[test]
fn abilities_are_read_from_the_leaves() {
    let of = |tags: u32, forgets: u32| Abilities::of(tags << 17, forgets << 10);
    assert_eq!(of(0, 0), Abilities::default());
    assert_eq!(of(0, 1), Abilities::default(), "nothing to forget without tags");
    assert_eq!(of(1, 0), Abilities { has_tags: true, forgets_elsewhere: false });
    assert_eq!(of(1, 1), Abilities { has_tags: true, forgets_elsewhere: true });
    assert_eq!(Abilities::of(!(1 << 17), !(1 << 10)), Abilities::default());
}

const PAGES: usize = 3;

/// A processor with tags, as Intel's manual has it (volume 3A, section 4.10): translations are found by the tag in use
/// and the address, and stay until something forgets them.
#[derive(Default)]
struct Hardware {
    /// The table and tag in use.
    root: Option<(usize, usize)>,
    cached: HashMap<(usize, usize), usize>,
    /// Loads that forgot the tag, and translations that were forgotten one by one.
    flushes: usize,
    forgotten: usize,
}

impl Hardware {
    /// Writes CR3: without bit 63, all of the tag is forgotten.
    fn load(&mut self, table: usize, tag: usize, keeps: bool) {
        self.root = Some((table, tag));
        if !keeps {
            self.flushes += 1;
            self.cached.retain(|(of, _), _| *of != tag);
        }
    }

    /// INVLPG.
    fn forget_here(&mut self, page: usize) {
        let (_, tag) = self.root.expect("a table is in use");
        self.forget(tag, page);
    }

    /// INVPCID of type 0.
    fn forget(&mut self, tag: usize, page: usize) {
        self.forgotten += 1;
        self.cached.remove(&(tag, page));
    }

    fn translate(&mut self, page: usize, walk: impl FnOnce(usize) -> usize) -> Option<usize> {
        let (table, tag) = self.root?;
        Some(*self.cached.entry((tag, page)).or_insert_with(|| walk(table)))
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The processor uses another table.
    Switch(usize, usize),
    /// A program on it reads one of its pages.
    Touch(usize, usize),
    /// A processor takes a page of a table out and puts another one in.
    Remove(usize, usize, usize),
    /// A table ends, and another begins in its memory. No processor uses it then.
    Replace(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (processor, table, page) = (0..PROCESSORS, 0..TABLES, 0..PAGES);
    prop_oneof![
        4 => (processor.clone(), table.clone()).prop_map(|(processor, table)| Step::Switch(processor, table)),
        4 => (processor.clone(), page.clone()).prop_map(|(processor, page)| Step::Touch(processor, page)),
        2 => (processor, table.clone(), page)
            .prop_map(|(processor, table, page)| Step::Remove(processor, table, page)),
        1 => table.prop_map(Step::Replace),
    ]
}

#[derive(Default)]
struct Table {
    number: usize,
    removals: Removals,
    /// The pages that its entries lead to: never the same twice.
    pages: [usize; PAGES],
}

#[derive(Default)]
struct Processor {
    tags: Tags<TAGS>,
    hardware: Hardware,
}

/// Everything, and the next number that was never used.
struct Machine {
    processors: [Processor; PROCESSORS],
    tables: [Table; TABLES],
    next: usize,
    abilities: Abilities,
}

impl Machine {
    fn new(abilities: Abilities) -> Self {
        let tables = Default::default();
        let mut machine = Self { processors: Default::default(), tables, next: 0, abilities };
        (0..TABLES).for_each(|table| machine.replace(table));
        machine
    }

    fn new_number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    fn switch(&mut self, processor: usize, index: usize) {
        let (processor, table) = (&mut self.processors[processor], &self.tables[index]);
        let choice = processor.tags.choose(table.number, table.removals.count());
        processor.hardware.load(index, choice.tag, choice.keeps);
    }

    /// Reads as the program does; then what it should have found.
    fn touch(&mut self, processor: usize, page: usize) -> Option<(usize, usize)> {
        let hardware = &mut self.processors[processor].hardware;
        let (table, _) = hardware.root?;
        let seen = hardware.translate(page, |table| self.tables[table].pages[page])?;
        Some((seen, self.tables[table].pages[page]))
    }

    /// The kernel's part in a removal: processors that use the table are told, the remover sees to its own.
    fn remove(&mut self, remover: usize, table: usize, page: usize) {
        self.tables[table].pages[page] = self.new_number();
        let (name, number) = (self.tables[table].number, self.tables[table].removals.add());
        for (index, Processor { tags, hardware }) in self.processors.iter_mut().enumerate() {
            match hardware.root {
                Some((used, _)) if used == table && index == remover => {
                    hardware.forget_here(page);
                    tags.has_flushed(name, number);
                }
                Some((used, tag)) if used == table => hardware.load(table, tag, false),
                _ if index == remover && self.abilities.forgets_elsewhere => {
                    if let Some(tag) = tags.behind(name, number) {
                        hardware.forget(tag, page);
                        tags.has_flushed(name, number);
                    }
                }
                _ => {}
            }
        }
    }

    /// A table ends, unless a processor uses it, and another takes its memory.
    fn replace(&mut self, table: usize) {
        let uses = |processor: &Processor| processor.hardware.root.is_some_and(|(used, _)| used == table);
        if !self.processors.iter().any(uses) {
            let number = self.new_number();
            let pages = core::array::from_fn(|_| self.new_number());
            self.tables[table] = Table { number, removals: Removals::new(), pages };
        }
    }

    fn flushes(&self) -> usize {
        self.processors.iter().map(|processor| processor.hardware.flushes).sum()
    }
}

const WITHOUT: Abilities = Abilities { has_tags: true, forgets_elsewhere: false };
const WITH: Abilities = Abilities { has_tags: true, forgets_elsewhere: true };

proptest! {
    #[test]
    fn no_program_sees_what_was_taken_out(
        steps in prop::collection::vec(step(), 1..200),
        abilities in prop_oneof![Just(WITHOUT), Just(WITH)],
    ) {
        let mut machine = Machine::new(abilities);
        for step in steps {
            match step {
                Step::Switch(processor, table) => machine.switch(processor, table),
                Step::Remove(remover, table, page) => machine.remove(remover, table, page),
                Step::Replace(table) => machine.replace(table),
                Step::Touch(processor, page) => {
                    if let Some((seen, page)) = machine.touch(processor, page) {
                        prop_assert_eq!(seen, page);
                    }
                }
            }
        }
    }
}

/// A debugger writes to the program that it stopped, and both take turns: with INVPCID the program's tag is flushed at
/// its first load only.
#[test]
fn what_is_forgotten_elsewhere_spares_flushes() {
    let flushes = |abilities: Abilities| {
        let mut machine = Machine::new(abilities);
        for round in 0..10 {
            machine.switch(0, 0);
            machine.touch(0, round % PAGES);
            machine.switch(0, 1);
            machine.remove(0, 0, round % PAGES);
        }
        (machine.flushes(), machine.processors[0].hardware.forgotten)
    };
    assert_eq!(flushes(WITHOUT), (11, 0));
    assert_eq!(flushes(WITH), (2, 10));
}
