//! A processor under KVM: its leaves, and its registers with the checks that KVM makes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::*;
use crate::paravirt::{EndWord, StealWords};

const ALL: u32 = 1 << 3 | 1 << 5 | 1 << 6 | 1 << 9 | 1 << 11;
const NAME_WORDS: [u32; 3] = [0x4b4d_564b, 0x564b_4d56, 0x4d];
const TCG_WORDS: [u32; 3] = [0x5447_4354, 0x4743_5447, 0x4354_4743];
const HYPER_V_WORDS: [u32; 3] = [0x7263_694d, 0x666f_736f, 0x7648_2074];
/// GenuineIntel and AuthenticAMD: EBX, ECX, EDX.
const INTEL: [u32; 3] = [0x756e_6547, 0x6c65_746e, 0x4965_6e69];
const AMD: [u32; 3] = [0x6874_7541, 0x444d_4163, 0x6974_6e65];

const CLOCK_ADDRESS: u64 = 0x4000;
const STEAL_ADDRESS: u64 = 0x5040;
const END_ADDRESS: u64 = 0x6004;

struct Host {
    leaves: BTreeMap<u32, [u32; 4]>,
    /// A register that the processor does not know.
    refused: Cell<u32>,
    /// Registers as they were written last.
    registers: RefCell<BTreeMap<u32, u64>>,
    clock: ClockPage,
    /// The frequency that the host writes when the clock's page is announced; 0 for none.
    hertz: u64,
}

impl Host {
    fn kvm(base: u32, features: u32) -> Self {
        let [ebx, ecx, edx] = NAME_WORDS;
        let leaves = [
            (0, [0x16, INTEL[0], INTEL[1], INTEL[2]]),
            (1, [0, 0, HYPERVISOR, 0]),
            (base, [base + 1, ebx, ecx, edx]),
            (base + 1, [features, 0, 0, 0]),
        ];
        Self {
            leaves: leaves.into(),
            refused: Cell::new(0),
            registers: RefCell::default(),
            clock: ClockPage::new(),
            hertz: 2_600_000_000,
        }
    }

    fn set(&mut self, leaf: u32, words: [u32; 4]) {
        self.leaves.insert(leaf, words);
    }

    fn register(&self, register: u32) -> Option<u64> {
        self.registers.borrow().get(&register).copied()
    }

    fn offers(&self) -> Offers {
        let offers = Offers::new();
        offers.find(self);
        offers
    }
}

impl GuestProcessor for Host {
    fn leaf(&self, leaf: u32) -> [u32; 4] {
        self.leaves.get(&leaf).copied().unwrap_or_default()
    }

    fn write_register(&self, register: u32, value: u64) -> bool {
        // Bits that must be zero beside the one that says that the page is in use: KVM wants the words' own alignment.
        let (offer, reserved) = match register {
            CLOCK_REGISTER => (Offer::Clock, 0b10),
            STEAL_REGISTER => (Offer::StealTime, 0x3e),
            END_REGISTER => (Offer::End, 0b10),
            _ => return false,
        };
        let features = self.leaves.iter().find(|(leaf, _)| **leaf & 0xf == 1 && **leaf > 1);
        let is_known = features.is_some_and(|(_, words)| words[0] & offer.bit() != 0);
        if !is_known || register == self.refused.get() || value & reserved != 0 {
            return false;
        }
        self.registers.borrow_mut().insert(register, value);
        if register == CLOCK_REGISTER && value == CLOCK_ADDRESS | 1 && self.hertz != 0 {
            self.clock.written_by_host(self.hertz);
        }
        true
    }
}

fn in_use(offers: &Offers) -> Vec<&'static str> {
    Offer::ALL.iter().filter(|(offer, _)| offers.has(*offer)).map(|(_, name)| *name).collect()
}

#[test]
fn kvm_is_known_by_its_name() {
    let mut host = Host::kvm(0x4000_0000, ALL);
    assert_eq!(kvm(&host), Some(0x4000_0000));
    assert_eq!(in_use(&host.offers()).len(), Offer::ALL.len());
    host.set(0x4000_0000, [0x4000_0001, TCG_WORDS[0], TCG_WORDS[1], TCG_WORDS[2]]);
    assert_eq!(kvm(&host), None);
    assert_eq!(in_use(&host.offers()), [""; 0]);
}

#[test]
fn leaves_of_a_processor_without_a_hypervisor_are_not_looked_at() {
    let mut host = Host::kvm(0x4000_0000, ALL);
    host.set(1, [0; 4]);
    assert_eq!(in_use(&host.offers()), [""; 0]);
}

#[test]
fn kvm_is_found_behind_another_interface() {
    let mut host = Host::kvm(0x4000_0100, ALL);
    host.set(0x4000_0000, [0x4000_000a, HYPER_V_WORDS[0], HYPER_V_WORDS[1], HYPER_V_WORDS[2]]);
    // A leaf of Hyper-V's, which must not be taken for KVM's features.
    host.set(0x4000_0001, [u32::MAX; 4]);
    assert_eq!(kvm(&host), Some(0x4000_0100));
    host.set(0x4000_0101, [1 << 3, 0, 0, 0]);
    assert_eq!(in_use(&host.offers()), ["clock"]);
}

#[test]
fn the_leaf_of_features_is_read_only_where_it_is() {
    let mut host = Host::kvm(0x4000_0000, ALL);
    let [ebx, ecx, edx] = NAME_WORDS;
    host.set(0x4000_0000, [0x4000_0000, ebx, ecx, edx]);
    assert_eq!(in_use(&host.offers()), [""; 0]);
    host.set(0x4000_0000, [0, ebx, ecx, edx]);
    assert_eq!(in_use(&host.offers()).len(), Offer::ALL.len());
}

#[test]
fn each_offer_has_its_bit() {
    for (bit, expected) in [(3, "clock"), (5, "steal-time"), (6, "end-of-interrupt"), (11, "interrupts")] {
        assert_eq!(in_use(&Host::kvm(0x4000_0000, 1 << bit).offers()), [expected]);
    }
    // The words about stolen time tell which processors do not run.
    assert_eq!(in_use(&Host::kvm(0x4000_0000, 1 << 9).offers()), [""; 0]);
    assert_eq!(in_use(&Host::kvm(0x4000_0000, 1 << 9 | 1 << 5).offers()), ["steal-time", "flush"]);
}

#[test]
fn pages_are_announced_by_aligned_addresses() {
    let host = Host::kvm(0x4000_0000, ALL);
    assert_eq!((align_of::<StealWords>(), align_of::<EndWord>()), (64, 4));
    host.offers().announce(&host, STEAL_ADDRESS, END_ADDRESS);
    assert_eq!(host.register(STEAL_REGISTER), Some(STEAL_ADDRESS | 1));
    assert_eq!(host.register(END_REGISTER), Some(END_ADDRESS | 1));
}

#[test]
fn what_is_not_offered_is_not_announced() {
    let host = Host::kvm(0x4000_0000, 1 << 6);
    host.offers().announce(&host, STEAL_ADDRESS, END_ADDRESS);
    assert_eq!((host.register(STEAL_REGISTER), host.register(END_REGISTER)), (None, Some(END_ADDRESS | 1)));
}

/// A second processor refuses what the first has taken: nobody relies on it any more.
#[test]
fn what_one_processor_refuses_is_in_use_on_none() {
    let host = Host::kvm(0x4000_0000, ALL);
    let offers = host.offers();
    offers.announce(&host, STEAL_ADDRESS, END_ADDRESS);
    assert!(offers.has(Offer::StealTime) && offers.has(Offer::Flush) && offers.has(Offer::End));
    host.refused.set(STEAL_REGISTER);
    offers.announce(&host, STEAL_ADDRESS + 64, END_ADDRESS);
    assert!(!offers.has(Offer::StealTime) && !offers.has(Offer::Flush));
    assert!(offers.has(Offer::End));
}

#[test]
fn the_clocks_page_is_taken_back_when_it_has_been_read() {
    let mut host = Host::kvm(0x4000_0000, ALL);
    let hertz = host.offers().frequency_hz(&host, &host.clock, CLOCK_ADDRESS).unwrap();
    assert!(hertz.abs_diff(2_600_000_000) < 100);
    assert_eq!(host.register(CLOCK_REGISTER), Some(0));
    host.refused.set(CLOCK_REGISTER);
    assert_eq!(host.offers().frequency_hz(&host, &host.clock, CLOCK_ADDRESS), None);
    host.refused.set(0);
    (host.hertz, host.clock) = (0, ClockPage::new());
    assert_eq!(host.offers().frequency_hz(&host, &host.clock, CLOCK_ADDRESS), None, "nothing was written");
    assert_eq!(Host::kvm(0x4000_0000, 0).offers().frequency_hz(&host, &host.clock, CLOCK_ADDRESS), None);
}

#[test]
fn hypercalls_are_the_vendors() {
    let mut host = Host::kvm(0x4000_0000, ALL);
    assert!(!host.offers().is_amd());
    host.set(0, [0x10, AMD[0], AMD[1], AMD[2]]);
    assert!(host.offers().is_amd());
}
