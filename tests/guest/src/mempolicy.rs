//! Memory policy on a machine with one node: numa(7), and what `/proc` and `/sys` say of nodes.

#![allow(unsafe_code)] // The C library has no functions for these calls.

use std::fs;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Gid, Uid, setresgid, setresuid};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_thread_keeps_its_policy
    policies_are_checked
    masks_are_checked
    the_policy_of_a_thread_is_inherited
    a_mapping_keeps_its_policy
    policies_of_mappings_are_checked
    policies_follow_their_mappings
    a_strict_policy_looks_at_pages
    home_nodes_are_for_some_policies
    pages_are_where_they_are_to_be
    move_pages_is_checked
    migrate_pages_is_checked
    numa_maps_shows_policies
    there_is_one_node
}

const DEFAULT: i32 = 0;
const PREFERRED: i32 = 1;
const BIND: i32 = 2;
const INTERLEAVE: i32 = 3;
const LOCAL: i32 = 4;
const PREFERRED_MANY: i32 = 5;
const STATIC: i32 = 1 << 15;
const RELATIVE: i32 = 1 << 14;
const BALANCING: i32 = 1 << 13;

const TELL_NODE: usize = 1;
const OF_ADDRESS: usize = 2;
const TELL_ALLOWED: usize = 4;

const STRICT: usize = 1;
const MOVE: usize = 2;
const MOVE_ALL: usize = 4;

const SET_HOME_NODE: i64 = 450;
const PAGE: usize = 4096;
/// Nothing is mapped here.
const NOWHERE: usize = 0x10000;

fn call(number: i64, arguments: [usize; 6]) -> Result<i64, Errno> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the callers pass memory of theirs, or addresses that are refused.
    Errno::result(unsafe { libc::syscall(number, a, b, c, d, e, f) })
}

/// `maxnode` counts one bit more than is looked at.
const BITS: usize = 65;

fn set(mode: i32, nodes: u64) -> Result<i64, Errno> {
    call(libc::SYS_set_mempolicy, [mode as usize, (&raw const nodes).addr(), BITS, 0, 0, 0])
}

fn get(address: usize, flags: usize) -> Result<(i32, u64), Errno> {
    let (mut mode, mut nodes) = (-1, u64::MAX);
    let arguments = [(&raw mut mode).expose_provenance(), (&raw mut nodes).expose_provenance()];
    call(libc::SYS_get_mempolicy, [arguments[0], arguments[1], BITS, address, flags, 0])?;
    Ok((mode, nodes))
}

fn bind(
    at: &Memory,
    pages: std::ops::Range<usize>,
    mode: i32,
    nodes: u64,
    flags: usize,
) -> Result<i64, Errno> {
    let (start, length) = (at.page(pages.start), pages.len() * PAGE);
    bind_range(start, length, mode, nodes, flags)
}

fn bind_range(start: usize, length: usize, mode: i32, nodes: u64, flags: usize) -> Result<i64, Errno> {
    call(libc::SYS_mbind, [start, length, mode as usize, (&raw const nodes).addr(), BITS, flags])
}

/// Anonymous memory.
struct Memory {
    start: usize,
    pages: usize,
}

impl Memory {
    fn new(pages: usize) -> Result<Self, String> {
        Self::with(pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    fn with(pages: usize, flags: i32, file: i32) -> Result<Self, String> {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, both, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::last().to_string());
        }
        Ok(Self { start: start.expose_provenance(), pages })
    }

    fn page(&self, index: usize) -> usize {
        self.start + index * PAGE
    }

    fn touch(&self, index: usize) {
        // SAFETY: the page is the test's.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(self.page(index)).write_volatile(1) };
    }

    fn unmap(&self, index: usize) {
        // SAFETY: the page is the test's.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.page(index)), PAGE) };
    }

    /// The policy of each page.
    fn policies(&self) -> Vec<Result<(i32, u64), Errno>> {
        (0..self.pages).map(|index| get(self.page(index), OF_ADDRESS)).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the memory is the test's.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.start), self.pages * PAGE) };
    }
}

fn a_thread_keeps_its_policy() -> Outcome {
    expect_eq!(get(0, 0), Ok((DEFAULT, 0)));
    expect_eq!(get(0, TELL_ALLOWED), Ok((0, 1)));
    for (mode, nodes, told) in [
        (BIND, 1, (BIND, 1)),
        (INTERLEAVE, 1, (INTERLEAVE, 1)),
        (PREFERRED, 1, (PREFERRED, 1)),
        (PREFERRED_MANY, 1, (PREFERRED_MANY, 1)),
        (PREFERRED, 0, (LOCAL, 0)),
        (LOCAL, 0, (LOCAL, 0)),
        (BIND, 3, (BIND, 1)),
        (BIND | STATIC, 5, (BIND | STATIC, 5)),
        (INTERLEAVE | RELATIVE, 6, (INTERLEAVE | RELATIVE, 6)),
        (BIND | BALANCING, 3, (BIND | BALANCING, 3)),
        (PREFERRED | STATIC, 3, (PREFERRED | STATIC, 3)),
        (DEFAULT, 0, (DEFAULT, 0)),
    ] {
        expect_eq!(set(mode, nodes), Ok(0));
        expect_eq!(get(0, 0), Ok(told));
    }
    // The node of the next page is known if pages come by turns.
    expect_eq!(get(0, TELL_NODE), Err(Errno::EINVAL));
    set(INTERLEAVE, 1).or_fail()?;
    expect_eq!(get(0, TELL_NODE), Ok((0, 1)));
    // Nothing is kept of what is refused.
    expect_eq!(set(BIND, 0), Err(Errno::EINVAL));
    expect_eq!(get(0, 0), Ok((INTERLEAVE, 1)));
    Ok(())
}

fn policies_are_checked() -> Outcome {
    for (mode, nodes) in [
        (-1, 0),
        (6, 1),
        (BIND | STATIC | RELATIVE, 1),
        (PREFERRED | BALANCING, 1),
        (DEFAULT, 1),
        (BIND, 0),
        (BIND, 2),
        (BIND | STATIC, 2),
        (INTERLEAVE, 0),
        (PREFERRED, 2),
        (PREFERRED | STATIC, 0),
        (PREFERRED_MANY, 0),
        (LOCAL, 1),
        (LOCAL | STATIC, 0),
    ] {
        expect_eq!(set(mode, nodes), Err(Errno::EINVAL));
    }
    expect_eq!(set(DEFAULT | STATIC, 0), Ok(0));
    expect_eq!(get(0, 0), Ok((DEFAULT, 0)));
    for (address, flags) in
        [(0, 8), (0, TELL_ALLOWED | TELL_NODE), (0, TELL_ALLOWED | OF_ADDRESS), (NOWHERE, 0), (0, TELL_NODE)]
    {
        expect_eq!(get(address, flags), Err(Errno::EINVAL));
    }
    expect_eq!(get(NOWHERE, OF_ADDRESS), Err(Errno::EFAULT));
    expect_eq!(get(NOWHERE, OF_ADDRESS | TELL_NODE), Err(Errno::EFAULT));
    Ok(())
}

fn masks_are_checked() -> Outcome {
    let set =
        |mode: i32, mask: usize, count| call(libc::SYS_set_mempolicy, [mode as usize, mask, count, 0, 0, 0]);
    let mut words = [1_u64; 600];
    words[1..].fill(0);
    let mask = words.as_ptr().expose_provenance();
    for count in [2, 10, 65, 129, 4096 * 8 + 1] {
        expect_eq!(set(BIND, mask, count), Ok(0));
    }
    // One bit less is looked at than is said.
    expect_eq!(set(BIND, mask, 1), Err(Errno::EINVAL));
    expect_eq!(set(BIND, mask, 0), Err(Errno::EINVAL));
    expect_eq!(set(BIND, mask, 4096 * 8 + 2), Err(Errno::EINVAL));
    expect_eq!(set(BIND, NOWHERE, 65), Err(Errno::EFAULT));
    expect_eq!(set(-1, NOWHERE, 65), Err(Errno::EINVAL));
    expect_eq!(set(LOCAL, 0, 0), Ok(0));
    expect_eq!(set(LOCAL, 0, usize::MAX), Ok(0));
    words[300] = 1;
    let mask = words.as_ptr().expose_provenance();
    expect_eq!(set(BIND, mask, 301 * 64), Err(Errno::EINVAL));
    let get =
        |mode: usize, mask: usize, count: usize| call(libc::SYS_get_mempolicy, [mode, mask, count, 0, 0, 0]);
    let mut told = [u64::MAX; 4];
    let mask = told.as_mut_ptr().expose_provenance();
    expect_eq!(set(BIND, words.as_ptr().expose_provenance(), 65), Ok(0));
    expect_eq!(get(0, mask, 129), Ok(0));
    expect_eq!(told, [1, 0, u64::MAX, u64::MAX]);
    expect_eq!(get(0, mask, 0), Err(Errno::EINVAL));
    expect_eq!(get(0, 0, 0), Ok(0));
    expect_eq!(get(0, mask, 4096 * 8 + 100), Err(Errno::EINVAL));
    expect_eq!(get(NOWHERE, 0, 0), Err(Errno::EFAULT));
    expect_eq!(get(0, NOWHERE, 65), Err(Errno::EFAULT));
    Ok(())
}

fn the_policy_of_a_thread_is_inherited() -> Outcome {
    let memory = Memory::new(2)?;
    bind(&memory, 0..1, INTERLEAVE, 1, 0).or_fail()?;
    set(BIND | STATIC, 3).or_fail()?;
    let child = spawn_child(|| {
        let inherited = (get(0, 0), get(memory.page(0), OF_ADDRESS), get(memory.page(1), OF_ADDRESS));
        let _ = (set(PREFERRED, 1), bind(&memory, 0..2, BIND, 1, 0));
        i32::from(inherited != (Ok((BIND | STATIC, 3)), Ok((INTERLEAVE, 1)), Ok((DEFAULT, 0))))
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    let thread = std::thread::spawn(|| {
        let inherited = get(0, 0);
        let _ = set(DEFAULT, 0);
        inherited
    });
    expect_eq!(thread.join().map_err(|_| "a thread")?, Ok((BIND | STATIC, 3)));
    expect_eq!(get(0, 0), Ok((BIND | STATIC, 3)));
    expect_eq!(get(memory.page(0), OF_ADDRESS), Ok((INTERLEAVE, 1)));
    Ok(())
}

fn a_mapping_keeps_its_policy() -> Outcome {
    let memory = Memory::new(8)?;
    set(BIND, 1).or_fail()?;
    // That of the thread is not told.
    expect_eq!(get(memory.page(0), OF_ADDRESS), Ok((DEFAULT, 0)));
    expect_eq!(get(memory.page(0), OF_ADDRESS | TELL_NODE), Ok((0, 0)));
    bind(&memory, 2..6, INTERLEAVE, 1, 0).or_fail()?;
    bind(&memory, 4..5, BIND | STATIC, 3, 0).or_fail()?;
    let (none, turns) = (Ok((DEFAULT, 0)), Ok((INTERLEAVE, 1)));
    let expected = [none, none, turns, turns, Ok((BIND | STATIC, 3)), turns, none, none];
    expect_eq!(memory.policies(), expected);
    expect_eq!(get(memory.page(4) + 100, OF_ADDRESS | TELL_NODE), Ok((0, 3)));
    bind(&memory, 0..8, DEFAULT, 0, 0).or_fail()?;
    expect_eq!(memory.policies(), [none; 8]);
    // The page's contents stay.
    memory.touch(3);
    bind(&memory, 0..8, BIND, 1, STRICT | MOVE).or_fail()?;
    // SAFETY: the page is the test's.
    let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(memory.page(3)).read_volatile() };
    expect_eq!(byte, 1);
    Ok(())
}

fn policies_of_mappings_are_checked() -> Outcome {
    let memory = Memory::new(6)?;
    expect_eq!(bind(&memory, 0..1, 6, 1, 0), Err(Errno::EINVAL));
    expect_eq!(bind(&memory, 0..1, BIND, 1, 16), Err(Errno::EINVAL));
    expect_eq!(bind_range(memory.start + 1, PAGE, BIND, 1, 0), Err(Errno::EINVAL));
    expect_eq!(bind_range(memory.start, usize::MAX - PAGE, BIND, 1, 0), Err(Errno::EINVAL));
    expect_eq!(bind_range(memory.start, 0, BIND, 0, 0), Ok(0));
    expect_eq!(bind_range(memory.start, usize::MAX, BIND, 0, 0), Ok(0));
    for (mode, nodes) in [(BIND, 0), (BIND, 2), (DEFAULT, 1), (LOCAL, 1), (PREFERRED | STATIC, 0)] {
        expect_eq!(bind(&memory, 0..1, mode, nodes, 0), Err(Errno::EINVAL));
    }
    expect_eq!(bind_range(NOWHERE, PAGE, BIND, 1, 0), Err(Errno::EFAULT));
    expect_eq!(bind_range(NOWHERE, PAGE, DEFAULT, 0, 0), Err(Errno::EFAULT));
    memory.unmap(0);
    memory.unmap(3);
    memory.unmap(5);
    for pages in [0..2, 2..5, 4..6] {
        expect_eq!(bind(&memory, pages.clone(), BIND, 1, 0), Err(Errno::EFAULT));
        expect_eq!(bind(&memory, pages, DEFAULT, 0, 0), Ok(0));
    }
    expect_eq!(bind(&memory, 1..3, BIND, 1, 0), Ok(0));
    let hole = Err(Errno::EFAULT);
    let (bound, none) = (Ok((BIND, 1)), Ok((DEFAULT, 0)));
    expect_eq!(memory.policies(), [hole, bound, bound, hole, none, hole]);
    let child = spawn_child(|| {
        let attempt = || {
            setresgid(Gid::from_raw(78), Gid::from_raw(78), Gid::from_raw(78))?;
            setresuid(Uid::from_raw(78), Uid::from_raw(78), Uid::from_raw(78))?;
            bind(&memory, 1..2, BIND, 1, MOVE)?;
            bind(&memory, 1..2, BIND, 1, MOVE_ALL)
        };
        i32::from(attempt() != Err(Errno::EPERM))
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    Ok(())
}

fn policies_follow_their_mappings() -> Outcome {
    let memory = Memory::new(4)?;
    bind(&memory, 0..4, INTERLEAVE, 1, 0).or_fail()?;
    // SAFETY: the memory is the test's.
    unsafe {
        let page = std::ptr::with_exposed_provenance_mut::<libc::c_void>(memory.page(1));
        Errno::result(libc::mprotect(page, PAGE, libc::PROT_READ)).or_fail()?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let page = std::ptr::with_exposed_provenance_mut::<libc::c_void>(memory.page(2));
        expect!(libc::mmap(page, PAGE, libc::PROT_READ, flags, -1, 0) == page);
        let page = std::ptr::with_exposed_provenance_mut::<libc::c_void>(memory.page(3));
        let moved = libc::mremap(page, PAGE, 3 * PAGE, libc::MREMAP_MAYMOVE);
        expect!(moved != libc::MAP_FAILED);
        let moved = Memory { start: moved.expose_provenance(), pages: 3 };
        expect_eq!(moved.policies(), [Ok((INTERLEAVE, 1)); 3]);
        let (turns, none) = (Ok((INTERLEAVE, 1)), Ok((DEFAULT, 0)));
        expect_eq!(memory.policies()[..3], [turns, turns, none]);
        // In place or elsewhere: the page is where `moved` says.
        std::mem::forget(memory);
    }
    Ok(())
}

fn a_strict_policy_looks_at_pages() -> Outcome {
    let memory = Memory::new(4)?;
    // No page is on a node that is not among those given.
    expect_eq!(bind(&memory, 0..4, LOCAL, 0, STRICT), Ok(0));
    memory.touch(2);
    expect_eq!(bind(&memory, 0..4, BIND, 1, STRICT), Ok(0));
    expect_eq!(bind(&memory, 0..4, INTERLEAVE | RELATIVE, 2, STRICT), Err(Errno::EIO));
    expect_eq!(memory.policies(), [Ok((BIND, 1)); 4]);
    expect_eq!(bind(&memory, 0..2, INTERLEAVE | RELATIVE, 2, STRICT), Ok(0));
    expect_eq!(bind(&memory, 0..4, DEFAULT, 0, STRICT), Ok(0));
    // A page that may move, can.
    expect_eq!(bind(&memory, 0..4, INTERLEAVE | RELATIVE, 2, STRICT | MOVE), Ok(0));
    Ok(())
}

fn home_nodes_are_for_some_policies() -> Outcome {
    let memory = Memory::new(4)?;
    let home = |start: usize, length: usize, node: usize, flags: usize| {
        call(SET_HOME_NODE, [start, length, node, flags, 0, 0])
    };
    let whole = 4 * PAGE;
    expect_eq!(home(memory.start + 1, whole, 0, 0), Err(Errno::EINVAL));
    expect_eq!(home(memory.start, whole, 0, 1), Err(Errno::EINVAL));
    expect_eq!(home(memory.start, whole, 1, 0), Err(Errno::EINVAL));
    expect_eq!(home(memory.start, whole, 5000, 0), Err(Errno::EINVAL));
    expect_eq!(home(memory.start, usize::MAX - PAGE, 0, 0), Err(Errno::EINVAL));
    expect_eq!(home(memory.start, 0, 0, 0), Ok(0));
    expect_eq!(home(memory.start, whole, 0, 0), Err(Errno::ENOENT));
    expect_eq!(home(NOWHERE, PAGE, 0, 0), Err(Errno::ENOENT));
    bind(&memory, 1..2, BIND, 1, 0).or_fail()?;
    expect_eq!(home(memory.start, whole, 0, 0), Ok(0));
    bind(&memory, 2..3, PREFERRED_MANY, 1, 0).or_fail()?;
    expect_eq!(home(memory.start, whole, 0, 0), Ok(0));
    expect_eq!(get(memory.page(1), OF_ADDRESS), Ok((BIND, 1)));
    bind(&memory, 3..4, INTERLEAVE, 1, 0).or_fail()?;
    expect_eq!(home(memory.start, whole, 0, 0), Err(Errno::EOPNOTSUPP));
    expect_eq!(home(memory.start, 3 * PAGE, 0, 0), Ok(0));
    Ok(())
}

/// `move_pages`: what is told of each page.
fn move_pages(pid: i32, pages: &[usize], nodes: &[i32], flags: usize) -> Result<Vec<i32>, Errno> {
    let mut status = vec![99; pages.len()];
    let nodes = if nodes.is_empty() { 0 } else { nodes.as_ptr().expose_provenance() };
    let (list, told) = (pages.as_ptr().expose_provenance(), status.as_mut_ptr().expose_provenance());
    call(libc::SYS_move_pages, [pid as usize, pages.len(), list, nodes, told, flags]).map(|_| status)
}

fn pages_are_where_they_are_to_be() -> Outcome {
    let memory = Memory::new(4)?;
    memory.touch(0);
    memory.touch(2);
    let shared = Memory::with(2, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)?;
    shared.touch(1);
    let pages = [memory.page(0), memory.page(1), memory.page(2) + 5, NOWHERE, shared.page(0), shared.page(1)];
    let expected = [0, -libc::EFAULT, 0, -libc::EFAULT, -libc::ENOENT, 0];
    expect_eq!(move_pages(0, &pages, &[], 0).or_fail()?, expected);
    expect_eq!(move_pages(0, &pages, &[0; 6], MOVE).or_fail()?, expected);
    expect_eq!(move_pages(std::process::id() as i32, &pages, &[0; 6], MOVE_ALL).or_fail()?, expected);
    // A page that was only read is that of zeros.
    // SAFETY: the page is the test's.
    let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(memory.page(3)).read_volatile() };
    expect_eq!(byte, 0);
    expect_eq!(move_pages(0, &[memory.page(3)], &[], 0).or_fail()?, [-libc::EFAULT]);
    // The pages of another process.
    let child = spawn_child(|| {
        memory.touch(1);
        nix::unistd::pause();
        0
    })?;
    let told = loop {
        let told = move_pages(child.as_raw(), &[memory.page(1), memory.page(3)], &[], 0).or_fail()?;
        if told[0] == 0 {
            break told;
        }
        std::thread::yield_now();
    };
    expect_eq!(told, [0, -libc::EFAULT]);
    nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).or_fail()?;
    waitpid(child, None).or_fail()?;
    Ok(())
}

fn move_pages_is_checked() -> Outcome {
    let memory = Memory::new(2)?;
    memory.touch(0);
    let pages = [memory.page(0), memory.page(0)];
    expect_eq!(move_pages(0, &pages, &[], 1), Err(Errno::EINVAL));
    expect_eq!(move_pages(0, &pages, &[], 8), Err(Errno::EINVAL));
    expect_eq!(move_pages(-1, &pages, &[], 0), Err(Errno::ESRCH));
    expect_eq!(move_pages(0, &pages, &[1, 0], 0), Err(Errno::ENODEV));
    expect_eq!(move_pages(0, &pages, &[-1, 0], 0), Err(Errno::ENODEV));
    expect_eq!(move_pages(0, &pages, &[0, 4000], 0), Err(Errno::ENODEV));
    expect_eq!(move_pages(0, &[], &[], 0), Ok(vec![]));
    let list = pages.as_ptr().expose_provenance();
    let mut status = [99_i32; 2];
    let told = status.as_mut_ptr().expose_provenance();
    let call = |count: usize, list: usize, nodes: usize, told: usize| {
        call(libc::SYS_move_pages, [0, count, list, nodes, told, 0])
    };
    expect_eq!(call(1, NOWHERE, 0, told), Err(Errno::EFAULT));
    expect_eq!(call(1, list, NOWHERE, told), Err(Errno::EFAULT));
    expect_eq!(call(1, list, 0, NOWHERE), Err(Errno::EFAULT));
    let child = spawn_child(|| {
        let attempt = || {
            setresgid(Gid::from_raw(78), Gid::from_raw(78), Gid::from_raw(78))?;
            setresuid(Uid::from_raw(78), Uid::from_raw(78), Uid::from_raw(78))?;
            let all = move_pages(0, &pages, &[], MOVE_ALL);
            let parent = std::os::unix::process::parent_id() as i32;
            Ok::<_, Errno>((all, move_pages(parent, &pages, &[], 0), move_pages(0, &pages, &[], MOVE)))
        };
        let expected = (Err(Errno::EPERM), Err(Errno::EPERM), Ok(vec![0, 0]));
        i32::from(attempt() != Ok(expected))
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    Ok(())
}

fn migrate_pages_is_checked() -> Outcome {
    let migrate = |pid: i32, from: u64, to: u64| {
        let (from, to) = ((&raw const from).addr(), (&raw const to).addr());
        call(libc::SYS_migrate_pages, [pid as usize, BITS, from, to, 0, 0])
    };
    expect_eq!(migrate(0, 1, 1), Ok(0));
    expect_eq!(migrate(std::process::id() as i32, 3, 1), Ok(0));
    expect_eq!(migrate(0, 2, 1), Ok(0));
    expect_eq!(migrate(0, 1, 2), Err(Errno::EINVAL));
    expect_eq!(migrate(0, 1, 0), Err(Errno::EINVAL));
    expect_eq!(migrate(-1, 1, 1), Err(Errno::ESRCH));
    expect_eq!(call(libc::SYS_migrate_pages, [usize::MAX, BITS, NOWHERE, NOWHERE, 0, 0]), Err(Errno::EFAULT));
    let child = spawn_child(|| {
        let attempt = || {
            setresgid(Gid::from_raw(78), Gid::from_raw(78), Gid::from_raw(78))?;
            setresuid(Uid::from_raw(78), Uid::from_raw(78), Uid::from_raw(78))?;
            let parent = std::os::unix::process::parent_id() as i32;
            Ok::<_, Errno>((migrate(0, 1, 1), migrate(0, 1, 2), migrate(parent, 1, 1)))
        };
        i32::from(attempt() != Ok((Ok(0), Err(Errno::EPERM), Err(Errno::EPERM))))
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    Ok(())
}

fn numa_maps_shows_policies() -> Outcome {
    let memory = Memory::new(6)?;
    memory.touch(3);
    bind(&memory, 1..2, BIND, 1, 0).or_fail()?;
    bind(&memory, 2..3, PREFERRED, 0, 0).or_fail()?;
    bind(&memory, 3..4, PREFERRED_MANY | STATIC, 1, 0).or_fail()?;
    bind(&memory, 4..5, INTERLEAVE | RELATIVE, 6, 0).or_fail()?;
    let line = |text: &str, index: usize| {
        let start = format!("{:08x} ", memory.page(index));
        text.lines().find_map(|line| line.strip_prefix(&*start)).unwrap_or("nothing").to_owned()
    };
    let text = fs::read_to_string("/proc/self/numa_maps").or_fail()?;
    expect_eq!(line(&text, 1), "bind:0");
    expect_eq!(line(&text, 2), "local");
    let written = line(&text, 3);
    expect!(written.starts_with("prefer (many)=static:0 anon=1 dirty=1 "));
    expect!(written.ends_with("N0=1 kernelpagesize_kB=4"));
    expect_eq!(line(&text, 4), "interleave=relative:0");
    expect_eq!(line(&text, 5), "default");
    expect!(text.lines().any(|line| line.contains(" file=/") && line.contains(" mapped=")));
    expect!(text.lines().any(|line| line.contains(" stack")));
    // Where a mapping has none, that of the thread holds.
    set(BIND, 1).or_fail()?;
    let text = fs::read_to_string("/proc/thread-self/numa_maps").or_fail()?;
    expect_eq!(line(&text, 5), "bind:0");
    expect_eq!(line(&text, 2), "local");
    Ok(())
}

fn there_is_one_node() -> Outcome {
    let read = |name: &str| fs::read_to_string(Path::new("/sys/devices/system/node").join(name)).or_fail();
    for name in ["online", "possible", "has_cpu", "has_memory", "has_normal_memory"] {
        expect_eq!(read(name)?, "0\n");
    }
    expect_eq!(read("node0/distance")?, "10\n");
    let processors = fs::read_to_string("/sys/devices/system/cpu/online").or_fail()?;
    expect_eq!(read("node0/cpulist")?, processors);
    let mask = read("node0/cpumap")?;
    expect_eq!(
        mask.trim().chars().rev().next(),
        Some(match &*processors {
            "0\n" => '1',
            "0-1\n" => '3',
            "0-2\n" => '7',
            _ => 'f',
        })
    );
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.contains(name)).unwrap_or_default().to_owned();
        let value = line.trim_end_matches(" kB").rsplit(' ').next().unwrap_or_default().to_owned();
        value.parse::<u64>().or_fail()
    };
    let (node, all) = (read("node0/meminfo")?, fs::read_to_string("/proc/meminfo").or_fail()?);
    expect!(node.starts_with("Node 0 MemTotal:"));
    expect_eq!(value(&node, "MemTotal:")?, value(&all, "MemTotal:")?);
    expect_eq!(value(&node, "MemFree:")? + value(&node, "MemUsed:")?, value(&node, "MemTotal:")?);
    let status = fs::read_to_string("/proc/self/status").or_fail()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    expect_eq!(field("Mems_allowed_list:"), Some("0"));
    let mask = field("Mems_allowed:").ok_or("no mask")?;
    expect!(mask.ends_with('1') && mask[..mask.len() - 1].chars().all(|digit| matches!(digit, '0' | ',')));
    Ok(())
}
