//! The scheduler's core, read from the shared object that it compiles to, has nothing that a page, mapped
//! read-only at any address in any process, could not have.
#![cfg(all(feature = "std", not(heddle_loom), not(miri)))]

use object::elf::{PF_W, PT_LOAD};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Builds the core alone and returns the shared object's path.
fn core() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build)
}

fn build() -> PathBuf {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("vdso");
    let link = |argument: &str| format!("-Clink-arg=-Wl,{argument}");
    let status = Command::new(env!("CARGO"))
        .args(["rustc", "--quiet", "--offline", "--release", "--lib", "--crate-type", "cdylib"])
        .args(["--no-default-features", "--features", "vdso", "--manifest-path"])
        .arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .env_remove("RUSTFLAGS")
        .args(["--", "-Cpanic=abort", "-Ccodegen-units=1", "-Copt-level=3", "-Clink-arg=-nostdlib"])
        .args([link("-z,defs"), link("--gc-sections"), link("--build-id=none"), link("-z,norelro")])
        .status()
        .expect("cargo runs");
    assert!(status.success(), "the core does not link alone: a panic or an outside symbol is reachable");
    target.join("release/libheddle_coroutine.so")
}

#[test]
fn the_core_is_code_and_constants() {
    let bytes = std::fs::read(core()).expect("the shared object");
    let file = ElfFile64::<Endianness>::parse(&*bytes).unwrap();

    let relocations: Vec<_> = file.dynamic_relocations().into_iter().flatten().collect();
    assert!(relocations.is_empty(), "{} dynamic relocations", relocations.len());

    // Statics, thread-locals, tables of addresses, constructors.
    let banned =
        [".data", ".bss", ".tdata", ".tbss", ".got", ".got.plt", ".plt", ".data.rel.ro", ".init_array"];
    for section in file.sections() {
        let name = section.name().unwrap();
        assert!(section.size() == 0 || !banned.contains(&name), "{name}: {} bytes", section.size());
    }

    // The only writable part is the linker's table of where the parts lie.
    let writable: u64 = file
        .elf_program_headers()
        .iter()
        .filter(|segment| segment.p_type(file.endian()) == PT_LOAD)
        .filter(|segment| segment.p_flags(file.endian()) & PF_W == PF_W)
        .map(|segment| segment.p_memsz(file.endian()))
        .sum();
    let dynamic = file.section_by_name(".dynamic").map_or(0, |section| section.size());
    assert_eq!(writable, dynamic);

    let mut exported = Vec::new();
    for symbol in file.dynamic_symbols() {
        let name = symbol.name().unwrap();
        assert!(name.is_empty() || symbol.is_definition(), "{name} comes from outside");
        if symbol.is_global() && symbol.is_definition() {
            exported.push(name.to_owned());
        }
    }
    for function in ["heddle_spawn", "heddle_pick", "heddle_finish", "heddle_wake", "heddle_reprio"] {
        assert!(exported.iter().any(|name| name == function), "{function} is not exported");
    }
    assert!(exported.iter().all(|name| name.starts_with("heddle_")), "{exported:?}");
}

/// A C program that schedules by the header and the shared object.
const PROGRAM: &str = r#"
#include "heddle_coroutine.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 8
static char *zeroed(size_t bytes) {
    char *memory = aligned_alloc(128, (bytes + 127) / 128 * 128);
    return memset(memory, 0, (bytes + 127) / 128 * 128);
}
int main(void) {
    struct heddle_memory memory = {0};
    memory.slots = zeroed(SLOTS * heddle_slot_bytes());
    memory.cores = zeroed(2 * heddle_core_bytes());
    memory.slot_count = SLOTS;
    memory.core_count = 2;
    heddle_core_init(&memory, 0, 2);
    heddle_core_init(&memory, 1, 2);
    for (unsigned i = 1; i < SLOTS; i++) heddle_slot_give(&memory, 0, i);
    uint64_t a = heddle_spawn(&memory, 0, "a", 5), b = heddle_spawn(&memory, 0, "b", 3);
    uint64_t c = heddle_spawn(&memory, 0, "c", 5);
    heddle_reprio(&memory, 0, c, 1);
    printf("%d ", heddle_bitmap(&memory, 0) == (1u << 1 | 1u << 3 | 1u << 5));
    struct heddle_pick pick;
    while (heddle_pick(&memory, 0, &pick)) {
        printf("%s%u", (char *)pick.task, pick.level);
        heddle_finish(&memory, 0, pick.id, pick.id != b);
    }
    printf(" stale %u", heddle_wake(&memory, 0, a));
    printf(" parks %u", heddle_expose(&memory, 0, HEDDLE_WATCH_PARKED));
    printf(" wakes %u", heddle_wake(&memory, 1, b));
    printf(" kicks %d", (int)memory.kicks);
    heddle_expose(&memory, 0, HEDDLE_WATCH_NONE);
    printf(" steals %u", heddle_steal(&memory, 1, 0, 4));
    while (heddle_pick(&memory, 1, &pick)) {
        printf(" %s on 1", (char *)pick.task);
        heddle_finish(&memory, 1, pick.id, 1);
    }
    printf(" stale %u\n", heddle_cancel(&memory, 1, b));
    return 0;
}
"#;

#[test]
fn a_c_program_schedules_with_it() {
    let object = core();
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join("schedules.c"), folder.join("schedules"));
    std::fs::write(&source, PROGRAM).unwrap();
    let status = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Werror", "-I"])
        .arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("include"))
        .arg(&source)
        .arg(object)
        .arg(format!("-Wl,-rpath,{}", object.parent().unwrap().display()))
        .arg("-o")
        .arg(&program)
        .status()
        .expect("a C compiler, which linking Rust needs too");
    assert!(status.success());
    let output = Command::new(&program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.trim(), "1 c1b3a5 stale 0 parks 1 wakes 1 kicks 1 steals 1 b on 1 stale 0");
}
