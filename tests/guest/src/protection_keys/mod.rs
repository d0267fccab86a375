//! Protection keys, pkeys(7): who may reach memory with a key, and that keys and rights stay with what they belong to.
#![allow(unsafe_code, reason = "mapping memory and its rights have no safe form")]

pub mod rights;

use std::arch::asm;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;

use crate::harness::{OrFail, Outcome, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    arguments_are_checked
    the_processor_s_description_names_keys
    rights_decide_about_loads_and_stores
    the_kernel_asks_the_rights_too
    memory_that_is_executed_only_cannot_be_read
    keys_stay_with_what_is_moved_split_and_forked
    keys_stay_with_large_pages
    a_mapping_shows_its_key
    whoever_forbids_himself_everything_ends
}

const PAGE: usize = 4096;
const LARGE: usize = 2 << 20;
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// `PKEY_DISABLE_ACCESS` and `PKEY_DISABLE_WRITE`.
const NO_ACCESS: u32 = 1;
const NO_STORES: u32 = 2;
/// `SEGV_ACCERR` and `SEGV_PKUERR`.
const BY_RIGHTS: i32 = 2;
const BY_KEY: i32 = 4;
const FIRST_RIGHTS: u32 = 0x5555_5554;

/// Whether there are keys here. Without them the calls say so, which is tested, and nothing else can be.
fn have_keys() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" ospke"))
}

fn allocate(rights: u32) -> Result<i32, Errno> {
    // SAFETY: changes the calling thread's rights to a key that no memory has.
    Errno::result(unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, rights) }).map(|key| key as i32)
}

fn free(key: i32) -> Result<(), Errno> {
    // SAFETY: the tests give no key away that memory still needs.
    Errno::result(unsafe { libc::syscall(libc::SYS_pkey_free, key) }).map(drop)
}

fn protect(start: usize, length: usize, protection: i32, key: i32) -> Result<(), Errno> {
    // SAFETY: the tests' own memory, which nothing borrows.
    Errno::result(unsafe { libc::syscall(libc::SYS_pkey_mprotect, start, length, protection, key) }).map(drop)
}

fn map(length: usize) -> Result<usize, String> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, RW, flags, -1, 0) };
    if start == libc::MAP_FAILED { Err(Errno::last()).or_fail() } else { Ok(start.addr()) }
}

fn unmap(start: usize, length: usize) {
    // SAFETY: the tests' own memory, which nothing borrows.
    unsafe { libc::munmap(pointer(start), length) };
}

fn pointer<T>(address: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address)
}

fn rights() -> u32 {
    let value;
    // SAFETY: reads a register.
    unsafe { asm!("rdpkru", in("ecx") 0, out("eax") value, out("edx") _, options(nomem, nostack)) };
    value
}

/// The rights, where there are keys.
pub fn rights_now() -> u32 {
    if have_keys() { rights() } else { 0 }
}

fn set_rights(value: u32) {
    // SAFETY: the tests leave themselves the memory with key 0.
    unsafe { asm!("wrpkru", in("ecx") 0, in("edx") 0, in("eax") value, options(nostack)) };
}

/// The rights with other bits for a key.
fn rights_with(key: i32, bits: u32) -> u32 {
    rights() & !(3 << (2 * key)) | bits << (2 * key)
}

/// The address that a child is about to touch.
static TOUCHED: AtomicUsize = AtomicUsize::new(0);

/// Ends the child with the code of the fault and the key.
extern "C" fn tell(_: i32, information: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo; the key is 32 bytes from its start.
    let (code, address, key) = unsafe {
        let key = information.cast::<u32>().add(8).read();
        ((*information).si_code, (*information).si_addr().addr(), key)
    };
    let is_touched = address == TOUCHED.load(Ordering::Relaxed);
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(if is_touched { code << 4 | (key & 15) as i32 } else { 255 }) };
}

fn handle(signal: i32, handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)) {
    // SAFETY: the handlers touch only what signal handlers may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

/// What happens to a child that loads from an address, or stores there: `None` if nothing does, or the code of the
/// fault and the key that it names.
fn touch(address: usize, write: bool) -> Result<Option<(i32, i32)>, String> {
    let status = in_child(|| {
        TOUCHED.store(address, Ordering::Relaxed);
        handle(libc::SIGSEGV, tell);
        let place = pointer::<u8>(address);
        // SAFETY: memory of the test, or a fault that ends the child.
        unsafe {
            if write {
                place.write_volatile(1);
            } else {
                place.read_volatile();
            }
        }
        0
    })?;
    match status {
        WaitStatus::Exited(_, 0) => Ok(None),
        WaitStatus::Exited(_, told) if told != 255 => Ok(Some((told >> 4, told & 15))),
        status => Err(format!("{status:?}")),
    }
}

/// The key that `/proc/self/smaps` shows for the mapping at an address.
fn shown_key(address: usize) -> Result<i32, String> {
    let text = fs::read_to_string("/proc/self/smaps").or_fail()?;
    let mut is_here = false;
    for line in text.lines() {
        let range = line.split_whitespace().next().and_then(|word| word.split_once('-'));
        let range = range.and_then(|(start, end)| {
            Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
        });
        match (range, line.strip_prefix("ProtectionKey:")) {
            (Some(range), _) => is_here = range.contains(&address),
            (None, Some(key)) if is_here => return key.trim().parse().or_fail(),
            _ => {}
        }
    }
    Err(format!("no key for {address:#x}"))
}

fn arguments_are_checked() -> Outcome {
    expect_eq!(free(99), Err(Errno::EINVAL));
    expect_eq!(free(-1), Err(Errno::EINVAL));
    if !have_keys() {
        expect_eq!(allocate(0), Err(Errno::EINVAL));
        expect_eq!(free(1), Err(Errno::EINVAL));
        return Ok(());
    }
    // SAFETY: refused.
    let flags = Errno::result(unsafe { libc::syscall(libc::SYS_pkey_alloc, 1, 0) });
    expect_eq!(flags, Err(Errno::EINVAL));
    expect_eq!(allocate(4), Err(Errno::EINVAL));
    let place = map(2 * PAGE)?;
    expect_eq!(protect(place, PAGE, RW, 3), Err(Errno::EINVAL));
    expect_eq!(protect(place, PAGE, RW, 16), Err(Errno::EINVAL));
    expect_eq!(protect(place, PAGE, RW, -2), Err(Errno::EINVAL));
    expect_eq!(protect(place, 0, RW, 3), Ok(()));
    expect_eq!(protect(place + 1, 0, RW, 3), Err(Errno::EINVAL));
    expect_eq!(protect(place, usize::MAX - 2 * PAGE, RW, 3), Err(Errno::ENOMEM));
    expect_eq!(protect(place, PAGE, 0x100, 0), Err(Errno::EINVAL));
    expect_eq!(protect(place, PAGE, RW, -1), Ok(()));
    expect_eq!(protect(place, PAGE, RW, 0), Ok(()));
    let keys: Vec<_> = std::iter::from_fn(|| allocate(0).ok()).collect();
    expect_eq!(keys, (1..16).collect::<Vec<_>>());
    expect_eq!(allocate(0), Err(Errno::ENOSPC));
    expect_eq!(protect(place, PAGE, RW, 15), Ok(()));
    unmap(place + PAGE, PAGE);
    expect_eq!(protect(place, 2 * PAGE, RW, 15), Err(Errno::ENOMEM));
    expect_eq!(free(7), Ok(()));
    expect_eq!(free(7), Err(Errno::EINVAL));
    expect_eq!(protect(place, PAGE, RW, 7), Err(Errno::EINVAL));
    expect_eq!(allocate(NO_STORES), Ok(7));
    expect_eq!(rights() >> 14 & 3, NO_STORES);
    Ok(())
}

fn the_processor_s_description_names_keys() -> Outcome {
    let text = fs::read_to_string("/proc/cpuinfo").or_fail()?;
    expect_eq!(text.contains(" pku "), text.contains(" ospke "));
    if have_keys() {
        expect_eq!(rights(), FIRST_RIGHTS);
    }
    Ok(())
}

fn rights_decide_about_loads_and_stores() -> Outcome {
    if !have_keys() {
        return Ok(());
    }
    let place = map(2 * PAGE)?;
    // SAFETY: memory of the test.
    unsafe { pointer::<u8>(place).write_volatile(1) };
    let key = allocate(NO_STORES).or_fail()?;
    protect(place, 2 * PAGE, RW, key).or_fail()?;
    // The first page is there, the second is not.
    for page in [place, place + PAGE] {
        expect_eq!(touch(page, false)?, None);
        expect_eq!(touch(page, true)?, Some((BY_KEY, key)));
    }
    set_rights(rights_with(key, NO_ACCESS));
    for page in [place, place + PAGE] {
        expect_eq!(touch(page, false)?, Some((BY_KEY, key)));
    }
    set_rights(rights_with(key, 0));
    expect_eq!((touch(place, true)?, touch(place + PAGE, true)?), (None, None));
    protect(place, 2 * PAGE, libc::PROT_READ, key).or_fail()?;
    expect_eq!(touch(place, true)?, Some((BY_RIGHTS, 0)));
    set_rights(rights_with(key, NO_STORES));
    expect_eq!(touch(place, true)?, Some((BY_KEY, key)));
    set_rights(rights_with(key, NO_ACCESS));
    // Without a key it keeps the one it has.
    protect(place, 2 * PAGE, RW, -1).or_fail()?;
    expect_eq!(touch(place, true)?, Some((BY_KEY, key)));
    protect(place, 2 * PAGE, libc::PROT_NONE, -1).or_fail()?;
    protect(place, 2 * PAGE, RW, -1).or_fail()?;
    expect_eq!(touch(place, false)?, Some((BY_KEY, key)));
    protect(place, 2 * PAGE, RW, 0).or_fail()?;
    expect_eq!((touch(place, true)?, touch(place + PAGE, true)?), (None, None));
    Ok(())
}

/// Calls of the kernel on memory: what each comes to.
fn written(place: usize, length: usize) -> Result<usize, Errno> {
    let (reader, writer) = nix::unistd::pipe()?;
    // SAFETY: memory of the test, which the call may refuse to read.
    let bytes = unsafe { std::slice::from_raw_parts(pointer(place), length) };
    let result = nix::unistd::write(&writer, bytes);
    drop(reader);
    result
}

fn read_into(place: usize) -> Result<usize, Errno> {
    let (reader, writer) = nix::unistd::pipe()?;
    nix::unistd::write(&writer, b"abc")?;
    // SAFETY: memory of the test, to which the call may refuse to store.
    Errno::result(unsafe { libc::read(std::os::fd::AsRawFd::as_raw_fd(&reader), pointer(place), 3) })
        .map(|count| count as usize)
}

fn the_kernel_asks_the_rights_too() -> Outcome {
    if !have_keys() {
        return Ok(());
    }
    let place = map(2 * PAGE)?;
    // SAFETY: memory of the test.
    unsafe { pointer::<u8>(place).write_volatile(7) };
    let key = allocate(0).or_fail()?;
    protect(place, 2 * PAGE, RW, key).or_fail()?;
    for page in [place, place + PAGE] {
        expect_eq!((written(page, 3), read_into(page)), (Ok(3), Ok(3)));
        set_rights(rights_with(key, NO_STORES));
        expect_eq!((written(page, 3), read_into(page)), (Ok(3), Err(Errno::EFAULT)));
        set_rights(rights_with(key, NO_ACCESS));
        expect_eq!((written(page, 3), read_into(page)), (Err(Errno::EFAULT), Err(Errno::EFAULT)));
        // SAFETY: as above.
        let asked = unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, page) };
        expect_eq!((asked, Errno::last()), (-1, Errno::EFAULT));
        set_rights(rights_with(key, 0));
    }
    // Others, and debuggers' ways, are not asked.
    set_rights(rights_with(key, NO_ACCESS));
    let mut found = [0_u8; 3];
    let own = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: 3 };
    let other = libc::iovec { iov_base: pointer(place), iov_len: 3 };
    // SAFETY: both are memory of the test.
    let moved = unsafe { libc::process_vm_readv(libc::getpid(), &raw const own, 1, &raw const other, 1, 0) };
    expect_eq!((moved, &found), (3, b"abc"));
    let memory = fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem").or_fail()?;
    std::os::unix::fs::FileExt::write_all_at(&memory, b"xyz", place as u64).or_fail()?;
    std::os::unix::fs::FileExt::read_exact_at(&memory, &mut found, place as u64).or_fail()?;
    expect_eq!(&found, b"xyz");
    Ok(())
}

/// `mov $42, %eax; ret`.
const CODE: [u8; 6] = [0xb8, 42, 0, 0, 0, 0xc3];

fn call(place: usize) -> u32 {
    // SAFETY: the code is there.
    let code: extern "C" fn() -> u32 = unsafe { std::mem::transmute(pointer::<u8>(place)) };
    code()
}

fn memory_that_is_executed_only_cannot_be_read() -> Outcome {
    let place = map(PAGE)?;
    // SAFETY: memory of the test.
    unsafe { std::ptr::copy_nonoverlapping(CODE.as_ptr(), pointer(place), CODE.len()) };
    // SAFETY: memory of the test.
    let change = |protection| unsafe { libc::mprotect(pointer(place), PAGE, protection) };
    expect_eq!(change(libc::PROT_EXEC), 0);
    expect_eq!(call(place), 42);
    if !have_keys() {
        return Ok(());
    }
    expect_eq!(touch(place, false)?, Some((BY_KEY, 1)));
    expect_eq!(shown_key(place)?, 1);
    expect_eq!(written(place, 3), Err(Errno::EFAULT));
    // The key is the kernel's, and there is one for all such memory.
    expect_eq!(free(1), Err(Errno::EINVAL));
    expect_eq!(protect(place, PAGE, libc::PROT_READ, 1), Err(Errno::EINVAL));
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory.
    let second = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_EXEC, flags, -1, 0) };
    expect_eq!(shown_key(second.addr())?, 1);
    expect_eq!(touch(second.addr(), false)?, Some((BY_KEY, 1)));
    expect_eq!(allocate(0), Ok(2));
    expect_eq!(change(libc::PROT_READ), 0);
    expect_eq!((touch(place, false)?, shown_key(place)?), (None, 0));
    // Memory with another key keeps that until it is executed only.
    protect(place, PAGE, libc::PROT_READ, 2).or_fail()?;
    expect_eq!((change(libc::PROT_READ | libc::PROT_EXEC), shown_key(place)?), (0, 2));
    expect_eq!((change(libc::PROT_EXEC), shown_key(place)?), (0, 1));
    expect_eq!(call(place), 42);
    Ok(())
}

fn keys_stay_with_what_is_moved_split_and_forked() -> Outcome {
    if !have_keys() {
        return Ok(());
    }
    let (length, pages) = (8 * PAGE, [0, 3, 7]);
    let place = map(length)?;
    let key = allocate(0).or_fail()?;
    protect(place, length, RW, key).or_fail()?;
    for page in pages {
        // SAFETY: memory of the test.
        unsafe { pointer::<u8>(place + page * PAGE).write_volatile(page as u8) };
    }
    let target = map(2 * length)?;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: memory of the test.
    let moved = unsafe { libc::mremap(pointer(place), length, 2 * length, flags, pointer::<u8>(target)) };
    expect_eq!(moved.addr(), target);
    unmap(target + PAGE, PAGE);
    // SAFETY: memory of the test.
    unsafe { libc::madvise(pointer(target + 7 * PAGE), PAGE, libc::MADV_DONTNEED) };
    set_rights(rights_with(key, NO_ACCESS));
    // Pages that were there, that were taken away, and that have not been.
    for page in [0, 3, 5, 7, 15] {
        expect_eq!(touch(target + page * PAGE, false)?, Some((BY_KEY, key)));
        expect_eq!(shown_key(target + page * PAGE)?, key);
    }
    set_rights(rights_with(key, 0));
    // The tables are shared with each child, and copied for the first store.
    expect_eq!(touch(target, true)?, None);
    set_rights(rights_with(key, NO_STORES));
    expect_eq!((touch(target, false)?, touch(target, true)?), (None, Some((BY_KEY, key))));
    // SAFETY: the register allows loads.
    expect_eq!(unsafe { pointer::<u8>(target + 3 * PAGE).read_volatile() }, 3);
    Ok(())
}

fn keys_stay_with_large_pages() -> Outcome {
    if !have_keys() {
        return Ok(());
    }
    let around = map(2 * LARGE)?;
    let place = around.next_multiple_of(LARGE);
    let key = allocate(0).or_fail()?;
    // SAFETY: memory of the test.
    unsafe { libc::madvise(pointer(place), LARGE, libc::MADV_HUGEPAGE) };
    protect(place, LARGE, RW, key).or_fail()?;
    for page in (place..place + LARGE).step_by(PAGE) {
        // SAFETY: memory of the test.
        unsafe { pointer::<u8>(page).write_volatile(1) };
    }
    set_rights(rights_with(key, NO_ACCESS));
    expect_eq!(touch(place + 5 * PAGE, false)?, Some((BY_KEY, key)));
    let second = allocate(NO_ACCESS).or_fail()?;
    // A part, and then all of it again.
    protect(place + LARGE / 2, PAGE, RW, second).or_fail()?;
    expect_eq!(touch(place + LARGE / 2, false)?, Some((BY_KEY, second)));
    expect_eq!(touch(place + LARGE / 2 + PAGE, false)?, Some((BY_KEY, key)));
    set_rights(rights_with(key, 0));
    expect_eq!(touch(place, true)?, None);
    protect(place, LARGE, RW, 0).or_fail()?;
    expect_eq!((touch(place + LARGE / 2, true)?, touch(place + LARGE - 1, true)?), (None, None));
    unmap(around, 2 * LARGE);
    Ok(())
}

fn a_mapping_shows_its_key() -> Outcome {
    if !have_keys() {
        return Ok(());
    }
    let place = map(3 * PAGE)?;
    let key = allocate(0).or_fail()?;
    protect(place + PAGE, PAGE, RW, key).or_fail()?;
    let shown = [0, 1, 2].map(|page| shown_key(place + page * PAGE).unwrap_or(-1));
    expect_eq!(shown, [0, key, 0]);
    Ok(())
}

/// The rights that allow nothing, not even memory with key 0.
const NOTHING: u32 = u32::MAX;

/// The result of a write of text to which the thread has no right at that moment.
fn written_with_nothing(text: &[u8; 8]) -> isize {
    let result;
    // SAFETY: between the two changes nothing is touched but by the kernel, which is to refuse it.
    unsafe {
        asm!(
            "mov {old:e}, eax", "mov eax, {nothing:e}", "wrpkru",
            "mov eax, {number}", "mov edi, 1", "mov rsi, {text}", "mov edx, 8", "syscall",
            "mov {result}, rax", "mov eax, {old:e}", "xor ecx, ecx", "xor edx, edx", "wrpkru",
            old = out(reg) _, nothing = in(reg) NOTHING, number = const libc::SYS_write,
            text = in(reg) text.as_ptr(), result = lateout(reg) result,
            inout("eax") rights() => _, inout("ecx") 0 => _, inout("edx") 0 => _,
            out("rdi") _, out("rsi") _, out("r11") _, options(nostack)
        );
    }
    result
}

fn whoever_forbids_himself_everything_ends() -> Outcome {
    if !have_keys() {
        return Ok(());
    }
    let text = [0_u8; 8];
    let asked = in_child(|| i32::from(written_with_nothing(&text) != -(Errno::EFAULT as isize)))?;
    // Linux also ends a thread whose restartable sequences it can't reach when it takes the processor from it.
    expect!(matches!(asked, WaitStatus::Exited(_, 0) | WaitStatus::Signaled(_, Signal::SIGSEGV, _)));
    for has_handler in [false, true] {
        let status = in_child(|| {
            if has_handler {
                handle(libc::SIGSEGV, tell);
            }
            set_rights(NOTHING);
            // SAFETY: the child's own memory, out of its reach.
            unsafe { text.as_ptr().read_volatile() };
            0
        })?;
        expect!(matches!(status, WaitStatus::Signaled(_, Signal::SIGSEGV, _)));
    }
    Ok(())
}
