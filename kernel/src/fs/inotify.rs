//! inotify(7): an instance, its marks and the events that wait to be read.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general as linux;

use crate::call::Call;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::dentry::copy_name;
use crate::fs::notify::Mark;
use crate::fs::{File, Inode, IoBuffer, OpenFile};
use crate::memory::fallible;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue, Watch};

use heddle_kernel_core::fallible::{push_back_reserved, push_reserved};
use heddle_kernel_core::user_tasks::UserTasks;

/// The most events that wait in an instance that is made now: `fs.inotify.max_queued_events`.
pub static QUEUE_MAX: AtomicU32 = AtomicU32::new(16_384);
/// The most marks of a user: `fs.inotify.max_user_watches`.
pub static MARKS_MAX: AtomicU32 = AtomicU32::new(65_536);
/// The most instances of a user: `fs.inotify.max_user_instances`.
pub static INSTANCES_MAX: AtomicU32 = AtomicU32::new(128);
/// `struct inotify_event` without the name.
const HEADER: usize = size_of::<linux::inotify_event>();

#[derive(PartialEq, Eq)]
struct Event {
    number: i32,
    mask: u32,
    cookie: u32,
    name: Box<[u8]>,
}

impl Event {
    /// The name's bytes as they are read: with a zero at the end, and padded to whole headers.
    fn name_bytes(&self) -> usize {
        if self.name.is_empty() { 0 } else { (self.name.len() + 1).next_multiple_of(HEADER) }
    }

    fn bytes(&self) -> usize {
        HEADER + self.name_bytes()
    }
}

static INSTANCES: SpinLock<UserTasks> = SpinLock::new(UserTasks::new());
static MARKS: SpinLock<UserTasks> = SpinLock::new(UserTasks::new());

/// One of what is counted for a user.
struct CountedForUser {
    counts: &'static SpinLock<UserTasks>,
    uid: u32,
}

impl CountedForUser {
    /// One more for the user, who has fewer than `max`; `full` is the error for one who has as many.
    fn enter(
        counts: &'static SpinLock<UserTasks>,
        uid: u32,
        max: &AtomicU32,
        full: Errno,
    ) -> Result<Self, Errno> {
        let max = max.load(Ordering::Relaxed).into();
        if counts.lock().enter(uid, max)? { Ok(Self { counts, uid }) } else { Err(full) }
    }
}

impl Drop for CountedForUser {
    fn drop(&mut self) {
        self.counts.lock().leave(self.uid);
    }
}

/// A mark, and what it counts for its user.
struct CountedMark {
    mark: Arc<Mark>,
    _count: CountedForUser,
}

struct WatchTable {
    marks: Vec<CountedMark>,
    next: i32,
}

/// An instance.
pub struct Inotify {
    count: CountedForUser,
    /// The most events that wait.
    queue_max: usize,
    table: SpinLock<WatchTable>,
    events: SpinLock<VecDeque<Event>>,
    queue: WaitQueue,
}

impl Inotify {
    /// An instance of a user, without marks.
    ///
    /// # Errors
    /// `EMFILE` (the user has as many as may be), `ENOMEM`.
    pub fn new(uid: u32) -> Result<Arc<Self>, Errno> {
        fallible::try_arc(Self {
            count: CountedForUser::enter(&INSTANCES, uid, &INSTANCES_MAX, Errno::EMFILE)?,
            queue_max: QUEUE_MAX.load(Ordering::Relaxed) as usize,
            table: SpinLock::new(WatchTable { marks: Vec::new(), next: 1 }),
            events: SpinLock::new(VecDeque::new()),
            queue: WaitQueue::new(),
        })
    }

    /// Marks a node, or changes the mark that is on it; returns the mark's number.
    ///
    /// # Errors
    /// `EEXIST` (`IN_MASK_CREATE`), `ENOSPC`, `EOPNOTSUPP`, `ENOMEM`.
    pub fn add(self: &Arc<Self>, node: &Arc<dyn Inode>, mask: u32) -> Result<i32, Errno> {
        const KEPT: u32 = linux::IN_ALL_EVENTS | linux::IN_ONESHOT | linux::IN_EXCL_UNLINK;
        let mut table = self.table.lock();
        if let Some(mark) = table.marks.iter().map(|counted| &counted.mark).find(|mark| mark.is_on(node)) {
            if mask & linux::IN_MASK_CREATE != 0 {
                return Err(Errno::EEXIST);
            }
            let before = if mask & linux::IN_MASK_ADD != 0 { mark.mask.load(Ordering::Relaxed) } else { 0 };
            mark.mask.store(before | mask & KEPT, Ordering::Relaxed);
            return Ok(mark.number);
        }
        let count = CountedForUser::enter(&MARKS, self.count.uid, &MARKS_MAX, Errno::ENOSPC)?;
        let number = table.next;
        table.marks.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let mark = Mark::new(number, mask & KEPT, self, node)?;
        table.next = number.checked_add(1).ok_or(Errno::ENOSPC)?;
        push_reserved(&mut table.marks, CountedMark { mark, _count: count });
        Ok(number)
    }

    /// Marks from the one of an index on, so many at most.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn marks(&self, from: usize, most: usize) -> Result<Vec<Arc<Mark>>, Errno> {
        let mut marks = fallible::try_with_capacity(most)?;
        for mark in self.table.lock().marks.iter().skip(from).take(most) {
            push_reserved(&mut marks, mark.mark.clone());
        }
        Ok(marks)
    }

    /// Takes a mark away, and says so to whoever reads.
    ///
    /// # Errors
    /// `EINVAL`: there is none of this number.
    pub fn remove(&self, number: i32) -> Result<(), Errno> {
        let mut table = self.table.lock();
        let place =
            table.marks.iter().position(|counted| counted.mark.number == number).ok_or(Errno::EINVAL)?;
        let counted = table.marks.remove(place);
        drop(table);
        counted.mark.take_off();
        self.push(number, linux::IN_IGNORED, 0, b"");
        Ok(())
    }

    /// Adds an event, unless it is the same as the last.
    pub fn push(&self, number: i32, mask: u32, cookie: u32, name: &[u8]) {
        let mut events = self.events.lock();
        let is_same =
            |last: &Event| (last.number, last.mask, last.cookie, &*last.name) == (number, mask, cookie, name);
        if events.back().is_some_and(is_same) {
            return;
        }
        let is_full = events.len() >= self.queue_max;
        let copy = if is_full { None } else { copy_name(name).ok() };
        let event = match copy {
            Some(name) => Event { number, mask, cookie, name },
            // There is no room: whoever reads must hear that something was lost.
            None => Event { number: -1, mask: linux::IN_Q_OVERFLOW, cookie: 0, name: Box::default() },
        };
        if events.back() == Some(&event) || events.try_reserve(1).is_err() {
            return;
        }
        push_back_reserved(&mut events, event);
        drop(events);
        self.queue.wake(Events::IN | Events::RDNORM);
    }
}

impl File for Inotify {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        let mut events = self.events.lock();
        let mut done = 0;
        while let Some(event) = events.front() {
            if buffer.remaining() < event.bytes() {
                if done == 0 {
                    return Err(Errno::EINVAL.into());
                }
                break;
            }
            let mut bytes = [0; HEADER + (crate::fs::inode::NAME_LIMIT + 1).next_multiple_of(HEADER)];
            let fields = [event.number.cast_unsigned(), event.mask, event.cookie, event.name_bytes() as u32];
            for (place, field) in bytes.chunks_exact_mut(4).zip(fields) {
                place.copy_from_slice(&field.to_ne_bytes());
            }
            bytes[HEADER..HEADER + event.name.len()].copy_from_slice(&event.name);
            let length = event.bytes();
            let before = buffer.mark();
            if let Err(fault) = buffer.copy_out(&bytes[..length]) {
                // It has not been read, and is copied whole the next time.
                buffer.rewind(before);
                if done > 0 {
                    break;
                }
                return Err(fault.into());
            }
            let read = events.pop_front();
            drop(read);
            done += length;
        }
        if done == 0 { Err(TryError::WouldBlock) } else { Ok(done) }
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.queue.watch_to_take(watch, events)?;
        }
        let is_empty = self.events.lock().is_empty();
        Ok(if is_empty { Events::empty() } else { Events::IN | Events::RDNORM })
    }

    fn ioctl(&self, call: &Call<'_>, _: &OpenFile, request: u32, argument: usize) -> TryResult<usize> {
        if request != linux_raw_sys::ioctl::FIONREAD {
            return Err(Errno::ENOTTY.into());
        }
        let bytes: usize = self.events.lock().iter().map(Event::bytes).sum();
        call.thread.space().write_bytes(argument, &(bytes as u32).to_ne_bytes())?;
        Ok(0)
    }

    fn name(&self) -> &'static str {
        "anon_inode:inotify"
    }

    fn released(&self, _: &OpenFile) {
        loop {
            let Some(counted) = self.table.lock().marks.pop() else { break };
            counted.mark.take_off();
        }
    }
}
