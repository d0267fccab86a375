//! Permissions: users, single capabilities, programs with set-id bits and capabilities of their own.

#![allow(unsafe_code)] // The C library has no safe forms of these calls.

use std::ffi::{CString, c_long};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::stat::Mode;
use nix::sys::wait::WaitStatus;
use nix::unistd::{Gid, Uid, ftruncate, getppid, setgroups, setresgid, setresuid};

use crate::harness::{OrFail, Outcome, Scratch, in_child, own_path};
use crate::{expect, expect_eq};

crate::tests! {
    a_table_of_who_may_do_what
    no_new_privileges_are_a_threads_and_are_inherited
    setfsuid_takes_the_capabilities_of_files
    keep_capabilities_and_secure_bits
    ambient_capabilities_survive_exec
    set_id_bits_raise_but_on_nosuid_mounts
    capabilities_of_a_file
    writes_take_set_id_bits_away
    a_change_of_identity_closes_the_process
    openat2_starts_at_its_own_root
    seals_and_shared_mappings
}

const USER: u32 = 12_345;
const CHOWN: u32 = 0;
const DAC_OVERRIDE: u32 = 1;
const DAC_READ_SEARCH: u32 = 2;
const FOWNER: u32 = 3;
const FSETID: u32 = 4;
const KILL: u32 = 5;
const SETGID: u32 = 6;
const SETUID: u32 = 7;
const SETPCAP: u32 = 8;
const IPC_OWNER: u32 = 15;
const SYS_CHROOT: u32 = 18;
const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;
const SYS_NICE: u32 = 23;
const SYS_RESOURCE: u32 = 24;
const MKNOD: u32 = 27;
const SETFCAP: u32 = 31;
const ALL: u64 = (1 << 41) - 1;

fn prctl(operation: i32, arguments: [u64; 2]) -> Result<c_long, Errno> {
    let [first, second] = arguments;
    // SAFETY: none of the operations here takes a pointer.
    let result = unsafe { libc::syscall(libc::SYS_prctl, operation, first, second, 0, 0) };
    Errno::result(result)
}

fn set_capabilities(permitted: u64, effective: u64, inheritable: u64) -> Result<(), Errno> {
    let header = [0x2008_0522_u32, 0];
    let half = |shift: u32| [effective, permitted, inheritable].map(|set| (set >> shift) as u32);
    let data = [half(0), half(32)];
    // SAFETY: both structures live during the call and have the sizes that this version has.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) };
    Errno::result(result).map(drop)
}

fn become_user() -> Result<(), Errno> {
    setgroups(&[])?;
    setresgid(Gid::from_raw(USER), Gid::from_raw(USER), Gid::from_raw(USER))?;
    setresuid(Uid::from_raw(USER), Uid::from_raw(USER), Uid::from_raw(USER))
}

/// Acts as the user with these capabilities from now on.
fn become_user_with(capabilities: u64) -> Result<(), Errno> {
    prctl(libc::PR_SET_KEEPCAPS, [1, 0])?;
    become_user()?;
    set_capabilities(capabilities, capabilities, 0)
}

/// The objects of the attempts; all of them are root's.
struct World {
    secret: PathBuf,
    open_set_id: PathBuf,
    directory: PathBuf,
    segment: i32,
}

struct Case {
    name: &'static str,
    capability: u32,
    /// Nothing but the capability gives the right.
    is_only: bool,
    attempt: fn(&World) -> bool,
}

const fn case(name: &'static str, capability: u32, attempt: fn(&World) -> bool) -> Case {
    Case { name, capability, is_only: true, attempt }
}

fn is_done(result: c_long) -> bool {
    result >= 0
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the strings and the value live during the call.
    let result =
        unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    Errno::result(result).map(drop)
}

/// `security.capability` with a permitted set.
fn file_capabilities(permitted: u64, is_effective: bool) -> Vec<u8> {
    let head = 0x0200_0000_u32 | u32::from(is_effective);
    let words = [head, permitted as u32, 0, (permitted >> 32) as u32, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

const CASES: &[Case] = &[
    case("give a file away", CHOWN, |world| chown(&world.secret, Some(1), None).is_ok()),
    case("write a file of mode 600", DAC_OVERRIDE, |world| {
        OpenOptions::new().write(true).open(&world.secret).is_ok()
    }),
    Case {
        name: "read a file of mode 600",
        capability: DAC_READ_SEARCH,
        is_only: false,
        attempt: |world| File::open(&world.secret).is_ok(),
    },
    case("change a file's mode", FOWNER, |world| {
        fs::set_permissions(&world.secret, fs::Permissions::from_mode(0o600)).is_ok()
    }),
    case("write and keep the set-id bit", FSETID, |world| {
        let written =
            OpenOptions::new().write(true).open(&world.open_set_id).and_then(|mut file| file.write(b"x"));
        let mode = fs::metadata(&world.open_set_id).map_or(0, |metadata| metadata.permissions().mode());
        written.is_ok() && mode & 0o4000 != 0
    }),
    case("send a signal", KILL, |_| nix::sys::signal::kill(getppid(), None).is_ok()),
    case("become another group", SETGID, |_| nix::unistd::setgid(Gid::from_raw(0)).is_ok()),
    case("become another user", SETUID, |_| nix::unistd::setuid(Uid::from_raw(0)).is_ok()),
    case("drop from the bounding set", SETPCAP, |_| {
        prctl(libc::PR_CAPBSET_DROP, [u64::from(KILL), 0]).is_ok()
    }),
    case("set secure bits", SETPCAP, |_| prctl(libc::PR_SET_SECUREBITS, [1, 0]).is_ok()),
    case("attach a segment of mode 600", IPC_OWNER, |world| {
        // SAFETY: the kernel chooses where, and nothing uses the memory.
        unsafe { libc::shmat(world.segment, std::ptr::null(), 0) as isize != -1 }
    }),
    case("change the root", SYS_CHROOT, |_| nix::unistd::chroot("/").is_ok()),
    case("read another's mappings", SYS_PTRACE, |_| fs::read(format!("/proc/{}/maps", getppid())).is_ok()),
    case("learn another's robust list", SYS_PTRACE, |_| {
        let (mut head, mut length) = (0_usize, 0_usize);
        // SAFETY: both places live during the call.
        is_done(unsafe {
            libc::syscall(libc::SYS_get_robust_list, getppid().as_raw(), &raw mut head, &raw mut length)
        })
    }),
    case("set the host's name", SYS_ADMIN, |_| {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = name.trim_end();
        // SAFETY: the name lives during the call.
        unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) == 0 }
    }),
    case("become more urgent", SYS_NICE, |_| {
        // SAFETY: the call takes three numbers.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -5) == 0 }
    }),
    case("raise a hard limit", SYS_RESOURCE, |_| {
        let limit = libc::rlimit { rlim_cur: 100, rlim_max: 100 };
        let more = libc::rlimit { rlim_cur: 100, rlim_max: 200 };
        // SAFETY: the limits live during the calls.
        unsafe {
            libc::setrlimit(libc::RLIMIT_MSGQUEUE, &raw const limit) == 0
                && libc::setrlimit(libc::RLIMIT_MSGQUEUE, &raw const more) == 0
        }
    }),
    case("make a device", MKNOD, |world| {
        let path = world.directory.join("device");
        let device = nix::sys::stat::makedev(1, 3);
        let made =
            nix::sys::stat::mknod(&path, nix::sys::stat::SFlag::S_IFCHR, Mode::empty(), device).is_ok();
        let _ = fs::remove_file(&path);
        made
    }),
    case("give a file capabilities", SETFCAP, |world| {
        set_attribute(&world.open_set_id, "security.capability", &file_capabilities(1, true)).is_ok()
    }),
];

/// Makes the attempt in a child that is first prepared; `None` if it could not be.
fn attempt(
    case: &Case,
    world: &World,
    prepare: impl FnOnce() -> Result<(), Errno>,
) -> Result<Option<bool>, String> {
    let ended = in_child(|| match prepare() {
        Ok(()) => i32::from((case.attempt)(world)),
        Err(_) => 2,
    })?;
    Ok(match ended {
        WaitStatus::Exited(_, 0) => Some(false),
        WaitStatus::Exited(_, 1) => Some(true),
        _ => None,
    })
}

fn a_table_of_who_may_do_what() -> Outcome {
    let scratch = Scratch::new("who")?;
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o777)).or_fail()?;
    // SAFETY: the call takes numbers.
    let segment = unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, 0o600) };
    expect!(segment >= 0);
    let world = World {
        secret: scratch.path("secret"),
        open_set_id: scratch.path("open"),
        directory: scratch.0.clone(),
        segment,
    };
    let mut wrong = Vec::new();
    for case in CASES {
        for path in [&world.secret, &world.open_set_id] {
            let _ = fs::remove_file(path);
            fs::write(path, "text").or_fail()?;
        }
        fs::set_permissions(&world.secret, fs::Permissions::from_mode(0o600)).or_fail()?;
        fs::set_permissions(&world.open_set_id, fs::Permissions::from_mode(0o4777)).or_fail()?;
        let bit = 1_u64 << case.capability;
        let user = attempt(case, &world, become_user)?;
        let others = attempt(case, &world, || become_user_with(ALL & !bit))?;
        fs::set_permissions(&world.open_set_id, fs::Permissions::from_mode(0o4777)).or_fail()?;
        let single = attempt(case, &world, || become_user_with(bit))?;
        let root = attempt(case, &world, || Ok(()))?;
        let expected = (Some(false), Some(!case.is_only), Some(true), Some(true));
        if (user, others, single, root) != expected {
            wrong.push(format!(
                "{}: user {user:?}, all but the capability {others:?}, it alone {single:?}, root {root:?}",
                case.name
            ));
        }
    }
    // SAFETY: the call takes numbers and, for this command, no pointer.
    unsafe { libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut()) };
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

/// The value of a name in `/proc/self/status`.
fn status_line(name: &str) -> String {
    let text = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    line.unwrap_or("none").to_owned()
}

fn capability_set(name: &str) -> u64 {
    u64::from_str_radix(&status_line(name), 16).unwrap_or(u64::MAX)
}

/// The part of this program that a test has executed: says what it runs as.
pub fn show_rights() -> ExitCode {
    let (uid, gid) = (nix::unistd::getresuid(), nix::unistd::getresgid());
    let (Ok(uid), Ok(gid)) = (uid, gid) else { return ExitCode::FAILURE };
    // SAFETY: the call takes a number.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) };
    print!(
        "{} {} {} {} secure {secure} permitted {:x} effective {:x} ambient {:x} nnp {}",
        uid.real,
        uid.effective,
        gid.real,
        gid.effective,
        capability_set("CapPrm"),
        capability_set("CapEff"),
        capability_set("CapAmb"),
        status_line("NoNewPrivs"),
    );
    ExitCode::SUCCESS
}

/// The output of a program that a child executes after it was prepared.
fn rights_of(
    program: &Path,
    prepare: impl Fn() -> Result<(), Errno> + Send + Sync + 'static,
) -> Result<String, String> {
    let mut command = Command::new(program);
    command.arg("--as=rights");
    // SAFETY: the child of this process, which has one thread, may do anything before it executes.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut command, move || prepare().map_err(Into::into))
    };
    let output = command.output().or_fail()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A copy of this program with other permissions.
fn copy_of_program(scratch: &Scratch, name: &str, mode: u32) -> Result<PathBuf, String> {
    let path = scratch.path(name);
    fs::copy(own_path(), &path).or_fail()?;
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).or_fail()?;
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o755)).or_fail()?;
    Ok(path)
}

fn user_line(rest: &str) -> String {
    format!("{USER} {USER} {USER} {USER} {rest}")
}

fn no_new_privileges_are_a_threads_and_are_inherited() -> Outcome {
    let scratch = Scratch::new("nnp")?;
    let program = copy_of_program(&scratch, "set-id", 0o6755)?;
    let raised = rights_of(&program, become_user)?;
    expect_eq!(
        raised,
        format!("{USER} 0 {USER} 0 secure 1 permitted {ALL:x} effective {ALL:x} ambient 0 nnp 0")
    );
    let kept = rights_of(&program, || {
        become_user()?;
        prctl(libc::PR_SET_NO_NEW_PRIVS, [1, 0]).map(drop)
    })?;
    expect_eq!(kept, user_line("secure 0 permitted 0 effective 0 ambient 0 nnp 1"));
    let ended = in_child(|| {
        let of_thread = std::thread::spawn(|| {
            let before = prctl(libc::PR_GET_NO_NEW_PRIVS, [0, 0]);
            let set = prctl(libc::PR_SET_NO_NEW_PRIVS, [1, 0]);
            let of_child = in_child(|| prctl(libc::PR_GET_NO_NEW_PRIVS, [0, 0]).unwrap_or(9) as i32);
            let of_own_thread = std::thread::spawn(|| prctl(libc::PR_GET_NO_NEW_PRIVS, [0, 0])).join();
            before == Ok(0)
                && set == Ok(0)
                && matches!(of_child, Ok(WaitStatus::Exited(_, 1)))
                && of_own_thread.is_ok_and(|found| found == Ok(1))
        });
        let is_inherited = of_thread.join().unwrap_or(false);
        i32::from(is_inherited && prctl(libc::PR_GET_NO_NEW_PRIVS, [0, 0]) == Ok(0))
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 1)));
    Ok(())
}

fn setfsuid_takes_the_capabilities_of_files() -> Outcome {
    let scratch = Scratch::new("fsuid")?;
    let secret = scratch.path("secret");
    fs::write(&secret, "text").or_fail()?;
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).or_fail()?;
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o755)).or_fail()?;
    let ended = in_child(|| {
        const OF_FILES: u64 = 0x1_0800_021f;
        let before = capability_set("CapEff");
        nix::unistd::setfsuid(Uid::from_raw(USER));
        let is_refused = File::open(&secret).is_err();
        let during = capability_set("CapEff");
        nix::unistd::setfsuid(Uid::from_raw(0));
        let is_allowed = File::open(&secret).is_ok();
        let after = capability_set("CapEff");
        i32::from(!(is_refused && is_allowed && before == after && during == before & !OF_FILES))
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn keep_capabilities_and_secure_bits() -> Outcome {
    const NO_SETUID_FIXUP: u64 = 4;
    const KEEP_LOCKED: u64 = 32;
    let ended = in_child(|| {
        let mut is_right = prctl(libc::PR_GET_KEEPCAPS, [0, 0]) == Ok(0)
            && prctl(libc::PR_SET_KEEPCAPS, [2, 0]) == Err(Errno::EINVAL)
            && prctl(libc::PR_SET_KEEPCAPS, [1, 0]) == Ok(0)
            && prctl(libc::PR_GET_SECUREBITS, [0, 0]) == Ok(16);
        is_right &= become_user().is_ok();
        is_right &= capability_set("CapPrm") == ALL && capability_set("CapEff") == 0;
        i32::from(!is_right)
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    let ended = in_child(|| {
        let mut is_right = prctl(libc::PR_SET_SECUREBITS, [NO_SETUID_FIXUP | KEEP_LOCKED, 0]) == Ok(0)
            && prctl(libc::PR_SET_KEEPCAPS, [1, 0]) == Err(Errno::EPERM)
            && prctl(libc::PR_SET_SECUREBITS, [0, 0]) == Err(Errno::EPERM)
            && prctl(libc::PR_SET_SECUREBITS, [KEEP_LOCKED | 256, 0]) == Err(Errno::EPERM);
        is_right &= become_user().is_ok();
        is_right &= capability_set("CapPrm") == ALL && capability_set("CapEff") == ALL;
        i32::from(!is_right)
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn ambient_capabilities_survive_exec() -> Outcome {
    const IS_SET: u64 = 1;
    const RAISE: u64 = 2;
    const CLEAR: u64 = 4;
    let scratch = Scratch::new("ambient")?;
    let program = copy_of_program(&scratch, "plain", 0o755)?;
    let set_id = copy_of_program(&scratch, "set-id", 0o4755)?;
    let prepare = || {
        prctl(libc::PR_SET_KEEPCAPS, [1, 0])?;
        become_user()?;
        let bit = 1 << KILL;
        set_capabilities(bit, bit, bit)?;
        prctl(libc::PR_CAP_AMBIENT, [RAISE, u64::from(KILL)])?;
        prctl(libc::PR_CAP_AMBIENT, [IS_SET, u64::from(KILL)]).map(drop)
    };
    let rest = "secure 0 permitted 20 effective 20 ambient 20 nnp 0";
    expect_eq!(rights_of(&program, prepare)?, user_line(rest));
    let raised = rights_of(&set_id, prepare)?;
    expect!(raised.ends_with("ambient 0 nnp 0"));
    let ended = in_child(|| {
        let is_refused = prctl(libc::PR_CAP_AMBIENT, [RAISE, u64::from(KILL)]) == Err(Errno::EPERM)
            && prctl(libc::PR_CAP_AMBIENT, [RAISE, 63]) == Err(Errno::EINVAL)
            && prctl(libc::PR_CAP_AMBIENT, [9, u64::from(KILL)]) == Err(Errno::EINVAL);
        let is_cleared = prctl(libc::PR_CAP_AMBIENT, [CLEAR, 0]) == Ok(0)
            && prctl(libc::PR_CAP_AMBIENT, [IS_SET, u64::from(KILL)]) == Ok(0);
        i32::from(!(is_refused && is_cleared))
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn set_id_bits_raise_but_on_nosuid_mounts() -> Outcome {
    let scratch = Scratch::new("nosuid")?;
    let options: Option<&str> = None;
    mount(Some("none"), &scratch.0, Some("tmpfs"), MsFlags::MS_NOSUID, options).or_fail()?;
    let shown =
        copy_of_program(&scratch, "set-id", 0o6755).and_then(|program| rights_of(&program, become_user));
    umount(&scratch.0).or_fail()?;
    expect_eq!(shown?, user_line("secure 0 permitted 0 effective 0 ambient 0 nnp 0"));
    Ok(())
}

fn capabilities_of_a_file() -> Outcome {
    let scratch = Scratch::new("filecaps")?;
    // Not every file system of the other side has such attributes.
    let options: Option<&str> = None;
    mount(Some("none"), &scratch.0, Some("tmpfs"), MsFlags::empty(), options).or_fail()?;
    let result = with_file_capabilities(&scratch);
    umount(&scratch.0).or_fail()?;
    result
}

fn with_file_capabilities(scratch: &Scratch) -> Outcome {
    const NAME: &str = "security.capability";
    let program = copy_of_program(scratch, "plain", 0o755)?;
    set_attribute(&program, NAME, &file_capabilities(1 << KILL, true)).or_fail()?;
    let raised = rights_of(&program, become_user)?;
    expect_eq!(raised, user_line("secure 1 permitted 20 effective 20 ambient 0 nnp 0"));
    let bounded = rights_of(&program, || {
        prctl(libc::PR_CAPBSET_DROP, [u64::from(KILL), 0])?;
        become_user()
    });
    expect_eq!(bounded.map(|_| ()).is_err(), true);
    set_attribute(&program, NAME, &file_capabilities(1 << KILL, false)).or_fail()?;
    let permitted = rights_of(&program, become_user)?;
    expect_eq!(permitted, user_line("secure 1 permitted 20 effective 0 ambient 0 nnp 0"));
    expect_eq!(set_attribute(&program, NAME, b"nonsense"), Err(Errno::EINVAL));
    Ok(())
}

fn writes_take_set_id_bits_away() -> Outcome {
    let scratch = Scratch::new("setid")?;
    let path = scratch.path("file");
    let file =
        OpenOptions::new().create(true).write(true).truncate(true).mode(0o777).open(&path).or_fail()?;
    let mode = || Ok::<u32, String>(fs::metadata(&path).or_fail()?.permissions().mode() & 0o7777);
    let set = |bits: u32| fs::set_permissions(&path, fs::Permissions::from_mode(bits)).or_fail();
    set(0o6777)?;
    (&file).write_all(b"by root").or_fail()?;
    expect_eq!(mode()?, 0o6777);
    let write = || become_user_with(0).is_err() || (&file).write_all(b"by a user").is_err();
    set(0o2767)?;
    expect!(matches!(in_child(|| i32::from(write()))?, WaitStatus::Exited(_, 0)));
    // Neither runs it as its group, nor is the writer a member.
    expect_eq!(mode()?, 0o767);
    set(0o6777)?;
    expect!(matches!(in_child(|| i32::from(write()))?, WaitStatus::Exited(_, 0)));
    expect_eq!(mode()?, 0o777);
    for is_cut in [true, false] {
        let change = |file: &File| {
            if is_cut { ftruncate(file, 3) } else { fallocate(file, FallocateFlags::empty(), 0, 9) }
        };
        set(0o6777).and_then(|()| change(&file).or_fail())?;
        expect_eq!(mode()?, 0o6777);
        in_child(|| i32::from(become_user_with(0).is_err() || change(&file).is_err()))?;
        expect_eq!(mode()?, 0o777);
    }
    set(0o6777)?;
    chown(&path, Some(1), None).or_fail()?;
    expect_eq!(mode()?, 0o777);
    Ok(())
}

fn a_change_of_identity_closes_the_process() -> Outcome {
    let ended = in_child(|| {
        let before = prctl(libc::PR_GET_DUMPABLE, [0, 0]);
        let is_closed = prctl(libc::PR_SET_DUMPABLE, [0, 0]) == Ok(0)
            && prctl(libc::PR_GET_DUMPABLE, [0, 0]) == Ok(0)
            && prctl(libc::PR_SET_DUMPABLE, [1, 0]) == Ok(0);
        let is_changed = become_user().is_ok() && prctl(libc::PR_GET_DUMPABLE, [0, 0]) == Ok(0);
        i32::from(!(before == Ok(1) && is_closed && is_changed))
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn openat2_starts_at_its_own_root() -> Outcome {
    let scratch = Scratch::new("inroot")?;
    fs::create_dir(scratch.path("etc")).or_fail()?;
    fs::write(scratch.path("etc/inside"), "x").or_fail()?;
    std::os::unix::fs::symlink("/etc/inside", scratch.path("link")).or_fail()?;
    let directory = File::open(&scratch.0).or_fail()?;
    let open = |path: &str| {
        let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
        // `struct open_how`: flags, mode, RESOLVE_IN_ROOT.
        let how = [0_u64, 0, 16];
        // SAFETY: the path and the structure live during the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_openat2,
                directory.as_raw_fd(),
                path.as_ptr(),
                how.as_ptr(),
                size_of_val(&how),
            )
        };
        Errno::result(result).map(|descriptor| {
            // SAFETY: the kernel has just made the descriptor.
            drop(unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(descriptor as i32) });
        })
    };
    expect_eq!(open("/etc/inside"), Ok(()));
    expect_eq!(open("/../etc/inside"), Ok(()));
    expect_eq!(open("link"), Ok(()));
    expect_eq!(open("/proc/version"), Err(Errno::ENOENT));
    Ok(())
}

fn seals_and_shared_mappings() -> Outcome {
    const BYTES: usize = 8192;
    let made = || -> Result<File, String> {
        // SAFETY: the name is a string, and the kernel makes the descriptor.
        let descriptor = unsafe { libc::memfd_create(c"sealed".as_ptr(), libc::MFD_ALLOW_SEALING) };
        expect_fd(descriptor)?;
        // SAFETY: nobody else knows of it.
        let file = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(descriptor) };
        file.set_len(BYTES as u64).or_fail()?;
        Ok(file)
    };
    let map = |file: &File, protection: i32, flags: i32| {
        // SAFETY: the kernel chooses where.
        let place =
            unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, file.as_raw_fd(), 0) };
        if place == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(place) }
    };
    let add = |file: &File, seals: i32| {
        // SAFETY: the command takes a number.
        Errno::result(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map(drop)
    };
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let file = made()?;
    let place = map(&file, both, libc::MAP_SHARED).or_fail()?;
    expect_eq!(add(&file, libc::F_SEAL_WRITE), Err(Errno::EBUSY));
    // A part of the mapping that is left counts.
    // SAFETY: the mapping is this test's.
    unsafe { libc::munmap(place, BYTES / 2) };
    expect_eq!(add(&file, libc::F_SEAL_WRITE), Err(Errno::EBUSY));
    // SAFETY: as above.
    unsafe { libc::munmap(place.byte_add(BYTES / 2), BYTES / 2) };
    expect_eq!(add(&file, libc::F_SEAL_WRITE), Ok(()));
    expect_eq!(map(&file, both, libc::MAP_SHARED).err(), Some(Errno::EPERM));
    expect!(map(&file, libc::PROT_READ, libc::MAP_PRIVATE).is_ok());
    let sealed = map(&file, libc::PROT_READ, libc::MAP_SHARED).or_fail()?;
    // SAFETY: the mapping is this test's.
    let result = Errno::result(unsafe { libc::mprotect(sealed, BYTES, both) }).map(drop);
    expect_eq!(result, Err(Errno::EACCES));
    expect!(map(&file, both, libc::MAP_PRIVATE).is_ok());
    let file = made()?;
    let place = map(&file, both, libc::MAP_SHARED).or_fail()?;
    expect_eq!(add(&file, libc::F_SEAL_FUTURE_WRITE), Ok(()));
    // SAFETY: the mapping is this test's and stays writable.
    unsafe { place.cast::<u8>().write_volatile(1) };
    expect_eq!(map(&file, both, libc::MAP_SHARED).err(), Some(Errno::EPERM));
    let later = map(&file, libc::PROT_READ, libc::MAP_SHARED).or_fail()?;
    // SAFETY: the mapping is this test's.
    let result = Errno::result(unsafe { libc::mprotect(later, BYTES, both) }).map(drop);
    expect_eq!(result, Err(Errno::EACCES));
    // Truncation takes pages from such mappings too.
    file.set_len(0).or_fail()?;
    file.set_len(BYTES as u64).or_fail()?;
    // SAFETY: the mapping is this test's.
    expect_eq!(unsafe { later.cast::<u8>().read_volatile() }, 0);
    Ok(())
}

fn expect_fd(descriptor: i32) -> Outcome {
    expect!(descriptor >= 0);
    Ok(())
}
