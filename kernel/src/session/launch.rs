//! From the host's request for a program to one that can be started.

use alloc::sync::Arc;
use alloc::vec::Vec;

use heddle_abi::control::{Ending, List, Start};
use heddle_kernel_core::fallible::{extend_reserved, push_reserved};

use crate::error::Errno;
use crate::fs::lookup::Walker;
use crate::fs::{DescriptorTable, Directories, FileType, Path, mount};
use crate::memory::fallible::try_arc;
use crate::process::{ControllingTerminal, Credentials, Program};

/// Any of the three bits of execution.
const EXECUTABLE: u32 = 0o111;

/// Why a program was not started.
#[derive(Clone, Copy, Debug)]
pub enum LaunchError {
    /// Its working directory is at fault.
    Directory(Errno),
    /// Anything else is.
    Program(Errno),
}

impl From<Errno> for LaunchError {
    fn from(errno: Errno) -> Self {
        Self::Program(errno)
    }
}

impl From<LaunchError> for Ending {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::Directory(errno) => Self::NoDirectory(errno.0.into()),
            LaunchError::Program(errno) => Self::NotStarted(errno.0.into()),
        }
    }
}

/// The program with these descriptors and this terminal.
///
/// # Errors
/// `ENOENT`, `ENOTDIR`, `EACCES` (program or working directory), `ENOMEM`.
pub fn prepare(
    start: &Start<'_>,
    descriptors: DescriptorTable,
    terminal: Option<Arc<dyn ControllingTerminal>>,
) -> Result<Program, LaunchError> {
    let credentials = credentials(start)?;
    let root = mount::root().ok_or(Errno::ENODEV)?;
    let walker = |start| Walker { credentials: &credentials, root: root.clone(), start, thread: None };
    let working = walker(root.clone()).find(start.directory).map_err(LaunchError::Directory)?;
    if working.entry.node.kind() != FileType::Directory {
        return Err(LaunchError::Directory(Errno::ENOTDIR));
    }
    let path = find_program(&walker(working.clone()), start)?;
    let directories = Directories::new(root.clone());
    directories.set_working(working);
    Ok(Program {
        path,
        arguments: copy_list(&start.arguments)?,
        environment: copy_list(&start.environment)?,
        descriptors,
        directories,
        credentials,
        terminal,
    })
}

/// The credentials of the user, group and groups that the host names.
fn credentials(start: &Start<'_>) -> Result<Credentials, Errno> {
    let mut credentials = Credentials::ROOT;
    if !start.groups.is_empty() {
        let mut groups = Vec::new();
        groups.try_reserve_exact(start.groups.len()).map_err(|_| Errno::ENOMEM)?;
        start.groups.iter().for_each(|group| push_reserved(&mut groups, group));
        groups.sort_unstable();
        credentials.groups = Some(try_arc(groups)?);
    }
    let group = start.group;
    (credentials.gid, credentials.egid, credentials.sgid, credentials.fsgid) = (group, group, group, group);
    credentials.set_user_ids(start.user, start.user, start.user);
    Ok(credentials)
}

/// The program's path; a name without a slash is looked for along `PATH`, as execvp(3) does.
fn find_program(walker: &Walker<'_>, start: &Start<'_>) -> Result<Vec<u8>, Errno> {
    if start.program.contains(&b'/') {
        return copy(start.program);
    }
    let path = start.environment.iter().find_map(|variable| variable.strip_prefix(b"PATH="));
    let mut failure = Errno::ENOENT;
    for directory in path.unwrap_or(b"/usr/local/bin:/usr/bin:/bin").split(|&byte| byte == b':') {
        let directory = if directory.is_empty() { b"." } else { directory };
        let mut candidate = Vec::new();
        let length = directory.len() + 1 + start.program.len();
        candidate.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
        for part in [directory, b"/", start.program] {
            extend_reserved(&mut candidate, part);
        }
        match walker.find(&candidate) {
            Ok(place) if is_program(&place) => return Ok(candidate),
            Ok(_) | Err(Errno::EACCES) => failure = Errno::EACCES,
            Err(Errno::ENOMEM) => return Err(Errno::ENOMEM),
            Err(_) => {}
        }
    }
    Err(failure)
}

fn is_program(place: &Path) -> bool {
    let node = &place.entry.node;
    node.kind() == FileType::Regular && node.metadata().permissions & EXECUTABLE != 0
}

fn copy(bytes: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| Errno::ENOMEM)?;
    extend_reserved(&mut copy, bytes);
    Ok(copy)
}

fn copy_list(list: &List<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut copies = Vec::new();
    copies.try_reserve_exact(list.len()).map_err(|_| Errno::ENOMEM)?;
    for item in list.iter() {
        push_reserved(&mut copies, copy(item)?);
    }
    Ok(copies)
}
