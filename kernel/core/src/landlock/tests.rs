//! A tree whose files are numbers: of the root 1 come 2 and 3, of 2 come 20 to 29, and so on.

use super::*;

fn key(file: u64) -> Key {
    (0, file)
}

/// A file and what is above it.
fn climb(file: u64) -> impl Iterator<Item = Key> {
    let mut next = Some(file);
    core::iter::from_fn(move || {
        let file = next?;
        next = if file == 1 { None } else { Some((file / 10).max(1)) };
        Some(key(file))
    })
}

fn ruleset(handled: Rights, rules: &[(u64, Rights)]) -> Ruleset<()> {
    let mut made = Ruleset::new(handled);
    for &(file, granted) in rules {
        made.add(key(file), (), granted).unwrap();
    }
    made
}

fn domain(layers: &[(Rights, &[(u64, Rights)])]) -> Domain<()> {
    let mut domain = None;
    for &(handled, rules) in layers {
        domain = Some(Domain::new(domain.as_ref(), &ruleset(handled, rules)).unwrap());
    }
    domain.unwrap()
}

const READ: Rights = Rights::READ_FILE;
const WRITE: Rights = Rights::WRITE_FILE;

#[test]
fn a_rule_grants_beneath_its_file() {
    let domain = domain(&[(READ | WRITE, &[(2, READ), (25, WRITE)])]);
    assert!(domain.permits(READ, climb(2)));
    assert!(domain.permits(READ, climb(25)));
    assert!(!domain.permits(READ, climb(3)));
    assert!(!domain.permits(READ, climb(1)));
    assert!(!domain.permits(WRITE, climb(24)));
    // Rules of several directories add up.
    assert!(domain.permits(READ | WRITE, climb(255)));
    // Other rights are granted everywhere, but for one.
    assert!(domain.permits(Rights::EXECUTE, climb(3)));
    assert!(!domain.permits(Rights::REFER, climb(2)));
}

#[test]
fn every_layer_must_grant() {
    let domain = domain(&[(READ, &[(2, READ), (3, READ)]), (READ, &[(20, READ)]), (WRITE, &[])]);
    assert!(domain.permits(READ, climb(20)));
    assert!(!domain.permits(READ, climb(21)));
    assert!(!domain.permits(READ, climb(3)));
    assert!(!domain.permits(WRITE, climb(20)));
}

#[test]
fn a_file_has_one_rule() {
    let domain = domain(&[(READ | WRITE, &[(2, READ), (2, WRITE)])]);
    assert!(domain.permits(READ | WRITE, climb(22)));
}

#[test]
fn there_are_sixteen_layers() {
    let layer = ruleset(READ, &[(2, READ)]);
    let mut domain = Domain::new(None, &layer).unwrap();
    for _ in 1..LAYERS_MAX {
        domain = Domain::new(Some(&domain), &layer).unwrap();
    }
    assert!(domain.permits(READ, climb(2)));
    assert_eq!(Domain::new(Some(&domain), &layer).err(), Some(RuleRefused::TooMany));
}

#[test]
fn rules_are_limited() {
    let mut first = Ruleset::new(READ);
    for file in 0..RULES_MAX as u64 {
        first.add(key(file), (), READ).unwrap();
    }
    assert_eq!(first.add(key(1 << 40), (), READ), Err(RuleRefused::TooMany));
    first.add(key(5), (), READ).unwrap();
    let domain = Domain::new(None, &first).unwrap();
    assert!(Domain::new(Some(&domain), &first).is_ok());
    let other = ruleset(READ, &[(1 << 40, READ)]);
    assert_eq!(Domain::new(Some(&domain), &other).err(), Some(RuleRefused::TooMany));
}

/// Moves a file (no directory) from one directory to another.
fn refer(domain: &Domain<()>, file: u64, to: u64, wanted: [Rights; 2]) -> Result<(), NotMoved> {
    domain.permits_reparenting(Reparenting {
        moved: Side { key: key(file), is_directory: false },
        exchanged: None,
        wanted,
        from: climb(file).skip(1),
        to: climb(to),
        above: climb(1),
    })
}

const MOVE: [Rights; 2] = [Rights::REMOVE_FILE, Rights::MAKE_REG];
const BOTH: Rights = Rights::REMOVE_FILE.union(Rights::MAKE_REG).union(Rights::REFER);

#[test]
fn a_move_needs_the_right_on_both_sides() {
    // Nothing is handled: only reparenting is forbidden.
    assert_eq!(refer(&domain(&[(READ, &[])]), 20, 3, MOVE), Err(NotMoved::Loosened));
    let handled = BOTH | READ;
    let both = domain(&[(handled, &[(2, BOTH), (3, BOTH)])]);
    assert_eq!(refer(&both, 20, 3, MOVE), Ok(()));
    let one = domain(&[(handled, &[(2, BOTH), (3, BOTH - Rights::REFER)])]);
    assert_eq!(refer(&one, 20, 3, MOVE), Err(NotMoved::Loosened));
    let neither = domain(&[(handled, &[(2, BOTH), (3, Rights::REFER)])]);
    assert_eq!(refer(&neither, 20, 3, MOVE), Err(NotMoved::Forbidden));
    let above = domain(&[(handled, &[(1, BOTH)])]);
    assert_eq!(refer(&above, 20, 3, MOVE), Ok(()));
}

#[test]
fn a_move_loosens_nothing() {
    let handled = BOTH | READ | Rights::READ_DIR;
    let looser = domain(&[(handled, &[(2, BOTH), (3, BOTH | READ)])]);
    assert_eq!(refer(&looser, 20, 3, MOVE), Err(NotMoved::Loosened));
    // The other way it is restricted further.
    assert_eq!(refer(&looser, 30, 2, MOVE), Ok(()));
    // A right of the file itself goes with it.
    let own = domain(&[(handled, &[(2, BOTH), (20, READ), (3, BOTH | READ)])]);
    assert_eq!(refer(&own, 20, 3, MOVE), Ok(()));
    // A right that only directories have does not matter to a file.
    let listed = domain(&[(handled, &[(2, BOTH), (3, BOTH | Rights::READ_DIR)])]);
    assert_eq!(refer(&listed, 20, 3, MOVE), Ok(()));
    // A second layer may forbid it although the first grants everything.
    let layers = domain(&[(handled, &[(1, handled)]), (handled, &[(2, BOTH), (3, BOTH | READ)])]);
    assert_eq!(refer(&layers, 20, 3, MOVE), Err(NotMoved::Loosened));
}

#[test]
fn an_exchange_is_two_moves() {
    let handled = BOTH | READ;
    let exchange = |domain: &Domain<()>| {
        domain.permits_reparenting(Reparenting {
            moved: Side { key: key(20), is_directory: false },
            exchanged: Some(Side { key: key(30), is_directory: false }),
            wanted: [Rights::REMOVE_FILE | Rights::MAKE_REG; 2],
            from: climb(2),
            to: climb(3),
            above: climb(1),
        })
    };
    assert_eq!(exchange(&domain(&[(handled, &[(2, BOTH), (3, BOTH)])])), Ok(()));
    // One of the two would be loosened, whichever way round.
    let uneven = domain(&[(handled, &[(2, BOTH | READ), (3, BOTH)])]);
    assert_eq!(exchange(&uneven), Err(NotMoved::Loosened));
    let half = domain(&[(handled, &[(2, BOTH), (3, BOTH - Rights::REMOVE_FILE)])]);
    assert_eq!(exchange(&half), Err(NotMoved::Forbidden));
}
