//! Checks of single crates that plain `cargo test` does not hold: models of every interleaving, orderings weakened on
//! purpose, the interpreter, the oldest compiler, stress.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{Tally, cargo};

/// When a check runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// In every run.
    Always,
    /// Only with `--long`.
    Long,
}

/// A check: its name, when it runs, and the command with its arguments, from the top of the repository.
pub type Check = (&'static str, Tier, &'static [&'static str]);

/// Every check.
pub const CHECKS: [Check; 36] = [
    ("kernel lints", Tier::Always, &["kernel/check.sh", "lint"]),
    ("coroutine models", Tier::Always, &["crates/coroutine/check.sh", "loom"]),
    ("range-lock models", Tier::Always, &["crates/range-lock/check.sh", "loom"]),
    ("kernel models", Tier::Always, &["kernel/core/check.sh", "loom"]),
    ("shared-scheduler models", Tier::Always, &["abi/check.sh", "loom"]),
    ("coroutine schedules", Tier::Always, &["crates/coroutine/check.sh", "schedules"]),
    ("network schedules", Tier::Always, &["kernel/inet/check.sh", "schedules"]),
    ("coroutine orderings", Tier::Long, &["crates/coroutine/check.sh", "weaken"]),
    ("coroutine interpreted", Tier::Long, &["crates/coroutine/check.sh", "miri"]),
    ("coroutine oldest compiler", Tier::Long, &["crates/coroutine/check.sh", "msrv"]),
    ("coroutine object", Tier::Long, &["crates/coroutine/check.sh", "object"]),
    ("coroutine features", Tier::Long, &["crates/coroutine/check.sh", "features"]),
    ("coroutine stress", Tier::Long, &["crates/coroutine/check.sh", "long"]),
    ("shared-scheduler orderings", Tier::Long, &["abi/check.sh", "weaken"]),
    ("range-lock orderings", Tier::Long, &["crates/range-lock/check.sh", "weaken"]),
    ("range-lock interpreted", Tier::Long, &["crates/range-lock/check.sh", "miri"]),
    ("range-lock stress", Tier::Long, &["crates/range-lock/check.sh", "stress"]),
    ("kernel clones", Tier::Long, &["kernel/check.sh", "clones"]),
    ("kernel orderings", Tier::Long, &["kernel/core/check.sh", "weaken"]),
    ("range-lock C interface", Tier::Long, &["crates/range-lock/check.sh", "capi"]),
    ("coroutine fuzzed", Tier::Long, &["crates/coroutine/check.sh", "fuzz"]),
    ("coroutine on other systems", Tier::Long, &["crates/coroutine/check.sh", "portable"]),
    ("coroutine publication", Tier::Long, &["crates/coroutine/check.sh", "publish"]),
    ("coroutine compatibility", Tier::Long, &["crates/coroutine/check.sh", "semver"]),
    ("coroutine under ThreadSanitizer", Tier::Long, &["crates/coroutine/check.sh", "tsan"]),
    ("coroutine beside hyper and rustls", Tier::Long, &["crates/coroutine/check.sh", "ecosystem"]),
    ("range-lock fuzzed", Tier::Long, &["crates/range-lock/check.sh", "fuzz"]),
    ("range-lock on other systems", Tier::Long, &["crates/range-lock/check.sh", "portable"]),
    ("range-lock publication", Tier::Long, &["crates/range-lock/check.sh", "publish"]),
    ("range-lock compatibility", Tier::Long, &["crates/range-lock/check.sh", "semver"]),
    ("range-lock under ThreadSanitizer", Tier::Long, &["crates/range-lock/check.sh", "tsan"]),
    ("runtime oldest compiler", Tier::Long, &["guest/rt/check.sh", "msrv"]),
    ("runtime publication", Tier::Long, &["guest/rt/check.sh", "publish"]),
    ("runtime compatibility", Tier::Long, &["guest/rt/check.sh", "semver"]),
    ("host tool on other processors", Tier::Long, &["host/check.sh", "portable"]),
    ("range-lock oldest compiler", Tier::Long, &["crates/range-lock/check.sh", "msrv"]),
];

/// Runs the checks of the tier whose names contain `filter`.
///
/// # Errors
/// If a check cannot be started.
pub fn run(repository: &Path, is_long: bool, filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let is_wanted = |check: &&Check| {
        (is_long || check.1 == Tier::Always) && filter.is_none_or(|filter| check.0.contains(filter))
    };
    for (name, _, command) in CHECKS.iter().filter(is_wanted) {
        let Some((program, arguments)) = command.split_first() else { continue };
        let mut command = Command::new(repository.join(program));
        command.args(arguments).current_dir(repository);
        cargo::count(name, command, tally)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_is_in_the_repository() {
        let repository = crate::paths::repository().unwrap();
        for (name, _, command) in CHECKS {
            assert!(repository.join(command[0]).is_file(), "{name}");
        }
    }
}
