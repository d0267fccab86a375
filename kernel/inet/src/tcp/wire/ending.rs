//! The end of a connection, by this side.

use crate::engine::{Engine, LastNumbers};
use crate::options::Options;
use crate::platform::Platform;
use crate::tcp::wire::{STORAGE_MAX, Wire};

impl Wire {
    /// Ends this side's direction, once what waits has been sent. Storage can't grow after, so a program that goes on
    /// reading gets enough of it before.
    pub fn end<P: Platform>(&mut self, engine: &Engine<P>, options: &Options, goes_on: bool) {
        self.outlet.window = self.window(options);
        if !goes_on || !self.may_send() || self.stack.receive_bytes >= self.last_storage() {
            self.stack.socket().close();
            return;
        }
        self.is_ending = true;
        self.try_to_end(engine);
    }

    /// The storage of a connection that can't get more.
    fn last_storage(&self) -> usize {
        self.outlet.window.next_power_of_two().min(STORAGE_MAX)
    }

    pub(super) fn try_to_end<P: Platform>(&mut self, engine: &Engine<P>) {
        if self.is_ending && self.stack.peek().send_queue() == 0 {
            let _ = self.rebuild(engine, self.last_storage(), 0);
            self.is_ending = false;
            self.stack.socket().close();
        }
    }

    /// Ends both at once, and tells the peer.
    pub fn abort(&mut self) {
        self.stack.socket().abort();
    }

    /// The numbers with which it goes on answering when it is gone.
    pub const fn last_numbers(&self) -> LastNumbers {
        LastNumbers { sent: self.outlet.sent, received: self.outlet.acknowledged }
    }
}
