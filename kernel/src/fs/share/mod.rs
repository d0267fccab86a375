//! Folders of the host: a file system whose nodes are the host's files, reached by 9P over a virtio device.
//!
//! The host's files are the truth, and what is kept of them here (names, attributes, bytes) is relied on for a
//! time ([`kept`]): then the host is asked whether it is still right. Several nodes of one file have the same number
//! and share a state: locks, the pipe of a FIFO, attributes, names, and bytes.
//!
//! Locks hold among the guest's programs; QEMU's server would grant all that it is asked for, so it is not asked.
//!
//! FIFOs and sockets are nodes on the host, and pipes and sockets in the guest: nothing passes between the two. There
//! are no device files.

mod ahead;
mod asking;
mod create;
mod file;
mod filled;
mod handle;
mod kept;
mod listing;
mod mapped;
mod names;
mod node;
mod opening;
mod pages;
mod renames;
mod server;
pub mod special;
mod state;
mod watch;

use alloc::vec::Vec;

use heddle_abi::boot::{KEY_SHARE, SHARE_READ_ONLY, SHARE_TAG, SHARE_VALUE_MAX};
use linux_raw_sys::general as linux;

use crate::boot;
use crate::device::share::Share;
use crate::error::Errno;
use crate::fs::inode::{FileType, device_number};
use crate::fs::share::node::SharedNode;
use crate::fs::share::server::{CHUNK, Fid, Server};
use crate::fs::{Dentry, Mount, setup};

pub use crate::fs::share::kept::{announce, drain};
pub use crate::fs::share::watch::{changed, watched};

/// Mounts the folders where the command line wants them.
///
/// # Errors
/// The error that keeps one from being mounted.
pub fn mount_all(mut shares: Vec<Share>) -> Result<(), Errno> {
    let mut buffer = [0; SHARE_VALUE_MAX];
    let Some(value) = boot::option(KEY_SHARE, &mut buffer) else { return Ok(()) };
    // Devices come in any order, and a folder may lie in another.
    shares.sort_unstable_by_key(number_of);
    for share in shares {
        let number = number_of(&share);
        let Some(target) = number.and_then(|number| value.split(',').nth(number)) else { continue };
        let (path, flags) = match target.strip_suffix(SHARE_READ_ONLY) {
            Some(path) => (path, linux::MS_RDONLY),
            None => (target, 0),
        };
        let device = device_number(0, 60 + number.unwrap_or(0) as u32);
        let server = Server::new(share, number.unwrap_or(0) as u32, device)?;
        kept::register(&server)?;
        let question = server.question();
        let root = SharedNode::new(server.attach()?, &question)?;
        server.set_root(&root);
        if crate::fs::Inode::kind(&*root) != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        let mount = Mount::new(Dentry::new(root, None, b"")?, "9p", server.tag(), flags)?;
        setup::attach_at(&mount, path.as_bytes())?;
    }
    Ok(())
}

/// Which of the folders on the command line a device has.
fn number_of(share: &Share) -> Option<usize> {
    core::str::from_utf8(&share.tag).ok()?.strip_prefix(SHARE_TAG)?.parse().ok()
}
