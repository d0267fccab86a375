//! A group of fanotify(7) as an open file: events are read, and permissions written.

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

use heddle_kernel_core::fallible::{push_front_reserved, push_reserved};
use heddle_kernel_core::fanotify::{METADATA_BYTES, PIDFD_BYTES, event, init, mark, metadata, pidfd_record};
use linux_raw_sys::general as linux;

use crate::call::Call;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::fanotify::group::{FanEvent, FanGroup};
use crate::fs::inode::Opening;
use crate::fs::{File, IoBuffer, OpenFile, Path, StatusFlags};
use crate::memory::fallible;
use crate::process::pidfd::{ProcessFile, is_known};
use crate::process::{Thread, detour};
use crate::wait::queue::{Events, Watch};

/// Events that one read gives at most.
const READ_MAX: usize = 64;

impl FanGroup {
    fn has_pidfd(&self, event: &FanEvent) -> bool {
        self.flags & init::REPORT_PIDFD != 0 && event.mask & event::OVERFLOW == 0
    }

    fn bytes_of(&self, event: &FanEvent) -> usize {
        METADATA_BYTES + event.records.len() + if self.has_pidfd(event) { PIDFD_BYTES } else { 0 }
    }

    /// Opens the file of an event for who reads it.
    fn open_place(&self, thread: &Arc<Thread>, place: &Path) -> Result<i32, Errno> {
        let status = StatusFlags::from_bits_retain(self.access & !linux::O_CLOEXEC) | StatusFlags::LARGEFILE;
        let opening = Opening { flags: status, place, thread: Some(thread), flags_of_call: self.access };
        let file = place.entry.node.clone().open(&opening)?;
        let open = fallible::try_arc(OpenFile::at(file, status, place.clone()))?;
        open.keep_silent();
        if open.came_too_late() {
            return Err(Errno::EROFS);
        }
        let limit = thread.process.descriptor_limit();
        thread.descriptors().add(open, 0, limit, self.access & linux::O_CLOEXEC != 0)
    }

    /// Copies an event out, with what it needs opened.
    fn give(&self, thread: &Arc<Thread>, event: &mut FanEvent, buffer: &mut IoBuffer<'_>) -> TryResult<()> {
        /// No descriptor; no process of that number is left; there was no way to open it.
        const NONE: i32 = -1;
        const NO_PIDFD: i32 = -1;
        const PIDFD_FAILED: i32 = -2;
        let descriptor = match &event.place {
            Some(place) => self.open_place(thread, place)?,
            None => NONE,
        };
        let close = |number: i32| {
            if number >= 0 {
                let closed = thread.descriptors().remove(number);
                drop(closed);
            }
        };
        let pidfd = self.has_pidfd(event).then(|| {
            let known = event.process.as_ref().and_then(Weak::upgrade);
            let Some(process) = known.filter(is_known) else { return NO_PIDFD };
            let opened = ProcessFile::open(process, StatusFlags::empty());
            let limit = thread.process.descriptor_limit();
            opened.and_then(|open| thread.descriptors().add(open, 0, limit, true)).unwrap_or(PIDFD_FAILED)
        });
        let info_bytes = self.bytes_of(event) - METADATA_BYTES;
        // An ordinary user learns of nobody else's number.
        let is_hidden = !self.is_privileged && event.pid != thread.process.pid;
        let pid = if is_hidden { 0 } else { thread.process.shown(event.pid) };
        let head = metadata(info_bytes, event.mask, descriptor, pid);
        let before = buffer.mark();
        let mut copied = buffer.copy_out(&head).and_then(|_| buffer.copy_out(&event.records));
        if let (Ok(_), Some(pidfd)) = (&copied, pidfd) {
            copied = buffer.copy_out(&pidfd_record(pidfd));
        }
        if let Err(fault) = copied {
            buffer.rewind(before);
            close(descriptor);
            close(pidfd.unwrap_or(NONE));
            return Err(fault.into());
        }
        if let Some(request) = event.request.take() {
            let mut asked = self.asked.lock();
            if asked.try_reserve(1).is_ok() {
                push_reserved(&mut asked, (descriptor, request));
            } else {
                drop(asked);
                request.answer(true);
            }
        }
        Ok(())
    }
}

impl File for FanGroup {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        let thread = detour::with_thread_here(Arc::clone).ok_or(Errno::EINVAL)?;
        let (mut done, mut given) = (0, 0);
        while given < READ_MAX {
            let mut events = self.events.lock();
            let Some(first) = events.front() else { break };
            let bytes = self.bytes_of(first);
            if buffer.remaining() < bytes {
                if done == 0 {
                    return Err(Errno::EINVAL.into());
                }
                break;
            }
            let Some(mut event) = events.pop_front() else { break };
            drop(events);
            match self.give(&thread, &mut event, buffer) {
                Ok(()) => {
                    done += bytes;
                    given += 1;
                }
                Err(TryError::Fault(fault)) => {
                    // Its room may be another's by now: then who waits goes on.
                    let lost = push_front(&mut self.events.lock(), event);
                    drop(lost);
                    return if done > 0 { Ok(done) } else { Err(fault.into()) };
                }
                Err(error) => {
                    if let Some(request) = &event.request {
                        request.answer(false);
                    }
                    if done == 0 {
                        return Err(error);
                    }
                    break;
                }
            }
        }
        if done == 0 { Err(TryError::WouldBlock) } else { Ok(done) }
    }

    /// An answer to a request for permission.
    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        const ANSWER_BYTES: usize = 8;
        const ALLOW: u32 = 1;
        const DENY: u32 = 2;
        const AUDIT: u32 = 0x10;
        if buffer.remaining() < ANSWER_BYTES {
            return Err(Errno::EINVAL.into());
        }
        let mut bytes = [0; ANSWER_BYTES];
        buffer.peek(&mut bytes)?;
        let [d0, d1, d2, d3, a0, a1, a2, a3] = bytes;
        let descriptor = i32::from_ne_bytes([d0, d1, d2, d3]);
        let ignored = if self.flags & init::ENABLE_AUDIT != 0 { AUDIT } else { 0 };
        let answer = match u32::from_ne_bytes([a0, a1, a2, a3]) & !ignored {
            ALLOW => true,
            DENY => false,
            _ => return Err(Errno::EINVAL.into()),
        };
        if descriptor < 0 {
            return Err(Errno::EINVAL.into());
        }
        let mut asked = self.asked.lock();
        let place = asked.iter().position(|(number, _)| *number == descriptor).ok_or(Errno::ENOENT)?;
        let (_, request) = asked.swap_remove(place);
        drop(asked);
        buffer.skip(ANSWER_BYTES);
        request.answer(answer);
        Ok(ANSWER_BYTES)
    }

    fn writes_once(&self) -> bool {
        true
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
        // As in Linux without the records.
        let bytes = self.events.lock().len() * METADATA_BYTES;
        call.thread.space().write_bytes(argument, &(bytes as u32).to_ne_bytes())?;
        Ok(0)
    }

    fn name(&self) -> &'static str {
        "anon_inode:[fanotify]"
    }

    fn released(&self, _: &OpenFile) {
        self.is_closed.store(true, Ordering::Release);
        for kind in [0, mark::MOUNT, mark::FILE_SYSTEM] {
            self.flush(kind);
        }
        loop {
            let waiting = self.events.lock().pop_front();
            let Some(event) = waiting else { break };
            drop(event);
        }
        loop {
            let Some((_, request)) = self.asked.lock().pop() else { break };
            request.answer(true);
        }
    }
}

/// Puts back what was taken out of a queue; returns it if there is no room any more.
fn push_front(events: &mut VecDeque<FanEvent>, event: FanEvent) -> Option<FanEvent> {
    if events.try_reserve(1).is_err() {
        return Some(event);
    }
    push_front_reserved(events, event);
    None
}
