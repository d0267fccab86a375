//! Instances that watch one another: no circles, no more than so many above one another, and no more than so many paths
//! from a file up to the instances that nobody watches.
//!
//! The limits on paths are Linux's. The paths of a file are counted from each instance that watches it directly; Linux
//! adds up those of all such instances. A wake goes to each instance once however many paths lead there, so what the
//! limits bound is the time that a change takes.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::error::Errno;
use crate::fs::epoll::Epoll;
use crate::memory::fallible;
use crate::sync::{SpinGuard, SpinLock};

use heddle_kernel_core::fallible::push_reserved;

/// How deep instances may watch one another, as in Linux.
const DEPTH_LIMIT: u32 = 5;
/// How many paths that end so many instances above the one that watches a file may exist, as in Linux, which does not
/// limit those that end at that instance.
const PATHS_MAX: [usize; DEPTH_LIMIT as usize - 1] = [500, 100, 50, 10];
/// How many instances are looked at for a change; who builds a larger web is refused.
const VISITS_MAX: usize = 4096;

/// Held while an instance begins to watch another one, so that two cannot close a circle at the same time.
static NESTING: SpinLock<()> = SpinLock::new(());

/// The instances that one watches, and is watched by. Changed under [`NESTING`], but for what goes.
#[derive(Default)]
pub(super) struct Links {
    above: Vec<Weak<Epoll>>,
    below: Vec<Weak<Epoll>>,
}

/// Takes one link to an instance out.
fn unlink(links: &mut Vec<Weak<Epoll>>, instance: *const Epoll) {
    if let Some(index) = links.iter().position(|link| link.as_ptr() == instance) {
        // The memory of the instance stays with the instance, or with other links.
        drop(links.swap_remove(index));
    }
}

fn link(links: &mut Vec<Weak<Epoll>>, instance: &Arc<Epoll>) -> Result<(), Errno> {
    links.retain(|link| link.strong_count() > 0);
    fallible::try_push(links, Arc::downgrade(instance))
}

/// Instances that a change has looked at. They are dropped after the lock, because these may be the last references.
type Visited = Vec<Arc<Epoll>>;

/// The right to change who watches whom.
pub(super) struct Nesting {
    held: Option<SpinGuard<'static, ()>>,
    visited: Visited,
}

impl Nesting {
    /// For an addition to `outer`, of `inner` if that is an instance.
    pub fn begin(outer: &Epoll, inner: Option<&Epoll>) -> Self {
        let is_concerned = inner.is_some() || !outer.links.lock().above.is_empty();
        Self { held: is_concerned.then(|| NESTING.lock()), visited: Vec::new() }
    }

    /// Checks that `outer` may watch another file, `inner` if that is an instance, and then notes that it does.
    ///
    /// # Errors
    /// `ELOOP`, `EINVAL` (too many paths), `ENOMEM`.
    pub fn admit(&mut self, outer: &Arc<Epoll>, inner: Option<&Arc<Epoll>>) -> Result<(), Errno> {
        if self.held.is_none() {
            return Ok(());
        }
        let Some(inner) = inner else { return self.check_paths(outer) };
        let above = outer.above.load(Ordering::Relaxed) + 1;
        let inner = &keep(inner.clone(), &mut self.visited)?;
        inner.descend(outer, above, false, &mut self.visited)?;
        // The instances below, and `inner` itself.
        let count = self.visited.len();
        link(&mut inner.links.lock().above, outer)?;
        let mut result = link(&mut outer.links.lock().below, inner);
        if result.is_ok() {
            result = inner.descend(outer, above, true, &mut self.visited);
        }
        for index in 0..count {
            let instance = self.visited[index].clone();
            if result.is_ok() && instance.watches_files() {
                result = self.check_paths(&instance);
            }
        }
        if result.is_err() {
            forget(outer, inner);
        }
        result
    }

    /// Checks the paths of a file that an instance watches.
    fn check_paths(&mut self, instance: &Arc<Epoll>) -> Result<(), Errno> {
        let mut counts = [0; PATHS_MAX.len()];
        instance.ascend(0, &mut counts, &mut self.visited)
    }
}

/// An instance watches another no more, as through one of its interests.
pub(super) fn forget(outer: &Epoll, inner: &Epoll) {
    unlink(&mut inner.links.lock().above, outer);
    unlink(&mut outer.links.lock().below, inner);
}

/// The instance at a place of a list, if it is still there; nothing behind the last.
fn nth(links: &[Weak<Epoll>], index: usize) -> Option<Option<Arc<Epoll>>> {
    links.get(index).map(Weak::upgrade)
}

/// Keeps a reference until the lock is released, so that it is not the last that goes before.
fn keep(instance: Arc<Epoll>, visited: &mut Visited) -> Result<Arc<Epoll>, Errno> {
    let is_too_large = visited.len() >= VISITS_MAX;
    visited.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    push_reserved(visited, instance.clone());
    if is_too_large { Err(Errno::EINVAL) } else { Ok(instance) }
}

impl Epoll {
    /// Whether it watches anything that is no instance.
    fn watches_files(&self) -> bool {
        let below = self.links.lock().below.len();
        self.interests.lock().count() > below
    }

    /// Looks at this instance and those below: `outer` must not be among them, nor any be below too many. With `mark`
    /// notes how many are above each.
    fn descend(
        self: &Arc<Self>,
        outer: &Arc<Self>,
        above: u32,
        mark: bool,
        visited: &mut Visited,
    ) -> Result<(), Errno> {
        if Arc::ptr_eq(self, outer) || above >= DEPTH_LIMIT {
            return Err(Errno::ELOOP);
        }
        if mark {
            self.above.fetch_max(above, Ordering::Relaxed);
        }
        for index in 0.. {
            let next = nth(&self.links.lock().below, index);
            match next {
                None => break,
                Some(None) => {}
                Some(Some(inner)) => keep(inner, visited)?.descend(outer, above + 1, mark, visited)?,
            }
        }
        Ok(())
    }

    /// Counts the paths from this instance, `depth` above the one that watches a file, up to those that nobody watches.
    fn ascend(
        self: &Arc<Self>,
        depth: usize,
        counts: &mut [usize; PATHS_MAX.len()],
        visited: &mut Visited,
    ) -> Result<(), Errno> {
        if depth > PATHS_MAX.len() {
            return Err(Errno::EINVAL);
        }
        let mut is_watched = false;
        for index in 0.. {
            let next = nth(&self.links.lock().above, index);
            match next {
                None => break,
                Some(None) => {}
                Some(Some(outer)) => {
                    is_watched = true;
                    keep(outer, visited)?.ascend(depth + 1, counts, visited)?;
                }
            }
        }
        if depth > 0 && !is_watched {
            counts[depth - 1] += 1;
            if counts[depth - 1] > PATHS_MAX[depth - 1] {
                return Err(Errno::EINVAL);
            }
        }
        Ok(())
    }
}
