//! Mounting step by step: `fsopen`, `fspick`, `fsconfig`, `fsmount`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::fs::mount::{MountNamespace, lock};
use crate::fs::{File, IoBuffer, Mount, OpenFile, StatusFlags, downcast, landlock};
use crate::memory::fallible;
use crate::process::Thread;
use crate::sync::SpinLock;
use crate::syscall::fs::mount::detached::{add_tree, flags_of};
use crate::syscall::fs::mount::{check_file_system, check_permission, own_mounts, settings};
use crate::syscall::fs::{add, find, get_path, get_string};
use crate::syscall::{Call, SyscallResult};

/// The commands of fsconfig(2).
mod command {
    pub const SET_FLAG: u32 = 0;
    pub const SET_STRING: u32 = 1;
    pub const SET_BINARY: u32 = 2;
    pub const SET_PATH: u32 = 3;
    pub const SET_PATH_EMPTY: u32 = 4;
    pub const SET_FD: u32 = 5;
    pub const CREATE: u32 = 6;
    pub const RECONFIGURE: u32 = 7;
}

/// The longest name or value of a parameter.
const STRING_LIMIT: usize = 256;

/// Where a context is in its life.
enum Phase {
    /// Parameters are being set.
    Parameters,
    /// There is a mount to be taken.
    Made(Arc<Mount>),
    /// For a file system that is mounted.
    Reconfigure(Arc<Mount>),
    /// The mount has been taken, or making it has failed.
    Done,
}

struct State {
    phase: Phase,
    source: Option<Vec<u8>>,
    options: Vec<u8>,
    flags: u32,
}

/// The object of a descriptor of fsopen(2).
struct Context {
    kind: Vec<u8>,
    state: SpinLock<State>,
}

impl File for Context {
    fn is_pollable(&self) -> bool {
        false
    }

    fn read(&self, _: &OpenFile, _: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        // No messages are kept.
        Err(Errno::ENODATA.into())
    }

    fn name(&self) -> &'static str {
        "anon_inode:[fscontext]"
    }
}

fn add_context(
    call: &Call<'_>,
    kind: Vec<u8>,
    phase: Phase,
    flags: u32,
    close_on_exec: bool,
) -> SyscallResult {
    let state = SpinLock::new(State { phase, source: None, options: Vec::new(), flags });
    let file = fallible::try_arc(Context { kind, state })?;
    add(call, fallible::try_arc(OpenFile::new(file, StatusFlags::RDWR))?, close_on_exec)
}

/// fsopen(2).
pub fn fsopen(call: &mut Call<'_>) -> SyscallResult {
    check_permission(call)?;
    let flags = call.uint(1);
    if flags & !linux::FSOPEN_CLOEXEC != 0 {
        return Err(Errno::EINVAL.into());
    }
    let kind = get_string(call, call.word(0), 4096, Errno::EINVAL)?;
    if !settings::is_known(&kind) {
        return Err(Errno::ENODEV.into());
    }
    add_context(call, kind, Phase::Parameters, 0, flags & linux::FSOPEN_CLOEXEC != 0)
}

/// fspick(2).
pub fn fspick(call: &mut Call<'_>) -> SyscallResult {
    const KNOWN: u32 = linux::FSPICK_CLOEXEC
        | linux::FSPICK_SYMLINK_NOFOLLOW
        | linux::FSPICK_NO_AUTOMOUNT
        | linux::FSPICK_EMPTY_PATH;
    check_permission(call)?;
    let flags = call.uint(2);
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    let mut how = 0;
    if flags & linux::FSPICK_SYMLINK_NOFOLLOW != 0 {
        how |= linux::AT_SYMLINK_NOFOLLOW;
    }
    if flags & linux::FSPICK_EMPTY_PATH != 0 {
        how |= linux::AT_EMPTY_PATH;
    }
    let path = get_path(call, 1)?;
    let place = find(call, call.int(0), &path, how)?;
    if !place.is_mount_root() {
        return Err(Errno::EINVAL.into());
    }
    let before = place.mount.file_system.flags();
    let close_on_exec = flags & linux::FSPICK_CLOEXEC != 0;
    add_context(call, Vec::new(), Phase::Reconfigure(place.mount), before, close_on_exec)
}

/// The flag of the file system that a parameter sets or clears.
fn common_flag(name: &[u8]) -> Option<(u32, bool)> {
    Some(match name {
        b"ro" => (linux::MS_RDONLY, true),
        b"rw" => (linux::MS_RDONLY, false),
        b"sync" => (linux::MS_SYNCHRONOUS, true),
        b"async" => (linux::MS_SYNCHRONOUS, false),
        b"dirsync" => (linux::MS_DIRSYNC, true),
        b"lazytime" => (linux::MS_LAZYTIME, true),
        b"nolazytime" => (linux::MS_LAZYTIME, false),
        _ => return None,
    })
}

impl State {
    fn set(&mut self, kind: &[u8], name: &[u8], value: Option<Vec<u8>>) -> Result<(), Errno> {
        if !matches!(self.phase, Phase::Parameters | Phase::Reconfigure(_)) {
            return Err(Errno::EBUSY);
        }
        if let Some((flag, is_set)) = common_flag(name) {
            self.flags = if is_set { self.flags | flag } else { self.flags & !flag };
            return Ok(());
        }
        if name == b"source" {
            if self.source.is_some() || value.is_none() {
                return Err(Errno::EINVAL);
            }
            self.source = value;
            return Ok(());
        }
        let before = self.options.len();
        settings::append(&mut self.options, name, value.as_deref())?;
        if let Err(error) = settings::check(kind, &self.options) {
            self.options.truncate(before);
            return Err(error);
        }
        Ok(())
    }
}

impl Context {
    fn create(&self, thread: &Thread) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Parameters) {
            return Err(Errno::EBUSY);
        }
        state.phase = Phase::Done;
        let (source, options, flags) =
            (state.source.take(), core::mem::take(&mut state.options), state.flags);
        drop(state);
        let source = source.unwrap_or_default();
        let made = settings::make(thread, &self.kind, &source, &options, flags)?;
        self.state.lock().phase = Phase::Made(made);
        Ok(())
    }

    fn reconfigure(&self, call: &Call<'_>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let Phase::Reconfigure(mount) = &state.phase else { return Err(Errno::EBUSY) };
        let (mount, flags) = (mount.clone(), state.flags);
        let options = core::mem::take(&mut state.options);
        drop(state);
        check_file_system(call, &mount.file_system)?;
        landlock::check_mounts(&call.thread.credentials())?;
        settings::change(&mount, &options, &call.thread.credentials())?;
        mount.file_system.change_flags(&lock(), flags)
    }
}

/// fsconfig(2).
pub fn fsconfig(call: &mut Call<'_>) -> SyscallResult {
    let (command, name, value, extra) = (call.uint(1), call.word(2), call.word(3), call.int(4));
    if call.int(0) < 0 {
        return Err(Errno::EINVAL.into());
    }
    let is_valid = match command {
        command::SET_FLAG => name != 0 && value == 0 && extra == 0,
        command::SET_STRING => name != 0 && value != 0 && extra == 0,
        command::SET_BINARY => name != 0 && value != 0 && (1..=1 << 20).contains(&extra),
        command::SET_PATH | command::SET_PATH_EMPTY => {
            name != 0 && value != 0 && (extra >= 0 || extra == linux::AT_FDCWD)
        }
        command::SET_FD => name != 0 && value == 0 && extra >= 0,
        command::CREATE | command::RECONFIGURE => name == 0 && value == 0 && extra == 0,
        _ => return Err(Errno::EOPNOTSUPP.into()),
    };
    if !is_valid {
        return Err(Errno::EINVAL.into());
    }
    let open = call.thread.descriptors().get(call.int(0))?;
    let context = downcast::<Context>(&open).ok_or(Errno::EINVAL)?;
    let name = match name {
        0 => Vec::new(),
        address => get_string(call, address, STRING_LIMIT, Errno::EINVAL)?,
    };
    match command {
        command::SET_FLAG => context.state.lock().set(&context.kind, &name, None)?,
        command::SET_STRING => {
            let value = get_string(call, value, STRING_LIMIT, Errno::EINVAL)?;
            context.state.lock().set(&context.kind, &name, Some(value))?;
        }
        command::CREATE => {
            check_permission(call)?;
            context.create(call.thread)?;
        }
        command::RECONFIGURE => {
            check_permission(call)?;
            context.reconfigure(call)?;
        }
        // No file system that is here has a parameter of these kinds.
        _ => return Err(Errno::EINVAL.into()),
    }
    Ok(0.into())
}

/// fsmount(2).
pub fn fsmount(call: &mut Call<'_>) -> SyscallResult {
    let (flags, attributes) = (call.uint(1), call.uint(2));
    check_permission(call)?;
    if flags & !linux::FSMOUNT_CLOEXEC != 0 {
        return Err(Errno::EINVAL.into());
    }
    let own = flags_of(attributes).ok_or(Errno::EINVAL)?;
    let open = call.thread.descriptors().get(call.int(0))?;
    let context = downcast::<Context>(&open).ok_or(Errno::EINVAL)?;
    let mount = {
        let mut state = context.state.lock();
        match core::mem::replace(&mut state.phase, Phase::Done) {
            Phase::Made(mount) => mount,
            other => {
                let is_unused = matches!(other, Phase::Parameters);
                state.phase = other;
                return Err(if is_unused { Errno::EINVAL } else { Errno::EBUSY }.into());
            }
        }
    };
    let mount = Mount::of(mount.file_system.clone(), mount.root.clone(), &mount.source, own)?;
    let tree = MountNamespace::anonymous(&own_mounts(call), &mount)?;
    add_tree(call, tree, flags & linux::FSMOUNT_CLOEXEC != 0)
}
