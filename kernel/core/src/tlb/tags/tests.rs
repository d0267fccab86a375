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

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The processor uses another table.
    Switch(usize, usize),
    /// A program on it reads its one page.
    Touch(usize),
    /// A processor takes the page of a table out and puts another one in.
    Remove(usize, usize),
    /// A table ends, and another begins in its memory. No processor uses it then.
    Replace(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (processor, table) = (0..PROCESSORS, 0..TABLES);
    prop_oneof![
        4 => (processor.clone(), table.clone()).prop_map(|(processor, table)| Step::Switch(processor, table)),
        4 => processor.clone().prop_map(Step::Touch),
        2 => (processor, table.clone()).prop_map(|(processor, table)| Step::Remove(processor, table)),
        1 => table.prop_map(Step::Replace),
    ]
}

#[derive(Default)]
struct Table {
    number: usize,
    removals: Removals,
    /// The contents of its page table: the page is never the same twice.
    page: usize,
}

#[derive(Default)]
struct Processor {
    tags: Tags<TAGS>,
    /// The table in use and its tag.
    used: Option<(usize, usize)>,
    /// Translations by tag.
    cached: HashMap<usize, usize>,
}

/// Everything, and the next number that was never used.
struct Machine {
    processors: [Processor; PROCESSORS],
    tables: [Table; TABLES],
    next: usize,
}

impl Machine {
    fn new() -> Self {
        let table = |number| Table { number, page: number, ..Table::default() };
        Self { processors: Default::default(), tables: core::array::from_fn(table), next: TABLES }
    }

    fn new_number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    fn switch(&mut self, processor: usize, table: usize) {
        let (processor, index) = (&mut self.processors[processor], table);
        let table = &self.tables[index];
        let choice = processor.tags.choose(table.number, table.removals.count());
        if !choice.keeps {
            processor.cached.remove(&choice.tag);
        }
        processor.used = Some((index, choice.tag));
    }

    /// Reads as the program does.
    fn touch(&mut self, processor: usize) -> Option<(usize, usize)> {
        let processor = &mut self.processors[processor];
        let (table, tag) = processor.used?;
        let page = self.tables[table].page;
        Some((*processor.cached.entry(tag).or_insert(page), page))
    }

    fn remove(&mut self, remover: usize, table: usize) {
        self.tables[table].page = self.new_number();
        let number = self.tables[table].removals.add();
        for (index, processor) in self.processors.iter_mut().enumerate() {
            // Only processors that use the table are told.
            let Some((_, tag)) = processor.used.filter(|&(used, _)| used == table) else { continue };
            processor.cached.remove(&tag);
            if index == remover {
                processor.tags.has_flushed(self.tables[table].number, number);
            }
        }
    }

    fn replace(&mut self, table: usize) {
        if self.processors.iter().all(|processor| processor.used.is_none_or(|(used, _)| used != table)) {
            let number = self.new_number();
            self.tables[table] = Table { number, page: number, removals: Removals::new() };
        }
    }
}

proptest! {
    #[test]
    fn no_program_sees_what_was_taken_out(steps in prop::collection::vec(step(), 1..200)) {
        let mut machine = Machine::new();
        for step in steps {
            match step {
                Step::Switch(processor, table) => machine.switch(processor, table),
                Step::Remove(remover, table) => machine.remove(remover, table),
                Step::Replace(table) => machine.replace(table),
                Step::Touch(processor) => {
                    if let Some((seen, page)) = machine.touch(processor) {
                        prop_assert_eq!(seen, page);
                    }
                }
            }
        }
    }
}
