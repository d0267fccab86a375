//! With the feature `bundled`, builds the kernel and the Linux guest's first process, which the tool then has in its
//! own file: `cargo install` takes one program and nothing beside it.

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "init_recipe.rs"]
mod recipe;

/// Arguments of cargo for the kernel.
const KERNEL_ARGUMENTS: [&str; 7] =
    ["build", "--quiet", "--release", "--package", "heddle-kernel", "--target", "x86_64-unknown-none"];
/// The kernel below cargo's folder.
const KERNEL_PROGRAM: &str = "x86_64-unknown-none/release/heddle-kernel";
/// The sources of both, below the repository.
const SOURCES: [&str; 7] =
    ["Cargo.lock", "abi", "crates", "guest", "kernel", "host/linux-init", "host/streams"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=init_recipe.rs");
    if std::env::var_os("CARGO_FEATURE_BUNDLED").is_none() {
        return;
    }
    let folder = |name| PathBuf::from(std::env::var_os(name).expect("cargo sets its variables"));
    let repository = folder("CARGO_MANIFEST_DIR").join("../..");
    for source in SOURCES {
        println!("cargo:rerun-if-changed={}", repository.join(source).display());
    }
    let target = folder("OUT_DIR").join("bundled");
    build(&repository, &target, &KERNEL_ARGUMENTS);
    build(&repository, &target, &recipe::INIT_ARGUMENTS);
    println!("cargo:rustc-env=HEDDLE_BUNDLED_KERNEL={}", target.join(KERNEL_PROGRAM).display());
    println!("cargo:rustc-env=HEDDLE_BUNDLED_INIT={}", target.join(recipe::INIT_PROGRAM).display());
    println!("cargo:rustc-env=HEDDLE_BUNDLED_COMMIT={}", commit(&repository).unwrap_or_default());
}

/// Runs cargo as a user would in the repository: its settings there count, not those of the cargo around it.
fn build(repository: &Path, target: &Path, arguments: &[&str]) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    for name in [
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTFLAGS",
        "CARGO_BUILD_TARGET",
        "CARGO_TARGET_DIR",
        "CARGO_BUILD_TARGET_DIR",
    ] {
        command.env_remove(name);
    }
    let status = command.args(arguments).arg("--target-dir").arg(target).current_dir(repository).status();
    assert!(status.expect("cargo runs").success(), "cargo {} failed", arguments.join(" "));
}

fn commit(repository: &Path) -> Option<String> {
    let output = Command::new("git")
        .current_dir(repository)
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
