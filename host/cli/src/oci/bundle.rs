//! From a bundle's `config.json` to a machine, its shared folders, and the task of its first program.
//!
//! A wish that cannot be granted is answered in one of two ways. Where ignoring it would weaken a promise, it is an
//! error: devices of the host, settings of another user name space, mounts that are no folder. Where the machine is a
//! stronger wall than the one asked for, or nothing is lost but an adjustment, it is a line in the log: seccomp,
//! control groups, name spaces, labels.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use heddle_abi::boot::{CPUS_MAX, SHARES_MAX};
use heddle_linux_init::{Capabilities, Container, Mount, MountKind, Process, ROOT, Task};
use linux_raw_sys::general as linux;
use oci_spec::runtime as oci;

use crate::guest::share::Share;
use crate::guest::{Kernel, MIB};

/// Annotations that a container's machine heeds.
const ANNOTATION_SMP: &str = "heddle.smp";
const ANNOTATION_MEMORY: &str = "heddle.memory";
const ANNOTATION_KERNEL: &str = "heddle.kernel";
/// Memory of a machine for which nobody says how much, in MiB; only what is used costs something.
const MEMORY_MIB: u64 = 512;
/// The kernel and what it keeps, beside what a limit grants the container.
const MEMORY_OF_KERNEL: u64 = 32 * MIB;
/// A setting that podman wants by itself.
const PING_GROUPS: &str = "net.ipv4.ping_group_range";
/// Where single files of the host are shared.
const FILES: &str = "/oci/files";

/// A bundle that was read.
pub struct Bundle {
    /// Its configuration.
    pub spec: oci::Spec,
    /// The task of its machine's first program.
    pub task: Task,
    /// Folders of the host for the machine.
    pub shares: Vec<Share>,
    /// Processors.
    pub processors: u32,
    /// Memory.
    pub memory_bytes: u64,
    /// Kernel.
    pub kernel: Kernel,
    /// Whether the program has a terminal.
    pub has_terminal: bool,
    /// Whether the machine is connected to the host's network.
    pub network: Connection,
    /// The program does nothing but hold a pod's name spaces; the network is for the pod's container.
    pub holds_pod: bool,
    /// Wishes that are not granted, one line each.
    pub notes: Vec<String>,
}

/// The network of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// A name space of its own, in which nobody has put anything yet.
    None,
    /// The host's.
    Host,
    /// A name space that the engine has made.
    Namespace(PathBuf),
}

/// Reads a bundle. Single files that are mounted are linked into the folder `files`.
///
/// # Errors
/// The fault, or the wish that cannot be granted.
pub fn read(folder: &Path, files: &Path) -> Result<Bundle> {
    let spec = oci::Spec::load(folder.join("config.json")).context("config.json")?;
    let process = spec.process().as_ref().context("config.json: no process")?;
    let root = spec.root().as_ref().context("config.json: no root")?;
    let path = folder.join(root.path());
    let mut plan = MountPlan { files: files.to_owned(), shares: Vec::new(), linked: 0, notes: Vec::new() };
    plan.share(&path, ROOT, false).context("the root file system")?;
    let mut container = Container {
        hostname: spec.hostname().clone(),
        is_read_only: root.readonly().unwrap_or(false),
        ..Container::default()
    };
    for mount in spec.mounts().iter().flatten() {
        let wanted = plan.mount(mount, folder);
        let wanted = wanted.with_context(|| format!("mount {}", mount.destination().display()))?;
        container.mounts.extend(wanted);
    }
    let annotations = spec.annotations().clone().unwrap_or_default();
    let setting = |key: &str| annotations.get(key).map(String::as_str);
    let mut processors = 1;
    let mut memory_bytes = MEMORY_MIB * MIB;
    let mut network = Connection::Host;
    if let Some(wanted) = spec.linux() {
        plan.check(wanted)?;
        container.masked = wanted.masked_paths().clone().unwrap_or_default();
        container.read_only = wanted.readonly_paths().clone().unwrap_or_default();
        network = connection(wanted);
        if let Some(resources) = wanted.resources() {
            processors = processors_of(resources).unwrap_or(processors);
            let limit = resources.memory().as_ref().and_then(oci::LinuxMemory::limit);
            if let Some(limit) = limit.and_then(|limit| u64::try_from(limit).ok()) {
                memory_bytes = limit.saturating_add(MEMORY_OF_KERNEL).next_multiple_of(MIB);
            }
        }
    }
    if let Some(text) = setting(ANNOTATION_SMP) {
        processors = text.parse().with_context(|| format!("annotation {ANNOTATION_SMP}"))?;
    }
    if processors == 0 || processors as usize > CPUS_MAX {
        bail!("{processors} processors: a machine has 1 to {CPUS_MAX}");
    }
    if let Some(text) = setting(ANNOTATION_MEMORY) {
        let mib: u64 = text.parse().with_context(|| format!("annotation {ANNOTATION_MEMORY}, in MiB"))?;
        memory_bytes = mib.checked_mul(MIB).with_context(|| format!("annotation {ANNOTATION_MEMORY}"))?;
    }
    let kernel = match setting(ANNOTATION_KERNEL) {
        None | Some("heddle") => Kernel::Heddle,
        Some("linux") => Kernel::Linux,
        Some(other) => bail!("annotation {ANNOTATION_KERNEL}: no kernel {other}"),
    };
    let has_terminal = process.terminal().unwrap_or(false);
    let holds_pod = holds_pod(&annotations, process.args().as_deref().unwrap_or_default());
    let task = Task { container: Some(container), process: process_of(process, &mut plan.notes)? };
    let MountPlan { shares, notes, .. } = plan;
    Ok(Bundle {
        spec,
        task,
        shares,
        processors,
        memory_bytes,
        kernel,
        has_terminal,
        network,
        holds_pod,
        notes,
    })
}

/// Annotations by which CRI-O and containerd tell the first container of a pod from the others.
const ANNOTATIONS_OF_KIND: [&str; 2] =
    ["io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri.container-type"];

/// Whether a container is there only so that others can join it. Podman does not say; its programs are known.
fn holds_pod(annotations: &std::collections::HashMap<String, String>, arguments: &[String]) -> bool {
    let mut kinds = ANNOTATIONS_OF_KIND.iter().filter_map(|key| annotations.get(*key));
    if let Some(kind) = kinds.next() {
        return kind == "sandbox";
    }
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    matches!(words[..], ["/pause"] | ["/catatonit", "-P"])
}

/// The processors that a limit amounts to.
fn processors_of(resources: &oci::LinuxResources) -> Option<u32> {
    let cpu = resources.cpu().as_ref()?;
    let of_quota = match (cpu.quota().and_then(|quota| u64::try_from(quota).ok()), cpu.period()) {
        (Some(quota), Some(period)) if quota > 0 && period > 0 => Some(quota.div_ceil(period)),
        _ => None,
    };
    let count = |list: &String| -> Option<u64> {
        list.split(',').try_fold(0u64, |sum, part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            Some(sum + last.checked_sub(first)? + 1)
        })
    };
    let of_set = cpu.cpus().as_ref().and_then(count);
    let least = of_quota.into_iter().chain(of_set).min()?;
    Some(u32::try_from(least).unwrap_or(u32::MAX).clamp(1, CPUS_MAX as u32))
}

fn connection(wanted: &oci::Linux) -> Connection {
    let mut namespaces = wanted.namespaces().iter().flatten();
    match namespaces.find(|namespace| namespace.typ() == oci::LinuxNamespaceType::Network) {
        None => Connection::Host,
        Some(namespace) => match namespace.path() {
            None => Connection::None,
            Some(path) => Connection::Namespace(path.clone()),
        },
    }
}

/// The mounts and shares found while a bundle is read.
struct MountPlan {
    files: PathBuf,
    shares: Vec<Share>,
    linked: usize,
    notes: Vec<String>,
}

impl MountPlan {
    fn share(&mut self, host: &Path, guest: &str, is_read_only: bool) -> Result<()> {
        if self.shares.len() == SHARES_MAX {
            bail!(
                "a machine has at most {SHARES_MAX} shared folders, the root and that of single files among them"
            );
        }
        let host = host.canonicalize().with_context(|| host.display().to_string())?;
        self.shares.push(Share { host, guest: guest.to_owned(), is_read_only });
        Ok(())
    }

    /// The mounts that a mount of the bundle becomes.
    fn mount(&mut self, mount: &oci::Mount, folder: &Path) -> Result<Option<Mount>> {
        let target = mount.destination().to_str().context("the path is not UTF-8")?.to_owned();
        let options = mount.options().clone().unwrap_or_default();
        let kind = mount.typ().as_deref().unwrap_or("bind");
        let is_bind = kind == "bind" || options.iter().any(|option| option == "bind" || option == "rbind");
        let (flags, data) = parse_options(&options);
        let plain = |kind: MountKind| Mount { kind, target: target.clone(), flags, options: data.clone() };
        // The guest's own: devices are the kernel's, and shared memory is no file of the host.
        Ok(Some(match (target.trim_end_matches('/'), kind) {
            ("/dev", "tmpfs" | "devtmpfs") => Mount { flags: 0, ..plain(MountKind::Bind("/dev".to_owned())) },
            ("/dev/pts", "devpts") => return Ok(None),
            ("/dev/shm", _) => {
                let options = if is_bind { String::from("mode=1777") } else { data.clone() };
                Mount { options, ..plain(MountKind::Tmpfs) }
            }
            _ if is_bind => {
                let source = mount.source().as_ref().context("no source")?;
                self.bind(&folder.join(source), target, flags)?
            }
            (_, "tmpfs") => plain(MountKind::Tmpfs),
            (_, "proc") => plain(MountKind::Proc),
            (_, "mqueue") => plain(MountKind::Mqueue),
            (_, "sysfs") => plain(MountKind::Bind("/sys".to_owned())),
            (_, "cgroup" | "cgroup2") => {
                self.notes.push(format!("{target}: there are no control groups in the machine"));
                return Ok(None);
            }
            (_, other) => bail!("file system {other}: the machine does not have it"),
        }))
    }

    /// A folder of the host becomes a share; a file is linked into the folder of files, which is one share for all.
    fn bind(&mut self, source: &Path, target: String, flags: u32) -> Result<Mount> {
        let metadata = fs::metadata(source).with_context(|| source.display().to_string())?;
        let is_read_only = flags & linux::MS_RDONLY != 0;
        let kind = if metadata.is_dir() {
            let guest = format!("/oci/{}", self.shares.len());
            self.share(source, &guest, is_read_only)?;
            MountKind::Bind(guest)
        } else if metadata.is_file() {
            if self.linked == 0 {
                fs::create_dir_all(&self.files).context("the folder for files")?;
                self.share(&self.files.clone(), FILES, false)?;
            }
            let name = self.linked.to_string();
            self.linked += 1;
            let place = self.files.join(&name);
            let _ = fs::remove_file(&place);
            if fs::hard_link(source.canonicalize()?, &place).is_err() {
                // On another file system a file can only be copied, and what is written would be lost.
                if !is_read_only {
                    bail!(
                        "{}: a single file is shared as a link, which cannot lead to another file system; \
                         mount its folder, or the file read-only",
                        source.display()
                    );
                }
                fs::copy(source, &place).context("copying the file")?;
                self.notes.push(format!("{}: the machine has a copy", source.display()));
            }
            MountKind::Bind(format!("{FILES}/{name}"))
        } else {
            bail!("{}: neither a folder nor a file, and nothing else can be shared", source.display());
        };
        Ok(Mount { kind, target, flags, options: String::new() })
    }

    /// Refuses what a machine cannot do and notes what it does otherwise.
    fn check(&mut self, wanted: &oci::Linux) -> Result<()> {
        if let Some(device) = wanted.devices().iter().flatten().next() {
            bail!("device {}: a machine has no devices of the host", device.path().display());
        }
        let maps = wanted.uid_mappings().iter().chain(wanted.gid_mappings()).flatten();
        if maps.into_iter().any(|map| map.host_id() != map.container_id()) {
            bail!("users of another name space: the owners of shared files are the host's");
        }
        for (name, value) in wanted.sysctl().iter().flatten() {
            // Engines set it for every container; in the guest every user may open such sockets or none.
            if name != PING_GROUPS {
                bail!("{name}: settings of the kernel cannot be changed");
            }
            self.notes.push(format!("{name}={value}: not applied"));
        }
        if wanted.seccomp().is_some() {
            self.notes
                .push(String::from("seccomp: not applied; the program's system calls reach no host kernel"));
        }
        if let Some(resources) = wanted.resources() {
            let pids = resources.pids().as_ref().is_some_and(|pids| pids.limit() > 0);
            let io = resources.block_io().is_some();
            for (is_set, name) in [(pids, "pids.limit"), (io, "blockIO")] {
                if is_set {
                    self.notes.push(format!("resources: {name} is not applied"));
                }
            }
        }
        Ok(())
    }
}

/// Flags and file system options of a mount's options; those about propagation have no meaning in a machine of one
/// name space.
fn parse_options(options: &[String]) -> (u32, String) {
    let mut flags = 0;
    let mut data = Vec::new();
    for option in options {
        let (bit, is_set) = match option.as_str() {
            "ro" => (linux::MS_RDONLY, true),
            "rw" => (linux::MS_RDONLY, false),
            "nosuid" => (linux::MS_NOSUID, true),
            "suid" => (linux::MS_NOSUID, false),
            "nodev" => (linux::MS_NODEV, true),
            "dev" => (linux::MS_NODEV, false),
            "noexec" => (linux::MS_NOEXEC, true),
            "exec" => (linux::MS_NOEXEC, false),
            other => {
                let name = other.split('=').next().unwrap_or_default();
                if matches!(name, "mode" | "size" | "nr_blocks" | "nr_inodes" | "uid" | "gid") {
                    data.push(other.to_owned());
                }
                continue;
            }
        };
        flags = if is_set { flags | bit } else { flags & !bit };
    }
    (flags, data.join(","))
}

/// Linux's capabilities, by number.
const CAPABILITIES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];
/// Linux's resource limits, by number.
const LIMITS: [&str; 16] = [
    "CPU",
    "FSIZE",
    "DATA",
    "STACK",
    "CORE",
    "RSS",
    "NPROC",
    "NOFILE",
    "MEMLOCK",
    "AS",
    "LOCKS",
    "SIGPENDING",
    "MSGQUEUE",
    "NICE",
    "RTPRIO",
    "RTTIME",
];

/// The name of a value as `config.json` has it, without this prefix.
fn name_of(value: &impl serde::Serialize, prefix: &str) -> Result<String> {
    let value = serde_json::to_value(value).context("config.json")?;
    let text = value.as_str().context("config.json")?;
    Ok(text.strip_prefix(prefix).unwrap_or(text).to_owned())
}

/// A process of the specification, of `config.json` or of `exec`.
///
/// # Errors
/// The name that is not known.
pub fn process_of(process: &oci::Process, notes: &mut Vec<String>) -> Result<Process> {
    let user = process.user();
    let set = |names: &Option<oci::Capabilities>| -> Result<u64> {
        names.iter().flatten().try_fold(0, |set, name| {
            let name = name_of(name, "CAP_")?;
            let number = CAPABILITIES.iter().position(|known| *known == name);
            Ok(set | 1 << number.with_context(|| format!("no capability {name}"))?)
        })
    };
    let capabilities = process.capabilities().as_ref().map(|sets| -> Result<Capabilities> {
        Ok(Capabilities {
            bounding: set(sets.bounding())?,
            effective: set(sets.effective())?,
            inheritable: set(sets.inheritable())?,
            permitted: set(sets.permitted())?,
            ambient: set(sets.ambient())?,
        })
    });
    let mut limits = Vec::new();
    for limit in process.rlimits().iter().flatten() {
        let name = name_of(&limit.typ(), "RLIMIT_")?;
        let number = LIMITS.iter().position(|known| *known == name);
        let number = number.with_context(|| format!("no resource limit {name}"))?;
        limits.push((u32::try_from(number)?, limit.soft(), limit.hard()));
    }
    for (is_set, name) in [
        (process.apparmor_profile().is_some(), "apparmorProfile"),
        (process.selinux_label().as_ref().is_some_and(|label| !label.is_empty()), "selinuxLabel"),
        (process.scheduler().is_some(), "scheduler"),
        (process.io_priority().is_some(), "ioPriority"),
    ] {
        if is_set {
            notes.push(format!("process: {name} is not applied"));
        }
    }
    let arguments = process.args().clone().unwrap_or_default();
    if arguments.is_empty() {
        bail!("config.json: the process has no arguments");
    }
    Ok(Process {
        arguments,
        environment: process.env().clone().unwrap_or_default(),
        directory: process.cwd().to_str().context("cwd is not UTF-8")?.to_owned(),
        user: user.uid(),
        group: user.gid(),
        groups: user.additional_gids().clone().unwrap_or_default(),
        umask: user.umask(),
        capabilities: capabilities.transpose()?,
        limits,
        no_new_privileges: process.no_new_privileges().unwrap_or(false),
        oom_score_adjustment: process.oom_score_adj(),
    })
}

/// All capabilities that a container can have.
#[must_use]
pub fn capability_names() -> Vec<String> {
    CAPABILITIES.iter().map(|name| format!("CAP_{name}")).collect()
}

/// All annotations, in order.
#[must_use]
pub fn annotations(spec: &oci::Spec) -> BTreeMap<String, String> {
    spec.annotations().iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_flags_and_data() {
        let options =
            ["rbind", "ro", "nosuid", "rprivate", "size=64m", "mode=755", "exec"].map(str::to_owned);
        assert_eq!(
            parse_options(&options),
            (linux::MS_RDONLY | linux::MS_NOSUID, "size=64m,mode=755".to_owned())
        );
        let options = ["ro", "rw"].map(str::to_owned);
        assert_eq!(parse_options(&options), (0, String::new()), "the last one wins");
    }

    #[test]
    fn the_first_of_a_pod_is_known() {
        let holds = |annotations: &[(&str, &str)], words: &[&str]| {
            let annotations =
                annotations.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
            holds_pod(&annotations, &words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
        };
        assert!(holds(&[], &["/catatonit", "-P"]));
        assert!(holds(&[("io.kubernetes.cri.container-type", "sandbox")], &["any"]));
        assert!(!holds(&[("io.kubernetes.cri-o.ContainerType", "container")], &["/pause"]));
        assert!(!holds(&[], &["catatonit", "program"]));
    }

    #[test]
    fn limits_make_processors() {
        let resources = |text: &str| serde_json::from_str::<oci::LinuxResources>(text).unwrap();
        let count = |text: &str| processors_of(&resources(text));
        assert_eq!(count(r#"{"cpu":{"quota":150000,"period":100000}}"#), Some(2));
        assert_eq!(count(r#"{"cpu":{"cpus":"0-2,5"}}"#), Some(4));
        assert_eq!(count(r#"{"cpu":{"quota":100000,"period":100000,"cpus":"0-1"}}"#), Some(1));
        assert_eq!(count(r#"{"cpu":{"quota":-1,"period":100000}}"#), None);
        assert_eq!(count(r#"{"cpu":{"cpus":"0-99"}}"#), Some(CPUS_MAX as u32));
        assert_eq!(count("{}"), None);
    }
}
