//! execve(2), execveat(2).

use alloc::vec::Vec;
use heddle_kernel_core::exec::Strings;
use linux_raw_sys::general as linux;

use crate::call::asynchronous;
use crate::error::{Errno, TryResult};
use crate::fs::lookup::LookupFlags;
use crate::memory::Space;
use crate::process::exec;
use crate::process::exec::ExecRequest;
use crate::sched::Budget;
use crate::syscall::{Call, SyscallResult, pending, user};

/// execve(2).
pub fn execve(call: &mut Call<'_>) -> SyscallResult {
    let path = read_path(call, call.word(0))?;
    run(call, linux::AT_FDCWD, path, LookupFlags::FOLLOW, call.word(1), call.word(2))
}

/// execveat(2).
pub fn execveat(call: &mut Call<'_>) -> SyscallResult {
    let (directory, flags) = (call.int(0), call.uint(4));
    if flags & !(linux::AT_EMPTY_PATH | linux::AT_SYMLINK_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let path = read_path(call, call.word(1))?;
    let mut how = LookupFlags::empty();
    how.set(LookupFlags::EMPTY, flags & linux::AT_EMPTY_PATH != 0);
    how.set(LookupFlags::FOLLOW, flags & linux::AT_SYMLINK_NOFOLLOW == 0);
    run(call, directory, path, how, call.word(2), call.word(3))
}

fn read_path(call: &Call<'_>, address: usize) -> TryResult<Vec<u8>> {
    let mut path = Vec::new();
    if !call.thread.space().read_cstr(address, linux::PATH_MAX as usize, &mut path)? {
        return Err(Errno::ENAMETOOLONG.into());
    }
    Ok(path)
}

/// Reads a list of strings that ends with a null pointer. A null pointer in place of the list is an empty one.
fn read_strings(space: &Space, address: usize) -> TryResult<Strings> {
    let mut strings = Strings::new();
    let mut string = Vec::new();
    let mut at = address;
    if address == 0 {
        return Ok(strings);
    }
    loop {
        let [pointer] = user::read_words(space, at)?;
        if pointer == 0 {
            break;
        }
        string.clear();
        if !space.read_cstr(pointer as usize, Strings::STRING_BYTES_MAX, &mut string)? {
            return Err(Errno::E2BIG.into());
        }
        strings.push(&string).map_err(Errno::from)?;
        at = at.wrapping_add(size_of::<u64>());
    }
    Ok(strings)
}

fn run(
    call: &Call<'_>,
    directory: i32,
    path: Vec<u8>,
    how: LookupFlags,
    arguments: usize,
    environment: usize,
) -> SyscallResult {
    let space = call.thread.space();
    let mut arguments = read_strings(&space, arguments)?;
    let environment = read_strings(&space, environment)?;
    if arguments.is_empty() {
        // As Linux since 5.18: a program always finds a name for itself.
        arguments.push(b"").map_err(Errno::from)?;
    }
    let thread = call.thread.clone();
    pending(async move {
        let loaded =
            exec::load(&thread, ExecRequest { directory, path, how, arguments, environment }).await?;
        // To load a program is one long piece of work, to leave the old one the next.
        Budget::exhausted().look().await;
        let prepared = exec::prepare(&thread)?;
        let before = thread.tid();
        exec::become_only_thread(&thread).await?;
        asynchronous::end_all(&thread.process).await;
        exec::own_descriptors(&thread)?;
        exec::commit(&thread, loaded, prepared).await;
        crate::signal::trace::executed(&thread, before);
        Ok(0)
    })
}
