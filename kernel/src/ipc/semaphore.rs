//! Semaphores: semget(2), semop(2), semctl(2).

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering};

use heddle_kernel_core::fallible::{extend_items_reserved, extend_reserved, push_reserved};
use heddle_kernel_core::sysv_ipc::permission::Permissions;
use heddle_kernel_core::sysv_ipc::semaphore::{Actor, Operation, Refusal, Set, VALUE_MAX};

use crate::arch::time::now_ns;
use crate::call::caller::Caller;
use crate::call::{Call, SyscallResult, pending};
use crate::error::{Errno, TryError, TryResult};
use crate::ipc::namespace::IpcNamespace;
use crate::ipc::{IPC_INFO, IPC_NOWAIT, IPC_RMID, IPC_SET, IPC_STAT, IpcObject, READ, WRITE};
use crate::memory::fallible;
use crate::memory::values::read_timespec;
use crate::process::namespaces::UpperNamespace;
use crate::process::{Attachment, Credentials, Process};
use crate::sync::SpinLock;

use crate::wait::engine::until;
use crate::wait::node::WaitKind;
use crate::wait::queue::{Events, WaitQueue};

/// The flag of an operation that is undone at the end of its process.
const SEM_UNDO: u16 = 0x1000;
/// Commands.
const GETPID: u32 = 11;
const GETVAL: u32 = 12;
const GETALL: u32 = 13;
const GETNCNT: u32 = 14;
const GETZCNT: u32 = 15;
const SETVAL: u32 = 16;
const SETALL: u32 = 17;
const SEM_STAT: u32 = 18;
const SEM_INFO: u32 = 19;
const SEM_STAT_ANY: u32 = 20;

/// Bytes of an operation as programs pass it.
const OPERATION_BYTES: usize = 6;

/// A set.
pub struct Semaphores {
    count: usize,
    state: SpinLock<SemaphoreSetState>,
}

struct SemaphoreSetState {
    permissions: Permissions,
    operated_s: u64,
    changed_s: u64,
    is_removed: bool,
    set: Set<Arc<SemaphoreWaiter>>,
}

/// A waiter in a set, and its result.
struct SemaphoreWaiter {
    result: SpinLock<Option<Result<(), Errno>>>,
    queue: WaitQueue,
}

impl SemaphoreWaiter {
    fn finish(&self, result: Result<(), Errno>) {
        *self.result.lock() = Some(result);
        self.queue.wake(Events::all());
    }
}

impl IpcObject for Semaphores {
    fn permissions(&self) -> Permissions {
        self.state.lock().permissions
    }
}

impl SemaphoreSetState {
    /// Completes the waiters whose operations have become possible.
    fn update(&mut self) {
        self.set.update(|sleeper, result| sleeper.finish(result.map_err(errno)));
    }
}

/// The error number of a refusal that needs no waiting.
const fn errno(refusal: Refusal) -> Errno {
    match refusal {
        Refusal::Range => Errno::ERANGE,
        Refusal::NoWait | Refusal::Blocked(_) => Errno::EAGAIN,
    }
}

/// The sets in which a process has operations to undo. Processes can share it (`CLONE_SYSVSEM`).
pub struct SemUndoList {
    owner: u64,
    sets: SpinLock<Vec<Weak<Semaphores>>>,
}

impl SemUndoList {
    fn new() -> Result<Arc<Self>, Errno> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let owner = NEXT.fetch_add(1, Ordering::Relaxed);
        fallible::try_arc(Self { owner, sets: SpinLock::new(Vec::new()) })
    }

    /// Those of a process, made if it has none.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn of(process: &Process) -> Result<Arc<Self>, Errno> {
        let mut own = process.semaphore_undoes();
        if let Some(undoes) = own.clone() {
            let undoes: Arc<dyn Any + Send + Sync> = undoes;
            return undoes.downcast().map_err(|_| Errno::EINVAL);
        }
        let undoes = Self::new()?;
        *own = Some(undoes.clone());
        Ok(undoes)
    }

    fn note(&self, set: &Arc<Semaphores>) -> Result<(), Errno> {
        let mut sets = self.sets.lock();
        if sets.iter().any(|known| Weak::as_ptr(known) == Arc::as_ptr(set)) {
            return Ok(());
        }
        if sets.len() == sets.capacity() {
            sets.retain(|known| known.strong_count() > 0);
        }
        fallible::try_push(&mut sets, Arc::downgrade(set))
    }
}

impl Attachment for SemUndoList {
    /// Undoes the operations of the processes that share the list when the last of them ends.
    fn process_ended(self: Arc<Self>, process: &Process) {
        let Some(undoes) = Arc::into_inner(self) else { return };
        for set in undoes.sets.into_inner() {
            let Some(set) = set.upgrade() else { continue };
            let mut state = set.state.lock();
            if !state.is_removed {
                state.set.leave(undoes.owner, process.pid);
                state.update();
            }
        }
    }
}

/// semget(2).
pub fn semget(call: &mut Call<'_>) -> SyscallResult {
    let (count, flags) = (call.int(1), call.uint(2));
    let permissions = crate::ipc::permissions_of_new(call, flags);
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    let ipc = IpcNamespace::of(call.thread)?;
    if count > ipc.limits.semmsl.get() {
        return Err(Errno::EINVAL.into());
    }
    let make = |_| {
        if count == 0 {
            return Err(Errno::EINVAL);
        }
        if ipc.semaphore_count.load(Ordering::Relaxed) + count > ipc.limits.semmns.get() {
            return Err(Errno::ENOSPC);
        }
        let set = Set::new(count)?;
        let state = SemaphoreSetState {
            permissions,
            operated_s: 0,
            changed_s: crate::ipc::realtime_seconds(),
            is_removed: false,
            set,
        };
        let set = fallible::try_arc(Semaphores { count, state: SpinLock::new(state) })?;
        ipc.semaphore_count.fetch_add(count, Ordering::Relaxed);
        Ok(set)
    };
    let fits = |set: &Semaphores| if count > set.count { Err(Errno::EINVAL) } else { Ok(()) };
    Ok(crate::ipc::get(call, (ipc.owner(), &ipc.sets), flags, ipc.limits.semmni.get(), fits, make)?.into())
}

/// semop(2).
pub fn semop(call: &mut Call<'_>) -> SyscallResult {
    operate(call, None)
}

/// semtimedop(2).
pub fn semtimedop(call: &mut Call<'_>) -> SyscallResult {
    let address = call.word(3);
    if address == 0 {
        return operate(call, None);
    }
    let timeout = match read_timespec(&call.thread.space(), address) {
        // A time that is none is said after what is wrong with the operations.
        Err(TryError::Error(error)) => {
            read_operations(call, check_row(call)?)?;
            return Err(error.into());
        }
        timeout => timeout?,
    };
    check_row(call)?;
    operate(call, Some(now_ns().saturating_add(timeout)))
}

fn check_row(call: &Call<'_>) -> Result<usize, Errno> {
    let count = call.uint(2) as usize;
    match count {
        0 => Err(Errno::EINVAL),
        _ if call.int(0) < 0 => Err(Errno::EINVAL),
        _ if count > IpcNamespace::of(call.thread)?.limits.semopm.get() => Err(Errno::E2BIG),
        _ => Ok(count),
    }
}

fn read_operations(call: &Call<'_>, count: usize) -> TryResult<Vec<Operation>> {
    let bytes = crate::call::get_bytes(call, call.word(1), count * OPERATION_BYTES)?;
    let mut operations = fallible::try_with_capacity(count)?;
    for bytes in bytes.chunks_exact(OPERATION_BYTES) {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let flags = half(4);
        push_reserved(
            &mut operations,
            Operation {
                number: half(0).into(),
                change: half(2) as i16,
                no_wait: u32::from(flags) & IPC_NOWAIT != 0,
                undo: flags & SEM_UNDO != 0,
            },
        );
    }
    Ok(operations)
}

fn operate(call: &Call<'_>, deadline_ns: Option<u64>) -> SyscallResult {
    let count = check_row(call)?;
    let operations = read_operations(call, count)?;
    let ipc = IpcNamespace::of(call.thread)?;
    let (_, set) = crate::ipc::find(&ipc.sets, call.int(0))?;
    if operations.iter().any(|operation| operation.number >= set.count) {
        return Err(Errno::EFBIG.into());
    }
    let alters = operations.iter().any(|operation| operation.change != 0);
    let process = &call.thread.process;
    let mut actor = Actor { pid: process.pid, undoes: 0 };
    if operations.iter().any(|operation| operation.undo && operation.change != 0) {
        let undoes = SemUndoList::of(process)?;
        undoes.note(&set)?;
        actor.undoes = undoes.owner;
    }
    let mut state = set.state.lock();
    crate::ipc::check(
        ipc.owner(),
        &state.permissions,
        &call.thread.credentials(),
        if alters { WRITE } else { READ },
    )?;
    if state.is_removed {
        return Err(Errno::EIDRM.into());
    }
    if actor.undoes != 0 {
        state.set.reserve_undo(actor.undoes).map_err(Errno::from)?;
    }
    let blocked = match state.set.attempt(&operations, actor) {
        Ok(()) => {
            state.operated_s = crate::ipc::realtime_seconds();
            if alters {
                state.update();
            }
            return Ok(0.into());
        }
        Err(Refusal::Blocked(blocked)) => blocked,
        Err(refusal) => return Err(errno(refusal).into()),
    };
    let sleeper =
        fallible::try_arc(SemaphoreWaiter { result: SpinLock::new(None), queue: WaitQueue::new() })?;
    let ticket = state
        .set
        .wait(operations, actor, (blocked, call.thread.rank()), sleeper.clone())
        .map_err(Errno::from)?;
    drop(state);
    let waiting = pending(sleep(call.thread.clone(), set.clone(), sleeper, ticket, deadline_ns));
    if waiting.is_err() {
        let sleeper = set.state.lock().set.withdraw(ticket);
        drop(sleeper);
    }
    waiting
}

async fn sleep(
    thread: Caller,
    set: Arc<Semaphores>,
    sleeper: Arc<SemaphoreWaiter>,
    ticket: u64,
    deadline_ns: Option<u64>,
) -> Result<usize, Errno> {
    let woken = until(&thread, WaitKind::Interruptible, deadline_ns, |watch| {
        sleeper.queue.watch(watch, Events::all())?;
        Ok(*sleeper.result.lock())
    });
    let early = match woken.await {
        Ok(Some(result)) => return result.map(|()| 0),
        Ok(None) => Errno::EAGAIN,
        Err(Errno::ERESTARTSYS) => Errno::EINTR,
        Err(error) => error,
    };
    let withdrawn = set.state.lock().set.withdraw(ticket);
    if withdrawn.is_some() {
        return Err(early);
    }
    // It came to an end just then.
    let result = *sleeper.result.lock();
    result.unwrap_or(Err(early)).map(|()| 0)
}

/// `struct semid64_ds`.
fn description(who: &Credentials, id: i32, key: i32, set: &Semaphores) -> [u64; 13] {
    let state = set.state.lock();
    let mut words = [0; 13];
    words[..6].copy_from_slice(&crate::ipc::permission_words(who, id, key, &state.permissions));
    (words[6], words[8], words[10]) = (state.operated_s, state.changed_s, set.count as u64);
    words
}

/// semctl(2).
pub fn semctl(call: &mut Call<'_>) -> SyscallResult {
    let (id, command, argument) = (call.int(0), call.uint(2), call.word(3));
    if id < 0 {
        return Err(Errno::EINVAL.into());
    }
    let who = call.thread.credentials();
    let ipc = IpcNamespace::of(call.thread)?;
    match command {
        IPC_INFO | SEM_INFO => information(call, &ipc),
        IPC_STAT | SEM_STAT | SEM_STAT_ANY => {
            let (id, key, set) = if command == IPC_STAT {
                let (key, set) = crate::ipc::find(&ipc.sets, id)?;
                (id, key, set)
            } else {
                crate::ipc::find_at(&ipc.sets, id)?
            };
            if command != SEM_STAT_ANY {
                crate::ipc::check(ipc.owner(), &set.permissions(), &who, READ)?;
            }
            crate::ipc::put_words(call, argument, &description(&who, id, key, &set))?;
            Ok((if command == IPC_STAT { 0 } else { id as usize }).into())
        }
        IPC_SET => {
            let (uid, gid, mode) = crate::ipc::read_owner(call, argument)?;
            let (_, set) = crate::ipc::find(&ipc.sets, id)?;
            let mut state = set.state.lock();
            crate::ipc::check_owner(ipc.owner(), &state.permissions, &who)?;
            state.permissions.change(uid, gid, mode);
            state.changed_s = crate::ipc::realtime_seconds();
            Ok(0.into())
        }
        IPC_RMID => remove(call, &ipc, id),
        GETPID | GETVAL | GETNCNT | GETZCNT => {
            let (_, set) = crate::ipc::find(&ipc.sets, id)?;
            let state = set.state.lock();
            crate::ipc::check(ipc.owner(), &state.permissions, &who, READ)?;
            let number = call.uint(1) as usize;
            let semaphore = state.set.values().get(number).ok_or(Errno::EINVAL)?;
            Ok(match command {
                GETPID => call.thread.process.shown(semaphore.pid) as usize,
                GETVAL => semaphore.value as usize,
                _ => state.set.waiting_at(number, command == GETZCNT),
            }
            .into())
        }
        GETALL => {
            let (_, set) = crate::ipc::find(&ipc.sets, id)?;
            crate::ipc::check(ipc.owner(), &set.permissions(), &who, READ)?;
            let mut bytes = fallible::try_with_capacity(set.count * size_of::<u16>())?;
            for semaphore in set.state.lock().set.values() {
                extend_reserved(&mut bytes, &(semaphore.value as u16).to_ne_bytes());
            }
            call.thread.space().write_bytes(argument, &bytes)?;
            Ok(0.into())
        }
        SETVAL if !(0..=VALUE_MAX).contains(&call.int(3)) => Err(Errno::ERANGE.into()),
        SETVAL | SETALL => set_values(call, command == SETALL),
        _ => Err(Errno::EINVAL.into()),
    }
}

/// `struct seminfo`, with limits or with what there is.
fn information(call: &Call<'_>, ipc: &IpcNamespace) -> SyscallResult {
    let (count, highest) = {
        let sets = ipc.sets.lock();
        (sets.len(), sets.highest())
    };
    let limits = &ipc.limits;
    let [sets, all, most, row] = [&limits.semmni, &limits.semmns, &limits.semmsl, &limits.semopm]
        .map(|limit| crate::ipc::int(limit.get()));
    let (used, adjustment) = if call.uint(2) == SEM_INFO {
        (crate::ipc::int(count), crate::ipc::int(ipc.semaphore_count.load(Ordering::Relaxed)))
    } else {
        (20, VALUE_MAX)
    };
    let row_of_ints = [all, sets, all, all, most, row, row, used, VALUE_MAX, adjustment];
    crate::ipc::put_ints(call, call.word(3), &row_of_ints)?;
    Ok(highest.into())
}

fn set_values(call: &Call<'_>, all: bool) -> SyscallResult {
    let ipc = IpcNamespace::of(call.thread)?;
    let (_, set) = crate::ipc::find(&ipc.sets, call.int(0))?;
    let who = call.thread.credentials();
    let is_valid = |value: i32| (0..=VALUE_MAX).contains(&value);
    let mut values: Vec<u16> = Vec::new();
    if all {
        crate::ipc::check(ipc.owner(), &set.permissions(), &who, WRITE)?;
        let bytes = crate::call::get_bytes(call, call.word(3), set.count * size_of::<u16>())?;
        values = fallible::try_with_capacity(set.count)?;
        let pairs = bytes.chunks_exact(2).map(|pair| u16::from_ne_bytes([pair[0], pair[1]]));
        extend_items_reserved(&mut values, pairs);
        if !values.iter().all(|&value| is_valid(value.into())) {
            return Err(Errno::ERANGE.into());
        }
    } else if !is_valid(call.int(3)) {
        return Err(Errno::ERANGE.into());
    }
    let mut state = set.state.lock();
    crate::ipc::check(ipc.owner(), &state.permissions, &who, WRITE)?;
    if state.is_removed {
        return Err(Errno::EIDRM.into());
    }
    let pid = call.thread.process.pid;
    if all {
        for (number, &value) in values.iter().enumerate() {
            state.set.set(number, value.into(), pid);
        }
    } else {
        let number = call.uint(1) as usize;
        if number >= set.count {
            return Err(Errno::EINVAL.into());
        }
        state.set.set(number, call.int(3), pid);
    }
    state.changed_s = crate::ipc::realtime_seconds();
    state.update();
    Ok(0.into())
}

fn remove(call: &Call<'_>, ipc: &IpcNamespace, id: i32) -> SyscallResult {
    let mut sets = ipc.sets.lock();
    let set = sets.get(id).map(|(_, set)| set.clone()).ok_or(Errno::EINVAL)?;
    let mut state = set.state.lock();
    crate::ipc::check_owner(ipc.owner(), &state.permissions, &call.thread.credentials())?;
    state.is_removed = true;
    let sleepers = state.set.dissolve();
    drop(state);
    let removed = sets.remove(id);
    drop(sets);
    ipc.semaphore_count.fetch_sub(set.count, Ordering::Relaxed);
    drop(removed);
    sleepers.for_each(|sleeper| sleeper.finish(Err(Errno::EIDRM)));
    Ok(0.into())
}

/// `/proc/sysvipc/sem`.
///
/// # Errors
/// The text's: there is no memory.
pub fn show(ipc: &IpcNamespace, who: &Credentials, text: &mut impl Write) -> fmt::Result {
    writeln!(text, "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime")?;
    let mut place = 0;
    while let Some((next, id, key, set)) = crate::ipc::next(&ipc.sets, place) {
        place = next;
        let state = set.state.lock();
        let p = &state.permissions;
        write!(text, "{key:10} {id:10}  {:4o} {:10} ", p.mode, set.count)?;
        write!(text, "{} ", crate::ipc::shown(p, who))?;
        writeln!(text, "{:10} {:10}", state.operated_s, state.changed_s)?;
    }
    Ok(())
}
