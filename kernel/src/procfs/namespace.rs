//! `/proc/PID/ns`: namespaces as files, which setns(2) takes.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::call::Call;
use crate::error::{Errno, TryResult};
use crate::fs::inode::{Inode, LinkTarget, Metadata, Opening, Statistics, device_number};
use crate::fs::mount::MountNamespace;
use crate::fs::{Dentry, File, FileType, OpenFile, Path, StatusFlags, downcast, setup};
use crate::memory::fallible;
use crate::process::Thread;
use crate::process::host_name::UtsNamespace;
use crate::process::namespaces::{CgroupNamespace, UpperNamespace};
use crate::process::pid_namespace::{self, Pids, is_below};
use crate::process::time_namespace::{self, Times};
use crate::process::user_namespace::{self, Users, is_within};
use crate::procfs::{Subject, Text, at, link};

/// The number of the file system that they are in.
const DEVICE: u64 = device_number(0, 4);
/// `NS_GET_USERNS` and the like.
mod request {
    pub const USERS: u32 = 0xb701;
    pub const PARENT: u32 = 0xb702;
    pub const TYPE: u32 = 0xb703;
    pub const OWNER: u32 = 0xb704;
}

/// A namespace of any kind.
#[derive(Clone)]
pub enum Namespace {
    /// Mounts.
    Mounts(Arc<MountNamespace>),
    /// Names of the machine.
    Names(Arc<UtsNamespace>),
    /// Objects of IPC.
    Ipc(Arc<dyn UpperNamespace>),
    /// Interfaces, ports, and names of sockets.
    Network(Arc<dyn UpperNamespace>),
    /// Control groups.
    Groups(Arc<CgroupNamespace>),
    /// Numbers of processes.
    Pids(Pids),
    /// Offsets of clocks.
    Times(Times),
    /// Numbers of users, and what capabilities count towards.
    Users(Users),
}

impl Namespace {
    /// The flag of clone(2) that makes one of its kind.
    #[must_use]
    pub const fn flag(&self) -> u32 {
        match self {
            Self::Mounts(_) => linux::CLONE_NEWNS,
            Self::Names(_) => linux::CLONE_NEWUTS,
            Self::Ipc(_) => linux::CLONE_NEWIPC,
            Self::Network(_) => linux::CLONE_NEWNET,
            Self::Groups(_) => linux::CLONE_NEWCGROUP,
            Self::Pids(_) => linux::CLONE_NEWPID,
            Self::Times(_) => linux::CLONE_NEWTIME,
            Self::Users(_) => linux::CLONE_NEWUSER,
        }
    }

    fn number(&self) -> u64 {
        match self {
            Self::Mounts(namespace) => namespace.number,
            Self::Names(namespace) => namespace.number,
            Self::Ipc(namespace) | Self::Network(namespace) => namespace.number(),
            Self::Groups(namespace) => namespace.number,
            Self::Pids(pids) => pid_namespace::number(pids),
            Self::Times(times) => time_namespace::number(times),
            Self::Users(users) => user_namespace::number(users),
        }
    }

    const fn kind(&self) -> &'static str {
        match self {
            Self::Mounts(_) => "mnt",
            Self::Names(_) => "uts",
            Self::Ipc(_) => "ipc",
            Self::Network(_) => "net",
            Self::Groups(_) => "cgroup",
            Self::Pids(_) => "pid",
            Self::Times(_) => "time",
            Self::Users(_) => "user",
        }
    }

    /// The namespace that an open file is.
    #[must_use]
    pub fn of(open: &OpenFile) -> Option<Self> {
        downcast::<NamespaceFile>(open).map(|file| file.0.clone())
    }

    /// The user namespace that owns it; none for the first of them.
    fn owner(&self) -> Option<Users> {
        match self {
            Self::Mounts(namespace) => Some(namespace.owner().clone()),
            Self::Names(namespace) => Some(namespace.owner().clone()),
            Self::Ipc(namespace) | Self::Network(namespace) => Some(namespace.owner().clone()),
            Self::Groups(namespace) => Some(namespace.owner().clone()),
            Self::Pids(pids) => Some(pid_namespace::owner(pids)),
            Self::Times(times) => Some(time_namespace::owner(times)),
            Self::Users(users) => users.as_ref().map(|users| users.parent.clone()),
        }
    }

    fn metadata(&self) -> Metadata {
        Metadata {
            device: DEVICE,
            permissions: 0o444,
            ..Metadata::anonymous(FileType::Regular, self.number())
        }
    }

    /// The file that it is.
    fn place(self) -> Result<LinkTarget, Errno> {
        Ok(at(self.path()?))
    }

    fn path(self) -> Result<Path, Errno> {
        let mut name = Text::new();
        name.line(format_args!("{}:[{}]", self.kind(), self.number()))?;
        let entry = Dentry::new(fallible::try_arc(NamespaceNode(self))?, None, &name.into_bytes())?;
        Ok(Path { mount: setup::namespaces()?.clone(), entry })
    }
}

/// `/proc/PID/ns/mnt`.
pub(super) fn mounts(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    Namespace::Mounts(link::check(subject, viewer)?.namespaces().mounts.clone()).place()
}

/// `/proc/PID/ns/uts`.
pub(super) fn names(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    Namespace::Names(link::check(subject, viewer)?.namespaces().names.clone()).place()
}

/// `/proc/PID/ns/ipc`.
pub(super) fn ipc(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    Namespace::Ipc(link::check(subject, viewer)?.namespaces().ipc.clone()).place()
}

/// `/proc/PID/ns/net`.
pub(super) fn network(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    Namespace::Network(link::check(subject, viewer)?.namespaces().network.clone()).place()
}

/// `/proc/PID/ns/cgroup`.
pub(super) fn groups(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    Namespace::Groups(link::check(subject, viewer)?.namespaces().groups.clone()).place()
}

/// `/proc/PID/ns/pid`.
pub(super) fn pids(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    Namespace::Pids(link::check(subject, viewer)?.process.pids.clone()).place()
}

/// `/proc/PID/ns/pid_for_children`: there is none before the namespace has a process.
pub(super) fn pids_of_children(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    let pids = link::check(subject, viewer)?.namespaces().pids.clone();
    if pids.as_ref().is_some_and(|pids| !pids.has_init()) {
        return Err(Errno::ENOENT);
    }
    Namespace::Pids(pids).place()
}

/// `/proc/PID/ns/time`.
pub(super) fn times(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    Namespace::Times(link::check(subject, viewer)?.namespaces().times.clone()).place()
}

/// `/proc/PID/ns/time_for_children`.
pub(super) fn times_of_children(
    subject: &Subject,
    viewer: Option<&Arc<Thread>>,
) -> Result<LinkTarget, Errno> {
    Namespace::Times(link::check(subject, viewer)?.namespaces().times_of_children.clone()).place()
}

/// `/proc/PID/ns/user`.
pub(super) fn users(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    Namespace::Users(link::check(subject, viewer)?.credentials().users.clone()).place()
}

struct NamespaceNode(Namespace);

impl Inode for NamespaceNode {
    fn kind(&self) -> FileType {
        FileType::Regular
    }

    fn metadata(&self) -> Metadata {
        self.0.metadata()
    }

    fn statistics(&self) -> Statistics {
        let magic = linux::NSFS_MAGIC;
        Statistics { magic, blocks: 0, free: 0, nodes: 0, free_nodes: 0, device: DEVICE }
    }

    fn namespace_order(&self) -> Option<u64> {
        match &self.0 {
            Namespace::Mounts(namespace) => Some(namespace.number),
            _ => Some(u64::MAX),
        }
    }

    fn open(self: Arc<Self>, _: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
        Ok(fallible::try_arc(NamespaceFile(self.0.clone()))?)
    }
}

struct NamespaceFile(Namespace);

/// A new descriptor for a namespace.
fn open(call: &Call<'_>, namespace: Namespace) -> TryResult<usize> {
    let file = fallible::try_arc(NamespaceFile(namespace.clone()))?;
    let open = fallible::try_arc(OpenFile::at(file, StatusFlags::empty(), namespace.path()?))?;
    let number = call.thread.descriptors().add(open, 0, call.thread.process.descriptor_limit(), true)?;
    Ok(number as usize)
}

impl File for NamespaceFile {
    fn ioctl(&self, call: &Call<'_>, _: &OpenFile, request: u32, argument: usize) -> TryResult<usize> {
        match (request, &self.0) {
            (request::TYPE, _) => Ok(self.0.flag() as usize),
            (request::USERS, _) | (request::PARENT, Namespace::Users(_)) => {
                let owner = self.0.owner().ok_or(Errno::EPERM)?;
                if !is_within(&owner, &call.thread.credentials().users) {
                    return Err(Errno::EPERM.into());
                }
                open(call, Namespace::Users(owner))
            }
            (request::PARENT, Namespace::Pids(pids)) => {
                let parent = pids.as_ref().map(|pids| pids.parent.clone()).ok_or(Errno::EPERM)?;
                if !is_below(&parent, &call.thread.process.pids) {
                    return Err(Errno::EPERM.into());
                }
                open(call, Namespace::Pids(parent))
            }
            (request::OWNER, Namespace::Users(users)) => {
                let who = call.thread.credentials();
                let owner = users.as_ref().map_or(0, |users| users.owner);
                call.thread.space().write(argument, &who.shown_user(owner))?;
                Ok(0)
            }
            // The others have no parent, and only a user namespace has an owner.
            (request::PARENT | request::OWNER, _) => Err(Errno::EINVAL.into()),
            _ => Err(Errno::ENOTTY.into()),
        }
    }

    fn metadata(&self) -> Metadata {
        self.0.metadata()
    }
}
