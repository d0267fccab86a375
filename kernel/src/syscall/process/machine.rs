//! Calls of the machine's administrator: `setdomainname`, `syslog`, `reboot`, `sysfs`, `ustat`, `vhangup`, `iopl`.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as linux;

use crate::call::caller::Caller;
use crate::error::Errno;
use crate::fs::mount;
use crate::log;
use crate::process::host_name::HOST_NAME_BYTES;
use crate::syscall::{Call, SyscallResult, pending, put};
use crate::time::Deadline;
use crate::wait::node::WaitKind;

fn check_capability(call: &Call<'_>, capability: u32) -> Result<(), Errno> {
    if call.thread.credentials().is_capable(capability) { Ok(()) } else { Err(Errno::EPERM) }
}

/// setdomainname(2).
pub fn setdomainname(call: &mut Call<'_>) -> SyscallResult {
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
    names.set_domain_name(bytes);
    Ok(0.into())
}

/// The file systems, in the order in which `/proc/filesystems` lists them.
const FILE_SYSTEMS: [&str; 6] = ["proc", "tmpfs", "devtmpfs", "devpts", "mqueue", "pipefs"];

/// sysfs(2).
pub fn sysfs(call: &mut Call<'_>) -> SyscallResult {
    match call.int(0) {
        1 => {
            let name = crate::syscall::fs::get_string(call, call.word(1), 4096, Errno::ENAMETOOLONG)?;
            let index = FILE_SYSTEMS.iter().position(|known| known.as_bytes() == name.as_slice());
            Ok(index.ok_or(Errno::EINVAL)?.into())
        }
        2 => {
            let name = FILE_SYSTEMS.get(call.word(1)).ok_or(Errno::EINVAL)?;
            let mut bytes = [0; 16];
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            put(call, call.word(2), &bytes[..=name.len()])?;
            Ok(0.into())
        }
        3 => Ok(FILE_SYSTEMS.len().into()),
        _ => Err(Errno::EINVAL.into()),
    }
}

/// ustat(2).
pub fn ustat(call: &mut Call<'_>) -> SyscallResult {
    const BYTES: usize = 32;
    let device = u64::from(call.uint(0));
    let namespaces = call.thread.namespaces();
    let mounts = namespaces.mounts.set().list(&mount::lock(), 0)?;
    let found = mounts.iter().find(|mount| mount.root.node.device() == device);
    let statistics = found.ok_or(Errno::EINVAL)?.root.node.statistics();
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&(statistics.free as u32).to_ne_bytes());
    bytes[8..16].copy_from_slice(&statistics.free_nodes.to_ne_bytes());
    put(call, call.word(1), &bytes)?;
    Ok(0.into())
}

/// The commands of syslog(2).
mod action {
    pub const CLOSE: i32 = 0;
    pub const OPEN: i32 = 1;
    pub const READ: i32 = 2;
    pub const READ_ALL: i32 = 3;
    pub const READ_CLEAR: i32 = 4;
    pub const CLEAR: i32 = 5;
    pub const CONSOLE_OFF: i32 = 6;
    pub const CONSOLE_ON: i32 = 7;
    pub const CONSOLE_LEVEL: i32 = 8;
    pub const SIZE_UNREAD: i32 = 9;
    pub const SIZE_BUFFER: i32 = 10;
}

/// How long a reader of the log waits between two looks.
const LOOK_NS: u64 = 200_000_000;

/// syslog(2). The log of the host's side always has everything, so the commands about the console change nothing there.
pub fn syslog(call: &mut Call<'_>) -> SyscallResult {
    let (command, address, length) = (call.int(0), call.word(1), call.int(2));
    let who = call.thread.credentials();
    let is_open = matches!(command, action::READ_ALL | action::SIZE_BUFFER)
        && log::IS_RESTRICTED.load(Ordering::Relaxed) == 0;
    if !is_open && !who.is_capable(linux::CAP_SYSLOG) && !who.is_capable(linux::CAP_SYS_ADMIN) {
        return Err(Errno::EPERM.into());
    }
    let bad_buffer = address == 0 || length < 0;
    match command {
        action::CLOSE | action::OPEN | action::CONSOLE_OFF | action::CONSOLE_ON => Ok(0.into()),
        action::READ | action::READ_ALL | action::READ_CLEAR if bad_buffer => Err(Errno::EINVAL.into()),
        action::READ | action::READ_ALL | action::READ_CLEAR if length == 0 => Ok(0.into()),
        action::READ => read_log(call.thread.clone(), address, length as usize),
        action::READ_ALL | action::READ_CLEAR => {
            let text = copied(log::read_all, length as usize)?;
            put(call, address, &text)?;
            if command == action::READ_CLEAR {
                log::clear();
            }
            Ok(text.len().into())
        }
        action::CLEAR => {
            log::clear();
            Ok(0.into())
        }
        action::CONSOLE_LEVEL if !(1..=8).contains(&length) => Err(Errno::EINVAL.into()),
        action::CONSOLE_LEVEL => Ok(0.into()),
        action::SIZE_UNREAD => Ok(log::unread().into()),
        action::SIZE_BUFFER => Ok(log::BUFFER_BYTES.into()),
        _ => Err(Errno::EINVAL.into()),
    }
}

/// The bytes that `read` puts into a buffer of the wanted length.
fn copied(read: impl FnOnce(&mut [u8]) -> usize, length: usize) -> Result<Vec<u8>, Errno> {
    let mut buffer = crate::memory::fallible::try_filled(0, length.min(log::BUFFER_BYTES))?;
    let count = read(&mut buffer);
    buffer.truncate(count);
    Ok(buffer)
}

/// Waits until there is something that nobody has read, and takes it.
fn read_log(caller: Caller, address: usize, length: usize) -> SyscallResult {
    pending(async move {
        while log::unread() == 0 {
            let sleep = Deadline::after(Some(LOOK_NS)).sleep();
            caller.wait(WaitKind::Interruptible, sleep).await?;
        }
        let text = copied(log::read, length)?;
        caller.resolve(|space| space.write_bytes(address, &text)).await?;
        Ok(text.len())
    })
}

/// The numbers without which reboot(2) does nothing.
const MAGIC: u32 = 0xfee1_dead;
const MAGIC_SECOND: [u32; 4] = [672_274_793, 85_072_278, 369_367_448, 537_993_216];
/// The switch of Ctrl-Alt-Del: there is no such key here, so both settings come to nothing.
const CAD_ON: u32 = 0x89ab_cdef;
const CAD_OFF: u32 = 0;

/// reboot(2): the machine ends with its program, and not otherwise.
pub fn reboot(call: &mut Call<'_>) -> SyscallResult {
    check_capability(call, linux::CAP_SYS_BOOT)?;
    if call.uint(0) != MAGIC || !MAGIC_SECOND.contains(&call.uint(1)) {
        return Err(Errno::EINVAL.into());
    }
    match call.uint(2) {
        CAD_ON | CAD_OFF => Ok(0.into()),
        _ => Err(Errno::EINVAL.into()),
    }
}

/// vhangup(2): the session's terminal hangs up, if it has one.
pub fn vhangup(call: &mut Call<'_>) -> SyscallResult {
    check_capability(call, linux::CAP_SYS_TTY_CONFIG)?;
    if let Some(terminal) = call.thread.process.session().terminal() {
        terminal.hang_up();
    }
    Ok(0.into())
}

/// iopl(2): no program reaches a port.
pub fn iopl(call: &mut Call<'_>) -> SyscallResult {
    match call.uint(0) {
        0 => Ok(0.into()),
        1..=3 => Err(Errno::EPERM.into()),
        _ => Err(Errno::EINVAL.into()),
    }
}

/// ioperm(2): as [`iopl`].
pub fn ioperm(call: &mut Call<'_>) -> SyscallResult {
    const PORTS: usize = 65536;
    let (from, count) = (call.word(0), call.word(1));
    if count == 0 || from.checked_add(count).is_none_or(|end| end > PORTS) {
        return Err(Errno::EINVAL.into());
    }
    if call.int(2) != 0 { Err(Errno::EPERM.into()) } else { Ok(0.into()) }
}
