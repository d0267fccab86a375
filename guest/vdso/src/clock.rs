//! Linux's functions of the vDSO: the time, and which processor this is.
//!
//! The clock is the processor's counter, scaled by two words of the system page that never change while programs run;
//! the time of day is ahead of it by one word, and a time namespace's clocks by words of the time page. So no reading
//! can see half of a change, and none waits or retries. All processors have the same counter, so the monotonic clock is
//! one clock.

use core::sync::atomic::Ordering::Relaxed;

use heddle_abi::user_sched::{Clock, TimePage};

use crate::arch;

const NS_PER_SECOND: u64 = 1_000_000_000;
const NS_PER_US: u64 = 1_000;

const REALTIME: i32 = 0;
const MONOTONIC: i32 = 1;
const MONOTONIC_RAW: i32 = 4;
const REALTIME_COARSE: i32 = 5;
const MONOTONIC_COARSE: i32 = 6;
const BOOTTIME: i32 = 7;

const CALL_GETTIMEOFDAY: usize = 96;
const CALL_TIME: usize = 201;
const CALL_CLOCK_GETTIME: usize = 228;
const CALL_CLOCK_GETRES: usize = 229;

/// `struct timespec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSpec {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds of a second.
    pub nanoseconds: i64,
}

/// `struct timeval`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeValue {
    /// Seconds.
    pub seconds: i64,
    /// Microseconds of a second.
    pub microseconds: i64,
}

/// `struct timezone`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeZone {
    /// Minutes west of Greenwich.
    pub minutes_west: i32,
    /// Kind of daylight saving time.
    pub daylight: i32,
}

/// A clock's time in nanoseconds; `None` for a clock that only the kernel knows.
#[inline(always)]
fn read(clock: &Clock, page: &TimePage, id: i32, counter: impl FnOnce() -> u64) -> Option<u64> {
    let ahead = match id {
        MONOTONIC | MONOTONIC_RAW | MONOTONIC_COARSE => &page.monotonic_offset,
        BOOTTIME => &page.boottime_offset,
        REALTIME | REALTIME_COARSE => &clock.realtime_offset,
        _ => return None,
    };
    let time_ns = heddle_abi::protocol::monotonic_ns(clock, counter)?;
    Some(time_ns.wrapping_add(ahead.load(Relaxed)))
}

#[inline(always)]
fn here(id: i32) -> Option<u64> {
    read(&arch::system_page().clock, arch::time_page(), id, arch::counter)
}

/// The monotonic clock of the first time namespace, by which the scheduler counts, in nanoseconds; 0 if only the kernel
/// knows it.
#[inline(always)]
#[must_use]
pub fn monotonic_now() -> u64 {
    heddle_abi::protocol::monotonic_ns(&arch::system_page().clock, arch::counter).unwrap_or(0)
}

/// clock_gettime(2).
///
/// # Safety
/// `to` can be written to.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __vdso_clock_gettime(id: i32, to: *mut TimeSpec) -> i32 {
    match here(id) {
        Some(time_ns) => {
            let time = TimeSpec {
                seconds: (time_ns / NS_PER_SECOND) as i64,
                nanoseconds: (time_ns % NS_PER_SECOND) as i64,
            };
            // SAFETY: by contract.
            unsafe { to.write(time) };
            0
        }
        // SAFETY: the kernel checks the address.
        None => unsafe { arch::call(CALL_CLOCK_GETTIME, [id as usize, to as usize, 0, 0]) as i32 },
    }
}

/// clock_getres(2).
///
/// # Safety
/// `to` is null or can be written to.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __vdso_clock_getres(id: i32, to: *mut TimeSpec) -> i32 {
    if !matches!(id, REALTIME | MONOTONIC | MONOTONIC_RAW | BOOTTIME) {
        // SAFETY: the kernel checks the address.
        return unsafe { arch::call(CALL_CLOCK_GETRES, [id as usize, to as usize, 0, 0]) as i32 };
    }
    if !to.is_null() {
        // SAFETY: by contract.
        unsafe { to.write(TimeSpec { seconds: 0, nanoseconds: 1 }) };
    }
    0
}

/// gettimeofday(2).
///
/// # Safety
/// Each is null or can be written to.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __vdso_gettimeofday(to: *mut TimeValue, zone: *mut TimeZone) -> i32 {
    let Some(time_ns) = here(REALTIME) else {
        // SAFETY: the kernel checks the addresses.
        return unsafe { arch::call(CALL_GETTIMEOFDAY, [to as usize, zone as usize, 0, 0]) as i32 };
    };
    if !to.is_null() {
        let time = TimeValue {
            seconds: (time_ns / NS_PER_SECOND) as i64,
            microseconds: (time_ns % NS_PER_SECOND / NS_PER_US) as i64,
        };
        // SAFETY: by contract.
        unsafe { to.write(time) };
    }
    if !zone.is_null() {
        // SAFETY: by contract.
        unsafe { zone.write(TimeZone { minutes_west: 0, daylight: 0 }) };
    }
    0
}

/// time(2).
///
/// # Safety
/// `to` is null or can be written to.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __vdso_time(to: *mut i64) -> i64 {
    let Some(time_ns) = here(REALTIME) else {
        // SAFETY: the kernel checks the address.
        return unsafe { arch::call(CALL_TIME, [to as usize, 0, 0, 0]) as i64 };
    };
    let seconds = (time_ns / NS_PER_SECOND) as i64;
    if !to.is_null() {
        // SAFETY: by contract.
        unsafe { to.write(seconds) };
    }
    seconds
}

/// getcpu(2).
///
/// # Safety
/// `cpu` and `node` are null or can be written to. `cache` is unused, as on Linux.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __vdso_getcpu(cpu: *mut u32, node: *mut u32, cache: *mut u8) -> i32 {
    let _ = cache;
    if !cpu.is_null() {
        // SAFETY: by contract.
        unsafe { cpu.write(arch::cpu()) };
    }
    if !node.is_null() {
        // SAFETY: by contract.
        unsafe { node.write(0) };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::{BOOTTIME, MONOTONIC, MONOTONIC_COARSE, REALTIME, read};
    use core::sync::atomic::Ordering::Relaxed;
    use heddle_abi::user_sched::{SystemPage, TimePage};

    #[test]
    fn the_counter_is_scaled() {
        let page = SystemPage::new();
        assert_eq!(read(&page.clock, &TimePage::new(), MONOTONIC, || 7), None);
        page.clock.base.store(1_000, Relaxed);
        // Two counts a nanosecond.
        page.clock.scale.store(1 << 31, Relaxed);
        page.clock.realtime_offset.store(5_000_000_000, Relaxed);
        assert_eq!(read(&page.clock, &TimePage::new(), MONOTONIC, || 3_000), Some(1_000));
        assert_eq!(read(&page.clock, &TimePage::new(), BOOTTIME, || 3_001), Some(1_000));
        assert_eq!(read(&page.clock, &TimePage::new(), REALTIME, || 3_002), Some(5_000_001_001));
        // Long after the product has left 64 bits.
        assert_eq!(read(&page.clock, &TimePage::new(), MONOTONIC, || 1_000 + (1 << 60)), Some(1 << 59));
    }

    #[test]
    fn a_namespace_has_offsets() {
        let (page, time) = (SystemPage::new(), TimePage::new());
        page.clock.scale.store(1 << 32, Relaxed);
        page.clock.realtime_offset.store(5, Relaxed);
        time.monotonic_offset.store((-30_i64) as u64, Relaxed);
        time.boottime_offset.store(70, Relaxed);
        assert_eq!(read(&page.clock, &time, MONOTONIC_COARSE, || 100), Some(70));
        assert_eq!(read(&page.clock, &time, BOOTTIME, || 100), Some(170));
        assert_eq!(read(&page.clock, &time, REALTIME, || 100), Some(105));
    }

    #[test]
    fn only_known_clocks() {
        let page = SystemPage::new();
        page.clock.scale.store(1 << 32, Relaxed);
        for id in [2, 3, 8, 11, -1, i32::MAX] {
            assert_eq!(read(&page.clock, &TimePage::new(), id, || 0), None, "{id}");
        }
    }
}
