//! A thread's view of the name space: who walks, and from where.

use alloc::sync::Arc;

use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::fs::Path;
use crate::fs::anonymous::path_of_open_file;
use crate::fs::lookup::{LookupFlags, LookupResult, Walker};
use crate::process::{Credentials, Thread};

/// A thread's view of the name space: who walks, and from where.
pub struct View {
    /// For permissions.
    pub credentials: Arc<Credentials>,
    root: Path,
    start: Option<Path>,
}

impl View {
    /// The view of the calling thread, with relative paths starting at the directory `descriptor`.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn at(thread: &Arc<Thread>, descriptor: i32) -> Result<Self, Errno> {
        let directories = thread.directories();
        let start = if descriptor == linux::AT_FDCWD {
            Some(directories.working())
        } else {
            let open = thread.descriptors().get(descriptor)?;
            Some(match &open.place {
                Some(place) => place.clone(),
                None => path_of_open_file(&open)?,
            })
        };
        Ok(Self { credentials: thread.credentials(), root: directories.root(), start })
    }

    /// The view for a path: an absolute one doesn't look at the descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn of(thread: &Arc<Thread>, descriptor: i32, path: &[u8]) -> Result<Self, Errno> {
        if path.first() == Some(&b'/') {
            let directories = thread.directories();
            return Ok(Self { credentials: thread.credentials(), root: directories.root(), start: None });
        }
        Self::at(thread, descriptor)
    }

    /// Walks a path.
    ///
    /// # Errors
    /// As [`Walker::walk`].
    pub fn walk(&self, thread: &Arc<Thread>, path: &[u8], how: LookupFlags) -> Result<LookupResult, Errno> {
        let start = self.start.clone().unwrap_or_else(|| self.root.clone());
        let walker =
            Walker { credentials: &self.credentials, root: self.root.clone(), start, thread: Some(thread) };
        walker.walk(path, how)
    }
}

/// Checks the path of a call that needs an existing regular place, for `execve` and others of the kernel.
///
/// # Errors
/// Those of path_resolution(7).
pub fn find_from(
    thread: &Arc<Thread>,
    descriptor: i32,
    path: &[u8],
    how: LookupFlags,
) -> TryResult<(Path, Arc<Credentials>)> {
    let view = View::of(thread, descriptor, path)?;
    let place = view.walk(thread, path, how)?.existing()?;
    Ok((place, view.credentials))
}
