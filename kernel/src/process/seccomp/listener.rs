//! The listener of a filter, seccomp_unotify(2): an open file from which another process reads which calls wait, and
//! through which it decides about them.
//!
//! The filter and the file share a [`FilterListener`]; neither keeps the other alive. A thread that asks waits in its
//! own coroutine ([`FilterListener::ask`]): a reply wakes it alone, the end of the file all that wait. A descriptor
//! for it is put into its table by the listener itself while the questions are locked, so the thread cannot have gone
//! on.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use heddle_kernel_core::seccomp::CallData;
use heddle_kernel_core::seccomp::notify::{ListenerReply, NotAsked, NotPut, Questions, State};

use crate::arch::UserContext;
use crate::call::Caller;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::{File, OpenFile, StatusFlags};
use crate::memory::{Space, fallible};
use crate::process::Thread;
use crate::random;
use crate::sync::SpinLock;
use crate::wait::node::WaitKind;
use crate::wait::queue::{Events, WaitQueue, Watch};

/// Bytes of `struct seccomp_notif`, `struct seccomp_notif_resp` and `struct seccomp_data`.
pub const SIZES: [u16; 3] = [80, 24, 64];
/// The first of them, and where its fields are.
pub const NOTIFICATION_BYTES: usize = SIZES[0] as usize;
const PID_AT: usize = 8;
const DATA_AT: usize = 16;

/// A call that waits.
struct Question {
    thread: Arc<Thread>,
    data: CallData,
}

/// See the module.
pub struct FilterListener {
    questions: SpinLock<Questions<Question>>,
    /// Readers, and those who poll the file.
    readers: WaitQueue,
    /// Threads that ask; it is woken when nobody listens any more.
    askers: WaitQueue,
    /// Once a call has been read, only the thread's death ends its wait: `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`.
    is_killable: bool,
    /// No thread has the filter any more.
    is_unused: AtomicBool,
}

impl From<NotAsked> for Errno {
    fn from(reason: NotAsked) -> Self {
        match reason {
            NotAsked::Unknown => Self::ENOENT,
            NotAsked::NotOpen => Self::EINPROGRESS,
        }
    }
}

/// A descriptor to be put into the table of a thread that asks.
pub struct NewDescriptor {
    /// The open file.
    pub open: Arc<OpenFile>,
    /// The number that it gets, if not the lowest free one.
    pub number: Option<i32>,
    /// Whether `execve` closes it.
    pub close_on_exec: bool,
    /// Whether its number is the call's result.
    pub is_reply: bool,
}

impl FilterListener {
    /// A listener that nothing has been asked.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(is_killable: bool) -> Result<Arc<Self>, Errno> {
        let mut seed = [0; size_of::<u64>()];
        random::fill(&mut seed);
        fallible::try_arc(Self {
            // No program asks so often that the numbers come to an end.
            questions: SpinLock::new(Questions::new(u64::from_ne_bytes(seed) >> 1)),
            readers: WaitQueue::new(),
            askers: WaitQueue::new(),
            is_killable,
            is_unused: AtomicBool::new(false),
        })
    }

    /// Its open file.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn open(self: &Arc<Self>) -> Result<Arc<OpenFile>, Errno> {
        let file = fallible::try_arc(ListenerFile(self.clone()))?;
        fallible::try_arc(OpenFile::new(file, StatusFlags::RDWR))
    }

    /// Whether nobody listens any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.questions.lock().is_closed()
    }

    /// The last thread with the filter has ended.
    pub(super) fn filter_ends(&self) {
        self.is_unused.store(true, Ordering::Release);
        self.readers.wake(Events::HUP | Events::IN);
    }

    /// Puts the question whether a call is to be carried out. If not, the registers have its result.
    ///
    /// # Errors
    /// `ERESTARTSYS`: a signal has ended the wait.
    pub async fn ask(
        &self,
        caller: &Caller,
        context: &mut UserContext,
        data: CallData,
    ) -> Result<bool, Errno> {
        let question = Question { thread: (**caller).clone(), data };
        let put = self.questions.lock().put(question);
        let id = match put {
            Ok(id) => id,
            Err(reason) => {
                let error = if reason == NotPut::Closed { Errno::ENOSYS } else { Errno::ENOMEM };
                context.set_result(error.to_result());
                return Ok(false);
            }
        };
        self.readers.wake(Events::IN | Events::RDNORM);
        let waited = self.wait(caller, id).await;
        let removed = self.questions.lock().remove(id);
        match (removed.and_then(|(reply, _)| reply), waited) {
            (Some(reply), _) if reply.is_continued => Ok(true),
            (Some(reply), _) => {
                let value = if reply.error == 0 { reply.value } else { reply.error.into() };
                context.set_result(value as usize);
                Ok(false)
            }
            (None, waited) => {
                let error = waited.err().unwrap_or(Errno::ERESTARTSYS);
                context.set_result(error.to_result());
                Err(error)
            }
        }
    }

    /// Waits for the reply.
    async fn wait(&self, caller: &Caller, id: u64) -> Result<(), Errno> {
        let is_killable = |state| self.is_killable && state == Some(State::Received);
        let mut kind = WaitKind::Interruptible;
        loop {
            let waited = caller
                .wait_until(kind, |watch| {
                    self.askers.watch(watch, Events::all())?;
                    let state = self.questions.lock().state(id);
                    Ok(match state {
                        Some(State::Replied(_)) => Some(true),
                        state if kind == WaitKind::Interruptible && is_killable(state) => Some(false),
                        _ => None,
                    })
                })
                .await;
            match waited {
                Ok(true) => return Ok(()),
                Ok(false) => kind = WaitKind::Killable,
                Err(error) => {
                    // A signal that comes with the reader is for later.
                    if kind == WaitKind::Killable || !is_killable(self.questions.lock().state(id)) {
                        return Err(error);
                    }
                    kind = WaitKind::Killable;
                }
            }
        }
    }

    /// Hands out the next call that waits, to `reader`, as `struct seccomp_notif` at `address`.
    ///
    /// # Errors
    /// `ENOENT` (the call that was announced has ended), a page fault; it would block.
    pub fn receive(&self, reader: &Thread, space: &Space, address: usize) -> TryResult<usize> {
        // The number needs the table of processes, which is locked before this lock, not within it.
        let next = {
            let mut questions = self.questions.lock();
            if !questions.has_request() {
                let is_unused = self.is_unused.load(Ordering::Acquire);
                return Err(if is_unused { Errno::ENOENT.into() } else { TryError::WouldBlock });
            }
            let next = questions.next().map(|(id, question)| (id, question.thread.tid()));
            if next.is_none() {
                questions.receive(None);
                return Err(Errno::ENOENT.into());
            }
            next
        };
        let Some((id, tid)) = next else { return Err(Errno::ENOENT.into()) };
        let shown = reader.process.shown(tid);
        let mut questions = self.questions.lock();
        let Some(data) = questions.next().filter(|next| next.0 == id).map(|(_, question)| question.data)
        else {
            // Another reader has it, or it has ended. There may be a next one.
            return Err(TryError::WouldBlock);
        };
        let mut bytes = [0; NOTIFICATION_BYTES];
        bytes[..PID_AT].copy_from_slice(&id.to_ne_bytes());
        bytes[PID_AT..PID_AT + size_of::<i32>()].copy_from_slice(&shown.to_ne_bytes());
        bytes[DATA_AT..].copy_from_slice(&data.to_bytes());
        space.write_bytes(address, &bytes)?;
        questions.receive(Some(id));
        if self.is_killable
            && let Ok(question) = questions.asker(id)
        {
            question.thread.wake();
        }
        drop(questions);
        self.readers.wake(Events::OUT | Events::WRNORM);
        Ok(0)
    }

    /// Decides about a call.
    ///
    /// # Errors
    /// `ENOENT` (it waits no more), `EINPROGRESS` (nobody has read it, or it is decided).
    pub fn reply(&self, id: u64, reply: ListenerReply) -> Result<(), Errno> {
        let mut questions = self.questions.lock();
        questions.reply(id, reply)?.thread.wake();
        Ok(())
    }

    /// Whether the call still waits for the decision of who has read of it.
    #[must_use]
    pub fn is_valid(&self, id: u64) -> bool {
        self.questions.lock().asker(id).is_ok()
    }

    /// Gives the thread that asks a descriptor; returns its number.
    ///
    /// # Errors
    /// `ENOENT`, `EINPROGRESS`, and those of the thread's table: `EMFILE`, `EBADF`, `ENOMEM`.
    pub fn give(&self, id: u64, new: NewDescriptor) -> Result<i32, Errno> {
        let mut questions = self.questions.lock();
        let thread = questions.asker(id)?.thread.clone();
        let (table, limit) = (thread.descriptors(), thread.process.descriptor_limit());
        let (number, replaced) = match new.number {
            None => (table.add(new.open, 0, limit, new.close_on_exec)?, None),
            Some(number) => (number, table.replace(number, new.open, limit, new.close_on_exec)?),
        };
        if new.is_reply {
            questions
                .reply(id, ListenerReply { value: number.into(), ..ListenerReply::default() })?
                .thread
                .wake();
        }
        drop(questions);
        if let Some(replaced) = replaced {
            let _ = replaced.closed_by(thread.process.pid);
        }
        Ok(number)
    }

    /// Registers a reader.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch(&self, watch: &Watch) -> Result<bool, Errno> {
        self.readers.watch(watch, Events::IN | Events::RDNORM | Events::HUP)?;
        Ok(self.questions.lock().has_request() || self.is_unused.load(Ordering::Acquire))
    }
}

/// The file of a listener.
pub struct ListenerFile(pub Arc<FilterListener>);

impl File for ListenerFile {
    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.0.readers.watch(watch, events)?;
        }
        let mut ready = Events::empty();
        let questions = self.0.questions.lock();
        ready.set(Events::IN | Events::RDNORM, questions.has_new());
        ready.set(Events::OUT | Events::WRNORM, questions.has_open());
        ready.set(Events::HUP, self.0.is_unused.load(Ordering::Acquire));
        Ok(ready)
    }

    fn name(&self) -> &'static str {
        "anon_inode:seccomp notify"
    }

    fn released(&self, _: &OpenFile) {
        let error = -i32::from(Errno::ENOSYS.0);
        self.0.questions.lock().close(ListenerReply { error, ..ListenerReply::default() });
        self.0.askers.wake(Events::all());
    }
}
