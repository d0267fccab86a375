//! A host that counts stolen time, and stops processors.

use super::*;

impl StealWords {
    /// The byte about the processor, for the host.
    pub(in crate::paravirt) const fn byte(&self) -> &Preempted {
        &self.page.preempted
    }

    fn begin_change(&self) {
        self.page.version.fetch_add(1, Ordering::SeqCst);
    }

    fn write(&self, stolen_ns: u64) {
        self.page.stolen_ns.store(stolen_ns, Ordering::SeqCst);
    }

    fn end_change(&self) {
        self.page.version.fetch_add(1, Ordering::SeqCst);
    }

    /// The host says how much it has taken away.
    pub(in crate::paravirt) fn written_by_host(&self, stolen_ns: u64) {
        self.begin_change();
        self.write(stolen_ns);
        self.end_change();
    }
}

#[test]
fn the_layout_is_kvms() {
    assert_eq!(
        core::mem::offset_of!(StealWords, page),
        0,
        "the page is announced by the address of the whole"
    );
    assert_eq!(core::mem::offset_of!(StealPage, stolen_ns), 0);
    assert_eq!(core::mem::offset_of!(StealPage, version), 8);
    assert_eq!(core::mem::offset_of!(StealPage, flags), 12);
    assert_eq!(core::mem::offset_of!(StealPage, preempted), 16);
    assert_eq!(size_of::<StealPage>(), 64);
}

#[test]
fn time_is_read_whole_while_the_host_changes_it() {
    let words = StealWords::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for step in 1..=100_000u64 {
                words.begin_change();
                // Between the two stores a reader must not believe the first.
                words.write(u64::MAX);
                words.write(step * 1000);
                words.end_change();
            }
        });
        let mut last = 0;
        while last < 50_000_000 {
            let now = words.stolen_ns();
            assert!(now >= last && now != u64::MAX);
            last = now;
        }
    });
}

/// The kernel does not wait for a host that stopped in the midst of a change, and says what it knew.
#[test]
fn a_host_that_stops_within_a_change_stops_nobody() {
    let words = StealWords::new();
    words.written_by_host(5);
    assert_eq!(words.stolen_ns(), 5);
    words.begin_change();
    words.write(7);
    assert_eq!(words.stolen_ns(), 5);
    words.end_change();
    assert_eq!(words.stolen_ns(), 7);
}

/// The machine goes on with another host, which counts from 0.
#[test]
fn stolen_time_never_goes_back() {
    let words = StealWords::new();
    for (written, told) in [(5, 5), (0, 5), (3, 5), (6, 6)] {
        words.written_by_host(written);
        assert_eq!(words.stolen_ns(), told);
    }
}

#[test]
fn a_flush_is_left_to_the_host_only_while_the_processor_does_not_run() {
    let words = StealWords::new();
    assert!(!words.ask_for_flush());
    words.byte().stops();
    assert!(words.ask_for_flush() && words.ask_for_flush());
    // The host flushes once, as it was asked.
    assert!(words.byte().goes_on());
    assert!(!words.ask_for_flush());
    words.byte().stops();
    assert!(!words.byte().goes_on());
}

/// Each request that was accepted is seen by the host when the processor runs next, wherever between the look and the
/// request that is.
#[test]
fn no_accepted_flush_is_lost() {
    let words = StealWords::new();
    let flushes = AtomicU64::new(0);
    let is_over = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while is_over.load(Ordering::SeqCst) == 0 {
                words.byte().stops();
                if words.byte().goes_on() {
                    flushes.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        for _ in 0..20_000 {
            let before = flushes.load(Ordering::SeqCst);
            if words.ask_for_flush() {
                while flushes.load(Ordering::SeqCst) == before {
                    std::hint::spin_loop();
                }
            }
        }
        is_over.store(1, Ordering::SeqCst);
    });
}
