//! Shell scripts of `tests/transcripts`: many in one boot, on Heddle and on Linux with the same root image, and Linux
//! says what is right.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::process::{RUN_TIMEOUT, heddle_run, run};
use super::side_by_side::side_by_side;
use super::{Tally, Verdict};
use crate::guest::Kernel;

/// Runs scripts one after the other and marks where each begins and ends. Arguments come in threes: name, shell,
/// script. It is written for the smallest of the shells.
const DRIVER: &str = r#"
number=0
while [ $# -ge 3 ]; do
    printf '\n@@@ begin %s\n' "$1"
    number=$((number + 1))
    mkdir "/tmp/script-$number"
    cd "/tmp/script-$number"
    $2 -c "$3" "$1" </dev/null 2>&1
    printf '\n@@@ end %s\n' "$?"
    shift 3
done
"#;
const BEGIN: &str = "\n@@@ begin ";
const END: &str = "\n@@@ end ";
/// A boot that crashed or got stuck is followed by one for the scripts that it did not reach, so often at most.
const BOOTS_MAX: usize = 12;
/// Status of a shell that did not find a command, or could not execute it.
const NOT_RUN: [i32; 2] = [126, 127];

/// A root image and the shell that runs the driver in it.
struct TestRoot {
    name: &'static str,
    packages: &'static str,
    driver: &'static [&'static str],
    /// Names of shells in the files, and their command lines.
    shells: &'static [(&'static str, &'static str)],
    /// Whether its scripts also run on more processors, and in the long tier with a page table for each process.
    on_all: bool,
}

/// Both busyboxes are the same file to Debian, so each has a root of its own.
const ROOTS: [TestRoot; 10] = [
    TestRoot {
        name: "debian",
        packages: "bash,dash,coreutils,findutils,grep,sed,gawk,tar,gzip,diffutils,busybox",
        driver: &["dash", "-c"],
        shells: &[("bash", "bash"), ("dash", "dash"), ("busybox", "busybox sh")],
        on_all: false,
    },
    TestRoot {
        name: "static",
        packages: "busybox-static",
        driver: &["busybox", "sh", "-c"],
        shells: &[("busybox-static", "busybox sh")],
        on_all: false,
    },
    TestRoot {
        name: "programs",
        packages: "bash,coreutils,findutils,grep,sed,tar,gcc,libc6-dev,make,git,perl,sqlite3,xz-utils,bzip2,diffutils,\
                   patch,util-linux,bsdextrautils,bsdutils,procps",
        driver: &["bash", "-c"],
        shells: &[("programs", "bash")],
        on_all: false,
    },
    TestRoot {
        name: "services",
        packages: "bash,coreutils,grep,sed,diffutils,python3,redis-server,redis-tools",
        driver: &["bash", "-c"],
        shells: &[("services", "bash")],
        on_all: true,
    },
    TestRoot {
        name: "debug",
        packages: "bash,coreutils,grep,sed,mawk,gcc,libc6-dev,strace,gdb,ltrace",
        driver: &["bash", "-c"],
        shells: &[("debug", "bash")],
        on_all: true,
    },
    TestRoot {
        name: "accounts",
        packages: "bash,coreutils,sed,grep,dpkg,login,passwd,perl,postgresql,util-linux",
        driver: &["bash", "-c"],
        shells: &[("accounts", "bash")],
        on_all: false,
    },
    TestRoot {
        name: "sandbox",
        packages: "bash,coreutils,sed,grep,mount,util-linux,bubblewrap",
        driver: &["bash", "-c"],
        shells: &[("sandbox", "bash")],
        on_all: false,
    },
    TestRoot {
        name: "served",
        packages: "bash,coreutils,sed,grep,diffutils,util-linux,fuse3,fuse-overlayfs,squashfuse,squashfs-tools,\
                   sshfs,openssh-client,openssh-sftp-server",
        driver: &["bash", "-c"],
        shells: &[("served", "bash")],
        on_all: false,
    },
    TestRoot {
        name: "io",
        packages: "bash,coreutils,fio",
        driver: &["bash", "-c"],
        shells: &[("io", "bash")],
        on_all: false,
    },
    TestRoot {
        name: "network",
        packages: "bash,coreutils,grep,sed,mawk,diffutils,curl,wget,busybox,nginx-light,redis-server,redis-tools,\
                   iproute2,netcat-openbsd,openssh-server,openssh-client,python3,git,hostname,iperf3,bind9-dnsutils",
        driver: &["bash", "-c"],
        shells: &[("network", "bash")],
        on_all: true,
    },
];

/// How Heddle is started for a root's scripts, and what their names then end with; the last one is of the long tier.
const SIDES: [(&str, &[&str]); 3] = [
    ("", &[]),
    (" (4 processors)", &["--smp", "4"]),
    (" (private)", &["--isolation", "private", "--env", "SPACES=private", "--smp", "4"]),
];

/// One script for one shell.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Script {
    name: String,
    shell: &'static str,
    text: String,
}

/// The results of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ScriptResult {
    Ended { output: String, status: i32 },
    Cut(String),
}

/// A script's name and text.
type Named<'a> = (&'a str, String);

/// The names of the shells that a file's scripts are for, and the scripts.
fn parse(text: &str) -> Result<(Vec<&str>, Vec<Named<'_>>)> {
    let mut lines = text.lines();
    let header = lines.next().and_then(|line| line.strip_prefix("shells: "));
    let shells = header.context("the first line says `shells: …`")?.split_whitespace().collect();
    let mut scripts: Vec<Named<'_>> = Vec::new();
    for line in lines {
        if let Some(name) = line.strip_prefix("=== ") {
            scripts.push((name, String::new()));
        } else if let Some((_, script)) = scripts.last_mut() {
            script.push_str(line);
            script.push('\n');
        }
    }
    Ok((shells, scripts))
}

/// The scripts that run in a root.
fn collect(folder: &Path, root: &TestRoot) -> Result<Vec<Script>> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>())
        .with_context(|| folder.display().to_string())?;
    files.sort();
    let mut scripts = Vec::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "tests")) {
        let stem = file.file_stem().context("a file's name")?.to_string_lossy().into_owned();
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let (shells, parsed) = parse(&text).with_context(|| file.display().to_string())?;
        for (shell_name, shell) in root.shells.iter().filter(|(name, _)| shells.contains(name)) {
            scripts.extend(parsed.iter().map(|(name, text)| Script {
                name: format!("{stem}/{shell_name}: {name}"),
                shell,
                text: text.clone(),
            }));
        }
    }
    if scripts.is_empty() {
        bail!("no scripts for the root {}", root.name);
    }
    Ok(scripts)
}

/// The outcomes that a boot's output reports, in the order of the scripts; the last may be cut.
fn split(output: &str, reason: &str) -> Vec<ScriptResult> {
    let mut outcomes = Vec::new();
    for part in output.split(BEGIN).skip(1) {
        let body = part.split_once('\n').map_or("", |(_, body)| body);
        let ended = body.rsplit_once(END).and_then(|(output, status)| {
            Some(ScriptResult::Ended { output: output.to_owned(), status: status.trim().parse().ok()? })
        });
        outcomes.push(ended.unwrap_or_else(|| ScriptResult::Cut(reason.to_owned())));
    }
    outcomes
}

/// A kernel, and how the machine is started.
type TestSide = (Kernel, &'static [&'static str]);

fn boot(side: TestSide, root: &TestRoot, scripts: &[Script]) -> Result<Vec<ScriptResult>> {
    let (kernel, options) = side;
    let mut arguments = options.to_vec();
    arguments.extend(["--deb", root.packages, "--"]);
    arguments.extend(root.driver);
    arguments.extend([DRIVER, "driver"]);
    for script in scripts {
        arguments.extend([script.name.as_str(), script.shell, script.text.as_str()]);
    }
    let output = run(&mut heddle_run(kernel, &arguments)?, b"", RUN_TIMEOUT)?;
    let reason = match output.status {
        None => String::from("stuck"),
        Some(status) => format!("the run ended with {status}: {}", output.complaints()),
    };
    let mut outcomes = split(&output.text(), &reason);
    if outcomes.is_empty() {
        outcomes.push(ScriptResult::Cut(reason));
    }
    Ok(outcomes)
}

/// Runs all scripts of a root, in as many boots as it takes.
fn outcomes(side: TestSide, root: &TestRoot, scripts: &[Script]) -> Result<BTreeMap<String, ScriptResult>> {
    let mut all = BTreeMap::new();
    let mut rest = scripts;
    for _ in 0..BOOTS_MAX {
        if rest.is_empty() {
            break;
        }
        let done = boot(side, root, rest)?;
        let count = done.len().min(rest.len());
        all.extend(rest[..count].iter().map(|script| script.name.clone()).zip(done));
        rest = &rest[count..];
    }
    let unreached = ScriptResult::Cut(format!("not reached within {BOOTS_MAX} boots"));
    all.extend(rest.iter().map(|script| (script.name.clone(), unreached.clone())));
    Ok(all)
}

/// Whether Heddle did as Linux did.
fn judge(linux: Option<&ScriptResult>, heddle: Option<&ScriptResult>) -> Verdict {
    let (output, status) = match linux {
        Some(ScriptResult::Ended { status, output }) if NOT_RUN.contains(status) => {
            return Verdict::Failed(format!("Linux could not run it ({status}): {}", output.trim()));
        }
        Some(ScriptResult::Ended { output, status }) => (output, status),
        Some(ScriptResult::Cut(reason)) => return Verdict::Failed(format!("on Linux: {reason}")),
        None => return Verdict::Failed(String::from("on Linux: not run")),
    };
    match heddle {
        Some(ScriptResult::Ended { output: ours, status: our_status }) => {
            if ours != output {
                return Verdict::Failed(difference(output, ours));
            }
            if our_status != status {
                return Verdict::Failed(format!("status {our_status}, on Linux {status}"));
            }
            Verdict::Passed
        }
        Some(ScriptResult::Cut(reason)) => Verdict::Failed(reason.clone()),
        None => Verdict::Failed(String::from("not run")),
    }
}

/// The first line that differs.
fn difference(expected: &str, found: &str) -> String {
    let (mut expected, mut found) = (expected.lines(), found.lines());
    let mut number = 0;
    loop {
        number += 1;
        match (expected.next(), found.next()) {
            (None, None) => return String::from("line ends differ"),
            (left, right) if left == right => {}
            (left, right) => {
                let show =
                    |line: Option<&str>| line.map_or(String::from("nothing"), |line| format!("{line:?}"));
                return format!("line {number} is {}, on Linux {}", show(right), show(left));
            }
        }
    }
}

/// Runs the scripts on both kernels and compares; `is_long`: on all sides.
///
/// # Errors
/// If the scripts cannot be read or the tool cannot be started.
pub fn test(repository: &Path, is_long: bool, filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let sides = SIDES.len() - usize::from(!is_long);
    let mut runs = Vec::new();
    for root in &ROOTS {
        let mut scripts = collect(&repository.join("tests/transcripts"), root)?;
        scripts.retain(|script| {
            filter.is_none_or(|filter| format!("transcripts/{}", script.name).contains(filter))
        });
        if !scripts.is_empty() {
            runs.push((root, scripts));
        }
    }
    let run = |(root, scripts): &(&TestRoot, Vec<Script>)| -> Result<Vec<(String, Verdict)>> {
        println!("{} scripts in the root {}", scripts.len(), root.name);
        let linux = outcomes((Kernel::Linux, &[]), root, scripts)?;
        let mut verdicts = Vec::new();
        for (suffix, options) in SIDES.into_iter().take(if root.on_all { sides } else { 1 }) {
            let heddle = outcomes((Kernel::Heddle, options), root, scripts)?;
            verdicts.extend(scripts.iter().map(|script| {
                let verdict = judge(linux.get(&script.name), heddle.get(&script.name));
                (format!("transcripts/{}{suffix}", script.name), verdict)
            }));
        }
        Ok(verdicts)
    };
    side_by_side(&runs, run, |_, verdicts| {
        verdicts?.iter().for_each(|(name, verdict)| tally.record(name, verdict));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(output: &str, status: i32) -> ScriptResult {
        ScriptResult::Ended { output: output.to_owned(), status }
    }

    #[test]
    fn files_are_parsed() {
        let (shells, scripts) = parse("shells: a b\n\n=== one\nx\ny\n\n=== two\nz\n").unwrap();
        assert_eq!(shells, ["a", "b"]);
        assert_eq!(scripts, [("one", String::from("x\ny\n\n")), ("two", String::from("z\n"))]);
        assert!(parse("=== no header\n").is_err());
    }

    #[test]
    fn output_is_split_and_a_cut_is_seen() {
        let output = "\n@@@ begin a\nout\n\n@@@ end 3\n\n@@@ begin b\nhalf";
        assert_eq!(split(output, "crash"), [ended("out\n", 3), ScriptResult::Cut(String::from("crash"))]);
    }

    #[test]
    fn linux_decides() {
        assert_eq!(judge(Some(&ended("x", 0)), Some(&ended("x", 0))), Verdict::Passed);
        let failed = |verdict| matches!(verdict, Verdict::Failed(_));
        assert!(failed(judge(Some(&ended("x\ny", 0)), Some(&ended("x\nz", 0)))));
        assert!(failed(judge(Some(&ended("x", 0)), Some(&ended("x", 1)))));
        assert!(failed(judge(Some(&ended("x", 127)), Some(&ended("x", 127)))), "a test must run on Linux");
        assert!(failed(judge(Some(&ended("x", 0)), Some(&ScriptResult::Cut(String::from("stuck"))))));
        assert!(failed(judge(Some(&ended("x", 0)), None)));
    }
}
