//! `heddle info`: what a bug report needs.

use std::process::Command;

use anyhow::{Context, Result};
use heddle_image::Cache;
use serde::Serialize;

use crate::guest::heddle;
use crate::machine::QEMU;
use crate::machine::accelerator::{Accelerator, Choice};
use crate::paths;

/// Shows versions, the accelerator and the cache.
#[derive(Clone, Debug, clap::Args)]
pub struct InfoOptions {
    /// As one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Info {
    version: String,
    kernel: String,
    qemu: String,
    accelerator: &'static str,
    accelerator_reason: String,
    host_kernel: String,
    cache: String,
    cache_bytes: u64,
}

/// Runs the command and says with which status to end.
///
/// # Errors
/// If something cannot be asked.
pub fn execute(options: &InfoOptions) -> Result<u8> {
    let qemu = Command::new(QEMU).arg("--version").output();
    let qemu = qemu.map_or_else(|error| format!("none: {error}"), |output| first_line(&output.stdout));
    let accelerator = Accelerator::decide(Choice::Auto)?;
    let cache = Cache::of_user()?;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").context("the host's kernel")?;
    let info = Info {
        version: paths::version(),
        kernel: heddle::kernel(false)?.display().to_string(),
        qemu,
        accelerator: accelerator.name(),
        accelerator_reason: accelerator.reason,
        host_kernel: release.trim().to_owned(),
        cache: cache.directory().display().to_string(),
        cache_bytes: cache.size_bytes(),
    };
    if options.json {
        crate::out!("{}", serde_json::to_string_pretty(&info)?);
        return Ok(0);
    }
    crate::out!("heddle       {}", info.version);
    crate::out!("kernel       {}", info.kernel);
    crate::out!("QEMU         {}", info.qemu);
    crate::out!("accelerator  {}: {}", info.accelerator, info.accelerator_reason);
    crate::out!("host kernel  {}", info.host_kernel);
    crate::out!("cache        {}, {} MB", info.cache, info.cache_bytes / 1_000_000);
    Ok(0)
}

fn first_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().next().unwrap_or_default().to_owned()
}
