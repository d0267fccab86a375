//! `/proc/PID/ns`: namespaces as files, which setns(2) takes.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::fs::inode::{Inode, LinkTarget, Metadata, Opening, Statistics, device_number};
use crate::fs::mount::MountNamespace;
use crate::fs::{Dentry, File, FileType, OpenFile, Path, downcast, setup};
use crate::memory::fallible;
use crate::process::Thread;
use crate::process::host_name::UtsNamespace;
use crate::process::namespaces::IpcSpace;
use crate::procfs::{Subject, Text, at, link};

/// The number of the file system that they are in.
const DEVICE: u64 = device_number(0, 4);
/// `NS_GET_USERNS` and the like.
mod request {
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
    Ipc(Arc<dyn IpcSpace>),
}

impl Namespace {
    /// The flag of clone(2) that makes one of its kind.
    #[must_use]
    pub const fn flag(&self) -> u32 {
        match self {
            Self::Mounts(_) => linux::CLONE_NEWNS,
            Self::Names(_) => linux::CLONE_NEWUTS,
            Self::Ipc(_) => linux::CLONE_NEWIPC,
        }
    }

    fn number(&self) -> u64 {
        match self {
            Self::Mounts(namespace) => namespace.number,
            Self::Names(namespace) => namespace.number,
            Self::Ipc(namespace) => namespace.number(),
        }
    }

    const fn kind(&self) -> &'static str {
        match self {
            Self::Mounts(_) => "mnt",
            Self::Names(_) => "uts",
            Self::Ipc(_) => "ipc",
        }
    }

    /// The namespace that an open file is.
    #[must_use]
    pub fn of(open: &OpenFile) -> Option<Self> {
        downcast::<NamespaceFile>(open).map(|file| file.0.clone())
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
        let mut name = Text::new();
        name.line(format_args!("{}:[{}]", self.kind(), self.number()))?;
        let entry = Dentry::new(fallible::try_arc(NamespaceNode(self))?, None, &name.into_bytes())?;
        Ok(at(Path { mount: setup::anonymous()?.0.clone(), entry }))
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

    fn open(self: Arc<Self>, _: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
        Ok(fallible::try_arc(NamespaceFile(self.0.clone()))?)
    }
}

struct NamespaceFile(Namespace);

impl File for NamespaceFile {
    fn ioctl(&self, _: &crate::call::Call<'_>, _: &OpenFile, request: u32, _: usize) -> TryResult<usize> {
        match request {
            request::TYPE => Ok(self.0.flag() as usize),
            // None of them has a parent, and only a user namespace has an owner.
            request::PARENT | request::OWNER => Err(Errno::EINVAL.into()),
            _ => Err(Errno::ENOTTY.into()),
        }
    }

    fn metadata(&self) -> Metadata {
        self.0.metadata()
    }
}
