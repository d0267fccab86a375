//! `/dev/fuse`: the descriptor by which a server reads requests and writes answers.

use alloc::sync::Arc;

use crate::call::{Call, get};
use crate::error::{Errno, TryResult};
use crate::fs::fuse::connection::{CONTENTS_MAX, Connection};
use crate::fs::inode::Opening;
use crate::fs::{File, IoBuffer, OpenFile, devices, downcast};
use crate::memory::fallible;
use crate::wait::queue::{Events, Watch};

/// Its name, major and minor number.
pub const NODE: (&[u8], u32, u32) = (b"fuse", 10, 229);

/// No request or answer has more bytes.
const RECORD_BYTES: usize = CONTENTS_MAX + 4096;

/// The request of ioctl(2) by which another open file of it serves the same mount.
const CLONE: u32 = 0x8004_e500;

/// An open file of it, which serves one mount at most.
#[derive(Default)]
pub(super) struct FuseDevice {
    serving: spin::Once<Arc<ServerEnd>>,
}

/// The server's end of a connection, which open files share. The last that is closed ends the connection.
struct ServerEnd(Arc<Connection>);

impl Drop for ServerEnd {
    fn drop(&mut self) {
        self.0.end(Errno::ENOTCONN);
    }
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
    /// `EINVAL` (it serves another mount), `ENOMEM`.
    pub fn serve(&self, connection: Arc<Connection>) -> Result<(), Errno> {
        self.share(&fallible::try_arc(ServerEnd(connection))?)
    }

    fn share(&self, end: &Arc<ServerEnd>) -> Result<(), Errno> {
        let own = self.serving.call_once(|| end.clone());
        if Arc::ptr_eq(own, end) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn connection(&self) -> Result<&Arc<Connection>, Errno> {
        self.serving.get().map(|end| &end.0).ok_or(Errno::EPERM)
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

    fn ioctl(&self, call: &Call<'_>, _: &OpenFile, request: u32, argument: usize) -> TryResult<usize> {
        if request != CLONE {
            return Err(Errno::ENOTTY.into());
        }
        let descriptor = i32::from_ne_bytes(get(call, argument)?);
        let other = call.thread.descriptors().get(descriptor).map_err(|_| Errno::EINVAL)?;
        let end = downcast::<Self>(&other).and_then(|device| device.serving.get()).ok_or(Errno::EINVAL)?;
        if self.serving.get().is_some() {
            return Err(Errno::EINVAL.into());
        }
        self.share(end)?;
        Ok(0)
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        match self.connection() {
            Ok(connection) => connection.poll(watch, events),
            Err(_) => Ok(Events::ERR),
        }
    }
}
