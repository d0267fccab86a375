//! msgget(2), msgop(2), msgctl(2).
#![allow(unsafe_code, reason = "message queues have no safe form")]

use std::fs;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::sys::wait::{WaitStatus, waitpid};

use super::{as_nobody, check, key, listed};
use crate::harness::{OrFail, Outcome, spawn_child};
use crate::mounts::namespace::apart;
use crate::{expect, expect_eq};

crate::tests! {
    messages_by_type
    long_messages
    copies_leave_the_message
    a_full_queue_makes_senders_wait
    waiting_ends
    permissions_are_checked
    limits_and_lists
    an_identifier_can_be_asked_for
}

/// A queue that is removed when dropped.
struct Queue(i32);

/// A message as programs pass it.
#[repr(C)]
struct Buffer {
    kind: i64,
    text: [u8; 9000],
}

impl Queue {
    fn new() -> Result<Self, String> {
        get(libc::IPC_PRIVATE, 0o600).map(Self).or_fail()
    }

    fn send(&self, kind: i64, text: &[u8], flags: i32) -> Result<i32, Errno> {
        let mut buffer = Buffer { kind, text: [0; 9000] };
        buffer.text[..text.len()].copy_from_slice(text);
        // SAFETY: the buffer is longer than the text.
        check(unsafe { libc::msgsnd(self.0, (&raw const buffer).cast(), text.len(), flags) })
    }

    /// Type and text.
    fn receive(&self, length: usize, kind: i64, flags: i32) -> Result<(i64, Vec<u8>), Errno> {
        let mut buffer = Buffer { kind: 0, text: [0; 9000] };
        // SAFETY: no test asks for more than the buffer holds.
        let got = unsafe { libc::msgrcv(self.0, (&raw mut buffer).cast(), length, kind, flags) };
        let got = Errno::result(got)? as usize;
        Ok((buffer.kind, buffer.text[..got].to_vec()))
    }

    fn receive_now(&self, kind: i64, flags: i32) -> Result<String, Errno> {
        let (_, text) = self.receive(9000, kind, flags | libc::IPC_NOWAIT)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn control(&self, command: i32, status: &mut libc::msqid_ds) -> Result<i32, Errno> {
        // SAFETY: the structure is large enough for all commands used.
        check(unsafe { libc::msgctl(self.0, command, status) })
    }

    fn status(&self) -> Result<libc::msqid_ds, Errno> {
        // SAFETY: all zeroes is a value of the structure.
        let mut status: libc::msqid_ds = unsafe { std::mem::zeroed() };
        self.control(libc::IPC_STAT, &mut status)?;
        Ok(status)
    }

    fn set_limit(&self, bytes: u64) -> Result<(), String> {
        let mut status = self.status().or_fail()?;
        status.msg_qbytes = bytes;
        self.control(libc::IPC_SET, &mut status).or_fail()?;
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: removing looks at no memory.
        unsafe { libc::msgctl(self.0, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

fn get(key: i32, flags: i32) -> Result<i32, Errno> {
    // SAFETY: no memory is touched.
    check(unsafe { libc::msgget(key, flags) })
}

fn messages_by_type() -> Outcome {
    let key = key(1);
    expect_eq!(get(key, 0o600), Err(Errno::ENOENT));
    let queue = Queue(get(key, libc::IPC_CREAT | 0o600).or_fail()?);
    expect_eq!(get(key, libc::IPC_CREAT | libc::IPC_EXCL), Err(Errno::EEXIST));
    expect_eq!(get(key, 0), Ok(queue.0));
    for (kind, text) in [(5, "a"), (3, "b"), (7, "c"), (3, "d"), (1, "")] {
        queue.send(kind, text.as_bytes(), 0).or_fail()?;
    }
    let status = queue.status().or_fail()?;
    expect_eq!((status.msg_qnum, status.__msg_cbytes, status.msg_qbytes), (5, 4, 16384));
    expect_eq!((status.msg_lspid, status.msg_lrpid), (std::process::id() as i32, 0));
    expect!(status.msg_stime > 0 && status.msg_rtime == 0);
    expect_eq!(queue.receive_now(3, 0), Ok("b".to_owned()));
    expect_eq!(queue.receive_now(5, libc::MSG_EXCEPT), Ok("c".to_owned()));
    expect_eq!(queue.receive_now(-4, 0), Ok(String::new()));
    expect_eq!(queue.receive_now(-4, 0), Ok("d".to_owned()));
    expect_eq!(queue.receive_now(-4, 0), Err(Errno::ENOMSG));
    expect_eq!(queue.receive_now(6, 0), Err(Errno::ENOMSG));
    expect_eq!(queue.receive(1, 0, 0), Ok((5, b"a".to_vec())));
    expect_eq!(queue.receive_now(0, 0), Err(Errno::ENOMSG));
    expect_eq!(queue.send(0, b"x", 0), Err(Errno::EINVAL));
    expect_eq!(queue.send(-1, b"x", 0), Err(Errno::EINVAL));
    Ok(())
}

fn long_messages() -> Outcome {
    let queue = Queue::new()?;
    expect_eq!(queue.send(1, &[1; 8193], 0), Err(Errno::EINVAL));
    let long: Vec<u8> = (0..8192_u32).map(|number| number as u8).collect();
    queue.send(1, &long, 0).or_fail()?;
    expect_eq!(queue.receive(100, 0, 0), Err(Errno::E2BIG));
    expect_eq!(queue.status().or_fail()?.msg_qnum, 1);
    expect_eq!(queue.receive(100, 0, libc::MSG_NOERROR), Ok((1, long[..100].to_vec())));
    expect_eq!(queue.status().or_fail()?.msg_qnum, 0);
    queue.send(1, &long, 0).or_fail()?;
    expect_eq!(queue.receive(8192, 0, 0), Ok((1, long)));
    // SAFETY: the address is nobody's.
    let wrong = unsafe { libc::msgsnd(queue.0, std::ptr::without_provenance(8), 1, 0) };
    expect_eq!(check(wrong), Err(Errno::EFAULT));
    Ok(())
}

fn copies_leave_the_message() -> Outcome {
    const MSG_COPY: i32 = 0o40000;
    let queue = Queue::new()?;
    queue.send(4, b"one", 0).or_fail()?;
    queue.send(2, b"three", 0).or_fail()?;
    expect_eq!(queue.receive_now(1, MSG_COPY), Ok("three".to_owned()));
    expect_eq!(queue.receive_now(0, MSG_COPY), Ok("one".to_owned()));
    expect_eq!(queue.receive_now(2, MSG_COPY), Err(Errno::ENOMSG));
    expect_eq!(queue.receive(100, 0, MSG_COPY), Err(Errno::EINVAL));
    expect_eq!(queue.receive_now(0, MSG_COPY | libc::MSG_EXCEPT), Err(Errno::EINVAL));
    expect_eq!(queue.receive(1, 0, MSG_COPY | libc::IPC_NOWAIT), Err(Errno::E2BIG));
    expect_eq!(queue.status().or_fail()?.msg_qnum, 2);
    Ok(())
}

fn a_full_queue_makes_senders_wait() -> Outcome {
    let queue = Queue::new()?;
    queue.set_limit(10)?;
    queue.send(1, b"12345678", 0).or_fail()?;
    expect_eq!(queue.send(1, b"abc", libc::IPC_NOWAIT), Err(Errno::EAGAIN));
    queue.send(1, b"ab", libc::IPC_NOWAIT).or_fail()?;
    queue.receive_now(1, 0).or_fail()?;
    // Two bytes are left; a message of ten has to wait for them to go.
    let child = spawn_child(|| i32::from(queue.send(2, b"0123456789", 0).is_err()))?;
    expect_eq!(queue.receive(100, 1, 0), Ok((1, b"ab".to_vec())));
    expect_eq!(queue.receive(100, 2, 0), Ok((2, b"0123456789".to_vec())));
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    expect_eq!(queue.status().or_fail()?.msg_lspid, child.as_raw());
    // Empty messages fill a queue too.
    for _ in 0..10 {
        queue.send(1, b"", libc::IPC_NOWAIT).or_fail()?;
    }
    expect_eq!(queue.send(1, b"", libc::IPC_NOWAIT), Err(Errno::EAGAIN));
    queue.set_limit(11)?;
    queue.send(1, b"", libc::IPC_NOWAIT).or_fail()?;
    Ok(())
}

extern "C" fn ignore(_: i32) {}

fn waiting_ends() -> Outcome {
    let queue = Queue::new()?;
    let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.or_fail()?;
    let wait = || queue.receive(100, 1, 0).err().map_or(0, |error| error as i32);
    // The signal may come before the child waits, so it comes until the child ends.
    let child = spawn_child(wait)?;
    let status = loop {
        kill(child, Signal::SIGUSR1).or_fail()?;
        match waitpid(child, Some(nix::sys::wait::WaitPidFlag::WNOHANG)).or_fail()? {
            WaitStatus::StillAlive => std::thread::sleep(std::time::Duration::from_millis(1)),
            status => break status,
        }
    };
    expect_eq!(status, WaitStatus::Exited(child, Errno::EINTR as i32));
    let child = spawn_child(wait)?;
    queue.send(1, b"", 0).or_fail()?;
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    let child = spawn_child(|| {
        let full = queue.send(2, &[0; 8192], 0).and_then(|_| queue.send(2, &[0; 8192], 0));
        full.and_then(|_| queue.send(2, b"x", 0)).err().map_or(0, |error| error as i32)
    })?;
    while queue.status().or_fail()?.msg_qnum < 2 {
        std::thread::yield_now();
    }
    queue.control(libc::IPC_RMID, &mut queue.status().or_fail()?).or_fail()?;
    let status = waitpid(child, None).or_fail()?;
    // Before it waited, the child found no queue.
    let found = [Errno::EIDRM, Errno::EINVAL].map(|error| WaitStatus::Exited(child, error as i32));
    expect!(found.contains(&status));
    Ok(())
}

fn permissions_are_checked() -> Outcome {
    let queue = Queue(get(libc::IPC_PRIVATE, 0o602).or_fail()?);
    as_nobody(|| {
        queue.send(1, b"x", 0).or_fail()?;
        expect_eq!(queue.receive_now(0, 0), Err(Errno::EACCES));
        expect_eq!(queue.status().map(|_| ()), Err(Errno::EACCES));
        Ok(())
    })?;
    let mut status = queue.status().or_fail()?;
    status.msg_perm.uid = 4321;
    status.msg_qbytes = 20000;
    queue.control(libc::IPC_SET, &mut status).or_fail()?;
    as_nobody(|| {
        expect_eq!(queue.receive_now(0, 0), Ok("x".to_owned()));
        let mut status = queue.status().or_fail()?;
        expect_eq!(queue.control(libc::IPC_SET, &mut status), Err(Errno::EPERM));
        status.msg_qbytes = 16384;
        queue.control(libc::IPC_SET, &mut status).or_fail()?;
        queue.control(libc::IPC_RMID, &mut status).or_fail()?;
        Ok(())
    })
}

fn limits_and_lists() -> Outcome {
    for (name, value) in [("msgmax", "8192"), ("msgmnb", "16384"), ("msgmni", "32000")] {
        let limit = fs::read_to_string(format!("/proc/sys/kernel/{name}")).or_fail()?;
        expect_eq!(limit.trim(), value);
    }
    let queue = Queue::new()?;
    queue.send(1, b"text", 0).or_fail()?;
    let row = listed("msg", queue.0)?.ok_or("not listed")?;
    expect_eq!(row[..5], ["0", &queue.0.to_string(), "600", "4", "1"]);
    expect_eq!(row.len(), 14);
    let mut status = queue.status().or_fail()?;
    let highest = queue.control(libc::MSG_INFO, &mut status).or_fail()?;
    let stat = |place: i32| {
        let mut status = status;
        // SAFETY: the structure is what the command wants.
        check(unsafe { libc::msgctl(place, libc::MSG_STAT, &mut status) })
    };
    expect!((0..=highest).any(|place| stat(place) == Ok(queue.0)));
    Ok(())
}

fn an_identifier_can_be_asked_for() -> Outcome {
    const WANTED: i32 = 5 << 15 | 7;
    apart(|| {
        unshare(CloneFlags::CLONE_NEWIPC).or_fail()?;
        for kind in ["msg", "sem", "shm"] {
            let path = format!("/proc/sys/kernel/{kind}_next_id");
            let get = || {
                // SAFETY: three calls with numbers only.
                check(unsafe {
                    match kind {
                        "msg" => libc::msgget(libc::IPC_PRIVATE, 0o600),
                        "sem" => libc::semget(libc::IPC_PRIVATE, 1, 0o600),
                        _ => libc::shmget(libc::IPC_PRIVATE, 4096, 0o600),
                    }
                })
            };
            expect_eq!(fs::read_to_string(&path).or_fail()?, "-1\n");
            expect_eq!(
                fs::write(&path, "-1").err().and_then(|error| error.raw_os_error()),
                Some(libc::EINVAL)
            );
            fs::write(&path, WANTED.to_string()).or_fail()?;
            expect_eq!(fs::read_to_string(&path).or_fail()?, format!("{WANTED}\n"));
            expect_eq!(get(), Ok(WANTED));
            expect_eq!(fs::read_to_string(&path).or_fail()?, "-1\n");
            // Its place is taken, and the next one is not.
            fs::write(&path, WANTED.to_string()).or_fail()?;
            expect_eq!(get(), Ok(WANTED + 1));
        }
        Ok(())
    })
}
