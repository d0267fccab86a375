//! The kernel's rooms and the arrows between them: each knows only those below it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Source, report, sources};

const KERNEL: &str = "kernel/src/";

/// From the bottom up. A room may import from those before it.
const ROOMS: [&str; 23] = [
    "boot",
    "error",
    "arch",
    "sync",
    "log",
    "random",
    "time",
    "sched",
    "memory",
    "wait",
    "user_sched",
    "device",
    "fs",
    "signal",
    "process",
    "call",
    "net",
    "tty",
    "ipc",
    "procfs",
    "cgroupfs",
    "syscall",
    "session",
];

/// The arrows that run back up, each with its reason.
const BACK: [(&str, &str, &str); 4] = [
    ("signal", "process", "a signal is sent to a process and taken by a thread: one mechanism in two rooms"),
    ("fs", "process", "looking a path up acts for a thread: its identity, its directories"),
    ("fs", "call", "a file carries out ioctl, whose argument may be anything in the caller's memory"),
    (
        "process",
        "call",
        "what a process does in a call waits as its caller: exec, vfork, clocks of processor time",
    ),
];

/// No more than these may run back.
const BACK_MAX: usize = 5;

/// The room of a file, by its path below the kernel's sources. The start and the panic handler may see everything.
fn room(path: &str) -> Option<&str> {
    let inside = path.strip_prefix(KERNEL)?;
    let name = inside.split('/').next()?;
    Some(name.strip_suffix(".rs").unwrap_or(name)).filter(|name| !["main", "panic"].contains(name))
}

/// The names that follow `crate::` in a file's code, also in groups: `use crate::{NAME, …}`.
fn names_after_crate(text: &str) -> BTreeSet<String> {
    let code: String =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let after = &code[at + "crate::".len()..];
        let names = match after.strip_prefix('{') {
            None => after
                .split(|letter: char| !(letter.is_alphanumeric() || letter == '_'))
                .next()
                .into_iter()
                .collect(),
            Some(group) => top_names(group),
        };
        found.extend(names.into_iter().map(str::to_owned));
    }
    found
}

/// The rooms that a file names.
fn named(text: &str) -> BTreeSet<String> {
    names_after_crate(text).into_iter().filter(|name| ROOMS.contains(&name.as_str())).collect()
}

/// The first components of the paths in a group, up to its closing brace.
fn top_names(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut names) = (0, 0, Vec::new());
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                names.push(group[start..at].trim().split("::").next().unwrap_or_default());
                start = at + 1;
                if letter == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names
}

fn arrows(files: &[Source]) -> BTreeMap<(String, String), String> {
    let mut arrows = BTreeMap::new();
    for source in files.iter().filter(|source| source.is("rs")) {
        let path = source.path.to_string_lossy().into_owned();
        let Some(from) = room(&path) else { continue };
        for to in named(&source.text) {
            if to != from {
                arrows.entry((from.to_owned(), to)).or_insert_with(|| path.clone());
            }
        }
    }
    arrows
}

#[test]
fn arrows_of_the_kernel_run_down() {
    let level = |room: &str| ROOMS.iter().position(|known| *known == room);
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for ((from, to), path) in arrows(&sources()) {
        let (Some(above), Some(below)) = (level(&from), level(&to)) else {
            faults.push(format!("{path}: the room {from} is not on the list"));
            continue;
        };
        if above > below {
            continue;
        }
        if BACK.iter().any(|(back, target, _)| *back == from && *target == to) {
            seen.insert((from, to));
        } else {
            faults.push(format!("{path}: {from} is below {to}, and imports from it"));
        }
    }
    let is_gone =
        |(from, to, _): &&(&str, &str, &str)| !seen.contains(&((*from).to_owned(), (*to).to_owned()));
    faults.extend(
        BACK.iter().filter(is_gone).map(|(from, to, _)| format!("{from} → {to} is allowed and not there")),
    );
    report(&faults);
    assert!(BACK.len() <= BACK_MAX, "too many arrows run back up");
}

#[test]
fn groups_are_read() {
    let text = "use crate::{arch, fs::{File, tree}, sched};\n// crate::net\nlet x = crate::time::now_ns();\n";
    let expected = ["arch", "fs", "sched", "time"];
    assert_eq!(named(text).into_iter().collect::<Vec<_>>(), expected);
}

/// Crates in which no two types have one name: both would be imported by their last name.
const CRATES: [&str; 15] = [
    "abi/",
    "crates/coroutine/",
    "crates/dhcp/",
    "crates/erofs/",
    "crates/range-lock/",
    "crates/tty/",
    "guest/rt/",
    "guest/vdso/",
    "host/cli/",
    "host/image/",
    "host/linux-init/",
    "host/streams/",
    "kernel/",
    "kernel/core/",
    "kernel/inet/",
];

/// Types of one name that users know from other libraries: both ends of `channel` and of `oneshot`.
const SHARED_NAMES: [(&str, &str); 2] = [("crates/coroutine/", "Sender"), ("crates/coroutine/", "Receiver")];

/// Tests are not looked at, nor two forms of one type in one file, of which a configuration chooses.
#[test]
fn types_have_names_of_their_own() {
    let mut faults = Vec::new();
    for root in CRATES {
        let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for source in sources().iter().filter(|source| source.is("rs")) {
            let path = source.path.to_string_lossy().into_owned();
            let Some(inside) = path.strip_prefix(root).and_then(|path| path.strip_prefix("src/")) else {
                continue;
            };
            let is_test = |name| {
                ["test", "tests", "tests.rs", "models", "models.rs", "model.rs", "machine.rs", "schedules.rs"]
                    .contains(&name)
            };
            if inside.split('/').any(is_test) {
                continue;
            }
            let code = source.text.lines().take_while(|line| !line.starts_with("mod tests {"));
            for name in code.filter_map(defined_type) {
                places.entry(name).or_default().insert(inside.to_owned());
            }
        }
        let twice = places
            .iter()
            .filter(|(name, places)| places.len() > 1 && !SHARED_NAMES.contains(&(root, name.as_str())));
        let list = |places: &BTreeSet<String>| places.iter().cloned().collect::<Vec<_>>().join(", ");
        faults.extend(twice.map(|(name, places)| format!("{root}: {name}: {}", list(places))));
    }
    report(&faults);
}

/// The name of the type that a line defines.
fn defined_type(line: &str) -> Option<String> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    let kind = words.next()?;
    let name = words.next().filter(|_| ["struct", "enum", "trait", "union"].contains(&kind))?;
    Some(name.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect())
}

const COROUTINE: &str = "crates/coroutine/src/";

/// The modules of the coroutine crate that import from one another in a circle, each circle with its reason.
const CIRCLES: [(&[&str], &str); 1] = [(
    &[
        "blocks",
        "core_entry",
        "handle",
        "join",
        "local",
        "machine",
        "park",
        "reactor",
        "registry",
        "task",
        "threads",
        "turn",
        "wait",
        "waker",
    ],
    "a waker finds its core by the registry, a core its tasks, and a task by its end the wakers of those that \
         join it; which core a thread runs is in `threads`, which all of them ask",
)];

/// The modules that are reached from each module.
fn reached(imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    let mut reached = imports.clone();
    loop {
        let before: usize = reached.values().map(BTreeSet::len).sum();
        for from in imports.keys() {
            let further: BTreeSet<String> =
                reached[from].iter().filter_map(|to| reached.get(to)).flatten().cloned().collect();
            reached.entry(from.clone()).or_default().extend(further);
        }
        if reached.values().map(BTreeSet::len).sum::<usize>() == before {
            return reached;
        }
    }
}

/// The circles among a crate's modules, each in the order of the alphabet.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Vec<String>> {
    let reached = reached(imports);
    let is_together = |a: &str, b: &str| reached[a].contains(b) && reached[b].contains(a);
    let of = |from: &String| imports.keys().filter(|to| is_together(from, to)).cloned().collect::<Vec<_>>();
    imports.keys().map(of).filter(|circle| circle.len() > 1).collect()
}

#[test]
fn circles_of_the_coroutine_crate_are_named() {
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let files = sources();
    let module = |path: &str| -> Option<String> {
        let name = path.strip_prefix(COROUTINE)?.split('/').next()?;
        Some(name.strip_suffix(".rs").unwrap_or(name).to_owned()).filter(|name| name != "lib")
    };
    let all: BTreeSet<String> = files
        .iter()
        .filter(|source| source.is("rs"))
        .filter_map(|source| module(&source.path.to_string_lossy()))
        .collect();
    for source in files.iter().filter(|source| source.is("rs")) {
        let Some(from) = module(&source.path.to_string_lossy()) else { continue };
        let found = imports.entry(from.clone()).or_default();
        found.extend(
            names_after_crate(&source.text).into_iter().filter(|name| all.contains(name) && *name != from),
        );
    }
    let found = circles(&imports);
    let named: BTreeSet<Vec<String>> =
        CIRCLES.iter().map(|(circle, _)| circle.iter().map(|&name| name.to_owned()).collect()).collect();
    let faults: Vec<String> = found
        .symmetric_difference(&named)
        .map(|circle| {
            let fault = if found.contains(circle) { "is a circle without a reason" } else { "is no circle" };
            format!("{}: {fault}", circle.join(", "))
        })
        .collect();
    report(&faults);
}

#[test]
fn circles_are_found() {
    let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    let imports: BTreeMap<String, BTreeSet<String>> =
        [("a", &["b"][..]), ("b", &["c"]), ("c", &["a"]), ("d", &["a"])]
            .into_iter()
            .map(|(from, to)| (from.to_owned(), set(to)))
            .collect();
    assert_eq!(circles(&imports), [vec!["a".to_owned(), "b".to_owned(), "c".to_owned()]].into());
}
