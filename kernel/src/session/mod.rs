//! The machine's one session: runs the program that the host names, and ends the machine with it.

mod host;
mod launch;
mod programs;
mod stream;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use heddle_abi::boot::{DEBUG_EXIT_DONE, NET_PATIENCE_SECONDS, port};
use heddle_abi::control;
use heddle_abi::control::{Descriptor, Ending, Exit, Small, Start, stream as descriptor};

use crate::arch::machine;
use crate::device::console::Console;
use crate::device::port::Buffers;
use crate::error::Errno;
use crate::fs::{DescriptorTable, File, OpenFile, StatusFlags};
use crate::memory::fallible::try_arc;
use crate::memory::writeback;
use crate::memory::writeback::StoreWait;
use crate::net::inet::dhcp;
use crate::process::{ExitStatus, Process};
use crate::sched::Priority;
use crate::session::host::HOST;
use crate::session::launch::LaunchError;
use crate::session::stream::Stream;
use crate::tty::{Terminal, console};
use crate::{device, process, sched, syscall, time, tty};

/// QEMU reads its sockets 4 KiB at a time and gives each piece a buffer of its own.
const INPUT: Buffers =
    Buffers { receive_count: 32, receive_bytes: 4096, transmit_count: 0, transmit_bytes: 0 };
const OUTPUT: Buffers =
    Buffers { receive_count: 0, receive_bytes: 0, transmit_count: 4, transmit_bytes: 32 << 10 };
const ERRORS: Buffers =
    Buffers { receive_count: 0, receive_bytes: 0, transmit_count: 4, transmit_bytes: 4096 };
const TERMINAL: Buffers =
    Buffers { receive_count: 8, receive_bytes: 512, transmit_count: 4, transmit_bytes: 4096 };

/// How long the host has to end the machine before the machine ends itself.
const SHUTDOWN_GRACE_NS: u64 = 10_000_000_000;
/// How often the end of the session checks whether the terminal's output is written.
const DRAIN_NS: u64 = 1_000_000;

/// The control port is for messages, of which only the first can be long; those to the host have a path at most.
const CONTROL_BUFFERS: Buffers =
    Buffers { receive_count: 8, receive_bytes: 4096, transmit_count: 4, transmit_bytes: 2048 };

/// Starts the coroutines that talk to the host; one of them runs its program.
///
/// # Errors
/// `ENOMEM`.
pub fn start(console: &'static Console) -> Result<(), Errno> {
    console.open(port::CONTROL, CONTROL_BUFFERS)?;
    sched::spawn(Priority::KERNEL, receive(console))?;
    sched::spawn(Priority::KERNEL, host::report_kills(console.port(port::CONTROL)))?;
    sched::spawn(Priority::KERNEL, host::ask_for_special_files(console.port(port::CONTROL)))?;
    sched::spawn(Priority::KERNEL, run(console)).map(drop)
}

/// Takes the host's messages; once it asks for further programs, those about them too.
async fn receive(console: &'static Console) {
    let control = console.port(port::CONTROL);
    while let Some((message, payload)) = host::receive(control).await {
        if message == control::kind::OPEN_PROGRAMS {
            programs::open(console);
        } else {
            HOST.handle(message, payload);
        }
    }
}

/// Waits for the host's program, runs it, reports its end and ends the machine.
async fn run(console: &'static Console) {
    let mut start = None;
    device::wait(&HOST.changed, || {
        start = HOST.take_start();
        start.is_some()
    })
    .await;
    sched::usage::note_start_phase("the host's command");
    if !dhcp::wait_for_lease().await {
        tell_of_no_lease(console).await;
    }
    let started = start_program(console, start.unwrap_or_default()).await;
    let ending = match started {
        Ok(process) => ending(process.wait_for_end().await),
        Err(error) => error.into(),
    };
    // The host must see what programs that still run have written to mapped files.
    if let Err(error) = writeback::store_all(StoreWait::All).await {
        ::log::warn!("a mapped file of a shared folder could not be stored: {error:?}");
    }
    dhcp::release().await;
    finish(console, ending).await;
}

/// The program starts without an address, which its user should know. Leases are still asked for.
async fn tell_of_no_lease(console: &'static Console) {
    ::log::warn!("dhcp: no lease after {NET_PATIENCE_SECONDS} s");
    let mut message = Small::new();
    if control::put_word(&mut message, control::kind::NO_LEASE, NET_PATIENCE_SECONDS).is_ok() {
        host::send(console.port(port::CONTROL), &message).await;
    }
}

const fn ending(status: ExitStatus) -> Ending {
    match status {
        ExitStatus::Exited(code) => Ending::Exited(code as u32),
        ExitStatus::Signaled { signal, .. } => Ending::Signaled(signal.number() as u32),
    }
}

async fn start_program(console: &'static Console, payload: Vec<u8>) -> Result<Arc<Process>, LaunchError> {
    let start = Start::parse(&payload).ok_or(Errno::EINVAL)?;
    let terminal = open_terminal(console, &start)?;
    let descriptors = open_descriptors(console, &start.descriptors, terminal.as_ref())?;
    let terminal = terminal.map(|terminal| -> Arc<dyn process::ControllingTerminal> { terminal });
    let program = launch::prepare(&start, descriptors, terminal)?;
    drop(payload);
    let process = process::start(program, syscall::thread_loop::spawn).await?;
    sched::usage::note_start_phase("the program's image");
    HOST.group.store(process.group().id, Ordering::Release);
    let mut started = Small::new();
    if control::put_started(&mut started, time::now_ns()).is_ok() {
        host::send(console.port(port::CONTROL), &started).await;
    }
    Ok(process)
}

/// The terminal, if one of the descriptors is connected to it.
fn open_terminal(console: &'static Console, start: &Start<'_>) -> Result<Option<Arc<Terminal>>, Errno> {
    if !start.descriptors.contains(&Descriptor::Terminal) {
        return Ok(None);
    }
    console.open(port::TTY, TERMINAL)?;
    let terminal = console::start(console.port(port::TTY), start.window.rows, start.window.columns)?;
    Ok(Some(terminal))
}

/// Standard input, output and error. Those on the terminal share one open file description, as a login makes it.
fn open_descriptors(
    console: &'static Console,
    wanted: &[Descriptor; 3],
    terminal: Option<&Arc<Terminal>>,
) -> Result<DescriptorTable, Errno> {
    let table = DescriptorTable::new();
    let on_terminal = terminal.map(tty::open_console).transpose()?;
    let streams = [
        (descriptor::STDIN, port::STDIN, INPUT, StatusFlags::empty()),
        (descriptor::STDOUT, port::STDOUT, OUTPUT, StatusFlags::WRONLY),
        (descriptor::STDERR, port::STDERR, ERRORS, StatusFlags::WRONLY),
    ];
    for (index, (descriptor, (number, port, buffers, flags))) in wanted.iter().zip(streams).enumerate() {
        let open = match (descriptor, &on_terminal) {
            (Descriptor::Closed, _) => continue,
            (Descriptor::Terminal, Some(open)) => open.clone(),
            _ => {
                console.open(port, buffers)?;
                let file: Arc<dyn File> = try_arc(Stream::new(number, console.port(port)))?;
                try_arc(OpenFile::new(file, flags))?
            }
        };
        table.add(open, index, index + 1, false)?;
    }
    Ok(table)
}

/// Hands everything that was written to the device, tells the host how the program ended, and waits for the host to end
/// the machine.
async fn finish(console: &'static Console, ending: Ending) {
    if let Ok(terminal) = console::terminal() {
        while terminal.has_output() && !terminal.is_line_closed() {
            time::sleep_until(time::now_ns() + DRAIN_NS).await;
        }
    }
    let written_bytes =
        [port::STDOUT, port::STDERR, port::TTY].map(|number| console.port(number).sent_bytes());
    let mut message = Small::new();
    let control = console.port(port::CONTROL);
    host::send_kills(control).await;
    if (Exit { ending, written_bytes }).put(&mut message).is_ok() {
        host::send(control, &message).await;
    }
    device::wait(&control.changed, || control.is_drained()).await;
    time::sleep_until(time::now_ns() + SHUTDOWN_GRACE_NS).await;
    ::log::warn!("the host has not ended the machine");
    machine::exit(DEBUG_EXIT_DONE)
}
