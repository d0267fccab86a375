//! Handles for those who open a file.

use alloc::sync::Arc;

use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::inode::Opening;
use crate::fs::share::handle;
use crate::fs::share::handle::Handle;
use crate::fs::share::node::SharedNode;

impl SharedNode {
    /// A handle by which the host appends. `None` if the file has just been created, and is not to be had by its name:
    /// then there is the handle by which it was created.
    pub(super) fn open_to_append(
        self: &Arc<Self>,
        opening: &Opening<'_>,
    ) -> Result<Option<Arc<Handle>>, Errno> {
        match self.open_on_host(linux::O_WRONLY | linux::O_APPEND, opening) {
            Ok(appender) => Ok(Some(appender)),
            Err(error) if error == Errno::EINTR || self.created.lock().is_none() => Err(error),
            Err(_) => Ok(None),
        }
    }

    pub(super) fn open_on_host(
        self: &Arc<Self>,
        access: u32,
        opening: &Opening<'_>,
    ) -> Result<Arc<Handle>, Errno> {
        let appends = access & linux::O_APPEND != 0;
        let created = if appends { None } else { self.created.lock().take() };
        let fid = match created {
            Some(fid) => Ok(fid),
            None if access == linux::O_RDONLY => self.open_and_read(&opening.place.entry),
            None => handle::open(self, access),
        };
        if matches!(fid, Err(Errno::ESTALE | Errno::ENOENT)) {
            // The name is to be looked up anew.
            self.state.expire(self.server());
            let entry = &opening.place.entry;
            if let Some(above) = entry.parent() {
                self.sibling(&above.node)?.state.forget_entry(self.server(), entry);
            }
            return Err(Errno::ESTALE);
        }
        Handle::opened(self.clone(), fid?, access)
    }
}
