//! Unit tests of the rings' layout and entries.

use linux_raw_sys::general as linux;
use linux_raw_sys::io_uring::{
    IORING_SETUP_CLAMP, IORING_SETUP_CQE32, IORING_SETUP_CQSIZE, IORING_SETUP_SQE128, io_uring_op as Op,
};

use super::*;

const fn plain(sq_entries: u32, cq_entries: u32) -> RingLayout {
    RingLayout { sq_entries, cq_entries, sqe_size: SQE_BYTES, cqe_size: CQE_BYTES }
}

#[test]
fn wide_entries_and_completions_take_twice_as_much() {
    let wide = RingLayout::new(4, 0, IORING_SETUP_CQE32 | IORING_SETUP_SQE128).unwrap();
    assert_eq!((wide.sqe_bytes(), wide.cqe(1) - wide.cqe(0)), (512, 32));
    for index in 0..8 {
        assert!(wide.cqe(index) % 4096 <= 4096 - 2 * CQE_BYTES);
    }
}

#[test]
fn restrictions_are_by_operation_and_flags() {
    let mut restrictions = Restrictions::default();
    assert!(restrictions.allows_register(3) && restrictions.allows_entry(7, 1));
    restrictions.add(Restriction::Entry(7)).unwrap();
    restrictions.add(Restriction::Register(3)).unwrap();
    restrictions.add(Restriction::FlagsRequired(1)).unwrap();
    restrictions.add(Restriction::FlagsAllowed(4)).unwrap();
    restrictions.is_set = true;
    assert!(restrictions.allows_register(3) && !restrictions.allows_register(4));
    assert!(restrictions.allows_entry(7, 1) && restrictions.allows_entry(7, 5));
    assert!(
        !restrictions.allows_entry(7, 4)
            && !restrictions.allows_entry(7, 3)
            && !restrictions.allows_entry(8, 1)
    );
    assert_eq!(restrictions.add(Restriction::Entry(200)), Err(InvalidEntry));
}

#[test]
fn slots_are_given_in_order_from_the_last_one_on() {
    let mut slots = FreeSlots::new(70);
    assert_eq!(slots.words_for(), 2);
    let mut words = [0_u64; 2];
    for expected in 0..70 {
        let slot = slots.find(&words).unwrap();
        assert_eq!(slot, expected);
        slots.take(&mut words, slot);
    }
    assert_eq!(slots.find(&words), None);
    slots.free(&mut words, 3);
    assert_eq!(slots.find(&words), Some(3));
    assert_eq!(slots.set_range(60, 10), Ok(()));
    assert_eq!(slots.find(&words), None);
    slots.free(&mut words, 65);
    assert_eq!(slots.find(&words), Some(65));
    assert_eq!(slots.set_range(60, 11), Err(InvalidEntry));
}

#[test]
fn sizes_are_powers_of_two() {
    assert_eq!(RingLayout::new(0, 0, 0), Err(InvalidEntry));
    assert_eq!(RingLayout::new(5, 0, 0), Ok(plain(8, 16)));
    assert_eq!(RingLayout::new(ENTRIES_MAX + 1, 0, 0), Err(InvalidEntry));
    let most = plain(ENTRIES_MAX, ENTRIES_MAX * 2);
    assert_eq!(RingLayout::new(u32::MAX, 0, IORING_SETUP_CLAMP), Ok(most));
    assert_eq!(RingLayout::new(8, 4, IORING_SETUP_CQSIZE), Err(InvalidEntry));
    assert_eq!(RingLayout::new(8, 9, IORING_SETUP_CQSIZE), Ok(plain(8, 16)));
}

#[test]
fn no_completion_crosses_a_page_and_indices_wrap() {
    let layout = plain(4, 512);
    for index in 0..512 {
        assert!(layout.cqe(index) % 4096 <= 4096 - CQE_BYTES);
        assert_eq!(layout.cqe(index), layout.cqe(index + 512));
    }
    assert_eq!(layout.sq_index(4), layout.array());
    assert_eq!(layout.sq_index(u32::MAX) + 4, layout.ring_bytes());
}

#[test]
fn a_read_is_at_a_position_where_there_are_positions() {
    let words = |off| [Op::IORING_OP_READ as u64 | 7 << 32, off, 0x1000, 64, 1, 0, 0, 0];
    let number = |off, target| Sqe::from_words(words(off)).system_call(target).unwrap().unwrap().number;
    assert_eq!(number(5, Target::Positioned), linux::__NR_pread64);
    assert_eq!(number(u64::MAX, Target::Positioned), linux::__NR_read);
    assert_eq!(number(5, Target::Other), linux::__NR_read);
    let call = Sqe::from_words(words(5)).system_call(Target::Positioned).unwrap().unwrap();
    assert_eq!(call.arguments[..4], [7, 0x1000, 64, 5]);
}

#[test]
fn unknown_operations_and_flags_are_told() {
    assert!(is_system_call(Op::IORING_OP_READV as u8));
    assert!(!is_system_call(Op::IORING_OP_NOP as u8));
    assert!(!is_system_call(255));
    assert_eq!(Sqe::from_words([0x8000, 0, 0, 0, 0, 0, 0, 0]).known_flags(), Err(InvalidEntry));
    assert!(Sqe::from_words([0x400, 0, 0, 0, 0, 0, 0, 0]).is_linked());
}
