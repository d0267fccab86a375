//! Calls and requests that few programs make nowadays, and that some still do.
#![allow(unsafe_code, reason = "most of these have no safe form")]

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;

use linux_raw_sys::general::termio;
use nix::errno::Errno;
use nix::pty::{OpenptyResult, openpty};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;
use nix::sys::termios::{ControlFlags, LocalFlags, SetArg, SpecialCharacterIndices, tcgetattr, tcsetattr};
use nix::sys::wait::WaitStatus;

use crate::harness::{OrFail, Outcome, in_child, is_heddle, skip};
use crate::{expect, expect_eq};

crate::tests! {
    capabilities_of_the_first_process
    terminals_take_the_short_structure
    the_short_structure_may_discard_input
    settings_of_a_terminal_are_kept
    pages_of_a_file_change_places
    pages_of_shared_memory_change_places
    only_shared_mappings_change_places
    low_addresses_on_request
    ends_are_recorded
    calls_of_32_bits_are_none
}

const PAGE: usize = 4096;

fn capability_call(number: libc::c_long, pid: i32, data: Option<&mut [u32; 6]>) -> Result<(), Errno> {
    let header = [0x2008_0522_u32, pid.cast_unsigned()];
    let data = data.map_or(null_mut(), |data| data.as_mut_ptr());
    // SAFETY: both structures live during the call and have the sizes that this version has.
    Errno::result(unsafe { libc::syscall(number, header.as_ptr(), data) }).map(drop)
}

fn capabilities_of_the_first_process() -> Outcome {
    let mut sets = [0; 6];
    expect_eq!(capability_call(libc::SYS_capget, 1, Some(&mut sets)), Ok(()));
    expect!(sets[1] != 0);
    expect_eq!(capability_call(libc::SYS_capget, 4_000_000, Some(&mut sets)), Err(Errno::ESRCH));
    expect_eq!(capability_call(libc::SYS_capget, -1, Some(&mut sets)), Err(Errno::EINVAL));
    // Without a place for them nobody's are asked for.
    expect_eq!(capability_call(libc::SYS_capget, 4_000_000, None), Ok(()));
    for other in [1, 4_000_000, -1] {
        expect_eq!(capability_call(libc::SYS_capset, other, Some(&mut sets)), Err(Errno::EPERM));
    }
    Ok(())
}

nix::ioctl_read_bad!(get_short, libc::TCGETA, termio);
nix::ioctl_write_ptr_bad!(set_short, libc::TCSETA, termio);
nix::ioctl_write_ptr_bad!(set_short_later, 0x5407, termio);
nix::ioctl_write_ptr_bad!(set_short_and_discard, libc::TCSETAF, termio);
nix::ioctl_read_bad!(get_pending, libc::FIONREAD, libc::c_int);

fn short(file: &OwnedFd) -> Result<termio, String> {
    let mut short = termio { c_iflag: 0, c_oflag: 0, c_cflag: 0, c_lflag: 0, c_line: 0, c_cc: [0; 8] };
    // SAFETY: the structure that the request fills in.
    unsafe { get_short(file.as_raw_fd(), &raw mut short) }.or_fail()?;
    Ok(short)
}

fn terminals_take_the_short_structure() -> Outcome {
    let OpenptyResult { master, slave } = openpty(None, None).or_fail()?;
    let mut full = tcgetattr(&slave).or_fail()?;
    // A flag of the upper half, and a character that the short structure has not.
    full.control_flags.insert(ControlFlags::CRTSCTS);
    full.control_chars[SpecialCharacterIndices::VSUSP as usize] = b'z';
    tcsetattr(&slave, SetArg::TCSANOW, &full).or_fail()?;
    for file in [&slave, &master] {
        let short = short(file)?;
        let flags = [short.c_iflag, short.c_oflag, short.c_cflag, short.c_lflag];
        let all = [
            full.input_flags.bits(),
            full.output_flags.bits(),
            full.control_flags.bits(),
            full.local_flags.bits(),
        ];
        expect_eq!(flags, all.map(|flags| flags as u16));
        expect_eq!(short.c_cc[..], full.control_chars[..8]);
    }
    let mut changed = short(&slave)?;
    changed.c_lflag &= !(LocalFlags::ECHO.bits() as u16);
    changed.c_cc[SpecialCharacterIndices::VINTR as usize] = b'i';
    // SAFETY: the structure that the requests read.
    unsafe {
        set_short(slave.as_raw_fd(), &raw const changed).or_fail()?;
        let now = tcgetattr(&slave).or_fail()?;
        expect!(!now.local_flags.contains(LocalFlags::ECHO));
        expect!(now.control_flags.contains(ControlFlags::CRTSCTS));
        expect_eq!(now.control_chars[SpecialCharacterIndices::VINTR as usize], b'i');
        expect_eq!(now.control_chars[SpecialCharacterIndices::VSUSP as usize], b'z');
        changed.c_lflag |= LocalFlags::ECHO.bits() as u16;
        set_short_later(master.as_raw_fd(), &raw const changed).or_fail()?;
        expect!(tcgetattr(&slave).or_fail()?.local_flags.contains(LocalFlags::ECHO));
        let nowhere = 8 as *mut termio;
        expect_eq!(get_short(slave.as_raw_fd(), nowhere), Err(Errno::EFAULT));
        expect_eq!(set_short(slave.as_raw_fd(), nowhere), Err(Errno::EFAULT));
    }
    Ok(())
}

fn the_short_structure_may_discard_input() -> Outcome {
    let OpenptyResult { master, slave } = openpty(None, None).or_fail()?;
    let same = short(&slave)?;
    let pending = || {
        let mut count = 0;
        // SAFETY: the number that the request fills in.
        unsafe { get_pending(slave.as_raw_fd(), &raw mut count) }.or_fail()?;
        Ok::<_, String>(count)
    };
    let mut typist = File::from(master.try_clone().or_fail()?);
    typist.write_all(b"line\n").or_fail()?;
    while pending()? < 5 {
        std::thread::yield_now();
    }
    // SAFETY: the structure that the request reads.
    unsafe { set_short(slave.as_raw_fd(), &raw const same) }.or_fail()?;
    expect_eq!(pending()?, 5);
    // SAFETY: as above.
    unsafe { set_short_and_discard(slave.as_raw_fd(), &raw const same) }.or_fail()?;
    expect_eq!(pending()?, 0);
    Ok(())
}

fn settings_of_a_terminal_are_kept() -> Outcome {
    const TIOCGLCKTRMIOS: libc::c_ulong = 0x5456;
    const TIOCSLCKTRMIOS: libc::c_ulong = 0x5457;
    const FLAGS_BYTES: usize = 16;
    const CHARACTERS_AT: usize = 17;
    let OpenptyResult { master: _master, slave } = openpty(None, None).or_fail()?;
    let request = |number, kept: &mut [u8; 36]| {
        // SAFETY: `struct termios` has 36 bytes.
        Errno::result(unsafe { libc::ioctl(slave.as_raw_fd(), number, kept.as_mut_ptr()) }).map(drop)
    };
    let mut kept = [1; 36];
    expect_eq!(request(TIOCGLCKTRMIOS, &mut kept), Ok(()));
    expect_eq!(kept, [0; 36]);
    // One flag, and the character that interrupts.
    kept[12..FLAGS_BYTES].copy_from_slice(&LocalFlags::ECHO.bits().to_le_bytes());
    kept[CHARACTERS_AT + SpecialCharacterIndices::VINTR as usize] = 1;
    let mut set = kept;
    expect_eq!(request(TIOCSLCKTRMIOS, &mut set), Ok(()));
    expect_eq!(request(TIOCGLCKTRMIOS, &mut set), Ok(()));
    expect_eq!(set, kept);
    let before = tcgetattr(&slave).or_fail()?;
    let mut wanted = before.clone();
    wanted.local_flags.remove(LocalFlags::ECHO | LocalFlags::ECHOE);
    wanted.control_chars.fill(b'x');
    tcsetattr(&slave, SetArg::TCSANOW, &wanted).or_fail()?;
    let now = tcgetattr(&slave).or_fail()?;
    expect_eq!(now.local_flags & (LocalFlags::ECHO | LocalFlags::ECHOE), LocalFlags::ECHO);
    for (index, &character) in now.control_chars[..17].iter().enumerate() {
        let is_kept = index == SpecialCharacterIndices::VINTR as usize;
        expect_eq!(character, if is_kept { before.control_chars[index] } else { b'x' });
    }
    expect_eq!(request(TIOCSLCKTRMIOS, &mut [0; 36]), Ok(()));
    tcsetattr(&slave, SetArg::TCSANOW, &wanted).or_fail()?;
    expect!(!tcgetattr(&slave).or_fail()?.local_flags.contains(LocalFlags::ECHO));
    let refused = in_child(|| {
        let user = nix::unistd::Uid::from_raw(4711);
        let is_refused = nix::unistd::setresuid(user, user, user).is_ok()
            && request(TIOCSLCKTRMIOS, &mut [0; 36]) == Err(Errno::EPERM);
        i32::from(!is_refused)
    })?;
    expect!(matches!(refused, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn map(length: usize, flags: i32, file: i32) -> Result<*mut u8, Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(null_mut(), length, protection, flags, file, 0) };
    if start == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(start.cast()) }
}

fn change_places(start: *mut u8, length: usize, protection: usize, first: usize) -> Result<(), Errno> {
    // SAFETY: of a mapping of the test, or refused.
    Errno::result(unsafe { libc::syscall(libc::SYS_remap_file_pages, start, length, protection, first, 0) })
        .map(drop)
}

/// The first byte of each page.
fn firsts(start: *mut u8, count: usize) -> Vec<u8> {
    // SAFETY: pages of a mapping of the test.
    (0..count).map(|page| unsafe { start.add(page * PAGE).read_volatile() }).collect()
}

fn set_first(start: *mut u8, page: usize, value: u8) {
    // SAFETY: as above.
    unsafe { start.add(page * PAGE).write_volatile(value) }
}

fn pages_of_a_file_change_places() -> Outcome {
    let mut file = File::from(memfd_create(c"pages", MFdFlags::empty()).or_fail()?);
    for page in 0..4 {
        file.write_all(&[b'0' + page; PAGE]).or_fail()?;
    }
    let start = map(4 * PAGE, libc::MAP_SHARED, file.as_raw_fd()).or_fail()?;
    expect_eq!(firsts(start, 4), b"0123");
    expect_eq!(change_places(start, PAGE, 0, 3), Ok(()));
    // Address and length are cut to pages.
    expect_eq!(change_places(start.wrapping_add(3 * PAGE + 5), PAGE + 7, 0, 0), Ok(()));
    expect_eq!(firsts(start, 4), b"3120");
    set_first(start, 0, b'x');
    let mut byte = [0];
    file.seek(SeekFrom::Start(3 * PAGE as u64)).or_fail()?;
    file.read_exact(&mut byte).or_fail()?;
    expect_eq!(&byte, b"x");
    // Several mappings of one file are one place, if no rights differ.
    expect_eq!(change_places(start, 4 * PAGE, 0, 0), Ok(()));
    expect_eq!(firsts(start, 4), b"012x");
    let read_only = |rights| {
        // SAFETY: a page of the test's mapping.
        Errno::result(unsafe { libc::mprotect(start.add(2 * PAGE).cast(), PAGE, rights) }).map(drop)
    };
    read_only(libc::PROT_READ).or_fail()?;
    expect_eq!(change_places(start, 4 * PAGE, 0, 1), Err(Errno::EINVAL));
    expect_eq!(change_places(start.wrapping_add(2 * PAGE), PAGE, 0, 1), Ok(()));
    expect_eq!(firsts(start, 4), b"011x");
    // A page that changed its place has the rights that it had.
    let status = in_child(|| {
        set_first(start, 2, 1);
        0
    })?;
    expect!(matches!(status, WaitStatus::Signaled(_, Signal::SIGSEGV, _)));
    Ok(())
}

fn pages_of_shared_memory_change_places() -> Outcome {
    let start = map(3 * PAGE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1).or_fail()?;
    for page in 0..3 {
        set_first(start, page, page as u8 + 1);
    }
    expect_eq!(change_places(start, PAGE, 0, 2), Ok(()));
    expect_eq!(firsts(start, 3), [3, 2, 3]);
    let status = in_child(|| {
        set_first(start, 2, 9);
        0
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    expect_eq!(firsts(start, 3), [9, 2, 9]);
    Ok(())
}

fn only_shared_mappings_change_places() -> Outcome {
    let private = map(4 * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1).or_fail()?;
    expect_eq!(change_places(private, PAGE, 0, 0), Err(Errno::EINVAL));
    let shared = map(4 * PAGE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1).or_fail()?;
    for (length, protection, first) in [
        (PAGE, libc::PROT_READ as usize, 0),
        (0, 0, 0),
        (PAGE - 1, 0, 0),
        (usize::MAX - PAGE, 0, 0),
        (PAGE, 0, usize::MAX),
    ] {
        expect_eq!(change_places(shared, length, protection, first), Err(Errno::EINVAL));
    }
    // SAFETY: a page of the test's mapping.
    Errno::result(unsafe { libc::munmap(shared.add(PAGE).cast(), PAGE) }).or_fail()?;
    expect_eq!(change_places(shared, 3 * PAGE, 0, 0), Err(Errno::EINVAL));
    expect_eq!(change_places(shared.wrapping_add(PAGE), PAGE, 0, 0), Err(Errno::EINVAL));
    expect_eq!(change_places(shared, PAGE, 0, 1), Ok(()));
    Ok(())
}

fn low_addresses_on_request() -> Outcome {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
    let is_low = |start: *mut u8, length: usize| start.addr() + length <= 1 << 31;
    let mut all = Vec::new();
    for pages in 1..20 {
        let start = map(pages * PAGE, flags, -1).or_fail()?;
        expect!(is_low(start, pages * PAGE));
        set_first(start, pages - 1, pages as u8);
        all.push((start, pages));
    }
    for &(start, pages) in &all {
        expect_eq!(firsts(start.wrapping_add((pages - 1) * PAGE), 1), [pages as u8]);
    }
    expect_eq!(map(1 << 31, flags | libc::MAP_NORESERVE, -1), Err(Errno::ENOMEM));
    let in_child = in_child(|| {
        let is_as_before = firsts(all[0].0, 1) == [1];
        let more = map(PAGE, flags, -1);
        i32::from(!(is_as_before && more.is_ok_and(|start| is_low(start, PAGE))))
    })?;
    expect!(matches!(in_child, WaitStatus::Exited(_, 0)));
    // A file too, and at an address of the program's choice while that is free.
    let file = memfd_create(c"low", MFdFlags::empty()).or_fail()?;
    let file = File::from(file);
    file.set_len(PAGE as u64).or_fail()?;
    let shared = map(PAGE, libc::MAP_SHARED | libc::MAP_32BIT, file.as_raw_fd()).or_fail()?;
    expect!(is_low(shared, PAGE));
    let free = all[3].0;
    // SAFETY: a mapping of the test.
    Errno::result(unsafe { libc::munmap(free.cast(), 4 * PAGE) }).or_fail()?;
    // SAFETY: a new mapping, where there is none.
    let again = unsafe { libc::mmap(free.cast(), 4 * PAGE, libc::PROT_READ, flags, -1, 0) };
    expect_eq!(again.cast(), free);
    Ok(())
}

fn account_in(path: Option<&std::ffi::CStr>) -> Result<(), Errno> {
    // SAFETY: a path that lives during the call, or none.
    Errno::result(unsafe { libc::acct(path.map_or(std::ptr::null(), std::ffi::CStr::as_ptr)) }).map(drop)
}

/// A record of version 3 of acct(5), 64 bytes.
fn word(record: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
}

fn ends_are_recorded() -> Outcome {
    const RECORD: usize = 64;
    const FORKED: u8 = 1;
    const SIGNALED: u8 = 16;
    let path = format!("/tmp/acct-{}", std::process::id());
    let c_path = std::ffi::CString::new(path.clone()).or_fail()?;
    expect_eq!(account_in(Some(&c_path)), Err(Errno::ENOENT));
    expect_eq!(account_in(Some(c"/tmp")), Err(Errno::EISDIR));
    expect_eq!(account_in(Some(c"/dev/null")), Err(Errno::EACCES));
    std::fs::write(&path, b"before").or_fail()?;
    expect_eq!(account_in(Some(&c_path)), Ok(()));
    let exits = crate::harness::spawn_child(|| 3)?;
    let exited = nix::sys::wait::waitpid(exits, None);
    let killed = crate::harness::spawn_child(|| {
        let _ = nix::sys::signal::raise(Signal::SIGKILL);
        0
    });
    let killed = killed.map(|child| (child, nix::sys::wait::waitpid(child, None)));
    let executed = std::process::Command::new("true").status();
    let of_user = crate::harness::spawn_child(|| {
        let user = nix::unistd::Uid::from_raw(4711);
        let is_refused =
            nix::unistd::setresuid(user, user, user).is_ok() && account_in(None) == Err(Errno::EPERM);
        i32::from(!is_refused)
    });
    let of_user = of_user.map(|child| (child, nix::sys::wait::waitpid(child, None)));
    let ended = account_in(None);
    let unseen = in_child(|| 0);
    let bytes = std::fs::read(&path).or_fail()?;
    std::fs::remove_file(&path).or_fail()?;
    expect_eq!(ended, Ok(()));
    expect!(exited.is_ok() && executed.is_ok() && unseen.is_ok());
    let (killed, _) = killed?;
    let (of_user, status) = of_user?;
    expect_eq!(status, Ok(WaitStatus::Exited(of_user, 0)));
    expect_eq!(&bytes[..6], b"before");
    expect_eq!(bytes.len() % RECORD, 6);
    // Others may have ended meanwhile.
    let all: Vec<_> = bytes[6..].chunks_exact(RECORD).collect();
    let (own, name) = (std::process::id(), std::fs::read("/proc/self/comm").or_fail()?);
    expect!(all.iter().any(|record| record[48..].starts_with(b"true\0") && word(record, 20) == own));
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME).or_fail()?.tv_sec() as u32;
    for (flags, code, pid, uid) in
        [(FORKED, 3 << 8, exits, 0), (FORKED | SIGNALED, 9, killed, 0), (FORKED, 0, of_user, 4711)]
    {
        let number = pid.as_raw().cast_unsigned();
        let mut of_this = all.iter().filter(|record| word(record, 16) == number);
        let (Some(record), None) = (of_this.next(), of_this.next()) else {
            return Err(format!("not one record of {pid}"));
        };
        expect_eq!((record[0] & (FORKED | SIGNALED), record[1]), (flags, 3));
        let words: Vec<_> = (4..24).step_by(4).map(|at| word(record, at)).collect();
        expect_eq!(words, [code, uid, nix::unistd::getgid().as_raw(), number, own]);
        expect!(now.abs_diff(word(record, 24)) < 100);
        // It was in memory, and has the name of its parent.
        expect!(record[36..38] != [0, 0]);
        expect!(record[48..].starts_with(name.trim_ascii_end()));
    }
    Ok(())
}

fn calls_of_32_bits_are_none() -> Outcome {
    if !is_heddle() {
        skip("Debian's kernel has them");
        return Ok(());
    }
    let status = in_child(|| {
        // SAFETY: `getpid` of 32 bits changes nothing but the result.
        unsafe { std::arch::asm!("int 0x80", inlateout("rax") 20_usize => _) };
        0
    })?;
    // As of a kernel without IA32_EMULATION.
    expect!(matches!(status, WaitStatus::Signaled(_, Signal::SIGSEGV, _)));
    // SAFETY: a call that does not exist.
    expect_eq!(Errno::result(unsafe { libc::syscall(libc::SYS_modify_ldt, 0, 0, 0) }), Err(Errno::ENOSYS));
    Ok(())
}
