//! Device nodes: what opens when a program opens a number.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use crate::error::Errno;
use crate::fs::inode::{Contents, Creation, FileType, Opening, device_major, device_minor};
use crate::fs::lookup::{LookupFlags, Walker};
use crate::fs::{File, mount};
use crate::process::Credentials;
use crate::sync::SpinLock;

use heddle_kernel_core::fallible::push_reserved;

/// A function that opens a device, given its minor number.
pub type Opener = fn(minor: u32, opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno>;

struct Driver {
    major: u32,
    minors: RangeInclusive<u32>,
    open: Opener,
}

static CHARACTER: SpinLock<Vec<Driver>> = SpinLock::new(Vec::new());

/// Makes `open` responsible for character devices of these numbers.
///
/// # Errors
/// `ENOMEM`.
pub fn register(major: u32, minors: RangeInclusive<u32>, open: Opener) -> Result<(), Errno> {
    let mut drivers = CHARACTER.lock();
    drivers.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    push_reserved(&mut drivers, Driver { major, minors, open });
    Ok(())
}

/// Opens a device.
///
/// # Errors
/// `ENXIO` (nobody is responsible), or what the driver says.
pub fn open(kind: FileType, number: u64, opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
    if kind != FileType::Character {
        return Err(Errno::ENXIO);
    }
    let (major, minor) = (device_major(number), device_minor(number));
    let responsible = |driver: &&Driver| driver.major == major && driver.minors.contains(&minor);
    let open = CHARACTER.lock().iter().find(responsible).map(|driver| driver.open);
    open.ok_or(Errno::ENXIO)?(minor, opening)
}

/// Creates a file below `/dev` on behalf of a driver, say `pts/3`; the directory must exist.
///
/// # Errors
/// Those of mknod(2).
pub fn publish(path: &[u8], permissions: u32, contents: Contents<'_>) -> Result<(), Errno> {
    let found = walker()?.walk(path, LookupFlags::empty())?;
    let name = found.vacant()?;
    let creation = Creation { contents, permissions, credentials: &Credentials::ROOT };
    let directory = &found.directory.entry;
    directory.node.create(directory, name, &creation)?;
    Ok(())
}

/// Gives a published file to a user and group: the ones who opened a pseudo-terminal own it.
///
/// # Errors
/// `ENOENT`.
pub fn give(path: &[u8], uid: u32, gid: u32) -> Result<(), Errno> {
    let place = walker()?.walk(path, LookupFlags::empty())?.existing()?;
    place.entry.node.change(&crate::fs::inode::InodeChange {
        uid: Some(uid),
        gid: Some(gid),
        ..Default::default()
    })
}

/// Removes a file below `/dev`.
///
/// # Errors
/// `ENOENT`.
pub fn withdraw(path: &[u8]) -> Result<(), Errno> {
    let found = walker()?.walk(path, LookupFlags::empty())?;
    let directory = found.directory.entry.clone();
    directory.node.unlink(&found.existing()?.entry)
}

fn walker() -> Result<Walker<'static>, Errno> {
    let root = mount::root().ok_or(Errno::ENODEV)?;
    let start =
        Walker { credentials: &Credentials::ROOT, root: root.clone(), start: root.clone(), thread: None };
    let start = start.find(b"/dev")?;
    Ok(Walker { credentials: &Credentials::ROOT, root, start, thread: None })
}
