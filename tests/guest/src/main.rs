//! Tests of the Linux interface, grouped in one program so that one boot runs them all.
//!
//! Each test runs in a child process of its own and prints one line: `ok NAME`, `not ok NAME: reason` or
//! `skip NAME: reason`. The same binary runs on the host and in a Linux guest, which is what keeps the tests honest:
//! what they assert is what Linux does. In Heddle the harness also compares the number of free frames before and
//! after each test.
//!
//! `heddle-guest-tests [--list] [FILTER…]` runs the tests whose name contains one of the filters.

mod harness;

mod acl;
mod aio;
mod arguments;
mod asynchronous;
mod asynchronous_calls;
mod barrier;
mod bounds;
mod cgroups;
mod core_dump;
mod cpu_time;
mod delivery;
mod descriptor;
mod differ;
mod direct;
mod discard;
mod epoll;
mod extended;
mod fanotify;
mod file;
mod file_signals;
mod fuse;
mod inet;
mod inheritance;
mod inotify;
mod ipc;
mod keys;
mod landlock;
mod large_pages;
mod leases;
mod listing;
mod memory;
mod memory_limits;
mod mempolicy;
mod mounts;
mod namespaces;
mod old_calls;
mod opening;
mod packet;
mod packets;
mod page_map;
mod perf;
mod pi;
mod pidfd;
mod pipe;
mod pipe_edges;
mod pipe_memory;
mod pipe_parallel;
mod poll;
mod preemption;
mod privilege;
mod process;
mod procfs;
mod procfs_ended;
mod progress;
mod protection_keys;
mod pty;
mod ranges;
mod rare_arguments;
mod rare_results;
mod realtime;
mod rseq;
mod runtime;
mod scheduler;
mod seccomp;
mod seccomp_listener;
mod shares;
mod signal;
mod slots;
mod socket;
mod socket_options;
mod space;
mod terminal;
mod thread;
mod time;
mod trace;
mod urgency;
mod uring;
mod usage;
mod user_dispatch;
mod vdso;
mod waiting;
mod watchers;
mod words;

use harness::Test;

/// The tests by family.
const FAMILIES: &[&[Test]] = &[
    process::TESTS,
    pidfd::TESTS,
    privilege::TESTS,
    signal::TESTS,
    delivery::TESTS,
    pipe::TESTS,
    packets::TESTS,
    pipe_edges::TESTS,
    pipe_memory::TESTS,
    pipe_parallel::TESTS,
    waiting::TESTS,
    urgency::TESTS,
    opening::TESTS,
    words::TESTS,
    watchers::TESTS,
    progress::TESTS,
    bounds::TESTS,
    discard::TESTS,
    file::TESTS,
    descriptor::TESTS,
    direct::TESTS,
    ranges::TESTS,
    memory::TESTS,
    large_pages::TESTS,
    large_pages::stress::TESTS,
    memory_limits::TESTS,
    mempolicy::TESTS,
    mounts::TESTS,
    mounts::detached::TESTS,
    mounts::handles::TESTS,
    mounts::hiding::TESTS,
    mounts::kinds::TESTS,
    mounts::namespace::TESTS,
    mounts::others::TESTS,
    mounts::overlay::TESTS,
    mounts::overlay::edges::TESTS,
    mounts::propagation::TESTS,
    mounts::writers::TESTS,
    namespaces::ipc::TESTS,
    namespaces::mounts::TESTS,
    namespaces::network::TESTS,
    namespaces::pid::TESTS,
    namespaces::pid_views::TESTS,
    namespaces::rights::TESTS,
    namespaces::time::TESTS,
    namespaces::users::TESTS,
    thread::TESTS,
    packet::TESTS,
    packet::rings::TESTS,
    page_map::TESTS,
    pi::TESTS,
    realtime::TESTS,
    shares::TESTS,
    barrier::TESTS,
    rseq::TESTS,
    time::TESTS,
    cpu_time::TESTS,
    poll::TESTS,
    epoll::TESTS,
    socket::TESTS,
    terminal::TESTS,
    protection_keys::TESTS,
    protection_keys::rights::TESTS,
    pty::TESTS,
    asynchronous::TESTS,
    asynchronous_calls::TESTS,
    preemption::TESTS,
    runtime::TESTS,
    runtime::FOREIGN_TESTS,
    runtime::FORK_TESTS,
    runtime::NET_TESTS,
    runtime::ORDER_TESTS,
    listing::TESTS,
    vdso::TESTS,
    extended::TESTS,
    inet::again::TESTS,
    inet::counts::TESTS,
    inet::datagram::TESTS,
    inet::interfaces::TESTS,
    inet::large::TESTS,
    inet::options::TESTS,
    inet::readiness::TESTS,
    inet::settings::TESTS,
    inet::stream::TESTS,
    inet::waits::TESTS,
    inheritance::TESTS,
    inotify::TESTS,
    fanotify::TESTS,
    perf::TESTS,
    rare_arguments::TESTS,
    rare_results::TESTS,
    ipc::segments::TESTS,
    ipc::semaphores::TESTS,
    ipc::queues::TESTS,
    ipc::posix::TESTS,
    scheduler::TESTS,
    scheduler::LEVELS_TESTS,
    scheduler::INTERRUPT_TESTS,
    scheduler::ORDER_TESTS,
    slots::TESTS,
    space::TESTS,
    usage::TESTS,
    user_dispatch::TESTS,
    trace::TESTS,
    trace::relations::TESTS,
    trace::memory::TESTS,
    cgroups::TESTS,
    cgroups::control::TESTS,
    cgroups::cpu::TESTS,
    cgroups::memory::TESTS,
    core_dump::TESTS,
    procfs::TESTS,
    procfs_ended::TESTS,
    socket_options::TESTS,
    arguments::TESTS,
    aio::TESTS,
    uring::TESTS,
    uring::EDGE_TESTS,
    uring::FEATURE_TESTS,
    uring::OPERATION_TESTS,
    seccomp::TESTS,
    seccomp_listener::TESTS,
    file_signals::TESTS,
    fuse::TESTS,
    fuse::servers::TESTS,
    landlock::TESTS,
    leases::TESTS,
    keys::TESTS,
    acl::TESTS,
    old_calls::TESTS,
];

fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(role) = arguments.first().and_then(|first| first.strip_prefix("--as=")) {
        return process::play_role(role, &arguments[1..]);
    }
    if arguments.first().is_some_and(|first| first == "--differ") {
        return differ::main(&arguments[1..]);
    }
    let tests = FAMILIES.iter().copied().flatten();
    if arguments.first().is_some_and(|first| first == "--list") {
        tests.for_each(|test| println!("{}", test.name()));
        return std::process::ExitCode::SUCCESS;
    }
    let chosen =
        tests.filter(|test| arguments.is_empty() || arguments.iter().any(|f| test.name().contains(f)));
    harness::run(chosen)
}
