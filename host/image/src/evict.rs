//! Removing what the cache need not keep: images, layers, packages and leftovers.
//!
//! After a new image was made, files go that were not used for [`UNUSED_MAX`], and then the least recently used ones
//! beyond [`IMAGES_BYTES_MAX`] and [`PACKAGES_BYTES_MAX`]. Files in use stay: their users hold locks on them.
//! Writers do too, so an unlocked file whose name says that it is being written has lost its writer.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::cache::{PACKAGES_LOCK, TEMPORARY, is_at, remove, size_of, try_lock};
use crate::memo::Memo;
use crate::{Cache, Error};

/// The space on disk that images may take together, after a new one was made.
pub const IMAGES_BYTES_MAX: u64 = 20_000_000_000;
/// The same for fetched packages.
const PACKAGES_BYTES_MAX: u64 = 5_000_000_000;
/// How long an image or a package stays without being used.
pub const UNUSED_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// How old a file without a lock is that a process left behind when it was ended.
const LEFTOVER_AGE: Duration = Duration::from_secs(3600);

/// An image, or a layer of one, as it lies in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedImage {
    /// Its file.
    pub path: PathBuf,
    /// The space it takes on disk.
    pub size_bytes: u64,
    /// Whether a machine runs from it now.
    pub in_use: bool,
    /// When it was used last.
    pub used: SystemTime,
}

/// The result of [`Cache::clean`] and [`Cache::evict`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// The space that was freed.
    pub freed_bytes: u64,
    /// Images that are in use and stayed.
    pub in_use: usize,
}

impl Cache {
    /// All images.
    pub fn images(&self) -> Result<Vec<CachedImage>, Error> {
        let mut images: Vec<_> =
            self.entries("images")?.into_iter().filter(|path| !is_unfinished(path)).collect();
        images.sort();
        Ok(images.into_iter().filter_map(describe).collect())
    }

    /// The space that the cache takes on disk.
    pub fn size_bytes(&self) -> u64 {
        size_of(self.directory())
    }

    /// Removes images that were not used for `unused_max`, and then the least recently used ones until all take at most
    /// `bytes_max`; packages likewise, by a bound of their own. Those that are in use stay. Files that nobody
    /// can use any more go too.
    pub fn evict(&self, bytes_max: u64, unused_max: Duration) -> Result<Cleaned, Error> {
        let mut cleaned = Cleaned::default();
        for path in self.entries("images")?.into_iter().filter(|path| is_unfinished(path)) {
            cleaned.freed_bytes += remove_unlocked(&path)?.unwrap_or_default();
        }
        evict(self.images()?, bytes_max, unused_max, &mut cleaned)?;
        self.remove_orphans(&mut cleaned)?;
        self.with_packages(|packages| {
            let archives = packages.iter().filter(|path| path.extension().is_some_and(|name| name == "deb"));
            let archives = archives.filter_map(|path| describe(path.clone())).collect();
            // No archive is locked by itself.
            evict(archives, PACKAGES_BYTES_MAX, unused_max, &mut cleaned)
        })?;
        Ok(cleaned)
    }

    /// Removes everything but images that are in use.
    pub fn clean(&self) -> Result<Cleaned, Error> {
        let before = self.size_bytes();
        let mut in_use = 0;
        for name in ["images", "locks"] {
            for path in self.entries(name)? {
                let stays = remove_unlocked(&path)?.is_none();
                in_use += usize::from(stays && name == "images");
            }
        }
        for path in self.entries("memos")? {
            remove(&path)?;
        }
        self.with_packages(|_| {
            let lock = self.directory().join("packages").join(PACKAGES_LOCK);
            for path in self.entries("packages")?.into_iter().filter(|path| *path != lock) {
                let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                removed.map_err(|error| Error::Cache(path, error))?;
            }
            Ok(())
        })?;
        Ok(Cleaned { freed_bytes: before.saturating_sub(self.size_bytes()), in_use })
    }

    /// Removes layers without the image below them, memos of images that are gone, locks of images that nobody makes.
    fn remove_orphans(&self, cleaned: &mut Cleaned) -> Result<(), Error> {
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut names: HashSet<String> = self.entries("images")?.iter().map(|path| name(path)).collect();
        let images = names.clone();
        for layer in &images {
            let lower = layer.split_once('-').filter(|_| !layer.starts_with(TEMPORARY));
            if lower.is_some_and(|(_, lower)| !images.contains(lower)) {
                let path = self.directory().join("images").join(layer);
                cleaned.freed_bytes += remove_unlocked(&path)?.unwrap_or_default();
                names.remove(layer);
            }
        }
        for path in self.entries("memos")? {
            let is_useless = match Memo::key_at(&path) {
                Some(key) => !names.contains(&key),
                // Damaged, or being written by a process that may be gone.
                None => true,
            };
            if is_useless && is_older(&path, LEFTOVER_AGE) {
                remove(&path)?;
            }
        }
        for path in self.entries("locks")?.into_iter().filter(|path| is_older(path, LEFTOVER_AGE)) {
            remove_unlocked(&path)?;
        }
        Ok(())
    }

    /// Gives `work` all archives, unless another process is working on them.
    fn with_packages(&self, work: impl FnOnce(&[PathBuf]) -> Result<(), Error>) -> Result<(), Error> {
        let lock = OpenOptions::new().write(true).open(self.directory().join("packages").join(PACKAGES_LOCK));
        // Without the lock file nothing was ever fetched; with the lock taken, another process is fetching. The file
        // itself stays, for those who wait for it.
        match lock {
            Ok(lock) if try_lock(&lock) => work(&self.entries("packages/archives")?),
            _ => Ok(()),
        }
    }
}

/// Removes what is older than `unused_max`, and the oldest until the rest takes at most `bytes_max`.
fn evict(
    mut files: Vec<CachedImage>,
    bytes_max: u64,
    unused_max: Duration,
    cleaned: &mut Cleaned,
) -> Result<(), Error> {
    files.sort_by_key(|file| file.used);
    let mut bytes: u64 = files.iter().map(|file| file.size_bytes).sum();
    let now = SystemTime::now();
    for file in files {
        let is_old = now.duration_since(file.used).is_ok_and(|unused| unused > unused_max);
        if !is_old && bytes <= bytes_max {
            continue;
        }
        match remove_unlocked(&file.path)? {
            Some(freed) => {
                cleaned.freed_bytes += freed;
                bytes -= file.size_bytes;
            }
            None => cleaned.in_use += 1,
        }
    }
    Ok(())
}

/// Removes a file, unless a process holds a lock on it, and says how much space that frees.
fn remove_unlocked(path: &Path) -> Result<Option<u64>, Error> {
    // A file that is gone by now was removed by another process.
    let Ok(file) = File::open(path) else { return Ok(Some(0)) };
    if !try_lock(&file) {
        return Ok(None);
    }
    if !is_at(&file, path) {
        return Ok(Some(0));
    }
    let bytes = size_of(path);
    remove(path)?;
    Ok(Some(bytes))
}

fn describe(path: PathBuf) -> Option<CachedImage> {
    let metadata = fs::metadata(&path).ok()?;
    let in_use = File::open(&path).is_ok_and(|file| !try_lock(&file));
    let used = metadata.accessed().unwrap_or(SystemTime::UNIX_EPOCH);
    Some(CachedImage { path, size_bytes: metadata.blocks() * 512, in_use, used })
}

/// Whether a file of images is being written, or was.
fn is_unfinished(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(TEMPORARY))
}

fn is_older(path: &Path, age: Duration) -> bool {
    let changed = fs::metadata(path).and_then(|metadata| metadata.modified());
    changed.is_ok_and(|changed| SystemTime::now().duration_since(changed).is_ok_and(|passed| passed > age))
}
