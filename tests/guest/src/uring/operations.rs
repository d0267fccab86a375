//! `io_uring`: operations on files that move bytes between descriptors, or change names and attributes.
#![allow(unsafe_code, reason = "memory that the kernel writes")]

use std::os::fd::AsRawFd;

use linux_raw_sys::io_uring::io_uring_op as Op;
use nix::errno::Errno;
use nix::unistd::{pipe, read};

use crate::expect_eq;
use crate::harness::{OrFail, Outcome, Scratch};
use crate::uring::error;
use crate::uring::ring::{Ring, Sqe};

crate::tests! {
    bytes_are_spliced_and_teed
    attributes_links_and_advice
    flags_of_single_transfers
}

fn bytes_are_spliced_and_teed() -> Outcome {
    let scratch = Scratch::new("uring-splice")?;
    std::fs::write(scratch.path("file"), b"spliced").or_fail()?;
    let file = std::fs::File::open(scratch.path("file")).or_fail()?;
    let (reader, writer) = pipe().or_fail()?;
    let (second, second_writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let none = u64::MAX;
    let splice = Sqe {
        addr: 2,
        off: none,
        len: 5,
        slot: file.as_raw_fd() as u32,
        ..Sqe::new(Op::IORING_OP_SPLICE, writer.as_raw_fd(), 1)
    };
    expect_eq!(ring.run(&[splice])?, [(1, 5, 0)]);
    let tee = Sqe {
        len: 5,
        slot: reader.as_raw_fd() as u32,
        ..Sqe::new(Op::IORING_OP_TEE, second_writer.as_raw_fd(), 2)
    };
    expect_eq!(ring.run(&[tee])?, [(2, 5, 0)]);
    let mut text = [0; 8];
    expect_eq!((read(&second, &mut text), &text[..5]), (Ok(5), &b"liced"[..]));
    expect_eq!((read(&reader, &mut text), &text[..5]), (Ok(5), &b"liced"[..]));
    expect_eq!(ring.run(&[Sqe { slot: 999, ..splice }])?, [(1, error(Errno::EBADF), 0)]);
    expect_eq!(ring.run(&[Sqe { op_flags: 1 << 20, ..splice }])?, [(1, error(Errno::EINVAL), 0)]);
    expect_eq!(ring.run(&[Sqe { off: 3, ..splice }])?, [(1, error(Errno::ESPIPE), 0)]);
    Ok(())
}

fn attributes_links_and_advice() -> Outcome {
    let scratch = Scratch::new("uring-names2")?;
    std::fs::write(scratch.path("file"), b"text").or_fail()?;
    let file = std::fs::File::open(scratch.path("file")).or_fail()?;
    let ring = Ring::new(8)?;
    let path = |name: &str| std::ffi::CString::new(scratch.path(name).to_string_lossy().as_bytes());
    let (old, hard, soft) = (path("file").or_fail()?, path("hard").or_fail()?, path("soft").or_fail()?);
    let at = |operation, from: &std::ffi::CString, to: &std::ffi::CString, data| Sqe {
        addr: from.as_ptr() as u64,
        off: to.as_ptr() as u64,
        ..Sqe::new(operation, libc::AT_FDCWD, data)
    };
    let link = Sqe { len: libc::AT_FDCWD as u32, ..at(Op::IORING_OP_LINKAT, &old, &hard, 1) };
    expect_eq!(ring.run(&[link])?, [(1, 0, 0)]);
    expect_eq!(ring.run(&[link])?, [(1, error(Errno::EEXIST), 0)]);
    expect_eq!(ring.run(&[at(Op::IORING_OP_SYMLINKAT, &old, &soft, 2)])?, [(2, 0, 0)]);
    expect_eq!(std::fs::read(scratch.path("soft")).or_fail()?, b"text");
    let advice = Sqe {
        op_flags: libc::POSIX_FADV_DONTNEED as u32,
        ..Sqe::new(Op::IORING_OP_FADVISE, file.as_raw_fd(), 3)
    };
    expect_eq!(ring.run(&[advice])?, [(3, 0, 0)]);
    let memory = vec![0_u8; 8192];
    let page = memory.as_ptr() as u64 & !4095;
    let advice = Sqe {
        addr: page,
        len: 4096,
        op_flags: libc::MADV_NORMAL as u32,
        ..Sqe::new(Op::IORING_OP_MADVISE, -1, 4)
    };
    expect_eq!(ring.run(&[advice])?, [(4, 0, 0)]);
    let (name, mut value) = (c"user.name", *b"value");
    let set = Sqe { addr: name.as_ptr() as u64, off: value.as_ptr() as u64, len: 5, ..Sqe::default() };
    let set = Sqe { operation: Op::IORING_OP_FSETXATTR as u8, fd: file.as_raw_fd(), data: 5, ..set };
    let (_, stored, _) = ring.run(&[set])?[0];
    if stored != error(Errno::EOPNOTSUPP) {
        expect_eq!(stored, 0);
        value = [0; 5];
        let get = Sqe { operation: Op::IORING_OP_GETXATTR as u8, addr3: old.as_ptr() as u64, ..set };
        expect_eq!(ring.run(&[get])?, [(5, 5, 0)]);
        expect_eq!(&value, b"value");
    }
    Ok(())
}

fn flags_of_single_transfers() -> Outcome {
    let scratch = Scratch::new("uring-flags")?;
    let path = scratch.path("file");
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.or_fail()?;
    let ring = Ring::new(8)?;
    let mut text = *b"abc";
    let append =
        Sqe { op_flags: libc::RWF_APPEND as u32, ..Sqe::new(Op::IORING_OP_WRITE, file.as_raw_fd(), 1) };
    expect_eq!(ring.run(&[append.buffer(&mut text)])?, [(1, 3, 0)]);
    expect_eq!(ring.run(&[append.buffer(&mut text)])?, [(1, 3, 0)]);
    expect_eq!(std::fs::read(scratch.path("file")).or_fail()?, b"abcabc");
    let unknown = Sqe { op_flags: 1 << 20, ..append };
    expect_eq!(ring.run(&[unknown.buffer(&mut text)])?, [(1, error(Errno::EOPNOTSUPP), 0)]);
    Ok(())
}
