//! The pages that a process and the kernel both write.
#![allow(unsafe_code, reason = "structures of atomics in frames that programs write")]

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use heddle_abi::user_sched::{
    EXECUTORS_MAX, ExecutorRecord, MAGIC, ProcessHeader, ProcessPages, RUNNING_NONE, VERSION,
};

use crate::arch::paging;
use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::memory::source::SerialNumber;
use crate::memory::{FrameRef, MapSource, PageRef, fallible};

const PAGES: usize = size_of::<ProcessPages>() / PAGE_SIZE;
const HEADER: usize = 0;
const RECORDS: usize = offset_of!(ProcessPages, executors) / PAGE_SIZE;

/// A process's pages. A frame is allocated at the first access to it, so that a program that knows nothing of them
/// costs none.
pub struct Pages {
    serial: SerialNumber,
    frames: [spin::Once<FrameRef>; PAGES],
    /// Where they are mapped. The program may have moved them; then it waits for nothing there.
    address: usize,
}

impl Pages {
    /// Bytes that are mapped.
    pub const BYTES: usize = size_of::<ProcessPages>();

    /// Pages that will be mapped at `address`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(address: usize) -> Result<Arc<Self>, Errno> {
        fallible::try_arc(Self {
            serial: SerialNumber::default(),
            frames: [const { spin::Once::new() }; PAGES],
            address,
        })
    }

    /// The pages of a child after fork: at the same address, with nothing in them.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn for_child(&self) -> Result<Arc<Self>, Errno> {
        Self::new(self.address)
    }

    /// Where they were mapped.
    #[must_use]
    pub const fn address(&self) -> usize {
        self.address
    }

    fn frame(&self, index: usize) -> Result<&FrameRef, Errno> {
        let place = self.frames.get(index).ok_or(Errno::EFAULT)?;
        place.try_call_once(|| {
            let frame = FrameRef::allocate_zeroed()?;
            if index == HEADER {
                let header = header_of(&frame);
                header.magic.store(MAGIC, Ordering::Relaxed);
                header.version.store(VERSION, Ordering::Relaxed);
            } else {
                for record in records_of(&frame) {
                    record.running.store(RUNNING_NONE, Ordering::Relaxed);
                }
            }
            Ok(frame)
        })
    }

    /// Whether any page has been touched: otherwise none is in a page table.
    #[must_use]
    pub fn is_touched(&self) -> bool {
        self.frames.iter().any(|frame| frame.get().is_some())
    }

    /// The first page, if it has been touched.
    #[must_use]
    pub fn header(&self) -> Option<&ProcessHeader> {
        self.frames[HEADER].get().map(header_of)
    }

    /// The record of an executor, if there is a page for it.
    #[must_use]
    pub fn record(&self, number: u32) -> Option<&ExecutorRecord> {
        records_of(self.frames[RECORDS].get()?).get(number as usize)
    }

    /// Makes sure that there are records.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn need_records(&self) -> Result<(), Errno> {
        self.frame(RECORDS).map(|_| ())
    }

    /// Where an executor sleeps: the address of its pending word.
    #[must_use]
    pub const fn pending_address(&self, number: u32) -> usize {
        let record = offset_of!(ProcessPages, executors) + number as usize * size_of::<ExecutorRecord>();
        self.address + record + offset_of!(ExecutorRecord, pending)
    }
}

impl MapSource for Pages {
    fn serial(&self) -> (u64, u64) {
        self.serial.pair()
    }

    fn page(&self, index: u64, _write: bool) -> Result<PageRef, Errno> {
        let index = usize::try_from(index).map_err(|_| Errno::EFAULT)?;
        self.frame(index).map(|frame| PageRef::Counted(frame.clone()))
    }

    fn path(&self) -> Option<Vec<u8>> {
        fallible::try_to_vec(b"[heddle]").ok()
    }
}

fn header_of(frame: &FrameRef) -> &ProcessHeader {
    // SAFETY: a whole frame at a page boundary, which the reference keeps; the structure is one page of atomics, which
    // may have any value and be written by the program at any time.
    unsafe { &*paging::direct_map::<ProcessHeader>(frame.physical()) }
}

fn records_of(frame: &FrameRef) -> &[ExecutorRecord; EXECUTORS_MAX] {
    // SAFETY: as in `header_of`.
    unsafe { &*paging::direct_map::<[ExecutorRecord; EXECUTORS_MAX]>(frame.physical()) }
}
