//! `/proc/config.gz`: which of Linux's build options hold here.
//!
//! Programs that probe a kernel (test suites, container engines) look an option up here before they try what depends on
//! it. An option is in the table if this kernel does what it stands for, or if programs ask for it and it does not.
//! `CHECKPOINT_RESTORE` stands for `kcmp` and the choice of the next number in `msg_next_id` and its like; missing are
//! `ns_last_pid`, and what prctl(2) would set of a program's memory. `FANOTIFY_ACCESS_PERMISSIONS` stands for
//! permission events, though not for all of them.

use crate::error::Errno;
use crate::procfs::{Subject, Text};

/// An option's name, and whether it holds.
type BuildOption = (&'static str, bool);

const OPTIONS: &[BuildOption] = &[
    ("64BIT", true),
    ("X86_64", true),
    ("MMU", true),
    ("SMP", true),
    ("KVM_GUEST", true),
    ("X86_UMIP", true),
    ("X86_X32", false),
    ("IA32_EMULATION", false),
    ("MODIFY_LDT_SYSCALL", false),
    ("X86_IOPL_IOPERM", false),
    ("MULTIUSER", true),
    ("PRINTK", true),
    ("IKCONFIG", true),
    ("IKCONFIG_PROC", true),
    ("MODULES", false),
    ("KEXEC", false),
    ("SWAP", false),
    ("HIBERNATION", false),
    ("BINFMT_ELF", true),
    ("BINFMT_SCRIPT", true),
    ("BINFMT_MISC", false),
    ("COREDUMP", true),
    ("ELF_CORE", true),
    ("POSIX_TIMERS", true),
    ("HIGH_RES_TIMERS", true),
    ("SYSVIPC", true),
    ("SYSVIPC_SYSCTL", true),
    ("POSIX_MQUEUE", true),
    ("POSIX_MQUEUE_SYSCTL", true),
    ("CROSS_MEMORY_ATTACH", true),
    ("CHECKPOINT_RESTORE", true),
    ("KCMP", true),
    ("BSD_PROCESS_ACCT", true),
    ("BSD_PROCESS_ACCT_V3", true),
    ("TASKSTATS", false),
    ("AUDIT", false),
    ("FUTEX", true),
    ("FUTEX_PI", true),
    ("EPOLL", true),
    ("EVENTFD", true),
    ("SIGNALFD", true),
    ("TIMERFD", true),
    ("AIO", true),
    ("IO_URING", true),
    ("MEMBARRIER", true),
    ("RSEQ", true),
    ("ADVISE_SYSCALLS", true),
    ("SYSFS_SYSCALL", true),
    ("SGETMASK_SYSCALL", false),
    ("USELIB", false),
    ("USERFAULTFD", false),
    ("BPF_SYSCALL", false),
    ("PERF_EVENTS", true),
    ("KALLSYMS", false),
    ("NAMESPACES", true),
    ("UTS_NS", true),
    ("TIME_NS", true),
    ("IPC_NS", true),
    ("USER_NS", true),
    ("PID_NS", true),
    ("NET_NS", true),
    ("CGROUPS", true),
    ("MEMCG", true),
    ("CGROUP_PIDS", true),
    ("CGROUP_SCHED", true),
    ("FAIR_GROUP_SCHED", true),
    ("CFS_BANDWIDTH", true),
    ("RT_GROUP_SCHED", false),
    ("SCHED_AUTOGROUP", false),
    ("SCHED_CORE", false),
    ("CPUSETS", false),
    ("BLK_CGROUP", false),
    ("CGROUP_DEVICE", false),
    ("CGROUP_HUGETLB", false),
    ("CGROUP_MISC", false),
    ("CGROUP_RDMA", false),
    ("SHMEM", true),
    ("MEMFD_CREATE", true),
    ("TRANSPARENT_HUGEPAGE", true),
    ("HUGETLBFS", false),
    ("NUMA", true),
    ("KSM", false),
    ("MEMORY_FAILURE", false),
    ("MEMORY_HOTPLUG", false),
    ("ARCH_HAS_PKEYS", true),
    ("X86_INTEL_MEMORY_PROTECTION_KEYS", true),
    ("SECRETMEM", false),
    ("FILE_LOCKING", true),
    ("FHANDLE", true),
    ("FSNOTIFY", true),
    ("DNOTIFY", true),
    ("INOTIFY_USER", true),
    ("FANOTIFY", true),
    ("FANOTIFY_ACCESS_PERMISSIONS", true),
    ("FS_POSIX_ACL", true),
    ("TMPFS", true),
    ("TMPFS_XATTR", true),
    ("TMPFS_POSIX_ACL", true),
    ("PROC_FS", true),
    ("PROC_SYSCTL", true),
    ("PROC_PAGE_MONITOR", true),
    ("SYSFS", true),
    ("DEVTMPFS", true),
    ("UNIX98_PTYS", true),
    ("OVERLAY_FS", true),
    ("FUSE_FS", true),
    ("BLK_DEV_LOOP", false),
    ("QUOTA", false),
    ("EXT4_FS", false),
    ("BTRFS_FS", false),
    ("XFS_FS", false),
    ("VFAT_FS", false),
    ("EXFAT_FS", false),
    ("NTFS_FS", false),
    ("SQUASHFS", false),
    ("NFS_FS", false),
    ("FS_ENCRYPTION", false),
    ("FS_VERITY", false),
    ("DEBUG_FS", false),
    ("TTY", true),
    ("LEGACY_PTYS", false),
    ("NET", true),
    ("UNIX", true),
    ("INET", true),
    ("IPV6", true),
    ("PACKET", true),
    ("IP_MULTICAST", true),
    ("NETFILTER", false),
    ("IP_SCTP", false),
    ("IP_DCCP", false),
    ("MPTCP", false),
    ("VSOCKETS", false),
    ("CAN", false),
    ("TUN", false),
    ("VETH", false),
    ("BRIDGE", false),
    ("DUMMY", false),
    ("VLAN_8021Q", false),
    ("CRYPTO_USER_API", false),
    ("KEYS", true),
    ("PERSISTENT_KEYRINGS", false),
    ("KEY_DH_OPERATIONS", false),
    ("SECCOMP", true),
    ("SECCOMP_FILTER", true),
    ("SECURITY", true),
    ("SECURITY_LANDLOCK", true),
    ("SECURITY_SELINUX", false),
    ("SECURITY_APPARMOR", false),
    ("SECURITY_YAMA", false),
    ("INTEGRITY", false),
    ("FTRACE", false),
    ("KPROBES", false),
    ("UPROBES", false),
    ("DYNAMIC_DEBUG", false),
    ("DEBUG_KMEMLEAK", false),
    ("FAULT_INJECTION", false),
    ("LATENCYTOP", false),
    ("LOCKDEP", false),
    ("KASAN", false),
    ("UBSAN", false),
];

const PREFIX: &str = "CONFIG_";
const HOLDS: &str = "=y\n";
const COMMENT: &str = "# ";
const DOES_NOT_HOLD: &str = " is not set\n";

/// The strings that make up the line of an option.
const fn pieces((name, holds): BuildOption) -> [&'static str; 4] {
    if holds { ["", PREFIX, name, HOLDS] } else { [COMMENT, PREFIX, name, DOES_NOT_HOLD] }
}

const fn text_length() -> usize {
    let mut length = 0;
    let mut option = 0;
    while option < OPTIONS.len() {
        let pieces = pieces(OPTIONS[option]);
        length += pieces[0].len() + pieces[1].len() + pieces[2].len() + pieces[3].len();
        option += 1;
    }
    length
}

const TEXT_LENGTH: usize = text_length();
// Its length stands in 16 bits before a block's bytes.
const _: () = assert!(TEXT_LENGTH <= u16::MAX as usize, "the options have to fit in a block");

/// The uncompressed file.
const fn text() -> [u8; TEXT_LENGTH] {
    let mut text = [0; TEXT_LENGTH];
    let (mut at, mut option) = (0, 0);
    while option < OPTIONS.len() {
        let pieces = pieces(OPTIONS[option]);
        let mut piece = 0;
        while piece < pieces.len() {
            let bytes = pieces[piece].as_bytes();
            let mut index = 0;
            while index < bytes.len() {
                text[at] = bytes[index];
                at += 1;
                index += 1;
            }
            piece += 1;
        }
        option += 1;
    }
    text
}

/// The checksum of RFC 1952, by bits: it is computed while the kernel is built.
const fn checksum(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let mut sum = u32::MAX;
    let mut index = 0;
    while index < bytes.len() {
        sum ^= bytes[index] as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = (sum >> 1) ^ if sum & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        index += 1;
    }
    !sum
}

/// A member of a gzip file (RFC 1952) without names and times, made on an unknown system.
const MEMBER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
/// The first byte of a block of RFC 1951 that is the last one, and stored.
const LAST_STORED: u8 = 1;

static TEXT: [u8; TEXT_LENGTH] = text();
static CHECKSUM: u32 = checksum(&text());

/// The options in a gzip file, in one block that is stored as it is.
pub fn compressed(_: &Subject, file: &mut Text) -> Result<(), Errno> {
    let length = TEXT_LENGTH as u16;
    file.bytes(&MEMBER)?;
    file.bytes(&[LAST_STORED])?;
    file.bytes(&length.to_le_bytes())?;
    file.bytes(&(!length).to_le_bytes())?;
    file.bytes(&TEXT)?;
    file.bytes(&CHECKSUM.to_le_bytes())?;
    file.bytes(&u32::from(length).to_le_bytes())
}
