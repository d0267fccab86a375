//! Folders of the host in the guest.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::process::{RUN_TIMEOUT, heddle_run, run};
use super::streams::Test;
use crate::guest::Kernel;

/// All tests of this module.
pub const TESTS: [Test; 11] = [
    ("results come out of a shared folder", results_come_out),
    ("FIFOs and sockets in a shared folder", fifos_and_sockets),
    ("files of a shared folder are mapped to be written", mapped),
    ("a private mapping of a shared file keeps what was written to it", private_mapping),
    ("more of a shared file is written than the memory holds", mapped_large),
    ("names and metadata in a shared folder", names_and_metadata),
    ("a shared folder gets no set-id files and no devices", no_privileges),
    ("what is made in a shared folder belongs to who made it", owners),
    ("programs lock files of a shared folder", locks),
    ("a folder shared to be read is not changed", read_only),
    ("a folder that is not there is refused", missing),
];

/// A folder of this host for one test.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("heddle-share-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).map_err(|error| error.to_string())?;
        Ok(Self(path))
    }

    pub(super) fn write(&self, name: &str, contents: &[u8]) -> Result<(), String> {
        fs::write(self.0.join(name), contents).map_err(|error| error.to_string())
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, String> {
        fs::read(self.0.join(name)).map_err(|error| format!("{name}: {error}"))
    }

    /// Runs a script with the folder at `/mnt/shared`; its output, if it ends well.
    pub(super) fn run(&self, kernel: Kernel, options: &str, script: &str) -> Result<String, String> {
        let share = format!("{}:/mnt/shared{options}", self.0.display());
        let arguments = ["--share", &share, "-w", "/mnt/shared", "--", "sh", "-c", script];
        let mut command = heddle_run(kernel, &arguments).map_err(|error| error.to_string())?;
        let output = run(&mut command, b"", RUN_TIMEOUT).map_err(|error| error.to_string())?;
        let text = output.text();
        if output.status == Some(0) {
            return Ok(text);
        }
        Err(format!("{:?}: {text} {}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn expect<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found:?}, expected {expected:?}")) }
}

fn results_come_out(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    let numbers: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    folder.write("input", &numbers)?;
    // Copied, mapped and run from there; what is there is more than a message holds.
    let script = "cp input output && cmp input output && cp $(command -v cat) here && ./here input >> twice \
                  && ./here input >> twice && echo late > input && wc -c < output";
    expect(folder.run(kernel, "", script)?.trim(), "1200000")?;
    expect(folder.read("output")? == numbers, true)?;
    expect(folder.read("twice")?.len(), 2 * numbers.len())?;
    expect(folder.read("input")?, b"late\n".to_vec())
}

fn private_mapping(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    folder.write("private_map.c", include_bytes!("private_map.c"))?;
    let mut compiler = Command::new("cc");
    compiler.arg("-static").arg("-o").arg(folder.0.join("program")).arg(folder.0.join("private_map.c"));
    let compiled = compiler.output().map_err(|error| format!("cc: {error}"))?;
    expect(String::from_utf8_lossy(&compiled.stderr).into_owned(), String::new())?;
    expect(folder.run(kernel, "", "./program")?, String::from("own shared shared\n"))?;
    expect(folder.read("mapped")?.starts_with(b"shared\0"), true)
}

fn names_and_metadata(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    folder.write("a", b"text")?;
    let script = "mkdir -p d/e && mv a d/b && ln d/b d/hard && ln -s b d/link && cat d/link && stat -c ' %h %s' d/b \
                  && rm d/hard && touch -d '2020-01-01 00:00:00 UTC' d/b && chmod 640 d/b && stat -c '%a %Y' d/b \
                  && truncate -s 2 d/b && rmdir d/e && ! rmdir d 2>/dev/null && for n in 1 2 3 4 5 6 7 8 9; do \
                  for m in 0 1 2 3 4 5 6 7 8 9; do : > d/file-with-a-long-name-$n$m; done; done && ls d | wc -l";
    expect(folder.run(kernel, "", script)?, String::from("text 2 4\n640 1577836800\n92\n"))?;
    expect(folder.read("d/b")?, b"te".to_vec())?;
    expect(folder.read("a").is_err(), true)
}

/// Linux makes them, which is why the test is Heddle's alone.
fn no_privileges(kernel: Kernel) -> Result<(), String> {
    if kernel == Kernel::Linux {
        return Ok(());
    }
    let folder = Folder::new()?;
    let script = "touch a && chmod 6755 a && stat -c %a a; umask 0; perl -e 'use Fcntl; \
                  sysopen(F, \"b\", O_CREAT | O_RDWR, 06711); chmod 04700, *F'; stat -c %a b; \
                  mkdir -m 3775 d && stat -c %a d; mknod null c 1 3 2>/dev/null || echo refused";
    expect(folder.run(kernel, "", script)?, String::from("755\n700\n3775\nrefused\n"))?;
    for (name, mode) in [("a", 0o755), ("b", 0o700), ("d", 0o3775)] {
        let found = fs::metadata(folder.0.join(name)).map_err(|error| error.to_string())?;
        expect(found.mode() & 0o7777, mode)?;
    }
    expect(folder.0.join("null").exists(), false)
}

/// A host that runs the tests as an ordinary user owns all that is made, so only root can see the difference.
fn owners(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    let script = "chmod 777 . && perl -e '$) = \"1234 1234\"; $> = 1235; open(F, \">\", \"file\") or die; \
                  mkdir \"dir\", 0700 or die; open(F, \">\", \"dir/inner\") or die; symlink \"x\", \"link\"'";
    folder.run(kernel, "", if rustix::process::geteuid().is_root() { script } else { "true" })?;
    let names = ["file", "dir", "dir/inner", "link"];
    for name in names.iter().filter(|_| rustix::process::geteuid().is_root()) {
        let found = fs::symlink_metadata(folder.0.join(name)).map_err(|error| format!("{name}: {error}"))?;
        expect((found.uid(), found.gid()), (1235, 1234))?;
    }
    Ok(())
}

fn locks(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    folder.write("a", b"text")?;
    // Locks of open files, and of processes: these go with any descriptor of the file.
    let script = "exec 3<> a && flock -x 3 && ! flock -n a true && exec 3>&- && flock -n a echo free; \
                  perl -e 'use Fcntl; sub lock_of { my ($file, $type) = @_; \
                  fcntl($file, F_SETLK, pack(\"s s x4 q q l x4\", $type, 0, 1, 2, 0)) ? \"locked\" : \"refused\" } \
                  sub other { if (!fork) { open(my $other, \"+<\", \"a\") or die; \
                  print lock_of($other, F_RDLCK), \"\\n\"; exit } wait } \
                  open(my $own, \"+<\", \"a\") or die; print lock_of($own, F_WRLCK), \"\\n\"; \
                  other(); close(do { open(my $again, \"<\", \"a\"); $again }); other()'";
    expect(folder.run(kernel, "", script)?, String::from("free\nlocked\nrefused\nlocked\n"))
}

/// Fifos and sockets that the host has made work. Whether the guest may make any is decided by QEMU; newer versions
/// refuse it.
fn fifos_and_sockets(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    for (name, kind) in [("fifo", FileType::Fifo), ("socket", FileType::Socket)] {
        let made = mknodat(CWD, folder.0.join(name), kind, Mode::RUSR | Mode::WUSR, 0);
        made.map_err(|error| format!("{name}: {error}"))?;
    }
    let script = "(cat fifo > out & seq 2000 > fifo; wait); wc -l < out; (cat fifo & echo again > ./fifo; wait); \
                  perl -e 'use IO::Socket::UNIX; print IO::Socket::UNIX->new(Peer => \"socket\") ? \"open\" : $!, \
                  \"\\n\"; print IO::Socket::UNIX->new(Local => \"socket\", Listen => 1) ? \"bound\" : $!, \"\\n\"; \
                  my $made = IO::Socket::UNIX->new(Local => \"made\", Listen => 1) or exit; \
                  print IO::Socket::UNIX->new(Peer => \"made\") ? \"\" : \"not found\\n\"'; \
                  stat -c %F fifo; if mkfifo own 2>/dev/null; then (cat own > out & echo own > own; wait); fi; rm fifo";
    let expected = "2000\nagain\nConnection refused\nAddress already in use\nfifo\n";
    expect(folder.run(kernel, "", script)?, String::from(expected))?;
    expect(folder.0.join("fifo").exists(), false)
}

/// Runs a program of the stress tests in the folder.
fn run_stress(kernel: Kernel, folder: &Folder, options: &[&str], work: &[&str]) -> Result<(), String> {
    let repository = crate::paths::repository().map_err(|error| error.to_string())?;
    let program = super::stress::build(&repository).map_err(|error| error.to_string())?;
    let share = format!("{}:/mnt/shared", folder.0.display());
    let machine = [&["--share", &share, "-w", "/mnt/shared"], options, &["--", &program], work].concat();
    let mut command = heddle_run(kernel, &machine).map_err(|error| error.to_string())?;
    let output = run(&mut command, b"", RUN_TIMEOUT).map_err(|error| error.to_string())?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status == Some(0) {
        Ok(())
    } else {
        Err(format!("{:?}: {} {errors}", output.status, output.text()))
    }
}

fn mapped(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    run_stress(kernel, &folder, &["--smp", "2"], &["mapped", "processes=4", "steps=300"])?;
    let pattern: Vec<u8> = (0..20_580).map(|index| (index % 251) as u8).collect();
    let (mut synced, mut left) = (pattern.clone(), pattern);
    synced.iter_mut().step_by(1000).for_each(|byte| *byte = 255);
    synced[20_579] = 254;
    left[7] = 99;
    expect(folder.read("synced")? == synced, true)?;
    expect(folder.read("left")? == left, true)?;
    expect(folder.read("killed")? == left, true)?;
    left[7] = 7;
    expect(folder.read("cut")? == left[..4106], true)
}

fn mapped_large(kernel: Kernel) -> Result<(), String> {
    // Linux needs more to start at all.
    let (memory, pages) = match kernel {
        Kernel::Heddle => ("96", 30_000),
        Kernel::Linux => ("192", 50_000),
    };
    let folder = Folder::new()?;
    run_stress(kernel, &folder, &["--memory", memory], &["mapped-large", &format!("steps={pages}")])?;
    let large = folder.read("large")?;
    let is_right = |(page, bytes): (usize, &[u8])| usize::from(bytes[page % 4096]) == page % 250 + 1;
    expect((large.len(), large.chunks(4096).enumerate().all(is_right)), (pages * 4096, true))
}

fn read_only(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    folder.write("a", b"text")?;
    let script = "cat a; (echo x > a) 2>/dev/null || echo refused; rm a 2>/dev/null || echo refused; \
                  mkdir d 2>/dev/null || echo refused";
    expect(folder.run(kernel, ":ro", script)?, String::from("textrefused\nrefused\nrefused\n"))?;
    expect(folder.read("a")?, b"text".to_vec())
}

fn missing(kernel: Kernel) -> Result<(), String> {
    let arguments = ["--share", "/there/is/no/such/folder", "--", "true"];
    let mut command = heddle_run(kernel, &arguments).map_err(|error| error.to_string())?;
    let output = run(&mut command, b"", RUN_TIMEOUT).map_err(|error| error.to_string())?;
    expect(output.status, Some(crate::STATUS_TOOL_FAILED.into()))
}
