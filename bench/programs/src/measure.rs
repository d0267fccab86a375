//! Timing, and the lines in which results are printed.

use std::time::Instant;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Prints a rate, of which more is better: so many a second.
pub fn report_rate(name: &str, per_second: f64) {
    println!("rate {name} {per_second:.3}");
}

/// Prints one result.
pub fn report(name: &str, iterations: u64, nanoseconds: u128) {
    println!("result {name} {iterations} {nanoseconds}");
}

/// Prints a quantity of bytes.
pub fn report_bytes(name: &str, bytes: u64) {
    println!("size {name} {bytes}");
}

/// Runs `step` for a warm-up of a tenth of the iterations and then `iterations` times under the clock; prints the
/// result.
pub fn repeat<E: std::fmt::Display>(
    name: &str,
    iterations: u64,
    mut step: impl FnMut() -> Result<(), E>,
) -> Result<(), String> {
    let mut all = |count| (0..count).try_for_each(|_| step()).map_err(|error| format!("{name}: {error}"));
    all(iterations.div_ceil(10))?;
    let begin = Instant::now();
    all(iterations)?;
    report(name, iterations, begin.elapsed().as_nanos());
    Ok(())
}

/// Turns the usual -1 of a C function into the error it left.
pub fn check(result: i64) -> Result<i64, std::io::Error> {
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) }
}

/// Binds the calling thread to one CPU.
pub fn pin(cpu: usize) -> Result<(), String> {
    pin_to(cpu..cpu + 1)
}

/// Binds the calling thread, and those that it starts later, to these CPUs.
pub fn pin_to(cpus: std::ops::Range<usize>) -> Result<(), String> {
    let mut set = nix::sched::CpuSet::new();
    for cpu in cpus.clone() {
        set.set(cpu).map_err(|error| error.to_string())?;
    }
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set)
        .map_err(|error| format!("no CPUs {cpus:?}: {error}"))
}

/// Raises the limit of descriptors where it is lower.
pub fn allow_descriptors(needed: u64) -> Result<(), String> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|error| error.to_string())?;
    if soft >= needed {
        return Ok(());
    }
    setrlimit(Resource::RLIMIT_NOFILE, needed, hard.max(needed))
        .map_err(|error| format!("{needed} descriptors: {error}"))
}
