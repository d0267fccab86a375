//! Pipes and FIFOs, pipe(7) and fifo(7).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use heddle_kernel_core::user_tasks::UserTasks;
use linux_raw_sys::{general as linux, ioctl};

use crate::call::Call;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::byte_queue::{
    ByteQueue, HasBytes, LARGE_BYTES, drain, drain_unlocked, fill, fill_unlocked, is_large, lock_to_read,
};
use crate::fs::inode::Contents;
use crate::fs::offer::{OFFER_BYTES, OfferPlace, ReadOffer};
use crate::fs::packet_pipe::PacketEnd;
use crate::fs::{Dentry, File, IoBuffer, OpenFile, Path, StatusFlags, downcast, setup};
use crate::memory::fallible;
use crate::process::{Credentials, running};
use crate::sync::{SpinGuard, SpinLock};
use crate::wait::node::{AwaitedThread, ThreadMark, WaitNode};
use crate::wait::queue::{Events, WaitQueue, Watch};

/// The capacity of a pipe in bytes unless `F_SETPIPE_SZ` says otherwise.
const CAPACITY: usize = 65_536;
/// The most that an ordinary user may ask for until somebody changes [`CAPACITY_MAX`].
pub const CAPACITY_LIMIT: usize = 1 << 20;
/// The most that a program without privilege may ask for: `fs.pipe-max-size`.
pub static CAPACITY_MAX: AtomicU32 = AtomicU32::new(CAPACITY_LIMIT as u32);
/// The most pages of a user's pipes before further ones are small: `fs.pipe-user-pages-soft`, 0 for no limit. FIFOs
/// don't count.
pub static PAGES_SOFT: AtomicU32 = AtomicU32::new(16_384);
/// The most before there are no further ones: `fs.pipe-user-pages-hard`.
pub static PAGES_HARD: AtomicU32 = AtomicU32::new(0);
/// The pages of a small one.
const PAGES_SMALL: u32 = 2;
const PAGE_BYTES: usize = 4096;
static PAGES: SpinLock<UserTasks> = SpinLock::new(UserTasks::new());

/// The pages that a pipe may have, as they count for the user who made it.
struct PipePages {
    uid: u32,
    pages: u32,
}

impl PipePages {
    /// Counts another number of pages. With a limit, it is `Err` if the user has more then, and nothing is changed.
    fn change(&mut self, pages: u32, limits: &[&AtomicU32]) -> Result<(), Errno> {
        let mut all = PAGES.lock();
        let sum = all.count(self.uid).saturating_sub(self.pages).saturating_add(pages);
        let is_too_much = |limit: &&AtomicU32| (1..sum).contains(&limit.load(Ordering::Relaxed));
        if pages > self.pages && limits.iter().any(is_too_much) {
            return Err(Errno::EPERM);
        }
        all.add(self.uid, pages)?;
        all.remove(self.uid, self.pages);
        self.pages = pages;
        Ok(())
    }

    /// The pages of a new pipe of somebody's.
    fn new(who: &Credentials) -> Result<Self, Errno> {
        let mut own = Self { uid: who.uid, pages: 0 };
        let most = if who.is_capable(linux::CAP_SYS_RESOURCE) {
            CAPACITY
        } else {
            CAPACITY.min(CAPACITY_MAX.load(Ordering::Relaxed) as usize)
        };
        let pages = (most / PAGE_BYTES) as u32;
        if is_free(who) {
            own.change(pages, &[])?;
        } else if own.change(pages, &[&PAGES_SOFT, &PAGES_HARD]).is_err() {
            // Only who has many has small ones.
            if own.change(pages, &[&PAGES_SOFT]).is_ok() {
                return Err(Errno::ENFILE);
            }
            own.change(PAGES_SMALL.min(pages), &[&PAGES_HARD]).map_err(|error| match error {
                Errno::EPERM => Errno::ENFILE,
                error => error,
            })?;
        }
        Ok(own)
    }
}

impl Drop for PipePages {
    fn drop(&mut self) {
        PAGES.lock().remove(self.uid, self.pages);
    }
}

/// Whether somebody's pipes are not limited.
fn is_free(who: &Credentials) -> bool {
    who.is_capable(linux::CAP_SYS_RESOURCE) || who.is_capable(linux::CAP_SYS_ADMIN)
}

/// Writes of up to this many bytes are never mixed with others.
pub(super) const ATOMIC_BYTES: usize = linux::PIPE_BUF as usize;

/// A pipe.
pub struct Pipe {
    pub(super) state: SpinLock<PipeState>,
    pub(super) queue: WaitQueue,
    /// It is a FIFO: opening one end waits for the other.
    named: bool,
    /// The threads that wrote and read last, by their marks, whom the other side awaits.
    writer: AtomicU64,
    reader: AtomicU64,
}

pub(super) struct PipeState {
    pub(super) bytes: ByteQueue,
    /// Only of a pipe that is no FIFO.
    pages: Option<PipePages>,
    offer: OfferPlace,
    pub(super) readers: u32,
    pub(super) writers: u32,
    /// How often each side has been opened: the other side's opening waits for it.
    reader_openings: u64,
    writer_openings: u64,
    /// The lengths of the packets in the bytes, of a pipe of packets.
    #[expect(clippy::box_collection, reason = "nearly no pipe has any, and a pipe is to be small")]
    pub(super) packets: Option<Box<VecDeque<usize>>>,
}

impl HasBytes for PipeState {
    fn bytes(&mut self) -> &mut ByteQueue {
        &mut self.bytes
    }
}

/// One end of a pipe, as it was opened.
pub struct PipeEnd {
    pub(super) pipe: Arc<Pipe>,
    reads: bool,
    writes: bool,
    /// Openings of the other side when this end was opened.
    seen: u64,
    /// The other side was open when this end was opened. It may be gone by the first look: that is an end then, and
    /// not a beginning still to come.
    met: bool,
}

impl Pipe {
    /// A pipe that nobody has open; `named` if it is one of a FIFO.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(named: bool) -> Result<Arc<Self>, Errno> {
        let state = PipeState {
            bytes: ByteQueue::new(CAPACITY),
            pages: None,
            offer: OfferPlace::new(),
            readers: 0,
            writers: 0,
            reader_openings: 0,
            writer_openings: 0,
            packets: None,
        };
        let (writer, reader) = (AtomicU64::new(0), AtomicU64::new(0));
        let state = SpinLock::new(state);
        fallible::try_arc(Self { state, queue: WaitQueue::new(), named, writer, reader })
    }

    /// Opens an end; with `O_RDWR` both.
    ///
    /// # Errors
    /// `ENXIO` (to write, without waiting, and nobody reads), `ENOMEM`.
    pub fn open_end(self: &Arc<Self>, flags: StatusFlags) -> Result<Arc<dyn File>, Errno> {
        let reads = !flags.contains(StatusFlags::WRONLY);
        let writes = flags.intersects(StatusFlags::WRONLY | StatusFlags::RDWR);
        let mut state = self.state.lock();
        if !reads && state.readers == 0 && flags.contains(StatusFlags::NONBLOCK) {
            return Err(Errno::ENXIO);
        }
        let seen = if reads { state.writer_openings } else { state.reader_openings };
        let met = if reads { state.writers > 0 } else { state.readers > 0 };
        // An end that is dropped counts itself out, so there must be none that was not counted in.
        let make = || PipeEnd { pipe: self.clone(), reads, writes, seen, met };
        let end: Arc<dyn File> = if state.packets.is_some() {
            fallible::try_arc_with(|| PacketEnd(make()))?
        } else {
            fallible::try_arc_with(make)?
        };
        state.readers += u32::from(reads);
        state.writers += u32::from(writes);
        state.reader_openings += u64::from(reads);
        state.writer_openings += u64::from(writes);
        drop(state);
        self.queue.wake(Events::IN | Events::OUT);
        Ok(end)
    }
}

/// The pipe that an open file is an end of.
#[must_use]
pub fn end_of(open: &OpenFile) -> Option<&PipeEnd> {
    downcast::<PipeEnd>(open).or_else(|| downcast::<PacketEnd>(open).map(|end| &end.0))
}

/// Whether an open file is an end of a pipe of packets.
#[must_use]
pub fn has_packets(open: &OpenFile) -> bool {
    downcast::<PacketEnd>(open).is_some()
}

/// A pipe of its own, open at both ends: pipe(2). The reading end is the first. With `DIRECT` it is one of packets.
///
/// # Errors
/// `ENOMEM`.
pub fn pair(credentials: &Credentials, flags: StatusFlags) -> Result<(Arc<OpenFile>, Arc<OpenFile>), Errno> {
    let (mount, tree) = setup::anonymous()?;
    let node = tree.unnamed(&Contents::Fifo, 0o600, credentials)?;
    let mut name = String::new();
    name.try_reserve(32).map_err(|_| Errno::ENOMEM)?;
    // Thirty-two bytes are enough for any number.
    let _ = write!(name, "pipe:[{}]", node.metadata().inode);
    let pipe = node.pipe()?;
    let pages = PipePages::new(credentials)?;
    {
        let mut state = pipe.state.lock();
        state.bytes.set_capacity(pages.pages as usize * PAGE_BYTES);
        state.pages = Some(pages);
        if flags.contains(StatusFlags::DIRECT) {
            state.packets = Some(fallible::try_box(VecDeque::new())?);
        }
    }
    let entry = Dentry::new(node, None, name.as_bytes())?;
    let place = Path { mount: mount.clone(), entry };
    let reader = pipe.open_end(StatusFlags::empty())?;
    let reader =
        fallible::try_arc(OpenFile::at(reader, flags.difference(StatusFlags::DIRECT), place.clone()))?;
    let writer = pipe.open_end(StatusFlags::WRONLY)?;
    let writer = fallible::try_arc(OpenFile::at(writer, flags | StatusFlags::WRONLY, place))?;
    Ok((reader, writer))
}

impl PipeEnd {
    /// Bytes the pipe may hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.pipe.state.lock().bytes.capacity()
    }

    /// Whether both are ends of one pipe.
    pub fn is_end_of_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pipe, &other.pipe)
    }

    /// Writes to the memory of a reader that waits, as far as it is there, and the rest to the pipe.
    #[inline(never)]
    fn write_large(
        &self,
        mut state: SpinGuard<'_, PipeState>,
        buffer: &mut IoBuffer<'_>,
        room: usize,
    ) -> TryResult<usize> {
        let (direct, reader) = if state.bytes.is_empty() { state.offer.fill(buffer) } else { (0, None) };
        let stored = if is_large(buffer.remaining().min(room), direct) {
            fill_unlocked((&self.pipe.state, &self.pipe.queue), state, buffer, room, |state| {
                state.readers > 0
            })
        } else {
            let result = fill(&mut state.bytes, buffer, room);
            drop(state);
            result
        };
        let stored = match stored {
            Err(_) if direct > 0 => 0,
            result => result?,
        };
        // Listeners are told as of any write, and the reader's registration goes with its wake, so that the next
        // write's turn is another's.
        self.pipe.queue.wake(Events::IN | Events::RDNORM);
        if let Some(reader) = reader {
            reader.wake();
        }
        Ok(direct + stored)
    }

    /// Shows up to `length` bytes to another pipe too, or if it `takes` them moves them there: tee(2), and splice(2)
    /// between pipes. The pages go as they are.
    ///
    /// # Errors
    /// Blocks while this pipe is empty or the other is full. `EINVAL` (they are one), `EPIPE`, `ENOMEM`.
    pub fn pass_on(&self, to: &Self, length: usize, takes: bool) -> TryResult<usize> {
        if Arc::ptr_eq(&self.pipe, &to.pipe) {
            return Err(Errno::EINVAL.into());
        }
        // Two pipes at once: the one with the lower address first.
        let swapped = Arc::as_ptr(&self.pipe) > Arc::as_ptr(&to.pipe);
        let (first, second) = if swapped { (&to.pipe, &self.pipe) } else { (&self.pipe, &to.pipe) };
        let (mut first, mut second) = loop {
            let (first, second) = (first.state.lock(), second.state.lock_below(1));
            let source = if swapped { &second } else { &first };
            if !takes || !source.bytes.is_borrowed() {
                break (first, second);
            }
            drop((first, second));
            core::hint::spin_loop();
        };
        let (source, target) = if swapped { (&mut second, &mut first) } else { (&mut first, &mut second) };
        if target.readers == 0 {
            return Err(Errno::EPIPE.into());
        }
        if source.bytes.is_empty() && source.writers == 0 || length == 0 {
            return Ok(0);
        }
        if source.bytes.is_empty() || target.bytes.room() == 0 {
            return Err(TryError::WouldBlock);
        }
        let passed = source.bytes.share_into(&mut target.bytes, length).map_err(|_| Errno::ENOMEM)?;
        if takes {
            source.bytes.consume(passed);
        }
        let wakes_writers = takes && source.bytes.room() >= ATOMIC_BYTES;
        drop((first, second));
        to.pipe.queue.wake(Events::IN | Events::RDNORM);
        if wakes_writers {
            self.pipe.queue.wake(Events::OUT | Events::WRNORM);
        }
        Ok(passed)
    }

    /// Changes how much the pipe may hold; rounded up to a power of two of at least a page.
    ///
    /// # Errors
    /// `EBUSY`: it holds more.
    pub fn set_capacity(&self, capacity: usize, who: &Credentials) -> Result<usize, Errno> {
        let capacity = capacity.max(ATOMIC_BYTES).next_power_of_two();
        let limits: &[&AtomicU32] = if is_free(who) { &[] } else { &[&PAGES_SOFT, &PAGES_HARD] };
        let mut state = self.pipe.state.lock();
        let before = state.bytes.capacity();
        let packets = state.packets.as_ref().map_or(0, |packets| packets.len());
        if packets > capacity / ATOMIC_BYTES || !state.bytes.set_capacity(capacity) {
            return Err(Errno::EBUSY);
        }
        if let Some(pages) = &mut state.pages
            && let Err(error) = pages.change((capacity / PAGE_BYTES) as u32, limits)
        {
            state.bytes.set_capacity(before);
            return Err(error);
        }
        drop(state);
        self.pipe.queue.wake(Events::OUT | Events::WRNORM);
        Ok(capacity)
    }
}

impl File for PipeEnd {
    fn held_pages(&self) -> usize {
        if self.reads { self.pipe.state.lock().bytes.pages() } else { 0 }
    }

    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        if buffer.remaining() == 0 {
            return Ok(0);
        }
        let mut state = lock_to_read(&self.pipe.state);
        if state.bytes.is_empty() {
            return if state.writers == 0 { Ok(0) } else { Err(TryError::WouldBlock) };
        }
        let wanted = state.bytes.len().min(buffer.remaining());
        buffer.check_target(wanted)?;
        let moved;
        if wanted >= LARGE_BYTES {
            (state, moved) = drain_unlocked(&self.pipe.state, state, buffer);
        } else {
            moved = drain(&mut state.bytes, buffer);
        }
        let moved = moved?;
        let wakes = state.bytes.room() >= ATOMIC_BYTES;
        drop(state);
        self.pipe.reader.store(running::mark().0, Ordering::Relaxed);
        if wakes {
            self.pipe.queue.wake(Events::OUT | Events::WRNORM);
        }
        Ok(moved)
    }

    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        let mut state = self.pipe.state.lock();
        if state.readers == 0 {
            return Err(Errno::EPIPE.into());
        }
        let wanted = buffer.remaining();
        if wanted == 0 {
            return Ok(0);
        }
        self.pipe.writer.store(running::mark().0, Ordering::Relaxed);
        let room = state.bytes.room();
        if room == 0 || wanted <= ATOMIC_BYTES && room < wanted {
            return Err(TryError::WouldBlock);
        }
        // A short write goes as a whole: its memory has to be there first.
        if wanted <= ATOMIC_BYTES
            && let Err((_, fault)) = buffer.probe(0, usize::MAX, false)
        {
            return Err(fault.into());
        }
        if wanted >= LARGE_BYTES || wanted >= OFFER_BYTES && state.offer.is_taken() {
            return self.write_large(state, buffer, room);
        }
        let moved = fill(&mut state.bytes, buffer, room)?;
        drop(state);
        self.pipe.queue.wake(Events::IN | Events::RDNORM);
        Ok(moved)
    }

    fn offer(&self, offer: ReadOffer) {
        let mut state = self.pipe.state.lock();
        let is_wanted = state.bytes.is_empty() && state.writers > 0 && !state.offer.is_taken();
        if is_wanted && self.pipe.queue.has_one_taker() {
            state.offer.put(offer);
        }
    }

    fn take_offer(&self, waiter: &Arc<WaitNode>) -> usize {
        let offer = self.pipe.state.lock().offer.take(waiter);
        offer.map_or(0, |offer| offer.filled())
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.pipe.queue.watch_to_take(watch, events)?;
            watch.awaits(|| {
                let awaited = if self.reads { &self.pipe.writer } else { &self.pipe.reader };
                AwaitedThread { mark: ThreadMark(awaited.load(Ordering::Relaxed)), is_chosen: false }
            });
        }
        let mut state = self.pipe.state.lock();
        if state.offer.is_taken() && self.reads && watch.is_some_and(Watch::is_exclusive) {
            // The order of those who wait decides who gets what, which is for the queue to say.
            let canceled = state.offer.cancel();
            drop(state);
            drop(canceled);
            state = self.pipe.state.lock();
        }
        let mut ready = Events::empty();
        if self.reads {
            if !state.bytes.is_empty() {
                ready |= Events::IN | Events::RDNORM;
            }
            // Without a writer since this end was opened, a FIFO has not ended but not begun.
            let has_begun = self.met || state.writer_openings != self.seen || !self.pipe.named;
            if state.writers == 0 && has_begun {
                ready |= Events::HUP;
            }
        }
        if self.writes {
            if state.bytes.room() >= ATOMIC_BYTES {
                ready |= Events::OUT | Events::WRNORM;
            }
            if state.readers == 0 {
                ready |= Events::ERR;
            }
        }
        Ok(ready)
    }

    fn ioctl(&self, call: &Call<'_>, _: &OpenFile, request: u32, argument: usize) -> TryResult<usize> {
        match request {
            ioctl::FIONREAD => {
                let length = self.pipe.state.lock().bytes.len() as u32;
                crate::call::put(call, argument, &length.to_ne_bytes())?;
                Ok(0)
            }
            _ => Err(Errno::ENOTTY.into()),
        }
    }

    fn is_opened(&self, open: &OpenFile, watch: Option<&Watch>) -> Result<bool, Errno> {
        if let Some(watch) = watch {
            self.pipe.queue.watch(watch, Events::IN | Events::OUT)?;
        }
        if !self.pipe.named || self.reads == self.writes || open.flags().contains(StatusFlags::NONBLOCK) {
            return Ok(true);
        }
        let state = self.pipe.state.lock();
        Ok(if self.met {
            true
        } else if self.reads {
            state.writers > 0 || state.writer_openings != self.seen
        } else {
            state.readers > 0 || state.reader_openings != self.seen
        })
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        let mut state = self.pipe.state.lock();
        state.readers -= u32::from(self.reads);
        state.writers -= u32::from(self.writes);
        drop(state);
        self.pipe.queue.wake(Events::all());
    }
}
