//! Pseudoterminals beyond lines: reads with minimum and time, packet mode, flow control, readiness,
//! hang-ups.

use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{OpenptyResult, PtyMaster, grantpt, openpty, posix_openpt, unlockpt};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::termios::{
    FlowArg, FlushArg, LocalFlags, SetArg, SpecialCharacterIndices, cfmakeraw, tcflow, tcflush, tcgetattr,
    tcsetattr,
};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, read, setpgid, setsid, write};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_read_waits_for_the_minimum
    a_read_ends_when_its_time_is_over
    time_without_a_minimum_ends_an_empty_read
    a_read_without_minimum_and_time_never_waits
    packet_mode_tells_of_changes
    the_stop_character_holds_output_back
    a_program_can_stop_output
    flushing_forgets_what_was_typed
    readiness_follows_lines_and_hang_ups
    a_locked_terminal_cannot_be_opened
    the_master_opens_its_peer
    resizing_tells_the_foreground
    background_output_stops_only_when_asked
    an_orphaned_reader_gets_an_error
    a_hung_up_terminal_is_at_its_end
    a_session_s_end_is_not_the_terminal_s
    numbers_are_used_again
}

/// `TIOCPKT_STOP` and `TIOCPKT_START`, which libc doesn't have.
const PACKET_STOP: u8 = 4;
const PACKET_START: u8 = 8;

nix::ioctl_write_ptr_bad!(set_packet_mode, libc::TIOCPKT, libc::c_int);
nix::ioctl_read_bad!(get_number, libc::TIOCGPTN, libc::c_uint);
nix::ioctl_read_bad!(get_pending, libc::FIONREAD, libc::c_int);
nix::ioctl_write_ptr_bad!(set_window_size, libc::TIOCSWINSZ, libc::winsize);
nix::ioctl_write_int_bad!(set_controlling_terminal, libc::TIOCSCTTY);
nix::ioctl_write_int_bad!(open_peer, libc::TIOCGPTPEER);

fn raw(minimum: u8, time: u8) -> Result<OpenptyResult, String> {
    let pty = openpty(None, None).or_fail()?;
    let mut settings = tcgetattr(&pty.slave).or_fail()?;
    cfmakeraw(&mut settings);
    settings.control_chars[SpecialCharacterIndices::VMIN as usize] = minimum;
    settings.control_chars[SpecialCharacterIndices::VTIME as usize] = time;
    tcsetattr(&pty.slave, SetArg::TCSANOW, &settings).or_fail()?;
    Ok(pty)
}

fn events(file: &impl AsFd) -> Result<PollFlags, String> {
    let mut entries = [PollFd::new(file.as_fd(), PollFlags::POLLIN | PollFlags::POLLOUT)];
    poll(&mut entries, PollTimeout::ZERO).or_fail()?;
    entries[0].revents().ok_or_else(|| "unknown events".into())
}

/// Waits until a file is readable. The line discipline of Linux runs in a worker.
fn wait_readable(file: &impl AsFd) -> Outcome {
    let mut entries = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    expect_eq!(poll(&mut entries, PollTimeout::from(10_000_u16)), Ok(1));
    Ok(())
}

fn a_read_waits_for_the_minimum() -> Outcome {
    let OpenptyResult { master, slave } = raw(4, 0)?;
    write(&master, b"ab").or_fail()?;
    let writer = spawn_child(|| {
        std::thread::sleep(Duration::from_millis(20));
        i32::from(write(&master, b"cdef") != Ok(4))
    })?;
    let mut buffer = [0; 16];
    let mut count = read(&slave, &mut buffer).or_fail()?;
    expect!(count >= 4);
    expect_eq!(waitpid(writer, None).or_fail()?, WaitStatus::Exited(writer, 0));
    while count < 6 {
        // Fewer than the minimum are left, and reading fewer is content with them.
        count += read(&slave, &mut buffer[count..6]).or_fail()?;
    }
    expect_eq!(&buffer[..6], b"abcdef");
    Ok(())
}

fn a_read_ends_when_its_time_is_over() -> Outcome {
    let OpenptyResult { master, slave } = raw(10, 1)?;
    write(&master, b"xyz").or_fail()?;
    let mut buffer = [0; 16];
    let begin = Instant::now();
    expect_eq!(read(&slave, &mut buffer), Ok(3));
    expect!(begin.elapsed() >= Duration::from_millis(50));
    Ok(())
}

fn time_without_a_minimum_ends_an_empty_read() -> Outcome {
    let OpenptyResult { master, slave } = raw(0, 1)?;
    let mut buffer = [0; 16];
    let begin = Instant::now();
    expect_eq!(read(&slave, &mut buffer), Ok(0));
    expect!(begin.elapsed() >= Duration::from_millis(50));
    write(&master, b"q").or_fail()?;
    expect_eq!(read(&slave, &mut buffer), Ok(1));
    Ok(())
}

fn a_read_without_minimum_and_time_never_waits() -> Outcome {
    let OpenptyResult { master, slave } = raw(0, 0)?;
    let mut buffer = [0; 16];
    expect_eq!(read(&slave, &mut buffer), Ok(0));
    write(&master, b"q").or_fail()?;
    wait_readable(&slave)?;
    expect_eq!(read(&slave, &mut buffer), Ok(1));
    Ok(())
}

#[allow(unsafe_code, reason = "ioctls have no safe form")]
fn packet_mode_tells_of_changes() -> Outcome {
    let OpenptyResult { master, slave } = openpty(None, None).or_fail()?;
    // SAFETY: the argument lives until the end of the statement.
    unsafe { set_packet_mode(master.as_raw_fd(), &1) }.or_fail()?;
    write(&slave, b"hi").or_fail()?;
    let mut buffer = [0xff; 16];
    expect_eq!(read(&master, &mut buffer), Ok(3));
    expect_eq!(&buffer[..3], b"\0hi");
    tcflow(&slave, FlowArg::TCOOFF).or_fail()?;
    expect!(events(&master)?.contains(PollFlags::POLLIN));
    expect_eq!(read(&master, &mut buffer), Ok(1));
    expect_eq!(buffer[0] & PACKET_STOP, PACKET_STOP);
    tcflow(&slave, FlowArg::TCOON).or_fail()?;
    expect_eq!(read(&master, &mut buffer), Ok(1));
    expect_eq!(buffer[0] & PACKET_START, PACKET_START);
    Ok(())
}

fn non_blocking(file: &impl AsFd) -> Outcome {
    fcntl(file, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).or_fail()?;
    Ok(())
}

fn the_stop_character_holds_output_back() -> Outcome {
    let OpenptyResult { master, slave } = openpty(None, None).or_fail()?;
    non_blocking(&slave)?;
    write(&master, b"\x13").or_fail()?;
    // A read that finds nothing has seen everything that was typed before.
    let mut buffer = [0; 16];
    expect_eq!(read(&slave, &mut buffer), Err(Errno::EAGAIN));
    expect_eq!(write(&slave, b"held"), Err(Errno::EAGAIN));
    expect!(!events(&slave)?.contains(PollFlags::POLLOUT));
    write(&master, b"\x11").or_fail()?;
    expect_eq!(read(&slave, &mut buffer), Err(Errno::EAGAIN));
    expect_eq!(write(&slave, b"free"), Ok(4));
    expect_eq!(read(&master, &mut buffer), Ok(4));
    Ok(())
}

fn a_program_can_stop_output() -> Outcome {
    let OpenptyResult { master, slave } = openpty(None, None).or_fail()?;
    tcflow(&slave, FlowArg::TCOOFF).or_fail()?;
    let writer = spawn_child(|| i32::from(write(&slave, b"late") != Ok(4)))?;
    let mut entries = [PollFd::new(master.as_fd(), PollFlags::POLLIN)];
    expect_eq!(poll(&mut entries, PollTimeout::from(20_u16)), Ok(0));
    tcflow(&slave, FlowArg::TCOON).or_fail()?;
    let mut buffer = [0; 16];
    expect_eq!(read(&master, &mut buffer), Ok(4));
    expect_eq!(waitpid(writer, None).or_fail()?, WaitStatus::Exited(writer, 0));
    Ok(())
}

#[allow(unsafe_code, reason = "ioctls have no safe form")]
fn flushing_forgets_what_was_typed() -> Outcome {
    let OpenptyResult { master, slave } = openpty(None, None).or_fail()?;
    write(&master, b"one\ntwo").or_fail()?;
    wait_readable(&slave)?;
    let mut count = 0;
    // SAFETY: the result lives in this frame.
    unsafe { get_pending(slave.as_raw_fd(), &raw mut count) }.or_fail()?;
    expect_eq!(count, 4);
    tcflush(&slave, FlushArg::TCIFLUSH).or_fail()?;
    non_blocking(&slave)?;
    expect_eq!(read(&slave, &mut [0; 16]), Err(Errno::EAGAIN));
    Ok(())
}

fn readiness_follows_lines_and_hang_ups() -> Outcome {
    let OpenptyResult { master, slave } = openpty(None, None).or_fail()?;
    expect_eq!(events(&slave)?, PollFlags::POLLOUT);
    expect_eq!(events(&master)?, PollFlags::POLLOUT);
    write(&master, b"part").or_fail()?;
    wait_readable(&master)?;
    expect_eq!(events(&slave)?, PollFlags::POLLOUT);
    write(&master, b"\n").or_fail()?;
    wait_readable(&slave)?;
    drop(slave);
    expect!(events(&master)?.contains(PollFlags::POLLHUP));
    Ok(())
}

fn new_master() -> Result<PtyMaster, String> {
    posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY).or_fail()
}

#[allow(unsafe_code, reason = "ioctls have no safe form")]
fn number(master: &PtyMaster) -> Result<u32, String> {
    let mut number = 0;
    // SAFETY: the result lives in this frame.
    unsafe { get_number(master.as_raw_fd(), &raw mut number) }.or_fail()?;
    Ok(number)
}

fn a_locked_terminal_cannot_be_opened() -> Outcome {
    let master = new_master()?;
    let path = format!("/dev/pts/{}", number(&master)?);
    let open = || std::fs::File::options().read(true).write(true).open(&path);
    expect_eq!(open().err().and_then(|error| error.raw_os_error()), Some(Errno::EIO as i32));
    grantpt(&master).or_fail()?;
    unlockpt(&master).or_fail()?;
    open().or_fail()?;
    drop(master);
    expect_eq!(open().err().and_then(|error| error.raw_os_error()), Some(Errno::ENOENT as i32));
    Ok(())
}

#[allow(unsafe_code, reason = "ioctls have no safe form")]
fn the_master_opens_its_peer() -> Outcome {
    let mut master = new_master()?;
    unlockpt(&master).or_fail()?;
    // SAFETY: the ioctl takes a number and returns a descriptor that nobody else owns.
    let slave = unsafe {
        OwnedFd::from_raw_fd(open_peer(master.as_raw_fd(), libc::O_RDWR | libc::O_NOCTTY).or_fail()?)
    };
    master.write_all(b"to the peer\n").or_fail()?;
    expect_eq!(read(&slave, &mut [0; 64]), Ok(12));
    Ok(())
}

/// Starts a child that leads a session on the slave and runs `body`; its answer comes back as its status.
#[allow(unsafe_code, reason = "ioctls have no safe form")]
fn in_session(
    OpenptyResult { master, slave }: OpenptyResult,
    body: impl FnOnce(&OwnedFd) -> i32,
) -> Result<(OwnedFd, Pid), String> {
    let master_number = master.as_raw_fd();
    let child = spawn_child(|| {
        // SAFETY: the descriptor is this process's copy and not used otherwise; the ioctl takes a number.
        let ready = unsafe {
            libc::close(master_number);
            setsid().is_ok() && set_controlling_terminal(slave.as_raw_fd(), 0).is_ok()
        };
        if ready { body(&slave) } else { 100 }
    })?;
    drop(slave);
    Ok((master, child))
}

#[allow(unsafe_code, reason = "ioctls have no safe form")]
fn resizing_tells_the_foreground() -> Outcome {
    let (master, child) = in_session(openpty(None, None).or_fail()?, |slave| {
        let mut waited = SigSet::empty();
        waited.add(Signal::SIGWINCH);
        let ready = waited.thread_block().is_ok() && write(slave, b"r") == Ok(1);
        i32::from(!ready || waited.wait() != Ok(Signal::SIGWINCH))
    })?;
    expect_eq!(read(&master, &mut [0; 4]), Ok(1));
    let size = libc::winsize { ws_row: 7, ws_col: 9, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the argument lives in this frame.
    unsafe { set_window_size(master.as_raw_fd(), &raw const size) }.or_fail()?;
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    Ok(())
}

fn background_output_stops_only_when_asked() -> Outcome {
    let (_master, child) = in_session(openpty(None, None).or_fail()?, |slave| {
        let in_background = |status: i32| {
            spawn_child(|| {
                let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
                if write(slave, b"x") == Ok(1) { status } else { 1 }
            })
        };
        let Ok(free) = in_background(0) else { return 1 };
        if waitpid(free, Some(WaitPidFlag::WUNTRACED)) != Ok(WaitStatus::Exited(free, 0)) {
            return 2;
        }
        let Ok(mut settings) = tcgetattr(slave) else { return 3 };
        settings.local_flags.insert(LocalFlags::TOSTOP);
        if tcsetattr(slave, SetArg::TCSANOW, &settings).is_err() {
            return 4;
        }
        let Ok(held) = in_background(0) else { return 5 };
        let stopped = waitpid(held, Some(WaitPidFlag::WUNTRACED));
        let _ = nix::sys::signal::kill(held, Signal::SIGKILL);
        let _ = waitpid(held, None);
        if stopped == Ok(WaitStatus::Stopped(held, Signal::SIGTTOU)) { 0 } else { 6 }
    })?;
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    Ok(())
}

fn an_orphaned_reader_gets_an_error() -> Outcome {
    let (_master, child) = in_session(openpty(None, None).or_fail()?, |slave| {
        // The child's child is alone in its group, and the only process that could continue it is about to end.
        let Ok((mine, theirs)) = nix::unistd::pipe() else { return 1 };
        let middle = spawn_child(|| {
            let started = spawn_child(|| {
                let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
                while nix::unistd::getppid() != Pid::from_raw(1) && has_parent_in_session() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let answer = u8::from(read(slave, &mut [0; 1]) == Err(Errno::EIO));
                i32::from(write(&theirs, &[answer]) != Ok(1))
            });
            i32::from(started.is_err())
        });
        let Ok(middle) = middle else { return 2 };
        let _ = waitpid(middle, None);
        drop(theirs);
        let mut answer = [0];
        if read(&mine, &mut answer) == Ok(1) && answer == [1] { 0 } else { 3 }
    })?;
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    Ok(())
}

/// Whether the parent is in this process's session: an orphan's new parent is not.
fn has_parent_in_session() -> bool {
    nix::unistd::getsid(Some(nix::unistd::getppid())) == nix::unistd::getsid(None)
}

fn a_hung_up_terminal_is_at_its_end() -> Outcome {
    let OpenptyResult { master, slave } = openpty(None, None).or_fail()?;
    drop(master);
    expect_eq!(read(&slave, &mut [0; 4]), Ok(0));
    expect_eq!(write(&slave, b"x"), Err(Errno::EIO));
    expect!(events(&slave)?.contains(PollFlags::POLLIN | PollFlags::POLLHUP));
    Ok(())
}

fn a_session_s_end_is_not_the_terminal_s() -> Outcome {
    let OpenptyResult { master, slave } = openpty(None, None).or_fail()?;
    let own = slave.try_clone().or_fail()?;
    let (master, child) = in_session(OpenptyResult { master, slave }, |_| 0)?;
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    // A process that still has it open can go on; the master sees an end only when the last file is closed.
    expect_eq!(write(&own, b"x"), Ok(1));
    expect_eq!(read(&master, &mut [0; 4]), Ok(1));
    expect!(!events(&master)?.contains(PollFlags::POLLHUP));
    drop(own);
    expect!(events(&master)?.contains(PollFlags::POLLHUP));
    Ok(())
}

fn numbers_are_used_again() -> Outcome {
    let (first, second) = (new_master()?, new_master()?);
    let gone = number(&first)?;
    expect!(gone != number(&second)?);
    drop(first);
    expect_eq!(number(&new_master()?)?, gone);
    Ok(())
}
