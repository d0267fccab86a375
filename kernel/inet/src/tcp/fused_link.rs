//! A socket's places in connections within the machine, one after the other.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use spin::Once;

use crate::counters::Counters;
use crate::error::{InetError, InetResult};
use crate::options::Options;
use crate::platform::{Platform, Readiness};
use crate::tcp::TcpSocket;
use crate::tcp::fused::{Pair, Progress, Remains, Side};

/// A socket's place in a pair.
pub(crate) struct FusedLink<P: Platform> {
    pub pair: Arc<Pair<P>>,
    /// The end that the socket sends from, and the one that it reads at: another one if it is connected to itself.
    pub side: Side,
    pub reader: Side,
    /// The program has dissolved the connection.
    is_dissolved: AtomicBool,
    /// Another link of the socket, for a connection that it made while this one's peer was still there.
    next: Once<Box<Self>>,
}

/// Dissolved connections of one socket whose other ends are still open.
const LINKS_MAX: usize = 1024;

impl<P: Platform> FusedLink<P> {
    const fn new(pair: Arc<Pair<P>>, side: Side, reader: Side) -> Self {
        Self { pair, side, reader, is_dissolved: AtomicBool::new(false), next: Once::new() }
    }

    /// The link of the end that connects.
    pub const fn of_client(pair: Arc<Pair<P>>) -> Self {
        Self::new(pair, Side::Client, Side::Client)
    }

    /// The link of the end that is accepted.
    pub const fn of_server(pair: Arc<Pair<P>>) -> Self {
        Self::new(pair, Side::Server, Side::Server)
    }

    /// The link of a socket that is its own peer.
    pub const fn to_itself(pair: Arc<Pair<P>>) -> Self {
        Self::new(pair, Side::Client, Side::Server)
    }

    /// The connection of the socket whose first link this is.
    #[inline]
    pub fn current(&self) -> Option<&Self> {
        if self.is_dissolved.load(Ordering::Acquire) { self.later() } else { Some(self) }
    }

    #[cold]
    fn later(&self) -> Option<&Self> {
        let mut link = self;
        loop {
            link = link.next.get()?;
            if !link.is_dissolved.load(Ordering::Acquire) {
                return Some(link);
            }
        }
    }

    /// The connection is no longer the socket's.
    pub fn dissolve(&self) {
        self.is_dissolved.store(true, Ordering::Release);
    }

    /// Begins a connection of a socket whose others are dissolved by a link that was made for it.
    pub fn append(&self, link: Self) -> InetResult<()> {
        let mut last = self;
        for _ in 0..LINKS_MAX {
            match last.next.get() {
                Some(next) => last = next,
                None => {
                    let link = P::reserved(size_of::<Self>(), || Box::new(link))?;
                    last.next.call_once(|| link);
                    return Ok(());
                }
            }
        }
        Err(InetError::NoBuffers)
    }

    /// A link from this one on that can be used for another connection: it is dissolved, its peer is gone, and it has
    /// the same ends. Its pair is as new. A call of another thread that found it before it was dissolved may still be
    /// about to use the pair: then it acts on the new connection, as if it had come later.
    pub fn recycled(&self, side: Side, reader: Side) -> Option<&Self> {
        let mut link = self;
        loop {
            let is_free = link.is_dissolved.load(Ordering::Acquire) && Arc::strong_count(&link.pair) == 1;
            if is_free && (link.side, link.reader) == (side, reader) {
                link.pair.renew();
                return Some(link);
            }
            link = link.next.get()?;
        }
    }

    /// How many links there are from this one on.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        core::iter::successors(Some(self), |link| link.next.get().map(|next| &**next)).count()
    }

    /// The recycled link is the socket's connection.
    pub fn revive(&self) {
        self.is_dissolved.store(false, Ordering::Release);
    }

    /// See [`Pair::shut_down`].
    pub fn shut_down(&self, counters: &Counters, reading: bool, writing: bool) {
        self.pair.shut_down(counters, self.side, self.reader, reading, writing);
    }

    /// See [`Pair::close`].
    pub fn close(&self, counters: &Counters, abort: bool) -> Remains {
        self.pair.close(counters, self.side, self.reader, abort)
    }

    /// See [`Pair::readiness`].
    pub fn readiness(&self, low_water: usize) -> Readiness {
        self.pair.readiness(self.side, self.reader, low_water)
    }

    /// See [`Pair::set_buffers`].
    pub fn set_buffers(&self, options: &Options) {
        self.pair.set_buffers(self.side, self.reader, options);
    }

    /// Takes the error that is to be told.
    pub fn take_error(&self) -> Option<InetError> {
        self.pair.shared.lock().ends(self.side).0.error.take()
    }

    /// Whether the connection was reset.
    pub fn is_reset(&self) -> bool {
        self.pair.shared.lock().reset
    }

    /// See [`Pair::progress`].
    pub fn progress(&self) -> Progress {
        self.pair.progress(self.side, self.reader)
    }
}

impl<P: Platform> TcpSocket<P> {
    /// Those who wait for the other end of a connection within the machine, if this is the end that connected.
    #[must_use]
    pub fn server_waiters(&self) -> Option<&Arc<P::Waiters>> {
        let link = self.fused().filter(|link| (link.side, link.reader) == (Side::Client, Side::Client))?;
        Some(link.pair.server_waiters())
    }
}
