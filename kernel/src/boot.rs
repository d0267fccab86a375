//! Boot parameters: command line and usable memory. Filled by the architecture's entry.

use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// Longest command line in bytes; the rest is ignored.
pub const COMMAND_LINE_BYTES: usize = 2048;
const REGIONS_MAX: usize = 32;

/// The version of Linux whose interface programs find here.
pub const RELEASE: &str = "6.1.0-heddle";
/// The version of this kernel, as `uname -v` says it.
pub const VERSION: &str = concat!("#1 SMP PREEMPT Heddle ", env!("CARGO_PKG_VERSION"));

/// A range of physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

static COMMAND_LINE: [AtomicU8; COMMAND_LINE_BYTES] = [const { AtomicU8::new(0) }; COMMAND_LINE_BYTES];
static COMMAND_LINE_LENGTH: AtomicUsize = AtomicUsize::new(0);
static REGIONS: [[AtomicU64; 2]; REGIONS_MAX] =
    [const { [AtomicU64::new(0), AtomicU64::new(0)] }; REGIONS_MAX];
static REGION_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Keeps the command line; called once, before anything reads it.
pub fn set_command_line(text: &[u8]) {
    let length = text.len().min(COMMAND_LINE_BYTES);
    for (slot, &byte) in COMMAND_LINE.iter().zip(&text[..length]) {
        slot.store(byte, Ordering::Relaxed);
    }
    COMMAND_LINE_LENGTH.store(length, Ordering::Release);
}

/// Keeps a region of usable memory; called before anything reads them.
pub fn add_region(region: Region) {
    let count = REGION_COUNT.load(Ordering::Relaxed);
    if let Some(slot) = REGIONS.get(count) {
        slot[0].store(region.start, Ordering::Relaxed);
        slot[1].store(region.end, Ordering::Relaxed);
        REGION_COUNT.store(count + 1, Ordering::Release);
    }
}

/// The regions of memory that the machine says are usable, in its order.
pub fn regions() -> impl Iterator<Item = Region> {
    REGIONS
        .iter()
        .take(REGION_COUNT.load(Ordering::Acquire))
        .map(|[start, end]| Region { start: start.load(Ordering::Relaxed), end: end.load(Ordering::Relaxed) })
}

/// Finds `KEY=VALUE` on the command line and copies the value's first bytes to `buffer`.
pub fn option<'a>(key: &str, buffer: &'a mut [u8]) -> Option<&'a str> {
    let line = &COMMAND_LINE[..COMMAND_LINE_LENGTH.load(Ordering::Acquire)];
    let byte = |at: usize| line.get(at).map_or(b' ', |byte| byte.load(Ordering::Relaxed));
    let mut start = 0;
    while start < line.len() {
        let end = (start..=line.len()).find(|&at| byte(at) == b' ')?;
        let value = start + key.len() + 1;
        let is_key = value <= end && key.bytes().enumerate().all(|(at, wanted)| byte(start + at) == wanted);
        if is_key && byte(value - 1) == b'=' {
            let length = (end - value).min(buffer.len());
            for (at, slot) in buffer[..length].iter_mut().enumerate() {
                *slot = byte(value + at);
            }
            return core::str::from_utf8(&buffer[..length]).ok();
        }
        start = end + 1;
    }
    None
}

/// The value of `KEY=NUMBER` on the command line, decimal or hexadecimal with `0x`.
pub fn number(key: &str) -> Option<u64> {
    parse_number(option(key, &mut [0; 32])?)
}

/// The values of `KEY=NUMBER,NUMBER` on the command line.
pub fn pair(key: &str) -> Option<(u64, u64)> {
    let mut buffer = [0; 64];
    let (first, second) = option(key, &mut buffer)?.split_once(',')?;
    Some((parse_number(first)?, parse_number(second)?))
}

/// Whether `KEY=VALUE` with exactly this value is on the command line.
pub fn is(key: &str, value: &str) -> bool {
    option(key, &mut [0; 32]) == Some(value)
}

/// Whether the command line has `KEY=NAME[,NAME…]` with this name.
pub fn is_listed(key: &str, name: &str) -> bool {
    option(key, &mut [0; 64]).is_some_and(|list| list.split(',').any(|entry| entry == name))
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
