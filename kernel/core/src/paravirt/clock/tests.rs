//! A host that writes the page as KVM does: the version is odd while it does.

use super::*;

/// Two frequencies whose scales have different shifts.
const FREQUENCIES: [u64; 2] = [800_000_000, 5_700_000_000];

#[test]
fn the_layout_is_kvms() {
    assert_eq!(core::mem::offset_of!(ClockPage, counter), 8);
    assert_eq!(core::mem::offset_of!(ClockPage, time_ns), 16);
    assert_eq!(core::mem::offset_of!(ClockPage, scale), 24);
    assert_eq!(core::mem::offset_of!(ClockPage, shift), 28);
    assert_eq!(core::mem::offset_of!(ClockPage, flags), 29);
}

/// `kvm_get_time_scale`: the scale and shift of a frequency.
fn host_scale(hertz: u64) -> (u32, i8) {
    let (mut scaled, mut base, mut shift) = (1_000_000_000u64, hertz, 0i8);
    while base > scaled * 2 || base >> 32 != 0 {
        base >>= 1;
        shift -= 1;
    }
    let mut base = base as u32;
    while base <= scaled as u32 || scaled >> 32 != 0 {
        if scaled >> 32 != 0 || base & 1 << 31 != 0 {
            scaled >>= 1;
        } else {
            base <<= 1;
        }
        shift += 1;
    }
    (((u128::from(scaled) << 32) / u128::from(base)) as u32, shift)
}

fn is_near(found: u64, hertz: u64) -> bool {
    found.abs_diff(hertz) <= hertz / 100_000_000
}

impl ClockPage {
    /// The host says what the counter's frequency is.
    pub(in crate::paravirt) fn written_by_host(&self, hertz: u64) {
        let (scale, shift) = host_scale(hertz);
        self.version.fetch_add(1, Ordering::SeqCst);
        self.scale.store(scale, Ordering::SeqCst);
        // A reader that looks now must not believe the scale.
        (0..64).for_each(|_| std::hint::spin_loop());
        self.shift.store(shift, Ordering::SeqCst);
        self.version.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn the_scale_is_the_counters_frequency() {
    let page = ClockPage::default();
    assert_eq!(page.frequency_hz(), None);
    for hertz in [800_000_000, 999_999_999, 1_000_000_000, 2_596_150_000, 3_400_000_000, 5_700_000_000] {
        page.written_by_host(hertz);
        let found = page.frequency_hz().unwrap();
        assert!(is_near(found, hertz), "{hertz}: {found}");
    }
}

/// Half of a change is seen as none, and a host that never comes to its end is not waited for.
#[test]
fn a_change_that_is_under_way_is_not_believed() {
    let page = ClockPage::new();
    page.written_by_host(FREQUENCIES[0]);
    page.version.fetch_add(1, Ordering::SeqCst);
    page.scale.store(host_scale(FREQUENCIES[1]).0, Ordering::SeqCst);
    assert_eq!(page.look(), None);
    assert_eq!(page.frequency_hz(), None);
    page.shift.store(host_scale(FREQUENCIES[1]).1, Ordering::SeqCst);
    page.version.fetch_add(1, Ordering::SeqCst);
    assert!(is_near(page.frequency_hz().unwrap(), FREQUENCIES[1]));
}

/// The machine moves back and forth between two hosts: a scale is never believed with the other one's shift.
#[test]
fn the_scale_is_read_whole_while_the_clock_jumps() {
    let page = ClockPage::new();
    page.written_by_host(FREQUENCIES[0]);
    let is_over = AtomicU8::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while is_over.load(Ordering::SeqCst) == 0 {
                FREQUENCIES.into_iter().rev().for_each(|hertz| page.written_by_host(hertz));
                // A reader comes through only between two changes.
                (0..64).for_each(|_| std::hint::spin_loop());
            }
        });
        let is_whole = |found: u64| FREQUENCIES.iter().any(|&hertz| is_near(found, hertz));
        let mut torn = None;
        while torn.is_none() && page.version.load(Ordering::SeqCst) < 50_000 {
            torn = page.frequency_hz().filter(|found| !is_whole(*found));
        }
        is_over.store(1, Ordering::SeqCst);
        assert_eq!(torn, None);
    });
}
