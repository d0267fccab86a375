//! The namespaces of a thread, namespaces(7): mounts, names of the machine, objects of IPC.

use alloc::sync::Arc;
use core::any::Any;

use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::Directories;
use crate::fs::mount::{self, MountNamespace};
use crate::memory::fallible;
use crate::process::Credentials;
use crate::process::host_name::UtsNamespace;
use crate::process::user_namespace::Users;

/// An IPC namespace, whose objects are known further up.
pub trait IpcSpace: Any + Send + Sync {
    /// Its number, as `/proc/PID/ns/ipc` shows it.
    fn number(&self) -> u64;

    /// The user namespace that owns it.
    fn owner(&self) -> &Users;

    /// A new one without objects, made with these credentials.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`.
    fn another(&self, maker: &Credentials) -> Result<Arc<dyn IpcSpace>, Errno>;
}

/// The namespaces of a thread; threads share a set of them until one of them leaves a part.
#[derive(Clone)]
pub struct Namespaces {
    /// Its mounts.
    pub mounts: Arc<MountNamespace>,
    /// Host and domain name.
    pub names: Arc<UtsNamespace>,
    /// Objects of System V's IPC, POSIX message queues.
    pub ipc: Arc<dyn IpcSpace>,
}

static FIRST_IPC: spin::Once<Arc<dyn IpcSpace>> = spin::Once::new();
static INITIAL: spin::Once<Arc<Namespaces>> = spin::Once::new();

impl Namespaces {
    /// The flags of clone(2) for the kinds that there are.
    pub const KINDS: u32 = linux::CLONE_NEWNS | linux::CLONE_NEWUTS | linux::CLONE_NEWIPC;
    /// The flags that setns(2) and unshare(2) take, with that of user namespaces, which credentials carry.
    pub const KINDS_AND_USERS: u32 = Self::KINDS | linux::CLONE_NEWUSER;

    /// Says which IPC namespace the first program is in.
    pub fn set_first_ipc(ipc: Arc<dyn IpcSpace>) {
        FIRST_IPC.call_once(|| ipc);
    }

    /// Those of the first program.
    ///
    /// # Errors
    /// `ENODEV` (nothing has been mounted), `ENOMEM`.
    pub fn initial() -> Result<&'static Arc<Self>, Errno> {
        INITIAL.try_call_once(|| {
            let mounts = mount::initial()?.clone();
            let ipc = FIRST_IPC.get().ok_or(Errno::ENODEV)?.clone();
            fallible::try_arc(Self { mounts, names: fallible::try_arc(UtsNamespace::first()?)?, ipc })
        })
    }

    /// These with new ones, made with these credentials, in the place of those whose flags are given. `directories`
    /// move into the copied mounts.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`.
    pub fn copied(
        &self,
        kinds: u32,
        maker: &Credentials,
        directories: &Directories,
    ) -> Result<Arc<Self>, Errno> {
        let has = |flag| kinds & flag != 0;
        let ipc = if has(linux::CLONE_NEWIPC) { self.ipc.another(maker)? } else { self.ipc.clone() };
        let names = if has(linux::CLONE_NEWUTS) {
            fallible::try_arc(self.names.duplicate(maker)?)?
        } else {
            self.names.clone()
        };
        let mounts =
            if has(linux::CLONE_NEWNS) { self.mounts.copy(maker, directories)? } else { self.mounts.clone() };
        fallible::try_arc(Self { mounts, names, ipc })
    }
}
