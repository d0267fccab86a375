//! Containers of the OCI runtime specification, each in a machine of its own.
//!
//! The machine's own root holds one static program (`heddle_linux_init::container`). The bundle's root file system and
//! its volumes are shared folders; the program mounts them together, enters them, and becomes the container's program.
//! So what the container writes is in the bundle, where engines look for it, and there is nothing to copy at the start.
//!
//! - [`bundle`]: what `config.json` asks for, as a machine and a task for that program; what can't be had is an error.
//! - [`enter`]: the container's files for tools of the host.
//! - [`hooks`]: programs of the host that the bundle wants run.
//! - [`monitor`]: the process that runs a container's machine.
//! - [`console`], [`network`]: the engine's terminal and network.
//! - [`root`]: the machine's own root.

pub mod bundle;
pub mod console;
pub mod enter;
pub mod hooks;
pub mod monitor;
pub mod network;
pub mod root;

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::machines::Registry;

/// The version of the specification.
pub const VERSION: &str = "1.1.0";

/// The registry's record of a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// Its bundle.
    pub bundle: PathBuf,
    /// Its annotations.
    #[serde(default)]
    pub annotations: std::collections::BTreeMap<String, String>,
}

/// Containers of this root folder of states (`--root`).
///
/// # Errors
/// If the folder is somebody else's.
pub fn registry(root: Option<&Path>) -> Result<Registry> {
    match root {
        Some(root) => Registry::at(root.to_path_buf()),
        None => Registry::of_user_for("containers"),
    }
}
