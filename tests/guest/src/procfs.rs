//! The texts of `/proc` on processes and the machine are true.
#![allow(unsafe_code, reason = "some of what is looked at is changed by calls that have no safe form")]

use std::fs;
use std::time::Duration;

use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::harness::{OrFail, Outcome, Scratch, in_child, own_path};
use crate::{expect, expect_eq};

crate::tests! {
    cpu_time_of_ended_processes_stays
    every_cpu_has_its_own_time
    counters_go_on
    interrupts_are_counted_by_cpu
    idle_time_is_not_the_uptime
    switches_are_of_two_kinds
    affinity_shows
    policy_and_processor_show
    no_new_privileges_shows
    descriptors_of_every_process_are_listed
    queued_signals_show
    the_largest_size_is_kept
    the_most_pages_in_memory_are_kept
    the_host_name_is_the_one_that_was_set
    version_is_what_uname_says
    features_are_the_processors
    memory_of_files_counts
    refused_pages_of_files_do_not_count
    dumpable_and_timer_slack_read_back
    addresses_are_not_random_on_request
    limits_are_all_there
    each_cpu_has_a_directory
    faults_of_the_processor_are_told
}

/// The value behind `NAME:` in a file.
fn field(path: &str, name: &str) -> Result<String, String> {
    let text = fs::read_to_string(path).or_fail()?;
    let start = format!("{name}:");
    let line = text.lines().find(|line| line.starts_with(&start)).ok_or_else(|| format!("no {name}"))?;
    Ok(line[start.len()..].trim().to_owned())
}

fn number(path: &str, name: &str) -> Result<u64, String> {
    field(path, name)?.split_whitespace().next().unwrap_or_default().parse().or_fail()
}

/// The fields of `/proc/self/stat` behind the name, the state being number 3.
fn stat_field(index: usize) -> Result<i64, String> {
    let text = fs::read_to_string("/proc/self/stat").or_fail()?;
    let rest = text.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
    rest.split_whitespace().nth(index - 3).unwrap_or_default().parse().or_fail()
}

/// The numbers of the line of `/proc/stat` that starts with this word.
fn machine(word: &str) -> Result<Vec<u64>, String> {
    let text = fs::read_to_string("/proc/stat").or_fail()?;
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(word));
    let words = line.ok_or_else(|| format!("no {word}"))?.split_whitespace().skip(1);
    words.map(|word| word.parse().or_fail()).collect()
}

/// The processor time of this thread.
fn used_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Uses so much processor time.
fn compute(time: Duration) {
    let start = used_time();
    while used_time() - start < time {
        std::hint::spin_loop();
    }
}

fn cpu_time_of_ended_processes_stays() -> Outcome {
    let before = machine("cpu")?;
    in_child(|| {
        compute(Duration::from_millis(300));
        0
    })?;
    let after = machine("cpu")?;
    for (before, after) in before.iter().zip(&after).take(4) {
        expect!(before <= after);
    }
    // User, nice and system time together, in hundredths of a second.
    let used = |times: &[u64]| times[..3].iter().sum::<u64>();
    expect!(used(&after) - used(&before) >= 10);
    Ok(())
}

fn every_cpu_has_its_own_time() -> Outcome {
    let mut only = CpuSet::new();
    only.set(0).or_fail()?;
    sched_setaffinity(Pid::from_raw(0), &only).or_fail()?;
    let used = |times: &[u64]| times[..3].iter().sum::<u64>();
    let before = used(&machine("cpu0")?);
    compute(Duration::from_millis(300));
    expect!(used(&machine("cpu0")?) - before >= 10);
    let text = fs::read_to_string("/proc/stat").or_fail()?;
    let all = machine("cpu")?;
    let lines = text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "));
    let sum: u64 = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum();
    // Each is rounded, and time goes on.
    expect!(sum <= all[0] + 10);
    Ok(())
}

fn counters_go_on() -> Outcome {
    let words = ["ctxt", "processes", "intr"];
    let read = || words.iter().map(|word| Ok(machine(word)?[0])).collect::<Result<Vec<_>, String>>();
    let before = read()?;
    for _ in 0..10 {
        in_child(|| 0)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    let after = read()?;
    expect!(after[0] >= before[0] + 10);
    expect!(after[1] >= before[1] + 10);
    expect!(after[2] > before[2]);
    expect!(machine("procs_running")?[0] >= 1);
    Ok(())
}

/// The counts of a line of `/proc/interrupts`, one for each CPU.
fn interrupts(name: &str) -> Result<Vec<u64>, String> {
    let text = fs::read_to_string("/proc/interrupts").or_fail()?;
    let cpus = text.lines().next().unwrap_or_default().split_whitespace().count();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'));
    let words = line.ok_or_else(|| format!("no {name}"))?.split_whitespace().take(cpus);
    words.map(|word| word.parse().or_fail()).collect()
}

fn interrupts_are_counted_by_cpu() -> Outcome {
    let text = fs::read_to_string("/proc/interrupts").or_fail()?;
    let cpus = std::thread::available_parallelism().or_fail()?.get();
    let first: Vec<_> = text.lines().next().unwrap_or_default().split_whitespace().collect();
    expect_eq!(first, (0..cpus).map(|number| format!("CPU{number}")).collect::<Vec<_>>());
    let before = interrupts("LOC")?;
    expect_eq!(before.len(), cpus);
    expect_eq!(interrupts("RES")?.len(), cpus);
    let has_grown = |now: &[u64]| now.iter().sum::<u64>() > before.iter().sum();
    while !has_grown(&interrupts("LOC")?) {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn idle_time_is_not_the_uptime() -> Outcome {
    let read = || -> Result<[f64; 2], String> {
        let text = fs::read_to_string("/proc/uptime").or_fail()?;
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        numbers.try_into().map_err(|_| text)
    };
    let before = read()?;
    compute(Duration::from_millis(300));
    let after = read()?;
    let cpus = machine_cpus()?;
    let (all, idle) = ((after[0] - before[0]) * cpus as f64, after[1] - before[1]);
    expect!(idle >= 0.0);
    // One processor has computed.
    expect!(idle <= all - 0.2);
    Ok(())
}

fn machine_cpus() -> Result<usize, String> {
    let text = fs::read_to_string("/proc/stat").or_fail()?;
    Ok(text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count())
}

fn switches_are_of_two_kinds() -> Outcome {
    let status = "/proc/self/status";
    let before = number(status, "voluntary_ctxt_switches")?;
    for _ in 0..20 {
        std::thread::sleep(Duration::from_micros(100));
    }
    // Some sleeps are over before the thread has given its processor up.
    expect!(number(status, "voluntary_ctxt_switches")? >= before + 5);
    // Two that compute on one processor take it from each other.
    let mut only = CpuSet::new();
    only.set(0).or_fail()?;
    sched_setaffinity(Pid::from_raw(0), &only).or_fail()?;
    let before = number(status, "nonvoluntary_ctxt_switches")?;
    let other = std::thread::spawn(|| compute(Duration::from_millis(300)));
    compute(Duration::from_millis(300));
    other.join().map_err(|_| String::from("the thread failed"))?;
    expect!(number(status, "nonvoluntary_ctxt_switches")? > before);
    Ok(())
}

fn affinity_shows() -> Outcome {
    let all = sched_getaffinity(Pid::from_raw(0)).or_fail()?;
    let last = (0..CpuSet::count()).filter(|&cpu| all.is_set(cpu).unwrap_or(false)).max().unwrap_or(0);
    let mut only = CpuSet::new();
    only.set(last).or_fail()?;
    sched_setaffinity(Pid::from_raw(0), &only).or_fail()?;
    expect_eq!(field("/proc/self/status", "Cpus_allowed_list")?, last.to_string());
    let mask = field("/proc/self/status", "Cpus_allowed")?;
    expect_eq!(u64::from_str_radix(&mask.replace(',', ""), 16), Ok(1 << last));
    expect_eq!(stat_field(39)?, last as i64);
    Ok(())
}

fn policy_and_processor_show() -> Outcome {
    expect_eq!((stat_field(18)?, stat_field(40)?, stat_field(41)?), (20, 0, 0));
    let parameters = libc::sched_param { sched_priority: 10 };
    // SAFETY: the structure lives through the call.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    expect_eq!(result, 0);
    expect_eq!((stat_field(18)?, stat_field(40)?, stat_field(41)?), (-11, 10, 1));
    expect_eq!(stat_field(38)?, i64::from(libc::SIGCHLD));
    Ok(())
}

fn descriptors_of_every_process_are_listed() -> Outcome {
    for name in ["fd", "fdinfo"] {
        let listed: std::io::Result<Vec<_>> = fs::read_dir(format!("/proc/1/{name}")).or_fail()?.collect();
        listed.or_fail()?;
    }
    Ok(())
}

fn no_new_privileges_shows() -> Outcome {
    expect_eq!(field("/proc/self/status", "NoNewPrivs")?, "0");
    // SAFETY: changes only a flag of this process.
    expect_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    expect_eq!(field("/proc/self/status", "NoNewPrivs")?, "1");
    Ok(())
}

fn queued_signals_show() -> Outcome {
    let shown = || -> Result<(u64, u64), String> {
        let text = field("/proc/self/status", "SigQ")?;
        let (queued, limit) = text.split_once('/').ok_or("no SigQ")?;
        Ok((queued.parse().or_fail()?, limit.parse().or_fail()?))
    };
    let (before, limit) = shown()?;
    let mut wanted = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls fill in or read structures that live through them.
    unsafe {
        libc::getrlimit(libc::RLIMIT_SIGPENDING, &raw mut wanted);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, libc::SIGRTMIN());
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        for _ in 0..3 {
            libc::sigqueue(
                libc::getpid(),
                libc::SIGRTMIN(),
                libc::sigval { sival_ptr: std::ptr::null_mut() },
            );
        }
    }
    expect_eq!(limit, wanted.rlim_cur);
    expect_eq!(shown()?, (before + 3, limit));
    Ok(())
}

fn the_largest_size_is_kept() -> Outcome {
    let status = "/proc/self/status";
    let before = number(status, "VmSize")?;
    let length = 64 << 20;
    // SAFETY: new memory, taken back at once.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        libc::munmap(at, length);
    }
    expect!(number(status, "VmPeak")? >= before + (length as u64 >> 10));
    expect!(number(status, "VmSize")? < before + (length as u64 >> 10));
    Ok(())
}

/// Anonymous memory, which goes when this is dropped.
struct Mapped(*mut libc::c_void, usize);

impl Mapped {
    fn new(length: usize) -> Result<Self, String> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping somewhere.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        nix::errno::Errno::result(at as isize).or_fail()?;
        Ok(Self(at, length))
    }

    /// Writes to each page.
    fn touch(&mut self) {
        for page in (0..self.1).step_by(4096) {
            // SAFETY: inside of the mapping, which only this value refers to.
            unsafe { self.0.cast::<u8>().add(page).write_volatile(1) };
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

/// The most memory that this process, or one of its children, had at a time, in KiB.
fn most_resident(who: i32) -> u64 {
    // SAFETY: all zeros is a value of the structure, which lives through the call.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &raw mut usage);
        usage.ru_maxrss as u64
    }
}

fn the_most_pages_in_memory_are_kept() -> Outcome {
    const KIB: u64 = 8 << 10;
    let status = "/proc/self/status";
    let before = number(status, "VmRSS")?;
    let mut bytes = Mapped::new(KIB as usize * 1024)?;
    bytes.touch();
    // Linux may be behind by some pages for each thread.
    let slack = 600;
    expect!(number(status, "VmRSS")? + slack >= before + KIB);
    // A child has in memory what it inherits; writing to it takes no more.
    let ended = in_child(|| {
        bytes.touch();
        let Ok(mut more) = Mapped::new(KIB as usize * 1024) else { return 2 };
        more.touch();
        let resident = number(status, "VmRSS").unwrap_or(0);
        i32::from(resident + slack < before + 2 * KIB || resident > before + 2 * KIB + 2 * slack)
    })?;
    expect!(matches!(ended, nix::sys::wait::WaitStatus::Exited(_, 0)));
    expect!(most_resident(libc::RUSAGE_CHILDREN) + slack >= before + 2 * KIB);
    drop(bytes);
    let after = number(status, "VmRSS")?;
    expect!(after < before + KIB / 2);
    expect!(number(status, "VmHWM")? + slack >= before + KIB);
    expect!(most_resident(libc::RUSAGE_SELF) + slack >= before + KIB);
    // The same by another count.
    let summed = number("/proc/self/smaps_rollup", "Rss")?;
    expect!(summed.abs_diff(number(status, "VmRSS")?) < KIB / 2);
    Ok(())
}

fn the_host_name_is_the_one_that_was_set() -> Outcome {
    // SAFETY: the name lives through the call.
    let set = |name: &str| unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) };
    let names = nix::sys::utsname::uname().or_fail()?;
    let before = names.nodename().to_string_lossy();
    let file = "/proc/sys/kernel/hostname";
    let shown_before = fs::read_to_string(file).or_fail()?;
    expect_eq!(shown_before.trim_end(), &*before);
    expect_eq!(set("another"), 0);
    let shown = fs::read_to_string(file);
    set(&before);
    expect_eq!(shown.or_fail()?, "another\n");
    Ok(())
}

fn version_is_what_uname_says() -> Outcome {
    let names = nix::sys::utsname::uname().or_fail()?;
    let (release, version) = (names.release().to_string_lossy(), names.version().to_string_lossy());
    let text = fs::read_to_string("/proc/version").or_fail()?;
    expect!(text.starts_with(&format!("Linux version {release} ")));
    expect!(text.trim_end().ends_with(&*version));
    let shown = fs::read_to_string("/proc/sys/kernel/version").or_fail()?;
    expect_eq!(shown.trim_end(), &*version);
    Ok(())
}

fn features_are_the_processors() -> Outcome {
    let text = fs::read_to_string("/proc/cpuinfo").or_fail()?;
    let value = |name: &str| {
        let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let flags = value("flags").ok_or("no flags")?;
    let has = |flag: &str| flags.split_whitespace().any(|each| each == flag);
    for (flag, is_there) in [
        ("sse2", is_x86_feature_detected!("sse2")),
        ("sse4_2", is_x86_feature_detected!("sse4.2")),
        ("avx", is_x86_feature_detected!("avx")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("bmi2", is_x86_feature_detected!("bmi2")),
        ("popcnt", is_x86_feature_detected!("popcnt")),
        ("aes", is_x86_feature_detected!("aes")),
        ("rdrand", is_x86_feature_detected!("rdrand")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
    ] {
        if has(flag) != is_there {
            return Err(format!("{flag}: {} in /proc/cpuinfo, {is_there} by CPUID", has(flag)));
        }
    }
    let leaf = std::arch::x86_64::__cpuid(0);
    let bytes: Vec<u8> = [leaf.ebx, leaf.edx, leaf.ecx].iter().flat_map(|word| word.to_le_bytes()).collect();
    let vendor = value("vendor_id").unwrap_or_default();
    expect_eq!(vendor.as_bytes(), bytes);
    let processors = text.lines().filter(|line| line.starts_with("processor")).count();
    expect_eq!(processors, machine_cpus()?);
    Ok(())
}

fn memory_of_files_counts() -> Outcome {
    use std::io::Write;
    let info = "/proc/meminfo";
    let before = (number(info, "Cached")?, number(info, "Shmem")?);
    let memory = nix::sys::memfd::memfd_create(c"counted", nix::sys::memfd::MFdFlags::empty()).or_fail()?;
    fs::File::from(memory.try_clone().or_fail()?).write_all(&vec![1; 8 << 20]).or_fail()?;
    let after = (number(info, "Cached")?, number(info, "Shmem")?);
    expect!(after.0 >= before.0 + 7000 && after.1 >= before.1 + 7000);
    expect!(number(info, "MemAvailable")? <= number(info, "MemTotal")?);
    Ok(())
}

/// Linux's count may be behind by what each processor still keeps to itself: less than this.
const COUNTED_LATE_KIB: u64 = 2000;

fn refused_pages_of_files_do_not_count() -> Outcome {
    use std::os::unix::fs::FileExt;
    let shared = || number("/proc/meminfo", "Shmem");
    let scratch = Scratch::new("refused").or_fail()?;
    let place = scratch.path("small");
    fs::create_dir(&place).or_fail()?;
    let before = shared()?;
    mount(Some("small"), &place, Some("tmpfs"), MsFlags::empty(), Some("size=64k")).or_fail()?;
    let file = fs::File::create(place.join("file")).or_fail();
    let refused =
        file.map(|file| (0..2000).filter(|page| file.write_all_at(&[1], page * 4096).is_err()).count());
    umount(&place).or_fail()?;
    expect_eq!(refused?, 2000 - 16);
    expect!(shared()?.abs_diff(before) < COUNTED_LATE_KIB);
    // A file without a name has no such limit; it ends with its last descriptor.
    let memory = nix::sys::memfd::memfd_create(c"counted", nix::sys::memfd::MFdFlags::empty()).or_fail()?;
    let memory = fs::File::from(memory);
    memory.write_all_at(&vec![1; 8 << 20], 0).or_fail()?;
    drop(memory);
    for _ in 0..100 {
        if shared()?.abs_diff(before) < COUNTED_LATE_KIB {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    expect!(shared()?.abs_diff(before) < COUNTED_LATE_KIB);
    Ok(())
}

fn dumpable_and_timer_slack_read_back() -> Outcome {
    // SAFETY: these operations have no pointers.
    let control = |operation: i32, argument: u64| unsafe { libc::prctl(operation, argument, 0, 0, 0) };
    expect_eq!(control(libc::PR_SET_DUMPABLE, 0), 0);
    expect_eq!(control(libc::PR_GET_DUMPABLE, 0), 0);
    let usual = control(libc::PR_GET_TIMERSLACK, 0);
    expect_eq!(control(libc::PR_SET_TIMERSLACK, 1000), 0);
    expect_eq!(control(libc::PR_GET_TIMERSLACK, 0), 1000);
    // A child's usual slack is what its parent has.
    let ended = in_child(move || {
        let inherited = control(libc::PR_GET_TIMERSLACK, 0) == 1000;
        control(libc::PR_SET_TIMERSLACK, 5);
        control(libc::PR_SET_TIMERSLACK, 0);
        i32::from(!(inherited && control(libc::PR_GET_TIMERSLACK, 0) == 1000))
    })?;
    expect!(matches!(ended, nix::sys::wait::WaitStatus::Exited(_, 0)));
    expect_eq!(control(libc::PR_SET_TIMERSLACK, 0), 0);
    expect_eq!(control(libc::PR_GET_TIMERSLACK, 0), usual);
    Ok(())
}

fn addresses_are_not_random_on_request() -> Outcome {
    const NO_RANDOMIZATION: libc::c_ulong = 0x004_0000;
    let addresses = || -> Result<Vec<String>, String> {
        let output = std::process::Command::new(own_path()).arg("--as=maps").output().or_fail()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let fixed = text.lines().filter(|line| !line.contains("[v"));
        Ok(fixed.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect())
    };
    // SAFETY: no pointers.
    let ask = |word: libc::c_ulong| unsafe { libc::personality(word) };
    expect_eq!(ask(0xffff_ffff), 0);
    expect!(addresses()?.first() != addresses()?.first());
    expect_eq!(ask(NO_RANDOMIZATION), 0);
    expect_eq!(ask(0xffff_ffff), NO_RANDOMIZATION as i32);
    let first = addresses()?;
    expect!(!first.is_empty());
    expect_eq!(first, addresses()?);
    Ok(())
}

fn limits_are_all_there() -> Outcome {
    let text = fs::read_to_string("/proc/self/limits").or_fail()?;
    // A line of titles, and one for each resource.
    expect_eq!(text.lines().count(), 17);
    expect!(text.contains("Max file locks") && text.contains("Max realtime timeout"));
    Ok(())
}

fn each_cpu_has_a_directory() -> Outcome {
    let base = std::path::Path::new("/sys/devices/system/cpu");
    let read = |name: &str| fs::read_to_string(base.join(name)).or_fail();
    let online = read("online")?;
    let last: usize = online.trim().rsplit('-').next().unwrap_or_default().parse().or_fail()?;
    let mut found = Vec::new();
    for entry in fs::read_dir(base).or_fail()? {
        let name = entry.or_fail()?.file_name().to_string_lossy().into_owned();
        found.extend(name.strip_prefix("cpu").and_then(|number| number.parse::<usize>().ok()));
    }
    found.sort_unstable();
    expect_eq!(found, (0..=last).collect::<Vec<_>>());
    let mut cores = std::collections::BTreeSet::new();
    for number in found {
        let own = |name: &str| read(&format!("cpu{number}/topology/{name}"));
        let place: (u32, u32) = (
            own("physical_package_id")?.trim().parse().or_fail()?,
            own("core_id")?.trim().parse().or_fail()?,
        );
        expect!(cores.insert(place));
        expect_eq!(own("thread_siblings_list")?, format!("{number}\n"));
        expect_eq!(own("core_cpus_list")?, own("thread_siblings_list")?);
        expect_eq!(own("core_siblings_list")?, own("package_cpus_list")?);
        let mask = u64::from_str_radix(own("thread_siblings")?.trim(), 16).or_fail()?;
        expect_eq!(mask, 1 << number);
        let all = u64::from_str_radix(own("core_siblings")?.trim(), 16).or_fail()?;
        expect!(all & mask == mask);
        // The first one can't be switched off.
        let state = fs::read_to_string(base.join(format!("cpu{number}/online"))).ok();
        expect_eq!(state.as_deref(), (number > 0).then_some("1\n"));
    }
    let absent = base.join(format!("cpu{}", last + 1));
    expect!(!absent.exists());
    Ok(())
}

fn faults_of_the_processor_are_told() -> Outcome {
    let bugs = field("/proc/cpuinfo", "bugs\t\t")?;
    let bugs: Vec<&str> = bugs.split_whitespace().collect();
    let mut found = 0;
    for entry in fs::read_dir("/sys/devices/system/cpu/vulnerabilities").or_fail()? {
        let entry = entry.or_fail()?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let text = fs::read_to_string(entry.path()).or_fail()?;
        let told = text.strip_suffix('\n').ok_or("no end of line")?;
        expect!(!told.contains('\n'));
        let starts =
            ["Not affected", "Vulnerable", "Mitigation: ", "Unknown: ", "KVM: ", "Processor vulnerable"];
        expect!(starts.iter().any(|start| told.starts_with(start)));
        // The names under which both files know a fault.
        let bug = match &*name {
            "meltdown" => "cpu_meltdown",
            "tsx_async_abort" => "taa",
            "l1tf" | "mds" | "spectre_v1" | "spectre_v2" | "spec_store_bypass" | "srbds" | "retbleed" => {
                &name
            }
            _ => continue,
        };
        expect_eq!((&name, bugs.contains(&bug)), (&name, told != "Not affected"));
        found += 1;
    }
    expect_eq!(found, 9);
    Ok(())
}
