//! Messages from and to the host over the control port: those of `heddle_abi::control`.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use heddle_abi::control;
use heddle_abi::control::{
    EndOfInput, Full, HEADER_BYTES, OutOfMemory, ShareChanged, Sink, Small, SpecialFile, WindowSize, kind,
    stream,
};
use heddle_kernel_core::fallible::{extend_reserved, resize_reserved};
use heddle_kernel_core::signal::{Information, Signal};

use crate::arch::paging::PAGE_SIZE;
use crate::device::{Port, wait};
use crate::error::Errno;
use crate::fs::share;
use crate::process::oom;
use crate::signal::send_to_group;
use crate::sync::SpinLock;
use crate::time;
use crate::tty::console;
use crate::wait::queue::{Events, WaitQueue};

/// How long a message waits for memory before it tries again.
const NO_MEMORY_NS: u64 = 10_000_000;
/// A total that the host has not announced.
const UNKNOWN: u64 = u64::MAX;

/// The host's announcements so far.
pub struct Host {
    /// The payload of the first message.
    start: SpinLock<Option<Vec<u8>>>,
    /// How many bytes of standard input there are in all.
    input_total: AtomicU64,
    /// Standard output, standard error have no reader any more.
    reader_gone: [AtomicBool; 2],
    /// The process group that the host's signals are for, 0 as long as there is none.
    pub group: AtomicI32,
    /// Notified after every message.
    pub changed: WaitQueue,
}

/// The host.
pub static HOST: Host = Host {
    start: SpinLock::new(None),
    input_total: AtomicU64::new(UNKNOWN),
    reader_gone: [AtomicBool::new(false), AtomicBool::new(false)],
    group: AtomicI32::new(0),
    changed: WaitQueue::new(),
};

impl Host {
    /// The payload of [`control::Start`], once.
    pub fn take_start(&self) -> Option<Vec<u8>> {
        self.start.lock().take()
    }

    /// Whether a program that has read so much of its standard input has read all of it.
    pub fn is_end_of_input(&self, read_bytes: u64) -> bool {
        self.input_total.load(Ordering::Acquire) == read_bytes
    }

    /// Whether this stream (standard output or error) has no reader any more.
    pub fn is_reader_gone(&self, number: u32) -> bool {
        let index = number.wrapping_sub(stream::STDOUT) as usize;
        self.reader_gone.get(index).is_some_and(|gone| gone.load(Ordering::Acquire))
    }

    /// Takes note of a message.
    pub fn handle(&self, message: u32, payload: Vec<u8>) {
        match message {
            kind::START => {
                let before = self.start.lock().replace(payload);
                drop(before);
            }
            kind::END_OF_INPUT => match EndOfInput::parse(&payload) {
                Some(EndOfInput { stream: stream::STDIN, total_bytes }) => {
                    self.input_total.store(total_bytes, Ordering::Release);
                }
                Some(EndOfInput { stream: stream::TTY, .. }) => hang_up_console(),
                _ => {}
            },
            kind::READER_GONE => match control::parse_word(&payload) {
                Some(stream::TTY) => hang_up_console(),
                Some(number) => {
                    let index = number.wrapping_sub(stream::STDOUT) as usize;
                    if let Some(gone) = self.reader_gone.get(index) {
                        gone.store(true, Ordering::Release);
                    }
                }
                None => {}
            },
            kind::WINDOW_SIZE => {
                if let Some(WindowSize { rows, columns }) = WindowSize::parse(&payload) {
                    console::resize(rows, columns);
                }
            }
            kind::SIGNAL => {
                let number = control::parse_word(&payload).and_then(|number| i32::try_from(number).ok());
                let group = self.group.load(Ordering::Acquire);
                if let Some(signal) = number.and_then(Signal::new).filter(|_| group != 0) {
                    // The group may have ended meanwhile.
                    let _ = send_to_group(group, Information::kernel(signal));
                }
            }
            kind::SHARE_WATCHED | kind::SHARE_UNWATCHED => {
                if let Some(folder) = control::parse_word(&payload) {
                    share::watched(folder, message == kind::SHARE_WATCHED);
                }
            }
            kind::SPECIAL_FILE_DONE => {
                if let Some((number, error)) = SpecialFile::parse_done(&payload) {
                    share::special::answer(number, error);
                }
            }
            kind::SHARE_CHANGED => {
                if let Some(changed) = ShareChanged::parse(&payload) {
                    share::changed(&changed);
                }
            }
            // A host that knows more than this kernel.
            _ => {}
        }
        self.changed.wake(Events::all());
    }
}

fn hang_up_console() {
    if let Ok(terminal) = console::terminal() {
        terminal.hang_up(true);
    }
}

/// The next message of a port: its kind and its payload. `None` if nothing after it would make sense.
pub async fn receive(port: &Port) -> Option<(u32, Vec<u8>)> {
    let mut header = [0; HEADER_BYTES];
    fill(port, &mut header).await;
    let Some((length, message)) = control::parse_header(header) else {
        ::log::error!("host: malformed message, the port is given up");
        return None;
    };
    let mut payload = Vec::new();
    while payload.try_reserve_exact(length).is_err() {
        if message == kind::SHARE_CHANGED {
            // Everything is asked about instead, which needs no memory.
            skip(port, length).await;
            share::announce();
            return Some((message, Vec::new()));
        }
        // Somebody gives memory back, or is killed for it.
        time::sleep_until(time::now_ns() + NO_MEMORY_NS).await;
    }
    resize_reserved(&mut payload, length, 0);
    fill(port, &mut payload).await;
    Some((message, payload))
}

/// Passes over bytes of a port.
async fn skip(port: &Port, mut length: usize) {
    while length > 0 {
        wait(&port.changed, || port.has_data()).await;
        port.read(length, &mut |piece| {
            length -= piece.len();
            piece.len()
        });
    }
}

/// Fills `bytes` from a port.
async fn fill(port: &Port, bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        wait(&port.changed, || port.has_data()).await;
        port.read(bytes.len() - filled, &mut |piece| {
            bytes[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
            piece.len()
        });
    }
}

/// Sends a message that fits one buffer.
pub async fn send(port: &Port, message: &Small) {
    send_bytes(port, message.as_bytes()).await;
}

/// Sends the bytes of a message, which fit one buffer.
pub async fn send_bytes(port: &Port, bytes: &[u8]) {
    let fill = |buffer: &mut [u8]| {
        buffer[..bytes.len()].copy_from_slice(bytes);
        bytes.len()
    };
    while port.write(fill).is_none() {
        wait(&port.changed, || port.has_room()).await;
    }
}

/// A message of any length that a port's buffer takes.
struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        self.0.try_reserve(bytes.len()).map_err(|_| Full)?;
        extend_reserved(&mut self.0, bytes);
        Ok(())
    }
}

/// Passes requests for FIFOs and sockets of shared folders on to the host.
pub async fn ask_for_special_files(port: &'static Port) {
    loop {
        wait(&share::special::REQUESTED, share::special::has_request).await;
        let Some(request) = share::special::take_request() else { continue };
        let mut message = Bytes(Vec::new());
        let fields = SpecialFile { path: &request.path, ..request.fields };
        match fields.put(&mut message) {
            Ok(()) => send_bytes(port, &message.0).await,
            Err(Full) => share::special::answer(request.fields.number, Errno::ENOMEM.0.into()),
        }
    }
}

/// Tells the host of each process that is killed because memory ran out.
pub async fn report_kills(port: &'static Port) {
    loop {
        wait(&oom::REPORTED, oom::has_report).await;
        send_kills(port).await;
    }
}

/// Sends the kills that were not sent yet.
pub async fn send_kills(port: &Port) {
    while let Some(kill) = oom::take_report() {
        let mut message = Small::new();
        let killed = OutOfMemory {
            pid: kill.pid.cast_unsigned(),
            name: kill.name,
            bytes: (kill.pages * PAGE_SIZE) as u64,
        };
        if killed.put(&mut message).is_ok() {
            send(port, &message).await;
        }
    }
}
