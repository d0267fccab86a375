//! `heddle bench`: experiments, each with all its sides in one run.

use anyhow::Result;

use crate::bench::EXPERIMENTS;

/// Lists the experiments.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {}

/// Runs the command and says with which status to end.
///
/// # Errors
/// Whatever keeps the experiment from being run.
pub fn execute(_: &Options) -> Result<u8> {
    for experiment in EXPERIMENTS {
        println!("{:10} {}", experiment.name, experiment.summary);
    }
    Ok(0)
}
