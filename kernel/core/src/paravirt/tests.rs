//! A host that does what KVM's source says, on the other side of the pages.

use super::*;

#[test]
fn layouts_are_kvms() {
    assert_eq!(core::mem::offset_of!(ClockPage, counter), 8);
    assert_eq!(core::mem::offset_of!(ClockPage, scale), 24);
    assert_eq!(core::mem::offset_of!(ClockPage, shift), 28);
    assert_eq!(core::mem::offset_of!(StealPage, version), 8);
    assert_eq!(core::mem::offset_of!(StealPage, preempted), 16);
    assert_eq!(size_of::<StealPage>(), 64);
}

#[test]
fn the_name_is_known() {
    assert!(is_kvm([0x4b4d_564b, 0x564b_4d56, 0x4d]));
    assert!(!is_kvm([0x5447_4354, 0x4743_5447, 0x4354_4743]), "TCGTCGTCGTCG");
}

/// `kvm_get_time_scale`: the shift and scale of a frequency.
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

#[test]
fn the_clocks_scale_is_the_counters_frequency() {
    let page = ClockPage::default();
    assert_eq!(page.frequency_hz(), None);
    for hertz in [800_000_000, 999_999_999, 1_000_000_000, 2_596_150_000, 3_400_000_000, 5_700_000_000] {
        let (scale, shift) = host_scale(hertz);
        page.version.store(2, Ordering::Relaxed);
        page.scale.store(scale, Ordering::Relaxed);
        page.shift.store(shift, Ordering::Relaxed);
        let found = page.frequency_hz().unwrap();
        assert!(found.abs_diff(hertz) <= hertz / 100_000_000, "{hertz}: {found}, {scale} {shift}");
    }
}

/// The host changes the machine's frequency back and forth: a scale is never believed with the other one's shift.
#[test]
fn the_clocks_scale_is_read_whole_while_the_host_changes_it() {
    const FREQUENCIES: [u64; 2] = [800_000_000, 5_700_000_000];
    let page = ClockPage::new();
    let write = |hertz| {
        let (scale, shift) = host_scale(hertz);
        page.version.fetch_add(1, Ordering::SeqCst);
        page.scale.store(scale, Ordering::SeqCst);
        // A reader that looks now must not believe the scale.
        (0..64).for_each(|_| std::hint::spin_loop());
        page.shift.store(shift, Ordering::SeqCst);
        page.version.fetch_add(1, Ordering::SeqCst);
    };
    write(FREQUENCIES[0]);
    let is_over = AtomicU8::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while is_over.load(Ordering::SeqCst) == 0 {
                FREQUENCIES.into_iter().rev().for_each(write);
                // A reader comes through only between two changes.
                (0..64).for_each(|_| std::hint::spin_loop());
            }
        });
        let is_whole =
            |found: u64| FREQUENCIES.iter().any(|hertz| found.abs_diff(*hertz) <= hertz / 100_000_000);
        let mut torn = None;
        while torn.is_none() && page.version.load(Ordering::SeqCst) < 50_000 {
            torn = page.frequency_hz().filter(|found| !is_whole(*found));
        }
        is_over.store(1, Ordering::SeqCst);
        assert_eq!(torn, None);
    });
}

#[test]
fn time_is_read_whole_while_the_host_changes_it() {
    let page = StealPage::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for step in 1..=100_000u64 {
                page.version.fetch_add(1, Ordering::SeqCst);
                // Between the two stores a reader must not believe the first.
                page.stolen_ns.store(u64::MAX, Ordering::SeqCst);
                page.stolen_ns.store(step * 1000, Ordering::SeqCst);
                page.version.fetch_add(1, Ordering::SeqCst);
            }
        });
        let mut last = 0;
        while last < 50_000_000 {
            let now = page.stolen_ns();
            assert!(now >= last && now != u64::MAX);
            last = now;
        }
    });
}

#[test]
fn a_flush_is_left_to_the_host_only_while_the_processor_does_not_run() {
    let page = StealPage::new();
    assert!(!page.ask_for_flush());
    page.preempted.store(PREEMPTED, Ordering::SeqCst);
    assert!(page.ask_for_flush() && page.ask_for_flush());
    // The host lets the processor run: it takes the byte, and flushes as it was asked.
    assert_eq!(page.preempted.swap(0, Ordering::SeqCst) & FLUSH, FLUSH);
    assert!(!page.ask_for_flush());
}

/// Each request that was accepted is seen by the host when the processor runs next.
#[test]
fn no_accepted_flush_is_lost() {
    let page = StealPage::new();
    let flushes = AtomicU64::new(0);
    let is_over = AtomicU8::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while is_over.load(Ordering::SeqCst) == 0 {
                page.preempted.store(PREEMPTED, Ordering::SeqCst);
                if page.preempted.swap(0, Ordering::SeqCst) & FLUSH != 0 {
                    flushes.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        for _ in 0..20_000 {
            let before = flushes.load(Ordering::SeqCst);
            if page.ask_for_flush() {
                while flushes.load(Ordering::SeqCst) == before {
                    std::hint::spin_loop();
                }
            }
        }
        is_over.store(1, Ordering::SeqCst);
    });
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
fn sets_of_processors_start_at_the_lowest() {
    let set = |ids: &[u32]| interrupt_set(ids.iter().copied());
    assert_eq!(set(&[]), None);
    assert_eq!(set(&[3]), Some([1, 0, 3]));
    assert_eq!(set(&[7, 3, 4]), Some([0b10011, 0, 3]));
    assert_eq!(set(&[0, 127]), Some([1, 1 << 63, 0]));
    assert_eq!(set(&[0, 128]), None);
}
