//! PID namespaces, pid_namespaces(7): numbers on both sides, the first process, its end, and entering.
#![allow(unsafe_code, reason = "most of the calls have no safe forms")]

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpgrp, getpid, getppid, getsid, gettid, setsid};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::mounts::namespace::{apart, ask, clone_with, link};

use crate::namespaces::users::{become_root_inside, leave_as};
use crate::{expect, expect_eq};

crate::tests! {
    the_first_process_has_number_one
    numbers_differ_on_both_sides
    a_thread_has_its_own_number_inside
    groups_and_sessions_are_translated
    signals_name_their_sender_for_the_receiver
    the_first_process_is_spared_by_those_inside
    the_first_process_is_not_spared_from_outside
    all_end_with_the_first
    nothing_starts_after_the_end_of_the_first
    orphans_go_to_the_first_process
    a_namespace_for_children_is_entered
    only_deeper_namespaces_are_entered
    a_namespace_is_left_once
    namespaces_lie_in_one_another
    a_process_gets_the_numbers_it_is_to_have
    a_user_namespace_may_own_it
    namespaces_of_pids_are_counted
    many_end_at_once
    a_stopped_group_that_is_orphaned_goes_on
    nobody_inside_looks_like_one_outside
    an_end_that_leaves_nothing_is_told
}

pub fn leave() -> Outcome {
    unshare(CloneFlags::CLONE_NEWPID).or_fail()
}

/// Runs a part of a test as the first process of a namespace.
pub fn inside(body: impl FnOnce() -> Outcome) -> Outcome {
    apart(|| {
        leave()?;
        apart(body)
    })
}

/// A process that waits for its end.
pub fn sleeper() -> Result<Pid, String> {
    spawn_child(|| {
        loop {
            std::thread::park();
        }
    })
}

fn is_there(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None).is_ok()
}

fn the_first_process_has_number_one() -> Outcome {
    apart(|| {
        let (own, children) = (link("pid")?, link("pid_for_children")?);
        expect_eq!(own, children);
        leave()?;
        // The caller stays; its children move.
        expect_eq!(link("pid")?, own);
        expect!(getpid().as_raw() != 1);
        apart(|| {
            expect_eq!(getpid().as_raw(), 1);
            expect_eq!(gettid().as_raw(), 1);
            expect_eq!(getppid().as_raw(), 0);
            let child = spawn_child(|| i32::from(getppid().as_raw() != 1 || getpid().as_raw() != 2))?;
            expect_eq!(child.as_raw(), 2);
            expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
            Ok(())
        })?;
        expect!(link("pid_for_children").is_err() || link("pid_for_children")? != own);
        Ok(())
    })
}

fn numbers_differ_on_both_sides() -> Outcome {
    let (mut reading, mut writing) = std::io::pipe().or_fail()?;
    apart(|| {
        let outer = getpid();
        leave()?;
        let first = spawn_child(|| {
            let known = [is_there(1), is_there(outer.as_raw())];
            let _ = writing.write_all(&getpid().as_raw().to_ne_bytes());
            i32::from(known != [true, false])
        })?;
        expect!(first.as_raw() != 1);
        let mut told = [0; 4];
        reading.read_exact(&mut told).or_fail()?;
        expect_eq!(i32::from_ne_bytes(told), 1);
        let known = waitid(Id::Pid(first), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).or_fail()?;
        expect_eq!(known, WaitStatus::Exited(first, 0));
        expect_eq!(waitpid(first, None), Ok(WaitStatus::Exited(first, 0)));
        expect!(!is_there(first.as_raw()));
        Ok(())
    })
}

fn a_thread_has_its_own_number_inside() -> Outcome {
    inside(|| {
        let told = std::thread::spawn(|| (getpid().as_raw(), gettid().as_raw())).join();
        expect_eq!(told.map_err(|_| "the thread")?, (1, 2));
        // SAFETY: numbers.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, 1, 1, 0) };
        expect_eq!(sent, 0);
        // SAFETY: numbers.
        expect_eq!(Errno::result(unsafe { libc::sched_getscheduler(1) }), Ok(libc::SCHED_OTHER));
        // SAFETY: numbers.
        expect_eq!(Errno::result(unsafe { libc::sched_getscheduler(7) }), Err(Errno::ESRCH));
        Ok(())
    })
}

fn groups_and_sessions_are_translated() -> Outcome {
    inside(|| {
        // Those of the parent have no numbers here.
        expect_eq!(getpgrp().as_raw(), 0);
        expect_eq!(getsid(None), Ok(Pid::from_raw(0)));
        expect_eq!(setsid(), Ok(Pid::from_raw(1)));
        expect_eq!((getpgrp().as_raw(), getsid(None)), (1, Ok(Pid::from_raw(1))));
        let child = sleeper()?;
        expect_eq!(nix::unistd::setpgid(child, Pid::from_raw(0)), Ok(()));
        expect_eq!(nix::unistd::getpgid(Some(child)), Ok(child));
        expect_eq!(kill(Pid::from_raw(-child.as_raw()), Signal::SIGKILL), Ok(()));
        let group = Id::PGid(child);
        let ended = waitid(group, WaitPidFlag::WEXITED).or_fail()?;
        expect_eq!(ended, WaitStatus::Signaled(child, Signal::SIGKILL, false));
        Ok(())
    })
}

/// Waits for a signal that is blocked, and returns who sent it.
fn sender(of: Signal) -> Result<i32, String> {
    // SAFETY: all zeros is a set and a structure of both types; they are written before they are read.
    let (mut set, mut info): (libc::sigset_t, libc::siginfo_t) = unsafe { std::mem::zeroed() };
    // SAFETY: the set and the structure are the caller's own.
    unsafe {
        libc::sigaddset(&raw mut set, of as i32);
        Errno::result(libc::sigwaitinfo(&raw const set, &raw mut info)).or_fail()?;
        Ok(info.si_pid())
    }
}

fn block(which: Signal) -> Outcome {
    let mut set = nix::sys::signal::SigSet::empty();
    set.add(which);
    set.thread_block().or_fail()
}

fn signals_name_their_sender_for_the_receiver() -> Outcome {
    apart(|| {
        block(Signal::SIGUSR1)?;
        block(Signal::SIGCHLD)?;
        let outer = getpid();
        let (mut reading, mut writing) = std::io::pipe().or_fail()?;
        leave()?;
        let first = spawn_child(|| {
            let told = (|| {
                writing.write_all(b"x").or_fail()?;
                // From one that has no number here.
                expect_eq!(sender(Signal::SIGUSR1)?, 0);
                let child = spawn_child(|| i32::from(kill(Pid::from_raw(1), Signal::SIGUSR1).is_err()))?;
                expect_eq!(sender(Signal::SIGUSR1)?, child.as_raw());
                expect_eq!(sender(Signal::SIGCHLD)?, child.as_raw());
                expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
                expect!(kill(outer, None).is_err());
                Ok::<(), String>(())
            })();
            told.map_or_else(
                |error| {
                    println!("{error}");
                    1
                },
                |()| 0,
            )
        })?;
        reading.read_exact(&mut [0]).or_fail()?;
        kill(first, Signal::SIGUSR1).or_fail()?;
        expect_eq!(sender(Signal::SIGCHLD)?, first.as_raw());
        expect_eq!(waitpid(first, None), Ok(WaitStatus::Exited(first, 0)));
        Ok(())
    })
}

fn the_first_process_is_spared_by_those_inside() -> Outcome {
    inside(|| {
        for which in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGSTOP, Signal::SIGUSR1] {
            let child = spawn_child(|| i32::from(kill(Pid::from_raw(1), which).is_err()))?;
            expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        }
        // Nor by itself.
        kill(Pid::from_raw(1), Signal::SIGTERM).or_fail()?;
        // All but the sender and the first.
        let others = [sleeper()?, sleeper()?];
        kill(Pid::from_raw(-1), Signal::SIGKILL).or_fail()?;
        for other in others {
            expect_eq!(waitpid(other, None), Ok(WaitStatus::Signaled(other, Signal::SIGKILL, false)));
        }
        Ok(())
    })
}

extern "C" fn ignore(_: i32) {}

fn the_first_process_is_not_spared_from_outside() -> Outcome {
    apart(|| {
        leave()?;
        let (mut reading, writing) = std::io::pipe().or_fail()?;
        let first = spawn_child(|| {
            // SAFETY: the handler does nothing.
            let set = unsafe { signal(Signal::SIGUSR1, SigHandler::Handler(ignore)) };
            let _ = (&writing).write_all(if set.is_ok() { b"x" } else { b"y" });
            loop {
                std::thread::park();
            }
        })?;
        let mut byte = [0];
        reading.read_exact(&mut byte).or_fail()?;
        expect_eq!(byte, *b"x");
        // Without a handler it is as if it were ignored; SIGSTOP and SIGKILL act.
        kill(first, Signal::SIGTERM).or_fail()?;
        kill(first, Signal::SIGUSR1).or_fail()?;
        kill(first, Signal::SIGSTOP).or_fail()?;
        let stopped = waitpid(first, Some(WaitPidFlag::WUNTRACED));
        expect_eq!(stopped, Ok(WaitStatus::Stopped(first, Signal::SIGSTOP)));
        kill(first, Signal::SIGCONT).or_fail()?;
        kill(first, Signal::SIGKILL).or_fail()?;
        expect_eq!(waitpid(first, None), Ok(WaitStatus::Signaled(first, Signal::SIGKILL, false)));
        Ok(())
    })
}

fn all_end_with_the_first() -> Outcome {
    apart(|| {
        leave()?;
        // Whoever holds the end for writing keeps the pipe open.
        let (mut reading, writing) = std::io::pipe().or_fail()?;
        let first = spawn_child(|| {
            for _ in 0..5 {
                let child = spawn_child(|| {
                    let _ = setsid();
                    let _ = spawn_child(|| {
                        loop {
                            std::thread::park();
                        }
                    });
                    loop {
                        std::thread::park();
                    }
                });
                if child.is_err() {
                    return 1;
                }
            }
            7
        })?;
        drop(writing);
        expect_eq!(waitpid(first, None), Ok(WaitStatus::Exited(first, 7)));
        // All of them are gone by now, not only on their way.
        let mut rest = Vec::new();
        wait_never(reading.as_raw_fd())?;
        expect_eq!(reading.read_to_end(&mut rest).or_fail()?, 0);
        Ok(())
    })
}

/// Reads of the pipe fail from now on where they would wait.
fn wait_never(descriptor: i32) -> Outcome {
    // SAFETY: numbers.
    Errno::result(unsafe { libc::fcntl(descriptor, libc::F_SETFL, libc::O_NONBLOCK) }).map(drop).or_fail()
}

fn nothing_starts_after_the_end_of_the_first() -> Outcome {
    apart(|| {
        leave()?;
        let first = spawn_child(|| 0)?;
        expect_eq!(waitpid(first, None), Ok(WaitStatus::Exited(first, 0)));
        expect_eq!(clone_with(0, || 0), Err(Errno::ENOMEM));
        Ok(())
    })
}

fn orphans_go_to_the_first_process() -> Outcome {
    inside(|| {
        let (mut reading, writing) = std::io::pipe().or_fail()?;
        let middle = spawn_child(|| {
            let orphan = spawn_child(|| {
                while getppid().as_raw() != 1 {
                    std::thread::yield_now();
                }
                let _ = (&writing).write_all(&getpid().as_raw().to_ne_bytes());
                3
            });
            i32::from(orphan.is_err())
        })?;
        expect_eq!(waitpid(middle, None), Ok(WaitStatus::Exited(middle, 0)));
        let mut told = [0; 4];
        reading.read_exact(&mut told).or_fail()?;
        let orphan = Pid::from_raw(i32::from_ne_bytes(told));
        expect_eq!(waitpid(None, None), Ok(WaitStatus::Exited(orphan, 3)));
        expect_eq!(waitpid(None, None), Err(Errno::ECHILD));
        Ok(())
    })
}

fn a_namespace_for_children_is_entered() -> Outcome {
    apart(|| {
        let outside = link("pid")?;
        let own = fs::File::open("/proc/self/ns/pid").or_fail()?;
        expect_eq!(ask(&own, 0xb703), Ok(libc::CLONE_NEWPID));
        leave()?;
        let child = sleeper()?;
        let theirs = fs::File::open(format!("/proc/{child}/ns/pid")).or_fail()?;
        setns(&own, CloneFlags::CLONE_NEWPID).or_fail()?;
        expect_eq!(link("pid_for_children")?, outside);
        setns(&theirs, CloneFlags::CLONE_NEWPID).or_fail()?;
        expect_eq!(link("pid")?, outside);
        apart(|| {
            expect_eq!(getpid().as_raw(), 2);
            // The parent is outside.
            expect_eq!(getppid().as_raw(), 0);
            expect!(is_there(1));
            Ok(())
        })?;
        kill(child, Signal::SIGKILL).or_fail()?;
        waitpid(child, None).map(drop).or_fail()
    })
}

fn only_deeper_namespaces_are_entered() -> Outcome {
    let outer = fs::File::open("/proc/self/ns/pid").or_fail()?;
    inside(|| {
        expect_eq!(setns(&outer, CloneFlags::CLONE_NEWPID), Err(Errno::EINVAL));
        Ok(())
    })
}

fn a_namespace_is_left_once() -> Outcome {
    apart(|| {
        leave()?;
        expect_eq!(unshare(CloneFlags::CLONE_NEWPID), Err(Errno::EINVAL));
        expect_eq!(clone_with(libc::CLONE_NEWPID, || 0), Err(Errno::EINVAL));
        // SAFETY: refused before anything is made.
        let thread = unsafe {
            let flags = libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_VM | libc::CLONE_NEWPID;
            libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0)
        };
        expect_eq!(Errno::result(thread), Err(Errno::EINVAL));
        Ok(())
    })
}

fn namespaces_lie_in_one_another() -> Outcome {
    apart(|| {
        leave()?;
        apart(|| {
            leave()?;
            let child = sleeper()?;
            expect_eq!(child.as_raw(), 2);
            kill(child, Signal::SIGKILL).or_fail()?;
            expect_eq!(waitpid(child, None), Ok(WaitStatus::Signaled(child, Signal::SIGKILL, false)));
            Ok(())
        })
    })?;
    // A level deeper each time, until there are as many as there may be.
    fn deeper(level: u32) -> Outcome {
        match unshare(CloneFlags::CLONE_NEWPID) {
            Err(error) => {
                expect_eq!((level, error), (32, Errno::ENOSPC));
                Ok(())
            }
            Ok(()) => apart(|| deeper(level + 1)),
        }
    }
    apart(|| deeper(0))
}

fn a_process_gets_the_numbers_it_is_to_have() -> Outcome {
    fn start(wanted: &[i32]) -> Result<Pid, Errno> {
        let mut words = [0_u64; 11];
        words[4] = libc::SIGCHLD as u64;
        words[8] = wanted.as_ptr() as u64;
        words[9] = wanted.len() as u64;
        // SAFETY: a copy of the space, as fork; the structure has its full length.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, words.as_ptr(), size_of_val(&words)) };
        match Errno::result(pid)? {
            // SAFETY: ends the child.
            0 => unsafe { libc::_exit(0) },
            pid => Ok(Pid::from_raw(pid as i32)),
        }
    }
    inside(|| {
        let child = start(&[77]).or_fail()?;
        expect_eq!(child.as_raw(), 77);
        expect_eq!(start(&[77]), Err(Errno::EEXIST));
        expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        expect_eq!(start(&[0]), Err(Errno::EINVAL));
        expect_eq!(start(&[5; 40]), Err(Errno::EINVAL));
        leave()?;
        // The first process of a namespace is number 1.
        expect_eq!(start(&[2, 88]), Err(Errno::EINVAL));
        let child = start(&[1, 88]).or_fail()?;
        expect_eq!(child.as_raw(), 88);
        expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        Ok(())
    })
}

fn a_user_namespace_may_own_it() -> Outcome {
    apart(|| {
        become_root_inside()?;
        leave()?;
        apart(|| {
            expect_eq!(getpid().as_raw(), 1);
            Ok(())
        })
    })
}

fn namespaces_of_pids_are_counted() -> Outcome {
    apart(|| {
        leave_as(0, 0)?;
        fs::write("/proc/sys/user/max_pid_namespaces", "1").or_fail()?;
        leave()?;
        apart(|| {
            expect_eq!(unshare(CloneFlags::CLONE_NEWPID), Err(Errno::ENOSPC));
            Ok(())
        })
    })
}

fn many_end_at_once() -> Outcome {
    for _ in 0..3 {
        apart(|| {
            leave()?;
            let first = spawn_child(|| {
                for _ in 0..100 {
                    let child = spawn_child(|| {
                        let _ = spawn_child(|| 0);
                        loop {
                            std::thread::park();
                        }
                    });
                    if child.is_err() {
                        return 1;
                    }
                }
                0
            })?;
            expect_eq!(waitpid(first, None), Ok(WaitStatus::Exited(first, 0)));
            Ok(())
        })?;
    }
    Ok(())
}

fn a_stopped_group_that_is_orphaned_goes_on() -> Outcome {
    inside(|| {
        setsid().or_fail()?;
        let middle = spawn_child(|| {
            let session = setsid();
            let leader = spawn_child(|| {
                let own = nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0));
                let leaf = spawn_child(|| {
                    // SAFETY: no handler.
                    let ignored = unsafe { signal(Signal::SIGHUP, SigHandler::SigIgn) };
                    let stopped = nix::sys::signal::raise(Signal::SIGSTOP);
                    if ignored.is_ok() && stopped.is_ok() { 5 } else { 1 }
                });
                let stopped = leaf.and_then(|leaf| waitpid(leaf, Some(WaitPidFlag::WUNTRACED)).or_fail());
                i32::from(own.is_err() || stopped.is_err())
            });
            let ended = leader.and_then(|leader| waitpid(leader, None).or_fail());
            i32::from(session.is_err() || !matches!(ended, Ok(WaitStatus::Exited(_, 0))))
        })?;
        expect_eq!(waitpid(middle, None), Ok(WaitStatus::Exited(middle, 0)));
        // Nobody is left who could continue the group, so SIGHUP and SIGCONT come, and the new parent is told.
        let leaf = Pid::from_raw(4);
        expect_eq!(waitpid(leaf, None), Ok(WaitStatus::Exited(leaf, 5)));
        Ok(())
    })
}

fn nobody_inside_looks_like_one_outside() -> Outcome {
    inside(|| {
        let child = spawn_child(|| {
            // A `siginfo_t` of SIGKILL and SI_QUEUE, with 0 for the sender.
            let mut words = [0_u64; 16];
            words[0] = Signal::SIGKILL as u64;
            words[1] = libc::SI_QUEUE as u32 as u64;
            // SAFETY: the structure has its full length.
            let sent = unsafe { libc::syscall(libc::SYS_rt_sigqueueinfo, 1, libc::SIGKILL, words.as_ptr()) };
            i32::from(sent != 0)
        })?;
        expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        Ok(())
    })
}

fn an_end_that_leaves_nothing_is_told() -> Outcome {
    inside(|| {
        block(Signal::SIGCHLD)?;
        let action = nix::sys::signal::SigAction::new(
            SigHandler::Handler(ignore),
            nix::sys::signal::SaFlags::SA_NOCLDWAIT,
            nix::sys::signal::SigSet::empty(),
        );
        // SAFETY: the handler does nothing.
        unsafe { nix::sys::signal::sigaction(Signal::SIGCHLD, &action) }.or_fail()?;
        let child = spawn_child(|| 0)?;
        expect_eq!(sender(Signal::SIGCHLD)?, child.as_raw());
        expect_eq!(waitpid(None, None), Err(Errno::ECHILD));
        Ok(())
    })
}
