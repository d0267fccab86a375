//! Buffers that a program provides, of which a request takes one when there is something to put in.
//!
//! A group is a list that `IORING_OP_PROVIDE_BUFFERS` adds to, or a ring in the program's memory
//! (`IORING_REGISTER_PBUF_RING`) that the kernel reads like any user memory.
//!
//! An attempt has a buffer on *trial*: it uses it or gives it back. In Linux the ring's lock keeps other attempts out
//! meanwhile. Here nothing does, so a request that finds no buffer while another's trial is under way knows no more
//! than that it has to look again.

use alloc::collections::{BTreeMap, VecDeque};
use linux_raw_sys::io_uring::{IORING_CQE_BUFFER_SHIFT, IORING_CQE_F_BUFFER};

use heddle_kernel_core::fallible::{push_back_reserved, push_front_reserved};

use crate::error::{Errno, TryError, TryResult};
use crate::memory::{Space, fallible};
use crate::syscall::uring::ring::Uring;

/// The most buffers of a list: their numbers have 16 bits.
const GROUP_BUFFERS_MAX: u32 = 1 << 16;
/// The most pieces of lists of one ring.
const RUNS_MAX: usize = 1 << 16;
/// Bytes of a ring's entry: address, length, number, and the tail in the first one.
const ENTRY: u64 = 16;
const TAIL_AT: u64 = 14;

/// A buffer that a request has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectedBuffer {
    pub group: u16,
    pub address: u64,
    pub length: u32,
    pub number: u16,
}

impl SelectedBuffer {
    /// The flags of the completion that says so.
    pub const fn flags(&self) -> u32 {
        IORING_CQE_F_BUFFER | (self.number as u32) << IORING_CQE_BUFFER_SHIFT
    }
}

/// Buffers of the same length that follow one another.
#[derive(Clone, Copy)]
struct Run {
    address: u64,
    length: u32,
    first: u16,
    count: u32,
}

impl Run {
    const fn take(&mut self, group: u16) -> SelectedBuffer {
        let Self { address, length, first, .. } = *self;
        self.address = address.wrapping_add(length as u64);
        self.first = first.wrapping_add(1);
        self.count -= 1;
        SelectedBuffer { group, address, length, number: first }
    }

    /// Takes a buffer back that stands before the others.
    const fn give_back(&mut self, buffer: SelectedBuffer) -> bool {
        let is_before = buffer.length == self.length
            && buffer.address.wrapping_add(self.length as u64) == self.address
            && buffer.number.wrapping_add(1) == self.first;
        if is_before {
            (self.address, self.first) = (buffer.address, buffer.number);
            self.count += 1;
        }
        is_before
    }
}

#[derive(Default)]
struct BufferList {
    runs: VecDeque<Run>,
    buffers: u32,
}

/// A ring in the program's memory.
struct BufferRing {
    address: u64,
    entries: u16,
    head: u16,
    /// Taken, and not used.
    returned: VecDeque<SelectedBuffer>,
}

enum BufferGroup {
    List(BufferList),
    Ring(BufferRing),
}

/// The groups of a ring.
#[derive(Default)]
pub struct ProvidedBuffers {
    groups: BTreeMap<u16, BufferGroup>,
    runs: usize,
    /// Trials that are under way.
    trials: u32,
}

/// A buffer that an attempt may use. It gives the buffer back before this ends, or has used it.
pub struct BufferTrial<'a> {
    ring: &'a Uring,
    pub buffer: SelectedBuffer,
}

impl BufferTrial<'_> {
    /// Gives the buffer back; false if there is no memory to keep it.
    pub fn give_back(&self) -> bool {
        self.ring.provided.lock().give_back(self.buffer)
    }
}

impl Drop for BufferTrial<'_> {
    fn drop(&mut self) {
        self.ring.provided.lock().trials -= 1;
    }
}

impl ProvidedBuffers {
    /// Adds buffers to a list: `IORING_OP_PROVIDE_BUFFERS`.
    ///
    /// # Errors
    /// `EINVAL` (the group is a ring), `EOVERFLOW` (it has as many as there are numbers), `ENOMEM`.
    pub fn provide(
        &mut self,
        group: u16,
        (address, length): (u64, u32),
        (first, count): (u16, u32),
    ) -> Result<(), Errno> {
        if self.runs >= RUNS_MAX {
            return Err(Errno::ENOMEM);
        }
        if !self.groups.contains_key(&group) {
            fallible::try_insert(&mut self.groups, group, BufferGroup::List(BufferList::default()))?;
        }
        let Some(BufferGroup::List(list)) = self.groups.get_mut(&group) else { return Err(Errno::EINVAL) };
        if list.buffers + count > GROUP_BUFFERS_MAX {
            return Err(Errno::EOVERFLOW);
        }
        list.runs.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        push_back_reserved(&mut list.runs, Run { address, length, first, count });
        list.buffers += count;
        self.runs += 1;
        Ok(())
    }

    /// Takes buffers out of a list: `IORING_OP_REMOVE_BUFFERS`. Returns how many, of at most `count`.
    ///
    /// # Errors
    /// `ENOENT`, `EINVAL` (the group is a ring).
    pub fn remove(&mut self, group: u16, count: u32) -> Result<u32, Errno> {
        let list = match self.groups.get_mut(&group) {
            None => return Err(Errno::ENOENT),
            Some(BufferGroup::Ring(_)) => return Err(Errno::EINVAL),
            Some(BufferGroup::List(list)) => list,
        };
        let mut left = count;
        while left > 0
            && let Some(run) = list.runs.front_mut()
        {
            let taken = run.count.min(left);
            run.address = run.address.wrapping_add(u64::from(run.length) * u64::from(taken));
            run.first = run.first.wrapping_add(taken as u16);
            run.count -= taken;
            left -= taken;
            if run.count == 0 {
                list.runs.pop_front();
                self.runs -= 1;
            }
        }
        list.buffers -= count - left;
        Ok(count - left)
    }

    /// Registers a ring of buffers.
    ///
    /// # Errors
    /// `EEXIST`, `ENOMEM`.
    pub fn register(&mut self, group: u16, address: u64, entries: u16) -> Result<(), Errno> {
        match self.groups.get(&group) {
            Some(BufferGroup::List(list)) if list.buffers == 0 => {}
            Some(_) => return Err(Errno::EEXIST),
            None => {}
        }
        let ring = BufferRing { address, entries, head: 0, returned: VecDeque::new() };
        fallible::try_insert(&mut self.groups, group, BufferGroup::Ring(ring))?;
        Ok(())
    }

    /// Forgets a ring of buffers.
    ///
    /// # Errors
    /// `ENOENT`, `EINVAL` (the group is a list).
    pub fn unregister(&mut self, group: u16) -> Result<(), Errno> {
        match self.groups.get(&group) {
            None => Err(Errno::ENOENT),
            Some(BufferGroup::List(_)) => Err(Errno::EINVAL),
            Some(BufferGroup::Ring(_)) => {
                self.groups.remove(&group);
                Ok(())
            }
        }
    }

    /// The memory that the lists take.
    pub const fn bytes(&self) -> usize {
        self.runs * size_of::<Run>()
    }

    fn take(&mut self, group: u16, space: &Space) -> TryResult<SelectedBuffer> {
        match self.groups.get_mut(&group) {
            None => Err(Errno::ENOBUFS.into()),
            Some(BufferGroup::List(list)) => {
                let run = list.runs.front_mut().ok_or(Errno::ENOBUFS)?;
                let buffer = run.take(group);
                list.buffers -= 1;
                if run.count == 0 {
                    list.runs.pop_front();
                    self.runs -= 1;
                }
                Ok(buffer)
            }
            Some(BufferGroup::Ring(ring)) => ring.take(group, space),
        }
    }

    /// Takes a buffer back that was not used; false if there is no memory to keep it.
    fn give_back(&mut self, buffer: SelectedBuffer) -> bool {
        match self.groups.get_mut(&buffer.group) {
            // Its group has gone.
            None => true,
            Some(BufferGroup::List(list)) => {
                if !list.runs.front_mut().is_some_and(|run| run.give_back(buffer)) {
                    if list.runs.try_reserve(1).is_err() {
                        return false;
                    }
                    let SelectedBuffer { address, length, number, .. } = buffer;
                    push_front_reserved(&mut list.runs, Run { address, length, first: number, count: 1 });
                    self.runs += 1;
                }
                list.buffers += 1;
                true
            }
            Some(BufferGroup::Ring(ring)) => {
                let is_kept = ring.returned.try_reserve(1).is_ok();
                if is_kept {
                    push_front_reserved(&mut ring.returned, buffer);
                }
                is_kept
            }
        }
    }
}

impl BufferRing {
    fn take(&mut self, group: u16, space: &Space) -> TryResult<SelectedBuffer> {
        if let Some(buffer) = self.returned.pop_front() {
            return Ok(buffer);
        }
        let at = |offset: u64| usize::try_from(self.address.wrapping_add(offset)).map_err(|_| Errno::EFAULT);
        let tail = space.read::<[u16; 1]>(at(TAIL_AT)?)?[0];
        if tail == self.head {
            return Err(Errno::ENOBUFS.into());
        }
        let index = u64::from(self.head & (self.entries - 1));
        let [address, numbers] = space.read::<[u64; 2]>(at(index * ENTRY)?)?;
        self.head = self.head.wrapping_add(1);
        Ok(SelectedBuffer { group, address, length: numbers as u32, number: (numbers >> 32) as u16 })
    }
}

impl Uring {
    /// Takes a buffer of a group, for an attempt; `None` if there may be one once another attempt is over.
    ///
    /// # Errors
    /// `ENOBUFS`; a page fault.
    pub fn try_buffer(&self, group: u16, space: &Space) -> TryResult<Option<BufferTrial<'_>>> {
        let mut provided = self.provided.lock();
        match provided.take(group, space) {
            Ok(buffer) => {
                provided.trials += 1;
                Ok(Some(BufferTrial { ring: self, buffer }))
            }
            Err(TryError::Error(Errno::ENOBUFS)) if provided.trials != 0 => Ok(None),
            Err(error) => Err(error),
        }
    }
}
