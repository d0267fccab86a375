//! What an experiment is to show, and whether it did. A missed goal is reported, and fails nothing.

use serde::{Deserialize, Serialize};

use super::record::{Record, Scale};

/// What is wanted of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// So many times as good as the reference side.
    Ratio(f64),
    /// At most so much, in the figure's unit.
    AtMost(f64),
}

/// A goal: what is wanted of one figure of Heddle's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// The figure.
    pub figure: &'static str,
    /// By what it is measured.
    pub scale: Scale,
    /// On how many processors.
    pub processors: u32,
    /// What is wanted.
    pub wanted: Wanted,
}

/// A goal beside what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The figure.
    pub figure: String,
    /// Where on the axis, if the goal holds everywhere on it.
    pub x: Option<f64>,
    /// By what it was measured.
    pub scale: Scale,
    /// On how many processors.
    pub processors: u32,
    /// What was wanted, in words.
    pub wanted: String,
    /// The ratio that was wanted, if it is one.
    pub wanted_ratio: Option<f64>,
    /// What was measured; nothing if the figure is absent.
    pub got: Option<f64>,
    /// Whether that is enough.
    pub met: bool,
}

impl Goal {
    /// A goal on one processor.
    #[must_use]
    pub const fn new(figure: &'static str, scale: Scale, wanted: Wanted) -> Self {
        Self { figure, scale, processors: 1, wanted }
    }

    /// Holds it against what was measured on `side`: one verdict for each point of the figure's axis.
    #[must_use]
    pub fn judge(&self, record: &Record, side: &str) -> Vec<Verdict> {
        let wanted = match self.wanted {
            Wanted::Ratio(ratio) => format!("{ratio} times {}", record.reference),
            Wanted::AtMost(limit) => format!("at most {limit}"),
        };
        let is_meant = |figure: &&super::record::Figure| {
            figure.name == self.figure
                && figure.scale == self.scale
                && figure.processors == self.processors
                && figure.side == side
        };
        let verdict = |figure: &super::record::Figure| {
            let (got, met) = match self.wanted {
                Wanted::Ratio(ratio) => (figure.ratio, figure.ratio.is_some_and(|got| got >= ratio)),
                Wanted::AtMost(limit) => (figure.median, figure.median.is_some_and(|got| got <= limit)),
            };
            Verdict {
                figure: figure.name.clone(),
                x: figure.x,
                scale: figure.scale,
                processors: figure.processors,
                wanted: wanted.clone(),
                wanted_ratio: match self.wanted {
                    Wanted::Ratio(ratio) => Some(ratio),
                    Wanted::AtMost(_) => None,
                },
                got,
                met,
            }
        };
        record.figures.iter().filter(is_meant).map(verdict).collect()
    }
}

impl Verdict {
    /// The ratio that was wanted of this figure, if this is about it.
    #[must_use]
    pub fn ratio_for(&self, figure: &super::record::Figure) -> Option<f64> {
        let is_meant = self.figure == figure.name
            && self.x == figure.x
            && self.scale == figure.scale
            && self.processors == figure.processors;
        self.wanted_ratio.filter(|_| is_meant)
    }
}
