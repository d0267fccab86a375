//! Where things are: the repository that this tool was built from, and its cache.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The repository: the nearest folder above the running executable that has its front door.
///
/// # Errors
/// If the executable was moved out of the repository.
pub fn repository() -> Result<PathBuf> {
    let executable = std::env::current_exe().context("finding this executable")?;
    executable
        .ancestors()
        .skip(1)
        .find(|folder| folder.join("heddle").is_file() && folder.join("Cargo.toml").is_file())
        .map(Path::to_path_buf)
        .with_context(|| format!("{} is not inside a Heddle repository", executable.display()))
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
