//! Mounts of devpts beside the one in `/dev/pts`: each has a `ptmx` of its own, and shows the pseudoterminals that were
//! made by it. Their numbers are the machine's, so that no two of them are one device.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use heddle_kernel_core::fallible::push_reserved;

use crate::error::Errno;
use crate::fs::inode::{Contents, Creation, InodeChange, device_number};
use crate::fs::tree::Tree;
use crate::fs::{Dentry, FileType, Mount, Path};
use crate::process::Credentials;
use crate::process::user_namespace::{IdKind, lower};
use crate::sync::SpinLock;
use crate::tty::{MAJOR, MINOR_MASTER};

/// The name of the file system.
pub const KIND: &str = "devpts";

/// The options of a mount.
#[derive(Clone, Copy)]
struct InstanceSettings {
    /// Permissions of pseudoterminals.
    permissions: u32,
    user: Option<u32>,
    group: Option<u32>,
    /// Permissions of `ptmx`.
    of_master: u32,
}

/// The mounted instances, by their root directories.
static INSTANCES: SpinLock<Vec<(Weak<Dentry>, InstanceSettings)>> = SpinLock::new(Vec::new());

fn parse(options: &[u8], who: &Credentials) -> Result<InstanceSettings, Errno> {
    let mut settings = InstanceSettings { permissions: 0o600, user: None, group: None, of_master: 0 };
    let options = core::str::from_utf8(options).map_err(|_| Errno::EINVAL)?;
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let mode = || u32::from_str_radix(value, 8).map(|mode| mode & 0o777).map_err(|_| Errno::EINVAL);
        let number = || value.parse::<u32>().map_err(|_| Errno::EINVAL);
        let id = |kind, number| lower(&who.users, kind, number).ok_or(Errno::EINVAL);
        match name {
            "mode" => settings.permissions = mode()?,
            "ptmxmode" => settings.of_master = mode()?,
            "uid" => settings.user = Some(id(IdKind::User, number()?)?),
            "gid" => settings.group = Some(id(IdKind::Group, number()?)?),
            // Each is a new one.
            "newinstance" => {}
            _ => return Err(Errno::EINVAL),
        }
    }
    Ok(settings)
}

/// A mount of a new instance.
///
/// # Errors
/// `EINVAL` (an option that there isn't), `ENOMEM`, `ENOSPC`.
pub fn mount(source: &[u8], options: &[u8], flags: u32, who: &Credentials) -> Result<Arc<Mount>, Errno> {
    let settings = parse(options, who)?;
    let made = Tree::mount(KIND, source, 0o755, 0, flags)?;
    let root = made.root.clone();
    let creation = Creation {
        contents: Contents::Device(FileType::Character, device_number(MAJOR, MINOR_MASTER)),
        permissions: settings.of_master,
        credentials: &Credentials::ROOT,
    };
    let master = root.node.create(&root, b"ptmx", &creation)?;
    let owner = Some(who.root_user());
    for node in [&root.node, &master.node] {
        node.change(&InodeChange { uid: owner, gid: owner, ..InodeChange::default() })?;
    }
    let mut instances = INSTANCES.lock();
    instances.retain(|(root, _)| root.strong_count() > 0);
    instances.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    push_reserved(&mut instances, (Arc::downgrade(&root), settings));
    Ok(made)
}

/// The file of a pseudoterminal in an instance; it goes with its master.
pub(super) struct InstanceNode {
    place: Path,
}

impl InstanceNode {
    /// Makes the file for whoever opened the `ptmx` at `opened`; nothing if that is not an instance's.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(opened: &Path, number: usize, device: u64, who: &Credentials) -> Result<Option<Self>, Errno> {
        let Some(root) = opened.entry.parent().filter(|_| opened.mount.file_system.kind == KIND) else {
            return Ok(None);
        };
        let is_root = |(known, _): &&(Weak<Dentry>, InstanceSettings)| {
            core::ptr::eq(known.as_ptr(), Arc::as_ptr(&root))
        };
        let Some((_, settings)) = INSTANCES.lock().iter().find(is_root).cloned() else { return Ok(None) };
        let mut digits = [0; 10];
        let mut start = digits.len();
        let mut rest = number;
        while start == digits.len() || rest > 0 {
            start -= 1;
            digits[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let creation = Creation {
            contents: Contents::Device(FileType::Character, device),
            permissions: settings.permissions,
            credentials: &Credentials::ROOT,
        };
        let entry = root.node.create(&root, &digits[start..], &creation)?;
        let made = Self { place: Path { mount: opened.mount.clone(), entry } };
        made.place.entry.node.change(&InodeChange {
            uid: Some(settings.user.unwrap_or(who.fsuid)),
            gid: Some(settings.group.unwrap_or(who.fsgid)),
            ..InodeChange::default()
        })?;
        Ok(Some(made))
    }

    /// Where the file is.
    pub const fn place(&self) -> &Path {
        &self.place
    }
}

impl Drop for InstanceNode {
    fn drop(&mut self) {
        if let Some(root) = self.place.entry.parent() {
            // A program may have removed it.
            let _ = root.node.unlink(&self.place.entry);
        }
    }
}
