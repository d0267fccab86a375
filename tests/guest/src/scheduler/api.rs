//! The vDSO's functions and the pages, as a program finds them.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Results of a coroutine's body: it waits, or has ended.
pub const WAITS: u32 = 0;
/// See [`WAITS`].
pub const DONE: u32 = 1;
/// No executor's number.
pub const NO_EXECUTOR: u32 = u32::MAX;

const AT_PROCESS: libc::c_ulong = 0x4865_6401;
const AT_SYSTEM: libc::c_ulong = 0x4865_6402;
const CALL_SUBMIT: libc::c_long = 0x4844_0000;
const CALL_REGISTER: libc::c_long = 0x4844_0010;
const CALL_UNREGISTER: libc::c_long = 0x4844_0011;
const CALL_INTERRUPT: libc::c_long = 0x4844_0012;
const CALL_GIVE_WAY: libc::c_long = 0x4844_0013;
const CALL_POLICY: libc::c_long = 0x4844_0014;
const PAGE_BYTES: usize = 4096;

/// An executor's record.
#[repr(C, align(64))]
pub struct Record {
    /// Not 0: no interrupts.
    pub mask: AtomicU32,
    /// Reasons to look around.
    pub pending: AtomicU32,
    /// Level of the coroutine that runs.
    pub running: AtomicU32,
    reserved: u32,
    /// Levels in the queue.
    pub ready: AtomicU64,
    current: AtomicU64,
    /// Interrupts that were delivered.
    pub interrupts: AtomicU64,
}

/// The pages that the kernel gives a program.
#[derive(Clone, Copy)]
pub struct Api {
    /// Address of the process's pages.
    pub process: usize,
    /// Address of the system page.
    pub system: usize,
}

fn function(name: &CStr) -> usize {
    // SAFETY: names of a library that every program has, if the kernel offers it.
    unsafe {
        let object = libc::dlopen(c"linux-vdso.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if object.is_null() { 0 } else { libc::dlsym(object, name.as_ptr()) as usize }
    }
}

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        $(fn $name() -> unsafe extern "C" fn($($argument),*) -> $result {
            let address = function($symbol);
            assert!(address != 0, "the vDSO has no {:?}", $symbol);
            // SAFETY: the function of that name has this type: guest/vdso/include/heddle.h.
            unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($argument),*) -> $result>(address) }
        })*
    };
}

functions! {
    scheduler_bytes = c"__heddle_scheduler_bytes": fn(u32, u32) -> usize;
    scheduler_init = c"__heddle_scheduler_init": fn(*mut u8, usize, u32, u32, usize) -> *mut c_void;
    enter = c"__heddle_enter": fn(*mut c_void, u32) -> i32;
    leave = c"__heddle_leave": fn(*mut c_void, u32) -> ();
    spawn = c"__heddle_spawn": fn(*mut c_void, u32, *mut c_void, u32) -> u64;
    wake = c"__heddle_wake": fn(*mut c_void, u32, u64) -> u32;
    run = c"__heddle_run": fn(*mut c_void, u32) -> u64;
    ring = c"__heddle_ring": fn(*mut c_void, *mut u8, u32) -> i32;
    policy = c"__heddle_policy": fn(*mut c_void, u32) -> i32;
}

impl Api {
    /// Nothing on Linux.
    pub fn find() -> Option<Self> {
        // SAFETY: no preconditions.
        let value = |kind| unsafe { libc::getauxval(kind) } as usize;
        let found = Self { process: value(AT_PROCESS), system: value(AT_SYSTEM) };
        let is_there = found.process != 0 && found.system != 0;
        assert!(
            is_there || !crate::harness::is_heddle(),
            "Heddle tells its programs where the shared pages are"
        );
        if !is_there {
            crate::harness::skip("only Heddle has the shared pages");
        }
        is_there.then_some(found)
    }

    fn word(address: usize) -> &'static AtomicU32 {
        // SAFETY: callers pass addresses in the pages.
        unsafe { &*(address as *const AtomicU32) }
    }

    fn long(address: usize) -> &'static AtomicU64 {
        // SAFETY: as in `word`.
        unsafe { &*(address as *const AtomicU64) }
    }

    /// A word of the header.
    pub fn header_word(&self, offset: usize) -> u32 {
        Self::word(self.process + offset).load(Ordering::Relaxed)
    }

    /// A word of the system page.
    pub fn system_word(&self, offset: usize) -> u32 {
        Self::word(self.system + offset).load(Ordering::Relaxed)
    }

    /// Levels at which something waits for a processor.
    pub fn ready_levels(&self) -> u64 {
        Self::long(self.system + 64).load(Ordering::Acquire)
    }

    /// The header's bitmap.
    pub fn bitmap(&self) -> &'static AtomicU64 {
        Self::long(self.process + 64)
    }

    /// An executor's record.
    pub fn record(&self, number: usize) -> &'static Record {
        // SAFETY: the records begin with the second page.
        unsafe { &*((self.process + PAGE_BYTES) as *const Record).add(number) }
    }

    /// Has `/proc/PID/heddle` show these coroutines.
    pub fn show(&self, blocks: &[Block<'_>]) {
        let first = blocks.first().map_or(0, |block| (&raw const block.header.info) as usize);
        Self::long(self.process + 128).store(first as u64, Ordering::Relaxed);
        Self::word(self.process + 136).store(blocks.len() as u32, Ordering::Relaxed);
        Self::word(self.process + 140).store(size_of::<Block<'_>>() as u32, Ordering::Relaxed);
    }

    fn call(number: libc::c_long, arguments: [usize; 3]) -> i64 {
        // SAFETY: Heddle's own calls touch nothing but the pages.
        let result = unsafe { libc::syscall(number, arguments[0], arguments[1], arguments[2]) };
        if result >= 0 {
            result
        } else {
            -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(1))
        }
    }

    /// Makes this thread an executor.
    pub fn register(&self, number: usize, handler: usize, argument: usize) -> i64 {
        Self::call(CALL_REGISTER, [number, handler, argument])
    }

    /// Makes this thread an ordinary one.
    pub fn unregister(&self) -> i64 {
        Self::call(CALL_UNREGISTER, [0; 3])
    }

    /// Interrupts or wakes an executor.
    pub fn interrupt(&self, number: usize) -> i64 {
        Self::call(CALL_INTERRUPT, [number, 0, 0])
    }

    /// Starts an asynchronous read of one byte, whose result goes to `result` and wakes `coroutine`. Returns what
    /// became of it: 1 done, 2 waits.
    pub fn read_later(
        &self,
        from: i32,
        byte: *mut u8,
        level: u32,
        coroutine: u64,
        result: &AtomicU64,
    ) -> u64 {
        let cookie = result.as_ptr() as u64;
        let mut entry =
            [u64::from(level) << 32, cookie, coroutine, from as u64, byte as u64, 1, 0, 0, 0, 0, 0];
        Self::call(CALL_SUBMIT, [entry.as_mut_ptr() as usize, 1, 0]);
        entry[9]
    }

    /// Lets what is more urgent run.
    pub fn give_way(&self) -> i64 {
        Self::call(CALL_GIVE_WAY, [0; 3])
    }

    /// Sets the policy.
    pub fn policy(&self, policy: u32) -> i64 {
        Self::call(CALL_POLICY, [policy as usize, 0, 0])
    }
}

/// The actions of one turn of a coroutine.
pub type Body<'a> = Box<dyn FnMut(&Header) -> u32 + 'a>;

/// The vDSO's record of a coroutine.
#[repr(C)]
pub struct Header {
    poll: unsafe extern "C" fn(*mut Block<'static>) -> u32,
    done: usize,
    info: [u64; 5],
}

impl Header {
    /// Its id.
    pub fn id(&self) -> u64 {
        self.info[0]
    }

    /// Turns, this one included.
    pub fn polls(&self) -> u64 {
        self.info[2]
    }

    /// Sets the program's own number.
    pub fn set_kind(&mut self, kind: u32) {
        self.info[1] = u64::from(kind);
    }
}

/// A coroutine.
#[repr(C)]
pub struct Block<'a> {
    /// The vDSO's record.
    pub header: Header,
    body: Body<'a>,
}

// SAFETY: one executor at a time has it, and the bodies of these tests use atomics.
unsafe impl Send for Block<'_> {}

impl<'a> Block<'a> {
    /// A coroutine that has not been spawned.
    pub fn new(body: Body<'a>) -> Self {
        Self { header: Header { poll: run_body, done: 0, info: [0; 5] }, body }
    }
}

unsafe extern "C" fn run_body(block: *mut Block<'static>) -> u32 {
    // SAFETY: the block that was spawned, which nobody else uses during the turn.
    let block = unsafe { &mut *block };
    (block.body)(&block.header)
}

/// A scheduler in memory of its own.
pub struct Scheduler {
    raw: *mut c_void,
    layout: Layout,
}

// SAFETY: the vDSO's functions may be called by several threads, each for its executor.
unsafe impl Send for Scheduler {}
// SAFETY: likewise.
unsafe impl Sync for Scheduler {}

impl Scheduler {
    /// A scheduler that the kernel knows.
    pub fn new(api: Api, executors: u32, coroutines: u32) -> Self {
        // SAFETY: memory of the size that the vDSO asks for, zeroed and aligned.
        unsafe {
            let bytes = scheduler_bytes()(executors, coroutines);
            let layout = Layout::from_size_align(bytes, 128).expect("a size");
            let memory = alloc_zeroed(layout);
            let raw = scheduler_init()(memory, bytes, executors, coroutines, api.process);
            assert!(!raw.is_null(), "no scheduler in {bytes} bytes");
            Self { raw, layout }
        }
    }

    /// Makes this thread an executor.
    pub fn enter(&self, number: u32) -> Result<(), String> {
        // SAFETY: a scheduler, for this and all that follow.
        match unsafe { enter()(self.raw, number) } {
            0 => Ok(()),
            error => Err(format!("enter says {error}")),
        }
    }

    /// Makes it an ordinary thread again.
    pub fn leave(&self, number: u32) {
        // SAFETY: as above.
        unsafe { leave()(self.raw, number) };
    }

    /// Spawns a coroutine, which lives until it has ended.
    pub fn spawn(&self, number: u32, block: &mut Block<'_>, level: u32) -> u64 {
        // SAFETY: as above; the tests keep their blocks.
        unsafe { spawn()(self.raw, number, (&raw mut *block).cast(), level) }
    }

    /// Wakes a coroutine.
    pub fn wake(&self, number: u32, id: u64) -> u32 {
        // SAFETY: as above.
        unsafe { wake()(self.raw, number, id) }
    }

    /// Runs until all have ended.
    pub fn run(&self, number: u32) -> u64 {
        // SAFETY: as above.
        unsafe { run()(self.raw, number) }
    }

    /// Has results of asynchronous calls come back in `memory`.
    pub fn ring(&self, memory: &mut [u64], order: u32) -> i32 {
        // SAFETY: as above; the tests keep the memory.
        unsafe { ring()(self.raw, memory.as_mut_ptr().cast(), order) }
    }

    /// Sets the policy.
    pub fn policy(&self, new: u32) -> i32 {
        // SAFETY: as above.
        unsafe { policy()(self.raw, new) }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // SAFETY: what `new` allocated.
        unsafe { dealloc(self.raw.cast(), self.layout) };
    }
}
