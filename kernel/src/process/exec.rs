//! Loading programs: from a file to an address space that is ready to run, and the change of a process to it.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use heddle_kernel_core::exec::{
    Auxiliary, HEADER_BYTES, Image, ImageError, ImageKind, ProgramStackError, Segment, StackPlan, Strings,
    StringsError, parse_script,
};
use heddle_kernel_core::fallible::extend_reserved;
use heddle_kernel_core::fanotify::event;
use heddle_kernel_core::signal::{AlternateStack, Signal};
use linux_raw_sys::general as linux;

use crate::arch::{FloatState, UserContext, protection_key};
use crate::call::caller::Caller;
use crate::error::Errno;
use crate::fs::OpenFile;
use crate::fs::fanotify::{self, OpenPermission};
use crate::fs::lookup::LookupFlags;
use crate::memory::source::Object;
use crate::memory::space::{Flags, MapRequest, Placement, Protection, SpaceLayout};
use crate::memory::{Space, SpaceKind, fallible, values as user};
use crate::process::control_group;
use crate::process::namespaces::Namespaces;
use crate::process::privilege::ProgramIdentity;
use crate::process::thread_group::ProcessLayout;
use crate::process::{
    ExitStatus, Resource, Thread, credential_set, executable, futex, perf, privilege, table, time_namespace,
};
use crate::signal::PendingWork;
use crate::sync::SpinLock;
use crate::wait::node::WaitKind;
use crate::{arch, user_sched};

/// Scripts whose interpreter is a script: as deep as Linux goes.
const SCRIPT_DEPTH_MAX: usize = 5;
/// Stack mapped at the start; the rest grows.
const STACK_START_BYTES: usize = 132 << 10;
const PAGE_BYTES: usize = heddle_kernel_core::exec::PAGE_BYTES as usize;

/// A program to run, as execve(2) is called.
pub struct ExecRequest {
    /// Where a relative path starts: a descriptor or `AT_FDCWD`.
    pub directory: i32,
    /// The file.
    pub path: Vec<u8>,
    /// LookupFlags the path is walked.
    pub how: LookupFlags,
    /// `argv`.
    pub arguments: Strings,
    /// `envp`.
    pub environment: Strings,
}

/// A program in its new space.
pub struct Loaded {
    space: Arc<Space>,
    executable: Arc<OpenFile>,
    layout: ProcessLayout,
    name: Vec<u8>,
    identity: ProgramIdentity,
    context: Box<UserContext>,
}

impl From<ImageError> for Errno {
    fn from(error: ImageError) -> Self {
        if error == ImageError::OutOfMemory { Self::ENOMEM } else { Self::ENOEXEC }
    }
}

impl From<StringsError> for Errno {
    fn from(error: StringsError) -> Self {
        match error {
            StringsError::TooBig => Self::E2BIG,
            StringsError::OutOfMemory => Self::ENOMEM,
        }
    }
}

impl From<ProgramStackError> for Errno {
    fn from(error: ProgramStackError) -> Self {
        match error {
            ProgramStackError::TooBig => Self::E2BIG,
            ProgramStackError::OutOfMemory => Self::ENOMEM,
        }
    }
}

/// A program's file with its headers.
struct ProgramSource {
    file: Arc<OpenFile>,
    image: Image,
    header: Vec<u8>,
}

/// A file with its first bytes.
fn open(
    thread: &Arc<Thread>,
    directory: i32,
    path: &[u8],
    how: LookupFlags,
) -> Result<(Arc<OpenFile>, Vec<u8>), Errno> {
    let file = executable::open(thread, directory, path, how)?;
    let mut header = fallible::try_filled(0, HEADER_BYTES)?;
    let length = executable::read_at(&file, 0, &mut header)?;
    header.truncate(length);
    Ok((file, header))
}

fn parse(file: Arc<OpenFile>, header: Vec<u8>) -> Result<ProgramSource, Errno> {
    let size = file.file.size().unwrap_or(0);
    let image = Image::parse(&header, size, arch::ELF_MACHINE)?;
    Ok(ProgramSource { file, image, header })
}

/// The path by which the program itself can find its file: that of a descriptor, if the path begins there.
fn path_inside(request: &ExecRequest) -> Result<Vec<u8>, Errno> {
    const PREFIX_BYTES: usize = 24;
    let mut prefix = String::new();
    prefix.try_reserve_exact(PREFIX_BYTES + request.path.len()).map_err(|_| Errno::ENOMEM)?;
    if request.directory != linux::AT_FDCWD && request.path.first() != Some(&b'/') {
        let separator = if request.path.is_empty() { "" } else { "/" };
        // The longest number fits.
        let _ = write!(prefix, "/dev/fd/{}{separator}", request.directory);
    }
    let mut path = prefix.into_bytes();
    extend_reserved(&mut path, &request.path);
    Ok(path)
}

/// Finds the program: the file itself, or the interpreter that a script names, with the arguments put before.
fn find(
    thread: &Arc<Thread>,
    request: &mut ExecRequest,
    inside: &[u8],
    scripts: &mut Vec<Arc<OpenFile>>,
) -> Result<ProgramSource, Errno> {
    let mut path = fallible::try_to_vec(&request.path)?;
    // A descriptor that the program will not have leads an interpreter to nothing.
    let is_lost =
        inside.len() != path.len() && thread.descriptors().close_on_exec(request.directory).unwrap_or(false);
    let (mut directory, mut how) = (request.directory, request.how);
    for _ in 0..=SCRIPT_DEPTH_MAX {
        let (file, header) = open(thread, directory, &path, how)?;
        if !header.starts_with(b"#!") {
            return parse(file, header);
        }
        let script = parse_script(&header).ok_or(Errno::ENOEXEC)?;
        if is_lost && scripts.is_empty() {
            return Err(Errno::ENOENT);
        }
        request.arguments.pop_front();
        request.arguments.push_front(if scripts.is_empty() { inside } else { &path })?;
        fallible::try_push(scripts, file)?;
        if let Some(argument) = script.argument {
            request.arguments.push_front(argument)?;
        }
        request.arguments.push_front(script.interpreter)?;
        path = fallible::try_to_vec(script.interpreter)?;
        (directory, how) = (linux::AT_FDCWD, LookupFlags::FOLLOW);
    }
    Err(Errno::ELOOP)
}

/// Waits until nobody is left who has to permit that a file is opened.
async fn permit(thread: &Arc<Thread>, file: &Arc<OpenFile>) -> Result<(), Errno> {
    for what in [event::OPEN_EXEC_PERM, event::OPEN_PERM] {
        if let Some(permission) = OpenPermission::ask(file, what)? {
            permission.wait(&Caller::Thread(thread.clone())).await?;
        }
    }
    Ok(())
}

/// The dynamic loader that a program names.
fn find_loader(thread: &Arc<Thread>, program: &ProgramSource) -> Result<Option<ProgramSource>, Errno> {
    let Some((offset, length)) = program.image.interpreter else { return Ok(None) };
    let mut path = fallible::try_filled(0, length as usize)?;
    let in_header = program.header.get(offset as usize..(offset + length) as usize);
    match in_header {
        Some(bytes) => path.copy_from_slice(bytes),
        None if executable::read_at(&program.file, offset, &mut path)? == path.len() => {}
        None => return Err(Errno::ENOEXEC),
    }
    if path.pop() != Some(0) {
        return Err(Errno::ENOEXEC);
    }
    let (file, header) = open(thread, linux::AT_FDCWD, &path, LookupFlags::FOLLOW)?;
    let source =
        parse(file, header).map_err(|error| if error == Errno::ENOEXEC { Errno::ELIBBAD } else { error })?;
    Ok(Some(source))
}

/// Loads a program into a new space.
///
/// # Errors
/// Those of execve(2).
pub async fn load(thread: &Arc<Thread>, mut request: ExecRequest) -> Result<Loaded, Errno> {
    let mut scripts = Vec::new();
    let inside = path_inside(&request)?;
    let program = find(thread, &mut request, &inside, &mut scripts)?;
    let loader = find_loader(thread, &program)?;
    if fanotify::is_asked() {
        let files = scripts.iter().chain([&program.file]).chain(loader.iter().map(|loader| &loader.file));
        for file in files {
            permit(thread, file).await?;
        }
    }
    drop(scripts);
    let identity = privilege::of_program(thread, &program.file)?;
    // Slots differ from program to program.
    let is_random = identity.is_secure || thread.personality() & Thread::NO_RANDOMIZATION == 0;
    let kind = match program.image.kind {
        _ if !is_random => SpaceKind::Whole,
        ImageKind::Fixed => SpaceKind::Window,
        ImageKind::PositionIndependent => SpaceKind::Slot,
    };
    let space = Space::new(kind)?;
    space.set_isolation(credential_set::of(&identity.credentials), thread.space().isolation());
    if !is_random {
        space.set_layout(SpaceLayout::FIXED);
    }
    thread.process.limits().limit_space(&space);
    space.set_large_pages_off(thread.process.huge_pages_are_off());
    let base = match program.image.kind {
        ImageKind::Fixed => 0,
        ImageKind::PositionIndependent => {
            let wanted = space.layout().image_base & !(program.image.alignment as usize - 1);
            wanted.wrapping_sub(program.image.span().0 as usize)
        }
    };
    map_image(&space, &program, base).await?;
    let end = base.wrapping_add(program.image.span().1 as usize);
    space.set_brk(end);
    let loader_base = match &loader {
        Some(loader) => Some(place_loader(&space, loader).await?),
        None => None,
    };
    let entry = match (&loader, loader_base) {
        (Some(loader), Some(loader_base)) => loader_base.wrapping_add(loader.image.entry as usize),
        _ => base.wrapping_add(program.image.entry as usize),
    };
    let clock = time_namespace::pages(&thread.namespaces().times_of_children)?;
    let places = user_sched::map(&space, clock).await?;
    let mut auxiliary = auxiliary(&program, base, loader_base.unwrap_or(0), &identity);
    auxiliary.vdso = places.object as u64;
    auxiliary.system_page = places.system as u64;
    auxiliary.process_pages = places.process as u64;
    let stack =
        build_stack(thread, &space, (&request, &inside), auxiliary, program.image.executable_stack).await?;
    space.begin_group(places.all()).await?;
    let mut context = fallible::try_box(UserContext::new_user())?;
    context.set_ip(entry);
    context.set_sp(stack.stack);
    let name = inside.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    Ok(Loaded {
        executable: program.file,
        layout: ProcessLayout { code: (base.wrapping_add(program.image.span().0 as usize), end), ..stack },
        name: fallible::try_to_vec(name)?,
        space,
        identity,
        context,
    })
}

const fn protection(segment: &Segment) -> Protection {
    let mut bits = 0;
    if segment.protection.read {
        bits |= Protection::READ.bits();
    }
    if segment.protection.write {
        bits |= Protection::WRITE.bits();
    }
    if segment.protection.execute {
        bits |= Protection::EXECUTE.bits();
    }
    Protection::from_bits_truncate(bits)
}

/// Maps an image's segments at `base` plus their own addresses.
async fn map_image(space: &Arc<Space>, source: &ProgramSource, base: usize) -> Result<(), Errno> {
    let pages = source.file.file.clone().map_source()?;
    for segment in &source.image.segments {
        let start = base.wrapping_add(segment.address as usize);
        let file_end = start.wrapping_add(segment.file_bytes as usize);
        let end = start.wrapping_add(segment.memory_bytes as usize);
        let first = start & !(PAGE_BYTES - 1);
        let file_pages_end = file_end.next_multiple_of(PAGE_BYTES);
        if segment.file_bytes > 0 {
            let protection = protection(segment);
            let is_code_alone = protection == Protection::EXECUTE;
            let request = MapRequest {
                placement: Placement::Fixed(first),
                length: file_pages_end - first,
                protection,
                flags: Flags::empty(),
                object: Object::Source(pages.clone()),
                offset: segment.offset & !(PAGE_BYTES as u64 - 1),
                // The rights with which a program starts do not include it.
                key: if is_code_alone { space.execute_only_key() } else { None },
            };
            space.map(request).await?;
        }
        let zero_start = if segment.file_bytes > 0 { file_pages_end } else { first };
        if segment.memory_bytes > segment.file_bytes {
            if file_end < zero_start && segment.protection.write {
                let length = zero_start - file_end;
                user::resolve(space, |space| space.clear_bytes(file_end, length)).await?;
            }
            if end > zero_start {
                let mut request = MapRequest::anonymous(Placement::Fixed(zero_start), end - zero_start);
                request.protection = protection(segment);
                space.map(request).await?;
            }
        }
    }
    Ok(())
}

/// Finds room for the dynamic loader and maps it; returns what its addresses are relative to.
async fn place_loader(space: &Arc<Space>, loader: &ProgramSource) -> Result<usize, Errno> {
    let (start, end) = loader.image.span();
    if loader.image.kind == ImageKind::Fixed {
        map_image(space, loader, 0).await?;
        return Ok(0);
    }
    // A reservation finds the place; the segments go over it, and what they leave is given back.
    let length = (end - start) as usize;
    let mut request = MapRequest::anonymous(Placement::Any, length);
    request.protection = Protection::empty();
    let place = space.map(request).await?;
    space.unmap(place, length).await?;
    let base = place.wrapping_sub(start as usize);
    map_image(space, loader, base).await?;
    Ok(base)
}

fn auxiliary(
    program: &ProgramSource,
    base: usize,
    loader_base: usize,
    identity: &ProgramIdentity,
) -> Auxiliary {
    let image = &program.image;
    let credentials = &identity.credentials;
    Auxiliary {
        headers: image.headers.map_or(0, |headers| (base as u64).wrapping_add(headers)),
        header_bytes: u64::from(image.header_bytes),
        header_count: u64::from(image.header_count),
        base: loader_base as u64,
        entry: (base as u64).wrapping_add(image.entry),
        uid: credentials.shown_user(credentials.uid),
        euid: credentials.shown_user(credentials.euid),
        gid: credentials.shown_group(credentials.gid),
        egid: credentials.shown_group(credentials.egid),
        hardware_capabilities: arch::hardware_capabilities(),
        hardware_capabilities2: 0,
        secure: identity.is_secure,
        vdso: 0,
        system_page: 0,
        process_pages: 0,
        minimum_signal_stack: arch::signal::minimum_stack_bytes() as u64,
    }
}

/// Maps the stack and fills its top; returns what `/proc` shows of it.
async fn build_stack(
    thread: &Thread,
    space: &Arc<Space>,
    (request, path): (&ExecRequest, &[u8]),
    auxiliary: Auxiliary,
    is_executable: bool,
) -> Result<ProcessLayout, Errno> {
    let stack_limit = thread.process.limit(Resource::Stack).soft;
    let mut random = [0; 16];
    crate::random::fill(&mut random);
    let top = space.layout().stack_top & !(PAGE_BYTES - 1);
    let plan = StackPlan {
        top: top as u64,
        limit_bytes: (stack_limit / 4).clamp(STACK_START_BYTES as u64, Strings::BYTES_MAX as u64),
        path,
        arguments: &request.arguments,
        environment: &request.environment,
        random,
        platform: arch::MACHINE_NAME.as_bytes(),
        auxiliary,
    };
    let stack = plan.build()?;
    let length = (stack.bytes.len() + STACK_START_BYTES).next_multiple_of(PAGE_BYTES);
    let mut mapping = MapRequest::anonymous(Placement::Fixed(top - length), length);
    mapping.flags = Flags::GROWS_DOWN;
    mapping.object = Object::Anonymous(Some("[stack]"));
    if is_executable {
        mapping.protection |= Protection::EXECUTE;
    }
    space.map(mapping).await?;
    let pointer = stack.pointer as usize;
    for (index, piece) in stack.bytes.chunks(PAGE_BYTES).enumerate() {
        user::resolve(space, |space| space.write_bytes(pointer + index * PAGE_BYTES, piece)).await?;
    }
    let pair = |(start, end): (u64, u64)| (start as usize, end as usize);
    let vector =
        pointer + (1 + request.arguments.len() + 1 + request.environment.len() + 1) * size_of::<u64>();
    Ok(ProcessLayout {
        arguments: pair(stack.arguments),
        environment: pair(stack.environment),
        auxiliary: (vector, vector + heddle_kernel_core::exec::AUXILIARY_BYTES),
        code: (0, 0),
        stack: pointer,
    })
}

/// Ends all other threads and waits until they are gone.
///
/// # Errors
/// `EAGAIN`: another thread is at this already, or the process ends.
pub async fn become_only_thread(thread: &Caller) -> Result<(), Errno> {
    let process = &thread.process;
    if !process.signal_state().begin_exec(thread).map_err(|_| Errno::EAGAIN)? {
        return Ok(());
    }
    let waited = thread
        .wait_until(WaitKind::Killable, |watch| {
            process.watch_threads(watch)?;
            Ok((process.thread_count() == 1).then_some(()))
        })
        .await;
    process.signal_state().end_exec();
    waited?;
    take_over_pid(thread);
    Ok(())
}

/// The thread that is left becomes the first of its process.
fn take_over_pid(thread: &Arc<Thread>) {
    let pid = thread.process.pid;
    if thread.tid() == pid {
        return;
    }
    crate::process::trace::main_replaced(&thread.process, thread);
    let mut table = table::lock();
    let entry = table.remove_thread(thread.tid());
    thread.set_tid((pid, thread.process.own_pid));
    table.enter_thread(thread);
    drop(table);
    drop(entry);
}

/// Memory that the change to a new program needs, allocated before anything is changed.
pub struct Prepared {
    actions: Arc<SpinLock<heddle_kernel_core::signal::Actions>>,
    namespaces: Arc<Namespaces>,
}

/// Gets the memory for [`commit`].
///
/// # Errors
/// `ENOMEM`.
pub fn prepare(thread: &Thread) -> Result<Prepared, Errno> {
    let mut actions = fallible::try_box(thread.process.actions().lock().clone())?;
    actions.exec();
    let actions = fallible::try_arc(SpinLock::new(*actions))?;
    Ok(Prepared { actions, namespaces: thread.namespaces().with_new_times()? })
}

/// Gives the only thread that is left descriptors of its own, if another process shares them. The other threads of its
/// process may have closed some until their end, so this is done after it; without memory the process ends, as in
/// Linux.
///
/// # Errors
/// `ENOMEM`.
pub fn own_descriptors(thread: &Thread) -> Result<(), Errno> {
    if !thread.descriptors().is_shared() {
        return Ok(());
    }
    thread.unshare_descriptors().inspect_err(|_| {
        let status = ExitStatus::Signaled { signal: Signal::SEGV, core: false };
        thread.process.signal_state().begin_exit(status);
    })
}

/// Makes the only thread of a process run the program. Cannot fail.
pub async fn commit(thread: &Arc<Thread>, loaded: Loaded, prepared: Prepared) {
    let process = &thread.process;
    crate::process::executor::leave(thread);
    futex::robust::release(thread).await;
    futex::pi::owner_ends(thread).await;
    thread.set_released_pi_locks(false);
    process.set_barriers(0);
    crate::process::exit::release_space(thread).await;
    drop(thread.set_space(loaded.space));
    control_group::memory::follow(process, true);
    thread.set_namespaces(prepared.namespaces);
    process.drop_program_keys();
    thread.leave_rings().await;
    thread.descriptors().close(process.pid, |close_on_exec| close_on_exec).await;
    crate::process::timers::clear(process, true);
    process.set_actions(prepared.actions);
    thread.set_alternate_stack(AlternateStack::default());
    thread.restartable.set(None);
    thread.with_float(FloatState::reset);
    if thread.work().contains(PendingWork::DISPATCHED) {
        thread.set_user_dispatch(None);
    }
    thread.set_name(&loaded.name);
    process.set_memory_users(loaded.identity.memory_users.clone());
    process.set_dumpable(loaded.identity.is_dumpable);
    let lost =
        if loaded.identity.is_secure { Thread::PERSONALITY_CLEARED } else { Thread::READ_IMPLIES_EXECUTE };
    thread.set_personality(thread.personality() & !lost);
    thread.set_credentials(loaded.identity.credentials);
    process.set_program(loaded.layout, Some(loaded.executable));
    process.set_executed();
    perf::executed(thread);
    thread.replace_context(loaded.context);
    protection_key::set_rights(thread.space().first_rights());
}
