//! Locks on the cache's files, held while a file is made or used.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

/// A lock on a file; dropping it gives it up.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the lock lives as long as the open file")] File);

impl Lock {
    /// Waits until no other process holds the lock.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn exclusive(path: &Path) -> Result<Self> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .with_context(|| path.display().to_string())?;
        flock(&file, FlockOperation::LockExclusive).with_context(|| path.display().to_string())?;
        Ok(Self(file))
    }
}
