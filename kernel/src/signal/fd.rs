//! signalfd(2).

use alloc::sync::{Arc, Weak};

use crate::error::{Errno, TryError, TryResult};
use crate::fs::{File, IoBuffer, OpenFile};
use crate::memory::fallible;
use crate::process::Thread;
use crate::signal::{Detail, Information, SignalSet, pending, requeue, take_pending};
use crate::sync::SpinLock;
use crate::wait::queue::{Events, Watch};

/// Bytes of `struct signalfd_siginfo`, which `linux-raw-sys` leaves out.
const RECORD: usize = 128;

/// Signals to wait for like data.
pub struct SignalFile {
    wanted: SpinLock<SignalSet>,
    /// Whose signals: the thread that read last, at first the one that made it.
    reader: SpinLock<Weak<Thread>>,
}

impl SignalFile {
    /// A file that delivers `wanted` signals to whoever reads.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(wanted: SignalSet, thread: &Arc<Thread>) -> Result<Arc<Self>, Errno> {
        let reader = SpinLock::new(Arc::downgrade(thread));
        fallible::try_arc(Self { wanted: SpinLock::new(wanted), reader })
    }

    /// Changes which signals are delivered.
    pub fn set_wanted(&self, wanted: SignalSet) {
        *self.wanted.lock() = wanted;
        if let Some(thread) = self.reader() {
            thread.process.wake_signal_watchers(Events::IN | Events::RDNORM);
        }
    }

    fn reader(&self) -> Option<Arc<Thread>> {
        self.reader.lock().upgrade()
    }
}

impl File for SignalFile {
    fn before_transfer(&self, thread: &Arc<Thread>, _: Events) -> Result<(), Errno> {
        let old = core::mem::replace(&mut *self.reader.lock(), Arc::downgrade(thread));
        drop(old);
        Ok(())
    }

    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        if buffer.remaining() < RECORD {
            return Err(Errno::EINVAL.into());
        }
        let thread = self.reader().ok_or(Errno::EINVAL)?;
        let wanted = *self.wanted.lock();
        let mut read = 0;
        while buffer.remaining() >= RECORD {
            // The page is touched before a signal is taken that a fault would lose.
            let mark = buffer.mark();
            let ready = buffer.copy_out(&[0; RECORD]);
            buffer.rewind(mark);
            let taken = match ready {
                Err(fault) if read == 0 => return Err(fault.into()),
                Err(_) => break,
                Ok(_) => take_pending(&thread, wanted),
            };
            let Some(information) = taken else { break };
            if let Err(fault) = buffer.copy_out(&record(&information)) {
                // Another thread's fork has protected the page meanwhile.
                requeue(&thread, information);
                buffer.rewind(mark);
                if read == 0 {
                    return Err(fault.into());
                }
                break;
            }
            read += RECORD;
        }
        if read == 0 { Err(TryError::WouldBlock) } else { Ok(read) }
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        let Some(thread) = self.reader() else { return Ok(Events::empty()) };
        if let Some(watch) = watch {
            thread.process.watch_signals(watch, events)?;
        }
        let wanted = *self.wanted.lock();
        let (own, shared) = pending(&thread);
        let ready = !own.union(shared).intersection(wanted).is_empty();
        Ok(if ready { Events::IN | Events::RDNORM } else { Events::empty() })
    }

    fn name(&self) -> &'static str {
        "anon_inode:[signalfd]"
    }
}

/// A signal as `struct signalfd_siginfo`; the numbers are the offsets of its fields.
fn record(information: &Information) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    let mut put = |offset: usize, field: &[u8]| bytes[offset..offset + field.len()].copy_from_slice(field);
    put(0, &information.signal.number().to_ne_bytes());
    put(4, &information.errno.to_ne_bytes());
    put(8, &information.code.to_ne_bytes());
    let mut sender = |pid: i32, uid: u32| {
        put(12, &pid.to_ne_bytes());
        put(16, &uid.to_ne_bytes());
    };
    match information.detail {
        Detail::None => {}
        Detail::Sender { pid, uid } => sender(pid, uid),
        Detail::Value { pid, uid, value } => {
            sender(pid, uid);
            put(44, &(value as u32).to_ne_bytes());
            put(48, &value.to_ne_bytes());
        }
        Detail::Child { pid, uid, status, utime, stime } => {
            sender(pid, uid);
            put(40, &status.to_ne_bytes());
            put(56, &utime.to_ne_bytes());
            put(64, &stime.to_ne_bytes());
        }
        Detail::Fault { address, .. } | Detail::Key { address, .. } => {
            put(72, &(address as u64).to_ne_bytes())
        }
        Detail::Timer { id, overrun, value } => {
            put(24, &id.to_ne_bytes());
            put(32, &overrun.to_ne_bytes());
            put(44, &(value as u32).to_ne_bytes());
            put(48, &value.to_ne_bytes());
        }
        Detail::Call { address, number, architecture } => {
            put(84, &number.to_ne_bytes());
            put(88, &(address as u64).to_ne_bytes());
            put(96, &architecture.to_ne_bytes());
        }
        Detail::Poll { band, fd } => {
            put(20, &fd.to_ne_bytes());
            put(28, &(band as u32).to_ne_bytes());
        }
        Detail::Raw(words) => {
            // Begins with process and user, as rt_sigqueueinfo(2) wants it.
            put(12, &words[0].to_ne_bytes());
            put(44, &(words[1] as u32).to_ne_bytes());
            put(48, &words[1].to_ne_bytes());
        }
    }
    bytes
}
