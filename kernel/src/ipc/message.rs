//! Message queues: msgget(2), msgop(2), msgctl(2).

use alloc::sync::Arc;
use core::fmt;
use core::fmt::Write;
use core::sync::atomic::{AtomicUsize, Ordering};

use heddle_kernel_core::sysv_ipc::message::{Message, Queue, Selection};
use heddle_kernel_core::sysv_ipc::permission::Permissions;
use linux_raw_sys::general as linux;

use crate::call::caller::{Caller, carry_out};
use crate::call::{Call, SyscallResult, SyscallState, pending};
use crate::error::{Errno, TryError, TryResult};
use crate::ipc::namespace::IpcNamespace;
use crate::ipc::{IPC_INFO, IPC_NOWAIT, IPC_RMID, IPC_SET, IPC_STAT, IpcObject, READ, WRITE};
use crate::memory::{Space, fallible};
use crate::process::Credentials;
use crate::process::Thread;
use crate::process::namespaces::UpperNamespace;
use crate::process::pid_namespace::{Pids, shown};
use crate::process::user_namespace::Users;
use crate::sync::SpinLock;
use crate::wait::operation::{Operation, WaitOptions};
use crate::wait::queue::{Events, WaitQueue, Watch};

/// Flags of `msgrcv`.
const MSG_NOERROR: u32 = 0o10_000;
const MSG_EXCEPT: u32 = 0o20_000;
const MSG_COPY: u32 = 0o40_000;
/// Commands.
const MSG_STAT: u32 = 11;
const MSG_INFO: u32 = 12;
const MSG_STAT_ANY: u32 = 13;

/// Where the text of a message is in a program's buffer, behind the type.
const TEXT_OFFSET: usize = size_of::<i64>();

/// Messages in all queues of a namespace, and their bytes.
#[derive(Default)]
pub(super) struct MessageCounts {
    messages: AtomicUsize,
    bytes: AtomicUsize,
}

impl MessageCounts {
    fn add(&self, bytes: usize) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn subtract(&self, messages: usize, bytes: usize) {
        self.messages.fetch_sub(messages, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A queue.
pub struct Messages {
    /// The user namespace that owns its namespace.
    owner: Users,
    /// The counts of its namespace.
    counts: Arc<MessageCounts>,
    state: SpinLock<MessageQueueState>,
    /// Notified when there is a message (`IN`) or room (`OUT`), and of every other change.
    waiters: WaitQueue,
}

struct MessageQueueState {
    permissions: Permissions,
    queue: Queue,
    limit_bytes: usize,
    sent_s: u64,
    received_s: u64,
    changed_s: u64,
    last_sender: i32,
    last_receiver: i32,
    is_removed: bool,
}

impl IpcObject for Messages {
    fn permissions(&self) -> Permissions {
        self.state.lock().permissions
    }
}

/// msgget(2).
pub fn msgget(call: &mut Call<'_>) -> SyscallResult {
    let flags = call.uint(1);
    let permissions = crate::ipc::permissions_of_new(call, flags);
    let ipc = IpcNamespace::of(call.thread)?;
    let make = |_| {
        let state = MessageQueueState {
            permissions,
            queue: Queue::new(),
            limit_bytes: ipc.limits.msgmnb.get(),
            sent_s: 0,
            received_s: 0,
            changed_s: crate::ipc::realtime_seconds(),
            last_sender: 0,
            last_receiver: 0,
            is_removed: false,
        };
        let (owner, counts) = (ipc.owner().clone(), ipc.message_counts.clone());
        fallible::try_arc(Messages { owner, counts, state: SpinLock::new(state), waiters: WaitQueue::new() })
    };
    Ok(crate::ipc::get(call, (ipc.owner(), &ipc.queues), flags, ipc.limits.msgmni.get(), |_| Ok(()), make)?
        .into())
}

/// Carries a call out that no handler restarts.
fn run(call: &Call<'_>, operation: impl Operation) -> SyscallResult {
    let manner = WaitOptions { no_wait: false, deadline_ns: None };
    match carry_out(call.thread, manner, operation)? {
        SyscallState::Pending(future) => pending(async move {
            future.await.map_err(|error| match error {
                Errno::ERESTARTSYS => Errno::ERESTARTNOHAND,
                error => error,
            })
        }),
        done => Ok(done),
    }
}

/// Checks again after a wait: the queue may have been removed, or its permissions changed.
fn check_use(
    messages: &Messages,
    state: &MessageQueueState,
    call: &Caller,
    wanted: u32,
) -> Result<(), Errno> {
    if state.is_removed {
        return Err(Errno::EIDRM);
    }
    crate::ipc::check(&messages.owner, &state.permissions, &call.credentials(), wanted)
}

struct Send {
    caller: Caller,
    messages: Arc<Messages>,
    /// `None` once it has been sent.
    message: Option<Message>,
    no_wait: bool,
}

impl Operation for Send {
    fn attempt(&mut self) -> TryResult<usize> {
        let Some(message) = self.message.take() else { return Ok(0) };
        let mut state = self.messages.state.lock();
        check_use(&self.messages, &state, &self.caller, WRITE)?;
        if !state.queue.has_room(message.text.len(), state.limit_bytes) {
            self.message = Some(message);
            return Err(if self.no_wait { Errno::EAGAIN.into() } else { TryError::WouldBlock });
        }
        let length = message.text.len();
        state.queue.push(message).map_err(Errno::from)?;
        self.messages.counts.add(length);
        (state.sent_s, state.last_sender) = (crate::ipc::realtime_seconds(), self.caller.process.pid);
        drop(state);
        self.messages.waiters.wake(Events::IN);
        Ok(0)
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        self.messages.waiters.watch(watch, Events::OUT)?;
        let state = self.messages.state.lock();
        let length = self.message.as_ref().map_or(0, |message| message.text.len());
        Ok(state.is_removed || state.queue.has_room(length, state.limit_bytes))
    }
}

/// msgsnd(2).
pub fn msgsnd(call: &mut Call<'_>) -> SyscallResult {
    let (id, address, length, flags) = (call.int(0), call.word(1), call.word(2), call.uint(3));
    let space = call.thread.space();
    let kind: i64 = space.read(address)?;
    let ipc = IpcNamespace::of(call.thread)?;
    if id < 0 || length > ipc.limits.msgmax.get() || kind < 1 {
        return Err(Errno::EINVAL.into());
    }
    let text = crate::call::get_bytes(call, address.wrapping_add(TEXT_OFFSET), length)?;
    let (_, messages) = crate::ipc::find(&ipc.queues, id)?;
    let message = Some(Message { kind, text });
    let no_wait = flags & IPC_NOWAIT != 0;
    run(call, Send { caller: call.thread.clone(), messages, message, no_wait })
}

struct MessageReceive {
    caller: Caller,
    space: Arc<Space>,
    messages: Arc<Messages>,
    selection: Selection,
    address: usize,
    length: usize,
    flags: u32,
}

impl MessageReceive {
    /// Hands a message over, as much as there is room for.
    fn deliver(&self, message: &Message) -> TryResult<usize> {
        let length = message.text.len().min(self.length);
        self.space.write(self.address, &message.kind)?;
        self.space.write_bytes(self.address.wrapping_add(TEXT_OFFSET), &message.text[..length])?;
        Ok(length)
    }
}

impl Operation for MessageReceive {
    fn attempt(&mut self) -> TryResult<usize> {
        let mut state = self.messages.state.lock();
        check_use(&self.messages, &state, &self.caller, READ)?;
        let Some(index) = state.queue.find(self.selection) else {
            return Err(if self.flags & IPC_NOWAIT != 0 {
                Errno::ENOMSG.into()
            } else {
                TryError::WouldBlock
            });
        };
        let Some(message) = state.queue.get(index) else { return Err(TryError::WouldBlock) };
        let is_cut = message.text.len() > self.length;
        if is_cut && self.flags & MSG_NOERROR == 0 {
            return Err(Errno::E2BIG.into());
        }
        if self.flags & MSG_COPY != 0 {
            return if is_cut { Err(Errno::EINVAL.into()) } else { self.deliver(message) };
        }
        // Taken out once the program has it.
        let length = self.deliver(message)?;
        let taken = state.queue.remove(index);
        let bytes = taken.as_ref().map_or(0, |message| message.text.len());
        self.messages.counts.subtract(1, bytes);
        (state.received_s, state.last_receiver) = (crate::ipc::realtime_seconds(), self.caller.process.pid);
        drop(state);
        drop(taken);
        self.messages.waiters.wake(Events::OUT);
        Ok(length)
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        self.messages.waiters.watch(watch, Events::IN)?;
        let state = self.messages.state.lock();
        Ok(state.is_removed || state.queue.find(self.selection).is_some())
    }
}

/// msgrcv(2).
pub fn msgrcv(call: &mut Call<'_>) -> SyscallResult {
    let (id, address, length, flags) = (call.int(0), call.word(1), call.word(2), call.uint(4));
    if id < 0 || length > isize::MAX as usize {
        return Err(Errno::EINVAL.into());
    }
    let by_position = flags & MSG_COPY != 0;
    if by_position && (flags & MSG_EXCEPT != 0 || flags & IPC_NOWAIT == 0) {
        return Err(Errno::EINVAL.into());
    }
    let selection = Selection::new(call.word(3) as i64, flags & MSG_EXCEPT != 0, by_position);
    let (_, messages) = crate::ipc::find(&IpcNamespace::of(call.thread)?.queues, id)?;
    let caller = call.thread.clone();
    let space = caller.space();
    run(call, MessageReceive { caller, space, messages, selection, address, length, flags })
}

/// `struct msqid64_ds`.
fn description(viewer: &Thread, id: i32, key: i32, messages: &Messages) -> [u64; 15] {
    let who = viewer.credentials();
    let shown = |pid| u64::from(viewer.process.shown(pid) as u32);
    let state = messages.state.lock();
    let mut words = [0; 15];
    words[..6].copy_from_slice(&crate::ipc::permission_words(&who, id, key, &state.permissions));
    words[6..13].copy_from_slice(&[
        state.sent_s,
        state.received_s,
        state.changed_s,
        state.queue.bytes() as u64,
        state.queue.len() as u64,
        state.limit_bytes as u64,
        shown(state.last_sender) | shown(state.last_receiver) << 32,
    ]);
    words
}

/// msgctl(2).
pub fn msgctl(call: &mut Call<'_>) -> SyscallResult {
    /// Where `struct msqid64_ds` has the limit.
    const LIMIT_OFFSET: usize = 11 * size_of::<u64>();
    let (id, command, buffer) = (call.int(0), call.uint(1), call.word(2));
    if id < 0 {
        return Err(Errno::EINVAL.into());
    }
    let who = call.thread.credentials();
    let ipc = IpcNamespace::of(call.thread)?;
    match command {
        IPC_INFO | MSG_INFO => information(call, &ipc),
        IPC_STAT | MSG_STAT | MSG_STAT_ANY => {
            let (id, key, messages) = if command == IPC_STAT {
                let (key, messages) = crate::ipc::find(&ipc.queues, id)?;
                (id, key, messages)
            } else {
                crate::ipc::find_at(&ipc.queues, id)?
            };
            if command != MSG_STAT_ANY {
                crate::ipc::check(ipc.owner(), &messages.permissions(), &who, READ)?;
            }
            crate::ipc::put_words(call, buffer, &description(call.thread, id, key, &messages))?;
            Ok((if command == IPC_STAT { 0 } else { id as usize }).into())
        }
        IPC_SET => {
            let (uid, gid, mode) = crate::ipc::read_owner(call, buffer)?;
            let limit: u64 = call.thread.space().read(buffer.wrapping_add(LIMIT_OFFSET))?;
            let (_, messages) = crate::ipc::find(&ipc.queues, id)?;
            let mut state = messages.state.lock();
            crate::ipc::check_owner(ipc.owner(), &state.permissions, &who)?;
            if limit > ipc.limits.msgmnb.get() as u64 && !who.is_capable(linux::CAP_SYS_RESOURCE) {
                return Err(Errno::EPERM.into());
            }
            state.limit_bytes = usize::try_from(limit).unwrap_or(usize::MAX);
            state.permissions.change(uid, gid, mode);
            state.changed_s = crate::ipc::realtime_seconds();
            drop(state);
            messages.waiters.wake(Events::all());
            Ok(0.into())
        }
        IPC_RMID => remove(call, &ipc, id),
        _ => Err(Errno::EINVAL.into()),
    }
}

/// `struct msginfo`, with limits or with what there is.
fn information(call: &Call<'_>, ipc: &IpcNamespace) -> SyscallResult {
    let (count, highest) = {
        let queues = ipc.queues.lock();
        (queues.len(), queues.highest())
    };
    let limits = &ipc.limits;
    let [queues, most, bytes] =
        [&limits.msgmni, &limits.msgmax, &limits.msgmnb].map(|limit| crate::ipc::int(limit.get()));
    let (pool, map, all) = if call.uint(1) == MSG_INFO {
        (
            crate::ipc::int(count),
            crate::ipc::int(ipc.message_counts.messages.load(Ordering::Relaxed)),
            crate::ipc::int(ipc.message_counts.bytes.load(Ordering::Relaxed)),
        )
    } else {
        (crate::ipc::int((queues as usize).saturating_mul(bytes as usize) / 1024), bytes, bytes)
    };
    crate::ipc::put_ints(call, call.word(2), &[pool, map, most, bytes, queues, 16, all, 0xffff])?;
    Ok(highest.into())
}

fn remove(call: &Call<'_>, ipc: &IpcNamespace, id: i32) -> SyscallResult {
    let mut queues = ipc.queues.lock();
    let messages = queues.get(id).map(|(_, messages)| messages.clone()).ok_or(Errno::EINVAL)?;
    let mut state = messages.state.lock();
    crate::ipc::check_owner(ipc.owner(), &state.permissions, &call.thread.credentials())?;
    state.is_removed = true;
    let left = core::mem::take(&mut state.queue);
    drop(state);
    let removed = queues.remove(id);
    drop(queues);
    ipc.message_counts.subtract(left.len(), left.bytes());
    drop((removed, left));
    messages.waiters.wake(Events::all());
    Ok(0.into())
}

/// `/proc/sysvipc/msg`.
///
/// # Errors
/// The text's: there is no memory.
pub fn show(ipc: &IpcNamespace, pids: &Pids, who: &Credentials, text: &mut impl Write) -> fmt::Result {
    writeln!(
        text,
        "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      \
         stime      rtime      ctime"
    )?;
    let mut place = 0;
    while let Some((next, id, key, messages)) = crate::ipc::next(&ipc.queues, place) {
        place = next;
        let state = messages.state.lock();
        let [sender, receiver] = [state.last_sender, state.last_receiver].map(|pid| shown(pid, pids));
        let p = &state.permissions;
        write!(text, "{key:10} {id:10}  {:4o}  {:10} ", p.mode, state.queue.bytes())?;
        write!(text, "{:10} {:5} {:5} ", state.queue.len(), sender, receiver)?;
        write!(text, "{} ", crate::ipc::shown(p, who))?;
        writeln!(text, "{:10} {:10} {:10}", state.sent_s, state.received_s, state.changed_s)?;
    }
    Ok(())
}
