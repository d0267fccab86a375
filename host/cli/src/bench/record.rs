//! The one form in which all experiments keep their results.

use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::goal::GoalVerdict;

/// The instrument that a figure was measured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Instructions of the guest, counted by the emulator.
    Instructions,
    /// Time by the clock, in an emulated machine.
    Emulated,
    /// Time by the clock, on this host.
    Native,
    /// No time: bytes.
    Size,
    /// No time: how often something happened.
    Count,
}

impl Scale {
    /// The word for tables and file names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Emulated => "emulated",
            Self::Native => "native",
            Self::Size => "size",
            Self::Count => "count",
        }
    }

    /// The unit of its figures, where they do not say another.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Emulated | Self::Native => "ns",
            Self::Size => "bytes",
            Self::Count => "times",
        }
    }

    /// Words for the title of a drawing.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Instructions => "guest instructions (blind to TLB and caches)",
            Self::Emulated => "time under emulation (flushes and interrupts cost more than on hardware)",
            Self::Native => "time on this host",
            Self::Size => "bytes",
            Self::Count => "events",
        }
    }

    /// Describes what a figure on this scale does not measure.
    #[must_use]
    pub fn blind_spot(self) -> &'static str {
        match self {
            Self::Instructions => {
                "instructions: guest instructions by -icount; it sees neither TLB nor caches (a write to CR3 counts \
                 as one), and counts each round of a repeated string instruction"
            }
            Self::Emulated => {
                "emulated: time under TCG; a TLB flush, a page-table change and an interrupt cost more here than on \
                 hardware, caches are the host's, and other work on the host disturbs it"
            }
            Self::Native => "native: time on this host; other work on the host disturbs it",
            Self::Size => "size: bytes; they say nothing about time",
            Self::Count => {
                "count: how often, over all of an experiment and not an iteration, by the kernel's own counters where \
                 it has them; taken in the runs that count instructions"
            }
        }
    }
}

/// One quantity on one side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The name of the measured quantity.
    pub name: String,
    /// Where on the plot's axis, if the experiment has one: N.
    pub x: Option<f64>,
    /// The side that was measured: `heddle`, `linux`, a rival.
    pub side: String,
    /// By what.
    pub scale: Scale,
    /// The unit of the samples.
    pub unit: String,
    /// Whether it is a rate, of which more is better; of all else less is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_rate: bool,
    /// How many processors the machine had, or threads the program.
    pub processors: u32,
    /// The result of each run, in the order of the runs; empty where an external tool reports only the summary.
    pub samples: Vec<f64>,
    /// The middle of the samples.
    pub median: Option<f64>,
    /// The first quartile.
    pub low: Option<f64>,
    /// The third quartile.
    pub high: Option<f64>,
    /// How many times the median of the reference side is this one: above 1 this side is better.
    pub ratio: Option<f64>,
    /// Why there are no samples, or fewer than asked for.
    pub absent: Option<String>,
}

impl Figure {
    /// A figure with nothing in it yet.
    #[must_use]
    pub fn new(scale: Scale) -> Self {
        Self {
            name: String::new(),
            x: None,
            side: String::new(),
            scale,
            unit: scale.unit().to_owned(),
            is_rate: false,
            processors: 1,
            samples: Vec::new(),
            median: None,
            low: None,
            high: None,
            ratio: None,
            absent: None,
        }
    }

    /// Whether both were measured with the same instrument in the same place, so that their sides can be compared.
    #[must_use]
    pub fn is_comparable(&self, other: &Self) -> bool {
        self.name == other.name
            && self.x == other.x
            && self.scale == other.scale
            && self.processors == other.processors
    }

    /// How many times as good as another figure of its kind it is.
    #[must_use]
    pub fn times_as_good_as(&self, other: &Self) -> Option<f64> {
        let (ours, theirs) = (self.median?, other.median?);
        let (better, worse) = if self.is_rate { (ours, theirs) } else { (theirs, ours) };
        (worse > 0.0).then(|| better / worse)
    }

    /// Computes median and quartiles from the samples.
    pub fn summarize(&mut self) {
        if self.samples.is_empty() {
            return;
        }
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        let quartile = |part: usize| Some(at(&sorted, part));
        (self.low, self.median, self.high) = (quartile(1), quartile(2), quartile(3));
    }
}

/// The value a number of quarters into sorted samples, between neighbours where it falls between.
fn at(sorted: &[f64], quarters: usize) -> f64 {
    let (index, rest) = ((sorted.len() - 1) * quarters / 4, (sorted.len() - 1) * quarters % 4);
    let next = sorted[(index + 1).min(sorted.len() - 1)];
    sorted[index] + (next - sorted[index]) * rest as f64 / 4.0
}

/// All of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of this form.
    pub schema: u32,
    /// The experiment.
    pub experiment: String,
    /// The command that repeats it.
    pub command: String,
    /// Where and with what it ran.
    pub environment: Environment,
    /// The side that ratios compare with.
    pub reference: String,
    /// The label of the plot's axis, if the experiment has one.
    pub axis: Option<String>,
    /// The results.
    pub figures: Vec<Figure>,
    /// Remarks of the run itself: counters, cuts.
    pub notes: Vec<String>,
    /// The goals and their results.
    pub goals: Vec<GoalVerdict>,
}

/// The version of [`Record`] that this tool writes.
pub const SCHEMA: u32 = 2;

impl Record {
    /// Adds a sample, to the figure of its kind if there is one already.
    pub fn add(&mut self, figure: Figure) {
        let same = |other: &&mut Figure| other.side == figure.side && other.is_comparable(&figure);
        match self.figures.iter_mut().find(same) {
            Some(old) => {
                old.samples.extend(figure.samples);
                old.absent = figure.absent.or(old.absent.take());
            }
            None => self.figures.push(figure),
        }
    }

    /// Adds a remark once.
    pub fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Computes what follows from the samples.
    pub fn summarize(&mut self) {
        self.figures.iter_mut().for_each(Figure::summarize);
        let ratio = |figure: &Figure| {
            let reference = self
                .figures
                .iter()
                .find(|other| other.side == self.reference && other.is_comparable(figure))?;
            figure.times_as_good_as(reference)
        };
        // Tools of their own bring their ratios along.
        let ratios: Vec<_> =
            self.figures.iter().map(|figure| figure.ratio.or_else(|| ratio(figure))).collect();
        for (figure, ratio) in self.figures.iter_mut().zip(ratios) {
            figure.ratio = ratio;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(side: &str, samples: &[f64]) -> Figure {
        Figure {
            name: "null".to_owned(),
            side: side.to_owned(),
            samples: samples.to_vec(),
            ..Figure::new(Scale::Instructions)
        }
    }

    #[test]
    fn quartiles_lie_between_neighbours() {
        let mut even = figure("heddle", &[4.0, 1.0, 3.0, 2.0]);
        even.summarize();
        assert_eq!((even.low, even.median, even.high), (Some(1.75), Some(2.5), Some(3.25)));
        let mut one = figure("heddle", &[7.0]);
        one.summarize();
        assert_eq!((one.low, one.median, one.high), (Some(7.0), Some(7.0), Some(7.0)));
    }

    #[test]
    fn of_a_rate_more_is_better() {
        let mut record = Record { reference: "linux".to_owned(), ..Record::default() };
        for (side, rate) in [("heddle", 30.0), ("linux", 20.0)] {
            record.add(Figure { is_rate: true, ..figure(side, &[rate]) });
        }
        record.summarize();
        assert_eq!(record.figures[0].ratio, Some(1.5));
    }

    #[test]
    fn ratios_compare_with_the_reference_under_the_same_conditions() {
        let mut record = Record { reference: "linux".to_owned(), ..Record::default() };
        record.add(figure("heddle", &[10.0]));
        record.add(figure("heddle", &[20.0]));
        record.add(figure("linux", &[30.0]));
        record.add(Figure { processors: 2, ..figure("heddle", &[10.0]) });
        record.summarize();
        let ratios: Vec<_> = record.figures.iter().map(|figure| figure.ratio).collect();
        assert_eq!(ratios, [Some(2.0), Some(1.0), None]);
    }
}
