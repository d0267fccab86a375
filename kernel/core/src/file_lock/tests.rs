//! Tests of this crate, against a model that keeps each byte apart.

use super::*;

/// Bytes told apart; the last one stands for the rest of the file.
const BYTES: u64 = 24;

/// The locks of each byte, by owner: the specification that the table is compared with.
type Model = [[Option<LockKind>; BYTES as usize]; 3];

fn of_table(table: &Table<usize>) -> Model {
    let mut model = Model::default();
    for lock in &table.locks {
        for byte in lock.range.first..=lock.range.last.min(BYTES - 1) {
            let cell = &mut model[lock.owner][byte as usize];
            assert_eq!(*cell, None, "an owner's locks don't overlap");
            *cell = Some(lock.kind);
        }
    }
    model
}

#[test]
fn agrees_with_a_table_of_bytes() {
    let mut table = Table::new();
    let mut model = Model::default();
    let mut state = 4711_u64;
    let mut random = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    for _ in 0..20_000 {
        let (owner, first) = (random(3) as usize, random(BYTES));
        let last = match first + random(BYTES - first) {
            last if last == BYTES - 1 => u64::MAX,
            last => last,
        };
        let range = ByteRange { first, last };
        let kind = [None, Some(LockKind::Shared), Some(LockKind::Exclusive)][random(3) as usize];
        let bytes = first as usize..=last.min(BYTES - 1) as usize;
        if let Some(kind) = kind {
            let blocked = (0..3).filter(|&other| other != owner).any(|other| {
                model[other][bytes.clone()]
                    .iter()
                    .flatten()
                    .any(|&held| held == LockKind::Exclusive || kind == LockKind::Exclusive)
            });
            assert_eq!(table.conflict(owner, range, kind).is_some(), blocked);
            if blocked {
                continue;
            }
        }
        table.set(owner, range, kind).unwrap();
        model[owner][bytes].fill(kind);
        assert_eq!(of_table(&table), model);
    }
}

#[test]
fn touching_locks_of_one_kind_become_one() {
    let mut table = Table::new();
    for (first, last) in [(0, 9), (20, 29), (10, 19)] {
        table.set(1, ByteRange { first, last }, Some(LockKind::Exclusive)).unwrap();
    }
    assert_eq!(table.locks.len(), 1);
    assert_eq!(table.locks[0].range, ByteRange { first: 0, last: 29 });
    assert!(table.release(1) && !table.release(1) && table.is_empty());
}

#[test]
fn the_conflict_that_starts_first_is_reported() {
    let mut table = Table::new();
    table.set(1, ByteRange { first: 50, last: 60 }, Some(LockKind::Exclusive)).unwrap();
    table.set(2, ByteRange { first: 10, last: 20 }, Some(LockKind::Shared)).unwrap();
    assert_eq!(table.conflict(3, ByteRange::ALL, LockKind::Exclusive).map(|lock| lock.owner), Some(2));
    assert_eq!(table.conflict(3, ByteRange::ALL, LockKind::Shared).map(|lock| lock.owner), Some(1));
    assert_eq!(table.conflict(1, ByteRange { first: 50, last: 70 }, LockKind::Exclusive), None);
}
