//! Receiving.

use crate::error::{Errno, TryError, TryResult};
use crate::fs::IoBuffer;
use crate::fs::byte_queue::{self, LARGE_BYTES, drain_unlocked, lock_to_read};
use crate::net::inbox::{InboxContents, InboxMessage};
use crate::net::{Ancillary, Sender, Socket, Style};
use crate::sync::SpinGuard;
use crate::wait::queue::Events;

/// How to receive.
#[derive(Clone, Copy, Default)]
pub struct ReceiveHow {
    /// It stays to be received again.
    pub peek: bool,
    /// The call has received bytes already: nothing more comes with bytes that have something along, which are for
    /// another call.
    pub goes_on: bool,
    /// The call doesn't wait.
    pub no_wait: bool,
}

/// The result of receiving.
#[derive(Default)]
pub struct Received {
    /// Bytes copied.
    pub count: usize,
    /// Bytes of the message, which may be more.
    pub length: usize,
    /// Control data that came along.
    pub ancillary: Option<Ancillary>,
    /// The sender's address, for sockets that aren't connected.
    pub sender: Sender,
}

impl Socket {
    /// Receives into `buffer`.
    ///
    /// # Errors
    /// Blocks while there is nothing. `ENOTCONN`, `ECONNRESET`, a fault, `ENOMEM`.
    pub fn receive(&self, buffer: &mut IoBuffer<'_>, how: ReceiveHow) -> TryResult<Received> {
        let ReceiveHow { peek, goes_on, no_wait } = how;
        let is_told = self.inbox.passes_identity();
        let mut contents = lock_to_read(&self.inbox.contents);
        let received = match self.style {
            Style::Stream if goes_on && is_told && contents.starts_sending() => {
                return Err(TryError::WouldBlock);
            }
            Style::Stream if peek && (1..=contents.peek_start()).contains(&contents.bytes.len()) => {
                let has_ended = contents.ended || contents.closed;
                return if has_ended { Ok(Received::default()) } else { Err(TryError::WouldBlock) };
            }
            Style::Stream if !contents.bytes.is_empty() => {
                let result;
                (contents, result) = self.receive_bytes(contents, buffer, peek, is_told);
                result?
            }
            Style::Datagram | Style::Packets if !contents.messages.is_empty() => {
                receive_message(&mut contents, buffer, peek)?
            }
            _ => {
                if let Some(error) = contents.error.take() {
                    return Err(error.into());
                }
                let has_ended = contents.ended || contents.closed;
                drop(contents);
                if self.style.is_connected() && !self.is_connected() {
                    let error = if self.style == Style::Stream { Errno::EINVAL } else { Errno::ENOTCONN };
                    return Err(error.into());
                }
                // Of datagrams only a call that would wait reads the end, as in Linux.
                let is_told = has_ended && (self.style.is_connected() || !no_wait);
                return if is_told { Ok(Received::default()) } else { Err(TryError::WouldBlock) };
            }
        };
        let is_empty = !contents.has_data();
        drop(contents);
        if !peek {
            if is_empty {
                self.set_asking(false);
            }
            self.inbox.set_server();
            self.inbox.queue.wake(Events::OUT | Events::WRNORM);
        }
        Ok(received)
    }

    fn receive_bytes<'a>(
        &'a self,
        mut contents: SpinGuard<'a, InboxContents>,
        buffer: &mut IoBuffer<'_>,
        peek: bool,
        is_told: bool,
    ) -> (SpinGuard<'a, InboxContents>, TryResult<Received>) {
        let boundary = contents.boundary(is_told);
        buffer.truncate(usize::try_from(boundary - contents.read).unwrap_or(usize::MAX));
        if peek {
            let result = peek_bytes(&mut contents, buffer);
            return (contents, result);
        }
        let sender = contents.identity_here();
        let wanted = contents.bytes.len().min(buffer.remaining());
        let count;
        if let Err(fault) = buffer.check_target(wanted) {
            count = Err(fault.into());
        } else if wanted >= LARGE_BYTES {
            (contents, count) = drain_unlocked(&self.inbox.contents, contents, buffer);
        } else {
            count = byte_queue::drain(&mut contents.bytes, buffer);
            if let Ok(count) = count {
                contents.note_read(count);
            }
        }
        let received = count.map(|count| {
            let ancillary = contents.take_marks(sender);
            Received { count, length: count, ancillary, sender: None }
        });
        (contents, received)
    }
}

/// Shows bytes that stay to be received again.
fn peek_bytes(contents: &mut InboxContents, buffer: &mut IoBuffer<'_>) -> TryResult<Received> {
    let sender = contents.identity_here();
    let skip = contents.peek_start();
    let count = byte_queue::peek(&contents.bytes, buffer, skip)?;
    contents.move_peek(count, false);
    let end = contents.read + (skip + count) as u64;
    let mut seen = contents.marks.iter().take_while(|mark| mark.range.start < end);
    let files = seen.find(|mark| !mark.ancillary.files().is_empty()).or(contents.marks.front());
    let files = files.filter(|mark| mark.range.start < end);
    let mut ancillary = files.map(|mark| mark.ancillary.duplicate()).transpose()?;
    if let Some(ancillary) = &mut ancillary {
        ancillary.identity = sender;
    }
    Ok(Received { count, length: count, ancillary, sender: None })
}

fn receive_message(
    contents: &mut InboxContents,
    buffer: &mut IoBuffer<'_>,
    peek: bool,
) -> TryResult<Received> {
    // A peek by `SO_PEEK_OFF` may be beyond messages, and within one.
    let mut skip = if peek { contents.peek_start() } else { 0 };
    let mut index = 0;
    while skip > 0 && contents.messages.get(index).is_some_and(|message| message.bytes.len() <= skip) {
        skip -= contents.messages[index].bytes.len();
        index += 1;
    }
    let Some(message) = contents.messages.get(index) else { return Err(TryError::WouldBlock) };
    let before = buffer.mark();
    let count = match buffer.copy_out(&message.bytes[skip..]) {
        Ok(count) => count,
        Err(fault) => {
            buffer.rewind(before);
            return Err(fault.into());
        }
    };
    let length = message.bytes.len() - skip;
    if peek {
        let ancillary = message.ancillary.as_ref().map(Ancillary::duplicate).transpose()?;
        let sender = message.sender.clone();
        contents.move_peek(count, false);
        return Ok(Received { count, length, ancillary, sender });
    }
    contents.move_peek(length, true);
    contents.message_bytes -= length;
    let Some(InboxMessage { ancillary, sender, .. }) = contents.messages.pop_front() else {
        return Err(TryError::WouldBlock);
    };
    Ok(Received { count, length, ancillary, sender })
}
