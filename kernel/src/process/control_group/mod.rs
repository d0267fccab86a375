//! Control groups, cgroups(7): the hierarchy of version 2, and what its groups count and limit.
//!
//! A process is in one group with all its threads ([`place`]). The root is no object for those who are in it: a process
//! without a [`Groups`] costs a fork nothing. Numbers that count for a group and for all above it are changed level by
//! level, of which there are at most [`LEVELS_MAX`]. A group has no list of its members: each process is asked.
//!
//! Whoever changes the hierarchy, or moves a process, holds [`Hierarchy`], Linux's `cgroup_mutex`. It comes before the
//! table of processes, and the places of processes come last.

pub mod bandwidth;
pub mod cpu;
pub mod freeze;
pub mod memory;
mod place;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use heddle_kernel_core::cgroup::{Controllers, GroupShape, LEVELS_MAX};
use heddle_kernel_core::fallible::{insert_reserved, push_reserved};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::dentry::copy_name;
use crate::fs::{Inode, notify};
use crate::memory::charge::GroupMemory;
use crate::memory::fallible;
use crate::process::control_group::bandwidth::GroupBandwidth;
use crate::process::control_group::cpu::GroupCpu;
use crate::sync::{SpinGuard, SpinLock};
use crate::wait::queue::{Events, WaitQueue};

pub use crate::process::control_group::place::{ControlPlace, LevelChange, move_process, tell_refused};

/// A group that processes are in; none for the root.
pub type Groups = Option<Arc<ControlGroup>>;

/// The controllers that there are.
pub const CONTROLLERS: Controllers = Controllers::CPU.union(Controllers::MEMORY).union(Controllers::PIDS);
/// The most groups, as many as Linux has numbers for.
const GROUPS_MAX: u32 = 65_535;
/// The number of the root.
const ROOT_NUMBER: u64 = 1;

/// A file of a group that tells of changes: programs poll it, or have inotify(7) watch it.
pub struct EventFile {
    /// Its name, by which its node is found.
    pub name: &'static [u8],
    changes: AtomicU64,
    /// Those who poll it.
    pub queue: WaitQueue,
}

impl EventFile {
    const fn new(name: &'static [u8]) -> Self {
        Self { name, changes: AtomicU64::new(0), queue: WaitQueue::new() }
    }

    /// How many changes there were.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }
}

/// The numbers of threads of a group and those below.
#[derive(Default)]
struct ThreadCounts {
    /// Threads, and processes that nobody has waited for.
    tasks: AtomicU64,
    /// Threads.
    live: AtomicU64,
    /// Threads that are frozen.
    frozen: AtomicU64,
    /// Threads of the group itself.
    own_live: AtomicU64,
}

/// A node that a group keeps, under the name of its file.
type GroupNode = (&'static [u8], Arc<dyn Inode>);

/// The place of a group in the hierarchy. Changed with the hierarchy locked.
struct Branch {
    /// The groups in it, in the order in which they were made.
    children: Vec<Arc<ControlGroup>>,
    /// The same in the order of their names.
    by_name: Vec<Arc<ControlGroup>>,
    /// The controllers that it has enabled for them.
    enabled: Controllers,
    is_removed: bool,
    max_depth: u64,
    max_descendants: u64,
}

/// The limit on threads.
pub struct ThreadLimit {
    /// The most, or `u64::MAX`.
    pub max: AtomicU64,
    /// How often a fork in this group was refused.
    pub refusals: AtomicU64,
}

/// A control group.
pub struct ControlGroup {
    /// The number of its directory.
    pub number: u64,
    name: Box<[u8]>,
    /// The group that it is in; none for the root.
    pub parent: Option<Arc<ControlGroup>>,
    /// How many groups it is in.
    pub level: u32,
    counts: ThreadCounts,
    branch: SpinLock<Branch>,
    /// Groups below it, and those of them that are removed but still named by a process.
    descendants: AtomicU32,
    dying: AtomicU32,
    /// Its threads are to stand still, and those below.
    is_freezing: AtomicBool,
    /// The last answer of `cgroup.events` about that.
    was_frozen: AtomicBool,
    /// The limit on threads.
    pub threads: ThreadLimit,
    /// User and system time of processes that have left it, in nanoseconds.
    used: [AtomicU64; 2],
    /// `cgroup.events`.
    pub events: EventFile,
    /// `pids.events`.
    pub thread_events: EventFile,
    /// Its part in the processors.
    pub cpu: GroupCpu,
    /// The limit on the time of its processes.
    pub bandwidth: GroupBandwidth,
    /// The memory of its processes.
    pub memory: Arc<GroupMemory>,
    /// `memory.events` and `memory.events.local`.
    pub memory_events: [EventFile; 2],
    /// The nodes of its directory and files, by name; the directory's has none.
    nodes: SpinLock<Vec<GroupNode>>,
}

static ROOT: spin::Once<Arc<ControlGroup>> = spin::Once::new();
static HIERARCHY: SpinLock<()> = SpinLock::new(());
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(ROOT_NUMBER + 1);
/// How many groups there are, the root and removed ones included.
static GROUP_COUNT: AtomicU32 = AtomicU32::new(0);

/// The right to change the hierarchy.
pub struct Hierarchy {
    _guard: SpinGuard<'static, ()>,
}

/// Waits for the right to change the hierarchy.
#[must_use]
pub fn lock() -> Hierarchy {
    Hierarchy { _guard: HIERARCHY.lock() }
}

/// The root.
///
/// # Errors
/// `ENOMEM`.
pub fn root() -> Result<&'static Arc<ControlGroup>, Errno> {
    ROOT.try_call_once(|| ControlGroup::make(b"", None))
}

/// The number of groups, removed ones not included.
#[must_use]
pub fn group_count() -> u32 {
    ROOT.get().map_or(1, |root| root.descendants.load(Ordering::Relaxed) + 1)
}

impl ControlGroup {
    fn make(name: &[u8], parent: Option<&Arc<Self>>) -> Result<Arc<Self>, Errno> {
        let branch = Branch {
            children: Vec::new(),
            by_name: Vec::new(),
            enabled: Controllers::empty(),
            is_removed: false,
            max_depth: u64::MAX,
            max_descendants: u64::MAX,
        };
        let number = if parent.is_none() { ROOT_NUMBER } else { NEXT_NUMBER.fetch_add(1, Ordering::Relaxed) };
        // The root has no numbers, so that nothing is counted there.
        let above = parent.filter(|parent| !parent.is_root()).map(|parent| parent.memory.clone());
        let memory = fallible::try_arc(GroupMemory::new(above))?;
        // Dropped on failure, which counts it back.
        GROUP_COUNT.fetch_add(1, Ordering::Relaxed);
        fallible::try_arc(Self {
            number,
            name: copy_name(name)?,
            parent: parent.cloned(),
            level: parent.map_or(0, |parent| parent.level + 1),
            counts: ThreadCounts::default(),
            branch: SpinLock::new(branch),
            descendants: AtomicU32::new(0),
            dying: AtomicU32::new(0),
            is_freezing: AtomicBool::new(false),
            was_frozen: AtomicBool::new(false),
            threads: ThreadLimit { max: AtomicU64::new(u64::MAX), refusals: AtomicU64::new(0) },
            used: [AtomicU64::new(0), AtomicU64::new(0)],
            events: EventFile::new(b"cgroup.events"),
            thread_events: EventFile::new(b"pids.events"),
            cpu: GroupCpu::new(),
            bandwidth: GroupBandwidth::new(),
            memory,
            memory_events: [EventFile::new(b"memory.events"), EventFile::new(b"memory.events.local")],
            nodes: SpinLock::new(Vec::new()),
        })
    }

    /// The object of a group that processes are in.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn of(groups: &Groups) -> Result<Arc<Self>, Errno> {
        match groups {
            Some(group) => Ok(group.clone()),
            None => root().cloned(),
        }
    }

    /// The group as processes have it.
    #[must_use]
    pub fn as_groups(self: &Arc<Self>) -> Groups {
        (!self.is_root()).then(|| self.clone())
    }

    /// Whether it is the root.
    #[must_use]
    pub const fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    /// Its name, empty for the root.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// It and the groups that it is in, without the root.
    fn upwards(&self) -> impl Iterator<Item = &Self> {
        core::iter::successors(Some(self), |group| group.parent.as_deref()).filter(|group| !group.is_root())
    }

    /// Whether it is `other` or in it.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        other.is_root() || self.upwards().any(|group| group.number == other.number)
    }

    /// Whether it has been removed.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.branch.lock().is_removed
    }

    /// The controllers that it has: those that its parent has enabled.
    #[must_use]
    pub fn controllers(&self) -> Controllers {
        match &self.parent {
            None => CONTROLLERS,
            Some(parent) => parent.enabled(),
        }
    }

    /// The controllers that it has enabled for the groups in it.
    #[must_use]
    pub fn enabled(&self) -> Controllers {
        self.branch.lock().enabled
    }

    /// How many groups are below it, and how many of these are removed but not gone.
    #[must_use]
    pub fn descendants(&self) -> (u32, u32) {
        (self.descendants.load(Ordering::Relaxed), self.dying.load(Ordering::Relaxed))
    }

    /// The limits on levels and groups below it; each can be set.
    pub fn with_limits<R>(&self, f: impl FnOnce(&mut u64, &mut u64) -> R) -> R {
        let branch = &mut *self.branch.lock();
        f(&mut branch.max_depth, &mut branch.max_descendants)
    }

    /// Threads in it and below, with processes that nobody has waited for.
    #[must_use]
    pub fn tasks(&self) -> u64 {
        self.counts.tasks.load(Ordering::Relaxed)
    }

    /// Whether a thread is in it or below.
    #[must_use]
    pub fn is_populated(&self) -> bool {
        self.counts.live.load(Ordering::Relaxed) > 0
    }

    /// User and system time of the processes that have left it or what is below, in nanoseconds.
    #[must_use]
    pub fn used(&self) -> (u64, u64) {
        let [user, system] = &self.used;
        (user.load(Ordering::Relaxed), system.load(Ordering::Relaxed))
    }

    fn shape(&self) -> GroupShape {
        let (live, own) =
            (self.counts.live.load(Ordering::Relaxed), self.counts.own_live.load(Ordering::Relaxed));
        GroupShape {
            is_root: self.is_root(),
            has_threads: own > 0,
            has_populated_children: live > own,
            enabled: self.enabled(),
        }
    }

    /// The value of `cgroup.type`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        if self.upwards().skip(1).any(|above| above.shape().is_thread_root()) {
            return "domain invalid";
        }
        if self.shape().is_thread_root() { "domain threaded" } else { "domain" }
    }

    /// The node of its file of this name.
    #[must_use]
    pub fn node(&self, name: &[u8]) -> Option<Arc<dyn Inode>> {
        let nodes = self.nodes.lock();
        nodes.iter().find(|(known, _)| *known == name).map(|(_, node)| node.clone())
    }

    /// Keeps the node of a file, unless there is one; returns the one that is kept.
    ///
    /// # Errors
    /// `ENODEV` (the group is removed), `ENOMEM`.
    pub fn keep_node(&self, name: &'static [u8], node: Arc<dyn Inode>) -> Result<Arc<dyn Inode>, Errno> {
        let mut nodes = self.nodes.lock();
        if let Some((_, known)) = nodes.iter().find(|(known, _)| *known == name) {
            return Ok(known.clone());
        }
        // The lock of the nodes is held by whoever empties them, after the mark was set.
        if self.is_removed() {
            return Err(Errno::ENODEV);
        }
        nodes.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        push_reserved(&mut nodes, (name, node.clone()));
        Ok(node)
    }

    /// Tells those who watch one of its event files.
    pub fn tell(&self, file: &EventFile) {
        file.changes.fetch_add(1, Ordering::Relaxed);
        file.queue.wake(Events::PRI | Events::ERR);
        if !notify::is_idle()
            && let Some(node) = self.node(file.name)
        {
            let node: Arc<dyn Inode> = node;
            notify::report_self(&node, linux::IN_MODIFY);
        }
    }

    /// The group in it of this name.
    #[must_use]
    pub fn child(&self, name: &[u8]) -> Option<Arc<Self>> {
        let branch = self.branch.lock();
        let found = branch.by_name.binary_search_by(|child| child.name().cmp(name));
        found.ok().map(|place| branch.by_name[place].clone())
    }

    /// The oldest group in it whose number is above this.
    #[must_use]
    pub fn child_after(&self, number: u64) -> Option<Arc<Self>> {
        let branch = self.branch.lock();
        let place = branch.children.partition_point(|child| child.number <= number);
        branch.children.get(place).cloned()
    }

    /// A new group in this one, which `equip` gives its node before anybody sees it.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT` (the group is removed), `EAGAIN` (no more levels or groups are allowed), `ENOMEM`, and what
    /// `equip` says.
    pub fn add(
        self: &Arc<Self>,
        name: &[u8],
        equip: impl FnOnce(&Arc<Self>) -> Result<(), Errno>,
    ) -> Result<Arc<Self>, Errno> {
        let made = Self::make(name, Some(self))?;
        let result = equip(&made).and_then(|()| self.insert(&made));
        if let Err(error) = result {
            made.forget_nodes();
            return Err(error);
        }
        Ok(made)
    }

    fn insert(self: &Arc<Self>, made: &Arc<Self>) -> Result<(), Errno> {
        let hierarchy = lock();
        if GROUP_COUNT.load(Ordering::Relaxed) > GROUPS_MAX || made.level > LEVELS_MAX {
            return Err(Errno::EAGAIN);
        }
        let mut next = Some(self);
        while let Some(above) = next {
            let has_room = above.with_limits(|depth, descendants| {
                u64::from(made.level - above.level) <= *depth
                    && u64::from(above.descendants.load(Ordering::Relaxed)) < *descendants
            });
            if !has_room {
                return Err(Errno::EAGAIN);
            }
            next = above.parent.as_ref();
        }
        let mut branch = self.branch.lock();
        if branch.is_removed {
            return Err(Errno::ENOENT);
        }
        let Err(place) = branch.by_name.binary_search_by(|child| child.name().cmp(made.name())) else {
            return Err(Errno::EEXIST);
        };
        branch.by_name.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        branch.children.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        insert_reserved(&mut branch.by_name, place, made.clone());
        let place = branch.children.partition_point(|child| child.number < made.number);
        insert_reserved(&mut branch.children, place, made.clone());
        drop(branch);
        self.count_descendants(|group| group.descendants.fetch_add(1, Ordering::Relaxed));
        drop(hierarchy);
        Ok(())
    }

    /// Calls `count` for it and all above, the root included.
    fn count_descendants(&self, count: impl Fn(&Self) -> u32) {
        let mut next = Some(self);
        while let Some(group) = next {
            count(group);
            next = group.parent.as_deref();
        }
    }

    /// Removes the group, in which nothing may be.
    ///
    /// # Errors
    /// `EBUSY`, `ENOENT` (it is removed already).
    pub fn remove(self: &Arc<Self>) -> Result<(), Errno> {
        let Some(parent) = &self.parent else { return Err(Errno::EBUSY) };
        let hierarchy = lock();
        let mut branch = self.branch.lock();
        if branch.is_removed {
            return Err(Errno::ENOENT);
        }
        if !branch.children.is_empty() || self.counts.own_live.load(Ordering::Relaxed) > 0 {
            return Err(Errno::EBUSY);
        }
        branch.is_removed = true;
        drop(branch);
        let mut above = parent.branch.lock();
        let named = above.by_name.iter().position(|child| Arc::ptr_eq(child, self));
        let listed = above.children.iter().position(|child| Arc::ptr_eq(child, self));
        let old = (
            named.map(|place| above.by_name.remove(place)),
            listed.map(|place| above.children.remove(place)),
        );
        drop(above);
        parent.count_descendants(|group| {
            group.dying.fetch_add(1, Ordering::Relaxed);
            group.descendants.fetch_sub(1, Ordering::Relaxed)
        });
        drop(hierarchy);
        drop(old);
        self.forget_nodes();
        Ok(())
    }

    /// Lets go of the nodes, which hold the group.
    fn forget_nodes(&self) {
        let nodes = core::mem::take(&mut *self.nodes.lock());
        for (_, node) in nodes {
            if let Some(marks) = node.marks() {
                marks.nameless();
            }
        }
    }

    /// Changes which controllers are enabled for the groups in it.
    ///
    /// # Errors
    /// `ENODEV` (it is removed), `EBUSY` (one of them has enabled what is to go, or threads are in it), `EOPNOTSUPP`
    /// (threads above it share a domain), and what `change` says.
    pub fn change_enabled(
        &self,
        change: impl FnOnce(Controllers) -> Result<Controllers, Errno>,
    ) -> Result<(), Errno> {
        let _hierarchy = lock();
        let shape = self.shape();
        let is_among_threads = self.upwards().skip(1).any(|above| above.shape().is_thread_root());
        let mut branch = self.branch.lock();
        if branch.is_removed {
            return Err(Errno::ENODEV);
        }
        let changed = change(branch.enabled)?;
        let (added, gone) = (changed - branch.enabled, branch.enabled - changed);
        if branch.children.iter().any(|child| child.branch.lock_below(1).enabled.intersects(gone)) {
            return Err(Errno::EBUSY);
        }
        if !added.is_empty() && is_among_threads {
            return Err(Errno::EOPNOTSUPP);
        }
        if !shape.may_enable(added) {
            return Err(Errno::EBUSY);
        }
        branch.enabled = changed;
        if gone.contains(Controllers::PIDS) {
            // A limit goes with its controller.
            branch.children.iter().for_each(|child| child.threads.max.store(u64::MAX, Ordering::Relaxed));
        }
        if gone.contains(Controllers::CPU) {
            for child in &branch.children {
                child.cpu.reset();
                child.bandwidth.reset();
            }
        }
        if added.contains(Controllers::CPU) {
            cpu::begin();
        }
        if gone.contains(Controllers::MEMORY) {
            for child in &branch.children {
                child.memory.set_max(usize::MAX);
                child.memory.ends_as_whole.store(false, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Whether a process may come into it.
    ///
    /// # Errors
    /// `ENODEV` (it is removed), `EBUSY`, `EOPNOTSUPP`.
    pub fn check_entry(&self, _: &Hierarchy) -> Result<(), Errno> {
        if self.is_removed() {
            return Err(Errno::ENODEV);
        }
        if self.upwards().skip(1).any(|above| above.shape().is_thread_root()) {
            return Err(Errno::EOPNOTSUPP);
        }
        if self.shape().may_have_processes() { Ok(()) } else { Err(Errno::EBUSY) }
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        GROUP_COUNT.fetch_sub(1, Ordering::Relaxed);
        if self.branch.get_mut().is_removed
            && let Some(parent) = &self.parent
        {
            parent.count_descendants(|group| group.dying.fetch_sub(1, Ordering::Relaxed));
        }
    }
}

/// The innermost group that both are in.
#[must_use]
pub fn common<'a>(one: &'a Arc<ControlGroup>, other: &'a Arc<ControlGroup>) -> &'a Arc<ControlGroup> {
    let (mut one, mut other) = (one, other);
    while one.number != other.number {
        match (&one.parent, &other.parent) {
            (Some(parent), _) if one.level >= other.level => one = parent,
            (_, Some(parent)) => other = parent,
            _ => return one,
        }
    }
    one
}

/// Writes the path of a group as one sees it whose root is `from`.
///
/// # Errors
/// Those of `push`.
pub fn write_path(
    from: &Groups,
    to: &Groups,
    push: &mut dyn FnMut(&[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let (from, to) = (ControlGroup::of(from)?, ControlGroup::of(to)?);
    let shared = common(&from, &to);
    for _ in shared.level..from.level {
        push(b"/..")?;
    }
    for level in shared.level + 1..=to.level {
        let Some(group) = to.upwards().find(|group| group.level == level) else { break };
        push(b"/")?;
        push(group.name())?;
    }
    if from.level == shared.level && to.level == shared.level {
        push(b"/")?;
    }
    Ok(())
}
