//! Namespaces other than those of mounts and names: IPC and users.

pub mod ipc;
pub mod mounts;
pub mod rights;
pub mod users;
