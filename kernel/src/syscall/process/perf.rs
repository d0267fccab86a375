//! perf_event_open(2).

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use heddle_kernel_core::perf::{
    ATTRIBUTE_BYTES, AttributeError, EventAttributes, FIRST_ATTRIBUTE_BYTES, SoftwareEvent,
};

use crate::arch::cpu;
use crate::call::{get, get_bytes, put};
use crate::error::{Errno, TryResult};
use crate::process::access::{ViewerIds, may_access};
use crate::process::perf::{PARANOIA, PerfFile, PerfTarget};
use crate::process::{Thread, table};
use crate::syscall::fs::add;
use crate::syscall::{Call, SyscallResult};

use core::sync::atomic::Ordering;

/// Flags, which `linux-raw-sys` leaves out.
const FLAG_NO_GROUP: usize = 1;
const FLAG_OUTPUT: usize = 2;
const FLAG_CGROUP: usize = 4;
const FLAG_CLOEXEC: usize = 8;
const FLAGS_KNOWN: usize = FLAG_NO_GROUP | FLAG_OUTPUT | FLAG_CGROUP | FLAG_CLOEXEC;
const PAGE_BYTES: u32 = 4096;
/// `/proc/sys/kernel/perf_event_max_sample_rate`.
const SAMPLES_PER_SECOND_MAX: u64 = 100_000;

impl From<AttributeError> for Errno {
    fn from(error: AttributeError) -> Self {
        match error {
            AttributeError::Invalid => Self::EINVAL,
            AttributeError::Unknown => Self::ENOENT,
        }
    }
}

/// Reads the structure, of whatever length.
fn read_attributes(call: &Call<'_>, address: usize) -> TryResult<EventAttributes> {
    let told = u32::from_ne_bytes(get(call, address.wrapping_add(4))?);
    let size = if told == 0 { FIRST_ATTRIBUTE_BYTES } else { told };
    let too_big = |call: &Call<'_>| -> TryResult<EventAttributes> {
        put(call, address.wrapping_add(4), &(ATTRIBUTE_BYTES as u32).to_ne_bytes())?;
        Err(Errno::E2BIG.into())
    };
    if !(FIRST_ATTRIBUTE_BYTES..=PAGE_BYTES).contains(&size) {
        return too_big(call);
    }
    let given = get_bytes(call, address, size as usize)?;
    let known = given.len().min(ATTRIBUTE_BYTES);
    if given[known..].iter().any(|&byte| byte != 0) {
        return too_big(call);
    }
    let mut bytes = [0; ATTRIBUTE_BYTES];
    bytes[..known].copy_from_slice(&given[..known]);
    Ok(EventAttributes::parse(&bytes).map_err(Errno::from)?)
}

/// Whether the caller may have what it asks for counted: `/proc/sys/kernel/perf_event_paranoid`.
fn may_count(call: &Call<'_>, attributes: &EventAttributes, is_for_processor: bool) -> bool {
    let who = call.thread.credentials();
    if who.is_capable(linux::CAP_PERFMON) || who.is_capable(linux::CAP_SYS_ADMIN) {
        return true;
    }
    match PARANOIA.load(Ordering::Relaxed) {
        ..=0 => true,
        1 => !is_for_processor,
        2 => !is_for_processor && !attributes.counts_kernel(),
        _ => false,
    }
}

/// perf_event_open(2): what the kernel counts itself, of threads; of a processor only its time. There are no samples.
pub fn perf_event_open(call: &mut Call<'_>) -> SyscallResult {
    let (pid, processor, group, flags) = (call.int(1), call.int(2), call.int(3), call.word(4));
    if flags & !FLAGS_KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    let attributes = read_attributes(call, call.word(0))?;
    if !may_count(call, &attributes, pid == -1) {
        return Err(Errno::EACCES.into());
    }
    let is_period_valid = if attributes.is_frequency() {
        attributes.sample_period <= SAMPLES_PER_SECOND_MAX
    } else {
        attributes.sample_period >> 63 == 0
    };
    let of_cgroup = flags & FLAG_CGROUP != 0;
    if !is_period_valid || of_cgroup && (pid == -1 || processor == -1) {
        return Err(Errno::EINVAL.into());
    }
    let leader = if group == -1 { None } else { Some(call.thread.descriptors().get(group)?) };
    let leader = leader.as_ref().map(|open| PerfFile::of(open)).transpose()?;
    if leader.is_some() && flags & FLAG_OUTPUT != 0 {
        // No event has samples that another's could join.
        return Err(Errno::EINVAL.into());
    }
    let leader = leader.filter(|_| flags & FLAG_NO_GROUP == 0);
    let thread = match pid {
        -1 => None,
        _ if of_cgroup => {
            call.thread.descriptors().get(pid)?;
            return Err(Errno::EOPNOTSUPP.into());
        }
        0 => Some((**call.thread).clone()),
        pid => Some(table::thread(call.thread.process.named(pid)).ok_or(Errno::ESRCH)?),
    };
    if thread.is_some() && leader.is_some_and(|leader| leader.is_inherited() != attributes.is_inherited()) {
        return Err(Errno::EINVAL.into());
    }
    let is_everywhere = thread.is_some() && processor == -1;
    if !is_everywhere && usize::try_from(processor).map_or(true, |number| number >= cpu::count()) {
        return Err(Errno::EINVAL.into());
    }
    let event = attributes.event().map_err(Errno::from)?;
    let counts_here = matches!(event, SoftwareEvent::Clock | SoftwareEvent::Nothing);
    let is_split = thread.is_some() && processor != -1 && cpu::count() > 1;
    if attributes.sample_period != 0 || is_split || thread.is_none() && !counts_here {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let is_free = call.thread.credentials().is_capable(linux::CAP_PERFMON);
    let may_look = |thread: &Arc<Thread>| is_free || may_access(call.thread, thread, ViewerIds::Real);
    if thread.as_ref().is_some_and(|thread| !may_look(thread)) {
        return Err(Errno::EACCES.into());
    }
    let target = thread.clone().map_or(PerfTarget::Processor, PerfTarget::Thread);
    let open = PerfFile::open(attributes, event, target, call.thread, leader)?;
    if thread.as_ref().is_some_and(|thread| !may_look(thread)) {
        // It has got more rights meanwhile.
        return Err(Errno::EACCES.into());
    }
    add(call, open, flags & FLAG_CLOEXEC != 0)
}
