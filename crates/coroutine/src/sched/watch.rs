//! Turns that others watch over: while a core is in one, or on its way to the next, whoever leaves something more
//! urgent with it tells another core.
//!
//! The watch is set under the gate, with an empty inbox, before the coroutine is taken from the queue: so there is no
//! moment between the owner's last look and its turn in which a request gets into the inbox and nobody is told. It
//! stays between turns, since the owner may lose its processor there as well as in the midst of one.

use super::inbox::WATCH_KEPT;
use super::{CoreState, Picked, Table};

impl CoreState {
    /// Owner, between turns: applies what others posted, and is kicked from now on for what is more urgent than all
    /// that is ready; if nothing is, for everything if it `sleeps`, and else for nothing. `announce` learns the level
    /// before, 64 if there is none. Returns the bitmap of the levels.
    pub fn settle(&self, table: &impl Table, sleeps: bool, announce: impl Fn(u8)) -> u64 {
        self.gate.enter();
        let bitmap = loop {
            if !self.inbox.is_empty() {
                self.drain_in_gate(table);
            }
            let bitmap = self.ready.bitmap();
            let level = bitmap.trailing_zeros() as u8;
            announce(level);
            let watch = if bitmap != 0 || sleeps { WATCH_KEPT | level } else { 0 };
            if self.inbox.expose(watch) {
                break bitmap;
            }
        };
        self.gate.leave();
        bitmap
    }

    /// [`CoreState::pick`] of a core that is kicked from then on for what is more urgent than the coroutine that it
    /// takes. `announce` learns the level before.
    pub fn pick_watched<'t>(&self, table: &'t impl Table, announce: impl Fn(u8)) -> Option<Picked<'t>> {
        self.gate.enter();
        let picked = loop {
            if !self.inbox.is_empty() {
                self.drain_in_gate(table);
            }
            let bitmap = self.ready.bitmap();
            if bitmap == 0 {
                self.count_idle();
                break None;
            }
            let level = self.level_to_pick(bitmap);
            announce(level);
            if self.inbox.expose(WATCH_KEPT | level) {
                break self.pick_of(table, level);
            }
        };
        self.gate.leave();
        picked
    }
}
