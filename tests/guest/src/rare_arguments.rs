//! Arguments that few programs pass, of calls that many make, and calls that few make.
#![allow(unsafe_code, reason = "wrong arguments have no safe form")]

use std::fs::File;
use std::io::{IoSlice, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::ptr::null_mut;

use nix::errno::Errno;
use nix::pty::openpty;
use nix::sys::wait::WaitStatus;

use crate::harness::{OrFail, Outcome, Scratch, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    impossible_addresses_count_before_the_end
    select_looks_at_no_more_than_the_table
    advice_to_another_process
    memory_of_the_dying_is_released
    stacks_may_be_protected_to_their_start
    locked_memory_is_not_given_back
    personalities_are_kept
    the_system_is_told_by_personality
    hints_about_the_life_of_bytes_are_kept
    the_administrator_has_large_pipes
    a_bound_socket_is_not_bound_again
    policies_of_failing_memory_are_kept
    speculation_is_told_of
    the_terminal_hangs_up
    ranges_of_files_are_stored
    bytes_behind_the_last_are_refused
    writers_are_told_by_themselves
    requested_keys_need_a_keyring_to_go_to
}

pub const PAGE: usize = 4096;
const IMPOSSIBLE: usize = 0xffff_8000_0000_0000;

/// A system call with wrong arguments, or without a function of its own.
pub fn call(number: libc::c_long, arguments: [usize; 5]) -> Result<usize, Errno> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: the tests pass memory that lives, or addresses at which there is none.
    Errno::result(unsafe { libc::syscall(number, a, b, c, d, e) }).map(|result| result as usize)
}

/// A descriptor as an argument.
pub fn number(file: &impl AsRawFd) -> usize {
    file.as_raw_fd() as usize
}

fn impossible_addresses_count_before_the_end() -> Outcome {
    let scratch = Scratch::new("impossible")?;
    let file = File::create_new(scratch.path("empty")).or_fail()?;
    let file = (File::open(scratch.path("empty")).or_fail()?, file);
    expect_eq!(call(libc::SYS_read, [number(&file.0), IMPOSSIBLE, 1, 0, 0]), Err(Errno::EFAULT));
    // Below the end of all addresses nothing is looked at.
    expect_eq!(call(libc::SYS_read, [number(&file.0), 8, 1, 0, 0]), Ok(0));
    let null = File::options().write(true).open("/dev/null").or_fail()?;
    expect_eq!(call(libc::SYS_write, [number(&null), 8, 1, 0, 0]), Ok(1));
    let (reader, _writer) = std::io::pipe().or_fail()?;
    expect_eq!(call(libc::SYS_read, [number(&reader), IMPOSSIBLE, 1, 0, 0]), Err(Errno::EFAULT));
    expect_eq!(call(libc::SYS_mremap, [IMPOSSIBLE, PAGE, PAGE, 1, 0]), Err(Errno::EFAULT));
    Ok(())
}

fn select_looks_at_no_more_than_the_table() -> Outcome {
    let status = in_child(|| {
        let mut sets = [0_u64; 16];
        sets[15] = 1;
        let mut zero = [0_u64; 2];
        let address = |words: &mut [u64]| words.as_mut_ptr() as usize;
        // No table of so few descriptors is that large.
        let beyond = call(libc::SYS_select, [1024, address(&mut sets), 0, 0, address(&mut zero)]);
        sets[0] = 1 << 63;
        let within = call(libc::SYS_select, [1024, address(&mut sets), 0, 0, address(&mut zero)]);
        i32::from((beyond, within) != (Ok(0), Err(Errno::EBADF)))
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn own_pidfd() -> Result<usize, String> {
    call(libc::SYS_pidfd_open, [std::process::id() as usize, 0, 0, 0, 0]).or_fail()
}

fn advice_to_another_process() -> Outcome {
    let pidfd = own_pidfd()?;
    let memory = vec![1_u8; 3 * PAGE];
    let start = memory.as_ptr() as usize;
    let start = start.next_multiple_of(PAGE);
    let pieces = [[start, PAGE], [start + PAGE, PAGE]];
    let list = pieces.as_ptr() as usize;
    let advise = |list, count, advice: i32, flags| {
        call(libc::SYS_process_madvise, [pidfd, list, count, advice as usize, flags])
    };
    expect_eq!(advise(list, 2, libc::MADV_WILLNEED, 0), Ok(2 * PAGE));
    expect_eq!(advise(list, 2, libc::MADV_COLD, 0), Ok(2 * PAGE));
    expect_eq!(advise(list, 2, libc::MADV_DONTNEED, 0), Err(Errno::EINVAL));
    expect_eq!(advise(list, 2, libc::MADV_COLD, 1), Err(Errno::EINVAL));
    expect_eq!(advise(8, 2, libc::MADV_COLD, 0), Err(Errno::EFAULT));
    expect_eq!(advise(list, 2000, libc::MADV_COLD, 0), Err(Errno::EINVAL));
    let crooked = [start + 1, PAGE];
    expect_eq!(advise(crooked.as_ptr() as usize, 1, libc::MADV_COLD, 0), Err(Errno::EINVAL));
    // Pieces before one that fails count.
    let half = [[start, PAGE], [start + 1, PAGE]];
    expect_eq!(advise(half.as_ptr() as usize, 2, libc::MADV_COLD, 0), Ok(PAGE));
    let null = File::open("/dev/null").or_fail()?;
    let other = call(libc::SYS_process_madvise, [number(&null), list, 2, libc::MADV_COLD as usize, 0]);
    expect_eq!(other, Err(Errno::EBADF));
    drop(memory);
    Ok(())
}

fn memory_of_the_dying_is_released() -> Outcome {
    let pidfd = own_pidfd()?;
    expect_eq!(call(libc::SYS_process_mrelease, [pidfd, 1, 0, 0, 0]), Err(Errno::EINVAL));
    // It is not about to end.
    expect_eq!(call(libc::SYS_process_mrelease, [pidfd, 0, 0, 0, 0]), Err(Errno::EINVAL));
    let null = File::open("/dev/null").or_fail()?;
    expect_eq!(call(libc::SYS_process_mrelease, [number(&null), 0, 0, 0, 0]), Err(Errno::EBADF));
    Ok(())
}

/// Maps private memory.
fn map(pages: usize, protection: i32, flags: i32) -> Result<usize, String> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: new memory, which nothing refers to.
    let address = unsafe { libc::mmap(null_mut(), pages * PAGE, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED { Err(Errno::last().to_string()) } else { Ok(address as usize) }
}

fn stacks_may_be_protected_to_their_start() -> Outcome {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let (stack, plain) = (map(4, both, libc::MAP_GROWSDOWN)?, map(4, both, 0)?);
    let protect =
        |start, pages, bits: i32| call(libc::SYS_mprotect, [start, pages * PAGE, bits as usize, 0, 0]);
    expect_eq!(protect(plain + PAGE, 1, both | libc::PROT_GROWSDOWN), Err(Errno::EINVAL));
    expect_eq!(protect(plain + PAGE, 1, both | libc::PROT_GROWSUP), Err(Errno::EINVAL));
    expect_eq!(protect(stack + 1, 1, both | libc::PROT_GROWSDOWN), Err(Errno::EINVAL));
    expect_eq!(protect(stack + 2 * PAGE, 1, libc::PROT_READ | libc::PROT_GROWSDOWN), Ok(0));
    let maps = std::fs::read_to_string("/proc/self/maps").or_fail()?;
    let line = maps.lines().find(|line| line.starts_with(&format!("{stack:x}-{:x} ", stack + 3 * PAGE)));
    expect!(line.is_some_and(|line| line.contains(" r--p ")));
    Ok(())
}

fn locked_memory_is_not_given_back() -> Outcome {
    const DONTNEED_LOCKED: usize = 24;
    let start = map(2, libc::PROT_READ | libc::PROT_WRITE, 0)?;
    // SAFETY: the memory is the test's own.
    unsafe { (start as *mut u8).write(1) };
    expect_eq!(call(libc::SYS_mlock, [start, 2 * PAGE, 0, 0, 0]), Ok(0));
    let advise = |advice| call(libc::SYS_madvise, [start, 2 * PAGE, advice, 0, 0]);
    expect_eq!(advise(libc::MADV_DONTNEED as usize), Err(Errno::EINVAL));
    expect_eq!(advise(libc::MADV_FREE as usize), Err(Errno::EINVAL));
    expect_eq!(advise(DONTNEED_LOCKED), Ok(0));
    // SAFETY: likewise.
    expect_eq!(unsafe { (start as *const u8).read() }, 0);
    Ok(())
}

fn personalities_are_kept() -> Outcome {
    let personality = |word: u32| call(libc::SYS_personality, [word as usize, 0, 0, 0, 0]);
    const ASKED: u32 = u32::MAX;
    let first = personality(ASKED).or_fail()?;
    for word in [0, 1, 4, 6, 8, 0x20_0000, 0x40_0000, 0x800_0000, 0x1234_5678] {
        personality(word).or_fail()?;
        expect_eq!(personality(ASKED), Ok(word as usize));
    }
    // Memory that may be read may be executed.
    personality(0x40_0000).or_fail()?;
    let start = map(1, libc::PROT_READ, 0)?;
    personality(first as u32).or_fail()?;
    let maps = std::fs::read_to_string("/proc/self/maps").or_fail()?;
    let line = maps.lines().find(|line| line.starts_with(&format!("{start:x}-")));
    expect!(line.is_some_and(|line| line.contains(" r-xp ")));
    Ok(())
}

fn the_system_is_told_by_personality() -> Outcome {
    const LINUX32: usize = 8;
    const UNAME26: usize = 0x2_0000;
    let status = in_child(|| {
        if call(libc::SYS_personality, [LINUX32 | UNAME26, 0, 0, 0, 0]).is_err() {
            return 1;
        }
        let Ok(names) = nix::sys::utsname::uname() else { return 2 };
        let is_small = names.machine() == "i686";
        let is_old = names.release().to_string_lossy().starts_with("2.6.6");
        if is_small && is_old { 0 } else { 3 }
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn hints_about_the_life_of_bytes_are_kept() -> Outcome {
    const GET: usize = 1035;
    const SET: usize = 1036;
    let scratch = Scratch::new("hints")?;
    let file = File::create_new(scratch.path("file")).or_fail()?;
    let mut hint = 7_u64;
    let control = |command, hint: &mut u64| {
        call(libc::SYS_fcntl, [number(&file), command, &raw mut *hint as usize, 0, 0])
    };
    expect_eq!(control(GET, &mut hint), Ok(0));
    expect_eq!(hint, 0);
    hint = 3;
    expect_eq!(control(SET, &mut hint), Ok(0));
    hint = 6;
    expect_eq!(control(SET, &mut hint), Err(Errno::EINVAL));
    expect_eq!(control(GET, &mut hint), Ok(0));
    expect_eq!(hint, 3);
    expect_eq!(call(libc::SYS_fcntl, [number(&file), SET, 8, 0, 0]), Err(Errno::EFAULT));
    Ok(())
}

fn the_administrator_has_large_pipes() -> Outcome {
    const SET: usize = 1031;
    let (reader, mut writer) = std::io::pipe().or_fail()?;
    let set = |bytes: usize| call(libc::SYS_fcntl, [number(&reader), SET, bytes, 0, 0]);
    expect_eq!(set(2 << 20), Ok(2 << 20));
    let text = vec![7; 2 << 20];
    expect_eq!(writer.write_vectored(&[IoSlice::new(&text)]).or_fail()?, 2 << 20);
    expect_eq!(set(1 << 20), Err(Errno::EBUSY));
    Ok(())
}

fn a_bound_socket_is_not_bound_again() -> Outcome {
    let scratch = Scratch::new("bound")?;
    let taken = UnixDatagram::bind(scratch.path("first")).or_fail()?;
    let bind = |path: &std::path::Path| {
        let mut address = [0_u8; 110];
        address[0] = libc::AF_UNIX as u8;
        let bytes = path.as_os_str().as_encoded_bytes();
        address[2..2 + bytes.len()].copy_from_slice(bytes);
        call(libc::SYS_bind, [number(&taken), address.as_ptr() as usize, 3 + bytes.len(), 0, 0])
    };
    expect_eq!(bind(&scratch.path("first")), Err(Errno::EADDRINUSE));
    expect_eq!(bind(&scratch.path("second")), Err(Errno::EINVAL));
    Ok(())
}

fn policies_of_failing_memory_are_kept() -> Outcome {
    let control = |arguments: [usize; 5]| call(libc::SYS_prctl, arguments);
    const SET: usize = 33;
    const GET: usize = 34;
    expect_eq!(control([GET, 0, 0, 0, 0]), Ok(2));
    expect_eq!(control([GET, 1, 0, 0, 0]), Err(Errno::EINVAL));
    expect_eq!(control([SET, 1, 1, 0, 0]), Ok(0));
    expect_eq!(control([GET, 0, 0, 0, 0]), Ok(1));
    expect_eq!(control([SET, 1, 3, 0, 0]), Err(Errno::EINVAL));
    expect_eq!(control([SET, 0, 1, 0, 0]), Err(Errno::EINVAL));
    expect_eq!(control([SET, 0, 0, 0, 0]), Ok(0));
    expect_eq!(control([GET, 0, 0, 0, 0]), Ok(2));
    Ok(())
}

fn speculation_is_told_of() -> Outcome {
    const SET: usize = 53;
    const GET: usize = 52;
    let control = |arguments: [usize; 5]| call(libc::SYS_prctl, arguments);
    for misfeature in 0..2 {
        expect!(control([GET, misfeature, 0, 0, 0]).is_ok());
    }
    expect_eq!(control([GET, 9, 0, 0, 0]), Err(Errno::ENODEV));
    expect_eq!(control([GET, 0, 1, 0, 0]), Err(Errno::EINVAL));
    expect_eq!(control([SET, 9, 2, 0, 0]), Err(Errno::ENODEV));
    expect_eq!(control([SET, 0, 2, 1, 0]), Err(Errno::EINVAL));
    Ok(())
}

fn the_terminal_hangs_up() -> Outcome {
    let terminal = openpty(None, None).or_fail()?;
    let status = in_child(|| {
        // SAFETY: the child has one thread and opens no terminal but this.
        unsafe {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            if libc::setsid() < 0 || libc::ioctl(terminal.slave.as_raw_fd(), libc::TIOCSCTTY, 0) != 0 {
                return 1;
            }
        }
        if call(libc::SYS_vhangup, [0; 5]) != Ok(0) {
            return 2;
        }
        let mut byte = 0_u8;
        // The line is at its end.
        let read = call(libc::SYS_read, [number(&terminal.slave), &raw mut byte as usize, 1, 0, 0]);
        let written = call(libc::SYS_write, [number(&terminal.slave), &raw mut byte as usize, 1, 0, 0]);
        if (read, written) == (Ok(0), Err(Errno::EIO)) { 0 } else { 3 }
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    let status = in_child(|| {
        // SAFETY: the call takes a number only.
        if unsafe { libc::setuid(65534) } != 0 {
            return 1;
        }
        i32::from(call(libc::SYS_vhangup, [0; 5]) != Err(Errno::EPERM))
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn ranges_of_files_are_stored() -> Outcome {
    let scratch = Scratch::new("ranges")?;
    let file = File::create_new(scratch.path("file")).or_fail()?;
    let store = |file: &File| call(libc::SYS_sync_file_range, [number(file), 0, 0, 0, 0]);
    expect_eq!(store(&file), Ok(0));
    expect_eq!(store(&File::open(&scratch.0).or_fail()?), Ok(0));
    expect_eq!(store(&File::open("/dev/null").or_fail()?), Err(Errno::ESPIPE));
    expect_eq!(store(&File::open("/dev/zero").or_fail()?), Err(Errno::ESPIPE));
    Ok(())
}

/// A key that is made on request goes to the session, say, which the caller may have joined without a right to write.
fn requested_keys_need_a_keyring_to_go_to() -> Outcome {
    const JOIN_SESSION: usize = 1;
    const SET_PERMISSIONS: usize = 5;
    const SET_DEFAULT_RING: usize = 14;
    const DEFAULT_IS_SESSION: usize = 3;
    /// View, read and search for the possessor.
    const NOT_WRITE: usize = 0x0b00_0000;
    let session = call(libc::SYS_keyctl, [JOIN_SESSION, 0, 0, 0, 0]).or_fail()?;
    expect_eq!(call(libc::SYS_keyctl, [SET_DEFAULT_RING, DEFAULT_IS_SESSION, 0, 0, 0]).map(drop), Ok(()));
    let request = |callout: usize| {
        call(libc::SYS_request_key, [c"user".as_ptr().addr(), c"nothing".as_ptr().addr(), callout, 0, 0])
    };
    expect_eq!(call(libc::SYS_keyctl, [SET_PERMISSIONS, session, NOT_WRITE, 0, 0]), Ok(0));
    expect_eq!(request(0), Err(Errno::ENOKEY));
    expect_eq!(request(c"callout".as_ptr().addr()), Err(Errno::EACCES));
    Ok(())
}

fn bytes_behind_the_last_are_refused() -> Outcome {
    let scratch = Scratch::new("last")?;
    let path = scratch.path("file");
    std::fs::write(&path, "text").or_fail()?;
    let file = File::options().read(true).write(true).open(&path).or_fail()?;
    let appending = File::options().append(true).open(&path).or_fail()?;
    let bytes = [0_u8; 1024];
    let address = bytes.as_ptr().addr();
    let last = i64::MAX as usize;
    for position in [last, last - 100] {
        for file in [&file, &appending] {
            let written = call(libc::SYS_pwrite64, [number(file), address, 1024, position, 0]);
            expect_eq!(written, Err(Errno::EINVAL));
        }
        expect_eq!(call(libc::SYS_pread64, [number(&file), address, 1024, position, 0]), Err(Errno::EINVAL));
    }
    expect_eq!(call(libc::SYS_pread64, [number(&file), address, 1024, last - 1024, 0]), Ok(0));
    let (_reading, writing) = nix::unistd::pipe().or_fail()?;
    let mut position = last - 100;
    let at = (&raw mut position).addr();
    for (count, at) in [(usize::MAX, 0), (1024, at)] {
        let sent = call(libc::SYS_sendfile, [number(&writing), number(&file), at, count, 0]);
        expect_eq!(sent, Err(Errno::EINVAL));
    }
    let directory = File::open(&scratch.0).or_fail()?;
    let sent = call(libc::SYS_sendfile, [number(&writing), number(&directory), 0, 100, 0]);
    expect_eq!(sent, Err(Errno::EINVAL));
    Ok(())
}

/// The signals of a write that fails count as those of the writer itself.
fn writers_are_told_by_themselves() -> Outcome {
    use nix::sys::resource::{Resource, setrlimit};
    use nix::sys::signal::{SigSet, Signal};
    let scratch = Scratch::new("told")?;
    let file = File::create_new(scratch.path("file")).or_fail()?;
    let ended = in_child(|| {
        let signals: SigSet = [Signal::SIGXFSZ, Signal::SIGPIPE].into_iter().collect();
        if signals.thread_block().is_err() || setrlimit(Resource::RLIMIT_FSIZE, 0, 0).is_err() {
            return 1;
        }
        let sender = || {
            // SAFETY: zeros are a value of it.
            let mut information: libc::siginfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: set and information live during the call.
            let signal = unsafe { libc::sigwaitinfo(signals.as_ref(), &raw mut information) };
            // SAFETY: the signal is of a kind with a sender.
            (signal, information.si_code, unsafe { information.si_pid() })
        };
        let own = std::process::id().cast_signed();
        if nix::unistd::write(&file, b"x") != Err(Errno::EFBIG)
            || sender() != (libc::SIGXFSZ, libc::SI_USER, own)
        {
            return 2;
        }
        let Ok((reading, writing)) = nix::unistd::pipe() else { return 3 };
        drop(reading);
        if nix::unistd::write(&writing, b"x") != Err(Errno::EPIPE)
            || sender() != (libc::SIGPIPE, libc::SI_USER, own)
        {
            return 4;
        }
        0
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    Ok(())
}
