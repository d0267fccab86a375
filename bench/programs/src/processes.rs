//! Making and ending threads and processes: `processes n=ITERATIONS [only=NAME]`.
#![allow(unsafe_code, reason = "fork has no safe form")]

use std::process::Command;

use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};

use crate::arguments::Arguments;
use crate::measure::repeat;

type Step = fn() -> Result<(), std::io::Error>;

/// Runs every way, or the one named `only`.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let iterations = arguments.number("n", 500)?;
    let only = arguments.text("only", "");
    let benches: [(&str, Step); 4] = [
        ("thread-create-join", thread),
        ("fork-exit", fork_exit),
        ("fork-exec", fork_exec),
        ("posix-spawn", spawn),
    ];
    for (name, step) in benches.iter().filter(|(name, _)| only.is_empty() || only == *name) {
        repeat(name, iterations, step)?;
    }
    Ok(())
}

fn thread() -> Result<(), std::io::Error> {
    std::thread::Builder::new().spawn(|| {})?.join().map_err(|_| std::io::Error::other("the thread panicked"))
}

fn fork_exit() -> Result<(), std::io::Error> {
    // SAFETY: there is one thread.
    match unsafe { fork() }? {
        // SAFETY: `_exit` has no preconditions.
        ForkResult::Child => unsafe { libc::_exit(0) },
        ForkResult::Parent { child } => waitpid(child, None).map(drop).map_err(Into::into),
    }
}

fn fork_exec() -> Result<(), std::io::Error> {
    let program = c"/proc/self/exe";
    let arguments = [c"heddle-bench-programs", c"exit"];
    // SAFETY: there is one thread.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let _ = nix::unistd::execv(program, &arguments);
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(127) }
        }
        ForkResult::Parent { child } => waitpid(child, None).map(drop).map_err(Into::into),
    }
}

fn spawn() -> Result<(), std::io::Error> {
    let status = Command::new("/proc/self/exe").arg("exit").status()?;
    if status.success() { Ok(()) } else { Err(std::io::Error::other(format!("child: {status}"))) }
}
