//! Rules by which a mount of `/proc` shows processes: the options `hidepid`, `gid` and `subset` of proc(5).

use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::error::Errno;
use crate::fs::inode::Inode;
use crate::process::access::{ViewerIds, may_access};
use crate::process::detour::with_thread_here;
use crate::process::user_namespace::{IdKind, lower};
use crate::process::{Credentials, Thread};
use crate::procfs::{ProcNode, Subject};

/// How much is hidden of processes into which the viewer may not look.
mod hiding {
    pub const NOTHING: u32 = 0;
    /// Their directories are closed.
    pub const CONTENTS: u32 = 1;
    /// They are not listed.
    pub const PRESENCE: u32 = 2;
    /// The same, also to the group that sees the others.
    pub const PRESENCE_TO_ALL: u32 = 4;
}

/// The rules of a mounted file system.
#[derive(Default)]
pub struct ProcRules {
    hiding: AtomicU32,
    /// The group from which nothing is hidden.
    group: AtomicU32,
    /// Nothing but processes is shown.
    pids_only: AtomicU32,
}

/// Options, as they are read before any takes effect.
#[derive(Default)]
pub struct ProcOptions {
    hiding: Option<u32>,
    group: Option<u32>,
    is_subset: bool,
}

impl ProcOptions {
    /// Reads the options of a mount.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn parse(options: &[u8], who: &Credentials) -> Result<Self, Errno> {
        let mut found = Self::default();
        let options = core::str::from_utf8(options).map_err(|_| Errno::EINVAL)?;
        for option in options.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=').ok_or(Errno::EINVAL)? {
                ("hidepid", value) => {
                    found.hiding = Some(match value {
                        "0" | "off" => hiding::NOTHING,
                        "1" | "noaccess" => hiding::CONTENTS,
                        "2" | "invisible" => hiding::PRESENCE,
                        "4" | "ptraceable" => hiding::PRESENCE_TO_ALL,
                        _ => return Err(Errno::EINVAL),
                    });
                }
                ("gid", value) => {
                    let number = value.parse().map_err(|_| Errno::EINVAL)?;
                    found.group = Some(lower(&who.users, IdKind::Group, number).ok_or(Errno::EINVAL)?);
                }
                ("subset", "pid") => found.is_subset = true,
                _ => return Err(Errno::EINVAL),
            }
        }
        Ok(found)
    }
}

impl ProcRules {
    /// Has options take effect. Other rules stay as they are; as in Linux a subset stays one.
    pub fn change(&self, options: &ProcOptions) {
        if let Some(hiding) = options.hiding {
            self.hiding.store(hiding, Ordering::Relaxed);
        }
        if let Some(group) = options.group {
            self.group.store(group, Ordering::Relaxed);
        }
        if options.is_subset {
            self.pids_only.store(1, Ordering::Relaxed);
        }
    }

    /// Whether whoever looks may see so much of a process.
    fn permits(&self, least: u32, subject: &Subject) -> bool {
        let hiding = self.hiding.load(Ordering::Relaxed);
        if hiding < least {
            return true;
        }
        let seen = with_thread_here(|viewer: &Arc<Thread>| {
            let is_of_group = viewer.credentials().is_in_group(self.group.load(Ordering::Relaxed));
            if hiding != hiding::PRESENCE_TO_ALL && is_of_group {
                return true;
            }
            match subject.thread() {
                Ok(thread) => may_access(viewer, &thread, ViewerIds::File),
                // Of a process without threads, such as a zombie, nothing is known but its parent.
                Err(_) => viewer.credentials().is_root_owned(),
            }
        });
        seen == Some(true)
    }
}

impl Subject {
    /// Whether the process is shown to whoever looks.
    pub(super) fn is_shown(&self) -> bool {
        self.rules.as_ref().is_none_or(|rules| rules.permits(hiding::PRESENCE, self))
    }

    /// Whether what is in its directory is.
    pub(super) fn is_open(&self) -> bool {
        self.rules.as_ref().is_none_or(|rules| rules.permits(hiding::CONTENTS, self))
    }

    /// Whether nothing but processes is shown.
    pub(super) fn is_subset(&self) -> bool {
        self.rules.as_ref().is_some_and(|rules| rules.pids_only.load(Ordering::Relaxed) != 0)
    }
}

/// Changes the rules of a mounted `/proc`, by its root.
///
/// # Errors
/// `EINVAL`: it is none.
pub fn change_rules(root: &Arc<dyn Inode>, options: &ProcOptions) -> Result<(), Errno> {
    let node: &dyn Any = &**root;
    let rules = node.downcast_ref::<ProcNode>().and_then(|node| node.subject.rules.as_ref());
    rules.ok_or(Errno::EINVAL)?.change(options);
    Ok(())
}
