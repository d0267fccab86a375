//! adjtimex(2), clock_adjtime(2): the time of day follows the machine's counter, and this is what programs that keep it
//! exact ask and say.
//!
//! A step (`ADJ_SETOFFSET`) and an adjustment (`ADJ_OFFSET`) are carried out at once. Rates (`ADJ_FREQUENCY`,
//! `ADJ_TICK`) are kept and told; the counter of a virtual machine is the host's, which is kept exact there.

use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::sync::SpinLock;
use crate::syscall::{Call, SyscallResult, get};
use crate::time::{Clock, NS_PER_SECOND};
use crate::wait::clock_change;

/// The size of `struct timex`.
const BYTES: usize = 208;

mod mode {
    pub const OFFSET: u32 = 0x0001;
    pub const FREQUENCY: u32 = 0x0002;
    pub const MAX_ERROR: u32 = 0x0004;
    pub const ESTIMATED_ERROR: u32 = 0x0008;
    pub const STATUS: u32 = 0x0010;
    pub const TIME_CONSTANT: u32 = 0x0020;
    pub const TAI: u32 = 0x0080;
    pub const SET_OFFSET: u32 = 0x0100;
    pub const MICRO: u32 = 0x1000;
    pub const NANO: u32 = 0x2000;
    pub const TICK: u32 = 0x4000;
    /// adjtime(3), by itself or as a question.
    pub const ADJTIME: u32 = 0x8000;
}

const STATUS_UNSYNCHRONIZED: i32 = 0x40;
const STATUS_CLOCK_ERROR: i32 = 0x1000;
const STATUS_NANO: i32 = 0x2000;
/// The bits that a program cannot set.
const STATUS_READ_ONLY: i32 = 0xff00;
/// The clock is not synchronized.
const TIME_ERROR: usize = 5;
/// 500 parts in a million, with 16 bits behind the point.
const FREQUENCY_MAX: i64 = 500 << 16;
/// Linux can count with these; those above the most are cut.
const FREQUENCY_RANGE: core::ops::RangeInclusive<i64> = i64::MIN / FREQUENCY_UNIT..=i64::MAX / FREQUENCY_UNIT;
const FREQUENCY_UNIT: i64 = 1000 << 16;
const OFFSET_MAX_NS: i64 = 500_000_000;
const TIME_CONSTANT_MAX: i64 = 10;
/// Microseconds of a tick.
const TICK_RANGE: core::ops::RangeInclusive<i64> = 9_000..=11_000;

/// The settings that last from call to call.
struct Adjustment {
    frequency: i64,
    max_error: i64,
    estimated_error: i64,
    status: i32,
    constant: i64,
    tick: i64,
    tai: i32,
}

static ADJUSTMENT: SpinLock<Adjustment> = SpinLock::new(Adjustment {
    frequency: 0,
    max_error: 16_000_000,
    estimated_error: 16_000_000,
    status: STATUS_UNSYNCHRONIZED,
    constant: 2,
    tick: 10_000,
    tai: 0,
});

/// A `struct timex` as it lies in memory.
struct Timex([u8; BYTES]);

impl Timex {
    const MODES: usize = 0;
    const OFFSET: usize = 8;
    const FREQUENCY: usize = 16;
    const MAX_ERROR: usize = 24;
    const ESTIMATED_ERROR: usize = 32;
    const STATUS: usize = 40;
    const CONSTANT: usize = 48;
    const PRECISION: usize = 56;
    const TOLERANCE: usize = 64;
    const SECONDS: usize = 72;
    const MICROSECONDS: usize = 80;
    const TICK: usize = 88;
    const TAI: usize = 160;

    fn long(&self, at: usize) -> i64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[at..at + 8]);
        i64::from_ne_bytes(bytes)
    }

    fn int(&self, at: usize) -> i32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[at..at + 4]);
        i32::from_ne_bytes(bytes)
    }

    fn put(&mut self, at: usize, value: i64) {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    fn put_int(&mut self, at: usize, value: i32) {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    /// The step that the time says, with seconds that may be negative and a part that may not.
    fn step_ns(&self, modes: u32) -> Result<i64, Errno> {
        let (seconds, part) = (self.long(Self::SECONDS), self.long(Self::MICROSECONDS));
        let unit = if modes & mode::NANO != 0 { 1 } else { 1000 };
        if !(0..NS_PER_SECOND as i64 / unit).contains(&part) {
            return Err(Errno::EINVAL);
        }
        Ok(seconds.saturating_mul(NS_PER_SECOND as i64).saturating_add(part * unit))
    }
}

fn step_clock(step_ns: i64) -> Result<(), Errno> {
    let time = Clock::Realtime.now_ns().checked_add_signed(step_ns).ok_or(Errno::EINVAL)?;
    clock_change::set_realtime(time);
    Ok(())
}

impl Adjustment {
    fn change(&mut self, modes: u32, wanted: &Timex) {
        if modes & mode::STATUS != 0 {
            let kept = self.status & STATUS_READ_ONLY;
            self.status = wanted.int(Timex::STATUS) & !STATUS_READ_ONLY | kept;
        }
        if modes & mode::NANO != 0 {
            self.status |= STATUS_NANO;
        }
        if modes & mode::MICRO != 0 {
            self.status &= !STATUS_NANO;
        }
        if modes & mode::FREQUENCY != 0 {
            self.frequency = wanted.long(Timex::FREQUENCY).clamp(-FREQUENCY_MAX, FREQUENCY_MAX);
        }
        if modes & mode::MAX_ERROR != 0 {
            self.max_error = wanted.long(Timex::MAX_ERROR);
        }
        if modes & mode::ESTIMATED_ERROR != 0 {
            self.estimated_error = wanted.long(Timex::ESTIMATED_ERROR);
        }
        if modes & mode::TIME_CONSTANT != 0 {
            let added = if self.status & STATUS_NANO != 0 { 0 } else { 4 };
            let constant = wanted.long(Timex::CONSTANT).saturating_add(added);
            self.constant = constant.clamp(0, TIME_CONSTANT_MAX);
        }
        if modes & mode::TAI != 0
            && let Ok(tai) = i32::try_from(wanted.long(Timex::CONSTANT))
            && tai >= 0
        {
            self.tai = tai;
        }
        if modes & mode::TICK != 0 {
            self.tick = wanted.long(Timex::TICK);
        }
    }

    fn show(&self, timex: &mut Timex) -> usize {
        timex.put(Timex::OFFSET, 0);
        timex.put(Timex::FREQUENCY, self.frequency);
        timex.put(Timex::MAX_ERROR, self.max_error);
        timex.put(Timex::ESTIMATED_ERROR, self.estimated_error);
        timex.put_int(Timex::STATUS, self.status);
        timex.put(Timex::CONSTANT, self.constant);
        timex.put(Timex::PRECISION, 1);
        timex.put(Timex::TOLERANCE, FREQUENCY_MAX);
        timex.put(Timex::TICK, self.tick);
        timex.put_int(Timex::TAI, self.tai);
        let now = Clock::Realtime.now_ns();
        let unit = if self.status & STATUS_NANO != 0 { 1 } else { 1000 };
        timex.put(Timex::SECONDS, (now / NS_PER_SECOND) as i64);
        timex.put(Timex::MICROSECONDS, (now % NS_PER_SECOND / unit) as i64);
        if self.status & (STATUS_UNSYNCHRONIZED | STATUS_CLOCK_ERROR) != 0 { TIME_ERROR } else { 0 }
    }
}

fn adjust(call: &Call<'_>, address: usize) -> SyscallResult {
    let mut timex = Timex(get(call, address)?);
    let modes = timex.int(Timex::MODES) as u32;
    let may_set = call.thread.credentials().is_capable(linux::CAP_SYS_TIME);
    let is_question = modes & mode::ADJTIME != 0 && modes & mode::NANO != 0;
    if modes != 0 && !may_set && !is_question {
        return Err(Errno::EPERM.into());
    }
    call.thread.space().probe_write(address, BYTES)?;
    if modes & mode::ADJTIME != 0 {
        if !is_question {
            step_clock(timex.long(Timex::OFFSET).saturating_mul(1000))?;
        }
        let state = ADJUSTMENT.lock().show(&mut timex);
        call.thread.store_result(address, &timex.0)?;
        return Ok(state.into());
    }
    if modes & mode::TICK != 0 && !TICK_RANGE.contains(&timex.long(Timex::TICK)) {
        return Err(Errno::EINVAL.into());
    }
    if modes & mode::FREQUENCY != 0 && !FREQUENCY_RANGE.contains(&timex.long(Timex::FREQUENCY)) {
        return Err(Errno::EINVAL.into());
    }
    if modes & mode::SET_OFFSET != 0 {
        step_clock(timex.step_ns(modes)?)?;
    }
    let mut adjustment = ADJUSTMENT.lock();
    adjustment.change(modes, &timex);
    let unit = if adjustment.status & STATUS_NANO != 0 { 1 } else { 1000 };
    let offset = timex.long(Timex::OFFSET).saturating_mul(unit).clamp(-OFFSET_MAX_NS, OFFSET_MAX_NS);
    if modes & mode::OFFSET != 0 {
        step_clock(offset)?;
    }
    let state = adjustment.show(&mut timex);
    drop(adjustment);
    call.thread.store_result(address, &timex.0)?;
    Ok(state.into())
}

/// adjtimex(2).
pub fn adjtimex(call: &mut Call<'_>) -> SyscallResult {
    adjust(call, call.word(0))
}

/// clock_adjtime(2).
pub fn clock_adjtime(call: &mut Call<'_>) -> SyscallResult {
    let _: [u8; BYTES] = get(call, call.word(1))?;
    match u32::try_from(call.int(0)) {
        Ok(linux::CLOCK_REALTIME) => adjust(call, call.word(1)),
        Ok(
            linux::CLOCK_MONOTONIC
            | linux::CLOCK_PROCESS_CPUTIME_ID
            | linux::CLOCK_THREAD_CPUTIME_ID
            | linux::CLOCK_MONOTONIC_RAW
            | linux::CLOCK_REALTIME_COARSE
            | linux::CLOCK_MONOTONIC_COARSE
            | linux::CLOCK_BOOTTIME
            | linux::CLOCK_REALTIME_ALARM
            | linux::CLOCK_BOOTTIME_ALARM
            | linux::CLOCK_TAI,
        )
        | Err(_) => Err(Errno::EOPNOTSUPP.into()),
        _ => Err(Errno::EINVAL.into()),
    }
}
