//! `open` and its kin.

use alloc::sync::Arc;
use heddle_kernel_core::decimal::Decimal;
use heddle_kernel_core::fanotify::event;
use linux_raw_sys::general as linux;

use crate::call::Caller;
use crate::error::Errno;
use crate::fs::access::Access;
use crate::fs::fanotify::{self, OpenPermission};
use crate::fs::flags::{FileFlags, check_without};
use crate::fs::inode::{Contents, Creation, Inode, Opening};
use crate::fs::lease::{self, LeaseBreak};
use crate::fs::lookup::{Last, LookupFlags, LookupResult};
use crate::fs::tree::TreeNode;
use crate::fs::{Dentry, File, FileType, OpenFile, Path, StatusFlags, access, landlock, notify, protection};
use crate::memory::fallible;
use crate::process::Thread;
use crate::process::executable::{again_if_stale, as_error};
use crate::syscall::fs::storage::truncate_file;
use crate::syscall::fs::{View, field, get_bytes, get_path};
use crate::syscall::{Call, SyscallResult, SyscallState, pending};
use crate::wait::node::WaitKind;
use crate::wait::queue::Events;

/// The arguments of an open, decoded.
#[derive(Clone, Copy)]
struct OpenRequest {
    flags: u32,
    mode: u32,
    how: LookupFlags,
}

/// The flags that become the open file's.
const STATUS: u32 = linux::O_ACCMODE
    | linux::O_APPEND
    | linux::O_NONBLOCK
    | linux::O_PATH
    | linux::O_DIRECT
    | linux::O_NOATIME
    | linux::O_DIRECTORY
    | linux::O_DSYNC
    | linux::O_SYNC
    | linux::O_NOFOLLOW
    | TEMPORARY
    | linux::FASYNC;
/// `O_TMPFILE` contains `O_DIRECTORY`.
const TEMPORARY: u32 = linux::O_TMPFILE & !linux::O_DIRECTORY;
const KNOWN: u32 = STATUS
    | linux::O_CREAT
    | linux::O_EXCL
    | linux::O_NOCTTY
    | linux::O_TRUNC
    | linux::O_CLOEXEC
    | linux::O_LARGEFILE;

/// The flags that openat2(2) allows beside `O_PATH`; open(2) ignores the others there.
const BESIDE_PATH: u32 = linux::O_PATH | linux::O_DIRECTORY | linux::O_NOFOLLOW | linux::O_CLOEXEC;

/// open(2).
pub fn open(call: &mut Call<'_>) -> SyscallResult {
    check_flags(call.uint(1))?;
    let path = get_path(call, 0)?;
    let request = OpenRequest { flags: call.uint(1) & KNOWN, mode: call.uint(2), how: LookupFlags::empty() };
    start(call, linux::AT_FDCWD, &path, &request)
}

/// No call makes a directory and opens it. A file without a name is made in a directory, to be written.
fn check_flags(flags: u32) -> Result<(), Errno> {
    const BOTH: u32 = linux::O_CREAT | linux::O_DIRECTORY;
    let is_possible = match flags & (BOTH | TEMPORARY) {
        linux::O_TMPFILE => flags & linux::O_ACCMODE != linux::O_RDONLY,
        bits => bits & TEMPORARY == 0 && bits != BOTH,
    };
    if is_possible || flags & linux::O_PATH != 0 { Ok(()) } else { Err(Errno::EINVAL) }
}

/// creat(2).
pub fn creat(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 0)?;
    let flags = linux::O_CREAT | linux::O_WRONLY | linux::O_TRUNC;
    start(call, linux::AT_FDCWD, &path, &OpenRequest { flags, mode: call.uint(1), how: LookupFlags::empty() })
}

/// openat(2).
pub fn openat(call: &mut Call<'_>) -> SyscallResult {
    check_flags(call.uint(2))?;
    let path = get_path(call, 1)?;
    let request = OpenRequest { flags: call.uint(2) & KNOWN, mode: call.uint(3), how: LookupFlags::empty() };
    start(call, call.int(0), &path, &request)
}

/// openat2(2).
pub fn openat2(call: &mut Call<'_>) -> SyscallResult {
    const SIZE: usize = size_of::<linux::open_how>();
    let size = call.word(3);
    if size < SIZE {
        return Err(Errno::EINVAL.into());
    }
    if size > 4096 {
        return Err(Errno::E2BIG.into());
    }
    let bytes = get_bytes(call, call.word(2), size)?;
    if bytes[SIZE..].iter().any(|&byte| byte != 0) {
        return Err(Errno::E2BIG.into());
    }
    let (flags, mode) = (field!(&bytes, linux::open_how, flags), field!(&bytes, linux::open_how, mode));
    let resolve: u64 = field!(&bytes, linux::open_how, resolve);
    let flags = u32::try_from(flags).ok().filter(|flags| flags & !KNOWN == 0).ok_or(Errno::EINVAL)?;
    check_flags(flags)?;
    if flags & linux::O_PATH != 0 && flags & !BESIDE_PATH != 0 {
        return Err(Errno::EINVAL.into());
    }
    let creates = flags & (linux::O_CREAT | TEMPORARY) != 0;
    if mode & !0o7777 != 0 || mode != 0 && !creates {
        return Err(Errno::EINVAL.into());
    }
    let mut how = LookupFlags::empty();
    let mut rest = u32::try_from(resolve).map_err(|_| Errno::EINVAL)?;
    for (bit, flag) in [
        (linux::RESOLVE_NO_XDEV, LookupFlags::ONE_MOUNT),
        (linux::RESOLVE_NO_MAGICLINKS, LookupFlags::NO_MAGIC_LINKS),
        (linux::RESOLVE_NO_SYMLINKS, LookupFlags::NO_SYMLINKS),
        (linux::RESOLVE_BENEATH, LookupFlags::BENEATH),
        (linux::RESOLVE_IN_ROOT, LookupFlags::IN_ROOT),
        (linux::RESOLVE_CACHED, LookupFlags::empty()),
    ] {
        if rest & bit != 0 {
            how |= flag;
            rest &= !bit;
        }
    }
    if rest != 0 || how.contains(LookupFlags::BENEATH | LookupFlags::IN_ROOT) {
        return Err(Errno::EINVAL.into());
    }
    let path = get_path(call, 1)?;
    start(call, call.int(0), &path, &OpenRequest { flags, mode: mode as u32, how })
}

fn start(call: &mut Call<'_>, descriptor: i32, path: &[u8], request: &OpenRequest) -> SyscallResult {
    let thread = call.thread;
    let table = thread.descriptors();
    let limit = thread.process.descriptor_limit();
    // Before anything is created or truncated.
    table.make_room(limit)?;
    let opened = open_path(thread, descriptor, path, request)?;
    add_opened(call, opened, request)
}

/// Opens a place that was found by a handle, as open(2) would by its path.
pub(super) fn open_place(call: &Call<'_>, place: Path, flags: u32) -> SyscallResult {
    let thread = call.thread;
    let request = OpenRequest { flags: flags & KNOWN, mode: 0, how: LookupFlags::empty() };
    check_flags(request.flags)?;
    thread.descriptors().make_room(thread.process.descriptor_limit())?;
    if request.flags & linux::O_PATH != 0 {
        return add_opened(call, open_place_only(place, request.flags)?.into(), &request);
    }
    let view = View::at(thread, linux::AT_FDCWD)?;
    if request.flags & TEMPORARY != 0 {
        let opened = open_temporary(&view, thread, place, &request)?;
        return add_opened(call, opened, &request);
    }
    if request.flags & linux::O_CREAT != 0 {
        if request.flags & linux::O_EXCL != 0 {
            return Err(Errno::EEXIST.into());
        }
        if place.entry.node.kind() == FileType::Directory {
            return Err(Errno::EISDIR.into());
        }
    }
    let opened = open_existing(&view, thread, place, request.flags, false)?;
    add_opened(call, opened, &request)
}

/// Gives a file that was opened a descriptor in the room that was made, once nothing is in the way of the opening.
fn add_opened(call: &Call<'_>, opened: OpenedFile, request: &OpenRequest) -> SyscallResult {
    let thread = call.thread;
    let OpenedFile { open, is_uncut } = opened;
    if fanotify::is_asked()
        && let Some(permission) = OpenPermission::ask(&open, event::OPEN_PERM)?
    {
        let (thread, request) = (thread.clone(), *request);
        return pending(async move {
            permission.wait(&thread).await?;
            finish(add_permitted(&thread, OpenedFile { open, is_uncut }, &request)).await
        });
    }
    add_permitted(thread, OpenedFile { open, is_uncut }, request)
}

fn add_permitted(thread: &Caller, opened: OpenedFile, request: &OpenRequest) -> SyscallResult {
    let OpenedFile { open, is_uncut } = opened;
    let table = thread.descriptors();
    let limit = thread.process.descriptor_limit();
    let close_on_exec = request.flags & linux::O_CLOEXEC != 0;
    if let Some(leases) = LeaseBreak::find(&open) {
        let thread = thread.clone();
        return pending(async move {
            leases.wait(&thread).await?;
            let descriptor = table.add_in_room(open.clone(), 0, limit, close_on_exec)? as usize;
            open.report_opening();
            if is_uncut {
                return finish(truncate_file(&thread, &open, 0, descriptor)).await;
            }
            Ok(descriptor)
        });
    }
    if is_uncut {
        // The leases in the way have gone meanwhile.
        cut(&open)?;
    }
    if open.file.is_opened(&open, None)? {
        let descriptor = table.add_in_room(open.clone(), 0, limit, close_on_exec)? as usize;
        open.report_opening();
        let is_cut = request.flags & linux::O_TRUNC != 0 && open.kind() == FileType::Regular;
        if !is_cut || open.file.size() == Some(0) && open.file.clone().mapped_source().is_none() {
            return Ok(descriptor.into());
        }
        return truncate_file(thread, &open, 0, descriptor);
    }
    let thread = thread.clone();
    pending(async move {
        let opened = |watch: &_| Ok(open.file.is_opened(&open, Some(watch))?.then_some(()));
        thread.wait_until(WaitKind::Interruptible, opened).await?;
        let descriptor = table.add_in_room(open.clone(), 0, limit, close_on_exec)? as usize;
        open.report_opening();
        Ok(descriptor)
    })
}

/// The end of a call that goes on as another.
pub(super) async fn finish(result: SyscallResult) -> Result<usize, Errno> {
    match result {
        Ok(SyscallState::Done(value)) => Ok(value),
        Ok(SyscallState::Pending(future)) => future.await,
        Ok(SyscallState::Yield) => Ok(0),
        Err(halt) => Err(as_error(halt)),
    }
}

/// A file that was opened.
struct OpenedFile {
    open: Arc<OpenFile>,
    /// It is to be cut by `O_TRUNC` once no lease is in the way.
    is_uncut: bool,
}

impl From<Arc<OpenFile>> for OpenedFile {
    fn from(open: Arc<OpenFile>) -> Self {
        Self { open, is_uncut: false }
    }
}

/// Begins the truncation by `O_TRUNC`; the rest of a long one is done before the call ends.
fn cut(open: &OpenFile) -> Result<(), Errno> {
    let _is_done = open.file.truncate(0)?;
    open.report(linux::IN_MODIFY);
    Ok(())
}

/// Makes a file to write a core dump to, as the thread itself would.
///
/// # Errors
/// As open(2).
pub fn open_dump(thread: &Arc<Thread>, path: &[u8]) -> Result<Arc<OpenFile>, Errno> {
    const PERMISSIONS: u32 = 0o600;
    let flags = linux::O_CREAT | linux::O_EXCL | linux::O_RDWR | linux::O_NOFOLLOW;
    open_path(
        thread,
        linux::AT_FDCWD,
        path,
        &OpenRequest { flags, mode: PERMISSIONS, how: LookupFlags::empty() },
    )
    .map(|opened| opened.open)
}

/// Opens a file for the kernel to append to, as the thread itself would.
///
/// # Errors
/// As open(2).
pub fn open_to_append(thread: &Arc<Thread>, path: &[u8]) -> Result<Arc<OpenFile>, Errno> {
    let flags = linux::O_WRONLY | linux::O_APPEND | linux::O_LARGEFILE;
    let request = OpenRequest { flags, mode: 0, how: LookupFlags::empty() };
    open_path(thread, linux::AT_FDCWD, path, &request).map(|opened| opened.open)
}

/// Opens a file by its path.
fn open_path(
    thread: &Arc<Thread>,
    descriptor: i32,
    path: &[u8],
    request: &OpenRequest,
) -> Result<OpenedFile, Errno> {
    again_if_stale(|| try_open_path(thread, descriptor, path, request))
}

fn try_open_path(
    thread: &Arc<Thread>,
    descriptor: i32,
    path: &[u8],
    request: &OpenRequest,
) -> Result<OpenedFile, Errno> {
    let flags = request.flags;
    // With `RESOLVE_IN_ROOT` a lookup starts at the given directory, also for an absolute path.
    let view = if request.how.contains(LookupFlags::IN_ROOT) {
        View::at(thread, descriptor)?
    } else {
        View::of(thread, descriptor, path)?
    };
    let mut how = request.how;
    let exclusive = linux::O_CREAT | linux::O_EXCL;
    if flags & linux::O_NOFOLLOW == 0 && flags & exclusive != exclusive {
        how |= LookupFlags::FOLLOW;
    }
    if flags & linux::O_PATH != 0 {
        return Ok(open_place_only(view.walk(thread, path, how)?.existing()?, flags)?.into());
    }
    if flags & TEMPORARY != 0 {
        return open_temporary(&view, thread, view.walk(thread, path, how)?.existing()?, request);
    }
    let found = view.walk(thread, path, how)?;
    if flags & linux::O_CREAT == 0 {
        return open_existing(&view, thread, found.existing()?, flags, false);
    }
    if found.trailing_slash && (found.place.is_none() || found.last != Last::Dot) {
        return Err(Errno::EISDIR);
    }
    if flags & linux::O_DIRECTORY != 0 && found.place.is_none() {
        return Err(Errno::EINVAL);
    }
    create_or_open(&view, thread, found, request)
}

fn create_or_open(
    view: &View,
    thread: &Arc<Thread>,
    found: LookupResult,
    request: &OpenRequest,
) -> Result<OpenedFile, Errno> {
    let flags = request.flags;
    if let Some(place) = found.place {
        if flags & linux::O_EXCL != 0 {
            return Err(Errno::EEXIST);
        }
        if place.entry.node.kind() == FileType::Directory {
            return Err(Errno::EISDIR);
        }
        protection::check_reuse(&place, &view.credentials)?;
        return open_existing(view, thread, place, flags, false);
    }
    landlock::check_make(&view.credentials, &found.directory, &Contents::Regular)?;
    access::check_create(&found.directory, &view.credentials)?;
    let creation = Creation {
        contents: Contents::Regular,
        permissions: permissions_in(thread, &found.directory, request.mode & 0o7777),
        credentials: &view.credentials,
    };
    let Last::Name(name) = &found.last else { return Err(Errno::EISDIR) };
    let directory = &found.directory.entry;
    match directory.node.create(directory, name, &creation) {
        Ok(entry) => {
            notify::report_name(directory, name, FileType::Regular, linux::IN_CREATE);
            let place = Path { mount: found.directory.mount, entry: entry.clone() };
            open_existing(view, thread, place, flags, true).inspect_err(|&error| {
                // Without memory to open it, there is to be no new file. One that may be made and not opened stays.
                if error != Errno::EACCES && directory.node.unlink(&entry).is_ok() {
                    notify::report_name(directory, name, FileType::Regular, linux::IN_DELETE);
                }
            })
        }
        // Somebody else was faster.
        Err(Errno::EEXIST) if flags & linux::O_EXCL == 0 => {
            let entry = directory.node.lookup(directory, name)?;
            open_existing(view, thread, Path { mount: found.directory.mount, entry }, flags, false)
        }
        Err(error) => Err(error),
    }
}

/// The permissions of a file that a thread makes in a directory. A default list there takes the place of the umask.
pub fn permissions_in(thread: &Thread, directory: &Path, mode: u32) -> u32 {
    if directory.entry.node.has_default_acl() { mode } else { mode & !thread.directories().umask() }
}

/// The permissions that reading and writing by an access mode need.
const fn opened_for(flags: u32) -> Access {
    match flags & linux::O_ACCMODE {
        linux::O_RDONLY => Access::READ,
        linux::O_WRONLY => Access::WRITE,
        _ => Access::READ.union(Access::WRITE),
    }
}

/// The permissions that an open needs.
fn wanted(flags: u32) -> Access {
    let mut access = opened_for(flags);
    if flags & linux::O_TRUNC != 0 {
        access |= Access::WRITE;
    }
    access
}

fn open_existing(
    view: &View,
    thread: &Arc<Thread>,
    place: Path,
    flags: u32,
    created: bool,
) -> Result<OpenedFile, Errno> {
    let node = &place.entry.node;
    let kind = node.kind();
    if kind == FileType::Symlink {
        return Err(Errno::ELOOP);
    }
    if flags & linux::O_DIRECTORY != 0 && kind != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    let access = wanted(flags);
    if kind == FileType::Directory && access.contains(Access::WRITE) {
        return Err(Errno::EISDIR);
    }
    // Whoever creates a file may open it as asked, whatever its mode says.
    if !created {
        access::check_place(&place, &view.credentials, access)?;
    }
    if kind == FileType::Directory && flags & linux::O_DIRECT != 0 {
        return Err(Errno::EINVAL);
    }
    let is_for_more = flags & linux::O_TRUNC == 0 && flags & linux::O_APPEND != 0;
    if access.contains(Access::WRITE) && !is_for_more {
        check_without(&**node, FileFlags::APPEND)?;
    }
    if flags & linux::O_NOATIME != 0 && !access::owns(&node.access(), &view.credentials) {
        return Err(Errno::EPERM);
    }
    if matches!(kind, FileType::Character | FileType::Block) && place.mount.flags() & linux::MS_NODEV != 0 {
        return Err(Errno::EACCES);
    }
    landlock::check_open(&view.credentials, &place, opened_for(flags))?;
    let status = StatusFlags::from_bits_retain(flags & STATUS) | StatusFlags::LARGEFILE;
    let opening = Opening { flags: status, place: &place, thread: Some(thread), flags_of_call: flags };
    let file = node.clone().open(&opening)?;
    let truncates = flags & linux::O_TRUNC != 0 && kind == FileType::Regular && !created;
    let open = fallible::try_arc(OpenFile::at(file, status, place))?;
    if open.came_too_late() {
        return Err(Errno::EROFS);
    }
    let is_uncut = truncates && (!lease::is_idle() || fanotify::is_asked());
    if truncates && !is_uncut {
        cut(&open)?;
    }
    Ok(OpenedFile { open, is_uncut })
}

/// The object of an `O_PATH` descriptor: nothing can be done with it.
struct PathOnly;

impl File for PathOnly {
    fn poll(&self, _: &OpenFile, _: Option<&crate::wait::queue::Watch>, _: Events) -> Result<Events, Errno> {
        Err(Errno::EBADF)
    }
}

/// Opens a place for `O_PATH`: it is named and nothing more.
///
/// # Errors
/// `ENOTDIR`, `ENOMEM`.
pub(super) fn open_place_only(place: Path, flags: u32) -> Result<Arc<OpenFile>, Errno> {
    if flags & linux::O_DIRECTORY != 0 && place.entry.node.kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    let kept = linux::O_PATH | linux::O_DIRECTORY | linux::O_NOFOLLOW;
    let file = fallible::try_arc(PathOnly)?;
    fallible::try_arc(OpenFile::at(file, StatusFlags::from_bits_retain(flags & kept), place))
}

fn open_temporary(
    view: &View,
    thread: &Arc<Thread>,
    directory: Path,
    request: &OpenRequest,
) -> Result<OpenedFile, Errno> {
    if request.flags & linux::O_DIRECTORY == 0 || !wanted(request.flags).contains(Access::WRITE) {
        return Err(Errno::EINVAL);
    }
    if directory.entry.node.kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    access::check_create(&directory, &view.credentials)?;
    let permissions = permissions_in(thread, &directory, request.mode & 0o7777);
    let parent: Arc<dyn Inode> = directory.entry.node.clone();
    let node = TreeNode::temporary_in(&parent, permissions, &view.credentials)?;
    // A file without a name is shown with its number in `/proc`.
    let name = Decimal::marked(b'#', Inode::metadata(&*node).inode);
    let entry = Dentry::new(node, Some(directory.entry.clone()), name.as_bytes())?;
    entry.mark_removed();
    let place = Path { mount: directory.mount, entry };
    let opened = open_existing(view, thread, place, request.flags & !linux::O_DIRECTORY, true)?;
    // `F_GETFL` tells `O_TMPFILE`, of which that is a part.
    opened.open.set_flags(opened.open.flags() | StatusFlags::DIRECTORY);
    Ok(opened)
}
