//! The ends of connections and of listeners.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use crate::address::Endpoint;
use crate::engine::TIME_WAIT_NS;
use crate::error::{InetError, InetResult};
use crate::platform::{Platform, Readiness, Waiters};
use crate::tcp::fused::Remains;
use crate::tcp::{Connecting, Phase, State, TcpSocket};

impl<P: Platform> TcpSocket<P> {
    /// shutdown(2).
    ///
    /// # Errors
    /// [`InetError::NotConnected`].
    pub fn shut_down(self: &Arc<Self>, reading: bool, writing: bool) -> InetResult<()> {
        if let Some(link) = self.fused() {
            if link.progress().over {
                return Err(InetError::NotConnected);
            }
            link.shut_down(&self.engine.counters, reading, writing);
            let mut state = self.state.lock();
            if state.connecting == Connecting::Started {
                state.connecting = Connecting::Done;
            }
            return Ok(());
        }
        let mut state = self.state.lock();
        match state.phase {
            Phase::Listening(_) if reading => {
                // It stops listening, and stays bound to a port that it named.
                let old = self.give_up(&mut state);
                drop(state);
                Self::end_listener(old);
                self.waiters.wake(Readiness::all());
                Ok(())
            }
            Phase::Listening(_) => Ok(()),
            Phase::Wire(_) => {
                let settled = self.end_over_link(&mut state, reading, writing);
                drop(state);
                self.finish(settled?);
                Ok(())
            }
            Phase::Knocking => {
                state.error = Some(InetError::ConnectionReset);
                self.give_up(&mut state);
                drop(state);
                self.waiters.wake(Readiness::all());
                Ok(())
            }
            _ => {
                // As in Linux, the error does not keep it from reading no more.
                state.reading_ended |= reading;
                if state.connecting == Connecting::Started {
                    state.connecting = Connecting::Dead;
                }
                drop(state);
                self.waiters.wake(Readiness::all());
                Err(InetError::NotConnected)
            }
        }
    }

    /// Resets what waits at a listener that is no more.
    fn end_listener(phase: Phase<P>) {
        let Phase::Listening(listener) = phase else { return };
        let reset = |socket: Arc<Self>| {
            socket.options.linger.store(0, Ordering::Relaxed);
            socket.close();
        };
        listener.end(reset, |client| client.knock());
    }

    /// Dissolves a connection: `connect` to `AF_UNSPEC`.
    pub fn disconnect(self: &Arc<Self>) {
        let was_fused = self.fused().is_some_and(|link| {
            let was_open = !link.progress().over;
            link.close(&self.engine.counters, true);
            link.dissolve();
            was_open
        });
        let mut state = self.state.lock();
        self.abort_over_link(&mut state);
        if was_fused || matches!(state.phase, Phase::Knocking) {
            state.error = Some(InetError::ConnectionReset);
        }
        let old = self.give_up(&mut state);
        drop(state);
        Self::end_listener(old);
        self.waiters.wake(Readiness::all());
    }

    /// Makes it a socket without a connection again. A port that the program named stays bound.
    pub(super) fn give_up(self: &Arc<Self>, state: &mut State<P>) -> Phase<P> {
        let old = core::mem::replace(&mut state.phase, Phase::Closed);
        self.unregister(state, None, None);
        if let Some(bound) = state.bound {
            if bound.is_named {
                let _ = self.engine.tcp_ports.lock().set_listening(bound.port, self, false);
            } else {
                self.unbind(state);
            }
        }
        let named = state.bound.and_then(|bound| bound.address);
        // The port is told still, though it is not held.
        let address = named.unwrap_or_else(|| self.unspecified().address);
        state.local = state.local.map(|local| Endpoint { address, ..local });
        state.remote = None;
        state.connecting = Connecting::No;
        state.reading_ended = false;
        old
    }

    /// The program has closed it: call it once, last.
    pub fn close(&self) {
        let aborts = self.options.linger.load(Ordering::Relaxed) == 0;
        let remains = self.fused().map_or(Remains::Nothing, |link| link.close(&self.engine.counters, aborts));
        let waits_ns = match remains {
            Remains::Nothing => None,
            Remains::TimeWait => Some(TIME_WAIT_NS),
            Remains::FinWait => Some(self.end_wait_ns()).filter(|&wait_ns| wait_ns > 0),
        };
        let mut state = self.state.lock();
        if core::mem::replace(&mut state.closed, true) {
            return;
        }
        if matches!(state.phase, Phase::Wire(_)) {
            let settled = self.orphan(&mut state, aborts);
            self.unbind(&mut state);
            drop(state);
            self.finish(settled);
            return;
        }
        let old = core::mem::replace(&mut state.phase, Phase::Closed);
        self.unregister(&mut state, waits_ns, None);
        self.unbind(&mut state);
        drop(state);
        Self::end_listener(old);
    }

    pub(super) fn unbind(&self, state: &mut State<P>) {
        if let Some(bound) = state.bound.take() {
            self.engine.tcp_ports.lock().unbind(bound.port, self);
        }
    }
}
