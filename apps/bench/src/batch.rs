//! Several experiments in one boot: `batch limit=SECONDS ITEM…`, each item the words of one experiment.
//!
//! Each runs in a process of its own, which ends after `limit` seconds of the guest's clock. Prints `begin INDEX`
//! before an item, so that a machine that crashes leaves behind which one it was.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// Runs all items; one that fails is reported as absent.
pub fn run(mut words: impl Iterator<Item = String>) -> Result<(), String> {
    let limit = words.next().unwrap_or_default();
    if !limit.starts_with("limit=") {
        return Err("batch limit=SECONDS ITEM…".to_owned());
    }
    for (index, item) in words.enumerate() {
        println!("begin {index}");
        let output = Command::new("/proc/self/exe")
            .args(item.split_whitespace())
            .arg(&limit)
            .output()
            .map_err(|error| error.to_string())?;
        print!("{}", String::from_utf8_lossy(&output.stdout));
        let status = output.status;
        if status.signal() == Some(nix::sys::signal::Signal::SIGALRM as i32) {
            println!("stopped {item}");
        } else if !status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            println!("absent {item}: {status} {}", error.trim().replace('\n', " / "));
        }
    }
    Ok(())
}
