//! Runs tests in child processes and prints their result lines.

use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, alarm, fork, pipe, write};

/// The result of a test: nothing, or why it failed.
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
        if !bool::from($condition) {
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
/// The exit statuses of tests that failed, or ended at once, with a reason on the pipe.
const FAILED: i32 = 1;
const SKIPPED: i32 = 2;

/// Why the running test shows nothing here, if it has said so.
static SKIP: OnceLock<&str> = OnceLock::new();

/// Says that the running test shows nothing on this kernel; it ends then. In Heddle that is a failure.
pub fn skip(reason: &'static str) {
    let _ = SKIP.set(reason);
}

/// The state of a test that has not failed.
enum Done {
    Passed,
    Skipped(String),
}

/// A test that takes memory on each of so many runs leaks. Where a test's threads run decides which tables grow, so
/// that on several processors what is made once is made over several runs.
const RUNS: u32 = 16;

/// Runs the tests one after another; fails if one of them did.
pub fn run<'a>(tests: impl Iterator<Item = &'a Test>) -> ExitCode {
    let mut failures = 0;
    for test in tests {
        match run_and_weigh(test) {
            Ok(Done::Passed) => println!("ok {}", test.name()),
            Ok(Done::Skipped(reason)) => println!("skip {}: {reason}", test.name()),
            Err(reason) => {
                failures += 1;
                println!("not ok {}: {}", test.name(), reason.replace('\n', " | "));
            }
        }
    }
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a test and, in Heddle, compares memory before and after: the frames outside the kernel's heap must be exactly
/// as many, and its heap must not be larger. A lasting change (a page of a file, a larger table) is made
/// once, so after a difference the test runs again: what leaks, leaks each time.
fn run_and_weigh(test: &Test) -> Result<Done, String> {
    let mut difference = None;
    for _ in 0..RUNS {
        let before = memory();
        match run_in_child(test)? {
            Done::Skipped(reason) if is_heddle() => return Err(format!("skipped in Heddle: {reason}")),
            Done::Skipped(reason) => return Ok(Done::Skipped(reason)),
            Done::Passed => {}
        }
        let Some(before) = before else { return Ok(Done::Passed) };
        let after = settled_memory(&before);
        if after.is_no_more_than(&before) {
            return Ok(Done::Passed);
        }
        difference = Some((before, after));
    }
    difference
        .map_or(Ok(Done::Passed), |(before, after)| Err(format!("leaks: {before:?} before, {after:?} after")))
}

/// Memory in Heddle, caches drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    /// Free frames and those of the kernel's heap: everything but what programs, page tables and files hold.
    free_frames: u64,
    /// Bytes of the kernel's objects.
    heap_bytes: u64,
}

impl Memory {
    fn is_no_more_than(&self, before: &Self) -> bool {
        self.free_frames == before.free_frames && self.heap_bytes <= before.heap_bytes
    }
}

/// Makes every processor give back what it keeps: some of it only the processor itself can.
fn drain() -> Option<()> {
    let everywhere = sched_getaffinity(Pid::from_raw(0)).ok()?;
    for number in (0..CpuSet::count()).filter(|&number| everywhere.is_set(number).unwrap_or(false)) {
        let mut one = CpuSet::new();
        one.set(number).ok()?;
        // One that the machine does not have is none of the set of processors, but keeps nothing either.
        if sched_setaffinity(Pid::from_raw(0), &one).is_ok() {
            fs::write("/proc/heddle/drain", "1").ok()?;
        }
    }
    sched_setaffinity(Pid::from_raw(0), &everywhere).ok()
}

/// Whether the kernel is Heddle: what only it has must then be there.
pub fn is_heddle() -> bool {
    std::path::Path::new("/proc/heddle").exists()
}

/// Whether programs run at the kernel's privilege level, so that nothing keeps them from its memory and instructions.
pub fn is_direct() -> bool {
    fs::read_to_string("/proc/heddle/isolation").is_ok_and(|text| text.starts_with("direct"))
}

/// `None` on Linux, which has no such count.
fn memory() -> Option<Memory> {
    is_heddle().then(drain)??;
    let text = fs::read_to_string("/proc/heddle/memory").ok()?;
    let value = |name: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    };
    let free_frames = value("free_frames ")? + value("heap_frames ")?;
    Some(Memory { free_frames, heap_bytes: value("heap_bytes ")? })
}

/// Memory once it is as `before`, or what it is after a while: a process that has been waited for may still be giving
/// back what it held.
fn settled_memory(before: &Memory) -> Memory {
    let mut last = *before;
    for _ in 0..50 {
        last = memory().unwrap_or(last);
        if last.is_no_more_than(before) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    last
}

#[allow(unsafe_code, reason = "fork has no safe form")]
fn run_in_child(test: &Test) -> Result<Done, String> {
    nix::sys::prctl::set_child_subreaper(true).or_fail()?;
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
            let status = waitpid(child, None).or_fail()?;
            // Processes that it has left running hold the pipe open, among other things.
            end_descendants();
            let mut reason = String::new();
            fs::File::from(reader).read_to_string(&mut reason).or_fail()?;
            match status {
                WaitStatus::Exited(_, 0) => Ok(Done::Passed),
                WaitStatus::Exited(_, SKIPPED) if !reason.is_empty() => Ok(Done::Skipped(reason)),
                WaitStatus::Exited(_, FAILED) if !reason.is_empty() => Err(reason),
                WaitStatus::Signaled(_, Signal::SIGALRM, _) => Err(format!("hung for {LIMIT_SECONDS} s")),
                status => Err(format!("ended with {status:?} {reason}")),
            }
        }
    }
}

/// Ends the processes that a test has left, which became this one's children when their parents ended.
fn end_descendants() {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => {
                for child in children() {
                    let _ = kill(child, Signal::SIGKILL);
                }
                let _ = waitpid(None, None);
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

/// The children of this process, by `/proc`.
fn children() -> Vec<Pid> {
    let own = std::process::id();
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |number: &i32| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        // The name is in parentheses and may have any characters.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()) == Some(own)
    };
    numbers.filter(is_child).map(Pid::from_raw).collect()
}

/// Whether a test that fails while a child of its own runs is reported, and that child ended.
///
/// # Errors
/// The failure.
pub fn check_that_nobody_is_left() -> Outcome {
    let body = || {
        spawn_child(|| {
            let _ = nix::unistd::setsid();
            loop {
                nix::unistd::pause();
            }
        })?;
        Err("on purpose".to_owned())
    };
    let failed = run_in_child(&Test { path: "a test", body }).err();
    expect_eq!(failed.as_deref(), Some("on purpose"));
    expect_eq!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Err(Errno::ECHILD));
    Ok(())
}

#[allow(unsafe_code, reason = "resetting a disposition has no safe form")]
fn child(test: &Test, writer: &OwnedFd) -> i32 {
    // SAFETY: the default disposition runs no code of ours.
    let _ = unsafe { signal(Signal::SIGALRM, SigHandler::SigDfl) };
    alarm::set(LIMIT_SECONDS);
    match std::panic::catch_unwind(test.body) {
        Ok(Ok(())) => match SKIP.get() {
            None => 0,
            Some(reason) => {
                let _ = write(writer, reason.as_bytes());
                SKIPPED
            }
        },
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
