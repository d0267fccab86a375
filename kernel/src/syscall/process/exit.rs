//! exit(2), exit_group(2), wait4(2), waitid(2).

use alloc::sync::Arc;
use heddle_kernel_core::signal::{Detail, Information, Signal};
use linux_raw_sys::general as linux;

use crate::call::caller::Caller;
use crate::error::Errno;
use crate::fs::StatusFlags;
use crate::memory::Space;
use crate::process::pidfd::ProcessFile;
use crate::process::{Process, Thread, exit, table, trace};
use crate::signal::ChildChange;
use crate::syscall::process::usage;
use crate::syscall::{Call, SyscallResult, pending, user};
use crate::wait::node::WaitKind;

/// exit(2): ends the calling thread.
pub fn exit(call: &mut Call<'_>) -> SyscallResult {
    call.thread.exit(call.int(0) as u8);
    Ok(0.into())
}

/// exit_group(2): ends the process.
pub fn exit_group(call: &mut Call<'_>) -> SyscallResult {
    exit::exit_group(&call.thread.process, call.int(0) as u8);
    Ok(0.into())
}

/// Which children count.
#[derive(Clone)]
enum Which {
    Any,
    Process(i32),
    Group(i32),
    /// Of a pidfd: this one, whatever its number means by now.
    Same(Arc<Process>),
}

/// A wait for children: which ones, and for which changes.
#[derive(Clone)]
struct Selection {
    which: Which,
    options: u32,
}

/// The change of a child that ends a wait.
struct WaitReport {
    pid: i32,
    uid: u32,
    /// The status word of wait(2).
    status: i32,
    /// `si_code` and `si_status` of waitid(2).
    code: u32,
    value: i32,
    usage: [u64; usage::WORDS],
}

const WAIT4_OPTIONS: u32 = linux::WNOHANG
    | linux::WUNTRACED
    | linux::WCONTINUED
    | linux::__WNOTHREAD
    | linux::__WALL
    | linux::__WCLONE;
const WAITID_OPTIONS: u32 = WAIT4_OPTIONS | linux::WEXITED | linux::WSTOPPED | linux::WNOWAIT;

/// wait4(2).
pub fn wait4(call: &mut Call<'_>) -> SyscallResult {
    let (pid, status, options, rusage) = (call.int(0), call.word(1), call.uint(2), call.word(3));
    if options & !WAIT4_OPTIONS != 0 {
        return Err(Errno::EINVAL.into());
    }
    let which = match pid {
        i32::MIN => return Err(Errno::ESRCH.into()),
        -1 => Which::Any,
        0 => Which::Group(call.thread.process.group().id),
        pid if pid < 0 => Which::Group(call.thread.process.named(-pid)),
        pid => Which::Process(call.thread.process.named(pid)),
    };
    let selection = Selection { which, options: options | linux::WEXITED };
    probe(&call.thread.space(), status, 4, rusage)?;
    // A child that is there already needs no future.
    if let Some(report) = find(&call.thread.process, &selection)? {
        let space = call.thread.space();
        if store_wait4(&space, &report, status, rusage).is_ok() {
            return Ok((report.pid as usize).into());
        }
        // A thread on another CPU has changed the mapping since the check; the child must not be waited for again.
        let thread = call.thread.clone();
        return pending(async move {
            thread.resolve(|space| store_wait4(space, &report, status, rusage)).await?;
            Ok(report.pid as usize)
        });
    }
    if options & linux::WNOHANG != 0 {
        return Ok(0.into());
    }
    let thread = call.thread.clone();
    pending(async move {
        let report = wait(&thread, &selection).await?;
        thread.resolve(|space| store_wait4(space, &report, status, rusage)).await?;
        Ok(report.pid as usize)
    })
}

/// waitid(2).
pub fn waitid(call: &mut Call<'_>) -> SyscallResult {
    let (kind, id, information, options, rusage) =
        (call.uint(0), call.int(1), call.word(2), call.uint(3), call.word(4));
    let wanted = linux::WEXITED | linux::WSTOPPED | linux::WCONTINUED;
    if options & !WAITID_OPTIONS != 0 || options & wanted == 0 {
        return Err(Errno::EINVAL.into());
    }
    let mut may_wait = options & linux::WNOHANG == 0;
    let which = match kind {
        linux::P_PIDFD if id >= 0 => {
            let open = call.thread.descriptors().get(id)?;
            may_wait &= !open.flags().contains(StatusFlags::NONBLOCK);
            Which::Same(ProcessFile::process_of(&open)?)
        }
        linux::P_ALL => Which::Any,
        linux::P_PID if id > 0 => Which::Process(call.thread.process.named(id)),
        linux::P_PGID if id > 0 => Which::Group(call.thread.process.named(id)),
        linux::P_PGID if id == 0 => Which::Group(call.thread.process.group().id),
        _ => return Err(Errno::EINVAL.into()),
    };
    let selection = Selection { which, options };
    probe(&call.thread.space(), information, Information::BYTES, rusage)?;
    if let Some(report) = find(&call.thread.process, &selection)? {
        let space = call.thread.space();
        if store_waitid(call.thread, &space, Some(&report), information, rusage).is_ok() {
            return Ok(0.into());
        }
        let thread = call.thread.clone();
        return pending(async move {
            thread.resolve(|space| store_waitid(&thread, space, Some(&report), information, rusage)).await?;
            Ok(0)
        });
    }
    if !may_wait && options & linux::WNOHANG == 0 {
        return Err(Errno::EAGAIN.into());
    }
    if !may_wait {
        store_waitid(call.thread, &call.thread.space(), None, information, rusage)?;
        return Ok(0.into());
    }
    let thread = call.thread.clone();
    pending(async move {
        let report = wait(&thread, &selection).await?;
        thread.resolve(|space| store_waitid(&thread, space, Some(&report), information, rusage)).await?;
        Ok(0)
    })
}

/// Checks that the results can be stored, because a child that has been reported is gone.
fn probe(space: &Space, address: usize, bytes: usize, rusage: usize) -> Result<(), crate::error::TryError> {
    if address != 0 {
        space.probe_write(address, bytes)?;
    }
    if rusage != 0 {
        space.probe_write(rusage, usage::WORDS * 8)?;
    }
    Ok(())
}

fn store_wait4(
    space: &Space,
    report: &WaitReport,
    status: usize,
    rusage: usize,
) -> Result<(), crate::memory::user::PageFault> {
    if status != 0 {
        user::write_int(space, status, report.status as u32)?;
    }
    if rusage != 0 {
        user::write_words(space, rusage, &report.usage)?;
    }
    Ok(())
}

fn store_waitid(
    who: &Thread,
    space: &Space,
    report: Option<&WaitReport>,
    information: usize,
    rusage: usize,
) -> Result<(), crate::memory::user::PageFault> {
    if information != 0 {
        let words = report.map_or([0; 16], |report| {
            let uid = who.credentials().shown_user(report.uid);
            let detail = Detail::Child { pid: report.pid, uid, status: report.value, utime: 0, stime: 0 };
            Information { signal: Signal::CHLD, code: report.code as i32, errno: 0, detail }.to_words()
        });
        // Linux writes no more than the members that waitid(2) names.
        let [a, b, c, d, ..] = words;
        user::write_words(space, information, &[a, b, c, d])?;
    }
    if let Some(report) = report
        && rusage != 0
    {
        user::write_words(space, rusage, &report.usage)?;
    }
    Ok(())
}

async fn wait(thread: &Caller, selection: &Selection) -> Result<WaitReport, Errno> {
    let process = &thread.process;
    thread
        .wait_until(WaitKind::Interruptible, |watch| {
            process.watch_children(watch)?;
            find(process, selection)
        })
        .await
}

/// Looks at the children once: a report and, unless `WNOWAIT` says otherwise, the end of a zombie.
fn find(process: &Arc<Process>, selection: &Selection) -> Result<Option<WaitReport>, Errno> {
    let options = selection.options;
    let mut has_candidate = false;
    let mut found = None;
    {
        let table = table::lock();
        let children = process.children();
        for child in children.iter() {
            let tracer = child.main_tracer();
            let is_own_tracee = tracer.as_ref().is_some_and(|tracer| Arc::ptr_eq(tracer, process));
            if !(selection.matches(child) || is_own_tracee && selection.names(child)) {
                continue;
            }
            has_candidate = true;
            // A child's tracer is told first.
            if tracer.is_some() && (!is_own_tracee || child.exit_status().is_none()) {
                continue;
            }
            if child.exit_status().is_some() && !child.is_end_told() {
                continue;
            }
            if let Some(mut report) = look(child, options) {
                report.pid = table.shown(report.pid, &process.pids);
                found = Some((child.clone(), report));
                break;
            }
        }
        drop(children);
        if found.is_none() {
            let traced = look_at_tracees(process, selection);
            has_candidate |= traced.is_some();
            if let Some(Some((thread, mut report, is_end))) = traced {
                report.pid = table.shown(report.pid, &process.pids);
                drop(table);
                if is_end && options & linux::WNOWAIT == 0 {
                    trace::reaped(&thread);
                }
                return Ok(Some(report));
            }
        }
        drop(table);
    }
    let Some((child, report)) = found else {
        return if has_candidate { Ok(None) } else { Err(Errno::ECHILD) };
    };
    let is_end = !matches!(report.code, linux::CLD_STOPPED | linux::CLD_CONTINUED);
    if is_end && options & linux::WNOWAIT == 0 && !exit::reap(&child).is_reaped() {
        // Another thread of this process was faster.
        return find(process, selection);
    }
    Ok(Some(report))
}

/// The change of a traced thread, and whether it is its end.
type TraceReport = (Arc<Thread>, WaitReport, bool);

/// Looks at the threads that a process traces. `None`: none of them counts.
fn look_at_tracees(process: &Arc<Process>, selection: &Selection) -> Option<Option<TraceReport>> {
    let tracees = process.tracees();
    let mut has_candidate = false;
    for thread in tracees.iter().filter(|thread| selection.names_thread(thread)) {
        has_candidate = true;
        let keep = selection.options & linux::WNOWAIT != 0;
        let (stop, ended) = thread.with_tracee(|tracee| {
            tracee.map_or((None, None), |tracee| (tracee.trace.report(keep), tracee.trace.ended()))
        });
        let is_main = thread.tid() == thread.process.pid;
        let is_child = || thread.process.parent().is_some_and(|parent| Arc::ptr_eq(&parent, process));
        // A child's end is found among the children.
        // Once its process ends, the end of a thread counts as that of the process.
        let ending = || thread.process.signal_state().ending();
        let ended = if is_main && !is_child() {
            thread.process.exit_status().filter(|_| thread.process.is_end_told())
        } else {
            ended.map(|status| ending().unwrap_or(status))
        };
        let (status, code, value, is_end) = match (stop, ended) {
            (_, Some(ended)) if selection.options & linux::WEXITED != 0 => {
                let (code, value) = ended.to_child_code();
                (ended.to_wait_status(), code as u32, value, true)
            }
            (Some(stop), None) => (stop << 8 | 0x7f, linux::CLD_TRAPPED, stop, false),
            _ => continue,
        };
        let usage = usage::of_process_and_children(&thread.process);
        let uid = thread.credentials().uid;
        let report = WaitReport { pid: thread.tid(), uid, status, code, value, usage };
        return Some(Some((thread.clone(), report, is_end)));
    }
    has_candidate.then_some(None)
}

impl Selection {
    /// Whether the wait is for this process, whatever its kind.
    fn names(&self, child: &Process) -> bool {
        match &self.which {
            Which::Any => true,
            Which::Process(pid) => child.pid == *pid,
            Which::Group(id) => child.group_id() == *id,
            Which::Same(process) => core::ptr::eq(child, &**process),
        }
    }

    /// Whether the wait is for this traced thread.
    fn names_thread(&self, thread: &Thread) -> bool {
        match &self.which {
            Which::Process(tid) => thread.tid() == *tid,
            _ => self.names(&thread.process),
        }
    }

    fn matches(&self, child: &Process) -> bool {
        let is_clone = child.exit_signal() != Some(Signal::CHLD);
        let is_kind = self.options & linux::__WALL != 0 || is_clone == (self.options & linux::__WCLONE != 0);
        is_kind && self.names(child)
    }
}

fn look(child: &Arc<Process>, options: u32) -> Option<WaitReport> {
    let mut state = child.signal_state();
    let (status, code, value) = if let Some(ended) = state.ended() {
        if options & linux::WEXITED == 0 {
            return None;
        }
        let (code, value) = ended.to_child_code();
        (ended.to_wait_status(), code as u32, value)
    } else {
        match state.change() {
            ChildChange::Stopped(signal) if options & linux::WSTOPPED != 0 => {
                (signal.number() << 8 | 0x7f, linux::CLD_STOPPED, signal.number())
            }
            ChildChange::Continued if options & linux::WCONTINUED != 0 => {
                (0xffff, linux::CLD_CONTINUED, Signal::CONT.number())
            }
            _ => return None,
        }
    };
    if state.ended().is_none() && options & linux::WNOWAIT == 0 {
        state.report_change();
    }
    drop(state);
    let usage = usage::of_process_and_children(child);
    Some(WaitReport { pid: child.pid, uid: child.uid(), status, code, value, usage })
}
