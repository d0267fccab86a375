//! Shared folders where something else happens to a file at the same time.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::share_cache::run_beside;
use super::shares::{Folder, expect};
use super::streams::Test;
use crate::guest::Kernel;

/// All tests of this module.
pub const TESTS: [Test; 11] = [
    ("programs and files are run and cut while the host replaces them", replaced_all_the_time),
    ("a file is not read as one that had its number", numbers_change_hands),
    ("a listing goes on behind a name that is gone", listing_behind_a_gone_name),
    ("what is appended to a file that the host has renamed comes at its end", appended_after_a_rename),
    ("a file that the host has replaced is not cut in its stead", cut_after_a_rename),
    ("nothing is made in a directory that the host has put in another's place", moved_directory),
    ("a page is looked at while its file is cut", looked_at_while_cut),
    ("names of a shared folder are dropped and found again", more_names_than_are_kept),
    ("small files of a shared folder take few waits for the host", few_waits),
    ("a file that was opened when all of it was known is read as it is", known_when_opened),
    ("a descriptor that appends only now appends to a file that the host has renamed", appends_only_now),
];

/// Makes the program `share_pages` in a folder.
pub(super) fn compile_pages(folder: &Folder) -> Result<(), String> {
    let source = folder.0.join("share_pages.c");
    fs::write(&source, include_bytes!("share_pages.c")).map_err(|error| error.to_string())?;
    let mut compiler = Command::new("cc");
    compiler.args(["-static", "-pthread", "-o"]).arg(folder.0.join("share_pages")).arg(source);
    let compiled = compiler.output().map_err(|error| format!("cc: {error}"))?;
    expect(String::from_utf8_lossy(&compiled.stderr).into_owned(), String::new())
}

/// A script that the host replaces all the time.
const PROGRAM: &str = "#!/bin/sh\necho runs\n";

/// Runs a script while the host gives the names `run` and `cut` to new files.
fn run_while_replaced(
    kernel: Kernel,
    folder: &Folder,
    pause: Duration,
    script: &str,
) -> Result<String, String> {
    let (here, other) = (folder.0.clone(), folder.0.join("other"));
    let replace = |name: &str| {
        fs::write(&other, PROGRAM)?;
        fs::set_permissions(&other, fs::Permissions::from_mode(0o755))?;
        fs::rename(&other, here.join(name))
    };
    for name in ["run", "cut"] {
        replace(name).map_err(|error| error.to_string())?;
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let host = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                replace("run").and_then(|()| replace("cut"))?;
                thread::sleep(pause);
            }
            Ok::<(), std::io::Error>(())
        });
        let output = folder.run(kernel, "", script);
        is_over.store(true, Ordering::Relaxed);
        host.join()
            .map_err(|_| String::from("the host's side has panicked"))?
            .map_err(|error| error.to_string())?;
        output
    })
}

fn replaced_all_the_time(kernel: Kernel) -> Result<(), String> {
    if kernel == Kernel::Linux {
        // Linux's client says ESTALE to both.
        return Ok(());
    }
    let script = "for n in $(seq 60); do ./run >> /tmp/out || echo failed; \
                  perl -e 'truncate(\"cut\", 3) or print \"$!\\n\"'; done; sort /tmp/out | uniq -c | tr -s ' '";
    expect(
        run_while_replaced(kernel, &Folder::new()?, Duration::from_millis(5), script)?,
        String::from(" 60 runs\n"),
    )
}

/// The host gives the numbers of files that are gone to new ones. The calls are the bare ones, since perl's own ask for
/// the length first.
fn numbers_change_hands(kernel: Kernel) -> Result<(), String> {
    if kernel == Kernel::Linux {
        return Ok(());
    }
    let script = "perl -e 'my %seen; my $name = \"run\"; for (1 .. 1000) { my $file = syscall(2, $name, 0); \
                  if ($file >= 0) { my $all = \"\\0\" x 100; my $count = syscall(0, $file, $all, 100); \
                  syscall(3, $file); $seen{substr($all, 0, $count)}++ } truncate(\"cut\", 3) } print keys %seen'";
    let pause = Duration::from_millis(1);
    expect(run_while_replaced(kernel, &Folder::new()?, pause, script)?, String::from(PROGRAM))?;
    let base = Folder::new()?;
    let Some(overlay) = Overlay::mount(&base)? else {
        println!("# shares: this user may not mount an overlay, so none was tried");
        return Ok(());
    };
    expect(run_while_replaced(kernel, &overlay.0, pause, script)?, String::from(PROGRAM))
}

/// A file system that counts no generations and gives numbers to new files at once: an overlay, which has those of the
/// file system below.
struct Overlay(Folder);

impl Overlay {
    /// None if this user may not mount one.
    fn mount(base: &Folder) -> Result<Option<Self>, String> {
        let path = |name: &str| base.0.join(name);
        for name in ["lower", "upper", "work", "merged"] {
            fs::create_dir(path(name)).map_err(|error| error.to_string())?;
        }
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| path(name).display().to_string());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(path("merged"));
        let mounted = mount.output().map_err(|error| format!("mount: {error}"))?;
        Ok(mounted.status.success().then(|| Self(Folder(path("merged")))))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        // Before its folder is removed.
        let _ = Command::new("umount").arg(&self.0.0).status();
    }
}

fn listing_behind_a_gone_name(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    fs::create_dir(folder.0.join("d")).map_err(|error| error.to_string())?;
    for number in 0..20 {
        folder.write(&format!("d/file-{number}"), b"")?;
    }
    // Some names are listed, the last of them goes, all is listed anew by others, and the listing goes on.
    let script = "ls d > /dev/null; perl -e 'my $name = \"d\"; my $list = syscall(2, $name, 0); my @seen; \
                  sub more { my $all = \"\\0\" x 80; my $count = syscall(217, $list, $all, 80); my $at = 0; \
                  while ($at < $count) { my $length = unpack(\"S\", substr($all, $at + 16, 2)); \
                  push(@seen, unpack(\"Z*\", substr($all, $at + 19, $length - 19))); $at += $length } $count } \
                  more(); more() while $seen[-1] =~ /^\\./; unlink(\"d/$seen[-1]\") or die $!; \
                  system(\"ls d | wc -l\"); 1 while more() > 0; print scalar(grep(/file/, @seen)), \"\\n\"'";
    expect(folder.run(kernel, "", script)?, String::from("19\n20\n"))
}

fn appended_after_a_rename(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    // By the shell, which only writes, and by a program that reads too.
    let script = "exec 3>> log; echo one >&3; perl -e 'open(F, \"+>>\", \"both\") or die $!; syswrite(F, \"one\\n\"); \
                  open(G, \">\", \"ready\"); select(undef, undef, undef, 0.02) until -e \"go\"; \
                  select(undef, undef, undef, 1.2); syswrite(F, \"two\\n\")'; echo two >&3";
    let here = folder.0.clone();
    let act = move || {
        for (name, renamed) in [("log", "log.1"), ("both", "both.1")] {
            fs::rename(here.join(name), here.join(renamed))?;
            fs::OpenOptions::new().append(true).open(here.join(renamed))?.write_all(b"host\n")?;
            fs::write(here.join(name), "new\n")?;
        }
        Ok(())
    };
    run_beside(kernel, &folder, script, act)?;
    for (name, expected) in
        [("log", "new\n"), ("log.1", "one\nhost\ntwo\n"), ("both", "new\n"), ("both.1", "one\nhost\ntwo\n")]
    {
        let found = fs::read_to_string(folder.0.join(name)).map_err(|error| format!("{name}: {error}"))?;
        expect((name, found.as_str()), (name, expected))?;
    }
    Ok(())
}

fn cut_after_a_rename(kernel: Kernel) -> Result<(), String> {
    if kernel == Kernel::Linux {
        // It cuts the new one: QEMU is told its name.
        return Ok(());
    }
    let folder = Folder::new()?;
    let script = "echo old > file; exec 3<> file; touch ready; while [ ! -e go ]; do :; done; \
                  perl -e 'open(F, \"+<&3\"); truncate(F, 1) and print \"cut\\n\"'";
    let here = folder.0.clone();
    let act = move || {
        fs::write(here.join("other"), "another\n")?;
        fs::rename(here.join("other"), here.join("file"))
    };
    expect(run_beside(kernel, &folder, script, act)?, String::new())?;
    let found = fs::read_to_string(folder.0.join("file")).map_err(|error| error.to_string())?;
    expect(found.as_str(), "another\n")
}

fn moved_directory(kernel: Kernel) -> Result<(), String> {
    if kernel == Kernel::Linux {
        // QEMU is told the path.
        return Ok(());
    }
    let folder = Folder::new()?;
    fs::create_dir_all(folder.0.join("a/b")).map_err(|error| error.to_string())?;
    folder.write("a/b/file", b"mine\n")?;
    let script = "cd a/b; cat file; touch /mnt/shared/from ../../ready; \
                  while [ ! -e /mnt/shared/go ]; do sleep 0.02; done; sleep 1.2; \
                  (echo x > made) 2>/dev/null || echo refused; mkdir d 2>/dev/null || echo refused; \
                  ln /mnt/shared/from linked 2>/dev/null || echo refused; cat file 2>/dev/null || echo gone; \
                  mv /mnt/shared/from . 2>/dev/null || echo refused";
    let here = folder.0.clone();
    let act = move || {
        fs::rename(here.join("a"), here.join("moved"))?;
        fs::create_dir_all(here.join("a/b"))?;
        fs::write(here.join("a/b/file"), "another\n")
    };
    let output = run_beside(kernel, &folder, script, act)?;
    let listed = fs::read_dir(folder.0.join("a/b")).map_err(|error| error.to_string())?.count();
    expect(listed, 1)?;
    expect(output, String::from("mine\nrefused\nrefused\nrefused\ngone\nrefused\n"))
}

fn looked_at_while_cut(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    compile_pages(&folder)?;
    folder.write("file", &[0; 8192])?;
    expect(folder.run(kernel, "", "./share_pages cut file")?, String::from("0 x x\n"))?;
    let found = fs::read(folder.0.join("file")).map_err(|error| error.to_string())?;
    expect((found.len(), found.get(4096)), (8192, Some(&b'x')))
}

/// A machine keeps a name for every eight frames of its memory.
fn more_names_than_are_kept(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    for directory in 0..10 {
        let path = folder.0.join(format!("d{directory}"));
        fs::create_dir(&path).map_err(|error| error.to_string())?;
        for number in 0..600 {
            fs::write(path.join(format!("file-{number}")), number.to_string())
                .map_err(|error| error.to_string())?;
        }
    }
    // One is open meanwhile, and its change is seen.
    let script = "exec 3< d0/file-7; cat <&3; echo; for n in 1 2; do find . -name 'file-*' -size -2 | wc -l; done; \
                  cat d*/file-599 | wc -c; echo seven > d0/file-7; \
                  perl -e 'open(F, \"<&3\"); sysseek(F, 0, 0); sysread(F, my $all, 9); print $all'; cat d0/file-7";
    let share = format!("{}:/mnt/shared", folder.0.display());
    let memory = if kernel == Kernel::Linux { "192" } else { "96" };
    let arguments = ["--share", &share, "-w", "/mnt/shared", "--memory", memory, "--", "sh", "-c", script];
    let mut command = super::process::heddle_run(kernel, &arguments).map_err(|error| error.to_string())?;
    let output = super::process::run(&mut command, b"", super::process::RUN_TIMEOUT)
        .map_err(|error| error.to_string())?;
    expect(output.text(), String::from("7\n6000\n6000\n30\nseven\nseven\n"))
}

/// Each file by itself would take two waits for a look at it, and four to be read.
fn few_waits(kernel: Kernel) -> Result<(), String> {
    if kernel == Kernel::Linux {
        return Ok(());
    }
    const DIRECTORIES: usize = 4;
    const FILES: usize = 60;
    let folder = Folder::new()?;
    for directory in 0..DIRECTORIES {
        let path = folder.0.join(format!("d{directory}"));
        fs::create_dir(&path).map_err(|error| error.to_string())?;
        for number in 0..FILES {
            fs::write(path.join(format!("file-{number}")), vec![b'f'; 3000])
                .map_err(|error| error.to_string())?;
        }
    }
    // Younger ones are not relied on.
    thread::sleep(Duration::from_secs(3));
    let script = "counts() { grep ^share_ /proc/heddle/counters | cut -d ' ' -f 2; }; counts; \
                  find . -type f -size -10 | wc -l; counts; cat $(find . -type f) | wc -c; counts; \
                  cat d*/* | wc -c; counts";
    let output = folder.run(kernel, "", script)?;
    let counts: Vec<usize> = output.lines().filter_map(|line| line.parse().ok()).collect();
    let [r0, w0, found, r1, w1, read, r2, w2, again, r3, w3] = counts[..] else {
        return Err(format!("{output:?}"));
    };
    let files = DIRECTORIES * FILES;
    expect((found, read, again), (files, files * 3000, files * 3000))?;
    // How many answers come at once depends on the host: here fewer than one by one.
    let is_right = w1 - w0 < 2 * files && w2 - w1 < 4 * files && r1 - r0 < 3 * files && r2 - r1 < 6 * files;
    expect((is_right, [r1 - r0, w1 - w0, r2 - r1, w2 - w1]), (true, [r1 - r0, w1 - w0, r2 - r1, w2 - w1]))?;
    // They are opened without the host then; a second may have passed.
    expect((r3 - r2 < 3 * files, w3 - w2 < 3 * files), (true, true))
}

/// The host has not opened the file for the first three descriptors when it changes it, nor for the last two when the
/// guest takes its name away.
fn known_when_opened(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    folder.write("file", b"old\n")?;
    folder.write("other", b"other\n")?;
    thread::sleep(Duration::from_secs(3));
    let script = "cat file other; exec 3< file 4< file 5< file 6< other 7< other; touch ready; \
                  while [ ! -e go ]; do sleep 0.02; done; sleep 1.2; cat <&3; rm file other; cat <&4; cat <&6; \
                  echo another > file; cat <&5; cat <&7; cat file";
    let here = folder.0.clone();
    let act = move || fs::write(here.join("file"), "changed\n");
    let output = run_beside(kernel, &folder, script, act)?;
    expect(output, String::from("old\nother\nchanged\nchanged\nother\nchanged\nother\nanother\n"))
}

fn appends_only_now(kernel: Kernel) -> Result<(), String> {
    if kernel == Kernel::Linux {
        // It appends where it knew the end.
        return Ok(());
    }
    let folder = Folder::new()?;
    // One has never appended before the host renames it, and can be read; the other has, and cannot.
    let script = "perl -e 'use Fcntl; \
                  sub appends { fcntl($_[0], F_SETFL, O_APPEND | fcntl($_[0], F_GETFL, 0)) or die $! } \
                  open(F, \"+>\", \"never\") or die $!; syswrite(F, \"one\\n\"); \
                  open(G, \">\", \"once\") or die $!; appends(*G); syswrite(G, \"one\\n\"); \
                  open(H, \">\", \"ready\"); select(undef, undef, undef, 0.02) until -e \"go\"; \
                  select(undef, undef, undef, 1.2); appends(*F); \
                  for (*F, *G) { syswrite($_, \"two\\n\") or print \"$!\\n\" }'";
    let here = folder.0.clone();
    let act = move || {
        for name in ["never", "once"] {
            let renamed = here.join(format!("{name}.1"));
            fs::rename(here.join(name), &renamed)?;
            fs::OpenOptions::new().append(true).open(renamed)?.write_all(b"host\n")?;
            fs::write(here.join(name), "new\n")?;
        }
        Ok(())
    };
    expect(run_beside(kernel, &folder, script, act)?, String::new())?;
    for (name, expected) in [
        ("never", "new\n"),
        ("never.1", "one\nhost\ntwo\n"),
        ("once", "new\n"),
        ("once.1", "one\nhost\ntwo\n"),
    ] {
        let found = fs::read_to_string(folder.0.join(name)).map_err(|error| format!("{name}: {error}"))?;
        expect((name, found.as_str()), (name, expected))?;
    }
    Ok(())
}
