//! Pipes of packets, `O_DIRECT` of pipe2(2): what one write of up to a page gave, one read takes, and what that has no
//! room for is lost.
//!
//! The bytes are in an ordinary pipe. Beside them are the lengths of the packets, which only these ends keep up to
//! date: so all ends of such a pipe are of this kind, those opened by `/proc/PID/fd` too, and nothing is spliced to or
//! from it.

use heddle_kernel_core::fallible::push_back_reserved;

use crate::call::Call;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::byte_queue::{drain, fill, lock_to_read};
use crate::fs::pipe::{ATOMIC_BYTES, PipeEnd, PipeState};
use crate::fs::{File, IoBuffer, OpenFile};
use crate::wait::queue::{Events, Watch};

/// An end of a pipe of packets.
pub struct PacketEnd(pub(super) PipeEnd);

impl PipeState {
    /// Whether there is room for one packet more, which has a page.
    fn has_packet_room(&self) -> bool {
        let packets = self.packets.as_ref().map_or(0, |packets| packets.len());
        packets < self.bytes.capacity() / ATOMIC_BYTES
    }
}

impl File for PacketEnd {
    fn held_pages(&self) -> usize {
        self.0.held_pages()
    }

    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        let pipe = &self.0.pipe;
        if buffer.remaining() == 0 {
            return Ok(0);
        }
        let mut state = lock_to_read(&pipe.state);
        let first = state.packets.as_ref().and_then(|packets| packets.front().copied());
        let Some(length) = first else {
            return if state.writers == 0 { Ok(0) } else { Err(TryError::WouldBlock) };
        };
        let wanted = length.min(buffer.remaining());
        buffer.check_target(wanted)?;
        buffer.truncate(wanted);
        let moved = drain(&mut state.bytes, buffer)?;
        state.bytes.consume(length - moved);
        if let Some(packets) = &mut state.packets {
            packets.pop_front();
        }
        drop(state);
        pipe.queue.wake(Events::OUT | Events::WRNORM);
        Ok(moved)
    }

    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        let pipe = &self.0.pipe;
        let mut state = pipe.state.lock();
        if state.readers == 0 {
            return Err(Errno::EPIPE.into());
        }
        let length = buffer.remaining().min(ATOMIC_BYTES);
        if length == 0 {
            return Ok(0);
        }
        if !state.has_packet_room() {
            return Err(TryError::WouldBlock);
        }
        if let Err((_, fault)) = buffer.probe(0, length, false) {
            return Err(fault.into());
        }
        let state_now = &mut *state;
        let packets = state_now.packets.as_mut().ok_or(Errno::EIO)?;
        packets.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let moved = fill(&mut state_now.bytes, buffer, length)?;
        push_back_reserved(packets, moved);
        drop(state);
        pipe.queue.wake(Events::IN | Events::RDNORM);
        Ok(moved)
    }

    fn poll(&self, open: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        let ready = self.0.poll(open, watch, events)?;
        let has_room = self.0.pipe.state.lock().has_packet_room();
        Ok(if has_room { ready } else { ready.difference(Events::OUT | Events::WRNORM) })
    }

    fn ioctl(&self, call: &Call<'_>, open: &OpenFile, request: u32, argument: usize) -> TryResult<usize> {
        self.0.ioctl(call, open, request, argument)
    }

    fn is_opened(&self, open: &OpenFile, watch: Option<&Watch>) -> Result<bool, Errno> {
        self.0.is_opened(open, watch)
    }
}
