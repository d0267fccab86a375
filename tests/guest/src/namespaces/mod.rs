//! Namespaces other than those of mounts and names: IPC, networks, processes, clocks and users.

pub mod ipc;
pub mod mounts;
pub mod network;
pub mod pid;
pub mod pid_views;
pub mod rights;
pub mod time;
pub mod users;
