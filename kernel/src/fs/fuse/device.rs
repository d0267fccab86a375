//! `/dev/fuse`: the descriptor by which a server reads requests and writes answers.

use alloc::sync::Arc;

use crate::error::{Errno, TryResult};
use crate::fs::fuse::connection::{CONTENTS_MAX, Connection};
use crate::fs::inode::Opening;
use crate::fs::{File, IoBuffer, OpenFile, devices};
use crate::memory::fallible;
use crate::wait::queue::{Events, Watch};

/// Its name, major and minor number.
pub const NODE: (&[u8], u32, u32) = (b"fuse", 10, 229);

/// No request or answer has more bytes.
const RECORD_BYTES: usize = CONTENTS_MAX + 4096;

/// An open file of it, which serves one mount at most.
#[derive(Default)]
pub(super) struct FuseDevice {
    connection: spin::Once<Arc<Connection>>,
}

/// Makes it available to device nodes.
///
/// # Errors
/// `ENOMEM`.
pub fn register() -> Result<(), Errno> {
    devices::register(NODE.1, NODE.2..=NODE.2, open)
}

fn open(_: u32, _: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
    Ok(fallible::try_arc(FuseDevice::default())?)
}

impl FuseDevice {
    /// Has the server speak by this file.
    ///
    /// # Errors
    /// `EINVAL`: it serves another mount.
    pub fn serve(&self, connection: Arc<Connection>) -> Result<(), Errno> {
        let own = self.connection.call_once(|| connection.clone());
        if Arc::ptr_eq(own, &connection) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn connection(&self) -> Result<&Arc<Connection>, Errno> {
        self.connection.get().ok_or(Errno::EPERM)
    }
}

impl Drop for FuseDevice {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.get() {
            connection.end(Errno::ENOTCONN);
        }
    }
}

impl File for FuseDevice {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        self.connection()?.give(buffer)
    }

    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        self.connection()?.take(buffer)
    }

    fn writes_once(&self) -> bool {
        true
    }

    fn record_bytes(&self) -> Option<usize> {
        Some(RECORD_BYTES)
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        match self.connection.get() {
            Some(connection) => connection.poll(watch, events),
            None => Ok(Events::ERR),
        }
    }
}
