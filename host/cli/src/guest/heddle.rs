//! Heddle's kernel: the root image lies in guest memory, in place.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use heddle_abi::boot::{
    KEY_CLEAR_CPUID, KEY_IMAGE, KEY_ISOLATION, KEY_MEMORY, KEY_NOW, KEY_STRACE, KEY_TSC, LOW_MEMORY_END,
};
use heddle_image::Image;

use super::share::kernel_argument;
use super::{Choices, MIB};
use crate::machine::accelerator::Kvm;
use crate::machine::{Clock, Configuration, INSTRUCTIONS_PER_SECOND, Memory};
use crate::{paths, tsc};

const KERNEL: &str = "target/x86_64-unknown-none/release/heddle-kernel";
const KERNEL_CHECKING: &str = "target/x86_64-unknown-none/checking/heddle-kernel";
/// Start of the memory that did not fit below [`LOW_MEMORY_END`].
const HIGH_MEMORY: u64 = 4 << 30;
/// Less than this the kernel and its smallest program do not fit in.
const MEMORY_MIN_BYTES: u64 = 5 * MIB;
/// The emulator rounds the size of memory to this, and refuses a backend of another size.
const MEMORY_UNIT_BYTES: u64 = 8192;

/// The kernel's file: of the ordinary build, or of the checking one.
///
/// # Errors
/// If this tool is neither installed nor inside its repository.
pub fn kernel(checking: bool) -> Result<PathBuf> {
    match paths::data() {
        Some(folder) if !checking => Ok(folder.join(paths::KERNEL)),
        Some(_) => bail!("--checking needs a clone of Heddle: the checking kernel is built there"),
        None => Ok(paths::repository()?.join(if checking { KERNEL_CHECKING } else { KERNEL })),
    }
}

/// Builds the checking kernel where something has changed.
///
/// # Errors
/// If it cannot be built.
pub fn build_checking() -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--profile", "checking", "--features", "checking"]);
    cargo.args(["--package", "heddle-kernel", "--target", "x86_64-unknown-none"]);
    let status = cargo.current_dir(paths::repository()?).status().context("starting cargo")?;
    if !status.success() {
        bail!("the checking kernel does not build");
    }
    Ok(())
}

/// Where an image at a file offset lies in guest-physical memory, and how much memory the machine needs to hold
/// it and `memory_bytes` besides.
fn lay_out(offset: u64, length: u64, memory_bytes: u64) -> Result<(u64, u64)> {
    let end = (offset + length).next_multiple_of(MEMORY_UNIT_BYTES);
    let address = if offset >= LOW_MEMORY_END {
        offset - LOW_MEMORY_END + HIGH_MEMORY
    } else if end <= LOW_MEMORY_END {
        offset
    } else {
        bail!("the root image would lie across the hole in the machine's memory at 3 GiB");
    };
    // The range below the image serves as memory too.
    Ok((address, (end + memory_bytes.saturating_sub(offset)).next_multiple_of(MEMORY_UNIT_BYTES)))
}

/// The features to leave off, the host's and the user's, and the user's arguments without theirs: the kernel looks at
/// a key once.
fn cleared_features(unusable: &[&str], arguments: &str) -> (String, String) {
    let of_user = |word: &&str| word.strip_prefix(KEY_CLEAR_CPUID).is_some_and(|rest| rest.starts_with('='));
    let (theirs, rest): (Vec<&str>, Vec<&str>) = arguments.split_whitespace().partition(of_user);
    let theirs = theirs.iter().map(|word| &word[KEY_CLEAR_CPUID.len() + 1..]);
    let cleared: Vec<&str> = unusable.iter().copied().chain(theirs).collect();
    (cleared.join(","), rest.join(" "))
}

/// The machine for Heddle.
///
/// # Errors
/// If there is no kernel, or no machine can be like that.
pub fn configure(choices: &Choices, image: &Image) -> Result<Configuration> {
    let kernel = kernel(choices.checking)?;
    if !kernel.is_file() {
        bail!("no kernel at {}: start this tool by ./heddle, which builds it", kernel.display());
    }
    if choices.memory_bytes < MEMORY_MIN_BYTES {
        bail!("--memory: Heddle needs {} MiB at least", MEMORY_MIN_BYTES.div_ceil(MIB));
    }
    let (address, size_bytes) = lay_out(image.start(), image.whole_length(), choices.memory_bytes)?;
    let file_bytes = image.file().metadata().context("the root image's file")?.len();
    if size_bytes > file_bytes {
        bail!("--memory: {} MiB is more than a machine can have", choices.memory_bytes / MIB);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock")?.as_nanos();
    let memory = choices.memory_bytes;
    let mut command_line =
        format!("{KEY_IMAGE}={address:#x},{:#x} {KEY_MEMORY}={memory} {KEY_NOW}={now}", image.whole_length());
    let hertz = match choices.clock {
        Clock::Host => tsc::frequency_hz(&paths::cache()?)?,
        Clock::Instructions => Some(INSTRUCTIONS_PER_SECOND),
    };
    if let Some(hertz) = hertz {
        write!(command_line, " {KEY_TSC}={hertz}")?;
    }
    if let Some(value) = choices.isolation.value() {
        write!(command_line, " {KEY_ISOLATION}={value}")?;
    }
    command_line.push_str(choices.mitigations.kernel_argument());
    if choices.strace {
        write!(command_line, " {KEY_STRACE}=1")?;
    }
    let accelerator = choices.accelerator()?;
    let unusable = accelerator.kvm.map(Kvm::unusable).unwrap_or_default();
    let (cleared, arguments) = cleared_features(&unusable, &choices.kernel_arguments);
    if !cleared.is_empty() {
        write!(command_line, " {KEY_CLEAR_CPUID}={cleared}")?;
    }
    if let Some(shares) = kernel_argument(&choices.shares)? {
        write!(command_line, " {shares}")?;
    }
    if let Some(network) = choices.network.kernel_argument()? {
        write!(command_line, " {network}")?;
    }
    if !arguments.is_empty() {
        write!(command_line, " {arguments}")?;
    }
    Ok(Configuration {
        kernel,
        command_line,
        initramfs: None,
        memory: Memory::File {
            path: image.path.clone(),
            size_bytes,
            loaded: image.layer.as_ref().map(|layer| (layer.path.clone(), address)),
        },
        root: Vec::new(),
        processors: choices.processors,
        acpi: false,
        serial_log: false,
        clock: choices.clock,
        seed: choices.seed,
        accelerator,
        cpu: choices.cpu.clone(),
        debugger_port: choices.debugger_port,
        shares: choices.shares.clone(),
        watches_shares: true,
        network: choices.network.clone(),
    })
}

#[cfg(test)]
mod tests {
    use heddle_abi::boot::{LARGE_IMAGE_OFFSET, LAYER_BYTES_MAX};

    use super::*;

    const IMAGE_OFFSET: u64 = 64 * MIB;

    #[test]
    fn memory_lies_around_the_image() {
        let (address, size) = lay_out(IMAGE_OFFSET, 100 * MIB + 1, 256 * MIB).unwrap();
        assert_eq!(address, IMAGE_OFFSET);
        assert_eq!(size, 64 * MIB + 100 * MIB + MEMORY_UNIT_BYTES + 192 * MIB);
        let (_, size) = lay_out(IMAGE_OFFSET, MIB, 16 * MIB).unwrap();
        assert_eq!(size, 65 * MIB, "memory that fits below the image needs no more after it");
        // An image may start at any page, because its layer does.
        for start in [IMAGE_OFFSET - 4096, IMAGE_OFFSET - 91 * 4096] {
            let (address, size) = lay_out(start, 100 * MIB, 256 * MIB).unwrap();
            assert_eq!((address, size % MEMORY_UNIT_BYTES), (start, 0));
            assert!(size >= 356 * MIB);
        }
    }

    #[test]
    fn the_features_that_are_off_are_one_list() {
        let text = format!("a=1 {KEY_CLEAR_CPUID}=kvm b=2");
        let expected = (String::from("smap,xsave,kvm"), String::from("a=1 b=2"));
        assert_eq!(cleared_features(&["smap", "xsave"], &text), expected);
        assert_eq!(cleared_features(&[], "a=1"), (String::new(), String::from("a=1")));
    }

    #[test]
    fn a_large_image_goes_above_the_hole() {
        assert!(lay_out(IMAGE_OFFSET, 3 << 30, 256 * MIB).is_err());
        let (address, size) = lay_out(LOW_MEMORY_END, 4 << 30, 256 * MIB).unwrap();
        assert_eq!((address, size), (HIGH_MEMORY, 7 << 30));
        // There is room for a layer before it, above the hole too.
        let (address, size) = lay_out(LARGE_IMAGE_OFFSET - LAYER_BYTES_MAX, 4 << 30, 256 * MIB).unwrap();
        assert_eq!((address, size), (HIGH_MEMORY, 7 << 30));
    }
}
