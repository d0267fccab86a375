//! A machine with one large page, of as many pages as a table has entries.

use super::{LargeEntry, LargePages};
use crate::tlb::leaf_table::machine::Machine;
pub use crate::tlb::leaf_table::machine::{ENTRIES, TestEntry};
#[cfg(heddle_loom)]
pub use crate::tlb::leaf_table::machine::{GARBAGE, Page};
use crate::tlb::leaf_table::{Entry, Tables};
use crate::tlb::sync::Mutex;

/// The first page of the large page.
pub const LARGE: u64 = 0;

struct Mappers {
    count: u32,
    tables: Vec<u64>,
}

/// See the module. The large page's frames are the first that are handed out.
pub struct LargeMachine {
    machine: Machine,
    mappers: Mutex<Mappers>,
}

impl LargeMachine {
    /// A machine with the large page, which is led to once, and the entry for it; room for so many other frames.
    pub fn new(others: usize) -> (Self, TestEntry) {
        let machine = Machine::new(ENTRIES + others);
        for page in 0..ENTRIES as u64 {
            assert_eq!(machine.allocate(), Some(page));
        }
        let table = machine.allocate().expect("room for a table");
        let mappers = Mutex::new(Mappers { count: 1, tables: vec![table] });
        (Self { machine, mappers }, TestEntry::large(LARGE, true))
    }

    /// How many frames are in use.
    pub fn used(&self) -> usize {
        self.machine.used()
    }

    #[cfg(heddle_loom)]
    pub fn page(&self, physical: u64) -> &Page {
        self.machine.page(physical)
    }

    /// The entry for a page, as the processor finds it.
    pub fn walk(&self, entry: TestEntry, index: usize) -> TestEntry {
        if entry.is_large() {
            return entry.part(index);
        }
        crate::tlb::leaf_table::load(&self.entries(entry.address())[index])
    }
}

impl Tables for LargeMachine {
    type Entry = TestEntry;

    fn entries(&self, physical: u64) -> &[crate::tlb::sync::AtomicU64] {
        self.machine.entries(physical)
    }
    fn allocate(&self) -> Option<u64> {
        self.machine.allocate()
    }
    fn references(&self, physical: u64) -> u32 {
        self.machine.references(physical)
    }
    fn add_reference(&self, physical: u64) {
        self.machine.add_reference(physical);
    }
    fn drop_reference(&self, physical: u64) -> bool {
        self.machine.drop_reference(physical)
    }
    fn free(&self, physical: u64) {
        self.machine.free(physical);
    }
}

impl LargePages for LargeMachine {
    fn mappers(&self, _: u64) -> u32 {
        self.mappers.lock().count
    }

    fn add_mapper(&self, _: u64, table: u64) {
        let mut mappers = self.mappers.lock();
        mappers.count += 1;
        mappers.tables.push(table);
    }

    fn take_table(&self, _: u64) -> u64 {
        self.mappers.lock().tables.pop().expect("each mapper has brought a table")
    }

    fn drop_mapper(&self, _: u64) -> bool {
        let mut mappers = self.mappers.lock();
        assert!(
            self.references(LARGE) > 0,
            "the first page's frame is in use: the count is in its descriptor"
        );
        mappers.count -= 1;
        mappers.count == 0
    }

    fn pages(&self, large: u64) -> impl Iterator<Item = u64> {
        large..large + ENTRIES as u64
    }

    fn is_whole(&self, large: u64) -> bool {
        self.pages(large).all(|page| self.references(page) == 1)
    }

    fn free_whole(&self, large: u64) {
        self.pages(large).for_each(|page| self.free(page));
    }
}
