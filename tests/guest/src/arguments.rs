//! Arguments that are seldom used, and limits, mean what they mean in Linux.
#![allow(unsafe_code, reason = "these calls have no safe form")]

use std::ffi::c_void;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr;

use nix::errno::Errno;

use crate::harness::{OrFail, Outcome, Scratch};
use crate::{expect, expect_eq};

crate::tests! {
    the_size_limit_holds_for_every_growth
    memory_devices_stay_at_their_start
    old_directory_entries
    flags_of_pipes_and_files
    unmapping_reaches_to_the_end_of_addresses
    types_of_mappings_are_checked
    a_mapping_moves_to_any_address
    directories_are_not_read_directly
    scheduling_attributes_are_whole
    locked_memory_is_counted_and_limited
}

const PAGE: usize = 4096;

fn map(address: usize, pages: usize, kind: i32, fd: RawFd) -> Result<usize, Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory; fixed addresses are those that the caller has or nobody uses.
    let at =
        unsafe { libc::mmap(ptr::without_provenance_mut(address), pages * PAGE, protection, kind, fd, 0) };
    if at == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(at.addr()) }
}

fn the_size_limit_holds_for_every_growth() -> Outcome {
    extern "C" fn note(_: i32) {
        SIGNALS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    static SIGNALS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let signals = || SIGNALS.load(std::sync::atomic::Ordering::Relaxed);
    let scratch = Scratch::new("limit")?;
    let path = scratch.path("file");
    fs::write(&path, [0; 100]).or_fail()?;
    let file = OpenOptions::new().write(true).open(&path).or_fail()?;
    let limit = libc::rlimit { rlim_cur: 50, rlim_max: libc::RLIM_INFINITY };
    let handler: extern "C" fn(i32) = note;
    // SAFETY: the handler only counts, and the structure lives through the call.
    unsafe {
        libc::signal(libc::SIGXFSZ, handler as libc::sighandler_t);
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
    }
    let code = |result: std::io::Result<()>| result.map_err(|error| error.raw_os_error());
    expect_eq!(code(file.set_len(200)), Err(Some(libc::EFBIG)));
    expect_eq!(signals(), 1);
    expect_eq!(nix::unistd::truncate(&path, 101), Err(Errno::EFBIG));
    expect_eq!(signals(), 2);
    let allocated = nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, 300);
    expect_eq!(allocated, Err(Errno::EFBIG));
    expect_eq!(signals(), 3);
    // A size that does not grow is not limited.
    expect_eq!(code(file.set_len(80)), Ok(()));
    expect_eq!(code(file.set_len(10)), Ok(()));
    expect_eq!(code(file.set_len(50)), Ok(()));
    expect_eq!(signals(), 3);
    Ok(())
}

fn memory_devices_stay_at_their_start() -> Outcome {
    for name in ["/dev/full", "/dev/null", "/dev/zero"] {
        let file = File::open(name).or_fail()?;
        for whence in [libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END] {
            // SAFETY: no pointers.
            expect_eq!(unsafe { libc::lseek(file.as_raw_fd(), 100, whence) }, 0);
        }
    }
    Ok(())
}

fn old_directory_entries() -> Outcome {
    let scratch = Scratch::new("entries")?;
    fs::write(scratch.path("file"), "").or_fail()?;
    fs::create_dir(scratch.path("directory")).or_fail()?;
    let file = File::open(scratch.path("")).or_fail()?;
    let mut bytes = [0_u8; 1024];
    let mut found = Vec::new();
    loop {
        // SAFETY: the call writes at most as many bytes as there are.
        let count =
            unsafe { libc::syscall(libc::SYS_getdents, file.as_raw_fd(), bytes.as_mut_ptr(), bytes.len()) };
        let count = Errno::result(count).or_fail()? as usize;
        if count == 0 {
            break;
        }
        let mut at = 0;
        while at < count {
            let length = usize::from(u16::from_ne_bytes([bytes[at + 16], bytes[at + 17]]));
            let entry = &bytes[at..at + length];
            let name = entry[18..].split(|&byte| byte == 0).next().unwrap_or_default();
            found.push((String::from_utf8_lossy(name).into_owned(), entry[length - 1]));
            at += length;
        }
    }
    found.sort();
    let expected =
        [(".", libc::DT_DIR), ("..", libc::DT_DIR), ("directory", libc::DT_DIR), ("file", libc::DT_REG)];
    expect_eq!(found, expected.map(|(name, kind)| (name.to_owned(), kind)));
    Ok(())
}

fn flags_of_pipes_and_files() -> Outcome {
    // SAFETY: no pointers.
    let flags = |fd: RawFd| unsafe { libc::fcntl(fd, libc::F_GETFL) };
    const LARGE: i32 = 0o10_0000;
    let (reader, writer) = nix::unistd::pipe().or_fail()?;
    expect_eq!(flags(reader.as_raw_fd()), libc::O_RDONLY);
    expect_eq!(flags(writer.as_raw_fd()), libc::O_WRONLY);
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().or_fail()?;
    expect_eq!(flags(socket.as_raw_fd()), libc::O_RDWR);
    let file = File::open("/proc/self/stat").or_fail()?;
    expect_eq!(flags(file.as_raw_fd()), LARGE);
    let path = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open("/").or_fail()?;
    expect_eq!(flags(path.as_raw_fd()), libc::O_PATH);
    Ok(())
}

fn unmapping_reaches_to_the_end_of_addresses() -> Outcome {
    // SAFETY: nothing is mapped at the addresses that are not refused.
    let unmap = |address: usize, length: usize| unsafe {
        Errno::result(libc::munmap(ptr::without_provenance_mut(address), length)).map(drop)
    };
    const END: usize = (1 << 47) - PAGE;
    expect_eq!(unmap(0, PAGE), Ok(()));
    expect_eq!(unmap(0, END + PAGE), Err(Errno::EINVAL));
    expect_eq!(unmap(PAGE, END), Err(Errno::EINVAL));
    expect_eq!(unmap(0, usize::MAX), Err(Errno::EINVAL));
    expect_eq!(unmap(END, PAGE), Err(Errno::EINVAL));
    expect_eq!(unmap(1, PAGE), Err(Errno::EINVAL));
    expect_eq!(unmap(0, 0), Err(Errno::EINVAL));
    Ok(())
}

fn types_of_mappings_are_checked() -> Outcome {
    const BOTH: i32 = libc::MAP_SHARED | libc::MAP_PRIVATE;
    expect_eq!(map(0, 1, BOTH | libc::MAP_ANONYMOUS, -1), Err(Errno::EINVAL));
    let scratch = Scratch::new("types")?;
    fs::write(scratch.path("file"), [0; PAGE]).or_fail()?;
    let file = OpenOptions::new().read(true).write(true).open(scratch.path("file")).or_fail()?;
    let fd = file.as_raw_fd();
    expect!(map(0, 1, libc::MAP_SHARED_VALIDATE, fd).is_ok());
    expect_eq!(map(0, 1, libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC, fd), Err(Errno::EOPNOTSUPP));
    let unknown = 1 << 22;
    expect_eq!(map(0, 1, libc::MAP_SHARED_VALIDATE | unknown, fd), Err(Errno::EOPNOTSUPP));
    expect!(map(0, 1, libc::MAP_SHARED | unknown, fd).is_ok());
    Ok(())
}

fn a_mapping_moves_to_any_address() -> Outcome {
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let at = map(0, 2, private, -1).or_fail()?;
    let from = ptr::with_exposed_provenance_mut::<c_void>(at);
    let to = |address: usize| ptr::without_provenance_mut::<c_void>(address);
    // SAFETY: the pages are this test's, and nobody uses the target.
    unsafe {
        from.cast::<u8>().write(7);
        let moved = libc::mremap(from, 2 * PAGE, 2 * PAGE, flags, to(0x1000_0000));
        expect_eq!(moved.addr(), 0x1000_0000);
        expect_eq!(ptr::with_exposed_provenance::<u8>(0x1000_0000).read(), 7);
        let beyond = libc::mremap(moved, PAGE, PAGE, flags, to(1 << 47));
        expect_eq!((beyond, Errno::last()), (libc::MAP_FAILED, Errno::EINVAL));
    }
    Ok(())
}

fn directories_are_not_read_directly() -> Outcome {
    let scratch = Scratch::new("direct")?;
    let open = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(scratch.path(""));
    expect_eq!(open.err().and_then(|error| error.raw_os_error()), Some(libc::EINVAL));
    Ok(())
}

fn scheduling_attributes_are_whole() -> Outcome {
    let get = |bytes: &mut [u8]| {
        // SAFETY: the call writes at most as many bytes as there are.
        let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, bytes.as_mut_ptr(), bytes.len(), 0) };
        Errno::result(result).map(drop)
    };
    let mut whole = [0xff; 56];
    get(&mut whole).or_fail()?;
    expect_eq!(whole[..4], 56_u32.to_ne_bytes());
    // Up to the runtime all is known, and nothing is left as it was.
    expect!(whole[48..52] != [0xff; 4]);
    let mut first = [0xff; 48];
    get(&mut first).or_fail()?;
    expect_eq!(first[..4], 48_u32.to_ne_bytes());
    let mut more = [0xff; 64];
    get(&mut more).or_fail()?;
    expect_eq!(more[..4], 56_u32.to_ne_bytes());
    expect_eq!(more[56..], [0xff; 8]);
    expect_eq!(get(&mut [0; 47]), Err(Errno::EINVAL));
    expect_eq!(get(&mut vec![0; PAGE + 8]), Err(Errno::EINVAL));
    Ok(())
}

fn locked_memory_is_counted_and_limited() -> Outcome {
    fn shown() -> Result<u64, String> {
        let text = fs::read_to_string("/proc/self/status").or_fail()?;
        let line = text.lines().find(|line| line.starts_with("VmLck:")).unwrap_or_default();
        line.split_whitespace().nth(1).unwrap_or_default().parse().or_fail()
    }
    fn in_user() -> Outcome {
        let limit = libc::rlimit { rlim_cur: 8 * PAGE as u64, rlim_max: 8 * PAGE as u64 };
        // SAFETY: the structure lives through the call.
        expect_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
        nix::unistd::setuid(nix::unistd::Uid::from_raw(12_345)).or_fail()?;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = map(0, 16, private, -1).or_fail()?;
        let page = |index: usize| ptr::with_exposed_provenance::<c_void>(at + index * PAGE);
        // SAFETY: locking changes no memory.
        let lock = |first: usize, pages: usize| unsafe {
            Errno::result(libc::mlock(page(first), pages * PAGE)).map(drop)
        };
        // SAFETY: as above.
        let unlock = |first: usize, pages: usize| unsafe {
            Errno::result(libc::munlock(page(first), pages * PAGE)).map(drop)
        };
        expect_eq!(lock(0, 9), Err(Errno::ENOMEM));
        expect_eq!(shown()?, 0);
        expect_eq!(lock(0, 6), Ok(()));
        expect_eq!(shown()?, 24);
        expect_eq!(lock(6, 3), Err(Errno::ENOMEM));
        // Memory that is locked already is not counted again.
        expect_eq!(lock(2, 6), Ok(()));
        expect_eq!(shown()?, 32);
        expect_eq!(map(0, 1, private | libc::MAP_LOCKED, -1), Err(Errno::EAGAIN));
        expect_eq!(unlock(4, 2), Ok(()));
        expect_eq!(shown()?, 24);
        expect!(map(0, 1, private | libc::MAP_LOCKED, -1).is_ok());
        expect_eq!(shown()?, 28);
        // SAFETY: the pages are this test's.
        unsafe { libc::munmap(page(0).cast_mut(), 16 * PAGE) };
        expect_eq!(shown()?, 4);
        // SAFETY: no pointers.
        expect_eq!(unsafe { libc::mlockall(libc::MCL_CURRENT) }, -1);
        expect_eq!(Errno::last(), Errno::ENOMEM);
        Ok(())
    }
    let ended = crate::harness::in_child(|| match in_user() {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("{reason}");
            1
        }
    })?;
    expect!(matches!(ended, nix::sys::wait::WaitStatus::Exited(_, 0)));
    Ok(())
}
