//! The namespaces of a thread, namespaces(7): mounts, names of the machine, objects of IPC, networks, control groups.

use alloc::sync::Arc;
use core::any::Any;

use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::Directories;
use crate::fs::mount::{self, MountNamespace, next_namespace_number};
use crate::memory::fallible;
use crate::process::control_group::Groups;
use crate::process::host_name::UtsNamespace;
use crate::process::namespace_counts::{CountedNamespace, NamespaceKind};
use crate::process::pid_namespace::{self, PidNamespace, Pids};
use crate::process::time_namespace::{self, TimeNamespace, Times};
use crate::process::user_namespace::Users;
use crate::process::{Credentials, Process};

/// A namespace whose objects are known further up: one of IPC, or of a network.
pub trait UpperNamespace: Any + Send + Sync {
    /// Its number, as a link in `/proc/PID/ns` shows it.
    fn number(&self) -> u64;

    /// The user namespace that owns it.
    fn owner(&self) -> &Users;

    /// A new one without objects, made with these credentials.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`.
    fn another(&self, maker: &Credentials) -> Result<Arc<dyn UpperNamespace>, Errno>;
}

/// A cgroup namespace, cgroup_namespaces(7).
pub struct CgroupNamespace {
    /// Its number, as `/proc/PID/ns/cgroup` shows it.
    pub number: u64,
    /// The group that is the root of what is seen from inside: that of its maker.
    pub root: Groups,
    counted: CountedNamespace,
}

impl CgroupNamespace {
    /// The number of the first one, which is the same on every Linux.
    const FIRST_NUMBER: u64 = 0xefff_fffb;

    /// A namespace made with these credentials.
    fn new(number: u64, root: Groups, maker: &Credentials) -> Result<Arc<Self>, Errno> {
        let counted = CountedNamespace::new(maker, NamespaceKind::Groups)?;
        fallible::try_arc(Self { number, root, counted })
    }

    /// The user namespace that owns it.
    #[must_use]
    pub fn owner(&self) -> &Users {
        self.counted.owner()
    }
}

/// The namespaces of a thread; threads share a set of them until one of them leaves a part.
#[derive(Clone)]
pub struct Namespaces {
    /// Its mounts.
    pub mounts: Arc<MountNamespace>,
    /// Host and domain name.
    pub names: Arc<UtsNamespace>,
    /// Objects of System V's IPC, POSIX message queues.
    pub ipc: Arc<dyn UpperNamespace>,
    /// Interfaces, ports, and names of sockets.
    pub network: Arc<dyn UpperNamespace>,
    /// Control groups.
    pub groups: Arc<CgroupNamespace>,
    /// Numbers of the processes that the thread makes; its own are in the namespace of its process.
    pub pids: Pids,
    /// Offsets of clocks.
    pub times: Times,
    /// Those of the processes that the thread makes, and of the next program.
    pub times_of_children: Times,
}

/// The first ones of IPC and of networks.
static FIRST_UPPER: spin::Once<[Arc<dyn UpperNamespace>; 2]> = spin::Once::new();
static INITIAL: spin::Once<Arc<Namespaces>> = spin::Once::new();

impl Namespaces {
    /// The flags of clone(2) for the kinds that there are.
    pub const KINDS: u32 = linux::CLONE_NEWNS
        | linux::CLONE_NEWUTS
        | linux::CLONE_NEWIPC
        | linux::CLONE_NEWNET
        | linux::CLONE_NEWCGROUP
        | linux::CLONE_NEWPID
        | linux::CLONE_NEWTIME;
    /// The flags that setns(2) and unshare(2) take, with that of user namespaces, which credentials carry.
    pub const KINDS_AND_USERS: u32 = Self::KINDS | linux::CLONE_NEWUSER;

    /// Says which IPC namespace and which network the first program is in.
    pub fn set_first(ipc: Arc<dyn UpperNamespace>, network: Arc<dyn UpperNamespace>) {
        FIRST_UPPER.call_once(|| [ipc, network]);
    }

    /// Those of the first program.
    ///
    /// # Errors
    /// `ENODEV` (nothing has been mounted), `ENOMEM`.
    pub fn initial() -> Result<&'static Arc<Self>, Errno> {
        INITIAL.try_call_once(|| {
            let mounts = mount::initial()?.clone();
            let [ipc, network] = FIRST_UPPER.get().ok_or(Errno::ENODEV)?.clone();
            let names = fallible::try_arc(UtsNamespace::first()?)?;
            let groups = CgroupNamespace::new(CgroupNamespace::FIRST_NUMBER, None, &Credentials::ROOT)?;
            let (pids, times, times_of_children) = (None, None, None);
            fallible::try_arc(Self { mounts, names, ipc, network, groups, pids, times, times_of_children })
        })
    }

    /// These with new ones, made with these credentials, in the place of those whose flags are given. `directories`
    /// move into the copied mounts. `process` is that of the thread itself.
    ///
    /// # Errors
    /// `EINVAL` (the thread's next children are in another PID namespace already), `ENOMEM`, `ENOSPC`.
    pub fn copied(
        &self,
        kinds: u32,
        maker: &Credentials,
        directories: &Directories,
        process: &Process,
    ) -> Result<Arc<Self>, Errno> {
        let has = |flag| kinds & flag != 0;
        let ipc = if has(linux::CLONE_NEWIPC) { self.ipc.another(maker)? } else { self.ipc.clone() };
        let network =
            if has(linux::CLONE_NEWNET) { self.network.another(maker)? } else { self.network.clone() };
        let names = if has(linux::CLONE_NEWUTS) {
            fallible::try_arc(self.names.duplicate(maker)?)?
        } else {
            self.names.clone()
        };
        let groups = if has(linux::CLONE_NEWCGROUP) {
            CgroupNamespace::new(next_namespace_number(), process.control_group(), maker)?
        } else {
            self.groups.clone()
        };
        let pids = if has(linux::CLONE_NEWPID) {
            if !pid_namespace::is_same(&self.pids, &process.pids) {
                return Err(Errno::EINVAL);
            }
            Some(PidNamespace::new(&process.pids, maker)?)
        } else {
            self.pids.clone()
        };
        let mounts =
            if has(linux::CLONE_NEWNS) { self.mounts.copy(maker, directories)? } else { self.mounts.clone() };
        let times = self.times.clone();
        let times_of_children = if has(linux::CLONE_NEWTIME) {
            Some(TimeNamespace::new(&self.times_of_children, maker)?)
        } else {
            self.times_of_children.clone()
        };
        fallible::try_arc(Self { mounts, names, ipc, network, groups, pids, times, times_of_children })
    }
    /// Whether processes that the thread makes have other clocks.
    #[must_use]
    pub fn changes_times(&self) -> bool {
        !time_namespace::is_same(&self.times, &self.times_of_children)
    }

    /// These for somebody who begins with the clocks that were chosen for children.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn with_new_times(self: Arc<Self>) -> Result<Arc<Self>, Errno> {
        if !self.changes_times() {
            return Ok(self);
        }
        // Its offsets stay from now on.
        time_namespace::pages(&self.times_of_children)?;
        fallible::try_arc(Self { times: self.times_of_children.clone(), ..(*self).clone() })
    }
}
