//! `heddle clean`: empties the cache.

use std::time::Duration;

use anyhow::{Context, Result};
use heddle_image::Cache;

use crate::{cache, paths};

/// Bytes in a megabyte, the unit of what is shown.
const MB: u64 = 1_000_000;

/// Removes cached root images, fetched packages and kernels.
#[derive(Clone, Debug, clap::Args)]
pub struct CleanOptions {
    /// Only show what the cache holds.
    #[arg(long)]
    pub dry_run: bool,
    /// Remove only the images that were not used for this time, as 7d or 12h.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "dry_run")]
    pub older_than: Option<Duration>,
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
        let freed = images.evict(u64::MAX, unused_max)?.freed_bytes;
        crate::out!("freed {} MB", freed / MB);
        return Ok(0);
    }
    let before = images.size_bytes();
    let kernels = paths::cache()?.join("linux");
    if kernels.exists() {
        // A process that fetches a kernel holds the lock; a machine has read its kernel when it runs.
        let _lock = cache::Lock::exclusive(&kernels.join("lock"))?;
        std::fs::remove_dir_all(&kernels).with_context(|| kernels.display().to_string())?;
    }
    let cleaned = images.clean()?;
    let freed = before.saturating_sub(images.size_bytes());
    match cleaned.in_use {
        0 => crate::out!("freed {} MB", freed / MB),
        count => crate::out!("freed {} MB; {count} images are in use and stay", freed / MB),
    }
    Ok(0)
}
