//! `heddle cp`: files in and out of a machine that runs, as docker's: an archive that `tar` makes on one side and takes
//! apart on the other.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use heddle_abi::control::Ending;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::exchange::client::{self, Connections};
use crate::machines::{MachineEntry, Registry};
use crate::session::{Identity, Program, Streams};

/// Copies files and folders between this host and a machine that runs.
#[derive(Clone, Debug, clap::Args)]
pub struct CpOptions {
    /// The file or folder to copy: PATH here, or NAME:PATH in a machine.
    #[arg(value_name = "[NAME:]SOURCE")]
    pub source: String,
    /// Where to: a folder that is there, or the copy's path.
    #[arg(value_name = "[NAME:]TARGET")]
    pub target: String,
}

/// A machine and a path in it, if the text names one: before the colon is no slash.
fn in_machine(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').filter(|(name, _)| !name.contains('/') && !name.starts_with('.'))
}

/// Runs the command and says with which status to end.
///
/// # Errors
/// If something cannot be copied.
pub fn execute(options: &CpOptions) -> Result<u8> {
    let registry = Registry::of_user()?;
    match (in_machine(&options.source), in_machine(&options.target)) {
        (Some((name, source)), None) => {
            copy_out(&registry.find(name)?, source, Path::new(&options.target))?;
        }
        (None, Some((name, target))) => copy_in(&registry.find(name)?, Path::new(&options.source), target)?,
        _ => bail!("one of the two is NAME:PATH, a path in a machine"),
    }
    Ok(0)
}

/// A place for an archive; it grows in memory that can be given up to no disk, so it is an unnamed file.
fn archive() -> Result<File> {
    let folder = std::env::temp_dir();
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let unnamed = rustix::fs::open(&folder, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
    // Some file systems have no unnamed files.
    let file = unnamed.or_else(|_| memfd_create("heddle-archive", MemfdFlags::CLOEXEC));
    file.map(File::from).context("a file for the archive")
}

/// Runs `tar` in the machine. Its complaints are the error.
fn guest_tar(entry: &MachineEntry, script: &str, words: &[&str], input: File, output: &File) -> Result<()> {
    let mut errors = crate::log::unnamed_file("heddle-errors")?;
    let streams = Streams {
        stdin: OwnedFd::from(input),
        stdout: output.try_clone()?.into(),
        stderr: errors.try_clone()?.into(),
    };
    let mut arguments = vec![b"sh".to_vec(), b"-c".to_vec(), script.as_bytes().to_vec(), b"sh".to_vec()];
    arguments.extend(words.iter().map(|word| word.as_bytes().to_vec()));
    let program = Program {
        path: b"/bin/sh".to_vec(),
        identity: Identity::default(),
        directory: b"/".to_vec(),
        arguments,
        environment: vec![b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_vec()],
    };
    let connections = Connections { has_input: true, is_terminal: false };
    let ending = client::run(entry.connect()?, &program, streams, connections, || {})?;
    if ending != Ending::Exited(0) {
        let mut text = String::new();
        errors.rewind()?;
        errors.read_to_string(&mut text)?;
        bail!("the machine's tar: {}", if text.is_empty() { "it failed" } else { text.trim() });
    }
    Ok(())
}

fn host_tar(words: &[&std::ffi::OsStr], input: Stdio, output: Stdio) -> Result<()> {
    let status = Command::new("tar").args(words).stdin(input).stdout(output).status().context("tar")?;
    if !status.success() {
        bail!("tar: {status}");
    }
    Ok(())
}

fn copy_in(entry: &MachineEntry, source: &Path, target: &str) -> Result<()> {
    let source = source.canonicalize().with_context(|| source.display().to_string())?;
    let (folder, name) = (source.parent().context("the root")?, source.file_name().context("no name")?);
    let mut file = archive()?;
    let words = ["-C".as_ref(), folder.as_os_str(), "-cf".as_ref(), "-".as_ref(), "--".as_ref(), name];
    host_tar(&words, Stdio::null(), file.try_clone()?.into())?;
    file.rewind()?;
    let name = name.to_str().context("the name is not UTF-8")?;
    // A target that is no folder is the copy's own path: the archive is taken apart beside it and renamed.
    let script = "set -e; t=$1; n=$2; if [ -d \"$t\" ]; then exec tar -xf - -C \"$t\"; fi
        d=$(dirname -- \"$t\"); w=$(mktemp -d \"$d/.heddle-cp-XXXXXX\"); tar -xf - -C \"$w\"
        mv -fT -- \"$w/$n\" \"$t\"; rmdir \"$w\"";
    guest_tar(entry, script, &[target, name], file, &archive()?)
}

fn copy_out(entry: &MachineEntry, source: &str, target: &Path) -> Result<()> {
    let mut file = archive()?;
    let script =
        "set -e; s=$1; d=$(dirname -- \"$s\"); exec tar -C \"$d\" -cf - -- \"$(basename -- \"$s\")\"";
    guest_tar(entry, script, &[source], File::open("/dev/null")?, &file)?;
    file.flush()?;
    file.rewind()?;
    let (folder, renamed) = match target.is_dir() {
        true => (target.to_owned(), None),
        false => {
            let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            // The machine chooses what is in the archive: it is taken apart where nothing else is.
            let work = parent.join(format!(".heddle-cp-{}", std::process::id()));
            std::fs::create_dir(&work).with_context(|| work.display().to_string())?;
            (work.clone(), Some(work))
        }
    };
    let words = ["-C".as_ref(), folder.as_os_str(), "-xf".as_ref(), "-".as_ref()];
    let unpacked = host_tar(&words, file.into(), Stdio::inherit());
    let Some(work) = renamed else { return unpacked };
    let moved = unpacked.and_then(|()| {
        let entries: Vec<PathBuf> =
            std::fs::read_dir(&work)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        let [only] = &entries[..] else { bail!("the archive holds {} entries", entries.len()) };
        std::fs::rename(only, target).with_context(|| target.display().to_string())
    });
    let _ = std::fs::remove_dir_all(&work);
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_machines_have_a_name_before() {
        assert_eq!(in_machine("web:/etc"), Some(("web", "/etc")));
        assert_eq!(in_machine("./a:b"), None);
        assert_eq!(in_machine("/a:b"), None);
        assert_eq!(in_machine("plain"), None);
    }
}
