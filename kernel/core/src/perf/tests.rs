//! Tests of requests and of what a read tells.

use super::{ATTRIBUTE_BYTES, AttributeError, EventAttributes, EventCount, EventTimes, SoftwareEvent};

fn with(change: impl FnOnce(&mut [u8; ATTRIBUTE_BYTES])) -> Result<EventAttributes, AttributeError> {
    let mut bytes = [0; ATTRIBUTE_BYTES];
    bytes[0] = 1;
    change(&mut bytes);
    EventAttributes::parse(&bytes)
}

#[test]
fn reserved_bits_are_refused() {
    assert!(with(|_| {}).is_ok());
    for at in [44 + 1, 110, 116, 24 + 4, 32] {
        assert_eq!(with(|bytes| bytes[at] = 0xe0), Err(AttributeError::Invalid), "{at}");
    }
    // Threads only, of an event that is not inherited.
    assert_eq!(with(|bytes| bytes[44] = 1 << 3), Err(AttributeError::Invalid));
}

#[test]
fn events_have_numbers() {
    let event = |config| with(|bytes| bytes[8] = config).and_then(|attributes| attributes.event());
    assert_eq!(event(1), Ok(SoftwareEvent::Clock));
    assert_eq!(event(4), Ok(SoftwareEvent::Migrations));
    assert_eq!(event(9), Ok(SoftwareEvent::Nothing));
    assert_eq!(event(12), Err(AttributeError::Unknown));
    let hardware = with(|bytes| bytes[0] = 0).and_then(|attributes| attributes.event());
    assert_eq!(hardware, Err(AttributeError::Unknown));
}

#[test]
fn a_read_tells_what_was_asked_for() {
    let told = |format, counts: &[EventCount]| {
        let attributes = with(|bytes| bytes[32] = format).expect("valid");
        let times = EventTimes { enabled_ns: 7, running_ns: 6 };
        attributes.told(times, counts).collect::<Vec<_>>()
    };
    let (first, second) = (EventCount { value: 100, id: 1 }, EventCount { value: 200, id: 2 });
    assert_eq!(told(0, &[first]), [100]);
    assert_eq!(told(0b1_0111, &[first]), [100, 7, 6, 1, 0]);
    assert_eq!(told(0b1000, &[first, second]), [2, 100, 200]);
    assert_eq!(told(0b1111, &[first, second]), [2, 7, 6, 100, 1, 200, 2]);
}
