//! Runs tests in child processes and prints their result lines.

use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, alarm, fork, pipe, write};

/// What a test says: nothing, or why it failed.
pub type Outcome = Result<(), String>;

/// One test.
pub struct Test {
    /// `CRATE::FAMILY::WHAT_IT_SHOWS`.
    pub path: &'static str,
    /// Its body, run in a process of its own.
    pub body: fn() -> Outcome,
}

impl Test {
    /// `FAMILY::WHAT_IT_SHOWS`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.split_once("::").map_or(self.path, |(_, name)| name)
    }
}

/// Lists tests by the names of their functions.
#[macro_export]
macro_rules! tests {
    ($($name:ident)*) => {
        /// The tests of this family.
        pub const TESTS: &[$crate::harness::Test] =
            &[$($crate::harness::Test { path: concat!(module_path!(), "::", stringify!($name)), body: $name }),*];
    };
}

/// Fails the test unless both sides are equal, showing both.
#[macro_export]
macro_rules! expect_eq {
    ($left:expr, $right:expr) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            return Err(format!(
                "{}:{}: {} is {left:?}, expected {right:?}",
                file!(),
                line!(),
                stringify!($left)
            ));
        }
    }};
}

/// Fails the test unless the condition holds.
#[macro_export]
macro_rules! expect {
    ($condition:expr) => {
        if !$condition {
            return Err(format!("{}:{}: {} does not hold", file!(), line!(), stringify!($condition)));
        }
    };
}

/// Turns an error of any kind into a failure that names its place.
pub trait OrFail<T> {
    /// The value, or a failure with the caller's line.
    ///
    /// # Errors
    /// The error's text.
    fn or_fail(self) -> Result<T, String>;
}

impl<T, E: std::fmt::Display> OrFail<T> for Result<T, E> {
    #[track_caller]
    fn or_fail(self) -> Result<T, String> {
        let place = std::panic::Location::caller();
        self.map_err(|error| format!("{}:{}: {error}", place.file(), place.line()))
    }
}

/// A hung test is ended by SIGALRM after this long.
const LIMIT_SECONDS: u32 = 60;
/// The exit status of a test that failed with a reason on the pipe.
const FAILED: i32 = 1;

/// Runs the tests one after another; fails if one of them did.
pub fn run<'a>(tests: impl Iterator<Item = &'a Test>) -> ExitCode {
    let mut failures = 0;
    for test in tests {
        let frames_before = free_frames();
        let outcome = run_in_child(test);
        let outcome = outcome.and_then(|()| same_frames(frames_before, free_frames()));
        match outcome {
            Ok(()) => println!("ok {}", test.name()),
            Err(reason) => {
                failures += 1;
                println!("not ok {}: {}", test.name(), reason.replace('\n', " | "));
            }
        }
    }
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn same_frames(before: Option<u64>, after: Option<u64>) -> Outcome {
    if before == after { Ok(()) } else { Err(format!("free frames: {before:?} before, {after:?} after")) }
}

/// Free frames after Heddle's caches are drained; `None` on Linux, which has no such count.
fn free_frames() -> Option<u64> {
    fs::write("/proc/heddle/drain", "1").ok()?;
    let text = fs::read_to_string("/proc/heddle/memory").ok()?;
    text.lines().find_map(|line| line.strip_prefix("free_frames "))?.trim().parse().ok()
}

#[allow(unsafe_code, reason = "fork has no safe form")]
fn run_in_child(test: &Test) -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    // SAFETY: the harness has one thread, so the child may do anything that the parent could.
    match unsafe { fork() }.or_fail()? {
        ForkResult::Child => {
            drop(reader);
            let status = child(test, &writer);
            std::process::exit(status)
        }
        ForkResult::Parent { child } => {
            drop(writer);
            let mut reason = String::new();
            fs::File::from(reader).read_to_string(&mut reason).or_fail()?;
            match waitpid(child, None).or_fail()? {
                WaitStatus::Exited(_, 0) => Ok(()),
                WaitStatus::Exited(_, FAILED) if !reason.is_empty() => Err(reason),
                WaitStatus::Signaled(_, Signal::SIGALRM, _) => Err(format!("hung for {LIMIT_SECONDS} s")),
                status => Err(format!("ended with {status:?} {reason}")),
            }
        }
    }
}

#[allow(unsafe_code, reason = "resetting a disposition has no safe form")]
fn child(test: &Test, writer: &OwnedFd) -> i32 {
    // SAFETY: the default disposition runs no code of ours.
    let _ = unsafe { signal(Signal::SIGALRM, SigHandler::SigDfl) };
    alarm::set(LIMIT_SECONDS);
    match std::panic::catch_unwind(test.body) {
        Ok(Ok(())) => 0,
        Ok(Err(reason)) => {
            let _ = write(writer, reason.as_bytes());
            FAILED
        }
        Err(_) => {
            let _ = write(writer, format!("panicked (descriptor {})", writer.as_raw_fd()).as_bytes());
            FAILED
        }
    }
}

/// Runs `body` in a child process and returns how it ended. The child exits with what `body` returns.
///
/// # Errors
/// When there can be no child.
#[allow(unsafe_code, reason = "fork has no safe form")]
pub fn in_child(body: impl FnOnce() -> i32) -> Result<WaitStatus, String> {
    waitpid(spawn_child(body)?, None).or_fail()
}

/// Starts `body` in a child process.
///
/// # Errors
/// When there can be no child.
#[allow(unsafe_code, reason = "fork has no safe form")]
pub fn spawn_child(body: impl FnOnce() -> i32) -> Result<nix::unistd::Pid, String> {
    // SAFETY: tests fork only while they have one thread, so the child may do anything that the parent could.
    match unsafe { fork() }.or_fail()? {
        ForkResult::Child => {
            let status = body();
            // SAFETY: `_exit` has no preconditions; exit handlers belong to the parent.
            unsafe { libc::_exit(status) }
        }
        ForkResult::Parent { child } => Ok(child),
    }
}

/// The path of this program, for tests that exec it in a role.
#[must_use]
pub fn own_path() -> std::path::PathBuf {
    fs::read_link("/proc/self/exe").unwrap_or_else(|_| "/proc/self/exe".into())
}

/// A fresh directory below /tmp, removed with all it holds when dropped.
pub struct Scratch(pub std::path::PathBuf);

impl Scratch {
    /// A directory named after the test and this process.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(name: &str) -> Result<Self, String> {
        let path = std::path::PathBuf::from(format!("/tmp/heddle-test-{name}-{}", std::process::id()));
        fs::create_dir(&path).or_fail()?;
        Ok(Self(path))
    }

    /// A path in it.
    #[must_use]
    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
