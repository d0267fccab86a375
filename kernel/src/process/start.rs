//! Starting a program from the kernel itself.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Directories, Process, Terminal};
use crate::error::Errno;
use crate::file::DescriptorTable;

/// A program that the kernel starts: the one that `heddle run` names.
pub struct Program {
    /// Its file, an absolute path or one relative to the working directory.
    pub path: Vec<u8>,
    /// `argv`.
    pub arguments: Vec<Vec<u8>>,
    /// `envp`, as `NAME=VALUE`.
    pub environment: Vec<Vec<u8>>,
    /// Its descriptors.
    pub descriptors: DescriptorTable,
    /// Where its paths start.
    pub directories: Directories,
    /// The controlling terminal of the session that the program leads. The terminal itself learns the number of session
    /// and foreground group, which are both the pid, from [`Terminal::adopt`].
    pub terminal: Option<Arc<dyn Terminal>>,
}

/// Starts a program as a child of the kernel's reaper and leader of a session of its own.
///
/// # Errors
/// Those of execve(2): `ENOENT`, `EACCES`, `ENOEXEC`, `ENOMEM`…
pub async fn start(program: Program) -> Result<Arc<Process>, Errno> {
    let _ = program;
    Err(Errno::ENOSYS)
}
