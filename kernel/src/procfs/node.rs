//! `/sys/devices/system/node`: the one node of memory, and all CPUs beside it.

use crate::error::Errno;
use crate::fs::tree;
use crate::memory::frame;
use crate::procfs::{Subject, Text};

const KIB_PER_FRAME: usize = 4;

type Shown = Result<(), Errno>;

/// The list of nodes.
pub fn list(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"0\n")
}

/// How far each node is: 10 stands for the node itself.
pub fn distance(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"10\n")
}

/// As `/proc/meminfo`, whose figures are those of the one node.
pub fn memory(_: &Subject, text: &mut Text) -> Shown {
    let (total, free) = (frame::total_frames() * KIB_PER_FRAME, frame::free_frames() * KIB_PER_FRAME);
    let files = usize::try_from(tree::page_count()).unwrap_or(usize::MAX).saturating_mul(KIB_PER_FRAME);
    for (name, value) in [
        ("MemTotal", total),
        ("MemFree", free),
        ("MemUsed", total.saturating_sub(free)),
        ("SwapCached", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("FilePages", files),
        ("Shmem", files),
    ] {
        let width = 15_usize.saturating_sub(name.len());
        text.line(format_args!("Node 0 {name}:{:width$}{value:8} kB\n", ""))?;
    }
    Ok(())
}
