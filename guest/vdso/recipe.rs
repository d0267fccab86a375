//! How the vDSO is built: by rustc and the linker that comes with it, without cargo, because a build script of the
//! kernel and a test include this file. The crates it is made of depend on nothing but `core`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates in the order in which they need each other: name, root file below the repository, edition, settings.
const CRATES: [(&str, &str, &[&str]); 3] = [
    ("heddle_abi", "abi/src/lib.rs", &[]),
    ("heddle_coroutine", "crates/coroutine/src/lib.rs", &["feature=\"scheduler\""]),
    ("heddle_vdso", "guest/vdso/src/lib.rs", &["heddle_vdso"]),
];

/// The sources that it is built from, below the repository.
#[allow(dead_code, reason = "only the kernel's build script has to know when to build again")]
pub const SOURCES: [&str; 5] =
    ["abi/src", "crates/coroutine/src", "guest/vdso/src", "guest/vdso/recipe.rs", "guest/vdso/symbols.map"];

/// Builds the shared object in `folder` from the sources of `repository`, for `target`, and returns its path.
pub fn build_vdso(repository: &Path, folder: &Path, target: &str) -> PathBuf {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    std::fs::create_dir_all(folder).expect("a folder for the vDSO");
    for (index, (name, root, settings)) in CRATES.iter().enumerate() {
        let is_last = index + 1 == CRATES.len();
        let mut command = Command::new(&rustc);
        command.args(["--edition", "2024", "--target", target, "--crate-name", name, "--cap-lints", "allow"]);
        command.args(["--crate-type", if is_last { "staticlib" } else { "rlib" }]);
        // No tables to unwind by. The target has neither floating point nor vector registers.
        command.args(["-Copt-level=3", "-Cpanic=abort", "-Ccodegen-units=1", "-Cforce-unwind-tables=no"]);
        command.args(["-Crelocation-model=pic", "-Ccode-model=small"]);
        for setting in *settings {
            command.args(["--cfg", setting]);
        }
        command.arg("-L").arg(folder).arg("--out-dir").arg(folder);
        for (dependency, ..) in &CRATES[..index] {
            command
                .arg("--extern")
                .arg(format!("{dependency}={}", folder.join(format!("lib{dependency}.rlib")).display()));
        }
        let status = command.arg(repository.join(root)).status().expect("rustc runs");
        assert!(status.success(), "the vDSO's crate {name} does not compile");
    }
    link(&rustc, repository, folder)
}

fn link(rustc: &std::ffi::OsStr, repository: &Path, folder: &Path) -> PathBuf {
    let output = Command::new(rustc).args(["--print", "sysroot"]).output().expect("rustc runs");
    let sysroot = PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim());
    let output = Command::new(rustc).arg("-vV").output().expect("rustc runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host");
    let object = folder.join("vdso.so");
    let status = Command::new(sysroot.join(format!("lib/rustlib/{host}/bin/rust-lld")))
        .args([
            "-flavor",
            "gnu",
            "-shared",
            "-soname",
            "linux-vdso.so.1",
            "--hash-style=both",
            "--no-undefined",
        ])
        .args(["--gc-sections", "--build-id=none", "--no-rosegment", "-s"])
        // One segment, not writable: the C library leaves the dynamic section of such an object alone.
        .args([
            "-z",
            "norelro",
            "-z",
            "noseparate-code",
            "-z",
            "rodynamic",
            "-z",
            "max-page-size=4096",
            "-z",
            "text",
        ])
        .arg("--version-script")
        .arg(repository.join("guest/vdso/symbols.map"))
        // All of it; what no exported function reaches is dropped.
        .arg("--whole-archive")
        .arg(folder.join("libheddle_vdso.a"))
        .arg("-o")
        .arg(&object)
        .status()
        .expect("the toolchain's linker runs");
    assert!(status.success(), "the vDSO does not link: a panic or an outside symbol is reachable");
    object
}
