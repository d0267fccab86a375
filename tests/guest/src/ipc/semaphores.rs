//! semget(2), semop(2), semctl(2).
#![allow(unsafe_code, reason = "semaphores have no safe form")]

use std::fs;

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{as_nobody, check, key, listed};
use crate::harness::{OrFail, Outcome, in_child, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    sets_and_values
    rows_happen_as_a_whole
    waiting_for_values
    waiting_ends
    ends_are_undone
    undoes_of_threads_and_children
    permissions_are_checked
    limits_and_lists
    many_processes_take_turns
}

/// A set that is removed when dropped.
struct Set(i32);

impl Set {
    fn new(count: i32) -> Result<Self, String> {
        get(libc::IPC_PRIVATE, count, 0o600).map(Self).or_fail()
    }

    fn control(&self, number: i32, command: i32, argument: usize) -> Result<i32, Errno> {
        // SAFETY: the tests pass numbers, or addresses of what the command wants.
        check(unsafe { libc::semctl(self.0, number, command, argument) })
    }

    fn value(&self, number: i32) -> Result<i32, Errno> {
        self.control(number, libc::GETVAL, 0)
    }

    fn values<const N: usize>(&self) -> Result<[u16; N], Errno> {
        let mut values = [0_u16; N];
        self.control(0, libc::GETALL, values.as_mut_ptr().expose_provenance())?;
        Ok(values)
    }

    fn status(&self) -> Result<libc::semid_ds, Errno> {
        // SAFETY: all zeroes is a value of the structure.
        let mut status: libc::semid_ds = unsafe { std::mem::zeroed() };
        self.control(0, libc::IPC_STAT, (&raw mut status).expose_provenance())?;
        Ok(status)
    }

    fn operate(&self, row: &[(u16, i16, i32)]) -> Result<i32, Errno> {
        self.operate_until(row, None)
    }

    fn operate_until(&self, row: &[(u16, i16, i32)], timeout: Option<libc::timespec>) -> Result<i32, Errno> {
        let mut row: Vec<_> = row
            .iter()
            .map(|&(sem_num, sem_op, flags)| libc::sembuf { sem_num, sem_op, sem_flg: flags as i16 })
            .collect();
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the row is as long as said.
        check(unsafe { libc::syscall(libc::SYS_semtimedop, self.0, row.as_mut_ptr(), row.len(), timeout) }
            as i32)
    }

    /// Waits until so many wait at a semaphore.
    fn wait_for_waiting(&self, number: i32, command: i32, count: i32) -> Result<(), String> {
        while self.control(number, command, 0).or_fail()? != count {
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        let _ = self.control(0, libc::IPC_RMID, 0);
    }
}

fn get(key: i32, count: i32, flags: i32) -> Result<i32, Errno> {
    // SAFETY: no memory is touched.
    check(unsafe { libc::semget(key, count, flags) })
}

fn ended(pid: Pid) -> Result<i32, String> {
    match waitpid(pid, None).or_fail()? {
        WaitStatus::Exited(_, status) => Ok(status),
        status => Err(format!("{status:?}")),
    }
}

/// An errno as the status of a child.
fn status(result: Result<i32, Errno>) -> i32 {
    result.err().map_or(0, |error| error as i32)
}

fn sets_and_values() -> Outcome {
    let key = key(1);
    expect_eq!(get(key, 0, libc::IPC_CREAT | 0o600), Err(Errno::EINVAL));
    expect_eq!(get(key, -1, libc::IPC_CREAT | 0o600), Err(Errno::EINVAL));
    let set = Set(get(key, 3, libc::IPC_CREAT | libc::IPC_EXCL | 0o600).or_fail()?);
    expect_eq!(get(key, 0, 0), Ok(set.0));
    expect_eq!(get(key, 4, 0), Err(Errno::EINVAL));
    expect_eq!(set.values::<3>(), Ok([0, 0, 0]));
    expect_eq!(set.control(1, libc::GETPID, 0), Ok(0));
    set.control(1, libc::SETVAL, 32767).or_fail()?;
    expect_eq!(set.control(1, libc::SETVAL, 32768), Err(Errno::ERANGE));
    expect_eq!(set.control(3, libc::SETVAL, 1), Err(Errno::EINVAL));
    expect_eq!(set.control(3, libc::GETVAL, 0), Err(Errno::EINVAL));
    expect_eq!(set.control(0, 99, 0), Err(Errno::EINVAL));
    expect_eq!(set.value(1), Ok(32767));
    let mut values = [4_u16, 5, 40000];
    let address = values.as_mut_ptr().expose_provenance();
    expect_eq!(set.control(0, libc::SETALL, address), Err(Errno::ERANGE));
    values[2] = 6;
    set.control(0, libc::SETALL, values.as_mut_ptr().expose_provenance()).or_fail()?;
    expect_eq!(set.values::<3>(), Ok([4, 5, 6]));
    let status = set.status().or_fail()?;
    expect_eq!((status.sem_nsems, status.sem_otime, status.sem_perm.__key), (3, 0, key));
    expect_eq!(set.operate(&[(3, 1, 0)]), Err(Errno::EFBIG));
    expect_eq!(set.operate(&[]), Err(Errno::EINVAL));
    expect_eq!(set.operate(&[(0, 1, 0); 501]), Err(Errno::E2BIG));
    set.operate(&[(0, -1, 0)]).or_fail()?;
    expect!(set.status().or_fail()?.sem_otime > 0);
    expect_eq!(set.control(0, libc::GETPID, 0), Ok(std::process::id() as i32));
    Ok(())
}

fn rows_happen_as_a_whole() -> Outcome {
    let set = Set::new(2)?;
    set.operate(&[(0, 2, 0), (1, 1, 0), (0, -1, 0)]).or_fail()?;
    expect_eq!(set.values::<2>(), Ok([1, 1]));
    expect_eq!(set.operate(&[(0, -1, 0), (1, -2, libc::IPC_NOWAIT)]), Err(Errno::EAGAIN));
    expect_eq!(set.operate(&[(1, 1, 0), (0, 32767, 0)]), Err(Errno::ERANGE));
    expect_eq!(set.operate(&[(0, 0, libc::IPC_NOWAIT)]), Err(Errno::EAGAIN));
    expect_eq!(set.values::<2>(), Ok([1, 1]));
    set.operate(&[(0, -1, 0), (0, 0, 0), (0, 5, 0)]).or_fail()?;
    expect_eq!(set.values::<2>(), Ok([5, 1]));
    Ok(())
}

fn waiting_for_values() -> Outcome {
    let set = Set::new(2)?;
    let taker = spawn_child(|| status(set.operate(&[(0, -2, 0), (1, 1, 0)])))?;
    set.wait_for_waiting(0, libc::GETNCNT, 1)?;
    let zero = spawn_child(|| status(set.operate(&[(1, -1, 0), (0, 0, 0), (1, 2, 0)])))?;
    set.wait_for_waiting(1, libc::GETNCNT, 1)?;
    set.operate(&[(0, 1, 0)]).or_fail()?;
    expect_eq!(set.control(0, libc::GETNCNT, 0), Ok(1));
    set.operate(&[(0, 2, 0)]).or_fail()?;
    expect_eq!(ended(taker)?, 0);
    // The other has its one now, and waits for the rest of the first to go.
    set.wait_for_waiting(0, libc::GETZCNT, 1)?;
    expect_eq!(set.values::<2>(), Ok([1, 1]));
    set.control(0, libc::SETVAL, 0).or_fail()?;
    expect_eq!(ended(zero)?, 0);
    expect_eq!(set.values::<2>(), Ok([0, 2]));
    Ok(())
}

extern "C" fn ignore(_: i32) {}

fn waiting_ends() -> Outcome {
    let set = Set::new(1)?;
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    expect_eq!(set.operate_until(&[(0, -1, 0)], Some(timeout)), Err(Errno::EAGAIN));
    expect_eq!(set.control(0, libc::GETNCNT, 0), Ok(0));
    let wrong = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000_000 };
    expect_eq!(set.operate_until(&[(0, -1, 0)], Some(wrong)), Err(Errno::EINVAL));
    // A handler ends it, whatever its flags.
    let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.or_fail()?;
    let child = spawn_child(|| status(set.operate(&[(0, -1, 0)])))?;
    set.wait_for_waiting(0, libc::GETNCNT, 1)?;
    kill(child, Signal::SIGUSR1).or_fail()?;
    expect_eq!(ended(child)?, Errno::EINTR as i32);
    set.wait_for_waiting(0, libc::GETNCNT, 0)?;
    let child = spawn_child(|| status(set.operate(&[(0, -1, 0)])))?;
    set.wait_for_waiting(0, libc::GETNCNT, 1)?;
    kill(child, Signal::SIGKILL).or_fail()?;
    expect!(matches!(waitpid(child, None).or_fail()?, WaitStatus::Signaled(..)));
    expect_eq!(set.control(0, libc::GETNCNT, 0), Ok(0));
    let child = spawn_child(|| status(set.operate(&[(0, -1, 0)])))?;
    set.wait_for_waiting(0, libc::GETNCNT, 1)?;
    set.control(0, libc::IPC_RMID, 0).or_fail()?;
    expect_eq!(ended(child)?, Errno::EIDRM as i32);
    expect_eq!(set.operate(&[(0, 1, 0)]), Err(Errno::EINVAL));
    Ok(())
}

fn ends_are_undone() -> Outcome {
    let set = Set::new(2)?;
    set.control(0, libc::SETVAL, 1).or_fail()?;
    let child = spawn_child(|| status(set.operate(&[(0, -1, libc::SEM_UNDO), (1, 3, libc::SEM_UNDO)])))?;
    expect_eq!(ended(child)?, 0);
    expect_eq!(set.values::<2>(), Ok([1, 0]));
    expect_eq!(set.control(1, libc::GETPID, 0), Ok(child.as_raw()));
    // A value that is undone cannot fall below 0, and wakes waiters.
    let child = spawn_child(|| {
        status(set.operate(&[(0, -1, libc::SEM_UNDO), (1, 3, libc::SEM_UNDO)]))
            + status(set.operate(&[(1, -2, 0)]))
            + status(set.operate(&[(1, 0, 0)]))
    })?;
    set.wait_for_waiting(1, libc::GETZCNT, 1)?;
    let waiter = spawn_child(|| status(set.operate(&[(0, -1, 0)])))?;
    set.wait_for_waiting(0, libc::GETNCNT, 1)?;
    kill(child, Signal::SIGKILL).or_fail()?;
    waitpid(child, None).or_fail()?;
    expect_eq!(ended(waiter)?, 0);
    expect_eq!(set.values::<2>(), Ok([0, 0]));
    // Setting a value forgets what would be undone of it.
    let child = spawn_child(|| {
        let first = status(set.operate(&[(0, 4, libc::SEM_UNDO), (1, 4, libc::SEM_UNDO)]));
        first + status(set.control(0, libc::SETVAL, 7))
    })?;
    expect_eq!(ended(child)?, 0);
    expect_eq!(set.values::<2>(), Ok([7, 0]));
    Ok(())
}

fn undoes_of_threads_and_children() -> Outcome {
    let set = Set::new(1)?;
    // A thread's operations last as long as the process; a child's own do not last longer than the child.
    let child = spawn_child(|| {
        let id = set.0;
        let thread = std::thread::spawn(move || {
            let set = std::mem::ManuallyDrop::new(Set(id));
            status(set.operate(&[(0, 2, libc::SEM_UNDO)]))
        });
        let in_thread = thread.join().unwrap_or(1);
        let after_thread = set.value(0).unwrap_or(0);
        let grandchild = in_child(|| status(set.operate(&[(0, 5, libc::SEM_UNDO)])));
        let after_child = set.value(0).unwrap_or(0);
        i32::from(in_thread != 0 || after_thread != 2 || grandchild.is_err() || after_child != 2)
    })?;
    expect_eq!(ended(child)?, 0);
    expect_eq!(set.value(0), Ok(0));
    // execve keeps them.
    let child = spawn_child(|| {
        let done = set.operate(&[(0, 1, libc::SEM_UNDO)]);
        let mut shell = std::process::Command::new("/bin/sh");
        shell
            .arg("-c")
            .arg(format!("while read a b c; do test \"$b\" = {} && exit 0; done < /proc/sysvipc/sem", set.0));
        let error = std::os::unix::process::CommandExt::exec(&mut shell);
        status(done) + error.raw_os_error().unwrap_or(1)
    })?;
    expect_eq!(ended(child)?, 0);
    expect_eq!(set.value(0), Ok(0));
    Ok(())
}

fn permissions_are_checked() -> Outcome {
    let set = Set(get(libc::IPC_PRIVATE, 1, 0o604).or_fail()?);
    as_nobody(|| {
        expect_eq!(set.value(0), Ok(0));
        set.operate(&[(0, 0, 0)]).or_fail()?;
        expect_eq!(set.operate(&[(0, 1, 0)]), Err(Errno::EACCES));
        expect_eq!(set.control(0, libc::SETVAL, 1), Err(Errno::EACCES));
        expect_eq!(set.control(0, libc::IPC_RMID, 0), Err(Errno::EPERM));
        Ok(())
    })?;
    let mut status = set.status().or_fail()?;
    status.sem_perm.gid = 4321;
    status.sem_perm.mode = 0o620;
    set.control(0, libc::IPC_SET, (&raw mut status).expose_provenance()).or_fail()?;
    as_nobody(|| {
        expect_eq!(set.value(0), Err(Errno::EACCES));
        expect_eq!(set.status().map(|_| ()), Err(Errno::EACCES));
        set.operate(&[(0, 1, 0)]).or_fail()?;
        Ok(())
    })?;
    expect_eq!(set.value(0), Ok(1));
    Ok(())
}

fn limits_and_lists() -> Outcome {
    let sem = fs::read_to_string("/proc/sys/kernel/sem").or_fail()?;
    expect_eq!(sem.split_whitespace().collect::<Vec<_>>(), ["32000", "1024000000", "500", "32000"]);
    expect_eq!(get(libc::IPC_PRIVATE, 32001, 0o600), Err(Errno::EINVAL));
    let set = Set::new(12)?;
    let row = listed("sem", set.0)?.ok_or("not listed")?;
    expect_eq!(row[..4], ["0", &set.0.to_string(), "600", "12"]);
    expect_eq!(row.len(), 10);
    let mut information = [0_i32; 10];
    let address = information.as_mut_ptr().expose_provenance();
    set.control(0, libc::SEM_INFO, address).or_fail()?;
    expect!(information[7] >= 1 && information[9] >= 12);
    let highest = set.control(0, libc::IPC_INFO, information.as_mut_ptr().expose_provenance()).or_fail()?;
    expect_eq!((information[1], information[4], information[5], information[8]), (32000, 32000, 500, 32767));
    let stat = |place: i32| {
        // SAFETY: all zeroes is a value of the structure, which is what the command wants.
        unsafe {
            let mut status: libc::semid_ds = std::mem::zeroed();
            check(libc::semctl(place, 0, libc::SEM_STAT, &raw mut status))
        }
    };
    expect!((0..=highest).any(|place| stat(place) == Ok(set.0)));
    Ok(())
}

fn many_processes_take_turns() -> Outcome {
    const PROCESSES: usize = 4;
    const ROUNDS: i32 = 50;
    let set = Set::new(2)?;
    set.control(0, libc::SETVAL, 1).or_fail()?;
    let mut children = Vec::new();
    for _ in 0..PROCESSES {
        children.push(spawn_child(|| {
            for _ in 0..ROUNDS {
                let taken = set.operate(&[(0, -1, libc::SEM_UNDO)]);
                let alone = set.value(0) == Ok(0);
                let given = set.operate(&[(1, 1, 0), (0, 1, libc::SEM_UNDO)]);
                if taken.is_err() || given.is_err() || !alone {
                    return 1;
                }
            }
            0
        })?);
    }
    for child in children {
        expect_eq!(ended(child)?, 0);
    }
    expect_eq!(set.values::<2>(), Ok([1, (PROCESSES as i32 * ROUNDS) as u16]));
    Ok(())
}
