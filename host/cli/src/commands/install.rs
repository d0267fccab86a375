//! `heddle install` and `heddle uninstall`: the tool, its kernel and its documents under a folder as `/usr/local`.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::CommandFactory;
use clap_complete::Shell;

use super::Arguments;
use crate::guest::{heddle, linux};
use crate::paths;

/// The list of installed files, one a line, relative to the prefix.
const MANIFEST: &str = "share/heddle/files";

/// Copies the tool to where it needs neither this clone nor Rust.
#[derive(Clone, Debug, clap::Args)]
pub struct InstallOptions {
    /// The folder to install under [default: /usr/local for root, else ~/.local].
    #[arg(long, value_name = "DIR")]
    pub prefix: Option<PathBuf>,
}

/// Removes an installation.
#[derive(Clone, Debug, clap::Args)]
pub struct Removal {
    /// The folder it was installed under [default: that of this command if it is installed, else as for install].
    #[arg(long, value_name = "DIR")]
    pub prefix: Option<PathBuf>,
}

/// The command by which container engines know the tool: they pass no subcommand.
const OCI_COMMAND: &str = "#!/bin/sh\nexec \"$(dirname \"$(readlink -f \"$0\")\")/heddle\" oci \"$@\"\n";

/// A file to install: its path below the prefix, its permissions and its contents.
struct InstalledFile {
    path: String,
    mode: u32,
    contents: Vec<u8>,
}

fn default_prefix() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/usr/local"));
    }
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    Ok(PathBuf::from(home.context("HOME is not set: say where by --prefix")?).join(".local"))
}

/// Runs the command and says with which status to end.
///
/// # Errors
/// If something is missing or cannot be written. Files that were written stay, and are in the list of `uninstall`.
pub fn execute(options: &InstallOptions) -> Result<u8> {
    let prefix = match &options.prefix {
        Some(prefix) => std::path::absolute(prefix).context("--prefix")?,
        None => default_prefix()?,
    };
    let entries = entries()?;
    let manifest: String = entries.iter().map(|entry| format!("{}\n", entry.path)).collect();
    write(&prefix, &InstalledFile { path: MANIFEST.into(), mode: 0o644, contents: manifest.into_bytes() })?;
    for entry in &entries {
        write(&prefix, entry)?;
    }
    crate::out!("installed {} and {} files beside it", prefix.join("bin/heddle").display(), entries.len());
    let folder = prefix.join("bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|known| known == folder) {
        crate::out!("{} is not on your PATH", folder.display());
    }
    Ok(0)
}

/// Runs `uninstall` and says with which status to end.
///
/// # Errors
/// If nothing is installed there, or something cannot be removed.
pub fn remove(options: &Removal) -> Result<u8> {
    let prefix = match (&options.prefix, paths::installation()) {
        (Some(prefix), _) => std::path::absolute(prefix).context("--prefix")?,
        (None, Some(folder)) => folder.ancestors().nth(2).context("the prefix")?.to_path_buf(),
        (None, None) => default_prefix()?,
    };
    let manifest = prefix.join(MANIFEST);
    let list = match fs::read_to_string(&manifest) {
        Ok(list) => list,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("nothing is installed under {}", prefix.display());
        }
        Err(error) => return Err(error).with_context(|| manifest.display().to_string()),
    };
    for path in list.lines().chain([MANIFEST]) {
        // A list that was tampered with must not reach out of the prefix.
        if Path::new(path).components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
            bail!("{}: {path} is no path below {}", manifest.display(), prefix.display());
        }
        let path = prefix.join(path);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| path.display().to_string());
            }
            _ => {}
        }
    }
    // The folder is ours; others stay, empty or not.
    let _ = fs::remove_dir(prefix.join("share/heddle"));
    crate::out!(
        "removed {}; the cache stays: {}",
        prefix.join("bin/heddle").display(),
        paths::cache()?.display()
    );
    Ok(0)
}

fn write(prefix: &Path, entry: &InstalledFile) -> Result<()> {
    let path = prefix.join(&entry.path);
    let folder = path.parent().context("a path below the prefix")?;
    let scratch = folder.join(format!(".heddle-{}", std::process::id()));
    let written = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&scratch, &entry.contents))
        .and_then(|()| fs::set_permissions(&scratch, fs::Permissions::from_mode(entry.mode)))
        // A running program's file cannot be written to, but replaced.
        .and_then(|()| fs::rename(&scratch, &path));
    if written.is_err() {
        let _ = fs::remove_file(&scratch);
    }
    written.with_context(|| path.display().to_string())
}

fn entries() -> Result<Vec<InstalledFile>> {
    let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
    let program = crate::paths::own_program()?;
    let mut entries = vec![
        InstalledFile { path: "bin/heddle".into(), mode: 0o755, contents: read(&program)? },
        InstalledFile { path: "bin/heddle-oci".into(), mode: 0o755, contents: OCI_COMMAND.into() },
        InstalledFile { path: data(paths::KERNEL), mode: 0o644, contents: read(&heddle::kernel(false)?)? },
        InstalledFile { path: data(paths::LINUX_INIT), mode: 0o755, contents: read(&linux::init()?)? },
        InstalledFile { path: data(paths::VERSION), mode: 0o644, contents: paths::version().into_bytes() },
    ];
    entries.extend(manual_pages()?);
    let completions = [
        (Shell::Bash, "share/bash-completion/completions/heddle"),
        (Shell::Zsh, "share/zsh/site-functions/_heddle"),
        (Shell::Fish, "share/fish/vendor_completions.d/heddle.fish"),
    ];
    for (shell, path) in completions {
        let mut contents = Vec::new();
        clap_complete::generate(shell, &mut Arguments::command(), "heddle", &mut contents);
        entries.push(InstalledFile { path: path.into(), mode: 0o644, contents });
    }
    Ok(entries)
}

fn data(name: &str) -> String {
    format!("{}/{name}", paths::DATA)
}

/// A page for the tool and one for each command, from the same table as `--help`.
fn manual_pages() -> Result<Vec<InstalledFile>> {
    let mut command = Arguments::command();
    command.build();
    let mut pages = vec![page(command.clone(), "heddle")?];
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let name = format!("heddle-{}", sub.get_name());
        pages.push(page(sub.clone(), &name)?);
    }
    Ok(pages)
}

fn page(command: clap::Command, name: &str) -> Result<InstalledFile> {
    let mut contents = Vec::new();
    let page = clap_mangen::Man::new(command.name(name.to_owned()).display_name(name.to_owned()));
    page.render(&mut contents).with_context(|| format!("the manual page of {name}"))?;
    Ok(InstalledFile { path: format!("share/man/man1/{name}.1"), mode: 0o644, contents })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_manual_page() {
        let pages = manual_pages().unwrap();
        for name in ["heddle.1", "heddle-run.1", "heddle-install.1"] {
            let page = pages.iter().find(|page| page.path.ends_with(name)).unwrap();
            assert!(String::from_utf8_lossy(&page.contents).contains(".SH NAME"), "{name}");
        }
    }

    #[test]
    fn installed_files_are_removed() {
        let prefix = std::env::temp_dir().join(format!("heddle-prefix-{}", std::process::id()));
        let other = InstalledFile { path: "bin/other".into(), mode: 0o755, contents: b"x".to_vec() };
        write(&prefix, &other).unwrap();
        let tool = InstalledFile { path: "bin/heddle".into(), mode: 0o755, contents: b"y".to_vec() };
        write(&prefix, &tool).unwrap();
        assert_eq!(fs::metadata(prefix.join("bin/heddle")).unwrap().permissions().mode() & 0o777, 0o755);
        let list = InstalledFile { path: MANIFEST.into(), mode: 0o644, contents: b"bin/heddle\n".to_vec() };
        write(&prefix, &list).unwrap();
        assert_eq!(remove(&Removal { prefix: Some(prefix.clone()) }).unwrap(), 0);
        assert!(!prefix.join("bin/heddle").exists() && !prefix.join("share/heddle").exists());
        assert!(prefix.join("bin/other").exists(), "files of others stay");
        assert!(remove(&Removal { prefix: Some(prefix.clone()) }).is_err(), "nothing is installed any more");
        let bad = InstalledFile { path: MANIFEST.into(), mode: 0o644, contents: b"../elsewhere\n".to_vec() };
        write(&prefix, &bad).unwrap();
        assert!(remove(&Removal { prefix: Some(prefix.clone()) }).is_err(), "a path out of the prefix");
        fs::remove_dir_all(prefix).unwrap();
    }
}
