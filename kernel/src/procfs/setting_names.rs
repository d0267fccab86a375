//! The names in `/proc/sys`.

use crate::fs::fanotify;
use crate::procfs::table::{
    self, closed, controlled, directory, text, writable, writable_own, writable_seen,
};
use crate::procfs::{Item, What, ipc, mounts, settings, system, tunables, users};

pub(super) static ITEMS: &[Item] = &[
    directory(b"fs", What::Directory(SYS_FS_ITEMS)),
    directory(b"kernel", What::Directory(SYS_KERNEL_ITEMS)),
    directory(b"net", What::Directory(table::SYS_NET_ITEMS)),
    directory(b"user", What::Directory(SYS_USER_ITEMS)),
    directory(b"vm", What::Directory(SYS_VM_ITEMS)),
];

static SYS_USER_ITEMS: &[Item] = &[
    writable_seen(b"max_cgroup_namespaces", users::groups_max, users::set_groups_max),
    writable_seen(b"max_ipc_namespaces", users::ipc_max, users::set_ipc_max),
    writable_seen(b"max_mnt_namespaces", users::mounts_max, users::set_mounts_max),
    writable_seen(b"max_net_namespaces", users::networks_max, users::set_networks_max),
    writable_seen(b"max_pid_namespaces", users::pids_max, users::set_pids_max),
    writable_seen(b"max_time_namespaces", users::times_max, users::set_times_max),
    writable_seen(b"max_user_namespaces", users::users_max, users::set_users_max),
    writable_seen(b"max_uts_namespaces", users::names_max, users::set_names_max),
];

static SYS_FS_ITEMS: &[Item] = &[
    writable(b"aio-max-nr", tunables::aio_requests, tunables::set_aio_requests),
    text(b"aio-nr", system::aio_requests),
    writable(b"dir-notify-enable", settings::owners_are_told, settings::set_owners_are_told),
    directory(b"fanotify", What::Directory(SYS_FANOTIFY_ITEMS)),
    text(b"file-max", system::file_limit),
    directory(b"inotify", What::Directory(SYS_INOTIFY_ITEMS)),
    writable(b"lease-break-time", settings::lease_time, settings::set_lease_time),
    writable(b"leases-enable", settings::leases, settings::set_leases),
    text(b"mount-max", mounts::limit),
    directory(b"mqueue", What::Directory(SYS_QUEUE_ITEMS)),
    writable(b"nr_open", tunables::descriptors, tunables::set_descriptors),
    text(b"overflowgid", settings::overflow_id),
    text(b"overflowuid", settings::overflow_id),
    writable(b"pipe-max-size", tunables::pipe_size, tunables::set_pipe_size),
    writable(b"pipe-user-pages-hard", tunables::pipe_pages_hard, tunables::set_pipe_pages_hard),
    writable(b"pipe-user-pages-soft", tunables::pipe_pages, tunables::set_pipe_pages),
    closed(b"protected_fifos", tunables::fifos, tunables::set_fifos),
    closed(b"protected_hardlinks", tunables::hard_links, tunables::set_hard_links),
    closed(b"protected_regular", tunables::regular_files, tunables::set_regular_files),
    closed(b"protected_symlinks", tunables::symbolic_links, tunables::set_symbolic_links),
    writable(b"suid_dumpable", tunables::closed_dumpable, tunables::set_closed_dumpable),
];

static SYS_INOTIFY_ITEMS: &[Item] = &[
    writable(b"max_queued_events", tunables::inotify_events, tunables::set_inotify_events),
    writable(b"max_user_instances", tunables::inotify_instances, tunables::set_inotify_instances),
    writable(b"max_user_watches", tunables::inotify_marks, tunables::set_inotify_marks),
];

static SYS_FANOTIFY_ITEMS: &[Item] = &[
    text(b"max_queued_events", settings::fanotify_limit::<{ fanotify::QUEUE_MAX }>),
    text(b"max_user_groups", settings::fanotify_limit::<{ fanotify::GROUPS_MAX }>),
    text(b"max_user_marks", settings::fanotify_limit::<{ fanotify::MARKS_MAX }>),
];

static SYS_QUEUE_ITEMS: &[Item] = &[
    writable_own(b"msg_default", ipc::show_mq_messages, ipc::set_mq_messages),
    writable_own(b"msg_max", ipc::show_mq_messages_max, ipc::set_mq_messages_max),
    writable_own(b"msgsize_default", ipc::show_mq_size, ipc::set_mq_size),
    writable_own(b"msgsize_max", ipc::show_mq_size_max, ipc::set_mq_size_max),
    writable_own(b"queues_max", ipc::show_mq_queues, ipc::set_mq_queues),
];

static SYS_KERNEL_ITEMS: &[Item] = &[
    text(b"arch", tunables::machine),
    text(b"cap_last_cap", system::last_capability),
    writable(b"core_pattern", system::core_pattern, system::set_core_pattern),
    writable(b"core_uses_pid", system::core_uses_pid, system::set_core_uses_pid),
    controlled(b"dmesg_restrict", tunables::log_is_restricted, tunables::set_log_is_restricted),
    writable_own(b"domainname", settings::domain, settings::set_domain),
    writable_own(b"hostname", settings::host, settings::set_host),
    directory(b"keys", What::Directory(SYS_KEYS_ITEMS)),
    text(b"kptr_restrict", settings::no),
    writable_own(b"msg_next_id", ipc::show_msg_next_id, ipc::set_msg_next_id),
    writable_own(b"msgmax", ipc::show_msgmax, ipc::set_msgmax),
    writable_own(b"msgmnb", ipc::show_msgmnb, ipc::set_msgmnb),
    writable_own(b"msgmni", ipc::show_msgmni, ipc::set_msgmni),
    text(b"ngroups_max", system::group_limit),
    text(b"osrelease", system::os_release),
    text(b"ostype", system::os_type),
    text(b"overflowgid", settings::overflow_id),
    text(b"overflowuid", settings::overflow_id),
    text(b"perf_event_max_sample_rate", settings::sample_rate),
    text(b"perf_event_mlock_kb", settings::sample_memory),
    writable(b"perf_event_paranoid", settings::paranoia, settings::set_paranoia),
    writable(b"pid_max", tunables::pid_max, tunables::set_pid_max),
    text(b"printk", settings::message_levels),
    directory(b"pty", What::Directory(SYS_PTY_ITEMS)),
    writable(b"randomize_va_space", tunables::randomization, tunables::set_randomization),
    text(b"sched_rt_period_us", tunables::realtime_period),
    writable(b"sched_rt_runtime_us", tunables::realtime_share, tunables::set_realtime_share),
    directory(b"seccomp", What::Directory(SYS_SECCOMP_ITEMS)),
    writable_own(b"sem", ipc::show_sem, ipc::set_sem),
    writable_own(b"sem_next_id", ipc::show_sem_next_id, ipc::set_sem_next_id),
    writable_own(b"shm_next_id", ipc::show_shm_next_id, ipc::set_shm_next_id),
    writable_own(b"shmall", ipc::show_shmall, ipc::set_shmall),
    writable_own(b"shmmax", ipc::show_shmmax, ipc::set_shmmax),
    writable_own(b"shmmni", ipc::show_shmmni, ipc::set_shmmni),
    writable(b"tainted", settings::tainted, settings::set_tainted),
    writable(b"threads-max", tunables::threads_max, tunables::set_threads_max),
    writable(b"unprivileged_userns_clone", tunables::users_made_by_all, tunables::set_users_made_by_all),
    text(b"version", system::os_version),
    directory(b"random", What::Directory(SYS_RANDOM_ITEMS)),
];

static SYS_KEYS_ITEMS: &[Item] = &[
    writable(b"maxbytes", settings::key_bytes, settings::set_key_bytes),
    writable(b"maxkeys", settings::keys, settings::set_keys),
    writable(b"root_maxbytes", settings::root_key_bytes, settings::set_root_key_bytes),
    writable(b"root_maxkeys", settings::root_keys, settings::set_root_keys),
];

static SYS_PTY_ITEMS: &[Item] =
    &[writable(b"max", tunables::terminals, tunables::set_terminals), text(b"nr", tunables::terminals_open)];

static SYS_SECCOMP_ITEMS: &[Item] = &[text(b"actions_avail", tunables::filter_actions)];

static SYS_RANDOM_ITEMS: &[Item] = &[
    text(b"boot_id", system::boot_id),
    text(b"entropy_avail", tunables::pool_bits),
    text(b"poolsize", tunables::pool_bits),
    text(b"uuid", system::uuid),
];

static SYS_VM_ITEMS: &[Item] = &[
    Item {
        name: b"drop_caches",
        permissions: 0o200,
        what: What::Writable(system::nothing, tunables::drop_caches),
        is_guarded: false,
    },
    writable(b"max_map_count", tunables::mappings, tunables::set_mappings),
    text(b"mmap_min_addr", system::lowest_address),
    writable(b"overcommit_kbytes", tunables::overcommit_kib, tunables::set_overcommit_kib),
    writable(b"overcommit_memory", system::overcommit, system::set_overcommit),
    writable(b"overcommit_ratio", system::overcommit_ratio, system::set_overcommit_ratio),
];
