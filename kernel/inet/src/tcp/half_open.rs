//! Connections that a peer has asked for and not confirmed: what is kept of each, and when it is asked again.

use alloc::collections::VecDeque;

use crate::address::Tuple;
use crate::error::{InetError, InetResult};
use crate::settings::pause_ns;
use crate::tcp::segment::Offer;

/// How long a confirmation is waited for the first time. Each further time doubles it.
const FIRST_NS: u64 = 1_000_000_000;
/// The number of different pauses: the last is the longest.
const PAUSES: usize = 8;

/// A connection that a peer asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HalfOpen {
    /// The first numbers of both sides.
    pub own: u32,
    pub peer: u32,
    /// The options that the peer offered.
    pub offer: Offer,
    /// How often it was asked again.
    pub retries: u32,
}

/// When connections are asked again. Those that wait for the same time are in one queue, which is thereby in order. A
/// connection that has been confirmed or given up stays in its queue until its time comes.
#[derive(Debug, Default)]
pub(crate) struct HalfOpenQueue {
    queues: [VecDeque<(u64, Tuple)>; PAUSES],
}

impl HalfOpenQueue {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    /// Has a connection wait after it was asked again `retries` times; returns when its time comes.
    ///
    /// # Errors
    /// [`InetError::NoMemory`].
    pub fn push(&mut self, now_ns: u64, tuple: Tuple, retries: u32) -> InetResult<u64> {
        let queue = &mut self.queues[(retries as usize).min(PAUSES - 1)];
        queue.try_reserve(1).map_err(|_| InetError::NoMemory)?;
        let due_ns = now_ns + pause_ns(FIRST_NS, retries);
        queue.push_back((due_ns, tuple));
        Ok(due_ns)
    }

    /// When the next one is due.
    pub fn next_ns(&self) -> Option<u64> {
        self.queues.iter().filter_map(|queue| queue.front()).map(|&(due_ns, _)| due_ns).min()
    }

    /// Takes one whose time has come.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<Tuple> {
        let is_due = |queue: &&mut VecDeque<(u64, Tuple)>| queue.front().is_some_and(|next| next.0 <= now_ns);
        self.queues.iter_mut().find(is_due)?.pop_front().map(|(_, tuple)| tuple)
    }

    /// Takes one of those that were asked most often: it makes room for another.
    pub fn pop_oldest(&mut self) -> Option<Tuple> {
        self.queues.iter_mut().rev().find_map(VecDeque::pop_front).map(|(_, tuple)| tuple)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Endpoint;

    fn tuple(port: u16) -> Tuple {
        let address = "10.0.0.1".parse().unwrap();
        Tuple::new(Endpoint { address, port: 80 }, Endpoint { address, port })
    }

    #[test]
    fn pauses_double_and_the_first_due_comes_first() {
        let mut queue = HalfOpenQueue::default();
        let second = FIRST_NS;
        assert_eq!(queue.push(0, tuple(1), 3), Ok(8 * second));
        assert_eq!(queue.push(0, tuple(2), 0), Ok(second));
        assert_eq!(queue.push(second, tuple(3), 200), Ok(121 * second));
        assert_eq!((queue.len(), queue.next_ns()), (3, Some(second)));
        assert_eq!(queue.pop_due(second - 1), None);
        assert_eq!(queue.pop_due(8 * second), Some(tuple(2)));
        assert_eq!(queue.pop_due(8 * second), Some(tuple(1)));
        assert_eq!(queue.next_ns(), Some(121 * second));
    }

    #[test]
    fn those_asked_most_often_make_room() {
        let mut queue = HalfOpenQueue::default();
        for (port, retries) in [(1, 0), (2, 2), (3, 2), (4, 1)] {
            queue.push(0, tuple(port), retries).unwrap();
        }
        let order: Vec<_> = core::iter::from_fn(|| queue.pop_oldest()).collect();
        assert_eq!(order, [tuple(2), tuple(3), tuple(4), tuple(1)]);
    }
}
