//! Tests of this crate.

use super::*;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;

fn list(names: &Names<u32>) -> Vec<String> {
    let mut found = Vec::new();
    let mut cookie = 0;
    while let Some((next, name, _)) = names.after(cookie) {
        found.push(String::from_utf8_lossy(name).into_owned());
        cookie = next;
    }
    found
}

#[test]
fn agrees_with_a_map() {
    let mut names = Names::new();
    let mut model: BTreeMap<String, u32> = BTreeMap::new();
    let mut state = 12345_u32;
    for step in 0..20_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let name = format!("file{}", (state >> 8) % 300);
        match state >> 30 {
            0 | 1 => assert_eq!(names.insert(name.as_bytes(), step), Ok(model.insert(name, step))),
            2 => assert_eq!(names.remove(name.as_bytes()), model.remove(&name)),
            _ => assert_eq!(names.get(name.as_bytes()), model.get(&name)),
        }
        assert_eq!(names.len(), model.len());
    }
    let listed: BTreeSet<_> = list(&names).into_iter().collect();
    assert_eq!(listed, model.keys().cloned().collect());
    for name in model.keys() {
        assert!(names.remove(name.as_bytes()).is_some());
    }
    assert!(names.is_empty() && names.slots.capacity() == 0, "an empty directory holds no memory");
}

#[test]
fn a_listing_survives_removals_and_insertions() {
    let mut names = Names::new();
    for number in 0..100 {
        names.insert(format!("{number}").as_bytes(), number).unwrap();
    }
    // Remove each name as it is listed, as `rm -r` does, while others come.
    let (mut cookie, mut seen) = (0, Vec::new());
    while let Some((next, _, &value)) = names.after(cookie) {
        seen.push(value);
        names.remove(format!("{value}").as_bytes()).unwrap();
        if value < 100 {
            names.insert(format!("{}", value + 1000).as_bytes(), value + 1000).unwrap();
        }
        cookie = next;
        if seen.len() > 300 {
            break;
        }
    }
    seen.sort_unstable();
    let expected: Vec<u32> = (0..100).chain(1000..1100).collect();
    assert_eq!(seen, expected);
}

#[test]
fn replacing_keeps_the_place() {
    let mut names = Names::new();
    for name in ["a", "b", "c"] {
        names.insert(name.as_bytes(), 0).unwrap();
    }
    assert_eq!(names.insert(b"b", 7), Ok(Some(0)));
    assert_eq!(list(&names), ["a", "b", "c"]);
    assert_eq!(names.get(b"b"), Some(&7));
}

#[test]
fn popping_empties() {
    let mut names = Names::new();
    for number in 0..50 {
        names.insert(format!("{number}").as_bytes(), number).unwrap();
    }
    for number in (0..50).step_by(3) {
        names.remove(format!("{number}").as_bytes()).unwrap();
    }
    let mut popped: Vec<u32> = core::iter::from_fn(|| names.pop()).collect();
    popped.sort_unstable();
    assert_eq!(popped, (0..50).filter(|number| number % 3 != 0).collect::<Vec<u32>>());
    assert!(names.is_empty() && names.get(b"1").is_none() && names.slots.capacity() == 0);
}
