//! Tests of this crate.

use super::*;
use alloc::collections::VecDeque;

fn write(ring: &mut Ring, mut bytes: &[u8]) -> usize {
    let mut written = 0;
    while !bytes.is_empty() && ring.room() > 0 {
        ring.reserve(bytes.len()).unwrap();
        let free = ring.free();
        assert!(!free.is_empty(), "reserve provides storage");
        let count = free.len().min(bytes.len());
        free[..count].copy_from_slice(&bytes[..count]);
        ring.commit(count);
        bytes = &bytes[count..];
        written += count;
    }
    written
}

fn read(ring: &mut Ring, count: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while out.len() < count && !ring.is_empty() {
        let part = ring.parts().0;
        let part = &part[..part.len().min(count - out.len())];
        out.extend_from_slice(part);
        let part = part.len();
        ring.consume(part);
    }
    out
}

#[test]
fn behaves_like_a_queue() {
    for capacity in [4096, 5000, 65536] {
        let mut ring = Ring::new(capacity);
        let mut model = VecDeque::new();
        let mut state = 99_u32;
        for _ in 0..3000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let count = (state >> 8) as usize % 9000;
            if state >> 31 == 0 {
                let bytes: Vec<u8> = (0..count).map(|index| (index as u32 ^ state) as u8).collect();
                let written = write(&mut ring, &bytes);
                assert_eq!(written, count.min(capacity - model.len()));
                model.extend(&bytes[..written]);
            } else {
                let expected: Vec<u8> = model.drain(..count.min(model.len())).collect();
                assert_eq!(read(&mut ring, count), expected);
            }
            assert_eq!(ring.len(), model.len());
        }
    }
}

#[test]
fn an_empty_ring_gives_large_storage_back() {
    let mut ring = Ring::new(65536);
    assert_eq!(write(&mut ring, &[1; 60000]), 60000);
    assert_eq!(read(&mut ring, 60000).len(), 60000);
    assert_eq!(ring.bytes.capacity(), 0);
}

#[test]
fn the_capacity_never_goes_below_the_contents() {
    let mut ring = Ring::new(65536);
    write(&mut ring, &[7; 5000]);
    assert!(!ring.set_capacity(4096));
    assert!(ring.set_capacity(8192));
    assert_eq!(write(&mut ring, &[7; 5000]), 3192);
    assert!(read(&mut ring, 9000).iter().all(|&byte| byte == 7));
}
