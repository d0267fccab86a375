//! How Linux words faults and measures.

use core::fmt::{Result, Write};

use crate::mitigations::{
    AMD_IBRS, BHI_NO, Branches, EDX_SPEC_CTRL, Fault, MDS_NO, Plan, ProcessorModel, SPEC_CTRL_BHI, STALE_NO,
    Vendor,
};

const NOT_AFFECTED: &str = "Not affected";
const VULNERABLE: &str = "Vulnerable";
/// A guest cannot know the register that has the answer.
const UNKNOWN_HOST: &str = "Unknown: Dependent on hypervisor status";

/// The words of `/proc/cpuinfo`'s line of bugs, in Linux's order.
const BUGS: [(Fault, &str); 16] = [
    (Fault::Meltdown, "cpu_meltdown"),
    (Fault::SpectreV1, "spectre_v1"),
    (Fault::SpectreV2, "spectre_v2"),
    (Fault::SpecStoreBypass, "spec_store_bypass"),
    (Fault::L1tf, "l1tf"),
    (Fault::Mds, "mds"),
    (Fault::TsxAsyncAbort, "taa"),
    (Fault::ItlbMultihit, "itlb_multihit"),
    (Fault::Srbds, "srbds"),
    (Fault::MmioStaleData, "mmio_stale_data"),
    (Fault::Retbleed, "retbleed"),
    (Fault::GatherDataSampling, "gds"),
    (Fault::SpecRstackOverflow, "srso"),
    (Fault::RegFileDataSampling, "rfds"),
    (Fault::IndirectTargetSelection, "its"),
    (Fault::Tsa, "tsa"),
];

impl ProcessorModel {
    /// The names of its faults.
    pub fn bugs(&self) -> impl Iterator<Item = &'static str> {
        BUGS.iter().filter(|(fault, _)| self.has(*fault)).map(|(_, name)| *name)
    }

    /// Writes the contents of a fault's file, without the end of the line.
    ///
    /// # Errors
    /// Those of `text`.
    pub fn describe(&self, fault: Fault, plan: &Plan, text: &mut dyn Write) -> Result {
        let is_known = |fault| self.has(fault) || fault == Fault::MmioStaleData && self.is_doubtful();
        if !is_known(fault) {
            return text.write_str(NOT_AFFECTED);
        }
        let is_cleared = plan.clears_buffers && self.clears(fault);
        match fault {
            Fault::SpectreV1 => text.write_str(if plan.fences_entry {
                "Vulnerable: swapgs barriers and __user pointer sanitization only"
            } else {
                "Vulnerable: __user pointer sanitization only; no swapgs barriers"
            }),
            Fault::SpectreV2 => self.describe_branches(plan, text),
            Fault::Mds | Fault::TsxAsyncAbort | Fault::Tsa | Fault::MmioStaleData => {
                if !self.has(fault) {
                    return text.write_str("Unknown: No mitigations");
                }
                text.write_str(if is_cleared { "Mitigation: Clear CPU buffers" } else { VULNERABLE })?;
                text.write_str(if fault == Fault::Tsa { "" } else { "; SMT Host state unknown" })
            }
            Fault::RegFileDataSampling => {
                text.write_str(if is_cleared { "Mitigation: Clear Register File" } else { VULNERABLE })
            }
            // The entries of pages that are absent are zero, and hidden ones name the program's own page.
            Fault::L1tf => text.write_str("Mitigation: no entry of an absent page names another's memory"),
            Fault::ItlbMultihit => text.write_str("KVM: Mitigation: VMX unsupported"),
            Fault::GatherDataSampling | Fault::Srbds => text.write_str(UNKNOWN_HOST),
            Fault::Retbleed => text.write_str(match plan.branches {
                Branches::Enhanced if self.is(Vendor::Intel) => "Mitigation: Enhanced IBRS",
                Branches::OnEntry if self.is(Vendor::Intel) => "Mitigation: IBRS",
                _ => VULNERABLE,
            }),
            // Nothing is done about these: there is no second page table without the direct map, the compiler makes
            // neither other returns nor other branches, and no program is asked whether its stores may be bypassed.
            Fault::Meltdown
            | Fault::SpecStoreBypass
            | Fault::SpecRstackOverflow
            | Fault::IndirectTargetSelection
            | Fault::Vmscape => text.write_str(VULNERABLE),
        }
    }

    /// Whether nobody knows about stale data of device registers.
    fn is_doubtful(&self) -> bool {
        self.is(Vendor::Intel) && self.lacks(STALE_NO) && self.lacks(MDS_NO)
    }

    fn describe_branches(&self, plan: &Plan, text: &mut dyn Write) -> Result {
        text.write_str(match plan.branches {
            Branches::Free => VULNERABLE,
            Branches::Enhanced => "Mitigation: Enhanced IBRS",
            Branches::Automatic => "Mitigation: Automatic IBRS",
            Branches::OnEntry => "Mitigation: IBRS",
        })?;
        let is_offered = self.leaf7_edx & EDX_SPEC_CTRL != 0 || self.extended8_ebx & AMD_IBRS != 0;
        if plan.barrier {
            text.write_str("; IBPB: conditional")?;
        } else if self.has_barrier() {
            text.write_str("; IBPB: disabled")?;
        }
        if is_offered {
            text.write_str("; STIBP: disabled")?;
        }
        if plan.barrier {
            text.write_str("; RSB filling")?;
        }
        let has_history = self.is(Vendor::Intel) && self.capabilities & BHI_NO == 0;
        text.write_str(match plan.spec_ctrl & SPEC_CTRL_BHI {
            _ if !has_history => "; BHI: Not affected",
            0 => "; BHI: Vulnerable",
            _ => "; BHI: BHI_DIS_S",
        })
    }
}
