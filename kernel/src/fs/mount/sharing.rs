//! Propagation: which mounts a mounting or unmounting reaches beside its own, mount_namespaces(7).
//!
//! Shared mounts that show each other's changes form a [`PeerGroup`]. A slave gets the changes of its master group and
//! gives none; a group can itself be the slave of another. Linux moves the slaves of a group that has lost its last
//! member to that group's own master. Here the empty group stays in between, as long as it has slaves: changes pass
//! through it, and whoever asks for a master is told the next group above that has members.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::error::Errno;
use crate::fs::mount::{Mount, Path, Topology};
use crate::memory::fallible;
use crate::sync::SpinLock;

use heddle_kernel_core::fallible::push_reserved;

/// The kinds of propagation that mount(2) sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// Changes go to the peers, and come from them.
    Shared,
    /// They neither come nor go.
    Private,
    /// They come from the group that the mount leaves.
    Slave,
    /// As private; and it can't be bound.
    Unbindable,
}

/// The part of a mount in propagation.
pub(super) struct Sharing {
    /// Its peers.
    group: Option<Arc<PeerGroup>>,
    /// The group whose slave it is, of a mount without peers; a group has its own.
    master: Option<Arc<PeerGroup>>,
    is_unbindable: bool,
}

impl Sharing {
    pub(super) const PRIVATE: Self = Self { group: None, master: None, is_unbindable: false };
}

/// Mounts that show each other's changes.
pub(super) struct PeerGroup {
    /// The number in `/proc/PID/mountinfo`.
    id: u32,
    /// The group whose slave this one is.
    master: Option<Arc<PeerGroup>>,
    state: SpinLock<GroupState>,
}

struct GroupState {
    members: Vec<Weak<Mount>>,
    slave_mounts: Vec<Weak<Mount>>,
    slave_groups: Vec<Weak<PeerGroup>>,
}

static NEXT_GROUP: AtomicU32 = AtomicU32::new(1);

fn add<T>(list: &mut Vec<Weak<T>>, item: &Arc<T>) -> Result<(), Errno> {
    // Not each time: there may be thousands.
    if list.len() == list.capacity() {
        list.retain(|known| known.strong_count() > 0);
    }
    list.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    push_reserved(list, Arc::downgrade(item));
    Ok(())
}

fn remove<T>(list: &mut Vec<Weak<T>>, item: &Arc<T>) {
    // Those that came last mostly go first.
    if let Some(index) = list.iter().rposition(|known| core::ptr::eq(known.as_ptr(), Arc::as_ptr(item))) {
        drop(list.swap_remove(index));
    }
}

/// Those of a list that still exist.
fn living<T>(list: &[Weak<T>]) -> Result<Vec<Arc<T>>, Errno> {
    let mut found = Vec::new();
    found.try_reserve_exact(list.len()).map_err(|_| Errno::ENOMEM)?;
    for item in list.iter().filter_map(Weak::upgrade) {
        push_reserved(&mut found, item);
    }
    Ok(found)
}

impl PeerGroup {
    fn new(master: Option<Arc<PeerGroup>>) -> Result<Arc<Self>, Errno> {
        let state = GroupState { members: Vec::new(), slave_mounts: Vec::new(), slave_groups: Vec::new() };
        let id = NEXT_GROUP.fetch_add(1, Ordering::Relaxed);
        let group = fallible::try_arc(Self { id, master: master.clone(), state: SpinLock::new(state) })?;
        if let Some(master) = master {
            add(&mut master.state.lock().slave_groups, &group)?;
        }
        Ok(group)
    }

    fn members(&self) -> Result<Vec<Arc<Mount>>, Errno> {
        living(&self.state.lock().members)
    }

    fn slave_mounts(&self) -> Result<Vec<Arc<Mount>>, Errno> {
        living(&self.state.lock().slave_mounts)
    }

    fn slave_groups(&self) -> Result<Vec<Arc<PeerGroup>>, Errno> {
        living(&self.state.lock().slave_groups)
    }

    fn is_empty(&self) -> bool {
        self.state.lock().members.iter().all(|member| member.strong_count() == 0)
    }
}

impl Drop for PeerGroup {
    /// Lets go of a chain of masters step by step: a program decides how long it is.
    fn drop(&mut self) {
        let mut master = self.master.take();
        while let Some(group) = master {
            master = Arc::into_inner(group).and_then(|mut group| group.master.take());
        }
    }
}

/// The first group from this one upwards that has members.
fn living_master(group: Option<Arc<PeerGroup>>) -> Option<Arc<PeerGroup>> {
    let mut master = group;
    while let Some(group) = &master {
        if !group.is_empty() {
            break;
        }
        master = group.master.clone();
    }
    master
}

/// How a copy of a mount takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyKind {
    /// As the mount itself: a further peer, or a further slave of the same master.
    Same,
    /// A slave of the mount's group, and the first of a group of its own where it is to be shared.
    Slave { is_shared: bool },
}

impl Mount {
    /// Whether its changes go to others.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.sharing.lock().group.is_some()
    }

    /// Whether it can't be bound.
    #[must_use]
    pub fn is_unbindable(&self) -> bool {
        self.sharing.lock().is_unbindable
    }

    fn group(&self) -> Option<Arc<PeerGroup>> {
        self.sharing.lock().group.clone()
    }

    /// The group whose slave it is, through its own group or by itself.
    fn master(&self) -> Option<Arc<PeerGroup>> {
        let sharing = self.sharing.lock();
        match &sharing.group {
            Some(group) => group.master.clone(),
            None => sharing.master.clone(),
        }
    }

    /// The number of its group.
    #[must_use]
    pub fn group_id(&self) -> Option<u32> {
        self.sharing.lock().group.as_ref().map(|group| group.id)
    }

    /// The number of its master group, and that of the nearest one above with a member that can be seen from `root`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn master_ids(&self, _: &Topology, root: &Path) -> Result<Option<(u32, Option<u32>)>, Errno> {
        let Some(first) = living_master(self.master()) else { return Ok(None) };
        let set = self.set();
        let mut group = Some(first.clone());
        while let Some(current) = group {
            let is_visible = |member: &Arc<Mount>| {
                set.as_ref().is_some_and(|set| member.is_in(set)) && member.top().is_reachable_from(root)
            };
            if current.members()?.iter().any(is_visible) {
                return Ok(Some((first.id, Some(current.id))));
            }
            group = current.master.clone();
        }
        Ok(Some((first.id, None)))
    }

    /// Becomes a member of a group.
    fn join(self: &Arc<Self>, group: &Arc<PeerGroup>) -> Result<(), Errno> {
        add(&mut group.state.lock().members, self)?;
        self.sharing.lock().group = Some(group.clone());
        Ok(())
    }

    /// Becomes a slave without peers.
    fn follow(self: &Arc<Self>, master: Arc<PeerGroup>) -> Result<(), Errno> {
        add(&mut master.state.lock().slave_mounts, self)?;
        self.sharing.lock().master = Some(master);
        Ok(())
    }

    /// Leaves group and master, which are returned.
    fn leave(self: &Arc<Self>) -> (Option<Arc<PeerGroup>>, Option<Arc<PeerGroup>>) {
        let mut sharing = self.sharing.lock();
        let (group, master) = (sharing.group.take(), sharing.master.take());
        drop(sharing);
        if let Some(group) = &group {
            remove(&mut group.state.lock().members, self);
        }
        if let Some(master) = &master {
            remove(&mut master.state.lock().slave_mounts, self);
        }
        (group, master)
    }

    /// Takes no part in propagation any more.
    pub(super) fn make_private(self: &Arc<Self>, _: &Topology) {
        let _ = self.leave();
    }

    /// Makes it the first member of a group unless it is in one; returns whether it was made so.
    pub(super) fn make_shared(self: &Arc<Self>, _: &Topology) -> Result<bool, Errno> {
        if self.is_shared() {
            return Ok(false);
        }
        let group = PeerGroup::new(self.master())?;
        self.join(&group)?;
        let master = self.sharing.lock().master.take();
        if let Some(master) = master {
            remove(&mut master.state.lock().slave_mounts, self);
        }
        Ok(true)
    }

    /// Takes [`Mount::make_shared`] back. Without memory to become a slave again it is private.
    pub(super) fn undo_shared(self: &Arc<Self>, _: &Topology) {
        let (group, _) = self.leave();
        if let Some(master) = group.and_then(|group| group.master.clone()) {
            let _ = self.follow(master);
        }
    }

    /// Sets its propagation.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn propagate_as(
        self: &Arc<Self>,
        topology: &Topology,
        kind: Propagation,
    ) -> Result<(), Errno> {
        match kind {
            Propagation::Shared => {
                let _was_made = self.make_shared(topology)?;
                self.sharing.lock().is_unbindable = false;
            }
            Propagation::Slave => {
                let Some(group) = self.group() else { return Ok(()) };
                let _ = self.leave();
                if let Some(master) = living_master(Some(group)) {
                    self.follow(master)?;
                }
            }
            Propagation::Private | Propagation::Unbindable => {
                let _ = self.leave();
                self.sharing.lock().is_unbindable = kind == Propagation::Unbindable;
            }
        }
        Ok(())
    }

    /// A copy that shows its file system from `root` on.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`.
    pub(super) fn copy(
        self: &Arc<Self>,
        _: &Topology,
        root: Arc<crate::fs::Dentry>,
        kind: CopyKind,
    ) -> Result<Arc<Mount>, Errno> {
        let copy = Mount::of(self.file_system.clone(), root, &self.source, self.flags())?;
        self.pass_locks(&copy);
        copy.sharing.lock().is_unbindable = self.is_unbindable();
        let joined = match (kind, self.group()) {
            (CopyKind::Same, Some(group)) => copy.join(&group),
            (CopyKind::Slave { is_shared: true }, Some(group)) => {
                PeerGroup::new(Some(group)).and_then(|group| copy.join(&group))
            }
            (CopyKind::Slave { is_shared: false }, Some(group)) => copy.follow(group),
            (CopyKind::Same | CopyKind::Slave { .. }, None) => match self.master() {
                Some(master) => copy.follow(master),
                None => Ok(()),
            },
        };
        if joined.is_err() {
            let _ = copy.leave();
        }
        joined.map(|()| copy)
    }

    /// The other mounts that a change in this one reaches.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn receivers(self: &Arc<Self>, _: &Topology) -> Result<PropagationTargets, Errno> {
        let mut found = PropagationTargets { mounts: Vec::new(), levels: Vec::new() };
        let Some(group) = self.group() else { return Ok(found) };
        let mut groups: Vec<Arc<PeerGroup>> = Vec::new();
        let enter = |groups: &mut Vec<_>, levels: &mut Vec<usize>, group, above| -> Result<(), Errno> {
            groups.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            levels.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            push_reserved(groups, group);
            push_reserved(levels, above);
            Ok(())
        };
        enter(&mut groups, &mut found.levels, group, 0)?;
        let mut level = 0;
        while let Some(group) = groups.get(level).cloned() {
            let (members, slaves) = (group.members()?, group.slave_mounts()?);
            found.mounts.try_reserve(members.len() + slaves.len()).map_err(|_| Errno::ENOMEM)?;
            for mount in members.into_iter().filter(|mount| !Arc::ptr_eq(mount, self)) {
                push_reserved(&mut found.mounts, PropagationTarget { mount, level, is_peer: true });
            }
            for mount in slaves {
                push_reserved(&mut found.mounts, PropagationTarget { mount, level, is_peer: false });
            }
            for slave in group.slave_groups()? {
                enter(&mut groups, &mut found.levels, slave, level)?;
            }
            level += 1;
        }
        Ok(found)
    }
}

/// The mounts that a change in another reaches.
pub(super) struct PropagationTargets {
    pub(super) mounts: Vec<PropagationTarget>,
    /// For each group, by its level, the level of the group whose slave it is. Level 0 is that of the changed mount.
    pub(super) levels: Vec<usize>,
}

/// One of them.
pub(super) struct PropagationTarget {
    pub(super) mount: Arc<Mount>,
    /// The group through which it is reached.
    pub(super) level: usize,
    /// Whether it is a member of that group; else it is a slave of it, without peers.
    pub(super) is_peer: bool,
}
