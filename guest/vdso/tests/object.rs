//! Checks the object that the kernel embeds as the vDSO: it contains nothing that a page, mapped read-only at any
//! address in any process, could not have.
#![allow(missing_docs)]

use object::elf::{PF_R, PF_W, PF_X, PT_DYNAMIC, PT_LOAD};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, Sym};
use object::{Endianness, Object, ObjectSection, ObjectSymbol};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

#[path = "../recipe.rs"]
mod recipe;

const LINUX: [&str; 5] =
    ["__vdso_clock_getres", "__vdso_clock_gettime", "__vdso_getcpu", "__vdso_gettimeofday", "__vdso_time"];

const HEDDLE: [&str; 14] = [
    "__heddle_enter",
    "__heddle_get_cid",
    "__heddle_interrupt",
    "__heddle_interrupt_entry",
    "__heddle_leave",
    "__heddle_notice",
    "__heddle_policy",
    "__heddle_reprio",
    "__heddle_ring",
    "__heddle_run",
    "__heddle_scheduler_bytes",
    "__heddle_scheduler_init",
    "__heddle_spawn",
    "__heddle_wake",
];

fn built() -> &'static [u8] {
    static BUILT: OnceLock<Vec<u8>> = OnceLock::new();
    BUILT.get_or_init(build)
}

fn build() -> Vec<u8> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("vdso");
    let object = recipe::build_vdso(&repository, &folder, "x86_64-unknown-none");
    std::fs::read(object).expect("the shared object")
}

#[test]
fn it_is_code_and_constants() {
    let bytes = built();
    let file = ElfFile64::<Endianness>::parse(bytes).unwrap();
    let endian = file.endian();

    let relocations = file.dynamic_relocations().into_iter().flatten().count();
    assert_eq!(relocations, 0, "dynamic relocations");
    let banned =
        [".data", ".bss", ".tdata", ".tbss", ".got", ".got.plt", ".plt", ".data.rel.ro", ".init_array"];
    for section in file.sections() {
        let name = section.name().unwrap();
        assert!(section.size() == 0 || !banned.contains(&name), "{name}: {} bytes", section.size());
    }

    // One segment, the file as it is, never writable; the dynamic section in it neither.
    let headers = file.elf_program_headers();
    let loads: Vec<_> = headers.iter().filter(|header| header.p_type(endian) == PT_LOAD).collect();
    assert_eq!(loads.len(), 1);
    let load = loads[0];
    assert_eq!((load.p_offset(endian), load.p_vaddr(endian)), (0, 0));
    assert_eq!(load.p_filesz(endian), load.p_memsz(endian));
    assert_eq!(load.p_flags(endian), PF_R | PF_X);
    for header in headers.iter().filter(|header| header.p_type(endian) == PT_DYNAMIC) {
        assert!(!header.p_flags(endian).contains(PF_W));
    }

    let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    let names: Vec<_> = symbols.map(|symbol| symbol.name().unwrap().to_owned()).collect();
    for name in LINUX.iter().chain(&HEDDLE) {
        assert!(names.iter().any(|found| found == *name), "{name} is missing from {names:?}");
    }
    let undefined = file.dynamic_symbols().filter(|symbol| symbol.is_undefined()).count();
    assert_eq!(undefined, 0, "symbols from outside");
}

#[test]
fn linux_names_have_linux_version() {
    let bytes = built();
    let file = ElfFile64::<Endianness>::parse(bytes).unwrap();
    let endian = file.endian();
    let sections = file.elf_header().sections(endian, bytes).unwrap();
    let versions = sections.versions(endian, bytes).unwrap().expect("a table of versions");
    let table = file.elf_dynamic_symbol_table();
    let strings = table.strings();
    for (index, symbol) in table.enumerate() {
        let name = symbol.name(endian, strings).unwrap();
        let expected: &[u8] = match name {
            name if name.starts_with(b"__vdso_") => b"LINUX_2.6",
            name if name.starts_with(b"__heddle_") => b"HEDDLE_1",
            _ => continue,
        };
        let version = versions.version(versions.version_index(endian, index).into());
        assert_eq!(version.unwrap().expect("a version").name(), expected);
    }
}
