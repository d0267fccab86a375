//! Open files that are in no file system, as something with a path.

use alloc::sync::Arc;
use core::fmt::Write;

use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::inode::{Metadata, Opening, Statistics};
use crate::fs::{Dentry, File, FileType, Inode, OpenFile, Path, setup};
use crate::memory::fallible;

/// Room for the name of any of them.
const NAME_BYTES_MAX: usize = 64;

/// The place of an open file; one made for it if it has none, so that it can be looked at and opened again.
///
/// # Errors
/// `ENOMEM`.
pub fn path_of_open_file(open: &Arc<OpenFile>) -> Result<Path, Errno> {
    if let Some(place) = &open.place {
        return Ok(place.clone());
    }
    let metadata = open.file.metadata();
    let mut name = fallible::try_string("")?;
    name.try_reserve(NAME_BYTES_MAX).map_err(|_| Errno::ENOMEM)?;
    let written = match metadata.kind {
        FileType::Socket => write!(name, "socket:[{}]", metadata.inode),
        _ => write!(name, "{}", open.file.name()),
    };
    written.map_err(|_| Errno::ENOMEM)?;
    let node = fallible::try_arc(Anonymous { open: open.clone() })?;
    let entry = Dentry::new(node, None, name.as_bytes())?;
    Ok(Path { mount: setup::anonymous()?.0.clone(), entry })
}

/// A node for an open file that is in no file system.
struct Anonymous {
    open: Arc<OpenFile>,
}

impl Inode for Anonymous {
    fn kind(&self) -> FileType {
        self.open.file.metadata().kind
    }

    fn metadata(&self) -> Metadata {
        self.open.file.metadata()
    }

    fn statistics(&self) -> Statistics {
        let magic = linux::ANON_INODE_FS_MAGIC;
        Statistics {
            magic,
            blocks: 0,
            free: 0,
            nodes: 0,
            free_nodes: 0,
            device: self.open.file.metadata().device,
        }
    }

    fn open(self: Arc<Self>, opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
        self.open.file.clone().reopen(opening.flags)
    }
}
