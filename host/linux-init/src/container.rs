//! A container's first program, or a further one, on the way to its `execve`.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Component, Path};
use std::process::Command;

use anyhow::{Context, Result, bail};
use heddle_linux_init::{Capabilities, Container, Mount, MountKind, Process, ROOT, Task};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};
use rustix::process::{Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Exit statuses of a program that could not be started, as a shell has them.
const STATUS_NOT_EXECUTABLE: i32 = 126;
const STATUS_NOT_FOUND: i32 = 127;

/// Carries the task out; returns only if that fails, with the status to exit with.
pub fn run(text: &str) -> i32 {
    let failure = match serde_json::from_str(text).context("the container's description").map(prepare) {
        Ok(Ok(error)) => error,
        Ok(Err(error)) | Err(error) => {
            eprintln!("heddle: {error:#}");
            return STATUS_NOT_EXECUTABLE;
        }
    };
    let (program, error) = failure;
    eprintln!("heddle: {program}: {error}");
    if error.kind() == std::io::ErrorKind::NotFound { STATUS_NOT_FOUND } else { STATUS_NOT_EXECUTABLE }
}

/// Makes everything ready and starts the program. Returns why that could not be started.
fn prepare(task: Task) -> Result<(String, std::io::Error)> {
    if let Some(container) = &task.container {
        surround(container)?;
    }
    std::env::set_current_dir(ROOT).context("the container's root")?;
    rustix::process::chroot(".").context("entering the container's root")?;
    let process = &task.process;
    if let Some(score) = process.oom_score_adjustment {
        std::fs::write("/proc/self/oom_score_adj", score.to_string()).context("oom_score_adj")?;
    }
    enter_directory(process)?;
    limit(process)?;
    become_user(process)?;
    let (program, arguments) = process.arguments.split_first().context("no program")?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    command.envs(process.environment.iter().filter_map(|variable| variable.split_once('=')));
    Ok((program.clone(), command.exec()))
}

fn surround(container: &Container) -> Result<()> {
    if let Some(name) = &container.hostname {
        rustix::system::sethostname(name.as_bytes()).context("the host's name")?;
    }
    for mount in &container.mounts {
        make_mount(mount).with_context(|| format!("mounting {}", mount.target))?;
    }
    for path in &container.read_only {
        let Some(place) = find(path)? else { continue };
        let place = descriptor_path(&place);
        mount_bind(&place, &place).with_context(|| format!("protecting {path}"))?;
        let Some(place) = find(path)? else { continue };
        mount_remount(descriptor_path(&place), MountFlags::BIND | MountFlags::RDONLY, "")
            .with_context(|| format!("protecting {path}"))?;
    }
    for path in &container.masked {
        let Some(place) = find(path)? else { continue };
        let is_directory = File::from(place.try_clone()?).metadata()?.is_dir();
        let place = descriptor_path(&place);
        let result = if is_directory {
            mount("tmpfs", &place, "tmpfs", MountFlags::RDONLY, c"")
        } else {
            mount_bind("/dev/null", &place)
        };
        result.with_context(|| format!("hiding {path}"))?;
    }
    if container.is_read_only {
        mount_remount(ROOT, MountFlags::BIND | MountFlags::RDONLY, "").context("protecting the root")?;
    }
    Ok(())
}

fn make_mount(wanted: &Mount) -> Result<()> {
    let flags = MountFlags::from_bits_retain(wanted.flags);
    let is_file = match &wanted.kind {
        MountKind::Bind(source) => !Path::new(source).is_dir(),
        _ => false,
    };
    let beneath = make_place(&wanted.target, is_file)?;
    let place = descriptor_path(&beneath);
    let options = std::ffi::CString::new(wanted.options.as_str())?;
    match &wanted.kind {
        MountKind::Tmpfs => mount("tmpfs", &place, "tmpfs", flags, options.as_c_str())?,
        MountKind::Proc => mount("proc", &place, "proc", flags, c"")?,
        MountKind::Mqueue => mount("mqueue", &place, "mqueue", flags, c"")?,
        MountKind::Bind(source) => {
            mount_bind(source, &place)?;
            if !flags.is_empty() {
                // The descriptor above is of what lies beneath.
                let place = find(&wanted.target)?.context("the mount is not there")?;
                mount_remount(descriptor_path(&place), flags | MountFlags::BIND, "")?;
            }
        }
    }
    Ok(())
}

fn descriptor_path(place: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", place.as_raw_fd())
}

/// A place in the container; links lead nowhere else. Nothing if it isn't there.
fn find(path: &str) -> Result<Option<OwnedFd>> {
    let root = open_root()?;
    match openat2(&root, relative(path), OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT)
    {
        Ok(place) => Ok(Some(place)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error).with_context(|| path.to_owned()),
    }
}

fn open_root() -> Result<OwnedFd> {
    openat(CWD, ROOT, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).context("the container's root")
}

fn relative(path: &str) -> &str {
    match path.trim_start_matches('/') {
        "" => ".",
        relative => relative,
    }
}

/// A place in the container, which is made if need be: a file, or a folder and those above it.
fn make_place(path: &str, is_file: bool) -> Result<OwnedFd> {
    if let Some(place) = find(path)? {
        return Ok(place);
    }
    let names: Vec<_> = Path::new(path)
        .components()
        .filter_map(|part| if let Component::Normal(name) = part { name.to_str() } else { None })
        .collect();
    for depth in 1..=names.len() {
        let part = names[..depth].join("/");
        if find(&part)?.is_some() {
            continue;
        }
        let above =
            find(&names[..depth - 1].join("/"))?.with_context(|| format!("{part}: a link to nowhere"))?;
        let name = names[depth - 1];
        if is_file && depth == names.len() {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            openat(&above, name, flags, Mode::from_raw_mode(0o644)).with_context(|| part.clone())?;
        } else {
            mkdirat(&above, name, Mode::from_raw_mode(0o755)).with_context(|| part.clone())?;
        }
    }
    find(path)?.with_context(|| format!("{path}: cannot be made"))
}

fn enter_directory(process: &Process) -> Result<()> {
    let directory = if process.directory.is_empty() { "/" } else { &process.directory };
    if !Path::new(directory).exists() {
        std::fs::create_dir_all(directory).with_context(|| directory.to_owned())?;
    }
    std::env::set_current_dir(directory).with_context(|| directory.to_owned())
}

/// The resources of the specification, by Linux's numbers.
const RESOURCES: [Resource; 16] = [
    Resource::Cpu,
    Resource::Fsize,
    Resource::Data,
    Resource::Stack,
    Resource::Core,
    Resource::Rss,
    Resource::Nproc,
    Resource::Nofile,
    Resource::Memlock,
    Resource::As,
    Resource::Locks,
    Resource::Sigpending,
    Resource::Msgqueue,
    Resource::Nice,
    Resource::Rtprio,
    Resource::Rttime,
];

fn limit(process: &Process) -> Result<()> {
    for &(number, soft, hard) in &process.limits {
        let resource = RESOURCES.get(number as usize).context("an unknown resource limit")?;
        let value = |value| (value != u64::MAX).then_some(value);
        let limit = Rlimit { current: value(soft), maximum: value(hard) };
        rustix::process::setrlimit(*resource, limit).with_context(|| format!("resource limit {number}"))?;
    }
    Ok(())
}

fn become_user(process: &Process) -> Result<()> {
    let mask = process.umask.unwrap_or(0o022);
    rustix::process::umask(Mode::from_raw_mode(mask));
    if let Some(sets) = &process.capabilities {
        for capability in 0..u64::BITS {
            let capability = CapabilitySet::from_bits_retain(1 << capability);
            if sets.bounding & capability.bits() != 0 {
                continue;
            }
            // Capabilities that the kernel does not know are in no set.
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                Ok(()) | Err(Errno::INVAL) => {}
                Err(error) => return Err(error).context("the bounding set"),
            }
        }
        rustix::thread::set_keep_capabilities(true).context("keeping capabilities")?;
    }
    let groups: Vec<Gid> = process.groups.iter().map(|&group| Gid::from_raw(group)).collect();
    let (user, group) = (Uid::from_raw(process.user), Gid::from_raw(process.group));
    rustix::thread::set_thread_groups(&groups).context("supplementary groups")?;
    rustix::thread::set_thread_res_gid(group, group, group).context("the group")?;
    rustix::thread::set_thread_res_uid(user, user, user).context("the user")?;
    if let Some(sets) = &process.capabilities {
        set_capabilities(sets)?;
    }
    if process.no_new_privileges {
        rustix::thread::set_no_new_privs(true).context("no_new_privs")?;
    }
    Ok(())
}

fn set_capabilities(sets: &Capabilities) -> Result<()> {
    let set = CapabilitySet::from_bits_retain;
    let wanted = CapabilitySets {
        effective: set(sets.effective & sets.permitted),
        permitted: set(sets.permitted),
        inheritable: set(sets.inheritable),
    };
    rustix::thread::set_capabilities(None, wanted).context("capabilities")?;
    for capability in (0..u64::BITS).map(|number| 1u64 << number) {
        if sets.ambient & capability == 0 {
            continue;
        }
        if sets.permitted & sets.inheritable & capability == 0 {
            bail!("an ambient capability must be permitted and inheritable");
        }
        rustix::thread::configure_capability_in_ambient_set(set(capability), true)
            .context("the ambient set")?;
    }
    Ok(())
}
