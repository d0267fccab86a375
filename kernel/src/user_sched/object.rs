//! The vDSO and the system page: pages of the kernel's own image, which every program gets.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::offset_of;
use core::ops::Range;

use heddle_abi::user_sched::TimePage;

use crate::arch;
use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::memory::process_pages::Pages;
use crate::memory::source::Object;
use crate::memory::space::{Flags, MapRequest, Placement, Protection, Space};
use crate::memory::{FrameRef, MapSource, PageRef, fallible};
use crate::time::system_page;

/// The object, at a page boundary and padded to whole pages by the build script.
#[repr(C, align(4096))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/vdso.bin")));

/// The page of the first time namespace.
static FIRST_TIME: TimePage = TimePage::new();

/// The page of a time namespace and the system page as something to map. They can't be made writable.
struct ClockSource {
    time: PageRef,
}

impl MapSource for ClockSource {
    fn page(&self, index: u64, write: bool) -> Result<PageRef, Errno> {
        match index {
            0 if !write => Ok(self.time.clone()),
            1 if !write => Ok(PageRef::of_kernel(&raw const system_page::PAGE)),
            _ => Err(Errno::EACCES),
        }
    }

    fn path(&self) -> Option<Vec<u8>> {
        fallible::try_to_vec(b"[vvar]").ok()
    }
}

/// The pages that a program of the first time namespace maps.
///
/// # Errors
/// `ENOMEM`.
pub fn first_clock() -> Result<Arc<dyn MapSource>, Errno> {
    source(&FIRST_CLOCK, ClockSource { time: PageRef::of_kernel(&raw const FIRST_TIME) })
}

/// The pages that a program of another one maps, with its offsets.
///
/// # Errors
/// `ENOMEM`.
pub fn clock(monotonic_offset: u64, boottime_offset: u64) -> Result<Arc<dyn MapSource>, Errno> {
    let frame = FrameRef::allocate_zeroed()?;
    frame.write(offset_of!(TimePage, monotonic_offset), &monotonic_offset.to_ne_bytes());
    frame.write(offset_of!(TimePage, boottime_offset), &boottime_offset.to_ne_bytes());
    Ok(fallible::try_arc(ClockSource { time: PageRef::Counted(frame) })?)
}

/// The object as something to map. A program that makes it writable, a debugger say, gets copies.
struct ObjectSource;

impl MapSource for ObjectSource {
    fn page(&self, index: u64, write: bool) -> Result<PageRef, Errno> {
        if write {
            return Err(Errno::EACCES);
        }
        self.resident(index).ok_or(Errno::EFAULT)
    }

    fn resident(&self, index: u64) -> Option<PageRef> {
        let start = usize::try_from(index).ok()?.checked_mul(PAGE_SIZE)?;
        let page = OBJECT.0.get(start..)?.get(..PAGE_SIZE)?;
        Some(PageRef::of_kernel(page.as_ptr()))
    }

    fn path(&self) -> Option<Vec<u8>> {
        fallible::try_to_vec(b"[vdso]").ok()
    }
}

/// Where a program finds what the kernel gives it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places {
    /// The vDSO.
    pub object: usize,
    /// The system page.
    pub system: usize,
    /// The pages that it shares with the kernel.
    pub process: usize,
}

impl Places {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> Range<usize> {
        self.process..self.object + OBJECT.0.len().next_multiple_of(PAGE_SIZE)
    }
}

/// Maps the process's own pages, the clock's and the system page and, behind it, the vDSO into a new space.
///
/// # Errors
/// `ENOMEM`.
pub async fn map(space: &Arc<Space>, clock: Arc<dyn MapSource>) -> Result<Places, Errno> {
    // A reservation finds room for all of it.
    let length = Pages::BYTES + 2 * PAGE_SIZE + OBJECT.0.len();
    let mut request = MapRequest::anonymous(Placement::Any, length);
    let process = space.map(request.clone()).await?;
    let pages = Pages::new(process)?;
    request.placement = Placement::Fixed(process);
    request.length = Pages::BYTES;
    request.flags = Flags::SHARED;
    request.object = Object::Source(pages.clone());
    space.map(request.clone()).await?;
    space.set_pages(pages);
    request.protection = Protection::READ;
    request.placement = Placement::Fixed(process + Pages::BYTES);
    request.length = 2 * PAGE_SIZE;
    request.flags = Flags::SHARED | Flags::NEVER_WRITABLE;
    request.object = Object::Source(clock);
    space.map(request.clone()).await?;
    let system = process + Pages::BYTES + PAGE_SIZE;
    let object = system + PAGE_SIZE;
    request.placement = Placement::Fixed(object);
    request.length = OBJECT.0.len();
    request.protection = Protection::READ | Protection::EXECUTE;
    request.flags = Flags::empty();
    request.object = Object::Source(source(&OBJECT_SOURCE, ObjectSource)?);
    space.map(request).await?;
    Ok(Places { object, system, process })
}

/// The address of a system call's instruction in the vDSO of a space, where that was mapped.
#[must_use]
pub fn call_instruction(space: &Space) -> Option<usize> {
    let object = space.pages()?.address() + Pages::BYTES + 2 * PAGE_SIZE;
    let length = arch::CALL_INSTRUCTION.len();
    OBJECT.0.windows(length).position(|bytes| bytes == arch::CALL_INSTRUCTION).map(|at| object + at)
}

/// One object for all programs, made when the first one needs it.
type Shared = spin::Once<Arc<dyn MapSource>>;

static FIRST_CLOCK: Shared = Shared::new();
static OBJECT_SOURCE: Shared = Shared::new();

fn source(place: &Shared, source: impl MapSource + 'static) -> Result<Arc<dyn MapSource>, Errno> {
    place.try_call_once(|| Ok(fallible::try_arc(source)? as Arc<dyn MapSource>)).cloned()
}
