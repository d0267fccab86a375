//! Pseudo-terminals and job control.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::Signal;
use nix::sys::termios::{LocalFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid, isatty, read, setsid, tcgetpgrp, tcsetpgrp, ttyname, write};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    canonical_mode_gives_lines
    raw_mode_gives_bytes
    output_is_processed
    window_size_is_kept
    pty_has_a_name
    interrupt_character_kills_the_group
    background_reader_is_stopped
    hang_up_ends_the_session
    closed_slave_is_an_error
    input_is_typed_by_whose_terminal_it_is
    there_is_one_line_discipline
}

nix::ioctl_read_bad!(get_window_size, libc::TIOCGWINSZ, Winsize);
nix::ioctl_write_int_bad!(set_controlling_terminal, libc::TIOCSCTTY);
nix::ioctl_write_ptr_bad!(type_in, libc::TIOCSTI, u8);
nix::ioctl_write_ptr_bad!(set_discipline, libc::TIOCSETD, libc::c_int);
nix::ioctl_read_bad!(get_discipline, libc::TIOCGETD, libc::c_int);

fn quiet(slave: &OwnedFd) -> Result<Termios, String> {
    let mut settings = tcgetattr(slave).or_fail()?;
    settings.local_flags.remove(LocalFlags::ECHO);
    tcsetattr(slave, SetArg::TCSANOW, &settings).or_fail()?;
    Ok(settings)
}

fn canonical_mode_gives_lines() -> Outcome {
    let OpenptyResult { master, slave } = openpty(None, None).or_fail()?;
    quiet(&slave)?;
    let mut buffer = [0; 64];
    write(&master, b"helloo\x7f wurld\x17world\rnext\n\x04").or_fail()?;
    expect_eq!(read(&slave, &mut buffer), Ok(12));
    expect_eq!(&buffer[..12], b"hello world\n");
    expect_eq!(read(&slave, &mut buffer[..2]), Ok(2));
    expect_eq!(read(&slave, &mut buffer), Ok(3));
    expect_eq!(&buffer[..3], b"xt\n");
    expect_eq!(read(&slave, &mut buffer), Ok(0));
    Ok(())
}

fn raw_mode_gives_bytes() -> Outcome {
    let OpenptyResult { master, slave } = openpty(None, None).or_fail()?;
    let mut settings = tcgetattr(&slave).or_fail()?;
    cfmakeraw(&mut settings);
    tcsetattr(&slave, SetArg::TCSANOW, &settings).or_fail()?;
    let all: Vec<u8> = (0..=255).collect();
    write(&master, &all).or_fail()?;
    let mut seen = Vec::new();
    while seen.len() < 256 {
        let mut buffer = [0; 300];
        let count = read(&slave, &mut buffer).or_fail()?;
        seen.extend_from_slice(&buffer[..count]);
    }
    expect!(seen == all);
    Ok(())
}

fn output_is_processed() -> Outcome {
    let OpenptyResult { master, slave } = openpty(None, None).or_fail()?;
    write(&slave, b"a\nb").or_fail()?;
    let mut buffer = [0; 64];
    let mut count = 0;
    // Linux may hand over what was written before and after the end of the line in two pieces.
    while count < 4 {
        count += read(&master, &mut buffer[count..]).or_fail()?;
    }
    expect_eq!(&buffer[..count], b"a\r\nb");
    write(&master, b"x").or_fail()?;
    expect_eq!(read(&master, &mut buffer), Ok(1));
    write(&master, b"\x03").or_fail()?;
    let count = read(&master, &mut buffer).or_fail()?;
    expect_eq!(&buffer[..count], b"^C");
    Ok(())
}

#[allow(unsafe_code, reason = "ioctls have no safe form")]
fn window_size_is_kept() -> Outcome {
    let size = Winsize { ws_row: 33, ws_col: 101, ws_xpixel: 0, ws_ypixel: 0 };
    let OpenptyResult { master: _master, slave } = openpty(Some(&size), None).or_fail()?;
    let mut seen = Winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the result lives in this frame.
    unsafe { get_window_size(slave.as_raw_fd(), &raw mut seen) }.or_fail()?;
    expect_eq!((seen.ws_row, seen.ws_col), (33, 101));
    Ok(())
}

fn pty_has_a_name() -> Outcome {
    let OpenptyResult { master, slave } = openpty(None, None).or_fail()?;
    expect!(isatty(&slave).or_fail()? && isatty(&master).or_fail()?);
    let name = ttyname(&slave).or_fail()?;
    expect!(name.starts_with("/dev/pts/"));
    let mut again = File::options().read(true).write(true).open(&name).or_fail()?;
    again.write_all(b"by name").or_fail()?;
    let mut buffer = [0; 64];
    expect_eq!(read(&master, &mut buffer), Ok(7));
    Ok(())
}

/// Starts a child that leads a session on the slave and runs `body`.
#[allow(unsafe_code, reason = "ioctls have no safe form")]
fn session(pty: OpenptyResult, body: impl FnOnce(&OwnedFd) -> i32) -> Result<(OwnedFd, Pid), String> {
    let OpenptyResult { master, slave } = pty;
    let master_number = master.as_raw_fd();
    let child = spawn_child(|| {
        // SAFETY: the descriptor is this process's copy and not used otherwise; the ioctl takes a number.
        let ready = unsafe {
            libc::close(master_number);
            setsid().is_ok() && set_controlling_terminal(slave.as_raw_fd(), 0).is_ok()
        };
        if ready { body(&slave) } else { 100 }
    })?;
    Ok((master, child))
}

fn interrupt_character_kills_the_group() -> Outcome {
    let (master, child) = session(openpty(None, None).or_fail()?, |slave| {
        let foreground = tcgetpgrp(slave) == Ok(getpid());
        let _ = write(slave, if foreground { b"ready" } else { b"wrong" });
        nix::unistd::pause();
        0
    })?;
    let mut buffer = [0; 64];
    expect_eq!(read(&master, &mut buffer), Ok(5));
    expect_eq!(&buffer[..5], b"ready");
    write(&master, b"\x03").or_fail()?;
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Signaled(child, Signal::SIGINT, false));
    Ok(())
}

fn background_reader_is_stopped() -> Outcome {
    let (_master, child) = session(openpty(None, None).or_fail()?, |slave| {
        let Ok(reader) = spawn_child(|| {
            let _ = nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0));
            let mut byte = [0];
            i32::from(read(slave, &mut byte).is_err())
        }) else {
            return 1;
        };
        let stopped = waitpid(reader, Some(WaitPidFlag::WUNTRACED));
        if stopped != Ok(WaitStatus::Stopped(reader, Signal::SIGTTIN)) {
            return 2;
        }
        if tcsetpgrp(slave, reader).is_err() || tcgetpgrp(slave) != Ok(reader) {
            return 3;
        }
        let _ = nix::sys::signal::kill(reader, Signal::SIGKILL);
        let _ = waitpid(reader, None);
        0
    })?;
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    Ok(())
}

fn hang_up_ends_the_session() -> Outcome {
    let (master, child) = session(openpty(None, None).or_fail()?, |slave| {
        let _ = write(slave, b"x");
        nix::unistd::pause();
        0
    })?;
    let mut byte = [0];
    read(&master, &mut byte).or_fail()?;
    drop(master);
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Signaled(child, Signal::SIGHUP, false));
    Ok(())
}

fn closed_slave_is_an_error() -> Outcome {
    let OpenptyResult { master, slave } = openpty(None, None).or_fail()?;
    write(&slave, b"last").or_fail()?;
    drop(slave);
    let mut buffer = [0; 64];
    let mut master = File::from(master);
    expect_eq!(master.read(&mut buffer).or_fail()?, 4);
    let error = master.read(&mut buffer).err().and_then(|error| error.raw_os_error());
    expect_eq!(error, Some(Errno::EIO as i32));
    Ok(())
}

#[allow(unsafe_code, reason = "ioctls have no safe form")]
fn input_is_typed_by_whose_terminal_it_is() -> Outcome {
    let OpenptyResult { master: _master, slave } = openpty(None, None).or_fail()?;
    quiet(&slave)?;
    let child = spawn_child(|| {
        let typed = |text: &[u8]| {
            text.iter().try_for_each(|byte| {
                // SAFETY: the byte lives during the call.
                unsafe { type_in(slave.as_raw_fd(), byte) }.map(drop)
            })
        };
        // The administrator may type into any.
        if typed(b"one\n") != Ok(()) {
            return 1;
        }
        let user = nix::unistd::Uid::from_raw(12_345);
        if setsid().is_err() || nix::unistd::setresuid(user, user, user).is_err() {
            return 2;
        }
        if typed(b"two\n") != Err(Errno::EPERM) {
            return 3;
        }
        // SAFETY: the argument is a number.
        if unsafe { set_controlling_terminal(slave.as_raw_fd(), 0) }.is_err() {
            return 4;
        }
        if typed(b"three\n") != Ok(()) {
            return 5;
        }
        // SAFETY: nothing is there.
        if unsafe { type_in(slave.as_raw_fd(), std::ptr::null()) } != Err(Errno::EFAULT) {
            return 6;
        }
        0
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    let mut buffer = [0; 64];
    expect_eq!(read(&slave, &mut buffer), Ok(4));
    expect_eq!(&buffer[..4], b"one\n");
    Ok(())
}

#[allow(unsafe_code, reason = "ioctls have no safe form")]
fn there_is_one_line_discipline() -> Outcome {
    let OpenptyResult { master: _master, slave } = openpty(None, None).or_fail()?;
    // SAFETY: the number lives during the calls.
    let set = |discipline: libc::c_int| unsafe { set_discipline(slave.as_raw_fd(), &raw const discipline) };
    expect_eq!(set(0), Ok(0));
    expect_eq!(set(500), Err(Errno::EINVAL));
    let mut discipline = -1;
    // SAFETY: the number lives during the call.
    expect_eq!(unsafe { get_discipline(slave.as_raw_fd(), &raw mut discipline) }, Ok(0));
    expect_eq!(discipline, 0);
    Ok(())
}
