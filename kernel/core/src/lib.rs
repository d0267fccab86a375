//! The kernel's logic that needs no hardware: one module each, tested and modelled on the host.
//!
//! - [`acct`]: records of process accounting.
//! - [`aio`]: control blocks of native asynchronous I/O, and the ring of their events.
//! - [`call_place`]: where a system call in a program's text becomes a jump into the kernel.
//! - [`call_uses`]: how often the places of such calls were used.
//! - [`cgroup`]: the rules of control groups.
//! - [`core_dump`]: the layout of core files, and their names.
//! - [`decimal`]: the digits of a number.
//! - [`dir_index`]: the names in a directory, and positions in it that survive changes.
//! - [`exec`]: the data that `execve` reads and writes: ELF headers, script lines, the first stack of a program.
//! - [`fairness`]: how ordinary threads share a processor: budgets by nice value, refilled by sleeping.
//! - [`fallible`]: allocations that can fail.
//! - [`fanotify`]: the flags and events of fanotify(7).
//! - [`file_lock`]: byte-range locks of a file (`fcntl`).
//! - [`frame`]: physical memory: a buddy allocator over frame descriptors, and slabs of small objects.
//! - [`fuse`]: messages to and from a program that serves a file system.
//! - [`group`]: the executor threads of one user: their order, and their part in the processor.
//! - [`hash`]: hashing of keys that programs choose.
//! - [`keys`]: keys and keyrings.
//! - [`landlock`]: what a program has forbidden itself in the tree.
//! - [`lease`]: leases of a file (`F_SETLEASE`).
//! - [`lock_order`]: watches the order in which locks are taken, for the checking build.
//! - [`mapping`]: the mappings of an address space.
//! - [`mempolicy`]: memory policies, of a machine with one node.
//! - [`mitigations`]: faults of processors that speculate, and the measures against them.
//! - [`netlink`]: the machine's interfaces, and the answers to requests about them.
//! - [`ninep`]: messages of the 9P2000.L protocol, the client's side.
//! - [`oom`]: who ends when memory runs out.
//! - [`overcommit`]: whether more memory may be promised than there is.
//! - [`overlay`]: the options of an overlay of directories.
//! - [`packet_filter`]: filters of packets.
//! - [`paravirt`]: pages and words that a guest of KVM shares with it.
//! - [`perf`]: what a program asks to have counted by perf_event_open(2), and how counts are told.
//! - [`pipe`]: the byte ring of a pipe.
//! - [`posix_acl`]: access control lists of files.
//! - [`protection_key`]: keys of pages: which are given out, and what a rights register says of them.
//! - [`seccomp`]: filters of system calls.
//! - [`signal`]: the rules of Linux signals: sets, pending queues, actions, and the layouts that programs see.
//! - [`signal_state`]: signals and job control of a thread group: which thread takes a signal, which stop, how the
//!   group ends.
//! - [`sysv_ipc`]: System V's semaphores, message queues and identifiers.
//! - [`time_offsets`]: the offsets of a time namespace.
//! - [`timer_wheel`]: the timers of a processor.
//! - [`tlb`]: translations that other processors must drop, and when they have: shootdowns, tags, shared leaf tables.
//! - [`uring`]: the layout of `io_uring`, and the entries that programs submit.
//! - [`user_tasks`]: how many threads each user has.
//! - [`xarray`]: sparse arrays that grow and shrink with what they hold.
//!
//! `check.sh loom` runs models of the real code under loom, and `check.sh weaken` expects them to notice each
//! ordering of `weaken.txt` that is weakened.
#![cfg_attr(not(any(test, heddle_loom)), no_std)]
#![cfg_attr(any(test, heddle_loom), allow(clippy::disallowed_methods, clippy::disallowed_macros))]

extern crate alloc;

pub mod acct;
pub mod aio;
pub mod call_place;
pub mod call_uses;
pub mod cgroup;
pub mod core_dump;
pub mod decimal;
pub mod dir_index;
pub mod exec;
pub mod fairness;
pub mod fallible;
pub mod fanotify;
pub mod file_lock;
pub mod frame;
pub mod fuse;
pub mod group;
pub mod hash;
pub mod id_map;
pub mod keys;
pub mod landlock;
pub mod lease;
pub mod lock_order;
pub mod mapping;
pub mod mempolicy;
pub mod mitigations;
pub mod netlink;
pub mod ninep;
pub mod oom;
pub mod overcommit;
pub mod overlay;
pub mod packet_filter;
pub mod paravirt;
pub mod perf;
pub mod pipe;
pub mod posix_acl;
pub mod protection_key;
pub mod seccomp;
pub mod signal;
pub mod signal_state;
pub mod sysv_ipc;
pub mod time_offsets;
pub mod timer_wheel;
pub mod tlb;
pub mod uring;
pub mod user_tasks;
pub mod xarray;

/// There was no memory for what a structure needs to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;
