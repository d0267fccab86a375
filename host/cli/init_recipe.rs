//! How the Linux guest's first process is built; the tool and its build script include this file.

/// Arguments of cargo for the program, but for where its files go.
pub const INIT_ARGUMENTS: [&str; 13] = [
    "build",
    "--quiet",
    "--release",
    "--package",
    "heddle-linux-init",
    "--target",
    "x86_64-unknown-linux-gnu",
    "--config",
    "target.x86_64-unknown-linux-gnu.rustflags=['-Ctarget-feature=+crt-static']",
    "--config",
    "profile.release.strip=true",
    "--config",
    "profile.release.debug=false",
];

/// The program below cargo's folder.
pub const INIT_PROGRAM: &str = "x86_64-unknown-linux-gnu/release/heddle-linux-init";
