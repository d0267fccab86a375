//! Users, groups and capabilities: credentials(7).

use alloc::sync::Arc;

use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::memory::fallible;
use crate::process::user_task::UserTask;
use crate::process::{Capabilities, Credentials, Thread, executor, table};
use crate::syscall::{Call, SyscallResult, user};

use heddle_kernel_core::fallible::push_reserved;

/// "Leave it as it is" in the calls that set several ids.
const KEEP: u32 = u32::MAX;
const GROUPS_MAX: usize = 65_536;

fn id(value: u32) -> SyscallResult {
    Ok((value as usize).into())
}

/// getuid(2).
pub fn getuid(call: &mut Call<'_>) -> SyscallResult {
    let who = call.thread.credentials();
    id(who.shown_user(who.uid))
}

/// geteuid(2).
pub fn geteuid(call: &mut Call<'_>) -> SyscallResult {
    let who = call.thread.credentials();
    id(who.shown_user(who.euid))
}

/// getgid(2).
pub fn getgid(call: &mut Call<'_>) -> SyscallResult {
    let who = call.thread.credentials();
    id(who.shown_group(who.gid))
}

/// getegid(2).
pub fn getegid(call: &mut Call<'_>) -> SyscallResult {
    let who = call.thread.credentials();
    id(who.shown_group(who.egid))
}

/// Real, effective and saved id, of user or group.
#[derive(Clone, Copy)]
struct Ids {
    real: u32,
    effective: u32,
    saved: u32,
}

fn user_ids(credentials: &Credentials) -> Ids {
    Ids { real: credentials.uid, effective: credentials.euid, saved: credentials.suid }
}

fn group_ids(credentials: &Credentials) -> Ids {
    Ids { real: credentials.gid, effective: credentials.egid, saved: credentials.sgid }
}

/// Makes new credentials from the old ones and puts them in force.
pub(super) fn change(
    thread: &Arc<Thread>,
    edit: impl FnOnce(&mut Credentials) -> Result<(), Errno>,
) -> SyscallResult {
    let mut credentials = (*thread.credentials()).clone();
    let before = credentials.uid;
    edit(&mut credentials)?;
    let credentials = fallible::try_arc(credentials)?;
    if credentials.uid != before {
        // As in Linux, the limit holds for the next fork, not for the change.
        drop(thread.set_user_task(UserTask::enter(credentials.uid, u64::MAX)?));
    }
    thread.set_credentials(credentials);
    executor::user_changes(thread);
    Ok(0.into())
}

fn set_user_ids(thread: &Arc<Thread>, new: Ids) -> SyscallResult {
    change(thread, |credentials| {
        credentials.set_user_ids(new.real, new.effective, new.saved);
        Ok(())
    })
}

fn set_group_ids(thread: &Arc<Thread>, new: Ids) -> SyscallResult {
    change(thread, |credentials| {
        (credentials.gid, credentials.egid, credentials.sgid) = (new.real, new.effective, new.saved);
        credentials.fsgid = new.effective;
        Ok(())
    })
}

/// setuid(2) and setgid(2): everything for the privileged, else the effective id among the three.
fn set_one(old: Ids, new: u32, is_privileged: bool) -> Result<Ids, Errno> {
    if is_privileged {
        Ok(Ids { real: new, effective: new, saved: new })
    } else if new == old.real || new == old.saved {
        Ok(Ids { effective: new, ..old })
    } else {
        Err(Errno::EPERM)
    }
}

/// setreuid(2) and setregid(2).
fn set_two(old: Ids, real: u32, effective: u32, is_privileged: bool) -> Result<Ids, Errno> {
    let choose = |new: u32, old: u32| if new == KEEP { old } else { new };
    let new_real = choose(real, old.real);
    let new_effective = choose(effective, old.effective);
    let real_allowed = is_privileged || [old.real, old.effective].contains(&new_real);
    let effective_allowed = is_privileged || [old.real, old.effective, old.saved].contains(&new_effective);
    if !real_allowed || !effective_allowed {
        return Err(Errno::EPERM);
    }
    let follows = real != KEEP || effective != KEEP && new_effective != old.real;
    let saved = if follows { new_effective } else { old.saved };
    Ok(Ids { real: new_real, effective: new_effective, saved })
}

/// setresuid(2) and setresgid(2).
fn set_three(old: Ids, new: [u32; 3], is_privileged: bool) -> Result<Ids, Errno> {
    let current = [old.real, old.effective, old.saved];
    let is_allowed = |id: &u32| *id == KEEP || is_privileged || current.contains(id);
    if !new.iter().all(is_allowed) {
        return Err(Errno::EPERM);
    }
    let choose = |index: usize| if new[index] == KEEP { current[index] } else { new[index] };
    Ok(Ids { real: choose(0), effective: choose(1), saved: choose(2) })
}

/// The ids in a call's arguments as the first user namespace numbers them. [`KEEP`] stays what it is.
fn given<const N: usize>(
    call: &Call<'_>,
    find: impl Fn(u32) -> Result<u32, Errno>,
) -> Result<[u32; N], Errno> {
    let mut ids = [KEEP; N];
    for (index, id) in ids.iter_mut().enumerate() {
        let given = call.uint(index);
        if given != KEEP {
            *id = find(given)?;
        }
    }
    Ok(ids)
}

/// setuid(2).
pub fn setuid(call: &mut Call<'_>) -> SyscallResult {
    let old = call.thread.credentials();
    let new = set_one(user_ids(&old), old.user(call.uint(0))?, old.has_capability(linux::CAP_SETUID))?;
    set_user_ids(call.thread, new)
}

/// setgid(2).
pub fn setgid(call: &mut Call<'_>) -> SyscallResult {
    let old = call.thread.credentials();
    let new = set_one(group_ids(&old), old.group(call.uint(0))?, old.has_capability(linux::CAP_SETGID))?;
    set_group_ids(call.thread, new)
}

/// setreuid(2).
pub fn setreuid(call: &mut Call<'_>) -> SyscallResult {
    let old = call.thread.credentials();
    let [real, effective] = given(call, |id| old.user(id))?;
    let new = set_two(user_ids(&old), real, effective, old.has_capability(linux::CAP_SETUID))?;
    set_user_ids(call.thread, new)
}

/// setregid(2).
pub fn setregid(call: &mut Call<'_>) -> SyscallResult {
    let old = call.thread.credentials();
    let [real, effective] = given(call, |id| old.group(id))?;
    let new = set_two(group_ids(&old), real, effective, old.has_capability(linux::CAP_SETGID))?;
    set_group_ids(call.thread, new)
}

/// setresuid(2).
pub fn setresuid(call: &mut Call<'_>) -> SyscallResult {
    let old = call.thread.credentials();
    let ids = given(call, |id| old.user(id))?;
    let new = set_three(user_ids(&old), ids, old.has_capability(linux::CAP_SETUID))?;
    set_user_ids(call.thread, new)
}

/// setresgid(2).
pub fn setresgid(call: &mut Call<'_>) -> SyscallResult {
    let old = call.thread.credentials();
    let ids = given(call, |id| old.group(id))?;
    let new = set_three(group_ids(&old), ids, old.has_capability(linux::CAP_SETGID))?;
    set_group_ids(call.thread, new)
}

fn store_three(call: &Call<'_>, ids: Ids, shown: impl Fn(u32) -> u32) -> SyscallResult {
    let space = call.thread.space();
    for (index, value) in [ids.real, ids.effective, ids.saved].into_iter().enumerate() {
        user::write_int(&space, call.word(index), shown(value))?;
    }
    Ok(0.into())
}

/// getresuid(2).
pub fn getresuid(call: &mut Call<'_>) -> SyscallResult {
    let who = call.thread.credentials();
    store_three(call, user_ids(&who), |id| who.shown_user(id))
}

/// getresgid(2).
pub fn getresgid(call: &mut Call<'_>) -> SyscallResult {
    let who = call.thread.credentials();
    store_three(call, group_ids(&who), |id| who.shown_group(id))
}

/// setfsuid(2): returns the id from before, whatever happens.
pub fn setfsuid(call: &mut Call<'_>) -> SyscallResult {
    let old = call.thread.credentials();
    if let Ok(new) = old.user(call.uint(0))
        && ([old.uid, old.euid, old.suid, old.fsuid].contains(&new) || old.has_capability(linux::CAP_SETUID))
    {
        change(call.thread, |credentials| {
            credentials.set_file_user_id(new);
            Ok(())
        })?;
    }
    id(old.shown_user(old.fsuid))
}

/// setfsgid(2): returns the id from before, whatever happens.
pub fn setfsgid(call: &mut Call<'_>) -> SyscallResult {
    let old = call.thread.credentials();
    if let Ok(new) = old.group(call.uint(0))
        && ([old.gid, old.egid, old.sgid, old.fsgid].contains(&new) || old.has_capability(linux::CAP_SETGID))
    {
        change(call.thread, |credentials| {
            credentials.fsgid = new;
            Ok(())
        })?;
    }
    id(old.shown_group(old.fsgid))
}

/// getgroups(2).
pub fn getgroups(call: &mut Call<'_>) -> SyscallResult {
    let credentials = call.thread.credentials();
    let groups = credentials.supplementary_groups();
    let size = usize::try_from(call.int(0)).map_err(|_| Errno::EINVAL)?;
    if size != 0 {
        if size < groups.len() {
            return Err(Errno::EINVAL.into());
        }
        let space = call.thread.space();
        for (index, group) in groups.iter().enumerate() {
            user::write_int(&space, call.word(1).wrapping_add(index * 4), credentials.shown_group(*group))?;
        }
    }
    Ok(groups.len().into())
}

/// setgroups(2).
pub fn setgroups(call: &mut Call<'_>) -> SyscallResult {
    let who = call.thread.credentials();
    let may_set = who.users.as_ref().is_none_or(|users| users.may_set_groups());
    if !may_set || !who.has_capability(linux::CAP_SETGID) {
        return Err(Errno::EPERM.into());
    }
    let count = call.word(0);
    if count > GROUPS_MAX {
        return Err(Errno::EINVAL.into());
    }
    let space = call.thread.space();
    let mut groups = fallible::try_with_capacity(count)?;
    for index in 0..count {
        let group = user::read_int(&space, call.word(1).wrapping_add(index * 4))?;
        push_reserved(&mut groups, who.group(group)?);
    }
    let groups = if groups.is_empty() { None } else { Some(fallible::try_arc(groups)?) };
    change(call.thread, |credentials| {
        credentials.groups = groups;
        Ok(())
    })
}

/// Reads the header of capget(2): version and the number of a thread, 0 for the caller. An unknown version is answered
/// with the one that is known.
fn capability_header(call: &Call<'_>) -> Result<(usize, i32), crate::error::TryError> {
    const VERSION_1: u32 = 0x1998_0330;
    const VERSION_2: u32 = 0x2007_1026;
    const VERSION_3: u32 = 0x2008_0522;
    let space = call.thread.space();
    let [header] = user::read_words(&space, call.word(0))?;
    let parts = match header as u32 {
        VERSION_1 => 1,
        VERSION_2 | VERSION_3 => 2,
        _ => {
            user::write_int(&space, call.word(0), VERSION_3)?;
            return Err(Errno::EINVAL.into());
        }
    };
    Ok((parts, (header >> 32) as i32))
}

/// The capabilities of a thread.
fn capabilities_of(call: &Call<'_>, number: i32) -> Result<Capabilities, Errno> {
    match number {
        ..0 => Err(Errno::EINVAL),
        0 => Ok(call.thread.credentials().capabilities),
        // It is the kernel's own, without a thread.
        table::REAPER_PID if call.thread.process.pids.is_none() => Ok(Credentials::ROOT.capabilities),
        _ => {
            let thread = table::thread(call.thread.process.named(number)).ok_or(Errno::ESRCH)?;
            Ok(thread.credentials().capabilities)
        }
    }
}

/// capget(2).
pub fn capget(call: &mut Call<'_>) -> SyscallResult {
    let (parts, number) = match capability_header(call) {
        // Asking for the version only is no error.
        Err(crate::error::TryError::Error(Errno::EINVAL)) if call.word(1) == 0 => return Ok(0.into()),
        other => other?,
    };
    if call.word(1) == 0 {
        return Ok(0.into());
    }
    let sets = capabilities_of(call, number)?;
    let space = call.thread.space();
    for part in 0..parts {
        for (index, set) in [sets.effective, sets.permitted, sets.inheritable].into_iter().enumerate() {
            let address = call.word(1).wrapping_add(part * 12 + index * 4);
            user::write_int(&space, address, (set >> (32 * part)) as u32)?;
        }
    }
    Ok(0.into())
}

/// capset(2).
pub fn capset(call: &mut Call<'_>) -> SyscallResult {
    let (parts, number) = capability_header(call)?;
    if number != 0 && number != call.thread.own_tid() {
        return Err(Errno::EPERM.into());
    }
    let space = call.thread.space();
    let mut sets = [0u64; 3];
    for part in 0..parts {
        for (index, set) in sets.iter_mut().enumerate() {
            let value = user::read_int(&space, call.word(1).wrapping_add(part * 12 + index * 4))?;
            *set |= u64::from(value) << (32 * part);
        }
    }
    let [effective, permitted, inheritable] = sets.map(|set| set & Capabilities::ALL);
    change(call.thread, |credentials| {
        let may_add = credentials.has_capability(linux::CAP_SETPCAP);
        let sets = &mut credentials.capabilities;
        let grows = permitted & !sets.permitted != 0 || effective & !permitted != 0;
        let is_foreign = !may_add && inheritable & !(sets.inheritable | sets.permitted) != 0;
        if grows || is_foreign || inheritable & !(sets.inheritable | sets.bounding) != 0 {
            return Err(Errno::EPERM);
        }
        (sets.effective, sets.permitted, sets.inheritable) = (effective, permitted, inheritable);
        sets.ambient &= permitted & inheritable;
        Ok(())
    })
}
