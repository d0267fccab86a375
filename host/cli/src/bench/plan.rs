//! The programs that an experiment runs in machines.

use super::goal::Goal;
use super::side::Side;
use crate::machine::Clock;

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As short as shows anything.
    Quick,
    /// As a rule.
    Normal,
    /// Everything that the papers show.
    Full,
}

impl Effort {
    /// The one of three that belongs to this effort.
    pub fn choose<T>(self, quick: T, normal: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Normal => normal,
            Self::Full => full,
        }
    }

    /// How often what varies is measured.
    #[must_use]
    pub fn runs(self) -> usize {
        self.choose(1, 3, 9)
    }

    /// How often what repeats is measured: more than once shows that it does.
    #[must_use]
    pub fn instruction_runs(self) -> usize {
        self.choose(1, 1, 3)
    }

    /// The numbers of threads or coroutines of papers 1 and 2.
    #[must_use]
    pub fn counts(self) -> Vec<u32> {
        let mut counts = vec![1, 2, 10, 50, 200];
        match self {
            Self::Quick => counts.push(800),
            Self::Normal => counts.extend([800, 2000, 4000]),
            Self::Full => counts.extend((2..=20).map(|hundreds| hundreds * 200)),
        }
        counts
    }
}

/// The kind of an experiment's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// The time of one iteration.
    PerIteration,
    /// The time of all; the end of the figure's name is where on the axis it belongs.
    Total,
}

/// Machines under the same conditions, one for each side, that run the same.
#[derive(Clone, Debug)]
pub struct Group {
    /// The machines' clock.
    pub clock: Clock,
    /// Their processors.
    pub processors: u32,
    /// The sides.
    pub sides: Vec<Side>,
    /// The items of the batch.
    pub items: Vec<String>,
    /// In how many rounds it runs at most.
    pub rounds: usize,
}

/// An experiment in machines.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The kind of its samples.
    pub sample: Sample,
    /// The label of the plot's axis.
    pub axis: Option<&'static str>,
    /// The groups of items that run in one round.
    pub groups: Vec<Group>,
    /// How long an item may take by the guest's clock.
    pub item_limit_s: u64,
    /// The goals.
    pub goals: Vec<Goal>,
    /// Debian packages of the machines' root; none for a root with nothing but the program.
    pub packages: &'static [&'static str],
}

/// The same items by both clocks on one processor.
#[must_use]
pub fn both_clocks(sides: &[Side], items: &[String]) -> Vec<Group> {
    let group = |clock| Group {
        clock,
        processors: 1,
        sides: sides.to_vec(),
        items: items.to_vec(),
        rounds: usize::MAX,
    };
    [Clock::Instructions, Clock::Host].map(group).into()
}
