//! `heddle clean`: empties the cache.

use std::io;
use std::time::Duration;

use anyhow::{Context, Result};
use heddle_image::Cache;

use crate::oci::root;
use crate::{bundled, cache, paths};

/// Bytes in a megabyte, the unit of what is shown.
const MB: u64 = 1_000_000;

/// Removes cached root images, fetched packages, kernels, and what else can be made again.
#[derive(Clone, Debug, clap::Args)]
pub struct CleanOptions {
    /// Only show what the cache holds.
    #[arg(long)]
    pub dry_run: bool,
    /// Remove only the images and packages that were not used for this time, as 7d or 12h.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "dry_run")]
    pub older_than: Option<Duration>,
}

/// Files of the cache with what was measured of this host.
const MEASURED: [&str; 2] = ["accelerator", "tsc"];

/// Removes folders of containers' roots, and what older builds of the tool had in their files, that are older than
/// this.
fn remove_folders(age: Duration) -> Result<()> {
    let ours = bundled::folder();
    for (folder, made) in paths::cached_folders(&[root::FOLDER, bundled::FOLDER])? {
        if Some(&folder) != ours.as_ref() && made.elapsed().is_ok_and(|passed| passed >= age) {
            std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
    }
    Ok(())
}

/// Runs the command and says with which status to end.
///
/// # Errors
/// If something cannot be removed.
pub fn execute(options: &CleanOptions) -> Result<u8> {
    let images = Cache::of_user()?;
    crate::out!("{}: {} MB", images.directory().display(), images.size_bytes() / MB);
    for image in images.images()? {
        let use_now = if image.in_use { ", in use" } else { "" };
        crate::out!("    {}: {} MB{use_now}", image.path.display(), image.size_bytes / MB);
    }
    if options.dry_run {
        return Ok(0);
    }
    if let Some(unused_max) = options.older_than {
        let before = images.size_bytes();
        images.evict(u64::MAX, unused_max)?;
        remove_folders(unused_max)?;
        crate::out!("freed {} MB", before.saturating_sub(images.size_bytes()) / MB);
        return Ok(0);
    }
    let before = images.size_bytes();
    let kernels = paths::cache()?.join("linux");
    if kernels.exists() {
        // A process that fetches a kernel holds the lock; a machine has read its kernel when it runs.
        let _lock = cache::Lock::exclusive(&kernels.join("lock"))?;
        std::fs::remove_dir_all(&kernels).with_context(|| kernels.display().to_string())?;
    }
    remove_folders(Duration::ZERO)?;
    for name in MEASURED {
        match std::fs::remove_file(paths::cache()?.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).context(name),
            _ => {}
        }
    }
    let cleaned = images.clean()?;
    let freed = before.saturating_sub(images.size_bytes());
    match cleaned.in_use {
        0 => crate::out!("freed {} MB", freed / MB),
        count => crate::out!("freed {} MB; {count} images are in use and stay", freed / MB),
    }
    Ok(0)
}
