//! The events that a session waits for.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Session;

/// Something that can be done now.
#[derive(Clone, Copy, Debug)]
pub enum Ready {
    /// A signal came.
    Signal,
    /// The machine ended.
    MachineEnded,
    /// A message can be read.
    ControlIn,
    /// Messages can be sent.
    ControlOut,
    /// A shared folder has changed.
    Changes,
    /// Other commands or their programs have something to say.
    Exchange,
    /// Standard input can be read.
    StdinSource,
    /// Standard input can be sent to the guest.
    StdinPort,
    /// The terminal can be read.
    TerminalSource,
    /// Terminal input can be sent to the guest.
    TerminalPort,
    /// An output can be read from the guest.
    OutputPort(usize),
    /// An output can be written.
    OutputSink(usize),
    /// An output has no reader any more.
    OutputGone(usize),
}

impl Session<'_> {
    /// Waits until something can be done, or the timeout has passed.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Vec<Ready>> {
        let mut interests: Vec<(Ready, BorrowedFd<'_>, PollFlags)> = Vec::with_capacity(24);
        interests.extend(self.signals.descriptors().map(|fd| (Ready::Signal, fd, PollFlags::IN)));
        if self.machine_status.is_none() {
            interests.push((Ready::MachineEnded, self.machine.ended(), PollFlags::IN));
            interests.push((Ready::ControlIn, self.ports.control.as_fd(), PollFlags::IN));
            if !self.outbox.is_empty() {
                interests.push((Ready::ControlOut, self.ports.control.as_fd(), PollFlags::OUT));
            }
            if let Some(changes) = self.ports.changes.as_ref().filter(|_| self.outbox.is_empty()) {
                interests.push((Ready::Changes, changes.as_fd(), PollFlags::IN));
            }
            self.add_inputs(&mut interests);
            if let Some(exchange) = &self.exchange {
                let descriptors = exchange.interests(&self.ports.programs);
                interests.extend(descriptors.map(|(fd, flags)| (Ready::Exchange, fd, flags)));
            }
        }
        for (index, output) in self.outputs.iter().enumerate() {
            if let Some(source) = output.source() {
                interests.push((Ready::OutputPort(index), source, PollFlags::IN));
            }
            if let Some(sink) = output.sink() {
                let flags = if output.is_drained() { PollFlags::empty() } else { PollFlags::OUT };
                interests.push((Ready::OutputSink(index), sink, flags));
            }
        }
        let timeout = timeout.map(Timespec::try_from).transpose().context("timeout")?;
        let mut fds: Vec<_> =
            interests.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("poll"),
        }
        let results = interests.iter().zip(fds.iter().map(PollFd::revents));
        let mut ready: Vec<_> = results.filter_map(|((ready, ..), flags)| interpret(*ready, flags)).collect();
        // One call serves all connections.
        ready.dedup_by(|one, other| matches!((one, other), (Ready::Exchange, Ready::Exchange)));
        Ok(ready)
    }

    fn add_inputs<'s>(&'s self, interests: &mut Vec<(Ready, BorrowedFd<'s>, PollFlags)>) {
        if self.stdin.has_output() {
            interests.push((Ready::StdinPort, self.ports.stdin.as_fd(), PollFlags::OUT));
        } else if !self.stdin_ended {
            interests.push((Ready::StdinSource, self.streams.stdin.as_fd(), PollFlags::IN));
        }
        if self.tty.has_output() {
            interests.push((Ready::TerminalPort, self.ports.tty.as_fd(), PollFlags::OUT));
        } else if let Some(terminal) = self.terminal.as_ref().filter(|terminal| terminal.is_raw()) {
            interests.push((Ready::TerminalSource, terminal.as_fd(), PollFlags::IN));
        }
    }
}

fn interpret(ready: Ready, flags: PollFlags) -> Option<Ready> {
    match ready {
        Ready::OutputSink(index) if flags.intersects(PollFlags::ERR | PollFlags::HUP) => {
            Some(Ready::OutputGone(index))
        }
        _ => (!flags.is_empty()).then_some(ready),
    }
}
