//! arch_prctl(2).

use crate::arch;
use crate::syscall::{Call, SyscallResult, user};

/// arch_prctl(2).
pub fn arch_prctl(call: &mut Call<'_>) -> SyscallResult {
    let (operation, address) = (call.uint(0), call.word(1));
    if let Some(value) = arch::control(call.context, operation, address)? {
        user::write_words(&call.thread.space(), address, &[value])?;
    }
    Ok(0.into())
}
