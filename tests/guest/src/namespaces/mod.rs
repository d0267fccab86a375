//! Namespaces other than those of mounts and names: IPC, networks and users.

pub mod ipc;
pub mod mounts;
pub mod network;
pub mod rights;
pub mod users;
