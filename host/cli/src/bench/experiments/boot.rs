//! `boot`: how long a program takes from command to exit, when the guest reaches it, how little memory suffices, and
//! how large the kernels are. Beside Debian's kernel with our first process stands the same kernel with the smallest
//! initial file system that runs the program.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use heddle_abi::boot::START_PHASE;
use heddle_image::{Cache, Image, ImageRequest};

use super::{Experiment, Kind};
use crate::bench::goal::{Goal, Wanted};
use crate::bench::guest::{MachineRun, cargo_build, run_in_machine};
use crate::bench::progress::{Progress, Step};
use crate::bench::record::{Figure, Record, Scale};
use crate::bench::side::{HEDDLE, LINUX, MEMORY_BYTES, Side, scale};
use crate::bench::{Effort, Interrupt, Interrupted, Request, elf};
use crate::guest::cpio::Archive;
use crate::guest::{self, Kernel, MIB, linux};
use crate::log::Log;
use crate::machine::{Clock, Configuration, Machine, Memory, accelerator};
use crate::paths;
use crate::session::Program;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "boot",
    summary: "from command to exit of `true`, guest time to main, memory floor, sizes",
    kind: Kind::Own(run),
    checked: None,
};

/// The side with the smallest initial file system.
const SMALLEST: &str = "linux-smallest";
const MACHINE_LIMIT: Duration = Duration::from_secs(180);
/// The memory in which a shell has to run.
const SHELL_MEMORY_MIB: u64 = 32;
/// Where the search for the memory floor ends.
const FLOOR_MAX_MIB: u64 = 128;
/// How long a machine with little memory may take before it counts as too little.
const FLOOR_LIMIT: Duration = Duration::from_secs(60);
const PRINTED_START: &str = "started ";
const STATIC_PROGRAM: &str = "target/linux-guest/x86_64-unknown-linux-gnu/release/heddle-bench-programs";

/// All parts of the start together.
const START: &str = "start";
/// The goal for [`START`].
const START_MAX: f64 = 5e6;

/// The goals.
fn goals() -> Vec<Goal> {
    vec![
        Goal::new("command to exit", Scale::Emulated, Wanted::Ratio(5.0)),
        Goal::new(START, Scale::Instructions, Wanted::AtMost(START_MAX)),
        Goal::new("kernel image", Scale::Size, Wanted::AtMost((4 * MIB) as f64)),
        Goal::new("memory for bash", Scale::Size, Wanted::AtMost((SHELL_MEMORY_MIB * MIB) as f64)),
    ]
}

/// Runs the experiment.
///
/// # Errors
/// If the user interrupted, or something is missing.
fn run(request: &Request, runs: usize, record: &mut Record, interrupt: &Interrupt) -> Result<Vec<Goal>> {
    let effort = request.effort;
    let smallest = smallest_initramfs(interrupt)?;
    let image = image("true")?;
    let orders = (0..runs).map(|round| {
        let mut sides = [HEDDLE.name, LINUX.name, SMALLEST];
        sides.rotate_left(round % 3);
        sides
    });
    let orders: Vec<_> = orders.flatten().collect();
    let mut steps: Vec<_> = orders.iter().map(|side| Step::new(format!("{side}, command to exit"))).collect();
    let to_main = |side: &str, clock| Step::new(format!("{side}, kernel to main by {}", scale(clock).name()));
    let clocks = [Clock::Instructions, Clock::Host];
    steps.extend(
        [HEDDLE.name, LINUX.name, SMALLEST].iter().flat_map(|side| clocks.map(|clock| to_main(side, clock))),
    );
    steps.push(Step::new("memory"));
    let progress = Progress::new(steps)?;
    for side in orders {
        interrupt.check()?;
        progress.begin();
        command_to_exit(side, &smallest, record, interrupt)?;
        progress.end();
    }
    for side in [Some(HEDDLE), Some(LINUX), None] {
        for clock in clocks {
            interrupt.check()?;
            progress.begin();
            let (name, nanoseconds) = match side {
                Some(side) => {
                    let choices = side.choices(clock, 1);
                    let outcome = start(&choices, &image, "true", &["true"], MACHINE_LIMIT)?;
                    if side == HEDDLE && clock == Clock::Instructions {
                        note_phases(&outcome.log, record);
                    }
                    (side.name, outcome.started_nanoseconds)
                }
                None => (SMALLEST, Some(run_smallest(&smallest, clock, interrupt)?)),
            };
            note_start(name, clock, nanoseconds, record);
            progress.end();
        }
    }
    progress.begin();
    memory(effort, &image, record, interrupt)?;
    progress.end();
    let linux = elf::loaded_bytes(&linux::kernel()?.join("vmlinux"))?;
    let ours = elf::loaded_bytes(&guest::symbols(Kernel::Heddle, false)?.context("no kernel")?)?;
    for (side, bytes) in [(HEDDLE.name, ours), (LINUX.name, linux), (SMALLEST, linux)] {
        add(record, "kernel image", side, Scale::Size, bytes as f64);
    }
    choose_faster_linux(record);
    Ok(goals())
}

/// Goals hold against the faster of the two ways to start Linux.
fn choose_faster_linux(record: &mut Record) {
    record.summarize();
    let median = |side: &str| {
        let wanted = |figure: &&Figure| figure.side == side && figure.name == "command to exit";
        record.figures.iter().find(wanted).and_then(|figure| figure.median)
    };
    if let (Some(usual), Some(smallest)) = (median(LINUX.name), median(SMALLEST))
        && smallest < usual
    {
        SMALLEST.clone_into(&mut record.reference);
        for figure in &mut record.figures {
            figure.ratio = None;
        }
    }
    record.note(format!("ratios and goals are against {}, the faster start of Linux", record.reference));
}

fn add(record: &mut Record, name: &str, side: &str, scale: Scale, value: f64) {
    record.add(Figure {
        name: name.to_owned(),
        side: side.to_owned(),
        samples: vec![value],
        ..Figure::new(scale)
    });
}

fn note_start(side: &str, clock: Clock, nanoseconds: Option<u64>, record: &mut Record) {
    match nanoseconds {
        Some(nanoseconds) => add(record, "kernel to main", side, scale(clock), nanoseconds as f64),
        None => record.note(format!("{side}: the guest did not say when the program started")),
    }
}

/// The parts of the start, by the log: each with its own instructions, and all with the sum. The time that the kernel
/// idles while it waits for the host is in neither, but in the time until main.
fn note_phases(log: &str, record: &mut Record) {
    let mut before = 0.0;
    for line in log.lines().filter_map(|line| line.split_once(START_PHASE)) {
        let Some((Ok(until), name)) =
            line.1.split_once(' ').map(|(until, name)| (until.parse::<f64>(), name))
        else {
            continue;
        };
        add(record, &format!("start: {name}"), HEDDLE.name, Scale::Instructions, until - before);
        before = until;
    }
    add(record, START, HEDDLE.name, Scale::Instructions, before);
}

/// From starting the command until it has ended.
fn command_to_exit(side: &str, smallest: &Path, record: &mut Record, interrupt: &Interrupt) -> Result<()> {
    let begin = Instant::now();
    if side == SMALLEST {
        run_smallest(smallest, Clock::Host, interrupt)?;
    } else {
        let memory = (MEMORY_BYTES / MIB).to_string();
        let mut command = Command::new(crate::paths::own_program()?);
        command.args(["run", "--kernel", side, "--memory", &memory, "--", "true"]);
        command.env(accelerator::VARIABLE, accelerator::choice().name());
        let status = interrupt.run(command.stdin(Stdio::null()).stdout(Stdio::null()))?;
        if status.code().is_some_and(|code| code > i32::from(crate::STATUS_SIGNAL_BASE)) {
            bail!(Interrupted);
        }
        if !status.success() {
            bail!("{side}: `run -- true` failed: {status}");
        }
    }
    add(record, "command to exit", side, Scale::Emulated, begin.elapsed().as_nanos() as f64);
    Ok(())
}

fn image(program: &str) -> Result<Image> {
    let request = ImageRequest::new(OsString::from(program));
    Cache::of_user()?.image(&request, &mut |_| {}).context("making the image")
}

fn start(
    choices: &guest::Choices,
    image: &Image,
    name: &str,
    arguments: &[&str],
    limit: Duration,
) -> Result<MachineRun> {
    use std::os::unix::ffi::OsStrExt;
    let program = Program {
        identity: crate::session::Identity::default(),
        path: image.program.as_os_str().as_bytes().to_vec(),
        directory: b"/".to_vec(),
        arguments: arguments.iter().map(|argument| argument.as_bytes().to_vec()).collect(),
        environment: vec![b"PATH=/usr/bin:/bin".to_vec()],
    };
    let configuration = guest::configure(choices, image)?;
    run_in_machine(&configuration, choices.kernel, &program, limit, &|_| {}).with_context(|| name.to_owned())
}

/// Measures how little memory is enough, in bytes.
fn memory(effort: Effort, image: &Image, record: &mut Record, interrupt: &Interrupt) -> Result<()> {
    let runs_in = |image: &Image, arguments: &[&str], mebibytes: u64| -> Result<bool> {
        interrupt.check()?;
        let mut choices = HEDDLE.choices(Clock::Host, 1);
        choices.memory_bytes = mebibytes * MIB;
        Ok(start(&choices, image, arguments[0], arguments, FLOOR_LIMIT)?.failure.is_none())
    };
    let shell = self::image("bash")?;
    if runs_in(&shell, &["bash", "-c", "true"], SHELL_MEMORY_MIB)? {
        let bytes = (SHELL_MEMORY_MIB * MIB) as f64;
        add(record, "memory for bash", HEDDLE.name, Scale::Size, bytes);
    } else {
        record.note(format!("bash does not run in {SHELL_MEMORY_MIB} MiB"));
        add(record, "memory for bash", HEDDLE.name, Scale::Size, f64::INFINITY);
    }
    if effort == Effort::Quick {
        return Ok(());
    }
    for side in [HEDDLE, LINUX] {
        let floor = floor_mib(side, image, interrupt)?;
        match floor {
            Some(floor) => add(record, "memory floor", side.name, Scale::Size, (floor * MIB) as f64),
            None => record.note(format!("{}: `true` does not run in {FLOOR_MAX_MIB} MiB", side.name)),
        }
    }
    Ok(())
}

/// The least memory in which `true` runs, to a mebibyte.
fn floor_mib(side: Side, image: &Image, interrupt: &Interrupt) -> Result<Option<u64>> {
    let runs_in = |mebibytes: u64| -> Result<bool> {
        interrupt.check()?;
        let mut choices = side.choices(Clock::Host, 1);
        choices.memory_bytes = FLOOR_MAX_MIB * MIB;
        let mut configuration = guest::configure(&choices, image)?;
        if side.kernel == Kernel::Linux {
            // The tool refuses less than what surely suffices; here the kernel itself is asked.
            configuration.memory = Memory::Plain { size_bytes: mebibytes * MIB };
        } else {
            choices.memory_bytes = mebibytes * MIB;
            match guest::configure(&choices, image) {
                Ok(smaller) => configuration = smaller,
                Err(_) => return Ok(false),
            }
        }
        let program = Program {
            identity: crate::session::Identity::default(),
            path: image.program.clone().into_os_string().into_encoded_bytes(),
            directory: b"/".to_vec(),
            arguments: vec![b"true".to_vec()],
            environment: Vec::new(),
        };
        Ok(run_in_machine(&configuration, side.kernel, &program, FLOOR_LIMIT, &|_| {})?.failure.is_none())
    };
    if !runs_in(FLOOR_MAX_MIB)? {
        return Ok(None);
    }
    let (mut too_little, mut enough) = (1, FLOOR_MAX_MIB);
    while enough - too_little > 1 {
        let middle = too_little.midpoint(enough);
        if runs_in(middle)? { enough = middle } else { too_little = middle }
    }
    Ok(Some(enough))
}

/// Boots Linux with nothing but the program, and says at which guest time it started.
fn run_smallest(initramfs: &Path, clock: Clock, interrupt: &Interrupt) -> Result<u64> {
    let image = image("true")?;
    let usual = guest::configure(&LINUX.choices(clock, 1), &image)?;
    let configuration = Configuration { initramfs: Some(initramfs.to_path_buf()), root: None, ..usual };
    let log = Log::in_memory()?;
    let (mut machine, _ports) = Machine::start(&configuration, &log)?;
    let deadline = Instant::now() + MACHINE_LIMIT;
    if !interrupt.wait(machine.ended(), Some(deadline))? {
        bail!("the smallest Linux guest hung");
    }
    machine.wait()?;
    let text = log.text();
    let start = text.lines().find_map(|line| line.trim().strip_prefix(PRINTED_START)?.parse().ok());
    start.with_context(|| format!("the smallest Linux guest did not start its program: {}", text.trim()))
}

/// An initial file system with `true`, its libraries, and a first process that starts it.
fn smallest_initramfs(interrupt: &Interrupt) -> Result<PathBuf> {
    let repository = paths::repository()?;
    cargo_build(
        &repository,
        &[
            "--release",
            "--package",
            "heddle-bench-programs",
            "--target",
            "x86_64-unknown-linux-gnu",
            "--target-dir",
            "target/linux-guest",
            "--config",
            "target.x86_64-unknown-linux-gnu.rustflags=['-Ctarget-feature=+crt-static']",
            "--config",
            "profile.release.strip=true",
            "--config",
            "profile.release.debug=false",
        ],
        interrupt,
    )?;
    let path = paths::cache()?.join("linux/bench-initramfs");
    let scratch = path.with_extension(format!("new-{}", std::process::id()));
    let mut archive = Archive::new(File::create(&scratch).with_context(|| scratch.display().to_string())?);
    for folder in ["dev", "bin", "lib", "lib64", "lib/x86_64-linux-gnu"] {
        archive.directory(folder)?;
    }
    archive.character_device("dev/console", 5, 1)?;
    archive.file("init", &std::fs::read(repository.join(STATIC_PROGRAM))?)?;
    for (name, source) in [
        ("bin/true", "/bin/true"),
        ("lib64/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2"),
        ("lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6"),
    ] {
        archive.file(name, &std::fs::read(source).with_context(|| source.to_owned())?)?;
    }
    archive.finish()?;
    std::fs::rename(&scratch, &path)?;
    Ok(path)
}
