//! The names in `/proc`, and how each is shown.

use crate::arch::MAX_CPUS;
use crate::procfs::{
    Follow, Item, Show, ShowAs, ShowOwn, ShowPart, ShowSum, ShowViewed, Store, StoreAs, StoreAsBoth,
    StoreByThread, StoreOwn, What, clocks, config, coroutines, ipc, keys, large_pages, link, mounts,
    namespace, net, net_class, net_counts, net_settings, node, process, processor, setting_names, settings,
    sockets, system, usage, users,
};

const fn parts(name: &'static [u8], show: ShowPart) -> Item {
    Item { name, permissions: 0o444, what: What::Parts(show), is_guarded: true }
}

const fn sums(name: &'static [u8], show: ShowSum) -> Item {
    Item { name, permissions: 0o444, what: What::Sums(show), is_guarded: true }
}

const fn viewed(name: &'static [u8], show: ShowViewed) -> Item {
    Item { name, permissions: 0o444, what: What::Viewed(show), is_guarded: false }
}

pub(super) const fn text(name: &'static [u8], show: Show) -> Item {
    Item { name, permissions: 0o444, what: What::Text(show), is_guarded: false }
}

const fn private(name: &'static [u8], show: Show) -> Item {
    Item { name, permissions: 0o400, what: What::Text(show), is_guarded: true }
}

pub(super) const fn writable(name: &'static [u8], show: Show, store: Store) -> Item {
    Item { name, permissions: 0o644, what: What::Writable(show, store), is_guarded: false }
}

const fn by_thread(name: &'static [u8], show: Show, store: StoreByThread) -> Item {
    Item { name, permissions: 0o644, what: What::WritableByThread(show, store), is_guarded: false }
}

/// One that only root reads.
pub(super) const fn closed(name: &'static [u8], show: Show, store: Store) -> Item {
    Item { name, permissions: 0o600, what: What::Writable(show, store), is_guarded: false }
}

pub(super) const fn controlled(name: &'static [u8], show: Show, store: StoreAs) -> Item {
    Item { name, permissions: 0o644, what: What::Controlled(show, store), is_guarded: false }
}

const fn seen(name: &'static [u8], show: ShowAs) -> Item {
    Item { name, permissions: 0o444, what: What::Seen(show), is_guarded: false }
}

pub(super) const fn writable_seen(name: &'static [u8], show: ShowAs, store: StoreAs) -> Item {
    Item { name, permissions: 0o644, what: What::WritableSeen(show, store), is_guarded: false }
}

const fn writable_map(name: &'static [u8], show: ShowAs, store: StoreAsBoth) -> Item {
    Item { name, permissions: 0o644, what: What::WritableMap(show, store), is_guarded: false }
}

const fn own(name: &'static [u8], show: ShowOwn) -> Item {
    Item { name, permissions: 0o444, what: What::Own(show), is_guarded: false }
}

pub(super) const fn writable_own(name: &'static [u8], show: ShowOwn, store: StoreOwn) -> Item {
    Item { name, permissions: 0o644, what: What::WritableOwn(show, store), is_guarded: false }
}

const fn mounted(name: &'static [u8], show: ShowPart) -> Item {
    Item { name, permissions: 0o444, what: What::Mounts(show), is_guarded: false }
}

const fn link(name: &'static [u8], follow: Follow) -> Item {
    Item { name, permissions: 0o777, what: What::Link(follow), is_guarded: false }
}

pub(super) const fn directory(name: &'static [u8], what: What) -> Item {
    Item { name, permissions: 0o555, what, is_guarded: false }
}

pub(super) static ROOT: Item = directory(b"", What::Processes(ROOT_ITEMS));
pub(super) static PROCESS: Item = directory(b"", What::Directory(PROCESS_ITEMS));
pub(super) static THREAD: Item = directory(b"", What::Directory(THREAD_ITEMS));

static DESCRIPTOR: Item =
    Item { name: b"", permissions: 0o700, what: What::Link(link::descriptor), is_guarded: false };
static DESCRIPTOR_INFORMATION: Item = parts(b"", process::descriptor_information);

static ROOT_ITEMS: &[Item] = &[
    link(b"self", link::own_process),
    link(b"thread-self", link::own_thread),
    link(b"mounts", link::own_mounts),
    link(b"net", link::own_network),
    text(b"cgroups", system::control_groups),
    text(b"cmdline", system::command_line),
    text(b"config.gz", config::compressed),
    text(b"cpuinfo", system::processors),
    text(b"devices", system::devices),
    text(b"diskstats", system::nothing),
    text(b"filesystems", system::file_systems),
    text(b"interrupts", system::interrupts),
    text(b"key-users", keys::users),
    Item { name: b"keys", permissions: 0o444, what: What::Keys(keys::list), is_guarded: false },
    text(b"loadavg", system::load),
    text(b"meminfo", system::memory),
    text(b"modules", system::nothing),
    text(b"partitions", settings::partitions),
    own(b"stat", system::statistics),
    text(b"swaps", settings::swap),
    own(b"uptime", system::uptime),
    text(b"version", system::version),
    text(b"vmstat", system::virtual_memory),
    directory(b"heddle", What::Directory(HEDDLE_ITEMS)),
    directory(b"sys", What::Directory(setting_names::ITEMS)),
    directory(b"sysvipc", What::Directory(IPC_ITEMS)),
];

static IPC_ITEMS: &[Item] =
    &[own(b"msg", ipc::queues), own(b"sem", ipc::semaphores), own(b"shm", ipc::segments)];

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
    text(b"isolation", system::isolation),
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

const MOUNT_STATISTICS: Item = Item {
    name: b"mountstats",
    permissions: 0o400,
    what: What::Parts(mounts::statistics),
    is_guarded: false,
};

static PROCESS_ITEMS: &[Item] = &[
    directory(b"task", What::Threads),
    Item { name: b"fd", permissions: 0o500, what: What::Descriptors(&DESCRIPTOR), is_guarded: false },
    directory(b"fdinfo", What::Descriptors(&DESCRIPTOR_INFORMATION)),
    link(b"cwd", link::working),
    link(b"exe", link::executable),
    link(b"root", link::root),
    viewed(b"cgroup", process::control_group),
    private(b"auxv", process::auxiliary),
    text(b"cmdline", process::command_line),
    by_thread(b"comm", process::name, process::set_name),
    Item {
        name: b"coredump_filter",
        permissions: 0o644,
        what: What::Writable(process::dump_filter, process::set_dump_filter),
        is_guarded: true,
    },
    private(b"environ", process::environment),
    Item { name: b"heddle", permissions: 0o444, what: What::Parts(coroutines::list), is_guarded: true },
    private(b"io", usage::transfers),
    text(b"limits", process::limits),
    parts(b"maps", process::mappings),
    Item { name: b"mem", permissions: 0o600, what: What::Memory, is_guarded: true },
    mounted(b"mountinfo", mounts::information),
    mounted(b"mounts", mounts::table),
    MOUNT_STATISTICS,
    writable_map(b"gid_map", users::group_map, users::set_group_map),
    directory(b"net", What::Directory(NET_ITEMS)),
    Item { name: b"ns", permissions: 0o511, what: What::Directory(NAMESPACE_ITEMS), is_guarded: false },
    sums(b"numa_maps", usage::by_node),
    controlled(b"oom_adj", process::oom_legacy, process::set_oom_legacy),
    text(b"oom_score", process::oom_score),
    controlled(b"oom_score_adj", process::oom_adjustment, process::set_oom_adjustment),
    writable(b"timerslack_ns", process::timer_slack, process::set_timer_slack),
    controlled(b"timens_offsets", clocks::offsets, clocks::set_offsets),
    Item { name: b"pagemap", permissions: 0o400, what: What::PageMap, is_guarded: true },
    writable_map(b"projid_map", users::project_map, users::set_project_map),
    writable_seen(b"setgroups", users::groups, users::set_groups),
    sums(b"smaps", usage::by_mapping),
    sums(b"smaps_rollup", usage::rollup),
    text(b"stat", process::statistics),
    text(b"statm", process::memory),
    seen(b"status", process::status),
    writable_map(b"uid_map", users::user_map, users::set_user_map),
    text(b"wchan", process::wait_channel),
];

static THREAD_ITEMS: &[Item] = &[
    Item { name: b"children", permissions: 0o444, what: What::Parts(process::children), is_guarded: false },
    Item { name: b"fd", permissions: 0o500, what: What::Descriptors(&DESCRIPTOR), is_guarded: false },
    directory(b"fdinfo", What::Descriptors(&DESCRIPTOR_INFORMATION)),
    link(b"cwd", link::working),
    link(b"exe", link::executable),
    link(b"root", link::root),
    private(b"auxv", process::auxiliary),
    text(b"cmdline", process::command_line),
    by_thread(b"comm", process::name, process::set_name),
    private(b"environ", process::environment),
    private(b"io", usage::transfers),
    text(b"limits", process::limits),
    parts(b"maps", process::mappings),
    Item { name: b"mem", permissions: 0o600, what: What::Memory, is_guarded: true },
    mounted(b"mountinfo", mounts::information),
    mounted(b"mounts", mounts::table),
    MOUNT_STATISTICS,
    writable_map(b"gid_map", users::group_map, users::set_group_map),
    directory(b"net", What::Directory(NET_ITEMS)),
    Item { name: b"ns", permissions: 0o511, what: What::Directory(NAMESPACE_ITEMS), is_guarded: false },
    sums(b"numa_maps", usage::by_node),
    controlled(b"oom_adj", process::oom_legacy, process::set_oom_legacy),
    text(b"oom_score", process::oom_score),
    controlled(b"oom_score_adj", process::oom_adjustment, process::set_oom_adjustment),
    Item { name: b"pagemap", permissions: 0o400, what: What::PageMap, is_guarded: true },
    writable_map(b"projid_map", users::project_map, users::set_project_map),
    writable_seen(b"setgroups", users::groups, users::set_groups),
    sums(b"smaps", usage::by_mapping),
    sums(b"smaps_rollup", usage::rollup),
    text(b"stat", process::statistics),
    text(b"statm", process::memory),
    seen(b"status", process::status),
    writable_map(b"uid_map", users::user_map, users::set_user_map),
    text(b"wchan", process::wait_channel),
];

static NAMESPACE_ITEMS: &[Item] = &[
    link(b"cgroup", namespace::groups),
    link(b"ipc", namespace::ipc),
    link(b"mnt", namespace::mounts),
    link(b"net", namespace::network),
    link(b"pid", namespace::pids),
    link(b"pid_for_children", namespace::pids_of_children),
    link(b"time", namespace::times),
    link(b"time_for_children", namespace::times_of_children),
    link(b"user", namespace::users),
    link(b"uts", namespace::names),
];

static NET_ITEMS: &[Item] = &[
    text(b"arp", net::neighbours),
    text(b"dev", net::devices),
    text(b"icmp", sockets::ping),
    text(b"icmp6", sockets::ping_v6),
    text(b"if_inet6", net::addresses_v6),
    text(b"ipv6_route", net::routes_v6),
    text(b"netlink", net::netlink_sockets),
    text(b"raw", sockets::raw),
    text(b"raw6", sockets::raw_v6),
    text(b"route", net::routes),
    text(b"netstat", net_counts::netstat),
    text(b"snmp", net_counts::snmp),
    text(b"snmp6", net_counts::snmp_v6),
    text(b"sockstat", sockets::usage),
    text(b"tcp", sockets::tcp),
    text(b"tcp6", sockets::tcp_v6),
    text(b"udp", sockets::udp),
    text(b"udp6", sockets::udp_v6),
    Item { name: b"unix", permissions: 0o444, what: What::Parts(sockets::unix), is_guarded: false },
];

pub(super) static SYS_NET_ITEMS: &[Item] = &[
    directory(b"core", What::Directory(SYS_NET_CORE_ITEMS)),
    directory(b"ipv4", What::Directory(SYS_NET_V4_ITEMS)),
    directory(b"ipv6", What::Directory(SYS_NET_V6_ITEMS)),
    directory(b"unix", What::Directory(SYS_NET_UNIX_ITEMS)),
];

static SYS_NET_CORE_ITEMS: &[Item] = &[
    text(b"netdev_max_backlog", net_settings::device_backlog),
    text(b"optmem_max", net_settings::option_memory),
    text(b"rmem_default", net_settings::buffer_default),
    writable_own(b"rmem_max", net_settings::show_receive_buffer, net_settings::set_receive_buffer),
    writable_own(b"somaxconn", net_settings::show_backlog, net_settings::set_backlog),
    text(b"wmem_default", net_settings::buffer_default),
    writable_own(b"wmem_max", net_settings::show_send_buffer, net_settings::set_send_buffer),
];

static SYS_NET_V4_CONF_ITEMS: &[Item] = &[directory(b"lo", What::Directory(SYS_NET_V4_LOOPBACK_ITEMS))];
static SYS_NET_V4_LOOPBACK_ITEMS: &[Item] = &[
    writable_own(b"accept_local", net_settings::show_accepts_local, net_settings::set_accepts_local),
    writable_own(b"route_localnet", net_settings::show_routes_loopback, net_settings::set_routes_loopback),
];

static SYS_NET_V4_ITEMS: &[Item] = &[
    directory(b"conf", What::Directory(SYS_NET_V4_CONF_ITEMS)),
    writable_own(b"ip_default_ttl", net_settings::show_ttl, net_settings::set_ttl),
    text(b"ip_forward", net_settings::no),
    writable_own(b"ip_local_port_range", net_settings::show_ports, net_settings::set_ports),
    writable_own(b"ip_nonlocal_bind", net_settings::show_binds_anywhere, net_settings::set_binds_anywhere),
    writable_own(
        b"ip_unprivileged_port_start",
        net_settings::show_unprivileged,
        net_settings::set_unprivileged,
    ),
    writable_own(b"ping_group_range", net_settings::show_ping_groups, net_settings::set_ping_groups),
    text(b"tcp_allowed_congestion_control", net_settings::congestion_controls),
    text(b"tcp_available_congestion_control", net_settings::congestion_controls),
    writable_own(b"tcp_congestion_control", net_settings::show_congestion, net_settings::set_congestion),
    writable_own(b"tcp_fin_timeout", net_settings::show_fin_timeout, net_settings::set_fin_timeout),
    writable_own(b"tcp_keepalive_intvl", net_settings::show_keep_interval, net_settings::set_keep_interval),
    writable_own(b"tcp_keepalive_probes", net_settings::show_keep_count, net_settings::set_keep_count),
    writable_own(b"tcp_keepalive_time", net_settings::show_keep_idle, net_settings::set_keep_idle),
    writable_own(b"tcp_max_syn_backlog", net_settings::show_half_open, net_settings::set_half_open),
    writable_own(b"tcp_retries2", net_settings::show_retries, net_settings::set_retries),
    text(b"tcp_rmem", net_settings::receive_memory),
    text(b"tcp_sack", net_settings::yes),
    writable_own(b"tcp_syn_retries", net_settings::show_syn_retries, net_settings::set_syn_retries),
    writable_own(
        b"tcp_synack_retries",
        net_settings::show_confirmation_retries,
        net_settings::set_confirmation_retries,
    ),
    text(b"tcp_window_scaling", net_settings::yes),
    text(b"tcp_wmem", net_settings::send_memory),
];

static SYS_NET_V6_ITEMS: &[Item] = &[
    writable_own(b"bindv6only", net_settings::show_only_v6, net_settings::set_only_v6),
    directory(b"conf", What::Directory(SYS_NET_V6_CONF_ITEMS)),
];
static SYS_NET_V6_CONF_ITEMS: &[Item] = &[
    directory(b"all", What::Directory(SYS_NET_V6_CONF_ALL_ITEMS)),
    directory(b"default", What::Directory(SYS_NET_V6_CONF_ALL_ITEMS)),
    directory(b"lo", What::Directory(SYS_NET_V6_CONF_ALL_ITEMS)),
];
static SYS_NET_V6_CONF_ALL_ITEMS: &[Item] = &[text(b"disable_ipv6", net_settings::no)];
static SYS_NET_UNIX_ITEMS: &[Item] =
    &[writable(b"max_dgram_qlen", net_settings::show_datagrams, net_settings::set_datagrams)];

pub(super) static SYS: Item = directory(b"", What::Directory(SYSFS_ITEMS));
pub(super) static SYS_ETHERNET: Item = directory(b"", What::Directory(SYSFS_ETHERNET_ITEMS));

static SYSFS_ITEMS: &[Item] = &[
    directory(b"class", What::Directory(CLASS_ITEMS)),
    directory(b"devices", What::Directory(DEVICE_ITEMS)),
    directory(b"fs", What::Directory(FILE_SYSTEM_ITEMS)),
    directory(b"kernel", What::Directory(KERNEL_ITEMS)),
];
static SYSFS_ETHERNET_ITEMS: &[Item] = &[
    directory(b"class", What::Directory(CLASS_ETHERNET_ITEMS)),
    directory(b"devices", What::Directory(DEVICE_ITEMS)),
    directory(b"fs", What::Directory(FILE_SYSTEM_ITEMS)),
    directory(b"kernel", What::Directory(KERNEL_ITEMS)),
];
static KERNEL_ITEMS: &[Item] = &[directory(b"mm", What::Directory(KERNEL_MEMORY_ITEMS))];
static KERNEL_MEMORY_ITEMS: &[Item] =
    &[directory(b"transparent_hugepage", What::Directory(LARGE_PAGE_ITEMS))];
static LARGE_PAGE_ITEMS: &[Item] = &[
    writable(b"defrag", large_pages::effort, large_pages::set_effort),
    writable(b"enabled", large_pages::enabled, large_pages::set_enabled),
    text(b"hpage_pmd_size", large_pages::size),
];
static FILE_SYSTEM_ITEMS: &[Item] = &[directory(b"cgroup", What::Directory(&[]))];
static DEVICE_ITEMS: &[Item] = &[directory(b"system", What::Directory(SYSTEM_ITEMS))];
static SYSTEM_ITEMS: &[Item] =
    &[directory(b"cpu", What::Processors(PROCESSOR_ITEMS)), directory(b"node", What::Directory(NODE_ITEMS))];
static NODE_ITEMS: &[Item] = &[
    text(b"has_cpu", node::list),
    text(b"has_memory", node::list),
    text(b"has_normal_memory", node::list),
    directory(b"node0", What::Directory(FIRST_NODE_ITEMS)),
    text(b"online", node::list),
    text(b"possible", node::list),
];
static FIRST_NODE_ITEMS: &[Item] = &[
    text(b"cpulist", settings::processors),
    text(b"cpumap", processor::all_mask),
    text(b"distance", node::distance),
    text(b"meminfo", node::memory),
];
/// The files about all CPUs, and a directory for each that there may be.
static PROCESSOR_ITEMS: &[Item] = &[
    text(b"kernel_max", settings::last_processor),
    text(b"offline", settings::no_processors),
    text(b"online", settings::processors),
    text(b"possible", settings::processors),
    text(b"present", settings::processors),
    directory(b"vulnerabilities", What::Directory(VULNERABILITY_ITEMS)),
    directory(b"cpu0", What::Directory(FIRST_CPU_ITEMS)),
    directory(b"cpu1", What::Directory(SECOND_CPU_ITEMS)),
    directory(b"cpu2", What::Directory(THIRD_CPU_ITEMS)),
    directory(b"cpu3", What::Directory(FOURTH_CPU_ITEMS)),
    directory(b"cpu4", What::Directory(FIFTH_CPU_ITEMS)),
    directory(b"cpu5", What::Directory(SIXTH_CPU_ITEMS)),
    directory(b"cpu6", What::Directory(SEVENTH_CPU_ITEMS)),
    directory(b"cpu7", What::Directory(EIGHTH_CPU_ITEMS)),
];
static VULNERABILITY_ITEMS: &[Item] = &[
    text(b"gather_data_sampling", processor::vulnerability::<0>),
    text(b"indirect_target_selection", processor::vulnerability::<1>),
    text(b"itlb_multihit", processor::vulnerability::<2>),
    text(b"l1tf", processor::vulnerability::<3>),
    text(b"mds", processor::vulnerability::<4>),
    text(b"meltdown", processor::vulnerability::<5>),
    text(b"mmio_stale_data", processor::vulnerability::<6>),
    text(b"reg_file_data_sampling", processor::vulnerability::<7>),
    text(b"retbleed", processor::vulnerability::<8>),
    text(b"spec_rstack_overflow", processor::vulnerability::<9>),
    text(b"spec_store_bypass", processor::vulnerability::<10>),
    text(b"spectre_v1", processor::vulnerability::<11>),
    text(b"spectre_v2", processor::vulnerability::<12>),
    text(b"srbds", processor::vulnerability::<13>),
    text(b"tsa", processor::vulnerability::<14>),
    text(b"tsx_async_abort", processor::vulnerability::<15>),
    text(b"vmscape", processor::vulnerability::<16>),
];
const _: () = assert!(MAX_CPUS == 8, "a directory for each");

/// The place of CPU `N` among the others.
const fn topology<const N: u32>() -> [Item; 13] {
    [
        text(b"core_cpus", processor::own_mask::<N>),
        text(b"core_cpus_list", processor::number::<N>),
        text(b"core_id", processor::number::<N>),
        text(b"core_siblings", processor::all_mask),
        text(b"core_siblings_list", settings::processors),
        text(b"die_cpus", processor::all_mask),
        text(b"die_cpus_list", settings::processors),
        text(b"die_id", processor::first),
        text(b"package_cpus", processor::all_mask),
        text(b"package_cpus_list", settings::processors),
        text(b"physical_package_id", processor::first),
        text(b"thread_siblings", processor::own_mask::<N>),
        text(b"thread_siblings_list", processor::number::<N>),
    ]
}

/// The files of a CPU but the first, which can't be switched off and has no file for that.
const fn later_cpu_items(topology: Item) -> [Item; 2] {
    [topology, writable(b"online", processor::online, processor::set_online)]
}

static FIRST_CPU_ITEMS: &[Item] = &[directory(b"topology", What::Directory(&topology::<0>()))];
static SECOND_CPU_ITEMS: &[Item] =
    &later_cpu_items(directory(b"topology", What::Directory(&topology::<1>())));
static THIRD_CPU_ITEMS: &[Item] = &later_cpu_items(directory(b"topology", What::Directory(&topology::<2>())));
static FOURTH_CPU_ITEMS: &[Item] =
    &later_cpu_items(directory(b"topology", What::Directory(&topology::<3>())));
static FIFTH_CPU_ITEMS: &[Item] = &later_cpu_items(directory(b"topology", What::Directory(&topology::<4>())));
static SIXTH_CPU_ITEMS: &[Item] = &later_cpu_items(directory(b"topology", What::Directory(&topology::<5>())));
static SEVENTH_CPU_ITEMS: &[Item] =
    &later_cpu_items(directory(b"topology", What::Directory(&topology::<6>())));
static EIGHTH_CPU_ITEMS: &[Item] =
    &later_cpu_items(directory(b"topology", What::Directory(&topology::<7>())));

static CLASS_ITEMS: &[Item] = &[directory(b"net", What::Directory(CLASS_NET_ITEMS))];
static CLASS_ETHERNET_ITEMS: &[Item] = &[directory(b"net", What::Directory(CLASS_NET_ETHERNET_ITEMS))];
static CLASS_NET_ITEMS: &[Item] = &[directory(b"lo", What::Directory(LOOPBACK_ITEMS))];
static CLASS_NET_ETHERNET_ITEMS: &[Item] =
    &[directory(b"eth0", What::Directory(ETHERNET_ITEMS)), directory(b"lo", What::Directory(LOOPBACK_ITEMS))];

static LOOPBACK_ITEMS: &[Item] =
    &interface_items::<1>(directory(b"statistics", What::Directory(&interface_statistics::<1>())));
static ETHERNET_ITEMS: &[Item] =
    &interface_items::<2>(directory(b"statistics", What::Directory(&interface_statistics::<2>())));

/// The files of interface `INDEX`.
const fn interface_items<const INDEX: u32>(statistics: Item) -> [Item; 14] {
    [
        text(b"addr_len", net_class::address_length),
        text(b"address", net_class::address::<INDEX>),
        text(b"broadcast", net_class::broadcast::<INDEX>),
        text(b"carrier", net_class::carrier::<INDEX>),
        text(b"flags", net_class::flags::<INDEX>),
        text(b"ifindex", net_class::index::<INDEX>),
        text(b"iflink", net_class::index::<INDEX>),
        text(b"mtu", net_class::mtu::<INDEX>),
        text(b"operstate", net_class::state::<INDEX>),
        text(b"speed", net_class::speed::<INDEX>),
        statistics,
        text(b"tx_queue_len", net_class::queue_length),
        text(b"type", net_class::kind::<INDEX>),
        text(b"uevent", system::nothing),
    ]
}

const fn interface_statistics<const INDEX: u32>() -> [Item; 8] {
    [
        text(b"rx_bytes", net_class::statistic::<INDEX, 0>),
        text(b"rx_dropped", net_class::statistic::<INDEX, 1>),
        text(b"rx_errors", net_class::statistic::<INDEX, 2>),
        text(b"rx_packets", net_class::statistic::<INDEX, 3>),
        text(b"tx_bytes", net_class::statistic::<INDEX, 4>),
        text(b"tx_dropped", net_class::statistic::<INDEX, 5>),
        text(b"tx_errors", net_class::statistic::<INDEX, 6>),
        text(b"tx_packets", net_class::statistic::<INDEX, 7>),
    ]
}
