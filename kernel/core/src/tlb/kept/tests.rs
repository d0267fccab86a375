//! Processors are played by what they have cached for each tag and slot; programs by the page that each has, which is
//! never the same twice.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::tlb::roots::{clear, forget, needed, put, take_out};
use crate::tlb::shootdown::{Shootdown, Users};

const ROOTS: usize = 3;
const SLOTS: usize = 2;
const PROCESSORS: usize = 2;
const DOMAINS: usize = 2;
const PRESENT: u64 = 1;
const TABLE_BYTES: u64 = 0x1000;

fn with_roots(available: usize) -> KeptRoots<ROOTS> {
    let mut kept = KeptRoots::new();
    kept.set_available(available);
    kept
}

#[test]
fn claimants_of_one_slot_have_a_root_each_and_keep_it() {
    let mut kept = with_roots(ROOTS);
    // Each root has the number of a program here; all claim one slot.
    let mut roots = [0; ROOTS];
    let mut run = |kept: &mut KeptRoots<ROOTS>, program: u64, change: u64| {
        let selection = kept.select(0, change, |root| match roots[root] {
            0 => Change::Add,
            found if found == program => Change::Nothing,
            _ => Change::Replace,
        });
        roots[selection.root] = program;
        selection
    };
    assert!(!run(&mut kept, 1, 2).keeps, "nothing was there");
    let (second, third) = (run(&mut kept, 2, 3), run(&mut kept, 3, 4));
    assert_eq!((second.change, third.change), (Change::Replace, Change::Replace));
    for (program, change) in [(1, 5), (2, 6), (3, 7), (1, 8), (2, 9)] {
        let again = run(&mut kept, program, change);
        assert_eq!((again.change, again.keeps), (Change::Nothing, true));
    }
    let fourth = run(&mut kept, 4, 10);
    assert_eq!(
        (fourth.change, fourth.keeps, fourth.root),
        (Change::Replace, false, third.root),
        "3 waited longest"
    );
    assert!(run(&mut kept, 1, 11).keeps && run(&mut kept, 2, 12).keeps);
}

#[test]
fn domains_share_no_root() {
    let mut kept = with_roots(2);
    let of = |kept: &mut KeptRoots<ROOTS>, domain, change| kept.select(domain, change, |_| Change::Nothing);
    let first = of(&mut kept, 1, 2);
    let second = of(&mut kept, 2, 3);
    assert_ne!(first.root, second.root);
    assert_eq!(of(&mut kept, 1, 4), SelectedRoot { keeps: true, change: Change::Nothing, ..first });
    assert_eq!(of(&mut kept, 3, 5).root, second.root);
    assert_eq!(of(&mut kept, 2, 6).change, Change::Replace, "its root is another's");
}

#[test]
fn records_of_use_count_from_the_oldest_root_on() {
    let mut kept = with_roots(2);
    assert_eq!(kept.oldest(), 1);
    for change in 2..=5 {
        kept.select(change as usize, change, |_| Change::Replace);
        assert_eq!(kept.oldest(), change - 1);
    }
}

#[test]
fn what_is_marked_is_flushed_once() {
    let mut kept = with_roots(2);
    for domain in [1, 2] {
        kept.select(domain, 1, |_| Change::Nothing);
    }
    kept.mark_others(Some(kept.current()));
    assert!(kept.load_current(), "the loaded one is good");
    let of = |kept: &mut KeptRoots<ROOTS>, domain| kept.select(domain, 1, |_| Change::Nothing).keeps;
    assert!(!of(&mut kept, 1) && of(&mut kept, 2) && of(&mut kept, 1));
    kept.mark_others(None);
    assert!(!of(&mut kept, 1) && !of(&mut kept, 2));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A processor runs a program.
    Run(usize, usize),
    /// A processor loads the root of a space that lies in no slot.
    RunWhole(usize),
    /// The program that runs there reads its page.
    Touch(usize),
    /// It reaches for a slot that may be another's.
    Stray(usize, usize),
    /// A processor takes the page of a program out and puts another one in.
    Remove(usize, usize),
    /// A program begins in a slot, for a domain.
    Start(usize, usize),
    /// A program ends on a processor.
    Exit(usize, usize),
    /// A processor does what it was asked to.
    CatchUp(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (cpu, program, slot) = (0..PROCESSORS, 0..64_usize, 0..SLOTS);
    prop_oneof![
        8 => (cpu.clone(), program.clone()).prop_map(|(cpu, program)| Step::Run(cpu, program)),
        1 => cpu.clone().prop_map(Step::RunWhole),
        6 => cpu.clone().prop_map(Step::Touch),
        2 => (cpu.clone(), slot.clone()).prop_map(|(cpu, slot)| Step::Stray(cpu, slot)),
        3 => (cpu.clone(), program.clone()).prop_map(|(cpu, program)| Step::Remove(cpu, program)),
        2 => (slot, 0..DOMAINS).prop_map(|(slot, domain)| Step::Start(slot, domain)),
        1 => (cpu.clone(), program).prop_map(|(cpu, program)| Step::Exit(cpu, program)),
        1 => cpu.prop_map(Step::CatchUp),
    ]
}

struct Program {
    slot: usize,
    table: u64,
    domain: usize,
    users: Users<PROCESSORS>,
}

struct Processor {
    roots: [[AtomicU64; SLOTS]; ROOTS],
    kept: KeptRoots<ROOTS>,
    /// The root that it has loaded; `None` for that of a space without a slot.
    loaded: Option<usize>,
    /// The program that it runs, by its table; 0 for none.
    runs: u64,
    /// The page that it has cached for each root and slot.
    cached: HashMap<(usize, usize), usize>,
}

impl Processor {
    fn new(available: usize) -> Self {
        let kept = with_roots(available);
        Self { roots: Default::default(), kept, loaded: Some(0), runs: 0, cached: HashMap::new() }
    }

    fn forget_tag(&mut self, tag: usize) {
        self.cached.retain(|(of, _), _| *of != tag);
    }

    /// Drops everything: what is loaded at once, the rest when it is loaded.
    fn flush(&mut self) {
        if let Some(loaded) = self.loaded {
            self.forget_tag(loaded);
        }
        self.kept.mark_others(self.loaded);
    }

    /// Loads a root of its own. Without `keeps` the processor forgets what it has with this tag.
    fn load(&mut self, root: usize, keeps: bool) {
        if !keeps {
            self.forget_tag(root);
        }
        self.loaded = Some(root);
    }

    /// Reads an address of a slot as the processor does.
    fn read(&mut self, slot: usize, pages: &HashMap<u64, usize>) -> Option<usize> {
        let loaded = self.loaded?;
        if let Some(page) = self.cached.get(&(loaded, slot)) {
            return Some(*page);
        }
        let entry = self.roots[loaded][slot].load(Ordering::Relaxed);
        let page = (entry & PRESENT != 0)
            .then(|| *pages.get(&entry).expect("a walker is in no table that was released"))?;
        self.cached.insert((loaded, slot), page);
        Some(page)
    }
}

struct Machine {
    state: Shootdown<PROCESSORS>,
    processors: [Processor; PROCESSORS],
    programs: Vec<Program>,
    /// The page behind each table that was not released.
    pages: HashMap<u64, usize>,
    released: BTreeSet<usize>,
    forgets_elsewhere: bool,
    next: usize,
    next_table: u64,
}

impl Machine {
    fn new(available: usize, forgets_elsewhere: bool) -> Self {
        let mut machine = Self {
            state: Shootdown::new(),
            processors: core::array::from_fn(|_| Processor::new(available)),
            programs: Vec::new(),
            pages: HashMap::new(),
            released: BTreeSet::new(),
            forgets_elsewhere,
            next: 0,
            next_table: TABLE_BYTES | PRESENT,
        };
        (0..SLOTS).for_each(|slot| machine.start(slot, 0));
        machine
    }

    fn new_page(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    fn start(&mut self, slot: usize, domain: usize) {
        let table = self.next_table;
        self.next_table += TABLE_BYTES;
        let page = self.new_page();
        self.pages.insert(table, page);
        self.programs.push(Program { slot, table, domain, users: Users::default() });
    }

    /// Before a processor touches memory of programs it does what it was asked to.
    fn catch_up(&mut self, cpu: usize) {
        let processor = &mut self.processors[cpu];
        self.state.catch_up(cpu, || processor.flush());
    }

    fn run(&mut self, cpu: usize, program: usize) {
        let Program { slot, table, domain, users } = &self.programs[program];
        let processor = &mut self.processors[cpu];
        if processor.runs != *table {
            let change = self.state.begin_root_change(cpu);
            let roots = &processor.roots;
            let selection =
                processor.kept.select(*domain, change, |root| needed(&roots[root], *slot, *table));
            let root = &processor.roots[selection.root];
            if selection.change == Change::Replace {
                clear(root, 0..SLOTS);
            }
            self.state.note(cpu, users);
            if selection.change != Change::Nothing {
                put(root, *slot, *table);
            }
            processor.load(selection.root, selection.keeps);
            self.state.end_root_change_keeping(cpu, processor.kept.oldest());
            processor.runs = *table;
        }
    }

    fn run_whole(&mut self, cpu: usize) {
        self.state.begin_root_change(cpu);
        let processor = &mut self.processors[cpu];
        (processor.loaded, processor.runs) = (None, 0);
        self.state.end_root_change_keeping(cpu, processor.kept.oldest());
    }

    fn remove(&mut self, cpu: usize, program: usize) {
        let page = self.new_page();
        let Program { slot, table, users, .. } = &self.programs[program];
        let old = self.pages.insert(*table, page).expect("not released");
        let processor = &mut self.processors[cpu];
        for root in 0..ROOTS {
            if needed(&processor.roots[root], *slot, *table) != Change::Nothing {
                continue;
            }
            if processor.loaded == Some(root) || self.forgets_elsewhere && !processor.kept.is_stale(root) {
                processor.cached.remove(&(root, *slot));
            } else {
                processor.kept.mark(root);
            }
        }
        self.state.post_to_keepers((0..PROCESSORS).filter(|&other| other != cpu), users);
        // Processors that touch memory of programs catch up before.
        self.released.insert(old);
    }

    fn exit(&mut self, cpu: usize, program: usize) {
        if self.programs.len() <= 1 {
            return;
        }
        let Program { slot, table, users, .. } = self.programs.swap_remove(program);
        for (index, processor) in self.processors.iter_mut().enumerate() {
            if processor.runs == table {
                processor.runs = 0;
            }
            for root in 0..ROOTS {
                if !take_out(&processor.roots[root], slot, table) || index != cpu {
                    continue;
                }
                if processor.loaded == Some(root) {
                    processor.forget_tag(root);
                } else {
                    processor.kept.mark(root);
                }
                forget(&processor.roots[root], slot, table);
            }
        }
        self.state.post_to_keepers((0..PROCESSORS).filter(|&other| other != cpu), &users);
        // A table waits for all.
        (0..PROCESSORS).for_each(|cpu| self.catch_up(cpu));
        let all = self.processors.iter().flat_map(|processor| &processor.roots);
        all.for_each(|root| forget(root, slot, table));
        let page = self.pages.remove(&table).expect("released once");
        self.released.insert(page);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn no_program_sees_another_page_than_its_own(
        available in 1..=ROOTS,
        forgets_elsewhere: bool,
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut machine = Machine::new(available, forgets_elsewhere);
        for step in steps {
            let programs = machine.programs.len();
            match step {
                Step::Run(cpu, program) => machine.run(cpu, program % programs),
                Step::RunWhole(cpu) => machine.run_whole(cpu),
                Step::Remove(cpu, program) => machine.remove(cpu, program % programs),
                Step::Start(slot, domain) if programs < 8 => machine.start(slot, domain),
                Step::Start(..) => {}
                Step::Exit(cpu, program) => machine.exit(cpu, program % programs),
                Step::CatchUp(cpu) => machine.catch_up(cpu),
                Step::Touch(cpu) => {
                    machine.catch_up(cpu);
                    let processor = &mut machine.processors[cpu];
                    let runs = processor.runs;
                    if let Some(program) = machine.programs.iter().find(|program| program.table == runs) {
                        let seen = processor.read(program.slot, &machine.pages);
                        prop_assert_eq!(seen, Some(machine.pages[&runs]));
                    }
                }
                Step::Stray(cpu, slot) => {
                    machine.catch_up(cpu);
                    // Whatever it finds, it is no memory that was released, and none of another domain.
                    let processor = &mut machine.processors[cpu];
                    let runs = processor.runs;
                    let seen = processor.read(slot, &machine.pages);
                    prop_assert!(seen.is_none_or(|page| !machine.released.contains(&page)));
                    let of = |wanted: u64| machine.programs.iter().find(move |program| program.table == wanted);
                    let owner = machine.programs.iter().find(|other| seen == Some(machine.pages[&other.table]));
                    if let (Some(owner), Some(running)) = (owner, of(runs)) {
                        prop_assert_eq!(owner.domain, running.domain);
                    }
                }
            }
        }
    }
}
