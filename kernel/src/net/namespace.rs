//! Network namespaces, network_namespaces(7): interfaces, ports, settings, and abstract names of UNIX sockets.
//!
//! Each has a TCP/IP engine of its own. The machine's network device is in the first one; all others have a loopback,
//! which is down until somebody sets it up. A socket belongs to the namespace of the thread that made it, for ever,
//! and keeps it alive.

use alloc::sync::{Arc, Weak};
use core::any::Any;

use heddle_inet::engine::Engine;
use heddle_kernel_core::dir_index::Names;
use heddle_kernel_core::netlink::{Loopback, LoopbackChange};

use crate::error::Errno;
use crate::fs::mount::next_namespace_number;
use crate::memory::fallible;
use crate::net::Socket;
use crate::net::inet::platform::{self, Kernel};
use crate::net::packet::registry::PacketRegistry;
use crate::process::namespace_counts::{CountedNamespace, NamespaceKind};
use crate::process::namespaces::{Namespaces, UpperNamespace};
use crate::process::user_namespace::Users;
use crate::process::{Credentials, Thread};
use crate::sync::SpinLock;

/// A network namespace.
pub struct NetNamespace {
    number: u64,
    counted: CountedNamespace,
    has_device: bool,
    /// From its first use on.
    engine: spin::Once<Arc<Engine<Kernel>>>,
    loopback: SpinLock<Loopback>,
    /// The engine knows them too.
    packets: Arc<PacketRegistry>,
    /// Abstract names of UNIX sockets.
    pub(super) names: SpinLock<Names<Weak<Socket>>>,
}

static FIRST: spin::Once<Arc<NetNamespace>> = spin::Once::new();

impl NetNamespace {
    fn new(maker: &Credentials, has_device: bool) -> Result<Arc<Self>, Errno> {
        let counted = CountedNamespace::new(maker, NamespaceKind::Network)?;
        fallible::try_arc(Self {
            number: next_namespace_number(),
            counted,
            has_device,
            engine: spin::Once::new(),
            packets: fallible::try_arc(PacketRegistry::new())?,
            loopback: SpinLock::new(if has_device { Loopback::UP } else { Loopback::DOWN }),
            names: SpinLock::new(Names::new()),
        })
    }

    /// The namespace of the first program, which has the machine's network device.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn first() -> Result<&'static Arc<Self>, Errno> {
        FIRST.try_call_once(|| Self::new(&Credentials::ROOT, true))
    }

    /// The namespace of a thread.
    ///
    /// # Errors
    /// None in fact: `EINVAL` if it were of another type.
    pub fn of(thread: &Thread) -> Result<Arc<Self>, Errno> {
        Self::among(&thread.namespaces())
    }

    /// The one among others.
    ///
    /// # Errors
    /// As [`NetNamespace::of`].
    pub fn among(namespaces: &Namespaces) -> Result<Arc<Self>, Errno> {
        let space: Arc<dyn Any + Send + Sync> = namespaces.network.clone();
        space.downcast().map_err(|_| Errno::EINVAL)
    }

    /// Its number, which no other namespace has.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Its packet sockets.
    #[must_use]
    pub const fn packets(&self) -> &Arc<PacketRegistry> {
        &self.packets
    }

    /// Whether the machine's network device is in it.
    #[must_use]
    pub const fn has_device(&self) -> bool {
        self.has_device
    }

    /// Whether a thread with these credentials has a capability over it.
    #[must_use]
    pub fn grants(&self, credentials: &Credentials, capability: u32) -> bool {
        credentials.is_capable_in(self.counted.owner(), capability)
    }

    /// Its engine, which is made when it is used first.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn engine(&self) -> Result<&Arc<Engine<Kernel>>, Errno> {
        match self.engine.get() {
            Some(engine) => Ok(engine),
            None => self.engine.try_call_once(|| {
                let engine = platform::start(self.packets.clone())?;
                tell(&engine, *self.loopback.lock());
                Ok(engine)
            }),
        }
    }

    /// The engine, if it has been used.
    #[must_use]
    pub fn running_engine(&self) -> Option<&Arc<Engine<Kernel>>> {
        self.engine.get()
    }

    /// How its loopback is set.
    #[must_use]
    pub fn loopback(&self) -> Loopback {
        *self.loopback.lock()
    }

    /// Changes its loopback.
    ///
    /// # Errors
    /// As [`Loopback::apply`].
    pub fn change_loopback(&self, change: LoopbackChange) -> Result<(), Errno> {
        let engine = self.engine()?;
        let mut loopback = self.loopback.lock();
        loopback.apply(change).map_err(|error| Errno(error as u16))?;
        tell(engine, *loopback);
        Ok(())
    }
}

fn tell(engine: &Engine<Kernel>, loopback: Loopback) {
    engine.set_loopback(loopback.is_up && loopback.has_v4, loopback.is_up && loopback.has_v6);
}

impl UpperNamespace for NetNamespace {
    fn number(&self) -> u64 {
        self.number
    }

    fn owner(&self) -> &Users {
        self.counted.owner()
    }

    fn another(&self, maker: &Credentials) -> Result<Arc<dyn UpperNamespace>, Errno> {
        Ok(Self::new(maker, false)?)
    }
}

/// Has the engine of the first namespace give back memory that it can do without.
pub fn drain() {
    if let Some(engine) = FIRST.get().and_then(|first| first.running_engine()) {
        engine.reclaim();
    }
}
