//! Processes that threads start at the same time.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use crate::agree;
use crate::text::{self, Counts, PAGES};

const CHILDREN: u64 = 6;
/// With what a child ends that did all.
const STATUS: u8 = 7;

/// Counts the words of standard input.
pub fn count_input() -> ExitCode {
    let mut text = String::new();
    if std::io::stdin().read_to_string(&mut text).is_err() {
        return ExitCode::FAILURE;
    }
    let mut lines = String::new();
    for (word, count) in text::count(&text) {
        lines.push_str(&format!("{word} {count}\n"));
    }
    match std::io::stdout().write_all(lines.as_bytes()) {
        Ok(()) => ExitCode::from(STATUS),
        Err(_) => ExitCode::FAILURE,
    }
}

fn by_child(first: u64) -> Result<Counts, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .arg("count")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut input = child.stdin.take().ok_or("no pipe")?;
    let writer = thread::spawn(move || {
        (first..PAGES)
            .step_by(CHILDREN as usize)
            .try_for_each(|number| input.write_all(text::page(number).as_bytes()))
    });
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    writer.join().map_err(|_| "the writer panicked")?.map_err(|error| error.to_string())?;
    agree(output.status.code(), Some(STATUS.into()))?;
    let mut counts = Counts::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let (word, count) = line.split_once(' ').ok_or("a line without a count")?;
        counts.insert(word.to_owned(), count.parse().map_err(|_| "no number")?);
    }
    Ok(counts)
}

pub fn count() -> Result<String, String> {
    let threads: Vec<_> = (0..CHILDREN).map(|first| thread::spawn(move || by_child(first))).collect();
    let mut all = Counts::new();
    for thread in threads {
        text::merge(&mut all, thread.join().map_err(|_| "a thread panicked")??);
    }
    agree(&all, text::expected())?;
    // One that would never end is killed by another thread than the one that waits.
    let mut child =
        Command::new("/bin/cat").stdin(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let input = child.stdin.take();
    let status = thread::spawn(move || child.kill().and_then(|()| child.wait())).join();
    drop(input);
    let status = status.map_err(|_| "a thread panicked")?.map_err(|error| error.to_string())?;
    agree(status.signal(), Some(9))?;
    Ok(format!("{}; killed by {}", text::describe(&all), status.signal().unwrap_or(0)))
}
