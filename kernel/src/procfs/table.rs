//! The names in `/proc`, and how each is shown.

use crate::procfs::{
    Follow, Item, Show, ShowPart, Store, What, coroutines, ipc, link, process, system, usage,
};

const fn parts(name: &'static [u8], show: ShowPart) -> Item {
    Item { name, permissions: 0o444, what: What::Parts(show), is_guarded: true }
}

const fn text(name: &'static [u8], show: Show) -> Item {
    Item { name, permissions: 0o444, what: What::Text(show), is_guarded: false }
}

const fn private(name: &'static [u8], show: Show) -> Item {
    Item { name, permissions: 0o400, what: What::Text(show), is_guarded: true }
}

const fn guarded(name: &'static [u8], show: Show) -> Item {
    Item { name, permissions: 0o444, what: What::Text(show), is_guarded: true }
}

const fn writable(name: &'static [u8], show: Show, store: Store) -> Item {
    Item { name, permissions: 0o644, what: What::Writable(show, store), is_guarded: false }
}

const fn link(name: &'static [u8], follow: Follow) -> Item {
    Item { name, permissions: 0o777, what: What::Link(follow), is_guarded: false }
}

const fn directory(name: &'static [u8], what: What) -> Item {
    Item { name, permissions: 0o555, what, is_guarded: false }
}

pub(super) static ROOT: Item = directory(b"", What::Processes(ROOT_ITEMS));
pub(super) static PROCESS: Item = directory(b"", What::Directory(PROCESS_ITEMS));
pub(super) static THREAD: Item = directory(b"", What::Directory(THREAD_ITEMS));

static DESCRIPTOR: Item =
    Item { name: b"", permissions: 0o700, what: What::Link(link::descriptor), is_guarded: false };
static DESCRIPTOR_INFORMATION: Item = guarded(b"", process::descriptor_information);

static ROOT_ITEMS: &[Item] = &[
    link(b"self", link::own_process),
    link(b"thread-self", link::own_thread),
    link(b"mounts", link::own_mounts),
    text(b"cmdline", system::command_line),
    text(b"cpuinfo", system::processors),
    text(b"devices", system::devices),
    text(b"filesystems", system::file_systems),
    text(b"loadavg", system::load),
    text(b"meminfo", system::memory),
    text(b"stat", system::statistics),
    text(b"uptime", system::uptime),
    text(b"version", system::version),
    text(b"vmstat", system::virtual_memory),
    directory(b"heddle", What::Directory(HEDDLE_ITEMS)),
    directory(b"sys", What::Directory(SYS_ITEMS)),
    directory(b"sysvipc", What::Directory(IPC_ITEMS)),
];

static IPC_ITEMS: &[Item] =
    &[text(b"msg", ipc::queues), text(b"sem", ipc::semaphores), text(b"shm", ipc::segments)];

static HEDDLE_ITEMS: &[Item] = &[
    text(b"counters", system::counters),
    Item {
        name: b"drain",
        permissions: 0o200,
        what: What::Writable(system::nothing, system::drain),
        is_guarded: false,
    },
    #[cfg(feature = "checking")]
    Item {
        name: b"inject",
        permissions: 0o600,
        what: What::Writable(system::injected, system::inject),
        is_guarded: false,
    },
    text(b"memory", system::frames),
    #[cfg(feature = "checking")]
    Item {
        name: b"provoke",
        permissions: 0o200,
        what: What::Writable(system::nothing, system::provoke),
        is_guarded: false,
    },
    text(b"spaces", system::spaces),
    text(b"pages", system::own_frames),
];

static SYS_ITEMS: &[Item] = &[
    directory(b"fs", What::Directory(SYS_FS_ITEMS)),
    directory(b"kernel", What::Directory(SYS_KERNEL_ITEMS)),
    directory(b"vm", What::Directory(SYS_VM_ITEMS)),
];

static SYS_FS_ITEMS: &[Item] = &[
    text(b"file-max", system::file_limit),
    directory(b"mqueue", What::Directory(SYS_QUEUE_ITEMS)),
    text(b"nr_open", system::descriptor_limit),
    text(b"pipe-max-size", system::pipe_limit),
];

static SYS_QUEUE_ITEMS: &[Item] = &[
    writable(b"msg_default", ipc::show_mq_messages, ipc::set_mq_messages),
    writable(b"msg_max", ipc::show_mq_messages_max, ipc::set_mq_messages_max),
    writable(b"msgsize_default", ipc::show_mq_size, ipc::set_mq_size),
    writable(b"msgsize_max", ipc::show_mq_size_max, ipc::set_mq_size_max),
    writable(b"queues_max", ipc::show_mq_queues, ipc::set_mq_queues),
];

static SYS_KERNEL_ITEMS: &[Item] = &[
    text(b"cap_last_cap", system::last_capability),
    text(b"hostname", system::host_name),
    writable(b"msgmax", ipc::show_msgmax, ipc::set_msgmax),
    writable(b"msgmnb", ipc::show_msgmnb, ipc::set_msgmnb),
    writable(b"msgmni", ipc::show_msgmni, ipc::set_msgmni),
    text(b"ngroups_max", system::group_limit),
    text(b"osrelease", system::os_release),
    text(b"ostype", system::os_type),
    text(b"pid_max", system::pid_limit),
    writable(b"sem", ipc::show_sem, ipc::set_sem),
    writable(b"shmall", ipc::show_shmall, ipc::set_shmall),
    writable(b"shmmax", ipc::show_shmmax, ipc::set_shmmax),
    writable(b"shmmni", ipc::show_shmmni, ipc::set_shmmni),
    text(b"threads-max", system::thread_limit),
    text(b"version", system::os_version),
    directory(b"random", What::Directory(SYS_RANDOM_ITEMS)),
];

static SYS_RANDOM_ITEMS: &[Item] = &[text(b"boot_id", system::boot_id), text(b"uuid", system::uuid)];

static SYS_VM_ITEMS: &[Item] =
    &[text(b"max_map_count", system::mapping_limit), text(b"overcommit_memory", system::overcommit)];

static PROCESS_ITEMS: &[Item] = &[
    directory(b"task", What::Threads),
    Item { name: b"fd", permissions: 0o500, what: What::Descriptors(&DESCRIPTOR), is_guarded: false },
    directory(b"fdinfo", What::Descriptors(&DESCRIPTOR_INFORMATION)),
    link(b"cwd", link::working),
    link(b"exe", link::executable),
    link(b"root", link::root),
    text(b"cgroup", process::control_group),
    text(b"cmdline", process::command_line),
    writable(b"comm", process::name, process::set_name),
    private(b"environ", process::environment),
    Item { name: b"heddle", permissions: 0o444, what: What::Parts(coroutines::list), is_guarded: true },
    text(b"limits", process::limits),
    parts(b"maps", process::mappings),
    text(b"mountinfo", process::mount_information),
    text(b"mounts", process::mounts),
    text(b"oom_score", process::oom_score),
    writable(b"oom_score_adj", process::oom_adjustment, process::set_oom_adjustment),
    parts(b"smaps", usage::by_mapping),
    guarded(b"smaps_rollup", usage::rollup),
    text(b"stat", process::statistics),
    text(b"statm", process::memory),
    text(b"status", process::status),
    text(b"wchan", process::wait_channel),
];

static THREAD_ITEMS: &[Item] = &[
    Item { name: b"fd", permissions: 0o500, what: What::Descriptors(&DESCRIPTOR), is_guarded: false },
    directory(b"fdinfo", What::Descriptors(&DESCRIPTOR_INFORMATION)),
    link(b"cwd", link::working),
    link(b"exe", link::executable),
    link(b"root", link::root),
    text(b"cmdline", process::command_line),
    writable(b"comm", process::name, process::set_name),
    private(b"environ", process::environment),
    text(b"limits", process::limits),
    parts(b"maps", process::mappings),
    text(b"mountinfo", process::mount_information),
    text(b"mounts", process::mounts),
    parts(b"smaps", usage::by_mapping),
    guarded(b"smaps_rollup", usage::rollup),
    text(b"stat", process::statistics),
    text(b"statm", process::memory),
    text(b"status", process::status),
    text(b"wchan", process::wait_channel),
];
