//! io_uring_register(2): files and buffers, with tags, sparse, and changed one by one.

use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::io_uring::{IORING_REGISTER_FILES_SKIP, IORING_RSRC_REGISTER_SPARSE};

use heddle_kernel_core::fallible::push_reserved;

use crate::arch::paging::PAGE_SIZE;
use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::fs::downcast;
use crate::memory::fallible;
use crate::sched::Budget;
use crate::syscall::uring::resources::{BufferResource, FileResource, FileTable, RingResource};
use crate::syscall::uring::ring::Uring;
use crate::syscall::{Call, SyscallResult, pending};

const FILES_MAX: u32 = 1 << 15;
/// As in Linux.
const BUFFERS_MAX: u32 = 1 << 14;
/// The largest buffer, as in Linux.
const BUFFER_BYTES_MAX: u64 = 1 << 30;
/// Units of work of one file or page of a buffer.
const RESOURCE_COST: u32 = 2;

/// A list of resources that a program registers: addresses of 0 stand for none.
#[derive(Clone, Copy, Debug)]
pub struct ResourceList {
    pub count: u32,
    pub list: u64,
    pub tags: u64,
}

/// New files for slots from `first` on.
#[derive(Clone, Copy, Debug)]
pub struct FileUpdate {
    pub first: u32,
    pub list: u64,
    pub tags: u64,
    pub count: u32,
}

impl ResourceList {
    /// The list of a `struct io_uring_rsrc_register`.
    ///
    /// # Errors
    /// `EINVAL`; a page fault.
    pub fn read(call: &Call<'_>, address: usize, size: usize) -> TryResult<Self> {
        const SIZE: usize = 32;
        if size != SIZE {
            return Err(Errno::EINVAL.into());
        }
        let [numbers, reserved, list, tags] = call.thread.space().read::<[u64; 4]>(address)?;
        let (count, flags) = (numbers as u32, (numbers >> 32) as u32);
        let is_sparse = flags & IORING_RSRC_REGISTER_SPARSE != 0;
        if count == 0 || reserved != 0 || flags & !IORING_RSRC_REGISTER_SPARSE != 0 || is_sparse && list != 0
        {
            return Err(Errno::EINVAL.into());
        }
        Ok(Self { count, list, tags })
    }
}

impl FileUpdate {
    /// The update of a `struct io_uring_rsrc_update2`, for files or buffers.
    ///
    /// # Errors
    /// `EINVAL`; a page fault.
    pub fn read(call: &Call<'_>, address: usize, size: usize) -> TryResult<Self> {
        const SIZE: usize = 32;
        if size != SIZE {
            return Err(Errno::EINVAL.into());
        }
        let [numbers, list, tags, counts] = call.thread.space().read::<[u64; 4]>(address)?;
        if numbers >> 32 != 0 || counts >> 32 != 0 || counts as u32 == 0 {
            return Err(Errno::EINVAL.into());
        }
        Ok(Self { first: numbers as u32, list, tags, count: counts as u32 })
    }

    /// The update of a `struct io_uring_files_update`.
    ///
    /// # Errors
    /// `EINVAL`; a page fault.
    pub fn read_plain(call: &Call<'_>, address: usize, count: u32) -> TryResult<Self> {
        if count == 0 {
            return Err(Errno::EINVAL.into());
        }
        let [numbers, list] = call.thread.space().read::<[u64; 2]>(address)?;
        if numbers >> 32 != 0 {
            return Err(Errno::EINVAL.into());
        }
        Ok(Self { first: numbers as u32, list, tags: 0, count })
    }
}

/// An element of a list of the program.
async fn element<const WORDS: usize>(caller: &Caller, list: u64, index: u32) -> Result<[u64; WORDS], Errno> {
    let offset = u64::from(index) * (WORDS * size_of::<u64>()) as u64;
    let address = usize::try_from(list.wrapping_add(offset)).map_err(|_| Errno::EFAULT)?;
    let read = |space: &crate::memory::Space| crate::memory::values::read_words::<WORDS>(space, address);
    caller.resolve(read).await
}

/// A descriptor of a list of them.
async fn descriptor(caller: &Caller, list: u64, index: u32) -> Result<i32, Errno> {
    let address = list.wrapping_add(u64::from(index) * size_of::<i32>() as u64);
    let address = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    caller.resolve(|space| space.read::<[u32; 1]>(address)).await.map(|word| word[0].cast_signed())
}

/// The tag of an element; 0 for none.
async fn tag(caller: &Caller, tags: u64, index: u32) -> Result<u64, Errno> {
    if tags == 0 { Ok(0) } else { element::<1>(caller, tags, index).await.map(|word| word[0]) }
}

/// The file of a descriptor. A ring is refused: it would keep itself.
fn file_of(
    ring: &Arc<Uring>,
    caller: &Caller,
    descriptor: i32,
    tag: u64,
) -> Result<Arc<FileResource>, Errno> {
    let open = caller.descriptors().get(descriptor)?;
    if downcast::<Uring>(&open).is_some() {
        return Err(Errno::EBADF);
    }
    RingResource::new(open, tag, ring)
}

/// Registers files.
pub fn register_files(call: &Call<'_>, ring: &Arc<Uring>, list: ResourceList) -> SyscallResult {
    if ring.files.lock().len() > 0 {
        return Err(Errno::EBUSY.into());
    }
    if list.count == 0 {
        return Err(Errno::EINVAL.into());
    }
    if list.count > FILES_MAX || list.count as usize > call.thread.process.descriptor_limit() {
        return Err(Errno::EMFILE.into());
    }
    let (caller, ring) = (call.thread.clone(), ring.clone());
    pending(async move {
        let mut budget = Budget::new();
        let mut slots: Vec<Option<Arc<FileResource>>> = fallible::try_with_capacity(list.count as usize)?;
        for index in 0..list.count {
            caller.pace(&mut budget, RESOURCE_COST).await?;
            let tag = tag(&caller, list.tags, index).await?;
            let given = if list.list == 0 { -1 } else { descriptor(&caller, list.list, index).await? };
            match given {
                -1 if tag != 0 => return Err(Errno::EINVAL),
                -1 => push_reserved(&mut slots, None),
                given => push_reserved(&mut slots, Some(file_of(&ring, &caller, given, tag)?)),
            }
        }
        let table = FileTable::new(slots)?;
        ring.eras.lock().begin()?;
        let mut files = ring.files.lock();
        if files.len() > 0 || ring.is_closed() {
            drop(files);
            return Err(Errno::EBUSY);
        }
        *files = table;
        Ok(0)
    })
}

/// Changes registered files. Returns how many slots it came to.
///
/// # Errors
/// `ENXIO`, `EINVAL`, `EBADF`, `EFAULT`, `ENOMEM`, if it is the first that fails.
pub async fn update_files(ring: &Arc<Uring>, caller: &Caller, update: FileUpdate) -> Result<usize, Errno> {
    let known = ring.files.lock().len() as u64;
    if known == 0 {
        return Err(Errno::ENXIO);
    }
    if u64::from(update.first) + u64::from(update.count) > known {
        return Err(Errno::EINVAL);
    }
    let mut budget = Budget::new();
    for index in 0..update.count {
        caller.pace(&mut budget, RESOURCE_COST).await?;
        if let Err(error) = update_file(ring, caller, update, index).await {
            return if index > 0 { Ok(index as usize) } else { Err(error) };
        }
    }
    Ok(update.count as usize)
}

async fn update_file(
    ring: &Arc<Uring>,
    caller: &Caller,
    update: FileUpdate,
    index: u32,
) -> Result<(), Errno> {
    let given = descriptor(caller, update.list, index).await?;
    let tag = tag(caller, update.tags, index).await?;
    if matches!(given, IORING_REGISTER_FILES_SKIP | -1) && tag != 0 {
        return Err(Errno::EINVAL);
    }
    if given == IORING_REGISTER_FILES_SKIP {
        return Ok(());
    }
    let slot = update.first + index;
    // The slot is empty even if the new file is none.
    let before = ring.files.lock().replace(slot, None)?;
    ring.retire_file(before);
    if given != -1 {
        let file = file_of(ring, caller, given, tag)?;
        let before = ring.files.lock().replace(slot, Some(file))?;
        ring.retire_file(before);
    }
    Ok(())
}

/// Registers buffers.
pub fn register_buffers(call: &Call<'_>, ring: &Arc<Uring>, list: ResourceList) -> SyscallResult {
    if !ring.buffers.lock().is_empty() {
        return Err(Errno::EBUSY.into());
    }
    if list.count == 0 || list.count > BUFFERS_MAX {
        return Err(Errno::EINVAL.into());
    }
    let (caller, ring) = (call.thread.clone(), ring.clone());
    pending(async move {
        let mut buffers: Vec<Option<Arc<BufferResource>>> = fallible::try_with_capacity(list.count as usize)?;
        for index in 0..list.count {
            push_reserved(&mut buffers, buffer_of(&ring, &caller, (list.list, list.tags), index).await?);
        }
        ring.eras.lock().begin()?;
        let before = {
            let mut place = ring.buffers.lock();
            if !place.is_empty() || ring.is_closed() {
                return Err(Errno::EBUSY);
            }
            core::mem::replace(&mut *place, buffers)
        };
        drop(before);
        Ok(0)
    })
}

/// A buffer of a list; each of its pages is brought in, as what cannot be is no buffer.
async fn buffer_of(
    ring: &Arc<Uring>,
    caller: &Caller,
    (list, tags): (u64, u64),
    index: u32,
) -> Result<Option<Arc<BufferResource>>, Errno> {
    let [start, length] = if list == 0 { [0; 2] } else { element::<2>(caller, list, index).await? };
    let tag = tag(caller, tags, index).await?;
    if start == 0 {
        return match length {
            0 if tag == 0 => Ok(None),
            0 => Err(Errno::EINVAL),
            _ => Err(Errno::EFAULT),
        };
    }
    if length == 0 || length > BUFFER_BYTES_MAX {
        return Err(Errno::EFAULT);
    }
    let end = start.checked_add(length + PAGE_SIZE as u64).ok_or(Errno::EOVERFLOW)? - PAGE_SIZE as u64;
    let mut budget = Budget::new();
    let mut page = start;
    while page < end {
        caller.pace(&mut budget, RESOURCE_COST).await?;
        let address = usize::try_from(page).map_err(|_| Errno::EFAULT)?;
        caller.resolve(|space| space.probe_write(address, 1)).await?;
        page = (page / PAGE_SIZE as u64 + 1) * PAGE_SIZE as u64;
    }
    RingResource::new((start, length), tag, ring).map(Some)
}

/// Changes registered buffers.
pub fn update_buffers(call: &Call<'_>, ring: &Arc<Uring>, update: FileUpdate) -> SyscallResult {
    let known = ring.buffers.lock().len() as u64;
    if known == 0 {
        return Err(Errno::ENXIO.into());
    }
    if u64::from(update.first) + u64::from(update.count) > known {
        return Err(Errno::EINVAL.into());
    }
    let (caller, ring) = (call.thread.clone(), ring.clone());
    pending(async move {
        for index in 0..update.count {
            let buffer = match buffer_of(&ring, &caller, (update.list, update.tags), index).await {
                Ok(buffer) => buffer,
                Err(_) if index > 0 => return Ok(index as usize),
                Err(error) => return Err(error),
            };
            let slot = (update.first + index) as usize;
            let before = {
                let mut buffers = ring.buffers.lock();
                buffers.get_mut(slot).and_then(|place| core::mem::replace(place, buffer))
            };
            ring.retire_buffer(before);
        }
        Ok(update.count as usize)
    })
}
