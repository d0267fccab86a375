//! Constants that are fixed before the guest runs: keys of the kernel command line, virtio-serial ports, exit codes.

/// Offset in bytes of the root image in the file that backs guest memory.
///
/// The same number is the image's guest-physical address as long as the image ends below 3 GiB; the host tool
/// passes the address that holds in [`KEY_IMAGE`].
pub const IMAGE_OFFSET: u64 = 64 << 20;

/// The machine's memory is contiguous below this address, and continues at 4 GiB.
pub const LOW_MEMORY_END: u64 = 3 << 30;

/// The most bytes that a layer of the root image has: the part that differs from an image which others use too. It is
/// loaded into memory right before that image.
pub const LAYER_BYTES_MAX: u64 = 16 << 20;

/// The offset of an image that would not end below [`LOW_MEMORY_END`]: it lies behind the hole as a whole, and a layer
/// before it too.
pub const LARGE_IMAGE_OFFSET: u64 = LOW_MEMORY_END + LAYER_BYTES_MAX;

/// `heddle.image=ADDRESS,LENGTH`: guest-physical address and length in bytes of the root image (EROFS), both in
/// hexadecimal with `0x`. The kernel never allocates frames from this range.
pub const KEY_IMAGE: &str = "heddle.image";

/// `heddle.lower=1`: the root image continues on a second drive; for Linux, which has the image on drives.
pub const KEY_LOWER: &str = "heddle.lower";
/// The serial number of the drive with the root image, or its layer.
pub const ROOT_DRIVE: &str = "heddle-root";
/// The serial number of the drive with the image below the layer.
pub const LOWER_DRIVE: &str = "heddle-lower";

/// `heddle.memory=BYTES`: how much physical memory the kernel may use, its own image included and the root image
/// not; decimal. The machine may have more, because guest memory also spans the image.
pub const KEY_MEMORY: &str = "heddle.memory";

/// `heddle.now=NANOSECONDS`: wall-clock time since the Unix epoch when the machine was started; decimal.
pub const KEY_NOW: &str = "heddle.now";

/// `heddle.tsc=HERTZ`: frequency of the time-stamp counter where the host knows it; decimal, absent otherwise.
pub const KEY_TSC: &str = "heddle.tsc";

/// `heddle.strace=1`: log every system call of every program.
pub const KEY_STRACE: &str = "heddle.strace";

/// `heddle.isolation=none|user|private|keys|direct`: which programs may reach one another's memory; `direct`: the
/// kernel's, too, and calls take the place of system calls. Without it all may reach one another's, until a second set of
/// credentials is in use.
pub const KEY_ISOLATION: &str = "heddle.isolation";

/// `heddle.space-lock=ranges|one`: whether each address space has a range lock (the default) or, for comparison, one
/// lock.
pub const KEY_SPACE_LOCK: &str = "heddle.space-lock";

/// `heddle.pcid=on|off|dry-run`: whether processors keep the translations of page tables that they don't use, where
/// they can; off by default. A dry run does all that this takes on any processor, and flushes at each load
/// nevertheless.
pub const KEY_PCID: &str = "heddle.pcid";

/// `heddle.clearcpuid=FEATURE[,FEATURE…]`: features that the kernel does not use although the processor has them, by
/// Linux's names: `smap`, `xsave`, `x2apic`, `tsc_deadline_timer`, `erms`, `invpcid`; `kvm` is all that KVM offers its
/// guests. For machines whose virtualization does not know their instructions.
pub const KEY_CLEAR_CPUID: &str = "heddle.clearcpuid";

/// `heddle.setcpuid=FEATURE[,FEATURE…]`: features that the kernel uses although the processor does not name them:
/// `md_clear`, `spec_ctrl`, `erms`. For tests under QEMU's emulator, which has their instructions or ignores them.
pub const KEY_SET_CPUID: &str = "heddle.setcpuid";

/// `mitigations=off`: no measures against processors that run ahead of their checks. Linux's key.
pub const KEY_MITIGATIONS: &str = "mitigations";

/// `heddle.share=PATH[:ro][,PATH[:ro]…]`: where the shared folders of the host appear, in the order of their tags.
pub const KEY_SHARE: &str = "heddle.share";
/// The suffix of a shared folder in [`KEY_SHARE`] that marks it read-only.
pub const SHARE_READ_ONLY: &str = ":ro";
/// The most folders that are shared: the machine has 8 slots for devices, and console and network take two of them.
pub const SHARES_MAX: usize = 6;
/// Bytes of [`KEY_SHARE`]'s value, at most.
pub const SHARE_VALUE_MAX: usize = 1024;

/// The tag of shared folder `index`, by which the guest finds its device: `share0`.
pub const SHARE_TAG: &str = "share";

/// `heddle.net=ADDRESS/LENGTH[,ADDRESS/LENGTH…][,GATEWAY…]`: the addresses of `eth0`, which have a length, and the
/// routers to everything else, which have none; IPv4 and IPv6. [`NET_DHCP`] among them asks the network for an address
/// of IPv4. Without the key the guest has only its loopback.
pub const KEY_NET: &str = "heddle.net";
/// See [`KEY_NET`].
pub const NET_DHCP: &str = "dhcp";
/// How long the program's start waits for a lease.
pub const NET_PATIENCE_SECONDS: u32 = 10;
/// Bytes of [`KEY_NET`]'s value, at most.
pub const NET_VALUE_MAX: usize = 512;

/// `heddle.slots=NUMBER`: how many slots there are for programs, for tests; with 1 all of them share one. Decimal.
pub const KEY_SLOTS: &str = "heddle.slots";

/// The most processors that the kernel uses; it is told of no more.
pub const CPUS_MAX: usize = 8;

/// Microseconds that the kernel may run without letting interrupts in, in its checking build.
pub const KEY_STRETCH: &str = "heddle.stretch-us";

/// The keys that a user may pass by hand, each with the values that it takes; `None` stands for a decimal number.
pub const USER_KEYS: [(&str, Option<&[&str]>); 8] = [
    (KEY_SPACE_LOCK, Some(&["ranges", "one"])),
    (KEY_PCID, Some(&["on", "off", "dry-run"])),
    (
        KEY_CLEAR_CPUID,
        Some(&["smap", "xsave", "smap,xsave", "x2apic", "tsc_deadline_timer", "invpcid", "kvm"]),
    ),
    (
        KEY_SET_CPUID,
        Some(&["md_clear", "spec_ctrl", "erms", "md_clear,spec_ctrl", "md_clear,spec_ctrl,erms"]),
    ),
    (KEY_MITIGATIONS, Some(&["auto", "off"])),
    (KEY_SLOTS, None),
    (KEY_TSC, None),
    (KEY_STRETCH, None),
];

/// virtio-serial port numbers. Port 0 is left free: QEMU reserves it for consoles.
pub mod port {
    /// Framed messages of [`crate::control`], both ways.
    pub const CONTROL: u32 = 1;
    /// The program's standard input, host to guest.
    pub const STDIN: u32 = 2;
    /// The program's standard output, guest to host.
    pub const STDOUT: u32 = 3;
    /// The program's standard error, guest to host.
    pub const STDERR: u32 = 4;
    /// The terminal, both ways, raw: the line discipline is the guest's.
    pub const TTY: u32 = 5;
    /// Further programs: framed messages of [`crate::control::programs`], both ways.
    pub const PROGRAMS: u32 = 6;
    /// The least value of the device's `max_ports`.
    pub const COUNT: u32 = 7;
    /// Port names, by number less one, as `virtserialport,name=`; a Linux guest finds them by these.
    pub const NAMES: [&str; 6] =
        ["heddle.control", "heddle.stdin", "heddle.stdout", "heddle.stderr", "heddle.tty", "heddle.programs"];
}

/// I/O port of QEMU's `isa-debug-exit`: writing `v` ends QEMU with status `(v << 1) | 1`.
pub const DEBUG_EXIT_PORT: u16 = 0x501;
/// I/O port of QEMU's `isa-debugcon`: the kernel's log.
pub const DEBUG_CONSOLE_PORT: u16 = 0xe9;

/// Value for [`DEBUG_EXIT_PORT`] at an orderly end, after [`crate::control::Exit`] was delivered.
pub const DEBUG_EXIT_DONE: u8 = 0x10;
/// Value for [`DEBUG_EXIT_PORT`] after a kernel panic.
pub const DEBUG_EXIT_PANIC: u8 = 0x11;

/// QEMU's exit status for a value written to [`DEBUG_EXIT_PORT`].
#[must_use]
pub const fn qemu_status(value: u8) -> i32 {
    ((value as i32) << 1) | 1
}

/// Prefix of the log lines about the machine's start, after which come nanoseconds since the kernel's first instruction
/// without idle time, a space, and the name of the part that has ended.
pub const START_PHASE: &str = "start: ";

/// Prefix of the log lines that make up a panic report; each line is `heddle-panic: KIND REST` where KIND is
/// `message` (free text), `frame` (a hexadecimal return address, innermost first) or `end`.
pub const PANIC_PREFIX: &str = "heddle-panic: ";
