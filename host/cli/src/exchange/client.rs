//! A further program in a running machine, connected to this process: its streams, terminal, signals and status.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use heddle_abi::control::programs::{Piece, Short, Taken, Window, kind, parse_ended, scope};
use heddle_abi::control::{Descriptor, Ending, WindowSize, stream};
use heddle_streams::{Drained, Message, Messages, Outbox};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use super::OWN;
use crate::session::{Identity, Program, Streams};
use crate::signals::Signals;
use crate::sink::Sink;
use crate::terminal::{Terminal, window_size};

/// Streams from the program, in the order of their sinks.
const OUTPUTS: [u32; 3] = [stream::STDOUT, stream::STDERR, stream::TTY];
/// Input is not read while so much waits to be sent.
const OUTBOX_MAX_BYTES: usize = 64 << 10;

/// Where a stream of the program ends, and what waits for it: at most a window.
struct ClientOutput {
    sink: Option<Sink>,
    waiting: VecDeque<u8>,
    taken: Taken,
}

/// The streams that a program is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Standard input is passed on.
    pub has_input: bool,
    /// All three descriptors are one terminal.
    pub is_terminal: bool,
}

/// The connection to the process that runs the machine.
pub struct Client {
    socket: UnixStream,
    messages: Messages,
    outbox: Outbox,
    streams: Streams,
    window: Window,
    reads_input: bool,
    is_terminal: bool,
    outputs: [ClientOutput; 3],
    signals: Signals,
    terminal: Option<Terminal>,
    ending: Option<Ending>,
}

/// Runs a program and returns how it ended. `on_start` is called once it runs.
///
/// # Errors
/// If the machine cannot be reached or ends without a word, or output cannot be written.
pub fn run(
    socket: UnixStream,
    program: &Program,
    streams: Streams,
    connections: Connections,
    on_start: impl FnOnce(),
) -> Result<Ending> {
    let mut client = Client::new(socket, streams, connections)?;
    let descriptors = match connections.is_terminal {
        true => [Descriptor::Terminal; 3],
        false => [Descriptor::Pipe; 3],
    };
    let window = client.window_size();
    program.put(&mut client.outbox, OWN, descriptors, window)?;
    if !connections.has_input && !connections.is_terminal {
        client.put(kind::END, [stream::STDIN, 0])?;
    }
    client.run(on_start)
}

impl Client {
    fn new(socket: UnixStream, streams: Streams, connections: Connections) -> Result<Self> {
        socket.set_nonblocking(true).context("the machine's socket")?;
        let signals = Signals::watch().context("watching signals")?;
        let mut terminal = None;
        if connections.is_terminal && connections.has_input {
            let mut found =
                Terminal::new(streams.stdin.as_fd(), false).context("reading the terminal's state")?;
            found.enter();
            terminal = Some(found);
        }
        let output = |is_used: bool, fd: &OwnedFd| -> Result<ClientOutput> {
            let sink = is_used.then(|| Sink::new(fd.as_fd())).transpose().context("standard output")?;
            Ok(ClientOutput { sink, waiting: VecDeque::new(), taken: Taken::default() })
        };
        let is_terminal = connections.is_terminal;
        let outputs = [
            output(!is_terminal, &streams.stdout)?,
            output(!is_terminal, &streams.stderr)?,
            output(is_terminal, &streams.stdout)?,
        ];
        Ok(Self {
            socket,
            messages: Messages::default(),
            outbox: Outbox::default(),
            window: Window::default(),
            reads_input: connections.has_input,
            is_terminal,
            outputs,
            signals,
            terminal,
            streams,
            ending: None,
        })
    }

    fn window_size(&self) -> WindowSize {
        if self.is_terminal { window_size(self.streams.stdout.as_fd()) } else { WindowSize::default() }
    }

    fn put(&mut self, kind: u32, words: [u32; 2]) -> Result<()> {
        (Short { number: OWN, words }).put(&mut self.outbox, kind).ok().context("message")
    }

    fn run(&mut self, on_start: impl FnOnce()) -> Result<Ending> {
        let mut on_start = Some(on_start);
        loop {
            if let Some(ending) = self.ending
                && self.outputs.iter().all(|output| output.waiting.is_empty())
            {
                return Ok(ending);
            }
            self.wait()?;
            self.take_signals()?;
            self.read_input()?;
            if self.read_machine(&mut on_start)? && self.ending.is_none() {
                bail!("the machine has ended");
            }
            for index in 0..self.outputs.len() {
                self.write_output(index)?;
            }
            // A machine that is gone is noticed when it is read from.
            let _ = self.outbox.drain(&self.socket);
        }
    }

    fn wait(&self) -> Result<()> {
        let mut interests: Vec<(BorrowedFd<'_>, PollFlags)> = Vec::with_capacity(16);
        interests.extend(self.signals.descriptors().map(|fd| (fd, PollFlags::IN)));
        if self.ending.is_none() {
            let out = if self.outbox.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            interests.push((self.socket.as_fd(), PollFlags::IN | out));
        }
        if self.can_read_input() {
            interests.push((self.streams.stdin.as_fd(), PollFlags::IN));
        }
        for output in self.outputs.iter().filter(|output| !output.waiting.is_empty()) {
            interests.extend(output.sink.as_ref().map(|sink| (sink.as_fd(), PollFlags::OUT)));
        }
        let mut fds: Vec<_> =
            interests.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("poll"),
        }
    }

    fn can_read_input(&self) -> bool {
        let in_foreground = self.terminal.as_ref().is_none_or(Terminal::is_raw);
        let has_room = self.window.piece_bytes() > 0 && self.outbox.len() < OUTBOX_MAX_BYTES;
        self.reads_input && self.ending.is_none() && in_foreground && has_room
    }

    fn read_input(&mut self) -> Result<()> {
        if !self.can_read_input() || !is_ready(self.streams.stdin.as_fd(), PollFlags::IN) {
            return Ok(());
        }
        let mut bytes = vec![0; self.window.piece_bytes()];
        let stream = if self.is_terminal { stream::TTY } else { stream::STDIN };
        match rustix::io::read(&self.streams.stdin, &mut bytes) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            // A descriptor that cannot be read has no more input for the program.
            Ok(0) | Err(_) => {
                self.reads_input = false;
                self.put(kind::END, [stream, 0])?;
            }
            Ok(count) => {
                self.window.spend(count);
                let piece = Piece { number: OWN, stream, bytes: &bytes[..count] };
                piece.put(&mut self.outbox, kind::INPUT).ok().context("input")?;
            }
        }
        Ok(())
    }

    /// Takes what the machine has sent; `true` if it has gone.
    fn read_machine(&mut self, on_start: &mut Option<impl FnOnce()>) -> Result<bool> {
        let is_gone = !self.messages.fill(&self.socket).unwrap_or(false);
        while let Some(message) = self.messages.take().ok().context("malformed message")? {
            self.handle(&message, on_start)?;
        }
        Ok(is_gone)
    }

    fn handle(&mut self, message: &Message, on_start: &mut Option<impl FnOnce()>) -> Result<()> {
        match message.kind {
            kind::STARTED => {
                if let Some(tell) = on_start.take() {
                    tell();
                }
            }
            kind::OUTPUT => {
                let piece = Piece::parse(&message.payload).context("malformed message")?;
                if let Some(index) = OUTPUTS.iter().position(|&stream| stream == piece.stream)
                    && self.outputs[index].sink.is_some()
                {
                    self.outputs[index].waiting.extend(piece.bytes);
                }
            }
            kind::CREDIT => {
                let Short { words: [_, bytes], .. } =
                    Short::parse(&message.payload).context("malformed message")?;
                self.window.grant(bytes);
            }
            kind::ENDED => {
                self.ending = Some(parse_ended(&message.payload).context("malformed message")?);
            }
            _ => {}
        }
        Ok(())
    }

    fn write_output(&mut self, index: usize) -> Result<()> {
        let output = &mut self.outputs[index];
        let Some(sink) = output.sink.as_ref().filter(|_| !output.waiting.is_empty()) else { return Ok(()) };
        if !is_ready(sink.as_fd(), PollFlags::OUT) {
            return Ok(());
        }
        let (bytes, _) = output.waiting.as_slices();
        let (written, is_gone) = match sink.write(bytes) {
            Ok((count, Drained::ReaderGone)) => (count, true),
            Ok((count, _)) => (count, false),
            Err(error) => return Err(error).context("writing the program's output"),
        };
        output.waiting.drain(..written);
        let granted = output.taken.add(written);
        if is_gone {
            output.waiting.clear();
            output.sink = None;
            return self.put(kind::CLOSE, [OUTPUTS[index], 0]);
        }
        granted.map_or(Ok(()), |bytes| self.put(kind::CREDIT, [OUTPUTS[index], bytes]))
    }

    fn take_signals(&mut self) -> Result<()> {
        for signal in self.signals.take() {
            match signal {
                Signal::WINCH => {
                    let WindowSize { rows, columns } = self.window_size();
                    self.put(kind::WINDOW_SIZE, [rows, columns])?;
                }
                Signal::CONT => {
                    if let Some(terminal) = &mut self.terminal {
                        terminal.enter();
                    }
                }
                // There is nothing to stop here: the program runs on, as it would beside a stopped client.
                Signal::TSTP => {}
                _ => self.put(kind::SIGNAL, [signal.as_raw().cast_unsigned(), scope::GROUP])?,
            }
        }
        Ok(())
    }
}

fn is_ready(fd: BorrowedFd<'_>, flags: PollFlags) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&now)).is_ok_and(|count| count > 0)
}

/// Waits until the machine's process has answered, or has gone; `false` if that takes longer.
///
/// # Errors
/// The error of the system call.
pub fn wait_for_word(socket: &UnixStream, limit: Duration) -> Result<bool> {
    let timeout = Timespec::try_from(limit).context("timeout")?;
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    Ok(poll(&mut fds, Some(&timeout)).context("poll")? > 0)
}

/// The standard output of a program that is done soon.
///
/// # Errors
/// If it cannot be run, or fails.
pub fn capture(socket: UnixStream, command: &[&str]) -> Result<Vec<u8>> {
    use std::io::{Read, Seek};
    let null = || File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
    let mut output = crate::log::unnamed_file("heddle")?;
    let streams = Streams { stdin: null()?, stdout: output.try_clone()?.into(), stderr: null()? };
    let program = Program {
        path: command[0].into(),
        directory: b"/".to_vec(),
        arguments: command.iter().map(|word| word.as_bytes().to_vec()).collect(),
        environment: Vec::new(),
        identity: Identity::default(),
    };
    let connections = Connections { has_input: false, is_terminal: false };
    match run(socket, &program, streams, connections, || {})? {
        Ending::Exited(0) => {}
        _ => bail!("{} failed", command.join(" ")),
    }
    let mut bytes = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The status of this process for a program that ended so, and what to say about one that could not be started.
///
/// # Errors
/// If the machine's kernel takes no further programs.
pub fn exit_status(ending: Ending, program: &str) -> Result<u8> {
    let small = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
    match ending {
        Ending::Exited(status) => Ok(small(status)),
        Ending::Signaled(signal) => Ok(crate::STATUS_SIGNAL_BASE.saturating_add(small(signal))),
        Ending::NoDirectory(errno) => {
            bail!("the working directory (-w): {}", io::Error::from_raw_os_error(errno.cast_signed()))
        }
        Ending::NotStarted(errno) => {
            let errno = Errno::from_raw_os_error(errno.cast_signed());
            if errno == Errno::NOSYS {
                bail!("this machine runs Linux; further programs can be started on Heddle's kernel only");
            }
            crate::say!("{program}: {}", io::Error::from(errno));
            Ok(if errno == Errno::NOENT { crate::STATUS_NOT_FOUND } else { crate::STATUS_NOT_EXECUTABLE })
        }
    }
}
