//! Devices: the virtio console with its ports, and what the host says over them.
//!
//! ```text
//!   virtio (slots, queues) ── console (control queue) ── port (byte streams with back pressure)
//!                                                          ├── host     framed messages of the control port
//!                                                          ├── stream   the program's standard streams
//!                                                          └── file::terminal::console
//!   session: waits for the host's Start, runs the program, reports its end
//! ```

mod console;
mod host;
mod port;
mod session;
pub mod share;
mod stream;
mod virtio;

use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Poll;

use heddle_abi::boot::port as number;

use crate::arch::interrupt;
use crate::error::Errno;
use crate::sched::{Priority, TaskRef};
use crate::{sched, tty};

use crate::device::console::Console;
pub use crate::device::host::wait;
use crate::device::port::Buffers;
pub use crate::device::port::Port;

static CONSOLE: spin::Once<Console> = spin::Once::new();
/// The coroutine that looks at the queues after an interrupt.
static SERVICE: spin::Once<TaskRef> = spin::Once::new();
/// An interrupt came that the coroutine has not looked at.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The control port is for messages, of which only the first can be long.
const CONTROL_BUFFERS: Buffers =
    Buffers { receive_count: 8, receive_bytes: 4096, transmit_count: 8, transmit_bytes: 64 };

/// Starts devices and the coroutines that serve them; the last of these runs the host's program.
///
/// # Errors
/// `ENODEV` (the machine has no console device), `ENOMEM`.
pub fn initialize() -> Result<(), Errno> {
    tty::register()?;
    crate::fs::share::mount_all(share::find_all()?)?;
    let found = Console::find()?;
    let console = CONSOLE.call_once(|| found);
    let service = poll_fn(|_| {
        while INTERRUPTED.swap(false, Ordering::AcqRel) {
            console.serve();
        }
        Poll::Pending
    });
    let service = sched::spawn(Priority::KERNEL, service)?;
    SERVICE.call_once(|| service);
    interrupt::register(console.irq, on_interrupt);
    console.ready();
    console.open(number::CONTROL, CONTROL_BUFFERS)?;
    sched::spawn(Priority::KERNEL, host::receive(console.port(number::CONTROL)))?;
    sched::spawn(Priority::KERNEL, session::run(console))?;
    Ok(())
}

/// Interrupt handler: the queues are looked at by a coroutine.
fn on_interrupt() {
    if let Some(console) = CONSOLE.get() {
        console.acknowledge();
    }
    INTERRUPTED.store(true, Ordering::Release);
    if let Some(service) = SERVICE.get() {
        service.wake();
    }
}
