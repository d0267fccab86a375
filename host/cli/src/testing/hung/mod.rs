//! Shared folders on a host that hangs: it stops who waits for it, and nobody else.
//!
//! The host is a real one whose calls do not return: a library that is loaded into QEMU (`host.c`) holds calls on some
//! files until there is another file in the folder, which the guest makes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use super::process::{RUN_TIMEOUT, heddle_run, run};
use super::share_edges::compile_pages;
use super::shares::{Folder, expect};
use super::streams::Test;
use crate::guest::Kernel;
use crate::machine::QEMU;

/// All tests of this module, which are for Heddle: on Linux the first two did not end, for a reason that was not found.
pub const TESTS: [Test; 10] = [
    ("a host that hangs stops one thread", one_thread),
    ("many calls hang in a shared folder", many_calls),
    ("a program that a hung host stops is killed", killed),
    ("more calls hang than there is room for", too_many),
    ("a host that hangs in a look at a file keeps nobody from making and moving others", looks),
    ("a hung host comes back to programs, mappings and writes", comes_back),
    ("memory is found while a hung host does not take pages", memory_beside_pages),
    ("fsync tells of pages that the host did not take", lost_pages),
    ("a program ends though a hung host does not take its pages", ends_with_pages),
    ("pages of one shared folder are stored while the host of another hangs", pages_beside_a_hung_folder),
];

/// How long the guest may take until its pages are with the host.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Calls that the guest's scripts use: `hangs N` waits until N calls have hung on the host. Nothing lists the folder
/// meanwhile, because QEMU looks at each file then.
const FUNCTIONS: &str = "hangs() { while ! [ -e hung.$(($1 - 1)) ]; do sleep 0.01; done; }; \
                         begin() { : > slow; }; answer() { : > answer; }; ";

/// A folder of a host that hangs, and a QEMU for it.
struct Hung {
    folder: Folder,
    tools: Folder,
}

impl Hung {
    fn new() -> Result<Self, String> {
        let (folder, tools) = (Folder::new()?, Folder::new()?);
        tools.write("host.c", include_bytes!("host.c"))?;
        let library = tools.0.join("host.so");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(tools.0.join("host.c"));
        let compiled = compiler.output().map_err(|error| format!("cc: {error}"))?;
        expect(String::from_utf8_lossy(&compiled.stderr).into_owned(), String::new())?;
        let script = format!(
            "#!/bin/sh\nHUNG_FOLDER='{}' LD_PRELOAD='{}' exec '{}' \"$@\"\n",
            folder.0.display(),
            library.display(),
            qemu()?.display()
        );
        tools.write(QEMU, script.as_bytes())?;
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(tools.0.join(QEMU), executable).map_err(|error| error.to_string())?;
        Ok(Self { folder, tools })
    }

    /// Runs a script in the folder; its output, if it ends well.
    fn run(&self, kernel: Kernel, options: &[&str], script: &str) -> Result<String, String> {
        let share = format!("{}:/mnt/shared", self.folder.0.display());
        let script = format!("{FUNCTIONS}{script}");
        let machine =
            [&["--share", &share, "-w", "/mnt/shared"], options, &["--", "sh", "-c", &script]].concat();
        let mut command = heddle_run(kernel, &machine).map_err(|error| error.to_string())?;
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.tools.0.display()));
        let output = run(&mut command, b"", RUN_TIMEOUT).map_err(|error| error.to_string())?;
        let text = output.text();
        if output.status == Some(0) {
            return Ok(text);
        }
        Err(format!("{:?}: {text} {}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}

fn qemu() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(QEMU)).find(|file| file.is_file());
    found.ok_or_else(|| format!("no {QEMU}"))
}

/// The machines of a test: numbers of CPUs and isolations.
const MACHINES: [&[&str]; 4] = [
    &["--smp", "1"],
    &["--smp", "2"],
    &["--smp", "4", "--isolation", "none"],
    &["--smp", "1", "--isolation", "private"],
];

fn on_all(kernel: Kernel, script: &str, expected: &str, files: &[&str]) -> Result<(), String> {
    for options in &MACHINES {
        let hung = Hung::new()?;
        for name in files {
            hung.folder.write(name, b"contents\n")?;
        }
        let output = hung.run(kernel, options, script).map_err(|error| format!("{options:?}: {error}"))?;
        expect(output, String::from(expected)).map_err(|error| format!("{options:?}: {error}"))?;
    }
    Ok(())
}

fn one_thread(kernel: Kernel) -> Result<(), String> {
    // Others compute, start programs, use the same folder and wait meanwhile, and end.
    let script = "begin; cat hang-file > copy & hangs 1; i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; \
                  echo $i; (seq 100 | wc -l); echo other > other && cat other && sleep 0.1; kill -0 $! && echo hangs; \
                  wc -c < copy; answer; wait $!; echo $?; cat copy";
    on_all(kernel, script, "20000\n100\nother\nhangs\n0\n0\ncontents\n", &["hang-file"])
}

fn many_calls(kernel: Kernel) -> Result<(), String> {
    // Reads, looks at metadata and a directory's files, at once; and more than once.
    let script = "begin; for n in 1 2 3 4 5 6; do cat hang-a > a.$n & cat hang-$n > b.$n & done; hangs 7; \
                  for n in 1 2 3; do stat -c %s hang-b > c.$n & done; hangs 8; sleep 0.1; echo works; answer; wait; \
                  cat a.* b.* c.* | sort | uniq -c | tr -s ' '; rm slow answer hung.*; begin; cat hang-a & \
                  sleep 0.1; answer; wait; cat a.1";
    let files = ["hang-a", "hang-b", "hang-1", "hang-2", "hang-3", "hang-4", "hang-5", "hang-6"];
    let expected = "works\n 3 9\n 12 contents\ncontents\ncontents\n";
    on_all(kernel, script, expected, &files)
}

fn killed(kernel: Kernel) -> Result<(), String> {
    let script = "begin; cat hang-file > copy & cat hang-other > copy2 & hangs 2; kill -9 $!; wait $!; echo $?; \
                  timeout -s KILL 0.2 cat hang-third; echo $?; answer; wait; cat copy; wc -c < copy2; cat hang-third";
    on_all(kernel, script, "137\n137\ncontents\n0\ncontents\n", &["hang-file", "hang-other", "hang-third"])
}

/// A queue has room for 32 requests. Further ones wait in the same way, and those for another folder go through.
fn too_many(kernel: Kernel) -> Result<(), String> {
    let script = "begin; for n in $(seq 40); do cat hang-$n > /tmp/copy.$n & done; \
                  i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; echo $i; (seq 100 | wc -l)";
    let names: Vec<String> = (1..=40).map(|number| format!("hang-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for options in [["--smp", "1"], ["--smp", "4"]] {
        let hung = Hung::new()?;
        for name in &names {
            hung.folder.write(name, b"contents\n")?;
        }
        // The host answers by itself: the guest cannot ask it to.
        let late = hung.folder.0.clone();
        let answers = std::thread::spawn(move || {
            while fs::read_dir(&late).is_ok_and(|files| {
                files.flatten().filter(|file| file.file_name().to_string_lossy().starts_with("hung.")).count()
                    < 20
            }) {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            std::thread::sleep(std::time::Duration::from_secs(1));
            let _ = fs::write(late.join("answer"), b"");
        });
        let script = format!("{script}; wait; cat /tmp/copy.* | sort | uniq -c | tr -s ' '");
        let output = hung.run(kernel, &options, &script);
        let _ = fs::write(hung.folder.0.join("slow"), b"");
        for number in 0..20 {
            // Should the machine not have come so far, the thread ends all the same.
            let _ = fs::write(hung.folder.0.join(format!("hung.end.{number}")), b"");
        }
        let _ = answers.join();
        expect(output?, String::from("20000\n100\n 40 contents\n"))?;
    }
    Ok(())
}

fn looks(kernel: Kernel) -> Result<(), String> {
    // The file was written just before, so its times are asked for; names that are known are asked for by themselves.
    let script = "echo text > hang-a; begin; stat -c %s hang-a > copy & hangs 1; cat hang-b > copy-b & hangs 2; \
                  echo new > new; mv new newer; mkdir d; mv newer d/newest; cat d/newest; rm -r d; ln input linked; \
                  (sleep 0.05; echo slept); answer; wait; cat copy copy-b linked";
    on_all(kernel, script, "new\nslept\n5\ncontents\ncontents\n", &["input", "hang-b"])
}

fn comes_back(kernel: Kernel) -> Result<(), String> {
    // A program in the folder, a write, and a mapping: perl reads a file by mapping its script.
    let script = "cp $(command -v cat) hang-cat; begin; ./hang-cat input > copy & hangs 1; \
                  echo late > hang-out & hangs 2; (sleep 0.05; echo slept); answer; wait; cat copy hang-out; \
                  rm slow answer; echo again >> hang-out; cat hang-out; ./hang-cat input";
    on_all(kernel, script, "slept\ncontents\nlate\nlate\nagain\ncontents\n", &["input"])
}

/// Pages that were written wait for the host; whoever needs memory meanwhile waits for others, or is killed.
fn memory_beside_pages(kernel: Kernel) -> Result<(), String> {
    let hung = Hung::new()?;
    compile_pages(&hung.folder)?;
    hung.folder.write("hang-pages", &[b'o'; 64 * 4096])?;
    let script = "./share_pages hold hang-pages & while ! [ -e held ]; do sleep 0.05; done; begin; \
                  perl -e 'my @all; push(@all, \"x\" x (1 << 20)) while 1' 2>/dev/null; echo $?; \
                  [ -e hung.0 ] && echo hangs; answer; kill -9 $!; wait $!; echo $?";
    let output = hung.run(kernel, &["--memory", "128"], script)?;
    expect(output, String::from("137\nhangs\n137\n"))?;
    let bytes = fs::read(hung.folder.0.join("hang-pages")).map_err(|error| error.to_string())?;
    expect(bytes.iter().step_by(4096).all(|&byte| byte == b'h'), true)
}

fn lost_pages(kernel: Kernel) -> Result<(), String> {
    let hung = Hung::new()?;
    compile_pages(&hung.folder)?;
    hung.folder.write("fail-pages", &[b'o'; 4096])?;
    // ENOSPC, once for each file that was open.
    let output = hung.run(kernel, &[], "./share_pages lose fail-pages; head -c 1 fail-pages")?;
    expect(output, String::from("28 0 28 0 0\no"))?;
    let output = hung.run(kernel, &[], "./share_pages orphan fail-pages; head -c 1 fail-pages")?;
    expect(output, String::from("28 0 0\no"))
}

fn ends_with_pages(kernel: Kernel) -> Result<(), String> {
    let hung = Hung::new()?;
    compile_pages(&hung.folder)?;
    hung.folder.write("hang-pages", &[b'o'; 64 * 4096])?;
    // Its bytes are read by others meanwhile, and are with the host when the machine ends.
    let script = "./share_pages hold hang-pages & while ! [ -e held ]; do sleep 0.05; done; exec 3< hang-pages; begin; \
                  kill -9 $!; wait $!; echo $?; sync; [ -e hung.0 ] && echo hangs; answer; head -c 1 <&3";
    let output = hung.run(kernel, &[], script)?;
    expect(output, String::from("137\nhangs\nh"))?;
    let bytes = fs::read(hung.folder.0.join("hang-pages")).map_err(|error| error.to_string())?;
    expect(bytes.iter().step_by(4096).all(|&byte| byte == b'h'), true)
}

/// Pages are taken because memory is short. The host answers once it has those of the other folder.
fn pages_beside_a_hung_folder(kernel: Kernel) -> Result<(), String> {
    let (hung, other) = (Hung::new()?, Folder::new()?);
    compile_pages(&hung.folder)?;
    for (folder, name) in [(&hung.folder, "hang-pages"), (&other, "pages")] {
        folder.write(name, &[b'o'; 64 * 4096])?;
    }
    let pages = other.0.join("pages");
    let is_stored =
        || fs::read(&pages).is_ok_and(|bytes| bytes.iter().step_by(4096).all(|&byte| byte == b'h'));
    let share = format!("{}:/mnt/other", other.0.display());
    let script = "./share_pages hold hang-pages & one=$!; while ! [ -e held ]; do sleep 0.05; done; \
                  (cd /mnt/other; exec /mnt/shared/share_pages hold pages) & two=$!; \
                  while ! [ -e /mnt/other/held ]; do sleep 0.05; done; begin; \
                  until [ -e answer ]; do perl -e 'my @all; push(@all, \"x\" x (1 << 20)) while 1' 2>/dev/null; done; \
                  [ -e hung.0 ] && echo hangs; kill -9 $one $two; wait";
    let stored = std::thread::scope(|scope| {
        let host = scope.spawn(|| {
            let until = std::time::Instant::now() + PATIENCE;
            while !is_stored() && std::time::Instant::now() < until {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            let stored = is_stored();
            let _ = hung.folder.write("answer", b"");
            stored
        });
        let output = hung.run(kernel, &["--memory", "128", "--share", &share], script);
        (output, host.join().unwrap_or(false))
    });
    expect(stored.0?, String::from("hangs\n"))?;
    expect(stored.1, true)
}
