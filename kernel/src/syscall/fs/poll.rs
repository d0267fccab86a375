//! `poll` and `select`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

use crate::arch::time::now_ns;
use crate::error::{Errno, TryResult};
use crate::fs::OpenFile;
use crate::memory::fallible;
use crate::signal::SignalSet;
use crate::syscall::caller::Caller;
use crate::syscall::fs::{get, get_bytes, put};
use crate::syscall::{Call, SyscallResult, pending};
use crate::wait::node::WaitKind;
use crate::wait::queue::{Events, Watch};

/// One file that is waited for.
struct PollInterest {
    open: Arc<OpenFile>,
    events: Events,
    /// Where the answer goes: the index of the entry, or the descriptor.
    index: usize,
}

/// Registers for every file and collects what is ready.
fn look(
    interests: &[PollInterest],
    watch: Option<&Watch>,
    ready: &mut Vec<(usize, Events)>,
) -> Result<usize, Errno> {
    ready.clear();
    for interest in interests {
        let wanted = interest.events | Events::ERR | Events::HUP;
        // Once something is ready there will be no waiting.
        let watch = watch.filter(|_| ready.is_empty());
        let found = interest.open.file.poll(&interest.open, watch, wanted)?.intersection(wanted);
        if !found.is_empty() {
            fallible::try_push(ready, (interest.index, found))?;
        }
    }
    Ok(ready.len())
}

/// Waits for any of the files; nothing ready means that the time is over.
async fn wait(
    thread: &Caller,
    interests: &[PollInterest],
    deadline: Option<u64>,
) -> Result<Vec<(usize, Events)>, Errno> {
    let mut ready = Vec::new();
    crate::wait::engine::until(thread, WaitKind::Interruptible, deadline, |watch| {
        Ok((look(interests, Some(watch), &mut ready)? > 0).then_some(()))
    })
    .await?;
    Ok(ready)
}

/// When a wait ends that began now and may last this long.
const fn deadline_after(now: u64, duration_ns: u64) -> u64 {
    now.saturating_add(duration_ns)
}

/// A signal that ends the wait isn't followed by a restart once there was a handler.
fn interrupted(error: Errno) -> Errno {
    if error == Errno::ERESTARTSYS { Errno::ERESTARTNOHAND } else { error }
}

const POLL_ENTRY: usize = size_of::<linux::pollfd>();

/// poll(2).
pub fn poll(call: &mut Call<'_>) -> SyscallResult {
    let timeout = call.int(2);
    let timeout = u64::try_from(timeout).ok().map(|timeout| timeout * 1_000_000);
    start_poll(call, timeout, None)
}

/// ppoll(2).
pub fn ppoll(call: &mut Call<'_>) -> SyscallResult {
    let timeout = get_timeout(call, call.word(2))?;
    let mask = get_mask(call, call.word(3), call.word(4))?;
    let remaining = (call.word(2) != 0).then_some(call.word(2));
    let _ = remaining;
    start_poll(call, timeout, mask)
}

/// A duration that may be missing, as `struct timespec`.
pub(super) fn get_timeout(call: &Call<'_>, address: usize) -> TryResult<Option<u64>> {
    if address == 0 {
        return Ok(None);
    }
    let seconds = i64::from_ne_bytes(get(call, address)?);
    let nanoseconds = i64::from_ne_bytes(get(call, address.wrapping_add(8))?);
    let seconds = u64::try_from(seconds).map_err(|_| Errno::EINVAL)?;
    let nanoseconds =
        u64::try_from(nanoseconds).ok().filter(|&part| part < 1_000_000_000).ok_or(Errno::EINVAL)?;
    Ok(Some(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)))
}

/// A signal mask that may be missing.
pub(super) fn get_mask(call: &Call<'_>, address: usize, size: usize) -> TryResult<Option<SignalSet>> {
    if address == 0 {
        return Ok(None);
    }
    if size != size_of::<u64>() {
        return Err(Errno::EINVAL.into());
    }
    Ok(Some(SignalSet(u64::from_ne_bytes(get(call, address)?))))
}

fn start_poll(call: &mut Call<'_>, timeout: Option<u64>, mask: Option<SignalSet>) -> SyscallResult {
    let (address, count) = (call.word(0), call.uint(1) as usize);
    if count > call.thread.process.descriptor_limit() {
        return Err(Errno::EINVAL.into());
    }
    let mut entries = get_bytes(call, address, count * POLL_ENTRY)?;
    let table = call.thread.descriptors();
    let mut interests = fallible::try_with_capacity(count)?;
    let mut invalid = 0;
    for (index, entry) in entries.chunks_exact_mut(POLL_ENTRY).enumerate() {
        let descriptor = i32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let events = u32::from(u16::from_ne_bytes([entry[4], entry[5]]));
        entry[6..8].fill(0);
        if descriptor < 0 {
            continue;
        }
        match table.get(descriptor) {
            Ok(open) if !open.flags().contains(crate::fs::StatusFlags::PATH) => {
                interests.push(PollInterest { open, events: Events::from_bits_retain(events), index });
            }
            _ => {
                entry[6..8].copy_from_slice(&(linux::POLLNVAL as u16).to_ne_bytes());
                invalid += 1;
            }
        }
    }
    let mut ready = Vec::new();
    look(&interests, None, &mut ready)?;
    if invalid > 0 || !ready.is_empty() || timeout == Some(0) {
        set_results(&mut entries, &ready);
        put(call, address, &entries)?;
        return Ok((ready.len() + invalid).into());
    }
    let deadline = timeout.map(|timeout| deadline_after(now_ns(), timeout));
    let thread = call.thread.clone();
    if let Some(mask) = mask {
        thread.set_blocked_for_wait(mask);
    }
    pending(async move {
        let ready = wait(&thread, &interests, deadline).await.map_err(interrupted)?;
        set_results(&mut entries, &ready);
        store(&thread, address, &entries).await?;
        Ok(ready.len())
    })
}

fn set_results(entries: &mut [u8], ready: &[(usize, Events)]) {
    for &(index, events) in ready {
        entries[index * POLL_ENTRY + 6..][..2].copy_from_slice(&(events.bits() as u16).to_ne_bytes());
    }
}

/// Writes a result after a wait.
///
/// # Errors
/// `EFAULT`.
pub(super) async fn store(thread: &Caller, address: usize, bytes: &[u8]) -> Result<(), Errno> {
    let space = thread.space();
    while let Err(fault) = space.write_bytes(address, bytes) {
        space.fault_in(fault).await?;
    }
    Ok(())
}

/// The three sets of select(2), as bitmaps.
struct Sets {
    bytes: [Vec<u8>; 3],
    addresses: [usize; 3],
}

/// What each set of select(2) asks for, and what counts as an answer.
const SETS: [(Events, Events); 3] = [
    (Events::IN, Events::IN.union(Events::RDNORM).union(Events::HUP).union(Events::ERR)),
    (Events::OUT, Events::OUT.union(Events::WRNORM).union(Events::ERR)),
    (Events::PRI, Events::PRI),
];

/// select(2).
pub fn select(call: &mut Call<'_>) -> SyscallResult {
    let timeout = match call.word(4) {
        0 => None,
        address => {
            let seconds = i64::from_ne_bytes(get(call, address)?);
            let microseconds = i64::from_ne_bytes(get(call, address.wrapping_add(8))?);
            let seconds = u64::try_from(seconds).map_err(|_| Errno::EINVAL)?;
            let microseconds = u64::try_from(microseconds).map_err(|_| Errno::EINVAL)?;
            Some(seconds.saturating_mul(1_000_000_000).saturating_add(microseconds.saturating_mul(1000)))
        }
    };
    start_select(call, timeout, None)
}

/// pselect6(2).
pub fn pselect6(call: &mut Call<'_>) -> SyscallResult {
    let timeout = get_timeout(call, call.word(4))?;
    let mask = match call.word(5) {
        0 => None,
        address => {
            let set = usize::from_ne_bytes(get(call, address)?);
            let size = usize::from_ne_bytes(get(call, address.wrapping_add(8))?);
            get_mask(call, set, size)?
        }
    };
    start_select(call, timeout, mask)
}

fn start_select(call: &mut Call<'_>, timeout: Option<u64>, mask: Option<SignalSet>) -> SyscallResult {
    let count = usize::try_from(call.int(0)).map_err(|_| Errno::EINVAL)?;
    let count = count.min(call.thread.process.descriptor_limit());
    // The kernel's unit is the word.
    let length = count.div_ceil(64) * 8;
    let addresses = [call.word(1), call.word(2), call.word(3)];
    let mut sets = Sets { bytes: [const { Vec::new() }; 3], addresses };
    for (bytes, address) in sets.bytes.iter_mut().zip(addresses) {
        if address != 0 {
            *bytes = get_bytes(call, address, length)?;
        }
    }
    let table = call.thread.descriptors();
    let mut interests = Vec::new();
    for descriptor in 0..count {
        let mut events = Events::empty();
        for (bytes, (asked, _)) in sets.bytes.iter().zip(SETS) {
            if bytes.get(descriptor / 8).is_some_and(|byte| byte >> (descriptor % 8) & 1 != 0) {
                events |= asked;
            }
        }
        if !events.is_empty() {
            let open = table.get(descriptor as i32)?;
            fallible::try_push(&mut interests, PollInterest { open, events, index: descriptor })?;
        }
    }
    let mut ready = Vec::new();
    look(&interests, None, &mut ready)?;
    if sets.count(&ready) > 0 || timeout == Some(0) {
        let (found, results) = sets.results(&ready)?;
        for (bytes, address) in results.iter().zip(addresses) {
            if address != 0 {
                put(call, address, bytes)?;
            }
        }
        return Ok(found.into());
    }
    let deadline = timeout.map(|timeout| deadline_after(now_ns(), timeout));
    let thread = call.thread.clone();
    if let Some(mask) = mask {
        thread.set_blocked_for_wait(mask);
    }
    pending(async move {
        let ready = crate::wait::engine::until(&thread, WaitKind::Interruptible, deadline, |watch| {
            look(&interests, Some(watch), &mut ready)?;
            Ok((sets.count(&ready) > 0).then(|| core::mem::take(&mut ready)))
        });
        let ready = ready.await.map_err(interrupted)?.unwrap_or_default();
        let (found, results) = sets.results(&ready)?;
        for (bytes, address) in results.iter().zip(sets.addresses) {
            if address != 0 {
                store(&thread, address, bytes).await?;
            }
        }
        Ok(found)
    })
}

impl Sets {
    fn bits<'a>(&'a self, ready: &'a [(usize, Events)]) -> impl Iterator<Item = (usize, usize)> + 'a {
        ready.iter().flat_map(move |&(descriptor, events)| {
            (0..3).filter_map(move |set| {
                let asked = self.bytes[set].get(descriptor / 8)? >> (descriptor % 8) & 1 != 0;
                (asked && events.intersects(SETS[set].1)).then_some((set, descriptor))
            })
        })
    }

    fn count(&self, ready: &[(usize, Events)]) -> usize {
        self.bits(ready).count()
    }

    /// The number of bits set, and the sets with only those.
    fn results(&self, ready: &[(usize, Events)]) -> Result<(usize, [Vec<u8>; 3]), Errno> {
        let mut results = [const { Vec::new() }; 3];
        for (result, bytes) in results.iter_mut().zip(&self.bytes) {
            *result = fallible::try_filled(0, bytes.len())?;
        }
        let mut found = 0;
        for (set, descriptor) in self.bits(ready) {
            results[set][descriptor / 8] |= 1 << (descriptor % 8);
            found += 1;
        }
        Ok((found, results))
    }
}
