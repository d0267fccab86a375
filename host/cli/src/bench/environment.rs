//! Where and with what a run took place: without it a figure says little.

use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::guest::{CPU_DEFAULT, linux};
use crate::machine::QEMU;
use crate::machine::accelerator::{self, Accelerator};
use crate::paths;

/// The program of the experiments, which decides instruction counts together with the C library.
const LIBRARY_PACKAGE: &str = "libc6";

/// Everything besides the sources that affects instruction counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The compiler.
    pub rustc: String,
    /// The emulator.
    pub qemu: String,
    /// The C library that guest programs are linked with.
    pub libc: String,
}

impl Versions {
    /// Those of this host.
    ///
    /// # Errors
    /// If one of them can't be asked.
    pub fn here() -> Result<Self> {
        Ok(Self {
            rustc: first_line("rustc", &["--version"])?,
            qemu: first_line(QEMU, &["--version"])?,
            libc: first_line("dpkg-query", &["-W", "-f", "${Package} ${Version}", LIBRARY_PACKAGE])?,
        })
    }
}

/// Where and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// When the run began, in UTC.
    pub date: String,
    /// The state of the sources.
    pub commit: String,
    /// The compiler, the emulator, the C library.
    pub versions: Versions,
    /// The package of the Linux that was compared with.
    pub linux: String,
    /// The host's processor and how many there are.
    pub host: String,
    /// The accelerator of machines whose clock is the host's, and their processor.
    #[serde(default)]
    pub accelerator: String,
    /// The host's load of the last minute when the run began: how noisy it was.
    pub load: String,
}

impl Environment {
    /// This host, now.
    ///
    /// # Errors
    /// If something can't be asked.
    pub fn here() -> Result<Self> {
        let root = paths::repository()?;
        let linux = linux::kernel()?;
        let name = linux.file_name().map(|name| name.to_string_lossy().into_owned());
        let description = std::fs::read_to_string("/proc/cpuinfo").context("/proc/cpuinfo")?;
        let model = description.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let processors = std::thread::available_parallelism().context("counting processors")?;
        let load = std::fs::read_to_string("/proc/loadavg").context("/proc/loadavg")?;
        Ok(Self {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            commit: commit(&root).unwrap_or_else(|_| "unknown".to_owned()),
            versions: Versions::here()?,
            linux: name.unwrap_or_default(),
            host: format!("{processors} x {}", model.map_or("unknown processor", |(_, model)| model)),
            accelerator: format!(
                "{}, -cpu {CPU_DEFAULT}",
                Accelerator::decide(accelerator::choice())?.name()
            ),
            load: load.split_whitespace().next().unwrap_or_default().to_owned(),
        })
    }
}

fn commit(root: &Path) -> Result<String> {
    let root = root.to_str().context("the repository's path is not text")?;
    // The results of the experiments before this one change nothing that it measures.
    let others = format!(":(exclude){}", super::RESULTS);
    let status = ["-C", root, "status", "--porcelain", "--untracked-files=no", "--", ".", &others];
    let dirty = !first_line("git", &status)?.is_empty();
    let commit = first_line("git", &["-C", root, "rev-parse", "--short", "HEAD"])?;
    Ok(if dirty { commit + " with changes" } else { commit })
}

fn first_line(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output().with_context(|| program.to_owned())?;
    if !output.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
}
