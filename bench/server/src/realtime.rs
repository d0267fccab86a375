//! Realtime priorities of threads, on both kernels.

/// `SCHED_FIFO` of the most urgent connections' threads; each priority is two less.
const URGENT: i32 = 40;
/// Of the load generator, which is to send in time.
const GENERATOR: i32 = 60;
/// Of the threads by which Linux delivers packets when there are many.
const DELIVERY: i32 = 50;
/// Their names begin so.
const DELIVERS_PACKETS: &str = "ksoftirqd/";
/// Linux's bound for realtime threads, of each second.
const BOUND: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// The calling thread, where a thread is named.
const SELF: i32 = 0;

fn set(thread: i32, priority: i32) -> Result<(), String> {
    let parameters = libc::sched_param { sched_priority: priority };
    #[allow(unsafe_code, reason = "sched_setscheduler")]
    // SAFETY: reads the parameters.
    let result = unsafe { libc::sched_setscheduler(thread, libc::SCHED_FIFO, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(format!("SCHED_FIFO: {}", std::io::Error::last_os_error())) }
}

/// Gives the calling thread the place of a connection's parts; `is_before` puts it before them.
pub fn take_urgency(priority: u8, is_before: bool) -> Result<(), String> {
    set(SELF, URGENT - 2 * i32::from(priority) + i32::from(is_before))
}

/// Gives another thread of this process the place of a connection's parts.
pub fn set_urgency(thread: i32, priority: u8) -> Result<(), String> {
    set(thread, URGENT - 2 * i32::from(priority))
}

/// Gives the calling thread the load generator's place, before all servers.
pub fn lead() -> Result<(), String> {
    set(SELF, GENERATOR)
}

/// Prepares the machine as who runs a realtime server does, where that can be done: realtime threads are not bounded,
/// and Linux's threads that deliver packets go before the server's, which would keep them from the processor.
pub fn prepare_machine() -> Result<(), String> {
    let _ = std::fs::write(BOUND, "-1");
    let Ok(processes) = std::fs::read_dir("/proc") else { return Ok(()) };
    for process in processes.flatten() {
        let Ok(number) = process.file_name().to_string_lossy().parse() else { continue };
        let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        if name.starts_with(DELIVERS_PACKETS) {
            set(number, DELIVERY)?;
        }
    }
    Ok(())
}
