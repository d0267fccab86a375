//! Hands the linker script of the target architecture to the linker, and builds the vDSO that the kernel embeds.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "it runs on the host")]

use std::path::PathBuf;

#[path = "../guest/vdso/recipe.rs"]
mod recipe;

const PAGE_BYTES: usize = 4096;

fn main() {
    let architecture = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let bare_metal = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "none");
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    if bare_metal {
        let script = format!("{folder}/src/arch/{architecture}/kernel.ld");
        println!("cargo:rerun-if-changed={script}");
        println!("cargo:rustc-link-arg-bins=-T{script}");
        println!("cargo:rustc-link-arg-bins=--build-id=none");
        println!("cargo:rustc-link-arg-bins=-zmax-page-size=4096");
    }
    println!("cargo:rerun-if-changed=build.rs");
    embed_vdso(&PathBuf::from(folder).join(".."), &architecture);
}

/// Builds the vDSO and pads it to whole pages.
fn embed_vdso(repository: &std::path::Path, architecture: &str) {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let object = recipe::build_vdso(repository, &out.join("vdso"), &format!("{architecture}-unknown-none"));
    let mut bytes = std::fs::read(object).expect("the vDSO");
    bytes.resize(bytes.len().next_multiple_of(PAGE_BYTES), 0);
    std::fs::write(out.join("vdso.bin"), bytes).expect("room for the vDSO");
    for source in recipe::SOURCES {
        println!("cargo:rerun-if-changed={}", repository.join(source).display());
    }
}
