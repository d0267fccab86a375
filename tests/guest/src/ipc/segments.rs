//! shmget(2), shmop(2), shmctl(2).
#![allow(unsafe_code, reason = "shared memory has no safe form")]

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;

use super::{as_nobody, check, key, listed};
use crate::harness::{OrFail, Outcome, in_child, own_path, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    keys_and_flags
    a_segment_is_shared_with_children
    attachments_are_counted
    where_segments_go
    rights_of_attachments
    removal_waits_for_the_last_attachment
    exec_and_exit_detach
    parts_are_detached_too
    permissions_are_checked
    limits_and_lists
    words_in_segments_can_be_waited_at
}

const PAGE: usize = 4096;
/// Commands that the library does not name.
const SHM_STAT: i32 = 13;
const SHM_INFO: i32 = 14;

/// A segment that is removed when dropped.
struct Segment(i32);

impl Segment {
    fn new(bytes: usize) -> Result<Self, String> {
        get(libc::IPC_PRIVATE, bytes, 0o600).map(Self).or_fail()
    }

    fn status(&self) -> Result<libc::shmid_ds, Errno> {
        // SAFETY: all zeroes is a value of the structure.
        let mut status: libc::shmid_ds = unsafe { std::mem::zeroed() };
        control(self.0, libc::IPC_STAT, &mut status)?;
        Ok(status)
    }

    fn count(&self) -> Result<u64, String> {
        Ok(self.status().or_fail()?.shm_nattch)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: removing takes no memory from anybody.
        unsafe { libc::shmctl(self.0, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

fn get(key: i32, bytes: usize, flags: i32) -> Result<i32, Errno> {
    // SAFETY: no memory is touched.
    check(unsafe { libc::shmget(key, bytes, flags) })
}

fn control(id: i32, command: i32, status: &mut libc::shmid_ds) -> Result<i32, Errno> {
    // SAFETY: the structure is large enough for all commands used.
    check(unsafe { libc::shmctl(id, command, status) })
}

/// Attaches; `at` is 0 or an address where nothing of value is.
fn attach(id: i32, at: usize, flags: i32) -> Result<usize, Errno> {
    // SAFETY: new memory at an address of the kernel's or the test's choice.
    let address = unsafe { libc::shmat(id, std::ptr::with_exposed_provenance(at), flags) };
    if address.addr() == usize::MAX { Err(Errno::last()) } else { Ok(address.expose_provenance()) }
}

fn detach(at: usize) -> Result<i32, Errno> {
    // SAFETY: the tests hold no references into segments.
    check(unsafe { libc::shmdt(std::ptr::with_exposed_provenance(at)) })
}

fn word(at: usize) -> &'static AtomicU32 {
    // SAFETY: the tests ask only for words of segments that are attached.
    unsafe { &*std::ptr::with_exposed_provenance::<AtomicU32>(at) }
}

fn keys_and_flags() -> Outcome {
    let key = key(1);
    expect_eq!(get(key, PAGE, 0o600), Err(Errno::ENOENT));
    let segment = Segment(get(key, 5000, libc::IPC_CREAT | libc::IPC_EXCL | 0o600).or_fail()?);
    expect_eq!(get(key, 5000, libc::IPC_CREAT | 0o600), Ok(segment.0));
    expect_eq!(get(key, 0, 0), Ok(segment.0));
    expect_eq!(get(key, 5001, 0), Err(Errno::EINVAL));
    expect_eq!(get(key, 1, libc::IPC_CREAT | libc::IPC_EXCL), Err(Errno::EEXIST));
    expect_eq!(get(libc::IPC_PRIVATE, 0, 0o600), Err(Errno::EINVAL));
    let other = Segment::new(1)?;
    expect!(other.0 != segment.0);
    let status = segment.status().or_fail()?;
    expect_eq!((status.shm_segsz, status.shm_nattch, status.shm_lpid), (5000, 0, 0));
    expect_eq!((status.shm_cpid, status.shm_atime, status.shm_dtime), (std::process::id() as i32, 0, 0));
    expect!(status.shm_ctime > 0);
    expect_eq!((status.shm_perm.__key, status.shm_perm.mode), (key, 0o600));
    drop(segment);
    expect_eq!(get(key, 0, 0), Err(Errno::ENOENT));
    Ok(())
}

fn a_segment_is_shared_with_children() -> Outcome {
    let segment = Segment::new(3 * PAGE)?;
    let first = attach(segment.0, 0, 0).or_fail()?;
    let second = attach(segment.0, 0, 0).or_fail()?;
    expect!(first != second);
    expect_eq!(word(first + 2 * PAGE).load(Ordering::Relaxed), 0);
    word(first).store(7, Ordering::Relaxed);
    let status = in_child(|| {
        word(second + 4).store(8, Ordering::Relaxed);
        word(first).load(Ordering::Relaxed) as i32
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 7)));
    expect_eq!(word(first + 4).load(Ordering::Relaxed), 8);
    let maps = fs::read_to_string("/proc/self/maps").or_fail()?;
    let own: Vec<_> = maps.lines().filter(|line| line.contains("/SYSV00000000 (deleted)")).collect();
    expect_eq!(own.len(), 2);
    expect!(own.iter().all(|line| line.contains(" rw-s 00000000 ") && line.contains(&segment.0.to_string())));
    Ok(())
}

fn attachments_are_counted() -> Outcome {
    let segment = Segment::new(PAGE)?;
    let first = attach(segment.0, 0, 0).or_fail()?;
    let second = attach(segment.0, 0, libc::SHM_RDONLY).or_fail()?;
    expect_eq!(segment.count()?, 2);
    let child = spawn_child(|| {
        let count = segment.count().unwrap_or(0) as i32;
        let _ = detach(first);
        count * 10 + segment.count().unwrap_or(0) as i32
    })?;
    expect_eq!(nix::sys::wait::waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 43));
    let status = segment.status().or_fail()?;
    expect_eq!((status.shm_nattch, status.shm_lpid), (2, child.as_raw()));
    expect!(status.shm_atime > 0 && status.shm_dtime > 0);
    detach(first).or_fail()?;
    expect_eq!(segment.count()?, 1);
    expect_eq!(detach(first), Err(Errno::EINVAL));
    expect_eq!(detach(second + 1), Err(Errno::EINVAL));
    detach(second).or_fail()?;
    expect_eq!(segment.count()?, 0);
    expect_eq!(segment.status().or_fail()?.shm_lpid, std::process::id() as i32);
    Ok(())
}

fn where_segments_go() -> Outcome {
    let segment = Segment::new(2 * PAGE)?;
    let free = attach(segment.0, 0, 0).or_fail()?;
    detach(free).or_fail()?;
    expect_eq!(attach(segment.0, free + 5, 0), Err(Errno::EINVAL));
    expect_eq!(attach(segment.0, free + 5, libc::SHM_RND), Ok(free));
    expect_eq!(attach(segment.0, free, 0), Err(Errno::EINVAL));
    word(free).store(3, Ordering::Relaxed);
    let other = Segment::new(PAGE)?;
    expect_eq!(attach(other.0, 0, libc::SHM_REMAP), Err(Errno::EINVAL));
    expect_eq!(attach(other.0, free + PAGE, 0), Err(Errno::EINVAL));
    expect_eq!(attach(other.0, free + PAGE, libc::SHM_REMAP), Ok(free + PAGE));
    word(free + PAGE).store(4, Ordering::Relaxed);
    expect_eq!(segment.count()?, 1);
    detach(free).or_fail()?;
    expect_eq!((segment.count()?, other.count()?), (0, 1));
    expect_eq!(word(free + PAGE).load(Ordering::Relaxed), 4);
    detach(free + PAGE).or_fail()?;
    Ok(())
}

fn rights_of_attachments() -> Outcome {
    let segment = Segment(get(libc::IPC_PRIVATE, PAGE, 0o700).or_fail()?);
    let at = attach(segment.0, 0, libc::SHM_RDONLY).or_fail()?;
    let status = in_child(|| {
        word(at).store(1, Ordering::Relaxed);
        0
    })?;
    expect!(matches!(status, WaitStatus::Signaled(_, Signal::SIGSEGV, _)));
    // SAFETY: nothing refers to the segment.
    let result = unsafe {
        libc::mprotect(std::ptr::with_exposed_provenance_mut(at), PAGE, libc::PROT_READ | libc::PROT_WRITE)
    };
    expect_eq!(check(result), Err(Errno::EACCES));
    detach(at).or_fail()?;
    let at = attach(segment.0, 0, libc::SHM_EXEC).or_fail()?;
    // `ret`.
    word(at).store(0xc3, Ordering::Relaxed);
    // SAFETY: the function returns at once.
    let call =
        unsafe { std::mem::transmute::<*const (), extern "C" fn()>(std::ptr::with_exposed_provenance(at)) };
    call();
    let maps = fs::read_to_string("/proc/self/maps").or_fail()?;
    expect!(maps.lines().any(|line| line.contains(" rwxs ") && line.contains("/SYSV")));
    Ok(())
}

fn removal_waits_for_the_last_attachment() -> Outcome {
    let key = key(2);
    let segment = Segment(get(key, PAGE, libc::IPC_CREAT | 0o600).or_fail()?);
    let at = attach(segment.0, 0, 0).or_fail()?;
    word(at).store(9, Ordering::Relaxed);
    control(segment.0, libc::IPC_RMID, &mut segment.status().or_fail()?).or_fail()?;
    let status = segment.status().or_fail()?;
    expect_eq!((status.shm_perm.__key, u32::from(status.shm_perm.mode)), (libc::IPC_PRIVATE, 0o1600));
    expect_eq!(get(key, 0, 0), Err(Errno::ENOENT));
    // Linux still attaches it.
    let again = attach(segment.0, 0, 0).or_fail()?;
    expect_eq!(word(again).load(Ordering::Relaxed), 9);
    detach(at).or_fail()?;
    expect_eq!(segment.count()?, 1);
    detach(again).or_fail()?;
    expect_eq!(segment.status().map(|_| ()), Err(Errno::EINVAL));
    expect_eq!(attach(segment.0, 0, 0), Err(Errno::EINVAL));
    Ok(())
}

fn exec_and_exit_detach() -> Outcome {
    let segment = Segment::new(PAGE)?;
    attach(segment.0, 0, 0).or_fail()?;
    let status = in_child(|| {
        let error = std::os::unix::process::CommandExt::exec(
            std::process::Command::new(own_path()).arg("--list").stdout(std::process::Stdio::null()),
        );
        i32::from(error.raw_os_error().is_some())
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    expect_eq!(segment.count()?, 1);
    let child = spawn_child(|| i32::from(segment.count() != Ok(2)))?;
    expect_eq!(nix::sys::wait::waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    expect_eq!(segment.count()?, 1);
    Ok(())
}

fn parts_are_detached_too() -> Outcome {
    let segment = Segment::new(4 * PAGE)?;
    let at = attach(segment.0, 0, 0).or_fail()?;
    word(at + 3 * PAGE).store(5, Ordering::Relaxed);
    // SAFETY: nothing refers to the segment.
    check(unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(at + PAGE), PAGE) }).or_fail()?;
    expect_eq!(word(at + 3 * PAGE).load(Ordering::Relaxed), 5);
    detach(at).or_fail()?;
    expect_eq!(segment.count()?, 0);
    let maps = fs::read_to_string("/proc/self/maps").or_fail()?;
    expect!(!maps.contains("/SYSV"));
    Ok(())
}

fn permissions_are_checked() -> Outcome {
    let key = key(3);
    let segment = Segment(get(key, PAGE, libc::IPC_CREAT | 0o604).or_fail()?);
    as_nobody(|| {
        expect_eq!(get(key, 0, 0o444), Ok(segment.0));
        expect_eq!(get(key, 0, 0o666), Err(Errno::EACCES));
        expect_eq!(attach(segment.0, 0, 0), Err(Errno::EACCES));
        expect_eq!(attach(segment.0, 0, libc::SHM_RDONLY | libc::SHM_EXEC), Err(Errno::EACCES));
        let at = attach(segment.0, 0, libc::SHM_RDONLY).or_fail()?;
        detach(at).or_fail()?;
        let mut status = segment.status().or_fail()?;
        expect_eq!(control(segment.0, libc::IPC_SET, &mut status), Err(Errno::EPERM));
        expect_eq!(control(segment.0, libc::IPC_RMID, &mut status), Err(Errno::EPERM));
        expect_eq!(control(segment.0, libc::SHM_LOCK, &mut status), Err(Errno::EPERM));
        Ok(())
    })?;
    let mut status = segment.status().or_fail()?;
    status.shm_perm.uid = 4321;
    status.shm_perm.mode = 0o7640;
    control(segment.0, libc::IPC_SET, &mut status).or_fail()?;
    control(segment.0, libc::SHM_LOCK, &mut status).or_fail()?;
    let status = segment.status().or_fail()?;
    expect_eq!((status.shm_perm.uid, u32::from(status.shm_perm.mode)), (4321, 0o2640));
    as_nobody(|| {
        let at = attach(segment.0, 0, 0).or_fail()?;
        detach(at).or_fail()?;
        let mut status = segment.status().or_fail()?;
        control(segment.0, libc::SHM_UNLOCK, &mut status).or_fail()?;
        control(segment.0, libc::IPC_RMID, &mut status).or_fail()?;
        Ok(())
    })
}

fn limits_and_lists() -> Outcome {
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/kernel/{name}")).or_fail();
    expect_eq!(read("shmmni")?, "4096\n");
    let before = read("shmmax")?;
    fs::write("/proc/sys/kernel/shmmax", "8192").or_fail()?;
    let refused = get(libc::IPC_PRIVATE, 8193, 0o600);
    let segment = Segment::new(8192);
    fs::write("/proc/sys/kernel/shmmax", before.trim()).or_fail()?;
    expect_eq!(refused, Err(Errno::EINVAL));
    let segment = segment?;
    expect_eq!(read("shmmax")?, before);
    let row = listed("shm", segment.0)?.ok_or("not listed")?;
    expect_eq!(row[..4], ["0", &segment.0.to_string(), "600", "8192"]);
    expect_eq!(row.len(), 16);
    // The place that SHM_STAT wants is found by going through all.
    // SAFETY: all zeroes is a value of the structure.
    let mut status: libc::shmid_ds = unsafe { std::mem::zeroed() };
    let highest = control(0, SHM_INFO, &mut status).or_fail()?;
    let stat = |place| {
        let mut status = status;
        control(place, SHM_STAT, &mut status)
    };
    expect!((0..=highest).any(|place| stat(place) == Ok(segment.0)));
    Ok(())
}

fn words_in_segments_can_be_waited_at() -> Outcome {
    let segment = Segment::new(PAGE)?;
    let at = attach(segment.0, 0, 0).or_fail()?;
    let other = attach(segment.0, 0, 0).or_fail()?;
    let futex = |address: usize, operation: i32, value: u32| {
        // SAFETY: the word is in the segment; there is no timeout.
        unsafe {
            libc::syscall(libc::SYS_futex, address, operation, value, std::ptr::null::<libc::timespec>())
        }
    };
    let child = spawn_child(|| {
        while word(other).load(Ordering::Relaxed) == 0 {
            futex(other, libc::FUTEX_WAIT, 0);
        }
        0
    })?;
    // Until the child waits nobody is woken.
    while futex(at, libc::FUTEX_WAKE, 1) == 0 {
        std::thread::yield_now();
    }
    word(at).store(1, Ordering::Relaxed);
    futex(at, libc::FUTEX_WAKE, 1);
    expect_eq!(nix::sys::wait::waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    Ok(())
}
