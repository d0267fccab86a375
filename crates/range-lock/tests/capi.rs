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
    if !text.contains("no C++ compiler") {
        // The shared one found its library by the name with a version, which was the only one there.
        let there =
            std::fs::read_dir(concat!(env!("CARGO_TARGET_TMPDIR"), "/capi/runtime")).expect("libraries");
        let names: Vec<_> = there.map(|file| file.expect("a name").file_name()).collect();
        let [major, minor] = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR")];
        let version = if major == "0" { format!("0.{minor}") } else { major.to_owned() };
        assert_eq!(names, [format!("libheddle_range_lock.so.{version}").as_str()]);
    }
    assert!(
        matches!(sums[..], [shared, fixed] if shared == fixed) || text.contains("no C++ compiler"),
        "{text}"
    );
}
