//! File systems: those that are needed before the root, and the root itself.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use heddle_abi::boot::{KEY_LOWER, KEY_SHARE, LOWER_DRIVE, ROOT_DRIVE, SHARE_READ_ONLY, SHARE_TAG};
use rustix::mount::{MountFlags, mount, mount_move};

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
    let image = drive(ROOT_DRIVE)?;
    let options = match option(KEY_LOWER)? {
        Some(_) => format!("device={}", drive(LOWER_DRIVE)?),
        None => String::new(),
    };
    mount_at(&image, "/image", "erofs", MountFlags::RDONLY, &options)?;
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

/// The device of the drive with this serial number.
fn drive(serial: &str) -> Result<String> {
    let found = || -> Option<PathBuf> {
        let mut drives = std::fs::read_dir("/sys/block").ok()?.flatten();
        let drive = drives.find(|drive| {
            let number = std::fs::read_to_string(drive.path().join("serial"));
            number.is_ok_and(|number| number.trim_end() == serial)
        });
        Some(Path::new("/dev").join(drive?.file_name())).filter(|device| device.exists())
    };
    let device = poll(found).with_context(|| format!("no drive {serial}"))?;
    Ok(device.to_string_lossy().into_owned())
}

/// Waits until the kernel has found a device: drivers probe in their own time.
pub fn wait_for(path: &Path) -> Result<()> {
    match poll(|| path.exists().then_some(())) {
        Some(()) => Ok(()),
        None => bail!("no {}", path.display()),
    }
}

/// Asks until there is an answer, or devices should long have been found.
fn poll<T>(ask: impl Fn() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + DEVICE_TIMEOUT;
    loop {
        let answer = ask();
        if answer.is_some() || Instant::now() > deadline {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
