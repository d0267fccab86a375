//! The clock (time-stamp counter) and each CPU's one-shot timer (local APIC).
//!
//! QEMU's local APIC counts at 1 GHz of the machine's virtual time, whatever the host; the counter's frequency comes
//! from the command line or is measured against it.

use core::sync::atomic::{AtomicU64, Ordering};

use heddle_abi::boot::{KEY_NOW, KEY_TSC};

use crate::arch::x86_64::{interrupt, local, paravirt};
use crate::boot;

/// How long the frequency is measured for, where the host doesn't know it.
const MEASURE_NS: u32 = 2_000_000;
/// The timer is 32 bits wide.
const TIMER_MAX_NS: u64 = 4_000_000_000;
/// The shortest time the timer is set for.
const TIMER_MIN_NS: u64 = 1_000;

static BASE: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds per count, as a fraction of 2^32.
static SCALE: AtomicU64 = AtomicU64::new(0);
/// Counts per nanosecond, as a fraction of 2^32.
static COUNTS: AtomicU64 = AtomicU64::new(0);
static WALL_OFFSET: AtomicU64 = AtomicU64::new(0);

/// The time-stamp counter.
#[allow(unsafe_code, reason = "an instruction that the compiler calls unsafe")]
pub fn counter() -> u64 {
    // SAFETY: reads a counter that every x86-64 processor has and that the kernel leaves enabled.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The counter's frequency in hertz, as exactly as it is kept.
pub(super) fn frequency_hz() -> u64 {
    ((u128::from(COUNTS.load(Ordering::Relaxed)) * 1_000_000_000) >> 32) as u64
}

/// Starts the clock, whose zero is where the counter stood at `start`; the local APIC must be set up.
pub(super) fn install(start: u64) {
    let told = boot::number(KEY_TSC).filter(|&hertz| hertz > 1_000_000);
    let frequency = told.or_else(paravirt::frequency_hz).or_else(described_hz).unwrap_or_else(measure);
    interrupt::install_timer();
    COUNTS.store(((u128::from(frequency) << 32) / 1_000_000_000) as u64, Ordering::Relaxed);
    SCALE.store(((1_000_000_000u128 << 32) / u128::from(frequency)) as u64, Ordering::Relaxed);
    BASE.store(start, Ordering::Relaxed);
    // The counter of a virtual machine starts with it; a large value is a real machine's and means nothing.
    let since_start = scale(start);
    let since_start = if since_start < 60_000_000_000 { since_start } else { 0 };
    WALL_OFFSET.store(boot::number(KEY_NOW).unwrap_or(0) + since_start, Ordering::Relaxed);
}

/// The frequency by CPUID's leaf of the counter and the crystal behind it.
fn described_hz() -> Option<u64> {
    const LEAF: u32 = 0x15;
    if core::arch::x86_64::__cpuid(0).eax < LEAF {
        return None;
    }
    let leaf = core::arch::x86_64::__cpuid(LEAF);
    let product = u64::from(leaf.ecx) * u64::from(leaf.ebx);
    product.checked_div(leaf.eax.into()).filter(|&hertz| hertz > 1_000_000)
}

fn measure() -> u64 {
    // The pair with the shortest time between its two readings is the most exact.
    let sample = || {
        let mut best = (u64::MAX, 0, 0);
        for _ in 0..8 {
            let before = counter();
            let timer = interrupt::timer_now();
            let after = counter();
            if after - before < best.0 {
                best = (after - before, before + (after - before) / 2, timer);
            }
        }
        (best.1, best.2)
    };
    interrupt::start_timer(u32::MAX);
    let (counter_start, timer_start) = sample();
    while timer_start - interrupt::timer_now() < MEASURE_NS {
        core::hint::spin_loop();
    }
    let (counter_end, timer_end) = sample();
    interrupt::start_timer(0);
    (counter_end - counter_start) * 1_000_000_000 / u64::from(timer_start - timer_end)
}

fn scale(counts: u64) -> u64 {
    ((u128::from(counts) * u128::from(SCALE.load(Ordering::Relaxed))) >> 32) as u64
}

/// Nanoseconds since the kernel's first instructions; never goes back on one CPU.
#[must_use]
pub fn now_ns() -> u64 {
    scale(counter().wrapping_sub(BASE.load(Ordering::Relaxed)))
}

/// The number to add to [`now_ns`] for nanoseconds since the Unix epoch.
#[must_use]
pub fn wall_clock_offset() -> u64 {
    WALL_OFFSET.load(Ordering::Relaxed)
}

/// Frequency of the counter as a scale: nanoseconds = (count - base) * scale / 2^32. Returns (base, scale).
#[must_use]
pub fn parameters() -> (u64, u64) {
    (BASE.load(Ordering::Relaxed), SCALE.load(Ordering::Relaxed))
}

/// The function that a timer's interrupt calls.
static HANDLER: spin::Once<fn()> = spin::Once::new();

/// Has `handler` called by each CPU's timer. It must not lock, allocate or free.
pub fn set_handler(handler: fn()) {
    HANDLER.call_once(|| handler);
}

/// Asks for a call of the timer's handler on this CPU at `deadline_ns` or earlier; `u64::MAX` for never.
///
/// A timer that is already set for an earlier time is left alone, because setting it is a slow access to a device:
/// the handler must expect to be early and to set the timer again.
pub fn set_timer(deadline_ns: u64) {
    let local = local::current();
    if deadline_ns >= local.timer_deadline.load(Ordering::Relaxed) {
        return;
    }
    let wait_ns = deadline_ns.saturating_sub(now_ns()).clamp(TIMER_MIN_NS, TIMER_MAX_NS);
    local.timer_deadline.store(deadline_ns, Ordering::Relaxed);
    if interrupt::counts_to_deadline() {
        let counts = (u128::from(wait_ns) * u128::from(COUNTS.load(Ordering::Relaxed))) >> 32;
        interrupt::set_deadline(counter().wrapping_add(counts as u64));
        return;
    }
    interrupt::start_timer(wait_ns as u32);
}

/// The timer's interrupt.
pub(super) fn expired() {
    local::current().timer_deadline.store(u64::MAX, Ordering::Relaxed);
    if let Some(handler) = HANDLER.get() {
        handler();
    }
}
