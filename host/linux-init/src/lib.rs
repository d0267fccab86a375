//! The host tool's task for the program that prepares a container inside the guest: JSON, in its argument.
//!
//! The same static program is process 1 of the Linux guest and, called as `heddle-linux-init container JSON`, the first
//! program of a container's machine on either kernel: it makes the container's mounts, enters its root, becomes its
//! user and turns into its program. All of that is done by system calls, so nothing of it is the kernel's.

use serde::{Deserialize, Serialize};

/// The first argument that makes the program prepare a container.
pub const COMMAND: &str = "container";
/// Where the container's root appears in the guest.
pub const ROOT: &str = "/oci/root";

/// A container's first program, or a further one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// The surroundings to make before, for the first program; a further one finds them made.
    pub container: Option<Container>,
    /// The program.
    pub process: Process,
}

/// A container's surroundings.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Container {
    /// The host's name.
    pub hostname: Option<String>,
    /// Mounts, in order.
    pub mounts: Vec<Mount>,
    /// The root can only be read.
    pub is_read_only: bool,
    /// Paths that appear empty.
    pub masked: Vec<String>,
    /// Paths that can only be read.
    pub read_only: Vec<String>,
}

/// A mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Mount {
    /// The file system.
    pub kind: MountKind,
    /// Where, in the container.
    pub target: String,
    /// `MS_` flags of mount(2) that the mount keeps.
    pub flags: u32,
    /// The options of the file system.
    pub options: String,
}

/// A file system to mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountKind {
    /// A file system of this type.
    #[default]
    Tmpfs,
    /// `/proc`.
    Proc,
    /// Message queues.
    Mqueue,
    /// A path of the guest outside of the container.
    Bind(String),
}

/// A program and what it may do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Process {
    /// Its arguments, the program first.
    pub arguments: Vec<String>,
    /// Its environment, as `KEY=VALUE`.
    pub environment: Vec<String>,
    /// Its working directory.
    pub directory: String,
    /// Its user.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Its supplementary groups.
    pub groups: Vec<u32>,
    /// Its file mode creation mask.
    pub umask: Option<u32>,
    /// Its capability sets; as `execve` makes them where there are none.
    pub capabilities: Option<Capabilities>,
    /// Its resource limits: number, soft and hard limit.
    pub limits: Vec<(u32, u64, u64)>,
    /// It and its children gain no privileges by `execve`.
    pub no_new_privileges: bool,
    /// Its `/proc/self/oom_score_adj`.
    pub oom_score_adjustment: Option<i32>,
}

/// Capability sets, one bit a capability.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are those of capabilities(7)")]
pub struct Capabilities {
    pub bounding: u64,
    pub effective: u64,
    pub inheritable: u64,
    pub permitted: u64,
    pub ambient: u64,
}
