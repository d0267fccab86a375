//! The connection to a server: requests that it has not read, and those that it has not answered.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use heddle_kernel_core::OutOfMemory;
use heddle_kernel_core::fallible::{push_back_reserved, push_front_reserved, push_reserved};
use heddle_kernel_core::fuse::{
    ANSWER_HEADER_BYTES, AnswerHeader, BadAnswer, FuseCaller, FuseEntry, FuseMessage, FuseOptions,
    FuseReader, FuseTerms, MINOR_MIN, VERSION, feature, opcode,
};

use crate::error::{Errno, TryError, TryResult};
use crate::fs::IoBuffer;
use crate::memory::fallible;
use crate::process::detour::with_thread_here;
use crate::sched::detour::{self, ProgramWait};
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue, Watch};

/// The most calls that wait for one server: each takes a stack, which others need too.
const WAITING_MAX: usize = 32;
/// The most bytes of contents in one request or answer.
pub(super) const CONTENTS_MAX: usize = 32 << 10;
/// The most bytes of a `WRITE` that a server must take.
const WRITE_MIN: u32 = 4096;
/// A server reads into a buffer of this size at least.
const READ_BUFFER_MIN: usize = 8192;
/// How far the server may read ahead, which means nothing here.
const READ_AHEAD: u32 = 128 << 10;

/// The most requests that a server has read and not answered, but for those that somebody waits for.
const UNANSWERED_MAX: usize = 256;

impl From<BadAnswer> for Errno {
    fn from(_: BadAnswer) -> Self {
        Self::EIO
    }
}

impl From<OutOfMemory> for TryError {
    fn from(_: OutOfMemory) -> Self {
        Self::Error(Errno::ENOMEM)
    }
}

/// The part of an answer that has to be given back if nobody waits for it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GiveBack {
    /// Nothing.
    Nothing,
    /// A look at a node.
    Node,
    /// A file of this node that was opened, or a directory.
    Open(u64, bool),
    /// A look at a node that was made, and the file, opened.
    Created,
}

/// The state of a question.
enum FuseProgress {
    Waiting,
    Answered(Result<Vec<u8>, Errno>),
    /// Nobody waits for the answer.
    GivenUp,
}

/// A request.
struct FuseQuestion {
    unique: u64,
    message: Vec<u8>,
    /// The most bytes of its answer; without it there is none.
    answer_max: Option<usize>,
    give_back: GiveBack,
    progress: SpinLock<FuseProgress>,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionPhase {
    /// The server has not answered `INIT`.
    Starting,
    /// It serves, and takes so many bytes to write.
    Serving { write_max: u32 },
    /// It is over; who asks hears this.
    Over(Errno),
}

struct FuseRequests {
    phase: ConnectionPhase,
    next: u64,
    /// Not read yet.
    unread: VecDeque<Arc<FuseQuestion>>,
    /// Read, and not answered.
    read: Vec<Arc<FuseQuestion>>,
}

impl FuseRequests {
    /// Another one has been read, for which there is room. A server that leaves too much unanswered that nobody waits
    /// for gets `ENOENT` for the oldest of it later, which is returned.
    fn add_read(&mut self, question: Arc<FuseQuestion>) -> Option<Arc<FuseQuestion>> {
        let is_given_up = |read: &Arc<FuseQuestion>| matches!(*read.progress.lock(), FuseProgress::GivenUp);
        let oldest =
            if self.read.len() < UNANSWERED_MAX { None } else { self.read.iter().position(is_given_up) };
        let forgotten = oldest.map(|oldest| self.read.remove(oldest));
        push_reserved(&mut self.read, question);
        forgotten
    }
}

/// A connection.
pub(super) struct Connection {
    requests: SpinLock<FuseRequests>,
    /// The server waits here for requests.
    queue: WaitQueue,
    /// Calls that wait for the server.
    waiting: AtomicUsize,
    user: u32,
    group: u32,
    is_for_all: bool,
    /// The kernel checks permissions.
    pub checks_permissions: bool,
    /// The most bytes of a `READ`.
    pub read_max: usize,
}

/// The thread whose turn goes on, as a server sees it.
fn caller_here() -> Option<FuseCaller> {
    with_thread_here(|thread| {
        let who = thread.credentials();
        FuseCaller { uid: who.fsuid, gid: who.fsgid, pid: thread.tid().cast_unsigned() }
    })
}

/// The right to wait for a server.
struct ServerWait<'a>(&'a Connection);

impl<'a> ServerWait<'a> {
    fn begin(connection: &'a Connection) -> Result<Self, Errno> {
        let below = |most| move |count| (count < most).then_some(count + 1);
        let (relaxed, own) = (Ordering::Relaxed, &connection.waiting);
        own.fetch_update(relaxed, relaxed, below(WAITING_MAX)).map_err(|_| Errno::ENOMEM)?;
        Ok(Self(connection))
    }
}

impl Drop for ServerWait<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    pub fn new(options: &FuseOptions) -> Result<Arc<Self>, Errno> {
        fallible::try_arc(Self {
            requests: SpinLock::new(FuseRequests {
                phase: ConnectionPhase::Starting,
                next: 1,
                unread: VecDeque::new(),
                read: Vec::new(),
            }),
            queue: WaitQueue::new(),
            waiting: AtomicUsize::new(0),
            user: options.user,
            group: options.group,
            is_for_all: options.is_for_all,
            checks_permissions: options.checks_permissions,
            read_max: (options.read_max as usize).clamp(1, CONTENTS_MAX),
        })
    }

    /// Asks the server for its terms.
    pub fn begin(&self) -> Result<(), Errno> {
        let mut message = FuseMessage::new(opcode::INIT, 0, 16).map_err(|_| Errno::ENOMEM)?;
        message.u32(VERSION.0);
        message.u32(VERSION.1);
        message.u32(READ_AHEAD);
        // The mask of permissions has been applied whoever is to do that.
        let splices = feature::SPLICE_WRITE | feature::SPLICE_MOVE | feature::SPLICE_READ;
        let names = feature::DONT_MASK | feature::PARALLEL_DIROPS;
        message.u32(feature::ASYNC_READ | feature::BIG_WRITES | splices | names);
        self.put(message, FuseCaller::default(), Some(64), GiveBack::Nothing)?;
        Ok(())
    }

    /// Whether the thread whose turn goes on may use the file system: as a rule only who mounted it may, since a server
    /// sees, and can delay, all that others do. A coroutine of the kernel stands for nobody.
    pub fn check_caller(&self) -> Result<(), Errno> {
        let is_own = with_thread_here(|thread| {
            if self.is_for_all {
                return true;
            }
            let who = thread.credentials();
            let users = [who.uid, who.euid, who.suid].iter().all(|&user| user == self.user);
            users && [who.gid, who.egid, who.sgid].iter().all(|&group| group == self.group)
        });
        if is_own == Some(true) { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// The most bytes that one `WRITE` takes.
    pub fn write_max(&self) -> usize {
        match self.requests.lock().phase {
            ConnectionPhase::Serving { write_max } => (write_max as usize).min(CONTENTS_MAX),
            _ => WRITE_MIN as usize,
        }
    }

    /// Puts a question to the server and waits for the answer's fields, at most so many bytes.
    ///
    /// # Errors
    /// The server's; `ENOTCONN` (it is gone), `ECONNABORTED` (it went meanwhile), `EINTR` (the thread was killed),
    /// `ENOMEM` (also where too many calls wait), `EACCES` (an asynchronous request, which would speak as nobody).
    pub fn ask(
        &self,
        message: FuseMessage,
        answer_max: usize,
        give_back: GiveBack,
    ) -> Result<Vec<u8>, Errno> {
        let caller = caller_here().ok_or(Errno::EACCES)?;
        let _waiting = ServerWait::begin(self)?;
        let is_starting = || self.requests.lock().phase == ConnectionPhase::Starting;
        if is_starting() {
            match detour::wait_for_program(&|| !is_starting()) {
                ProgramWait::Over => {}
                end => return Err(end.into()),
            }
        }
        let question = self.put(message, caller, Some(answer_max), give_back)?;
        let is_answered = || !matches!(*question.progress.lock(), FuseProgress::Waiting);
        let end = detour::wait_for_program(&is_answered);
        let taken = {
            let mut progress = question.progress.lock();
            match core::mem::replace(&mut *progress, FuseProgress::GivenUp) {
                FuseProgress::Answered(answer) => Some(answer),
                FuseProgress::Waiting | FuseProgress::GivenUp => None,
            }
        };
        match taken {
            Some(answer) => answer,
            None => {
                self.give_up(&question);
                Err(end.into())
            }
        }
    }

    /// Tells the server something that it does not answer, as far as there is memory. From any context.
    pub fn tell(&self, message: Result<FuseMessage, OutOfMemory>) {
        if let Ok(message) = message {
            let _ = self.put(message, FuseCaller::default(), None, GiveBack::Nothing);
        }
    }

    /// The same, for what is answered, though nobody waits for that.
    pub fn release(&self, message: Result<FuseMessage, OutOfMemory>) {
        let Ok(message) = message else { return };
        if let Ok(question) = self.put(message, FuseCaller::default(), Some(0), GiveBack::Nothing) {
            *question.progress.lock() = FuseProgress::GivenUp;
        }
    }

    /// The same from a thread that is dying, and has no time, as itself: where the server lags behind it hears nothing,
    /// so that what nobody waits for takes no more memory.
    pub fn tell_dying(&self, message: Result<FuseMessage, OutOfMemory>) {
        let Ok(message) = message else { return };
        if self.requests.lock().unread.len() >= UNANSWERED_MAX {
            return;
        }
        let caller = caller_here().unwrap_or_default();
        if let Ok(question) = self.put(message, caller, Some(0), GiveBack::Nothing) {
            *question.progress.lock() = FuseProgress::GivenUp;
        }
    }

    fn put(
        &self,
        message: FuseMessage,
        caller: FuseCaller,
        answer_max: Option<usize>,
        give_back: GiveBack,
    ) -> Result<Arc<FuseQuestion>, Errno> {
        let unique = {
            let mut requests = self.requests.lock();
            // Numbers are even, as Linux's: an odd one means an interruption to some servers.
            requests.next += 2;
            requests.next & !1
        };
        let message = message.finish(unique, caller).map_err(|_| Errno::ENOMEM)?;
        let progress = SpinLock::new(FuseProgress::Waiting);
        let question = fallible::try_arc(FuseQuestion { unique, message, answer_max, give_back, progress })?;
        let mut requests = self.requests.lock();
        if let ConnectionPhase::Over(error) = requests.phase {
            return Err(error);
        }
        requests.unread.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        push_back_reserved(&mut requests.unread, question.clone());
        drop(requests);
        self.queue.wake(Events::IN | Events::RDNORM);
        Ok(question)
    }

    /// Nobody waits for an answer any more: a question that the server has not read is taken back, of another it hears.
    fn give_up(&self, question: &Arc<FuseQuestion>) {
        let mut requests = self.requests.lock();
        let place = requests.unread.iter().position(|unread| Arc::ptr_eq(unread, question));
        let taken = place.and_then(|place| requests.unread.remove(place));
        drop(requests);
        if taken.is_none() {
            let message = FuseMessage::new(opcode::INTERRUPT, 0, 8).map(|mut message| {
                message.u64(question.unique);
                message
            });
            self.tell(message);
        }
    }

    /// Ends the connection: the server hears of it if it asks, and callers hear `reason` from now on.
    pub fn end(&self, reason: Errno) {
        let (unread, read) = {
            let mut requests = self.requests.lock();
            if let ConnectionPhase::Over(_) = requests.phase {
                return;
            }
            requests.phase = ConnectionPhase::Over(reason);
            (core::mem::take(&mut requests.unread), core::mem::take(&mut requests.read))
        };
        for question in unread.iter().chain(&read) {
            question.end(Err(Errno::ECONNABORTED));
        }
        self.queue.wake(Events::all());
        detour::look_again();
    }

    /// Registers a watch of the server, and says what is ready.
    pub fn poll(&self, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.queue.watch_to_take(watch, events)?;
        }
        let requests = self.requests.lock();
        let mut ready = Events::OUT | Events::WRNORM;
        ready.set(Events::IN | Events::RDNORM, !requests.unread.is_empty());
        if matches!(requests.phase, ConnectionPhase::Over(_)) {
            ready = Events::ERR;
        }
        Ok(ready)
    }

    /// Gives the server its next request.
    pub fn give(&self, buffer: &mut IoBuffer<'_>) -> TryResult<usize> {
        if buffer.remaining() < READ_BUFFER_MIN {
            return Err(Errno::EINVAL.into());
        }
        loop {
            let question = {
                let mut requests = self.requests.lock();
                if let ConnectionPhase::Over(_) = requests.phase {
                    return Err(Errno::ENODEV.into());
                }
                requests.unread.pop_front().ok_or(TryError::WouldBlock)?
            };
            if question.message.len() > buffer.remaining() {
                question.end(Err(Errno::EIO));
                detour::look_again();
                continue;
            }
            let mark = buffer.mark();
            let copied = buffer.copy_out(&question.message);
            let mut requests = self.requests.lock();
            let is_over = matches!(requests.phase, ConnectionPhase::Over(_));
            let has_room = match copied {
                Ok(_) => requests.read.try_reserve(1).is_ok(),
                Err(_) => requests.unread.try_reserve(1).is_ok(),
            };
            match copied {
                _ if is_over || !has_room => {
                    drop(requests);
                    buffer.rewind(mark);
                    question.end(Err(if is_over { Errno::ECONNABORTED } else { Errno::ENOMEM }));
                    detour::look_again();
                }
                Ok(count) => {
                    let forgotten =
                        if question.answer_max.is_some() { requests.add_read(question) } else { None };
                    drop(requests);
                    drop(forgotten);
                    return Ok(count);
                }
                Err(fault) => {
                    push_front_reserved(&mut requests.unread, question);
                    drop(requests);
                    buffer.rewind(mark);
                    return Err(fault.into());
                }
            }
        }
    }

    /// Takes an answer from the server.
    pub fn take(&self, buffer: &mut IoBuffer<'_>) -> TryResult<usize> {
        let mark = buffer.mark();
        let taken = self.try_take(buffer);
        if taken.is_err() {
            buffer.rewind(mark);
        }
        taken
    }

    fn try_take(&self, buffer: &mut IoBuffer<'_>) -> TryResult<usize> {
        const ERRORS_END: i32 = 512;
        let total = buffer.remaining();
        if total < ANSWER_HEADER_BYTES {
            return Err(Errno::EINVAL.into());
        }
        let mut bytes = [0; ANSWER_HEADER_BYTES];
        buffer.copy_in(&mut bytes)?;
        let header = AnswerHeader::read(bytes);
        // libfuse gives the header to a pipe by vmsplice(2), and corrects the length in it when it knows that fewer
        // bytes follow. Linux's pipe has the program's page and sees that; a pipe here has a copy, so the record says
        // how long it is.
        let is_corrected = buffer.is_spliced() && header.length as usize > total;
        if header.length as usize != total && !is_corrected {
            return Err(Errno::EINVAL.into());
        }
        if header.unique == 0 {
            return notified(header.error, buffer, total);
        }
        if header.error <= -ERRORS_END || header.error > 0 {
            return Err(Errno::EINVAL.into());
        }
        let is_it = |read: &Arc<FuseQuestion>| read.unique == header.unique;
        let found = self.requests.lock().read.iter().find(|read| is_it(read)).cloned();
        let question = found.ok_or(Errno::ENOENT)?;
        let length = total - ANSWER_HEADER_BYTES;
        let most = if header.error == 0 { question.answer_max.unwrap_or(0) } else { 0 };
        if length > most {
            return Err(Errno::EINVAL.into());
        }
        let mut fields = fallible::try_filled(0, length)?;
        buffer.copy_in(&mut fields)?;
        {
            let mut requests = self.requests.lock();
            let place = requests.read.iter().position(is_it).ok_or(Errno::ENOENT)?;
            requests.read.remove(place);
        }
        let answer = match header.error {
            0 => Ok(fields),
            error => Err(Errno(error.unsigned_abs() as u16)),
        };
        if question.is_about_terms() {
            self.agree(answer);
        } else if let Some(answer) = question.end(answer) {
            self.take_back(question.give_back, &answer);
        }
        detour::look_again();
        Ok(total)
    }

    /// The server has said its terms.
    fn agree(&self, answer: Result<Vec<u8>, Errno>) {
        let terms = answer.ok().and_then(|fields| FuseTerms::read(&fields).ok());
        match terms.filter(|terms| terms.version.0 == VERSION.0 && terms.version.1 >= MINOR_MIN) {
            Some(terms) => {
                let mut requests = self.requests.lock();
                if requests.phase == ConnectionPhase::Starting {
                    let write_max = terms.write_max.max(WRITE_MIN);
                    requests.phase = ConnectionPhase::Serving { write_max };
                }
            }
            None => self.end(Errno::ECONNREFUSED),
        }
    }

    /// Gives back what an answer gave to nobody.
    fn take_back(&self, what: GiveBack, answer: &[u8]) {
        let mut reader = FuseReader::new(answer);
        match what {
            GiveBack::Nothing => {}
            GiveBack::Node | GiveBack::Created => {
                let Ok(entry) = FuseEntry::read(&mut reader) else { return };
                if let (GiveBack::Created, Ok(handle)) = (what, reader.u64()) {
                    self.release(super::file::release(entry.node, handle, 0, false));
                }
                self.forget(entry.node, 1);
            }
            GiveBack::Open(node, is_directory) => {
                if let Ok(handle) = reader.u64() {
                    self.release(super::file::release(node, handle, 0, is_directory));
                }
            }
        }
    }

    /// The server may forget so many looks at a node.
    pub fn forget(&self, node: u64, looks: u64) {
        if node == 0 || node == heddle_kernel_core::fuse::ROOT_ID || looks == 0 {
            return;
        }
        self.tell(FuseMessage::new(opcode::FORGET, node, 8).map(|mut message| {
            message.u64(looks);
            message
        }));
    }
}

impl FuseQuestion {
    /// Whether it is `INIT`, which is about no node and asks for an answer.
    fn is_about_terms(&self) -> bool {
        self.message.get(4..8) == Some(&opcode::INIT.to_ne_bytes()[..])
    }

    /// It is answered. An answer that nobody waits for comes back.
    fn end(&self, answer: Result<Vec<u8>, Errno>) -> Option<Vec<u8>> {
        let mut progress = self.progress.lock();
        if matches!(*progress, FuseProgress::Waiting) {
            *progress = FuseProgress::Answered(answer);
            return None;
        }
        drop(progress);
        answer.ok()
    }
}

/// A notification. Those that invalidate need nothing here, since nothing is kept that they are about but attributes,
/// which the server has vouched for.
fn notified(kind: i32, buffer: &mut IoBuffer<'_>, total: usize) -> TryResult<usize> {
    const INVALIDATE_NODE: i32 = 2;
    const INVALIDATE_ENTRY: i32 = 3;
    const DELETE: i32 = 6;
    if !matches!(kind, INVALIDATE_NODE | INVALIDATE_ENTRY | DELETE) {
        return Err(Errno::EINVAL.into());
    }
    buffer.skip(total - ANSWER_HEADER_BYTES);
    Ok(total)
}
