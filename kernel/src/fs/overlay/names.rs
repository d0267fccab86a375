//! The names in a directory of an overlay: looking them up, listing them, and changing them.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use heddle_kernel_core::dir_index::Names;
use heddle_kernel_core::fallible::push_reserved;

use crate::error::Errno;
use crate::fs::Dentry;
use crate::fs::dentry::copy_name;
use crate::fs::inode::{Contents, Creation, FileType, Inode, Listed, Rename};
use crate::fs::overlay::copy_up::copy_up;
use crate::fs::overlay::node::{LayerEntry, OverlayNode};
use crate::fs::overlay::{Overlay, Pace, is_whiteout, overlay_node};
use crate::memory::fallible;
use crate::process::Credentials;

/// Names that one look at a layer takes.
const LOOK: usize = 64;

/// The names of a directory, as far as they are known.
pub(super) struct OverlayNames {
    /// Entries that somebody may use.
    entries: Names<Weak<Dentry>>,
    /// Where the search for entries that nobody uses any more goes on.
    sweep: u64,
    listing: MergedList,
}

/// The names of all layers, put together as far as somebody has listed them. Once a name has come in, changes keep it
/// up to date, so that positions stay.
struct MergedList {
    names: Names<ListedName>,
    /// The layer of which names come next, among those of the directory, and the position there.
    layer: usize,
    position: u64,
}

/// A name in the listing.
struct ListedName {
    inode: u64,
    kind: FileType,
    /// It is not shown: a whiteout, or it was removed.
    is_hidden: bool,
}

impl MergedList {
    fn new() -> Self {
        Self { names: Names::new(), layer: 0, position: 0 }
    }
}

impl OverlayNames {
    pub fn new() -> Self {
        Self { entries: Names::new(), sweep: 0, listing: MergedList::new() }
    }

    fn find(&self, name: &[u8]) -> Option<Arc<Dentry>> {
        self.entries.get(name)?.upgrade()
    }

    pub fn keep(&mut self, name: &[u8], entry: &Arc<Dentry>) -> Result<(), Errno> {
        // For each that comes, some that have gone are looked for.
        for _ in 0..4 {
            let Some((at, found, known)) = self.entries.after(self.sweep) else {
                self.sweep = 0;
                break;
            };
            self.sweep = at;
            if known.strong_count() == 0 {
                let found = copy_name(found)?;
                self.entries.remove(&found);
            }
        }
        self.entries.insert(name, Arc::downgrade(entry)).map_err(|_| Errno::ENOMEM)?;
        Ok(())
    }

    /// A name is there from now on.
    fn show(&mut self, name: &[u8], inode: u64, kind: FileType) {
        if let Some(known) = self.listing.names.get_mut(name)
            && !known.is_hidden
        {
            *known = ListedName { inode, kind, is_hidden: false };
            return;
        }
        self.listing.names.remove(name);
        self.note(name, ListedName { inode, kind, is_hidden: false });
    }

    /// Puts a name into the listing. Without memory for it the listing begins anew.
    fn note(&mut self, name: &[u8], listed: ListedName) {
        if self.listing.names.insert(name, listed).is_err() {
            self.listing = MergedList::new();
        }
    }

    /// A name is gone. Lower layers that have not been looked at may have it.
    pub fn hide(&mut self, name: &[u8]) {
        self.entries.remove(name);
        match self.listing.names.get_mut(name) {
            Some(known) => known.is_hidden = true,
            None => self.note(name, ListedName { inode: 0, kind: FileType::Regular, is_hidden: true }),
        }
    }
}

/// The entries of layers under a name.
struct Found {
    upper: Option<Arc<Dentry>>,
    lowers: Vec<LayerEntry>,
}

/// The entry of a layer's directory under a name, if there is one.
pub(super) fn look(directory: &Arc<Dentry>, name: &[u8]) -> Result<Option<Arc<Dentry>>, Errno> {
    match directory.node.lookup(directory, name) {
        Ok(entry) => Ok(Some(entry)),
        Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A number for a name without a node.
pub(super) const WHITEOUT: Creation<'static> = Creation {
    contents: Contents::Device(FileType::Character, 0),
    permissions: 0,
    credentials: &Credentials::ROOT,
};

impl OverlayNode {
    /// Its directories in layers, from the top down.
    fn directories(&self) -> impl Iterator<Item = LayerEntry> + '_ {
        let upper = self.upper.get().map(|entry| LayerEntry { layer: 0, entry: entry.clone() });
        upper.into_iter().chain(self.lowers.iter().cloned())
    }

    /// The entries of layers under a name. With `below` the upper one is not asked.
    fn find(&self, name: &[u8], below: bool) -> Result<Option<Found>, Errno> {
        let (mut upper, mut lowers) = (None, Vec::new());
        let overlay = &self.overlay;
        for (place, directory) in self.directories().enumerate() {
            let is_upper = place == 0 && self.is_upper();
            if below && is_upper {
                continue;
            }
            let Some(entry) = look(&directory.entry, name)? else { continue };
            if is_whiteout(&entry) {
                break;
            }
            let is_directory = entry.node.kind() == FileType::Directory;
            let is_first = upper.is_none() && lowers.is_empty();
            if !is_directory && !is_first {
                break;
            }
            let is_last = !is_directory || overlay.is_opaque(&entry);
            if is_upper {
                upper = Some(entry);
            } else {
                fallible::try_push(&mut lowers, LayerEntry { layer: directory.layer, entry })?;
            }
            if is_last {
                break;
            }
        }
        Ok((upper.is_some() || !lowers.is_empty()).then_some(Found { upper, lowers }))
    }

    /// Whether a lower layer would show a name if the upper one had none.
    pub(super) fn is_below(&self, name: &[u8]) -> Result<bool, Errno> {
        Ok(!self.lowers.is_empty() && self.find(name, true)?.is_some())
    }

    /// The entry under a name.
    pub(super) fn entry_of(&self, this: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        if self.kind() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        if let Some(entry) = self.children.lock().find(name) {
            return Ok(entry);
        }
        let _changes = self.overlay.changes.lock_killably().ok_or(Errno::EINTR)?;
        self.entry_in(this, name)
    }

    /// As [`OverlayNode::entry_of`], with the changes locked.
    fn entry_in(&self, this: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        if let Some(entry) = self.children.lock().find(name) {
            return Ok(entry);
        }
        let Found { upper, lowers } = self.find(name, false)?.ok_or(Errno::ENOENT)?;
        self.enter(this, name, Self::new(&self.overlay, upper, lowers)?)
    }

    /// An entry for a node, which is kept.
    fn enter(&self, this: &Arc<Dentry>, name: &[u8], node: Arc<Self>) -> Result<Arc<Dentry>, Errno> {
        let entry = Dentry::new(node.clone(), Some(this.clone()), name)?;
        node.set_entry(&entry);
        self.children.lock().keep(name, &entry)?;
        Ok(entry)
    }

    pub(super) fn list_names(
        &self,
        cookie: u64,
        visit: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> Result<(), Errno> {
        if self.kind() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        let mut position = cookie;
        loop {
            let children = self.children.lock();
            while let Some((next, name, listed)) = children.listing.names.after(position) {
                position = next;
                let name = if listed.is_hidden { &[] } else { name };
                if !visit(Listed { name, inode: listed.inode, kind: listed.kind, next }) {
                    return Ok(());
                }
            }
            drop(children);
            if !self.list_more()? {
                return Ok(());
            }
            // So many names of a layer were looked at, of which none may be new.
            let looked = Listed { name: &[], inode: 0, kind: FileType::Regular, next: position };
            if !visit(looked) {
                return Ok(());
            }
        }
    }

    /// Takes some more names into the listing; false if there are no more.
    fn list_more(&self) -> Result<bool, Errno> {
        let _changes = self.overlay.changes.lock_killably().ok_or(Errno::EINTR)?;
        let (layer, position) = {
            let listing = &self.children.lock().listing;
            (listing.layer, listing.position)
        };
        // A directory that was copied since has nothing of its own in the upper layer but what changes have shown.
        let Some(directory) = self.lowers_and_first_upper().nth(layer) else { return Ok(false) };
        let mut found: Vec<(alloc::boxed::Box<[u8]>, u64, FileType)> = Vec::new();
        found.try_reserve_exact(LOOK).map_err(|_| Errno::ENOMEM)?;
        let (mut next, mut is_over, mut failed) = (position, true, None);
        let mut looks = 0;
        directory.entry.node.list(position, &mut |listed| {
            looks += 1;
            if !matches!(listed.name, b"" | b"." | b"..") {
                match copy_name(listed.name) {
                    Ok(name) => push_reserved(&mut found, (name, listed.inode, listed.kind)),
                    Err(error) => failed = Some(error),
                }
            }
            next = listed.next;
            is_over = looks < LOOK && failed.is_none();
            is_over
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        for (name, inode, kind) in found {
            self.take_name(&directory, &name, inode, kind)?;
        }
        let mut children = self.children.lock();
        let listing = &mut children.listing;
        (listing.layer, listing.position) = if is_over { (layer + 1, 0) } else { (layer, next) };
        Ok(true)
    }

    /// The directories that a listing goes through. The order stays when the directory is copied: its copy is empty,
    /// and comes last.
    fn lowers_and_first_upper(&self) -> impl Iterator<Item = LayerEntry> + '_ {
        let upper = self.upper.get().map(|entry| LayerEntry { layer: 0, entry: entry.clone() });
        let (first, last) = if self.began_upper { (upper, None) } else { (None, upper) };
        first.into_iter().chain(self.lowers.iter().cloned()).chain(last)
    }

    fn take_name(
        &self,
        directory: &LayerEntry,
        name: &[u8],
        inode: u64,
        kind: FileType,
    ) -> Result<(), Errno> {
        if self.children.lock().listing.names.get(name).is_some() {
            return Ok(());
        }
        let is_hidden = kind == FileType::Character
            && look(&directory.entry, name)?.is_some_and(|entry| is_whiteout(&entry));
        let device = directory.entry.node.metadata().device;
        let listed = ListedName { inode: self.overlay.number(device, inode), kind, is_hidden };
        self.children.lock().listing.names.insert(name, listed).map(drop).map_err(|_| Errno::ENOMEM)
    }

    pub(super) fn create_name(
        &self,
        this: &Arc<Dentry>,
        name: &[u8],
        creation: &Creation<'_>,
    ) -> Result<Arc<Dentry>, Errno> {
        let upper = copy_up(self, u64::MAX)?;
        let _changes = self.overlay.changes.lock_killably().ok_or(Errno::EINTR)?;
        self.check_free(this, name)?;
        let is_below = self.is_below(name)?;
        let covered = Covered::uncover(&upper, name)?;
        let made = upper.node.create(&upper, name, creation).inspect_err(|_| covered.cover_again(&upper))?;
        let is_directory = made.node.kind() == FileType::Directory;
        let marked = if is_directory && is_below { self.overlay.make_opaque(&made) } else { Ok(()) };
        let entered = marked
            .and_then(|()| Self::new(&self.overlay, Some(made.clone()), Vec::new()))
            .and_then(|node| self.enter(this, name, node));
        entered.inspect(|entry| self.show(name, entry)).inspect_err(|_| {
            if upper.node.unlink(&made).is_ok() {
                covered.cover_again(&upper);
            }
        })
    }

    pub(super) fn show(&self, name: &[u8], entry: &Dentry) {
        let (inode, kind) = (entry.node.metadata().inode, entry.node.kind());
        self.children.lock().show(name, inode, kind);
    }

    /// Checks that a name can be added.
    fn check_free(&self, this: &Arc<Dentry>, name: &[u8]) -> Result<(), Errno> {
        if this.is_removed() {
            return Err(Errno::ENOENT);
        }
        if self.find(name, false)?.is_some() { Err(Errno::EEXIST) } else { Ok(()) }
    }

    pub(super) fn link_name(
        &self,
        this: &Arc<Dentry>,
        name: &[u8],
        node: &Arc<dyn Inode>,
    ) -> Result<(), Errno> {
        let node = overlay_node(node)?;
        if !Arc::ptr_eq(&node.overlay, &self.overlay) {
            return Err(Errno::EXDEV);
        }
        let (upper, linked) = (copy_up(self, u64::MAX)?, copy_up(&node, u64::MAX)?);
        let _changes = self.overlay.changes.lock_killably().ok_or(Errno::EINTR)?;
        self.check_free(this, name)?;
        let covered = Covered::uncover(&upper, name)?;
        upper.node.link(&upper, name, &linked.node).inspect_err(|_| covered.cover_again(&upper))?;
        // Both names lead to one node as long as both entries are used.
        let entry = Dentry::new(node.clone(), Some(this.clone()), name)?;
        if node.entry().is_none_or(|known| known.is_removed()) {
            node.set_entry(&entry);
        }
        self.children.lock().keep(name, &entry)?;
        self.show(name, &entry);
        Ok(())
    }

    /// Whether the directory shows no name.
    pub(super) fn check_empty(&self) -> Result<(), Errno> {
        let mut pace = Pace::default();
        loop {
            pace.step(1)?;
            let children = self.children.lock();
            if children.listing.names.iter().any(|(_, listed)| !listed.is_hidden) {
                return Err(Errno::ENOTEMPTY);
            }
            drop(children);
            if !self.list_more()? {
                return Ok(());
            }
        }
    }

    pub(super) fn unlink_name(&self, entry: &Arc<Dentry>) -> Result<(), Errno> {
        let upper = copy_up(self, u64::MAX)?;
        let node = overlay_node(&entry.node)?;
        if node.kind() == FileType::Directory {
            node.check_empty()?;
        }
        let changes = self.overlay.changes.lock_killably().ok_or(Errno::EINTR)?;
        let name = self.current_name(entry)?;
        if node.kind() == FileType::Directory {
            node.check_still_empty()?;
        }
        let old = self.take_out(&upper, &node, &name)?;
        entry.mark_removed();
        self.children.lock().hide(&name);
        drop(changes);
        if let Some(old) = old {
            discard(&self.overlay, &old);
        }
        node.lost_name();
        Ok(())
    }

    /// The name of an entry that is in this directory still.
    pub(super) fn current_name(&self, entry: &Arc<Dentry>) -> Result<alloc::boxed::Box<[u8]>, Errno> {
        let name = entry.name()?;
        let known = self.children.lock().find(&name);
        if known.is_some_and(|known| Arc::ptr_eq(&known, entry)) { Ok(name) } else { Err(Errno::ENOENT) }
    }

    /// Takes a name out of the upper layer, and covers it if a lower one has it. Its entry is in the working
    /// directory then, to be removed there.
    fn take_out(&self, upper: &Arc<Dentry>, node: &Self, name: &[u8]) -> Result<Option<Arc<Dentry>>, Errno> {
        let is_below = self.is_below(name)?;
        let Some(own) = node.upper_in(upper, name)? else {
            return upper.node.create(upper, name, &WHITEOUT).map(|_| None);
        };
        let work = self.overlay.work.as_ref().ok_or(Errno::EROFS)?;
        if !is_below {
            upper.node.rename(&own, work, &self.overlay.copy_name()?, Rename::Keep)?;
            return Ok(Some(own));
        }
        let whiteout = work.node.create(work, &self.overlay.copy_name()?, &WHITEOUT)?;
        if let Err(error) = work.node.rename(&whiteout, upper, name, Rename::Exchange) {
            let _ = work.node.unlink(&whiteout);
            return Err(error);
        }
        Ok(Some(own))
    }

    /// The entry of the upper layer for one of a node's names.
    pub(super) fn upper_in(
        &self,
        directory: &Arc<Dentry>,
        name: &[u8],
    ) -> Result<Option<Arc<Dentry>>, Errno> {
        if self.is_upper() { look(directory, name) } else { Ok(None) }
    }

    /// A name of the node is gone.
    pub(super) fn lost_name(&self) {
        if self.kind() == FileType::Directory || self.metadata().links == 0 || !self.is_upper() {
            self.marks.nameless();
        }
    }

    /// As [`OverlayNode::check_empty`] once that has looked at all layers, with the changes locked.
    pub(super) fn check_still_empty(&self) -> Result<(), Errno> {
        let is_empty = !self.children.lock().listing.names.iter().any(|(_, listed)| !listed.is_hidden);
        if is_empty { Ok(()) } else { Err(Errno::ENOTEMPTY) }
    }
}

/// Removes an entry from the working directory that has no name in the overlay any more. One that can't be removed
/// there does no harm.
pub(super) fn discard(overlay: &Overlay, old: &Arc<Dentry>) {
    if old.node.kind() == FileType::Directory {
        let _ = remove_whiteouts(old);
    }
    if let Some(work) = &overlay.work {
        let _ = work.node.unlink(old);
    }
}

/// Removes what is left in a directory of the upper layer that shows no name.
fn remove_whiteouts(directory: &Arc<Dentry>) -> Result<(), Errno> {
    let mut pace = Pace::default();
    loop {
        let mut first = None;
        directory.node.list(0, &mut |listed| {
            if matches!(listed.name, b"" | b"." | b"..") {
                return true;
            }
            first = Some(copy_name(listed.name));
            false
        })?;
        let Some(name) = first else { return Ok(()) };
        let entry = directory.node.lookup(directory, &name?)?;
        if !is_whiteout(&entry) {
            return Err(Errno::ENOTEMPTY);
        }
        directory.node.unlink(&entry)?;
        pace.step(1)?;
    }
}

/// A whiteout that was taken away so that a name can be used.
pub(super) struct Covered<'a>(Option<&'a [u8]>);

impl<'a> Covered<'a> {
    pub(super) fn uncover(upper: &Arc<Dentry>, name: &'a [u8]) -> Result<Self, Errno> {
        let Some(entry) = look(upper, name)?.filter(|entry| is_whiteout(entry)) else {
            return Ok(Self(None));
        };
        upper.node.unlink(&entry)?;
        Ok(Self(Some(name)))
    }

    /// The name is not used after all.
    pub(super) fn cover_again(&self, upper: &Arc<Dentry>) {
        // Without memory for that, the lower layer's shows.
        if let Some(name) = self.0 {
            let _ = upper.node.create(upper, name, &WHITEOUT);
        }
    }
}
