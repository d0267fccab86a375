//! Programs that claim one slot: forked children beside their parents, programs that are linked to one address beside
//! each other and forked, and what becomes of a slot whose owner ends. The kernel's counters are looked at on Heddle
//! only.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use heddle_abi::prctl::{PR_GET_ISOLATION, PR_SET_ISOLATION};
use nix::errno::Errno;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Uid, getpid, setfsuid, setuid};

use crate::harness::{OrFail, Outcome, Scratch, is_direct, skip, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    forked_children_have_memory_of_their_own
    children_of_children_do_too
    programs_at_one_address
    fork_and_exec_change_few_page_tables
    ends_while_others_run
    a_program_chooses_its_isolation
    threads_run_on_while_one_changes_its_credentials
}

const PAGE_BYTES: usize = 4096;

fn yield_often(memory: &mut [u8], own: u8, rounds: usize) -> bool {
    for round in 0..rounds {
        let value = own ^ round as u8;
        memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = value);
        std::thread::yield_now();
        if memory.iter().step_by(PAGE_BYTES).any(|&byte| byte != value) {
            return false;
        }
    }
    true
}

fn expect_success(child: nix::unistd::Pid) -> Outcome {
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    Ok(())
}

/// Every one writes to the same addresses and gives the CPU away before it looks again.
fn forked_children_have_memory_of_their_own() -> Outcome {
    let mut memory = vec![7_u8; 64 * PAGE_BYTES];
    let mut children = Vec::new();
    for number in 1..6 {
        children.push(spawn_child(|| i32::from(!yield_often(&mut memory, number, 50)))?);
        expect!(memory.iter().step_by(PAGE_BYTES).all(|&byte| byte == memory[0]));
    }
    let is_own = yield_often(&mut memory, 99, 50);
    children.into_iter().try_for_each(expect_success)?;
    expect!(is_own);
    Ok(())
}

fn descend(memory: &mut [u8], depth: u8) -> i32 {
    let before = memory[0];
    let below =
        if depth == 0 { Ok(()) } else { spawn_child(|| descend(memory, depth - 1)).and_then(expect_success) };
    let is_kept = memory.iter().step_by(PAGE_BYTES).all(|&byte| byte == before);
    i32::from(below.is_err() || !is_kept || !yield_often(memory, depth, 10))
}

fn children_of_children_do_too() -> Outcome {
    let mut memory = vec![7_u8; 16 * PAGE_BYTES];
    expect_eq!(descend(&mut memory, 6), 0);
    Ok(())
}

/// Forks; both write their process number to a fixed address and to the stack, give the CPU away and look again, 200
/// times. The parent waits for the child; the status is 0 if all was well. In assembler:
///
/// ```text
/// fork; r13 = result; rbx = getpid()
/// 200 times: [0x600000] = rbx; [rsp - 8] = rbx; sched_yield; exit(1) unless both are rbx still
/// if r13 != 0: wait4(-1, 0x600008, 0, 0); exit(1) unless [0x600008] is 0
/// exit(0)
/// ```
#[rustfmt::skip]
const CODE: [u8; 123] = [
    0xb8, 0x39, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x49, 0x89, 0xc5, 0xb8, 0x27, 0x00, 0x00, 0x00, 0x0f,
    0x05, 0x48, 0x89, 0xc3, 0x41, 0xbc, 0xc8, 0x00, 0x00, 0x00, 0x48, 0x89, 0x1c, 0x25, 0x00, 0x00,
    0x60, 0x00, 0x48, 0x89, 0x5c, 0x24, 0xf8, 0xb8, 0x18, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x48, 0x39,
    0x1c, 0x25, 0x00, 0x00, 0x60, 0x00, 0x75, 0x37, 0x48, 0x39, 0x5c, 0x24, 0xf8, 0x75, 0x30, 0x41,
    0xff, 0xcc, 0x75, 0xd6, 0x31, 0xff, 0x4d, 0x85, 0xed, 0x74, 0x29, 0xb8, 0x3d, 0x00, 0x00, 0x00,
    0x48, 0xc7, 0xc7, 0xff, 0xff, 0xff, 0xff, 0xbe, 0x08, 0x00, 0x60, 0x00, 0x31, 0xd2, 0x45, 0x31,
    0xd2, 0x0f, 0x05, 0x31, 0xff, 0x83, 0x3c, 0x25, 0x08, 0x00, 0x60, 0x00, 0x00, 0x74, 0x05, 0xbf,
    0x01, 0x00, 0x00, 0x00, 0xb8, 0x3c, 0x00, 0x00, 0x00, 0x0f, 0x05,
];
const CODE_ADDRESS: u64 = 0x40_0000;
const DATA_ADDRESS: u64 = 0x60_0000;
const HEADERS_BYTES: u64 = 64 + 2 * 56;

/// An executable file that is linked to fixed addresses.
fn fixed_program() -> Vec<u8> {
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let half = |file: &mut Vec<u8>, values: &[u16]| values.iter().for_each(|v| file.extend(v.to_le_bytes()));
    let word = |file: &mut Vec<u8>, values: &[u32]| values.iter().for_each(|v| file.extend(v.to_le_bytes()));
    let long = |file: &mut Vec<u8>, values: &[u64]| values.iter().for_each(|v| file.extend(v.to_le_bytes()));
    half(&mut file, &[2, 62]);
    word(&mut file, &[1]);
    long(&mut file, &[CODE_ADDRESS + HEADERS_BYTES, 64, 0]);
    word(&mut file, &[0]);
    half(&mut file, &[64, 56, 2, 64, 0, 0]);
    let length = HEADERS_BYTES + CODE.len() as u64;
    word(&mut file, &[1, 5]);
    long(&mut file, &[0, CODE_ADDRESS, CODE_ADDRESS, length, length, 0x1000]);
    word(&mut file, &[1, 6]);
    long(&mut file, &[0, DATA_ADDRESS, DATA_ADDRESS, 0, 0x1000, 0x1000]);
    file.extend(CODE);
    file
}

fn programs_at_one_address() -> Outcome {
    let scratch = Scratch::new("slots")?;
    let path = scratch.0.join("fixed");
    fs::write(&path, fixed_program()).or_fail()?;
    fs::set_permissions(&path, Permissions::from_mode(0o755)).or_fail()?;
    let mut programs = Vec::new();
    for _ in 0..4 {
        programs.push(Command::new(&path).spawn().or_fail()?);
    }
    for mut program in programs {
        expect_eq!(program.wait().or_fail()?.code(), Some(0));
    }
    Ok(())
}

fn counter(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/heddle/counters").ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.parse().ok()
}

fn fork_and_exec_change_few_page_tables() -> Outcome {
    const ROUNDS: u64 = 30;
    let Some(isolation) = isolation_of(getpid().as_raw()) else {
        skip("only Heddle counts changes");
        return Ok(());
    };
    // On several CPUs what others do is counted too.
    if isolation == "private" || std::thread::available_parallelism().is_ok_and(|count| count.get() > 1) {
        return Ok(());
    }
    let (switches, changes) = (counter("switches"), counter("page_table_changes"));
    for _ in 0..ROUNDS {
        let child = spawn_child(|| {
            let name = c"/bin/true";
            let _ = nix::unistd::execv(name, &[name]);
            1
        })?;
        expect_success(child)?;
    }
    let since = |before: Option<u64>, name| counter(name).zip(before).map_or(0, |(now, before)| now - before);
    let (switches, changes) = (since(switches, "switches"), since(changes, "page_table_changes"));
    expect!(switches >= 2 * ROUNDS);
    // A slice that ends between fork and exec brings the parent back too early.
    expect!(changes * 4 <= switches);
    Ok(())
}

#[allow(unsafe_code, reason = "mapping memory has no safe form")]
fn map_and_unmap(value: u8) -> bool {
    const BYTES: usize = 8 * PAGE_BYTES;
    // SAFETY: a new mapping at an address of the kernel's choice, of which nothing is left at the end.
    unsafe {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let start = libc::mmap(std::ptr::null_mut(), BYTES, rights, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return false;
        }
        let memory = std::slice::from_raw_parts_mut(start.cast::<u8>(), BYTES);
        memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = value);
        let is_protected = libc::mprotect(start, BYTES / 2, libc::PROT_READ) == 0;
        let is_same = memory.iter().step_by(PAGE_BYTES).all(|&byte| byte == value);
        is_protected && is_same && libc::munmap(start, BYTES) == 0
    }
}

/// On several CPUs children begin, map, unmap and end, by fork alone and by exec, while others that claim the slot run.
fn ends_while_others_run() -> Outcome {
    const BRANCHES: u8 = 4;
    let mut branches = Vec::new();
    for branch in 0..BRANCHES {
        branches.push(spawn_child(|| {
            let mut kept = vec![branch; 8 * PAGE_BYTES];
            let is_good = (0..25_u8).all(|round| {
                let child = spawn_child(|| {
                    if round % 3 == 0 {
                        let name = c"/bin/true";
                        let _ = nix::unistd::execv(name, &[name]);
                    }
                    i32::from(!map_and_unmap(round) || !yield_often(&mut kept, round, 2))
                });
                let is_mapped = map_and_unmap(branch ^ round);
                let is_kept = kept.iter().step_by(PAGE_BYTES).all(|&byte| byte == branch);
                is_mapped && is_kept && child.and_then(expect_success).is_ok()
            });
            i32::from(!is_good)
        })?);
    }
    branches.into_iter().try_for_each(expect_success)
}

#[allow(unsafe_code, reason = "these options have no safe form")]
fn prctl(option: u32, value: u64) -> i64 {
    // SAFETY: neither option touches memory of this program.
    unsafe { libc::syscall(libc::SYS_prctl, option, value, 0, 0, 0) }
}

fn isolation_of(pid: i32) -> Option<String> {
    let text = fs::read_to_string("/proc/heddle/spaces").ok()?;
    let line = text.lines().find(|line| line.split(' ').next() == Some(&pid.to_string()))?;
    line.split(' ').nth(1).map(str::to_owned)
}

fn a_program_chooses_its_isolation() -> Outcome {
    if isolation_of(getpid().as_raw()).is_none() {
        skip("only Heddle has isolation to choose");
        return Ok(());
    }
    expect_eq!(prctl(PR_GET_ISOLATION, 0), 0);
    expect_eq!(prctl(PR_SET_ISOLATION, 4), -1);
    if is_direct() {
        expect_eq!((prctl(PR_SET_ISOLATION, 3), Errno::last()), (-1, Errno::EOPNOTSUPP));
        return Ok(());
    }
    let kept = vec![3_u8; 8 * PAGE_BYTES];
    expect_eq!(prctl(PR_SET_ISOLATION, 3), 0);
    expect_eq!(isolation_of(getpid().as_raw()), Some(String::from("private")));
    expect!(kept.iter().all(|&byte| byte == 3));
    let child = spawn_child(|| {
        let is_inherited = prctl(PR_GET_ISOLATION, 0) == 3;
        // Whoever is not privileged may have more protection, and not less.
        let is_refused = setuid(1000.into()).is_ok() && prctl(PR_SET_ISOLATION, 1) == -1;
        i32::from(!is_inherited || !is_refused || prctl(PR_SET_ISOLATION, 3) != 0)
    })?;
    expect_success(child)?;
    expect_eq!(prctl(PR_SET_ISOLATION, 1), 0);
    expect_eq!(isolation_of(getpid().as_raw()), Some(String::from("none")));
    Ok(())
}

/// Each change makes all CPUs look anew at who may reach the memory that the others use meanwhile, in the program and
/// by calls.
fn threads_run_on_while_one_changes_its_credentials() -> Outcome {
    let child = spawn_child(|| {
        let is_over = AtomicBool::new(false);
        let use_memory = || {
            let (mut memory, mut round) = (vec![0_u8; 16 * PAGE_BYTES], 0);
            while !is_over.load(Ordering::Relaxed) {
                round += 1;
                if !yield_often(&mut memory, round as u8, 4) || fs::metadata("/proc/self").is_err() {
                    return false;
                }
            }
            true
        };
        let all_well = std::thread::scope(|scope| {
            let users: Vec<_> = (0..3).map(|_| scope.spawn(use_memory)).collect();
            for number in 0..1000 {
                setfsuid(Uid::from_raw(number % 3));
            }
            is_over.store(true, Ordering::Relaxed);
            users.into_iter().all(|user| user.join().unwrap_or(false))
        });
        i32::from(!all_well)
    })?;
    expect_success(child)
}
