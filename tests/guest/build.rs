//! Compiles the vDSO's C examples, which tests run.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let vdso =
        PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says")).join("../../guest/vdso");
    for name in ["order", "calls"] {
        let source = vdso.join("examples").join(name).with_extension("c");
        let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says")).join(name);
        let status = Command::new("cc")
            .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-I"])
            .arg(vdso.join("include"))
            .arg(&source)
            .arg("-o")
            .arg(out)
            .arg("-ldl")
            .status()
            .expect("a C compiler, which linking Rust needs too");
        assert!(status.success(), "the vDSO's example {name} does not compile");
        println!("cargo:rerun-if-changed={}", source.display());
    }
    println!("cargo:rerun-if-changed={}", vdso.join("include/heddle.h").display());
}
