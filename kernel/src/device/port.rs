//! The data of one port of the console device: a byte stream in each direction, with back pressure.
//!
//! Received buffers go back to the device only when a reader has taken what is in them, so a host that sends more
//! than is read has to wait; sent buffers come back when the host has taken them, so a program that writes more has
//! to wait.

use crate::error::Errno;
use crate::memory::frame;
use crate::sync::SpinLock;
use crate::time;
use crate::wait::engine::kernel_until;
use crate::wait::queue::{Events, WaitQueue, Watch};

use crate::device::virtio::{BufferQueue, QUEUE_LENGTH, Registers};

/// How many buffers of what size a port has in a machine with ample memory.
///
/// QEMU fills a receive buffer with at most the 4 KiB that it reads from its socket at a time, so larger ones would
/// stay empty; a buffer to send goes out as a whole, so it is as large as a program's usual writes.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// Number of receive buffers.
    pub receive_count: usize,
    /// Bytes of each.
    pub receive_bytes: usize,
    /// Number of buffers to send.
    pub transmit_count: usize,
    /// Bytes of each.
    pub transmit_bytes: usize,
}

impl Buffers {
    /// The fewest buffers of a direction, and the fewest bytes of one, where the machine has little memory.
    const COUNT_MIN: usize = 2;
    const BYTES_MIN: usize = 1024;

    /// The same in proportion to the machine's memory.
    fn in_proportion(self) -> Self {
        let bytes = frame::in_proportion(self.transmit_bytes, Self::BYTES_MIN);
        Self {
            receive_count: frame::in_proportion(self.receive_count, Self::COUNT_MIN),
            transmit_bytes: bytes.next_multiple_of(64),
            ..self
        }
    }
}

/// A received buffer.
#[derive(Clone, Copy, Default)]
struct Filled {
    buffer: usize,
    length: usize,
    /// How much of it was read.
    taken: usize,
}

struct PortReceive {
    queue: BufferQueue,
    /// Filled buffers in order, a ring that starts at `first`.
    filled: [Filled; QUEUE_LENGTH],
    first: usize,
    count: usize,
    /// Buffers that were read and not yet posted again.
    emptied: usize,
    /// All bytes that readers have taken.
    taken_bytes: u64,
}

struct Transmit {
    queue: BufferQueue,
    /// All bytes that were handed to the device.
    sent_bytes: u64,
}

/// One port.
pub struct Port {
    registers: Registers,
    receive_index: u16,
    receive: SpinLock<PortReceive>,
    transmit: SpinLock<Transmit>,
    /// Notified with `IN` when data has come, with `OUT` when there is room.
    pub changed: WaitQueue,
}

impl Port {
    /// A port over its two queues, which have no buffers yet.
    pub fn new(
        registers: Registers,
        receive_index: u16,
        receive: BufferQueue,
        mut transmit: BufferQueue,
    ) -> Self {
        transmit.set_interrupts(false);
        let filled = [Filled::default(); QUEUE_LENGTH];
        Self {
            registers,
            receive_index,
            receive: SpinLock::new(PortReceive {
                queue: receive,
                filled,
                first: 0,
                count: 0,
                emptied: 0,
                taken_bytes: 0,
            }),
            transmit: SpinLock::new(Transmit { queue: transmit, sent_bytes: 0 }),
            changed: WaitQueue::new(),
        }
    }

    /// Gives the port its buffers and lets the device fill them.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn start(&self, buffers: Buffers) -> Result<(), Errno> {
        let buffers = buffers.in_proportion();
        if buffers.transmit_count > 0 {
            self.transmit.lock().queue.allocate(buffers.transmit_count, buffers.transmit_bytes)?;
        }
        if buffers.receive_count > 0 {
            let mut receive = self.receive.lock();
            receive.queue.allocate(buffers.receive_count, buffers.receive_bytes)?;
            receive.post_all(&self.registers, self.receive_index);
        }
        Ok(())
    }

    /// Hands received bytes, at most `limit`, to `accept`, which returns how many it took. Returns their sum.
    pub fn read(&self, limit: usize, accept: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        let mut receive = self.receive.lock();
        let mut taken = 0;
        while taken < limit {
            receive.collect();
            if receive.count == 0 {
                break;
            }
            let first = receive.first;
            let Filled { buffer, length, taken: start } = receive.filled[first];
            let end = length.min(start + limit - taken);
            let count = accept(&receive.queue.bytes_mut(buffer)[start..end]);
            receive.filled[first].taken += count;
            taken += count;
            if start + count == length {
                receive.first = (first + 1) % QUEUE_LENGTH;
                receive.count -= 1;
                receive.emptied += 1;
            }
            if start + count < end {
                break;
            }
        }
        receive.taken_bytes += taken as u64;
        // Posting in batches keeps the number of exits to the host low, and leaves it room all the time.
        if receive.emptied * 4 >= receive.queue.count() {
            receive.post_all(&self.registers, self.receive_index);
        }
        taken
    }

    /// Whether there are bytes to read.
    pub fn has_data(&self) -> bool {
        let mut receive = self.receive.lock();
        receive.collect();
        receive.count > 0
    }

    /// How many bytes can be read without waiting.
    pub fn available_bytes(&self) -> usize {
        let mut receive = self.receive.lock();
        receive.collect();
        let filled = |step| receive.filled[(receive.first + step) % QUEUE_LENGTH];
        (0..receive.count).map(filled).map(|filled| filled.length - filled.taken).sum()
    }

    /// All bytes that were read so far.
    pub fn taken_bytes(&self) -> u64 {
        self.receive.lock().taken_bytes
    }

    /// Lets `fill` put bytes into a buffer and sends what it has put; `None` if the device has all buffers.
    pub fn write(&self, fill: impl FnOnce(&mut [u8]) -> usize) -> Option<usize> {
        let mut transmit = self.transmit.lock();
        transmit.collect();
        let buffer = transmit.queue.free_buffer()?;
        let count = fill(transmit.queue.bytes_mut(buffer));
        transmit.queue.post(buffer, count);
        transmit.sent_bytes += count as u64;
        if count > 0 && transmit.queue.should_notify() {
            self.registers.notify(self.receive_index + 1);
        }
        Some(count)
    }

    /// Whether [`Port::write`] would find a buffer. If not, `changed` is notified once it would.
    pub fn has_room(&self) -> bool {
        let mut transmit = self.transmit.lock();
        transmit.collect();
        if transmit.queue.free_buffer().is_none() {
            transmit.queue.set_interrupts(true);
            // The device may have given one back before it saw that.
            transmit.collect();
        }
        transmit.queue.free_buffer().is_some()
    }

    /// Whether the device has taken everything that was sent. If not, `changed` is notified when it has taken more.
    pub fn is_drained(&self) -> bool {
        let mut transmit = self.transmit.lock();
        transmit.collect();
        if !transmit.queue.is_idle() {
            transmit.queue.set_interrupts(true);
            transmit.collect();
        }
        transmit.queue.is_idle()
    }

    /// All bytes that were handed to the device so far.
    pub fn sent_bytes(&self) -> u64 {
        self.transmit.lock().sent_bytes
    }

    /// Registers `watch` and says what the port is ready for.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn poll(&self, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.changed.watch(watch, events)?;
        }
        let mut ready = Events::empty();
        if events.intersects(Events::IN | Events::RDNORM) && self.has_data() {
            ready |= Events::IN | Events::RDNORM;
        }
        if events.intersects(Events::OUT | Events::WRNORM) && self.has_room() {
            ready |= Events::OUT | Events::WRNORM;
        }
        Ok(ready)
    }

    /// Looks at what the device has done since, and wakes the tasks that wait for it.
    pub fn interrupted(&self) {
        let mut events = Events::empty();
        if self.receive.lock().queue.has_used() {
            events |= Events::IN | Events::RDNORM;
        }
        let mut transmit = self.transmit.lock();
        if transmit.queue.has_used() {
            transmit.queue.set_interrupts(false);
            events |= Events::OUT | Events::WRNORM;
        }
        drop(transmit);
        if !events.is_empty() {
            self.changed.wake(events);
        }
    }
}

impl PortReceive {
    /// Takes over what the device has filled.
    fn collect(&mut self) {
        while let Some((buffer, length)) = self.queue.take_used() {
            if length == 0 {
                self.emptied += 1;
                continue;
            }
            self.filled[(self.first + self.count) % QUEUE_LENGTH] = Filled { buffer, length, taken: 0 };
            self.count += 1;
        }
    }

    /// Posts every buffer that holds nothing.
    fn post_all(&mut self, registers: &Registers, index: u16) {
        let mut full = 0u32;
        for step in 0..self.count {
            full |= 1 << self.filled[(self.first + step) % QUEUE_LENGTH].buffer;
        }
        for buffer in (0..self.queue.count()).filter(|buffer| full & 1 << buffer == 0) {
            // Buffers that the device has are left alone.
            self.queue.post(buffer, usize::MAX);
        }
        self.emptied = 0;
        if self.queue.should_notify() {
            registers.notify(index);
        }
    }
}

impl Transmit {
    fn collect(&mut self) {
        while self.queue.take_used().is_some() {}
    }
}

/// How long a wait that there is no memory for sleeps before it looks again.
const RETRY_NS: u64 = 1_000_000;

/// Waits until `condition` holds; without memory to wait, looks again from time to time.
pub async fn wait(queue: &WaitQueue, mut condition: impl FnMut() -> bool) {
    while kernel_until(queue, &mut condition).await.is_err() {
        time::sleep_until(time::now_ns() + RETRY_NS).await;
    }
}
