//! The kernel's log, through the `log` crate's macros: a line each, with time since the start, CPU and level.

use core::fmt;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, Ordering};

use log::{LevelFilter, Metadata, Record};

use crate::arch::{cpu, machine, time};
use crate::sync::SpinLock;

struct LogConsole;

impl Write for LogConsole {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        machine::write_console(text.as_bytes());
        Ok(())
    }
}

struct Logger {
    lock: SpinLock<()>,
}

static LOGGER: Logger = Logger { lock: SpinLock::new(()) };
/// Set by a panic, whose report must come out even if the lock's holder never runs again.
static PANICKING: AtomicBool = AtomicBool::new(false);

impl log::Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let guard = (!PANICKING.load(Ordering::Relaxed)).then(|| self.lock.lock());
        let now_us = time::now_ns() / 1000;
        let _ = writeln!(
            LogConsole,
            "[{:5}.{:06} {}] {} {}",
            now_us / 1_000_000,
            now_us % 1_000_000,
            cpu::id(),
            record.level(),
            record.args()
        );
        drop(guard);
    }

    fn flush(&self) {}
}

/// Makes the macros of `log` write here.
pub fn install() {
    // The only way to fail is a second call.
    let _ = log::set_logger(&LOGGER);
    log::set_max_level(LevelFilter::Info);
}

/// Writes one line as it is, even while another CPU holds the log.
pub fn write_raw(line: fmt::Arguments<'_>) {
    let _ = writeln!(LogConsole, "{line}");
}

/// Lets lines through without the lock from now on; `false` if another CPU did so before.
pub fn begin_panic() -> bool {
    !PANICKING.swap(true, Ordering::SeqCst)
}
