//! Processors are played by what they have cached of each slot; programs by the page that each has, which is never the
//! same twice.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use super::*;

const SLOTS: usize = 3;
const PROCESSORS_MAX: usize = 4;
const FIRST_TABLE: u64 = 0x1000 | PRESENT;
const TABLE_BYTES: u64 = 0x1000;

#[test]
fn only_programs_of_one_slot_replace_each_other() {
    let root: [AtomicU64; SLOTS] = Default::default();
    let (one, two) = (FIRST_TABLE, FIRST_TABLE + TABLE_BYTES);
    assert_eq!(needed(&root, 0, one), Change::Add);
    put(&root, 0, one);
    assert_eq!(needed(&root, 1, two), Change::Add);
    put(&root, 1, two);
    assert_eq!((needed(&root, 0, one), needed(&root, 1, two)), (Change::Nothing, Change::Nothing));
    assert_eq!(needed(&root, 1, one), Change::Replace);
}

#[test]
fn a_remnant_is_replaced_and_forgotten_by_its_own_table_only() {
    let root: [AtomicU64; SLOTS] = Default::default();
    let (one, two) = (FIRST_TABLE, FIRST_TABLE + TABLE_BYTES);
    put(&root, 0, one);
    assert!(!take_out(&root, 0, two));
    assert!(take_out(&root, 0, one));
    assert_eq!(needed(&root, 0, one), Change::Replace);
    forget(&root, 0, two);
    assert_eq!(needed(&root, 0, two), Change::Replace);
    forget(&root, 0, one);
    assert_eq!(needed(&root, 0, two), Change::Add);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A processor runs a program.
    Run(usize, usize),
    /// The program that runs there reads its page.
    Touch(usize),
    /// It reaches for a slot that may be another's.
    Stray(usize, usize),
    /// A processor takes the page of a program out and puts another one in.
    Remove(usize, usize),
    /// A processor forks a program; with or without the exchange of tables.
    Fork(usize, usize, bool),
    /// A program ends on a processor.
    Exit(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (cpu, program) = (0..PROCESSORS_MAX, 0..64_usize);
    let fork = (cpu.clone(), program.clone(), any::<bool>());
    let fork = fork.prop_map(|(cpu, program, exchange)| Step::Fork(cpu, program, exchange));
    prop_oneof![
        6 => (cpu.clone(), program.clone()).prop_map(|(cpu, program)| Step::Run(cpu, program)),
        6 => cpu.clone().prop_map(Step::Touch),
        2 => (cpu.clone(), 0..SLOTS).prop_map(|(cpu, slot)| Step::Stray(cpu, slot)),
        2 => (cpu.clone(), program.clone()).prop_map(|(cpu, program)| Step::Remove(cpu, program)),
        2 => fork,
        2 => (cpu, program).prop_map(|(cpu, program)| Step::Exit(cpu, program)),
    ]
}

#[derive(Clone, Debug)]
struct Program {
    slot: usize,
    table: u64,
}

#[derive(Default)]
struct Processor {
    root: [AtomicU64; SLOTS],
    /// The program that it runs, by its table; 0 for none.
    runs: u64,
    /// The page that it has cached for each slot.
    cached: HashMap<usize, usize>,
    /// The tables whose programs it has used since it flushed everything.
    uses: BTreeSet<u64>,
}

impl Processor {
    fn flush(&mut self) {
        self.cached.clear();
    }

    /// Reads an address of a slot as the processor does.
    fn read(&mut self, slot: usize, pages: &HashMap<u64, usize>) -> Option<usize> {
        let entry = self.root[slot].load(Ordering::Relaxed);
        let walk = || (entry & PRESENT != 0).then(|| pages[&entry]);
        match self.cached.get(&slot) {
            Some(page) => Some(*page),
            None => {
                let page = walk()?;
                self.cached.insert(slot, page);
                Some(page)
            }
        }
    }
}

struct Machine {
    processors: Vec<Processor>,
    programs: Vec<Program>,
    /// The page behind each table that was not released.
    pages: HashMap<u64, usize>,
    released: BTreeSet<usize>,
    next: usize,
    next_table: u64,
}

impl Machine {
    fn new(processors: usize) -> Self {
        let mut machine = Self {
            processors: (0..processors).map(|_| Processor::default()).collect(),
            programs: Vec::new(),
            pages: HashMap::new(),
            released: BTreeSet::new(),
            next: 0,
            next_table: FIRST_TABLE,
        };
        for slot in 0..SLOTS {
            machine.start(slot);
        }
        machine
    }

    fn new_page(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    fn start(&mut self, slot: usize) -> usize {
        let table = self.next_table;
        self.next_table += TABLE_BYTES;
        let page = self.new_page();
        self.pages.insert(table, page);
        self.programs.push(Program { slot, table });
        self.programs.len() - 1
    }

    fn run(&mut self, cpu: usize, program: usize) {
        let (Program { slot, table }, processor) =
            (self.programs[program].clone(), &mut self.processors[cpu]);
        let change = needed(&processor.root, slot, table);
        if change == Change::Replace {
            processor.uses.clear();
            clear(&processor.root, 0..SLOTS);
        }
        processor.uses.insert(table);
        if change != Change::Nothing {
            put(&processor.root, slot, table);
        }
        if change == Change::Replace {
            processor.flush();
        }
        processor.runs = table;
    }

    /// All users of a table drop what they have of it: those that run now at once, others before they run.
    fn shoot_down(&mut self, table: u64) {
        for processor in self.processors.iter_mut().filter(|processor| processor.uses.contains(&table)) {
            processor.flush();
        }
    }

    fn remove(&mut self, cpu: usize, program: usize) {
        let (table, slot) = (self.programs[program].table, self.programs[program].slot);
        let page = self.new_page();
        let old = self.pages.insert(table, page).expect("not released");
        if needed(&self.processors[cpu].root, slot, table) == Change::Nothing {
            self.processors[cpu].flush();
        }
        self.shoot_down(table);
        self.released.insert(old);
    }

    fn fork(&mut self, cpu: usize, parent: usize, exchange: bool) {
        let child = self.start(self.programs[parent].slot);
        // The child's memory begins as the parent's, here as pages of their own: what is checked is whose table is
        // used.
        if exchange {
            let (old, new) = (self.programs[parent].table, self.programs[child].table);
            (self.programs[parent].table, self.programs[child].table) = (new, old);
            // The page behind the tables is the program's.
            let (page, other) = (self.pages[&old], self.pages[&new]);
            self.pages.insert(old, other);
            self.pages.insert(new, page);
            if needed(&self.processors[cpu].root, self.programs[child].slot, old) == Change::Nothing {
                self.processors[cpu].flush();
            }
            self.shoot_down(old);
        }
    }

    fn exit(&mut self, cpu: usize, program: usize) {
        if self.programs.len() <= 1 {
            return;
        }
        let Program { slot, table } = self.programs.swap_remove(program);
        for (index, processor) in self.processors.iter_mut().enumerate() {
            if processor.runs == table {
                processor.runs = 0;
            }
            if take_out(&processor.root, slot, table) && index == cpu {
                processor.flush();
                forget(&processor.root, slot, table);
            }
        }
        // Those that have used it are all that can have it cached.
        self.shoot_down(table);
        self.processors.iter().for_each(|processor| forget(&processor.root, slot, table));
        let page = self.pages.remove(&table).expect("released once");
        self.released.insert(page);
    }
}

proptest! {
    #[test]
    fn no_program_sees_another_page_than_its_own(
        processors in 1..=PROCESSORS_MAX,
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut machine = Machine::new(processors);
        for step in steps {
            let (programs, cpus) = (machine.programs.len(), processors);
            match step {
                Step::Run(cpu, program) => machine.run(cpu % cpus, program % programs),
                Step::Remove(cpu, program) => machine.remove(cpu % cpus, program % programs),
                Step::Fork(cpu, program, exchange) => {
                    // A program whose tables are exchanged runs nowhere else.
                    let table = machine.programs[program % programs].table;
                    let mut others = machine.processors.iter().enumerate();
                    let is_elsewhere = others.any(|(index, other)| index != cpu % cpus && other.runs == table);
                    if programs < 16 && !is_elsewhere {
                        machine.fork(cpu % cpus, program % programs, exchange);
                    }
                }
                Step::Exit(cpu, program) => machine.exit(cpu % cpus, program % programs),
                Step::Touch(cpu) => {
                    let processor = &mut machine.processors[cpu % cpus];
                    let runs = processor.runs;
                    if let Some(program) = machine.programs.iter().find(|program| program.table == runs) {
                        let seen = processor.read(program.slot, &machine.pages);
                        prop_assert_eq!(seen, Some(machine.pages[&runs]));
                    }
                }
                Step::Stray(cpu, slot) => {
                    // Whatever it finds, it is no memory that was released.
                    let processor = &mut machine.processors[cpu % cpus];
                    let seen = processor.read(slot, &machine.pages);
                    prop_assert!(seen.is_none_or(|page| !machine.released.contains(&page)));
                }
            }
        }
    }
}
