//! QEMU's command line.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use heddle_abi::boot::{DEBUG_CONSOLE_PORT, DEBUG_EXIT_PORT, SHARE_TAG, port};

use crate::guest::share::Share;
use crate::machine::accelerator::{Accelerator, Kvm};
use crate::network::{Backend, Network};

/// The backing of the machine's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Plain memory.
    Plain {
        /// How much.
        size_bytes: u64,
    },
    /// A private mapping of a file, from its start: what the guest writes stays out of the file.
    File {
        /// The file, at least `size_bytes` long.
        path: PathBuf,
        /// How much.
        size_bytes: u64,
        /// A file that is read into it at the start, and the address where it goes.
        loaded: Option<(PathBuf, u64)>,
    },
}

/// A root image, or a part of one, on a drive, for a kernel that cannot read it in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootDisk {
    /// The file that holds the image.
    pub path: PathBuf,
    /// Where in the file it starts.
    pub offset_bytes: u64,
    /// How long it is.
    pub length_bytes: u64,
    /// The drive's serial number, by which the guest finds it.
    pub serial: &'static str,
}

/// The guest's source of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The host's clock.
    Host,
    /// Executed instructions: repeats exactly, on one CPU.
    Instructions,
}

/// Under [`Clock::Instructions`] one instruction takes a nanosecond, and counters count them.
pub const INSTRUCTIONS_PER_SECOND: u64 = 1_000_000_000;

/// A machine to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// An ELF kernel with a PVH entry.
    pub kernel: PathBuf,
    /// The kernel's command line.
    pub command_line: String,
    /// A file that the kernel finds in memory.
    pub initramfs: Option<PathBuf>,
    /// Memory.
    pub memory: Memory,
    /// The root image as read-only drives.
    pub root: Vec<RootDisk>,
    /// How many processors.
    pub processors: u32,
    /// Whether devices are described by ACPI tables; the kernel has to know their addresses otherwise.
    pub acpi: bool,
    /// Whether the log comes from a serial port; from the debug console otherwise.
    pub serial_log: bool,
    /// Time.
    pub clock: Clock,
    /// The start of the emulator's random numbers, where instructions are counted.
    pub seed: usize,
    /// By what instructions are executed.
    pub accelerator: Accelerator,
    /// The processor's model and features, as QEMU's `-cpu` has them.
    pub cpu: String,
    /// Wait for a debugger on this TCP port of the local host.
    pub debugger_port: Option<u16>,
    /// Folders of the host, as 9P devices.
    pub shares: Vec<Share>,
    /// Whether the guest is told what changes in them.
    pub watches_shares: bool,
    /// The other end of its network interface, if it has one.
    pub network: Network,
}

/// QEMU's threads for calls of the host on shared folders, as many as it can have. It starts them on demand
/// otherwise, by how many are idle, and one that is about to take a request still counts as idle: of two requests at
/// once the second would wait for the first, and if the first never returned, until a third came.
const HOST_THREADS: usize = 64;

/// An argument in the making: key and value pairs separated by commas.
struct QemuOption(OsString);

impl QemuOption {
    fn new(start: impl Into<OsString>) -> Self {
        Self(start.into())
    }

    fn plain(mut self, text: &str) -> Self {
        self.0.push(",");
        self.0.push(text);
        self
    }

    /// A path, its commas doubled as QEMU wants.
    fn path(mut self, key: &str, path: &Path) -> Self {
        use std::os::unix::ffi::{OsStrExt, OsStringExt};
        let mut escaped = Vec::with_capacity(path.as_os_str().len());
        for &byte in path.as_os_str().as_bytes() {
            escaped.push(byte);
            if byte == b',' {
                escaped.push(byte);
            }
        }
        self.0.push(",");
        self.0.push(key);
        self.0.push("=");
        self.0.push(OsString::from_vec(escaped));
        self
    }
}

#[derive(Default)]
struct QemuArguments(Vec<OsString>);

impl QemuArguments {
    fn flag(&mut self, flag: &str) {
        self.0.push(flag.into());
    }

    fn pair(&mut self, flag: &str, value: impl AsRef<OsStr>) {
        self.0.push(flag.into());
        self.0.push(value.as_ref().into());
    }
}

/// The arguments for a machine whose ports are these inherited sockets and whose log is this inherited file.
pub fn arguments(configuration: &Configuration, sockets: &[i32], log: i32) -> Vec<OsString> {
    let mut arguments = QemuArguments::default();
    for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
        arguments.flag(flag);
    }
    arguments.pair("-display", "none");
    let acpi = if configuration.acpi { "on" } else { "off" };
    let mut machine = format!("microvm,acpi={acpi},rtc=on");
    match &configuration.memory {
        Memory::Plain { size_bytes } => arguments.pair("-m", format!("{size_bytes}B")),
        Memory::File { path, size_bytes, loaded } => {
            machine.push_str(",memory-backend=memory");
            arguments.pair("-m", format!("{size_bytes}B"));
            let object = QemuOption::new("memory-backend-file,id=memory,share=off")
                .plain(&format!("size={size_bytes}B"))
                .path("mem-path", path);
            arguments.pair("-object", object.0);
            if let Some((path, address)) = loaded {
                let loader = QemuOption::new("loader,force-raw=on").plain(&format!("addr={address:#x}"));
                arguments.pair("-device", loader.path("file", path).0);
            }
        }
    }
    arguments.pair("-M", machine);
    // Multi-byte string instructions are interpreted byte by byte by the emulator; a guest that believes them
    // fast, as Linux would, copies many times slower than it could.
    let is_emulated = configuration.accelerator.kvm.is_none();
    let cpu = &configuration.cpu;
    let suffix = configuration.accelerator.kvm.map_or(",erms=off,fsrm=off", Kvm::model_suffix);
    arguments.pair("-cpu", format!("{cpu}{suffix}"));
    arguments.pair("-smp", configuration.processors.to_string());
    match configuration.clock {
        Clock::Host if is_emulated => arguments.pair("-accel", "tcg,thread=multi"),
        Clock::Host => arguments.pair("-accel", "kvm"),
        Clock::Instructions => {
            arguments.pair("-accel", "tcg,thread=single");
            arguments.pair("-icount", "shift=0,sleep=off");
            // Addresses are random otherwise, and with them how many tables and faults a program needs.
            arguments.pair("-seed", configuration.seed.to_string());
        }
    }
    arguments.pair("-kernel", &configuration.kernel);
    arguments.pair("-append", &configuration.command_line);
    if let Some(initramfs) = &configuration.initramfs {
        arguments.pair("-initrd", initramfs);
    }
    devices(&mut arguments, configuration, sockets, log);
    if let Some(port) = configuration.debugger_port {
        arguments.pair("-gdb", format!("tcp:127.0.0.1:{port}"));
        arguments.flag("-S");
    }
    arguments.0
}

fn devices(arguments: &mut QemuArguments, configuration: &Configuration, sockets: &[i32], log: i32) {
    arguments.pair("-global", "virtio-mmio.force-legacy=false");
    arguments.pair("-device", format!("isa-debug-exit,iobase={DEBUG_EXIT_PORT:#x},iosize=1"));
    arguments.pair("-chardev", format!("file,id=log,append=on,path=/proc/self/fd/{log}"));
    if configuration.serial_log {
        arguments.pair("-serial", "chardev:log");
    } else {
        arguments.pair("-device", format!("isa-debugcon,iobase={DEBUG_CONSOLE_PORT:#x},chardev=log"));
    }
    for root in &configuration.root {
        let serial = root.serial;
        let node = QemuOption::new(format!("driver=raw,node-name={serial},read-only=on"))
            .plain(&format!("offset={}", root.offset_bytes))
            .plain(&format!("size={}", root.length_bytes))
            .plain("file.driver=file,file.locking=off")
            .path("file.filename", &root.path);
        arguments.pair("-blockdev", node.0);
        arguments.pair("-device", format!("virtio-blk-device,drive={serial},serial={serial}"));
    }
    if !configuration.shares.is_empty() {
        arguments.pair("-object", format!("main-loop,id=main-loop,thread-pool-min={HOST_THREADS}"));
    }
    for (number, share) in configuration.shares.iter().enumerate() {
        let mut folder =
            QemuOption::new(format!("local,id=folder{number},security_model=none,multidevs=remap"));
        if share.is_read_only {
            folder = folder.plain("readonly=on");
        }
        arguments.pair("-fsdev", folder.path("path", &share.host).0);
        let tag = format!("virtio-9p-device,fsdev=folder{number},mount_tag={SHARE_TAG}{number}");
        arguments.pair("-device", tag);
    }
    network(arguments, &configuration.network);
    arguments.pair("-device", format!("virtio-serial-device,max_ports={}", port::COUNT));
    for ((number, name), socket) in (1..).zip(port::NAMES).zip(sockets) {
        arguments.pair("-chardev", format!("socket,id=port{number},fd={socket}"));
        arguments.pair("-device", format!("virtserialport,chardev=port{number},name={name},nr={number}"));
    }
}

fn network(arguments: &mut QemuArguments, network: &Network) {
    let netdev = match &network.backend {
        Backend::None => return,
        Backend::User(forwards) => {
            let forwards: String = forwards.iter().map(|forward| format!(",hostfwd={forward}")).collect();
            format!("user,id=net{forwards}")
        }
        Backend::Tap(name) => format!("tap,id=net,ifname={name},script=no,downscript=no"),
        Backend::Socket { descriptor, listens } => {
            let server = if *listens { "on" } else { "off" };
            format!("stream,id=net,server={server},addr.type=fd,addr.str={descriptor}")
        }
    };
    arguments.pair("-netdev", netdev);
    let hardware = network.hardware_address();
    arguments.pair("-device", format!("virtio-net-device,netdev=net,mac={hardware}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_paths_are_escaped() {
        let configuration = Configuration {
            kernel: "k,1".into(),
            command_line: String::from("a,b"),
            initramfs: None,
            memory: Memory::File {
                path: "a,b/c".into(),
                size_bytes: 1 << 20,
                loaded: Some(("l,m".into(), 0x3f0_0000)),
            },
            root: vec![RootDisk { path: "d,e".into(), offset_bytes: 512, length_bytes: 1024, serial: "s" }],
            processors: 2,
            acpi: false,
            serial_log: false,
            clock: Clock::Host,
            seed: 1,
            accelerator: Accelerator::tcg("a test"),
            cpu: String::from("qemu64"),
            debugger_port: None,
            shares: vec![Share { host: "/h,i".into(), guest: String::from("/g"), is_read_only: true }],
            watches_shares: false,
            network: Network::user(),
        };
        let arguments = arguments(&configuration, &[10, 11, 12, 13, 14, 15], 9);
        let has = |text: &str| arguments.iter().any(|argument| argument == text);
        assert!(has("memory-backend-file,id=memory,share=off,size=1048576B,mem-path=a,,b/c"));
        assert!(has("loader,force-raw=on,addr=0x3f00000,file=l,,m"));
        assert!(has("virtio-blk-device,drive=s,serial=s"));
        assert!(has("virtio-9p-device,fsdev=folder0,mount_tag=share0"));
        assert!(has("main-loop,id=main-loop,thread-pool-min=64"));
        assert!(has("local,id=folder0,security_model=none,multidevs=remap,readonly=on,path=/h,,i"));
        assert!(has("k,1") && has("a,b"), "arguments that are no option lists stay as they are");
        assert!(arguments.iter().any(|argument| argument.to_string_lossy().ends_with("file.filename=d,,e")));
        assert!(has("user,id=net") && has("virtio-net-device,netdev=net,mac=52:54:00:12:34:56"));
        assert!(has("virtserialport,chardev=port5,name=heddle.tty,nr=5"));
    }
}
