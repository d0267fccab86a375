//! The front door itself: the script, and errors that must come at once and be clear.

use std::path::Path;
use std::process::Command;

use super::process::{Output, RUN_TIMEOUT, run};
use super::{Tally, Verdict, panic};

fn heddle(repository: &Path, arguments: &[&str]) -> Result<Output, String> {
    let mut command = Command::new(repository.join("heddle"));
    run(command.args(arguments).current_dir(repository), b"", RUN_TIMEOUT)
        .map_err(|error| format!("{error:#}"))
}

fn first_command(repository: &Path) -> Result<(), String> {
    let script = "for i in 1 2 3; do echo $i | sed s/^/line-/; done";
    let output = heddle(repository, &["run", "--", "bash", "-c", script])?;
    if output.text() != "line-1\nline-2\nline-3\n" || output.status != Some(0) {
        return Err(format!("{:?}, status {:?}; {}", output.text(), output.status, output.complaints()));
    }
    Ok(())
}

/// A run that must fail with this status and these words.
fn fails(repository: &Path, arguments: &[&str], status: i32, words: &str) -> Result<(), String> {
    let output = heddle(repository, arguments)?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status != Some(status) || !errors.contains(words) || !output.stdout.is_empty() {
        return Err(format!("status {:?}, expected {status} and {words:?} in {errors:?}", output.status));
    }
    Ok(())
}

/// Files and folders that arguments name come along, at the same path, and the program starts in the directory.
fn named(repository: &Path) -> Result<(), String> {
    let script = "pwd && head -n 1 \"$1\" && ls \"$2\" && ls -A";
    let arguments = ["run", "--", "sh", "-c", script, "sh", "./README.md", "docs"];
    let output = heddle(repository, &arguments)?;
    let here = repository.canonicalize().map_err(|error| error.to_string())?;
    let text = output.text();
    let mut lines = text.lines();
    let (first, last) = ((lines.next(), lines.next()), text.lines().rev().take(2).collect::<Vec<_>>());
    let seen = first == (here.to_str(), Some("# Heddle"))
        && text.contains("GLOSSARY.md")
        && last == ["docs", "README.md"];
    if output.status != Some(0) || !seen {
        return Err(format!("status {:?}, {text:?}: {}", output.status, output.complaints()));
    }
    Ok(())
}

/// The smallest machine that the tool admits has room for a program.
fn least_memory(repository: &Path) -> Result<(), String> {
    let output = heddle(repository, &["run", "--memory", "5", "--", "true"])?;
    match output.status {
        Some(0) => Ok(()),
        status => Err(format!("status {status:?}: {}", output.complaints())),
    }
}

/// Runs these tests.
pub fn test(repository: &Path, tally: &mut Tally) {
    tally.record("front/the first command", &first_command(repository).into());
    tally.record("front/named files come along", &named(repository).into());
    tally.record("front/the least memory", &least_memory(repository).into());
    tally.record("front/a kernel panic is explained by source lines", &panic::test().into());
    tally.record("front/a trace of system calls", &trace(repository).into());
    tally.record("front/a full standard error", &full_standard_error(repository).into());
    let empty = std::env::temp_dir().join(format!("heddle-empty-{}", std::process::id()));
    let text = empty.with_extension("text");
    let foreign = empty.with_extension("foreign");
    let prepared = prepare(&empty, &text, &foreign).map_err(|error| error.to_string());
    if let Err(reason) = prepared {
        tally.record("front/errors", &Verdict::Failed(reason));
        return;
    }
    let [empty_name, text_name, foreign_name] = [&empty, &text, &foreign].map(|path| path.to_string_lossy());
    let cases: [(&str, &[&str], i32, &str); 22] = [
        ("unknown option", &["run", "--nonsense", "true"], 125, "--nonsense"),
        ("no program", &["run"], 125, "PROGRAM"),
        ("not found", &["run", "no-such-program"], 127, "no-such-program"),
        ("not an ELF file", &["run", &text_name], 126, "not an ELF file"),
        ("wrong architecture", &["run", &foreign_name], 126, "wrong architecture"),
        ("program not in the root", &["run", "--root", &empty_name, "true"], 127, "true"),
        ("too little memory", &["run", "--memory", "1", "true"], 125, "--memory"),
        ("too much memory", &["run", "--memory", "99999999", "true"], 125, "--memory"),
        ("too many processors", &["run", "--smp", "9", "true"], 125, "at most 8"),
        ("unknown kernel option", &["run", "--boot", "heddle.nonsense=1", "true"], 125, "no such key"),
        ("kernel option without a value", &["run", "--boot", "heddle.pcid", "true"], 125, "KEY=VALUE"),
        ("unknown value of a kernel option", &["run", "--boot", "heddle.pcid=maybe", "true"], 125, "on, off"),
        (
            "isolation on Linux",
            &["run", "--kernel", "linux", "--isolation", "private", "true"],
            125,
            "--isolation",
        ),
        ("checking build of Linux", &["run", "--kernel", "linux", "--checking", "true"], 125, "--checking"),
        ("unknown network", &["run", "--net", "nonsense", "true"], 125, "tap=NAME"),
        ("published port without a network", &["run", "--net", "none", "-p", "1:1", "true"], 125, "-p"),
        ("a crash", &["run", "sh", "-c", "kill -SEGV $$"], 139, "sh: segmentation fault"),
        (
            "a file that comes along is not written",
            &["run", "sed", "-i", "s/a/b/", "README.md"],
            4,
            "Read-only",
        ),
        ("a file above stays here", &["run", "cat", "tests/../../no-such-file"], 1, "No such file"),
        ("no such working directory", &["run", "-w", "/nonexistent", "true"], 125, "working directory"),
        (
            "no such working directory on Linux",
            &["run", "--kernel", "linux", "-w", "/etc/passwd", "true"],
            125,
            "working directory",
        ),
        ("share without an absolute path", &["run", "--share", "/tmp:tmp", "true"], 125, "absolute"),
    ];
    for (name, arguments, status, words) in cases {
        tally.record(&format!("front/{name}"), &fails(repository, arguments, status, words).into());
    }
    let _ = std::fs::remove_dir_all(&empty);
    let _ = std::fs::remove_file(&text);
    let _ = std::fs::remove_file(&foreign);
}

/// `--strace` shows names, paths, flags, bytes, errors, children and ends, on standard error.
fn trace(repository: &Path) -> Result<(), String> {
    let script = "cat /etc/hostname; cat /no/such/file 2>/dev/null; kill -WINCH $$; exit 3";
    let output = heddle(repository, &["run", "--smp", "2", "--strace", "--", "sh", "-c", script])?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status != Some(3) || output.text() != "heddle\n" {
        return Err(format!("{:?}, status {:?}; {errors}", output.text(), output.status));
    }
    let expected = [
        "openat(AT_FDCWD, \"/etc/hostname\", O_RDONLY) = 3 <",
        "read(3, \"heddle\\n\", ",
        "write(1, \"heddle\\n\", 7) = 7 <",
        "openat(AT_FDCWD, \"/no/such/file\", O_RDONLY) = -1 ENOENT (No such file or directory) <",
        "[\"cat\", \"/etc/hostname\"], ",
        "{WIFEXITED(s) && WEXITSTATUS(s) == 1}",
        "--- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED} ---",
        "exit_group(3) = ?",
        "+++ exited with 3 +++",
        "heddle: [pid ",
    ];
    match expected.iter().find(|line| !errors.contains(**line)) {
        Some(missing) => Err(format!("no {missing:?} in {errors}")),
        None => Ok(()),
    }
}

/// A standard error that cannot be written to is no reason to panic: the status says what happened.
fn full_standard_error(repository: &Path) -> Result<(), String> {
    let full = std::fs::File::options().write(true).open("/dev/full").map_err(|error| error.to_string())?;
    let mut command = Command::new(repository.join("heddle"));
    command.args(["run", "no-such-program"]).stdin(std::process::Stdio::null()).stderr(full);
    let status = command.status().map_err(|error| error.to_string())?;
    if status.code() == Some(127) { Ok(()) } else { Err(format!("{status}, expected 127")) }
}

/// An empty root, an executable text, and an executable for another machine.
fn prepare(empty: &Path, text: &Path, foreign: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    const MACHINE_OFFSET: usize = 18;
    const MACHINE_AARCH64: u8 = 183;
    std::fs::create_dir_all(empty)?;
    std::fs::write(text, "just text\n")?;
    let mut program = std::fs::read(crate::paths::own_program().map_err(std::io::Error::other)?)?;
    program.truncate(4096);
    program[MACHINE_OFFSET] = MACHINE_AARCH64;
    std::fs::write(foreign, program)?;
    for path in [text, foreign] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
