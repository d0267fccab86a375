//! A program's life as the host sees it: one loop that moves its streams, reports the terminal's size and signals to
//! it, and receives its exit status.

mod output;
mod shares;
mod wait;

use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use heddle_abi::control::{
    Descriptor, EndOfInput, Ending, Exit, OutOfMemory, StartFields, WindowSize, kind, parse_started,
    parse_word, put_open_programs, put_word, stream,
};
use heddle_streams::{Drained, Filled, Messages, Outbox, Pump};
use rustix::process::{Signal, getpid, kill_process};

use crate::exchange::{ClientRequest, Exchange};
use crate::machine::{Machine, Ports};
use crate::signals::Signals;
use crate::strace::Trace;
use crate::terminal::{Terminal, window_size};
use output::OutputStream;
use wait::Ready;

/// How long the kernel may take until the program starts, under an emulator on a busy host.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
/// How often the log is looked at while system calls are shown.
const TRACE_PERIOD: Duration = Duration::from_millis(50);
/// How long the program has to end after it was told to, as docker's `stop` has it.
const GRACE: Duration = Duration::from_secs(10);
/// A third interrupt ends the machine: its kernel may be stuck.
const INTERRUPTS_MAX: u32 = 3;

/// The program to run in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its path; a name without a slash is looked for along the `PATH` of its environment.
    pub path: Vec<u8>,
    /// Its user and groups.
    pub identity: Identity,
    /// Its working directory.
    pub directory: Vec<u8>,
    /// Its arguments, its name first.
    pub arguments: Vec<Vec<u8>>,
    /// Its environment, as `KEY=VALUE`.
    pub environment: Vec<Vec<u8>>,
}

/// User and groups of a program; the default is the superuser.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The user id.
    pub user: u32,
    /// The group id.
    pub group: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

impl Program {
    /// Writes the message that starts the program.
    ///
    /// # Errors
    /// If arguments and environment are too long.
    pub fn put(
        &self,
        outbox: &mut Outbox,
        number: u32,
        descriptors: [Descriptor; 3],
        window: WindowSize,
    ) -> Result<()> {
        let fields = StartFields {
            number,
            descriptors,
            window,
            user: self.identity.user,
            group: self.identity.group,
            groups: &self.identity.groups,
            program: &self.path,
            directory: &self.directory,
            arguments: &self.arguments,
            environment: &self.environment,
        };
        fields.put(outbox).ok().context("the arguments and the environment are too long")
    }
}

/// Where the program's standard streams lead on the host.
#[derive(Debug)]
pub struct Streams {
    /// Standard input.
    pub stdin: OwnedFd,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error.
    pub stderr: OwnedFd,
}

impl Streams {
    /// This process's own.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn inherited() -> std::io::Result<Self> {
        Ok(Self {
            stdin: rustix::stdio::stdin().try_clone_to_owned()?,
            stdout: rustix::stdio::stdout().try_clone_to_owned()?,
            stderr: rustix::stdio::stderr().try_clone_to_owned()?,
        })
    }
}

impl Streams {
    /// No input, and all output to one file.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn to_log(log: &std::fs::File) -> std::io::Result<Self> {
        let null = std::fs::File::open("/dev/null")?;
        Ok(Self { stdin: null.into(), stdout: log.try_clone()?.into(), stderr: log.try_clone()?.into() })
    }
}

/// How a session ended.
#[derive(Debug)]
pub enum End {
    /// The program ended, or could not be started.
    Program(Ending),
    /// A signal told this tool to end.
    Interrupted(Signal),
    /// The machine ended before the program did.
    Machine(ExitStatus),
    /// The kernel did not start the program in time.
    Stuck,
}

/// The results of a session.
#[derive(Debug)]
pub struct Report {
    /// How it ended.
    pub end: End,
    /// Guest time from the kernel's first instruction to the program's start.
    pub started_nanoseconds: Option<u64>,
    /// Why output of the program could not be written on the host.
    pub output_error: Option<std::io::Error>,
    /// The processes that were killed because the guest's memory ran out.
    pub killed: Vec<OutOfMemory>,
    /// The connections of other commands to the machine, which end when this is dropped.
    pub exchange: Option<Exchange>,
}

/// Settings that differ from session to session.
#[derive(Default)]
pub struct Options<'a> {
    /// Show system calls.
    pub trace: Option<Trace<'a>>,
    /// Where other commands reach the machine.
    pub exchange: Option<Exchange>,
    /// The program is started when another command asks for it, and not at once.
    pub waits: bool,
    /// Called once the program has started.
    pub on_start: Option<Box<dyn FnOnce() + 'a>>,
}

/// A program in a machine, connected to the host.
struct Session<'a> {
    machine: &'a mut Machine,
    ports: Ports,
    signals: Signals,
    streams: Streams,
    descriptors: [Descriptor; 3],
    messages: Messages,
    /// Messages about changes in shared folders.
    changes: Messages,
    outbox: Outbox,
    stdin: Pump,
    stdin_ended: bool,
    tty: Pump,
    outputs: [OutputStream; 3],
    terminal: Option<Terminal>,
    trace: Option<Trace<'a>>,
    exchange: Option<Exchange>,
    on_start: Option<Box<dyn FnOnce() + 'a>>,
    /// The program, as long as it waits to be started.
    waiting: Option<&'a Program>,
    /// When the program should have started.
    deadline: Instant,
    exit: Option<Exit>,
    machine_status: Option<ExitStatus>,
    started_nanoseconds: Option<u64>,
    output_error: Option<std::io::Error>,
    killed: Vec<OutOfMemory>,
    /// With so many more, an interrupt ends the session.
    interrupts_left: u32,
    /// The signal that told the program to end, and when its time is over.
    grace: Option<(Signal, Instant)>,
}

/// Runs a program that no user watches: an interrupt is meant for this tool, and ends the session.
///
/// # Errors
/// As [`run`].
pub fn run_unattended(
    machine: &mut Machine,
    ports: Ports,
    program: &Program,
    streams: Streams,
) -> Result<Report> {
    run_with(machine, ports, program, streams, Options::default(), 1)
}

/// Runs a program in a machine that was just started.
///
/// # Errors
/// An error of a system call, or a guest that violates the protocol.
pub fn run<'a>(
    machine: &'a mut Machine,
    ports: Ports,
    program: &'a Program,
    streams: Streams,
    options: Options<'a>,
) -> Result<Report> {
    run_with(machine, ports, program, streams, options, INTERRUPTS_MAX)
}

fn run_with<'a>(
    machine: &'a mut Machine,
    ports: Ports,
    program: &'a Program,
    streams: Streams,
    options: Options<'a>,
    interrupts_max: u32,
) -> Result<Report> {
    let waits = options.waits;
    let mut session = Session::new(machine, ports, streams, options)?;
    session.interrupts_left = interrupts_max;
    session.waiting = Some(program);
    if !waits {
        session.begin()?;
    }
    let end = session.run()?;
    session.show_trace()?;
    Ok(Report {
        end,
        started_nanoseconds: session.started_nanoseconds,
        output_error: session.output_error.take(),
        killed: std::mem::take(&mut session.killed),
        exchange: session.exchange.take(),
    })
}

fn descriptor(fd: &OwnedFd) -> Descriptor {
    if fd.is_terminal() { Descriptor::Terminal } else { Descriptor::Pipe }
}

impl<'a> Session<'a> {
    fn new(machine: &'a mut Machine, ports: Ports, streams: Streams, options: Options<'a>) -> Result<Self> {
        let signals = Signals::watch().context("watching signals")?;
        let descriptors = [&streams.stdin, &streams.stdout, &streams.stderr].map(descriptor);
        let shows_on_terminal = descriptors[1] == Descriptor::Terminal;
        let mut terminal = (descriptors[0] == Descriptor::Terminal)
            .then(|| Terminal::new(streams.stdin.as_fd(), !shows_on_terminal))
            .transpose()
            .context("reading the terminal's state")?;
        if let Some(terminal) = &mut terminal {
            terminal.enter();
        }
        let keeps_output_modes = terminal.is_none() || !shows_on_terminal;
        let output = |number: usize, fd: Option<&OwnedFd>, socket: &_| {
            let sink = fd.filter(|_| number == 2 || descriptors[number + 1] == Descriptor::Pipe);
            OutputStream::new(socket, sink.map(AsFd::as_fd), number == 2 && keeps_output_modes)
        };
        let screen = match descriptors {
            [_, Descriptor::Terminal, _] => Some(&streams.stdout),
            [_, _, Descriptor::Terminal] => Some(&streams.stderr),
            [Descriptor::Terminal, ..] => Some(&streams.stdin),
            _ => None,
        };
        let outputs = [
            output(0, Some(&streams.stdout), &ports.stdout)?,
            output(1, Some(&streams.stderr), &ports.stderr)?,
            output(2, screen, &ports.tty)?,
        ];
        Ok(Self {
            machine,
            signals,
            descriptors,
            messages: Messages::default(),
            changes: Messages::default(),
            outbox: Outbox::default(),
            stdin: Pump::default(),
            stdin_ended: descriptors[0] != Descriptor::Pipe,
            tty: Pump::default(),
            outputs,
            terminal,
            trace: options.trace,
            exchange: options.exchange,
            on_start: options.on_start,
            waiting: None,
            deadline: Instant::now() + BOOT_TIMEOUT,
            exit: None,
            machine_status: None,
            started_nanoseconds: None,
            output_error: None,
            killed: Vec::new(),
            interrupts_left: INTERRUPTS_MAX,
            grace: None,
            ports,
            streams,
        })
    }

    fn window(&self) -> WindowSize {
        let fds = [&self.streams.stdout, &self.streams.stderr, &self.streams.stdin];
        fds.into_iter().map(|fd| window_size(fd.as_fd())).find(|size| size.rows != 0).unwrap_or_default()
    }

    /// Has the program started, unless that has been asked for before.
    fn begin(&mut self) -> Result<()> {
        let Some(program) = self.waiting.take() else { return Ok(()) };
        self.deadline = Instant::now() + BOOT_TIMEOUT;
        let window = self.window();
        program.put(&mut self.outbox, 0, self.descriptors, window)
    }

    fn run(&mut self) -> Result<End> {
        loop {
            if let Some(exit) = self.exit
                && self.has_all_output(&exit)
            {
                return Ok(End::Program(exit.ending));
            }
            if let Some(status) = self.machine_status
                && self.outputs.iter().all(OutputStream::is_finished)
            {
                return Ok(End::Machine(status));
            }
            let mut timeout = None;
            let has_news = self.started_nanoseconds.is_some() || self.exit.is_some();
            if !has_news && self.waiting.is_none() && self.machine_status.is_none() {
                let left = self.deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(End::Stuck);
                }
                timeout = Some(left);
            }
            if let Some((signal, until)) = self.grace {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(End::Interrupted(signal));
                }
                timeout = Some(left);
            }
            if self.trace.is_some() {
                timeout = Some(timeout.map_or(TRACE_PERIOD, |timeout| timeout.min(TRACE_PERIOD)));
            }
            for ready in self.wait(timeout)? {
                if let Some(end) = self.handle(ready)? {
                    return Ok(end);
                }
            }
            self.show_trace()?;
        }
    }

    fn has_all_output(&self, exit: &Exit) -> bool {
        let complete =
            |(output, total): (&OutputStream, u64)| output.is_drained() && output.received() >= total;
        self.outputs.iter().zip(exit.written_bytes).all(complete)
    }

    fn handle(&mut self, ready: Ready) -> Result<Option<End>> {
        match ready {
            Ready::Signal => return self.handle_signals(),
            Ready::MachineEnded => {
                self.machine_status = Some(self.machine.wait().context("waiting for QEMU")?);
                self.read_control()?;
            }
            Ready::ControlIn => self.read_control()?,
            // A machine that is gone is noticed by its end.
            Ready::ControlOut => drop(self.outbox.drain(&self.ports.control)),
            Ready::StdinSource => self.read_stdin()?,
            Ready::StdinPort => drop(self.stdin.drain(&self.ports.stdin)),
            Ready::TerminalSource => return self.read_terminal(),
            Ready::TerminalPort => drop(self.tty.drain(&self.ports.tty)),
            Ready::Exchange => return self.serve(),
            Ready::Changes => self.pass_changes_on(),
            Ready::OutputPort(index) => {
                self.outputs[index].fill();
                self.write_output(index)?;
            }
            Ready::OutputSink(index) => self.write_output(index)?,
            Ready::OutputGone(index) => self.reader_gone(index)?,
        }
        Ok(None)
    }

    fn read_control(&mut self) -> Result<()> {
        // The end of the port is the end of the machine, which is noticed elsewhere.
        while self.messages.fill(&self.ports.control).unwrap_or(false) {
            let mut any = false;
            while let Some(message) = self.messages.take().ok().context("malformed message from the guest")? {
                any = true;
                match message.kind {
                    kind::EXIT => {
                        self.exit = Some(Exit::parse(&message.payload).context("malformed exit message")?);
                    }
                    kind::STARTED => {
                        self.started_nanoseconds = parse_started(&message.payload);
                        if let Some(tell) = self.on_start.take() {
                            tell();
                        }
                        if let Some(exchange) = &mut self.exchange {
                            exchange.tell_start();
                        }
                    }
                    kind::OUT_OF_MEMORY => {
                        let killed = OutOfMemory::parse(&message.payload).context("malformed message")?;
                        self.killed.push(killed);
                    }
                    kind::SPECIAL_FILE => self.make_special_file(&message.payload)?,
                    kind::NO_LEASE => {
                        let seconds = parse_word(&message.payload).context("malformed message")?;
                        self.say_no_lease(seconds);
                    }
                    _ => {}
                }
            }
            if !any {
                break;
            }
        }
        Ok(())
    }

    /// Says, before the program starts, that it has no address.
    fn say_no_lease(&mut self, seconds: u32) {
        // A terminal that is not set up for programs shows the line as it should be.
        if let Some(terminal) = &mut self.terminal {
            terminal.leave();
        }
        crate::say!(
            "no DHCP server has answered for {seconds} s; the program starts without an IPv4 address"
        );
        if let Some(terminal) = &mut self.terminal {
            terminal.enter();
        }
    }

    /// Does what other commands ask for.
    fn serve(&mut self) -> Result<Option<End>> {
        let Some(exchange) = &mut self.exchange else { return Ok(None) };
        for request in exchange.serve(&self.ports.programs)? {
            match request {
                ClientRequest::Begin => self.begin()?,
                ClientRequest::OpenPrograms => {
                    put_open_programs(&mut self.outbox).ok().context("opening a port")?;
                }
                ClientRequest::Signal(number) => {
                    put_word(&mut self.outbox, kind::SIGNAL, number).ok().context("signal")?;
                }
                ClientRequest::End => return Ok(Some(End::Interrupted(Signal::KILL))),
            }
        }
        let _ = self.outbox.drain(&self.ports.control);
        Ok(None)
    }

    fn read_stdin(&mut self) -> Result<()> {
        // A descriptor that can't be read has no more input for the program.
        if self.stdin.fill(&self.streams.stdin).unwrap_or(Filled::End) == Filled::End {
            self.stdin_ended = true;
            let end = EndOfInput { stream: stream::STDIN, total_bytes: self.stdin.received() };
            end.put(&mut self.outbox).ok().context("end of input")?;
            let _ = self.outbox.drain(&self.ports.control);
        }
        let _ = self.stdin.drain(&self.ports.stdin);
        Ok(())
    }

    fn read_terminal(&mut self) -> Result<Option<End>> {
        let Some(terminal) = &self.terminal else { return Ok(None) };
        if self.tty.fill(terminal).context("reading the terminal")? == Filled::End {
            self.terminal = None;
            return self.tell_to_end(Signal::HUP);
        }
        let _ = self.tty.drain(&self.ports.tty);
        Ok(None)
    }

    fn write_output(&mut self, index: usize) -> Result<()> {
        match self.outputs[index].drain() {
            Ok(Drained::ReaderGone) => self.reader_gone(index),
            Ok(Drained::All | Drained::Some) => Ok(()),
            Err(error) => {
                self.output_error = Some(error);
                self.reader_gone(index)
            }
        }
    }

    fn reader_gone(&mut self, index: usize) -> Result<()> {
        if self.outputs[index].close_sink() {
            let number = [stream::STDOUT, stream::STDERR, stream::TTY][index];
            put_word(&mut self.outbox, kind::READER_GONE, number).ok().context("reader gone")?;
            let _ = self.outbox.drain(&self.ports.control);
        }
        Ok(())
    }

    fn handle_signals(&mut self) -> Result<Option<End>> {
        for signal in self.signals.take() {
            match signal {
                Signal::WINCH => {
                    let window = self.window();
                    window.put(&mut self.outbox).ok().context("window size")?;
                }
                Signal::INT | Signal::QUIT => {
                    self.interrupts_left = self.interrupts_left.saturating_sub(1);
                    if self.started_nanoseconds.is_none() || self.interrupts_left == 0 {
                        return Ok(Some(End::Interrupted(signal)));
                    }
                    let number = signal.as_raw().cast_unsigned();
                    put_word(&mut self.outbox, kind::SIGNAL, number).ok().context("signal")?;
                }
                Signal::TSTP => self.stop()?,
                Signal::CONT => {
                    if let Some(terminal) = &mut self.terminal {
                        terminal.enter();
                    }
                }
                _ => {
                    if let Some(end) = self.tell_to_end(signal)? {
                        return Ok(Some(end));
                    }
                }
            }
        }
        let _ = self.outbox.drain(&self.ports.control);
        Ok(None)
    }

    /// Sends the program a signal that should end it. A program that nobody watches, that has not started, or that was
    /// told before, gets no time for it; a terminal that hangs up may say so twice.
    fn tell_to_end(&mut self, signal: Signal) -> Result<Option<End>> {
        let was_told = self.grace.is_some_and(|(before, _)| (before, signal) != (Signal::HUP, Signal::HUP));
        if self.started_nanoseconds.is_none() || self.interrupts_left <= 1 || was_told {
            return Ok(Some(End::Interrupted(signal)));
        }
        let number = signal.as_raw().cast_unsigned();
        put_word(&mut self.outbox, kind::SIGNAL, number).ok().context("signal")?;
        let _ = self.outbox.drain(&self.ports.control);
        self.grace.get_or_insert((signal, Instant::now() + GRACE));
        Ok(None)
    }

    /// Stops the machine and this process until this process is continued.
    fn stop(&mut self) -> Result<()> {
        if let Some(terminal) = &mut self.terminal {
            terminal.leave();
        }
        self.machine.pause();
        let stopped = kill_process(getpid(), Signal::STOP);
        self.machine.resume();
        if let Some(terminal) = &mut self.terminal {
            terminal.enter();
        }
        if stopped.is_err() {
            bail!("cannot stop");
        }
        Ok(())
    }

    fn show_trace(&mut self) -> Result<()> {
        self.trace.as_mut().map_or(Ok(()), Trace::show).context("writing the trace")
    }
}
