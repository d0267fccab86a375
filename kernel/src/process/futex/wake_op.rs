//! `FUTEX_WAKE_OP`: changes one word and wakes waiters of two.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::memory::Space;
use crate::process::futex::{Words, key, wake_key};

/// The change of the second word by `FUTEX_WAKE_OP`, unpacked.
struct WordOperation {
    operation: u32,
    comparison: u32,
    operand: u32,
    compared: u32,
}

impl WordOperation {
    fn decode(encoded: u32) -> Self {
        let field = |shift: u32| ((encoded << (20 - shift)) as i32 >> 20) as u32;
        let operation = encoded >> 28 & 0xf;
        let operand = field(12);
        let is_shift = operation & linux::FUTEX_OP_OPARG_SHIFT != 0;
        Self {
            operation: operation & !linux::FUTEX_OP_OPARG_SHIFT,
            comparison: encoded >> 24 & 0xf,
            operand: if is_shift { 1 << (operand & 31) } else { operand },
            compared: field(0),
        }
    }

    fn apply(&self, old: u32) -> Result<u32, Errno> {
        Ok(match self.operation {
            linux::FUTEX_OP_SET => self.operand,
            linux::FUTEX_OP_ADD => old.wrapping_add(self.operand),
            linux::FUTEX_OP_OR => old | self.operand,
            linux::FUTEX_OP_ANDN => old & !self.operand,
            linux::FUTEX_OP_XOR => old ^ self.operand,
            _ => return Err(Errno::ENOSYS),
        })
    }

    fn holds(&self, old: u32) -> Result<bool, Errno> {
        let (old, compared) = (old as i32, self.compared as i32);
        Ok(match self.comparison {
            linux::FUTEX_OP_CMP_EQ => old == compared,
            linux::FUTEX_OP_CMP_NE => old != compared,
            linux::FUTEX_OP_CMP_LT => old < compared,
            linux::FUTEX_OP_CMP_LE => old <= compared,
            linux::FUTEX_OP_CMP_GT => old > compared,
            linux::FUTEX_OP_CMP_GE => old >= compared,
            _ => return Err(Errno::ENOSYS),
        })
    }
}

/// `FUTEX_WAKE_OP`: `encoded` says what to do to the second word, and when waiters there are woken.
///
/// # Errors
/// `EINVAL`, `ENOSYS`, a page fault.
pub fn wake_op(
    space: &Arc<Space>,
    words: &Words,
    (count, other_count): (u32, u32),
    encoded: u32,
) -> TryResult<usize> {
    let operation = WordOperation::decode(encoded);
    let first = key(space, words.address, words.is_private)?;
    let second = key(space, words.other, words.is_private)?;
    operation.holds(0)?;
    let old = update(space, words.other, |old| operation.apply(old))?;
    let mut woken = wake_key(&first, count, linux::FUTEX_BITSET_MATCH_ANY);
    if operation.holds(old)? {
        woken += wake_key(&second, other_count, linux::FUTEX_BITSET_MATCH_ANY);
    }
    Ok(woken)
}

/// Changes a word atomically; returns its old value.
pub(super) fn update(
    space: &Space,
    address: usize,
    change: impl Fn(u32) -> Result<u32, Errno>,
) -> TryResult<u32> {
    loop {
        let old = space.load_u32(address)?;
        if space.compare_exchange_u32(address, old, change(old)?)? == old {
            return Ok(old);
        }
    }
}
