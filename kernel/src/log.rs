//! The kernel's log, through the `log` crate's macros: a line each, with time since the start, CPU and level.

use core::fmt;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use log::{LevelFilter, Metadata, Record};

use crate::arch::{cpu, machine, time};
use crate::sync::SpinLock;

/// Whether only a privileged thread reads the log: `kernel.dmesg_restrict`.
pub static IS_RESTRICTED: AtomicU32 = AtomicU32::new(1);

struct LogConsole;

impl Write for LogConsole {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        machine::write_console(text.as_bytes());
        Ok(())
    }
}

/// Bytes of the log that syslog(2) reads.
pub const BUFFER_BYTES: usize = 16_384;

/// The end of the log, as syslog(2) shows it. Positions count from the first byte ever written.
struct LogRing {
    bytes: [u8; BUFFER_BYTES],
    end: usize,
    /// The ends of the parts that were read, and cleared.
    read: usize,
    cleared: usize,
}

impl Write for LogRing {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            self.bytes[self.end % BUFFER_BYTES] = byte;
            self.end += 1;
        }
        Ok(())
    }
}

impl LogRing {
    /// The first byte from `from` on that is still there.
    const fn first(&self, from: usize) -> usize {
        let kept = self.end.saturating_sub(BUFFER_BYTES);
        if from > kept { from } else { kept }
    }

    /// Copies bytes from a position on.
    fn copy(&self, from: usize, buffer: &mut [u8]) -> usize {
        let count = buffer.len().min(self.end - from);
        for (index, byte) in buffer[..count].iter_mut().enumerate() {
            *byte = self.bytes[(from + index) % BUFFER_BYTES];
        }
        count
    }
}

/// Copies the oldest bytes that nobody has read, which counts as reading them.
pub fn read(buffer: &mut [u8]) -> usize {
    let mut ring = LOGGER.ring.lock();
    let from = ring.first(ring.read);
    let count = ring.copy(from, buffer);
    ring.read = from + count;
    count
}

/// Copies the newest bytes of the log.
pub fn read_all(buffer: &mut [u8]) -> usize {
    let ring = LOGGER.ring.lock();
    let from = ring.first(ring.cleared).max(ring.end.saturating_sub(buffer.len()));
    ring.copy(from, buffer)
}

/// Hides from [`read_all`] what is there.
pub fn clear() {
    let mut ring = LOGGER.ring.lock();
    ring.cleared = ring.end;
}

/// Bytes that nobody has read.
pub fn unread() -> usize {
    let ring = LOGGER.ring.lock();
    ring.end - ring.first(ring.read)
}

struct Logger {
    ring: SpinLock<LogRing>,
}

static LOGGER: Logger =
    Logger { ring: SpinLock::new(LogRing { bytes: [0; BUFFER_BYTES], end: 0, read: 0, cleared: 0 }) };
/// Set by a panic, whose report must come out even if the lock's holder never runs again.
static PANICKING: AtomicBool = AtomicBool::new(false);

impl log::Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let mut ring = (!PANICKING.load(Ordering::Relaxed)).then(|| self.ring.lock());
        let now_us = time::now_ns() / 1000;
        if let Some(ring) = &mut ring {
            let (seconds, rest) = (now_us / 1_000_000, now_us % 1_000_000);
            let _ = writeln!(ring, "<{}>[{seconds:5}.{rest:06}] {}", priority(record.level()), record.args());
        }
        let _ = writeln!(
            LogConsole,
            "[{:5}.{:06} {}] {} {}",
            now_us / 1_000_000,
            now_us % 1_000_000,
            cpu::id(),
            record.level(),
            record.args()
        );
        drop(ring);
    }

    fn flush(&self) {}
}

/// The number of a level in syslog(2).
const fn priority(level: log::Level) -> u32 {
    match level {
        log::Level::Error => 3,
        log::Level::Warn => 4,
        log::Level::Info => 6,
        log::Level::Debug | log::Level::Trace => 7,
    }
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
