//! `heddle run`: a program in a machine of its own, as if it ran here.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use heddle_abi::boot::{CPUS_MAX, USER_KEYS};
use heddle_abi::control::{Ending, OutOfMemory};
use heddle_image::Image;
use rustix::io::Errno;
use rustix::process::Signal;

use crate::commands::named::Named;
use crate::exchange::Exchange;
use crate::guest::share::Share;
use crate::guest::{self, CPU_DEFAULT, Choices, Isolation, Kernel, MEMORY_DEFAULT_MIB, MIB, Mitigations};
use crate::log::Log;
use crate::machine::{Clock, Machine, accelerator};
use crate::machines::detach::{self, ReadyPipe, Started};
use crate::machines::{self, Owned, Registry, Stage, State};
use crate::network::Network;
use crate::session::{self, End, Program, Report, Streams};
use crate::strace::Trace;
use crate::{
    STATUS_KERNEL_PANIC, STATUS_NOT_EXECUTABLE, STATUS_NOT_FOUND, STATUS_SIGNAL_BASE, STATUS_TOOL_FAILED,
    crash, image, network, user,
};

/// The search path of programs in the guest.
const GUEST_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Variables of this tool's own environment that the program gets too.
const PASSED_VARIABLES: [&str; 2] = ["TERM", "LANG"];
/// The name of a machine in the background, to the process that runs it.
const NAME_VARIABLE: &str = "HEDDLE_MACHINE_NAME";
/// How many processes that were killed for memory are named one by one.
const KILLS_SHOWN: usize = 5;
/// QEMU's limit; Heddle's kernel uses at most [`CPUS_MAX`].
const PROCESSORS_MAX: u32 = 255;

/// An amount of memory in MiB, from a number of them or from one with a unit as docker takes it.
fn mebibytes(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let lower = lower.strip_suffix("ib").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower);
    let (number, bytes) = match lower.char_indices().next_back() {
        Some((end, 'k')) => (&lower[..end], 1024),
        Some((end, 'm')) => (&lower[..end], MIB),
        Some((end, 'g')) => (&lower[..end], 1024 * MIB),
        _ if lower.len() < text.len() => (lower, 1),
        _ => (lower, MIB),
    };
    let number: u64 =
        number.parse().map_err(|_| "a number of MiB, or one with a unit: 512m, 2g".to_owned())?;
    number.checked_mul(bytes).map(|bytes| bytes / MIB).ok_or_else(|| "too much".to_owned())
}

/// Runs PROGRAM in a virtual machine.
#[derive(Clone, Debug, clap::Args)]
pub struct RunOptions {
    /// Processors of the machine.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(PROCESSORS_MAX)))]
    pub smp: u32,
    /// Memory for the kernel and its programs, in MiB or with a unit (512m, 2g); the root image is not counted.
    #[arg(short, long, value_name = "MIB", default_value_t = MEMORY_DEFAULT_MIB, value_parser = mebibytes)]
    pub memory: u64,
    /// The kernel: Heddle's, or Debian's Linux in the same kind of machine.
    #[arg(long, value_enum, default_value_t = Kernel::Heddle)]
    pub kernel: Kernel,
    /// Which programs may reach one another's memory; Heddle's kernel only.
    #[arg(long, value_enum, default_value_t = Isolation::Default)]
    pub isolation: Isolation,
    /// Whether the kernel takes measures against processors that run ahead of their checks (Spectre and the like):
    /// Heddle does unless told otherwise, Linux, which is here to compare with, does not.
    #[arg(long, value_enum)]
    pub mitigations: Option<Mitigations>,
    /// Run on the checking build of Heddle's kernel, which is built if need be: slower, with assertions, lock-order
    /// checks and fault injection for tests.
    #[arg(long)]
    pub checking: bool,
    /// Set a variable of the program's environment; KEY alone takes the value that it has here.
    #[arg(short = 'e', long = "env", value_name = "KEY[=VALUE]")]
    pub environment: Vec<OsString>,
    /// Set variables of the program's environment from a file: a KEY[=VALUE] on each line, # begins a comment. Those of
    /// -e win.
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// The program's working directory in the guest; / unless arguments bring one along.
    #[arg(short = 'w', long = "workdir", value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Show each system call of every program as strace does, or write them to FILE.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub strace: Option<Option<PathBuf>>,
    /// Write the kernel's log to FILE.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Add an option to the kernel's command line, as `heddle.space-lock=one`.
    #[arg(long = "boot", value_name = "KEY=VALUE")]
    pub kernel_options: Vec<String>,
    /// Share a folder of this host with the guest, where programs may change it unless it ends with :ro.
    #[arg(short = 'v', long, visible_alias = "volume", value_name = "HOST[:GUEST][:ro]")]
    pub share: Vec<String>,
    /// Share this working directory with the guest, at the same path and read-only, and start the program there.
    #[arg(long, conflicts_with = "directory")]
    pub here: bool,
    /// The accelerator.
    #[command(flatten)]
    pub accelerator: accelerator::AcceleratorOptions,
    /// The processor's model and features, as QEMU's -cpu has them.
    #[arg(long, value_name = "MODEL[,FEATURE…]", default_value = CPU_DEFAULT)]
    pub cpu: String,
    /// The network.
    #[command(flatten)]
    pub network: network::NetworkOptions,
    /// Take the guest's clock from the number of its instructions, one a nanosecond, for tests.
    #[arg(long, hide = true)]
    pub count_instructions: bool,
    /// Stop before the kernel's first instruction and wait for a debugger.
    #[arg(long)]
    pub gdb: bool,
    /// The contents of the root.
    #[command(flatten)]
    pub image: image::ImageOptions,
    /// The user and group, by name or number.
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub user: Option<String>,
    /// The machine's name, by which `exec`, `stop` and others know it.
    #[arg(long, env = NAME_VARIABLE, hide_env = true)]
    pub name: Option<String>,
    /// Run in the background, print the machine's name and keep the program's output for `logs`.
    #[arg(short, long)]
    pub detach: bool,
    /// Forget the machine, its output and its status when it has ended.
    #[arg(long)]
    pub rm: bool,
    /// The program and its arguments. Files and folders below this working directory that arguments name come along,
    /// read-only (files as copies, 64 MiB of them at most): they are at the same path in the guest, and the program
    /// starts in the directory, in which it sees nothing else. Arguments that begin with - or are absolute paths name
    /// nothing, nor do any with --here, --share, --root or -w.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM ARGS")]
    pub program: Vec<OsString>,
}

/// Runs the command and says with which status to end.
///
/// # Errors
/// Any failure that keeps the program from being run; the status is [`STATUS_TOOL_FAILED`] then.
pub fn execute(options: &RunOptions) -> Result<u8> {
    check(options)?;
    let ready = ReadyPipe::inherited()?;
    if options.detach && ready.is_none() {
        return detach(options);
    }
    let program = options.program.first().context("no program")?;
    let variables = environment(&settings(options)?, None)?;
    let library_path = variables.iter().find_map(|variable| variable.strip_prefix(b"LD_LIBRARY_PATH="));
    let library_path = OsStr::from_bytes(library_path.unwrap_or_default());
    let image = match image::prepare(&options.image, program, library_path) {
        Ok(image) => image,
        Err(error) => {
            crate::say!("{error}");
            return Ok(error.exit_status());
        }
    };
    let machine = options.name.as_ref().map(|name| claim(name, options)).transpose()?;
    run(options, &image, machine, ready)
}

/// Starts a copy of this process in the background.
fn detach(options: &RunOptions) -> Result<u8> {
    let mut command = detach::copy()?;
    let name = match &options.name {
        Some(name) => name.clone(),
        None => {
            let name = machines::random_name()?;
            command.env(NAME_VARIABLE, &name);
            name
        }
    };
    match detach::start(command)? {
        Started::Ready(_) => {
            crate::out!("{name}");
            Ok(0)
        }
        Started::Ended(status) => Ok(status),
    }
}

/// Registers the machine.
fn claim(name: &str, options: &RunOptions) -> Result<Owned> {
    let state = State {
        name: name.to_owned(),
        stage: Stage::Creating,
        pid: 0,
        created: machines::now(),
        kernel: options.kernel.name().to_owned(),
        command: options.program.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        status: None,
        is_detached: options.detach,
        container: None,
    };
    // There is nothing to look at after the end of a machine whose output went elsewhere.
    Registry::of_user()?.claim(state, options.rm || !options.detach)
}

/// The user's choices about the machine, and the program's working directory. `named` comes along.
fn choices(options: &RunOptions, network: &Network, named: Option<&Named>) -> Result<(Choices, OsString)> {
    let mut shares: Vec<Share> =
        options.share.iter().map(|text| Share::parse(text)).collect::<Result<_>>()?;
    let mut directory =
        options.directory.clone().map_or_else(|| OsString::from("/"), PathBuf::into_os_string);
    if let Some(named) = named {
        directory = OsString::from(&named.directory);
        shares.extend_from_slice(&named.shares);
    }
    if options.here {
        let here = Share::here()?;
        directory = OsString::from(&here.guest);
        shares.push(here);
    }
    // A folder that lies in another one is mounted after it, in whichever order they were given.
    shares.sort_by_key(|share| Path::new(&share.guest).components().count());
    let choices = Choices {
        processors: options.smp,
        memory_bytes: options.memory.checked_mul(MIB).context("--memory: too much")?,
        isolation: options.isolation,
        mitigations: options.mitigations.unwrap_or_else(|| Mitigations::of(options.kernel)),
        strace: options.strace.is_some(),
        verbose_log: options.log.is_some(),
        checking: options.checking,
        clock: if options.count_instructions { Clock::Instructions } else { Clock::Host },
        debugger_port: options.gdb.then(free_port).transpose()?,
        shares,
        network: network.clone(),
        kernel_arguments: options.kernel_options.join(" "),
        accelerator: options.accelerator.accel,
        cpu: options.cpu.clone(),
        ..Choices::new(options.kernel)
    };
    Ok((choices, directory))
}

fn run(options: &RunOptions, image: &Image, machine: Option<Owned>, ready: Option<ReadyPipe>) -> Result<u8> {
    let user = options.user.as_deref().map(|user| user::parse(user, |path| image::read(image, path)));
    let user = user.transpose()?.unwrap_or_default();
    let mut network = network::prepare(&options.network)?;
    let is_apart = options.here || options.directory.is_some();
    let sees_nothing = !is_apart && options.share.is_empty() && options.image.root.is_none();
    let named = if sees_nothing { Named::by(&options.program[1..])? } else { None };
    let (choices, directory) = choices(options, &network.network, named.as_ref())?;
    if options.checking {
        guest::heddle::build_checking()?;
    }
    let configuration = guest::configure(&choices, image)?;
    let mut log = match &options.log {
        Some(path) => Log::at(path).with_context(|| path.display().to_string())?,
        None => Log::in_memory().context("making a file for the kernel's log")?,
    };
    if let Some(port) = choices.debugger_port {
        let kernel = configuration.kernel.display();
        crate::say!("waiting for: gdb {kernel} -ex 'target remote localhost:{port}'");
    }
    let program = Program {
        path: image.program.clone().into_os_string().into_vec(),
        identity: user.identity,
        directory: directory.into_vec(),
        arguments: options.program.iter().map(|argument| argument.clone().into_vec()).collect(),
        environment: environment(&settings(options)?, user.home.as_deref())?,
    };
    let trace = options.strace.as_ref().map(|path| trace_output(path.as_deref())).transpose()?;
    let exchange = machine
        .as_ref()
        .map(|owned| {
            let takes_programs = options.kernel == Kernel::Heddle;
            Exchange::new(owned.listen()?, takes_programs).context("the machine's socket")
        })
        .transpose()?;
    let streams = match &machine {
        Some(owned) if options.detach => Streams::to_log(&owned.create_log()?)?,
        _ => Streams::inherited()?,
    };
    let (mut vm, ports) = Machine::start(&configuration, &log)?;
    network.serve();
    let machine = std::cell::RefCell::new(machine);
    let on_start = || {
        if let Some(owned) = machine.borrow_mut().as_mut()
            && let Err(error) = owned.set(Stage::Running, None)
        {
            crate::say!("{error:#}");
        }
        if let Some(ready) = ready {
            // From here on nobody is there to read what this process says.
            let _ = leave_terminal();
            ready.tell();
        }
    };
    let session_options = session::Options {
        trace: trace.map(|(output, prefix)| Trace::new(&mut log, output, prefix)),
        exchange,
        waits: false,
        on_start: Some(Box::new(on_start)),
    };
    let report = session::run(&mut vm, ports, &program, streams, session_options)?;
    let errors = vm.errors();
    drop(vm);
    let status = finish(&report, &options.program[0], || {
        let symbols = guest::symbols(options.kernel, options.checking).ok().flatten();
        match &report.end {
            End::Machine(status) => crash::explain(*status, &errors, &log.text(), symbols.as_deref()),
            _ => crash::stuck(&log.text()),
        }
    })?;
    if status != 0 && sees_nothing && named.is_none() && matches!(report.end, End::Program(_)) {
        say_left_out(&options.program);
    }
    if let Some(owned) = machine.borrow_mut().as_mut() {
        owned.set(Stage::Stopped, Some(status))?;
    }
    // Commands that wait for the machine's end see its state from here on.
    drop(report);
    Ok(status)
}

/// Where system calls are shown, and what goes before each.
fn trace_output(path: Option<&Path>) -> Result<(Box<dyn Write>, &'static str)> {
    Ok(match path {
        Some(path) => {
            let file = File::create(path).with_context(|| path.display().to_string())?;
            (Box::new(BufWriter::new(file)), "")
        }
        None => (Box::new(std::io::stderr()), "heddle: "),
    })
}

/// Makes this process one of the background.
fn leave_terminal() -> Result<()> {
    detach::leave_session();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Refuses options that the kernel does not know or that do not fit together, before anything is built or started.
fn check(options: &RunOptions) -> Result<()> {
    if options.kernel == Kernel::Linux {
        if options.isolation != Isolation::Default {
            bail!("--isolation is an option of Heddle's kernel, and the kernel is linux");
        }
        if options.checking {
            bail!("--checking is a build of Heddle's kernel, and the kernel is linux");
        }
        return Ok(());
    }
    if options.smp as usize > CPUS_MAX {
        bail!("--smp {}: Heddle's kernel uses at most {CPUS_MAX} processors", options.smp);
    }
    options.kernel_options.iter().try_for_each(|option| check_kernel_option(option))
}

/// Refuses an option that Heddle's kernel would ignore.
fn check_kernel_option(option: &str) -> Result<()> {
    let (key, value) = option.split_once('=').with_context(|| format!("--boot {option}: not KEY=VALUE"))?;
    let Some((_, values)) = USER_KEYS.iter().find(|(known, _)| *known == key) else {
        let known = USER_KEYS.map(|(known, _)| known).join(", ");
        bail!("--boot {option}: no such key; the kernel knows {known}");
    };
    match values {
        Some(values) if !values.contains(&value) => {
            bail!("--boot {option}: the value is one of {}", values.join(", "))
        }
        None if value.parse::<u64>().is_err() => bail!("--boot {option}: the value is a decimal number"),
        _ => Ok(()),
    }
}

/// Says which processes ended because the guest's memory ran out.
fn say_killed(killed: &[OutOfMemory]) {
    for OutOfMemory { pid, name, bytes } in killed.iter().take(KILLS_SHOWN) {
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name);
        crate::say!(
            "out of memory: process {pid} ({}), which had {} MiB, was killed; --memory gives the guest more",
            name.escape_debug(),
            bytes >> 20
        );
    }
    if killed.len() > KILLS_SHOWN {
        crate::say!("out of memory: {} more processes were killed", killed.len() - KILLS_SHOWN);
    }
}

/// A shell's words for a program that this signal has ended, if it means a fault of the program.
fn crash_of(signal: u32) -> Option<&'static str> {
    Some(match Signal::from_named_raw(signal.cast_signed())? {
        Signal::ILL => "illegal instruction",
        Signal::TRAP => "trace or breakpoint trap",
        Signal::ABORT => "aborted",
        Signal::BUS => "bus error",
        Signal::FPE => "floating point exception",
        Signal::SEGV => "segmentation fault",
        Signal::SYS => "bad system call",
        _ => return None,
    })
}

/// Says which argument of a program that failed is a file of this host that the program did not see.
fn say_left_out(program: &[OsString]) {
    let is_left_out = |argument: &&OsString| {
        let path = Path::new(argument);
        path.is_relative() && path.exists() && !argument.as_bytes().starts_with(b"-")
    };
    if let Some(argument) = program.iter().skip(1).find(is_left_out) {
        crate::say!("{} is in this folder, which programs in the guest see with --here", argument.display());
    }
}

/// Reports how the machine ended, and turns that into a status.
fn finish(report: &Report, program: &OsString, crash: impl Fn() -> crash::Crash) -> Result<u8> {
    say_killed(&report.killed);
    if let Some(error) = &report.output_error {
        bail!("writing the program's output: {error}");
    }
    let small = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
    Ok(match &report.end {
        End::Program(Ending::Exited(status)) => small(*status),
        End::Program(Ending::Signaled(signal)) => {
            if let Some(crash) = crash_of(*signal) {
                crate::say!("{}: {crash}", program.display());
            }
            STATUS_SIGNAL_BASE.saturating_add(small(*signal))
        }
        End::Program(Ending::NotStarted(errno)) => {
            let errno = Errno::from_raw_os_error(errno.cast_signed());
            crate::say!("{}: {}", program.display(), std::io::Error::from(errno));
            if errno == Errno::NOENT { STATUS_NOT_FOUND } else { STATUS_NOT_EXECUTABLE }
        }
        End::Program(Ending::NoDirectory(errno)) => {
            let error = std::io::Error::from_raw_os_error(errno.cast_signed());
            crate::say!("the working directory in the guest (-w): {error}");
            STATUS_TOOL_FAILED
        }
        End::Interrupted(signal) => STATUS_SIGNAL_BASE.saturating_add(small(signal.as_raw().cast_unsigned())),
        End::Machine(_) | End::Stuck => {
            let crash = crash();
            for line in &crash.lines {
                crate::say!("{line}");
            }
            if crash.is_guest { STATUS_KERNEL_PANIC } else { STATUS_TOOL_FAILED }
        }
    })
}

/// All settings of variables, in the order in which they take effect.
fn settings(options: &RunOptions) -> Result<Vec<OsString>> {
    let mut settings = Vec::new();
    for path in &options.env_file {
        let bytes = std::fs::read(path).with_context(|| format!("--env-file {}", path.display()))?;
        let lines = bytes.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii_start);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
        settings
            .extend(lines.map(|line| OsString::from_vec(line.strip_suffix(b"\r").unwrap_or(line).to_vec())));
    }
    settings.extend_from_slice(&options.environment);
    Ok(settings)
}

/// The program's environment: later settings of a name replace earlier ones.
pub fn environment(settings: &[OsString], home: Option<&[u8]>) -> Result<Vec<Vec<u8>>> {
    let mut variables: Vec<(Vec<u8>, Vec<u8>)> =
        vec![(b"PATH".to_vec(), GUEST_PATH.into()), (b"HOME".to_vec(), home.unwrap_or(b"/root").to_vec())];
    let mut set = |key: Vec<u8>, value: Vec<u8>| {
        variables.retain(|(other, _)| *other != key);
        variables.push((key, value));
    };
    for key in PASSED_VARIABLES {
        if let Some(value) = std::env::var_os(key) {
            set(key.into(), value.into_vec());
        }
    }
    for setting in settings {
        let bytes = setting.clone().into_vec();
        match bytes.iter().position(|&byte| byte == b'=') {
            Some(0) => bail!("-e {}: no name", setting.display()),
            Some(equals) => set(bytes[..equals].to_vec(), bytes[equals + 1..].to_vec()),
            None => {
                if let Some(value) = std::env::var_os(setting) {
                    set(bytes, value.into_vec());
                }
            }
        }
    }
    Ok(variables.into_iter().map(|(key, value)| [key, value].join(&b'=')).collect())
}

/// A TCP port that was free a moment ago.
fn free_port() -> Result<u16> {
    let listener =
        std::net::TcpListener::bind(("127.0.0.1", 0)).context("finding a port for the debugger")?;
    Ok(listener.local_addr().context("finding a port for the debugger")?.port())
}

#[cfg(test)]
mod tests {
    use super::mebibytes;

    #[test]
    fn amounts_of_memory_have_units() {
        for (text, expected) in
            [("512", 512), ("512m", 512), ("2G", 2048), ("1GiB", 1024), ("65536k", 64), ("1048576b", 1)]
        {
            assert_eq!(mebibytes(text), Ok(expected), "{text}");
        }
        for text in ["", "m", "1.5g", "-1", "12q", "99999999999999999999", "99999999999999g"] {
            assert!(mebibytes(text).is_err(), "{text}");
        }
    }
}
