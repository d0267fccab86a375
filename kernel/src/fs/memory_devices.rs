//! The devices that are only memory, null(4), full(4) and random(4).

use alloc::sync::Arc;
use linux_raw_sys::ioctl;

use crate::call::Call;
use crate::error::{Errno, TryResult};
use crate::fs::inode::Opening;
use crate::fs::{File, IoBuffer, OpenFile, devices};
use crate::memory::{MapSource, fallible, frame};

/// Name, major and minor number of each.
pub const NODES: &[(&[u8], u32, u32)] = &[
    (b"null", MEMORY, NULL),
    (b"zero", MEMORY, ZERO),
    (b"full", MEMORY, FULL),
    (b"random", MEMORY, RANDOM),
    (b"urandom", MEMORY, URANDOM),
];

const MEMORY: u32 = 1;
const NULL: u32 = 3;
const ZERO: u32 = 5;
const FULL: u32 = 7;
const RANDOM: u32 = 8;
const URANDOM: u32 = 9;

/// Random bytes made at a time, and in one attempt: they take many times as long as other copies.
const PIECE: usize = 256;
const RANDOM_ATTEMPT: usize = 4096;
/// What is known of the generator's state to nobody else: its key.
const ENTROPY_BITS: i32 = 256;

struct Device(u32);

/// Makes them available to device nodes.
///
/// # Errors
/// `ENOMEM`.
pub fn register() -> Result<(), Errno> {
    devices::register(MEMORY, NULL..=URANDOM, open)
}

fn open(minor: u32, _: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
    match minor {
        NULL | ZERO | FULL | RANDOM | URANDOM => Ok(fallible::try_arc(Device(minor))?),
        _ => Err(Errno::ENXIO),
    }
}

impl File for Device {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        if self.0 == NULL {
            return Ok(0);
        }
        let mut read = 0;
        if matches!(self.0, RANDOM | URANDOM) {
            buffer.truncate(RANDOM_ATTEMPT);
        }
        while buffer.remaining() > 0 {
            let mut piece = [0; PIECE];
            let bytes = if matches!(self.0, RANDOM | URANDOM) {
                let piece = &mut piece[..PIECE.min(buffer.remaining())];
                crate::random::fill(piece);
                piece
            } else {
                &frame::zeros()[..]
            };
            let before = buffer.done();
            let result = buffer.copy_out(bytes);
            read += buffer.done() - before;
            match result {
                Err(fault) if read == 0 => return Err(fault.into()),
                Err(_) => break,
                Ok(_) => {}
            }
        }
        Ok(read)
    }

    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        if self.0 == FULL {
            return Err(Errno::ENOSPC.into());
        }
        let count = buffer.remaining();
        buffer.skip(count);
        Ok(count)
    }

    fn is_pollable(&self) -> bool {
        matches!(self.0, RANDOM | URANDOM)
    }

    fn ioctl(&self, call: &Call<'_>, _: &OpenFile, request: u32, argument: usize) -> TryResult<usize> {
        match (self.0, request) {
            (RANDOM | URANDOM, ioctl::RNDGETENTCNT) => {
                crate::call::put(call, argument, &ENTROPY_BITS.to_ne_bytes())?;
                Ok(0)
            }
            _ => Err(Errno::ENOTTY.into()),
        }
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn stays_at_start(&self) -> bool {
        true
    }

    fn map_source(self: Arc<Self>) -> Result<Arc<dyn MapSource>, Errno> {
        if self.0 == ZERO {
            Ok(fallible::try_arc(crate::memory::source::SharedMemory::default())?)
        } else {
            Err(Errno::ENODEV)
        }
    }
}
