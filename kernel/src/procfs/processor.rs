//! `/sys/devices/system/cpu/cpuN`: a processor with one package, whose cores have one thread each.

use heddle_kernel_core::mitigations::Fault;

use crate::arch::{cpu, mitigations};
use crate::error::Errno;
use crate::procfs::{Subject, Text};

type Shown = Result<(), Errno>;

/// A set of CPUs, in as many hexadecimal digits as all of them take.
fn mask(text: &mut Text, set: u64) -> Shown {
    let digits = cpu::count().div_ceil(4);
    text.line(format_args!("{set:0digits$x}\n"))
}

/// All CPUs.
pub fn all_mask(_: &Subject, text: &mut Text) -> Shown {
    mask(text, u64::MAX >> (64 - cpu::count().clamp(1, 64)))
}

/// The CPU alone.
pub fn own_mask<const N: u32>(_: &Subject, text: &mut Text) -> Shown {
    mask(text, 1 << N)
}

/// The CPU as a list, and as the number of its core.
pub fn number<const N: u32>(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{N}\n"))
}

/// The number of what there is one of.
pub fn first(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"0\n")
}

pub fn online(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"1\n")
}

/// No CPU can be switched off.
pub fn set_online(_: &Subject, bytes: &[u8]) -> Shown {
    match bytes.trim_ascii() {
        b"1" => Ok(()),
        b"0" => Err(Errno::EBUSY),
        _ => Err(Errno::EINVAL),
    }
}

/// A fault of the processors, and the measures against it. The parameter is the fault's place in [`FAULTS`].
pub fn vulnerability<const N: usize>(_: &Subject, text: &mut Text) -> Shown {
    let written = FAULTS.get(N).map_or(Ok(()), |&fault| mitigations::describe(fault, text));
    written.map_err(|_| Errno::ENOMEM)?;
    text.bytes(b"\n")
}

/// The faults that have a file, in the order of the files' names.
const FAULTS: [Fault; 17] = [
    Fault::GatherDataSampling,
    Fault::IndirectTargetSelection,
    Fault::ItlbMultihit,
    Fault::L1tf,
    Fault::Mds,
    Fault::Meltdown,
    Fault::MmioStaleData,
    Fault::RegFileDataSampling,
    Fault::Retbleed,
    Fault::SpecRstackOverflow,
    Fault::SpecStoreBypass,
    Fault::SpectreV1,
    Fault::SpectreV2,
    Fault::Srbds,
    Fault::Tsa,
    Fault::TsxAsyncAbort,
    Fault::Vmscape,
];
