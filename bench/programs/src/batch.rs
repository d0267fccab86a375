//! Several experiments in one boot: `batch limit=SECONDS ITEM…`, each item the words of one experiment.
//!
//! Each runs in a process of its own, which ends after `limit` seconds of the guest's clock. Prints `begin INDEX`
//! before an item, so that a machine that crashes leaves behind which one it was. Where an item took too long, those
//! that differ from it only by a greater `n=` are skipped.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// Runs all items; one that fails is reported as absent.
pub fn run(mut words: impl Iterator<Item = String>) -> Result<(), String> {
    let limit = words.next().unwrap_or_default();
    if !limit.starts_with("limit=") {
        return Err("batch limit=SECONDS ITEM…".to_owned());
    }
    let mut stopped: Vec<(Vec<String>, u64)> = Vec::new();
    for (index, item) in words.enumerate() {
        println!("begin {index}");
        let (rest, size) = split(&item);
        if stopped.iter().any(|(other, least)| *other == rest && size > *least) {
            println!("skipped {item}");
            continue;
        }
        let output = Command::new("/proc/self/exe")
            .args(item.split_whitespace())
            .arg(&limit)
            .output()
            .map_err(|error| error.to_string())?;
        print!("{}", String::from_utf8_lossy(&output.stdout));
        let status = output.status;
        if status.signal() == Some(nix::sys::signal::Signal::SIGALRM as i32) {
            println!("stopped {item}");
            stopped.push((rest, size));
        } else if !status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            println!("absent {item}: {status} {}", error.trim().replace('\n', " / "));
        }
    }
    Ok(())
}

/// An item's size and the words that are not the size.
fn split(item: &str) -> (Vec<String>, u64) {
    let (sizes, rest): (Vec<_>, Vec<_>) =
        item.split_whitespace().map(str::to_owned).partition(|word| word.starts_with("n="));
    (rest, sizes.first().and_then(|size| size[2..].parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_that_differ_by_size_are_the_same_otherwise() {
        let (rest, size) = split("ring n=400 by=yield");
        assert_eq!((split("ring n=1 by=yield").0, size), (rest, 400));
        assert_ne!(split("ring n=400 by=key").0, split("ring n=400 by=yield").0);
    }
}
