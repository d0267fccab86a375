//! A Rust program with threads: it counts the words of a text that it makes up, in several ways that must agree, and
//! has other processes count too. It uses std alone, and what it prints depends neither on time nor on the number of
//! processors.
//!
//! `heddle-threads-program` does all of it; `heddle-threads-program count` counts the words of its standard input.

mod channels;
mod children;
mod local;
mod panics;
mod scoped;
mod shared;
mod text;

use std::process::ExitCode;

/// A part: its name, and the function that runs it and returns the text to print.
type Part = (&'static str, fn() -> Result<String, String>);

const PARTS: [Part; 12] = [
    ("workers behind a channel", channels::workers),
    ("a bounded channel and its deadline", channels::bounded),
    ("a queue of mutex and condition variable", shared::queue),
    ("readers and writers", shared::readers_and_writers),
    ("rounds behind a barrier", shared::rounds),
    ("what is made once", shared::once),
    ("merge sort in scoped threads", scoped::sort),
    ("a relay of parked threads", scoped::relay),
    ("thread-local values and their ends", local::values),
    ("panics and poison", panics::caught),
    ("threads with names and stacks", local::named),
    ("children that count", children::count),
];

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("count") {
        return children::count_input();
    }
    let mut status = ExitCode::SUCCESS;
    for (name, part) in PARTS {
        match part() {
            Ok(result) => println!("{name}: {result}"),
            Err(reason) => {
                println!("{name}: FAILED: {reason}");
                status = ExitCode::FAILURE;
            }
        }
    }
    status
}

/// Fails with both values if they differ.
fn agree<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found:?}, expected {expected:?}")) }
}
