//! The server, in four forms. A connection has a receiver, a worker and a sender, joined by queues; what they do with
//! messages is [`crate::wire`] and [`crate::work`], the same for all.

mod coroutines;
mod epoll;
mod tasks;
mod threads;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};

use heddle_bench_programs::arguments::Arguments;
use heddle_bench_programs::measure::{allow_descriptors, pin_to};

/// Messages that a queue between two parts of a connection holds.
const QUEUE: usize = 16;
/// Bytes that are asked of a socket at once.
const READ_BYTES: usize = 4096;
/// Descriptors for connections, and some more.
const DESCRIPTORS: u64 = 20_000;

/// How to serve.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Processors, the first ones.
    pub processors: usize,
    /// Coroutines look at the machine's order before each turn.
    pub is_strict: bool,
    /// Whether a connection's priority counts.
    pub has_priorities: bool,
}

/// `serve form=threads|coroutines|epoll|tokio [cpus=N] [strict=1] [priorities=1] [pinned=1] [at=ADDRESS]`: prints
/// the address, and serves until it is ended; with `pinned=1` on no processor but the first `cpus` ones.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let options = Options {
        processors: (arguments.number("cpus", 1)? as usize).max(1),
        is_strict: arguments.number("strict", 0)? != 0,
        has_priorities: arguments.number("priorities", 0)? != 0,
    };
    allow_descriptors(DESCRIPTORS)?;
    // Threads that come later inherit it.
    if arguments.number("pinned", 0)? != 0 {
        pin_to(0..options.processors)?;
    }
    let address: SocketAddr =
        arguments.text("at", "127.0.0.1:0").parse().map_err(|_| "at= is not an address")?;
    let listener = TcpListener::bind(address).map_err(|error| format!("{address}: {error}"))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    println!("{address}");
    std::io::stdout().flush().map_err(|error| error.to_string())?;
    match arguments.text("form", "coroutines") {
        "threads" => threads::serve(&listener, options),
        "coroutines" => coroutines::serve(listener, options),
        "epoll" => epoll::serve(&listener, options),
        "tokio" => tasks::serve(listener, options),
        form => Err(format!("unknown: form={form}")),
    }
}
