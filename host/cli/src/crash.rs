//! Explains a machine that ended without its program having ended: a kernel panic with its backtrace in terms of
//! source lines, a kernel that fell silent, or an emulator that failed.

use std::path::Path;
use std::process::ExitStatus;

use heddle_abi::boot::{DEBUG_EXIT_PANIC, PANIC_PREFIX, qemu_status};

/// Lines of the log that are shown when there is nothing better.
const TAIL_LINES: usize = 12;
/// QEMU's status when it could not start the machine.
const QEMU_FAILED: i32 = 1;

/// The kind of failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Lines for the user.
    pub lines: Vec<String>,
    /// Whether the guest failed; the emulator otherwise.
    pub is_guest: bool,
}

/// A panic as the kernel's log has it.
#[derive(Debug, Default, PartialEq, Eq)]
struct PanicReport {
    message: Vec<String>,
    frames: Vec<u64>,
}

impl PanicReport {
    fn parse(log: &str) -> Option<Self> {
        let mut report = Self::default();
        let mut found = false;
        for line in log.lines().filter_map(|line| line.strip_prefix(PANIC_PREFIX)) {
            found = true;
            match line.split_once(' ').unwrap_or((line, "")) {
                ("message", text) => report.message.push(text.to_owned()),
                ("frame", text) => {
                    let digits = text.trim().trim_start_matches("0x");
                    report.frames.extend(u64::from_str_radix(digits, 16).ok());
                }
                ("end", _) => break,
                _ => {}
            }
        }
        found.then_some(report)
    }
}

/// Explains the end of a machine from QEMU's status and messages and the kernel's log.
#[must_use]
pub fn explain(status: ExitStatus, errors: &str, log: &str, symbols: Option<&Path>) -> Crash {
    if let Some(report) = PanicReport::parse(log) {
        return Crash { lines: describe(&report, symbols), is_guest: true };
    }
    let mut lines = Vec::new();
    let is_guest = status.code() != Some(QEMU_FAILED);
    if !is_guest {
        lines.push(String::from("the emulator could not start the machine"));
    } else if status.code() == Some(qemu_status(DEBUG_EXIT_PANIC)) {
        lines.push(String::from("the kernel panicked"));
    } else {
        lines.push(format!("the machine ended without a word from its kernel ({status})"));
    }
    lines.extend(errors.lines().map(str::to_owned));
    lines.extend(tail(log));
    Crash { lines, is_guest }
}

/// Explains a machine that runs but never started its program.
#[must_use]
pub fn stuck(log: &str) -> Crash {
    let mut lines = vec![String::from("the kernel did not start the program in time")];
    lines.extend(tail(log));
    Crash { lines, is_guest: true }
}

fn tail(log: &str) -> Vec<String> {
    let lines: Vec<_> = log.lines().map(|line| line.trim_end().to_owned()).collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].to_vec()
}

fn describe(report: &PanicReport, symbols: Option<&Path>) -> Vec<String> {
    let mut message = report.message.iter();
    let mut lines = vec![format!("kernel panic: {}", message.next().map_or("", String::as_str))];
    lines.extend(message.cloned());
    let loader = symbols.and_then(|path| addr2line::Loader::new(path).ok());
    for (number, &address) in report.frames.iter().enumerate() {
        // The return address may belong to the next line, or function; the call is just before it.
        let call = address.saturating_sub(1);
        let names = loader.as_ref().map(|loader| name(loader, call)).unwrap_or_default();
        if names.is_empty() {
            lines.push(format!("{number:>4}: {address:#x}"));
        }
        for (inlined, name) in names.into_iter().enumerate() {
            let label = if inlined == 0 { format!("{number:>4}:") } else { String::from("     ") };
            lines.push(format!("{label} {name}"));
        }
    }
    lines
}

/// The functions at an address, innermost inlined one first, with their source lines.
fn name(loader: &addr2line::Loader, address: u64) -> Vec<String> {
    let mut names = Vec::new();
    if let Ok(mut frames) = loader.find_frames(address) {
        while let Ok(Some(frame)) = frames.next() {
            let function = frame
                .function
                .as_ref()
                .and_then(|function| function.demangle().ok().map(std::borrow::Cow::into_owned));
            let place = frame.location.as_ref().and_then(|location| {
                Some(format!(" at {}:{}", location.file?, location.line.unwrap_or_default()))
            });
            if let Some(function) = function {
                names.push(function + &place.unwrap_or_default());
            }
        }
    }
    if names.is_empty()
        && let Some(symbol) = loader.find_symbol(address)
    {
        names.push(addr2line::demangle_auto(symbol.into(), None).into_owned());
    }
    names
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn ended(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn a_panic_report_is_found_in_the_log() {
        let log = "boot\nheddle-panic: message no frames left\nheddle-panic: message second line\n\
                   noise\nheddle-panic: frame 0xffffffff80001234\nheddle-panic: end\nheddle-panic: frame 1\n";
        let crash = explain(ended(qemu_status(DEBUG_EXIT_PANIC)), "", log, None);
        assert!(crash.is_guest);
        assert_eq!(crash.lines, ["kernel panic: no frames left", "second line", "   0: 0xffffffff80001234"]);
    }

    #[inline(never)]
    fn landmark() -> u64 {
        // This test's own executable stands for the kernel; its addresses are those of the file.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let executable = std::env::current_exe().unwrap();
        let first = maps.lines().find(|line| line.ends_with(executable.to_str().unwrap())).unwrap();
        let base = u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
        landmark as fn() -> u64 as usize as u64 - base
    }

    #[test]
    fn frames_are_named_by_the_kernels_debug_information() {
        let executable = std::env::current_exe().unwrap();
        let report = PanicReport { message: vec![String::from("why")], frames: vec![landmark() + 1, 16] };
        let lines = describe(&report, Some(&executable));
        assert_eq!(lines[0], "kernel panic: why");
        // The compiler may have put a function of the library there.
        let has_name = ["landmark", "read_to_string"].iter().any(|name| lines[1].contains(name));
        assert!(has_name && lines[1].contains("crash.rs:"), "{}", lines[1]);
        let without = describe(&report, None);
        assert!(without[2].ends_with(": 0x10"), "{}", without[2]);
    }

    #[test]
    fn silence_and_the_emulators_failure_differ() {
        let silent = explain(ended(0), "", "last\nwords\n", None);
        assert!(silent.is_guest && silent.lines.last().is_some_and(|line| line == "words"));
        let failed = explain(ended(1), "qemu: no such kernel\n", "", None);
        assert!(!failed.is_guest && failed.lines.iter().any(|line| line.contains("no such kernel")));
    }
}
