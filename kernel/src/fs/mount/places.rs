//! Mounts by the entry that they lie on, whatever their namespace: whoever removes a name takes away what others have
//! mounted on it.
//!
//! A fixed number of lists is linked through the mounts, so that nothing is allocated where a mount is put on a place.
//! A mount is in a list from when it is put on its place until it is taken away, and its parent holds it meanwhile.

use alloc::sync::{Arc, Weak};

use crate::fs::Dentry;
use crate::fs::mount::{Mount, Topology};
use crate::sync::SpinLock;

const LISTS: usize = 256;

static FIRST_MOUNTS: SpinLock<[Weak<Mount>; LISTS]> = SpinLock::new([const { Weak::new() }; LISTS]);

/// The mounts before and behind one in its list.
pub(super) struct PlaceLinks {
    before: Weak<Mount>,
    behind: Weak<Mount>,
}

impl PlaceLinks {
    pub(super) const NONE: Self = Self { before: Weak::new(), behind: Weak::new() };
}

/// The list of an entry, by its address.
fn list_of(entry: &Arc<Dentry>) -> usize {
    (Arc::as_ptr(entry).addr() >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56
}

/// Notes that a mount lies on an entry.
pub(super) fn enter(_: &Topology, mount: &Arc<Mount>, entry: &Arc<Dentry>) {
    let own = Arc::downgrade(mount);
    let behind = core::mem::replace(&mut FIRST_MOUNTS.lock()[list_of(entry)], own.clone());
    if let Some(next) = behind.upgrade() {
        next.beside.lock().before = own;
    }
    *mount.beside.lock() = PlaceLinks { before: Weak::new(), behind };
}

/// Notes that a mount lies on an entry no more.
pub(super) fn leave(_: &Topology, mount: &Arc<Mount>, entry: &Arc<Dentry>) {
    let PlaceLinks { before, behind } = core::mem::replace(&mut *mount.beside.lock(), PlaceLinks::NONE);
    if let Some(next) = behind.upgrade() {
        next.beside.lock().before = before.clone();
    }
    match before.upgrade() {
        Some(last) => last.beside.lock().behind = behind,
        None => FIRST_MOUNTS.lock()[list_of(entry)] = behind,
    }
}

/// The first mount on an entry of which something holds.
pub(super) fn find(
    _: &Topology,
    entry: &Arc<Dentry>,
    mut is_wanted: impl FnMut(&Arc<Mount>) -> bool,
) -> Option<Arc<Mount>> {
    let mut next = FIRST_MOUNTS.lock()[list_of(entry)].upgrade();
    while let Some(mount) = next {
        let is_here = mount.position.lock().at.as_ref().is_some_and(|at| Arc::ptr_eq(&at.entry, entry));
        if is_here && is_wanted(&mount) {
            return Some(mount);
        }
        next = mount.beside.lock().behind.upgrade();
    }
    None
}
