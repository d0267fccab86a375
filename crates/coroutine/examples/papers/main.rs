//! The experiments of papers 1 and 2, on Linux: coroutines against operating-system threads.
//!
//! A: N numbered ones share a variable; each waits until it equals its number, then adds 1. A coroutine gives way to
//! the others until it is its turn, a thread calls `sched_yield`. Created in order, one pass is enough under a FIFO
//! scheduler, so a shuffled order is run beside it.
//! B: N+1 pipes in a chain; number i reads pipe i, then writes what it read into pipe i+1 and closes its end. The
//! first has the highest priority. Coroutines wait for readiness, threads block.
//!
//! Each point runs both sides in turn, `--rounds` times (5), and prints the medians in microseconds and their
//! ratio; creation and joining included. `--most N` ends at N, `--json FILE` writes every time.
//!
//!     cargo run --release -p heddle-coroutine --example papers -- --most 800
//!
//! In Heddle's repository `./heddle bench papers` runs it and draws the plot.

mod pipes;
mod shared;

use std::fmt::Write;
use std::time::Instant;

/// One line of a diagram.
struct Line {
    name: String,
    points: Vec<Point>,
}

/// The measurements at one N, in microseconds.
struct Point {
    number: usize,
    coroutines: Vec<f64>,
    threads: Vec<f64>,
}

const NUMBERS: [usize; 13] = [1, 2, 10, 50, 200, 400, 800, 1200, 1600, 2000, 2600, 3200, 4000];

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn microseconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_nanos() as f64 / 1000.0
}

fn line(name: &str, rounds: usize, most: usize, coroutines: impl Fn(usize), threads: impl Fn(usize)) -> Line {
    println!("{name}\n      N   coroutines      threads   threads/coroutines");
    let mut points = Vec::new();
    for number in NUMBERS.into_iter().filter(|number| *number <= most) {
        let mut point = Point { number, coroutines: Vec::new(), threads: Vec::new() };
        // An additional round warms both sides up, where it does not take long.
        let warming = usize::from(number <= 200);
        for round in 0..rounds + warming {
            let times = (microseconds(|| coroutines(number)), microseconds(|| threads(number)));
            if round >= warming {
                point.coroutines.push(times.0);
                point.threads.push(times.1);
            }
        }
        let (ours, theirs) = (median(&point.coroutines), median(&point.threads));
        println!("{number:7} {ours:12.1} {theirs:12.1} {:12.2}", theirs / ours);
        points.push(point);
    }
    Line { name: name.to_owned(), points }
}

/// `{"lines": [{"name": …, "points": [{"n": …, "coroutines": […], "threads": […]}]}]}`, in microseconds.
fn json(lines: &[Line]) -> String {
    let mut text = String::from("{\"lines\": [");
    for (number, line) in lines.iter().enumerate() {
        // Writing to a string cannot fail. Names hold nothing that would have to be escaped.
        let _ = write!(
            text,
            "{}{{\"name\": \"{}\", \"points\": [",
            if number == 0 { "" } else { ", " },
            line.name
        );
        for (number, point) in line.points.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            let Point { number, coroutines, threads } = point;
            let _ = write!(
                text,
                "{comma}{{\"n\": {number}, \"coroutines\": {coroutines:?}, \"threads\": {threads:?}}}"
            );
        }
        text += "]}";
    }
    text + "]}\n"
}

fn main() {
    let (mut rounds, mut most, mut file) = (5, 4000, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next();
        let number = value.as_ref().and_then(|value| value.parse().ok());
        match (argument.as_str(), number) {
            ("--rounds", Some(number)) if number > 0 => rounds = number,
            ("--most", Some(number)) => most = number,
            ("--json", _) if value.is_some() => file = value,
            _ => {
                eprintln!("usage: papers [--rounds N] [--most N] [--json FILE]");
                std::process::exit(2);
            }
        }
    }
    let mut lines = Vec::new();
    for shuffled in [false, true] {
        let name = format!("A, created {}", if shuffled { "shuffled" } else { "in order" });
        let coroutines = |number| shared::coroutines(&shared::order(number, shuffled));
        let threads = |number| shared::threads(&shared::order(number, shuffled));
        lines.push(line(&name, rounds, most, coroutines, threads));
    }
    for bytes in [1, 256, 4096] {
        let name = format!("B, {bytes} bytes");
        lines.push(line(
            &name,
            rounds,
            most,
            |number| pipes::coroutines(number, bytes),
            |number| {
                pipes::threads(number, bytes);
            },
        ));
    }
    if let Some(file) = file {
        std::fs::write(&file, json(&lines)).expect("the file can be written");
    }
}
