//! File systems that nobody sees any more, taken apart in steps: entries and their parents hold one another, and the
//! last unmounting must not keep others from running longer the more files there are.
//!
//! Whoever unmounts goes on until nothing is left that was there when it began, as in Linux, where umount(2) returns
//! when the memory is free: what others unmount meanwhile is theirs. A tree that ends otherwise, with a process or a
//! descriptor, is left to a coroutine.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::any::Any;

use heddle_kernel_core::fallible::{push_back_reserved, push_front_reserved};

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
    /// How many trees were left before it.
    number: u64,
}

/// Trees that have been left, the oldest first.
struct LeftTrees {
    trees: VecDeque<TreeRemains>,
    /// How many trees have been left so far.
    count: u64,
}

static TREES: SpinLock<LeftTrees> = SpinLock::new(LeftTrees { trees: VecDeque::new(), count: 0 });
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
    let mut remains = TreeRemains { root: root.clone(), current: root.clone(), number: 0 };
    if remains.take_some() {
        return;
    }
    let mut left = TREES.lock();
    if left.trees.try_reserve(1).is_err() {
        drop(left);
        return finish_now(remains);
    }
    remains.number = left.count;
    left.count += 1;
    push_back_reserved(&mut left.trees, remains);
    drop(left);
    ADDED.wake(Events::all());
}

/// Without memory for the list a tree goes at once.
fn finish_now(mut remains: TreeRemains) {
    while !remains.take_some() {}
}

/// Puts the oldest tree back, of which something is left.
fn put_back(remains: TreeRemains) {
    let mut left = TREES.lock();
    if left.trees.try_reserve(1).is_err() {
        drop(left);
        return finish_now(remains);
    }
    push_front_reserved(&mut left.trees, remains);
}

/// Does some of the work on the oldest tree, if it was left before `end`. Returns whether there was such a tree.
fn work(end: u64) -> bool {
    let Some(mut remains) = next(end) else { return false };
    if remains.take_some() {
        drop(remains);
        forget_list();
    } else {
        put_back(remains);
    }
    true
}

fn next(end: u64) -> Option<TreeRemains> {
    let mut left = TREES.lock();
    if left.trees.front()?.number < end { left.trees.pop_front() } else { None }
}

/// Gives the list's memory back if nothing is left.
fn forget_list() {
    let mut left = TREES.lock();
    let unused = if left.trees.is_empty() { core::mem::take(&mut left.trees) } else { VecDeque::new() };
    drop(left);
    drop(unused);
}

/// Whether anything has been left.
#[must_use]
pub fn is_any() -> bool {
    !TREES.lock().trees.is_empty()
}

/// Takes apart what has been left so far.
pub async fn finish() {
    let end = TREES.lock().count;
    let mut budget = Budget::new();
    while work(end) {
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
    while let Some(remains) = next(u64::MAX) {
        finish_now(remains);
    }
    forget_list();
}
