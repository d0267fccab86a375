//! The first process of the smallest Linux guest: starts `/bin/true`, waits for it, ends the machine.

use std::process::Command;

use nix::sys::reboot::{RebootMode, reboot};
use nix::time::{ClockId, clock_gettime};

/// Runs as process 1; prints at which time of the guest the program was started.
pub fn run() -> Result<(), String> {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_err(|error| error.to_string())?;
    let status = Command::new("/bin/true").status().map_err(|error| error.to_string());
    if status.is_ok_and(|status| status.success()) {
        println!("started {}", now.tv_sec() * 1_000_000_000 + now.tv_nsec());
    }
    reboot(RebootMode::RB_POWER_OFF).map(drop).map_err(|error| error.to_string())
}
