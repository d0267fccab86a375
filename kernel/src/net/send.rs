//! Sending.

use alloc::sync::Arc;

use crate::arch::{MAX_CPUS, cpu};
use crate::error::{Errno, TryError, TryResult};
use crate::fs::IoBuffer;
use crate::fs::byte_queue::{fill, fill_unlocked, is_large};
use crate::fs::offer::OFFER_BYTES;
use crate::memory::fallible;
use crate::net::inbox::{InboxContents, InboxMessage, PeerIdentity, StreamMark, some_pass_identity};
use crate::net::{Ancillary, Inbox, Socket, Style, WRITING};
use crate::process::Thread;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, Watch};

use heddle_kernel_core::fallible::push_back_reserved;

/// The writer of an attempt on each CPU that is under way, with its socket's address, where a receiver wants to know
/// it.
static WRITERS: [SpinLock<Option<(usize, PeerIdentity)>>; MAX_CPUS] =
    [const { SpinLock::new(None) }; MAX_CPUS];

impl Socket {
    /// Whether the peer wants to know who sends.
    #[must_use]
    pub fn peer_passes_identity(&self) -> bool {
        self.peer_inbox().is_some_and(|peer| peer.passes_identity())
    }

    /// Before an attempt of a plain write, which keeps its CPU: who it is, if a receiver may want to know it.
    pub(super) fn note_writer(&self, thread: &Thread, events: Events) {
        if !some_pass_identity() || !events.contains(Events::OUT) {
            return;
        }
        let is_wanted = self.inbox().passes_identity() || self.peer_passes_identity();
        let writer = is_wanted.then(|| (core::ptr::from_ref(self).addr(), PeerIdentity::of_sender(thread)));
        *WRITERS[cpu::id()].lock() = writer;
    }

    /// The control data of a plain write.
    pub(super) fn writers_identity(&self) -> Option<Ancillary> {
        if !some_pass_identity() {
            return None;
        }
        let (socket, identity) = WRITERS[cpu::id()].lock().take()?;
        if socket != core::ptr::from_ref(self).addr() {
            return None;
        }
        let mut ancillary = Ancillary::default();
        ancillary.identity = Some(identity);
        Some(ancillary)
    }

    /// Sends what is in `buffer`, to `target` or the peer. A stream takes as much as there is room for, a message goes
    /// as a whole. `ancillary` is taken with the first byte.
    ///
    /// # Errors
    /// Blocks while there is no room. `ENOTCONN`, `EISCONN`, `EPIPE`, `ECONNREFUSED`, `EMSGSIZE`,
    /// `ENOMEM`, a fault.
    pub fn send(
        &self,
        buffer: &mut IoBuffer<'_>,
        target: Option<&Arc<Inbox>>,
        ancillary: &mut Option<Ancillary>,
    ) -> TryResult<usize> {
        let peer = self.peer_inbox();
        let inbox = match (target, peer) {
            (Some(_), Some(_)) if self.style.is_connected() => return Err(Errno::EISCONN.into()),
            (Some(target), _) => target.clone(),
            (None, Some(peer)) => peer,
            (None, None) => return Err(Errno::ENOTCONN.into()),
        };
        if self.has_ended(WRITING) {
            return Err(Errno::EPIPE.into());
        }
        self.set_asking(true);
        if self.style == Style::Stream && buffer.remaining() >= OFFER_BYTES && ancillary.is_none() {
            return self.send_large(&inbox, buffer);
        }
        let sent = match self.style {
            Style::Stream => {
                send_bytes(&mut inbox.contents.lock(), buffer, ancillary, self.options().send_limit())
            }
            Style::Datagram | Style::Packets => self.send_message(&inbox, buffer, ancillary),
        }?;
        inbox.queue.wake(Events::IN | Events::RDNORM);
        Ok(sent)
    }

    /// Sends bytes to the memory of a reader that waits, as far as it is there, and the rest to the inbox.
    fn send_large(&self, inbox: &Inbox, buffer: &mut IoBuffer<'_>) -> TryResult<usize> {
        let limit = self.options().send_limit();
        let mut contents = inbox.contents.lock();
        let (direct, reader) = fill_offer(&mut contents, buffer);
        let room = contents.room(limit);
        let stored = if is_large(buffer.remaining().min(room), direct) && !contents.has_ended() {
            let objects = (&inbox.contents, &inbox.queue);
            fill_unlocked(objects, contents, buffer, room, |contents| !contents.has_ended())
        } else {
            let result = send_bytes(&mut contents, buffer, &mut None, limit);
            drop(contents);
            result
        };
        let stored = match stored {
            Err(_) if direct > 0 => 0,
            result => result?,
        };
        inbox.queue.wake(Events::IN | Events::RDNORM);
        if let Some(reader) = reader {
            reader.wake();
        }
        Ok(direct + stored)
    }

    fn send_message(
        &self,
        inbox: &Inbox,
        buffer: &mut IoBuffer<'_>,
        ancillary: &mut Option<Ancillary>,
    ) -> TryResult<usize> {
        let length = buffer.remaining();
        if length > self.options().message_limit() {
            return Err(Errno::EMSGSIZE.into());
        }
        let mut bytes = fallible::try_filled(0, length)?;
        let before = buffer.mark();
        let sender = self.address();
        let mut contents = inbox.contents.lock();
        if contents.closed || contents.ended && self.style == Style::Packets {
            let is_refused = self.style == Style::Datagram && contents.is_ownerless;
            let gone = if is_refused { Errno::ECONNREFUSED } else { Errno::EPIPE };
            return Err(gone.into());
        }
        if contents.is_full(self.options().send_limit()) {
            return Err(TryError::WouldBlock);
        }
        if let Err(fault) = buffer.copy_in(&mut bytes) {
            buffer.rewind(before);
            return Err(fault.into());
        }
        contents.messages.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        contents.message_bytes += length;
        push_back_reserved(
            &mut contents.messages,
            InboxMessage { bytes, ancillary: ancillary.take(), sender },
        );
        Ok(length)
    }
}

/// Copies to the memory of a reader that waits. Returns the bytes, and whom to wake.
fn fill_offer(contents: &mut InboxContents, buffer: &mut IoBuffer<'_>) -> (usize, Option<Watch>) {
    let is_plain = contents.marks.is_empty() && contents.bytes.is_empty() && contents.peek_offset < 0;
    if !contents.offer.is_taken() || !is_plain || contents.has_ended() {
        return (0, None);
    }
    let filled = contents.offer.fill(buffer);
    contents.read += filled.0 as u64;
    filled
}

fn send_bytes(
    contents: &mut InboxContents,
    buffer: &mut IoBuffer<'_>,
    ancillary: &mut Option<Ancillary>,
    limit: usize,
) -> TryResult<usize> {
    if contents.has_ended() {
        return Err(Errno::EPIPE.into());
    }
    if buffer.remaining() == 0 {
        return Ok(0);
    }
    let room = contents.room(limit);
    if room == 0 {
        return Err(TryError::WouldBlock);
    }
    contents.marks.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    let position = contents.read + contents.bytes.len() as u64;
    let moved = fill(&mut contents.bytes, buffer, room)?;
    if let Some(ancillary) = ancillary.take() {
        let range = position..position + moved as u64;
        match contents.marks.back_mut() {
            // Sendings of one sender count as one.
            Some(last) if last.range.end == position && last.ancillary.is_same_sender(&ancillary) => {
                last.range.end = range.end;
            }
            _ => push_back_reserved(&mut contents.marks, StreamMark { range, ancillary }),
        }
    }
    Ok(moved)
}
