//! Where programs are, who may reach them, and what going from one to another changes. Linux has nothing to
//! compare: there each test ends at once.

use std::arch::asm;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use heddle_abi::prctl::PR_SET_ISOLATION;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use nix::unistd::{getpid, getppid, setuid};

use crate::harness::{OrFail, Outcome, is_direct, own_path, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    programs_share_a_space
    forked_children_claim_the_slot_until_they_exec
    switches_in_the_shared_space_change_no_page_table
    another_user_isolates_the_machine
    a_stray_pointer_into_another_program_faults
    more_programs_than_keys_are_apart_all_the_same
    a_program_with_a_key_is_apart_from_those_without
    leaving_the_slot_keeps_addresses
    large_reservations
    more_programs_than_slots
    own_pages_are_counted
}

const SPACES: &str = "/proc/heddle/spaces";
/// In the low window, outside of every slot that a program like this one may have.
const OUTSIDE: usize = 0x1000_0000;
const ROUNDS: usize = 200;

/// A line of `/proc/heddle/spaces`.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    /// Which others may reach it: `none` (all may), `user`, `private`, or `direct` (all may, in such a machine).
    isolation: String,
    /// `None` for a program that has all addresses.
    slot: Option<u64>,
}

fn place_of(pid: i32) -> Result<Place, String> {
    let text = std::fs::read_to_string(SPACES).or_fail()?;
    let line = text.lines().find(|line| line.split(' ').next() == Some(&pid.to_string()));
    let words: Vec<&str> = line.ok_or(format!("no process {pid} in {text}"))?.split(' ').collect();
    Ok(Place { isolation: words[1].to_owned(), slot: words[2].parse().ok() })
}

/// Whether this is Heddle; and then whether programs share a space, as the test program does by itself.
fn is_sharing() -> Result<Option<bool>, String> {
    if std::fs::metadata(SPACES).is_err() {
        crate::harness::skip("only Heddle has spaces that programs share");
        return Ok(None);
    }
    // The test runs in a forked child of the program.
    place_of(getppid().as_raw()).map(|place| Some(place.isolation != "private"))
}

fn start(arguments: &[&str]) -> Result<Child, String> {
    let mut command = Command::new(own_path());
    command.arg("--as=space").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().or_fail()
}

/// Runs a role of this file and returns what it wrote.
fn ask(arguments: &[&str]) -> Result<String, String> {
    let output = start(arguments)?.wait_with_output().or_fail()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(text) } else { Err(format!("{arguments:?}: {} {text}", output.status)) }
}

/// The roles of this program with `--as=space ROLE`.
pub fn play_role(arguments: &[String]) -> ExitCode {
    let outcome = match arguments.first().map(String::as_str) {
        Some("place") => place_of(getpid().as_raw()).map(|place| print!("{place:?}")),
        Some("echo") => echo(),
        Some("switch") => switch(),
        Some("setuid") => become_another(),
        Some("leave") => leave(),
        Some("reserve") => reserve(),
        Some("hold") => hold(),
        Some("rights") => {
            print!("{:#x}", crate::protection_keys::rights_now());
            Ok(())
        }
        Some("reach") => reach(&arguments[1..]),
        _ => Err(String::from("no such role")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            print!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn programs_share_a_space() -> Outcome {
    let Some(sharing) = is_sharing()? else { return Ok(()) };
    // Both wait for input, so both are there at the same time.
    let (first, second) = (start(&["echo"])?, start(&["echo"])?);
    let shell = Command::new("/bin/bash").args(["-c", "read line"]).stdin(Stdio::piped()).spawn();
    let mut slots = Vec::new();
    for mut child in [Some(first), Some(second), shell.ok()].into_iter().flatten() {
        // The child has read a byte: it has run `execve`.
        child.stdin.as_mut().ok_or("no input")?.write_all(b"\n").or_fail()?;
        if let Some(output) = child.stdout.as_mut() {
            output.read_exact(&mut [0]).or_fail()?;
            let place = place_of(child.id() as i32)?;
            expect_eq!(place.isolation != "private", sharing);
            slots.push(place.slot.ok_or("not in a slot")?);
        }
        drop(child.stdin.take());
        let _ = child.wait().or_fail()?;
    }
    expect!(slots.len() == 2 && slots[0] != slots[1]);
    expect!(place_of(getppid().as_raw())?.slot != Some(slots[0]));
    Ok(())
}

fn forked_children_claim_the_slot_until_they_exec() -> Outcome {
    if is_sharing()?.is_none() {
        return Ok(());
    }
    let (parent, child) = (place_of(getppid().as_raw())?, place_of(getpid().as_raw())?);
    expect_eq!(parent, child);
    expect!(child.slot.is_some());
    let program = ask(&["place"])?;
    expect!(program.contains("slot: Some") && !program.contains(&format!("{:?}", child.slot)));
    Ok(())
}

/// Answers each byte until there are no more.
fn echo() -> Result<(), String> {
    let mut byte = [0];
    while std::io::stdin().read(&mut byte).or_fail()? == 1 {
        std::io::stdout().write_all(&byte).or_fail()?;
        std::io::stdout().flush().or_fail()?;
    }
    Ok(())
}

fn counter(name: &str) -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/heddle/counters").or_fail()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.ok_or(format!("no counter {name}"))?.parse().or_fail()
}

/// Plays ball with another program and prints how often spaces and page tables changed.
fn switch() -> Result<(), String> {
    let mut other = start(&["echo"])?;
    let (mut input, mut output) =
        (other.stdin.take().ok_or("no input")?, other.stdout.take().ok_or("no output")?);
    let mut play = || -> Result<(), String> {
        input.write_all(b"x").or_fail()?;
        output.read_exact(&mut [0]).or_fail()
    };
    // Both have touched what they need after the first rounds.
    (0..8).try_for_each(|_| play())?;
    let before = (counter("switches")?, counter("page_table_changes")?);
    (0..ROUNDS).try_for_each(|_| play())?;
    let after = (counter("switches")?, counter("page_table_changes")?);
    print!("{} {}", after.0 - before.0, after.1 - before.1);
    drop(input);
    let _ = other.wait().or_fail()?;
    Ok(())
}

fn switches_in_the_shared_space_change_no_page_table() -> Outcome {
    let Some(sharing) = is_sharing()? else { return Ok(()) };
    let answer = ask(&["switch"])?;
    let mut numbers = answer.split(' ').map(|word| word.parse::<usize>().unwrap_or(usize::MAX));
    let (switches, changes) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(usize::MAX));
    // With several processors each of the two may have one for itself.
    let is_alone = std::thread::available_parallelism().is_ok_and(|count| count.get() == 1);
    expect!(!is_alone || switches >= 2 * ROUNDS);
    if sharing {
        expect_eq!(changes, 0);
    } else {
        expect!(!is_alone || changes >= 2 * ROUNDS);
    }
    Ok(())
}

/// Whether programs are told from one another by protection keys.
fn is_keyed() -> Result<bool, String> {
    Ok(std::fs::read_to_string("/proc/heddle/isolation").or_fail()?.starts_with("keys"))
}

/// A word that another program may look for.
const HELD: u64 = 0x6865_6464_6c65;

/// Says where a word of this program is, and waits for the end of its input.
fn hold() -> Result<(), String> {
    let held = Box::new(AtomicU64::new(HELD));
    println!("{}", held.as_ptr().addr());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).or_fail()?;
    if held.load(Ordering::Relaxed) == HELD { Ok(()) } else { Err(String::from("somebody wrote here")) }
}

/// Looks at an address of another program, with the rights that a program has or with all.
#[allow(unsafe_code, reason = "a stray pointer")]
fn reach(arguments: &[String]) -> Result<(), String> {
    let address: usize = arguments.first().ok_or("no address")?.parse().or_fail()?;
    if arguments.len() > 1 {
        // SAFETY: the program may reach its own memory with these rights as well.
        unsafe { asm!("wrpkru", in("eax") 0, in("ecx") 0, in("edx") 0, options(nostack)) };
    }
    // SAFETY: another program's word, or a fault, which is what the test is about.
    let found = unsafe { std::ptr::with_exposed_provenance::<u64>(address).read_volatile() };
    print!("{found:#x}");
    Ok(())
}

/// A pointer into another program, which is in the same page table, faults as long as the program has not given itself
/// the right to the other's key.
fn a_stray_pointer_into_another_program_faults() -> Outcome {
    if is_sharing()?.is_none() || !is_keyed()? {
        return Ok(());
    }
    let mut holder = start(&["hold"])?;
    let output = holder.stdout.take().ok_or("no output")?;
    let mut address = String::new();
    BufReader::new(output).read_line(&mut address).or_fail()?;
    let address = address.trim();
    let status = start(&["reach", address])?.wait().or_fail()?;
    expect_eq!(status.signal(), Some(libc::SIGSEGV));
    // What stopped it was the key, and no wall: the word is there for who wants it.
    expect_eq!(ask(&["reach", address, "all"])?, format!("{HELD:#x}"));
    drop(holder.stdin.take());
    expect!(holder.wait().or_fail()?.success());
    Ok(())
}

/// Programs without a key have memory that the rights of all others admit.
#[allow(unsafe_code, reason = "prctl has no safe form for options of a kernel's own")]
fn a_program_with_a_key_is_apart_from_those_without() -> Outcome {
    if is_sharing()?.is_none() || is_direct() || is_keyed()? {
        return Ok(());
    }
    let mut holder = start(&["hold"])?;
    let output = holder.stdout.take().ok_or("no output")?;
    let mut address = String::new();
    BufReader::new(output).read_line(&mut address).or_fail()?;
    let child = spawn_child(|| {
        // SAFETY: changes who may reach this program's memory.
        let is_keyed = unsafe { libc::prctl(PR_SET_ISOLATION as i32, KEYS) } == 0;
        let place = ask(&["place"]).is_ok_and(|place| place.contains("keys"));
        let reached = start(&["reach", address.trim()]).and_then(|mut child| child.wait().or_fail());
        let is_stopped = reached.is_ok_and(|status| status.signal() == Some(libc::SIGSEGV));
        i32::from(!is_keyed || !place || !is_stopped)
    })?;
    let status = nix::sys::wait::waitpid(child, None).or_fail()?;
    expect!(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)));
    drop(holder.stdin.take());
    expect!(holder.wait().or_fail()?.success());
    Ok(())
}

/// The number of isolation by keys, for prctl(2).
const KEYS: u64 = 5;

/// There are 14 keys for programs. Those that get none have a root to themselves, so nothing of theirs is in reach, and
/// keys come back.
fn more_programs_than_keys_are_apart_all_the_same() -> Outcome {
    if is_sharing()?.is_none() || !is_keyed()? {
        return Ok(());
    }
    for _ in 0..3 {
        let mut holders = Vec::new();
        for _ in 0..18 {
            let mut holder = start(&["hold"])?;
            let output = holder.stdout.take().ok_or("no output")?;
            let mut address = String::new();
            BufReader::new(output).read_line(&mut address).or_fail()?;
            holders.push((holder, address.trim().to_owned()));
        }
        for (_, address) in &holders {
            expect_eq!(start(&["reach", address])?.wait().or_fail()?.signal(), Some(libc::SIGSEGV));
        }
        for (mut holder, _) in holders {
            drop(holder.stdin.take());
            expect!(holder.wait().or_fail()?.success());
        }
    }
    Ok(())
}

/// Gives up being the superuser, and says where that leaves the program.
fn become_another() -> Result<(), String> {
    let before = place_of(getpid().as_raw())?.slot;
    let kept = vec![7_u8; 100_000];
    setuid(1000.into()).or_fail()?;
    let after = place_of(getpid().as_raw())?;
    let is_same = after.slot == before && kept.iter().all(|&byte| byte == 7);
    print!("{} {is_same}", after.isolation);
    Ok(())
}

fn another_user_isolates_the_machine() -> Outcome {
    let Some(sharing) = is_sharing()? else { return Ok(()) };
    let is_none = std::fs::read_to_string("/proc/heddle/isolation").or_fail()?.starts_with("none");
    let wanted = if is_direct() {
        "direct"
    } else if is_keyed()? {
        "keys"
    } else if is_none {
        "none"
    } else if sharing {
        "user"
    } else {
        "private"
    };
    expect_eq!(ask(&["setuid"])?, format!("{wanted} true"));
    expect_eq!(place_of(getppid().as_raw())?.isolation, wanted);
    // And by exec, after the change.
    let child = spawn_child(|| {
        let place = setuid(1000.into()).or_fail().and_then(|()| ask(&["place"]));
        i32::from(!place.is_ok_and(|place| place.contains(wanted)))
    })?;
    expect!(matches!(
        nix::sys::wait::waitpid(child, None).or_fail()?,
        nix::sys::wait::WaitStatus::Exited(_, 0)
    ));
    Ok(())
}

#[allow(unsafe_code, reason = "a mapping at a fixed address has no safe form")]
fn leave() -> Result<(), String> {
    let kept: Vec<u64> = (0..50_000).collect();
    let before = place_of(getpid().as_raw())?.slot.is_some();
    let length = std::num::NonZeroUsize::new(4096).ok_or("0")?;
    // A thread that runs meanwhile goes on in the new page table.
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let counter = std::thread::spawn({
        let stop = stop.clone();
        move || {
            let mut sum = vec![0_u64; 2000];
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                sum.iter_mut().for_each(|value| *value += 1);
                std::thread::yield_now();
            }
            sum.iter().all(|&value| value == sum[0])
        }
    });
    let (rights, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
    // SAFETY: nothing of this program is there.
    let mapped = unsafe {
        mmap_anonymous(
            std::num::NonZeroUsize::new(OUTSIDE),
            length,
            rights,
            flags | MapFlags::MAP_FIXED_NOREPLACE,
        )
    }
    .or_fail()?;
    // SAFETY: the page is new and this function's own.
    unsafe { mapped.cast::<u64>().write(99) };
    let after = place_of(getpid().as_raw())?.slot.is_some();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let counted = counter.join().map_err(|_| "the thread panicked")?;
    let is_same = kept.iter().enumerate().all(|(index, &value)| value == index as u64);
    print!("{before} {after} {} {}", is_same && counted, mapped.as_ptr() as usize == OUTSIDE);
    Ok(())
}

fn leaving_the_slot_keeps_addresses() -> Outcome {
    if is_sharing()?.is_some() {
        expect_eq!(ask(&["leave"])?, "true false true true");
    }
    Ok(())
}

/// Reserves more than any slot has, uses both ends, and gives it back.
#[allow(unsafe_code, reason = "mapping memory has no safe form")]
fn reserve() -> Result<(), String> {
    let kept: Vec<u64> = (0..10_000).collect();
    let length = std::num::NonZeroUsize::new(600 << 30).ok_or("0")?;
    let (rights, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
    // SAFETY: a new mapping at an address of the kernel's choice; only its own bytes are touched.
    unsafe {
        let start = mmap_anonymous(None, length, rights, flags | MapFlags::MAP_NORESERVE).or_fail()?;
        let (first, last) = (start.cast::<u8>(), start.cast::<u8>().add(length.get() - 1));
        first.write(1);
        last.write(2);
        let sum = first.read() + last.read();
        munmap(start, length.get()).or_fail()?;
        print!("{sum} {}", kept.iter().enumerate().all(|(index, &value)| value == index as u64));
    }
    Ok(())
}

fn large_reservations() -> Outcome {
    if is_sharing()?.is_some() {
        expect_eq!(ask(&["reserve"])?, "3 true");
    }
    Ok(())
}

/// More programs than slots in a machine that was given few of them (`heddle.slots`): they share slots.
fn more_programs_than_slots() -> Outcome {
    const PROGRAMS: usize = 12;
    if is_sharing()?.is_none() {
        return Ok(());
    }
    for _ in 0..2 {
        let mut children = Vec::new();
        for _ in 0..PROGRAMS {
            children.push(start(&["echo"])?);
        }
        for child in &mut children {
            let (input, output) = (child.stdin.as_mut(), child.stdout.as_mut());
            input.ok_or("no input")?.write_all(b"y").or_fail()?;
            output.ok_or("no output")?.read_exact(&mut [0]).or_fail()?;
        }
        let places: Vec<Place> =
            children.iter().map(|child| place_of(child.id() as i32)).collect::<Result<_, _>>()?;
        for mut child in children {
            drop(child.stdin.take());
            expect!(child.wait().or_fail()?.success());
        }
        expect!(places.iter().all(|place| place.slot.is_some()));
    }
    Ok(())
}

/// Pages and page tables that only this process has.
fn own_frames() -> Result<(usize, usize), String> {
    let text = std::fs::read_to_string("/proc/heddle/pages").or_fail()?;
    let mut line = text
        .lines()
        .map(|line| line.split(' '))
        .find_map(|mut words| (words.next()? == getpid().to_string()).then_some(words));
    let mut number = || line.as_mut().and_then(Iterator::next)?.parse().ok();
    number().zip(number()).ok_or_else(|| format!("no line for {} in {text}", getpid()))
}

#[allow(unsafe_code, reason = "mapping memory has no safe form")]
fn own_pages_are_counted() -> Outcome {
    const PAGES: usize = 600;
    const PAGE_BYTES: usize = 4096;
    if is_sharing()?.is_none() {
        return Ok(());
    }
    let length = std::num::NonZeroUsize::new(PAGES * PAGE_BYTES).ok_or("0")?;
    let writable = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let before = own_frames()?;
    // SAFETY: new memory at an address of the kernel's choice.
    let memory = unsafe { mmap_anonymous(None, length, writable, MapFlags::MAP_PRIVATE) }.or_fail()?;
    let untouched = own_frames()?;
    for page in 0..PAGES {
        // SAFETY: inside of the mapping.
        unsafe { memory.cast::<u8>().add(page * PAGE_BYTES).write_volatile(1) };
    }
    let touched = own_frames()?;
    // A forked child shares them until one of the two writes.
    let child = spawn_child(|| i32::from(!own_frames().is_ok_and(|(pages, _)| pages < PAGES)))?;
    let status = nix::sys::wait::waitpid(child, None).or_fail()?;
    expect_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
    // SAFETY: nobody uses it.
    unsafe { munmap(memory, length.get()) }.or_fail()?;
    let unmapped = own_frames()?;
    // The program itself touches a page here and there.
    let about = |from: (usize, usize), to: (usize, usize)| to.0.abs_diff(from.0) < 50;
    expect!(about(before, untouched));
    expect!(about((untouched.0 + PAGES, 0), touched));
    expect!(touched.1 > untouched.1);
    expect!(about(before, unmapped));
    Ok(())
}
