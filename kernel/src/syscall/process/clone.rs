//! fork(2), vfork(2), clone(2).

use alloc::sync::Arc;
use alloc::vec::Vec;
use heddle_kernel_core::fallible::push_reserved;
use heddle_kernel_core::signal::{Actions, Signal};
use heddle_kernel_core::signal_state::TraceEvent;
use linux_raw_sys::general as linux;

use crate::arch::UserContext;
use crate::call::caller::Caller;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::{DescriptorTable, Directories, StatusFlags};
use crate::ipc::semaphore::SemUndoList;
use crate::memory::{Space, fallible};
use crate::process::exit::discard;
use crate::process::namespaces::Namespaces;
use crate::process::pid_namespace::{self, PidNames, Pids};
use crate::process::pidfd::ProcessFile;
use crate::process::table::PidTable;
use crate::process::thread::Parts;
use crate::process::user_task::UserTask;
use crate::process::vfork::Vfork;
use crate::process::{Credentials, Limits, Process, ProcessParts, Resource, Thread, seccomp, table, trace};
use crate::sync::SpinLock;
use crate::syscall::process::unshare::new_users;
use crate::syscall::{Call, SyscallResult, pending, thread_loop, user};
use crate::{sched, signal};

/// A request for a new process or thread, from the arguments of the three calls.
struct CloneRequest {
    flags: u64,
    exit_signal: i32,
    stack: usize,
    parent_tid: usize,
    child_tid: usize,
    tls: usize,
    /// Where `CLONE_PIDFD` puts the descriptor.
    pidfd: usize,
    /// Numbers that the child is to have, from its own PID namespace on.
    wanted: Vec<i32>,
}

/// Flags that are carried out.
const SUPPORTED: u64 = (linux::CLONE_VM
    | linux::CLONE_FS
    | linux::CLONE_FILES
    | linux::CLONE_SIGHAND
    | linux::CLONE_VFORK
    | linux::CLONE_PARENT
    | linux::CLONE_THREAD
    | linux::CLONE_SYSVSEM
    | linux::CLONE_SETTLS
    | linux::CLONE_PARENT_SETTID
    | linux::CLONE_CHILD_CLEARTID
    | linux::CLONE_DETACHED
    | linux::CLONE_UNTRACED
    | linux::CLONE_CHILD_SETTID
    | linux::CLONE_PTRACE
    | linux::CLONE_PIDFD
    | linux::CLONE_IO
    | Namespaces::KINDS_AND_USERS) as u64
    | linux::CLONE_CLEAR_SIGHAND;

/// The most PID namespaces that a process is in.
const DEPTH_MAX: u64 = 32;

/// fork(2).
pub fn fork(call: &mut Call<'_>) -> SyscallResult {
    start(call, CloneRequest { flags: 0, exit_signal: Signal::CHLD.number(), ..CloneRequest::NONE })
}

/// vfork(2).
pub fn vfork(call: &mut Call<'_>) -> SyscallResult {
    let flags = u64::from(linux::CLONE_VM | linux::CLONE_VFORK);
    start(call, CloneRequest { flags, exit_signal: Signal::CHLD.number(), ..CloneRequest::NONE })
}

/// clone(2).
pub fn clone(call: &mut Call<'_>) -> SyscallResult {
    let flags = call.word(0) as u64 & 0xffff_ffff;
    let signal_bits = u64::from(linux::CSIGNAL);
    let [_, stack, parent_tid, child_tid, tls, _] = core::array::from_fn(|index| call.word(index));
    let exit_signal = (flags & signal_bits) as i32;
    let both = u64::from(linux::CLONE_PIDFD | linux::CLONE_PARENT_SETTID);
    if flags & both == both {
        // There is one argument for the two.
        return Err(Errno::EINVAL.into());
    }
    let flags = flags & !signal_bits;
    let (pidfd, wanted) = (parent_tid, Vec::new());
    start(call, CloneRequest { flags, exit_signal, stack, parent_tid, child_tid, tls, pidfd, wanted })
}

/// clone3(2).
pub fn clone3(call: &mut Call<'_>) -> SyscallResult {
    const WORDS: usize = 11;
    const SMALLEST_BYTES: usize = 64;
    let (address, size) = (call.word(0), call.word(1));
    if size < SMALLEST_BYTES {
        return Err(Errno::EINVAL.into());
    }
    if size > 4096 {
        return Err(Errno::E2BIG.into());
    }
    let space = call.thread.space();
    // Words that the program's structure lacks are 0; words that the kernel does not know must be 0.
    let mut bytes = [0; WORDS * 8];
    let known = size.min(bytes.len());
    space.read_bytes(address, &mut bytes[..known])?;
    for at in known..size {
        if space.read::<u8>(address + at)? != 0 {
            return Err(Errno::E2BIG.into());
        }
    }
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    let [flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_bytes, tls, set_tid, set_tid_size, _] =
        words;
    let old = u64::from(linux::CLONE_DETACHED | linux::CSIGNAL);
    let is_unsupported =
        flags & old != 0 || (set_tid != 0) != (set_tid_size != 0) || set_tid_size > DEPTH_MAX;
    let both = u64::from(linux::CLONE_PIDFD | linux::CLONE_PARENT_SETTID);
    let is_one_place = flags & both == both && pidfd == parent_tid;
    if is_unsupported || is_one_place || exit_signal > 64 || (stack == 0) != (stack_bytes == 0) {
        return Err(Errno::EINVAL.into());
    }
    let wanted = wanted_numbers(&space, set_tid as usize, set_tid_size as usize)?;
    let request = CloneRequest {
        flags,
        exit_signal: exit_signal as i32,
        stack: stack.wrapping_add(stack_bytes) as usize,
        parent_tid: parent_tid as usize,
        child_tid: child_tid as usize,
        tls: tls as usize,
        pidfd: pidfd as usize,
        wanted,
    };
    start(call, request)
}

/// Reads the numbers that the child is to have.
fn wanted_numbers(space: &Space, address: usize, count: usize) -> TryResult<Vec<i32>> {
    let mut wanted = fallible::try_filled(0, count)?;
    for (index, number) in wanted.iter_mut().enumerate() {
        *number = space.read(address.wrapping_add(index * size_of::<i32>()))?;
    }
    Ok(wanted)
}

impl CloneRequest {
    const NONE: Self = Self {
        flags: 0,
        exit_signal: 0,
        stack: 0,
        parent_tid: 0,
        child_tid: 0,
        tls: 0,
        pidfd: 0,
        wanted: Vec::new(),
    };

    fn has(&self, flag: u32) -> bool {
        self.flags & u64::from(flag) != 0
    }

    /// The event of which the thread's tracer wants to know.
    fn traced(&self, thread: &Thread) -> Option<TraceEvent> {
        if !thread.is_traced() || self.has(linux::CLONE_UNTRACED) {
            return None;
        }
        let event = if self.has(linux::CLONE_VFORK) {
            TraceEvent::Vfork
        } else if self.exit_signal == Signal::CHLD.number() {
            TraceEvent::Fork
        } else {
            TraceEvent::Clone
        };
        let wants = thread
            .with_tracee(|tracee| tracee.is_some_and(|tracee| tracee.trace.options.contains(event.option())));
        wants.then_some(event)
    }

    fn is_valid(&self) -> bool {
        let needs = |flag, needed| !self.has(flag) || self.has(needed);
        self.flags & !SUPPORTED == 0
            && needs(linux::CLONE_SIGHAND, linux::CLONE_VM)
            && needs(linux::CLONE_THREAD, linux::CLONE_SIGHAND)
            && !(self.has(linux::CLONE_NEWNS | linux::CLONE_NEWUSER) && self.has(linux::CLONE_FS))
            && !(self.has(linux::CLONE_THREAD) && self.has(linux::CLONE_NEWUSER | linux::CLONE_NEWPID))
            && !(self.has(linux::CLONE_SIGHAND) && self.flags & linux::CLONE_CLEAR_SIGHAND != 0)
            && !(self.has(linux::CLONE_PIDFD) && self.has(linux::CLONE_THREAD | linux::CLONE_DETACHED))
    }
}

/// The new thread shares or copies as the flags say. Forking the address space may have to wait, so the rest happens
/// in a future; a thread or a `vfork` without waiting is made at once.
fn start(call: &mut Call<'_>, request: CloneRequest) -> SyscallResult {
    if !request.is_valid() {
        return Err(Errno::EINVAL.into());
    }
    let thread = call.thread;
    let mut context = call.context.clone();
    context.set_result(0);
    if thread.is_traced() {
        // A step is the parent's alone.
        crate::arch::debug::end_step(&mut context);
    }
    if request.stack != 0 {
        context.set_sp(request.stack);
    }
    if request.has(linux::CLONE_SETTLS) {
        context.set_tls(request.tls);
    }
    if request.has(linux::CLONE_PARENT_SETTID) {
        thread.space().probe_write(request.parent_tid, size_of::<u32>())?;
    }
    if request.has(linux::CLONE_PIDFD) {
        thread.space().probe_write(request.pidfd, size_of::<u32>())?;
    }
    // A large table is copied in steps.
    let copies_table = !request.has(linux::CLONE_FILES) && thread.descriptors().is_large();
    if request.has(linux::CLONE_VM) && !copies_table {
        let space = thread.space();
        let descriptors = if request.has(linux::CLONE_FILES) {
            thread.descriptors()
        } else {
            fallible::try_arc(thread.descriptors().duplicate()?)?
        };
        let child = make(thread, &request, space, descriptors)?;
        let tid = child.tid();
        let shown = thread.process.shown(tid);
        let pidfd = attach_pidfd(thread, &child, &request)?;
        let started = publish_tids(thread, &child, &request, pidfd.as_ref()).and_then(|()| {
            let vfork = if request.has(linux::CLONE_VFORK) { Some(Vfork::attach(&child)?) } else { None };
            thread_loop::spawn(&child, context)?;
            Ok(vfork)
        });
        let vfork = started.inspect_err(|_| take_back(&child, pidfd))?;
        let event = request.traced(thread);
        if vfork.is_none() && event.is_none() {
            return Ok((shown as usize).into());
        }
        let thread = thread.clone();
        return pending(async move {
            wait_for_child(&thread, tid, event, vfork).await;
            Ok(shown as usize)
        });
    }
    let thread = thread.clone();
    pending(fork_space(thread, request, context))
}

async fn fork_space(thread: Caller, request: CloneRequest, context: UserContext) -> Result<usize, Errno> {
    let shares_space = request.has(linux::CLONE_VM);
    let child_runs_next = !shares_space && !sched::has_idle_cpu();
    let descriptors = if request.has(linux::CLONE_FILES) {
        thread.descriptors()
    } else {
        copy_descriptors(&thread).await?
    };
    let space = if shares_space { thread.space() } else { thread.space().fork(child_runs_next).await? };
    let child = make(&thread, &request, space, descriptors)?;
    let tid = child.tid();
    if !shares_space {
        crate::ipc::shared_memory::inherited(&child.space(), tid);
    }
    let shown = thread.process.shown(tid);
    let shown_bytes = (shown as u32).to_ne_bytes();
    if request.has(linux::CLONE_CHILD_SETTID) {
        child.set_child_tid(request.child_tid);
    }
    if request.has(linux::CLONE_PARENT_SETTID) {
        let _ = thread.resolve(|space| space.write_bytes(request.parent_tid, &shown_bytes)).await;
    }
    let pidfd = attach_pidfd(&thread, &child, &request)?;
    let written = match &pidfd {
        None => Ok(()),
        Some(pidfd) => {
            let number = (pidfd.number as u32).to_ne_bytes();
            thread.resolve(|space| space.write_bytes(request.pidfd, &number)).await
        }
    };
    let started = written.and_then(|()| {
        let vfork = if request.has(linux::CLONE_VFORK) { Some(Vfork::attach(&child)?) } else { None };
        thread_loop::spawn(&child, context)?;
        Ok(vfork)
    });
    let event = request.traced(&thread);
    match started.inspect_err(|_| take_back(&child, pidfd))? {
        // Most children leave for another program soon: the parent's tables stay out of this CPU's root until then.
        None if event.is_none() && child_runs_next => sched::yield_now().await,
        vfork => wait_for_child(&thread, tid, event, vfork).await,
    }
    Ok(shown as usize)
}

/// A table with the caller's descriptors for its child.
async fn copy_descriptors(thread: &Caller) -> Result<Arc<DescriptorTable>, Errno> {
    let table = thread.descriptors();
    if table.is_large() {
        fallible::try_arc(table.duplicate_in_steps(thread).await?)
    } else {
        fallible::try_arc(table.duplicate()?)
    }
}

/// Tells the tracer of the new child, and waits until it has left the space if it borrows that.
async fn wait_for_child(thread: &Caller, tid: i32, event: Option<TraceEvent>, vfork: Option<Arc<Vfork>>) {
    // The tracer is told its own number for the child.
    let shown = thread.tracer().map_or(tid, |tracer| tracer.process.shown(tid));
    if let Some(event) = event {
        signal::trace::event(thread, event, shown as u64).await;
    }
    if let Some(vfork) = vfork {
        vfork.wait(thread).await;
        if thread.is_traced() {
            signal::trace::event(thread, TraceEvent::VforkDone, shown as u64).await;
        }
    }
}

/// Writes the numbers where parent and child want them, in the space that both share.
fn publish_tids(
    parent: &Arc<Thread>,
    child: &Arc<Thread>,
    request: &CloneRequest,
    pidfd: Option<&Pidfd>,
) -> Result<(), TryError> {
    let space = parent.space();
    let (shown, own) = (parent.process.shown(child.tid()), child.own_tid());
    for (flag, address, number) in [
        (linux::CLONE_PARENT_SETTID, request.parent_tid, shown),
        (linux::CLONE_CHILD_SETTID, request.child_tid, own),
    ] {
        if request.has(flag) {
            user::write_int(&space, address, number as u32)?;
        }
    }
    if let Some(pidfd) = pidfd {
        user::write_int(&space, request.pidfd, pidfd.number as u32)?;
    }
    Ok(())
}

/// The parent's descriptor for its new child.
struct Pidfd {
    table: Arc<DescriptorTable>,
    number: i32,
}

/// `CLONE_PIDFD`: gives the parent a descriptor for the child; takes the child back if it can't have one.
fn attach_pidfd(
    parent: &Caller,
    child: &Arc<Thread>,
    request: &CloneRequest,
) -> Result<Option<Pidfd>, Errno> {
    if !request.has(linux::CLONE_PIDFD) {
        return Ok(None);
    }
    let table = parent.descriptors();
    let added = ProcessFile::open(child.process.clone(), StatusFlags::empty())
        .and_then(|open| table.add(open, 0, parent.process.descriptor_limit(), true));
    let number = added.inspect_err(|_| discard(child))?;
    Ok(Some(Pidfd { table, number }))
}

/// Takes back a child that could not be started, and its descriptor.
fn take_back(child: &Arc<Thread>, pidfd: Option<Pidfd>) {
    discard(child);
    if let Some(pidfd) = pidfd {
        drop(pidfd.table.remove(pidfd.number));
    }
}

/// One more thread for the caller's user: `RLIMIT_NPROC` counts those of all the user's processes, and is not for
/// who is privileged.
fn enter_user_task(parent: &Arc<Thread>) -> Result<Option<UserTask>, Errno> {
    let credentials = parent.credentials();
    let limit = parent.process.limit(Resource::Processes).soft;
    let is_free = limit == Limits::INFINITY
        || credentials.is_capable(linux::CAP_SYS_RESOURCE)
        || credentials.is_capable(linux::CAP_SYS_ADMIN);
    UserTask::enter(credentials.uid, if is_free { u64::MAX } else { limit })
}

/// The namespaces of the child, new ones where the flags say so.
fn namespaces_for_child(
    parent: &Arc<Thread>,
    request: &CloneRequest,
    credentials: &Credentials,
    directories: &Directories,
) -> Result<Arc<Namespaces>, Errno> {
    if !request.has(Namespaces::KINDS) {
        return Ok(parent.namespaces());
    }
    if !parent.credentials().is_capable_in(&credentials.users, linux::CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    if request.has(linux::CLONE_NEWIPC) && request.has(linux::CLONE_SYSVSEM) {
        // Undoes belong to semaphores that the child does not see.
        return Err(Errno::EINVAL);
    }
    parent.namespaces().copied(request.flags as u32, credentials, directories, &parent.process.pids)
}

/// Makes the thread, in the caller's process or in a new one, without starting it.
fn make(
    parent: &Arc<Thread>,
    request: &CloneRequest,
    space: Arc<Space>,
    descriptors: Arc<DescriptorTable>,
) -> Result<Arc<Thread>, Errno> {
    let directories = if request.has(linux::CLONE_FS) {
        parent.directories()
    } else {
        fallible::try_arc(parent.directories().duplicate())?
    };
    let old = parent.credentials();
    let credentials = if request.has(linux::CLONE_NEWUSER) { new_users(parent, &old)? } else { old.clone() };
    let namespaces = namespaces_for_child(parent, request, &credentials, &directories)?;
    let is_thread = request.has(linux::CLONE_THREAD);
    let is_elsewhere = || !pid_namespace::is_same(&namespaces.pids, &parent.process.pids);
    if is_thread && is_elsewhere() || request.has(linux::CLONE_PARENT) && parent.process.is_init() {
        return Err(Errno::EINVAL);
    }
    let actions = if is_thread { None } else { Some(child_actions(parent, request)?) };
    let float = parent.with_float(|float| {
        float.save();
        float.try_clone()
    })?;
    let scheduling = parent.scheduling().for_child();
    let account = parent.split_account();

    let mut table = table::lock();
    let task = enter_user_task(parent)?;
    let (tid, names) = numbers(request, &parent.credentials(), &namespaces.pids, &mut table)?;
    let own_tid = names.own(tid);
    let process = match actions {
        None => parent.process.clone(),
        Some(actions) => make_process(parent, request, (tid, own_tid), namespaces.pids.clone(), actions)?,
    };
    let child = Thread::new(Parts {
        tid,
        own_tid,
        process: process.clone(),
        space,
        descriptors,
        directories,
        namespaces,
        credentials: old,
        no_new_privileges: parent.has_no_new_privileges(),
        name: parent.name(),
        blocked: parent.blocked(),
        scheduling,
        account,
        float,
    })?;
    child.set_user_task(task);
    child.set_io_priority(parent.io_priority());
    child.inherit_timer_slack(parent);
    child.set_personality(parent.personality());
    child.set_memory_policy(parent.memory_policy());
    if request.has(linux::CLONE_CHILD_CLEARTID) {
        child.set_clear_child_tid(request.child_tid);
    }
    // A new thread has no alternate stack; a child that got a copy of the space, or borrows it in vfork, keeps it.
    if !request.has(linux::CLONE_VM) || request.has(linux::CLONE_VFORK) {
        child.set_alternate_stack(parent.alternate_stack());
    }
    if !request.has(linux::CLONE_VM) {
        child.restartable.set(parent.restartable.get());
    }
    // A parent's list of children comes before the state of a child.
    let real_parent = if is_thread { None } else { Some(real_parent(parent, request).ok_or(Errno::EINVAL)?) };
    let mut children = real_parent.as_ref().map(|process| process.children());
    if let Some(children) = &mut children {
        children.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    }
    if !is_thread {
        process.group().reserve()?;
    }
    let mut state = process.signal_state();
    if !state.reserve() {
        return Err(Errno::ENOMEM);
    }
    seccomp::inherit(parent, &child);
    state.add(child.clone()).map_err(|_| Errno::EAGAIN)?;
    table.enter_names(tid, names);
    if let Some(children) = &mut children {
        push_reserved(children, process.clone());
        table.enter_process(&process);
        table.join(&process);
    }
    table.enter_thread(&child);
    drop(state);
    drop(children);
    drop(table);
    if request.has(linux::CLONE_NEWUSER) {
        child.set_credentials(credentials);
    }
    if parent.is_traced() && (request.has(linux::CLONE_PTRACE) || request.traced(parent).is_some()) {
        trace::attach_child(parent, &child).inspect_err(|_| discard(&child))?;
    }
    Ok(child)
}

/// The numbers of the child: in the first namespace, and in those that lead to its own.
fn numbers(
    request: &CloneRequest,
    who: &Credentials,
    pids: &Pids,
    table: &mut PidTable,
) -> Result<(i32, PidNames), Errno> {
    let wanted = &request.wanted;
    if wanted.is_empty() {
        let names = pid_namespace::choose(pids, &[], table)?;
        return Ok((table.free_number()?, names));
    }
    let depth = pid_namespace::depth(pids);
    if wanted.len() > depth || wanted.iter().any(|number| !(1..table::PID_LIMIT).contains(number)) {
        return Err(Errno::EINVAL);
    }
    let mut next = pids;
    for _ in wanted {
        let owner = pid_namespace::owner(next);
        let may = |capability| who.is_capable_in(&owner, capability);
        if !may(linux::CAP_CHECKPOINT_RESTORE) && !may(linux::CAP_SYS_ADMIN) {
            return Err(Errno::EPERM);
        }
        next = next.as_ref().map_or(&None, |pids| &pids.parent);
    }
    let names = pid_namespace::choose(pids, wanted, table)?;
    let tid = match wanted.get(depth - 1) {
        Some(&number) => table.wanted_number(number)?,
        None => table.free_number()?,
    };
    Ok((tid, names))
}

fn child_actions(parent: &Arc<Thread>, request: &CloneRequest) -> Result<Arc<SpinLock<Actions>>, Errno> {
    let actions = parent.process.actions();
    if request.has(linux::CLONE_SIGHAND) {
        return Ok(actions);
    }
    let mut copy = fallible::try_box(actions.lock().clone())?;
    if request.flags & linux::CLONE_CLEAR_SIGHAND != 0 {
        copy.exec();
    }
    fallible::try_arc(SpinLock::new(*copy))
}

/// The parent of the new process; with `CLONE_PARENT` the caller's own.
fn real_parent(parent: &Arc<Thread>, request: &CloneRequest) -> Option<Arc<Process>> {
    if request.has(linux::CLONE_PARENT) { parent.process.parent() } else { Some(parent.process.clone()) }
}

fn make_process(
    parent: &Arc<Thread>,
    request: &CloneRequest,
    (pid, own_pid): (i32, i32),
    pids: Pids,
    actions: Arc<SpinLock<Actions>>,
) -> Result<Arc<Process>, Errno> {
    let old = &parent.process;
    let real_parent = real_parent(parent, request).ok_or(Errno::EINVAL)?;
    let process = Process::new(ProcessParts {
        pid,
        own_pid,
        pids,
        parent: Arc::downgrade(&real_parent),
        group: old.group(),
        actions,
        limits: old.limits(),
        exit_signal: request.exit_signal,
        uid: parent.credentials().uid,
        creator: parent.tid(),
    })?;
    if request.has(linux::CLONE_SYSVSEM) {
        let shared = SemUndoList::of(old)?;
        *process.semaphore_undoes() = Some(shared);
    }
    process.inherit_keys(old)?;
    process.set_barriers(old.barriers());
    process.inherit_oom_adjustment(old);
    process.set_memory_users(old.memory_users());
    process.set_dumpable(old.is_dumpable());
    process.set_dump_filter(old.dump_filter());
    process.set_huge_pages_off(old.huge_pages_are_off());
    process.set_program(old.layout(), old.executable());
    Ok(process)
}
