//! Commands about machines that `run --name` has started: `ps`, `stop`, `kill`, `logs`, `rm`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::exchange::{self, request};
use crate::machines::{self, MachineEntry, Registry, Stage, State};

/// How often a log that is followed is looked at.
const FOLLOW_PERIOD: Duration = Duration::from_millis(100);
/// How long a machine's process may take to end once its machine was ended.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Lists machines with names.
#[derive(Clone, Debug, clap::Args)]
pub struct List {
    /// Those that have ended too.
    #[arg(short, long)]
    pub all: bool,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// Ends machines.
#[derive(Clone, Debug, clap::Args)]
pub struct Stop {
    /// How long the program may take to end after SIGTERM, in seconds.
    #[arg(short, long, value_name = "SECS", default_value_t = 10)]
    pub time: u64,
    /// The machines.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

/// Sends a signal to the first program of machines.
#[derive(Clone, Debug, clap::Args)]
pub struct Kill {
    /// The signal, by name or number.
    #[arg(short, long, value_name = "SIGNAL", default_value = "KILL")]
    pub signal: String,
    /// The machines.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

/// Shows what the program of a detached machine has written to its standard output and error.
#[derive(Clone, Debug, clap::Args)]
pub struct Logs {
    /// Go on until the machine ends.
    #[arg(short, long)]
    pub follow: bool,
    /// The machine.
    pub name: String,
}

/// Removes what is left of machines that have ended: their output and status.
#[derive(Clone, Debug, clap::Args)]
pub struct Remove {
    /// End those that still run.
    #[arg(short, long)]
    pub force: bool,
    /// The machines.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

/// `heddle ps`.
///
/// # Errors
/// If the machines cannot be read.
pub fn list(options: &List) -> Result<u8> {
    let machines = Registry::of_user()?.all()?;
    let shown: Vec<&State> = machines
        .iter()
        .map(|(_, state)| state)
        .filter(|state| options.all || state.stage != Stage::Stopped)
        .collect();
    let mut output = io::stdout().lock();
    if options.json {
        serde_json::to_writer_pretty(&mut output, &shown).context("standard output")?;
        writeln!(output).context("standard output")?;
        return Ok(0);
    }
    let mut rows = vec![["NAME", "STATUS", "AGE", "KERNEL", "COMMAND"].map(str::to_owned)];
    for state in shown {
        let status = match (state.stage, state.status) {
            (Stage::Stopped, Some(status)) => format!("exited ({status})"),
            (Stage::Stopped, None) => String::from("ended"),
            (Stage::Creating | Stage::Created, _) => String::from("starting"),
            (Stage::Running, _) => String::from("running"),
        };
        let age = Duration::from_secs(machines::now().saturating_sub(state.created));
        let age = humantime::format_duration(age).to_string();
        let age = age.split(' ').take(2).collect::<Vec<_>>().join(" ");
        rows.push([state.name.clone(), status, age, state.kernel.clone(), state.command.join(" ")]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 4] = std::array::from_fn(width);
    for [name, status, age, kernel, command] in &rows {
        let [a, b, c, d] = widths;
        writeln!(output, "{name:a$}  {status:b$}  {age:c$}  {kernel:d$}  {command}")
            .context("standard output")?;
    }
    Ok(0)
}

/// `heddle stop`.
///
/// # Errors
/// If a machine does not run or cannot be ended.
pub fn stop(options: &Stop) -> Result<u8> {
    let registry = Registry::of_user()?;
    for name in &options.names {
        let entry = registry.find(name)?;
        let socket = entry.connect().with_context(|| name.clone())?;
        let term = Signal::TERM.as_raw().cast_unsigned();
        exchange::send_signal(&socket, term, false).with_context(|| name.clone())?;
        if !wait_for_end(&socket, Duration::from_secs(options.time))? {
            end(&entry, &socket).with_context(|| name.clone())?;
        }
    }
    Ok(0)
}

/// `heddle kill`.
///
/// # Errors
/// If a machine does not run.
pub fn kill(options: &Kill) -> Result<u8> {
    let registry = Registry::of_user()?;
    let signal = parse_signal(&options.signal)?;
    for name in &options.names {
        let socket = registry.find(name)?.connect().with_context(|| name.clone())?;
        exchange::send_signal(&socket, signal, false).with_context(|| name.clone())?;
    }
    Ok(0)
}

/// `heddle rm`.
///
/// # Errors
/// If a machine runs.
pub fn remove(options: &Remove) -> Result<u8> {
    let registry = Registry::of_user()?;
    for name in &options.names {
        let entry = registry.find(name)?;
        if options.force
            && entry.is_alive()
            && let Ok(socket) = entry.connect()
        {
            end(&entry, &socket).with_context(|| name.clone())?;
        }
        if entry.folder().exists() {
            entry.remove().with_context(|| name.clone())?;
        }
    }
    Ok(0)
}

/// `heddle logs`.
///
/// # Errors
/// If nothing was kept.
pub fn logs(options: &Logs) -> Result<u8> {
    let entry = Registry::of_user()?.find(&options.name)?;
    if !entry.state()?.is_detached {
        bail!("{}: its output went to where it was started", options.name);
    }
    let mut log = File::open(entry.log()).context("the output's file")?;
    let mut output = io::stdout().lock();
    loop {
        // Whatever is written before the machine ends is seen by the copy that follows.
        let goes_on = options.follow && entry.is_alive();
        if copy(&mut log, &mut output)? == 0 {
            if !goes_on {
                return Ok(0);
            }
            std::thread::sleep(FOLLOW_PERIOD);
        }
    }
}

fn copy(log: &mut File, output: &mut impl Write) -> Result<usize> {
    let mut bytes = vec![0; 64 << 10];
    let count = log.read(&mut bytes).context("the output's file")?;
    match output.write_all(&bytes[..count]).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        result => result.context("standard output").map(|()| count),
    }
}

/// Ends a machine at once, and waits until its process has gone.
///
/// # Errors
/// If it does not go.
pub fn end(entry: &MachineEntry, socket: &UnixStream) -> Result<()> {
    // One that ends meanwhile needs no telling.
    let _ = exchange::send_request(socket, request::END);
    wait_for_end(socket, END_TIMEOUT)?;
    let deadline = Instant::now() + END_TIMEOUT;
    while entry.is_alive() {
        if Instant::now() > deadline {
            bail!("the machine's process does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Waits until the machine's process has closed its socket; `false` if that takes longer.
///
/// # Errors
/// The error of the system call.
pub fn wait_for_end(socket: &UnixStream, limit: Duration) -> Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).context("timeout")?;
        match poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Ok(false),
            Err(Errno::INTR) => continue,
            result => drop(result.context("poll")?),
        }
        if matches!(rustix::io::read(socket, &mut [0; 512]), Ok(0) | Err(_)) {
            return Ok(true);
        }
    }
}

/// Linux's names of signals, by number from 1.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];
const SIGNAL_MAX: u32 = 64;
const SIGRTMIN: u32 = 34;

/// A signal's number from what a user writes: `TERM`, `SIGTERM`, `15`, `RTMIN+3`.
///
/// # Errors
/// If there is no such signal.
pub fn parse_signal(text: &str) -> Result<u32> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let number = match name.parse() {
        Ok(number) => Some(number),
        Err(_) if name == "RTMIN" => Some(SIGRTMIN),
        Err(_) if name == "RTMAX" => Some(SIGNAL_MAX),
        Err(_) => match (name.strip_prefix("RTMIN+"), name.strip_prefix("RTMAX-")) {
            (Some(above), _) => above.parse().ok().and_then(|above: u32| SIGRTMIN.checked_add(above)),
            (_, Some(below)) => below.parse().ok().and_then(|below: u32| SIGNAL_MAX.checked_sub(below)),
            _ => (1..).zip(SIGNALS).find(|(_, known)| *known == name).map(|(number, _)| number),
        },
    };
    number
        .filter(|number| (1..=SIGNAL_MAX).contains(number))
        .with_context(|| format!("no such signal: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        let known = [("TERM", 15), ("sigkill", 9), ("1", 1), ("RTMIN+1", 35), ("SIGRTMAX", 64), ("SYS", 31)];
        for (text, number) in known {
            assert_eq!(parse_signal(text).unwrap(), number, "{text}");
        }
        for text in ["0", "65", "FOO", "", "RTMIN+40"] {
            assert!(parse_signal(text).is_err(), "{text}");
        }
    }
}
