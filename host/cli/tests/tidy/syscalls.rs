//! docs/SYSCALLS.md is made from the kernel's table of calls, from the names of all calls, from what its source says
//! of flags, and from the remarks in docs/syscalls.list. This holds it against them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

const TABLE: &str = "kernel/src/syscall/table.rs";
const NAMES: &str = "kernel/src/arch/x86_64/names.rs";
const REMARKS: &str = "docs/syscalls.list";
const DOCUMENT: &str = "docs/SYSCALLS.md";
/// Set to write the document anew.
const WRITE: &str = "HEDDLE_WRITE_DOCS";
/// The name that the table gives to calls that exist only to be refused.
const REFUSED: &str = "not_offered";
const LINE_MAX: usize = 118;

#[derive(Default)]
struct Remarks {
    text: BTreeMap<String, String>,
    /// A flag, and a remark instead of the look at the source.
    flags: BTreeMap<String, Vec<(String, Option<String>)>>,
}

fn parse_flags(text: &str) -> Vec<(String, Option<String>)> {
    let mut flags: Vec<(String, Option<String>)> = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        if let Some(remark) = rest.strip_prefix('(') {
            let (remark, after) = remark.split_once(')').expect("a remark ends");
            flags.last_mut().expect("a remark follows a flag").1 = Some(remark.to_owned());
            rest = after.trim();
        } else {
            let (flag, after) = rest.split_once(' ').unwrap_or((rest, ""));
            flags.push((flag.to_owned(), None));
            rest = after.trim();
        }
    }
    flags
}

fn parse_remarks(text: &str) -> Remarks {
    let mut remarks = Remarks::default();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some((call, flags)) = line.split_once(" = ") {
            remarks.flags.entry(call.to_owned()).or_default().extend(parse_flags(flags));
        } else {
            let (call, remark) = line.split_once(": ").unwrap_or_else(|| panic!("{REMARKS}: {line}"));
            assert!(
                remarks.text.insert(call.to_owned(), remark.to_owned()).is_none(),
                "{REMARKS}: {call} twice"
            );
        }
    }
    remarks
}

/// The words that begin with `__NR_`, without that.
fn calls_in(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter_map(|word| word.strip_prefix("__NR_"))
}

/// All names in the kernel's source that look like flags.
fn source_words(folder: &Path, words: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("the kernel's source") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            source_words(&path, words);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with("x86_64/names.rs")
        {
            let text = std::fs::read_to_string(&path).expect("a source file");
            let found = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            let is_constant = |word: &&str| {
                word.contains('_') || word.len() > 4 && word.chars().all(|letter| letter.is_ascii_uppercase())
            };
            words.extend(found.filter(is_constant).map(str::to_owned));
        }
    }
}

/// Appends words, broken into lines.
fn wrap(document: &mut String, start: &str, words: impl Iterator<Item = String>) {
    let mut line = start.to_owned();
    for word in words {
        if line.len() + word.len() + 1 > LINE_MAX {
            writeln!(document, "{}", line.trim_end()).expect("a string");
            line = String::from("  ");
        }
        line.push_str(&word);
        line.push(' ');
    }
    writeln!(document, "{}", line.trim_end()).expect("a string");
}

fn generate(repository: &Path) -> String {
    let read = |name: &str| std::fs::read_to_string(repository.join(name)).expect(name);
    let (table, names, remarks) = (read(TABLE), read(NAMES), parse_remarks(&read(REMARKS)));
    let all: BTreeSet<&str> = calls_in(&names).filter(|name| !name.is_empty()).collect();
    let lines = table.lines().filter(|line| line.contains(" => ") && line.trim().starts_with("__NR_"));
    let (refused, present): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains(REFUSED));
    let refused: BTreeSet<&str> = refused.into_iter().flat_map(calls_in).collect();
    let present: BTreeSet<&str> = present.into_iter().flat_map(calls_in).collect();
    let mut words = BTreeSet::new();
    source_words(&repository.join("kernel/src"), &mut words);
    for call in remarks.flags.keys() {
        assert!(
            present.contains(call.as_str()),
            "{REMARKS} has flags of {call}, which the kernel doesn't have"
        );
    }
    for call in remarks.text.keys() {
        assert!(all.contains(call.as_str()), "{REMARKS} speaks of {call}, which is no call");
    }
    let mut document = format!(
        "# System calls\n\nOf the {} calls of Linux on x86-64 Heddle has {}. The list is generated: from the kernel's\n\
         table, from what its source says of flags, and from [syscalls.list](syscalls.list). A test holds it against\n\
         them; `{WRITE}=1 cargo test -p heddle-cli --test tidy` writes it anew.\n\n",
        all.len(),
        present.len()
    );
    document.push_str("## With remarks\n\nEverything else is as in the manual page.\n\n");
    let remarked: BTreeSet<&str> =
        remarks.text.keys().chain(remarks.flags.keys()).map(String::as_str).collect();
    for call in remarked.intersection(&present) {
        let remark = remarks.text.get(*call).map_or(String::new(), |remark| format!(": {remark}"));
        wrap(&mut document, "", format!("- **`{call}`**{remark}").split(' ').map(str::to_owned));
        let flags = remarks.flags.get(*call).map_or(&[][..], Vec::as_slice);
        let known = flags.iter().filter(|(flag, remark)| remark.is_none() && words.contains(flag));
        let absent = flags.iter().filter(|(flag, remark)| remark.is_none() && !words.contains(flag));
        let partly = flags.iter().filter_map(|(flag, remark)| Some((flag, remark.as_ref()?)));
        let lists: [(&str, Vec<String>); 3] = [
            ("  - known: ", known.map(|(flag, _)| format!("`{flag}`")).collect()),
            ("  - partly: ", partly.map(|(flag, remark)| format!("`{flag}` ({remark})")).collect()),
            ("  - absent: ", absent.map(|(flag, _)| format!("`{flag}`")).collect()),
        ];
        for (start, list) in lists {
            if !list.is_empty() {
                wrap(&mut document, start, list.into_iter());
            }
        }
    }
    document.push_str("\n## Without remarks\n\n");
    let code = |call: &str| format!("`{call}`");
    wrap(&mut document, "", present.difference(&remarked).map(|call| code(call)));
    document.push_str("\n## Absent\n\nThese say `ENOSYS`.\n\n");
    let unexplained = all.difference(&present).filter(|call| !remarked.contains(*call));
    wrap(&mut document, "", unexplained.map(|call| code(call)));
    document.push_str("\nThese will stay so:\n");
    for call in remarked.difference(&present) {
        let reason = &remarks.text[*call];
        wrap(&mut document, "", format!("- **`{call}`**: {reason}").split(' ').map(str::to_owned));
    }
    assert!(refused.is_subset(&all), "the table refuses calls that have no names");
    document
}

#[test]
fn the_document_of_calls_is_current() {
    let repository = super::repository();
    let generated = generate(&repository);
    let path = repository.join(DOCUMENT);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &generated).expect(DOCUMENT);
    }
    let current = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        current == generated,
        "{DOCUMENT} is old: {WRITE}=1 cargo test -p heddle-cli --test tidy writes it anew"
    );
}
