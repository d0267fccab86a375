//! The process that runs a container's machine. Engines take it for the container's own process: its number is in the
//! pid file, and it ends with the status of the container's program.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::Path;

use anyhow::{Context, Result, bail};
use heddle_abi::control::{Ending, WindowSize};
use rustix::event::{PollFd, PollFlags};

use super::bundle::Bundle;
use super::network::NetworkPlace;
use super::{console, enter, network, root};
use crate::exchange::Exchange;
use crate::guest::{self, Choices, Kernel};
use crate::log::Log;
use crate::machine::Machine;
use crate::machines::detach::{self, ReadyPipe};
use crate::machines::{Owned, Stage};
use crate::network::Network;
use crate::session::{self, End, Identity, Program, Streams};
use crate::{STATUS_KERNEL_PANIC, STATUS_SIGNAL_BASE, STATUS_TOOL_FAILED, crash};

/// The log of a machine's kernel, in the container's folder of state.
const LOG: &str = "kernel.log";

/// The program of the machine that carries a task out.
///
/// # Errors
/// If the task cannot be written.
pub fn program(task: &heddle_linux_init::Task) -> Result<Program> {
    let task = serde_json::to_string(task).context("the task")?;
    let words = [root::INIT, heddle_linux_init::COMMAND, &task];
    Ok(Program {
        path: root::INIT.into(),
        identity: Identity::default(),
        directory: b"/".to_vec(),
        arguments: words.iter().map(|word| word.as_bytes().to_vec()).collect(),
        environment: Vec::new(),
    })
}

/// Runs a container's machine until its program has ended. `ready` is told once the program can be started.
///
/// A thread does all the work. This one, by whose number the process is known, does nothing but have the container's
/// root as its own.
///
/// # Errors
/// If the machine cannot be started.
pub fn run(bundle: &Bundle, owned: Owned, console: Option<&Path>, ready: ReadyPipe) -> Result<u8> {
    let place = network::enter(&bundle.network)?;
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let ready = || {
                let _ = tell.send(ready);
            };
            run_machine(bundle, place, owned, console, ready)
        });
        // A worker that fails before sends nothing.
        if let Ok(ready) = told.recv() {
            if let Err(error) = enter::enter(bundle) {
                crate::say!("the container's files cannot be shown to tools of the host: {error:#}");
            }
            ready.tell();
        }
        worker.join().unwrap_or_else(|_| bail!("the machine's thread has panicked"))
    })
}

fn run_machine(
    bundle: &Bundle,
    place: NetworkPlace,
    mut owned: Owned,
    console: Option<&Path>,
    ready: impl FnOnce(),
) -> Result<u8> {
    let streams = match console {
        Some(socket) => {
            let size = bundle.spec.process().as_ref().and_then(|process| process.console_size());
            let size = size.map_or(WindowSize::default(), |size| WindowSize {
                rows: u32::try_from(size.height()).unwrap_or(0),
                columns: u32::try_from(size.width()).unwrap_or(0),
            });
            console::connect(socket, size)?
        }
        None => Streams::inherited()?,
    };
    let listener = owned.listen()?;
    let mut ready = Some(ready);
    let mut say_created = |owned: &mut Owned| -> Result<()> {
        if let Some(ready) = ready.take() {
            detach::leave_session();
            if console.is_some() {
                leave_streams()?;
            }
            owned.set(Stage::Created, None)?;
            ready();
        }
        Ok(())
    };
    if place == NetworkPlace::New {
        say_created(&mut owned)?;
        wait_for_client(&listener)?;
    }
    let network = match place {
        NetworkPlace::Host => Network::user(),
        NetworkPlace::Ready | NetworkPlace::New if !bundle.holds_pod => network::join()?,
        _ => Network::default(),
    };
    let choices = Choices {
        processors: bundle.processors,
        memory_bytes: bundle.memory_bytes,
        shares: bundle.shares.clone(),
        network,
        ..Choices::new(bundle.kernel)
    };
    let image = root::image()?;
    let configuration = guest::configure(&choices, &image)?;
    let log = Log::at(&owned.entry.folder().join(LOG)).context("the kernel's log")?;
    let exchange = Exchange::new(listener, bundle.kernel == Kernel::Heddle).context("the socket")?;
    let (mut machine, ports) = Machine::start(&configuration, &log)?;
    let program = program(&bundle.task)?;
    say_created(&mut owned)?;
    let owned = RefCell::new(owned);
    let options = session::Options {
        exchange: Some(exchange),
        waits: true,
        on_start: Some(Box::new(|| {
            if let Err(error) = owned.borrow_mut().set(Stage::Running, None) {
                crate::say!("{error:#}");
            }
        })),
        ..session::Options::default()
    };
    let report = session::run(&mut machine, ports, &program, streams, options)?;
    let errors = machine.errors();
    drop(machine);
    let small = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
    let status = match &report.end {
        End::Program(Ending::Exited(status)) => small(*status),
        End::Program(Ending::Signaled(signal)) => STATUS_SIGNAL_BASE.saturating_add(small(*signal)),
        End::Interrupted(signal) => STATUS_SIGNAL_BASE.saturating_add(small(signal.as_raw().cast_unsigned())),
        End::Program(Ending::NotStarted(_) | Ending::NoDirectory(_)) => STATUS_TOOL_FAILED,
        End::Machine(status) => {
            let symbols = guest::symbols(bundle.kernel, false).ok().flatten();
            let crash = crash::explain(*status, &errors, &log.text(), symbols.as_deref());
            crash.lines.iter().for_each(|line| crate::say!("{line}"));
            STATUS_KERNEL_PANIC
        }
        End::Stuck => STATUS_KERNEL_PANIC,
    };
    owned.borrow_mut().set(Stage::Stopped, Some(status))?;
    // Commands that wait for the container's end see its state from here on.
    drop(report);
    Ok(status)
}

/// Waits until a command has something to say to the machine: by then its network is as it shall be.
fn wait_for_client(listener: &UnixListener) -> Result<()> {
    let mut poll = [PollFd::new(listener, PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut poll, None)).context("the machine's socket")?;
    Ok(())
}

/// The container's streams are a terminal of their own: those that this process was started with end with the command
/// that started it.
fn leave_streams() -> Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null").context("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
