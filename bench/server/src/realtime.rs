//! Realtime priorities of threads, on both kernels.

/// `SCHED_FIFO` of the most urgent connections' threads; each priority is two less.
const URGENT: i32 = 40;
/// Of the load generator, which is to send in time.
const GENERATOR: i32 = 60;
/// Linux's bound for realtime threads, of each second.
const BOUND: &str = "/proc/sys/kernel/sched_rt_runtime_us";

fn set(priority: i32) -> Result<(), String> {
    let parameters = libc::sched_param { sched_priority: priority };
    #[allow(unsafe_code, reason = "sched_setscheduler")]
    // SAFETY: reads the parameters.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(format!("SCHED_FIFO: {}", std::io::Error::last_os_error())) }
}

/// Gives the calling thread the place of a connection's parts; `is_before` puts it before them.
pub fn take_urgency(priority: u8, is_before: bool) -> Result<(), String> {
    set(URGENT - 2 * i32::from(priority) + i32::from(is_before))
}

/// Gives the calling thread the load generator's place, before all servers.
pub fn lead() -> Result<(), String> {
    set(GENERATOR)
}

/// Lifts the bound of realtime threads where that can be done, as who runs a realtime server does.
pub fn lift_bound() {
    let _ = std::fs::write(BOUND, "-1");
}
