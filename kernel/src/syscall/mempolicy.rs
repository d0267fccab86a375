//! The system calls about memory policy, numa(7). All memory is one node, 0: policies are kept and told, and pages are
//! where they are to be moved to.

use alloc::sync::Arc;
use core::ops::Range;

use heddle_kernel_core::mempolicy::{InvalidPolicy, MemoryPolicy, PolicyMode, read_mask};
use linux_raw_sys::general as linux;

use crate::arch::paging::PAGE_SIZE;
use crate::call::caller::Caller;
use crate::error::{Errno, TryError, TryResult};
use crate::memory::Space;
use crate::process::Thread;
use crate::process::access::{ViewerIds, may_access};
use crate::process::table;
use crate::sched::Budget;
use crate::syscall::fs::{get, put};
use crate::syscall::{Call, SyscallResult, pending};

/// `MPOL_F_` flags of get_mempolicy(2).
const TELL_NODE: usize = 1;
const OF_ADDRESS: usize = 2;
const TELL_ALLOWED: usize = 4;
/// `MPOL_MF_` flags.
const STRICT: usize = 1;
const MOVE: usize = 2;
const MOVE_ALL: usize = 4;

/// The node with all memory, as a mask.
const ALLOWED: u16 = 1;
/// Nodes that there can be.
const NODE_COUNT: usize = 1;
const WORD_BYTES: usize = 8;
const WORD_BITS: usize = 64;

/// The cost of a page in move_pages(2), in units of a [`Budget`].
const PAGE_COST: u32 = 4;

impl From<InvalidPolicy> for TryError {
    fn from(_: InvalidPolicy) -> Self {
        Errno::EINVAL.into()
    }
}

fn get_nodes(call: &Call<'_>, address: usize, count: usize) -> TryResult<u16> {
    if address == 0 {
        return Ok(0);
    }
    read_mask(count, Errno::EINVAL.into(), |index| {
        Ok(u64::from_ne_bytes(get(call, address.wrapping_add(index * WORD_BYTES))?))
    })
}

/// set_mempolicy(2).
pub fn set_mempolicy(call: &mut Call<'_>) -> SyscallResult {
    let mode = PolicyMode::new(call.int(0))?;
    let nodes = get_nodes(call, call.word(1), call.word(2))?;
    call.thread.set_memory_policy(MemoryPolicy::new(mode, nodes)?.canonical());
    Ok(0.into())
}

/// get_mempolicy(2).
pub fn get_mempolicy(call: &mut Call<'_>) -> SyscallResult {
    let (mode, mask, count) = (call.word(0), call.word(1), call.word(2));
    let (address, flags) = (call.word(3), call.word(4));
    if mask != 0 && count < NODE_COUNT || flags & !(TELL_NODE | OF_ADDRESS | TELL_ALLOWED) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let (number, nodes) = if flags & TELL_ALLOWED != 0 {
        if flags != TELL_ALLOWED {
            return Err(Errno::EINVAL.into());
        }
        (0, ALLOWED)
    } else if flags & OF_ADDRESS != 0 {
        let policy = call.thread.space().policy_at(address).ok_or(Errno::EFAULT)?;
        if flags & TELL_NODE != 0 {
            // The page has a node once it is there.
            get::<1>(call, address)?;
            (0, policy.told_nodes())
        } else {
            (policy.number(), policy.told_nodes())
        }
    } else {
        let policy = call.thread.memory_policy();
        if address != 0 || flags & TELL_NODE != 0 && !policy.is_interleaved() {
            return Err(Errno::EINVAL.into());
        }
        let number = if flags & TELL_NODE != 0 { 0 } else { policy.number() };
        (number, policy.told_nodes())
    };
    if mode != 0 {
        put(call, mode, &number.to_ne_bytes())?;
    }
    if mask != 0 {
        put_nodes(call, mask, count, nodes)?;
    }
    Ok(0.into())
}

/// Stores a mask in a program's, of which it says that it is `count - 1` bits long.
fn put_nodes(call: &Call<'_>, address: usize, count: usize, nodes: u16) -> TryResult<()> {
    let length = (count - 1).checked_next_multiple_of(WORD_BITS).unwrap_or(0) / 8;
    if length > WORD_BYTES {
        if length > PAGE_SIZE {
            return Err(Errno::EINVAL.into());
        }
        for at in (WORD_BYTES..length).step_by(WORD_BYTES) {
            put(call, address.wrapping_add(at), &[0; WORD_BYTES])?;
        }
    }
    if length > 0 {
        put(call, address, &u64::from(nodes).to_ne_bytes())?;
    }
    Ok(())
}

/// The pages from `start` on, `length` bytes of them.
fn page_range(start: usize, length: usize) -> Result<Range<usize>, Errno> {
    // A length at the end of all addresses is none: Linux rounds it up to 0.
    let length = length.checked_next_multiple_of(PAGE_SIZE).unwrap_or(0);
    Ok(start..start.checked_add(length).ok_or(Errno::EINVAL)?)
}

/// mbind(2).
pub fn mbind(call: &mut Call<'_>) -> SyscallResult {
    let (start, length, mut flags) = (call.word(0), call.word(1), call.word(5) & 0xffff_ffff);
    let mode = PolicyMode::new(call.int(2))?;
    let nodes = get_nodes(call, call.word(3), call.word(4))?;
    if flags & !(STRICT | MOVE | MOVE_ALL) != 0 {
        return Err(Errno::EINVAL.into());
    }
    if flags & MOVE_ALL != 0 && !call.thread.credentials().is_capable(linux::CAP_SYS_NICE) {
        return Err(Errno::EPERM.into());
    }
    if !start.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL.into());
    }
    if mode.is_default() {
        flags &= !STRICT;
    }
    let range = page_range(start, length)?;
    if range.is_empty() {
        return Ok(0.into());
    }
    let policy = MemoryPolicy::new(mode, nodes)?.canonical();
    // Pages that are not on the nodes given are an error, unless they may be moved: then they come to node 0 again.
    let must_be_empty = flags & (STRICT | MOVE | MOVE_ALL) == STRICT && nodes & ALLOWED == 0;
    let space = call.thread.space();
    pending(async move {
        space.set_policy(range, policy, must_be_empty).await?;
        Ok(0)
    })
}

/// set_mempolicy_home_node(2).
pub fn set_mempolicy_home_node(call: &mut Call<'_>) -> SyscallResult {
    let (start, length, node, flags) = (call.word(0), call.word(1), call.word(2), call.word(3));
    if !start.is_multiple_of(PAGE_SIZE) || flags != 0 || node >= NODE_COUNT {
        return Err(Errno::EINVAL.into());
    }
    let range = page_range(start, length)?;
    if range.is_empty() {
        return Ok(0.into());
    }
    let space = call.thread.space();
    pending(async move {
        space.set_policy_home(range).await?;
        Ok(0)
    })
}

/// The thread with a number, the caller for 0, if the caller may look into it.
fn target(call: &Call<'_>, tid: i32) -> Result<Arc<Thread>, Errno> {
    if tid == 0 {
        return table::thread(call.thread.tid()).ok_or(Errno::ESRCH);
    }
    let target = table::thread(call.thread.process.named(tid)).ok_or(Errno::ESRCH)?;
    if may_access(call.thread, &target, ViewerIds::Real) { Ok(target) } else { Err(Errno::EPERM) }
}

/// migrate_pages(2): all pages are on the node to which they can go, so none has to move.
pub fn migrate_pages(call: &mut Call<'_>) -> SyscallResult {
    let count = call.word(1);
    let _from = get_nodes(call, call.word(2), count)?;
    let to = get_nodes(call, call.word(3), count)?;
    let target = target(call, call.int(0))?;
    if to & !ALLOWED != 0 && !call.thread.credentials().is_capable(linux::CAP_SYS_NICE) {
        return Err(Errno::EPERM.into());
    }
    if to & ALLOWED == 0 || target.try_space().is_none() {
        return Err(Errno::EINVAL.into());
    }
    Ok(0.into())
}

/// The arrays of move_pages(2).
struct PageMoves {
    count: usize,
    pages: usize,
    /// The nodes to move to; 0 if the pages are only to be looked at.
    nodes: usize,
    status: usize,
}

/// move_pages(2).
pub fn move_pages(call: &mut Call<'_>) -> SyscallResult {
    let moves =
        PageMoves { count: call.word(1), pages: call.word(2), nodes: call.word(3), status: call.word(4) };
    let flags = call.word(5) & 0xffff_ffff;
    if flags & !(MOVE | MOVE_ALL) != 0 {
        return Err(Errno::EINVAL.into());
    }
    if flags & MOVE_ALL != 0 && !call.thread.credentials().is_capable(linux::CAP_SYS_NICE) {
        return Err(Errno::EPERM.into());
    }
    let space = target(call, call.int(0))?.try_space().ok_or(Errno::EINVAL)?;
    let caller = call.thread.clone();
    pending(async move { each_page(&caller, &space, &moves).await })
}

async fn each_page(caller: &Caller, space: &Space, moves: &PageMoves) -> Result<usize, Errno> {
    const NODE_BYTES: usize = size_of::<i32>();
    let mut budget = Budget::new();
    for index in 0..moves.count {
        caller.pace(&mut budget, PAGE_COST).await?;
        let mut page = [0; WORD_BYTES];
        let at = moves.pages.wrapping_add(index.wrapping_mul(WORD_BYTES));
        caller.resolve(|own| own.read_bytes(at, &mut page)).await?;
        if moves.nodes != 0 {
            let mut node = [0; NODE_BYTES];
            let at = moves.nodes.wrapping_add(index.wrapping_mul(NODE_BYTES));
            caller.resolve(|own| own.read_bytes(at, &mut node)).await?;
            if i32::from_ne_bytes(node) != 0 {
                return Err(Errno::ENODEV);
            }
        }
        let told = match space.node_of_page(usize::from_ne_bytes(page)).await {
            Ok(node) => node as i32,
            Err(Errno::ENOMEM) => return Err(Errno::ENOMEM),
            Err(error) => -i32::from(error.0),
        };
        let at = moves.status.wrapping_add(index.wrapping_mul(NODE_BYTES));
        caller.resolve(|own| own.write_bytes(at, &told.to_ne_bytes())).await?;
    }
    Ok(0)
}
