//! A machine in an engine's network name space: a tap device there is bridged with the interface that the engine has
//! made, whose address, routes and hardware address become the guest's.

use std::path::Path;

use anyhow::{Result, bail};

use crate::network::Network;

/// Enters the name space with this process, and joins a tap device to its interface.
///
/// # Errors
/// If that cannot be done.
pub fn join(path: &Path) -> Result<Network> {
    bail!("{}: networks of the engine are not joined; use --network none or host", path.display())
}
