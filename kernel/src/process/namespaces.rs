//! The namespaces of a thread, namespaces(7): mounts and names of the machine.

use alloc::sync::Arc;

use crate::error::Errno;
use crate::fs::Directories;
use crate::fs::mount::{self, MountNamespace};
use crate::memory::fallible;
use crate::process::host_name::UtsNamespace;

/// The namespaces of a thread; threads share a set of them until one of them leaves a part.
#[derive(Clone)]
pub struct Namespaces {
    /// Its mounts.
    pub mounts: Arc<MountNamespace>,
    /// Host and domain name.
    pub names: Arc<UtsNamespace>,
}

static INITIAL: spin::Once<Arc<Namespaces>> = spin::Once::new();

impl Namespaces {
    /// Those of the first program.
    ///
    /// # Errors
    /// `ENODEV` (nothing has been mounted), `ENOMEM`.
    pub fn initial() -> Result<&'static Arc<Self>, Errno> {
        INITIAL.try_call_once(|| {
            let mounts = mount::initial()?.clone();
            fallible::try_arc(Self { mounts, names: fallible::try_arc(UtsNamespace::new())? })
        })
    }

    /// These with new ones in the place of those that are named. `directories` move into the copied mounts.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`.
    pub fn copied(
        &self,
        with_mounts: bool,
        with_names: bool,
        directories: &Directories,
    ) -> Result<Arc<Self>, Errno> {
        let names = if with_names { fallible::try_arc(self.names.duplicate())? } else { self.names.clone() };
        let mounts = if with_mounts { self.mounts.copy(directories)? } else { self.mounts.clone() };
        fallible::try_arc(Self { mounts, names })
    }
}
