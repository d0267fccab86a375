//! The files of the memory controller.

use core::sync::atomic::Ordering;
use heddle_kernel_core::cgroup::GroupLimit;

use crate::arch::paging::PAGE_SIZE;
use crate::cgroupfs::file::{Showing, WriteProgress, Writing};
use crate::error::Errno;
use crate::memory::charge::MemoryEvent;

type Shown = Result<Option<u64>, Errno>;
type Stored = Result<WriteProgress, Errno>;

fn bytes(showing: &mut Showing<'_>, pages: usize) -> Shown {
    let bytes = pages as u64 * PAGE_SIZE as u64;
    showing.text.line(format_args!("{bytes}\n"))?;
    Ok(None)
}

pub(super) fn show_current(showing: &mut Showing<'_>) -> Shown {
    let pages = showing.group.memory.pages();
    bytes(showing, pages)
}

pub(super) fn show_peak(showing: &mut Showing<'_>) -> Shown {
    let pages = showing.group.memory.peak();
    bytes(showing, pages)
}

pub(super) fn show_max(showing: &mut Showing<'_>) -> Shown {
    let limit = match showing.group.memory.max() {
        usize::MAX => GroupLimit::MAX,
        pages => GroupLimit(pages as u64 * PAGE_SIZE as u64),
    };
    showing.text.line(format_args!("{limit}\n"))?;
    Ok(None)
}

pub(super) fn store_max(writing: Writing<'_>) -> Stored {
    let limit = GroupLimit::parse_bytes(writing.text).ok_or(Errno::EINVAL)?;
    let pages = if limit == GroupLimit::MAX { usize::MAX } else { (limit.0 / PAGE_SIZE as u64) as usize };
    writing.group.memory.set_max(pages);
    Ok(WriteProgress::Done)
}

fn show_some_events(showing: &mut Showing<'_>, is_own: bool) -> Shown {
    // Nothing is taken back from a group before somebody has to end, so no limit is a soft one.
    showing.text.bytes(b"low 0\nhigh 0\n")?;
    for (event, name) in MemoryEvent::ALL.into_iter().zip(["max", "oom", "oom_kill", "oom_group_kill"]) {
        let count = showing.group.memory.events(event, is_own);
        showing.text.line(format_args!("{name} {count}\n"))?;
    }
    Ok(None)
}

pub(super) fn show_events(showing: &mut Showing<'_>) -> Shown {
    show_some_events(showing, false)
}

pub(super) fn show_own_events(showing: &mut Showing<'_>) -> Shown {
    show_some_events(showing, true)
}

pub(super) fn show_whole(showing: &mut Showing<'_>) -> Shown {
    let ends_as_whole = showing.group.memory.ends_as_whole.load(Ordering::Relaxed);
    showing.text.line(format_args!("{}\n", u8::from(ends_as_whole)))?;
    Ok(None)
}

pub(super) fn store_whole(writing: Writing<'_>) -> Stored {
    let number: i32 = writing.text.parse().map_err(|_| Errno::EINVAL)?;
    if !matches!(number, 0 | 1) {
        return Err(Errno::EINVAL);
    }
    writing.group.memory.ends_as_whole.store(number == 1, Ordering::Relaxed);
    Ok(WriteProgress::Done)
}

/// Pages of files that are mapped count as the others do.
pub(super) fn show_stat(showing: &mut Showing<'_>) -> Shown {
    let anonymous = showing.group.memory.pages() as u64 * PAGE_SIZE as u64;
    showing.text.line(format_args!("anon {anonymous}\nfile 0\nkernel 0\nsock 0\nshmem 0\n"))?;
    Ok(None)
}

/// There is no swap.
pub(super) fn show_swap(showing: &mut Showing<'_>) -> Shown {
    showing.text.bytes(b"0\n")?;
    Ok(None)
}

pub(super) fn show_swap_max(showing: &mut Showing<'_>) -> Shown {
    let limit = GroupLimit(showing.group.memory.swap_max.load(Ordering::Relaxed));
    showing.text.line(format_args!("{limit}\n"))?;
    Ok(None)
}

pub(super) fn store_swap_max(writing: Writing<'_>) -> Stored {
    let limit = GroupLimit::parse_bytes(writing.text).ok_or(Errno::EINVAL)?;
    let whole =
        if limit == GroupLimit::MAX { limit.0 } else { limit.0 / PAGE_SIZE as u64 * PAGE_SIZE as u64 };
    writing.group.memory.swap_max.store(whole, Ordering::Relaxed);
    Ok(WriteProgress::Done)
}
