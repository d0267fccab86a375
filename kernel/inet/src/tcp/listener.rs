//! The queue of a listening socket.

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};

use crate::error::{InetError, InetResult};
use crate::platform::Platform;
use crate::tcp::TcpSocket;

/// Connections that wait to be accepted, and those of this machine that found no room.
pub(crate) struct Listener<P: Platform> {
    waiting: VecDeque<Arc<TcpSocket<P>>>,
    limit: usize,
    knocking: VecDeque<Weak<TcpSocket<P>>>,
}

impl<P: Platform> Listener<P> {
    pub fn new(limit: usize) -> Self {
        Self { waiting: VecDeque::new(), limit, knocking: VecDeque::new() }
    }

    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Whether no more may wait; Linux lets one more wait than was asked for.
    pub fn is_full(&self) -> bool {
        self.waiting.len() > self.limit
    }

    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How many may wait and how many do.
    pub fn lengths(&self) -> (usize, usize) {
        (self.limit, self.waiting.len())
    }

    /// Makes sure that one more can be pushed.
    pub fn reserve(&mut self) -> InetResult<()> {
        self.waiting.try_reserve(1).map_err(|_| InetError::NoMemory)
    }

    pub fn push(&mut self, socket: Arc<TcpSocket<P>>) {
        self.waiting.push_back(socket);
    }

    /// Has a client wait for room.
    pub fn queue(&mut self, client: &Arc<TcpSocket<P>>) -> InetResult<()> {
        self.knocking.try_reserve(1).map_err(|_| InetError::NoMemory)?;
        self.knocking.push_back(Arc::downgrade(client));
        Ok(())
    }

    pub fn take(&mut self) -> InetResult<Arc<TcpSocket<P>>> {
        self.waiting.pop_front().ok_or(InetError::WouldBlock)
    }

    /// The next client for whom there is room.
    pub fn admit(&mut self) -> Option<Arc<TcpSocket<P>>> {
        if self.is_full() {
            return None;
        }
        while let Some(client) = self.knocking.pop_front() {
            if let Some(client) = client.upgrade() {
                return Some(client);
            }
        }
        None
    }

    /// Everyone who waits here, at the listener's end.
    pub fn end(
        self,
        mut accepted: impl FnMut(Arc<TcpSocket<P>>),
        mut knocking: impl FnMut(Arc<TcpSocket<P>>),
    ) {
        self.waiting.into_iter().for_each(&mut accepted);
        self.knocking.iter().filter_map(Weak::upgrade).for_each(&mut knocking);
    }
}
