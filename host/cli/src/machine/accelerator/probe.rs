//! Trying KVM with a machine that counts.
#![allow(unsafe_code)] // The machine's kernel is assembled into this program.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use heddle_abi::boot::{DEBUG_CONSOLE_PORT, DEBUG_EXIT_PORT};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Kvm, WITHOUT_CAPABILITIES};
use crate::machine::descriptor_path;

std::arch::global_asm!(include_str!("probe.s"), options(att_syntax, raw));

unsafe extern "C" {
    static heddle_probe_start: u8;
    static heddle_probe_end: u8;
}

/// How long QEMU may take until the guest runs.
const START_MAX: Duration = Duration::from_secs(5);
/// How long the guest may count: four million instructions, which the emulator executes in 5 ms and a processor in 1.
const COUNT_MAX: Duration = Duration::from_millis(100);

/// The file of the machine's kernel.
fn kernel() -> &'static [u8] {
    let (start, end) = (&raw const heddle_probe_start, &raw const heddle_probe_end);
    // SAFETY: probe.s defines both symbols, around constants of this program.
    unsafe { std::slice::from_raw_parts(start, end as usize - start as usize) }
}

/// Starts the machine and watches its progress; `None` if it does not start.
pub fn run(qemu: &Path) -> Result<Option<Kvm>> {
    let mut model = String::from("max");
    let mut first = start(qemu, &model, "+")?;
    let has_capabilities = first.is_some();
    if !has_capabilities {
        model.push_str(WITHOUT_CAPABILITIES);
        first = start(qemu, &model, "+")?;
    }
    let found = match first {
        // The machine stopped there.
        Some(kvm) if !kvm.has_smap => {
            start(qemu, &model, "-")?.map(|second| Kvm { has_smap: false, ..second })
        }
        _ => first,
    };
    Ok(found.map(|kvm| Kvm { has_capabilities, ..kvm }))
}

fn start(qemu: &Path, model: &str, command_line: &str) -> Result<Option<Kvm>> {
    let file = crate::log::unnamed_file("heddle-probe")?;
    // QEMU opens it by its number.
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty())?;
    std::io::Write::write_all(&mut &file, kernel()).context("writing the probe's kernel")?;
    let mut command = Command::new(qemu);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-m", "8M"]);
    command.args(["-M", "microvm,acpi=off", "-accel", "kvm", "-cpu", model]);
    command.args(["-kernel", &descriptor_path(&file), "-append", command_line]);
    command.args(["-chardev", "stdio,id=log,signal=off"]);
    command.args(["-device", &format!("isa-debugcon,iobase={DEBUG_CONSOLE_PORT:#x},chardev=log")]);
    command.args(["-device", &format!("isa-debug-exit,iobase={DEBUG_EXIT_PORT:#x},iosize=1")]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().with_context(|| format!("starting {}", qemu.display()))?;
    let progress =
        child.stdout.take().context("the probe's output").and_then(|mut output| watch(&mut output));
    let _ = child.kill();
    let _ = child.wait();
    progress
}

fn watch(output: &mut (impl Read + AsFd)) -> Result<Option<Kvm>> {
    if !next(output, b'S', START_MAX)? {
        return Ok(None);
    }
    let is_fast = next(output, b'F', COUNT_MAX)?;
    // An interpreter needs its time to get there; whether it then knows the next instructions shows at once.
    let has_smap = (is_fast || next(output, b'F', START_MAX)?) && next(output, b'A', COUNT_MAX)?;
    let has_xsave = has_smap && next(output, b'X', COUNT_MAX)?;
    Ok(Some(Kvm { is_fast, has_smap, has_xsave, has_capabilities: true }))
}

/// Whether the machine writes `wanted` within this time.
fn next(output: &mut (impl Read + AsFd), wanted: u8, within: Duration) -> Result<bool> {
    let deadline = Instant::now() + within;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut descriptors = [PollFd::new(output, PollFlags::IN)];
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Err(rustix::io::Errno::INTR) => continue,
            result => result.context("waiting for the probe")?,
        };
        let mut byte = [0];
        if output.read(&mut byte).context("reading the probe's output")? == 0 {
            return Ok(false);
        }
        if byte[0] == wanted {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_byte_by_byte() {
        let watched = |text: &[u8]| {
            let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
            std::io::Write::write_all(&mut &far, text).unwrap();
            drop(far);
            watch(&mut &near).unwrap()
        };
        assert_eq!(watched(b""), None);
        let kvm =
            |is_fast, has_smap, has_xsave| Some(Kvm { is_fast, has_smap, has_xsave, has_capabilities: true });
        assert_eq!(watched(b"SFAX"), kvm(true, true, true));
        assert_eq!(watched(b"SFA"), kvm(true, true, false));
        assert_eq!(watched(b"SF"), kvm(true, false, false));
        assert_eq!(watched(b"S"), kvm(false, false, false));
    }

    #[test]
    fn the_probe_is_an_elf_file() {
        assert!(kernel().starts_with(b"\x7fELF"));
    }
}
