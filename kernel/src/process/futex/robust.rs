//! The robust list: what becomes of futexes whose owner ends.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryError};
use crate::memory::{Space, values as user};
use crate::process::Thread;
use crate::process::futex::wake_op::update;
use crate::process::futex::{FutexKey, wake_key};
use crate::sched::Budget;

/// The most entries of a robust list that are looked at: it may be a circle.
const ROBUST_LIST_MAX: usize = 2048;

/// The cost of an entry, in units of a [`Budget`].
const ENTRY_COST: u32 = 8;

/// Marks the robust futexes that the thread holds as left by a dead owner and wakes a waiter of each.
pub async fn release(thread: &Arc<Thread>) {
    let head = thread.set_robust_list(0);
    if head == 0 {
        return;
    }
    let space = thread.space();
    let Ok([mut entry, offset, waiting]) = read::<3>(thread, &space, head).await else {
        return;
    };
    let mut budget = Budget::new();
    let word_of = |entry: u64| (entry & !1).wrapping_add(offset) as usize;
    for _ in 0..ROBUST_LIST_MAX {
        if entry & !1 == head as u64 {
            break;
        }
        budget.step(ENTRY_COST).await;
        let next = read::<1>(thread, &space, (entry & !1) as usize).await;
        if entry != waiting {
            mark_dead(thread, &space, word_of(entry)).await;
        }
        match next {
            Ok([next]) => entry = next,
            Err(_) => return,
        }
    }
    if waiting & !1 != 0 {
        mark_dead(thread, &space, word_of(waiting)).await;
    }
}

/// Reads words of the list.
async fn read<const N: usize>(thread: &Thread, space: &Space, address: usize) -> Result<[u64; N], Errno> {
    loop {
        match user::read_words::<N>(space, address) {
            Ok(words) => return Ok(words),
            Err(fault) => thread.resolve_at_end(space, fault).await?,
        }
    }
}

async fn mark_dead(thread: &Arc<Thread>, space: &Arc<Space>, address: usize) {
    let tid = thread.own_tid() as u32;
    let mark = |old: u32| if old & linux::FUTEX_TID_MASK == tid { Some(old) } else { None };
    loop {
        let attempt = update(space, address, |old| {
            Ok(mark(old).map_or(old, |old| old & linux::FUTEX_WAITERS | linux::FUTEX_OWNER_DIED))
        });
        match attempt {
            Ok(old) if mark(old).is_some() && old & linux::FUTEX_WAITERS != 0 => {
                wake_key(&FutexKey::of(space, address, false), 1, linux::FUTEX_BITSET_MATCH_ANY);
                return;
            }
            Err(TryError::Fault(fault)) if thread.resolve_at_end(space, fault).await.is_ok() => {}
            _ => return,
        }
    }
}
