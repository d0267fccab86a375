//! pidfd_open(2): a process as an open file. Readable once the process has ended.

use alloc::sync::Arc;

use crate::error::Errno;
use crate::fs::{File, OpenFile, StatusFlags, downcast};
use crate::memory::fallible;
use crate::process::{Process, table};
use crate::wait::queue::{Events, Watch};

/// A process that stays the same one though its number may be used again.
pub struct ProcessFile(Arc<Process>);

impl ProcessFile {
    /// Opens a process.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn open(process: Arc<Process>, flags: StatusFlags) -> Result<Arc<OpenFile>, Errno> {
        let file = fallible::try_arc(Self(process))?;
        fallible::try_arc(OpenFile::new(file, StatusFlags::RDWR | flags))
    }

    /// The process behind an open file, whether anybody has waited for it or not.
    ///
    /// # Errors
    /// `EBADF`: the file is none of pidfd_open(2).
    pub fn process_of(open: &OpenFile) -> Result<Arc<Process>, Errno> {
        downcast::<Self>(open).map(|file| file.0.clone()).ok_or(Errno::EBADF)
    }

    /// The process's number; `None` once its parent has waited for it.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        is_known(&self.0).then_some(self.0.pid)
    }
}

/// Whether the process still has its number: nobody has waited for it.
#[must_use]
pub fn is_known(process: &Arc<Process>) -> bool {
    table::process(process.pid).is_some_and(|known| Arc::ptr_eq(&known, process))
}

impl File for ProcessFile {
    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch
            && !self.0.is_end_told()
        {
            self.0.watch_end(watch, events)?;
        }
        let mut ready = Events::empty();
        ready.set(Events::IN | Events::RDNORM, self.0.is_end_told());
        Ok(ready)
    }

    fn name(&self) -> &'static str {
        "anon_inode:[pidfd]"
    }
}
