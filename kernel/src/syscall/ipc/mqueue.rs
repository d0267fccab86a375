//! The calls about POSIX message queues: `mq_open` and its kin.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::general as linux;

use crate::call::caller::carry_out;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::access::Access;
use crate::fs::lookup::PATH_LIMIT;
use crate::fs::{FileType, OpenFile, Path, StatusFlags, access, downcast_arc};
use crate::ipc::mqueue;
use crate::ipc::mqueue::{MqAttributes, MqueueCookie, MqueueNotice, PRIORITIES, Queue};
use crate::ipc::namespace::IpcNamespace;
use crate::memory::values::read_timespec;
use crate::memory::{Space, fallible};
use crate::signal::Signal;
use crate::syscall::fs::{get, get_bytes, get_file, get_string};
use crate::syscall::{Call, SyscallResult, SyscallState, pending, user};
use crate::time::{Clock, Deadline};
use crate::wait::operation::{Operation, WaitOptions};
use crate::wait::queue::{Events, Watch};

/// The words of `struct mq_attr` that say something: flags, messages, size, count.
const ATTRIBUTES: usize = 4;
/// All its words.
const ATTRIBUTE_WORDS: usize = 8;

/// mq_open(2).
pub fn mq_open(call: &mut Call<'_>) -> SyscallResult {
    let name = get_string(call, call.word(0), PATH_LIMIT, Errno::ENAMETOOLONG)?;
    let (flags, mode, attributes) = (call.uint(1), call.uint(2), call.word(3));
    let shape = if flags & linux::O_CREAT != 0 && attributes != 0 {
        let words = user::read_words::<ATTRIBUTES>(&call.thread.space(), attributes)?;
        Some(MqAttributes { messages: words[1] as i64, size: words[2] as i64 })
    } else {
        None
    };
    let wanted = match flags & linux::O_ACCMODE {
        linux::O_RDONLY => Access::READ,
        linux::O_WRONLY => Access::WRITE,
        linux::O_RDWR => Access::READ | Access::WRITE,
        _ => return Err(Errno::EINVAL.into()),
    };
    let place = open_or_create(call, &name, mode, shape, wanted)?;
    let status = StatusFlags::from_bits_retain(flags & (linux::O_ACCMODE | linux::O_NONBLOCK));
    let queue = queue_at(&place)?;
    let open = fallible::try_arc(OpenFile::at(queue, status, place))?;
    crate::syscall::fs::add(call, open, true)
}

fn open_or_create(
    call: &Call<'_>,
    name: &[u8],
    mode: u32,
    shape: Option<MqAttributes>,
    wanted: Access,
) -> Result<Path, Errno> {
    let flags = call.uint(1);
    let who = call.thread.credentials();
    let ipc = IpcNamespace::of(call.thread)?;
    loop {
        match mqueue::find(&ipc, name) {
            Ok(_) if flags & linux::O_CREAT != 0 && flags & linux::O_EXCL != 0 => return Err(Errno::EEXIST),
            Ok(place) => {
                access::check(&*place.entry.node, &who, wanted)?;
                return Ok(place);
            }
            Err(Errno::ENOENT) if flags & linux::O_CREAT != 0 => {}
            Err(error) => return Err(error),
        }
        let permissions = mode & 0o7777 & !call.thread.directories().umask();
        match mqueue::create(&call.thread.process, &ipc, &who, name, permissions, shape) {
            // Somebody else was faster.
            Err(Errno::EEXIST) => {}
            made => return made,
        }
    }
}

fn queue_at(place: &Path) -> Result<Arc<Queue>, Errno> {
    let node: Arc<dyn core::any::Any + Send + Sync> = place.entry.node.clone();
    node.downcast().map_err(|_| Errno::EBADF)
}

/// mq_unlink(2).
pub fn mq_unlink(call: &mut Call<'_>) -> SyscallResult {
    let name = get_string(call, call.word(0), PATH_LIMIT, Errno::ENAMETOOLONG)?;
    let ipc = IpcNamespace::of(call.thread)?;
    let place = mqueue::find(&ipc, &name)?;
    let top = mqueue::top(&ipc)?;
    access::check_remove(&top, &place.entry, &call.thread.credentials())?;
    top.entry.node.unlink(&place.entry)?;
    Ok(0.into())
}

/// The queue behind the descriptor in the first argument.
fn queue(call: &Call<'_>) -> Result<(Arc<OpenFile>, Arc<Queue>), Errno> {
    let open = get_file(call, 0)?;
    let queue = downcast_arc(&open.file).ok_or(Errno::EBADF)?;
    Ok((open, queue))
}

/// When a call stops waiting: at a time of day, if it says one.
fn deadline(call: &Call<'_>) -> TryResult<Option<u64>> {
    match call.word(4) {
        0 => Ok(None),
        address => {
            let time_ns = read_timespec(&call.thread.space(), address)?;
            Ok(Some(Deadline::at(Clock::Realtime, time_ns).moment_ns()))
        }
    }
}

/// Carries an operation out that may wait until a moment.
fn run(
    call: &Call<'_>,
    open: &OpenFile,
    deadline_ns: Option<u64>,
    operation: impl Operation,
) -> SyscallResult {
    let no_wait = open.flags().contains(StatusFlags::NONBLOCK);
    match carry_out(call.thread, WaitOptions { no_wait, deadline_ns }, operation)? {
        SyscallState::Pending(future) => pending(async move {
            future.await.map_err(|error| match error {
                Errno::EAGAIN if !no_wait => Errno::ETIMEDOUT,
                error => error,
            })
        }),
        done => Ok(done),
    }
}

struct Sending {
    queue: Arc<Queue>,
    text: Vec<u8>,
    priority: u32,
    /// Process and user.
    sender: (i32, u32),
}

impl Operation for Sending {
    fn attempt(&mut self) -> TryResult<usize> {
        if self.queue.send(&mut self.text, self.priority, self.sender)? {
            Ok(0)
        } else {
            Err(TryError::WouldBlock)
        }
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        Ok(self.queue.ready(Some(watch), Events::OUT)?.contains(Events::OUT))
    }
}

/// mq_timedsend(2).
pub fn mq_timedsend(call: &mut Call<'_>) -> SyscallResult {
    let (address, length, priority) = (call.word(1), call.word(2), call.uint(3));
    if priority >= PRIORITIES {
        return Err(Errno::EINVAL.into());
    }
    let deadline_ns = deadline(call)?;
    let (open, queue) = queue(call)?;
    if !open.is_writable() {
        return Err(Errno::EBADF.into());
    }
    if length > queue.size_limit {
        return Err(Errno::EMSGSIZE.into());
    }
    let text = get_bytes(call, address, length)?;
    let sender = (call.thread.process.pid, call.thread.credentials().uid);
    run(call, &open, deadline_ns, Sending { queue, text, priority, sender })
}

struct Receiving {
    queue: Arc<Queue>,
    space: Arc<Space>,
    address: usize,
    /// Where the priority goes; 0 for nowhere.
    priority: usize,
    /// Whether it counts as one who waits.
    waits: AtomicBool,
}

impl Receiving {
    fn set_waiting(&self, waits: bool) {
        if self.waits.swap(waits, Ordering::Relaxed) != waits {
            self.queue.count_receiver(waits);
        }
    }
}

impl Operation for Receiving {
    fn attempt(&mut self) -> TryResult<usize> {
        let received = self.queue.receive(|text, priority| {
            self.space.write_bytes(self.address, text)?;
            if self.priority != 0 {
                user::write_int(&self.space, self.priority, priority)?;
            }
            Ok(text.len())
        })?;
        self.set_waiting(received.is_none());
        received.ok_or(TryError::WouldBlock)
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        Ok(self.queue.ready(Some(watch), Events::IN)?.contains(Events::IN))
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.set_waiting(false);
    }
}

/// mq_timedreceive(2).
pub fn mq_timedreceive(call: &mut Call<'_>) -> SyscallResult {
    let (address, length, priority) = (call.word(1), call.word(2), call.word(3));
    let deadline_ns = deadline(call)?;
    let (open, queue) = queue(call)?;
    if !open.is_readable() {
        return Err(Errno::EBADF.into());
    }
    if length < queue.size_limit {
        return Err(Errno::EMSGSIZE.into());
    }
    let (space, waits) = (call.thread.space(), AtomicBool::new(false));
    run(call, &open, deadline_ns, Receiving { queue, space, address, priority, waits })
}

/// mq_notify(2).
pub fn mq_notify(call: &mut Call<'_>) -> SyscallResult {
    let address = call.word(1);
    let process = &call.thread.process;
    if address == 0 {
        let (_, queue) = queue(call)?;
        queue.forget_notice(process.pid);
        return Ok(0.into());
    }
    // A `struct sigevent`: value, signal and kind.
    let [value, kind] = user::read_words::<2>(&call.thread.space(), address)?;
    let notice = match (kind >> 32) as u32 {
        linux::SIGEV_NONE => MqueueNotice::Nothing,
        linux::SIGEV_SIGNAL => MqueueNotice::Signal(Signal::new(kind as i32).ok_or(Errno::EINVAL)?, value),
        linux::SIGEV_THREAD => {
            let cookie: MqueueCookie = get(call, value as usize)?;
            let open = call.thread.descriptors().get(kind as i32)?;
            let is_socket = open.kind() == FileType::Socket;
            let error = if is_socket { Errno::EINVAL } else { Errno::ENOTSOCK };
            MqueueNotice::Socket(downcast_arc(&open.file).ok_or(error)?, cookie)
        }
        _ => return Err(Errno::EINVAL.into()),
    };
    let (_, queue) = queue(call)?;
    queue.set_notice(process, notice)?;
    Ok(0.into())
}

/// mq_getsetattr(2).
pub fn mq_getsetattr(call: &mut Call<'_>) -> SyscallResult {
    let (new, old) = (call.word(1), call.word(2));
    let space = call.thread.space();
    let wanted = match new {
        0 => None,
        address => {
            let [flags] = user::read_words::<1>(&space, address)?;
            if flags & !u64::from(linux::O_NONBLOCK) != 0 {
                return Err(Errno::EINVAL.into());
            }
            Some(flags != 0)
        }
    };
    let (open, queue) = queue(call)?;
    let flags = open.flags();
    if old != 0 {
        let mut words = [0; ATTRIBUTE_WORDS];
        let shown = flags & StatusFlags::NONBLOCK;
        words[..ATTRIBUTES].copy_from_slice(&[
            shown.bits().into(),
            queue.message_limit as u64,
            queue.size_limit as u64,
            queue.len() as u64,
        ]);
        user::write_words(&space, old, &words)?;
    }
    if let Some(no_wait) = wanted {
        let mut flags = flags;
        flags.set(StatusFlags::NONBLOCK, no_wait);
        open.set_flags(flags);
    }
    Ok(0.into())
}
