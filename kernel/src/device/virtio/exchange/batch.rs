//! Several requests at once, so that the device's side wakes up once for all of them; and requests whose replies nobody
//! reads.

use crate::device::virtio::exchange::{Exchange, GiveUp, Progress, Request, RequestPlace, SMALL_BYTES, spin};
use crate::error::Errno;
use crate::sched;

/// The most requests of a batch.
pub const BATCH_MAX: usize = 12;
/// The most requests under way that nobody waits for: a device that hangs must not have them all.
const POSTED_MAX: usize = 8;

/// Requests to be sent at once. The first is what its thread wants to know, and the others what it may want next.
pub struct RequestBatch<'a> {
    entries: [Option<BatchEntry<'a>>; BATCH_MAX],
}

struct BatchEntry<'a> {
    request: Request<'a>,
    length: usize,
    give_up: GiveUp,
}

impl Exchange {
    /// Begins a request with buffers of so many bytes, unless that takes a wait, or the device has left others without
    /// a reply.
    pub fn begin_ahead(&self, bytes: usize) -> Option<Request<'_>> {
        if self.count_given_up(|how| how != GiveUp::Posted) == 0 { self.try_begin(bytes) } else { None }
    }

    /// Counts requests under way that nobody waits for.
    fn count_given_up(&self, is_wanted: impl Fn(GiveUp) -> bool) -> usize {
        let mut ring = self.ring.lock();
        ring.collect();
        let is_it = |place: &&RequestPlace| match place.progress {
            Progress::Sent { given_up: Some(how), .. } => is_wanted(how),
            _ => false,
        };
        ring.places.iter().filter(is_it).count()
    }

    /// Sends small requests of which nobody reads the replies: `write` fills the buffer of the next one, whose number
    /// is its second argument, and says its length, or that there is none. How many were sent.
    pub fn post(&self, mut write: impl FnMut(&mut [u8], usize) -> Option<usize>) -> usize {
        let room = POSTED_MAX.saturating_sub(self.count_given_up(|how| how == GiveUp::Posted));
        let mut posted = 0;
        while posted < room {
            let Some(mut request) = self.try_begin(SMALL_BYTES) else { break };
            let number = request.number();
            let Some(length) = write(request.request(), number) else { break };
            // One that the device does not take is as good as sent.
            if self.ring.lock().send(number, length, Some(GiveUp::Posted)).is_ok() {
                core::mem::forget(request);
            }
            posted += 1;
        }
        if posted > 0 {
            self.notify();
        }
        posted
    }

    fn notify(&self) {
        let ring = self.ring.lock();
        if ring.queue.should_notify() {
            self.registers.notify(self.index);
        }
    }
}

impl<'a> RequestBatch<'a> {
    /// An empty one.
    pub const fn new() -> Self {
        Self { entries: [const { None }; BATCH_MAX] }
    }

    /// Adds a request at a place, with the number of bytes that were written to its buffer.
    pub fn set(&mut self, place: usize, request: Request<'a>, length: usize, give_up: GiveUp) {
        if let Some(entry) = self.entries.get_mut(place) {
            *entry = Some(BatchEntry { request, length, give_up });
        }
    }

    /// Sends all, and waits for the reply to the one in the first place; the others have a short time more. What
    /// became of each, as from [`Request::exchange`].
    pub fn exchange(self) -> [Option<Result<Request<'a>, Errno>>; BATCH_MAX] {
        if let Some(exchange) = self.entries.iter().flatten().next().map(|entry| entry.request.exchange) {
            {
                let mut ring = exchange.ring.lock();
                for entry in self.entries.iter().flatten() {
                    // One that the device does not take remains its owner's, and has no reply.
                    let _ = ring.send(entry.request.number, entry.length, None);
                }
            }
            exchange.notify();
            if let Some(first) =
                self.entries[0].as_ref().filter(|first| exchange.is_sent(first.request.number))
            {
                exchange.wait(first.request.number, first.give_up);
            }
            // Each wait keeps interrupts out for a time.
            sched::poll_interrupts();
            let is_done = |entry: &BatchEntry<'_>| exchange.is_done(entry.request.number);
            spin(|| self.entries.iter().flatten().all(is_done));
        }
        self.entries.map(|entry| entry.map(|entry| entry.request.replied(entry.give_up)))
    }
}
