//! The frequency of the host's time-stamp counter, which is the guest's too: a kernel that has to measure it
//! against the emulated timers gets it wrong, or not at all, on a busy host.
#![allow(unsafe_code)] // Reading the counter is an intrinsic.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How long the counter is watched, once after each start of the host.
const WATCH: Duration = Duration::from_millis(50);
/// Attempts at reading clock and counter together; the closest pair counts.
const ATTEMPTS: usize = 16;

/// Counts per second; `None` where the counter does not run evenly.
///
/// # Errors
/// If the host does not say what it is.
pub fn frequency_hz(cache: &Path) -> Result<Option<u64>> {
    let description = std::fs::read_to_string("/proc/cpuinfo").context("/proc/cpuinfo")?;
    let flags = description.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    if !["constant_tsc", "tsc"].iter().all(|flag| flags.split_whitespace().any(|word| word == *flag)) {
        return Ok(None);
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").context("boot_id")?;
    let path = cache.join("tsc");
    if let Ok(text) = std::fs::read_to_string(&path)
        && let Some((hertz, of)) = text.split_once(' ')
        && of.trim() == boot.trim()
        && let Ok(hertz) = hertz.parse()
    {
        return Ok(Some(hertz));
    }
    let hertz = measure();
    let scratch = cache.join(format!("tsc-{}", std::process::id()));
    std::fs::write(&scratch, format!("{hertz} {boot}")).context("remembering the counter's frequency")?;
    std::fs::rename(&scratch, &path).context("remembering the counter's frequency")?;
    Ok(Some(hertz))
}

fn measure() -> u64 {
    let (start, first) = read_both();
    std::thread::sleep(WATCH);
    let (end, last) = read_both();
    let nanoseconds = end.duration_since(start).as_nanos().max(1);
    u64::try_from(u128::from(last.wrapping_sub(first)) * 1_000_000_000 / nanoseconds).unwrap_or(u64::MAX)
}

/// Clock and counter at nearly the same moment.
fn read_both() -> (Instant, u64) {
    let attempts = (0..ATTEMPTS).map(|_| {
        let before = counter();
        let now = Instant::now();
        let spent = counter().wrapping_sub(before);
        (spent, now, before.wrapping_add(spent / 2))
    });
    let (_, now, count) = attempts.min_by_key(|(spent, ..)| *spent).unwrap_or((0, Instant::now(), counter()));
    (now, count)
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: the caller has made sure that the processor has the counter, and reading it has no effect.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Never called: no other processor names the flags that `frequency_hz` looks for.
#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frequency_is_plausible_and_remembered() {
        let cache = std::env::temp_dir().join(format!("heddle-tsc-{}", std::process::id()));
        std::fs::create_dir_all(&cache).unwrap();
        let first = frequency_hz(&cache).unwrap();
        let second = frequency_hz(&cache).unwrap();
        std::fs::remove_dir_all(&cache).unwrap();
        assert_eq!(first, second);
        assert!(first.is_none_or(|hertz| (100_000_000..20_000_000_000).contains(&hertz)), "{first:?}");
    }
}
