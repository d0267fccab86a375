//! Machines with names: a folder for each, in which the process that runs it keeps its socket and its state.
//!
//! That process holds a lock on the folder's `lock` file as long as it lives, so a machine whose process is gone is
//! known by that, whatever its state file says. Nothing else is resident.

pub mod detach;

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The longest name.
const NAME_MAX_BYTES: usize = 128;
const LOCK: &str = "lock";
const STATE: &str = "state.json";
const SOCKET: &str = "socket";
const LOG: &str = "output.log";

/// How far a machine has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// It is being made.
    Creating,
    /// Its program waits to be started.
    Created,
    /// Its program runs.
    Running,
    /// It has ended.
    Stopped,
}

/// The state of a machine, as others read it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// Its name.
    pub name: String,
    /// How far it has come.
    pub stage: Stage,
    /// The process that runs it.
    pub pid: i32,
    /// When it was made, in seconds since the epoch.
    pub created: u64,
    /// Its kernel.
    pub kernel: String,
    /// Its program and arguments.
    pub command: Vec<String>,
    /// The exit status of its program.
    pub status: Option<u8>,
    /// Whether its output is kept.
    pub is_detached: bool,
    /// More about a container; see `commands::oci`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<serde_json::Value>,
}

/// Where machines are registered.
#[derive(Clone, Debug)]
pub struct Registry {
    folder: PathBuf,
}

/// A machine's entry.
#[derive(Clone, Debug)]
pub struct MachineEntry {
    folder: PathBuf,
}

/// The entry of a machine that this process runs.
#[derive(Debug)]
pub struct Owned {
    /// The entry.
    pub entry: MachineEntry,
    /// Its state, as others read it.
    pub state: State,
    removes: bool,
    _lock: File,
}

/// Refuses what cannot be a name.
///
/// # Errors
/// Why not.
pub fn check_name(name: &str) -> Result<()> {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "._-+".contains(character);
    let starts_well = name.starts_with(|character: char| character.is_ascii_alphanumeric());
    if !starts_well || !name.chars().all(is_plain) || name.len() > NAME_MAX_BYTES {
        bail!(
            "{name:?} cannot be a name: letters, digits, and . _ - + after the first, at most {NAME_MAX_BYTES}"
        );
    }
    Ok(())
}

/// Makes a folder that only this user can enter, or makes sure that it is one.
fn private_folder(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).recursive(true).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| path.display().to_string());
        }
        _ => {}
    }
    let metadata = fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
    let user = rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || metadata.uid() != user || metadata.mode() & 0o022 != 0 {
        bail!("{}: not a folder of this user that others cannot write to", path.display());
    }
    Ok(())
}

impl Registry {
    /// This user's: `$XDG_RUNTIME_DIR/heddle`, `/run/heddle` for root, or `/tmp/heddle-UID`.
    ///
    /// # Errors
    /// If the folder is somebody else's.
    pub fn of_user() -> Result<Self> {
        Self::of_user_for("machines")
    }

    /// This user's, of these things.
    ///
    /// # Errors
    /// If the folder is somebody else's.
    pub fn of_user_for(things: &str) -> Result<Self> {
        let user = rustix::process::geteuid().as_raw();
        let set = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        let folder = match set {
            Some(runtime) => runtime.join("heddle"),
            None if user == 0 => PathBuf::from("/run/heddle"),
            None => std::env::temp_dir().join(format!("heddle-{user}")),
        };
        Self::at(folder.join(things))
    }

    /// One in this folder, which is made.
    ///
    /// # Errors
    /// If the folder is somebody else's.
    pub fn at(folder: PathBuf) -> Result<Self> {
        if let Some(parent) = folder.parent().filter(|parent| !parent.exists()) {
            private_folder(parent)?;
        }
        private_folder(&folder)?;
        Ok(Self { folder })
    }

    /// Takes a name for a machine of this process. A machine of that name that has ended is replaced.
    ///
    /// # Errors
    /// If there is a machine of that name.
    pub fn claim(&self, mut state: State, removes: bool) -> Result<Owned> {
        check_name(&state.name)?;
        let entry = MachineEntry { folder: self.folder.join(&state.name) };
        // Another process may remove an ended machine between two of these steps.
        for _ in 0..8 {
            private_folder(&entry.folder)?;
            let Ok(lock) = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(entry.folder.join(LOCK))
            else {
                continue;
            };
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => bail!("there is a machine named {}", state.name),
                result => result.context("locking the machine's state")?,
            }
            let is_same = |path: &Path| {
                fs::metadata(path).is_ok_and(|metadata| {
                    lock.metadata()
                        .is_ok_and(|held| (held.dev(), held.ino()) == (metadata.dev(), metadata.ino()))
                })
            };
            if !is_same(&entry.folder.join(LOCK)) {
                continue;
            }
            for file in [STATE, SOCKET, LOG] {
                let _ = fs::remove_file(entry.folder.join(file));
            }
            state.pid = rustix::process::getpid().as_raw_nonzero().get();
            let owned = Owned { entry, state, removes, _lock: lock };
            owned.store()?;
            return Ok(owned);
        }
        bail!("the name {} cannot be taken", state.name)
    }

    /// The machine of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn find(&self, name: &str) -> Result<MachineEntry> {
        check_name(name)?;
        let entry = MachineEntry { folder: self.folder.join(name) };
        if entry.state().is_err() {
            bail!("there is no machine named {name}");
        }
        Ok(entry)
    }

    /// All machines, by name.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn all(&self) -> Result<Vec<(MachineEntry, State)>> {
        let mut found = Vec::new();
        for folder in fs::read_dir(&self.folder).context("the machines' folder")? {
            let entry = MachineEntry { folder: folder.context("the machines' folder")?.path() };
            // A machine may be removed meanwhile.
            if let Ok(state) = entry.state() {
                found.push((entry, state));
            }
        }
        found.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name));
        Ok(found)
    }
}

impl MachineEntry {
    /// Whether the process that runs the machine lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let Ok(lock) = File::open(self.folder.join(LOCK)) else { return false };
        matches!(rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK))
    }

    /// The machine's state. One whose process is gone has stopped.
    ///
    /// # Errors
    /// If it was removed.
    pub fn state(&self) -> Result<State> {
        // A machine that ends now writes its state before it gives up its lock.
        let is_alive = self.is_alive();
        let text = fs::read(self.folder.join(STATE)).context("the machine's state")?;
        let mut state: State = serde_json::from_slice(&text).context("the machine's state")?;
        if !is_alive {
            state.stage = Stage::Stopped;
        }
        Ok(state)
    }

    /// The machine's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the output of a detached machine is kept.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.folder.join(LOG)
    }

    /// Connects to the process that runs the machine.
    ///
    /// # Errors
    /// If it doesn't run.
    pub fn connect(&self) -> Result<UnixStream> {
        self.with_socket(|path| UnixStream::connect(path)).context("the machine does not run")
    }

    fn with_socket<T>(&self, act: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        // A socket's path may be 107 bytes long; through the folder's descriptor it is always shorter.
        let folder = File::open(&self.folder)?;
        act(Path::new(&format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd())))
    }

    /// Removes what is left of a machine that has ended.
    ///
    /// # Errors
    /// If it runs, or something cannot be removed.
    pub fn remove(&self) -> Result<()> {
        if self.is_alive() {
            bail!("the machine runs");
        }
        fs::remove_dir_all(&self.folder).context("removing the machine's state")
    }
}

impl Owned {
    /// Listens for other commands.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn listen(&self) -> Result<UnixListener> {
        self.entry.with_socket(|path| UnixListener::bind(path)).context("the machine's socket")
    }

    /// The file for the output of a detached machine.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn create_log(&self) -> Result<File> {
        let mut options = File::options();
        options.append(true).create(true).mode(0o600).open(self.entry.log()).context("the output's file")
    }

    /// Leaves nothing of a machine that was not made.
    pub fn discard(mut self) {
        self.removes = true;
    }

    /// Changes what others see.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn set(&mut self, stage: Stage, status: Option<u8>) -> Result<()> {
        (self.state.stage, self.state.status) = (stage, status);
        self.store()
    }

    fn store(&self) -> Result<()> {
        let text = serde_json::to_vec_pretty(&self.state).context("the machine's state")?;
        let (new, file) = (self.entry.folder.join("state.new"), self.entry.folder.join(STATE));
        let write = || {
            let mut options = File::options();
            let mut output = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            output.write_all(&text)?;
            fs::rename(&new, &file)
        };
        write().context("the machine's state")
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.removes {
            let _ = fs::remove_dir_all(&self.entry.folder);
        } else {
            let _ = fs::remove_file(self.entry.folder.join(SOCKET));
        }
    }
}

/// A name for a machine whose user gave it none.
///
/// # Errors
/// If the host has no random numbers.
pub fn random_name() -> Result<String> {
    let mut bytes = [0; 6];
    io::Read::read_exact(&mut File::open("/dev/urandom").context("/dev/urandom")?, &mut bytes)
        .context("/dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Seconds since the epoch.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(name: &str) -> State {
        State {
            name: name.to_owned(),
            stage: Stage::Creating,
            pid: 0,
            created: now(),
            kernel: String::from("heddle"),
            command: vec![String::from("true")],
            status: None,
            is_detached: false,
            container: None,
        }
    }

    #[test]
    fn a_name_is_taken_once_and_free_after_the_end() {
        let folder = std::env::temp_dir().join(format!("heddle-machines-{}", std::process::id()));
        let registry = Registry::at(folder.join("machines")).unwrap();
        let mut owned = registry.claim(state("one"), false).unwrap();
        owned.set(Stage::Running, None).unwrap();
        assert!(registry.claim(state("one"), false).is_err());
        let entry = registry.find("one").unwrap();
        assert_eq!(entry.state().unwrap().stage, Stage::Running);
        let _listener = owned.listen().unwrap();
        entry.connect().unwrap();
        drop(owned);
        assert_eq!(entry.state().unwrap().stage, Stage::Stopped);
        drop(registry.claim(state("one"), true).unwrap());
        assert!(registry.find("one").is_err());
        assert!(registry.all().unwrap().is_empty());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn names_are_plain() {
        for name in ["a", "web-1", "A.b_c+d", "0123abc"] {
            check_name(name).unwrap();
        }
        for name in ["", ".", "..", "a/b", "-x", "a b", "ä"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
