//! A ring as a program maps it, and its entries.
#![allow(unsafe_code, reason = "raw system calls, and memory that the kernel writes")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::io_uring as abi;
use linux_raw_sys::io_uring::io_uring_op as Op;
use nix::errno::Errno;

use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

/// An entry, by its words.
#[derive(Clone, Copy, Default)]
pub struct Sqe {
    pub operation: u8,
    pub flags: u8,
    pub ioprio: u16,
    pub fd: i32,
    pub off: u64,
    pub addr: u64,
    pub len: u32,
    pub op_flags: u32,
    pub data: u64,
    pub buffer: u16,
    pub slot: u32,
    pub addr3: u64,
}

impl Sqe {
    pub fn new(operation: Op, fd: i32, data: u64) -> Self {
        Self { operation: operation as u8, fd, data, ..Self::default() }
    }

    pub fn flags(self, flags: u8) -> Self {
        Self { flags, ..self }
    }

    pub fn buffer(self, buffer: &mut [u8]) -> Self {
        Self { addr: buffer.as_mut_ptr() as u64, len: buffer.len() as u32, ..self }
    }

    fn words(&self) -> [u64; 8] {
        let head = u64::from(self.operation) | u64::from(self.flags) << 8 | u64::from(self.ioprio) << 16;
        [
            head | u64::from(self.fd as u32) << 32,
            self.off,
            self.addr,
            u64::from(self.len) | u64::from(self.op_flags) << 32,
            self.data,
            u64::from(self.buffer) | u64::from(self.slot) << 32,
            self.addr3,
            0,
        ]
    }
}

/// User data, result and flags of a completion.
pub type Completion = (u64, i32, u32);

pub struct Ring {
    pub file: OwnedFd,
    pub parameters: [u32; 30],
    rings: *mut u8,
    entries: *mut [u64; 8],
}

/// io_uring_setup(2).
pub fn setup(entries: u32, parameters: &mut [u32; 30]) -> Result<OwnedFd, Errno> {
    // SAFETY: the parameters live through the call.
    let result = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, parameters.as_mut_ptr()) };
    // SAFETY: a new descriptor.
    Errno::result(result).map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

fn map(file: &OwnedFd, length: usize, offset: u32) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    unsafe {
        let null = std::ptr::null_mut();
        libc::mmap(null, length, protection, libc::MAP_SHARED, file.as_raw_fd(), i64::from(offset)).cast()
    }
}

impl Ring {
    pub fn new(entries: u32) -> Result<Self, String> {
        Self::with_setup(entries, 0, 0)
    }

    /// A ring with flags, and an idle time for the coroutine that polls it.
    pub fn with_setup(entries: u32, flags: u32, idle_ms: u32) -> Result<Self, String> {
        let mut parameters = [0; 30];
        (parameters[2], parameters[4]) = (flags, idle_ms);
        let file = setup(entries, &mut parameters).or_fail()?;
        expect!(parameters[5] & abi::IORING_FEAT_SINGLE_MMAP != 0);
        let of_array = parameters[16] + parameters[0] * 4;
        let of_completions = parameters[25] + parameters[1] * 16;
        let rings = map(&file, of_array.max(of_completions) as usize, abi::IORING_OFF_SQ_RING);
        let entries = map(&file, parameters[0] as usize * 64, abi::IORING_OFF_SQES).cast();
        expect!(rings as isize != -1 && entries as isize != -1);
        Ok(Self { file, parameters, rings, entries })
    }

    pub fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: inside the mapping.
        unsafe { &*self.rings.add(offset as usize).cast() }
    }

    pub fn push(&self, sqe: Sqe) {
        let tail = self.word(self.parameters[11]);
        let index = tail.load(Ordering::Relaxed) & (self.parameters[0] - 1);
        // SAFETY: inside the mapping.
        unsafe { self.entries.add(index as usize).write_volatile(sqe.words()) };
        self.word(self.parameters[16] + index * 4).store(index, Ordering::Relaxed);
        tail.fetch_add(1, Ordering::Release);
    }

    pub fn enter(&self, submit: u32, wait: u32) -> Result<u32, Errno> {
        self.enter_with(submit, wait, abi::IORING_ENTER_GETEVENTS, std::ptr::null(), 0)
    }

    pub fn enter_with(
        &self,
        submit: u32,
        wait: u32,
        flags: u32,
        argument: *const u64,
        size: usize,
    ) -> Result<u32, Errno> {
        let descriptor = self.file.as_raw_fd();
        // SAFETY: what the argument points to lives through the call.
        let result = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, descriptor, submit, wait, flags, argument, size)
        };
        Errno::result(result).map(|count| count as u32)
    }

    pub fn register(&self, operation: u32, argument: *const u8, count: u32) -> Result<u32, Errno> {
        let descriptor = self.file.as_raw_fd();
        // SAFETY: what the argument points to lives through the call.
        let result =
            unsafe { libc::syscall(libc::SYS_io_uring_register, descriptor, operation, argument, count) };
        Errno::result(result).map(|count| count as u32)
    }

    pub fn take(&self) -> Option<Completion> {
        let (head, tail) = (self.word(self.parameters[20]), self.word(self.parameters[21]));
        let index = head.load(Ordering::Relaxed);
        if index == tail.load(Ordering::Acquire) {
            return None;
        }
        let offset = self.parameters[25] + (index & (self.parameters[1] - 1)) * 16;
        let word = |at: u32| self.word(offset + at * 4).load(Ordering::Relaxed);
        let completion = (u64::from(word(0)) | u64::from(word(1)) << 32, word(2) as i32, word(3));
        head.store(index.wrapping_add(1), Ordering::Release);
        Some(completion)
    }

    /// Submits, waits for as many completions, and takes those.
    pub fn run(&self, entries: &[Sqe]) -> Result<Vec<Completion>, String> {
        self.submit(entries)?;
        self.await_completions(entries.len())
    }

    pub fn submit(&self, entries: &[Sqe]) -> Outcome {
        entries.iter().for_each(|sqe| self.push(*sqe));
        expect_eq!(self.enter(entries.len() as u32, 0), Ok(entries.len() as u32));
        Ok(())
    }

    /// Takes so many completions, in the order of their data.
    pub fn await_completions(&self, count: usize) -> Result<Vec<Completion>, String> {
        let mut taken = Vec::new();
        while taken.len() < count {
            match self.take() {
                Some(completion) => taken.push(completion),
                None => expect_eq!(self.enter(0, 1), Ok(0)),
            }
        }
        taken.sort_by_key(|completion| completion.0);
        Ok(taken)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let of_array = self.parameters[16] + self.parameters[0] * 4;
        let of_completions = self.parameters[25] + self.parameters[1] * 16;
        // SAFETY: nothing refers to the mappings any more.
        unsafe {
            libc::munmap(self.rings.cast(), of_array.max(of_completions) as usize);
            libc::munmap(self.entries.cast(), self.parameters[0] as usize * 64);
        }
    }
}
