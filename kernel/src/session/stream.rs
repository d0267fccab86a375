//! The program's standard streams where they are no terminal: it sees pipes whose other end is the host.

use heddle_abi::control::stream;

use crate::call::Call;
use crate::device::Port;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::{File, FileType, IoBuffer, Metadata, OpenFile};
use crate::session::host::HOST;
use crate::wait::queue::{Events, Watch};

/// One stream.
pub struct Stream {
    port: &'static Port,
    number: u32,
}

impl Stream {
    /// The stream of this number of [`stream`], over its port.
    pub const fn new(number: u32, port: &'static Port) -> Self {
        Self { port, number }
    }

    const fn is_input(&self) -> bool {
        self.number == stream::STDIN
    }

    fn is_at_end(&self) -> bool {
        HOST.is_end_of_input(self.port.taken_bytes())
    }
}

impl File for Stream {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        if buffer.remaining() == 0 {
            return Ok(0);
        }
        let mut fault = None;
        let moved = self.port.read(buffer.remaining(), &mut |bytes| {
            let before = buffer.done();
            fault = buffer.copy_out(bytes).err();
            buffer.done() - before
        });
        match fault {
            Some(fault) => Err(fault.into()),
            None if moved > 0 || self.is_at_end() => Ok(moved),
            None => Err(TryError::WouldBlock),
        }
    }

    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        if HOST.is_reader_gone(self.number) {
            return Err(Errno::EPIPE.into());
        }
        let start = buffer.done();
        while buffer.remaining() > 0 {
            let before = buffer.done();
            let mut result = Ok(0);
            let sent = self.port.write(|room| {
                result = buffer.copy_in(room);
                buffer.done() - before
            });
            result?;
            if sent.is_none() {
                break;
            }
        }
        let moved = buffer.done() - start;
        if moved == 0 && buffer.remaining() > 0 { Err(TryError::WouldBlock) } else { Ok(moved) }
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            HOST.changed.watch(watch, events)?;
        }
        let mut ready = self.port.poll(watch, events)?;
        if self.is_input() && self.is_at_end() {
            ready |= Events::IN | Events::RDNORM | Events::HUP;
        }
        if HOST.is_reader_gone(self.number) {
            ready |= Events::ERR;
        }
        Ok(ready)
    }

    fn ioctl(&self, call: &Call<'_>, _: &OpenFile, request: u32, argument: usize) -> TryResult<usize> {
        if request != linux_raw_sys::ioctl::FIONREAD {
            return Err(Errno::ENOTTY.into());
        }
        let count = if self.is_input() { self.port.available_bytes() as u32 } else { 0 };
        call.thread.space().write_bytes(argument, &count.to_le_bytes())?;
        Ok(0)
    }

    fn metadata(&self) -> Metadata {
        Metadata::anonymous(FileType::Fifo, u64::from(self.number) + 1)
    }

    fn name(&self) -> &'static str {
        match self.number {
            stream::STDIN => "pipe:[1]",
            stream::STDOUT => "pipe:[2]",
            _ => "pipe:[3]",
        }
    }
}
