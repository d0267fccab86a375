//! Calls about the identity of processes.

use crate::syscall::{Call, Outcome};

/// getpid(2).
pub fn getpid(call: &mut Call<'_>) -> Outcome {
    Ok((call.thread.process.pid as usize).into())
}
