//! The tests behind `heddle test`: those that cargo runs on the host, and programs in real machines, on Heddle and on
//! Linux.

pub mod bench;
pub mod cargo;
pub mod checking;
pub mod checks;
pub mod differ;
pub mod front;
pub mod guest;
pub mod hung;
pub mod languages;
pub mod network;
pub mod panic;
pub mod process;
pub mod processors;
pub mod programs;
pub mod pseudo_terminal;
pub mod screens;
pub mod scripts;
pub mod server;
pub mod share_cache;
pub mod share_edges;
pub mod shares;
pub mod side_by_side;
pub mod streams;
pub mod stress;
pub mod terminals;
pub mod threads;
pub mod tool;

/// The result of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Passed,
    /// It failed, and why.
    Failed(String),
    /// It could not be run here, and why.
    Skipped(String),
}

impl From<Result<(), String>> for Verdict {
    fn from(result: Result<(), String>) -> Self {
        result.map_or_else(Self::Failed, |()| Self::Passed)
    }
}

/// Counts tests and prints a line for each.
#[derive(Debug, Default)]
pub struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
    failures: Vec<String>,
}

impl Tally {
    /// Takes note of a test.
    pub fn record(&mut self, name: &str, verdict: &Verdict) {
        match verdict {
            Verdict::Passed => {
                self.passed += 1;
                println!("ok {name}");
            }
            Verdict::Failed(reason) => {
                self.failed += 1;
                println!("not ok {name}: {reason}");
                self.failures.push(format!("{name}: {reason}"));
            }
            Verdict::Skipped(reason) => {
                self.skipped += 1;
                println!("skip {name}: {reason}");
            }
        }
    }

    /// Takes note of tests that have printed their own lines.
    pub fn add(&mut self, passed: u64, failed: u64, skipped: u64) {
        self.passed += passed;
        self.failed += failed;
        self.skipped += skipped;
    }

    /// Whether no test failed, and there were any.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }

    /// Prints what failed, and the counts as the last line.
    pub fn finish(&self) {
        if !self.failures.is_empty() {
            println!("failed:");
            for failure in &self.failures {
                println!("    {failure}");
            }
        }
        if self.skipped > 0 {
            println!("{} skipped, each named above", self.skipped);
        }
        println!("{} passed, {} failed", self.passed, self.failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_no_success() {
        let mut tally = Tally::default();
        assert!(!tally.is_success());
        tally.record("a", &Verdict::Skipped(String::from("why")));
        assert!(!tally.is_success());
        tally.record("b", &Verdict::Passed);
        assert!(tally.is_success());
        tally.record("c", &Err(String::from("reason")).into());
        assert!(!tally.is_success());
    }
}
