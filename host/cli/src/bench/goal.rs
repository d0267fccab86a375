//! The goals of an experiment, and whether they were met. A missed goal is reported, and fails nothing.

use serde::{Deserialize, Serialize};

use super::record::{Figure, Record, Scale};
use super::side::{HEDDLE, HEDDLE_COROUTINES, LINUX};

/// The goal for a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// This many times as good as the reference side.
    Ratio(f64),
    /// At most so much, in the figure's unit.
    AtMost(f64),
    /// One side this many times as good as another, wherever on the axis both were measured.
    Everywhere(&'static str, f64, &'static str),
    /// The same at the end of what both have of the axis.
    AtTheEnd(&'static str, f64, &'static str),
}

/// A goal for one figure of Heddle's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// The figure.
    pub figure: &'static str,
    /// The instrument that measures it.
    pub scale: Scale,
    /// On how many processors.
    pub processors: u32,
    /// The value to reach.
    pub wanted: Wanted,
}

/// The goals of papers 1 and 2: coroutines are never slower than threads on the same kernel, and at the largest number
/// that both finish ten times as fast as Linux's threads.
#[must_use]
pub fn coroutines_ahead(figures: &[&'static str]) -> Vec<Goal> {
    let wanted = [
        Wanted::Everywhere(HEDDLE_COROUTINES.name, 1.0, HEDDLE.name),
        Wanted::AtTheEnd(HEDDLE_COROUTINES.name, 10.0, LINUX.name),
    ];
    let scales = [Scale::Instructions, Scale::Emulated];
    let of = |figure: &'static str| {
        wanted.into_iter().flat_map(move |wanted| scales.map(|scale| Goal::new(figure, scale, wanted)))
    };
    figures.iter().copied().flat_map(of).collect()
}

/// A goal beside what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GoalVerdict {
    /// The figure.
    pub figure: String,
    /// Where on the axis, if the goal holds everywhere on it.
    pub x: Option<f64>,
    /// The instrument that measured it.
    pub scale: Scale,
    /// On how many processors.
    pub processors: u32,
    /// The goal, in words.
    pub wanted: String,
    /// The ratio that was wanted, if it is one.
    pub wanted_ratio: Option<f64>,
    /// The measured value; `None` if the figure is absent.
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

    /// Holds it against what was measured: one verdict for each point of the figure's axis. `side` is whose figure is
    /// meant where the goal names none.
    #[must_use]
    pub fn judge(&self, record: &Record, side: &str) -> Vec<GoalVerdict> {
        match self.wanted {
            Wanted::Ratio(wanted) => {
                let verdict = |figure: &Figure| GoalVerdict {
                    wanted: format!("{wanted} times {}", record.reference),
                    wanted_ratio: Some(wanted),
                    got: figure.ratio,
                    met: figure.ratio.is_some_and(|got| got >= wanted),
                    ..GoalVerdict::open(figure)
                };
                self.figures(record, side).map(verdict).collect()
            }
            Wanted::AtMost(limit) => {
                let verdict = |figure: &Figure| GoalVerdict {
                    wanted: format!("at most {limit}"),
                    got: figure.median,
                    met: figure.median.is_some_and(|got| got <= limit),
                    ..GoalVerdict::open(figure)
                };
                self.figures(record, side).map(verdict).collect()
            }
            Wanted::Everywhere(side, wanted, other) => self.compare(record, side, wanted, other),
            Wanted::AtTheEnd(side, wanted, other) => {
                let mut verdicts = self.compare(record, side, wanted, other);
                let end = verdicts.iter().filter_map(|verdict| verdict.x).reduce(f64::max);
                verdicts.retain(|verdict| verdict.x == end);
                verdicts
            }
        }
    }

    /// The figures measured on a side.
    fn figures<'a>(&self, record: &'a Record, side: &str) -> impl Iterator<Item = &'a Figure> {
        record.figures.iter().filter(move |figure| {
            figure.name == self.figure
                && figure.scale == self.scale
                && figure.processors == self.processors
                && figure.side == side
        })
    }

    /// A verdict for each point at which both sides were measured.
    fn compare(&self, record: &Record, side: &str, wanted: f64, other: &str) -> Vec<GoalVerdict> {
        let verdict = |figure: &Figure| {
            let is_other = |theirs: &&Figure| theirs.side == other && theirs.is_comparable(figure);
            let got = figure.times_as_good_as(record.figures.iter().find(is_other)?)?;
            Some(GoalVerdict {
                figure: format!("{}: {side}", self.figure),
                wanted: format!("{wanted} times {other}"),
                wanted_ratio: Some(wanted),
                got: Some(got),
                met: got >= wanted,
                ..GoalVerdict::open(figure)
            })
        };
        self.figures(record, side).filter_map(verdict).collect()
    }
}

impl GoalVerdict {
    /// Of a figure, before anything was asked of it.
    fn open(figure: &Figure) -> Self {
        Self {
            figure: figure.name.clone(),
            x: figure.x,
            scale: figure.scale,
            processors: figure.processors,
            wanted: String::new(),
            wanted_ratio: None,
            got: None,
            met: false,
        }
    }

    /// The ratio that was wanted of this figure, if this is about it.
    #[must_use]
    pub fn ratio_for(&self, figure: &Figure) -> Option<f64> {
        let is_meant = self.figure == figure.name
            && self.x == figure.x
            && self.scale == figure.scale
            && self.processors == figure.processors;
        self.wanted_ratio.filter(|_| is_meant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_compared_where_both_were_measured() {
        let mut record = Record::default();
        let of = |side: &str, x: f64, median: f64| Figure {
            name: "ring".to_owned(),
            side: side.to_owned(),
            x: Some(x),
            median: Some(median),
            ..Figure::new(Scale::Instructions)
        };
        record.figures = vec![
            of("coroutines", 1.0, 10.0),
            of("coroutines", 10.0, 40.0),
            of("coroutines", 100.0, 50.0),
            of("threads", 1.0, 5.0),
            of("threads", 10.0, 80.0),
        ];
        let judged = |wanted| {
            let verdicts = Goal::new("ring", Scale::Instructions, wanted).judge(&record, "heddle");
            verdicts.iter().map(|verdict| (verdict.x, verdict.got, verdict.met)).collect::<Vec<_>>()
        };
        let end = (Some(10.0), Some(2.0), true);
        assert_eq!(
            judged(Wanted::Everywhere("coroutines", 1.0, "threads")),
            [(Some(1.0), Some(0.5), false), end]
        );
        assert_eq!(judged(Wanted::AtTheEnd("coroutines", 2.0, "threads")), [end]);
    }
}
