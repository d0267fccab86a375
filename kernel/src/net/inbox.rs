//! The receive queue of a socket.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use heddle_kernel_core::fallible::extend_items_reserved;

use crate::error::Errno;
use crate::fs::OpenFile;
use crate::fs::byte_queue::{ByteQueue, HasBytes};
use crate::fs::offer::{OfferPlace, ReadOffer};
use crate::memory::fallible;
use crate::net::in_flight::InFlightCharge;
use crate::net::{Address, Style, collector};
use crate::process::{Thread, running};
use crate::sync::SpinLock;
use crate::wait::node::{AwaitedThread, ThreadMark, WaitNode};
use crate::wait::queue::{Events, WaitQueue, Watch};

/// Bytes that may wait, as Linux's default for a socket's buffer.
pub const CAPACITY: usize = 212_992;
/// Sendings with control data that one read passes at most, which bounds its time.
const MARKS_AT_ONCE: usize = 64;
/// Datagrams that may wait, `/proc/sys/net/unix/max_dgram_qlen`.
pub static DATAGRAMS_MAX: AtomicUsize = AtomicUsize::new(512);

/// Credentials of a sender: `struct ucred`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The process.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl PeerIdentity {
    /// Nobody known.
    pub const NONE: Self = Self { pid: 0, uid: u32::MAX, gid: u32::MAX };

    /// The identity of the sender of a message, whose real user and group count.
    #[must_use]
    pub fn of_sender(thread: &Thread) -> Self {
        let credentials = thread.credentials();
        Self { pid: thread.process.pid, uid: credentials.uid, gid: credentials.gid }
    }

    /// The identity of a sender that nobody asked for.
    pub const UNKNOWN: Self = Self { pid: 0, uid: 65534, gid: 65534 };

    /// The same with the numbers that somebody sees.
    #[must_use]
    pub fn seen_by(self, viewer: &Thread) -> Self {
        let who = viewer.credentials();
        let pid = viewer.process.shown(self.pid);
        if who.users.is_none() || self.uid == Self::NONE.uid {
            return Self { pid, ..self };
        }
        Self { pid, uid: who.shown_user(self.uid), gid: who.shown_group(self.gid) }
    }

    /// The identity of a thread's process.
    #[must_use]
    pub fn of(thread: &Thread) -> Self {
        let credentials = thread.credentials();
        Self { pid: thread.process.pid, uid: credentials.euid, gid: credentials.egid }
    }
}

/// Some socket's messages have told who sent them.
static SOME_PASS_IDENTITY: AtomicBool = AtomicBool::new(false);

/// Whether any socket's messages have told who sent them since the machine was started.
pub(super) fn some_pass_identity() -> bool {
    SOME_PASS_IDENTITY.load(Ordering::Relaxed)
}

/// Control data that comes along with bytes.
#[derive(Default)]
pub struct Ancillary {
    /// `SCM_RIGHTS`.
    files: Vec<Arc<OpenFile>>,
    /// Their charge while they are in flight; the collector knows of them then.
    charge: Option<InFlightCharge>,
    /// `SCM_CREDENTIALS`.
    pub identity: Option<PeerIdentity>,
}

impl Ancillary {
    /// A copy, with references of its own to the files, which are not in flight.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn duplicate(&self) -> Result<Self, Errno> {
        let files = fallible::try_to_vec(&self.files)?;
        Ok(Self { files, charge: None, identity: self.identity })
    }

    /// Whether neither has files, and both the same sender.
    pub(super) fn is_same_sender(&self, other: &Self) -> bool {
        self.files.is_empty() && other.files.is_empty() && self.identity == other.identity
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> &[Arc<OpenFile>] {
        &self.files
    }

    /// Adds a file, before [`Ancillary::depart`].
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add_file(&mut self, file: Arc<OpenFile>) -> Result<(), Errno> {
        fallible::try_push(&mut self.files, file)
    }

    /// The files are in flight from now on, sent by a thread.
    ///
    /// # Errors
    /// `ETOOMANYREFS`, `ENOMEM`.
    pub fn depart(&mut self, sender: &Thread) -> Result<(), Errno> {
        if self.charge.is_none() && !self.files.is_empty() {
            let charge = InFlightCharge::new(sender, self.files.len())?;
            if let Err(error) = collector::enter(&self.files) {
                charge.release();
                return Err(error);
            }
            self.charge = Some(charge);
        }
        Ok(())
    }

    /// Takes the files out, which have arrived.
    #[must_use]
    pub fn take_files(&mut self) -> Vec<Arc<OpenFile>> {
        if let Some(charge) = self.charge.take() {
            collector::leave(&self.files);
            charge.release();
        }
        core::mem::take(&mut self.files)
    }
}

impl Drop for Ancillary {
    fn drop(&mut self) {
        defer_close(self.take_files());
    }
}

/// Files that nobody received, to be closed.
static DEFERRED_CLOSES: SpinLock<Vec<Arc<OpenFile>>> = SpinLock::new(Vec::new());
/// Somebody is closing them.
static CLOSING: AtomicBool = AtomicBool::new(false);

/// Closes files that were on their way. One of them may be a socket to which others are on their way, and so on as deep
/// as a program likes: so a close that happens within another only leaves its files to that one.
fn defer_close(files: Vec<Arc<OpenFile>>) {
    if files.is_empty() {
        return;
    }
    let mut buried = DEFERRED_CLOSES.lock();
    if buried.try_reserve(files.len()).is_err() {
        // They are closed right here, at the end of the function.
        return;
    }
    extend_items_reserved(&mut buried, files);
    drop(buried);
    // Looked at again after giving the work up: somebody may have left files in between and gone.
    while !DEFERRED_CLOSES.lock().is_empty() && !CLOSING.swap(true, Ordering::AcqRel) {
        loop {
            let next = DEFERRED_CLOSES.lock().pop();
            let Some(file) = next else { break };
            drop(file);
        }
        CLOSING.store(false, Ordering::Release);
    }
}

/// The address of a message's sender.
pub type Sender = Option<Arc<Address>>;

/// A message of a datagram or packet socket.
pub(super) struct InboxMessage {
    pub bytes: Vec<u8>,
    pub ancillary: Option<Ancillary>,
    pub sender: Sender,
}

/// Control data of a part of a stream: of the bytes of one sending.
pub(super) struct StreamMark {
    /// The number of bytes of the stream before the part, and up to its end.
    pub range: Range<u64>,
    pub ancillary: Ancillary,
}

/// The messages in a receive queue.
pub(super) struct InboxContents {
    /// The bytes of a stream.
    pub bytes: ByteQueue,
    /// Memory of a reader that waits for them.
    pub offer: OfferPlace,
    /// Control data in the order of the stream.
    pub marks: VecDeque<StreamMark>,
    /// Bytes of the stream that have been read.
    pub read: u64,
    /// Messages, and the sum of their bytes.
    pub messages: VecDeque<InboxMessage>,
    pub message_bytes: usize,
    /// The sender will send no more.
    pub ended: bool,
    /// Nobody will read.
    pub closed: bool,
    /// The socket is gone.
    pub is_ownerless: bool,
    /// `SO_PEEK_OFF`: where the next peek starts; below 0 it starts at the front, always.
    pub peek_offset: i32,
    /// To be reported once.
    pub error: Option<Errno>,
}

/// An inbox.
pub struct Inbox {
    pub(super) contents: SpinLock<InboxContents>,
    /// Woken for readers when something comes, for writers when there is room.
    pub(super) queue: WaitQueue,
    /// `SO_PASSCRED`: messages tell who sent them.
    passes_identity: AtomicBool,
    /// Whether there may be an offer, to know without the lock.
    has_offer: AtomicBool,
    /// The address of its socket, which peers are told.
    address: spin::Once<Arc<Address>>,
    /// The thread that serves what is sent here: the one that received last, or accepted, by its mark.
    server: AtomicU64,
}

/// How an inbox stands.
pub(super) struct Readiness {
    pub has_data: bool,
    pub has_room: bool,
    pub has_ended: bool,
    pub has_error: bool,
    pub is_closed: bool,
}

impl HasBytes for InboxContents {
    fn bytes(&mut self) -> &mut ByteQueue {
        &mut self.bytes
    }

    fn take_borrowed(&mut self, count: usize) {
        self.bytes.take_borrowed(count);
        self.note_read(count);
    }
}

impl InboxContents {
    /// So many bytes of the stream have been read.
    pub fn note_read(&mut self, count: usize) {
        self.read += count as u64;
        self.move_peek(count, true);
    }

    /// Where a peek starts.
    pub fn peek_start(&self) -> usize {
        usize::try_from(self.peek_offset).unwrap_or(0)
    }

    /// Peeks by `SO_PEEK_OFF` go on behind `count` bytes more, or of bytes that were taken so many fewer.
    pub fn move_peek(&mut self, count: usize, is_taken: bool) {
        if self.peek_offset >= 0 {
            let count = i32::try_from(count).unwrap_or(i32::MAX);
            let moved = if is_taken { -count } else { count };
            self.peek_offset = self.peek_offset.saturating_add(moved).max(0);
        }
    }

    /// Whether a message has to wait for room. It doesn't depend on the message, so that readiness means what it says;
    /// the last message may go over the limit.
    pub fn is_full(&self, limit: usize) -> bool {
        self.messages.len() > DATAGRAMS_MAX.load(Ordering::Relaxed) || self.message_bytes >= limit
    }

    /// Room for the bytes of a stream, of which the sender may have `limit` wait.
    pub fn room(&self, limit: usize) -> usize {
        limit.saturating_sub(self.bytes.claimed()).min(self.bytes.room())
    }

    /// The sender of the next bytes, as far as it is known.
    pub fn identity_here(&self) -> Option<PeerIdentity> {
        let first = self.marks.front().filter(|mark| mark.range.contains(&self.read))?;
        first.ancillary.identity
    }

    /// Whether the next bytes are the first of a sending with control data.
    pub fn starts_sending(&self) -> bool {
        self.marks.front().is_some_and(|mark| mark.range.start == self.read)
    }

    /// The position at which a read stops at the latest. Bytes that came with files are the last of a read; if the
    /// receiver is told who sent them, those of different senders are not mixed.
    pub fn boundary(&self, tells_identity: bool) -> u64 {
        let sender = self.identity_here();
        let mut end = self.read;
        for (index, mark) in self.marks.iter().enumerate() {
            if index == MARKS_AT_ONCE {
                return end;
            }
            let is_gap = tells_identity && sender.is_some() && end < mark.range.start;
            if is_gap && end > self.read {
                return end;
            }
            if tells_identity && mark.range.start > self.read && mark.ancillary.identity != sender {
                return mark.range.start;
            }
            if !mark.ancillary.files().is_empty() {
                return mark.range.end;
            }
            end = mark.range.end;
        }
        let is_gap = tells_identity && sender.is_some() && end > self.read;
        if is_gap { end } else { u64::MAX }
    }

    /// Takes what comes along with the bytes up to where the reader is now.
    pub fn take_marks(&mut self, sender: Option<PeerIdentity>) -> Option<Ancillary> {
        let mut taken: Option<Ancillary> = None;
        while let Some(mark) = self.marks.front_mut().filter(|mark| mark.range.start < self.read) {
            if mark.range.end <= self.read {
                let Some(mark) = self.marks.pop_front() else { break };
                if taken.is_none() || !mark.ancillary.files().is_empty() {
                    taken = Some(mark.ancillary);
                }
                continue;
            }
            // The rest of the sending has the sender's identity still, and no files.
            let identity = mark.ancillary.identity;
            let mut rest = Ancillary::default();
            rest.identity = identity;
            let ancillary = core::mem::replace(&mut mark.ancillary, rest);
            if taken.is_none() || !ancillary.files().is_empty() {
                taken = Some(ancillary);
            }
            break;
        }
        let ancillary = taken.as_mut()?;
        ancillary.identity = sender;
        taken
    }

    /// Whether nothing more is sent, or read.
    pub const fn has_ended(&self) -> bool {
        self.ended || self.closed
    }

    pub fn has_data(&self) -> bool {
        !self.bytes.is_empty() || !self.messages.is_empty()
    }
}

impl Inbox {
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        let contents = InboxContents {
            bytes: ByteQueue::new(CAPACITY),
            offer: OfferPlace::new(),
            marks: VecDeque::new(),
            read: 0,
            messages: VecDeque::new(),
            message_bytes: 0,
            ended: false,
            closed: false,
            is_ownerless: false,
            peek_offset: -1,
            error: None,
        };
        let passes_identity = AtomicBool::new(false);
        fallible::try_arc(Self {
            contents: SpinLock::new(contents),
            queue: WaitQueue::new(),
            passes_identity,
            has_offer: AtomicBool::new(false),
            address: spin::Once::new(),
            server: AtomicU64::new(0),
        })
    }

    /// The address of its socket.
    pub(super) fn address(&self) -> Sender {
        self.address.get().cloned()
    }

    /// Its socket has been bound.
    pub(super) fn set_address(&self, address: &Arc<Address>) {
        self.address.call_once(|| address.clone());
    }

    /// The thread that runs serves what is sent here.
    #[inline]
    pub(super) fn set_server(&self) {
        self.server.store(running::mark().0, Ordering::Relaxed);
    }

    /// Whoever serves another inbox serves this one too.
    pub(super) fn set_server_of(&self, other: &Self) {
        self.server.store(other.server.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The thread that serves what is sent here, whom a client awaits.
    pub(super) fn server(&self) -> AwaitedThread {
        AwaitedThread { mark: ThreadMark(self.server.load(Ordering::Relaxed)), is_chosen: true }
    }

    /// Whether messages tell who sent them.
    #[must_use]
    pub fn passes_identity(&self) -> bool {
        self.passes_identity.load(Ordering::Relaxed)
    }

    /// Sets `SO_PASSCRED`.
    pub fn set_passes_identity(&self, passes: bool) {
        if passes {
            SOME_PASS_IDENTITY.store(true, Ordering::Relaxed);
        }
        self.passes_identity.store(passes, Ordering::Relaxed);
    }

    /// The error that is to be reported once: `SO_ERROR`.
    #[must_use]
    pub fn error(&self) -> Option<Errno> {
        self.contents.lock().error
    }

    /// The error has been reported.
    pub fn error_was_reported(&self) {
        self.contents.lock().error = None;
    }

    /// Registers for room below the sender's limit and says whether there is some, or nobody any more who reads.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch_for_room(&self, watch: &Watch, limit: usize) -> Result<bool, Errno> {
        self.queue.watch(watch, Events::OUT)?;
        let ready = self.readiness(limit);
        Ok(ready.has_room || ready.is_closed)
    }

    /// `SO_PEEK_OFF`.
    #[must_use]
    pub fn peek_offset(&self) -> i32 {
        self.contents.lock().peek_offset
    }

    /// Sets `SO_PEEK_OFF`.
    pub fn set_peek_offset(&self, offset: i32) {
        self.contents.lock().peek_offset = offset;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.contents.lock().closed
    }

    /// How it stands, for a sender that may have `limit` bytes wait.
    pub(super) fn readiness(&self, limit: usize) -> Readiness {
        let contents = self.contents.lock();
        Readiness {
            has_data: contents.has_data(),
            has_room: contents.room(limit) >= limit / 4 && !contents.is_full(limit),
            has_ended: contents.ended || contents.closed,
            has_error: contents.error.is_some(),
            is_closed: contents.closed,
        }
    }

    /// Takes the memory of a reader that waits, if the stream has nothing but bytes to come.
    pub(super) fn offer(&self, offer: ReadOffer) {
        let mut contents = self.contents.lock();
        let is_plain = contents.marks.is_empty() && contents.peek_offset < 0 && !self.passes_identity();
        let has_ended = contents.ended || contents.closed || contents.error.is_some();
        let is_wanted = is_plain && !has_ended && !contents.has_data() && !contents.offer.is_taken();
        if !is_wanted {
            return;
        }
        // Before the look: a reader that it does not find registers later, and then finds this.
        self.has_offer.store(true, Ordering::Release);
        if self.queue.has_one_taker() {
            contents.offer.put(offer);
        } else {
            self.has_offer.store(false, Ordering::Release);
        }
    }

    /// Gives it back, with the bytes that were copied there.
    pub(super) fn take_offer(&self, waiter: &Arc<WaitNode>) -> usize {
        let mut contents = self.contents.lock();
        let offer = contents.offer.take(waiter);
        self.has_offer.store(contents.offer.is_taken(), Ordering::Release);
        drop(contents);
        offer.map_or(0, |offer| offer.filled())
    }

    /// Another reader is registered and about to wait: their order decides. An offer that comes later finds both in the
    /// queue.
    #[inline]
    pub(super) fn cancel_offer(&self) {
        if self.has_offer.load(Ordering::Acquire) {
            let canceled = self.contents.lock().offer.cancel();
            drop(canceled);
        }
    }

    pub(super) fn bytes_to_read(&self, style: Style) -> usize {
        let contents = self.contents.lock();
        match style {
            Style::Stream | Style::Packets => contents.bytes.len() + contents.message_bytes,
            Style::Datagram => contents.messages.front().map_or(0, |message| message.bytes.len()),
        }
    }

    /// The sender will send no more.
    pub(super) fn end(&self) {
        self.contents.lock().ended = true;
        self.queue.wake(Events::all());
    }

    /// Nobody will read; what is here stays to be read until then.
    pub(super) fn close(&self) {
        self.contents.lock().closed = true;
        self.queue.wake(Events::all());
    }

    /// The sender has gone without reading what it was sent.
    pub(super) fn reset(&self) {
        self.contents.lock().error = Some(Errno::ECONNRESET);
    }

    /// Shows what comes along with all that waits here.
    pub(super) fn each_waiting(&self, found: &mut impl FnMut(&Ancillary)) {
        let contents = self.contents.lock();
        contents.marks.iter().for_each(|mark| found(&mark.ancillary));
        contents.messages.iter().filter_map(|message| message.ancillary.as_ref()).for_each(found);
    }

    /// The owner is gone: drops everything and says whether there was something.
    pub(super) fn close_for_good(&self) -> bool {
        let mut contents = self.contents.lock();
        contents.closed = true;
        contents.is_ownerless = true;
        let unread = contents.has_data();
        let messages = core::mem::take(&mut contents.messages);
        let marks = core::mem::take(&mut contents.marks);
        let bytes = contents.bytes.take();
        drop(contents);
        // Files that were on their way are closed without the lock: that may lead back here.
        drop(bytes);
        drop(messages);
        drop(marks);
        self.queue.wake(Events::all());
        unread
    }
}
