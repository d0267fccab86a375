//! `heddle oci`, also called as `heddle-oci`: the command line of the OCI runtime specification, as engines use it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use heddle_abi::control::WindowSize;
use heddle_linux_init::Task;
use serde_json::json;

use super::machines::{end, parse_signal};
use crate::exchange::client::{self, Connections};
use crate::exchange::{self, request};
use crate::machines::detach::{self, ReadyPipe, Started};
use crate::machines::{self, MachineEntry, Registry, Stage, State};
use crate::oci::{self, ContainerRecord, bundle, console, hooks, monitor};
use crate::session::Streams;

/// The folder, in a container's folder of state, of the single files that it mounts.
const FILES: &str = "files";
/// How long a container's program may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs containers as an OCI runtime does, each in a machine of its own.
#[derive(Clone, Debug, clap::Args)]
pub struct OciOptions {
    /// Where the states of containers are kept.
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Append errors and remarks to a file.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// The form of the log's lines.
    #[arg(long, value_name = "text|json", default_value = "text")]
    pub log_format: String,
    /// The least important lines of the log; accepted for engines that pass it.
    #[arg(long, value_name = "LEVEL", hide = true)]
    pub log_level: Option<String>,
    /// Accepted for engines that pass it: there are no control groups.
    #[arg(long, hide = true)]
    pub systemd_cgroup: bool,
    /// Accepted for engines that pass it.
    #[arg(long, hide = true)]
    pub debug: bool,
    /// Accepted for engines that pass it.
    #[arg(long, hide = true, num_args = 0..=1)]
    pub rootless: Option<Option<String>>,
    /// The command.
    #[command(subcommand)]
    pub command: OciCommand,
}

/// The commands of the specification and those that engines use beside.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum OciCommand {
    /// Make a container: its machine boots, its program waits for `start`.
    Create(Create),
    /// Start a container's program.
    Start(Id),
    /// Print a container's state.
    State(Id),
    /// Send a signal to a container's program.
    Kill(OciKill),
    /// Remove a container that has stopped.
    Delete(Delete),
    /// List containers.
    List(OciList),
    /// Run a further program in a container.
    Exec(Box<Exec>),
    /// Print the host's processes of a container.
    Ps(Processes),
    /// Print what this runtime can do.
    Features,
}

/// A container.
#[derive(Clone, Debug, clap::Args)]
pub struct Id {
    /// The container.
    pub id: String,
}

/// OciOptions of `create`.
#[derive(Clone, Debug, clap::Args)]
pub struct Create {
    /// The folder with config.json.
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    pub bundle: PathBuf,
    /// Write the number of the container's process to a file.
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Send the container's terminal to this socket.
    #[arg(long, value_name = "SOCKET")]
    pub console_socket: Option<PathBuf>,
    /// Accepted for engines that pass it: a machine has a root of its own.
    #[arg(long, hide = true)]
    pub no_pivot: bool,
    /// Accepted for engines that pass it: there are no session keyrings.
    #[arg(long, hide = true)]
    pub no_new_keyring: bool,
    /// Descriptors to pass on, which a machine cannot have.
    #[arg(long, hide = true, default_value_t = 0)]
    pub preserve_fds: u32,
    /// The container.
    pub id: String,
}

/// OciOptions of `kill`.
#[derive(Clone, Debug, clap::Args)]
pub struct OciKill {
    /// To all processes of the container.
    #[arg(short, long)]
    pub all: bool,
    /// The container.
    pub id: String,
    /// The signal, by name or number.
    #[arg(default_value = "TERM")]
    pub signal: String,
}

/// OciOptions of `delete`.
#[derive(Clone, Debug, clap::Args)]
pub struct Delete {
    /// End the container first, and be content if there is none.
    #[arg(short, long)]
    pub force: bool,
    /// The container.
    pub id: String,
}

/// OciOptions of `list`.
#[derive(Clone, Debug, clap::Args)]
pub struct OciList {
    /// Names only.
    #[arg(short, long)]
    pub quiet: bool,
    /// The form.
    #[arg(short, long, value_name = "table|json", default_value = "table")]
    pub format: String,
}

/// OciOptions of `ps`.
#[derive(Clone, Debug, clap::Args)]
pub struct Processes {
    /// The form.
    #[arg(short, long, value_name = "table|json", default_value = "table")]
    pub format: String,
    /// The container.
    pub id: String,
    /// Accepted for engines that pass options of ps(1).
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub options: Vec<String>,
}

/// OciOptions of `exec`.
#[derive(Clone, Debug, clap::Args)]
pub struct Exec {
    /// The process, as JSON.
    #[arg(short, long, value_name = "FILE")]
    pub process: Option<PathBuf>,
    /// Return once the program runs.
    #[arg(short, long)]
    pub detach: bool,
    /// Write the number of the program's process to a file.
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Send the program's terminal to this socket.
    #[arg(long, value_name = "SOCKET")]
    pub console_socket: Option<PathBuf>,
    /// Give the program a terminal.
    #[arg(short, long)]
    pub tty: bool,
    /// The working directory.
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// Set a variable of the environment.
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub env: Vec<String>,
    /// The user and group, by number.
    #[arg(short, long, value_name = "UID[:GID]")]
    pub user: Option<String>,
    /// Descriptors to pass on, which a machine cannot have.
    #[arg(long, hide = true, default_value_t = 0)]
    pub preserve_fds: u32,
    /// The container.
    pub id: String,
    /// The program and its arguments, without --process.
    #[arg(trailing_var_arg = true, value_name = "PROGRAM ARGS")]
    pub program: Vec<String>,
}

/// Runs the command and says with which status to end.
///
/// # Errors
/// Any failure, which is in the log too.
pub fn execute(options: &OciOptions) -> Result<u8> {
    let result = dispatch(options);
    if let Err(error) = &result {
        note(options, "error", &format!("{error:#}"));
    }
    result
}

fn dispatch(options: &OciOptions) -> Result<u8> {
    let registry = oci::registry(options.root.as_deref())?;
    match &options.command {
        OciCommand::Create(create) => self::create(options, &registry, create),
        OciCommand::Start(id) => start(options, &registry, &id.id),
        OciCommand::State(id) => {
            let (_, state, record) = find(&registry, &id.id)?;
            print(&state_json(&state, &record))
        }
        OciCommand::Kill(kill) => self::kill(&registry, kill),
        OciCommand::Delete(delete) => self::delete(options, &registry, delete),
        OciCommand::List(list) => self::list(&registry, list),
        OciCommand::Exec(exec) => self::exec(options, &registry, exec),
        OciCommand::Ps(processes) => {
            let (_, state, _) = find(&registry, &processes.id)?;
            let running = state.stage != Stage::Stopped;
            let pids: Vec<i32> = running.then_some(state.pid).into_iter().collect();
            if processes.format == "json" {
                return print(&json!(pids));
            }
            crate::out!("PID");
            for pid in pids {
                crate::out!("{pid}");
            }
            Ok(0)
        }
        OciCommand::Features => print(&features()),
    }
}

/// Writes a line to the engine's log.
fn note(options: &OciOptions, level: &str, text: &str) {
    let Some(path) = &options.log else { return };
    let time = humantime::format_rfc3339_seconds(std::time::SystemTime::now());
    let line = match options.log_format.as_str() {
        "json" => json!({"level": level, "msg": text, "time": time.to_string()}).to_string(),
        _ => format!("time=\"{time}\" level={level} msg={text:?}"),
    };
    // A log that cannot be written costs its lines and nothing else.
    if let Ok(mut log) = File::options().append(true).create(true).open(path) {
        let _ = writeln!(log, "{line}");
    }
}

fn print(value: &serde_json::Value) -> Result<u8> {
    let mut output = io::stdout().lock();
    serde_json::to_writer_pretty(&mut output, value).context("standard output")?;
    writeln!(output).context("standard output")?;
    Ok(0)
}

fn find(registry: &Registry, id: &str) -> Result<(MachineEntry, State, ContainerRecord)> {
    let Ok(entry) = registry.find(id) else { bail!("container {id} does not exist") };
    let state = entry.state()?;
    let record = state.container.clone().context("not a container")?;
    Ok((entry, state, serde_json::from_value(record).context("the container's state")?))
}

fn state_json(state: &State, record: &ContainerRecord) -> serde_json::Value {
    let stopped = state.stage == Stage::Stopped;
    json!({
        "ociVersion": oci::VERSION,
        "id": state.name,
        "status": state.stage,
        "pid": if stopped { 0 } else { state.pid },
        "bundle": record.bundle,
        "annotations": record.annotations,
        "created": humantime::format_rfc3339_seconds(
            std::time::UNIX_EPOCH + Duration::from_secs(state.created)
        ).to_string(),
    })
}

fn create(options: &OciOptions, registry: &Registry, create: &Create) -> Result<u8> {
    if create.preserve_fds > 0 {
        bail!("--preserve-fds: descriptors of the host cannot be passed into a machine");
    }
    if let Some(ready) = ReadyPipe::inherited()? {
        return run(options, registry, create, ready);
    }
    let child = match detach::start(detach::copy()?)? {
        // The monitor has said why, where the container's standard error leads, and in the log.
        Started::Ended(status) => return Ok(status),
        Started::Ready(child) => child,
    };
    let (entry, state, record) = find(registry, &create.id)?;
    let spec = oci_spec::runtime::Spec::load(record.bundle.join("config.json")).context("config.json")?;
    let text = state_json(&state, &record).to_string();
    let ready = || -> Result<()> {
        if let Some(wanted) = spec.hooks() {
            #[allow(deprecated, reason = "engines still use it")]
            hooks::run(wanted.prestart().as_ref(), &text)?;
            hooks::run(wanted.create_runtime().as_ref(), &text)?;
            hooks::run(wanted.create_container().as_ref(), &text)?;
        }
        create.pid_file.as_ref().map_or(Ok(()), |file| write_pid(file, child.id()))
    };
    if let Err(error) = ready() {
        if let Ok(socket) = entry.connect() {
            let _ = end(&entry, &socket);
        }
        let _ = entry.remove();
        return Err(error);
    }
    Ok(0)
}

/// The process that runs the container's machine.
fn run(options: &OciOptions, registry: &Registry, create: &Create, ready: ReadyPipe) -> Result<u8> {
    let folder = create.bundle.canonicalize().with_context(|| create.bundle.display().to_string())?;
    if registry.find(&create.id).is_ok() {
        bail!("container {} exists", create.id);
    }
    let state = State {
        name: create.id.clone(),
        stage: Stage::Creating,
        pid: 0,
        created: machines::now(),
        kernel: String::from("heddle"),
        command: Vec::new(),
        status: None,
        is_detached: false,
        container: None,
    };
    let mut owned = registry.claim(state, false)?;
    let prepared = (|| {
        let bundle = bundle::read(&folder, &owned.entry.folder().join(FILES))?;
        if bundle.has_terminal != create.console_socket.is_some() {
            bail!("process.terminal and --console-socket: one does not go without the other");
        }
        Ok(bundle)
    })();
    let bundle = match prepared {
        Ok(bundle) => bundle,
        Err(error) => {
            owned.discard();
            return Err(error);
        }
    };
    bundle.notes.iter().for_each(|text| note(options, "info", text));
    let record = ContainerRecord { bundle: folder, annotations: bundle::annotations(&bundle.spec) };
    owned.state.container = Some(serde_json::to_value(record).context("the container's state")?);
    owned.state.command.clone_from(&bundle.task.process.arguments);
    owned.state.kernel = bundle.kernel.name().to_owned();
    monitor::run(&bundle, owned, create.console_socket.as_deref(), ready)
}

/// Written beside and renamed, so that an engine that watches for it reads all of it.
fn write_pid(file: &Path, pid: u32) -> Result<()> {
    let mut new = file.as_os_str().to_owned();
    new.push(".new");
    fs::write(&new, pid.to_string()).and_then(|()| fs::rename(&new, file)).context("the pid file")
}

fn start(options: &OciOptions, registry: &Registry, id: &str) -> Result<u8> {
    let (entry, state, record) = find(registry, id)?;
    if state.stage != Stage::Created {
        bail!("container {id} is {}, not created", serde_json::to_string(&state.stage)?);
    }
    let spec = oci_spec::runtime::Spec::load(record.bundle.join("config.json")).context("config.json")?;
    let text = state_json(&state, &record).to_string();
    let hooks_of = spec.hooks().clone().unwrap_or_default();
    hooks::run(hooks_of.start_container().as_ref(), &text)?;
    let socket = entry.connect()?;
    exchange::send_request(&socket, request::BEGIN).context("the container's machine")?;
    // The machine's process answers when the program runs, and goes when there is none.
    if !client::wait_for_word(&socket, START_TIMEOUT)? {
        bail!("the container's program does not start");
    }
    if let Err(error) = hooks::run(hooks_of.poststart().as_ref(), &text) {
        note(options, "warning", &format!("{error:#}"));
    }
    Ok(0)
}

fn kill(registry: &Registry, kill: &OciKill) -> Result<u8> {
    const ENDING: [u32; 2] = [9, 15];
    let (entry, state, _) = find(registry, &kill.id)?;
    let signal = parse_signal(&kill.signal)?;
    let socket = match state.stage {
        Stage::Stopped => bail!("container {} is not running", kill.id),
        _ => entry.connect()?,
    };
    if state.stage == Stage::Running {
        exchange::send_signal(&socket, signal, kill.all).context("the container's machine")?;
    } else if ENDING.contains(&signal) {
        end(&entry, &socket)?;
    }
    Ok(0)
}

fn delete(options: &OciOptions, registry: &Registry, delete: &Delete) -> Result<u8> {
    let found = find(registry, &delete.id);
    let (entry, state, record) = match found {
        Ok(found) => found,
        Err(_) if delete.force => {
            // One that was never made as a whole has a folder at most.
            if let Ok(entry) = registry.find(&delete.id) {
                entry.remove()?;
            }
            return Ok(0);
        }
        Err(error) => return Err(error),
    };
    if state.stage != Stage::Stopped {
        if !delete.force && state.stage != Stage::Created {
            bail!("container {} is running", delete.id);
        }
        if let Ok(socket) = entry.connect() {
            end(&entry, &socket)?;
        }
    }
    entry.remove()?;
    if let Ok(spec) = oci_spec::runtime::Spec::load(record.bundle.join("config.json"))
        && let Some(wanted) = spec.hooks()
    {
        let state = State { stage: Stage::Stopped, ..state };
        if let Err(error) = hooks::run(wanted.poststop().as_ref(), &state_json(&state, &record).to_string()) {
            note(options, "warning", &format!("{error:#}"));
        }
    }
    Ok(0)
}

fn list(registry: &Registry, list: &OciList) -> Result<u8> {
    let mut containers = Vec::new();
    for (_, state) in registry.all()? {
        if let Some(record) = state.container.clone().and_then(|record| serde_json::from_value(record).ok()) {
            containers.push((state, record));
        }
    }
    if list.format == "json" {
        let all: Vec<_> = containers.iter().map(|(state, record)| state_json(state, record)).collect();
        return print(&json!(all));
    }
    if !list.quiet {
        crate::out!("{:<64}  {:>8}  {:<8}  BUNDLE", "ID", "PID", "STATUS");
    }
    for (state, record) in &containers {
        if list.quiet {
            crate::out!("{}", state.name);
        } else {
            let stage = state_json(state, record)["status"].as_str().unwrap_or_default().to_owned();
            crate::out!("{:<64}  {:>8}  {stage:<8}  {}", state.name, state.pid, record.bundle.display());
        }
    }
    Ok(0)
}

fn exec(options: &OciOptions, registry: &Registry, exec: &Exec) -> Result<u8> {
    if exec.preserve_fds > 0 {
        bail!("--preserve-fds: descriptors of the host cannot be passed into a machine");
    }
    let (entry, state, record) = find(registry, &exec.id)?;
    if state.stage != Stage::Running {
        bail!("container {} is not running", exec.id);
    }
    let ready = ReadyPipe::inherited()?;
    if exec.detach && ready.is_none() {
        return match detach::start(detach::copy()?)? {
            Started::Ended(status) => Ok(status),
            Started::Ready(child) => {
                exec.pid_file.as_ref().map_or(Ok(()), |file| write_pid(file, child.id()))?;
                Ok(0)
            }
        };
    }
    let (task, has_terminal, size) = task(options, exec, &record)?;
    let streams = match (&exec.console_socket, has_terminal) {
        (Some(socket), true) => console::connect(socket, size)?,
        (Some(_), false) => bail!("--console-socket without a terminal"),
        (None, _) => Streams::inherited()?,
    };
    if ready.is_some() {
        detach::leave_session();
    }
    let tell = || {
        if let Some(ready) = ready {
            ready.tell();
        } else if let Some(file) = &exec.pid_file
            && let Err(error) = write_pid(file, std::process::id())
        {
            crate::say!("{error:#}");
        }
    };
    let program = monitor::program(&task)?;
    let connections = Connections { has_input: true, is_terminal: has_terminal };
    let ending = client::run(entry.connect()?, &program, streams, connections, tell)?;
    client::exit_status(ending, &task.process.arguments[0])
}

/// The program of an `exec`: a whole process, or the container's own with what the options change.
fn task(options: &OciOptions, exec: &Exec, record: &ContainerRecord) -> Result<(Task, bool, WindowSize)> {
    let wanted: oci_spec::runtime::Process = match &exec.process {
        Some(path) => {
            let text = fs::read(path).with_context(|| path.display().to_string())?;
            serde_json::from_slice(&text).with_context(|| path.display().to_string())?
        }
        None => {
            let spec = oci_spec::runtime::Spec::load(record.bundle.join("config.json"));
            let process = spec.context("config.json")?.process().clone();
            let mut process = process.context("config.json: no process")?;
            process.set_terminal(Some(exec.tty)).set_args(Some(exec.program.clone()));
            process
        }
    };
    let mut notes = Vec::new();
    let mut process = bundle::process_of(&wanted, &mut notes)?;
    notes.iter().for_each(|text| note(options, "info", text));
    if exec.process.is_none() {
        process.environment.extend(exec.env.iter().cloned());
        if let Some(directory) = &exec.cwd {
            process.directory.clone_from(directory);
        }
        if let Some(user) = &exec.user {
            let (user, group) = user.split_once(':').unwrap_or((user, "0"));
            process.user = user.parse().context("--user: not a number")?;
            process.group = group.parse().context("--user: not a number")?;
            process.groups.clear();
        }
    }
    let size = wanted.console_size().map_or(WindowSize::default(), |size| WindowSize {
        rows: u32::try_from(size.height()).unwrap_or(0),
        columns: u32::try_from(size.width()).unwrap_or(0),
    });
    let has_terminal = wanted.terminal().unwrap_or(exec.tty);
    Ok((Task { container: None, process }, has_terminal, size))
}

fn features() -> serde_json::Value {
    json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": oci::VERSION,
        "hooks": ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"],
        "mountOptions": ["bind", "rbind", "ro", "rw", "nosuid", "suid", "nodev", "dev", "noexec", "exec", "mode",
            "size"],
        "linux": {
            "namespaces": ["mount", "pid", "ipc", "uts", "network", "cgroup"],
            "capabilities": bundle::capability_names(),
            "cgroup": {"v1": false, "v2": false, "systemd": false, "systemdUser": false, "rdma": false},
            "seccomp": {"enabled": false},
            "apparmor": {"enabled": false},
            "selinux": {"enabled": false},
        },
        "annotations": {"org.heddle.version": env!("CARGO_PKG_VERSION")},
    })
}
