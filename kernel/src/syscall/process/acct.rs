//! acct(2).

use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::FileType;
use crate::process::acct;
use crate::syscall::fs::get_path;
use crate::syscall::fs::open::open_to_append;
use crate::syscall::{Call, SyscallResult};

/// acct(2).
pub fn acct(call: &mut Call<'_>) -> SyscallResult {
    if !call.thread.credentials().is_capable(linux::CAP_SYS_PACCT) {
        return Err(Errno::EPERM.into());
    }
    if call.word(0) == 0 {
        acct::set_file(None);
        return Ok(0.into());
    }
    let path = get_path(call, 0)?;
    let open = open_to_append(call.thread, &path)?;
    if open.kind() != FileType::Regular {
        return Err(Errno::EACCES.into());
    }
    acct::set_file(Some(open));
    Ok(0.into())
}
