//! fork, exec, wait, process groups, sessions.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpgid, getpgrp, getpid, getppid, getsid, pipe, read, setpgid, setsid, write};

use crate::harness::{OrFail, Outcome, in_child, own_path, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    fork_returns_statuses
    fork_copies_memory
    fork_many_deep
    wait_reports_signals
    wait_any_and_nohang
    wait_without_children
    waitid_leaves_zombie
    wait_stopped_and_continued
    exec_passes_arguments_and_environment
    exec_failures
    exec_keeps_pid_and_closes_descriptors
    exec_script
    posix_spawn_pipeline
    groups_and_sessions
    a_failed_test_leaves_nobody_behind
    orphan_goes_to_pid_1
    orphans_go_to_the_subreaper
    the_parents_death_is_a_signal
    the_creating_threads_death_counts_as_the_parents
    results_are_stored_once_while_another_thread_forks
    credentials
    resource_limits
    vfork_child_shares_memory
}

/// The roles of this program when a test execs it with `--as=ROLE`.
pub fn play_role(role: &str, arguments: &[String]) -> ExitCode {
    match role {
        "echo" => {
            let line = arguments.join("\u{1}");
            print!("{line}|{}|{}", std::env::vars().count(), std::env::var("MARK").unwrap_or_default());
            ExitCode::SUCCESS
        }
        "pid" => {
            print!("{}", getpid());
            ExitCode::SUCCESS
        }
        "has-descriptor" => {
            let open = std::fs::metadata(format!("/proc/self/fd/{}", arguments[0])).is_ok();
            ExitCode::from(u8::from(open))
        }
        "space" => crate::space::play_role(arguments),
        "rights" => crate::privilege::show_rights(),
        "maps" => {
            print!("{}", std::fs::read_to_string("/proc/self/maps").unwrap_or_default());
            ExitCode::SUCCESS
        }
        "exit" => ExitCode::from(arguments[0].parse::<u8>().unwrap_or(255)),
        _ => ExitCode::from(99),
    }
}

fn fork_returns_statuses() -> Outcome {
    for status in [0, 1, 42, 255] {
        let ended = in_child(move || status)?;
        expect!(matches!(ended, WaitStatus::Exited(_, code) if code == status));
    }
    Ok(())
}

fn fork_copies_memory() -> Outcome {
    let mut page = vec![1u8; 1 << 20];
    let (reader, writer) = pipe().or_fail()?;
    let child = spawn_child(|| {
        page.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        let sum: u64 = page.iter().map(|&byte| u64::from(byte)).sum();
        i32::from(write(&writer, &sum.to_ne_bytes()).is_err())
    })?;
    page[0] = 7;
    let mut sum = [0; 8];
    read(&reader, &mut sum).or_fail()?;
    waitpid(child, None).or_fail()?;
    expect_eq!(u64::from_ne_bytes(sum), 2 << 20);
    expect_eq!(page.iter().map(|&byte| u64::from(byte)).sum::<u64>(), (1 << 20) + 6);
    Ok(())
}

fn fork_many_deep() -> Outcome {
    fn descend(depth: i32) -> i32 {
        if depth == 0 {
            return 0;
        }
        match in_child(|| descend(depth - 1)) {
            Ok(WaitStatus::Exited(_, status)) => status + 1,
            _ => 100,
        }
    }
    expect_eq!(descend(20), 20);
    let children: Vec<Pid> = (0..100).map(|_| spawn_child(|| 0)).collect::<Result<_, _>>()?;
    for child in children {
        expect!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(pid, 0)) if pid == child));
    }
    Ok(())
}

fn wait_reports_signals() -> Outcome {
    for signal in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGUSR1] {
        let ended = in_child(|| {
            let _ = kill(getpid(), signal);
            0
        })?;
        expect!(matches!(ended, WaitStatus::Signaled(_, number, _) if number == signal));
    }
    Ok(())
}

fn wait_any_and_nohang() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let child = spawn_child(|| {
        let mut byte = [0];
        let _ = read(&reader, &mut byte);
        5
    })?;
    expect_eq!(waitpid(child, Some(WaitPidFlag::WNOHANG)).or_fail()?, WaitStatus::StillAlive);
    write(&writer, b"x").or_fail()?;
    expect_eq!(waitpid(None, None).or_fail()?, WaitStatus::Exited(child, 5));
    Ok(())
}

fn wait_without_children() -> Outcome {
    expect_eq!(waitpid(None, None), Err(Errno::ECHILD));
    expect_eq!(waitpid(Pid::from_raw(1), None), Err(Errno::ECHILD));
    Ok(())
}

fn waitid_leaves_zombie() -> Outcome {
    let child = spawn_child(|| 9)?;
    let seen = waitid(Id::Pid(child), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).or_fail()?;
    expect_eq!(seen, WaitStatus::Exited(child, 9));
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 9));
    expect_eq!(waitpid(child, None), Err(Errno::ECHILD));
    Ok(())
}

fn wait_stopped_and_continued() -> Outcome {
    let child = spawn_child(|| {
        loop {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    })?;
    kill(child, Signal::SIGSTOP).or_fail()?;
    expect_eq!(
        waitpid(child, Some(WaitPidFlag::WUNTRACED)).or_fail()?,
        WaitStatus::Stopped(child, Signal::SIGSTOP)
    );
    kill(child, Signal::SIGCONT).or_fail()?;
    expect_eq!(waitpid(child, Some(WaitPidFlag::WCONTINUED)).or_fail()?, WaitStatus::Continued(child));
    kill(child, Signal::SIGKILL).or_fail()?;
    expect!(matches!(waitpid(child, None).or_fail()?, WaitStatus::Signaled(_, Signal::SIGKILL, _)));
    Ok(())
}

fn exec_passes_arguments_and_environment() -> Outcome {
    let output = Command::new(own_path())
        .args(["--as=echo", "", "two words", "\u{e9}"])
        .env_clear()
        .env("MARK", "here")
        .output()
        .or_fail()?;
    expect_eq!(String::from_utf8_lossy(&output.stdout), "\u{1}two words\u{1}\u{e9}|1|here");
    let long = "x".repeat(100_000);
    let output = Command::new(own_path()).args(["--as=echo", &long]).output().or_fail()?;
    expect!(output.stdout.starts_with(long.as_bytes()));
    let too_long = "x".repeat(200_000);
    let error = Command::new(own_path()).args(["--as=echo", &too_long]).output().err();
    expect_eq!(error.and_then(|error| error.raw_os_error()), Some(libc::E2BIG));
    Ok(())
}

fn exec_failures() -> Outcome {
    let scratch = crate::harness::Scratch::new("exec")?;
    let garbage = scratch.path("garbage");
    std::fs::write(&garbage, b"\x7fELF but not really").or_fail()?;
    let run = |path: &std::path::Path| {
        Command::new(path).stdin(Stdio::null()).output().err().and_then(|error| error.raw_os_error())
    };
    expect_eq!(run(&garbage), Some(libc::EACCES));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&garbage, mode).or_fail()?;
    expect_eq!(run(&garbage), Some(libc::ENOEXEC));
    expect_eq!(run(&scratch.path("absent")), Some(libc::ENOENT));
    expect_eq!(run(&scratch.0), Some(libc::EACCES));
    expect_eq!(run(&garbage.join("below")), Some(libc::ENOTDIR));
    Ok(())
}

fn exec_keeps_pid_and_closes_descriptors() -> Outcome {
    let mut child = Command::new(own_path()).arg("--as=pid").stdout(Stdio::piped()).spawn().or_fail()?;
    let pid = child.id();
    let mut printed = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut printed).or_fail()?;
    child.wait().or_fail()?;
    expect_eq!(printed, pid.to_string());

    let file = std::fs::File::open("/dev/null").or_fail()?;
    let number = file.as_raw_fd().to_string();
    let status = Command::new(own_path()).args(["--as=has-descriptor", &number]).status().or_fail()?;
    expect_eq!(status.code(), Some(0));
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).or_fail()?;
    let status = Command::new(own_path()).args(["--as=has-descriptor", &number]).status().or_fail()?;
    expect_eq!(status.code(), Some(1));
    Ok(())
}

fn exec_script() -> Outcome {
    let scratch = crate::harness::Scratch::new("script")?;
    let script = scratch.path("script");
    std::fs::write(&script, format!("#!{} --as=echo\nignored\n", own_path().display())).or_fail()?;
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).or_fail()?;
    let output = Command::new(&script).arg("more").env_clear().output().or_fail()?;
    expect_eq!(String::from_utf8_lossy(&output.stdout), format!("{}\u{1}more|0|", script.display()));
    Ok(())
}

fn posix_spawn_pipeline() -> Outcome {
    let mut first =
        Command::new(own_path()).args(["--as=echo", "through"]).stdout(Stdio::piped()).spawn().or_fail()?;
    let second = Command::new("/bin/cat").stdin(first.stdout.take().unwrap()).output().or_fail()?;
    expect!(first.wait().or_fail()?.success());
    expect!(second.stdout.starts_with(b"through|"));
    let mut cat = Command::new("/bin/cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().or_fail()?;
    let mut input = cat.stdin.take().unwrap();
    let data = vec![b'z'; 300_000];
    let copy = data.clone();
    let feeder = std::thread::spawn(move || input.write_all(&copy));
    let output = cat.wait_with_output().or_fail()?;
    expect!(feeder.join().is_ok_and(|result| result.is_ok()));
    expect!(output.stdout == data);
    Ok(())
}

fn groups_and_sessions() -> Outcome {
    let ended = in_child(|| {
        let own = getpid();
        let checks = [
            setpgid(Pid::from_raw(0), Pid::from_raw(0)).is_ok(),
            getpgrp() == own,
            setsid() == Err(Errno::EPERM),
            in_child(|| {
                let sid = setsid();
                let own = getpid();
                i32::from(!(sid == Ok(own) && getpgrp() == own && getsid(None) == Ok(own)))
            })
            .is_ok_and(|status| matches!(status, WaitStatus::Exited(_, 0))),
        ];
        checks.iter().position(|&ok| !ok).map_or(0, |index| index as i32 + 1)
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    expect_eq!(getpgid(Some(Pid::from_raw(999_999))), Err(Errno::ESRCH));
    Ok(())
}

fn a_failed_test_leaves_nobody_behind() -> Outcome {
    crate::harness::check_that_nobody_is_left()
}

fn orphan_goes_to_pid_1() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let middle = spawn_child(|| {
        let middle = getpid();
        let _ = spawn_child(|| {
            while getppid() == middle {
                std::thread::yield_now();
            }
            i32::from(write(&writer, &getppid().as_raw().to_ne_bytes()).is_err())
        });
        0
    })?;
    waitpid(middle, None).or_fail()?;
    let mut parent = [0; 4];
    read(&reader, &mut parent).or_fail()?;
    expect!(i32::from_ne_bytes(parent) != middle.as_raw());
    expect_eq!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Err(Errno::ECHILD));
    Ok(())
}

fn orphans_go_to_the_subreaper() -> Outcome {
    nix::sys::prctl::set_child_subreaper(true).or_fail()?;
    let (reader, writer) = pipe().or_fail()?;
    let middle = spawn_child(|| {
        let middle = getpid();
        let orphan = spawn_child(|| {
            while getppid() == middle {
                std::thread::yield_now();
            }
            i32::from(write(&writer, &getppid().as_raw().to_ne_bytes()).is_err()) + 5
        });
        // One that has ended by the time its parent does becomes a zombie of the subreaper.
        let ended = spawn_child(|| 6);
        let _ = ended.map(|pid| waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT));
        i32::from(orphan.is_err())
    })?;
    expect!(matches!(waitpid(middle, None), Ok(WaitStatus::Exited(_, 0))));
    let mut parent = [0; 4];
    read(&reader, &mut parent).or_fail()?;
    expect_eq!(i32::from_ne_bytes(parent), getpid().as_raw());
    let mut statuses = Vec::new();
    for _ in 0..2 {
        match waitpid(None, None).or_fail()? {
            WaitStatus::Exited(_, status) => statuses.push(status),
            other => return Err(format!("{other:?}")),
        }
    }
    statuses.sort_unstable();
    expect_eq!(statuses, [5, 6]);
    Ok(())
}

/// A process that asks for SIGUSR1 at its parent's end, says that it is ready, and ends with 7 when the signal comes.
fn await_death_of_parent(ready: &impl std::os::fd::AsFd) -> i32 {
    let set = nix::sys::signal::SigSet::from_iter([Signal::SIGUSR1]);
    let is_set = set.thread_block().is_ok() && nix::sys::prctl::set_pdeathsig(Signal::SIGUSR1).is_ok();
    if !is_set || write(ready, b"r").is_err() {
        return 1;
    }
    if set.wait() == Ok(Signal::SIGUSR1) { 7 } else { 2 }
}

fn the_parents_death_is_a_signal() -> Outcome {
    nix::sys::prctl::set_child_subreaper(true).or_fail()?;
    let (reader, writer) = pipe().or_fail()?;
    let middle = spawn_child(|| {
        let child = spawn_child(|| await_death_of_parent(&writer));
        let ready = read(&reader, &mut [0]);
        i32::from(child.is_err() || ready != Ok(1))
    })?;
    expect!(matches!(waitpid(middle, None), Ok(WaitStatus::Exited(_, 0))));
    expect!(matches!(waitpid(None, None), Ok(WaitStatus::Exited(_, 7))));
    // The wish is not inherited.
    expect!(matches!(
        in_child(|| i32::from(nix::sys::prctl::get_pdeathsig() != Ok(None))),
        Ok(WaitStatus::Exited(_, 0))
    ));
    Ok(())
}

fn the_creating_threads_death_counts_as_the_parents() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let creator = std::thread::spawn(move || {
        let child = spawn_child(|| await_death_of_parent(&writer));
        let _ = read(&reader, &mut [0]);
        child
    });
    let child = creator.join().map_err(|_| "the thread panicked")??;
    expect!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 7))));
    Ok(())
}

/// While a thread forks, which makes pages read-only again and again, another makes pipes: each call stores two numbers
/// after it has made them, and must not make them twice.
fn results_are_stored_once_while_another_thread_forks() -> Outcome {
    let open = || std::fs::read_dir("/proc/self/fd").map(Iterator::count).or_fail();
    let before = open()?;
    let forker = std::thread::spawn(|| {
        (0..60).try_for_each(|_| {
            let ended = in_child(|| 0)?;
            if matches!(ended, WaitStatus::Exited(_, 0)) { Ok(()) } else { Err(format!("{ended:?}")) }
        })
    });
    while !forker.is_finished() {
        let (reader, writer) = pipe().or_fail()?;
        write(&writer, b"z").or_fail()?;
        let mut byte = [0];
        expect_eq!(read(&reader, &mut byte), Ok(1));
        expect_eq!(byte, *b"z");
    }
    forker.join().map_err(|_| "the thread panicked")??;
    expect_eq!(open()?, before);
    Ok(())
}

fn credentials() -> Outcome {
    use nix::unistd::{Gid, Uid, geteuid, getgid, getuid, setgid, setgroups, setuid};
    if !getuid().is_root() {
        return Ok(());
    }
    let ended = in_child(|| {
        let checks = [
            setgroups(&[Gid::from_raw(5), Gid::from_raw(6)]).is_ok(),
            setgid(Gid::from_raw(1000)).is_ok(),
            setuid(Uid::from_raw(1000)).is_ok(),
            getuid().as_raw() == 1000 && geteuid().as_raw() == 1000 && getgid().as_raw() == 1000,
            setuid(Uid::from_raw(0)) == Err(Errno::EPERM),
            std::fs::write("/etc/heddle-must-not-be-written", "x").is_err(),
            kill(Pid::from_raw(1), Signal::SIGTERM) == Err(Errno::EPERM),
        ];
        checks.iter().position(|&ok| !ok).map_or(0, |index| index as i32 + 1)
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn resource_limits() -> Outcome {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let ended = in_child(|| {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
        let checks = [
            setrlimit(Resource::RLIMIT_NOFILE, 10, hard).is_ok(),
            getrlimit(Resource::RLIMIT_NOFILE) == Ok((10, hard)),
            {
                let files: Vec<_> = (0..20).map(|_| std::fs::File::open("/dev/null")).collect();
                files
                    .iter()
                    .any(|file| file.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EMFILE)))
            },
            setrlimit(Resource::RLIMIT_NOFILE, 11, 10) == Err(Errno::EINVAL),
        ];
        checks.iter().position(|&ok| !ok).map_or(0, |index| index as i32 + 1)
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    Ok(())
}

#[allow(unsafe_code, reason = "clone has no safe form")]
fn vfork_child_shares_memory() -> Outcome {
    static SHARED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn child(_: *mut libc::c_void) -> libc::c_int {
        SHARED.store(77, Ordering::SeqCst);
        3
    }
    let mut stack = vec![0u8; 1 << 16];
    // SAFETY: the stack is exclusively the child's until it has ended, and CLONE_VFORK keeps this thread waiting until
    // then; the child touches nothing but an atomic.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()) as usize & !15;
        libc::clone(
            child,
            top as *mut libc::c_void,
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            std::ptr::null_mut(),
        )
    };
    expect_eq!(SHARED.load(Ordering::SeqCst), 77);
    expect_eq!(waitpid(Pid::from_raw(pid), None).or_fail()?, WaitStatus::Exited(Pid::from_raw(pid), 3));
    let error = Command::new("/nonexistent/program").spawn().err();
    expect_eq!(error.and_then(|error| error.raw_os_error()), Some(libc::ENOENT));
    let status = unsafe_free_exit_status()?;
    expect_eq!(status, 33);
    Ok(())
}

/// A child whose `pre_exec` hook makes the library fork instead of `posix_spawn`.
#[allow(unsafe_code, reason = "pre_exec has no safe form")]
fn unsafe_free_exit_status() -> Result<i32, String> {
    let mut command = Command::new(own_path());
    command.args(["--as=exit", "33"]);
    // SAFETY: the hook does nothing, which is allowed after fork.
    unsafe { command.pre_exec(|| Ok(())) };
    let status = command.status().or_fail()?;
    status.code().ok_or_else(|| format!("killed by {:?}", status.signal()))
}
