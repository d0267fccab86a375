//! The processor's description, as `/proc/cpuinfo` has it.

use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::fmt::{Result, Write};

use crate::arch::x86_64::{cpu, float, mitigations, protection_key, time};

/// The names that Linux gives to the bits of a feature word; bits without a name are empty.
type Names = [&'static str; 32];

/// CPUID leaf 1, EDX.
#[rustfmt::skip]
const BASIC: Names = [
    "fpu", "vme", "de", "pse", "tsc", "msr", "pae", "mce", "cx8", "apic", "", "sep", "mtrr", "pge", "mca", "cmov",
    "pat", "pse36", "pn", "clflush", "", "dts", "acpi", "mmx", "fxsr", "sse", "sse2", "ss", "ht", "tm", "ia64", "pbe",
];

/// CPUID leaf 0x80000001, EDX, but for what repeats leaf 1.
#[rustfmt::skip]
const EXTENDED: Names = [
    "", "", "", "", "", "", "", "", "", "", "", "syscall", "", "", "", "",
    "", "", "", "mp", "nx", "", "mmxext", "", "", "fxsr_opt", "pdpe1gb", "rdtscp", "", "lm", "3dnowext", "3dnow",
];

/// CPUID leaf 1, ECX.
#[rustfmt::skip]
const MORE: Names = [
    "pni", "pclmulqdq", "dtes64", "monitor", "ds_cpl", "vmx", "smx", "est",
    "tm2", "ssse3", "cid", "sdbg", "fma", "cx16", "xtpr", "pdcm",
    "", "pcid", "dca", "sse4_1", "sse4_2", "x2apic", "movbe", "popcnt",
    "tsc_deadline_timer", "aes", "xsave", "", "avx", "f16c", "rdrand", "hypervisor",
];

/// CPUID leaf 0x80000001, ECX.
#[rustfmt::skip]
const EXTENDED_MORE: Names = [
    "lahf_lm", "cmp_legacy", "svm", "extapic", "cr8_legacy", "abm", "sse4a", "misalignsse",
    "3dnowprefetch", "osvw", "ibs", "xop", "skinit", "wdt", "", "lwp",
    "fma4", "tce", "", "nodeid_msr", "", "tbm", "topoext", "perfctr_core",
    "perfctr_nb", "", "bpext", "ptsc", "perfctr_llc", "mwaitx", "", "",
];

/// CPUID leaf 7, EBX.
#[rustfmt::skip]
const STRUCTURED: Names = [
    "fsgsbase", "tsc_adjust", "", "bmi1", "hle", "avx2", "", "smep",
    "bmi2", "erms", "invpcid", "rtm", "cqm", "", "mpx", "rdt_a",
    "avx512f", "avx512dq", "rdseed", "adx", "smap", "avx512ifma", "", "clflushopt",
    "clwb", "intel_pt", "avx512pf", "avx512er", "avx512cd", "sha_ni", "avx512bw", "avx512vl",
];

/// CPUID leaf 7, ECX.
#[rustfmt::skip]
const STRUCTURED_MORE: Names = [
    "", "avx512vbmi", "umip", "pku", "ospke", "waitpkg", "avx512_vbmi2", "",
    "gfni", "vaes", "vpclmulqdq", "avx512_vnni", "avx512_bitalg", "tme", "avx512_vpopcntdq", "",
    "la57", "", "", "", "", "", "rdpid", "",
    "", "cldemote", "", "movdiri", "movdir64b", "enqcmd", "", "",
];

/// CPUID leaf 7, EDX; the word of bit 26 stands for two of Linux's.
#[rustfmt::skip]
const STRUCTURED_LAST: Names = [
    "", "", "", "", "fsrm", "", "", "", "", "", "md_clear", "", "", "", "serialize", "",
    "", "", "", "", "", "", "", "", "", "", "ibrs ibpb", "stibp", "flush_l1d", "arch_capabilities", "", "ssbd",
];

/// Features whose registers are there only if the kernel saves AVX's: FMA, AVX, F16C of leaf 1, ECX.
const WITH_AVX: u32 = 1 << 12 | 1 << 28 | 1 << 29;
/// AVX2, of leaf 7, EBX.
const STRUCTURED_WITH_AVX: u32 = 1 << 5;
/// VAES and VPCLMULQDQ, of leaf 7, ECX.
const STRUCTURED_MORE_WITH_AVX: u32 = 1 << 9 | 1 << 10;
/// The parts of AVX-512, of leaf 7, EBX and ECX.
const STRUCTURED_WITH_AVX512: u32 =
    1 << 16 | 1 << 17 | 1 << 21 | 1 << 26 | 1 << 27 | 1 << 28 | 1 << 30 | 1 << 31;
const STRUCTURED_MORE_WITH_AVX512: u32 = 1 << 1 | 1 << 6 | 1 << 11 | 1 << 12 | 1 << 14;
/// Features that the kernel leaves off: FSGSBASE and MPX of leaf 7, EBX; LA57 and ENQCMD of ECX.
const STRUCTURED_OFF: u32 = 1 << 0 | 1 << 14;
const STRUCTURED_MORE_OFF: u32 = 1 << 16 | 1 << 29;
/// PKU and OSPKE, of leaf 7, ECX.
const STRUCTURED_MORE_OF_KEYS: u32 = 1 << 3 | 1 << 4;

/// State components of XCR0.
const AVX: u64 = 1 << 2;
const AVX512: u64 = 0b111 << 5;

/// The words of features that programs can use, with the names of their bits, in Linux's order.
fn features() -> [(u32, &'static Names); 7] {
    let basic = __cpuid(1);
    let has_leaf = |leaf: u32| __cpuid(leaf & 0x8000_0000).eax >= leaf;
    let (mut extended_edx, mut extended_ecx) = (0, 0);
    if has_leaf(0x8000_0001) {
        let leaf = __cpuid(0x8000_0001);
        (extended_edx, extended_ecx) = (leaf.edx, leaf.ecx);
    }
    let (mut structured, mut structured_more, mut structured_last) = (0, 0, 0);
    if has_leaf(7) {
        let leaf = __cpuid_count(7, 0);
        (structured, structured_more) = (leaf.ebx & !STRUCTURED_OFF, leaf.ecx & !STRUCTURED_MORE_OFF);
        structured_last = leaf.edx;
    }
    if !protection_key::are_on() {
        structured_more &= !STRUCTURED_MORE_OF_KEYS;
    }
    let saved = float::components();
    let mut more = basic.ecx;
    if saved & AVX == 0 {
        more &= !WITH_AVX;
        structured &= !STRUCTURED_WITH_AVX;
        structured_more &= !STRUCTURED_MORE_WITH_AVX;
    }
    if saved & AVX512 != AVX512 {
        structured &= !STRUCTURED_WITH_AVX512;
        structured_more &= !STRUCTURED_MORE_WITH_AVX512;
    }
    [
        (basic.edx, &BASIC),
        (extended_edx, &EXTENDED),
        (more, &MORE),
        (extended_ecx, &EXTENDED_MORE),
        (structured, &STRUCTURED),
        (structured_more, &STRUCTURED_MORE),
        (structured_last, &STRUCTURED_LAST),
    ]
}

/// Writes text that registers hold, without zeros and spaces around it.
fn write_registers(registers: &[u32], text: &mut dyn Write) -> Result {
    let mut bytes = [0; 48];
    for (slot, register) in bytes.chunks_exact_mut(4).zip(registers) {
        slot.copy_from_slice(&register.to_le_bytes());
    }
    let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    text.write_str(core::str::from_utf8(bytes.trim_ascii()).unwrap_or_default())
}

/// Writes the paragraph of `/proc/cpuinfo` about a CPU; all are alike.
///
/// # Errors
/// Those of `text`.
pub fn describe(number: usize, text: &mut dyn Write) -> Result {
    let (first, basic) = (__cpuid(0), __cpuid(1));
    write!(text, "processor\t: {number}\nvendor_id\t: ")?;
    write_registers(&[first.ebx, first.edx, first.ecx], text)?;
    let (family, model) = mitigations::family_and_model();
    write!(text, "\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: ")?;
    if __cpuid(0x8000_0000).eax >= 0x8000_0004 {
        let mut registers = [0; 12];
        for (slot, leaf) in registers.chunks_exact_mut(4).zip(0x8000_0002_u32..) {
            let part = __cpuid(leaf);
            slot.copy_from_slice(&[part.eax, part.ebx, part.ecx, part.edx]);
        }
        write_registers(&registers, text)?;
    } else {
        text.write_str("unknown")?;
    }
    let (stepping, count, level) = (basic.eax & 0xf, cpu::count(), first.eax);
    let khz = time::frequency_hz() / 1000;
    let (mhz, fraction) = (khz / 1000, khz % 1000);
    write!(text, "\nstepping\t: {stepping}\ncpu MHz\t\t: {mhz}.{fraction:03}\nphysical id\t: 0\n")?;
    write!(text, "siblings\t: {count}\ncore id\t\t: {number}\n")?;
    write!(text, "cpu cores\t: {count}\napicid\t\t: {number}\ninitial apicid\t: {number}\nfpu\t\t: yes\n")?;
    write!(text, "fpu_exception\t: yes\ncpuid level\t: {level}\nwp\t\t: yes\n")?;
    text.write_str("flags\t\t:")?;
    for (word, names) in features() {
        let set = names.iter().enumerate().filter(|(bit, name)| word >> bit & 1 != 0 && !name.is_empty());
        for (_, name) in set {
            write!(text, " {name}")?;
        }
    }
    text.write_str("\nbugs\t\t:")?;
    for name in mitigations::bugs() {
        write!(text, " {name}")?;
    }
    // The time of an empty loop is taken for what the counter says, as where Linux knows the frequency.
    let (loops, line) = (khz / 500, (basic.ebx >> 8 & 0xff) * 8);
    let fraction = khz / 5 % 100;
    write!(text, "\nbogomips\t: {loops}.{fraction:02}\nclflush size\t: {line}\ncache_alignment\t: {line}\n")?;
    if __cpuid(0x8000_0000).eax >= 0x8000_0008 {
        let sizes = __cpuid(0x8000_0008).eax;
        let (physical, virtual_bits) = (sizes & 0xff, sizes >> 8 & 0xff);
        writeln!(text, "address sizes\t: {physical} bits physical, {virtual_bits} bits virtual")?;
    }
    text.write_str("power management:\n\n")
}
