//! Which system calls may go on by themselves, each with its effect: those that wait come through the ring when what
//! they wait for has come, and leave nothing behind when they are cancelled.
#![allow(unsafe_code, reason = "system calls that have no safe form")]

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use heddle_abi::call::{CANCEL, CANCEL_AND_WAIT, DONE, Entry, LEVEL, WAITS};
use heddle_rt::wait::Mutex;
use heddle_rt::{Builder, SpawnBuilder, try_spawn, yield_now};
use nix::unistd::pipe;

use crate::asynchronous::{Ring, call, entry, start};
use crate::harness::{OrFail, Outcome, Scratch};
use crate::{expect, expect_eq};

crate::tests! {
    calls_about_names_are_carried_out
    calls_about_files_are_carried_out
    whole_file_locks_are_waited_for
    byte_range_locks_are_waited_for
    messages_of_system_v_are_waited_for
    semaphores_are_waited_for
    posix_messages_are_waited_for
    what_pipes_carry_is_waited_for
    many_messages_are_received
    calls_with_a_signal_mask_are_refused
    a_call_takes_another_level
    a_call_has_the_level_of_whoever_awaits_it
}

const AT: u64 = libc::AT_FDCWD as u64;

fn word<T: ?Sized>(value: &T) -> u64 {
    (&raw const *value).cast::<u8>() as u64
}

/// The address of memory that a call writes.
fn place<T: ?Sized>(value: &mut T) -> u64 {
    (&raw mut *value).cast::<u8>() as u64
}

fn number(file: &impl AsRawFd) -> u64 {
    file.as_raw_fd() as u64
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no zero in a path")
}

fn with<const N: usize>(number: i64, cookie: u64, arguments: [u64; N]) -> Entry {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    Entry { arguments: all, ..entry(number, cookie, [0; 3]) }
}

/// The result of a call, whether it had to wait or not.
fn result<const N: usize>(ring: &Ring, number: i64, arguments: [u64; N]) -> Result<i64, String> {
    let started = start(with(number, 1, arguments))?;
    match started.state {
        DONE => Ok(started.outcome as i64),
        WAITS => Ok(ring.next()?.result),
        state => Err(format!("call {number}: state {state}")),
    }
}

/// A call waits; one like it is cancelled; `release` lets the first go on. Returns its result.
fn waits<const N: usize>(
    ring: &Ring,
    number: i64,
    arguments: [u64; N],
    release: impl FnOnce() -> Outcome,
) -> Result<i64, String> {
    let cancelled = start(with(number, 1, arguments))?;
    expect_eq!(cancelled.state, WAITS);
    expect_eq!(call(CANCEL, [cancelled.outcome, CANCEL_AND_WAIT, 0, 0]), Ok(0));
    expect_eq!(ring.next()?.result, -i64::from(libc::ECANCELED));
    let waiting = start(with(number, 2, arguments))?;
    expect_eq!(waiting.state, WAITS);
    expect_eq!(ring.take(), None);
    release()?;
    let found = ring.next()?;
    expect_eq!(found.cookie, 2);
    Ok(found.result)
}

fn calls_about_names_are_carried_out() -> Outcome {
    let Some(ring) = Ring::new(5)? else { return Ok(()) };
    let folder = Scratch::new("asynchronous-names")?;
    let [sub, file, other, link] = ["sub", "file", "other", "link"].map(|name| text(&folder.path(name)));
    let at = |path: &CString| path.as_ptr() as u64;
    expect_eq!(result(&ring, libc::SYS_mkdir, [at(&sub), 0o755])?, 0);
    expect!(folder.path("sub").is_dir());
    let made = result(&ring, libc::SYS_creat, [at(&file), 0o644])?;
    expect!(made >= 0);
    // SAFETY: the descriptor was made by the call, and nobody else has it.
    drop(unsafe { OwnedFd::from_raw_fd(made as i32) });
    // SAFETY: zeros are a record that is written over.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    expect_eq!(result(&ring, libc::SYS_stat, [at(&file), place(&mut found)])?, 0);
    expect_eq!(found.st_mode, libc::S_IFREG | 0o644);
    expect_eq!(result(&ring, libc::SYS_fchmodat, [AT, at(&file), 0o600])?, 0);
    found.st_mode = 0;
    expect_eq!(result(&ring, libc::SYS_newfstatat, [AT, at(&file), place(&mut found), 0])?, 0);
    expect_eq!(found.st_mode, libc::S_IFREG | 0o600);
    expect_eq!(result(&ring, libc::SYS_link, [at(&file), at(&other)])?, 0);
    expect_eq!(result(&ring, libc::SYS_symlink, [at(&file), at(&link)])?, 0);
    let mut target = [0_u8; 200];
    let length = result(&ring, libc::SYS_readlinkat, [AT, at(&link), place(&mut target), 200])?;
    expect_eq!(&target[..length as usize], file.as_bytes());
    expect_eq!(result(&ring, libc::SYS_lstat, [at(&link), place(&mut found)])?, 0);
    expect_eq!(found.st_mode & libc::S_IFMT, libc::S_IFLNK);
    expect_eq!(result(&ring, libc::SYS_truncate, [at(&file), 12])?, 0);
    expect_eq!(folder.path("other").metadata().or_fail()?.len(), 12);
    expect_eq!(result(&ring, libc::SYS_access, [at(&file), libc::R_OK as u64])?, 0);
    expect_eq!(result(&ring, libc::SYS_rename, [at(&other), at(&sub)])?, -i64::from(libc::EISDIR));
    expect_eq!(result(&ring, libc::SYS_unlink, [at(&other)])?, 0);
    expect_eq!(result(&ring, libc::SYS_access, [at(&other), 0])?, -i64::from(libc::ENOENT));
    expect_eq!(result(&ring, libc::SYS_rmdir, [at(&sub)])?, 0);
    expect!(!folder.path("sub").exists());
    Ok(())
}

fn calls_about_files_are_carried_out() -> Outcome {
    let Some(ring) = Ring::new(5)? else { return Ok(()) };
    let folder = Scratch::new("asynchronous-files")?;
    std::fs::write(folder.path("from"), b"some bytes").or_fail()?;
    let from = File::open(folder.path("from")).or_fail()?;
    let to = File::create(folder.path("to")).or_fail()?;
    expect_eq!(result(&ring, libc::SYS_copy_file_range, [number(&from), 0, number(&to), 0, 100, 0])?, 10);
    expect_eq!(std::fs::read(folder.path("to")).or_fail()?, b"some bytes");
    // SAFETY: zeros are a record that is written over.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    expect_eq!(result(&ring, libc::SYS_fstat, [number(&to), place(&mut found)])?, 0);
    expect_eq!(found.st_size, 10);
    expect_eq!(result(&ring, libc::SYS_fchmod, [number(&to), 0o640])?, 0);
    expect_eq!(result(&ring, libc::SYS_lseek, [number(&to), 3, libc::SEEK_SET as u64])?, 3);
    expect_eq!(result(&ring, libc::SYS_syncfs, [number(&to)])?, 0);
    let folder_itself = File::open(folder.path(".")).or_fail()?;
    let mut entries = [0_u8; 1024];
    let length = result(&ring, libc::SYS_getdents64, [number(&folder_itself), place(&mut entries), 1024])?;
    expect!(length > 0);
    for name in [&b"from\0"[..], b"to\0"] {
        expect!(entries[..length as usize].windows(name.len()).any(|part| part == name));
    }
    expect_eq!(result(&ring, libc::SYS_getdents64, [number(&folder_itself), place(&mut entries), 1024])?, 0);
    // Memory that has no pages yet: the call goes on as they come.
    let mut fresh = vec![0_u8; 1 << 20];
    expect_eq!(result(&ring, libc::SYS_getrandom, [place(&mut fresh[0]), 1 << 20, 0])?, 1 << 20);
    expect!(fresh.iter().filter(|byte| **byte == 0).count() < 1 << 13);
    Ok(())
}

fn whole_file_locks_are_waited_for() -> Outcome {
    let Some(ring) = Ring::new(5)? else { return Ok(()) };
    let folder = Scratch::new("asynchronous-flock")?;
    let holder = File::create(folder.path("file")).or_fail()?;
    let other = File::open(folder.path("file")).or_fail()?;
    holder.lock().or_fail()?;
    let taken =
        waits(&ring, libc::SYS_flock, [number(&other), libc::LOCK_EX as u64], || holder.unlock().or_fail())?;
    expect_eq!(taken, 0);
    expect!(holder.try_lock().is_err());
    Ok(())
}

fn byte_range_locks_are_waited_for() -> Outcome {
    let Some(ring) = Ring::new(5)? else { return Ok(()) };
    let folder = Scratch::new("asynchronous-fcntl")?;
    let open =
        || File::options().read(true).write(true).create(true).truncate(false).open(folder.path("file"));
    let (holder, other) = (open().or_fail()?, open().or_fail()?);
    // SAFETY: a plain record.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    (range.l_type, range.l_start, range.l_len) = (libc::F_WRLCK as i16, 10, 20);
    let set = |kind: i32| {
        let mine = libc::flock { l_type: kind as i16, ..range };
        // SAFETY: a record that the call reads.
        let result = unsafe { libc::fcntl(holder.as_raw_fd(), libc::F_OFD_SETLK, &raw const mine) };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().to_string()) }
    };
    set(libc::F_WRLCK)?;
    let arguments = [number(&other), libc::F_OFD_SETLKW as u64, word(&range)];
    expect_eq!(waits(&ring, libc::SYS_fcntl, arguments, || set(libc::F_UNLCK))?, 0);
    expect!(set(libc::F_WRLCK).is_err());
    Ok(())
}

#[repr(C)]
struct Message {
    kind: i64,
    text: [u8; 8],
}

fn messages_of_system_v_are_waited_for() -> Outcome {
    let Some(ring) = Ring::new(5)? else { return Ok(()) };
    // SAFETY: no memory is passed.
    let queue = unsafe { libc::msgget(libc::IPC_PRIVATE, 0o600) };
    expect!(queue >= 0);
    let message = Message { kind: 4, text: *b"a letter" };
    let mut letter = Message { kind: 0, text: [0; 8] };
    let arguments = [queue as u64, place(&mut letter), 8, 4, 0];
    let received = waits(&ring, libc::SYS_msgrcv, arguments, || {
        expect_eq!(result(&ring, libc::SYS_msgsnd, [queue as u64, word(&message), 8, 0])?, 0);
        Ok(())
    })?;
    expect_eq!((received, letter.kind, letter.text), (8, 4, *b"a letter"));
    // SAFETY: no memory is passed.
    expect_eq!(unsafe { libc::msgctl(queue, libc::IPC_RMID, std::ptr::null_mut()) }, 0);
    Ok(())
}

fn semaphores_are_waited_for() -> Outcome {
    let Some(ring) = Ring::new(5)? else { return Ok(()) };
    // SAFETY: no memory is passed.
    let set = unsafe { libc::semget(libc::IPC_PRIVATE, 1, 0o600) };
    expect!(set >= 0);
    let down = libc::sembuf { sem_num: 0, sem_op: -1, sem_flg: 0 };
    let up = libc::sembuf { sem_op: 1, ..down };
    let taken = waits(&ring, libc::SYS_semop, [set as u64, word(&down), 1], || {
        expect_eq!(result(&ring, libc::SYS_semop, [set as u64, word(&up), 1])?, 0);
        Ok(())
    })?;
    expect_eq!(taken, 0);
    // SAFETY: no memory is passed.
    expect_eq!(unsafe { libc::semctl(set, 0, libc::GETVAL) }, 0);
    // SAFETY: as above.
    expect_eq!(unsafe { libc::semctl(set, 0, libc::IPC_RMID) }, 0);
    Ok(())
}

fn posix_messages_are_waited_for() -> Outcome {
    let Some(ring) = Ring::new(5)? else { return Ok(()) };
    let name = CString::new(format!("heddle-{}", std::process::id())).or_fail()?;
    let shape = [0_u64, 2, 16, 0, 0, 0, 0, 0];
    let flags = (libc::O_CREAT | libc::O_RDWR | libc::O_EXCL) as u64;
    let queue = result(&ring, libc::SYS_mq_open, [name.as_ptr() as u64, flags, 0o600, word(&shape)])?;
    expect!(queue >= 0);
    // SAFETY: the descriptor was made by the call, and nobody else has it.
    let queue = unsafe { OwnedFd::from_raw_fd(queue as i32) };
    let mut news = [0_u8; 16];
    let received =
        waits(&ring, libc::SYS_mq_timedreceive, [number(&queue), place(&mut news), 16, 0, 0], || {
            expect_eq!(result(&ring, libc::SYS_mq_timedsend, [number(&queue), word(b"news"), 4, 0, 0])?, 0);
            Ok(())
        })?;
    expect_eq!((received, &news[..4]), (4, &b"news"[..]));
    expect_eq!(result(&ring, libc::SYS_mq_unlink, [name.as_ptr() as u64])?, 0);
    Ok(())
}

fn what_pipes_carry_is_waited_for() -> Outcome {
    let Some(ring) = Ring::new(5)? else { return Ok(()) };
    let ((input, writer), (copy, output)) = (pipe().or_fail()?, pipe().or_fail()?);
    let write = || nix::unistd::write(&writer, b"abc").or_fail().map(drop);
    expect_eq!(waits(&ring, libc::SYS_tee, [number(&input), number(&output), 10, 0], write)?, 3);
    let mut sets = [0_u64; 16];
    sets[input.as_raw_fd() as usize / 64] |= 1 << (input.as_raw_fd() % 64);
    let count = input.as_raw_fd() as u64 + 1;
    expect_eq!(result(&ring, libc::SYS_select, [count, place(&mut sets), 0, 0, 0])?, 1);
    let mut buffer = [0; 8];
    expect_eq!(nix::unistd::read(&input, &mut buffer).or_fail()?, 3);
    expect_eq!(waits(&ring, libc::SYS_select, [count, place(&mut sets), 0, 0, 0], write)?, 1);
    expect_eq!(nix::unistd::read(&copy, &mut buffer).or_fail()?, 3);
    let part = [word(b"xyz"), 3];
    expect_eq!(result(&ring, libc::SYS_vmsplice, [number(&output), word(&part), 1, 0])?, 3);
    expect_eq!(nix::unistd::read(&copy, &mut buffer).or_fail()?, 3);
    expect_eq!(&buffer[..3], b"xyz");
    Ok(())
}

fn many_messages_are_received() -> Outcome {
    let Some(ring) = Ring::new(5)? else { return Ok(()) };
    let (near, far) = std::os::unix::net::UnixDatagram::pair().or_fail()?;
    let mut buffers = [[0_u8; 8]; 2];
    let parts =
        [0, 1].map(|index: usize| libc::iovec { iov_base: place(&mut buffers[index]) as *mut _, iov_len: 8 });
    // SAFETY: zeros are records without names and control data.
    let mut headers: [libc::mmsghdr; 2] = unsafe { std::mem::zeroed() };
    for (header, part) in headers.iter_mut().zip(&parts) {
        (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = ((&raw const *part).cast_mut(), 1);
    }
    let arguments = [number(&near), place(&mut headers), 1, 0, 0];
    let received = waits(&ring, libc::SYS_recvmmsg, arguments, || far.send(b"one").or_fail().map(drop))?;
    expect_eq!((received, headers[0].msg_len, &buffers[0][..3]), (1, 3, &b"one"[..]));
    expect_eq!(result(&ring, libc::SYS_sendmmsg, [number(&far), word(&headers), 1, 0])?, 1);
    let mut buffer = [0; 16];
    expect_eq!(near.recv(&mut buffer).or_fail()?, 8);
    Ok(())
}

fn calls_with_a_signal_mask_are_refused() -> Outcome {
    let Some(ring) = Ring::new(5)? else { return Ok(()) };
    for number in [libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_pwait, libc::SYS_rt_sigsuspend] {
        expect_eq!(result(&ring, number, [0; 6])?, -i64::from(libc::ENOSYS));
    }
    Ok(())
}

/// The level in the machine of the process's call `number`, of which there is one.
fn level_of_call(number: i64) -> Result<u8, String> {
    let text = std::fs::read_to_string("/proc/self/heddle").or_fail()?;
    let line = text.lines().find(|line| line.contains(&format!("kernel call {number} "))).ok_or("no call")?;
    let rest = line.split("level ").nth(1).ok_or("no level")?;
    rest.split(' ').next().and_then(|word| word.parse().ok()).ok_or_else(|| line.to_owned())
}

/// Whether the call gets this level: the CPU that has its coroutine changes it, in a moment.
fn call_gets_level(number: i64, level: u8) -> Result<bool, String> {
    for _ in 0..2000 {
        if level_of_call(number)? == level {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(false)
}

fn a_call_takes_another_level() -> Outcome {
    let Some(ring) = Ring::new(4)? else { return Ok(()) };
    let (reader, writer) = pipe().or_fail()?;
    let mut buffer = [0; 4];
    let arguments = [number(&reader), place(&mut buffer), 4];
    let waits = start(Entry { level: 60, ..entry(libc::SYS_read, 1, arguments) })?;
    expect!(call_gets_level(libc::SYS_read, 60)?);
    expect_eq!(call(LEVEL, [waits.outcome, 45, 0, 0]), Ok(0));
    expect!(call_gets_level(libc::SYS_read, 45)?);
    expect_eq!(call(LEVEL, [waits.outcome, 64, 0, 0]), Err(libc::EINVAL));
    expect_eq!(nix::unistd::write(&writer, b"four").or_fail()?, 4);
    expect_eq!(ring.next()?.result, 4);
    expect_eq!(std::mem::take(&mut buffer), *b"four");
    expect_eq!(call(LEVEL, [waits.outcome, 45, 0, 0]), Err(libc::ENOENT));
    Ok(())
}

/// heddle-rt: by a new level of the coroutine that waits, by one that it is lent, and back.
fn a_call_has_the_level_of_whoever_awaits_it() -> Outcome {
    if !crate::harness::is_heddle() {
        crate::harness::skip("only Heddle has levels");
        return Ok(());
    }
    let (reader, writer) = pipe().or_fail()?;
    let lock = Arc::new(Mutex::new(()));
    let at = |level| SpawnBuilder::new().priority(level);
    Builder::new().threads(1).run(async move {
        let held = lock.clone();
        let reading = async move {
            let guard = held.lock().await;
            let found = heddle_rt::read(&reader, vec![0; 4]).await.0;
            drop(guard);
            found
        };
        let holder = try_spawn(at(60), reading).or_fail()?;
        // Each turn of this one comes after those of the others, which are more urgent.
        heddle_rt::set_priority(heddle_rt::current_id().ok_or("a coroutine")?, 62);
        yield_now().await;
        expect!(call_gets_level(libc::SYS_read, 60)?);
        heddle_rt::set_priority(holder.id(), 55);
        yield_now().await;
        expect!(call_gets_level(libc::SYS_read, 55)?);
        let wanted = lock.clone();
        let waiter = try_spawn(at(46), async move { drop(wanted.lock().await) }).or_fail()?;
        yield_now().await;
        expect!(call_gets_level(libc::SYS_read, 46)?);
        waiter.abort();
        yield_now().await;
        expect!(call_gets_level(libc::SYS_read, 55)?);
        expect_eq!(nix::unistd::write(&writer, b"four").or_fail()?, 4);
        expect_eq!(holder.await.or_fail()?.or_fail()?, 4);
        Ok(())
    })
}
