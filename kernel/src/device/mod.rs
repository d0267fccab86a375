//! Devices: the virtio console with its ports, the folders that the host shares, and the network.
//!
//! ```text
//!   virtio (slots, queues) ── console (control queue) ── port (byte streams with back pressure)
//!                          ├─ share (exchanges of 9P messages)
//!                          └─ net (frames)
//! ```
//!
//! `session` and `tty` interpret what is sent over the ports.

pub mod console;
pub mod net;
pub mod port;
pub mod share;
mod virtio;

use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Poll;

use crate::arch::interrupt;
use crate::error::Errno;
use crate::sched;
use crate::sched::{Priority, TaskRef};

use crate::device::console::Console;
pub use crate::device::port::{Port, wait};

static CONSOLE: spin::Once<Console> = spin::Once::new();
/// The coroutine that looks at the queues after an interrupt.
static SERVICE: spin::Once<TaskRef> = spin::Once::new();
/// An interrupt came that the coroutine has not looked at.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Finds the console and starts the coroutine that serves it.
///
/// # Errors
/// `ENODEV` (the machine has no console device), `ENOMEM`.
pub fn initialize() -> Result<&'static Console, Errno> {
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
    Ok(console)
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
