//! Process groups, sessions and their terminals.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::AtomicUsize;
use heddle_kernel_core::fallible::push_reserved;
use heddle_kernel_core::signal_state::{Link, is_orphaned as orphan_rule};

use crate::error::Errno;
use crate::process::table::PidTable;
use crate::process::{Process, table};
use crate::sync::SpinLock;

/// The operations of a controlling terminal that a session needs.
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

    /// The line is as good as gone: every open file of the terminal is dead from now on, and the session is told.
    fn hang_up(&self);

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
    /// Its processes, zombies included. Changed with the table locked.
    members: SpinLock<Vec<Weak<Process>>>,
}

impl Group {
    /// A group without processes.
    #[must_use]
    pub const fn new(id: i32, session: Arc<Session>) -> Self {
        Self { id, session, members: SpinLock::new(Vec::new()) }
    }

    /// Makes room for one more member; it stays as long as the table is locked.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn reserve(&self) -> Result<(), Errno> {
        self.members.lock().try_reserve(1).map_err(|_| Errno::ENOMEM)
    }

    /// Adds a member; there is room. Returns whether it is the first.
    pub(super) fn enter(&self, process: &Arc<Process>) -> bool {
        let mut members = self.members.lock();
        process.set_place_in_group(members.len());
        push_reserved(&mut members, Arc::downgrade(process));
        members.len() == 1
    }

    /// Takes a member out. Returns whether it was the last.
    pub(super) fn remove(&self, process: &Process) -> bool {
        let mut members = self.members.lock();
        let place = process.place_in_group();
        if members.get(place).is_some_and(|member| core::ptr::eq(member.as_ptr(), process)) {
            members.swap_remove(place);
            if let Some(moved) = members.get(place).and_then(Weak::upgrade) {
                moved.set_place_in_group(place);
            }
        }
        members.is_empty()
    }

    fn member(&self, place: usize) -> Option<Option<Arc<Process>>> {
        self.members.lock().get(place).map(Weak::upgrade)
    }

    /// The members, zombies included. The table is locked, so they stay.
    pub(super) fn members<'a>(&'a self, _: &'a PidTable) -> impl Iterator<Item = Arc<Process>> + 'a {
        (0..).map_while(|place| self.member(place)).flatten()
    }

    /// Visits the members, zombies included.
    pub fn for_each(&self, table: &PidTable, visit: impl FnMut(&Arc<Process>)) {
        let mut visit = visit;
        self.members(table).for_each(|member| visit(&member));
    }

    /// Whether no living member but `ignored` has a parent that could continue it after a stop.
    pub(super) fn is_orphaned_without(&self, ignored: Option<&Process>, table: &PidTable) -> bool {
        let counts = |member: &Arc<Process>| {
            ignored.is_none_or(|ignored| !core::ptr::eq(&raw const **member, ignored))
                && member.exit_status().is_none()
        };
        let link = |member: Arc<Process>| {
            let theirs = member.parent()?.group();
            Some(Link { parent_group: theirs.id, parent_session: theirs.session.id })
        };
        let links = self.members(table).filter(counts).filter_map(link);
        orphan_rule(self.id, self.session.id, links)
    }

    /// Whether a process of the group is stopped, or about to stop.
    pub(super) fn has_stopped_member(&self, table: &PidTable) -> bool {
        self.members(table).any(|process| {
            let state = process.signal_state();
            state.is_stopping() && !state.threads().is_empty()
        })
    }
}

/// Whether no process of the group has a parent in another group of the same session: nobody could continue it after a
/// stop, so the terminal's stop signals don't stop it.
#[must_use]
pub fn is_orphaned(process: &Process) -> bool {
    let group = process.group();
    let table = table::lock();
    let is_orphaned = group.is_orphaned_without(None, &table);
    drop(table);
    is_orphaned
}
