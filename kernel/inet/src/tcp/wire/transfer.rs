//! Bytes between a program and a connection.

use smoltcp::socket::tcp::RecvError;

use crate::engine::Engine;
use crate::error::InetError;
use crate::options::Options;
use crate::platform::Platform;
use crate::tcp::wire::{FIRST_BYTES, Wire};

impl Wire {
    /// Takes bytes to be sent from `copy`, of the `wanted` that it has.
    pub fn send<P: Platform, F>(
        &mut self,
        engine: &Engine<P>,
        options: &Options,
        wanted: usize,
        copy: &mut dyn FnMut(&mut [u8]) -> Result<usize, F>,
    ) -> Result<Result<usize, F>, InetError> {
        let limit = self.send_limit(options);
        if self.stack.peek().send_queue() == 0 && !self.wants_storage {
            // All is acknowledged: the storage can grow, by more if there was too little.
            let had = self.stack.send_bytes;
            let grown = if self.was_short { had * 4 } else { had };
            let bytes = wanted.max(grown).next_power_of_two().clamp(FIRST_BYTES, limit.next_power_of_two());
            if bytes > had && (had == 0 || !self.has_gap()) {
                // Two ends that both send must both be able to receive.
                let receive_bytes = self.stack.receive_bytes.max(FIRST_BYTES);
                let result = self.rebuild(engine, receive_bytes, bytes);
                if had == 0 {
                    result?;
                }
            }
        }
        let is_full = self.stack.peek().send_queue() >= self.stack.send_bytes;
        if self.wants_storage || is_full || self.drains(options) {
            (self.writer_waits, self.was_short) = (true, true);
            return Err(InetError::WouldBlock);
        }
        (self.writer_waits, self.was_short) = (false, false);
        let (mut moved, mut stopped) = (0, None);
        // The storage is a ring: there may be two free parts.
        for _ in 0..2 {
            let result = self.stack.socket().send(|free| {
                let part = free.len().min(wanted - moved);
                match copy(&mut free[..part]) {
                    Ok(count) => (count, count),
                    Err(error) => {
                        stopped = Some(error);
                        (0, 0)
                    }
                }
            });
            let count = result.map_err(|_| InetError::BrokenPipe)?;
            moved += count;
            if count == 0 || moved >= wanted || stopped.is_some() {
                break;
            }
        }
        self.sent += moved as u64;
        self.active_ns = P::now_ns();
        match stopped {
            Some(error) if moved == 0 => Ok(Err(error)),
            _ => Ok(Ok(moved)),
        }
    }

    /// Gives the bytes that have come to `copy`. Returns how many it took; [`InetError::WouldBlock`] if there are none,
    /// 0 at the end.
    pub fn receive<P: Platform, F>(
        &mut self,
        peek: Option<usize>,
        copy: &mut dyn FnMut(&[u8]) -> Result<usize, F>,
    ) -> Result<Result<usize, F>, InetError> {
        let socket = self.stack.socket();
        if socket.recv_queue() == 0 {
            return match socket.recv(|_| (0, ())) {
                Err(RecvError::Finished) => Ok(Ok(0)),
                Err(RecvError::InvalidState) => Err(InetError::NotConnected),
                Ok(()) => Err(InetError::WouldBlock),
            };
        }
        let (mut moved, mut stopped) = (0, None);
        if let Some(skip) = peek {
            // smoltcp shows its storage only up to the end of the ring.
            let length = socket.recv_queue();
            let bytes = socket.peek(length).unwrap_or_default();
            let shown = bytes.get(skip..).unwrap_or_default();
            if shown.is_empty() {
                return Err(InetError::WouldBlock);
            }
            return Ok(copy(shown));
        }
        for _ in 0..2 {
            let result = socket.recv(|bytes| match copy(bytes) {
                Ok(count) => (count, (count, count == bytes.len())),
                Err(error) => {
                    stopped = Some(error);
                    (0, (0, false))
                }
            });
            let Ok((count, is_whole)) = result else { break };
            moved += count;
            if !is_whole || socket.recv_queue() == 0 {
                break;
            }
        }
        self.received += moved as u64;
        self.active_ns = P::now_ns();
        match stopped {
            Some(error) if moved == 0 => Ok(Err(error)),
            _ => Ok(Ok(moved)),
        }
    }
}
