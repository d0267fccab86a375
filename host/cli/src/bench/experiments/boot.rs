//! `boot`: how long a program takes from command to exit, when the guest reaches it, how little memory suffices, and
//! how large the kernels are; and what of that is QEMU's own start. Beside Debian's kernel with our first process
//! stands the same kernel with the smallest initial file system that runs the program.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use heddle_abi::boot::{DEBUG_EXIT_PORT, START_PHASE};
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
const FLOOR_MAX_BYTES: u64 = 128 * MIB;
/// How exact it is.
const FLOOR_UNIT_BYTES: u64 = MIB / 4;
/// How long a machine with little memory may take before it counts as too little.
const FLOOR_LIMIT: Duration = Duration::from_secs(60);
const PRINTED_START: &str = "started ";
const STATIC_PROGRAM: &str = "target/linux-guest/x86_64-unknown-linux-gnu/release/heddle-bench-programs";

/// From starting QEMU to its end, with a kernel that ends the machine at once.
const QEMU_START: &str = "QEMU's own start";
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
        if side == HEDDLE.name {
            qemu_start(&image, record, interrupt)?;
        }
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
/// idles while it waits for the host is in neither, but in the time until main: without anything to execute, the clock
/// that counts instructions goes on to the next timer.
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

/// From starting QEMU with the machine of a program until it has ended: its kernel's first instructions end it.
fn qemu_start(image: &Image, record: &mut Record, interrupt: &Interrupt) -> Result<()> {
    let kernel = paths::cache()?.join("kernel-that-exits");
    std::fs::write(&kernel, exiting_kernel()).with_context(|| kernel.display().to_string())?;
    let usual = guest::configure(&HEDDLE.choices(Clock::Host, 1), image)?;
    let log = Log::in_memory()?;
    let begin = Instant::now();
    let (mut machine, _ports) = Machine::start(&Configuration { kernel, ..usual }, &log)?;
    if !interrupt.wait(machine.ended(), Some(begin + MACHINE_LIMIT))? {
        bail!("QEMU does not end with its guest");
    }
    let status = machine.wait()?;
    // The device makes an odd number of what it gets.
    if status.code() != Some(i32::from(EXIT_VALUE) << 1 | 1) {
        bail!("QEMU did not start: {status}: {}", machine.errors());
    }
    add(record, QEMU_START, HEDDLE.name, Scale::Emulated, begin.elapsed().as_nanos() as f64);
    Ok(())
}

const EXIT_VALUE: u8 = 0x10;

/// An ELF file with a PVH entry whose code writes [`EXIT_VALUE`] to the device that ends the machine.
fn exiting_kernel() -> Vec<u8> {
    const BASE: u64 = 0x10_0000;
    const HEADERS: u64 = 64 + 2 * 56;
    const NOTE_BYTES: u64 = 20;
    let [port_low, port_high] = DEBUG_EXIT_PORT.to_le_bytes();
    // mov dx, PORT; mov al, VALUE; out dx, al; hlt; jmp back to hlt
    let code = [0x66, 0xba, port_low, port_high, 0xb0, EXIT_VALUE, 0xee, 0xf4, 0xeb, 0xfd];
    let (note, entry) = (HEADERS, HEADERS + NOTE_BYTES);
    let end = entry + code.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    // ET_EXEC, EM_X86_64, version 1
    for bytes in
        [&[2, 0, 62, 0, 1, 0, 0, 0][..], &(BASE + entry).to_le_bytes(), &64u64.to_le_bytes(), &[0; 12]]
    {
        file.extend_from_slice(bytes);
    }
    for half in [64u16, 56, 2, 64, 0, 0] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    // PT_LOAD of everything, and PT_NOTE; both with flags, offset, addresses, sizes, alignment.
    for (kind, flags, offset, size, alignment) in [(1u32, 5u32, 0, end, 4096), (4, 4, note, NOTE_BYTES, 4)] {
        file.extend_from_slice(&kind.to_le_bytes());
        file.extend_from_slice(&flags.to_le_bytes());
        for word in [offset, BASE + offset, BASE + offset, size, size, alignment] {
            file.extend_from_slice(&u64::to_le_bytes(word));
        }
    }
    // XEN_ELFNOTE_PHYS32_ENTRY: lengths of name and value, type, name, value
    for word in [4, 4, 18, u32::from_le_bytes(*b"Xen\0"), (BASE + entry) as u32] {
        file.extend_from_slice(&u32::to_le_bytes(word));
    }
    file.extend_from_slice(&code);
    file
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
        match floor_bytes(side, image, interrupt)? {
            Some(floor) => add(record, "memory floor", side.name, Scale::Size, floor as f64),
            None => {
                let most = FLOOR_MAX_BYTES / MIB;
                record.note(format!("{}: `true` does not run in {most} MiB", side.name));
            }
        }
    }
    Ok(())
}

/// The least memory in which `true` runs, to a quarter of a mebibyte.
fn floor_bytes(side: Side, image: &Image, interrupt: &Interrupt) -> Result<Option<u64>> {
    let runs_in = |bytes: u64| -> Result<bool> {
        interrupt.check()?;
        let mut choices = side.choices(Clock::Host, 1);
        choices.memory_bytes = FLOOR_MAX_BYTES;
        let mut configuration = guest::configure(&choices, image)?;
        if side.kernel == Kernel::Linux {
            // The tool refuses less than what surely suffices; here the kernel itself is asked.
            configuration.memory = Memory::Plain { size_bytes: bytes };
        } else {
            choices.memory_bytes = bytes;
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
    if !runs_in(FLOOR_MAX_BYTES)? {
        return Ok(None);
    }
    let (mut too_little, mut enough) = (0, FLOOR_MAX_BYTES / FLOOR_UNIT_BYTES);
    while enough - too_little > 1 {
        let middle = too_little.midpoint(enough);
        if runs_in(middle * FLOOR_UNIT_BYTES)? { enough = middle } else { too_little = middle }
    }
    Ok(Some(enough * FLOOR_UNIT_BYTES))
}

/// Boots Linux with nothing but the program, and says at which guest time it started.
fn run_smallest(initramfs: &Path, clock: Clock, interrupt: &Interrupt) -> Result<u64> {
    let image = image("true")?;
    let usual = guest::configure(&LINUX.choices(clock, 1), &image)?;
    let configuration = Configuration { initramfs: Some(initramfs.to_path_buf()), root: Vec::new(), ..usual };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_that_exits_has_its_code_where_it_says() {
        let file = exiting_kernel();
        let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
        let entry = (word(24) - 0x10_0000) as usize;
        assert!(file[entry..].starts_with(&[0x66, 0xba]), "the entry of the file");
        let note = word(64 + 56 + 8) as usize;
        assert_eq!(&file[note + 12..note + 16], b"Xen\0");
        assert_eq!(&file[note + 16..note + 20], ((0x10_0000 + entry) as u32).to_le_bytes());
        assert_eq!(word(64 + 32), file.len() as u64, "all of it is loaded");
    }
}
