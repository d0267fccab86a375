//! A host that ends interrupts, and delivers those that are sent by one call.

use std::collections::BTreeSet;

use super::*;

/// An interrupt controller as KVM's, which says that an end need not be told while nothing else waits for it.
#[derive(Default)]
struct Controller {
    word: EndWord,
    /// The host has set the word, and has not looked since.
    is_pending: bool,
    /// The last is the most urgent.
    in_service: Vec<u8>,
    /// Ends that were told.
    told: usize,
}

impl Controller {
    /// Delivers an interrupt. `others_wait`: less urgent ones, which are to be delivered at its end.
    fn deliver(&mut self, vector: u8, others_wait: bool) {
        self.leave();
        self.in_service.push(vector);
        self.is_pending = !others_wait;
        self.word.0.store(self.is_pending.into(), Ordering::SeqCst);
    }

    /// The guest has stopped for whatever reason: the host looks whether the word was used, and withdraws it.
    fn leave(&mut self) {
        let is_unused = self.word.0.swap(0, Ordering::SeqCst) & 1 != 0;
        if core::mem::take(&mut self.is_pending) && !is_unused {
            self.in_service.pop();
        }
    }

    /// The kernel's part at the end of a handler.
    fn end(&mut self) {
        if !self.word.end() {
            self.leave();
            self.told += 1;
            self.in_service.pop();
        }
    }
}

#[test]
fn an_interrupt_ends_once() {
    let word = EndWord::new();
    assert!(!word.end());
    word.0.store(1, Ordering::SeqCst);
    assert!(word.end());
    assert!(!word.end());
}

#[test]
fn a_lone_interrupt_is_not_told_and_one_with_others_behind_it_is() {
    let mut controller = Controller::default();
    controller.deliver(0x40, false);
    controller.end();
    controller.leave();
    assert_eq!((controller.told, controller.in_service.len()), (0, 0));
    controller.deliver(0x40, true);
    controller.end();
    assert_eq!((controller.told, controller.in_service.len()), (1, 0));
}

/// An interrupt comes within another's handler: the word of the outer one is withdrawn, so its end is told.
#[test]
fn of_nested_interrupts_each_ends_once() {
    let mut controller = Controller::default();
    controller.deliver(0x30, false);
    controller.deliver(0x40, false);
    assert_eq!(controller.in_service, [0x30, 0x40]);
    controller.end();
    controller.end();
    assert_eq!((controller.told, controller.in_service.len()), (1, 0));
}

/// The guest is stopped between a handler's work and its end.
#[test]
fn a_withdrawn_word_ends_nothing() {
    let mut controller = Controller::default();
    controller.deliver(0x40, false);
    controller.leave();
    assert_eq!(controller.in_service, [0x40]);
    controller.end();
    assert_eq!((controller.told, controller.in_service.len()), (1, 0));
}

#[test]
fn sets_of_processors_start_at_the_lowest() {
    let set = |ids: &[u32]| interrupt_set(ids.iter().copied());
    assert_eq!(set(&[]), None);
    assert_eq!(set(&[3]), Some([1, 0, 3]));
    assert_eq!(set(&[7, 3, 4]), Some([0b10011, 0, 3]));
    assert_eq!(set(&[0, 127]), Some([1, 1 << 63, 0]));
    assert_eq!(set(&[0, 128]), None);
}

/// The processors that KVM delivers to: bit `i` of the first word is the one with id `first + i`, those of the second
/// follow.
fn delivered([low, high, first]: [u64; 3]) -> BTreeSet<u32> {
    let bits = (0..128).filter(|bit| (u128::from(high) << 64 | u128::from(low)) >> bit & 1 != 0);
    bits.map(|bit| first as u32 + bit).collect()
}

proptest::proptest! {
    #[test]
    fn every_processor_of_a_set_is_reached_and_no_other(
        base in 0..10_000u32,
        offsets in proptest::collection::btree_set(0..200u32, 1..20),
    ) {
        let ids: BTreeSet<u32> = offsets.iter().map(|offset| base + offset).collect();
        let spread = ids.last().unwrap() - ids.first().unwrap();
        match interrupt_set(ids.iter().copied()) {
            Some(set) => proptest::prop_assert_eq!(delivered(set), ids),
            None => proptest::prop_assert!(spread >= 128),
        }
    }
}
