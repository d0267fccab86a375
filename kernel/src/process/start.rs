//! Starting programs from the kernel itself, and the reaper that they are children of.

use alloc::sync::Arc;
use alloc::vec::Vec;
use heddle_kernel_core::exec::Strings;
use heddle_kernel_core::fallible::push_reserved;
use heddle_kernel_core::protection_key::KeyRights;
use heddle_kernel_core::signal::{Actions, SignalSet};
use linux_raw_sys::general as linux;

use crate::arch::{FloatState, UserContext};
use crate::error::Errno;
use crate::fs::lookup::LookupFlags;
use crate::fs::{DescriptorTable, Directories};
use crate::memory::{Space, SpaceKind, fallible};
use crate::process::exec::ExecRequest;
use crate::process::namespaces::Namespaces;
use crate::process::table::REAPER_PID;
use crate::process::thread::Parts;
use crate::process::user_task::UserTask;
use crate::process::{
    ControllingTerminal, Credentials, Group, Process, ProcessParts, Session, Thread, exec, exit, table,
};
use crate::sched::Parameters;
use crate::sync::SpinLock;

/// A program that the kernel starts: the one that `heddle run` names.
pub struct Program {
    /// Its file, an absolute path or one relative to the working directory.
    pub path: Vec<u8>,
    /// `argv`.
    pub arguments: Vec<Vec<u8>>,
    /// `envp`, as `NAME=VALUE`.
    pub environment: Vec<Vec<u8>>,
    /// Its descriptors.
    pub descriptors: DescriptorTable,
    /// Where its paths start.
    pub directories: Directories,
    /// Its user, groups and capabilities.
    pub credentials: Credentials,
    /// The controlling terminal of the session that the program leads. The terminal itself learns the number of session
    /// and foreground group, which are both the pid, from [`ControllingTerminal::adopt`].
    pub terminal: Option<Arc<dyn ControllingTerminal>>,
}

/// Placeholders for the parts of a thread that has ended.
pub(super) struct Nothing {
    pub space: Arc<Space>,
    pub descriptors: Arc<DescriptorTable>,
}

static NOTHING: spin::Once<Nothing> = spin::Once::new();

/// Makes the reaper, process 1, which has no thread: the kernel itself frees the children that it gets.
///
/// # Errors
/// `ENOMEM`.
pub fn initialize() -> Result<(), Errno> {
    crate::memory::reclaim::register(crate::process::futex::drain);
    crate::memory::oom::set_kill(crate::process::oom::kill);
    crate::process::detour::initialize();
    crate::process::futex::donation::initialize();
    let space = Space::new(SpaceKind::Whole)?;
    let descriptors = fallible::try_arc(DescriptorTable::new())?;
    NOTHING.call_once(|| Nothing { space, descriptors });
    let mut table = table::lock();
    let pid = table.free_number()?;
    debug_assert_eq!(pid, REAPER_PID);
    let group = make_group(pid)?;
    let actions = fallible::try_arc(SpinLock::new(Actions::new()))?;
    group.reserve()?;
    let reaper = Process::new(ProcessParts::of_kernel(pid, alloc::sync::Weak::new(), group, actions))?;
    table.enter_process(&reaper);
    table.join(&reaper);
    Ok(())
}

/// An empty space and an empty table of descriptors.
pub(super) fn nothing() -> Option<&'static Nothing> {
    NOTHING.get()
}

fn make_group(id: i32) -> Result<Arc<Group>, Errno> {
    let session = fallible::try_arc(Session::new(id))?;
    fallible::try_arc(Group::new(id, session))
}

/// Starts a program as a child of the kernel's reaper and leader of a session of its own.
///
/// # Errors
/// Those of execve(2): `ENOENT`, `EACCES`, `ENOEXEC`, `ENOMEM`…
pub async fn start(
    program: Program,
    spawn: fn(&Arc<Thread>, UserContext) -> Result<(), Errno>,
) -> Result<Arc<Process>, Errno> {
    let request = ExecRequest {
        directory: linux::AT_FDCWD,
        path: program.path,
        how: LookupFlags::FOLLOW,
        arguments: strings(&program.arguments)?,
        environment: strings(&program.environment)?,
    };
    let thread = make_first_thread(program.descriptors, program.directories, program.credentials)?;
    let process = thread.process.clone();
    let loaded = match load(&thread, request).await {
        Ok(loaded) => loaded,
        Err(error) => {
            exit::discard(&thread);
            return Err(error);
        }
    };
    exec::commit(&thread, loaded.0, loaded.1).await;
    // They were for a thread whose turn goes on.
    thread.save_key_rights();
    let context = thread.take_context().ok_or(Errno::ENOEXEC)?;
    if let Some(terminal) = program.terminal {
        terminal.adopt(process.pid, process.pid);
        process.session().set_terminal(Some(terminal));
    }
    if let Err(error) = spawn(&thread, *context) {
        exit::discard(&thread);
        return Err(error);
    }
    Ok(process)
}

async fn load(thread: &Arc<Thread>, request: ExecRequest) -> Result<(exec::Loaded, exec::Prepared), Errno> {
    let loaded = exec::load(thread, request).await?;
    Ok((loaded, exec::prepare(thread)?))
}

fn strings(list: &[Vec<u8>]) -> Result<Strings, Errno> {
    let mut strings = Strings::new();
    for string in list {
        strings.push(string)?;
    }
    Ok(strings)
}

fn make_first_thread(
    descriptors: DescriptorTable,
    directories: Directories,
    credentials: Credentials,
) -> Result<Arc<Thread>, Errno> {
    let nothing = nothing().ok_or(Errno::ENODEV)?;
    let descriptors = fallible::try_arc(descriptors)?;
    let directories = fallible::try_arc(directories)?;
    let credentials = fallible::try_arc(credentials)?;
    let float = FloatState::new()?;
    let actions = fallible::try_arc(SpinLock::new(Actions::new()))?;
    let mut table = table::lock();
    let reaper = table.process(REAPER_PID).ok_or(Errno::ENODEV)?;
    let pid = table.free_number()?;
    let group = make_group(pid)?;
    group.reserve()?;
    let process = Process::new(ProcessParts::of_kernel(pid, Arc::downgrade(&reaper), group, actions))?;
    let thread = Thread::new(Parts {
        tid: pid,
        own_tid: pid,
        process: process.clone(),
        space: nothing.space.clone(),
        descriptors,
        directories,
        namespaces: Namespaces::initial()?.clone(),
        credentials,
        no_new_privileges: false,
        name: [0; Thread::NAME_BYTES],
        blocked: SignalSet::EMPTY,
        scheduling: Parameters::ORDINARY,
        account: heddle_kernel_core::fairness::Account::new(heddle_kernel_core::fairness::Weight::of_nice(0)),
        float,
        key_rights: KeyRights::INITIAL,
    })?;
    thread.set_user_task(UserTask::enter(thread.credentials().uid, u64::MAX)?);
    let mut children = reaper.children();
    children.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    let mut state = process.signal_state();
    if !state.reserve() {
        return Err(Errno::ENOMEM);
    }
    state.add(thread.clone()).map_err(|_| Errno::EAGAIN)?;
    drop(state);
    push_reserved(&mut children, process.clone());
    drop(children);
    table.enter_process(&process);
    table.join(&process);
    table.enter_thread(&thread);
    Ok(thread)
}
