//! The C interface as its users meet it: built, installed, found by pkg-config and used from C++ (`capi.sh`).

#![cfg(all(not(heddle_loom), not(miri)))]

use std::process::Command;

#[test]
fn the_cpp_example_builds_and_counts_every_cell() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/capi.sh");
    let prefix = concat!(env!("CARGO_TARGET_TMPDIR"), "/capi");
    let output = Command::new(script).arg(prefix).output().expect("bash runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    // Both programs print the sum of all increments, which lost updates would lower; without a compiler there is
    // one line that says so.
    let sums: Vec<&str> = text.lines().collect();
    assert!(
        matches!(sums[..], [shared, fixed] if shared == fixed) || text.contains("no C++ compiler"),
        "{text}"
    );
}
