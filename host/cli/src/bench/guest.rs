//! The experiments' program in a machine: one boot runs a batch of items, and what they print comes back.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use heddle_abi::control::Ending;
use heddle_image::{Cache, Image, ImageRequest};
use rustix::process::{Signal, pidfd_send_signal};

use super::progress::Progress;
use super::side::{MEMORY_BYTES, Side};
use super::{Interrupt, Interrupted, PROGRAM_FOLDER};
use crate::guest::{self, Choices, Kernel};
use crate::log::Log;
use crate::machine::{Clock, Machine};
use crate::session::{self, End, Identity, Program, Streams};
use crate::{crash, paths};

/// The program of most experiments.
pub const PROGRAMS: &str = "heddle-bench-programs";
/// A program of every root that is made of packages.
const SHELL: &str = "bash";
/// How often is looked at what a program has printed.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// The output of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// A measured quantity.
    Result {
        /// Its name.
        name: String,
        /// How often the step ran.
        iterations: f64,
        /// The guest's time of all of them.
        nanoseconds: f64,
    },
    /// A rate, of which more is better.
    Rate {
        /// Its name.
        name: String,
        /// How many in a second.
        per_second: f64,
    },
    /// A measured quantity that is no time.
    Size {
        /// Its name.
        name: String,
        /// How many bytes.
        value: f64,
    },
    /// A number that the guest counted.
    Count {
        /// Its name.
        name: String,
        /// The number.
        value: f64,
    },
    /// Why something was not measured: the item, or the quantity, and the reason.
    Absent(String, String),
    /// The item took longer than it may.
    Stopped(String),
    /// The item was not tried, because a smaller one took too long.
    Skipped(String),
}

impl Line {
    /// Reads a line that a program has printed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(' ')?;
        let mut words = rest.split(' ');
        match kind {
            "result" => Some(Self::Result {
                name: words.next()?.to_owned(),
                iterations: words.next()?.parse().ok()?,
                nanoseconds: words.next()?.parse().ok()?,
            }),
            "rate" => {
                Some(Self::Rate { name: words.next()?.to_owned(), per_second: words.next()?.parse().ok()? })
            }
            "count" => {
                Some(Self::Count { name: words.next()?.to_owned(), value: words.next()?.parse().ok()? })
            }
            "absent" => {
                let (what, why) = rest.split_once(": ")?;
                Some(Self::Absent(what.to_owned(), why.to_owned()))
            }
            "size" => Some(Self::Size { name: words.next()?.to_owned(), value: words.next()?.parse().ok()? }),
            "skipped" => Some(Self::Skipped(rest.to_owned())),
            "stopped" => Some(Self::Stopped(rest.to_owned())),
            _ => None,
        }
    }
}

/// One machine to boot: a side, and what to run there.
#[derive(Clone, Debug)]
pub struct Boot {
    /// The side; where several share the machine, one of them.
    pub side: Side,
    /// The machine's clock.
    pub clock: Clock,
    /// The start of its random numbers.
    pub seed: usize,
    /// Its processors.
    pub processors: u32,
    /// The items of the batch: the words of one experiment each.
    pub items: Vec<String>,
    /// How long an item may take, by the guest's clock.
    pub item_limit_s: u64,
    /// How long the machine may take, by the host's.
    pub limit_s: u64,
}

/// Runs batches.
pub struct Runner {
    image: Image,
    program: PathBuf,
    /// Where it is in the guest.
    path: PathBuf,
    /// Memory of the machines.
    memory_bytes: u64,
}

impl Runner {
    /// Builds the program and the image with it, and with these packages.
    ///
    /// # Errors
    /// If that fails.
    pub fn new(packages: &[&str], interrupt: &Interrupt) -> Result<Self> {
        Self::of(PROGRAMS, packages, MEMORY_BYTES, interrupt)
    }

    /// The same for another program than most experiments have, in machines with so much memory.
    ///
    /// # Errors
    /// If building it or the image fails.
    pub fn of(name: &str, packages: &[&str], memory_bytes: u64, interrupt: &Interrupt) -> Result<Self> {
        let program = build(name, interrupt)?;
        let in_packages = Path::new("/usr/bin").join(name);
        let request = if packages.is_empty() {
            ImageRequest { bare: true, ..ImageRequest::new(&program) }
        } else {
            ImageRequest {
                debs: packages.iter().map(|&name| name.to_owned()).collect(),
                add: vec![(program.clone(), in_packages.clone())],
                ..ImageRequest::new(SHELL)
            }
        };
        let image = Cache::of_user()?.image(&request, &mut |_| {}).context("making the image")?;
        let path = if packages.is_empty() { image.program.clone() } else { in_packages };
        Ok(Self { image, program, path, memory_bytes })
    }

    /// Runs a batch and returns its output, each line with the number of the item that printed it. Where the machine
    /// fails, the item at fault is reported absent and the rest continues in a new machine.
    ///
    /// # Errors
    /// If the user interrupted, or the machine can't be started.
    pub fn run(&self, boot: &Boot, progress: &Progress) -> Result<Vec<(usize, Line)>> {
        let mut lines = Vec::new();
        let mut items = boot.items.as_slice();
        while !items.is_empty() {
            let before = boot.items.len() - items.len();
            let part = |text: &str| (before + begun(text)) as f64 / boot.items.len() as f64;
            let (text, failure) = self.run_once(boot, items, &|text| progress.part(part(text)))?;
            let mut index = 0;
            for line in text.lines() {
                index = begin(line).filter(|index| *index < items.len()).unwrap_or(index);
                lines.extend(Line::parse(line).map(|line| (before + index, line)));
            }
            let Some(failure) = failure else { break };
            lines.push((before + index, Line::Absent(items[index].clone(), failure)));
            items = &items[index + 1..];
        }
        Ok(lines)
    }

    /// Runs one machine: returns what it printed, and why it failed if it did.
    fn run_once(
        &self,
        boot: &Boot,
        items: &[String],
        look: &(dyn Fn(&str) + Sync),
    ) -> Result<(String, Option<String>)> {
        let limit = format!("limit={}", boot.item_limit_s);
        let words = ["batch", &limit].into_iter().chain(items.iter().map(String::as_str));
        let usual = boot.side.choices(boot.clock, boot.processors);
        let choices = Choices { memory_bytes: self.memory_bytes, seed: boot.seed, ..usual };
        let outcome = run_in_machine(
            &guest::configure(&choices, &self.image)?,
            boot.side.kernel,
            &self.program(words),
            Duration::from_secs(boot.limit_s),
            look,
        )?;
        Ok((outcome.output, outcome.failure))
    }

    fn program<'a>(&self, words: impl Iterator<Item = &'a str>) -> Program {
        use std::os::unix::ffi::OsStrExt;
        let path = self.path.as_os_str().as_bytes().to_vec();
        let name = self.program.as_os_str().as_bytes().to_vec();
        Program {
            path,
            identity: Identity::default(),
            directory: b"/".to_vec(),
            arguments: std::iter::once(name).chain(words.map(|word| word.as_bytes().to_vec())).collect(),
            environment: vec![b"PATH=/usr/bin:/bin".to_vec()],
        }
    }
}

/// The result of a program in a machine.
pub struct MachineRun {
    /// Its standard output.
    pub output: String,
    /// Guest time from the kernel's first instruction to the program's start.
    pub started_nanoseconds: Option<u64>,
    /// The kernel's log.
    pub log: String,
    /// Why it did not end well, if so.
    pub failure: Option<String>,
}

/// The item of a batch that begins with this line.
fn begin(line: &str) -> Option<usize> {
    line.strip_prefix("begin ")?.parse().ok()
}

/// The item of a batch that began last.
fn begun(text: &str) -> usize {
    text.lines().rev().find_map(begin).unwrap_or(0)
}

/// Runs a program in a machine for at most `limit`. Meanwhile `look` is called from time to time with what it has
/// printed.
///
/// # Errors
/// If the user interrupted, or the machine can't be started.
pub fn run_in_machine(
    configuration: &crate::machine::Configuration,
    kernel: Kernel,
    program: &Program,
    limit: Duration,
    look: &(dyn Fn(&str) + Sync),
) -> Result<MachineRun> {
    let log = Log::in_memory().context("making a file for the kernel's log")?;
    let [output, errors] = [Log::in_memory()?, Log::in_memory()?];
    let file = |log: &Log| -> Result<OwnedFd> {
        use std::os::fd::AsFd;
        Ok(log.as_fd().try_clone_to_owned()?)
    };
    let streams =
        Streams { stdin: File::open("/dev/null")?.into(), stdout: file(&output)?, stderr: file(&errors)? };
    let (mut machine, ports) = Machine::start(configuration, &log)?;
    let process = machine.ended().try_clone_to_owned()?;
    let (cancel, cancelled) = mpsc::channel::<()>();
    let printed = &output;
    let watch = move || {
        let deadline = Instant::now() + limit;
        while cancelled.recv_timeout(LOOK_PERIOD) == Err(mpsc::RecvTimeoutError::Timeout) {
            look(&printed.text());
            if Instant::now() > deadline {
                let _ = pidfd_send_signal(&process, Signal::KILL);
                return true;
            }
        }
        false
    };
    let (report, was_late) = std::thread::scope(|scope| {
        let watchdog = scope.spawn(watch);
        let report = session::run_unattended(&mut machine, ports, program, streams);
        drop(cancel);
        (report, watchdog.join().unwrap_or(false))
    });
    let report = report?;
    let qemu_errors = machine.errors();
    drop(machine);
    let failure = match &report.end {
        End::Program(Ending::Exited(0)) => None,
        End::Program(Ending::Exited(status)) => {
            Some(format!("status {status}: {}", errors.text().trim().replace('\n', " / ")))
        }
        End::Program(ending) => Some(format!("{ending:?}")),
        End::Interrupted(_) => bail!(Interrupted),
        End::Machine(_) if was_late => Some(format!("the machine hung: ended after {} s", limit.as_secs())),
        End::Machine(status) => {
            let symbols = guest::symbols(kernel, false).ok().flatten();
            Some(crash::explain(*status, &qemu_errors, &log.text(), symbols.as_deref()).lines.join(" / "))
        }
        End::Stuck => Some(crash::stuck(&log.text()).lines.join(" / ")),
    };
    let started_nanoseconds = report.started_nanoseconds;
    Ok(MachineRun { output: output.text(), started_nanoseconds, log: log.text(), failure })
}

/// Builds a program of the experiments.
fn build(name: &str, interrupt: &Interrupt) -> Result<PathBuf> {
    let repository = paths::repository()?;
    cargo_build(&repository, &["--release", "--package", name], interrupt)?;
    Ok(repository.join(PROGRAM_FOLDER).join(name))
}

/// Runs `cargo build` with these arguments, quietly.
///
/// # Errors
/// If the build fails, or the user interrupted.
pub fn cargo_build(repository: &Path, arguments: &[&str], interrupt: &Interrupt) -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(["build", "--quiet", "--locked"]).args(arguments).current_dir(repository);
    let status = interrupt.run(command.stdout(Stdio::null()))?;
    // An interrupt from the terminal ends cargo too.
    interrupt.check()?;
    if !status.success() {
        bail!("cargo could not build what the experiment runs");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_guest_are_understood() {
        let result = Line::Result { name: "null".to_owned(), iterations: 10.0, nanoseconds: 1500.0 };
        assert_eq!(Line::parse("result null 10 1500"), Some(result));
        let absent = Line::Absent("pair via=futex".to_owned(), "no: reason".to_owned());
        assert_eq!(Line::parse("absent pair via=futex: no: reason"), Some(absent));
        let rate = Line::Rate { name: "served-64".to_owned(), per_second: 640.5 };
        assert_eq!(Line::parse("rate served-64 640.5"), Some(rate));
        assert_eq!(Line::parse("result null ten 1500"), None);
        assert_eq!(Line::parse("begin 1"), None);
    }
}
