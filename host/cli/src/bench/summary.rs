//! The main figures of all kept results, as the two tables that bench/README.md shows.

use std::path::Path;

use anyhow::{Context, Result};

use super::experiments::ALL;
use super::goal::GoalVerdict;
use super::record::Scale::{self, Emulated, Instructions, Size};
use super::record::{Figure, Record};
use super::table::number;
use super::{OURS, kept};

/// A row: the experiment, its figure, where on the axis, by what, and how bench/README.md names it.
struct Row(&'static str, &'static str, Option<u32>, Scale, u32, &'static str);

const ROWS: &[Row] = &[
    Row("boot", "command to exit", None, Emulated, 1, "`run -- true`, command to exit"),
    Row("boot", "QEMU's own start", None, Emulated, 1, "of that, QEMU with a kernel that exits at once"),
    Row("boot", "kernel to main", None, Instructions, 1, "kernel's start to the program's, with idle time"),
    Row("boot", "start", None, Instructions, 1, "the same without idle time"),
    Row("boot", "kernel image", None, Size, 1, "kernel image"),
    Row("boot", "memory floor", None, Size, 1, "least memory for `true`"),
    Row("yield", "yield-exec-100000", None, Instructions, 1, "100,000 yields of two exec'ed processes, each"),
    Row(
        "yield",
        "yield-exec-1000000",
        None,
        Instructions,
        1,
        "1,000,000 yields of two exec'ed processes, each",
    ),
    Row("yield", "yield-exec-1000000", None, Emulated, 1, "the same"),
    Row("yield", "yield-fork-1000000", None, Instructions, 1, "the same, parent and forked child"),
    Row("syscalls", "null", None, Instructions, 1, "null call"),
    Row("syscalls", "clock", None, Instructions, 1, "`clock_gettime`"),
    Row("syscalls", "read-4k", None, Instructions, 1, "read 4 KB"),
    Row("syscalls", "write-4k", None, Instructions, 1, "write 4 KB"),
    Row("syscalls", "page-fault", None, Instructions, 1, "page fault"),
    Row("syscalls", "pipe-exec-1", None, Instructions, 1, "pipe, exec'ed processes, there and back"),
    Row("syscalls", "pipe-exec-1", None, Emulated, 1, "the same"),
    Row("syscalls", "futex-thread-1", None, Instructions, 1, "futex, threads, there and back"),
    Row("syscalls", "epoll", None, Instructions, 1, "`epoll_wait`, one file ready"),
    Row("syscalls", "thread-create-join", None, Instructions, 1, "thread create + join"),
    Row("syscalls", "fork-exit", None, Instructions, 1, "fork + exit"),
    Row("syscalls", "fork-exec", None, Instructions, 1, "fork + exec + wait"),
    Row("ring", "ring-yield-created", Some(200), Instructions, 1, "200 threads take turns by yielding"),
    Row("ring", "ring-key-created", Some(4000), Instructions, 1, "4,000 threads take turns by futex"),
    Row("pipeline", "pipeline-1", Some(4000), Instructions, 1, "4,000 threads in a row of pipes"),
    Row("priority", "priority-p99", None, Emulated, 1, "urgent work: from ready to running, 99th percentile"),
    Row(
        "asynccall",
        "asynccall-now",
        None,
        Instructions,
        1,
        "asynchronous call, done at once (Linux: io_uring)",
    ),
    Row("asynccall", "asynccall-batch-32", None, Instructions, 1, "the same, 32 in a batch"),
    Row("memory", "memory-threads-1", None, Instructions, 1, "map, touch, unmap 16 pages, one thread"),
    Row("memory", "memory-threads-2", None, Emulated, 2, "the same, two threads on two CPUs"),
    Row("memory", "idle-exec-process", None, Size, 1, "memory of an idle exec'ed process"),
];

/// Experiments that bench/README.md shows by their goals: those with an axis, and those without a machine.
const BY_GOALS: [&str; 5] = ["ring", "pipeline", "executors", "papers", "ranges"];

/// Where the tables are in bench/README.md.
const BEGIN: &str = "<!-- ./heddle bench --summary -->\n";
const END: &str = "<!-- end -->\n";

/// The table, from what is kept.
///
/// # Errors
/// If results can't be read.
pub fn render() -> Result<String> {
    let mut text = String::from(
        "| `./heddle bench` | | unit | Heddle | Linux | Linux / Heddle | goal |\n|---|---|---|---:|---:|---:|---|\n",
    );
    let mut sources = String::new();
    for experiment in ALL {
        let rows: Vec<_> = ROWS.iter().filter(|row| row.0 == experiment.name).collect();
        if rows.is_empty() {
            continue;
        }
        if let Some(record) = kept(experiment.name)? {
            sources += &source(&record);
            text.extend(rows.iter().filter_map(|row| line(&record, row)));
        }
    }
    text += "\n| `./heddle bench` | coroutines beside threads, the crates beside their rivals | CPUs or threads \
             | times as good | goal |\n|---|---|---:|---:|---|\n";
    for name in BY_GOALS {
        if let Some(record) = kept(name)? {
            if !ROWS.iter().any(|row| row.0 == name) {
                sources += &source(&record);
            }
            text += &goals(&record);
        }
    }
    Ok(format!("{text}\n{sources}"))
}

/// The subject of a goal, without the one of several figures for which it is judged.
fn subject(goal: &GoalVerdict) -> &str {
    goal.figure.rsplit(": ").next().unwrap_or_default()
}

/// A line for each subject that has a goal; of one that has it for several figures and places, the least that was got.
fn goals(record: &Record) -> String {
    let mut text = String::new();
    for goal in &record.goals {
        let is_same = |other: &&GoalVerdict| {
            (subject(other), other.processors, &other.wanted)
                == (subject(goal), goal.processors, &goal.wanted)
        };
        let all: Vec<&GoalVerdict> = record.goals.iter().filter(is_same).collect();
        if all.first().is_none_or(|first| !core::ptr::eq(*first, goal)) {
            continue;
        }
        let least = all.iter().filter_map(|goal| goal.got).reduce(f64::min);
        let met = if all.iter().all(|goal| goal.met) { "met" } else { "missed" };
        let axis = record.axis.as_deref().unwrap_or_default();
        let places = all.iter().filter_map(|goal| goal.x);
        let places = match (places.clone().reduce(f64::min), places.reduce(f64::max)) {
            (Some(low), Some(high)) if low < high => format!(", {axis} {low} to {high}, at least"),
            _ => String::new(),
        };
        text += &format!(
            "| `{}` | {}{places} | {} | {} | {met} ({}) |\n",
            record.experiment,
            subject(goal),
            goal.processors,
            least.map_or_else(|| "-".to_owned(), number),
            goal.wanted,
        );
    }
    text
}

/// A line that says when and with what a record was made.
fn source(record: &Record) -> String {
    let environment = &record.environment;
    let versions = &environment.versions;
    let first = |text: &str| text.split(" (").next().unwrap_or_default().to_owned();
    format!(
        "- `{}`: {}, commit {}, {}, {}, {}, load {}\n",
        record.command,
        environment.date,
        environment.commit,
        first(&versions.rustc),
        first(&versions.qemu),
        environment.linux,
        environment.load,
    )
}

fn line(record: &Record, row: &Row) -> Option<String> {
    let Row(experiment, name, x, scale, processors, label) = row;
    let of = |side: &str| {
        record.figures.iter().find(|figure: &&Figure| {
            figure.side == side
                && figure.name == *name
                && figure.x == x.map(f64::from)
                && figure.scale == *scale
                && figure.processors == *processors
        })
    };
    let ours = of(OURS)?;
    let cell = |figure: Option<&Figure>| {
        figure.and_then(|figure| figure.median).map_or_else(|| "-".to_owned(), number)
    };
    let ratio = ours.ratio.map_or_else(String::new, number);
    let is_meant = |goal: &&super::goal::GoalVerdict| {
        goal.figure == *name && goal.x == ours.x && goal.scale == *scale && goal.processors == *processors
    };
    let goal = record.goals.iter().find(is_meant).map_or_else(String::new, |goal| {
        format!("{} ({})", if goal.met { "met" } else { "missed" }, goal.wanted)
    });
    let unit = if *scale == Emulated { "ns, emulated" } else { ours.unit.as_str() };
    let reference = cell(of(&record.reference));
    Some(format!(
        "| `{experiment}` | {label} | {unit} | {} | {reference} | {ratio} | {goal} |\n",
        cell(Some(ours))
    ))
}

/// Puts the table into a document, between its marks.
///
/// # Errors
/// If the document can't be read or written, or has no marks.
pub fn write(document: &Path) -> Result<()> {
    let place = || document.display().to_string();
    let text = std::fs::read_to_string(document).with_context(place)?;
    let new = replaced(&text, &render()?).with_context(|| format!("{}: no marks for the table", place()))?;
    std::fs::write(document, new).with_context(place)
}

fn replaced(text: &str, table: &str) -> Option<String> {
    let begin = text.find(BEGIN)? + BEGIN.len();
    let end = begin + text[begin..].find(END)?;
    Some(format!("{}\n{table}\n{}", &text[..begin], &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readme_shows_what_was_measured() {
        let path = crate::paths::repository().unwrap().join("bench/README.md");
        let text = std::fs::read_to_string(path).unwrap();
        let new = replaced(&text, &render().unwrap()).unwrap();
        assert!(
            text == new,
            "run `./heddle bench --summary --update`, and look at what bench/README.md says around it"
        );
    }
}
