//! The experiments, a file each. A new one is a file with an [`Experiment`] and a line in [`ALL`].
//!
//! It runs a program in machines, from `bench/programs` (a module and a line in its table), which prints its
//! results as lines; the plan says which sides run it and with which words. A side of its own for an experiment that is
//! there already, such as coroutines beside threads, is a [`Side`](super::side::Side) whose words are added to each
//! item.

mod asynccall;
mod boot;
mod copies;
mod direct;
mod executors;
mod host;
mod memory;
mod net;
mod net_host;
mod papers;
mod pipeline;
mod priority;
mod ranges;
mod ring;
mod server;
mod shares;
mod spaces;
mod syscalls;
mod yields;

use anyhow::Result;

use super::goal::Goal;
use super::plan::{Effort, Plan};
use super::record::Record;
use super::{Interrupt, Request};

/// An experiment that can be asked for by name.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Its name on the command line and the name of its folder of results.
    pub name: &'static str,
    /// A one-line summary of what it measures.
    pub summary: &'static str,
    /// How it is run.
    pub kind: Kind,
    /// Of which items of its quick form the instruction counts are committed, for `--check` to compare them. Only for
    /// [`Kind::Machines`].
    pub checked: Option<fn(&str) -> bool>,
}

/// An experiment's own function: it measures into the record, and returns what is wanted of it.
pub type Measure = fn(&Request, usize, &mut Record, &Interrupt) -> Result<Vec<Goal>>;

/// How an experiment is run.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// By a plan of machines, given the processors of those that have more than one.
    Machines(fn(Effort, Option<u32>) -> Plan),
    /// By a function of its own, which gets the number of runs.
    Own(Measure),
    /// The same, and what judges a record by goals of its own: kept results are judged by it again when they are drawn.
    Judged(Measure, fn(&mut Record)),
}

/// The name that stands for all of them, one after the other.
pub const EVERY: &str = "all";

/// All experiments, in the order in which they are listed.
pub const ALL: &[Experiment] = &[
    boot::EXPERIMENT,
    copies::EXPERIMENT,
    syscalls::EXPERIMENT,
    yields::EXPERIMENT,
    direct::EXPERIMENT,
    spaces::EXPERIMENT,
    ring::EXPERIMENT,
    pipeline::EXPERIMENT,
    priority::EXPERIMENT,
    asynccall::EXPERIMENT,
    net::EXPERIMENT,
    net_host::EXPERIMENT,
    server::EXPERIMENT,
    shares::EXPERIMENT,
    memory::EXPERIMENT,
    executors::EXPERIMENT,
    papers::EXPERIMENT,
    ranges::EXPERIMENT,
];

/// The experiment of this name.
///
/// # Errors
/// If there is none.
pub fn find(name: &str) -> Result<&'static Experiment> {
    let found = ALL.iter().find(|experiment| experiment.name == name);
    found.ok_or_else(|| anyhow::anyhow!("no experiment '{name}'; `./heddle bench` lists them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_what_is_checked_has_a_plan() {
        for (index, experiment) in ALL.iter().enumerate() {
            let mut others = ALL[..index].iter().map(|other| other.name).chain([EVERY]);
            assert!(others.all(|other| other != experiment.name), "{}", experiment.name);
            assert!(experiment.checked.is_none() || matches!(experiment.kind, Kind::Machines(_)));
        }
    }

    #[test]
    fn plans_have_sides_and_items_for_every_effort() {
        for experiment in ALL {
            let Kind::Machines(plan) = experiment.kind else { continue };
            for effort in [Effort::Quick, Effort::Normal, Effort::Full] {
                let groups = plan(effort, None).groups;
                assert!(!groups.is_empty(), "{}", experiment.name);
                assert!(groups.iter().all(|group| !group.sides.is_empty() && !group.items.is_empty()));
            }
        }
    }
}
