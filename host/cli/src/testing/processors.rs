//! Processors that lack something, and KVM as far as this host has it.
//!
//! The matrix is models of processors, each as it is and with single features off. In each of its machines an
//! application runs, which also tells what the kernel says of the processor; in the long tier a core of the guest tests
//! runs too.

use std::path::Path;

use anyhow::Result;

use super::process::{Output, RUN_TIMEOUT, heddle_run, run};
use super::{Tally, Verdict, cargo, guest};
use crate::guest::{Kernel, symbols};
use crate::machine::accelerator::{Accelerator, Choice};

/// The models of processors, oldest first.
const MODELS: [&str; 6] = ["qemu64", "Nehalem", "Haswell", "Skylake-Server", "EPYC", "max"];

/// Features that the kernel can do without: as QEMU names them, and as `/proc/cpuinfo` does.
const FEATURES: [(&str, &str); 20] = [
    ("smep", "smep"),
    ("smap", "smap"),
    ("umip", "umip"),
    ("fsgsbase", "fsgsbase"),
    ("xsave", "xsave"),
    ("xsaveopt", "xsaveopt"),
    ("avx", "avx"),
    ("avx2", "avx2"),
    ("rdrand", "rdrand"),
    ("rdseed", "rdseed"),
    ("pdpe1gb", "pdpe1gb"),
    ("la57", "la57"),
    ("pge", "pge"),
    ("pat", "pat"),
    ("pcid", "pcid"),
    ("invpcid", "invpcid"),
    ("x2apic", "x2apic"),
    ("rdtscp", "rdtscp"),
    ("cx16", "cx16"),
    ("popcnt", "popcnt"),
];

/// Features that the kernel needs: QEMU names them as `/proc/cpuinfo` does, and so does the kernel's message.
const REQUIRED: [&str; 12] =
    ["tsc", "msr", "pae", "cx8", "apic", "cmov", "fxsr", "sse", "sse2", "lm", "nx", "syscall"];

/// The guest tests that depend most on the processor: saved registers, faults, interrupts, clocks.
const CORE: [&str; 3] = ["signal::", "preemption::", "vdso::"];

/// Those that a KVM which interprets the kernel comes through within their deadlines.
const CORE_INTERPRETED: [&str; 2] = ["vdso::", "pipe::"];

/// The application: processes, pipes, and libraries that choose their instructions by the processor. The first line is
/// what the kernel says of the processor, the second a digest that does not depend on it.
const APPLICATION: &str = "grep -m1 ^flags /proc/cpuinfo; \
    seq 1 30000 | sort -k1.2 | awk '{ s += sqrt($1) * NR } END { print s }' | sha256sum";

fn heddle(options: &[&str], command: &[&str]) -> Result<Output, String> {
    let arguments: Vec<&str> = options.iter().chain(&["--"]).chain(command).copied().collect();
    let mut command = heddle_run(Kernel::Heddle, &arguments).map_err(|error| format!("{error:#}"))?;
    run(&mut command, b"", RUN_TIMEOUT).map_err(|error| format!("{error:#}"))
}

/// A processor without a feature that the kernel needs ends in a message that names this one and no other.
fn is_refused(feature: &str) -> Result<(), String> {
    let output = heddle(&["--cpu", &format!("max,-{feature}")], &["true"])?;
    let said = output.complaints();
    let named = said.split_once("this processor lacks the feature ").map(|(_, rest)| rest);
    let named = named.and_then(|rest| rest.split_whitespace().next());
    if output.status == Some(0) || named != Some(feature) {
        return Err(format!("status {:?}, and {named:?} is named: {said}", output.status));
    }
    Ok(())
}

/// Runs the application; `absent` is a feature that programs must not be told of.
fn application(options: &[&str], expected: &str, absent: Option<&str>) -> Result<(), String> {
    let output = heddle(options, &["sh", "-c", APPLICATION])?;
    let text = output.text();
    let (flags, digest) = text.split_once('\n').unwrap_or_default();
    if output.status != Some(0) || digest != expected {
        let (status, said) = (output.status, output.complaints());
        return Err(format!("status {status:?}, digest {digest:?} in place of {expected:?}: {said}"));
    }
    let mut flags = flags.split_whitespace();
    match absent {
        Some(absent) if flags.any(|flag| flag == absent) => {
            Err(format!("{absent} is off, and /proc/cpuinfo has it"))
        }
        _ => Ok(()),
    }
}

/// The kernel's symbol where system calls enter, and its image's text, in which the symbol is looked for.
const ENTRY_SYMBOL: &str = "heddle_syscall_entry";
const TEXT: std::ops::Range<u64> = 0xffff_ffff_8010_0000..0xffff_ffff_8080_0000;
const ENTRY_ALIGNMENT: usize = 16;
/// A guest test that jumps there.
const JUMP: &str = "signal::a_jump_into_the_kernel_is_no_call";

/// The address where system calls enter the kernel.
fn entry() -> Result<u64, String> {
    let kernel = symbols(Kernel::Heddle, false).map_err(|error| format!("{error:#}"))?;
    let kernel = kernel.ok_or("no kernel")?;
    let loader = addr2line::Loader::new(kernel).map_err(|error| error.to_string())?;
    let is_it = |address: &u64| loader.find_symbol(*address) == Some(ENTRY_SYMBOL);
    TEXT.step_by(ENTRY_ALIGNMENT).find(is_it).ok_or_else(|| format!("no symbol {ENTRY_SYMBOL}"))
}

/// A program that jumps to the kernel's entry of system calls makes none; `calls_stray` where the machine delivers
/// them by such jumps.
fn jump(options: &[&str], program: &Path, calls_stray: bool) -> Result<(), String> {
    let told = format!("HEDDLE_CALL_ENTRY={:#x}", entry()?);
    let mut options = options.to_vec();
    options.extend(["--env", &told]);
    if calls_stray {
        options.extend(["--env", "HEDDLE_CALLS_STRAY=1"]);
    }
    core(&options, program, &[JUMP.to_owned()])
}

/// The application's digest on this host.
fn expected() -> Result<String, String> {
    let mut command = std::process::Command::new("sh");
    let output =
        run(command.args(["-c", APPLICATION]), b"", RUN_TIMEOUT).map_err(|error| error.to_string())?;
    output.text().split_once('\n').map(|(_, digest)| digest.to_owned()).ok_or_else(|| output.complaints())
}

/// The core of the guest tests: every one of them passes, or says why it does not apply.
fn core(options: &[&str], program: &Path, names: &[String]) -> Result<(), String> {
    let path = program.to_string_lossy();
    let command: Vec<&str> = std::iter::once(&*path).chain(names.iter().map(String::as_str)).collect();
    let output = heddle(options, &command)?;
    let text = output.text();
    let verdicts: Vec<_> = text.lines().filter_map(guest::parse_line).collect();
    for (name, verdict) in &verdicts {
        if let Verdict::Failed(reason) = verdict {
            return Err(format!("{name}: {reason}"));
        }
    }
    let missing = names.iter().find(|name| !verdicts.iter().any(|(told, _)| told == name));
    match missing {
        Some(name) => Err(format!("{name}: no result: status {:?} {}", output.status, output.complaints())),
        None => Ok(()),
    }
}

/// With KVM a program runs, wherever this host has it. In the long tier the application and the core of the tests do
/// too.
fn kvm(run: impl Fn(&[&str]) -> Result<(), String>) -> Verdict {
    let options = ["--accel", "kvm"];
    match heddle(&options, &["echo", "hello"]) {
        Ok(output) if output.complaints().contains("--accel kvm: ") => Verdict::Skipped(output.complaints()),
        Ok(output) if output.text() != "hello\n" || output.status != Some(0) => {
            Verdict::Failed(format!("status {:?}: {}", output.status, output.complaints()))
        }
        Ok(_) => run(&options).into(),
        Err(reason) => Verdict::Failed(reason),
    }
}

/// The machines of the matrix: `-cpu`, and the feature that is off.
fn machines(is_long: bool) -> Vec<(String, Option<&'static str>)> {
    let mut machines = Vec::new();
    for model in MODELS {
        machines.push((model.to_owned(), None));
        if is_long || model == "max" {
            machines.extend(FEATURES.map(|(feature, flag)| (format!("{model},-{feature}"), Some(flag))));
        }
    }
    machines
}

/// Machines that QEMU does not run: its emulator refuses OSXSAVE in CR4, without end, where a model has XSAVE and
/// nothing of CPUID's leaf 0xd, 1. Linux stands still at that place too.
const NOT_RUN: [&str; 1] = ["Haswell,-xsaveopt"];

/// Runs these tests.
///
/// # Errors
/// If the guest tests' program does not build, or lists no tests.
pub fn test(repository: &Path, is_long: bool, filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let is_chosen = |name: &str| filter.is_none_or(|filter| name.contains(filter));
    for feature in REQUIRED {
        let name = format!("processors/max,-{feature} is refused");
        if is_chosen(&name) {
            tally.record(&name, &is_refused(feature).into());
        }
    }
    let expected = expected().map_err(anyhow::Error::msg)?;
    let program = cargo::program(repository, guest::PACKAGE)?;
    let all = if is_long { guest::list(&program)? } else { Vec::new() };
    let name = "processors/a jump to the entry of calls";
    if is_chosen(name) {
        tally.record(name, &jump(&[], &program, false).into());
    }
    let of = |families: &[&str]| -> Vec<String> {
        let is_wanted = |name: &&String| families.iter().any(|family| name.starts_with(family));
        all.iter().filter(is_wanted).cloned().collect()
    };
    let tests = of(&CORE);
    for (cpu, absent) in machines(is_long) {
        let name = format!("processors/{cpu}");
        if NOT_RUN.contains(&cpu.as_str()) {
            if is_chosen(&name) {
                let reason = "QEMU's emulator refuses OSXSAVE without any extension of XSAVE";
                tally.record(&name, &Verdict::Skipped(reason.to_owned()));
            }
            continue;
        }
        if is_chosen(&name) {
            let options = ["--cpu", &cpu];
            tally.record(&name, &application(&options, &expected, absent).into());
        }
        let name = format!("processors/{cpu}: core");
        if is_long && is_chosen(&name) {
            tally.record(&name, &core(&["--cpu", &cpu], &program, &tests).into());
        }
    }
    if is_chosen("processors/kvm") {
        let more = |options: &[&str]| {
            if is_long { application(options, &expected, None) } else { Ok(()) }
        };
        tally.record("processors/kvm", &kvm(more));
    }
    if is_long && is_chosen("processors/kvm: core") {
        let auto = Accelerator::decide(Choice::Auto);
        let is_fast = auto.is_ok_and(|auto| auto.kvm.is_some());
        let tests = if is_fast { tests } else { of(&CORE_INTERPRETED) };
        tally.record("processors/kvm: core", &kvm(|options| core(options, &program, &tests)));
        // A KVM that interprets the kernel is the kind that has calls stray.
        let name = "processors/kvm: a jump to the entry of calls";
        tally.record(name, &kvm(|options| jump(options, &program, !is_fast)));
    }
    Ok(())
}
