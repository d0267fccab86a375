//! The accelerator: KVM where this host has one that is fast, QEMU's emulator otherwise.
//!
//! Some hosts offer a KVM that interprets the guest's kernel instruction by instruction, many times slower than the
//! emulator. So KVM is tried once with a machine that counts (probe.s), and the answer is kept in the cache under all
//! that it depends on: the host's kernel, its processor, its boot, and QEMU.

#[cfg(target_arch = "x86_64")]
mod probe;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::paths;

/// The variable of the environment that stands for `--accel`.
pub const VARIABLE: &str = "HEDDLE_ACCEL";

const DEVICE: &str = "/dev/kvm";

/// The user's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Choice {
    /// KVM if it works here and is faster, else the emulator.
    #[default]
    Auto,
    /// The host's processor.
    Kvm,
    /// QEMU's emulator.
    Tcg,
}

/// The option `--accel`.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[group(skip)]
pub struct AcceleratorOptions {
    /// How instructions are executed: by the host's processor (kvm), by QEMU's emulator (tcg), or by what is faster.
    #[arg(long, value_enum, default_value_t = Choice::Auto, env = VARIABLE, hide_env = true)]
    pub accel: Choice,
}

static CHOICE: OnceLock<Choice> = OnceLock::new();

/// Makes a choice hold for all machines of this process. The first call counts.
pub fn choose(choice: Choice) {
    let _ = CHOICE.set(choice);
}

/// The choice for the machines of this process.
#[must_use]
pub fn choice() -> Choice {
    CHOICE.get().copied().unwrap_or_default()
}

impl Choice {
    /// The name as the user writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// The properties of this host's KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kvm {
    /// Whether kernels run faster than in the emulator.
    pub is_fast: bool,
    /// Whether it knows the instructions of supervisor-mode access prevention, or the processor does not have them.
    pub has_smap: bool,
    /// Whether it knows the instructions that save extended registers, or the processor does not have them.
    pub has_xsave: bool,
    /// Whether it takes the register by which processors name their faults. QEMU ends where it names it and refuses it.
    pub has_capabilities: bool,
}

impl Kvm {
    /// The suffix for QEMU's `-cpu`: features that its model must not have here.
    #[must_use]
    pub const fn model_suffix(self) -> &'static str {
        if self.has_capabilities { "" } else { WITHOUT_CAPABILITIES }
    }

    /// The features that the guest's kernel must not use although the processor has them, as Linux names them.
    #[must_use]
    pub fn unusable(self) -> Vec<&'static str> {
        let features = [(self.has_smap, "smap"), (self.has_xsave, "xsave")];
        features.into_iter().filter(|(has, _)| !has).map(|(_, name)| name).collect()
    }
}

/// See [`Kvm::has_capabilities`].
const WITHOUT_CAPABILITIES: &str = ",-arch-capabilities";

/// The accelerator of a machine, and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// KVM, or else the emulator.
    pub kvm: Option<Kvm>,
    /// Why, for the log.
    pub reason: String,
}

impl Accelerator {
    /// The emulator.
    #[must_use]
    pub fn tcg(reason: &str) -> Self {
        Self { kvm: None, reason: reason.to_owned() }
    }

    /// The name as QEMU has it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        if self.kvm.is_some() { "kvm" } else { "tcg" }
    }

    /// Decides for a machine whose clock is the host's.
    ///
    /// # Errors
    /// If KVM was asked for and is not to be had, or the cache cannot be used.
    pub fn decide(choice: Choice) -> Result<Self> {
        if choice == Choice::Tcg {
            return Ok(Self::tcg("asked for"));
        }
        let obstacle = obstacle();
        if choice == Choice::Kvm {
            if let Some(obstacle) = obstacle {
                bail!("--accel kvm: {obstacle}");
            }
            let Some(kvm) = measured()? else { bail!("--accel kvm: QEMU starts no machine with {DEVICE}") };
            return Ok(Self { kvm: Some(kvm), reason: "asked for".to_owned() });
        }
        if let Some(obstacle) = obstacle {
            if obstacle.is_mendable {
                crate::say!("{obstacle}; going on with the emulator");
            }
            return Ok(Self::tcg(&obstacle.to_string()));
        }
        Ok(match measured()? {
            None => Self::tcg("QEMU starts no machine with KVM"),
            Some(kvm) if kvm.is_fast => Self { kvm: Some(kvm), reason: "KVM is fast here".to_owned() },
            Some(_) => Self::tcg("KVM runs kernels slower than the emulator here"),
        })
    }
}

/// A reason why KVM cannot be used.
#[derive(Debug)]
struct Obstacle {
    text: String,
    /// Whether the user can do something about it.
    is_mendable: bool,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.text)
    }
}

fn obstacle() -> Option<Obstacle> {
    obstacle_of(Path::new(DEVICE))
}

fn obstacle_of(device: &Path) -> Option<Obstacle> {
    if cfg!(not(target_arch = "x86_64")) {
        return Some(Obstacle { text: "this host's processor is not x86-64".into(), is_mendable: false });
    }
    let error = rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).err()?;
    let device = device.display();
    Some(match error {
        Errno::ACCESS | Errno::PERM => Obstacle {
            text: format!(
                "no permission to use {device}: add yourself to its group (sudo usermod -aG kvm $USER)"
            ),
            is_mendable: true,
        },
        Errno::NOENT => Obstacle { text: format!("there is no {device}"), is_mendable: false },
        error => Obstacle { text: format!("{device}: {error}"), is_mendable: false },
    })
}

/// The properties of KVM, from the cache or by trying; `None` if no machine starts.
fn measured() -> Result<Option<Kvm>> {
    let cache = paths::cache()?;
    std::fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    remembered(&cache, &key()?, probe)
}

fn probe() -> Result<Option<Kvm>> {
    #[cfg(target_arch = "x86_64")]
    return probe::run(&super::find_qemu()?);
    #[cfg(not(target_arch = "x86_64"))]
    return Ok(None);
}

/// The answer kept in `cache` for `key`, or else that of `probe`, which is kept then.
fn remembered(cache: &Path, key: &str, probe: impl FnOnce() -> Result<Option<Kvm>>) -> Result<Option<Kvm>> {
    let path = cache.join("accelerator");
    if let Ok(text) = std::fs::read_to_string(&path)
        && let Some((answer, of)) = text.split_once('\n')
        && of == key
        && let Some(kvm) = parse(answer)
    {
        return Ok(kvm);
    }
    let kvm = probe()?;
    let scratch = cache.join(format!("accelerator-{}", std::process::id()));
    std::fs::write(&scratch, format!("{}\n{key}", describe(kvm))).context("remembering the accelerator")?;
    std::fs::rename(&scratch, &path).context("remembering the accelerator")?;
    Ok(kvm)
}

fn describe(kvm: Option<Kvm>) -> String {
    let Some(kvm) = kvm else { return "none".to_owned() };
    let mut text = String::from(if kvm.is_fast { "fast" } else { "slow" });
    let features =
        [(kvm.has_smap, " smap"), (kvm.has_xsave, " xsave"), (kvm.has_capabilities, " capabilities")];
    for (has, name) in features {
        if has {
            text.push_str(name);
        }
    }
    text
}

fn parse(text: &str) -> Option<Option<Kvm>> {
    let (first, features) = text.split_once(' ').unwrap_or((text, ""));
    let is_fast = match first {
        "none" => return Some(None),
        "fast" => true,
        "slow" => false,
        _ => return None,
    };
    let has = |name| features.split(' ').any(|feature| feature == name);
    let (has_smap, has_xsave, has_capabilities) = (has("smap"), has("xsave"), has("capabilities"));
    Some(Some(Kvm { is_fast, has_smap, has_xsave, has_capabilities }))
}

/// All that the answer depends on.
fn key() -> Result<String> {
    let read = |path: &str| std::fs::read_to_string(path).with_context(|| path.to_owned());
    let description = read("/proc/cpuinfo")?;
    let model = description.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
    let qemu = super::find_qemu()?;
    let metadata = qemu.metadata().with_context(|| qemu.display().to_string())?;
    let changed = metadata.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut key = String::new();
    writeln!(key, "{}", read("/proc/sys/kernel/random/boot_id")?.trim())?;
    writeln!(key, "{}", read("/proc/sys/kernel/osrelease")?.trim())?;
    writeln!(key, "{model}")?;
    // Raised with what the probe asks.
    writeln!(key, "probe 2")?;
    writeln!(key, "{} {} {}", qemu.display(), metadata.len(), changed.as_nanos())?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_kept_for_its_key() {
        let cache = std::env::temp_dir().join(format!("heddle-accelerator-{}", std::process::id()));
        std::fs::create_dir_all(&cache).unwrap();
        let kvm = |is_fast, has_smap, has_xsave| {
            Some(Kvm { is_fast, has_smap, has_xsave, has_capabilities: has_smap })
        };
        for kvm in [None, kvm(true, false, true), kvm(false, true, false), kvm(true, true, true)] {
            let key = format!("{kvm:?}\n");
            assert_eq!(remembered(&cache, &key, || Ok(kvm)).unwrap(), kvm);
            assert_eq!(remembered(&cache, &key, || bail!("asked again")).unwrap(), kvm);
        }
        assert!(remembered(&cache, "another host", || bail!("asked")).is_err());
        std::fs::remove_dir_all(&cache).unwrap();
    }

    #[test]
    fn a_missing_device_is_no_fault_of_the_user() {
        let obstacle = obstacle_of(Path::new("/nowhere/kvm")).unwrap();
        assert!(!obstacle.is_mendable);
        assert!(obstacle.to_string().contains("/nowhere/kvm"), "{obstacle}");
    }
}
