//! `uname`, `sysinfo` and other facts of the system, and prctl(2).

use core::fmt::Write;
use heddle_kernel_core::mitigations::Fault;
use heddle_kernel_core::signal::Signal;
use linux_raw_sys::{general as linux, prctl};

use crate::arch;
use crate::arch::paging::USER_END;
use crate::boot::{RELEASE, VERSION};
use crate::call::caller::{Caller, carry_out};
use crate::error::{Errno, TryError, TryResult};
use crate::process::host_name::HOST_NAME_BYTES;
use crate::process::thread::UserDispatch;
use crate::process::{Thread, exit, load, perf, table};
use crate::syscall::fs::TRANSFER_LIMIT;
use crate::syscall::process::{isolation, privilege, seccomp};
use crate::syscall::{Call, SyscallResult, user};
use crate::time::{Clock, NS_PER_SECOND};
use crate::wait::operation::{Operation, Step, WaitOptions};
use crate::wait::queue::Watch;

fn padded(text: &str) -> [u8; HOST_NAME_BYTES] {
    let mut bytes = [0; HOST_NAME_BYTES];
    let length = text.len().min(HOST_NAME_BYTES - 1);
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    bytes
}

/// uname(2).
pub fn uname(call: &mut Call<'_>) -> SyscallResult {
    let names = call.thread.namespaces().names.clone();
    let personality = call.thread.personality();
    let is_small = personality & Thread::PERSONALITY_KIND == Thread::LINUX32;
    let release = if personality & Thread::UNAME26 == 0 { padded(RELEASE) } else { old_release() };
    let fields = [
        padded("Linux"),
        names.host_name(),
        release,
        padded(VERSION),
        padded(if is_small { "i686" } else { arch::MACHINE_NAME }),
        names.domain_name(),
    ];
    let space = call.thread.space();
    for (index, field) in fields.iter().enumerate() {
        space.write_bytes(call.word(0).wrapping_add(index * HOST_NAME_BYTES), field)?;
    }
    Ok(0.into())
}

/// The release as programs want it that know no other than Linux 2.6: 2.6.60 is 6.0.
fn old_release() -> [u8; HOST_NAME_BYTES] {
    let mut parts = RELEASE.splitn(3, '.').skip(1);
    let minor = parts.next().and_then(|part| part.parse().ok()).unwrap_or(0_u32);
    let rest = parts.next().unwrap_or("").trim_start_matches(|letter: char| letter.is_ascii_digit());
    let mut bytes = [0; HOST_NAME_BYTES];
    let (room, _) = bytes.split_at_mut(HOST_NAME_BYTES - 1);
    let mut text = FixedText { room, length: 0 };
    // A release that is too long is cut.
    let _ = write!(text, "2.6.{}{rest}", minor + 60);
    bytes
}

/// Text in a field of fixed length.
struct FixedText<'a> {
    room: &'a mut [u8],
    length: usize,
}

impl Write for FixedText<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let free = &mut self.room[self.length..];
        let length = text.len().min(free.len());
        free[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.length += length;
        if length < text.len() { Err(core::fmt::Error) } else { Ok(()) }
    }
}

/// sethostname(2).
pub fn sethostname(call: &mut Call<'_>) -> SyscallResult {
    let names = call.thread.namespaces().names.clone();
    if !call.thread.credentials().is_capable_in(names.owner(), linux::CAP_SYS_ADMIN) {
        return Err(Errno::EPERM.into());
    }
    let length = call.int(1);
    if length < 0 || length as usize >= HOST_NAME_BYTES {
        return Err(Errno::EINVAL.into());
    }
    let mut bytes = [0; HOST_NAME_BYTES];
    call.thread.space().read_bytes(call.word(0), &mut bytes[..length as usize])?;
    names.set_host_name(bytes);
    Ok(0.into())
}

/// sysinfo(2).
pub fn sysinfo(call: &mut Call<'_>) -> SyscallResult {
    const PAGE_BYTES: u64 = 4096;
    let (total, free) = (crate::memory::frame::total_frames(), crate::memory::frame::free_frames());
    let threads = table::thread_count().min(usize::from(u16::MAX)) as u64;
    // Load averages have 16 bits behind the point here.
    let loads = load::averages().map(|average| average << (16 - load::FRACTION_BITS));
    let words = [
        call.thread.clock_now(Clock::Boottime) / NS_PER_SECOND,
        loads[0],
        loads[1],
        loads[2],
        total as u64 * PAGE_BYTES,
        free as u64 * PAGE_BYTES,
        0,
        0,
        0,
        0,
        threads,
        0,
        0,
        1,
    ];
    user::write_words(&call.thread.space(), call.word(0), &words)?;
    Ok(0.into())
}

/// Random bytes on their way to a program.
struct GetRandom {
    caller: Caller,
    address: usize,
    length: usize,
    done: usize,
}

impl GetRandom {
    /// Bytes made at a time, and in one step.
    const PIECE_BYTES: usize = 256;
    const STEP_BYTES: usize = 4096;
}

impl Operation for GetRandom {
    fn attempt(&mut self) -> TryResult<usize> {
        let space = self.caller.space();
        let end = self.length.min(self.done + Self::STEP_BYTES);
        let mut piece = [0; Self::PIECE_BYTES];
        while self.done < end {
            let piece = &mut piece[..Self::PIECE_BYTES.min(end - self.done)];
            crate::random::fill(piece);
            space.write_bytes(self.address.wrapping_add(self.done), piece)?;
            self.done += piece.len();
        }
        Ok(self.done)
    }

    fn step(&mut self, _: bool) -> Step {
        match self.attempt() {
            Ok(done) if done == self.length => Step::Finished(Ok(done)),
            Ok(_) => Step::Again,
            Err(TryError::Fault(fault)) => Step::Fault(fault),
            Err(_) => Step::Finished(self.end(Errno::EFAULT)),
        }
    }

    fn partial(&self) -> Option<usize> {
        (self.done > 0).then_some(self.done)
    }

    fn can_go_on(&self, _: &Watch) -> Result<bool, Errno> {
        Ok(true)
    }
}

/// getrandom(2).
pub fn getrandom(call: &mut Call<'_>) -> SyscallResult {
    const KNOWN: u32 = linux::GRND_NONBLOCK | linux::GRND_RANDOM | linux::GRND_INSECURE;
    const INSECURE_AND_RANDOM: u32 = linux::GRND_INSECURE | linux::GRND_RANDOM;
    let flags = call.uint(2);
    if flags & !KNOWN != 0 || flags & INSECURE_AND_RANDOM == INSECURE_AND_RANDOM {
        return Err(Errno::EINVAL.into());
    }
    let length = call.word(1).min(TRANSFER_LIMIT);
    let operation = GetRandom { caller: call.thread.clone(), address: call.word(0), length, done: 0 };
    carry_out(call.thread, WaitOptions::default(), operation)
}

/// personality(2): every word is kept; what Linux itself looks at counts, but for the places of mappings.
pub fn personality(call: &mut Call<'_>) -> SyscallResult {
    let before = call.thread.personality();
    match call.uint(0) {
        u32::MAX => {}
        word => call.thread.set_personality(word),
    }
    Ok((before as usize).into())
}

/// Whether one of the arguments from this one on says something where Linux wants nothing.
fn has_more(call: &Call<'_>, first: usize) -> bool {
    (first..5).any(|index| call.word(index) != 0)
}

/// `PR_SET_PTRACER` of the Yama module, with the constant for any process.
const PR_SET_PTRACER: u32 = 0x5961_6d61;
const PTRACER_ANY: usize = usize::MAX;
/// `PR_TSC_ENABLE`: programs may read the counter, always.
const TSC_ENABLED: u32 = 1;

/// `PR_SET_SYSCALL_USER_DISPATCH`.
fn set_user_dispatch(call: &Call<'_>) -> Result<(), Errno> {
    let (first, length, selector) = (call.word(2), call.word(3), call.word(4));
    let dispatch = match call.word(1) as u32 {
        prctl::PR_SYS_DISPATCH_OFF if (first, length, selector) == (0, 0, 0) => None,
        // An end that is no address.
        prctl::PR_SYS_DISPATCH_ON if first != 0 && first.wrapping_add(length) <= first => {
            return Err(Errno::EINVAL);
        }
        prctl::PR_SYS_DISPATCH_ON if selector >= USER_END => return Err(Errno::EFAULT),
        prctl::PR_SYS_DISPATCH_ON => Some(UserDispatch { first, length, selector }),
        _ => return Err(Errno::EINVAL),
    };
    call.thread.set_user_dispatch(dispatch);
    Ok(())
}

/// `PR_MCE_KILL`: when a program is to hear of memory that has failed. No such failure is seen here, and the answer is
/// what was set.
fn set_failure_policy(call: &Call<'_>) -> Result<(), Errno> {
    if has_more(call, 3) {
        return Err(Errno::EINVAL);
    }
    let policy = match (call.uint(1), call.uint(2)) {
        (prctl::PR_MCE_KILL_CLEAR, 0) => prctl::PR_MCE_KILL_DEFAULT,
        (prctl::PR_MCE_KILL_SET, policy) if policy <= prctl::PR_MCE_KILL_DEFAULT => policy,
        _ => return Err(Errno::EINVAL),
    };
    call.thread.set_failure_policy(policy);
    Ok(())
}

/// Whether the processors have a fault.
fn has_fault(fault: Fault) -> bool {
    let mut room = [0; 64];
    let mut text = FixedText { room: &mut room, length: 0 };
    // Only the beginning is looked at.
    let _ = arch::mitigations::describe(fault, &mut text);
    let length = text.length;
    !room[..length].starts_with(b"Not affected")
}

/// `PR_GET_SPECULATION_CTRL`: programs control nothing of it.
fn speculation(call: &Call<'_>) -> Result<u32, Errno> {
    if has_more(call, 2) {
        return Err(Errno::EINVAL);
    }
    let by_fault = |fault| if has_fault(fault) { prctl::PR_SPEC_ENABLE } else { prctl::PR_SPEC_NOT_AFFECTED };
    match u32::try_from(call.word(1)) {
        Ok(prctl::PR_SPEC_STORE_BYPASS) => Ok(by_fault(Fault::SpecStoreBypass)),
        Ok(prctl::PR_SPEC_INDIRECT_BRANCH) => Ok(by_fault(Fault::SpectreV2)),
        Ok(prctl::PR_SPEC_L1D_FLUSH) => Ok(prctl::PR_SPEC_FORCE_DISABLE),
        _ => Err(Errno::ENODEV),
    }
}

/// `PR_SET_SPECULATION_CTRL`, of which nothing but what is so anyway succeeds.
fn set_speculation(call: &Call<'_>) -> Result<(), Errno> {
    if has_more(call, 3) {
        return Err(Errno::EINVAL);
    }
    let what = call.uint(2);
    let is_known =
        matches!(what, prctl::PR_SPEC_ENABLE | prctl::PR_SPEC_DISABLE | prctl::PR_SPEC_FORCE_DISABLE);
    match u32::try_from(call.word(1)) {
        Ok(prctl::PR_SPEC_STORE_BYPASS) => Err(Errno::ENXIO),
        Ok(prctl::PR_SPEC_INDIRECT_BRANCH | prctl::PR_SPEC_L1D_FLUSH) if !is_known => Err(Errno::ERANGE),
        Ok(prctl::PR_SPEC_INDIRECT_BRANCH) if what == prctl::PR_SPEC_ENABLE => Ok(()),
        Ok(prctl::PR_SPEC_INDIRECT_BRANCH | prctl::PR_SPEC_L1D_FLUSH) => Err(Errno::EPERM),
        _ => Err(Errno::ENODEV),
    }
}

/// prctl(2).
pub fn prctl(call: &mut Call<'_>) -> SyscallResult {
    let thread = call.thread;
    let space = thread.space();
    let argument = call.word(1);
    match call.uint(0) {
        prctl::PR_SET_NAME => {
            let mut name = [0; Thread::NAME_BYTES];
            let mut length = 0;
            while length < name.len() - 1 {
                space.read_bytes(argument.wrapping_add(length), &mut name[length..=length])?;
                if name[length] == 0 {
                    break;
                }
                length += 1;
            }
            thread.set_name(&name[..length]);
        }
        prctl::PR_GET_NAME => space.write_bytes(argument, &thread.name())?,
        prctl::PR_SET_PDEATHSIG => {
            if argument > Signal::COUNT {
                return Err(Errno::EINVAL.into());
            }
            thread.process.set_parent_death_signal(Signal::new(argument as i32));
        }
        prctl::PR_GET_PDEATHSIG => {
            let signal = thread.process.parent_death_signal().map_or(0, Signal::number);
            user::write_int(&space, argument, signal as u32)?;
        }
        prctl::PR_GET_DUMPABLE => return Ok(usize::from(thread.process.is_dumpable()).into()),
        prctl::PR_SET_DUMPABLE if argument > 1 => return Err(Errno::EINVAL.into()),
        prctl::PR_SET_CHILD_SUBREAPER => {
            exit::set_subreaper(&thread.process, argument != 0);
        }
        prctl::PR_GET_CHILD_SUBREAPER => {
            user::write_int(&space, argument, u32::from(thread.process.is_subreaper()))?;
        }
        heddle_abi::prctl::PR_SET_ISOLATION => return isolation::set(call),
        heddle_abi::prctl::PR_GET_ISOLATION => return isolation::get(call),
        prctl::PR_CAPBSET_READ => return privilege::read_bounding(call),
        prctl::PR_CAPBSET_DROP => return privilege::drop_bounding(call),
        prctl::PR_GET_KEEPCAPS => return privilege::keeps_capabilities(call),
        prctl::PR_SET_KEEPCAPS => return privilege::set_keeps_capabilities(call),
        prctl::PR_GET_SECUREBITS => return privilege::secure_bits(call),
        prctl::PR_SET_SECUREBITS => return privilege::set_secure_bits(call),
        prctl::PR_CAP_AMBIENT => return privilege::ambient(call),
        prctl::PR_SET_NO_NEW_PRIVS if argument == 1 && !has_more(call, 2) => thread.forbid_new_privileges(),
        prctl::PR_GET_NO_NEW_PRIVS if argument != 0 || has_more(call, 2) => return Err(Errno::EINVAL.into()),
        prctl::PR_GET_TID_ADDRESS => {
            user::write_words(&space, argument, &[thread.clear_child_tid() as u64])?;
        }
        prctl::PR_GET_TIMING => {}
        prctl::PR_SET_TIMING if argument == 0 => {}
        prctl::PR_GET_TSC => user::write_int(&space, argument, TSC_ENABLED)?,
        prctl::PR_SET_TSC if argument as u32 == TSC_ENABLED => {}
        // Nothing restricts who may trace, so there is nothing to permit: the number of a process is looked at.
        PR_SET_PTRACER if matches!(argument, 0 | PTRACER_ANY) => {}
        PR_SET_PTRACER if table::thread(thread.process.named(call.int(1))).is_some() => {}
        prctl::PR_GET_NO_NEW_PRIVS => return Ok(usize::from(thread.has_no_new_privileges()).into()),
        // These settings are fixed to the value that is asked for, or make no difference to a program.
        prctl::PR_SET_DUMPABLE => thread.process.set_dumpable(argument == 1),
        prctl::PR_SET_THP_DISABLE | prctl::PR_GET_THP_DISABLE if has_more(call, 2) => {
            return Err(Errno::EINVAL.into());
        }
        prctl::PR_SET_THP_DISABLE => {
            thread.process.set_huge_pages_off(argument != 0);
            space.set_large_pages_off(argument != 0);
        }
        prctl::PR_GET_THP_DISABLE if argument != 0 => return Err(Errno::EINVAL.into()),
        prctl::PR_GET_THP_DISABLE => return Ok(usize::from(thread.process.huge_pages_are_off()).into()),
        prctl::PR_SET_SYSCALL_USER_DISPATCH => set_user_dispatch(call)?,
        prctl::PR_GET_SECCOMP => return Ok((thread.seccomp().number() as usize).into()),
        prctl::PR_SET_SECCOMP => return seccomp::set_by_prctl(call),
        prctl::PR_TASK_PERF_EVENTS_DISABLE => perf::set_all_of(thread, false),
        prctl::PR_TASK_PERF_EVENTS_ENABLE => perf::set_all_of(thread, true),
        prctl::PR_MCE_KILL => set_failure_policy(call)?,
        prctl::PR_MCE_KILL_GET if (1..5).any(|index| call.word(index) != 0) => {
            return Err(Errno::EINVAL.into());
        }
        prctl::PR_MCE_KILL_GET => return Ok((thread.failure_policy() as usize).into()),
        prctl::PR_GET_SPECULATION_CTRL => return Ok((speculation(call)? as usize).into()),
        prctl::PR_SET_SPECULATION_CTRL => set_speculation(call)?,
        // A program's own layout stays what it is.
        prctl::PR_SET_MM
            if call.word(4) == 0 && !thread.credentials().is_capable(linux::CAP_SYS_RESOURCE) =>
        {
            return Err(Errno::EPERM.into());
        }
        prctl::PR_SET_TIMERSLACK => thread.set_timer_slack_ns(argument as u64),
        prctl::PR_GET_TIMERSLACK => return Ok((thread.timer_slack_ns() as usize).into()),
        _ => return Err(Errno::EINVAL.into()),
    }
    Ok(0.into())
}
