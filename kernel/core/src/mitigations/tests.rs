//! Processors with their words about themselves, and what is said and done about each.

use super::*;

const INTEL: ProcessorModel = ProcessorModel {
    vendor: Vendor::Intel,
    family: 6,
    model: 0x55,
    leaf7_ebx: 0,
    leaf7_edx: 0,
    leaf7_2_edx: 0,
    extended8_ebx: 0,
    extended21_eax: 0,
    extended21_ecx: 0,
    capabilities: 0,
};
const AMD: ProcessorModel = ProcessorModel { vendor: Vendor::Amd, family: 0x19, model: 1, ..INTEL };

fn words(processor: &ProcessorModel, plan: &Plan, fault: Fault) -> String {
    let mut text = String::new();
    processor.describe(fault, plan, &mut text).unwrap();
    text
}

#[test]
fn letters_name_the_vendor() {
    let of = |letters: &[u8; 12]| {
        let word = |at: usize| u32::from_le_bytes(letters[at..at + 4].try_into().unwrap());
        Vendor::of([word(0), word(4), word(8)])
    };
    assert_eq!(of(b"GenuineIntel"), Vendor::Intel);
    assert_eq!(of(b"AuthenticAMD"), Vendor::Amd);
    assert_eq!(of(b"HygonGenuine"), Vendor::Amd);
    assert_eq!(of(b"CentaurHauls"), Vendor::Other);
}

#[test]
fn a_processor_that_offers_nothing_is_left_alone_and_said_to_be_vulnerable() {
    let plan = Plan::of(&INTEL);
    assert_eq!(plan, Plan { fences_entry: true, ..Plan::NOTHING });
    assert_eq!(words(&INTEL, &plan, Fault::Meltdown), "Vulnerable");
    assert_eq!(words(&INTEL, &plan, Fault::Mds), "Vulnerable; SMT Host state unknown");
    assert_eq!(words(&INTEL, &plan, Fault::SpectreV2), "Vulnerable; BHI: Vulnerable");
    assert_eq!(words(&INTEL, &plan, Fault::Retbleed), "Vulnerable");
    assert_eq!(words(&INTEL, &plan, Fault::TsxAsyncAbort), "Not affected");
}

#[test]
fn skylake_with_microcode_gets_ibrs_on_entry_a_barrier_and_clean_buffers() {
    let skylake = ProcessorModel {
        leaf7_ebx: EBX_RTM,
        leaf7_edx: EDX_MD_CLEAR | EDX_SPEC_CTRL | EDX_FLUSH_L1D,
        ..INTEL
    };
    let plan = Plan::of(&skylake);
    assert_eq!(plan.branches, Branches::OnEntry);
    assert_eq!(plan.spec_ctrl, SPEC_CTRL_IBRS);
    assert!(plan.barrier && plan.clears_buffers);
    for fault in [Fault::Mds, Fault::TsxAsyncAbort, Fault::MmioStaleData] {
        assert_eq!(words(&skylake, &plan, fault), "Mitigation: Clear CPU buffers; SMT Host state unknown");
    }
    assert_eq!(words(&skylake, &plan, Fault::Retbleed), "Mitigation: IBRS");
    assert_eq!(
        words(&skylake, &plan, Fault::SpectreV2),
        "Mitigation: IBRS; IBPB: conditional; STIBP: disabled; RSB filling; BHI: Vulnerable"
    );
    let names: Vec<_> = skylake.bugs().collect();
    assert!(names.starts_with(&[
        "cpu_meltdown",
        "spectre_v1",
        "spectre_v2",
        "spec_store_bypass",
        "l1tf",
        "mds"
    ]));
}

#[test]
fn off_means_that_nothing_is_done_and_nothing_claimed() {
    let skylake = ProcessorModel { leaf7_edx: EDX_MD_CLEAR | EDX_SPEC_CTRL, ..INTEL };
    for fault in [Fault::Meltdown, Fault::Mds, Fault::SpectreV1, Fault::SpectreV2, Fault::Retbleed] {
        assert!(words(&skylake, &Plan::NOTHING, fault).starts_with("Vulnerable"), "{fault:?}");
    }
    assert!(words(&skylake, &Plan::NOTHING, Fault::SpectreV2).contains("IBPB: disabled"));
}

#[test]
fn enhanced_ibrs_is_set_once_and_with_it_the_history_restrained() {
    let sapphire = ProcessorModel {
        model: 0x8f,
        leaf7_edx: EDX_MD_CLEAR | EDX_SPEC_CTRL,
        leaf7_2_edx: SUBLEAF2_BHI_CTRL,
        capabilities: RDCL_NO | IBRS_ALL | MDS_NO | TAA_NO | PSCHANGE_MC_NO | STALE_NO,
        ..INTEL
    };
    let plan = Plan::of(&sapphire);
    assert_eq!((plan.branches, plan.spec_ctrl), (Branches::Enhanced, SPEC_CTRL_IBRS | SPEC_CTRL_BHI));
    assert!(!plan.clears_buffers, "nothing that it has asks for it");
    for fault in [Fault::Meltdown, Fault::L1tf, Fault::Mds, Fault::MmioStaleData] {
        assert_eq!(words(&sapphire, &plan, fault), "Not affected");
    }
    let branches = words(&sapphire, &plan, Fault::SpectreV2);
    assert!(branches.starts_with("Mitigation: Enhanced IBRS") && branches.ends_with("BHI: BHI_DIS_S"));
}

#[test]
fn amd_never_had_meltdown_and_has_its_own_faults() {
    let zen3 = ProcessorModel { extended8_ebx: AMD_IBPB | AMD_IBRS, extended21_eax: AMD_VERW_CLEAR, ..AMD };
    let plan = Plan::of(&zen3);
    assert_eq!(words(&zen3, &plan, Fault::Meltdown), "Not affected");
    assert_eq!(words(&zen3, &plan, Fault::Mds), "Not affected");
    assert_eq!(words(&zen3, &plan, Fault::SpecRstackOverflow), "Vulnerable");
    assert_eq!(words(&zen3, &plan, Fault::Tsa), "Mitigation: Clear CPU buffers");
    let zen4 = ProcessorModel { extended21_eax: AMD_AUTO_IBRS | AMD_SRSO_NO, ..AMD };
    assert_eq!(Plan::of(&zen4).branches, Branches::Automatic);
    assert_eq!(words(&zen4, &Plan::of(&zen4), Fault::SpecRstackOverflow), "Not affected");
    let emulated = ProcessorModel { family: 0xf, model: 107, ..AMD };
    assert_eq!(emulated.bugs().collect::<Vec<_>>(), ["spectre_v1", "spectre_v2"]);
}
