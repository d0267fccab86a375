//! The cache of images, shared by all runs of a user.
//!
//! ```text
//! images/KEY      a backing file, written once, never changed
//! memos/REQUEST   which image answers a request, and until when
//! locks/KEY       held while an image is made, so that two runs don't make the same one
//! packages/       what apt fetched
//! ```
//!
//! A process that uses an image holds a shared lock on its file; cleaning takes an exclusive one before it removes the
//! file, and leaves alone what it can't lock. A lock is only worth something on the file that the path names at that
//! moment: it may have been removed between opening and locking, so every lock is followed by a look whether it is
//! still there.
//!
//! The time of a file's last access is that of the image's last use. After a new image was made, those are removed that
//! were not used for [`UNUSED_MAX`], and then the least recently used ones beyond [`IMAGES_BYTES_MAX`].

use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use heddle_erofs::write::WriteError;
use rustix::fs::{FlockOperation, flock};

use crate::backing;
use crate::memo::Memo;
use crate::{Assembly, Error, ImageRequest, Progress, assemble, key};

/// Prefix of files that are being written. Their writers hold them locked.
const TEMPORARY: &str = "tmp-";

/// The file in the directory of packages that is locked by the process that works there.
const PACKAGES_LOCK: &str = "lock";

/// The contents that the specification of cache directories requires of their tag.
const CACHE_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n";

/// The space on disk that images may take together, after a new one was made.
pub const IMAGES_BYTES_MAX: u64 = 20_000_000_000;
/// How long an image stays without being used.
pub const UNUSED_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// A directory of images.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: PathBuf,
}

/// An image in the cache, kept from being cleaned away as long as this lives.
#[derive(Debug)]
pub struct Image {
    /// The file to back guest memory with.
    pub path: PathBuf,
    /// Where in it the image starts.
    pub offset: u64,
    /// The image's length in bytes.
    pub length: u64,
    /// The program's path in the guest.
    pub program: PathBuf,
    /// Warnings about files that were left out or are out of date; empty when the image was made before.
    pub warnings: Vec<String>,
    /// The open file with its shared lock.
    lock: File,
}

impl Image {
    /// The open backing file. Its shared lock belongs to the open file: a process that inherits the descriptor holds it
    /// too.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.lock
    }
}

/// An image as it lies in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedImage {
    /// Its backing file.
    pub path: PathBuf,
    /// The space it takes on disk.
    pub size_bytes: u64,
    /// Whether a machine runs from it now.
    pub in_use: bool,
    /// When it was used last.
    pub used: SystemTime,
}

/// The result of [`Cache::clean`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// The space that was freed.
    pub freed_bytes: u64,
    /// Images that are in use and stayed.
    pub in_use: usize,
}

impl Cache {
    /// The user's cache: `$XDG_CACHE_HOME/heddle`, or `~/.cache/heddle`.
    pub fn of_user() -> Result<Self, Error> {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
        base.map(|base| Cache::at(base.join("heddle"))).ok_or(Error::NoCacheDirectory)
    }

    /// A cache in `directory`, which is made when it is needed.
    #[must_use]
    pub fn at(directory: PathBuf) -> Self {
        Cache { directory }
    }

    /// Where the cache is.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where fetched packages are kept, locked: two fetches into one directory would trip over each other, and
    /// cleaning must not remove what is being read.
    pub(crate) fn packages(&self) -> Result<(PathBuf, File), Error> {
        let directory = self.subdirectory("packages")?;
        let lock = lock_exclusive(&directory.join(PACKAGES_LOCK))?;
        Ok((directory, lock))
    }

    /// The image that `request` asks for, made if there is none.
    pub fn image(&self, request: &ImageRequest, progress: &mut dyn FnMut(Progress)) -> Result<Image, Error> {
        let memo_path = self.subdirectory("memos")?.join(key::of_request(request));
        let memo = Memo::read(&memo_path);
        if let Some(memo) = memo.as_ref().filter(|memo| memo.holds())
            && let Some(image) = self.open(&memo.key, &memo.program)?
        {
            return Ok(image);
        }
        progress(Progress::Assembling);
        let mut assembly = match assemble(request, self, progress) {
            Ok(assembly) => assembly,
            // A package fetched before is better than nothing when there is no network.
            Err(Error::Fetch(text)) => {
                let before =
                    memo.and_then(|memo| self.open(&memo.key, &memo.program).transpose()).transpose()?;
                let mut image = before.ok_or_else(|| Error::Fetch(text.clone()))?;
                image.warnings.push(format!("packages may be out of date: {text}"));
                return Ok(image);
            }
            Err(error) => return Err(error),
        };
        let key = key::of_tree(assembly.root.tree(), &assembly.archives);
        let mut image = self.open_or_make(&key, &assembly, progress)?;
        // The image itself is in use now. A program that uses another image keeps `clean` from removing it too, which
        // says so.
        let _ = self.evict(IMAGES_BYTES_MAX, UNUSED_MAX);
        let stamps = std::mem::take(&mut assembly.stamps);
        let memo = Memo { key, program: assembly.program, stamps };
        match memo.write(&memo_path) {
            // Cleaned away while it was written: there is just no memo then.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::Cache(memo_path, error));
            }
            _ => {}
        }
        image.warnings = assembly.root.take_warnings();
        Ok(image)
    }

    /// All images.
    pub fn images(&self) -> Result<Vec<CachedImage>, Error> {
        let mut images = Vec::new();
        for path in self.entries("images")? {
            let finished =
                path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with(TEMPORARY));
            if !finished {
                continue;
            }
            if let Ok(metadata) = fs::metadata(&path) {
                let in_use = File::open(&path).is_ok_and(|file| !try_lock(&file));
                let used = metadata.accessed().unwrap_or(SystemTime::UNIX_EPOCH);
                images.push(CachedImage { path, size_bytes: metadata.blocks() * 512, in_use, used });
            }
        }
        images.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(images)
    }

    /// The space that the cache takes on disk.
    pub fn size_bytes(&self) -> u64 {
        size_of(&self.directory)
    }

    /// Removes images that were not used for `unused_max`, and then the least recently used ones until all take at most
    /// `bytes_max`. Those that are in use stay.
    pub fn evict(&self, bytes_max: u64, unused_max: Duration) -> Result<Cleaned, Error> {
        let mut images = self.images()?;
        images.sort_by_key(|image| image.used);
        let mut bytes: u64 = images.iter().map(|image| image.size_bytes).sum();
        let mut cleaned = Cleaned::default();
        let now = SystemTime::now();
        for image in images {
            let is_old = now.duration_since(image.used).is_ok_and(|unused| unused > unused_max);
            if !is_old && bytes <= bytes_max {
                continue;
            }
            let Ok(file) = File::open(&image.path) else { continue };
            if !try_lock(&file) {
                cleaned.in_use += 1;
            } else if is_at(&file, &image.path) {
                remove(&image.path)?;
                cleaned.freed_bytes += image.size_bytes;
                bytes -= image.size_bytes;
            }
        }
        Ok(cleaned)
    }

    /// Removes everything but images that are in use.
    pub fn clean(&self) -> Result<Cleaned, Error> {
        let before = self.size_bytes();
        let mut in_use = 0;
        for name in ["images", "locks"] {
            for path in self.entries(name)? {
                // Opening a file that is gone by now is fine, and so is removing it twice.
                let Ok(file) = File::open(&path) else { continue };
                if try_lock(&file) {
                    if is_at(&file, &path) {
                        remove(&path)?;
                    }
                } else {
                    in_use += usize::from(name == "images");
                }
            }
        }
        for path in self.entries("memos")? {
            remove(&path)?;
        }
        let lock_path = self.directory.join("packages").join(PACKAGES_LOCK);
        let lock = OpenOptions::new().write(true).open(&lock_path);
        // Without the lock file nothing was ever fetched; with the lock taken, another process is fetching. The file
        // itself stays, for those who wait for it.
        if lock.is_ok_and(|lock| try_lock(&lock)) {
            for path in self.entries("packages")?.into_iter().filter(|path| *path != lock_path) {
                let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                removed.map_err(|error| Error::Cache(path, error))?;
            }
        }
        Ok(Cleaned { freed_bytes: before.saturating_sub(self.size_bytes()), in_use })
    }

    fn open_or_make(
        &self,
        key: &str,
        assembly: &Assembly,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Image, Error> {
        if let Some(image) = self.open(key, &assembly.program)? {
            return Ok(image);
        }
        let _lock = lock_exclusive(&self.subdirectory("locks")?.join(key))?;
        loop {
            // The previous holder of the lock may have made the file, and a cleaning process may have removed it since.
            if let Some(image) = self.open(key, &assembly.program)? {
                return Ok(image);
            }
            self.make(key, assembly, progress)?;
        }
    }

    fn make(&self, key: &str, assembly: &Assembly, progress: &mut dyn FnMut(Progress)) -> Result<(), Error> {
        let directory = self.subdirectory("images")?;
        let at = |error| Error::Cache(directory.clone(), error);
        let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&directory).map_err(at)?;
        lock(file.as_file(), FlockOperation::LockExclusive).map_err(at)?;
        if !is_at(file.as_file(), file.path()) {
            // Cleaned away before it was locked: the caller tries again.
            return Ok(());
        }
        backing::write(file.as_file_mut(), assembly.root.tree(), progress).map_err(|error| match error {
            // No room, say: the user has to know where.
            WriteError::Write(error) => at(error),
            error => Error::Image(error),
        })?;
        // The name must not outlive a power failure that the contents didn't.
        file.as_file().sync_data().map_err(at)?;
        file.persist(directory.join(key)).map_err(|error| at(error.error))?;
        Ok(())
    }

    /// The image of this name, locked, if there is one.
    fn open(&self, key: &str, program: &Path) -> Result<Option<Image>, Error> {
        let path = self.directory.join("images").join(key);
        let at = |error| Error::Cache(path.clone(), error);
        loop {
            let lock = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(at(error)),
            };
            self::lock(&lock, FlockOperation::LockShared).map_err(at)?;
            if !is_at(&lock, &path) {
                continue;
            }
            let Some((offset, length)) = backing::place(lock.metadata().map_err(at)?.len()) else {
                return Err(at(io::ErrorKind::UnexpectedEof.into()));
            };
            // A file of another user, or on a read-only file system, keeps its time.
            let _ = lock.set_times(FileTimes::new().set_accessed(SystemTime::now()));
            let program = program.to_owned();
            return Ok(Some(Image { path, offset, length, program, warnings: Vec::new(), lock }));
        }
    }

    fn subdirectory(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.directory.join(name);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(|error| Error::Cache(path.clone(), error))?;
        // Backups leave out directories with this file; one that reads holes would be years at it.
        let tag = self.directory.join("CACHEDIR.TAG");
        if !tag.exists() {
            fs::write(&tag, CACHE_TAG).map_err(|error| Error::Cache(tag, error))?;
        }
        Ok(path)
    }

    /// The paths in a subdirectory, which may be missing.
    fn entries(&self, name: &str) -> Result<Vec<PathBuf>, Error> {
        let path = self.directory.join(name);
        match fs::read_dir(&path) {
            Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(Error::Cache(path, error)),
        }
    }
}

/// Opens and locks the file at `path`, made if missing; other processes that want it wait until the file is dropped.
fn lock_exclusive(path: &Path) -> Result<File, Error> {
    let at = |error| Error::Cache(path.to_owned(), error);
    loop {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(at)?;
        lock(&file, FlockOperation::LockExclusive).map_err(at)?;
        if is_at(&file, path) {
            return Ok(file);
        }
    }
}

fn lock(file: &File, operation: FlockOperation) -> io::Result<()> {
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Locks a file exclusively, if no process holds a lock on it.
fn try_lock(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Whether `path` names this very file.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::Cache(path.to_owned(), error)),
        _ => Ok(()),
    }
}

/// The space that a file, or all in and below a directory, takes on disk.
fn size_of(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return 0;
    };
    let entries = if metadata.is_dir() { fs::read_dir(path).ok() } else { None };
    let below = entries.into_iter().flatten().flatten().map(|entry| size_of(&entry.path()));
    metadata.blocks() * 512 + below.sum::<u64>()
}
