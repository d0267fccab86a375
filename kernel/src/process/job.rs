//! Process groups, sessions and their terminals.

use alloc::sync::Arc;
use core::sync::atomic::AtomicUsize;

use crate::error::Errno;
use crate::process::{Process, table};
use crate::sync::SpinLock;

/// What a session needs of its controlling terminal.
///
/// The terminal knows its session and foreground group by number ([`Group::id`], [`Session::id`]) and reaches
/// processes through [`crate::signal::send_to_group`].
pub trait ControllingTerminal: Send + Sync {
    /// The device number, as in `/proc/PID/stat`.
    fn device(&self) -> u64;

    /// The foreground process group, 0 if there is none.
    fn foreground_group(&self) -> i32;

    /// The terminal becomes the controlling terminal of a session, with its first foreground group.
    fn adopt(&self, session: i32, foreground_group: i32);

    /// The session leader has ended or given the terminal up: forget the session and the foreground group, and on
    /// the leader's end hang up.
    fn release(&self, hang_up: bool);

    /// Opens the terminal once more, for `/dev/tty`.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn open(self: Arc<Self>) -> Result<Arc<dyn crate::fs::File>, Errno>;
}

/// A session, setsid(2). Its number stays taken as long as one of its groups exists.
pub struct Session {
    /// The pid of the process that made it.
    pub id: i32,
    terminal: SpinLock<Option<Arc<dyn ControllingTerminal>>>,
    /// Its groups; counted by the table.
    pub(super) groups: AtomicUsize,
}

impl Session {
    /// A session without a terminal.
    pub const fn new(id: i32) -> Self {
        Self { id, terminal: SpinLock::new(None), groups: AtomicUsize::new(0) }
    }

    /// The controlling terminal.
    #[must_use]
    pub fn terminal(&self) -> Option<Arc<dyn ControllingTerminal>> {
        self.terminal.lock().clone()
    }

    /// Changes the controlling terminal and returns the one before.
    pub fn set_terminal(
        &self,
        terminal: Option<Arc<dyn ControllingTerminal>>,
    ) -> Option<Arc<dyn ControllingTerminal>> {
        core::mem::replace(&mut *self.terminal.lock(), terminal)
    }
}

/// A process group. Its number stays taken as long as one of its processes exists.
pub struct Group {
    /// The pid of the process it was made for.
    pub id: i32,
    /// Its session.
    pub session: Arc<Session>,
    /// Its processes, zombies included; counted by the table.
    pub(super) members: AtomicUsize,
}

impl Group {
    /// A group without processes.
    #[must_use]
    pub const fn new(id: i32, session: Arc<Session>) -> Self {
        Self { id, session, members: AtomicUsize::new(0) }
    }
}

/// Whether no process of the group has a parent in another group of the same session: nobody could continue it after a
/// stop, so the terminal's stop signals don't stop it.
#[must_use]
pub fn is_orphaned(process: &Process) -> bool {
    let group = process.group();
    let table = table::lock();
    let has_minder = |member: &Process| {
        member.parent().is_some_and(|parent| {
            let theirs = parent.group();
            theirs.id != group.id && theirs.session.id == group.session.id
        })
    };
    let is_orphaned =
        !table.processes().any(|member| member.group.lock().id == group.id && has_minder(member));
    drop(table);
    is_orphaned
}

/// Whether a process of the group is stopped.
pub(super) fn has_stopped_member(group: i32) -> bool {
    let table = table::lock();
    let is_stopped = |process: &Process| {
        let state = process.state.lock();
        state.stop.is_some() && !state.threads.is_empty()
    };
    let found = table.processes().any(|process| process.group.lock().id == group && is_stopped(process));
    drop(table);
    found
}
