//! fork(2), vfork(2), clone(2).

use alloc::sync::Arc;
use alloc::vec::Vec;
use heddle_kernel_core::fallible::push_reserved;
use heddle_kernel_core::signal::Signal;
use heddle_kernel_core::signal_state::TraceEvent;
use linux_raw_sys::general as linux;

use crate::arch::{UserContext, protection_key};
use crate::call::caller::Caller;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::{DescriptorTable, Directories, StatusFlags};
use crate::memory::source::Object;
use crate::memory::{Space, fallible};
use crate::process::control_group::{self, ControlGroup, freeze};
use crate::process::exit::discard;
use crate::process::namespaces::Namespaces;
use crate::process::pid_namespace;
use crate::process::pidfd::ProcessFile;
use crate::process::thread::Parts;
use crate::process::user_task::UserTask;
use crate::process::vfork::Vfork;
use crate::process::{Credentials, Limits, Resource, Thread, perf, seccomp, table, time_namespace, trace};
use crate::syscall::process::new_process::{
    child_actions, child_directories, enter_group, inherit, lock_group, make_process, numbers, real_parent,
};
use crate::syscall::process::unshare::new_users;
use crate::syscall::{Call, SyscallResult, pending, thread_loop, user};
use crate::{cgroupfs, sched, signal};

/// A request for a new process or thread, from the arguments of the three calls.
pub(super) struct CloneRequest {
    pub(super) flags: u64,
    pub(super) exit_signal: i32,
    stack: usize,
    parent_tid: usize,
    pub(super) child_tid: usize,
    tls: usize,
    /// Where `CLONE_PIDFD` puts the descriptor.
    pidfd: usize,
    /// Numbers that the child is to have, from its own PID namespace on.
    pub(super) wanted: Vec<i32>,
    /// The control group that the child is to be in; its parent's if there is none.
    pub(super) group: Option<Arc<ControlGroup>>,
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
    | linux::CLONE_CLEAR_SIGHAND
    | linux::CLONE_INTO_CGROUP;

/// `struct clone_args` with all that is known of it.
const CLONE_ARGS_BYTES: usize = 88;

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
    let pidfd = parent_tid;
    let request =
        CloneRequest { flags, exit_signal, stack, parent_tid, child_tid, tls, pidfd, ..CloneRequest::NONE };
    start(call, request)
}

/// clone3(2).
pub fn clone3(call: &mut Call<'_>) -> SyscallResult {
    const WORDS: usize = CLONE_ARGS_BYTES / 8;
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
    let [
        flags,
        pidfd,
        child_tid,
        parent_tid,
        exit_signal,
        stack,
        stack_bytes,
        tls,
        set_tid,
        set_tid_size,
        group,
    ] = words;
    // One of the bits of a signal's number is a flag here.
    let old = u64::from(linux::CLONE_DETACHED | linux::CSIGNAL & !linux::CLONE_NEWTIME);
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
        group: wanted_group(call, flags, size, group)?,
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

/// The control group that a call names by a descriptor, which the caller may put a process into.
fn wanted_group(
    call: &Call<'_>,
    flags: u64,
    size: usize,
    descriptor: u64,
) -> Result<Option<Arc<ControlGroup>>, Errno> {
    if flags & linux::CLONE_INTO_CGROUP == 0 {
        return Ok(None);
    }
    let descriptor = i32::try_from(descriptor).ok().filter(|_| size >= CLONE_ARGS_BYTES);
    let open = call.thread.descriptors().get(descriptor.ok_or(Errno::EINVAL)?)?;
    let group = cgroupfs::group_of(&open).ok_or(Errno::EBADF)?;
    if group.is_removed() {
        return Err(Errno::ENOENT);
    }
    let from = ControlGroup::of(&call.thread.process.control_group())?;
    if flags & u64::from(linux::CLONE_THREAD) != 0 && from.number != group.number {
        return Err(Errno::EOPNOTSUPP);
    }
    cgroupfs::check_move(&from, &group, &call.thread.credentials())?;
    Ok(Some(group))
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
        group: None,
    };

    pub(super) fn has(&self, flag: u32) -> bool {
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
            perf::inherit(thread, &child);
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
    let space = if shares_space { thread.space() } else { copy_space(&thread, child_runs_next).await? };
    let child = make(&thread, &request, space, descriptors)?;
    let tid = child.tid();
    if !shares_space {
        crate::ipc::shared_memory::inherited(&child.space(), tid);
        control_group::memory::follow(&child.process, true);
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
        perf::inherit(&thread, &child);
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

/// A copy of the caller's space for its child, with the clocks of its time namespace.
async fn copy_space(thread: &Caller, child_runs_next: bool) -> Result<Arc<Space>, Errno> {
    let space = thread.space().fork(child_runs_next).await?;
    let namespaces = thread.namespaces();
    if namespaces.changes_times() {
        let pages = |times| time_namespace::pages(times).map(Object::Source);
        space.exchange(&pages(&namespaces.times)?, &pages(&namespaces.times_of_children)?).await?;
    }
    Ok(space)
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
    perf::forget(child);
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
    let in_new_times = |namespaces: Arc<Namespaces>| {
        if request.has(linux::CLONE_VM) { Ok(namespaces) } else { namespaces.with_new_times() }
    };
    if !request.has(Namespaces::KINDS) {
        return in_new_times(parent.namespaces());
    }
    if !parent.credentials().is_capable_in(&credentials.users, linux::CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    if request.has(linux::CLONE_NEWIPC) && request.has(linux::CLONE_SYSVSEM) {
        // Undoes belong to semaphores that the child does not see.
        return Err(Errno::EINVAL);
    }
    in_new_times(parent.namespaces().copied(
        request.flags as u32,
        credentials,
        directories,
        &parent.process,
    )?)
}

/// Makes the thread, in the caller's process or in a new one, without starting it.
fn make(
    parent: &Arc<Thread>,
    request: &CloneRequest,
    space: Arc<Space>,
    descriptors: Arc<DescriptorTable>,
) -> Result<Arc<Thread>, Errno> {
    let directories = child_directories(parent, request)?;
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
    let hierarchy = lock_group(request.group.as_ref())?;
    let mut table = table::lock();
    let task = enter_user_task(parent)?;
    let (tid, names) = numbers(request, &parent.credentials(), &namespaces.pids, &mut table)?;
    let own_tid = names.own(tid);
    let process = match actions {
        None => parent.process.clone(),
        Some(actions) => make_process(parent, request, (tid, own_tid), namespaces.pids.clone(), actions)?,
    };
    let group =
        request.group.as_ref().map_or_else(|| parent.process.control_group(), |group| group.as_groups());
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
        key_rights: protection_key::rights(),
    })?;
    child.set_user_task(task);
    inherit(parent, &child, request);
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
    let changed = match enter_group(&process, &group, is_thread) {
        Ok(changed) => changed,
        Err(error) => {
            drop((state, children, table, hierarchy));
            control_group::tell_refused(&group);
            return Err(error);
        }
    };
    freeze::begin(&child);
    seccomp::inherit(parent, &child);
    if state.add(child.clone()).is_err() {
        if is_thread {
            process.take_back_thread();
        }
        return Err(Errno::EAGAIN);
    }
    table.enter_names(tid, names);
    if let Some(children) = &mut children {
        push_reserved(children, process.clone());
        table.enter_process(&process);
        table.join(&process);
    }
    table.enter_thread(&child);
    drop(state);
    drop(children);
    drop((table, hierarchy));
    changed.tell();
    if request.has(linux::CLONE_NEWUSER) {
        child.set_credentials(credentials);
    }
    if parent.is_traced() && (request.has(linux::CLONE_PTRACE) || request.traced(parent).is_some()) {
        trace::attach_child(parent, &child).inspect_err(|_| discard(&child))?;
    }
    Ok(child)
}
