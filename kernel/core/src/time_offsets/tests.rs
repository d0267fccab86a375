//! Tests of offsets of time namespaces.

use super::*;

const NOW: u64 = 100 * NS_PER_SECOND as u64;

fn changed(text: &str) -> Result<TimeOffsets, OffsetError> {
    TimeOffsets::default().changed(text, NOW)
}

#[test]
fn lines_set_offsets() {
    let offsets = TimeOffsets { monotonic_ns: 5 * NS_PER_SECOND + 6, boottime_ns: -7 * NS_PER_SECOND };
    assert_eq!(changed("monotonic 5 6\nboottime -7 0\n"), Ok(offsets));
    assert_eq!(changed("1 5 6\n7 -7 0"), Ok(offsets));
    let one = TimeOffsets { monotonic_ns: NS_PER_SECOND, ..offsets };
    assert_eq!(offsets.changed("monotonic\t1\t0", NOW), Ok(one));
}

#[test]
fn other_texts_are_refused() {
    for text in [
        "",
        "\n",
        "monotonic",
        "monotonic 1",
        "monotonic 1 -1",
        "monotonic 1 1000000000",
        "other 1 1",
        "3 1 1",
    ] {
        assert_eq!(changed(text), Err(OffsetError::Invalid), "{text:?}");
    }
    assert_eq!(changed("1 1 1\n7 1 1\n1 1 1\n"), Err(OffsetError::Invalid));
}

#[test]
fn clocks_stay_in_their_range() {
    assert_eq!(changed("monotonic -101 0"), Err(OffsetError::OutOfRange));
    assert!(changed("monotonic -100 0").is_ok());
    assert_eq!(changed("boottime 9223372037 0"), Err(OffsetError::OutOfRange));
    assert_eq!(changed("boottime 4611686019 0"), Err(OffsetError::OutOfRange));
    assert!(changed("boottime 4611685000 0").is_ok());
}

#[test]
fn offsets_are_shown_with_positive_nanoseconds() {
    assert_eq!(parts(-1), (-1, NS_PER_SECOND - 1));
    assert_eq!(parts(1_500_000_000), (1, 500_000_000));
}
