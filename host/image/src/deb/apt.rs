//! Asking apt which packages are needed and to fetch them: with the host's configuration and keys, but as if nothing
//! were installed, and with all that apt writes in a directory of the user's.

use std::fs::{self, File, FileTimes};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use crate::assemble::TOOLS;
use crate::{Architecture, Error, Progress};

/// Where apt keeps the archive's package lists.
const LISTS: &str = "/var/lib/apt/lists";

/// How often it is shown how far apt has come.
const SHOW_INTERVAL: Duration = Duration::from_millis(200);

/// The options of the host's configuration that decide which packages there are.
const CONFIGURATION: [&str; 4] =
    ["/etc/apt/sources.list", "/etc/apt/sources.list.d", "/etc/apt/preferences", "/etc/apt/preferences.d"];

/// apt, at work in a directory.
pub struct Apt {
    directory: PathBuf,
    architecture: Architecture,
}

impl Apt {
    /// Prepares `directory` for apt.
    pub fn new(directory: &Path, architecture: Architecture) -> Result<Self, Error> {
        let at = |path: PathBuf| move |error| Error::Cache(path, error);
        for name in ["archives/partial", "none/partial", "lists/partial"] {
            let path = directory.join(name);
            fs::create_dir_all(&path).map_err(at(path))?;
        }
        let status = directory.join("status");
        File::create(&status).map_err(at(status))?;
        Ok(Apt { directory: directory.to_owned(), architecture })
    }

    /// The host's files that decide what the archive offers.
    pub fn inputs(&self) -> Vec<PathBuf> {
        let mut inputs = vec![PathBuf::from(LISTS), self.directory.join("lists")];
        inputs.extend(CONFIGURATION.map(PathBuf::from));
        inputs
    }

    /// Fetches the packages `names`, all they depend on, and the Essential ones if `base`; returns their files, each
    /// after those it depends on as far as apt could order them.
    pub fn fetch(
        &self,
        names: &[String],
        base: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<PathBuf>, Error> {
        // An option or a suffix in a name would make apt do something else.
        let odd = |name: &&String| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "+-.:=~/".contains(c);
            !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(plain)
        };
        if let Some(name) = names.iter().find(odd) {
            return Err(Error::UnknownPackage(format!("not a package name: {name:?}")));
        }
        let mut wanted: Vec<&str> = names.iter().map(String::as_str).collect();
        if base {
            wanted.push("?essential");
            wanted.extend(TOOLS);
        }
        let own = newest_list(&self.directory.join("lists"));
        let host = newest_list(Path::new(LISTS));
        if own.is_none() && host.is_none() {
            self.update(progress)?;
        }
        let attempt = self.resolve_and_download(&wanted, own >= host, progress);
        match attempt {
            Err(Error::Fetch(text)) if is_outdated(&text) => {
                self.update(progress)?;
                self.resolve_and_download(&wanted, true, progress)
            }
            other => other,
        }
    }

    fn resolve_and_download(
        &self,
        wanted: &[&str],
        own_lists: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<PathBuf>, Error> {
        // Seen from a directory without packages, all of them have to be fetched, and so all are listed.
        let listing = self.run("none", own_lists, &["--print-uris", "install"], wanted, &mut || ());
        let listing = listing.map_err(Error::UnknownPackage)?;
        let listed = listing.lines().filter_map(|line| {
            let mut fields = line.rsplitn(4, ' ');
            let (_hash, size, file) = (fields.next()?, fields.next()?, fields.next()?);
            Some((self.directory.join("archives").join(file), size.parse::<u64>().ok()?))
        });
        let listed: Vec<(PathBuf, u64)> = listed.collect();
        let length = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
        let missing: Vec<_> = listed.iter().filter(|(path, size)| length(path) != *size).collect();
        let (packages, total) = (missing.len(), missing.iter().map(|(_, size)| size).sum());
        if packages > 0 {
            let partial = self.directory.join("archives/partial");
            let mut show = || {
                let here = |path: &Path| {
                    let coming = path.file_name().map_or(0, |name| length(&partial.join(name)));
                    length(path).max(coming)
                };
                let done: u64 = missing.iter().map(|(path, size)| here(path).min(*size)).sum();
                progress(Progress::Fetching { packages, done, total });
            };
            show();
            let action = ["--download-only", "install"];
            self.run("archives", own_lists, &action, wanted, &mut show).map_err(Error::Fetch)?;
        }
        for (path, _) in &listed {
            // The cache forgets what was not used for long; a file of another user keeps its time.
            match File::open(path) {
                Ok(file) => drop(file.set_times(FileTimes::new().set_accessed(SystemTime::now()))),
                Err(_) => return Err(Error::Fetch(format!("apt left no {}", path.display()))),
            }
        }
        Ok(listed.into_iter().map(|(path, _)| path).collect())
    }

    fn update(&self, progress: &mut dyn FnMut(Progress)) -> Result<(), Error> {
        // By itself apt counts an archive that can't be reached as one that has nothing new.
        let action = ["update", "-o", "APT::Update::Error-Mode=any"];
        let mut show = || progress(Progress::UpdatingLists);
        self.run("archives", true, &action, &[], &mut show).map(drop).map_err(Error::Fetch)
    }

    /// Runs `apt-get` and returns its output, or its complaint; calls `show` now and then meanwhile.
    fn run(
        &self,
        archives: &str,
        own_lists: bool,
        action: &[&str],
        wanted: &[&str],
        show: &mut dyn FnMut(),
    ) -> Result<String, String> {
        let directory = &self.directory;
        let mut command = Command::new("apt-get");
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        command.args(["-qq", "--yes", "--no-install-recommends"]);
        let mut option = |name: &str, value: &str| {
            command.arg("-o").arg(format!("{name}={value}"));
        };
        option("Dir::State::status", &directory.join("status").to_string_lossy());
        option("Dir::Cache", &directory.to_string_lossy());
        option("Dir::Cache::archives", &directory.join(archives).to_string_lossy());
        option("Dir::Cache::pkgcache", "pkgcache.bin");
        option("Dir::Cache::srcpkgcache", "srcpkgcache.bin");
        if own_lists {
            option("Dir::State::lists", &directory.join("lists").to_string_lossy());
        }
        option("Debug::NoLocking", "true");
        option("APT::Architecture", self.architecture.debian());
        // apt counts itself among the Essential packages unless told otherwise.
        option("pkgCacheGen::ForceEssential", ",");
        // A user's cache is closed to the account that apt would change to.
        option("APT::Sandbox::User", "");
        command.args(action).arg("--").args(wanted);
        match output_of(command, show) {
            Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            Ok(output) => Err(complaint(&String::from_utf8_lossy(&output.stderr))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err("there is no apt-get".to_owned()),
            Err(error) => Err(format!("apt-get: {error}")),
        }
    }
}

/// Runs a command to its end and returns what it wrote.
fn output_of(mut command: Command, show: &mut dyn FnMut()) -> io::Result<Output> {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    loop {
        match receiver.recv_timeout(SHOW_INTERVAL) {
            Ok(output) => return output,
            Err(mpsc::RecvTimeoutError::Timeout) => show(),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// The errors among what apt wrote.
fn complaint(text: &str) -> String {
    let errors: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("E: ")).collect();
    if errors.is_empty() { text.trim().to_owned() } else { errors.join("; ") }
}

/// Whether packages can't be fetched because the lists name some that the archive has no more.
fn is_outdated(complaint: &str) -> bool {
    ["404", "Hash Sum mismatch", "unexpected size"].iter().any(|sign| complaint.contains(sign))
}

/// When the newest package list in a directory of apt's was published, if there are any.
fn newest_list(directory: &Path) -> Option<SystemTime> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let lists = entries.filter(|entry| entry.file_name().to_string_lossy().contains("_Packages"));
    lists.filter_map(|entry| entry.metadata().ok()?.modified().ok()).max()
}
