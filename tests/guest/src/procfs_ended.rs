//! The words of `/proc` about a process that has ended, before and after its parent has heard of it, and fields of
//! single files.
#![allow(unsafe_code, reason = "children are made by calls that have no safe form")]

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::sys::wait::{WaitPidFlag, waitid, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pause};

use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    a_zombie_has_a_thread_until_it_is_waited_for
    texts_of_a_process_that_is_gone_are_no_texts
    names_below_a_process_that_is_gone_lead_nowhere
    children_are_listed_by_the_thread_that_made_them
    a_thread_has_a_link_in_its_process
    the_file_system_itself_is_number_one
    names_of_mappings_stand_in_one_column
    a_descriptor_tells_whether_it_ends_with_exec
    a_name_is_the_process_own_matter
    the_machine_tells_its_fields
    data_is_private_and_writable
}

/// A child that waits to be ended.
fn child() -> Result<Pid, String> {
    // SAFETY: the child makes one call.
    match unsafe { fork() }.or_fail()? {
        ForkResult::Child => loop {
            pause();
        },
        ForkResult::Parent { child } => Ok(child),
    }
}

/// Ends it, and waits until it has ended, without taking note.
fn end(child: Pid) -> Outcome {
    kill(child, Signal::SIGKILL).or_fail()?;
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    waitid(nix::sys::wait::Id::Pid(child), flags).or_fail().map(drop)
}

fn a_zombie_has_a_thread_until_it_is_waited_for() -> Outcome {
    let child = child()?;
    end(child)?;
    let text = fs::read_to_string(format!("/proc/{child}/status")).or_fail()?;
    waitpid(child, None).or_fail()?;
    expect!(text.contains("State:\tZ (zombie)\n"));
    expect!(text.contains("\nThreads:\t1\n"));
    Ok(())
}

fn texts_of_a_process_that_is_gone_are_no_texts() -> Outcome {
    let child = child()?;
    let open = |name: &str| File::open(format!("/proc/{child}/{name}"));
    let mut files = Vec::new();
    for name in ["comm", "maps", "status", "stat", "statm", "cmdline"] {
        files.push((name, open(name).or_fail()?));
    }
    end(child)?;
    waitpid(child, None).or_fail()?;
    for (name, mut file) in files {
        let answer = file.read(&mut [0; 64]).map_err(|error| error.raw_os_error());
        // Of the arguments' memory nothing is left, which is the end of the file.
        let expected = if name == "cmdline" {
            vec![Ok(0), Err(Some(libc::ESRCH))]
        } else {
            vec![Err(Some(libc::ESRCH))]
        };
        expect_eq!((name, expected.contains(&answer)), (name, true));
    }
    Ok(())
}

fn names_below_a_process_that_is_gone_lead_nowhere() -> Outcome {
    let child = child()?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let open = |name: &str| -> Result<OwnedFd, String> {
        let path = format!("/proc/{child}{name}");
        let descriptor = nix::fcntl::open(path.as_str(), flags, Mode::empty()).or_fail()?;
        // SAFETY: the call has returned a descriptor that nobody else has.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor.as_raw_fd()) }).inspect(|_| std::mem::forget(descriptor))
    };
    let (directory, tasks) = (open("")?, open("/task")?);
    end(child)?;
    waitpid(child, None).or_fail()?;
    for name in ["exe", "cwd", "root"] {
        expect_eq!(readlinkat(&directory, name).map(drop), Err(Errno::ESRCH));
    }
    let mut buffer = [0_u8; 512];
    // SAFETY: the call writes at most as many bytes as there are.
    let result =
        unsafe { libc::syscall(libc::SYS_getdents64, tasks.as_raw_fd(), buffer.as_mut_ptr(), buffer.len()) };
    expect_eq!(Errno::result(result), Err(Errno::ENOENT));
    Ok(())
}

fn children_are_listed_by_the_thread_that_made_them() -> Outcome {
    let path = || format!("/proc/self/task/{}/children", nix::unistd::gettid());
    expect_eq!(fs::read_to_string(path()).or_fail()?, "");
    let (first, second) = (child()?, child()?);
    expect_eq!(fs::read_to_string(path()).or_fail()?, format!("{first} {second} "));
    let other = std::thread::spawn(move || fs::read_to_string(path()));
    expect_eq!(other.join().map_err(|_| "a panic")?.or_fail()?, "");
    for child in [first, second] {
        end(child)?;
        waitpid(child, None).or_fail()?;
    }
    Ok(())
}

fn a_thread_has_a_link_in_its_process() -> Outcome {
    let count = || fs::metadata("/proc/self/task").map(|metadata| metadata.nlink());
    let before = count().or_fail()?;
    expect_eq!(before, 3);
    let (inside, outside) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            inside.wait();
            outside.wait();
        });
        inside.wait();
        let during = count();
        outside.wait();
        expect_eq!(during.or_fail()?, before + 1);
        Ok(())
    })
}

fn the_file_system_itself_is_number_one() -> Outcome {
    expect_eq!(fs::metadata("/proc").or_fail()?.ino(), 1);
    Ok(())
}

fn names_of_mappings_stand_in_one_column() -> Outcome {
    let text = fs::read_to_string("/proc/self/maps").or_fail()?;
    let stack = text.lines().find(|line| line.ends_with("[stack]")).ok_or("no stack")?;
    expect_eq!(stack.find("[stack]"), Some(73));
    let program = text.lines().find_map(|line| line.find('/')).ok_or("no program")?;
    expect_eq!(program, 73);
    Ok(())
}

fn a_descriptor_tells_whether_it_ends_with_exec() -> Outcome {
    let flags = |file: &File| -> Result<i32, String> {
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).or_fail()?;
        let line = text.lines().find_map(|line| line.strip_prefix("flags:")).ok_or("no flags")?;
        i32::from_str_radix(line.trim(), 8).or_fail()
    };
    let file = File::open("/proc/self/exe").or_fail()?;
    expect!(flags(&file)? & libc::O_CLOEXEC != 0);
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).or_fail()?;
    expect_eq!(flags(&file)? & libc::O_CLOEXEC, 0);
    Ok(())
}

fn a_name_is_the_process_own_matter() -> Outcome {
    let child = child()?;
    let mut file = fs::OpenOptions::new().write(true).open(format!("/proc/{child}/comm")).or_fail()?;
    let refused = file.write(b"other").map_err(|error| error.kind());
    end(child)?;
    waitpid(child, None).or_fail()?;
    expect_eq!(refused, Err(ErrorKind::InvalidInput));
    fs::write("/proc/self/comm", "own").or_fail()?;
    expect_eq!(fs::read_to_string("/proc/self/comm").or_fail()?, "own\n");
    Ok(())
}

fn the_machine_tells_its_fields() -> Outcome {
    let text = fs::read_to_string("/proc/stat").or_fail()?;
    let line = text.lines().find_map(|line| line.strip_prefix("softirq ")).ok_or("no softirq")?;
    expect_eq!(line.split(' ').count(), 11);
    let text = fs::read_to_string("/proc/cpuinfo").or_fail()?;
    for name in ["cpu MHz", "apicid", "initial apicid", "bogomips", "cache_alignment", "power management"] {
        let has = |line: &str| line.split(':').next().is_some_and(|start| start.trim_end() == name);
        expect_eq!((name, text.lines().any(has)), (name, true));
    }
    Ok(())
}

fn data_is_private_and_writable() -> Outcome {
    const BYTES: usize = 1 << 20;
    let mut status = File::open("/proc/self/status").or_fail()?;
    let mut data = || -> Result<usize, String> {
        let mut text = String::new();
        status.rewind().or_fail()?;
        status.read_to_string(&mut text).or_fail()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmData:")).ok_or("no VmData")?;
        line.trim().trim_end_matches(" kB").parse().or_fail()
    };
    let before = data()?;
    // SAFETY: a new mapping.
    let address = unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), BYTES, rights, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    expect!(address != libc::MAP_FAILED);
    expect!(data()? >= before + BYTES / 1024);
    Ok(())
}
