//! File systems: those that are needed before the root, and the root itself.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use heddle_abi::boot::{KEY_SHARE, SHARE_READ_ONLY, SHARE_TAG};
use rustix::mount::{MountFlags, mount, mount_move};

const IMAGE_DEVICE: &str = "/dev/vda";
const DEVICE_TIMEOUT: Duration = Duration::from_secs(30);
const NEW_ROOT: &str = "/root";

fn mount_at(source: &str, target: &str, kind: &str, flags: MountFlags, data: &str) -> Result<()> {
    std::fs::create_dir_all(target).with_context(|| format!("creating {target}"))?;
    let data = std::ffi::CString::new(data)?;
    mount(source, target, kind, flags, data.as_c_str())
        .with_context(|| format!("mounting {kind} at {target}"))
}

/// Mounts what the search for devices needs.
pub fn mount_early() -> Result<()> {
    mount_at("proc", "/proc", "proc", MountFlags::empty(), "")?;
    mount_at("sysfs", "/sys", "sysfs", MountFlags::empty(), "")?;
    mount_at("devtmpfs", "/dev", "devtmpfs", MountFlags::empty(), "")
}

/// Makes the image with a writable layer above it the root directory.
pub fn switch() -> Result<()> {
    wait_for(Path::new(IMAGE_DEVICE))?;
    mount_at(IMAGE_DEVICE, "/image", "erofs", MountFlags::RDONLY, "")?;
    mount_at("tmpfs", "/writes", "tmpfs", MountFlags::empty(), "mode=0755")?;
    for directory in ["/writes/upper", "/writes/work"] {
        std::fs::create_dir(directory).context(directory)?;
    }
    let layers = "lowerdir=/image,upperdir=/writes/upper,workdir=/writes/work";
    mount_at("overlay", NEW_ROOT, "overlay", MountFlags::empty(), layers)?;
    for directory in ["/dev", "/proc", "/sys"] {
        let target = format!("{NEW_ROOT}{directory}");
        std::fs::create_dir_all(&target).context(directory)?;
        mount_move(directory, &target).with_context(|| format!("moving {directory}"))?;
    }
    std::env::set_current_dir(NEW_ROOT)?;
    mount_move(".", "/").context("moving the root")?;
    rustix::process::chroot(".")?;
    std::env::set_current_dir("/")?;
    mount_at("devpts", "/dev/pts", "devpts", MountFlags::empty(), "mode=0620,ptmxmode=0666")?;
    mount_at("tmpfs", "/dev/shm", "tmpfs", MountFlags::empty(), "mode=1777")?;
    link_descriptors()?;
    rustix::system::sethostname(b"heddle")?;
    Ok(())
}

/// Mounts the shared folders of the host where the kernel's command line wants them.
pub fn mount_shares() -> Result<()> {
    let Some(targets) = option(KEY_SHARE)? else { return Ok(()) };
    for (number, target) in targets.split(',').enumerate() {
        let (path, flags) = match target.strip_suffix(SHARE_READ_ONLY) {
            Some(path) => (path, MountFlags::RDONLY),
            None => (target, MountFlags::empty()),
        };
        let tag = format!("{SHARE_TAG}{number}");
        mount_at(&tag, path, "9p", flags, "trans=virtio,version=9p2000.L,msize=65536,cache=mmap")?;
    }
    Ok(())
}

/// The value of `KEY=VALUE` on the kernel's command line.
pub fn option(key: &str) -> Result<Option<String>> {
    let command_line = std::fs::read_to_string("/proc/cmdline").context("/proc/cmdline")?;
    let value = |word: &str| word.strip_prefix(key)?.strip_prefix('=').map(str::to_owned);
    Ok(command_line.split_whitespace().find_map(value))
}

/// `/dev/fd` and its like, which devtmpfs leaves to user space.
fn link_descriptors() -> Result<()> {
    let links = [("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")];
    for (name, target) in links {
        std::os::unix::fs::symlink(target, format!("/dev/{name}")).context(name)?;
    }
    Ok(())
}

/// Waits until the kernel has found a device: drivers probe in their own time.
pub fn wait_for(path: &Path) -> Result<()> {
    let deadline = Instant::now() + DEVICE_TIMEOUT;
    while !path.exists() {
        if Instant::now() > deadline {
            bail!("no {}", path.display());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
