//! The console: the terminal of the person who started the machine.

use alloc::sync::Arc;

use crate::device::{Port, wait};
use crate::error::Errno;
use crate::sched;
use crate::sched::Priority;
use crate::tty::state::WindowSize;
use crate::tty::{CONSOLE_DEVICE, Terminal};

/// Bytes of input that are moved at a time.
const PIECE_BYTES: usize = 256;

static CONSOLE: spin::Once<Arc<Terminal>> = spin::Once::new();

/// The console.
///
/// # Errors
/// `ENODEV`: the host has given the machine no terminal.
pub fn terminal() -> Result<Arc<Terminal>, Errno> {
    CONSOLE.get().cloned().ok_or(Errno::ENODEV)
}

/// Makes the console and connects it to the host's port.
///
/// # Errors
/// `ENOMEM`.
pub fn start(port: &'static Port, rows: u32, columns: u32) -> Result<Arc<Terminal>, Errno> {
    let terminal = Terminal::new(CONSOLE_DEVICE, false)?;
    terminal.set_window(window(rows, columns));
    CONSOLE.call_once(|| terminal.clone());
    sched::spawn(Priority::KERNEL, pump_input(terminal.clone(), port))?;
    sched::spawn(Priority::KERNEL, pump_output(terminal.clone(), port))?;
    Ok(terminal)
}

/// The host's terminal has another size.
pub fn resize(rows: u32, columns: u32) {
    if let Ok(terminal) = terminal() {
        terminal.set_window(window(rows, columns));
    }
}

/// A size in characters, as the host says it.
pub fn window(rows: u32, columns: u32) -> WindowSize {
    let half = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
    WindowSize { rows: half(rows), columns: half(columns), ..WindowSize::default() }
}

/// Moves what is typed from the port to the terminal.
async fn pump_input(terminal: Arc<Terminal>, port: &'static Port) {
    loop {
        wait(&port.changed, || port.has_data()).await;
        let accepts = port.read(PIECE_BYTES, &mut |bytes| terminal.line_input(bytes)) > 0;
        if !accepts {
            wait(&terminal.line, || terminal.accepts_input()).await;
        }
    }
}

/// Moves what is printed from the terminal to the port.
async fn pump_output(terminal: Arc<Terminal>, port: &'static Port) {
    loop {
        wait(&terminal.line, || terminal.has_output()).await;
        let fill = |buffer: &mut [u8]| {
            let mut filled = 0;
            terminal.line_output(|bytes| {
                let count = bytes.len().min(buffer.len() - filled);
                buffer[filled..filled + count].copy_from_slice(&bytes[..count]);
                filled += count;
                count
            })
        };
        if port.write(fill).is_none() {
            wait(&port.changed, || port.has_room()).await;
        }
    }
}
