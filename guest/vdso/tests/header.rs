//! Checks that the numbers and layouts of `heddle.h` are those of `heddle_abi`, by the C compiler.
#![allow(missing_docs)]

use heddle_abi::call::{self, Entry};
use heddle_abi::user_sched::calls::policy;
use heddle_abi::user_sched::{AT_HEDDLE_PROCESS, AT_HEDDLE_SYSTEM, CoroutineInfo, state};
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Offsets of fields: of the same name in C and in Rust.
macro_rules! layout {
    ($source:ident, $rust:ty, $c:literal, $($field:ident)*) => {
        $(writeln!(
            $source, "_Static_assert(offsetof({}, {}) == {}, \"{}\");",
            $c, stringify!($field), offset_of!($rust, $field), stringify!($field),
        ).unwrap();)*
        writeln!($source, "_Static_assert(sizeof({}) == {}, \"size\");", $c, size_of::<$rust>()).unwrap();
    };
}

#[test]
fn numbers_and_layouts_are_those_of_the_kernel() {
    let numbers = [
        ("AT_HEDDLE_PROCESS", AT_HEDDLE_PROCESS.into()),
        ("AT_HEDDLE_SYSTEM", AT_HEDDLE_SYSTEM.into()),
        ("HEDDLE_RELAXED", policy::RELAXED.into()),
        ("HEDDLE_STRICT", policy::STRICT.into()),
        ("HEDDLE_SYS_SUBMIT", call::SUBMIT.into()),
        ("HEDDLE_SYS_CANCEL", call::CANCEL.into()),
        ("HEDDLE_SYS_LEVEL", call::LEVEL.into()),
        ("HEDDLE_CANCEL_AND_WAIT", call::CANCEL_AND_WAIT),
        ("HEDDLE_CALLS_MAX", call::SUBMIT_MAX as u64),
        ("HEDDLE_CALL_NOT_STARTED", call::NOT_STARTED),
        ("HEDDLE_CALL_DONE", call::DONE),
        ("HEDDLE_CALL_WAITS", call::WAITS),
        ("HEDDLE_RING_BYTES(4)", (call::RING_HEADER_BYTES + (call::COMPLETION_BYTES << 4)) as u64),
    ];
    let mut source = String::from("#include \"heddle.h\"\n");
    for (name, value) in numbers {
        writeln!(source, "_Static_assert({name} == {value}u, \"{name}\");").unwrap();
    }
    layout!(source, Entry, "struct heddle_call", number level cookie coroutine arguments state outcome);
    layout!(source, CoroutineInfo, "struct heddle_info", id kind level state reserved polls since_ns delayed_ns);
    assert_eq!((state::READY, state::RUNNING, state::WAITING), (0, 1, 2), "as the comment on `state` says");

    let vdso = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("header.c");
    std::fs::write(&file, source).unwrap();
    for standard in ["-std=c99", "-std=c11"] {
        let status = Command::new("cc")
            .args([standard, "-Wall", "-Wextra", "-Werror", "-Wno-unused", "-fsyntax-only", "-I"])
            .arg(vdso.join("include"))
            .arg(&file)
            .status()
            .expect("a C compiler, which linking Rust needs too");
        assert!(status.success(), "see the compiler's messages");
    }
}
