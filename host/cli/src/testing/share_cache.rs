//! The cache of shared folders: changes by both sides are seen, whatever was known before.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::thread;
use std::time::{Duration, Instant};

use super::shares::{Folder, expect};
use super::streams::Test;
use crate::guest::Kernel;

/// All tests of this module.
pub const TESTS: [Test; 11] = [
    ("what the host changes in a shared folder is seen", changes_of_the_host),
    ("what the host changes after the guest is seen", changes_after_the_guest),
    ("what the host changes right after the guest is seen", changes_right_after_the_guest),
    ("an open file that the host renames is read as it is", renamed_by_the_host),
    ("an open file that the host replaces keeps its bytes", replaced_by_the_host),
    ("a shared file with two names is one", two_names),
    ("a shared file is renamed to itself", renamed_to_itself),
    ("a shared file stays open without its name", open_without_a_name),
    ("directories of a shared folder move with what is known of them", moved_directories),
    ("several descriptors write to a shared file", several_writers),
    ("the host tool makes FIFOs and sockets for the guest", special_files),
];

/// How long a program of the guest may take until it makes a file.
const PATIENCE: Duration = Duration::from_secs(100);

/// Does something once the guest has made the file `ready`, and makes `go`.
fn once_ready(folder: &Folder, act: impl FnOnce() -> std::io::Result<()>) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    while !folder.0.join("ready").exists() {
        if Instant::now() > until {
            return Err(String::from("the guest has not made its file"));
        }
        thread::sleep(Duration::from_millis(20));
    }
    act().map_err(|error| error.to_string())?;
    folder.write("go", b"")
}

/// Runs a script that makes `ready` once the host is to act, and waits for `go`.
pub(super) fn run_beside(
    kernel: Kernel,
    folder: &Folder,
    script: &str,
    act: impl FnOnce() -> std::io::Result<()> + Send,
) -> Result<String, String> {
    thread::scope(|scope| {
        let host = scope.spawn(|| once_ready(folder, act));
        let output = folder.run(kernel, "", script);
        host.join().map_err(|_| String::from("the host's side has panicked"))?.and(output)
    })
}

fn changes_of_the_host(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    for (name, contents) in [("same", "old"), ("longer", "old"), ("replaced", "old"), ("gone", "old")] {
        folder.write(name, contents.as_bytes())?;
    }
    fs::create_dir_all(folder.0.join("d/e")).map_err(|error| error.to_string())?;
    folder.write("d/e/deep", b"old")?;
    // All is known before, that there is no `new` as well. The second look comes when a second has passed.
    let look = "cat same longer replaced gone d/e/deep new 2>/dev/null; ls d/e; ls moved 2>/dev/null; echo";
    let script = format!(
        "{look}; {look}; touch ready; while [ ! -e go ]; do sleep 0.1; done; sleep 1.1; {look}; stat -c %s longer"
    );
    let here = folder.0.clone();
    let act = move || {
        fs::write(here.join("same"), "NEW")?;
        fs::write(here.join("longer"), "longer")?;
        fs::write(here.join("other"), "NEW")?;
        fs::rename(here.join("other"), here.join("replaced"))?;
        fs::remove_file(here.join("gone"))?;
        fs::write(here.join("new"), "new")?;
        fs::write(here.join("d/e/deep"), "NEW")?;
        fs::write(here.join("d/e/deeper"), "new")?;
        fs::create_dir(here.join("moved"))?;
        fs::write(here.join("moved/inner"), "")
    };
    let output = run_beside(kernel, &folder, &script, act)?;
    let old = "oldoldoldoldolddeep\n\n";
    expect(output, format!("{old}{old}NEWlongerNEWNEWnewdeep\ndeeper\ninner\n\n6\n"))
}

/// The guest's own change moves the times of a file too, and must not hide a later one.
fn changes_after_the_guest(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    let script = "mkdir d; echo aaa > d/f; cat d/f; [ -e d/new ] || echo none; ls d; touch d/x; sleep 3; touch ready; \
                  while [ ! -e go ]; do sleep 0.1; done; sleep 1.1; cat d/f d/new; ls d";
    let here = folder.0.clone();
    let act = move || {
        fs::write(here.join("d/f"), "bbb\n")?;
        fs::write(here.join("d/new"), "new\n")
    };
    let output = run_beside(kernel, &folder, script, act)?;
    expect(output, String::from("aaa\nnone\nf\nbbb\nnew\nf\nnew\nx\n"))
}

/// The times of both changes may be the same; what the host wrote last is read all the same, within some seconds, for
/// whoever looks soon after and for whoever doesn't.
fn changes_right_after_the_guest(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    let script = "echo aaa > soon; echo aaa > later; cat soon later; touch ready; \
                  while [ ! -e go ]; do sleep 0.02; done; cat soon > soon.copy; sleep 4; cat soon later";
    let here = folder.0.clone();
    let act = move || {
        fs::write(here.join("soon"), "bbb\n")?;
        fs::write(here.join("later"), "bbb\n")
    };
    let output = run_beside(kernel, &folder, script, act)?;
    expect(output, String::from("aaa\naaa\nbbb\nbbb\n"))
}

fn renamed_by_the_host(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    folder.write("log", b"one\n")?;
    // One has its name from the host, and one from the guest, which has moved it.
    let script = "echo one > f; exec 3< log 4< f; cat <&3; cat <&4; mv f g; touch ready; \
                  while [ ! -e go ]; do sleep 0.02; done; sleep 1.2; cat <&3; cat <&4; \
                  perl -e 'open(F, \"<&3\"); sysseek(F, 0, 0); sysread(F, my $all, 100); print $all'";
    let here = folder.0.clone();
    let act = move || {
        fs::rename(here.join("log"), here.join("log.1"))?;
        fs::write(here.join("log"), "another\n")?;
        fs::write(here.join("log.1"), "ONE\ntwo\n")?;
        fs::write(here.join("g"), "one\ntwo\n")
    };
    let output = run_beside(kernel, &folder, script, act)?;
    expect(output, String::from("one\none\ntwo\ntwo\nONE\ntwo\n"))
}

fn replaced_by_the_host(kernel: Kernel) -> Result<(), String> {
    if kernel == Kernel::Linux {
        // Linux's client asks for the length by the name, and finds none.
        return Ok(());
    }
    let folder = Folder::new()?;
    for (name, byte) in [("a", b'a'), ("b", b'b'), ("c", b'c'), ("d", b'd')] {
        folder.write(name, &[byte; 10_000])?;
    }
    // Younger files are opened on the host.
    thread::sleep(Duration::from_secs(3));
    // All of it is known when it is opened, for it was read before. Then a program takes the last of the memory and is
    // killed. A file that is made then may get the number of one that is gone.
    let script = "cat a b c > /dev/null; exec 3< a 4< b 5< c; touch ready; while [ ! -e go ]; do sleep 0.02; done; \
                  perl -e 'my @all; push(@all, \"x\" x (1 << 20)) while 1' 2>/dev/null; \
                  perl -e 'for (3 .. 5) { open(F, \"<&$_\"); sysread(F, my $all, 20000); \
                  print length($all), substr($all, -3), \"\\n\" }'; head -c 3 a";
    let here = folder.0.clone();
    let act = move || {
        fs::rename(here.join("d"), here.join("a"))?;
        fs::remove_file(here.join("b"))?;
        fs::rename(here.join("c"), here.join("e"))
    };
    let output = run_beside(kernel, &folder, script, act)?;
    expect(output, String::from("10000aaa\n10000bbb\n10000ccc\nddd"))
}

fn renamed_to_itself(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    let script = "echo one > f; ln f g; mkdir d; exec 3<> f; \
                  perl -e 'rename(\"f\", \"f\") or die $!; rename(\"f\", \"g\") or die $!; \
                  rename(\"d\", \"d\") or die $!'; \
                  cat f g; stat -c %h f; echo two >&3; cat g; (cd d; pwd -P); ls";
    expect(folder.run(kernel, "", script)?, String::from("one\none\n2\ntwo\n/mnt/shared/d\nd\nf\ng\n"))
}

fn two_names(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    let script = "mkdir d; echo one > a; ln a d/b; cat a d/b; echo two >> d/b; cat a; stat -c '%h %s' a d/b; \
                  echo x > a; cat d/b; rm a; cat d/b; stat -c %h d/b; [ -e a ] || echo gone; \
                  echo new > a; cat a d/b; mv d/b a; cat a; ls d | wc -l; stat -c %h a";
    let expected = "one\none\none\ntwo\n2 8\n2 8\nx\nx\n1\ngone\nnew\nx\nx\n0\n1\n";
    expect(folder.run(kernel, "", script)?, String::from(expected))
}

fn open_without_a_name(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    folder.write("a", &[b'a'; 10_000])?;
    folder.write("b", &[b'b'; 10_000])?;
    // Read whole before, so that all of it is known; opened then, and without its name when it is read.
    let script = "cat a b > /dev/null; exec 3< a 4< b; rm a; mv c b 2>/dev/null || { echo new > c; mv c b; }; \
                  head -c 3 <&3; tail -c 3 <&3; head -c 3 <&4; tail -c 3 <&4; cat b; \
                  echo made > t; exec 5<> t; rm t; cat <&5; echo more >&5; [ -e t ] || echo gone; \
                  : > a; stat -c %s a";
    let expected = "aaaaaabbbbbbnew\nmade\ngone\n0\n";
    expect(folder.run(kernel, "", script)?, String::from(expected))?;
    expect(folder.0.join("t").exists(), false)
}

fn moved_directories(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    let script = "mkdir -p a/b/c; echo one > a/b/c/f; cat a/b/c/f; [ -e z ] || echo none; mv a z; cat z/b/c/f; \
                  [ -e a ] || echo none; mkdir -p a/b/c; echo two > a/b/c/f; cat a/b/c/f z/b/c/f; cd z/b; \
                  mv ../../z ../../y 2>/dev/null; cat c/f; pwd -P; cd /mnt/shared; rm -r a; [ -e a/b ] || echo none; \
                  mkdir a; ls a | wc -l; mv y/b a; cat a/b/c/f; find . | sort | tr '\\n' ' '";
    let expected = "one\nnone\none\nnone\ntwo\none\none\n/mnt/shared/y/b\nnone\n0\none\n\
                    . ./a ./a/b ./a/b/c ./a/b/c/f ./y ";
    expect(folder.run(kernel, "", script)?, String::from(expected))
}

fn several_writers(kernel: Kernel) -> Result<(), String> {
    let folder = Folder::new()?;
    let script = "for n in 1 2 3 4; do (for m in $(seq 50); do echo line-$n >> log; done) & done; wait; \
                  sort log | uniq -c | tr -s ' '; exec 3<> f 4<> f; echo 12345678 >&3; head -c 4 <&4; echo abc >&4; \
                  cat f; truncate -s 6 f; cat f; truncate -s 9 f; od -An -c f; cp f g; cmp f g && echo same";
    let expected = " 50 line-1\n 50 line-2\n 50 line-3\n 50 line-4\n\
                    12341234abc\n\n1234ab   1   2   3   4   a   b  \\0  \\0  \\0\nsame\n";
    expect(folder.run(kernel, "", script)?, String::from(expected))
}

/// Linux has nobody to ask but QEMU, which refuses.
fn special_files(kernel: Kernel) -> Result<(), String> {
    if kernel == Kernel::Linux {
        return Ok(());
    }
    let folder = Folder::new()?;
    let script = "mkdir -p d/e; umask 0; mkfifo -m 640 d/e/fifo; (cat d/e/fifo & echo through > d/e/fifo; wait); \
                  perl -e 'use IO::Socket::UNIX; my $made = IO::Socket::UNIX->new(Local => \"d/socket\", Listen => 1) \
                  or die $!; chmod 0700, \"d/socket\" or die $!; \
                  print IO::Socket::UNIX->new(Peer => \"d/socket\") ? \"open\\n\" : \"$!\\n\"'; \
                  mv d/socket d/moved; chmod 711 d/moved; stat -c '%F %a' d/e/fifo d/moved; \
                  mkfifo d/e/fifo 2>/dev/null || echo refused; rm d/e/fifo; mkfifo -m 600 d/e/fifo";
    let expected = "through\nopen\nfifo 640\nsocket 711\nrefused\n";
    expect(folder.run(kernel, "", script)?, String::from(expected))?;
    for (name, is_socket, mode) in [("d/e/fifo", false, 0o600), ("d/moved", true, 0o711)] {
        let found = fs::symlink_metadata(folder.0.join(name)).map_err(|error| format!("{name}: {error}"))?;
        expect((found.file_type().is_socket(), found.mode() & 0o777), (is_socket, mode))?;
    }
    Ok(())
}
