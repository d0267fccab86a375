//! Failures on order: each call of a list is made again and again, and its first, second, … step that can fail for want
//! of memory, of a page or of a descriptor fails, until it runs through. The facility is the checking kernel's
//! `/proc/heddle/inject`.
//!
//! A call that fails must have done nothing: made again at once, it succeeds. A descriptor or mapping must not be left,
//! and once the process is gone all memory is back.
#![allow(unsafe_code, reason = "system calls as they are")]

mod asynchronous;
mod files;
mod ipc;
mod memory;
mod processes;
mod signals;
mod sockets;

use std::ffi::CString;
use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::Duration;

use crate::arguments::Plan;

/// Makes a system call.
macro_rules! sys {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        // SAFETY: the arguments are numbers, or point to memory of this function that outlives the call.
        let result = unsafe { libc::syscall(libc::$number $(, $argument)*) };
        i64::from(result)
    }};
}
pub(crate) use sys;

const INJECT: &str = "/proc/heddle/inject";
/// No call has as many steps.
const STEPS_MAX: u64 = 5000;
/// The number of runs after which memory that is lost in each of them counts as a leak.
const RUNS: u32 = 5;
/// The errors that a call may report for a step that failed.
const ERRORS: [i32; 8] = [
    libc::ENOMEM,
    libc::EFAULT,
    libc::EMFILE,
    libc::ENFILE,
    libc::EAGAIN,
    libc::ENOSPC,
    libc::ENOBUFS,
    libc::ENOLCK,
];

/// One of the calls, with what it needs before and after.
pub struct Case {
    name: &'static str,
    run: fn(&mut Shot) -> Result<(), String>,
}

/// A list of cases.
macro_rules! cases {
    ($($name:ident)*) => {
        /// The calls of this family.
        pub const CASES: &[$crate::inject::Case] =
            &[$($crate::inject::Case { name: stringify!($name), run: $name }),*];
    };
}
pub(crate) use cases;

/// Makes calls of which one step fails.
pub struct Shot {
    /// Where failures are ordered; `None` if they come by themselves.
    file: Option<fs::File>,
    number: u64,
    /// The step that failed in the last call.
    failed: String,
    /// Whether something failed in any call of the case.
    hit: bool,
    answer: Option<i32>,
}

impl Shot {
    fn new() -> Result<Self, String> {
        let file = fs::File::options().read(true).write(true).open(INJECT);
        let file = file.map_err(|error| format!("{INJECT}: {error}: this is not the checking kernel"))?;
        Ok(Self { file: Some(file), number: 0, failed: String::new(), hit: false, answer: None })
    }

    /// Makes the call, which is one system call, with the failure; and if it fails, again without. Returns what it
    /// returned in the end, which is success.
    pub fn fire(&mut self, call: impl Fn() -> i64) -> Result<i64, String> {
        let Some(file) = &self.file else { return must("the call", call()) };
        let number = self.number.to_string();
        let descriptor = file.as_raw_fd();
        let written = sys!(SYS_write, descriptor, number.as_ptr(), number.len());
        if written < 0 {
            return Err(String::from("the failure cannot be ordered"));
        }
        let result = call();
        let error = errno();
        self.read_failed()?;
        self.answer = (result < 0).then_some(error);
        if result >= 0 {
            return Ok(result);
        }
        if self.failed == "none" {
            return Err(format!("fails with error {error} on its own"));
        }
        if !ERRORS.contains(&error) {
            return Err(format!("error {error} for want of {}", self.failed));
        }
        let result = call();
        if result < 0 {
            let next = errno();
            return Err(format!(
                "after error {error} for want of {}, error {next} without want",
                self.failed
            ));
        }
        Ok(result)
    }

    /// Learns what failed in the last call.
    pub fn read_failed(&mut self) -> Result<(), String> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut text = [0u8; 32];
        let count = sys!(SYS_pread64, file.as_raw_fd(), text.as_mut_ptr(), text.len(), 0);
        let count = usize::try_from(count).map_err(|_| String::from("what failed cannot be read"))?;
        self.failed = String::from_utf8_lossy(&text[..count]).trim().to_owned();
        self.hit |= self.failed != "none";
        Ok(())
    }
}

/// The error of the last call.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A call that prepares or cleans up; it must succeed.
pub fn must(what: &str, result: i64) -> Result<i64, String> {
    if result < 0 { Err(format!("{what}: error {}", errno())) } else { Ok(result) }
}

/// A path for a call.
pub fn path(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// Closes a descriptor.
pub fn close(descriptor: i64) -> Result<(), String> {
    must("close", sys!(SYS_close, descriptor)).map(|_| ())
}

/// Open descriptors and mappings of this process.
fn possessions() -> (usize, usize) {
    let descriptors = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let mappings = fs::read_to_string("/proc/self/maps").map_or(0, |text| text.lines().count());
    (descriptors, mappings)
}

/// Makes the call with every failure that it can have; returns how many.
fn run_case(case: &Case) -> Result<u64, String> {
    let mut shot = Shot::new()?;
    // Without a failure first: what is made once and kept is made.
    (case.run)(&mut shot).map_err(|reason| format!("without a failure: {reason}"))?;
    let before = possessions();
    for number in 1..STEPS_MAX {
        (shot.number, shot.hit) = (number, false);
        (case.run)(&mut shot).map_err(|reason| format!("step {number}: {reason}"))?;
        let after = possessions();
        if before != after {
            return Err(format!(
                "step {number}, {}: {before:?} descriptors and mappings before, {after:?} after, answer {:?}",
                shot.failed, shot.answer
            ));
        }
        if !shot.hit {
            return Ok(number - 1);
        }
    }
    Err(String::from("there are always more steps"))
}

/// Runs `run_case` in a process of its own.
fn run_in_child(case: &Case) -> Result<u64, String> {
    let mut ends = [0; 2];
    must("pipe", sys!(SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC))?;
    // SAFETY: this program has one thread, so the child may do anything.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let _ = sys!(SYS_close, ends[0]);
        let text = match run_case(case) {
            Ok(count) => format!("{count}"),
            Err(reason) => format!("!{reason}"),
        };
        let _ = sys!(SYS_write, ends[1], text.as_ptr(), text.len());
        // SAFETY: it does not return, and nothing has to be put away.
        unsafe { libc::_exit(0) };
    }
    let _ = sys!(SYS_close, ends[1]);
    // SAFETY: the descriptor is this function's own.
    let mut reader = unsafe { fs::File::from_raw_fd(ends[0]) };
    let mut text = String::new();
    reader.read_to_string(&mut text).map_err(|error| error.to_string())?;
    let mut status = 0;
    must("wait4", sys!(SYS_wait4, child, &raw mut status, 0, 0))?;
    match text.strip_prefix('!') {
        Some(reason) => Err(reason.to_owned()),
        None => text.parse().map_err(|_| format!("ended with status {status:#x}: {text}")),
    }
}

/// Free frames and those of the heap, and the heap's bytes.
fn memory() -> Option<(u64, u64)> {
    fs::write("/proc/heddle/drain", "1").ok()?;
    let text = fs::read_to_string("/proc/heddle/memory").ok()?;
    let number =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse::<u64>().ok();
    Some((number("free_frames ")? + number("heap_frames ")?, number("heap_bytes ")?))
}

/// Runs a case until it leaves as much memory as there was.
fn weigh(case: &Case) -> Result<u64, String> {
    let mut difference = None;
    for _ in 0..RUNS {
        let before = memory().ok_or("no figures of memory")?;
        let count = run_in_child(case)?;
        let mut after = before;
        for _ in 0..50 {
            after = memory().ok_or("no figures of memory")?;
            if after.0 == before.0 && after.1 <= before.1 {
                return Ok(count);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        difference = Some((before, after));
    }
    Err(format!("leaks: {difference:?} (frames, heap bytes) before and after"))
}

const FAMILIES: [&[Case]; 7] = [
    files::CASES,
    memory::CASES,
    sockets::CASES,
    processes::CASES,
    signals::CASES,
    ipc::CASES,
    asynchronous::CASES,
];

/// Makes each call once, from one in the middle on; what comes of it is not looked at.
pub fn run_each(first: usize) {
    let cases: Vec<&Case> = FAMILIES.into_iter().flatten().collect();
    for index in 0..cases.len() {
        let mut shot = Shot { file: None, number: 0, failed: String::new(), hit: false, answer: None };
        let _ = (cases[(first.wrapping_add(index)) % cases.len()].run)(&mut shot);
    }
}

/// Removes what cases that were interrupted have left in the machine: files, mounts and System V's objects.
pub fn clean_up() {
    let _ = sys!(SYS_umount2, path("/tmp/mounted").as_ptr(), libc::MNT_DETACH);
    for entry in fs::read_dir("/tmp").into_iter().flatten().flatten() {
        let _ = fs::remove_file(entry.path()).or_else(|_| fs::remove_dir_all(entry.path()));
    }
    ipc::remove_all();
}

/// Runs every case from number `seed` on.
pub fn run(plan: &Plan) -> Result<(), String> {
    let (mut calls, mut steps, mut wrong) = (0, 0, 0);
    for (number, case) in (1..).zip(FAMILIES.into_iter().flatten()).filter(|(number, _)| *number >= plan.seed)
    {
        match weigh(case) {
            Ok(count) => {
                println!("{number} {}: {count} failures", case.name);
                calls += 1;
                steps += count;
            }
            Err(reason) => {
                println!("{number} {}: wrong: {reason}", case.name);
                wrong += 1;
            }
        }
    }
    println!("{calls} calls, {steps} failures");
    if wrong == 0 { Ok(()) } else { Err(format!("{wrong} calls")) }
}
