//! The cache of images, shared by all runs of a user.
//!
//! ```text
//! images/KEY        a backing file, written once, never changed
//! images/KEY-LOWER  a layer above the image LOWER
//! memos/REQUEST     which image answers a request, and until when
//! locks/KEY         held while an image is made, so that two runs don't make the same one
//! packages/         what apt fetched
//! ```
//!
//! A process that uses an image holds a shared lock on its file; cleaning takes an exclusive one before it removes the
//! file, and leaves alone what it can't lock. A lock is only worth something on the file that the path names at that
//! moment: it may have been removed between opening and locking, so every lock is followed by a look whether it is
//! still there.
//!
//! The time of a file's last access is that of its last use, by which `evict` goes.

use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use heddle_erofs::write::{Plan, WriteError};
use rustix::fs::{FlockOperation, flock};

use crate::evict::{IMAGES_BYTES_MAX, UNUSED_MAX};
use crate::memo::Memo;
use crate::{Assembly, Error, ImageRequest, Progress, assemble, backing, key};

/// Prefix of files that are being written. Their writers hold them locked.
pub const TEMPORARY: &str = "tmp-";

/// The file in the directory of packages that is locked by the process that works there.
pub const PACKAGES_LOCK: &str = "lock";

/// Between the name of a layer and that of the image below it.
const ABOVE: char = '-';

/// The contents that the specification of cache directories requires of their tag.
const CACHE_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n";

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
    /// Where in it the image starts, its layer left out.
    pub offset: u64,
    /// The length in bytes of what is in the file.
    pub length: u64,
    /// The layer, which goes into memory right before it and is the image's start then.
    pub layer: Option<Layer>,
    /// The program's path in the guest.
    pub program: PathBuf,
    /// Warnings about files that were left out or are out of date; empty when the image was made before.
    pub warnings: Vec<String>,
    /// The open file with its shared lock.
    lock: File,
}

/// The part of an image that it does not share with others.
#[derive(Debug)]
pub struct Layer {
    /// Its file.
    pub path: PathBuf,
    /// The file's length.
    pub length: u64,
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

    /// The open file of the layer, if there is one; see [`Image::file`].
    #[must_use]
    pub fn layer_file(&self) -> Option<&File> {
        self.layer.as_ref().map(|layer| &layer.lock)
    }

    /// Where the image starts in the guest's memory, as an offset in the backing file: its layer goes there.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.offset - self.layer.as_ref().map_or(0, |layer| layer.length)
    }

    /// The length of the image in the guest's memory, its layer included.
    #[must_use]
    pub fn whole_length(&self) -> u64 {
        self.offset + self.length - self.start()
    }

    /// The image as the guest's memory has it.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.whole_length()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut bytes = vec![0; length];
        let (layer, lower) = bytes.split_at_mut((self.offset - self.start()) as usize);
        if let Some(file) = self.layer_file() {
            file.read_exact_at(layer, 0)?;
        }
        self.file().read_exact_at(lower, self.offset)?;
        Ok(bytes)
    }
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
        let (key, mut image) = self.of_assembly(&assembly, progress)?;
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

    /// The image of an assembly, with its name: as a layer where that is better.
    fn of_assembly(
        &self,
        assembly: &Assembly,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(String, Image), Error> {
        let program = &assembly.program;
        let tree = assembly.root.tree();
        let key = key::of_tree(tree, &assembly.archives);
        if let Some(lower) = &assembly.lower {
            let lower_plan = Plan::new(lower.tree()).map_err(Error::Image)?;
            let plan = Plan::above(tree, &lower_plan).map_err(Error::Image)?;
            if backing::is_worthwhile(plan.length(), lower_plan.length()) {
                let lower_key = key::of_tree(lower.tree(), &assembly.archives);
                let key = format!("{key}{ABOVE}{lower_key}");
                loop {
                    let whole = |file: &mut File| backing::write(file, &lower_plan, progress).map(drop);
                    // Its lock is held until the image with the layer has one.
                    let _lower = self.open_or_make(&lower_key, program, whole)?;
                    let layer = |file: &mut File| backing::write_layer(file, &plan, progress);
                    if let Some(image) = self.open_or_make(&key, program, layer)? {
                        return Ok((key, image));
                    }
                }
            }
        }
        let plan = Plan::new(tree).map_err(Error::Image)?;
        loop {
            let whole = |file: &mut File| backing::write(file, &plan, progress).map(drop);
            if let Some(image) = self.open_or_make(&key, program, whole)? {
                return Ok((key, image));
            }
        }
    }

    /// The image of this name, made by `write` if there is none. Without one it was cleaned away meanwhile.
    fn open_or_make(
        &self,
        key: &str,
        program: &Path,
        mut write: impl FnMut(&mut File) -> Result<(), WriteError>,
    ) -> Result<Option<Image>, Error> {
        if let Some(image) = self.open(key, program)? {
            return Ok(Some(image));
        }
        let _lock = lock_exclusive(&self.subdirectory("locks")?.join(key))?;
        // The previous holder of the lock may have made the file.
        if let Some(image) = self.open(key, program)? {
            return Ok(Some(image));
        }
        self.make(key, &mut write)?;
        self.open(key, program)
    }

    fn make(
        &self,
        key: &str,
        write: &mut dyn FnMut(&mut File) -> Result<(), WriteError>,
    ) -> Result<(), Error> {
        let directory = self.subdirectory("images")?;
        let at = |error| Error::Cache(directory.clone(), error);
        let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&directory).map_err(at)?;
        lock(file.as_file(), FlockOperation::LockExclusive).map_err(at)?;
        if !is_at(file.as_file(), file.path()) {
            // Cleaned away before it was locked: the caller tries again.
            return Ok(());
        }
        write(file.as_file_mut()).map_err(|error| match error {
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
        let (layer_key, key) = match key.split_once(ABOVE) {
            Some((_, lower)) => (Some(key), lower),
            None => (None, key),
        };
        let layer = match layer_key {
            Some(key) => {
                let Some((path, lock)) = self.open_file(key)? else { return Ok(None) };
                let length = lock.metadata().map_err(|error| Error::Cache(path.clone(), error))?.len();
                Some(Layer { path, length, lock })
            }
            None => None,
        };
        let Some((path, lock)) = self.open_file(key)? else { return Ok(None) };
        let at = |error| Error::Cache(path.clone(), error);
        let Some((offset, length)) = backing::place(lock.metadata().map_err(at)?.len()) else {
            return Err(at(io::ErrorKind::UnexpectedEof.into()));
        };
        Ok(Some(Image {
            path,
            offset,
            length,
            layer,
            program: program.to_owned(),
            warnings: Vec::new(),
            lock,
        }))
    }

    /// A file of images, locked, if it is there.
    fn open_file(&self, name: &str) -> Result<Option<(PathBuf, File)>, Error> {
        let path = self.directory.join("images").join(name);
        let at = |error| Error::Cache(path.clone(), error);
        loop {
            let lock = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(at(error)),
            };
            self::lock(&lock, FlockOperation::LockShared).map_err(at)?;
            if is_at(&lock, &path) {
                // A file of another user, or on a read-only file system, keeps its time.
                let _ = lock.set_times(FileTimes::new().set_accessed(SystemTime::now()));
                return Ok(Some((path, lock)));
            }
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
    pub(crate) fn entries(&self, name: &str) -> Result<Vec<PathBuf>, Error> {
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
pub fn try_lock(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Whether `path` names this very file.
pub fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

pub fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::Cache(path.to_owned(), error)),
        _ => Ok(()),
    }
}

/// The space that a file, or all in and below a directory, takes on disk.
pub fn size_of(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return 0;
    };
    let entries = if metadata.is_dir() { fs::read_dir(path).ok() } else { None };
    let below = entries.into_iter().flatten().flatten().map(|entry| size_of(&entry.path()));
    metadata.blocks() * 512 + below.sum::<u64>()
}
