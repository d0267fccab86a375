//! File systems that programs serve, fuse(4).

#![allow(unsafe_code)] // Memory that is mapped, and children that are made.

mod server;
pub mod servers;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::signal::{Signal, kill};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, statfs};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, Uid, fork, setuid};

use crate::fuse::server::{Server, opcode};
use crate::harness::{OrFail, Outcome, is_heddle};
use crate::mounts::namespace::apart;
use crate::mounts::{Stage, bind, mount_with, umount};
use crate::{expect, expect_eq};

crate::tests! {
    a_program_serves_files
    names_change_where_a_program_serves_them
    what_was_looked_at_and_opened_is_given_back
    a_directory_of_many_names_is_listed
    bytes_can_be_mapped_privately
    a_program_is_run_from_there
    a_server_that_is_gone_leaves_no_connection
    a_call_ends_with_its_server
    callers_of_a_hung_server_can_be_killed
    a_hung_server_stops_only_its_callers
    a_late_answer_is_given_back
    an_unmounted_server_hears_so
    a_forced_unmount_ends_the_connection
    others_may_use_it_only_where_it_says_so
    mounts_that_are_refused
    answers_that_are_refused
    the_way_up_beside_a_move_stays_in_the_mount
    a_walk_beneath_a_directory_notices_a_move
}

/// A directory in which something is served.
struct Served {
    server: Server,
    top: PathBuf,
    _stage: Stage,
}

impl Served {
    fn new(name: &str) -> Result<Self, String> {
        Self::with_options(name, "")
    }

    fn with_options(name: &str, options: &str) -> Result<Self, String> {
        let stage = Stage::new(name)?;
        let top = stage.directory("served")?;
        Ok(Self { server: Server::mount(&top, options)?, top, _stage: stage })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = umount(&self.top, libc::MNT_DETACH);
    }
}

fn error_of<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw)
}

fn names(directory: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(directory).or_fail()?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

fn a_program_serves_files() -> Outcome {
    let served = Served::new("fuse-files")?;
    let _thread = served.server.start(|_| {});
    let path = served.top.join("file");
    let mut file =
        OpenOptions::new().read(true).write(true).create_new(true).mode_of(0o640).open(&path).or_fail()?;
    file.write_all(b"hello, world").or_fail()?;
    file.seek(SeekFrom::Start(7)).or_fail()?;
    let mut text = String::new();
    file.read_to_string(&mut text).or_fail()?;
    expect_eq!(text, "world");
    file.set_len(5).or_fail()?;
    let mut appending = OpenOptions::new().append(true).open(&path).or_fail()?;
    appending.write_all(b"!").or_fail()?;
    drop(appending);
    expect_eq!(fs::read(&path).or_fail()?, b"hello!");
    file.sync_all().or_fail()?;
    drop(file);
    let metadata = fs::metadata(&path).or_fail()?;
    expect_eq!((metadata.len(), metadata.mode(), metadata.mtime()), (6, libc::S_IFREG | 0o640, 12));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).or_fail()?;
    expect_eq!(fs::metadata(&path).or_fail()?.mode() & 0o7777, 0o604);
    // A long one takes many requests.
    let long: Vec<u8> =
        (0..300_000u32).map(|number| number.to_le_bytes()[0] ^ number.to_le_bytes()[1]).collect();
    fs::write(&path, &long).or_fail()?;
    expect!(fs::read(&path).or_fail()? == long);
    let found = statfs(&served.top).or_fail()?;
    expect_eq!(found.filesystem_type(), FUSE_SUPER_MAGIC);
    expect_eq!((found.blocks(), found.blocks_free(), found.files_free()), (1000, 600, 60));
    served.server.with(|files| {
        expect!(files.count(opcode::FLUSH) >= 3 && files.count(opcode::FSYNC) == 1);
        Ok(())
    })
}

/// The mode of a file that is made, whatever the umask.
trait Mode {
    fn mode_of(&mut self, mode: u32) -> &mut Self;
}

impl Mode for OpenOptions {
    fn mode_of(&mut self, mode: u32) -> &mut Self {
        std::os::unix::fs::OpenOptionsExt::mode(self, mode)
    }
}

fn names_change_where_a_program_serves_them() -> Outcome {
    let served = Served::new("fuse-names")?;
    let _thread = served.server.start(|_| {});
    let top = &served.top;
    fs::create_dir(top.join("directory")).or_fail()?;
    expect_eq!(error_of(fs::create_dir(top.join("directory"))), Some(Errno::EEXIST));
    fs::write(top.join("directory/file"), "x").or_fail()?;
    symlink("directory/file", top.join("link")).or_fail()?;
    expect_eq!(fs::read_link(top.join("link")).or_fail()?, Path::new("directory/file"));
    expect_eq!(fs::read(top.join("link")).or_fail()?, b"x");
    fs::hard_link(top.join("directory/file"), top.join("second")).or_fail()?;
    expect_eq!(fs::metadata(top.join("second")).or_fail()?.nlink(), 2);
    expect_eq!(error_of(fs::remove_dir(top.join("directory"))), Some(Errno::ENOTEMPTY));
    expect_eq!(error_of(fs::rename(top.join("directory"), top.join("directory/in"))), Some(Errno::EINVAL));
    fs::rename(top.join("directory/file"), top.join("moved")).or_fail()?;
    expect_eq!(error_of(fs::metadata(top.join("link"))), Some(Errno::ENOENT));
    let mut all = names(top)?;
    all.sort();
    expect_eq!(all, ["directory", "link", "moved", "second"]);
    fs::remove_dir(top.join("directory")).or_fail()?;
    for name in ["link", "moved", "second"] {
        fs::remove_file(top.join(name)).or_fail()?;
    }
    expect_eq!(names(top)?, Vec::<String>::new());
    expect_eq!(error_of(fs::remove_file(top.join("second"))), Some(Errno::ENOENT));
    Ok(())
}

fn what_was_looked_at_and_opened_is_given_back() -> Outcome {
    let served = Served::new("fuse-held")?;
    let thread = served.server.start(|_| {});
    for number in 0..5 {
        let path = served.top.join(format!("{number}"));
        let file = File::create(&path).or_fail()?;
        let again = File::open(&path).or_fail()?;
        expect!(served.server.with(|files| files.held()).1 >= 2);
        drop((file, again));
        fs::metadata(&path).or_fail()?;
    }
    names(&served.top)?;
    // The server hears of it soon. Linux keeps names, and leaves them to be forgotten with all.
    let is_held = |(looks, opened)| opened > 0 || looks > 0 && is_heddle();
    while is_held(served.server.with(|files| files.held())) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    umount(&served.top, 0).or_fail()?;
    expect_eq!(thread.join().ok(), Some(libc::ENODEV));
    Ok(())
}

fn a_directory_of_many_names_is_listed() -> Outcome {
    let served = Served::new("fuse-many")?;
    let _thread = served.server.start(|_| {});
    for number in 0..1500 {
        fs::create_dir(served.top.join(format!("a-name-of-some-length-{number:04}"))).or_fail()?;
    }
    let mut found = names(&served.top)?;
    found.sort();
    expect_eq!(found.len(), 1500);
    expect_eq!(found[1499], "a-name-of-some-length-1499");
    Ok(())
}

fn bytes_can_be_mapped_privately() -> Outcome {
    let served = Served::new("fuse-mapped")?;
    let _thread = served.server.start(|_| {});
    let path = served.top.join("file");
    let contents: Vec<u8> = (0..10_000u32).map(|number| (number % 251) as u8).collect();
    fs::write(&path, &contents).or_fail()?;
    let file = OpenOptions::new().read(true).write(true).open(&path).or_fail()?;
    let length = NonZeroUsize::new(12_288).ok_or("0")?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // The server asks for direct input and output, with which Linux has no shared mappings.
    // SAFETY: a new mapping.
    let shared = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &file, 0) };
    expect_eq!(shared.err(), Some(Errno::ENODEV));
    // SAFETY: as above.
    let mapped = unsafe { mmap(None, length, protection, MapFlags::MAP_PRIVATE, &file, 0) }.or_fail()?;
    drop(file);
    // SAFETY: it is mapped, and the file fills all pages but the end of the last, which is zeroes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(mapped.as_ptr().cast::<u8>(), length.get()) };
    expect!(bytes[..10_000] == contents[..]);
    expect!(bytes[10_000..].iter().all(|&byte| byte == 0));
    bytes[0] = 77;
    expect_eq!(fs::read(&path).or_fail()?[0], 0);
    // SAFETY: nobody uses it any more.
    unsafe { munmap(mapped, length.get()) }.or_fail()
}

fn a_program_is_run_from_there() -> Outcome {
    let served = Served::new("fuse-program")?;
    let _thread = served.server.start(|_| {});
    let path = served.top.join("program");
    fs::write(&path, fs::read("/proc/self/exe").or_fail()?).or_fail()?;
    let run = || std::process::Command::new(&path).arg("--list").output();
    expect_eq!(error_of(run()), Some(Errno::EACCES));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).or_fail()?;
    let output = run().or_fail()?;
    expect!(output.status.success() && !output.stdout.is_empty());
    Ok(())
}

fn a_server_that_is_gone_leaves_no_connection() -> Outcome {
    let served = Served::new("fuse-gone")?;
    let top = served.top.clone();
    let thread = served.server.start(|asked| {
        if asked.opcode == opcode::LOOKUP && asked.name(0) == "last" {
            // Unwinding takes the thread with it, unanswered.
            std::panic::resume_unwind(Box::new(()));
        }
    });
    fs::write(top.join("file"), "x").or_fail()?;
    let open = File::open(top.join("file")).or_fail()?;
    let last = top.join("last");
    let caller = std::thread::spawn(move || error_of(fs::metadata(last)));
    expect!(thread.join().is_err());
    served.server.close();
    expect_eq!(caller.join().ok(), Some(Some(Errno::ECONNABORTED)));
    let mut byte = [0];
    for error in [
        error_of(fs::metadata(&top)),
        error_of(fs::metadata(top.join("file"))),
        error_of(fs::read_dir(&top)),
        error_of(File::create(top.join("new"))),
        error_of(open.read_at(&mut byte, 0)),
        error_of(open.metadata()),
    ] {
        expect_eq!(error, Some(Errno::ENOTCONN));
    }
    drop(open);
    umount(&top, 0).or_fail()
}

fn a_call_ends_with_its_server() -> Outcome {
    let served = Served::new("fuse-end")?;
    // Nobody answers the first question, which others wait for.
    let path = served.top.join("file");
    let caller = std::thread::spawn(move || error_of(fs::metadata(path)));
    expect_eq!(served.server.next().map(|asked| asked.opcode), Ok(opcode::INIT));
    served.server.close();
    let error = caller.join().ok().flatten();
    expect!(matches!(error, Some(Errno::ENOTCONN | Errno::ECONNABORTED)));
    Ok(())
}

/// A child that looks at a file, and hangs with the server.
fn looking_child(path: &Path) -> Result<Pid, String> {
    // SAFETY: the child makes one call and ends.
    match unsafe { fork() }.or_fail()? {
        ForkResult::Child => {
            let found = fs::metadata(path).is_ok();
            // SAFETY: nothing of the parent's is run.
            unsafe { libc::_exit(i32::from(!found)) }
        }
        ForkResult::Parent { child } => Ok(child),
    }
}

fn callers_of_a_hung_server_can_be_killed() -> Outcome {
    let served = Served::new("fuse-killed")?;
    served.server.answer(&served.server.next().or_fail_number()?);
    // Linux lets a question go that was not read.
    let child = looking_child(&served.top.join("file"))?;
    served.server.wait()?;
    kill(child, Signal::SIGKILL).or_fail()?;
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Signaled(child, Signal::SIGKILL, false));
    let thread = served.server.start(|_| {});
    expect_eq!(error_of(fs::metadata(served.top.join("file"))), Some(Errno::ENOENT));
    umount(&served.top, 0).or_fail()?;
    expect_eq!(thread.join().ok(), Some(libc::ENODEV));
    expect_eq!(served.server.with(|files| files.count(opcode::INTERRUPT)), 0);
    Ok(())
}

/// An error number as a failure.
trait OrFailNumber<T> {
    fn or_fail_number(self) -> Result<T, String>;
}

impl<T> OrFailNumber<T> for Result<T, i32> {
    fn or_fail_number(self) -> Result<T, String> {
        self.map_err(|number| format!("{}", Errno::from_raw(number)))
    }
}

fn a_hung_server_stops_only_its_callers() -> Outcome {
    let served = Served::new("fuse-hung")?;
    served.server.answer(&served.server.next().or_fail_number()?);
    let mut children = Vec::new();
    // More than any kernel has stacks, or a server is waited for by.
    for _ in 0..100 {
        children.push(looking_child(&served.top.join("file"))?);
    }
    served.server.wait()?;
    // Everything else goes on, another server too.
    let other = Served::new("fuse-beside")?;
    let thread = other.server.start(|_| {});
    fs::write(other.top.join("file"), "x").or_fail()?;
    expect_eq!(fs::read(other.top.join("file")).or_fail()?, b"x");
    umount(&other.top, 0).or_fail()?;
    expect_eq!(thread.join().ok(), Some(libc::ENODEV));
    for child in &children {
        kill(*child, Signal::SIGKILL).or_fail()?;
    }
    for child in children {
        waitpid(child, None).or_fail()?;
    }
    Ok(())
}

fn a_late_answer_is_given_back() -> Outcome {
    if !is_heddle() {
        crate::harness::skip("Linux waits for an answer to what the server has read");
        return Ok(());
    }
    let served = Served::new("fuse-late")?;
    served.server.answer(&served.server.next().or_fail_number()?);
    served.server.with(server::Files::add_file);
    let child = looking_child(&served.top.join("file"))?;
    let mut asked = served.server.next().or_fail_number()?;
    while asked.opcode != opcode::LOOKUP {
        served.server.answer(&asked);
        asked = served.server.next().or_fail_number()?;
    }
    kill(child, Signal::SIGKILL).or_fail()?;
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Signaled(child, Signal::SIGKILL, false));
    let interruption = served.server.next().or_fail_number()?;
    expect_eq!(interruption.opcode, opcode::INTERRUPT);
    expect_eq!(server::long(&interruption.fields, 0), asked.unique);
    served.server.answer(&asked);
    let forgotten = served.server.next().or_fail_number()?;
    expect_eq!(forgotten.opcode, opcode::FORGET);
    served.server.answer(&forgotten);
    expect_eq!(served.server.with(|files| files.held()), (0, 0));
    Ok(())
}

fn an_unmounted_server_hears_so() -> Outcome {
    let served = Served::new("fuse-unmounted")?;
    let thread = served.server.start(|_| {});
    fs::write(served.top.join("file"), "x").or_fail()?;
    let open = File::open(served.top.join("file")).or_fail()?;
    expect_eq!(umount(&served.top, 0), Err(Errno::EBUSY));
    umount(&served.top, libc::MNT_DETACH).or_fail()?;
    // The file is still served.
    let mut byte = [0];
    expect_eq!(open.read_at(&mut byte, 0).or_fail()?, 1);
    drop(open);
    expect_eq!(thread.join().ok(), Some(libc::ENODEV));
    expect_eq!(served.server.say(2, 0, &[]).err().and_then(|error| error.raw_os_error()), Some(libc::ENOENT));
    Ok(())
}

fn a_forced_unmount_ends_the_connection() -> Outcome {
    let served = Served::new("fuse-forced")?;
    served.server.answer(&served.server.next().or_fail_number()?);
    let path = served.top.join("file");
    let caller = std::thread::spawn(move || error_of(fs::metadata(path)));
    served.server.wait()?;
    // The caller is in the way of the unmounting until it has heard of it.
    let forced = umount(&served.top, libc::MNT_FORCE);
    expect!(matches!(forced, Ok(()) | Err(Errno::EBUSY)));
    expect_eq!(caller.join().ok(), Some(Some(Errno::ECONNABORTED)));
    expect_eq!(served.server.next().err(), Some(libc::ENODEV));
    if forced.is_err() {
        expect_eq!(error_of(fs::metadata(&served.top)), Some(Errno::ENOTCONN));
        umount(&served.top, 0).or_fail()?;
    }
    Ok(())
}

fn others_may_use_it_only_where_it_says_so() -> Outcome {
    const OTHER: u32 = 1234;
    for (options, expected) in [("", Some(Errno::EACCES)), (",allow_other", None)] {
        let served = Served::with_options("fuse-others", options)?;
        let _thread = served.server.start(|_| {});
        fs::write(served.top.join("file"), "x").or_fail()?;
        fs::set_permissions(served.top.join("file"), fs::Permissions::from_mode(0o600)).or_fail()?;
        let path = served.top.join("file");
        apart(|| {
            setuid(Uid::from_raw(OTHER)).or_fail()?;
            // The server decides, and does not mind.
            expect_eq!(error_of(fs::read(&path)), expected);
            Ok(())
        })?;
        expect_eq!(served.server.with(|files| files.users.contains(&OTHER)), expected.is_none());
        umount(&served.top, 0).or_fail()?;
    }
    let served = Served::with_options("fuse-others", ",allow_other,default_permissions")?;
    let _thread = served.server.start(|_| {});
    fs::write(served.top.join("file"), "x").or_fail()?;
    fs::set_permissions(served.top.join("file"), fs::Permissions::from_mode(0o600)).or_fail()?;
    let path = served.top.join("file");
    apart(|| {
        setuid(Uid::from_raw(OTHER)).or_fail()?;
        expect_eq!(error_of(fs::read(&path)), Some(Errno::EACCES));
        Ok(())
    })
}

fn mounts_that_are_refused() -> Outcome {
    let stage = Stage::new("fuse-refused")?;
    let top = stage.directory("served")?;
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").or_fail()?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&device);
    let mut byte = [0; 8192];
    expect_eq!(error_of((&device).read(&mut byte)), Some(Errno::EPERM));
    let try_mount =
        |options: &str| mount_with(Some(Path::new("served")), &top, Some("fuse"), 0, Some(options)).err();
    let rest = "rootmode=40000,user_id=0,group_id=0";
    for options in [
        rest.to_owned(),
        format!("fd={number},user_id=0,group_id=0"),
        format!("fd={number},rootmode=40000,group_id=0"),
        format!("fd={number},{rest},nonsense"),
        format!("fd=0,{rest}"),
    ] {
        expect_eq!(try_mount(&options), Some(Errno::EINVAL));
    }
    expect_eq!(try_mount(&format!("fd={number},{rest}")), None);
    umount(&top, 0).or_fail()
}

fn answers_that_are_refused() -> Outcome {
    let served = Served::new("fuse-answers")?;
    let server = &served.server;
    let asked = server.next().or_fail_number()?;
    let refused = |unique, error, fields: &[u8]| error_of(server.say(unique, error, fields));
    expect_eq!(refused(asked.unique + 1000, 0, &[]), Some(Errno::ENOENT));
    expect_eq!(refused(asked.unique, 5, &[]), Some(Errno::EINVAL));
    expect_eq!(refused(asked.unique, -1000, &[]), Some(Errno::EINVAL));
    expect_eq!(error_of(server.write_bytes(&[16, 0, 0])), Some(Errno::EINVAL));
    server.answer(&asked);
    // It is answered.
    expect_eq!(refused(asked.unique, 0, &[]), Some(Errno::ENOENT));
    Ok(())
}

/// Something in a directory that has moved out of `shown`, reached through a mount that shows only that, by a walk in
/// whose midst the move happens.
fn the_way_up_beside_a_move_stays_in_the_mount() -> Outcome {
    let stage = Stage::new("fuse-up")?;
    let (shown, at) = (stage.directory("shown")?, stage.directory("at")?);
    fs::create_dir_all(shown.join("one/two/beside")).or_fail()?;
    fs::create_dir(shown.join("one/two/served")).or_fail()?;
    fs::write(stage.directory("outside")?.join("secret"), "x").or_fail()?;
    bind(&shown, &at, 0).or_fail()?;
    let top = at.join("one/two/served");
    let server = Server::mount(&top, "")?;
    let (from, to) = (shown.join("one"), shown.join("../one"));
    let _thread = server.start(move |asked| {
        if asked.opcode == opcode::LOOKUP && asked.name(0) == "slow" {
            let _ = fs::rename(&from, &to);
        }
    });
    fs::create_dir(top.join("slow")).or_fail()?;
    fs::rename(shown.join("../one"), shown.join("one")).or_fail()?;
    // Up once where all is well, then over the place of the move, and up again past the mount's root.
    let path = top.join("../beside/../served/slow/../../../../outside/secret");
    expect_eq!(error_of(fs::metadata(path)), Some(Errno::ENOENT));
    Ok(())
}

fn a_walk_beneath_a_directory_notices_a_move() -> Outcome {
    let stage = Stage::new("fuse-beneath")?;
    let shown = stage.directory("shown")?;
    fs::create_dir_all(shown.join("one/served")).or_fail()?;
    fs::write(stage.directory("outside")?.join("secret"), "x").or_fail()?;
    let top = shown.join("one/served");
    let server = Server::mount(&top, "")?;
    let (from, to) = (shown.join("one"), shown.join("../one"));
    let _thread = server.start(move |asked| {
        if asked.opcode == opcode::LOOKUP && asked.name(0) == "slow" {
            let _ = fs::rename(&from, &to);
        }
    });
    fs::create_dir(top.join("slow")).or_fail()?;
    fs::rename(shown.join("../one"), shown.join("one")).or_fail()?;
    for resolve in [ResolveFlag::RESOLVE_BENEATH, ResolveFlag::RESOLVE_IN_ROOT] {
        let directory = File::open(&shown).or_fail()?;
        let how = OpenHow::new().flags(OFlag::O_RDONLY).resolve(resolve);
        let path = "one/served/slow/../../../outside/secret";
        expect_eq!(openat2(&directory, path, how).err(), Some(Errno::EAGAIN));
        fs::rename(shown.join("../one"), shown.join("one")).or_fail()?;
    }
    let _ = umount(&top, libc::MNT_DETACH);
    Ok(())
}
