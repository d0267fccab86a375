//! Where things are: the repository that this tool was built from or its installation, and its cache.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::bundled;

/// This program's own file. Where another was put into its place since it started, as a build does, it is that one.
///
/// # Errors
/// If the file is not known.
pub fn own_program() -> Result<PathBuf> {
    /// Linux writes it behind the path of a file that has been unlinked.
    const UNLINKED: &[u8] = b" (deleted)";
    let path = std::env::current_exe().context("finding this executable")?;
    let replaced =
        path.as_os_str().as_bytes().strip_suffix(UNLINKED).map(|path| Path::new(OsStr::from_bytes(path)));
    match replaced.filter(|replaced| replaced.is_file()) {
        Some(replaced) => Ok(replaced.to_owned()),
        None => Ok(path),
    }
}

/// The repository: the nearest folder above the running executable that has its front door.
///
/// # Errors
/// If the executable was moved out of the repository.
pub fn repository() -> Result<PathBuf> {
    let executable = own_program()?;
    executable
        .ancestors()
        .skip(1)
        .find(|folder| folder.join("heddle").is_file() && folder.join("Cargo.toml").is_file())
        .map(Path::to_path_buf)
        .with_context(|| format!("{} is not inside a Heddle repository", executable.display()))
}

/// The folder of an installation's data, below its prefix.
pub const DATA: &str = "share/heddle";
/// Files in [`DATA`].
pub const KERNEL: &str = "heddle-kernel";
/// Process 1 of the Linux guest.
pub const LINUX_INIT: &str = "linux-init";
/// The version and commit that were installed.
pub const VERSION: &str = "version";

/// The data of the installation that this program is part of: `../share/heddle`. `None` in a clone.
#[must_use]
pub fn installation() -> Option<PathBuf> {
    let executable = own_program().ok()?;
    let folder = executable.parent()?.parent()?.join(DATA);
    folder.join(KERNEL).is_file().then_some(folder)
}

/// The folder with the tool's data, of its installation or out of its own file. `None` in a clone.
#[must_use]
pub fn data() -> Option<PathBuf> {
    installation().or_else(bundled::folder)
}

/// The version, with the commit if that is known.
#[must_use]
pub fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    if let Some(folder) = data() {
        return std::fs::read_to_string(folder.join(VERSION)).unwrap_or_else(|_| version.to_owned());
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(repository().ok()?).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        Some(commit) => {
            let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some();
            format!("{version} ({commit}{})", if changed { ", changed" } else { "" })
        }
        None => version.to_owned(),
    }
}

/// The folder for what can be made again: `$XDG_CACHE_HOME/heddle`, or `~/.cache/heddle`.
///
/// # Errors
/// If the environment names no home.
pub fn cache() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| Some(set("HOME")?.join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(base.join("heddle"))
}

/// The folders of the cache whose names start with one of `prefixes`, and when each was made. Their contents can be
/// made again.
///
/// # Errors
/// If the cache cannot be read.
pub fn cached_folders(prefixes: &[&str]) -> Result<Vec<(PathBuf, SystemTime)>> {
    let cache = cache()?;
    let entries = match std::fs::read_dir(&cache) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| cache.display().to_string()),
    };
    let is_one = |name: &OsStr| prefixes.iter().any(|prefix| name.as_bytes().starts_with(prefix.as_bytes()));
    let folders = entries.flatten().filter(|entry| is_one(&entry.file_name()));
    Ok(folders.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.modified().ok()?))).collect())
}
