//! The program's life: its streams pumped, the host's messages obeyed, its end reported.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use heddle_abi::boot::NET_PATIENCE_SECONDS;
use heddle_abi::control::{
    self, EndOfInput, Ending, Exit, Start, WindowSize, kind, parse_word, put_started, put_word, stream,
};
use heddle_streams::{Drained, Filled, Message, Messages, Outbox, Pump};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, wait};
use rustix::time::{ClockId, clock_gettime};

use crate::dhcp::Keeping;
use crate::ports::Ports;
use crate::program::{self, Program, Terminal};

/// Standard output, standard error, and the terminal: the order of [`Exit::written_bytes`].
const OUTPUTS: usize = 3;

/// Input of the program that comes through a port.
struct Input {
    port: File,
    pump: Pump,
    /// How many bytes come in all, once the host has said.
    total: Option<u64>,
}

impl Input {
    fn new(port: File) -> Self {
        Self { port, pump: Pump::default(), total: None }
    }

    fn wants_input(&self) -> bool {
        self.pump.wants_input() && self.total.is_none_or(|total| self.pump.received() < total)
    }

    fn is_finished(&self) -> bool {
        self.pump.wants_input() && self.total.is_some_and(|total| self.pump.received() >= total)
    }
}

/// Output of the program that leaves through a port.
struct Output {
    port: File,
    pump: Pump,
}

/// Everything that is polled.
#[derive(Clone, Copy)]
enum Source {
    Control,
    Child,
    InputPort(usize),
    InputSink(usize),
    OutputPipe(usize),
    OutputPort(usize),
}

/// A program and its connections to the host.
pub struct Session {
    control: File,
    messages: Messages,
    outbox: Outbox,
    child_signal: UnixStream,
    /// Standard input and the terminal's input.
    inputs: [Input; 2],
    outputs: [Output; OUTPUTS],
    stdin: Option<File>,
    pipes: [Option<File>; 2],
    terminal: Option<Terminal>,
    program: Option<Pid>,
    ending: Option<Ending>,
    /// The lease of the machine's address, which ends with the session.
    lease: Option<Keeping>,
}

impl Session {
    /// Waits for the host's first message, and for a lease if one is to come, and starts the program.
    pub fn receive_start(ports: Ports, lease: Option<Keeping>) -> Result<Self> {
        let (child_signal, writer) = UnixStream::pair()?;
        child_signal.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(Signal::CHILD.as_raw(), writer)?;
        let output = |port| Output { port, pump: Pump::default() };
        let mut session = Self {
            control: ports.control,
            messages: Messages::default(),
            outbox: Outbox::default(),
            child_signal,
            inputs: [Input::new(ports.stdin), Input::new(ports.tty.try_clone()?)],
            outputs: [output(ports.stdout), output(ports.stderr), output(ports.tty)],
            stdin: None,
            pipes: [None, None],
            terminal: None,
            program: None,
            ending: None,
            lease,
        };
        loop {
            if let Some(message) = session.next_message()? {
                if message.kind == kind::START {
                    if session.lease.as_ref().is_some_and(|lease| !lease.wait()) {
                        put_word(&mut session.outbox, kind::NO_LEASE, NET_PATIENCE_SECONDS)
                            .ok()
                            .context("no lease")?;
                        session.outbox.drain(&session.control)?;
                    }
                    session.start(&Start::parse(&message.payload).context("malformed start message")?)?;
                    return Ok(session);
                }
                continue;
            }
            poll(&mut [PollFd::new(&session.control, PollFlags::IN)], None)?;
            session.read_control()?;
        }
    }

    fn next_message(&mut self) -> Result<Option<Message>> {
        self.messages.take().map_err(|_| anyhow::anyhow!("malformed message from the host"))
    }

    fn read_control(&mut self) -> Result<()> {
        if !self.messages.fill(&self.control)? {
            bail!("the host closed the control port");
        }
        Ok(())
    }

    fn start(&mut self, start: &Start<'_>) -> Result<()> {
        let now = clock_gettime(ClockId::Boottime);
        let nanoseconds = now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned();
        match program::spawn(start) {
            Ok(Program { pid, stdin, outputs, terminal }) => {
                self.program = Some(pid);
                self.stdin = stdin;
                self.pipes = outputs;
                self.terminal = terminal;
                put_started(&mut self.outbox, nanoseconds).ok().context("started")?;
            }
            Err(program::NotStarted(ending)) => self.ending = Some(ending),
        }
        Ok(())
    }

    /// Runs until the host has been told how the program ended.
    pub fn run(&mut self) -> Result<()> {
        let mut all_gone = self.program.is_none();
        // The host's next messages may have come together with its first.
        self.obey_all()?;
        loop {
            if self.ending.is_some() && all_gone && self.is_drained()? {
                return self.report();
            }
            for (source, flags) in self.wait()? {
                if matches!(source, Source::Child) {
                    let _ = rustix::io::read(&self.child_signal, &mut [0; 64]);
                    all_gone = self.reap()?;
                } else {
                    self.handle(source, flags)?;
                }
            }
        }
    }

    /// Waits, and returns the sources that are ready and have work to do.
    fn wait(&self) -> Result<Vec<(Source, PollFlags)>> {
        let mut entries: Vec<(Source, PollFd<'_>)> = Vec::with_capacity(12);
        let entry = |source, fd, flags| (source, PollFd::from_borrowed_fd(fd, flags));
        entries.push(entry(Source::Child, self.child_signal.as_fd(), PollFlags::IN));
        let control = if self.outbox.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        entries.push(entry(Source::Control, self.control.as_fd(), control));
        for (index, input) in self.inputs.iter().enumerate() {
            let Some(sink) = self.sink(index) else { continue };
            if input.wants_input() {
                entries.push(entry(Source::InputPort(index), input.port.as_fd(), PollFlags::IN));
            } else if input.pump.has_output() {
                entries.push(entry(Source::InputSink(index), sink, PollFlags::OUT));
            }
        }
        for (index, output) in self.outputs.iter().enumerate() {
            if output.pump.has_output() {
                entries.push(entry(Source::OutputPort(index), output.port.as_fd(), PollFlags::OUT));
            } else if let Some(source) = self.source(index) {
                entries.push(entry(Source::OutputPipe(index), source, PollFlags::IN));
            }
        }
        let (sources, mut fds): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = sources.into_iter().zip(fds.iter().map(PollFd::revents));
        Ok(ready.filter(|(_, flags)| !flags.is_empty()).collect())
    }

    fn sink(&self, input: usize) -> Option<BorrowedFd<'_>> {
        match input {
            0 => self.stdin.as_ref().map(AsFd::as_fd),
            _ => self.terminal.as_ref().map(|terminal| terminal.master.as_fd()),
        }
    }

    fn source(&self, output: usize) -> Option<BorrowedFd<'_>> {
        match self.pipes.get(output) {
            Some(pipe) => pipe.as_ref().map(AsFd::as_fd),
            None => self.terminal.as_ref().map(|terminal| terminal.master.as_fd()),
        }
    }

    fn handle(&mut self, source: Source, flags: PollFlags) -> Result<()> {
        match source {
            Source::Child => {}
            Source::Control => {
                self.outbox.drain(&self.control)?;
                if flags.intersects(PollFlags::IN | PollFlags::HUP) {
                    self.read_control()?;
                    self.obey_all()?;
                }
            }
            Source::InputPort(index) => {
                let input = &mut self.inputs[index];
                input.pump.fill(&input.port)?;
                self.feed(index)?;
            }
            Source::InputSink(index) => self.feed(index)?,
            Source::OutputPipe(index) => {
                self.collect(index)?;
            }
            Source::OutputPort(index) => {
                let output = &mut self.outputs[index];
                output.pump.drain(&output.port)?;
            }
        }
        Ok(())
    }

    /// Passes input on to the program, and its end.
    fn feed(&mut self, index: usize) -> Result<()> {
        let Some(sink) = (match index {
            0 => self.stdin.as_ref().map(AsFd::as_fd),
            _ => self.terminal.as_ref().map(|terminal| terminal.master.as_fd()),
        }) else {
            return Ok(());
        };
        let input = &mut self.inputs[index];
        let gone = input.pump.drain(sink)? == Drained::ReaderGone;
        if index == 0 && (gone || input.is_finished()) {
            self.stdin = None;
        }
        Ok(())
    }

    /// Takes output from the program; `false` says that there is none now.
    fn collect(&mut self, index: usize) -> Result<bool> {
        let Some(source) = (match self.pipes.get(index) {
            Some(pipe) => pipe.as_ref().map(AsFd::as_fd),
            None => self.terminal.as_ref().map(|terminal| terminal.master.as_fd()),
        }) else {
            return Ok(false);
        };
        let output = &mut self.outputs[index];
        match output.pump.fill(source)? {
            Filled::Bytes(_) => {
                output.pump.drain(&output.port)?;
                Ok(true)
            }
            Filled::Nothing => Ok(false),
            Filled::End => {
                if let Some(pipe) = self.pipes.get_mut(index) {
                    *pipe = None;
                }
                Ok(false)
            }
        }
    }

    fn obey_all(&mut self) -> Result<()> {
        while let Some(message) = self.next_message()? {
            self.obey(&message)?;
        }
        Ok(())
    }

    fn obey(&mut self, message: &Message) -> Result<()> {
        match message.kind {
            kind::END_OF_INPUT => {
                let end = EndOfInput::parse(&message.payload).context("malformed end of input")?;
                if end.stream == stream::STDIN {
                    self.inputs[0].total = Some(end.total_bytes);
                    self.feed(0)?;
                }
            }
            kind::WINDOW_SIZE => {
                let window = WindowSize::parse(&message.payload).context("malformed window size")?;
                if let Some(terminal) = &self.terminal {
                    terminal.resize(window)?;
                }
            }
            kind::SIGNAL => {
                let number = parse_word(&message.payload).context("malformed signal")?;
                let signal = i32::try_from(number).ok().and_then(Signal::from_named_raw);
                if let (Some(program), Some(signal)) = (self.program, signal) {
                    // The group may be gone already.
                    let _ = kill_process_group(program, signal);
                }
            }
            kind::READER_GONE => {
                let gone = parse_word(&message.payload).context("malformed reader-gone message")?;
                if let Some(index @ (0 | 1)) = gone.checked_sub(stream::STDOUT) {
                    self.pipes[index as usize] = None;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reaps every process that ended; `true` says that none is left.
    fn reap(&mut self) -> Result<bool> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.program => {
                    let ending = match (status.exit_status(), status.terminating_signal()) {
                        (Some(status), _) => Ending::Exited(status.cast_unsigned()),
                        (_, Some(signal)) => Ending::Signaled(signal.cast_unsigned()),
                        _ => continue,
                    };
                    self.program = None;
                    self.ending = Some(ending);
                    // The machine ends with its program, and no process may continue to write meanwhile.
                    // Group 1 stands for all processes but this one.
                    let _ = kill_process_group(Pid::INIT, Signal::KILL);
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(false),
                Err(Errno::CHILD) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether all that the program wrote has been handed to the ports.
    fn is_drained(&mut self) -> Result<bool> {
        let mut drained = true;
        for index in 0..OUTPUTS {
            while self.outputs[index].pump.wants_input() && self.collect(index)? {}
            drained &= self.outputs[index].pump.wants_input();
        }
        Ok(drained)
    }

    fn report(&mut self) -> Result<()> {
        let ending = self.ending.context("no ending")?;
        if let Some(lease) = &self.lease {
            lease.give_back();
        }
        let exit = Exit { ending, written_bytes: self.outputs.each_ref().map(|output| output.pump.sent()) };
        exit.put(&mut self.outbox).map_err(|control::Full| io::Error::other("exit message"))?;
        while !self.outbox.is_empty() {
            poll(&mut [PollFd::new(&self.control, PollFlags::OUT)], None)?;
            self.outbox.drain(&self.control)?;
        }
        Ok(())
    }
}
