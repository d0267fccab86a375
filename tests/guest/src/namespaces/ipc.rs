//! IPC namespaces, ipc_namespaces(7): System V's objects, POSIX message queues, and their limits.
#![allow(unsafe_code, reason = "objects of IPC have no safe form")]

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};

use crate::harness::{OrFail, Outcome};
use crate::mounts::namespace::{apart, clone_with, link};
use crate::mounts::{Stage, mount, umount};
use crate::{expect, expect_eq};

crate::tests! {
    objects_are_the_namespaces_own
    identifiers_are_the_namespaces_own
    limits_are_the_namespaces_own
    a_segment_lives_as_long_as_it_is_mapped
    a_namespace_lives_by_its_descriptor
    undoes_happen_before_a_namespace_is_left
    queues_have_names_in_their_namespace
    a_mount_of_queues_shows_its_namespace
    an_ipc_namespace_is_made_with_a_child
    many_objects_go_with_their_namespace
    leaving_needs_a_right
}

const KEY: i32 = 0x4e53_0001;
const BYTES: usize = 8192;

fn segment(key: i32, flags: i32) -> Result<i32, Errno> {
    // SAFETY: numbers.
    Errno::result(unsafe { libc::shmget(key, BYTES, flags) })
}

fn semaphores(key: i32, flags: i32) -> Result<i32, Errno> {
    // SAFETY: numbers.
    Errno::result(unsafe { libc::semget(key, 1, flags) })
}

fn messages(key: i32, flags: i32) -> Result<i32, Errno> {
    // SAFETY: numbers.
    Errno::result(unsafe { libc::msgget(key, flags) })
}

fn remove_segment(id: i32) -> Result<i32, Errno> {
    // SAFETY: the command takes no structure.
    Errno::result(unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) })
}

fn attach(id: i32) -> Result<&'static AtomicU32, Errno> {
    // SAFETY: the kernel chooses the address.
    let at = unsafe { libc::shmat(id, std::ptr::null(), 0) };
    if at.addr() == usize::MAX {
        return Err(Errno::last());
    }
    // SAFETY: a page of the segment begins there, and stays mapped until `detach`.
    Ok(unsafe { &*at.cast() })
}

fn detach(word: &'static AtomicU32) -> Result<i32, Errno> {
    // SAFETY: nobody uses the reference from now on.
    Errno::result(unsafe { libc::shmdt(std::ptr::from_ref(word).cast()) })
}

fn queue(name: &str, flags: i32) -> Result<OwnedFd, Errno> {
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    // SAFETY: a string and the arguments that the flags ask for.
    let number = unsafe { libc::mq_open(name.as_ptr(), flags, 0o600, std::ptr::null_mut::<libc::mq_attr>()) };
    Errno::result(number)?;
    // SAFETY: it was just opened.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn lines(file: &str) -> Result<usize, String> {
    Ok(fs::read_to_string(format!("/proc/sysvipc/{file}")).or_fail()?.lines().count())
}

fn leave() -> Outcome {
    unshare(CloneFlags::CLONE_NEWIPC).or_fail()
}

fn objects_are_the_namespaces_own() -> Outcome {
    let all = libc::IPC_CREAT | 0o600;
    let id = segment(KEY, all).or_fail()?;
    let inside = apart(|| {
        let before = link("ipc")?;
        leave()?;
        expect!(link("ipc")? != before);
        expect_eq!(segment(KEY, 0), Err(Errno::ENOENT));
        expect_eq!(attach(id).map(|_| ()), Err(Errno::EINVAL));
        expect_eq!(lines("shm")?, 1);
        for _ in 0..2 {
            segment(KEY, all).or_fail()?;
            semaphores(KEY, all).or_fail()?;
            messages(KEY, all).or_fail()?;
        }
        expect_eq!((lines("shm")?, lines("sem")?, lines("msg")?), (2, 2, 2));
        Ok(())
    });
    let others = (semaphores(KEY, 0), messages(KEY, 0));
    remove_segment(id).or_fail()?;
    inside?;
    expect_eq!(others, (Err(Errno::ENOENT), Err(Errno::ENOENT)));
    Ok(())
}

fn identifiers_are_the_namespaces_own() -> Outcome {
    apart(|| {
        leave()?;
        // The first object of a namespace is at the first place.
        expect_eq!(segment(libc::IPC_PRIVATE, 0o600), Ok(0));
        expect_eq!(segment(libc::IPC_PRIVATE, 0o600), Ok(1));
        expect_eq!(messages(libc::IPC_PRIVATE, 0o600), Ok(0));
        expect_eq!(semaphores(libc::IPC_PRIVATE, 0o600), Ok(0));
        leave()?;
        expect_eq!(segment(libc::IPC_PRIVATE, 0o600), Ok(0));
        Ok(())
    })
}

fn limits_are_the_namespaces_own() -> Outcome {
    let names = ["kernel/shmmni", "kernel/msgmax", "kernel/sem", "fs/mqueue/msg_max"];
    let all = || -> Result<Vec<String>, String> {
        names.iter().map(|name| fs::read_to_string(format!("/proc/sys/{name}")).or_fail()).collect()
    };
    let before = all()?;
    apart(|| {
        leave()?;
        fs::write("/proc/sys/kernel/shmmni", "2").or_fail()?;
        fs::write("/proc/sys/kernel/msgmax", "100").or_fail()?;
        fs::write("/proc/sys/kernel/sem", "20 30 40 50").or_fail()?;
        fs::write("/proc/sys/fs/mqueue/msg_max", "5").or_fail()?;
        expect_eq!(all()?, ["2\n", "100\n", "20\t30\t40\t50\n", "5\n"]);
        segment(libc::IPC_PRIVATE, 0o600).or_fail()?;
        segment(libc::IPC_PRIVATE, 0o600).or_fail()?;
        expect_eq!(segment(libc::IPC_PRIVATE, 0o600), Err(Errno::ENOSPC));
        // A new one has the defaults, not what this one has.
        let changed = fs::File::open("/proc/sys/kernel/shmmni").or_fail()?;
        leave()?;
        expect_eq!(all()?, ["4096\n", "8192\n", "32000\t1024000000\t500\t32000\n", "10\n"]);
        drop(changed);
        Ok(())
    })?;
    expect_eq!(all()?, before);
    Ok(())
}

fn a_segment_lives_as_long_as_it_is_mapped() -> Outcome {
    apart(|| {
        leave()?;
        let id = segment(KEY, libc::IPC_CREAT | 0o600).or_fail()?;
        let word = attach(id).or_fail()?;
        word.store(7, Ordering::Relaxed);
        // Nothing but the mapping holds the namespace now.
        leave()?;
        expect_eq!(segment(KEY, 0), Err(Errno::ENOENT));
        expect_eq!(word.load(Ordering::Relaxed), 7);
        // A child inherits it.
        apart(|| {
            expect_eq!(word.swap(8, Ordering::Relaxed), 7);
            detach(word).map(drop).or_fail()
        })?;
        expect_eq!(word.load(Ordering::Relaxed), 8);
        detach(word).or_fail()?;
        expect_eq!(detach(word), Err(Errno::EINVAL));
        Ok(())
    })
}

fn a_namespace_lives_by_its_descriptor() -> Outcome {
    let outside = fs::File::open("/proc/self/ns/ipc").or_fail()?;
    apart(|| {
        leave()?;
        let id = segment(KEY, libc::IPC_CREAT | 0o600).or_fail()?;
        let inside = fs::File::open("/proc/self/ns/ipc").or_fail()?;
        setns(&outside, CloneFlags::CLONE_NEWIPC).or_fail()?;
        expect_eq!(segment(KEY, 0), Err(Errno::ENOENT));
        expect_eq!(setns(&inside, CloneFlags::CLONE_NEWUTS), Err(Errno::EINVAL));
        setns(&inside, CloneFlags::empty()).or_fail()?;
        expect_eq!(segment(KEY, 0), Ok(id));
        // Entering its own changes nothing.
        setns(&inside, CloneFlags::CLONE_NEWIPC).or_fail()?;
        expect_eq!(segment(KEY, 0), Ok(id));
        Ok(())
    })
}

fn undoes_happen_before_a_namespace_is_left() -> Outcome {
    let id = semaphores(libc::IPC_PRIVATE, 0o600).or_fail()?;
    // SAFETY: the value is the fourth argument.
    let value = || unsafe { libc::semctl(id, 0, libc::GETVAL) };
    let (mut told, mut tell) = std::io::pipe().or_fail()?;
    let (mut go, mut may_go) = std::io::pipe().or_fail()?;
    let child = crate::harness::spawn_child(|| {
        use std::io::{Read, Write};
        let mut operation = libc::sembuf { sem_num: 0, sem_op: 1, sem_flg: libc::SEM_UNDO as i16 };
        // SAFETY: one operation.
        let raised = unsafe { libc::semop(id, &raw mut operation, 1) } == 0;
        let left = tell.write_all(b"x").is_ok()
            && go.read_exact(&mut [0]).is_ok()
            && leave().is_ok()
            && tell.write_all(b"x").is_ok()
            && go.read_exact(&mut [0]).is_ok();
        i32::from(!(raised && left))
    })?;
    let mut look = || -> Result<i32, String> {
        use std::io::{Read, Write};
        told.read_exact(&mut [0]).or_fail()?;
        let seen = value();
        may_go.write_all(b"x").or_fail()?;
        Ok(seen)
    };
    let seen = (look()?, look()?);
    nix::sys::wait::waitpid(child, None).or_fail()?;
    // SAFETY: the command takes no more.
    Errno::result(unsafe { libc::semctl(id, 0, libc::IPC_RMID) }).or_fail()?;
    expect_eq!(seen, (1, 0));
    Ok(())
}

fn queues_have_names_in_their_namespace() -> Outcome {
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
    let name = format!("/spaces-{}", std::process::id());
    let outside = queue(&name, flags).or_fail()?;
    let send = |queue: &OwnedFd| {
        // SAFETY: three bytes.
        Errno::result(unsafe { libc::mq_send(queue.as_raw_fd(), c"one".as_ptr(), 3, 0) })
    };
    let inside = apart(|| {
        leave()?;
        expect_eq!(queue(&name, libc::O_RDWR).map(drop), Err(Errno::ENOENT));
        let own = queue(&name, flags).or_fail()?;
        send(&own).or_fail()?;
        // An open queue stays what it is.
        send(&outside).or_fail()?;
        leave()?;
        expect_eq!(queue(&name, libc::O_RDWR).map(drop), Err(Errno::ENOENT));
        send(&own).or_fail()?;
        Ok(())
    });
    let mut attributes = std::mem::MaybeUninit::<libc::mq_attr>::zeroed();
    // SAFETY: the call fills the structure, which zeros are valid for.
    let count = unsafe {
        libc::mq_getattr(outside.as_raw_fd(), attributes.as_mut_ptr());
        attributes.assume_init().mq_curmsgs
    };
    let path = CString::new(name).or_fail()?;
    // SAFETY: a string.
    Errno::result(unsafe { libc::mq_unlink(path.as_ptr()) }).or_fail()?;
    inside?;
    expect_eq!(count, 1);
    Ok(())
}

fn a_mount_of_queues_shows_its_namespace() -> Outcome {
    let stage = Stage::new("queues")?;
    let (one, two) = (stage.directory("one")?, stage.directory("two")?);
    apart(|| {
        unshare(CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWNS).or_fail()?;
        mount(Some("queues"), &one, Some("mqueue"), 0).or_fail()?;
        drop(queue("/first", libc::O_CREAT | libc::O_RDWR).or_fail()?);
        expect!(one.join("first").exists());
        let inside = fs::File::open("/proc/self/ns/ipc").or_fail()?;
        leave()?;
        drop(queue("/second", libc::O_CREAT | libc::O_RDWR).or_fail()?);
        // The mount goes on to show the namespace in which it was made.
        expect!(one.join("first").exists() && !one.join("second").exists());
        mount(Some("queues"), &two, Some("mqueue"), 0).or_fail()?;
        expect!(!two.join("first").exists() && two.join("second").exists());
        fs::remove_file(one.join("first")).or_fail()?;
        umount(&one, 0).or_fail()?;
        umount(&two, 0).or_fail()?;
        setns(&inside, CloneFlags::CLONE_NEWIPC).or_fail()?;
        expect_eq!(queue("/first", libc::O_RDWR).map(drop), Err(Errno::ENOENT));
        Ok(())
    })
}

fn an_ipc_namespace_is_made_with_a_child() -> Outcome {
    let id = segment(KEY, libc::IPC_CREAT | 0o600).or_fail()?;
    let status = clone_with(libc::CLONE_NEWIPC, || i32::from(segment(KEY, 0) != Err(Errno::ENOENT)));
    let both = clone_with(libc::CLONE_NEWIPC | libc::CLONE_SYSVSEM, || 0);
    remove_segment(id).or_fail()?;
    expect_eq!((status, both), (Ok(0), Err(Errno::EINVAL)));
    Ok(())
}

fn many_objects_go_with_their_namespace() -> Outcome {
    apart(|| {
        leave()?;
        for _ in 0..100 {
            segment(libc::IPC_PRIVATE, 0o600).or_fail()?;
            semaphores(libc::IPC_PRIVATE, 0o600).or_fail()?;
            let id = messages(libc::IPC_PRIVATE, 0o600).or_fail()?;
            // SAFETY: a type and a text.
            let sent = unsafe { libc::msgsnd(id, std::ptr::from_ref(&[1_i64, 2]).cast(), 8, 0) };
            Errno::result(sent).or_fail()?;
        }
        for number in 0..5 {
            queue(&format!("/queue-{number}"), libc::O_CREAT | libc::O_RDWR).or_fail()?;
        }
        Ok(())
    })
}

fn leaving_needs_a_right() -> Outcome {
    let own = fs::File::open("/proc/self/ns/ipc").or_fail()?;
    apart(|| {
        nix::unistd::setuid(nix::unistd::Uid::from_raw(1000)).or_fail()?;
        expect_eq!(unshare(CloneFlags::CLONE_NEWIPC), Err(Errno::EPERM));
        expect_eq!(setns(&own, CloneFlags::CLONE_NEWIPC), Err(Errno::EPERM));
        expect_eq!(clone_with(libc::CLONE_NEWIPC, || 0), Err(Errno::EPERM));
        Ok(())
    })
}
