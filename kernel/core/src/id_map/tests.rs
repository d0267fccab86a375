//! Tests of the maps.

use alloc::format;
use alloc::string::String;

use super::{EXTENTS_MAX, IdMap, IdMapError};

fn map(text: &str) -> IdMap {
    IdMap::parse(text.as_bytes()).unwrap()
}

#[test]
fn numbers_go_both_ways() {
    let map = map("0 1000 10\n 100\t5 1 \n");
    assert_eq!((map.to_lower(0), map.to_lower(9), map.to_lower(10)), (Some(1000), Some(1009), None));
    assert_eq!((map.to_lower(100), map.to_upper(5)), (Some(5), Some(100)));
    assert_eq!((map.to_upper(1009), map.to_upper(1010), map.to_upper(0)), (Some(9), None, None));
    assert_eq!((map.range_to_lower(2, 8), map.range_to_lower(2, 9)), (Some(1002), None));
}

#[test]
fn texts_that_are_no_maps() {
    for text in [
        "",
        "\n",
        "0 0",
        "0 0 0",
        "0 0 1 1",
        "a 0 1",
        "-1 0 1",
        "0 4294967295 1",
        "4294967295 0 1",
        "4294967290 0 6",
        "0 0 1\n\n",
        "0 0 2\n1 10 1",
        "0 0 2\n10 1 1",
        "0 0 1,",
    ] {
        assert_eq!(IdMap::parse(text.as_bytes()), Err(IdMapError::Invalid), "{text:?}");
    }
    assert!(IdMap::parse(b"4294967290 0 5").is_ok());
}

#[test]
fn a_map_has_so_many_extents() {
    let lines = |count: usize| -> String { (0..count).map(|n| format!("{} {} 1\n", n * 2, n * 3)).collect() };
    assert_eq!(map(&lines(EXTENTS_MAX)).to_lower(678), Some(339 * 3));
    assert_eq!(IdMap::parse(lines(EXTENTS_MAX + 1).as_bytes()), Err(IdMapError::Invalid));
}

#[test]
fn lower_numbers_are_the_parents() {
    let parent = map("0 1000 10");
    let lowered = |text| map(text).lowered(|id, count| parent.range_to_lower(id, count));
    assert_eq!(lowered("5 2 3").unwrap().to_lower(6), Some(1003));
    assert_eq!(lowered("5 8 3"), Err(IdMapError::Unmapped));
    // Many extents are ordered.
    let many = map("60 6 1\n50 5 1\n40 4 1\n30 3 1\n20 2 1\n10 1 1").lowered(|id, _| Some(id)).unwrap();
    assert_eq!(many.extents()[0].first, 10);
}
