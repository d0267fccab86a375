//! Faults of processors that run ahead of their checks (Meltdown, Spectre, MDS and their relatives): which of them a
//! processor has, what the kernel does about each, and how `/sys/devices/system/cpu/vulnerabilities` words it.
//!
//! A processor counts as affected unless it says that it is not, by CPUID or `ARCH_CAPABILITIES`, or its vendor is one
//! that never had the fault. Linux also excuses some old Intel models by a list; here they count as affected.

mod models;
mod words;

/// The maker of a processor, as far as it decides about faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vendor {
    /// Intel.
    Intel,
    /// AMD, and Hygon, whose processors are AMD's.
    Amd,
    /// Any other.
    #[default]
    Other,
}

impl Vendor {
    /// The maker by its twelve letters, the registers EBX, EDX and ECX of CPUID leaf 0.
    #[must_use]
    pub fn of(registers: [u32; 3]) -> Self {
        let mut letters = [0; 12];
        for (slot, register) in letters.chunks_exact_mut(4).zip(registers) {
            slot.copy_from_slice(&register.to_le_bytes());
        }
        match &letters {
            b"GenuineIntel" => Self::Intel,
            b"AuthenticAMD" | b"HygonGenuine" => Self::Amd,
            _ => Self::Other,
        }
    }
}

/// A processor's words about itself that matter here. Words that it does not have are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorModel {
    /// Its maker.
    pub vendor: Vendor,
    /// Family and model, the extended parts included.
    pub family: u32,
    /// See `family`.
    pub model: u32,
    /// CPUID leaf 7, EBX.
    pub leaf7_ebx: u32,
    /// CPUID leaf 7, EDX.
    pub leaf7_edx: u32,
    /// CPUID leaf 7, subleaf 2, EDX.
    pub leaf7_2_edx: u32,
    /// CPUID leaf `0x8000_0008`, EBX.
    pub extended8_ebx: u32,
    /// CPUID leaf `0x8000_0021`, EAX.
    pub extended21_eax: u32,
    /// CPUID leaf `0x8000_0021`, ECX.
    pub extended21_ecx: u32,
    /// The register `ARCH_CAPABILITIES`.
    pub capabilities: u64,
}

const EBX_RTM: u32 = 1 << 11;
const EDX_MD_CLEAR: u32 = 1 << 10;
const EDX_SPEC_CTRL: u32 = 1 << 26;
const EDX_FLUSH_L1D: u32 = 1 << 28;
const SUBLEAF2_BHI_CTRL: u32 = 1 << 4;
const AMD_IBPB: u32 = 1 << 12;
const AMD_IBRS: u32 = 1 << 14;
const AMD_SSB_NO: u32 = 1 << 26;
const AMD_VERW_CLEAR: u32 = 1 << 5;
const AMD_AUTO_IBRS: u32 = 1 << 8;
const AMD_SRSO_NO: u32 = 1 << 29;
const AMD_TSA_NO: u32 = 1 << 1 | 1 << 2;

const RDCL_NO: u64 = 1 << 0;
const IBRS_ALL: u64 = 1 << 1;
const SSB_NO: u64 = 1 << 4;
const MDS_NO: u64 = 1 << 5;
const PSCHANGE_MC_NO: u64 = 1 << 6;
const TAA_NO: u64 = 1 << 8;
const STALE_NO: u64 = 1 << 13 | 1 << 14 | 1 << 15;
const FB_CLEAR: u64 = 1 << 17;
const BHI_NO: u64 = 1 << 20;
const GDS_NO: u64 = 1 << 26;
const RFDS_NO: u64 = 1 << 27;
const RFDS_CLEAR: u64 = 1 << 28;
const ITS_NO: u64 = 1 << 62;

/// Bits of the register `SPEC_CTRL`: restrain indirect branches, and those of the history of programs.
pub const SPEC_CTRL_IBRS: u64 = 1 << 0;
/// See [`SPEC_CTRL_IBRS`].
pub const SPEC_CTRL_BHI: u64 = 1 << 10;

/// A fault, by its file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are Linux's")]
pub enum Fault {
    GatherDataSampling,
    IndirectTargetSelection,
    ItlbMultihit,
    L1tf,
    Mds,
    Meltdown,
    MmioStaleData,
    RegFileDataSampling,
    Retbleed,
    SpecRstackOverflow,
    SpecStoreBypass,
    SpectreV1,
    SpectreV2,
    Srbds,
    Tsa,
    TsxAsyncAbort,
    Vmscape,
}

/// The restraint of indirect branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Branches {
    /// None: nothing that the processor offers, or nothing is wanted. (Retpolines are not made by the stable compiler.)
    Free,
    /// A bit of `SPEC_CTRL` that is set once (Intel's enhanced IBRS).
    Enhanced,
    /// A bit of `EFER` that is set once (AMD's automatic IBRS).
    Automatic,
    /// A bit of `SPEC_CTRL` that is set at each entry to the kernel and taken back on the way to the program.
    OnEntry,
}

/// The measures that the kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Against foreign targets of indirect branches in the kernel.
    pub branches: Branches,
    /// The value that `SPEC_CTRL` has in the kernel, if it is written at all.
    pub spec_ctrl: u64,
    /// The predictors are emptied between two isolation domains, and the return stack is filled.
    pub barrier: bool,
    /// `verw` on the way to the program, which empties the processor's buffers.
    pub clears_buffers: bool,
    /// No speculation past the entry's decision whose per-CPU data are in use.
    pub fences_entry: bool,
}

impl Plan {
    /// No measures at all.
    pub const NOTHING: Self = Self {
        branches: Branches::Free,
        spec_ctrl: 0,
        barrier: false,
        clears_buffers: false,
        fences_entry: false,
    };

    /// All that the processor asks for and offers.
    #[must_use]
    pub fn of(processor: &ProcessorModel) -> Self {
        let branches = processor.branches();
        let mut spec_ctrl = match branches {
            Branches::Enhanced | Branches::OnEntry => SPEC_CTRL_IBRS,
            Branches::Free | Branches::Automatic => 0,
        };
        if branches == Branches::Enhanced
            && processor.has(Fault::SpectreV2)
            && processor.can_restrain_history()
        {
            spec_ctrl |= SPEC_CTRL_BHI;
        }
        Self {
            branches,
            spec_ctrl,
            barrier: processor.has_barrier(),
            clears_buffers: processor.needs_clearing(),
            fences_entry: processor.has(Fault::SpectreV1),
        }
    }
}

impl ProcessorModel {
    fn is(&self, vendor: Vendor) -> bool {
        self.vendor == vendor
    }

    fn lacks(&self, capability: u64) -> bool {
        self.capabilities & capability != capability
    }

    fn branches(&self) -> Branches {
        if self.extended21_eax & AMD_AUTO_IBRS != 0 {
            Branches::Automatic
        } else if self.capabilities & IBRS_ALL != 0 && self.leaf7_edx & EDX_SPEC_CTRL != 0 {
            Branches::Enhanced
        } else if self.leaf7_edx & EDX_SPEC_CTRL != 0 || self.extended8_ebx & AMD_IBRS != 0 {
            Branches::OnEntry
        } else {
            Branches::Free
        }
    }

    fn has_barrier(&self) -> bool {
        self.leaf7_edx & EDX_SPEC_CTRL != 0 || self.extended8_ebx & AMD_IBPB != 0
    }

    fn can_restrain_history(&self) -> bool {
        self.leaf7_2_edx & SUBLEAF2_BHI_CTRL != 0 && self.capabilities & BHI_NO == 0
    }

    /// Whether `verw` empties the buffers that a fault is about.
    fn clears(&self, fault: Fault) -> bool {
        let clears = self.leaf7_edx & EDX_MD_CLEAR != 0;
        match fault {
            Fault::Mds | Fault::TsxAsyncAbort => clears,
            Fault::MmioStaleData => {
                self.capabilities & FB_CLEAR != 0 || clears && self.leaf7_edx & EDX_FLUSH_L1D != 0
            }
            Fault::RegFileDataSampling => self.capabilities & RFDS_CLEAR != 0,
            Fault::Tsa => self.extended21_eax & AMD_VERW_CLEAR != 0,
            _ => false,
        }
    }

    fn needs_clearing(&self) -> bool {
        use Fault::{Mds, MmioStaleData, RegFileDataSampling, Tsa, TsxAsyncAbort};
        let of_buffers = [Mds, TsxAsyncAbort, MmioStaleData, RegFileDataSampling, Tsa];
        of_buffers.into_iter().any(|fault| self.has(fault) && self.clears(fault))
    }

    /// Whether the processor has a fault, as far as anybody can tell.
    #[must_use]
    pub fn has(&self, fault: Fault) -> bool {
        let is_amd = self.is(Vendor::Amd);
        match fault {
            Fault::Meltdown | Fault::L1tf => !is_amd && self.lacks(RDCL_NO),
            Fault::Mds => self.is(Vendor::Intel) && self.lacks(MDS_NO),
            Fault::TsxAsyncAbort => {
                self.is(Vendor::Intel) && self.leaf7_ebx & EBX_RTM != 0 && self.lacks(TAA_NO)
            }
            Fault::ItlbMultihit => self.is(Vendor::Intel) && self.lacks(PSCHANGE_MC_NO),
            Fault::SpectreV1 | Fault::SpectreV2 => true,
            Fault::SpecStoreBypass => {
                let is_old_amd = is_amd && (0xf..=0x12).contains(&self.family);
                !is_old_amd && self.lacks(SSB_NO) && self.extended8_ebx & AMD_SSB_NO == 0
            }
            Fault::MmioStaleData => self.is_listed(models::MMIO) && self.lacks(STALE_NO),
            Fault::RegFileDataSampling => self.is_listed(models::RFDS) && self.lacks(RFDS_NO),
            Fault::GatherDataSampling => self.is_listed(models::GDS) && self.lacks(GDS_NO),
            Fault::Srbds => self.is_listed(models::SRBDS),
            Fault::IndirectTargetSelection => {
                self.is_listed(models::ITS) && self.lacks(ITS_NO) && self.leaf7_2_edx & SUBLEAF2_BHI_CTRL == 0
            }
            Fault::Retbleed => {
                is_amd && matches!(self.family, 0x15..=0x18) || self.is_listed(models::RETBLEED)
            }
            Fault::SpecRstackOverflow => {
                is_amd && matches!(self.family, 0x17..=0x19) && self.extended21_eax & AMD_SRSO_NO == 0
            }
            Fault::Tsa => is_amd && self.family == 0x19 && self.extended21_ecx & AMD_TSA_NO != AMD_TSA_NO,
            // Hosts have it.
            Fault::Vmscape => false,
        }
    }

    fn is_listed(&self, models: &[u32]) -> bool {
        self.is(Vendor::Intel) && self.family == 6 && models.contains(&self.model)
    }
}

#[cfg(test)]
mod tests;
