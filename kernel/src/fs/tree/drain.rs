//! Throwing away what is only a cache of the image.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::tree::{TreeNode, deferred_contents, deferred_trees};
use crate::fs::{Dentry, mount};

use heddle_kernel_core::fallible::push_reserved;
use heddle_kernel_core::hash::KeyedMap;

/// Frees every node that was made from the image, has not been changed, and is not in use.
pub fn drain() {
    deferred_trees::drain();
    deferred_contents::drain();
    let Some(root) = mount::root() else { return };
    // Depth first, with a stack of our own: programs decide how deep directories are. Each level holds the position
    // in its listing; memory for the stack may be missing, and then deeper levels are left as they are.
    let mut stack: Vec<(Arc<Dentry>, u64)> = Vec::new();
    if stack.try_reserve(16).is_err() {
        return;
    }
    push_reserved(&mut stack, (root.entry, 0));
    while let Some((entry, cookie)) = stack.pop() {
        let node: &dyn Any = &*entry.node;
        let Some(children) = node.downcast_ref::<TreeNode>().and_then(|node| node.children().ok()) else {
            continue;
        };
        let next = children.lock().next_directory(cookie);
        if let Some((position, child)) = next {
            if stack.try_reserve(2).is_err() {
                continue;
            }
            push_reserved(&mut stack, (entry, position));
            push_reserved(&mut stack, (child, 0));
            continue;
        }
        loop {
            let clean = children.lock().take_clean();
            let Some(clean) = clean else { break };
            drop(clean);
        }
    }
    drop_shared();
}

/// Frees the nodes with several names to which no name leads any more.
fn drop_shared() {
    let Some(root) = mount::root() else { return };
    let node: &dyn Any = &*root.entry.node;
    let Some(node) = node.downcast_ref::<TreeNode>() else { return };
    let tree = &node.tree;
    loop {
        let mut shared = tree.shared.lock();
        let unused = shared
            .iter()
            .find(|(_, node)| Arc::strong_count(node) == 1 && node.is_clean())
            .map(|(&number, _)| number);
        let taken = unused.and_then(|number| shared.remove(&number));
        if shared.is_empty() {
            *shared = KeyedMap::default();
        }
        drop(shared);
        if taken.is_none() {
            break;
        }
    }
}
