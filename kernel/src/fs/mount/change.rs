//! Adding, copying and moving mounts, and what propagation makes of it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general::CAP_SYS_ADMIN;

use crate::error::Errno;
use crate::fs::mount::sharing::{CopyKind, PropagationTargets};
use crate::fs::mount::{Mount, MountSet, Path, Propagation, Topology, lock, writers};
use crate::fs::{Dentry, FileType};
use crate::process::Credentials;
use crate::process::user_namespace::{Users, is_same};

use heddle_kernel_core::fallible::push_reserved;

fn is_directory(entry: &Dentry) -> bool {
    entry.node.kind() == FileType::Directory
}

/// The place on which a mount at `place` would come to lie, on top of all that is there.
fn mount_point(_: &Topology, place: Path) -> Result<Path, Errno> {
    let place = place.covered();
    if place.entry.is_removed() { Err(Errno::ENOENT) } else { Ok(place) }
}

/// The mounts below another that a copy of it takes along, beside the ordinary ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyScope {
    with_unbindable: bool,
    /// Files of mount namespaces, of which a younger one might come to hold an older.
    with_namespaces: bool,
}

impl CopyScope {
    /// Another namespace.
    pub(super) const NAMESPACE: Self = Self { with_unbindable: true, with_namespaces: false };
    /// Another place of the same namespace.
    const BIND: Self = Self { with_unbindable: false, with_namespaces: true };
    /// Wherever propagation leads.
    const PROPAGATION: Self = Self { with_unbindable: false, with_namespaces: false };

    fn takes(self, mount: &Arc<Mount>) -> bool {
        (self.with_unbindable || !mount.is_unbindable())
            && (self.with_namespaces || !is_mount_namespace(mount))
    }
}

/// Whether it shows the file of a mount namespace.
fn is_mount_namespace(mount: &Arc<Mount>) -> bool {
    mount.namespace_order().is_some_and(|order| order != u64::MAX)
}

/// A copy of a mount from `root` on, with what is mounted below that. `each` is told every mount and its copy.
///
/// # Errors
/// `ENOMEM`, `ENOSPC`.
pub(super) fn copy_tree(
    topology: &Topology,
    source: &Arc<Mount>,
    root: Arc<Dentry>,
    kind: CopyKind,
    scope: CopyScope,
    each: &mut dyn FnMut(&Arc<Mount>, &Arc<Mount>),
) -> Result<Arc<Mount>, Errno> {
    let top = source.copy(topology, root, kind)?;
    each(source, &top);
    let copied = copy_children(topology, source, &top, kind, scope, each);
    match copied {
        Ok(()) => Ok(top),
        Err(error) => {
            take_apart(topology, &top);
            Err(error)
        }
    }
}

fn copy_children(
    topology: &Topology,
    source: &Arc<Mount>,
    top: &Arc<Mount>,
    kind: CopyKind,
    scope: CopyScope,
    each: &mut dyn FnMut(&Arc<Mount>, &Arc<Mount>),
) -> Result<(), Errno> {
    let mut pairs: Vec<(Arc<Mount>, Arc<Mount>)> = Vec::new();
    pairs.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    push_reserved(&mut pairs, (source.clone(), top.clone()));
    let mut next = 0;
    while let Some((from, to)) = pairs.get(next).cloned() {
        next += 1;
        for (at, child) in children(&from)? {
            let is_seen = next > 1 || at.is_in(&top.root);
            if !is_seen || !scope.takes(&child) {
                continue;
            }
            pairs.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            to.reserve_child()?;
            let copy = child.copy(topology, child.root.clone(), kind)?;
            copy.attach_reserved(topology, Path { mount: to.clone(), entry: at });
            each(&child, &copy);
            push_reserved(&mut pairs, (child, copy));
        }
    }
    Ok(())
}

/// The mounts in another, each with its place.
type Children = Vec<(Arc<Dentry>, Arc<Mount>)>;

fn children(mount: &Arc<Mount>) -> Result<Children, Errno> {
    let position = mount.position.lock();
    let mut found = Vec::new();
    found.try_reserve_exact(position.children.len()).map_err(|_| Errno::ENOMEM)?;
    for child in &position.children {
        push_reserved(&mut found, (child.at.clone(), child.mount.clone()));
    }
    Ok(found)
}

/// A mount of the tree in which nothing is mounted: the one that is reached by always taking the last.
pub(super) fn leaf(top: &Arc<Mount>) -> Arc<Mount> {
    let mut mount = top.clone();
    loop {
        let position = mount.position.lock();
        let last = position.children.iter().rev().find(|child| !child.is_left);
        let last = last.map(|child| child.mount.clone());
        drop(position);
        match last {
            Some(child) => mount = child,
            None => return mount,
        }
    }
}

/// Takes one mount out of everything: its tree, its namespace, its peers. Returns its place, which must be dropped
/// without the lock.
pub(super) fn take_out(topology: &Topology, mount: &Arc<Mount>) -> Option<Path> {
    mount.make_private(topology);
    MountSet::leave(topology, mount);
    mount.detach(topology)
}

/// As [`take_out`], for a mount in another that goes as well: a locked one stays on what it covers.
pub(super) fn take_out_below(topology: &Topology, mount: &Arc<Mount>) -> Option<Path> {
    if !mount.is_locked() {
        return take_out(topology, mount);
    }
    mount.make_private(topology);
    MountSet::leave(topology, mount);
    mount.leave_in_place(topology)
}

/// Takes a tree of copies apart that was never seen: none of them is the last of its file system.
pub(super) fn take_apart(topology: &Topology, top: &Arc<Mount>) {
    loop {
        let mount = leaf(top);
        let at = take_out(topology, &mount);
        if at.is_none() {
            return;
        }
    }
}

/// Takes a whole tree apart, mount by mount, so that the lock is not held for long. `last` is called with the lock held
/// before the top goes.
pub(super) fn dissolve(top: Arc<Mount>, last: impl FnOnce(&Topology)) {
    loop {
        let topology = lock();
        let mount = leaf(&top);
        if Arc::ptr_eq(&mount, &top) {
            last(&topology);
            let at = take_out(&topology, &top);
            drop(topology);
            drop(at);
            return;
        }
        let at = take_out_below(&topology, &mount);
        drop(topology);
        drop((at, mount));
    }
}

/// A copy for propagation, and where it goes.
struct Planned {
    copy: Arc<Mount>,
    at: Path,
}

/// Copies `source` for all that a mounting of it at `at` reaches.
fn plan(
    topology: &Topology,
    source: &Arc<Mount>,
    at: &Path,
    receivers: &PropagationTargets,
    planned: &mut Vec<Planned>,
) -> Result<(), Errno> {
    // All copies count against each set: the sum also bounds what happens under the lock.
    let mut total = source.subtree(topology)?.len();
    let mut templates: Vec<Option<Arc<Mount>>> = Vec::new();
    templates.try_reserve_exact(receivers.levels.len()).map_err(|_| Errno::ENOMEM)?;
    for level in 0..receivers.levels.len() {
        push_reserved(&mut templates, (level == 0).then(|| source.clone()));
    }
    for receiver in &receivers.mounts {
        let Some(set) = receiver.mount.set() else { continue };
        if !at.entry.is_in(&receiver.mount.root) {
            continue;
        }
        // The copy that the group has already, or else that of the next one above.
        let mut level = receiver.level;
        let template = loop {
            match &templates[level] {
                Some(template) => break template.clone(),
                None => level = receivers.levels[level],
            }
        };
        let kind = match (receiver.is_peer, level == receiver.level) {
            (true, true) => CopyKind::Same,
            (true, false) => CopyKind::Slave { is_shared: true },
            (false, _) => CopyKind::Slave { is_shared: false },
        };
        planned.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        if is_mount_namespace(&template) {
            return Err(Errno::EINVAL);
        }
        let (mut count, scope) = (0, CopyScope::PROPAGATION);
        let root = template.root.clone();
        let copy = copy_tree(topology, &template, root, kind, scope, &mut |_, _| count += 1)?;
        let place = Path { mount: receiver.mount.clone(), entry: at.entry.clone() };
        push_reserved(planned, Planned { copy: copy.clone(), at: place });
        total += count;
        set.check_room(total)?;
        receiver.mount.reserve_child()?;
        copy.reserve_child()?;
        if receiver.is_peer {
            templates[receiver.level] = Some(copy);
        }
    }
    Ok(())
}

/// Puts a mount, with what is in it, at a place, and copies of it where propagation takes them.
fn graft(topology: &Topology, source: &Arc<Mount>, at: Path) -> Result<(), Errno> {
    let set = at.mount.set().ok_or(Errno::EINVAL)?;
    let mounts = source.subtree(topology)?;
    if !source.is_in(&set) {
        set.check_room(mounts.len())?;
    }
    at.mount.reserve_child()?;
    let mut planned: Vec<Planned> = Vec::new();
    if at.mount.is_shared() {
        let mut shared: Vec<Arc<Mount>> = Vec::new();
        shared.try_reserve_exact(mounts.len()).map_err(|_| Errno::ENOMEM)?;
        let done = mounts.iter().try_for_each(|mount| {
            if mount.make_shared(topology)? {
                push_reserved(&mut shared, mount.clone());
            }
            Ok(())
        });
        let done = done
            .and_then(|()| at.mount.receivers(topology))
            .and_then(|receivers| plan(topology, source, &at, &receivers, &mut planned));
        if let Err(error) = done {
            for plan in &planned {
                take_apart(topology, &plan.copy);
            }
            for mount in &shared {
                mount.undo_shared(topology);
            }
            return Err(error);
        }
    }
    let before = source.detach(topology);
    source.attach_reserved(topology, at);
    for mount in &mounts {
        set.enter(topology, mount);
    }
    drop(before);
    for Planned { copy, at } in planned {
        settle(topology, &copy, at, set.owner());
    }
    Ok(())
}

/// Puts a copy where propagation takes it, under a mount that lies there. In a namespace with another owner than that
/// of the change it keeps its settings, and what is in it its places.
fn settle(topology: &Topology, copy: &Arc<Mount>, at: Path, owner: &Users) {
    let Some(set) = at.mount.set() else { return };
    let is_less = !is_same(set.owner(), owner);
    let above = at.mount.child_on(&at.entry);
    if let Some(above) = &above {
        let _ = above.detach(topology);
    }
    let mut mount = copy.clone();
    copy.attach_reserved(topology, at);
    // The tree is walked without memory: down to the first, and on to the next one beside or above.
    loop {
        set.enter(topology, &mount);
        if is_less {
            mount.lock_settings(!Arc::ptr_eq(&mount, copy));
        }
        mount = match next_in(copy, &mount) {
            Some(next) => next,
            None => break,
        };
    }
    if let Some(above) = above {
        above.attach_reserved(topology, copy.top());
    }
}

/// The mount that follows in the tree below `top`, each before what is mounted in it.
fn next_in(top: &Arc<Mount>, mount: &Arc<Mount>) -> Option<Arc<Mount>> {
    let first = mount.position.lock().children.first().map(|child| child.mount.clone());
    if first.is_some() {
        return first;
    }
    let mut current = mount.clone();
    while !Arc::ptr_eq(&current, top) {
        let parent = current.at()?.mount;
        let position = parent.position.lock();
        let index = position.children.iter().position(|child| Arc::ptr_eq(&child.mount, &current))?;
        if let Some(next) = position.children.get(index + 1) {
            return Some(next.mount.clone());
        }
        drop(position);
        current = parent;
    }
    None
}

/// Shows a mount that is in no tree yet at a place, which must be in the namespace `own`.
///
/// # Errors
/// `EINVAL` (another namespace), `EBUSY` (the same file system lies there), `ENOTDIR`, `ENOENT`, `ENOSPC`, `ENOMEM`.
pub fn add(own: &Arc<MountSet>, mount: &Arc<Mount>, place: Path) -> Result<(), Errno> {
    let topology = lock();
    let at = mount_point(&topology, place)?;
    if !at.mount.is_in(own) {
        return Err(Errno::EINVAL);
    }
    if at.is_mount_root() && Arc::ptr_eq(&at.mount.file_system, &mount.file_system) {
        return Err(Errno::EBUSY);
    }
    if is_directory(&at.entry) != is_directory(&mount.root) {
        return Err(Errno::ENOTDIR);
    }
    graft(&topology, mount, at)
}

fn check_bind(own: &Arc<MountSet>, source: &Path) -> Result<(), Errno> {
    // A namespace's file is found through `/proc`, whatever mounts there are.
    let is_own = source.mount.is_in(own) || source.entry.node.namespace_order().is_some();
    let may = is_own && !source.mount.is_unbindable() && own.may_hold(&source.entry);
    if may { Ok(()) } else { Err(Errno::EINVAL) }
}

fn copy_for_bind(topology: &Topology, source: &Path, is_recursive: bool) -> Result<Arc<Mount>, Errno> {
    let root = source.entry.clone();
    let copy = if is_recursive {
        copy_tree(topology, &source.mount, root, CopyKind::Same, CopyScope::BIND, &mut |_, _| ())?
    } else {
        // Mounts that may not be taken away cover something, which must not be seen elsewhere.
        if children(&source.mount)?.iter().any(|(at, child)| child.is_locked() && at.is_in(&root)) {
            return Err(Errno::EINVAL);
        }
        source.mount.copy(topology, root, CopyKind::Same)?
    };
    copy.unlock();
    Ok(copy)
}

/// Shows what is at `source` at a further place: `MS_BIND`.
///
/// # Errors
/// `EINVAL` (unbindable, or another namespace), `ENOTDIR`, `ENOENT`, `ENOSPC`, `ENOMEM`.
pub fn bind(own: &Arc<MountSet>, source: &Path, place: Path, is_recursive: bool) -> Result<(), Errno> {
    let topology = lock();
    let at = mount_point(&topology, place)?;
    if !at.mount.is_in(own) {
        return Err(Errno::EINVAL);
    }
    check_bind(own, source)?;
    let copy = copy_for_bind(&topology, source, is_recursive)?;
    let done = if is_directory(&at.entry) == is_directory(&copy.root) {
        graft(&topology, &copy, at)
    } else {
        Err(Errno::ENOTDIR)
    };
    done.inspect_err(|_| take_apart(&topology, &copy))
}

/// A copy of what is at a place, which is in no namespace: `OPEN_TREE_CLONE`.
///
/// # Errors
/// `EINVAL` (unbindable, or another namespace), `ENOSPC`, `ENOMEM`.
pub fn detached_copy(
    own: &Arc<MountSet>,
    source: &Path,
    is_recursive: bool,
) -> Result<crate::fs::mount::MountNamespace, Errno> {
    let topology = lock();
    check_bind(own, source)?;
    let copy = copy_for_bind(&topology, source, is_recursive)?;
    drop(topology);
    let made = crate::fs::mount::MountNamespace::anonymous(own, &copy);
    made.inspect_err(|_| take_apart(&lock(), &copy))
}

/// Moves a mount, or a tree that was in no namespace, to another place.
///
/// # Errors
/// `EINVAL` (not a mount, in another namespace, in a shared one, of another kind), `ELOOP` (into itself, or the file of
/// an older mount namespace), `ENOENT`, `ENOSPC`, `ENOMEM`.
pub fn move_to(own: &Arc<MountSet>, source: &Path, place: Path) -> Result<(), Errno> {
    let topology = lock();
    let at = mount_point(&topology, place)?;
    let mount = &source.mount;
    let set = mount.set().ok_or(Errno::EINVAL)?;
    let parent = mount.at();
    let is_ours = match &parent {
        Some(_) => mount.is_in(own),
        None => set.is_anonymous() && set.is_root(mount),
    };
    if !at.mount.is_in(own) || !is_ours || !source.is_mount_root() || mount.is_locked() {
        return Err(Errno::EINVAL);
    }
    if is_directory(&at.entry) != is_directory(&source.entry) {
        return Err(Errno::EINVAL);
    }
    if parent.is_some_and(|parent| parent.mount.is_shared()) {
        return Err(Errno::EINVAL);
    }
    let mounts = mount.subtree(&topology)?;
    if at.mount.is_shared() && mounts.iter().any(|mount| mount.is_unbindable()) {
        return Err(Errno::EINVAL);
    }
    if mounts.iter().any(|mount| !own.may_hold(&mount.root)) {
        return Err(Errno::ELOOP);
    }
    let mut above = at.clone();
    loop {
        if Arc::ptr_eq(&above.mount, mount) {
            return Err(Errno::ELOOP);
        }
        match above.mount.at() {
            Some(next) => above = next,
            None => break,
        }
    }
    graft(&topology, mount, at)?;
    if set.is_anonymous() {
        drop(set.take_root(&topology));
    }
    Ok(())
}

/// Sets how changes in a mount, and with `is_recursive` in all below it, reach others: of any namespace in whose owner
/// these credentials may do all.
///
/// # Errors
/// `EINVAL` (not a mount, or in no namespace), `EPERM`, `ENOMEM`.
pub fn set_propagation(
    who: &Credentials,
    place: &Path,
    kind: Propagation,
    is_recursive: bool,
) -> Result<(), Errno> {
    if !place.is_mount_root() {
        return Err(Errno::EINVAL);
    }
    let topology = lock();
    let set = place.mount.set().ok_or(Errno::EINVAL)?;
    if !who.is_capable_in(set.owner(), CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    if !is_recursive {
        return place.mount.propagate_as(&topology, kind);
    }
    let mounts = place.mount.subtree(&topology)?;
    mounts.iter().try_for_each(|mount| mount.propagate_as(&topology, kind))
}

/// Changes a mount, and with `is_recursive` all below it: its propagation, and its flags as `flags` says.
///
/// # Errors
/// `EINVAL` (not a mount, or of another namespace), `EPERM` (flags that are kept), `EBUSY` (it was to be read-only, and
/// a file is open to be written through it), `ENOMEM`.
pub fn change_attributes(
    own: &Arc<MountSet>,
    place: &Path,
    is_recursive: bool,
    kind: Option<Propagation>,
    flags: impl Fn(u32) -> u32,
) -> Result<(), Errno> {
    if !place.is_mount_root() {
        return Err(Errno::EINVAL);
    }
    let topology = lock();
    let set = place.mount.set().ok_or(Errno::EINVAL)?;
    let is_detached = set.is_anonymous() && set.is_root(&place.mount);
    if !is_detached && !place.mount.is_in(own) {
        return Err(Errno::EINVAL);
    }
    let mut mounts = place.mount.subtree(&topology)?;
    if !is_recursive {
        mounts.truncate(1);
    }
    // All or none.
    if mounts.iter().any(|mount| !mount.may_have_flags(flags(mount.flags()))) {
        return Err(Errno::EPERM);
    }
    writers::make_read_only(&topology, &mounts, &flags)?;
    for mount in mounts {
        if let Some(kind) = kind {
            mount.propagate_as(&topology, kind)?;
        }
        mount.change_flags(&topology, flags(mount.flags()));
    }
    Ok(())
}

/// pivot_root(2): the mount at `new` becomes the root, and the one that is `root` goes to `old`.
///
/// # Errors
/// `EINVAL` (not mounts, shared ones, not below one another), `EBUSY` (the same), `ENOENT`, `ENOMEM`.
pub fn pivot(own: &Arc<MountSet>, new: &Path, old: Path, root: &Path) -> Result<(), Errno> {
    let topology = lock();
    let old = mount_point(&topology, old)?;
    let (new_at, root_at) = (new.mount.at(), root.mount.at());
    let is_shared = |at: &Option<Path>| at.as_ref().is_some_and(|at| at.mount.is_shared());
    if old.mount.is_shared() || is_shared(&new_at) || is_shared(&root_at) {
        return Err(Errno::EINVAL);
    }
    if !root.mount.is_in(own) || !new.mount.is_in(own) || new.mount.is_locked() {
        return Err(Errno::EINVAL);
    }
    if new.entry.is_removed() {
        return Err(Errno::ENOENT);
    }
    if Arc::ptr_eq(&new.mount, &root.mount) || Arc::ptr_eq(&old.mount, &root.mount) {
        return Err(Errno::EBUSY);
    }
    let Some(root_at) = root_at.filter(|_| root.is_mount_root()) else { return Err(Errno::EINVAL) };
    if !new.is_mount_root() || new_at.is_none() {
        return Err(Errno::EINVAL);
    }
    if !old.is_reachable_from(new) || !new.is_reachable_from(root) {
        return Err(Errno::EINVAL);
    }
    old.mount.reserve_child()?;
    root_at.mount.reserve_child()?;
    let _ = new.mount.detach(&topology);
    let _ = root.mount.detach(&topology);
    // The new root covers from now on what the old one covers.
    if root.mount.is_locked() {
        new.mount.lock_in_place();
        root.mount.unlock();
    }
    root.mount.attach_reserved(&topology, old);
    new.mount.attach_reserved(&topology, root_at);
    own.touch(&topology);
    Ok(())
}
