//! The set against a model that knows each page by itself.

use super::*;
use std::vec::Vec;

/// Object number; 0 is anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Object(u8);

impl Backing for Object {
    fn is_same(&self, other: &Self) -> bool {
        self == other
    }
    fn has_offsets(&self) -> bool {
        self.0 != 0
    }
}

const PAGE: usize = 0x1000;
const PAGES: usize = 48;

fn mapping(pages: Range<usize>, protection: u8, object: u8, offset: u64) -> Mapping<Object> {
    Mapping {
        start: pages.start * PAGE,
        end: pages.end * PAGE,
        protection: Protection::from_bits_truncate(protection),
        flags: Flags::empty(),
        backing: Object(object),
        offset,
        policy: MemoryPolicy::DEFAULT,
        key: 0,
    }
}

/// The state of one page: protection, object, offset if that counts.
type Page = Option<(Protection, Object, u64)>;

fn pages_of(set: &Mappings<Object>) -> Vec<Page> {
    (0..PAGES)
        .map(|page| {
            let found = set.get(page * PAGE)?;
            let offset = if found.backing.has_offsets() { found.offset_of(page * PAGE) } else { 0 };
            Some((found.protection, found.backing, offset))
        })
        .collect()
}

/// Disjoint, in order, and no two neighbours that could be one.
fn assert_canonical(set: &Mappings<Object>) {
    let all: Vec<_> = set.iter().collect();
    for pair in all.windows(2) {
        assert!(pair[0].end <= pair[1].start);
        assert!(!pair[0].continues_in(pair[1]), "{:?} and {:?} should be one", pair[0], pair[1]);
    }
    assert!(all.iter().all(|mapping| mapping.start < mapping.end));
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[test]
fn random_operations_agree_with_single_pages() {
    for seed in 1..60u64 {
        let mut random = Random(seed * 0x9e37_79b9);
        let mut set = Mappings::new();
        let mut model: Vec<Page> = std::vec![None; PAGES];
        for _ in 0..200 {
            let start = random.below(PAGES);
            let range = start..start + 1 + random.below(PAGES - start);
            let bytes = range.start * PAGE..range.end * PAGE;
            assert_eq!(set.is_free(bytes.clone()), model[range.clone()].iter().all(Option::is_none));
            assert_eq!(set.covers(bytes.clone()), model[range.clone()].iter().all(Option::is_some));
            match random.below(3) {
                0 => {
                    set.reserve(2).unwrap();
                    set.remove(bytes, |_| {});
                    model[range].fill(None);
                }
                1 => {
                    let object = random.below(3) as u8;
                    let offset = (random.below(4) * PAGE) as u64;
                    let new = mapping(range.clone(), 1 + random.below(3) as u8, object, offset);
                    let mut removed = 0;
                    set.reserve(2).unwrap();
                    set.remove(bytes, |piece| removed += piece.end - piece.start);
                    assert_eq!(removed / PAGE, model[range.clone()].iter().flatten().count());
                    for (page, slot) in model[range].iter_mut().enumerate() {
                        let offset = if object == 0 { 0 } else { offset + (page * PAGE) as u64 };
                        *slot = Some((new.protection, new.backing, offset));
                    }
                    set.reserve(2).unwrap();
                    set.insert(new);
                }
                _ => {
                    let protection = Protection::from_bits_truncate(random.below(8) as u8);
                    set.reserve(2).unwrap();
                    set.change(bytes, |piece| piece.protection = protection);
                    for page in model[range].iter_mut().flatten() {
                        page.0 = protection;
                    }
                }
            }
            assert_eq!(pages_of(&set), model, "seed {seed}");
            assert_canonical(&set);
            assert_eq!(set.total_bytes(), model.iter().flatten().count() * PAGE);
        }
    }
}

#[test]
fn free_ranges_are_found_from_the_top() {
    let mut set = Mappings::new();
    let within = 4 * PAGE..40 * PAGE;
    let find = |set: &Mappings<Object>, pages: usize| {
        let found = set.find_free(pages * PAGE, PAGE, within.clone(), 2 * PAGE, &mut 0);
        // The same in the smallest steps.
        let mut part = within.clone();
        let in_steps = loop {
            match set.search_free(pages * PAGE, PAGE, part.clone(), 2 * PAGE, &mut 0, 1) {
                FreeSearch::Found(start) => break Some(start),
                FreeSearch::Nothing => break None,
                FreeSearch::GoOn(end) => part.end = end,
            }
        };
        assert_eq!(in_steps, found);
        found.map(|start| start / PAGE)
    };
    assert_eq!(find(&set, 36), Some(4));
    assert_eq!(find(&set, 37), None);
    set.reserve(2).unwrap();
    set.insert(mapping(30..40, 3, 0, 0));
    assert_eq!(find(&set, 1), Some(29));
    set.reserve(2).unwrap();
    set.insert(mapping(10..12, 3, 0, 0));
    assert_eq!(find(&set, 18), Some(12));
    assert_eq!(find(&set, 19), None);
    assert_eq!(find(&set, 6), Some(24));
    set.reserve(2).unwrap();
    set.remove(30 * PAGE..40 * PAGE, |_| {});
    let mut stack = mapping(36..40, 3, 0, 0);
    stack.flags = Flags::GROWS_DOWN;
    set.reserve(2).unwrap();
    set.insert(stack);
    assert_eq!(find(&set, 1), Some(33), "two pages stay free below what grows down");
    assert_eq!(set.find_free(PAGE, 16 * PAGE, within.clone(), 0, &mut 0), Some(32 * PAGE));
    assert_eq!(set.find_free(PAGE, PAGE, 4 * PAGE..36 * PAGE, 2 * PAGE, &mut 0), Some(33 * PAGE));
    let mut skipped = 0;
    assert_eq!(set.find_free(25 * PAGE, PAGE, within.clone(), 0, &mut skipped), None);
    assert_eq!(skipped, 24 * PAGE);
}

#[test]
fn growing_down_keeps_the_offset_of_what_was_there() {
    let mut set = Mappings::new();
    let mut stack = mapping(20..22, 3, 1, 5 * PAGE as u64);
    stack.flags = Flags::GROWS_DOWN;
    set.reserve(2).unwrap();
    set.insert(stack);
    set.reserve(2).unwrap();
    set.extend_down(20 * PAGE, 18 * PAGE);
    let found = set.get(18 * PAGE).unwrap();
    assert_eq!((found.start, found.end), (18 * PAGE, 22 * PAGE));
    assert_eq!(set.total_bytes(), 4 * PAGE);
    assert_eq!(found.offset_of(20 * PAGE), 5 * PAGE as u64);
    assert!(set.get(17 * PAGE).is_none());
    assert_eq!(set.below(18 * PAGE), None);
    assert_eq!(set.below(30 * PAGE).map(|mapping| mapping.end), Some(22 * PAGE));
    assert_eq!(set.at_or_above(0).map(|mapping| mapping.start), Some(18 * PAGE));
}

#[test]
fn parts_have_so_many_mappings() {
    let mut set = Mappings::new();
    for page in [1, 3, 5, 7] {
        set.reserve(1).expect("memory");
        set.insert(mapping(page..page + 1, 3, 1, 0));
    }
    let all = 0..PAGES * PAGE;
    assert_eq!(set.first_part(all.clone(), 2), 0..4 * PAGE);
    assert_eq!(set.first_part(3 * PAGE..7 * PAGE + 1, 3), 3 * PAGE..7 * PAGE + 1);
    assert_eq!(set.first_part(all.clone(), 5), all);
    assert_eq!(set.first_part(8 * PAGE..9 * PAGE, 1), 8 * PAGE..9 * PAGE);
}
