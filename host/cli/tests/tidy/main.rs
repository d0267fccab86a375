//! The rules of STYLE that a program can check, for every file that git knows.

mod arrows;
mod syscalls;

use std::path::{Path, PathBuf};
use std::process::Command;

const LINE_MAX_CHARACTERS: usize = 120;
const FILE_MAX_LINES: usize = 600;
const FUNCTION_MAX_LINES: usize = 100;

/// Written in two parts, so that this file does not have them.
const BANNED: [(&str, &str); 9] = [
    (concat!("TO", "DO"), "do it, or open an issue"),
    (concat!("FIX", "ME"), "fix it, or open an issue"),
    (concat!("todo", "!("), "write it"),
    (concat!("unimplemented", "!("), "return an error"),
    (concat!("dbg", "!("), "remove it"),
    (concat!("/root/", ".cargo"), "no paths of one machine"),
    (concat!("/wo", "rk/"), "no paths of one machine"),
    (concat!("index.crates", ".io"), "no registry hosts"),
    (concat!("deb.debian", ".org"), "no registry hosts"),
];

/// Files that are made by programs, or are data.
const EXEMPT: [&str; 3] = ["Cargo.lock", "bench/results/", "seeds/"];

struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    fn is(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|found| found == extension)
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources() -> Vec<Source> {
    let output = Command::new("git").arg("ls-files").current_dir(repository()).output().expect("git");
    let names = String::from_utf8(output.stdout).expect("file names in UTF-8");
    let mut sources = Vec::new();
    for name in names.lines().filter(|name| !EXEMPT.iter().any(|exempt| name.starts_with(exempt))) {
        // A file that is no text, or was removed and not yet committed, has no style.
        if let Ok(text) = std::fs::read_to_string(repository().join(name)) {
            sources.push(Source { path: name.into(), text });
        }
    }
    assert!(
        sources.iter().any(|source| source.path.ends_with("host/cli/tests/tidy/main.rs")),
        "git lists this file"
    );
    sources
}

fn report(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// A fault for each line of each file that `check` complains about.
fn check_lines(only_rust: bool, check: impl Fn(&str) -> Option<String>) {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| !only_rust || source.is("rs")) {
        for (number, line) in (1..).zip(source.text.lines()) {
            faults.extend(check(line).map(|fault| format!("{}:{number}: {fault}", source.path.display())));
        }
    }
    report(&faults);
}

#[test]
fn lines_are_short() {
    check_lines(true, |line| {
        let length = line.chars().count();
        (length > LINE_MAX_CHARACTERS).then(|| format!("{length} characters"))
    });
}

/// A sentence of a comment that starts with "What" or "Who" and is no question has no subject.
#[test]
fn sentences_have_a_subject() {
    check_lines(true, |line| {
        let comment = line.find("//").map(|at| line[at..].trim_start_matches(['/', '!']))?;
        let starts = |sentence: &str| ["What ", "Who "].iter().any(|word| sentence.starts_with(word));
        let mut sentences = comment.trim_start().split(". ");
        sentences.find(|sentence| starts(sentence) && !sentence.contains('?')).map(str::to_owned)
    });
}

#[test]
fn nothing_banned_is_used() {
    check_lines(false, |line| {
        let (banned, instead) = BANNED.iter().find(|(banned, _)| line.contains(banned))?;
        Some(format!("{banned}: {instead}"))
    });
}

/// Places of the kernel that call `extend`: clippy cannot forbid it, since macros of others use it.
const EXTENDING: [(&str, &str); 3] = [
    ("kernel/core/src/fallible.rs", "behind a reservation in the same function"),
    ("kernel/src/memory/space/fork.rs", "as many as have room in place"),
    ("kernel/src/tty/output.rs", "the line discipline has asked for room, which is reserved"),
];

#[test]
fn the_kernel_extends_what_has_room() {
    let is_kernel = |path: &str| {
        (path.starts_with("kernel/src/") || path.starts_with("kernel/core/src/"))
            && !path.contains("/tests")
            && !EXTENDING.iter().any(|(place, _)| *place == path)
    };
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| source.is("rs")) {
        let path = source.path.display().to_string();
        if is_kernel(&path) {
            let lines = source.text.lines().enumerate().filter(|(_, line)| line.contains(".extend("));
            found.extend(lines.map(|(at, _)| format!("{path}:{}: use extend_items_reserved", at + 1)));
        }
    }
    report(&found);
}

#[test]
fn files_are_about_one_thing() {
    let too_long = |source: &Source| {
        let lines = source.text.lines().count();
        (lines > FILE_MAX_LINES).then(|| format!("{}: {lines} lines", source.path.display()))
    };
    report(&sources().iter().filter(|source| source.is("rs")).filter_map(too_long).collect::<Vec<_>>());
}

#[test]
fn files_say_what_they_are_for() {
    let silent = |source: &Source| {
        let first = source.text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        (!first.starts_with("//!")).then(|| format!("{}: starts with {first:?}", source.path.display()))
    };
    report(&sources().iter().filter(|source| source.is("rs")).filter_map(silent).collect::<Vec<_>>());
}

/// The functions of a formatted file: name line, and how many lines it takes to the brace that closes it.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let is_function = code.split('(').next().is_some_and(|head| {
            let mut words = head.split_whitespace();
            let qualifiers = ["pub", "async", "const", "unsafe", "extern", "\"C\"", "\"sysv64\""];
            words
                .find(|word| !qualifiers.contains(word) && !head.starts_with("pub"))
                .is_some_and(|word| word == "fn")
                || head.starts_with("pub") && head.split_whitespace().any(|word| word == "fn")
        });
        if is_function && !line.trim_end().ends_with(';') && !line.trim_end().ends_with('}') {
            let end = format!("{}}}", " ".repeat(indent));
            let length = lines[start..].iter().position(|line| *line == end).unwrap_or(0);
            found.push((start + 1, length + 1));
        }
    }
    found
}

#[test]
fn functions_are_short() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| source.is("rs")) {
        let long = functions(&source.text).into_iter().filter(|(_, lines)| *lines > FUNCTION_MAX_LINES);
        faults.extend(long.map(|(line, lines)| format!("{}:{line}: {lines} lines", source.path.display())));
    }
    report(&faults);
}

#[test]
fn functions_are_found_with_their_lengths() {
    let text = "pub fn a() {\n    x\n}\nimpl T {\n    async fn b(\n        c: u8,\n    ) -> u8 {\n        \
                1\n    }\n}\nfn d();\n";
    assert_eq!(functions(text), [(1, 3), (5, 5)]);
}

#[test]
fn unsafe_is_argued_for() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| source.is("rs")) {
        let count =
            |what: &dyn Fn(&str) -> bool| source.text.lines().filter(|line| what(line.trim_start())).count();
        let is_comment = |line: &str| line.starts_with("//");
        let blocks =
            count(&|line| !is_comment(line) && (line.contains("unsafe {") || line.contains("unsafe impl")));
        let reasons = count(&|line| line.contains("SAFETY:"));
        let is_text_of_a_check = source.path.ends_with("host/cli/tests/tidy/main.rs");
        if blocks > reasons && !is_text_of_a_check {
            faults.push(format!("{}: {blocks} unsafe blocks, {reasons} reasons", source.path.display()));
        }
    }
    report(&faults);
}

#[test]
fn crates_take_the_workspaces_lints() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| source.path.ends_with("Cargo.toml")) {
        let is_package = source.text.contains("[package]");
        if is_package && !source.text.contains("[lints]\nworkspace = true") {
            faults.push(source.path.display().to_string());
        }
    }
    report(&faults);
    let workspace = std::fs::read_to_string(repository().join("Cargo.toml")).expect("the workspace");
    for lint in ["unsafe_code = \"deny\"", "undocumented_unsafe_blocks = \"deny\""] {
        assert!(workspace.contains(lint), "{lint} is missing");
    }
}

/// Models are built without the crate of property tests, which a build of the models alone would notice otherwise.
#[test]
fn property_tests_are_out_of_the_models() {
    let mut faults = Vec::new();
    let sources = sources();
    for source in sources.iter().filter(|source| source.path.starts_with("kernel/core/src")) {
        if !source.is("rs") || !source.text.contains("use proptest") {
            continue;
        }
        let module = source.path.with_file_name("mod.rs");
        let parent = sources.iter().find(|parent| parent.path == module).map_or("", |parent| &parent.text);
        let declared = parent.lines().zip(parent.lines().skip(1)).any(|(attribute, line)| {
            attribute == "#[cfg(all(test, not(heddle_loom)))]" && line == "mod tests;"
        });
        if !source.path.ends_with("tests.rs") || !declared {
            faults.push(format!("{}: declared without `not(heddle_loom)`", source.path.display()));
        }
    }
    report(&faults);
}

/// Tests of the published crates that run without the allocator that checks layouts, and without one of their own.
const UNCHECKED: [(&str, &str); 5] = [
    ("crates/coroutine/tests/limits.rs", "as many coroutines as there can be"),
    ("crates/coroutine/tests/million.rs", "as many coroutines as memory has room for"),
    ("crates/coroutine/tests/object.rs", "starts compilers"),
    ("crates/range-lock/tests/capi.rs", "starts compilers"),
    ("crates/range-lock/tests/loom.rs", "models, whose memory loom looks at"),
];

#[test]
fn tests_of_the_published_crates_check_their_memory() {
    let folders = ["crates/coroutine/tests", "crates/range-lock/tests", "guest/rt/tests"];
    let is_program = |path: &Path| {
        let folder = path.parent().unwrap_or(Path::new(""));
        path.ends_with("main.rs") && folders.iter().any(|top| folder.starts_with(top))
            || folders.iter().any(|top| folder == Path::new(top))
    };
    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| source.is("rs") && is_program(&source.path)) {
        let path = source.path.display().to_string();
        let checks = ["\nmod support;", "\nmod allocator;", "\n#[global_allocator]"];
        if !checks.iter().any(|line| source.text.contains(line))
            && !UNCHECKED.iter().any(|(name, _)| *name == path)
        {
            faults.push(path);
        }
    }
    report(&faults);
}
