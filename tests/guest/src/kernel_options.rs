//! `/proc/config.gz`: what it says of the kernel is so.
#![allow(unsafe_code, reason = "calls are made by their numbers")]

use std::fs;
use std::path::Path;

use nix::errno::Errno;

use crate::harness::{OrFail, Outcome, is_heddle, skip};
use crate::{expect, expect_eq};

crate::tests! {
    the_options_are_compressed_text
    options_are_true
}

/// The text of the file. Linux has it by an option of its own, which Debian's lacks.
fn options() -> Result<Option<String>, String> {
    if !is_heddle() && !Path::new("/proc/config.gz").exists() {
        skip("this kernel doesn't tell its options");
        return Ok(None);
    }
    let output = std::process::Command::new("/bin/zcat").arg("/proc/config.gz").output().or_fail()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    String::from_utf8(output.stdout).or_fail().map(Some)
}

fn the_options_are_compressed_text() -> Outcome {
    let Some(text) = options()? else { return Ok(()) };
    let mut names: Vec<&str> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let set = line.split_once('=').map(|(name, _)| name);
        let unset = line.strip_prefix("# ").and_then(|rest| rest.strip_suffix(" is not set"));
        if let Some(name) = set.or(unset) {
            expect!(name.starts_with("CONFIG_"));
            names.push(name);
        }
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    expect_eq!(names.len(), count);
    expect!(text.lines().any(|line| line == "CONFIG_IKCONFIG_PROC=y"));
    Ok(())
}

/// Whether the kernel has a call: arguments that are all wrong give another error than that it hasn't.
fn has_call(number: libc::c_long) -> bool {
    // SAFETY: no call takes these arguments: the descriptors are none, and nothing is at the addresses.
    let result = unsafe { libc::syscall(number, -1, -1, -1, -1, -1, -1) };
    result != -1 || Errno::last() != Errno::ENOSYS
}

fn has(path: &str) -> bool {
    Path::new(path).exists()
}

fn has_controller(name: &str) -> bool {
    let text = fs::read_to_string("/proc/cgroups").unwrap_or_default();
    text.lines().any(|line| line.split_whitespace().next() == Some(name))
}

fn has_file_system(name: &str) -> bool {
    let text = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    text.lines().any(|line| line.split_whitespace().last() == Some(name))
}

fn has_family(family: i32, kind: i32) -> bool {
    // SAFETY: there are no pointers.
    let made = unsafe { libc::socket(family, kind, 0) };
    if made >= 0 {
        // SAFETY: nobody else has the descriptor.
        unsafe { libc::close(made) };
    }
    made >= 0 || Errno::last() != Errno::EAFNOSUPPORT
}

fn options_are_true() -> Outcome {
    let Some(text) = options()? else { return Ok(()) };
    let found = [
        ("UTS_NS", has("/proc/self/ns/uts")),
        ("IPC_NS", has("/proc/self/ns/ipc")),
        ("TIME_NS", has("/proc/self/ns/time")),
        ("USER_NS", has("/proc/self/ns/user")),
        ("PID_NS", has("/proc/self/ns/pid")),
        ("NET_NS", has("/proc/self/ns/net")),
        ("CGROUPS", has("/proc/self/cgroup")),
        ("CGROUP_PIDS", has_controller("pids")),
        ("MEMCG", has_controller("memory")),
        ("CPUSETS", has_controller("cpuset")),
        ("BLK_CGROUP", has_controller("blkio")),
        ("CGROUP_HUGETLB", has_controller("hugetlb")),
        ("SYSVIPC", has_call(libc::SYS_semget)),
        ("POSIX_MQUEUE", has_call(libc::SYS_mq_unlink)),
        ("KEYS", has_call(libc::SYS_add_key)),
        ("EPOLL", has_call(libc::SYS_epoll_create1)),
        ("SIGNALFD", has_call(libc::SYS_signalfd4)),
        ("TIMERFD", has_call(libc::SYS_timerfd_settime)),
        ("EVENTFD", has_call(libc::SYS_eventfd2)),
        ("AIO", has_call(libc::SYS_io_submit)),
        ("IO_URING", has_call(libc::SYS_io_uring_enter)),
        ("USERFAULTFD", has_call(libc::SYS_userfaultfd)),
        ("BPF_SYSCALL", has_call(libc::SYS_bpf)),
        ("PERF_EVENTS", has_call(libc::SYS_perf_event_open)),
        ("MEMBARRIER", has_call(libc::SYS_membarrier)),
        ("RSEQ", has_call(libc::SYS_rseq)),
        ("KCMP", has_call(libc::SYS_kcmp)),
        ("CROSS_MEMORY_ATTACH", has_call(libc::SYS_process_vm_readv)),
        ("FHANDLE", has_call(libc::SYS_name_to_handle_at)),
        ("INOTIFY_USER", has_call(libc::SYS_inotify_init1)),
        ("FANOTIFY", has_call(libc::SYS_fanotify_mark)),
        ("NUMA", has_call(libc::SYS_mbind)),
        ("SWAP", has_call(libc::SYS_swapoff)),
        ("MODULES", has_call(libc::SYS_delete_module)),
        ("ARCH_HAS_PKEYS", has_call(libc::SYS_pkey_alloc)),
        ("X86_INTEL_MEMORY_PROTECTION_KEYS", has_call(libc::SYS_pkey_alloc)),
        ("SECRETMEM", has_call(libc::SYS_memfd_secret)),
        ("SECCOMP_FILTER", has_call(libc::SYS_seccomp)),
        ("SECURITY_LANDLOCK", has_call(libc::SYS_landlock_add_rule)),
        ("BSD_PROCESS_ACCT", has_call(libc::SYS_acct)),
        ("TMPFS", has_file_system("tmpfs")),
        ("OVERLAY_FS", has_file_system("overlay")),
        ("HUGETLBFS", has_file_system("hugetlbfs")),
        ("EXT4_FS", has_file_system("ext4")),
        ("PROC_SYSCTL", has("/proc/sys/kernel")),
        ("PROC_PAGE_MONITOR", has("/proc/self/pagemap")),
        ("TRANSPARENT_HUGEPAGE", has("/sys/kernel/mm/transparent_hugepage")),
        ("KSM", has("/sys/kernel/mm/ksm")),
        ("KALLSYMS", has("/proc/kallsyms")),
        ("UNIX", has_family(libc::AF_UNIX, libc::SOCK_STREAM)),
        ("INET", has_family(libc::AF_INET, libc::SOCK_DGRAM)),
        ("IPV6", has_family(libc::AF_INET6, libc::SOCK_DGRAM)),
        ("PACKET", has_family(libc::AF_PACKET, libc::SOCK_RAW)),
        ("VSOCKETS", has_family(libc::AF_VSOCK, libc::SOCK_STREAM)),
        ("CAN", has_family(libc::AF_CAN, libc::SOCK_RAW)),
        ("CRYPTO_USER_API", has_family(libc::AF_ALG, libc::SOCK_SEQPACKET)),
    ];
    for (option, holds) in found {
        let line = format!("CONFIG_{option}=y");
        let is_told = text.lines().any(|found| found == line);
        expect_eq!((option, is_told), (option, holds));
    }
    Ok(())
}
