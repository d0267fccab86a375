//! Unmounting, and what propagation makes of it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::error::Errno;
use crate::fs::Dentry;
use crate::fs::mount::change::{leaf, take_out, take_out_below};
use crate::fs::mount::{Mount, MountSet, Path, Topology, lock, places};
use crate::sched::Budget;

use heddle_kernel_core::fallible::push_reserved;

/// Whether nobody but the tree and the caller, who holds it once, refers to a mount.
#[must_use]
pub fn is_unused(mount: &Arc<Mount>) -> bool {
    let of_kernel = super::ROOT.get().map_or(0, |root| usize::from(Arc::ptr_eq(&root.mount, mount)));
    Arc::strong_count(mount) <= 2 + of_kernel
}

/// The mount that lies on the root of this one, if that is all that is in it.
fn only_topper(mount: &Arc<Mount>) -> Option<Arc<Mount>> {
    let position = mount.position.lock();
    let mut staying = position.children.iter().filter(|child| !child.is_left);
    match (staying.next(), staying.next()) {
        (Some(child), None) if Arc::ptr_eq(&child.at, &mount.root) => Some(child.mount.clone()),
        _ => None,
    }
}

/// Whether the mount, or one that propagation would take along, is in use.
fn is_busy(topology: &Topology, mount: &Arc<Mount>) -> Result<bool, Errno> {
    if mount.has_children() || !is_unused(mount) {
        return Ok(true);
    }
    let Some(at) = mount.at() else { return Ok(false) };
    for receiver in at.mount.receivers(topology)?.mounts {
        let Some(child) = receiver.mount.child_on(&at.entry) else { continue };
        let has_topper = only_topper(&child).is_some();
        if child.has_children() && !has_topper {
            continue;
        }
        // The tree, this function, and the place of what lies on it.
        if Arc::strong_count(&child) > 2 + usize::from(has_topper) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The mounts that go along with those of a tree, each behind the one that it is mounted in. Those that go along with
/// its top are locked no more: what they cover is shown where more is allowed.
fn companions(topology: &Topology, tree: &[Arc<Mount>]) -> Result<Vec<Arc<Mount>>, Errno> {
    let mut found: Vec<Arc<Mount>> = Vec::new();
    for (index, mount) in tree.iter().enumerate() {
        let Some(at) = mount.at() else { continue };
        let receivers = at.mount.receivers(topology)?;
        found.try_reserve(receivers.mounts.len()).map_err(|_| Errno::ENOMEM)?;
        for receiver in receivers.mounts {
            let Some(child) = receiver.mount.child_on(&at.entry) else { continue };
            if index == 0 {
                child.unlock();
            }
            if !child.position.lock().is_leaving {
                push_reserved(&mut found, child);
            }
        }
    }
    Ok(found)
}

/// Whether nothing stays in a mount but at most one that lies on its root.
fn can_leave(mount: &Arc<Mount>) -> Result<bool, Errno> {
    let mut toppers = 0;
    let mut children = Vec::new();
    {
        let position = mount.position.lock();
        children.try_reserve_exact(position.children.len()).map_err(|_| Errno::ENOMEM)?;
        for child in &position.children {
            push_reserved(&mut children, (child.mount.clone(), Arc::ptr_eq(&child.at, &mount.root)));
        }
    }
    for (child, is_on_root) in children {
        if child.position.lock().is_leaving {
            continue;
        }
        if !is_on_root {
            return Ok(false);
        }
        toppers += 1;
    }
    Ok(toppers <= 1)
}

/// Marks those that go, from the deepest up; the others are left out.
fn mark(found: Vec<Arc<Mount>>) -> Result<Vec<Arc<Mount>>, Errno> {
    let mut leaving = Vec::new();
    leaving.try_reserve_exact(found.len()).map_err(|_| Errno::ENOMEM)?;
    for mount in found.into_iter().rev() {
        let is_marked = mount.position.lock().is_leaving;
        if is_marked {
            continue;
        }
        match can_leave(&mount) {
            Ok(true) => {
                mount.position.lock().is_leaving = true;
                push_reserved(&mut leaving, mount);
            }
            Ok(false) => {}
            Err(error) => {
                unmark(&leaving);
                return Err(error);
            }
        }
    }
    // A locked mount goes only with the one that it is in, about which is decided first.
    for mount in leaving.iter().rev().filter(|mount| mount.is_locked()) {
        let goes_along = mount.at().is_some_and(|at| at.mount.position.lock().is_leaving);
        mount.position.lock().is_leaving = goes_along;
    }
    leaving.retain(|mount| mount.position.lock().is_leaving);
    Ok(leaving)
}

fn unmark(mounts: &[Arc<Mount>]) {
    for mount in mounts {
        mount.position.lock().is_leaving = false;
    }
}

/// Takes one of the companions out; what lies on its root takes its place. A locked one stays on what it covers.
fn remove_companion(topology: &Topology, mount: &Arc<Mount>) -> Option<Path> {
    let topper = only_topper(mount);
    if topper.is_none() {
        return take_out_below(topology, mount);
    }
    if let Some(topper) = &topper {
        let _ = topper.detach(topology);
    }
    let at = take_out(topology, mount);
    // The mount has just left room in the list of its parent.
    if let (Some(topper), Some(at)) = (topper, &at) {
        topper.attach_reserved(topology, at.clone());
    }
    at
}

/// Takes a mount out of its tree, and with `is_lazy` all that is in it.
///
/// # Errors
/// `EINVAL` (it is in no tree), `EBUSY` (unless `is_lazy`: something is mounted in it, or it is in use), `ENOMEM`.
pub fn unmount(mount: Arc<Mount>, is_lazy: bool) -> Result<(), Errno> {
    let mut removed: Vec<(Arc<Mount>, Option<Path>)> = Vec::new();
    let topology = lock();
    if mount.set().is_none() || mount.at().is_none() {
        return Err(Errno::EINVAL);
    }
    if !is_lazy && is_busy(&topology, &mount)? {
        return Err(Errno::EBUSY);
    }
    let tree = mount.subtree(&topology)?;
    for mount in &tree {
        mount.position.lock().is_leaving = true;
    }
    let found = companions(&topology, &tree).and_then(mark).and_then(|found| {
        removed.try_reserve_exact(tree.len() + found.len()).map_err(|_| {
            unmark(&found);
            Errno::ENOMEM
        })?;
        Ok(found)
    });
    let found = found.inspect_err(|_| unmark(&tree))?;
    for (index, mount) in tree.into_iter().enumerate().rev() {
        let at = if index == 0 { take_out(&topology, &mount) } else { take_out_below(&topology, &mount) };
        mount.position.lock().is_leaving = false;
        push_reserved(&mut removed, (mount, at));
    }
    for mount in found {
        let at = remove_companion(&topology, &mount);
        mount.position.lock().is_leaving = false;
        push_reserved(&mut removed, (mount, at));
    }
    drop(topology);
    drop((removed, mount));
    Ok(())
}

/// Whether a mount of this namespace lies on an entry.
#[must_use]
pub fn has_own_mount(own: &Arc<MountSet>, entry: &Arc<Dentry>) -> bool {
    entry.is_mount_point() && places::find(&lock(), entry, |mount| mount.is_in(own)).is_some()
}

/// Takes away all that lies on an entry whose name has been removed: other namespaces have mounted it. Whoever is in
/// one of these mounts still sees what is mounted in it.
pub async fn detach_all(entry: Arc<Dentry>) {
    let mut budget = Budget::new();
    while let Some(top) = detach_one(&entry) {
        budget.step(1).await;
        while leave_one(&top) {
            budget.step(1).await;
        }
    }
}

/// Takes one of the mounts on an entry away, with what is in it.
fn detach_one(entry: &Arc<Dentry>) -> Option<Arc<Mount>> {
    let topology = lock();
    let top = places::find(&topology, entry, |_| true)?;
    let at = take_out(&topology, &top);
    drop(topology);
    drop(at);
    Some(top)
}

/// Takes one of the mounts in another out of its namespace, where it lies. Returns whether there was one.
fn leave_one(top: &Arc<Mount>) -> bool {
    let topology = lock();
    let mount = leaf(top);
    if Arc::ptr_eq(&mount, top) {
        return false;
    }
    mount.make_private(&topology);
    MountSet::leave(&topology, &mount);
    let at = mount.leave_in_place(&topology);
    drop(topology);
    drop((at, mount));
    true
}
