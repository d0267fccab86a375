//! `papers`: papers 1 and 2, A and B on this host: coroutines beside threads, by an example of heddle-coroutine.

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Experiment, Kind, host};
use crate::bench::goal::{Goal, GoalVerdict};
use crate::bench::plan::Effort;
use crate::bench::record::{Figure, Record, Scale};
use crate::bench::{Interrupt, OURS, Request};

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "papers",
    summary: "papers 1 and 2, A and B: coroutines beside threads, on this host",
    kind: Kind::Own(run),
    checked: None,
};

/// The side that coroutines are compared with.
const THREADS: &str = "threads";

/// A line for each experiment, order and size; both sides at each N.
fn run(request: &Request, _runs: usize, record: &mut Record, interrupt: &Interrupt) -> Result<Vec<Goal>> {
    let rounds = request.runs.unwrap_or(request.effort.choose(1, 3, 9));
    let mut arguments = vec!["--rounds".to_owned(), rounds.to_string()];
    if request.effort == Effort::Quick {
        arguments.extend(["--most".to_owned(), "800".to_owned()]);
    }
    let value = host::run(("heddle-coroutine", ""), "examples/papers", &arguments, interrupt)?;
    record.reference = THREADS.to_owned();
    record.axis = Some("N".to_owned());
    let processors = std::thread::available_parallelism().context("the number of processors")?.get();
    for line in value["lines"].as_array().context("no lines")? {
        let name = host::text(line, "name")?;
        for point in line["points"].as_array().context("no points")? {
            for (side, key) in [(OURS, "coroutines"), (THREADS, "threads")] {
                let times = point[key].as_array().with_context(|| format!("no {key}"))?;
                record.add(Figure {
                    name: name.to_owned(),
                    x: Some(point["n"].as_f64().context("no N")?),
                    side: side.to_owned(),
                    unit: "us".to_owned(),
                    processors: u32::try_from(processors)?,
                    samples: times.iter().filter_map(Value::as_f64).collect(),
                    ..Figure::new(Scale::Native)
                });
            }
        }
    }
    record.summarize();
    let wanted = |figure: &Figure| GoalVerdict {
        figure: figure.name.clone(),
        x: figure.x,
        scale: figure.scale,
        processors: figure.processors,
        wanted_ratio: Some(1.0),
        wanted: format!("1 times {THREADS}"),
        got: figure.ratio,
        met: figure.ratio.is_some_and(|ratio| ratio >= 1.0),
    };
    let verdicts: Vec<_> = record.figures.iter().filter(|figure| figure.side == OURS).map(wanted).collect();
    record.goals.extend(verdicts);
    Ok(Vec::new())
}
