//! The ends of connections and of listeners.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use crate::error::{InetError, InetResult};
use crate::platform::{Platform, Readiness, Waiters};
use crate::tcp::{Connecting, Phase, State, TcpSocket};

impl<P: Platform> TcpSocket<P> {
    /// shutdown(2).
    ///
    /// # Errors
    /// [`InetError::NotConnected`].
    pub fn shut_down(self: &Arc<Self>, reading: bool, writing: bool) -> InetResult<()> {
        if let Some((pair, side)) = self.fused.get() {
            if pair.progress(*side).over {
                return Err(InetError::NotConnected);
            }
            pair.shut_down(*side, reading, writing);
            return Ok(());
        }
        let mut state = self.state.lock();
        match state.phase {
            Phase::Listening(_) if reading => {
                // It stops listening, but stays bound.
                let old = core::mem::replace(&mut state.phase, Phase::Closed);
                if let Some(bound) = state.bound {
                    let _ = self.engine.tcp_ports.lock().set_listening(bound.port, self, false);
                }
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
                state.phase = Phase::Closed;
                state.error = Some(InetError::ConnectionReset);
                self.unregister(&mut state, false, None);
                drop(state);
                self.waiters.wake(Readiness::all());
                Ok(())
            }
            _ => Err(InetError::NotConnected),
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
        if let Some((pair, side)) = self.fused.get() {
            pair.close(*side, true);
        }
        let mut state = self.state.lock();
        self.abort_over_link(&mut state);
        let old = match state.phase {
            Phase::Closed => return,
            _ => core::mem::replace(&mut state.phase, Phase::Closed),
        };
        self.unregister(&mut state, false, None);
        state.connecting = Connecting::No;
        drop(state);
        Self::end_listener(old);
    }

    /// The program has closed it: call it once, last.
    pub fn close(&self) {
        let aborts = self.options.linger.load(Ordering::Relaxed) == 0;
        let waits = self.fused.get().is_some_and(|(pair, side)| pair.close(*side, aborts));
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
        self.unregister(&mut state, waits, None);
        self.unbind(&mut state);
        drop(state);
        Self::end_listener(old);
    }

    fn unbind(&self, state: &mut State<P>) {
        if let Some(bound) = state.bound.take() {
            self.engine.tcp_ports.lock().unbind(bound.port, self);
        }
    }
}
