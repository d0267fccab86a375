//! Landlock: what a thread forbids itself in the tree, in layers, and what it may still do.

#![allow(unsafe_code)] // The C library has no forms of these calls.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags};
use nix::sys::ptrace;
use nix::sys::stat::{Mode, SFlag, mknod};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::mkfifo;

use crate::harness::{OrFail, Outcome, in_child, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_domain_grants_what_its_rules_name
    a_domain_is_inherited
    layers_only_restrict
    sixteen_layers_at_most
    names_need_rights_of_their_directory
    files_go_elsewhere_only_with_a_right
    files_are_not_loosened_by_a_move
    links_and_exchanges
    mounts_stay_as_they_are
    a_domain_looks_into_its_own_only
    what_is_in_no_directory_stays_usable
    rules_that_are_refused
    rulesets_that_are_refused
    restricting_needs_a_promise
}

const EXECUTE: u64 = 1;
const WRITE: u64 = 1 << 1;
const READ: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REMOVE_DIR: u64 = 1 << 4;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_DIR: u64 = 1 << 7;
const MAKE_REG: u64 = 1 << 8;
const MAKE_SOCK: u64 = 1 << 9;
const MAKE_FIFO: u64 = 1 << 10;
const MAKE_SYM: u64 = 1 << 12;
const REFER: u64 = 1 << 13;
const ALL: u64 = (1 << 14) - 1;

fn ruleset(handled: u64) -> Result<OwnedFd, Errno> {
    // SAFETY: the attributes are as long as the call says.
    let made = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const handled, 8, 0) };
    // SAFETY: a descriptor that has just been made.
    Errno::result(made).map(|made| unsafe { OwnedFd::from_raw_fd(made as RawFd) })
}

#[repr(C, packed)]
struct PathBeneath {
    granted: u64,
    parent: i32,
}

fn add_raw(ruleset: RawFd, kind: u32, granted: u64, parent: RawFd, flags: u32) -> Result<(), Errno> {
    let rule = PathBeneath { granted, parent };
    // SAFETY: a valid structure.
    let added = unsafe { libc::syscall(libc::SYS_landlock_add_rule, ruleset, kind, &raw const rule, flags) };
    Errno::result(added).map(drop)
}

fn add(ruleset: &OwnedFd, granted: u64, place: impl AsRef<Path>) -> Result<(), Errno> {
    let place = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(place)
        .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))?;
    add_raw(ruleset.as_raw_fd(), 1, granted, place.as_raw_fd(), 0)
}

fn promise() {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
}

fn enter_raw(ruleset: RawFd, flags: u32) -> Result<(), Errno> {
    // SAFETY: no pointers.
    Errno::result(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, flags) }).map(drop)
}

/// Restricts the thread to these rights beneath these places.
fn enter<P: AsRef<Path>>(handled: u64, rules: &[(P, u64)]) -> Result<(), Errno> {
    let ruleset = ruleset(handled)?;
    for (place, granted) in rules {
        add(&ruleset, *granted, place)?;
    }
    promise();
    enter_raw(ruleset.as_raw_fd(), 0)
}

fn error<T>(result: std::io::Result<T>) -> i32 {
    result.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |_| 0)
}

/// Two directories, `a` and `b`, with a file and a directory in each.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Result<Self, String> {
        let place = Self(PathBuf::from(format!("/tmp/landlock-{name}")));
        let _ = fs::remove_dir_all(&place.0);
        for directory in ["a", "b"] {
            fs::create_dir_all(place.at(directory).join("inner")).or_fail()?;
            fs::write(place.at(directory).join("file"), directory).or_fail()?;
        }
        Ok(place)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs `body` in a child, which fails by its line.
fn restricted(body: impl FnOnce() -> Outcome) -> Outcome {
    let status = in_child(|| match body() {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("{reason}");
            let line = reason.split(':').nth(1).and_then(|line| line.parse::<i32>().ok());
            line.map_or(255, |line| line % 250 + 1)
        }
    })?;
    match status {
        WaitStatus::Exited(_, 0) => Ok(()),
        WaitStatus::Exited(_, line) => {
            Err(format!("the restricted child failed at line {} (modulo 250)", line - 1))
        }
        other => Err(format!("the restricted child ended: {other:?}")),
    }
}

fn a_domain_grants_what_its_rules_name() -> Outcome {
    let place = Place::new("grants")?;
    let (a, b) = (place.at("a"), place.at("b"));
    restricted(|| {
        enter(
            EXECUTE | READ | WRITE | READ_DIR,
            &[(a.clone(), READ | READ_DIR), (place.at("b/file"), WRITE)],
        )
        .or_fail()?;
        expect_eq!(error(fs::read(a.join("file"))), 0);
        expect_eq!(error(fs::read_dir(&a)), 0);
        expect_eq!(error(fs::read_dir(a.join("inner"))), 0);
        let write = |path: &Path| error(OpenOptions::new().write(true).open(path));
        expect_eq!(write(&a.join("file")), libc::EACCES);
        expect_eq!(write(&b.join("file")), 0);
        let both = OpenOptions::new().read(true).write(true).open(b.join("file"));
        expect_eq!(error(both), libc::EACCES);
        expect_eq!(error(fs::read(b.join("file"))), libc::EACCES);
        expect_eq!(error(fs::read_dir(&b)), libc::EACCES);
        // By another path it is the same directory.
        expect_eq!(error(fs::read(a.join("inner/../../b/../a/file"))), 0);
        // Nothing else than opening is restricted.
        let named = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(b.join("file"));
        expect_eq!(error(named), 0);
        expect_eq!(error(fs::metadata(b.join("file"))), 0);
        expect_eq!(error(fs::create_dir(b.join("made"))), 0);
        expect_eq!(error(std::process::Command::new("/bin/true").status()), libc::EACCES);
        Ok(())
    })?;
    // To be executed a file is read as well.
    restricted(|| {
        let rights = EXECUTE | READ;
        enter(rights, &[(Path::new("/"), READ)]).or_fail()?;
        expect_eq!(error(std::process::Command::new("/bin/true").status()), libc::EACCES);
        Ok(())
    })?;
    restricted(|| {
        enter(EXECUTE | READ, &[(Path::new("/"), READ | EXECUTE)]).or_fail()?;
        expect_eq!(error(std::process::Command::new("/bin/true").status()), 0);
        Ok(())
    })
}

fn a_domain_is_inherited() -> Outcome {
    let place = Place::new("inherited")?;
    restricted(|| {
        // The thread that enters is restricted, and what it makes.
        let file = place.at("a/file");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                enter::<&Path>(READ, &[]).map_err(|error| error.to_string())?;
                let child = in_child(|| error(fs::read(&file)))?;
                expect_eq!(error(fs::read(&file)), libc::EACCES);
                expect!(matches!(child, WaitStatus::Exited(_, libc::EACCES)));
                Ok(())
            });
            other.join().map_err(|_| "the thread has panicked".to_owned())?
        })?;
        expect_eq!(error(fs::read(&file)), 0);
        let system = READ | EXECUTE;
        enter(READ | EXECUTE, &[("/usr", system), ("/bin", system), ("/lib", system), ("/etc", READ)])
            .or_fail()?;
        let path = file.to_string_lossy().into_owned();
        let script = format!("! read line < {path}");
        let status = std::process::Command::new("/bin/sh")
            .args(["-c", &script])
            .stderr(std::process::Stdio::inherit())
            .stdin(std::process::Stdio::inherit())
            .status()
            .or_fail()?;
        expect!(status.success());
        Ok(())
    })
}

fn layers_only_restrict() -> Outcome {
    let place = Place::new("layers")?;
    let (a, b) = (place.at("a"), place.at("b"));
    restricted(|| {
        enter(READ | READ_DIR, &[(a.clone(), READ), (b.clone(), READ)]).or_fail()?;
        enter(READ, &[(a.clone(), READ), (place.0.clone(), READ)]).or_fail()?;
        expect_eq!((error(fs::read(a.join("file"))), error(fs::read(b.join("file")))), (0, 0));
        // A later ruleset gives nothing back.
        expect_eq!(error(fs::read_dir(&a)), libc::EACCES);
        enter(READ_DIR, &[(a.clone(), READ_DIR)]).or_fail()?;
        expect_eq!(error(fs::read_dir(&a)), libc::EACCES);
        enter(READ, &[(a.join("file"), READ)]).or_fail()?;
        expect_eq!((error(fs::read(a.join("file"))), error(fs::read(b.join("file")))), (0, libc::EACCES));
        Ok(())
    })
}

fn sixteen_layers_at_most() -> Outcome {
    let place = Place::new("sixteen")?;
    restricted(|| {
        promise();
        let ruleset = ruleset(READ).or_fail()?;
        add(&ruleset, READ, place.at("a")).or_fail()?;
        for _ in 0..16 {
            enter_raw(ruleset.as_raw_fd(), 0).or_fail()?;
        }
        expect_eq!(enter_raw(ruleset.as_raw_fd(), 0), Err(Errno::E2BIG));
        expect_eq!(error(fs::read(place.at("a/file"))), 0);
        expect_eq!(error(fs::read(place.at("b/file"))), libc::EACCES);
        Ok(())
    })
}

/// Every kind of change of names in `directory`; the errors.
fn changes(directory: &Path) -> [i32; 9] {
    let mode = Mode::from_bits_truncate(0o600);
    let number = |result: Result<(), Errno>| result.map_or_else(|error| error as i32, |()| 0);
    [
        error(File::create(directory.join("regular"))),
        error(fs::create_dir(directory.join("directory"))),
        error(symlink("target", directory.join("symlink"))),
        number(mkfifo(&directory.join("fifo"), mode)),
        error(UnixListener::bind(directory.join("socket"))),
        number(mknod(&directory.join("null"), SFlag::S_IFCHR, mode, libc::makedev(1, 3))),
        error(fs::remove_dir(directory.join("inner"))),
        error(fs::remove_file(directory.join("file"))),
        error(fs::rename(directory.join("file"), directory.join("renamed"))),
    ]
}

fn names_need_rights_of_their_directory() -> Outcome {
    const MAKE: u64 = MAKE_REG | MAKE_DIR | MAKE_SYM | MAKE_FIFO | MAKE_SOCK | MAKE_CHAR;
    let place = Place::new("names")?;
    restricted(|| {
        enter(MAKE | REMOVE_DIR | REMOVE_FILE, &[(place.at("a"), REMOVE_DIR | MAKE_FIFO | MAKE_SYM)])
            .or_fail()?;
        let denied = libc::EACCES;
        expect_eq!(changes(&place.at("a")), [denied, denied, 0, 0, denied, denied, 0, denied, denied]);
        expect_eq!(changes(&place.at("b")), [denied; 9]);
        Ok(())
    })?;
    restricted(|| {
        enter(MAKE | REMOVE_DIR | REMOVE_FILE, &[(place.at("b"), MAKE | REMOVE_DIR | REMOVE_FILE)])
            .or_fail()?;
        let mut all = [0; 9];
        // The file has been removed by then.
        all[8] = libc::ENOENT;
        expect_eq!(changes(&place.at("b")), all);
        // A new file is opened as one that was there.
        enter(WRITE, &[(place.at("a"), WRITE)]).or_fail()?;
        expect_eq!(error(File::create(place.at("b/other"))), libc::EACCES);
        expect!(place.at("b/other").exists());
        expect_eq!(error(fs::read(place.at("b/other"))), 0);
        // A name that is there needs no right to make it.
        expect_eq!(error(OpenOptions::new().create(true).append(true).open(place.at("a/file"))), 0);
        Ok(())
    })
}

fn files_go_elsewhere_only_with_a_right() -> Outcome {
    let place = Place::new("elsewhere")?;
    let (a, b) = (place.at("a"), place.at("b"));
    restricted(|| {
        // Whatever is handled, nothing changes its directory.
        enter::<&Path>(READ, &[]).or_fail()?;
        expect_eq!(error(fs::rename(a.join("file"), b.join("new"))), libc::EXDEV);
        expect_eq!(error(fs::hard_link(a.join("file"), b.join("new"))), libc::EXDEV);
        expect_eq!(error(fs::rename(a.join("inner"), b.join("new"))), libc::EXDEV);
        expect_eq!(error(fs::rename(a.join("file"), a.join("new"))), 0);
        expect_eq!(error(fs::hard_link(a.join("new"), a.join("file"))), 0);
        Ok(())
    })?;
    restricted(|| {
        enter(REFER, &[(&a, REFER)]).or_fail()?;
        expect_eq!(error(fs::rename(a.join("file"), b.join("new"))), libc::EXDEV);
        expect_eq!(error(fs::rename(a.join("file"), a.join("inner/file"))), 0);
        expect_eq!(error(fs::rename(a.join("inner/file"), a.join("file"))), 0);
        Ok(())
    })?;
    restricted(|| {
        let rights = REFER | MAKE_REG | REMOVE_FILE;
        enter(rights, &[(&a, REFER | REMOVE_FILE), (&b, REFER)]).or_fail()?;
        expect_eq!(error(fs::rename(a.join("file"), b.join("new"))), libc::EACCES);
        expect_eq!(error(fs::rename(b.join("file"), a.join("new"))), libc::EACCES);
        // Of a directory only what it is counts.
        expect_eq!(error(fs::rename(a.join("inner"), b.join("moved"))), 0);
        Ok(())
    })
}

fn files_are_not_loosened_by_a_move() -> Outcome {
    let place = Place::new("loosened")?;
    let (a, b) = (place.at("a"), place.at("b"));
    restricted(|| {
        enter(REFER | READ | WRITE, &[(&a, REFER | READ), (&b, REFER | READ | WRITE)]).or_fail()?;
        expect_eq!(error(fs::rename(a.join("file"), b.join("new"))), libc::EXDEV);
        expect_eq!(error(fs::hard_link(a.join("file"), b.join("new"))), libc::EXDEV);
        expect_eq!(error(fs::rename(b.join("file"), a.join("new"))), 0);
        expect_eq!(error(fs::rename(a.join("new"), b.join("file"))), libc::EXDEV);
        expect_eq!(error(OpenOptions::new().write(true).open(a.join("new"))), libc::EACCES);
        Ok(())
    })?;
    restricted(|| {
        // A rule on the file itself goes with it.
        let file = a.join("file");
        enter(REFER | READ | WRITE, &[(&a, REFER), (&file, WRITE), (&b, REFER | WRITE)]).or_fail()?;
        expect_eq!(error(fs::rename(&file, b.join("new"))), 0);
        expect_eq!(error(OpenOptions::new().write(true).open(b.join("new"))), 0);
        Ok(())
    })
}

fn links_and_exchanges() -> Outcome {
    let place = Place::new("exchanges")?;
    let (a, b) = (place.at("a"), place.at("b"));
    let exchange = |one: &Path, other: &Path| {
        let name = |path: &Path| std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).ok();
        let (Some(one), Some(other)) = (name(one), name(other)) else { return -1 };
        // SAFETY: valid strings.
        let done = unsafe {
            libc::renameat2(
                libc::AT_FDCWD,
                one.as_ptr(),
                libc::AT_FDCWD,
                other.as_ptr(),
                libc::RENAME_EXCHANGE,
            )
        };
        Errno::result(done).map_or_else(|error| error as i32, |_| 0)
    };
    restricted(|| {
        let rights = REFER | MAKE_REG | REMOVE_FILE;
        enter(rights | READ, &[(&a, rights), (&b, rights)]).or_fail()?;
        expect_eq!(exchange(&a.join("file"), &b.join("file")), 0);
        enter(READ, &[(&a, READ)]).or_fail()?;
        expect_eq!(exchange(&a.join("file"), &b.join("file")), libc::EXDEV);
        expect_eq!(exchange(&a.join("file"), &b.join("none")), libc::ENOENT);
        Ok(())
    })?;
    restricted(|| {
        let rights = REFER | MAKE_REG | REMOVE_FILE;
        enter(rights | MAKE_DIR, &[(&a, rights), (&b, rights)]).or_fail()?;
        // A directory would come to be in the other.
        expect_eq!(exchange(&a.join("file"), &b.join("inner")), libc::EACCES);
        // A link needs the right to make its file, and nothing else.
        expect_eq!(error(fs::hard_link(a.join("file"), a.join("link"))), 0);
        enter(MAKE_REG, &[(&b, MAKE_REG)]).or_fail()?;
        expect_eq!(error(fs::hard_link(a.join("file"), a.join("second"))), libc::EACCES);
        Ok(())
    })
}

fn mounts_stay_as_they_are() -> Outcome {
    let place = Place::new("mounts")?;
    let (a, b) = (place.at("a"), place.at("b"));
    restricted(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).or_fail()?;
        let none = None::<&str>;
        nix::mount::mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).or_fail()?;
        nix::mount::mount(Some("tmpfs"), &a, Some("tmpfs"), MsFlags::empty(), none).or_fail()?;
        fs::write(a.join("new"), "x").or_fail()?;
        enter(READ, &[(&a, READ)]).or_fail()?;
        let refused = Err(Errno::EPERM);
        expect_eq!(nix::mount::mount(Some(&a), &b, none, MsFlags::MS_BIND, none), refused);
        expect_eq!(nix::mount::mount(none, &a, none, MsFlags::MS_REMOUNT, none), refused);
        expect_eq!(nix::mount::mount(Some("tmpfs"), &b, Some("tmpfs"), MsFlags::empty(), none), refused);
        expect_eq!(nix::mount::umount2(&a, MntFlags::MNT_DETACH), refused);
        expect_eq!(nix::unistd::pivot_root(&a, &a), refused);
        // The rule is about the mount's root; what it covers is not looked at.
        expect_eq!(error(fs::read(a.join("new"))), 0);
        nix::unistd::chroot(&a).or_fail()?;
        expect_eq!(error(fs::read("/new")), 0);
        Ok(())
    })
}

fn a_domain_looks_into_its_own_only() -> Outcome {
    let sleeper = || {
        spawn_child(|| {
            // SAFETY: no arguments.
            unsafe { libc::pause() };
            0
        })
    };
    let end = |child| {
        let _ = nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL);
        waitpid(child, None)
    };
    let outside = sleeper()?;
    let result = restricted(|| {
        enter(MAKE_SYM, &[("/", MAKE_SYM)]).or_fail()?;
        expect_eq!(ptrace::attach(outside), Err(Errno::EPERM));
        expect_eq!(error(fs::read_link(format!("/proc/{outside}/exe"))), libc::EACCES);
        // Its parent is outside of this domain, and may look in.
        let child = spawn_child(|| {
            let traced = enter(MAKE_SYM, &[("/", MAKE_SYM)]).is_ok() && ptrace::traceme().is_ok();
            i32::from(!traced)
        })?;
        expect!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
        let same = sleeper()?;
        let attached = ptrace::attach(same);
        end(same).or_fail()?;
        expect_eq!(attached, Ok(()));
        // A child does not let a parent look in that is restricted further.
        Ok(())
    });
    end(outside).or_fail()?;
    result
}

fn what_is_in_no_directory_stays_usable() -> Outcome {
    restricted(|| {
        let (reader, _writer) = nix::unistd::pipe().or_fail()?;
        // SAFETY: a valid name.
        let memory = unsafe { libc::memfd_create(c"landlock".as_ptr(), 0) };
        let names = [format!("/proc/self/fd/{}", reader.as_raw_fd()), format!("/proc/self/fd/{memory}")];
        enter::<&Path>(ALL, &[]).or_fail()?;
        for name in names {
            let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(name);
            expect_eq!(error(opened), 0);
        }
        expect_eq!(error(File::open("/dev/null")), libc::EACCES);
        expect_eq!(error(std::os::unix::net::UnixStream::pair()), 0);
        Ok(())
    })
}

fn rules_that_are_refused() -> Outcome {
    let place = Place::new("rules")?;
    let rules = ruleset(READ | READ_DIR).or_fail()?;
    let (descriptor, directory) = (rules.as_raw_fd(), File::open(&place.0).or_fail()?);
    let parent = directory.as_raw_fd();
    let (reader, _writer) = nix::unistd::pipe().or_fail()?;
    expect_eq!(add_raw(descriptor, 1, READ, parent, 1), Err(Errno::EINVAL));
    expect_eq!(add_raw(descriptor, 0, READ, parent, 0), Err(Errno::EINVAL));
    expect_eq!(add_raw(descriptor, 2, READ, parent, 0), Err(Errno::EINVAL));
    expect_eq!(add_raw(-1, 1, READ, parent, 0), Err(Errno::EBADF));
    expect_eq!(add_raw(parent, 1, READ, parent, 0), Err(Errno::EBADFD));
    expect_eq!(add_raw(descriptor, 1, 0, parent, 0), Err(Errno::ENOMSG));
    expect_eq!(add_raw(descriptor, 1, WRITE, parent, 0), Err(Errno::EINVAL));
    expect_eq!(add_raw(descriptor, 1, READ | 1 << 40, parent, 0), Err(Errno::EINVAL));
    expect_eq!(add_raw(descriptor, 1, READ, -1, 0), Err(Errno::EBADF));
    expect_eq!(add_raw(descriptor, 1, READ, descriptor, 0), Err(Errno::EBADFD));
    expect_eq!(add_raw(descriptor, 1, READ, reader.as_raw_fd(), 0), Err(Errno::EBADFD));
    expect_eq!(add(&rules, READ_DIR, place.at("a/file")), Err(Errno::EINVAL));
    expect_eq!(add(&rules, READ, place.at("a/file")), Ok(()));
    // SAFETY: no memory is at this address, which the call finds out.
    let unreadable = unsafe { libc::syscall(libc::SYS_landlock_add_rule, descriptor, 1, 8, 0) };
    expect_eq!(Errno::result(unreadable), Err(Errno::EFAULT));
    expect_eq!(nix::unistd::write(&rules, b"x"), Err(Errno::EINVAL));
    expect_eq!(nix::unistd::read(&rules, &mut [0; 8]), Err(Errno::EINVAL));
    Ok(())
}

fn rulesets_that_are_refused() -> Outcome {
    let create = |attributes: Option<&[u64; 513]>, size: usize, flags: u32| {
        let address = attributes.map_or(std::ptr::null(), |attributes| attributes.as_ptr());
        // SAFETY: the attributes are as long as the call says.
        let made = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, address, size, flags) };
        let made = Errno::result(made);
        if let (Ok(made), 0) = (made, flags) {
            // SAFETY: a descriptor that has just been made.
            drop(unsafe { OwnedFd::from_raw_fd(made as RawFd) });
            return Ok(0);
        }
        made
    };
    let mut attributes = [0_u64; 513];
    attributes[0] = READ;
    expect_eq!(create(None, 0, 1), Ok(2));
    expect_eq!(create(Some(&attributes), 0, 1), Err(Errno::EINVAL));
    expect_eq!(create(None, 8, 1), Err(Errno::EINVAL));
    expect!(create(None, 0, 2).is_ok());
    expect_eq!(create(None, 8, 2), Err(Errno::EINVAL));
    expect_eq!(create(None, 0, 4), Err(Errno::EINVAL));
    expect_eq!(create(None, 8, 0), Err(Errno::EFAULT));
    expect_eq!(create(Some(&attributes), 7, 0), Err(Errno::EINVAL));
    expect_eq!(create(Some(&attributes), 8, 0), Ok(0));
    expect_eq!(create(Some(&attributes), 4096, 0), Ok(0));
    expect_eq!(create(Some(&attributes), 4097, 0), Err(Errno::E2BIG));
    attributes[2] = 1;
    expect_eq!(create(Some(&attributes), 24, 0), Err(Errno::E2BIG));
    attributes[0] = 0;
    expect_eq!(create(Some(&attributes), 8, 0), Err(Errno::ENOMSG));
    attributes[0] = 1 << 14;
    expect_eq!(create(Some(&attributes), 8, 0), Err(Errno::EINVAL));
    Ok(())
}

fn restricting_needs_a_promise() -> Outcome {
    restricted(|| {
        let rules = ruleset(READ).or_fail()?;
        let null = File::open("/dev/null").or_fail()?;
        // An administrator need not promise anything.
        expect_eq!(enter_raw(rules.as_raw_fd(), 1), Err(Errno::EINVAL));
        expect_eq!(enter_raw(-1, 0), Err(Errno::EBADF));
        expect_eq!(enter_raw(null.as_raw_fd(), 0), Err(Errno::EBADFD));
        // SAFETY: no pointers.
        unsafe { libc::syscall(libc::SYS_setresuid, 1000, 1000, 1000) };
        expect_eq!(enter_raw(rules.as_raw_fd(), 1), Err(Errno::EPERM));
        promise();
        expect_eq!(enter_raw(rules.as_raw_fd(), 0), Ok(()));
        expect_eq!(error(File::open("/dev/null")), libc::EACCES);
        Ok(())
    })
}
