//! Debian's Linux, in the same kind of machine: fetched once, started without its boot loader's detours.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use heddle_abi::boot::{KEY_LOWER, LOWER_DRIVE, ROOT_DRIVE};
use heddle_image::Image;

use super::cpio::Archive;
use super::linux_archive::{Modules, unpack_kernel};
use super::share::kernel_argument;
use super::{Choices, MIB};
use crate::cache::Lock;
use crate::machine::accelerator::Kvm;
use crate::machine::{Clock, Configuration, INSTRUCTIONS_PER_SECOND, Memory, RootDisk};
use crate::network::Backend;
use crate::{paths, tsc};

/// Debian's package that depends on the current kernel's.
const META_PACKAGE: &str = "linux-image-amd64";
/// The modules for the machine's devices and the root's file systems. `erofs` needs `crc32c` without declaring it.
const MODULES: [&str; 6] =
    ["virtio_mmio", "virtio_console", "virtio_blk", "crc32c_generic", "erofs", "overlay"];
/// Where they lie in the cache.
const MODULES_FOLDER: &str = "modules";

/// Further modules for a device that not every guest has.
struct Extra {
    /// Names the folder in the cache.
    name: &'static str,
    modules: &'static [&'static str],
}

/// For shared folders.
const SHARES: Extra = Extra { name: "9p", modules: &["9pnet_virtio", "9p"] };
/// For file systems that programs serve.
const SERVED: Extra = Extra { name: "fuse", modules: &["fuse"] };
/// For a network interface.
const NETWORK: Extra = Extra { name: "net", modules: &["virtio_net"] };

impl Extra {
    fn folder(&self) -> String {
        format!("{MODULES_FOLDER}-{}", self.name)
    }
}

/// Where in the package those, and what they depend on, are.
const MODULE_FOLDERS: [&str; 15] = [
    "*/kernel/drivers/virtio/*",
    "*/kernel/drivers/char/*",
    "*/kernel/drivers/block/*",
    "*/kernel/fs/erofs/*",
    "*/kernel/fs/overlayfs/*",
    "*/kernel/lib/*",
    "*/kernel/crypto/*",
    "*/kernel/fs/9p/*",
    "*/kernel/fs/fscache/*",
    "*/kernel/fs/fuse/fuse.ko*",
    "*/kernel/fs/netfs/*",
    "*/kernel/net/9p/*",
    "*/kernel/drivers/net/virtio_net.ko*",
    "*/kernel/drivers/net/net_failover.ko*",
    "*/kernel/net/core/failover.ko*",
];
#[path = "../../init_recipe.rs"]
mod recipe;

/// Cargo's folder for the first process.
const INIT_TARGET: &str = "target/linux-guest";
const INIT_SOURCES: [&str; 4] = ["host/linux-init", "host/streams", "abi", "Cargo.lock"];
/// Less than this Debian's kernel does not boot in.
const MEMORY_MIN_BYTES: u64 = 96 * MIB;

/// The machine for Linux.
pub fn configure(choices: &Choices, image: &Image) -> Result<Configuration> {
    if choices.strace {
        bail!("--strace works with Heddle's kernel only; in a Linux guest run strace itself");
    }
    if choices.memory_bytes < MEMORY_MIN_BYTES {
        bail!("--memory: Debian's kernel needs {} MiB at least", MEMORY_MIN_BYTES / MIB);
    }
    let kernel = kernel()?;
    let mut modules = vec![kernel.join(MODULES_FOLDER), extra_modules(&kernel, &SERVED)?];
    if !choices.shares.is_empty() {
        modules.push(extra_modules(&kernel, &SHARES)?);
    }
    if choices.network.backend != Backend::None {
        modules.push(extra_modules(&kernel, &NETWORK)?);
    }
    let initramfs = initramfs(&kernel, &init()?, &modules)?;
    let mut command_line = format!("console=ttyS0 panic=-1{}", choices.mitigations.kernel_argument());
    // Linux fails to start now and then where it has to find this out on a busy host; and where it checks the counter
    // against the timer interrupt, which a busy host delays, it distrusts the counter and has a clock of 4 ms.
    let hertz = match choices.clock {
        Clock::Host => tsc::frequency_hz(&paths::cache()?)?,
        Clock::Instructions => Some(INSTRUCTIONS_PER_SECOND),
    };
    if let Some(hertz) = hertz {
        write!(command_line, " tsc=reliable tsc_early_khz={}", hertz / 1000)?;
    }
    if !choices.verbose_log {
        command_line.push_str(" quiet");
    }
    let accelerator = choices.accelerator()?;
    let unusable = accelerator.kvm.map(Kvm::unusable).unwrap_or_default();
    if !unusable.is_empty() {
        write!(command_line, " clearcpuid={}", unusable.join(","))?;
    }
    if let Some(shares) = kernel_argument(&choices.shares)? {
        write!(command_line, " {shares}")?;
    }
    if let Some(network) = choices.network.kernel_argument()? {
        write!(command_line, " {network}")?;
    }
    if image.layer.is_some() {
        write!(command_line, " {KEY_LOWER}=1")?;
    }
    if !choices.kernel_arguments.is_empty() {
        write!(command_line, " {}", choices.kernel_arguments)?;
    }
    Ok(Configuration {
        kernel: kernel.join("vmlinux"),
        command_line,
        initramfs: Some(initramfs),
        memory: Memory::Plain { size_bytes: choices.memory_bytes },
        root: drives(image),
        processors: choices.processors,
        acpi: true,
        serial_log: true,
        clock: choices.clock,
        seed: choices.seed,
        accelerator,
        cpu: choices.cpu.clone(),
        debugger_port: choices.debugger_port,
        shares: choices.shares.clone(),
        watches_shares: false,
        network: choices.network.clone(),
    })
}

/// The image on drives: its layer, if it has one, on one of its own.
fn drives(image: &Image) -> Vec<RootDisk> {
    let drive = |path: &Path, offset_bytes, length_bytes, serial| RootDisk {
        path: path.to_owned(),
        offset_bytes,
        length_bytes,
        serial,
    };
    match &image.layer {
        Some(layer) => vec![
            drive(&layer.path, 0, layer.length, ROOT_DRIVE),
            drive(&image.path, image.offset, image.length, LOWER_DRIVE),
        ],
        None => vec![drive(&image.path, image.offset, image.length, ROOT_DRIVE)],
    }
}

/// The folder with a kernel and its modules: the newest of the cache, or else fetched.
///
/// # Errors
/// If there is none and it cannot be fetched.
pub fn kernel() -> Result<PathBuf> {
    let folder = paths::cache()?.join("linux");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    if let Some(kernel) = newest(&folder)? {
        return Ok(kernel);
    }
    let _lock = Lock::exclusive(&folder.join("lock"))?;
    match newest(&folder)? {
        Some(kernel) => Ok(kernel),
        None => fetch(&folder).context("fetching Debian's kernel"),
    }
}

/// Complete kernels are the folders whose names start like the package's.
fn newest(folder: &Path) -> Result<Option<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("linux-image-") {
            found.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    Ok(found.into_iter().max().map(|(_, path)| path))
}

fn fetch(folder: &Path) -> Result<PathBuf> {
    let package = match current_package() {
        Ok(package) => package,
        Err(_) if rustix::process::geteuid().is_root() => {
            run(Command::new("apt-get").args(["-qq", "update"]))?;
            current_package()?
        }
        Err(error) => return Err(error.context("as root, `apt-get update` may help")),
    };
    crate::say!("fetching Debian's package {package}, once");
    let scratch = folder.join(format!("new-{}", std::process::id()));
    let result = unpack_package(&package, &scratch, &folder.join(&package));
    let _ = std::fs::remove_dir_all(&scratch);
    result
}

fn unpack_package(package: &str, scratch: &Path, target: &Path) -> Result<PathBuf> {
    let _ = std::fs::remove_dir_all(scratch);
    let [unpacked, done] = ["unpacked", "done"].map(|name| scratch.join(name));
    std::fs::create_dir_all(&unpacked)?;
    std::fs::create_dir_all(done.join("modules"))?;
    download(package, scratch, &unpacked)?;
    let image =
        find(&unpacked.join("boot"), |name| name.starts_with("vmlinuz")).context("no kernel in it")?;
    std::fs::write(done.join("vmlinux"), unpack_kernel(&std::fs::read(image)?)?)?;
    let modules = Modules::below(&unpacked)?.in_load_order(&MODULES)?;
    for (number, (name, contents)) in (0..).zip(modules) {
        std::fs::write(done.join(format!("modules/{number:02}-{name}.ko")), contents)?;
    }
    for extra in [SHARES, SERVED, NETWORK] {
        write_extra(&extra, &unpacked, &done.join(MODULES_FOLDER), &done.join(extra.folder()))?;
    }
    std::fs::rename(&done, target)?;
    Ok(target.to_path_buf())
}

/// Fetches a package and takes what is needed out of it.
fn download(package: &str, scratch: &Path, unpacked: &Path) -> Result<()> {
    // The unprivileged user that apt prefers for downloads cannot write into this cache.
    let download = ["-qq", "-o", "APT::Sandbox::User=root", "download", package];
    run(Command::new("apt-get").args(download).current_dir(scratch))?;
    let archive = find(scratch, |name| name.ends_with(".deb")).context("apt-get left no package")?;
    let mut unpacking = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(archive)
        .stdout(Stdio::piped())
        .spawn()
        .context("dpkg-deb")?;
    let contents = unpacking.stdout.take().context("dpkg-deb")?;
    run(Command::new("tar")
        .args(["-x", "--no-same-owner", "--wildcards", "./boot/vmlinuz*"])
        .args(MODULE_FOLDERS)
        .current_dir(unpacked)
        .stdin(contents))?;
    unpacking.wait()?;
    Ok(())
}

/// The folder with further modules; fetched if the cache's kernel was fetched without them.
fn extra_modules(kernel: &Path, extra: &Extra) -> Result<PathBuf> {
    let target = kernel.join(extra.folder());
    if target.is_dir() {
        return Ok(target);
    }
    let _lock = Lock::exclusive(&kernel.join(format!("lock-{}", extra.name)))?;
    if target.is_dir() {
        return Ok(target);
    }
    let package = kernel.file_name().context("the kernel's folder")?.to_string_lossy().into_owned();
    crate::say!("fetching the modules {} from Debian's package {package}, once", extra.modules.join(" and "));
    let scratch = kernel.join(format!("new-{}-{}", extra.name, std::process::id()));
    let [unpacked, done] = ["unpacked", "done"].map(|name| scratch.join(name));
    std::fs::create_dir_all(&unpacked)?;
    let result = download(&package, &scratch, &unpacked)
        .and_then(|()| write_extra(extra, &unpacked, &kernel.join(MODULES_FOLDER), &done))
        .and_then(|()| Ok(std::fs::rename(&done, &target)?));
    let _ = std::fs::remove_dir_all(&scratch);
    result.map(|()| target)
}

/// Writes those of the further modules that are not in `base`, to be loaded after all of it.
fn write_extra(extra: &Extra, unpacked: &Path, base: &Path, done: &Path) -> Result<()> {
    std::fs::create_dir_all(done)?;
    let there: Vec<_> = files(base)?.into_iter().map(|(name, _)| name).collect();
    let modules = Modules::below(unpacked)?.in_load_order(extra.modules)?;
    let is_new = |name: &str| !there.iter().any(|known| known.ends_with(&format!("-{name}.ko")));
    let first = there.len();
    for (number, (name, contents)) in (first..).zip(modules.into_iter().filter(|(name, _)| is_new(name))) {
        std::fs::write(done.join(format!("{number:02}-{name}.ko")), contents)?;
    }
    Ok(())
}

/// The files of a folder by name, in order.
fn files(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        files.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    files.sort();
    Ok(files)
}

/// The package that the meta package stands for now.
fn current_package() -> Result<String> {
    let output = Command::new("apt-cache")
        .args(["show", "--no-all-versions", META_PACKAGE])
        .stderr(Stdio::null())
        .output()
        .context("apt-cache")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut dependencies = text.lines().filter_map(|line| line.strip_prefix("Depends:"));
    let found = dependencies.next().into_iter().flat_map(|list| list.split(','));
    found
        .filter_map(|item| item.split_whitespace().next())
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned)
        .with_context(|| format!("apt knows no package {META_PACKAGE}"))
}

fn find(folder: &Path, is_it: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let mut entries = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    entries.find(|entry| is_it(&entry.file_name().to_string_lossy())).map(|entry| entry.path())
}

/// Runs a command whose output is only of interest when it fails.
fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| name.clone())?;
    if !output.status.success() {
        bail!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// The guest's first process, built when its sources changed, or the installed one.
///
/// # Errors
/// If it cannot be built.
pub fn init() -> Result<PathBuf> {
    if let Some(folder) = paths::data() {
        return Ok(folder.join(paths::LINUX_INIT));
    }
    let repository = paths::repository()?;
    if !is_init_current(&repository)? {
        let _lock = Lock::exclusive(&repository.join("target/linux-guest.lock"))?;
        // The previous holder of the lock may have built it. Another time of its file would make other roots of it.
        if !is_init_current(&repository)? {
            build_init(&repository)?;
        }
    }
    Ok(init_path(&repository))
}

fn init_path(repository: &Path) -> PathBuf {
    repository.join(INIT_TARGET).join(recipe::INIT_PROGRAM)
}

fn is_init_current(repository: &Path) -> Result<bool> {
    let built = std::fs::metadata(init_path(repository)).and_then(|metadata| metadata.modified()).ok();
    let mut changed = SystemTime::UNIX_EPOCH;
    for source in INIT_SOURCES {
        changed = changed.max(newest_change(&repository.join(source))?);
    }
    Ok(built.is_some_and(|built| built > changed))
}

fn newest_change(path: &Path) -> Result<SystemTime> {
    let metadata = std::fs::metadata(path).with_context(|| path.display().to_string())?;
    let mut newest = if metadata.is_dir() { SystemTime::UNIX_EPOCH } else { metadata.modified()? };
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path)? {
            newest = newest.max(newest_change(&entry?.path())?);
        }
    }
    Ok(newest)
}

fn build_init(repository: &Path) -> Result<()> {
    let status = Command::new("cargo")
        .args(recipe::INIT_ARGUMENTS)
        .args(["--locked", "--target-dir", INIT_TARGET])
        .current_dir(repository)
        .stdout(Stdio::null())
        .status()
        .context("cargo")?;
    if !status.success() {
        bail!("cargo could not build the Linux guest's first process");
    }
    // Cargo leaves a file alone that would not change, and the next run would build again.
    File::options().append(true).open(init_path(repository))?.set_modified(SystemTime::now())?;
    Ok(())
}

/// The initial file system for this kernel, this first process and the modules in these folders.
fn initramfs(kernel: &Path, init: &Path, modules: &[PathBuf]) -> Result<PathBuf> {
    let metadata = std::fs::metadata(init).with_context(|| init.display().to_string())?;
    let made = metadata.modified()?.duration_since(SystemTime::UNIX_EPOCH)?.as_nanos();
    let extras = modules.iter().filter_map(|folder| folder.file_name()?.to_str()?.strip_prefix("modules-"));
    let extras: String = extras.map(|name| format!("{name}-")).collect();
    let path = kernel.join(format!("{extras}initramfs-{made}"));
    if path.exists() {
        return Ok(path);
    }
    let _lock = Lock::exclusive(&kernel.join("lock"))?;
    for entry in std::fs::read_dir(kernel)? {
        let entry = entry?;
        let is_old = entry.file_name().to_string_lossy().contains("initramfs-");
        if is_old && entry.metadata()?.modified()?.elapsed().unwrap_or_default().as_secs() > 60 {
            std::fs::remove_file(entry.path())?;
        }
    }
    let scratch = kernel.join(format!("new-initramfs-{}", std::process::id()));
    let mut archive = Archive::new(BufWriter::new(File::create(&scratch)?));
    for folder in ["dev", "proc", "sys", "modules", "image", "writes", "root"] {
        archive.directory(folder)?;
    }
    archive.character_device("dev/console", 5, 1)?;
    archive.file("init", &std::fs::read(init)?)?;
    for folder in modules {
        for (name, path) in files(folder)? {
            archive.file(&format!("modules/{name}"), &std::fs::read(path)?)?;
        }
    }
    archive.finish()?.flush()?;
    std::fs::rename(&scratch, &path)?;
    Ok(path)
}
