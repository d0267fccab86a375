//! File systems that nobody sees any more, taken apart in steps: entries and their parents hold one another, and the
//! last unmounting must not keep others from running longer the more files there are.
//!
//! Whoever unmounts goes on until nothing is left, as in Linux, where umount(2) returns when the memory is free. What
//! ends otherwise, with a process or a descriptor, is left to a coroutine.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use heddle_kernel_core::fallible::push_reserved;

use crate::fs::tree::TreeNode;
use crate::fs::{Dentry, FileType};
use crate::sched::Budget;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue};

/// Entries that are taken without a look at who else wants to run.
const ENTRIES_AT_ONCE: usize = 16;
/// The cost of taking so many.
const STEP_COST: u32 = 32;

/// A tree that is being taken apart.
struct TreeRemains {
    root: Arc<Dentry>,
    /// The directory that is being emptied.
    current: Arc<Dentry>,
}

static TREES: SpinLock<Vec<TreeRemains>> = SpinLock::new(Vec::new());
static ADDED: WaitQueue = WaitQueue::new();

impl TreeRemains {
    /// Takes some entries out. Goes down and up by the entries' own links, because programs decide how deep
    /// directories are. Returns whether the tree is empty.
    fn take_some(&mut self) -> bool {
        for _ in 0..ENTRIES_AT_ONCE {
            let taken = {
                let node: &dyn Any = &*self.current.node;
                let children = node.downcast_ref::<TreeNode>().and_then(|node| node.children().ok());
                children.and_then(|children| children.lock().take_any())
            };
            match taken {
                Some(child) if child.node.kind() == FileType::Directory => self.current = child,
                Some(_) => {}
                None if Arc::ptr_eq(&self.current, &self.root) => return true,
                None => match self.current.parent() {
                    Some(parent) => self.current = parent,
                    None => return true,
                },
            }
        }
        false
    }
}

/// Takes a tree apart, a small one at once.
pub(super) fn take_apart(root: &Arc<Dentry>) {
    let mut remains = TreeRemains { root: root.clone(), current: root.clone() };
    if !remains.take_some() {
        keep(remains);
        ADDED.wake(Events::all());
    }
}

/// Leaves a tree for later; without memory for that it goes now.
fn keep(mut remains: TreeRemains) {
    let mut trees = TREES.lock();
    if trees.try_reserve(1).is_ok() {
        push_reserved(&mut trees, remains);
        return;
    }
    drop(trees);
    while !remains.take_some() {}
}

/// Does some of what has been left. Returns whether there was anything.
fn work() -> bool {
    let Some(mut remains) = next() else { return false };
    if remains.take_some() {
        drop(remains);
        forget_list();
    } else {
        keep(remains);
    }
    true
}

fn next() -> Option<TreeRemains> {
    TREES.lock().pop()
}

/// Gives the list's memory back if nothing is left.
fn forget_list() {
    let mut trees = TREES.lock();
    let unused = if trees.is_empty() { core::mem::take(&mut *trees) } else { Vec::new() };
    drop(trees);
    drop(unused);
}

/// Whether anything has been left.
#[must_use]
pub fn is_any() -> bool {
    !TREES.lock().is_empty()
}

/// Takes apart what has been left.
pub async fn finish() {
    let mut budget = Budget::new();
    while work() {
        budget.step(STEP_COST).await;
    }
}

/// Takes apart what is left by those who don't wait for it.
pub async fn run() {
    loop {
        crate::device::wait(&ADDED, is_any).await;
        finish().await;
    }
}

/// Takes apart all that has been left. For when memory is short.
pub(super) fn drain() {
    while let Some(mut remains) = next() {
        while !remains.take_some() {}
    }
    forget_list();
}
