//! One stream from the guest to the host.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use heddle_streams::{Drained, Filled, Pump};

use crate::sink::Sink;
use crate::terminal::strip_carriage_returns;

/// A stream, from its port to where it goes; without a sink what comes is only counted.
#[derive(Debug)]
pub struct OutputStream {
    port: UnixStream,
    port_ended: bool,
    sink: Option<Sink>,
    pump: Pump,
    strips_carriage_returns: bool,
}

impl OutputStream {
    /// Connects a port with `fd`.
    pub fn new(
        port: &UnixStream,
        fd: Option<BorrowedFd<'_>>,
        strips_carriage_returns: bool,
    ) -> io::Result<Self> {
        let sink = fd.map(Sink::new).transpose()?;
        let pump = sink.as_ref().map_or_else(Pump::default, Sink::pump);
        Ok(Self { port: port.try_clone()?, port_ended: false, sink, pump, strips_carriage_returns })
    }

    /// The port, if it should be read.
    pub fn source(&self) -> Option<BorrowedFd<'_>> {
        (self.pump.wants_input() && !self.port_ended).then(|| self.port.as_fd())
    }

    /// The sink, if it is still there.
    pub fn sink(&self) -> Option<BorrowedFd<'_>> {
        self.sink.as_ref().map(AsFd::as_fd)
    }

    /// Whether nothing waits for the sink.
    pub fn is_drained(&self) -> bool {
        self.pump.wants_input()
    }

    /// Whether nothing will come any more and nothing waits.
    pub fn is_finished(&self) -> bool {
        self.port_ended && self.is_drained()
    }

    /// Bytes that came from the guest.
    pub fn received(&self) -> u64 {
        self.pump.received()
    }

    /// Reads from the port.
    pub fn fill(&mut self) {
        if self.source().is_none() {
            return;
        }
        match self.pump.fill(&self.port) {
            Ok(Filled::Bytes(_)) if self.strips_carriage_returns => self.pump.filter(strip_carriage_returns),
            Ok(Filled::Bytes(_) | Filled::Nothing) => {}
            Ok(Filled::End) | Err(_) => self.port_ended = true,
        }
    }

    /// Writes to the sink.
    pub fn drain(&mut self) -> io::Result<Drained> {
        if let Some(sink) = &self.sink {
            return self.pump.drain(sink);
        }
        self.pump.discard();
        Ok(Drained::All)
    }

    /// Gives the sink up; `false` if that was done before.
    pub fn close_sink(&mut self) -> bool {
        self.pump.discard();
        self.sink.take().is_some()
    }
}
