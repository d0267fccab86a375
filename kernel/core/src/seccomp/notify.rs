//! The questions that a filter puts to its listener, seccomp_unotify(2): calls that wait for another process's
//! decision.
//!
//! Identifiers grow and questions are handed out in their order, so the list is sorted, and all that have not been
//! handed out are at its end. A reader takes a *request*, of which there is one for each question that was ever put:
//! one whose question is gone again (a signal ended the call) is taken in vain, as in Linux.

use alloc::collections::VecDeque;

use crate::fallible::{AllocError, push_back_reserved};

/// The listener's decision about a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerReply {
    /// The call's result if there is no error.
    pub value: i64,
    /// An error, negated as a program gave it; it can be any number.
    pub error: i32,
    /// The call is carried out, and the rest does not count.
    pub is_continued: bool,
}

/// How far a question has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody has read it.
    New,
    /// The listener has it.
    Received,
    /// It is decided.
    Replied(ListenerReply),
}

/// The reason why a question can't be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAsked {
    /// There is none with this identifier.
    Unknown,
    /// It has not been read, or is decided.
    NotOpen,
}

/// The reason why a question can't be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotPut {
    /// Nobody listens any more.
    Closed,
    /// There is no memory for it.
    OutOfMemory,
}

impl From<AllocError> for NotPut {
    fn from(_: AllocError) -> Self {
        Self::OutOfMemory
    }
}

#[derive(Debug)]
struct Question<T> {
    id: u64,
    reply: Option<ListenerReply>,
    asker: T,
}

/// All questions of one filter that wait; `T` is who waits.
#[derive(Debug)]
pub struct Questions<T> {
    questions: VecDeque<Question<T>>,
    next_id: u64,
    /// Those from this identifier on have not been handed out.
    first_new: u64,
    /// Questions that were put and not yet asked for by a reader.
    requests: u64,
    /// Those that were handed out and are not decided.
    open: usize,
    /// The reply to all that is not decided, once nobody listens any more.
    at_end: Option<ListenerReply>,
}

impl<T> Questions<T> {
    /// None so far; identifiers begin with `first_id`, whose upper half is to have room to grow.
    #[must_use]
    pub const fn new(first_id: u64) -> Self {
        Self {
            questions: VecDeque::new(),
            next_id: first_id,
            first_new: first_id,
            requests: 0,
            open: 0,
            at_end: None,
        }
    }

    fn place(&self, id: u64) -> Option<usize> {
        self.questions.binary_search_by_key(&id, |question| question.id).ok()
    }

    /// Puts a question; returns its identifier.
    ///
    /// # Errors
    /// See [`NotPut`].
    pub fn put(&mut self, asker: T) -> Result<u64, NotPut> {
        if self.at_end.is_some() {
            return Err(NotPut::Closed);
        }
        self.questions.try_reserve(1).map_err(|_| NotPut::OutOfMemory)?;
        let id = self.next_id;
        self.next_id += 1;
        push_back_reserved(&mut self.questions, Question { id, reply: None, asker });
        self.requests += 1;
        Ok(id)
    }

    /// Whether a reader need not wait.
    #[must_use]
    pub const fn has_request(&self) -> bool {
        self.requests > 0
    }

    /// The question that a reader gets next, which stays new until [`Questions::receive`].
    #[must_use]
    pub fn next(&self) -> Option<(u64, &T)> {
        let first = self.questions.partition_point(|question| question.id < self.first_new);
        self.questions.get(first).map(|question| (question.id, &question.asker))
    }

    /// Takes a request and hands out what [`Questions::next`] told, if that was anything.
    pub fn receive(&mut self, id: Option<u64>) {
        self.requests = self.requests.saturating_sub(1);
        if let Some(id) = id {
            self.first_new = id + 1;
            self.open += 1;
        }
    }

    /// How far a question has come; `None` for one that is not there.
    #[must_use]
    pub fn state(&self, id: u64) -> Option<State> {
        let question = self.questions.get(self.place(id)?)?;
        Some(match question.reply.or(self.at_end) {
            Some(reply) => State::Replied(reply),
            None if id >= self.first_new => State::New,
            None => State::Received,
        })
    }

    /// The waiter for the answer to a question that the listener has.
    ///
    /// # Errors
    /// See [`NotAsked`].
    pub fn asker(&self, id: u64) -> Result<&T, NotAsked> {
        match self.state(id) {
            None => Err(NotAsked::Unknown),
            Some(State::Received) => {
                let place = self.place(id).ok_or(NotAsked::Unknown)?;
                self.questions.get(place).map(|question| &question.asker).ok_or(NotAsked::Unknown)
            }
            Some(_) => Err(NotAsked::NotOpen),
        }
    }

    /// Decides a question that the listener has; returns who waits for that.
    ///
    /// # Errors
    /// See [`NotAsked`].
    pub fn reply(&mut self, id: u64, reply: ListenerReply) -> Result<&T, NotAsked> {
        self.asker(id)?;
        let place = self.place(id).ok_or(NotAsked::Unknown)?;
        let question = self.questions.get_mut(place).ok_or(NotAsked::Unknown)?;
        question.reply = Some(reply);
        self.open = self.open.saturating_sub(1);
        Ok(&question.asker)
    }

    /// Takes a question away: its call goes on, with this reply or without one.
    pub fn remove(&mut self, id: u64) -> Option<(Option<ListenerReply>, T)> {
        if self.state(id) == Some(State::Received) {
            self.open = self.open.saturating_sub(1);
        }
        let question = self.questions.remove(self.place(id)?)?;
        Some((question.reply.or(self.at_end), question.asker))
    }

    /// Whether a question waits to be read.
    #[must_use]
    pub fn has_new(&self) -> bool {
        self.questions.back().is_some_and(|question| question.id >= self.first_new)
    }

    /// Whether a question waits for its answer.
    #[must_use]
    pub const fn has_open(&self) -> bool {
        self.open > 0
    }

    /// Nobody listens any more: what is not decided gets this reply, and nothing more is asked.
    pub const fn close(&mut self, reply: ListenerReply) {
        self.at_end = Some(reply);
        self.open = 0;
    }

    /// Whether nobody listens any more.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.at_end.is_some()
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests {
    use super::{ListenerReply, NotAsked, NotPut, Questions, State};

    const ENOSYS: ListenerReply = ListenerReply { value: 0, error: -38, is_continued: false };

    #[test]
    fn a_question_is_read_once_and_answered_once() {
        let mut questions = Questions::new(7);
        assert!(!questions.has_request() && !questions.has_new() && !questions.has_open());
        let (first, second) = (questions.put('a').unwrap(), questions.put('b').unwrap());
        assert_eq!((first, second), (7, 8));
        assert_eq!(questions.asker(first), Err(NotAsked::NotOpen));
        assert_eq!(questions.reply(first, ENOSYS).err(), Some(NotAsked::NotOpen));
        assert_eq!(questions.next(), Some((first, &'a')));
        questions.receive(Some(first));
        assert_eq!(questions.next(), Some((second, &'b')));
        assert!(questions.has_new() && questions.has_open());
        assert_eq!(questions.state(first), Some(State::Received));
        assert_eq!(questions.asker(first), Ok(&'a'));
        assert_eq!(questions.reply(first, ENOSYS), Ok(&'a'));
        assert!(!questions.has_open());
        assert_eq!(questions.reply(first, ENOSYS).err(), Some(NotAsked::NotOpen));
        assert_eq!(questions.remove(first), Some((Some(ENOSYS), 'a')));
        assert_eq!(questions.reply(first, ENOSYS).err(), Some(NotAsked::Unknown));
        assert_eq!(questions.remove(second), Some((None, 'b')));
    }

    #[test]
    fn a_request_outlives_its_question() {
        let mut questions = Questions::new(1);
        let id = questions.put(()).unwrap();
        assert_eq!(questions.remove(id), Some((None, ())));
        assert!(questions.has_request() && !questions.has_new());
        assert_eq!(questions.next(), None);
        questions.receive(None);
        assert!(!questions.has_request());
        // Those behind one that is gone are found.
        let (first, second) = (questions.put(()).unwrap(), questions.put(()).unwrap());
        questions.remove(first);
        assert_eq!(questions.next(), Some((second, &())));
    }

    #[test]
    fn a_received_question_that_goes_is_not_open() {
        let mut questions = Questions::new(1);
        let id = questions.put(()).unwrap();
        questions.receive(Some(id));
        assert!(questions.has_open());
        questions.remove(id);
        assert!(!questions.has_open());
    }

    #[test]
    fn the_end_of_the_listener_decides_all() {
        let mut questions = Questions::new(1);
        let given = ListenerReply { value: 5, ..ListenerReply::default() };
        let (first, second) = (questions.put('a').unwrap(), questions.put('b').unwrap());
        questions.receive(Some(first));
        questions.reply(first, given).unwrap();
        questions.close(ENOSYS);
        assert_eq!(questions.state(first), Some(State::Replied(given)));
        assert_eq!(questions.state(second), Some(State::Replied(ENOSYS)));
        assert_eq!(questions.put('c'), Err(NotPut::Closed));
        assert_eq!(questions.remove(second), Some((Some(ENOSYS), 'b')));
        assert!(questions.is_closed());
    }
}
