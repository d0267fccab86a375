//! The machine's names, sethostname(2) and setdomainname(2), as the threads of one UTS namespace see them.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::error::Errno;
use crate::fs::mount::next_namespace_number;
use crate::process::Credentials;
use crate::process::namespace_counts::{CountedNamespace, NamespaceKind};
use crate::process::user_namespace::Users;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue, Watch};

/// Bytes of the name with at least one zero behind it: those of each string of `struct utsname`.
pub const HOST_NAME_BYTES: usize = 65;

/// How often each name was changed in any namespace, as whoever polls its file hears.
static CHANGES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static CHANGED: WaitQueue = WaitQueue::new();

/// The names that a namespace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UtsName {
    /// The machine's.
    Host,
    /// Its NIS domain's.
    Domain,
}

impl UtsName {
    /// How often it was changed in any namespace.
    #[must_use]
    pub fn changes(self) -> u64 {
        CHANGES[self as usize].load(Ordering::Acquire)
    }

    fn tell(self) {
        CHANGES[self as usize].fetch_add(1, Ordering::Release);
        CHANGED.wake(Events::PRI | Events::ERR);
    }

    /// Has a poller hear of changes.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch(watch: &Watch, events: Events) -> Result<(), Errno> {
        CHANGED.watch(watch, events)
    }
}

/// A UTS namespace.
pub struct UtsNamespace {
    /// Its number, as `/proc/PID/ns/uts` shows it.
    pub number: u64,
    counted: CountedNamespace,
    /// Host name, then domain name, with zeros behind them.
    names: SpinLock<[[u8; HOST_NAME_BYTES]; 2]>,
}

const fn initial(name: &[u8]) -> [u8; HOST_NAME_BYTES] {
    let mut bytes = [0; HOST_NAME_BYTES];
    let mut index = 0;
    while index < name.len() {
        bytes[index] = name[index];
        index += 1;
    }
    bytes
}

impl UtsNamespace {
    /// The number of the first one, which is the same on every Linux.
    const FIRST_NUMBER: u64 = 0xefff_fffe;

    /// The namespace of the first program.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn first() -> Result<Self, Errno> {
        let counted = CountedNamespace::new(&Credentials::ROOT, NamespaceKind::Names)?;
        let names = SpinLock::new([initial(b"heddle"), initial(b"(none)")]);
        Ok(Self { number: Self::FIRST_NUMBER, counted, names })
    }

    /// A copy with names of its own, made with these credentials.
    ///
    /// # Errors
    /// `ENOSPC` (there are as many as there may be), `ENOMEM`.
    pub fn duplicate(&self, maker: &Credentials) -> Result<Self, Errno> {
        let counted = CountedNamespace::new(maker, NamespaceKind::Names)?;
        let names = *self.names.lock();
        Ok(Self { number: next_namespace_number(), counted, names: SpinLock::new(names) })
    }

    /// The user namespace that owns it.
    #[must_use]
    pub fn owner(&self) -> &Users {
        self.counted.owner()
    }

    /// The machine's name with zeros behind it.
    #[must_use]
    pub fn host_name(&self) -> [u8; HOST_NAME_BYTES] {
        self.names.lock()[0]
    }

    /// Changes the machine's name; the last byte must be a zero.
    pub fn set_host_name(&self, name: [u8; HOST_NAME_BYTES]) {
        self.names.lock()[0] = name;
        UtsName::Host.tell();
    }

    /// The name of the machine's NIS domain with zeros behind it.
    #[must_use]
    pub fn domain_name(&self) -> [u8; HOST_NAME_BYTES] {
        self.names.lock()[1]
    }

    /// Changes the name of the domain; the last byte must be a zero.
    pub fn set_domain_name(&self, name: [u8; HOST_NAME_BYTES]) {
        self.names.lock()[1] = name;
        UtsName::Domain.tell();
    }
}
