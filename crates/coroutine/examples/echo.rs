//! An echo server with urgent and background connections, and a demonstration that the urgent ones keep their latency
//! when the machine is full.
//!
//! A line is answered with itself. A connection whose first byte is `!` is urgent: it is served at level 8, all others
//! at level 48, and each of their lines costs the server some computing, as a request does.
//!
//!     cargo run --release -p heddle-coroutine --example echo -- serve 127.0.0.1:7000
//!     cargo run --release -p heddle-coroutine --example echo -- demo
//!
//! `demo` serves on a port of its own, fills the machine with background connections, and measures the round trips of
//! one urgent connection: first with its priority, then as one of the crowd, then on an idle server.

use heddle_coroutine::io::Async;
use heddle_coroutine::{Builder, Executor, current_id, set_priority, try_spawn};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const ACCEPTING: u8 = 4;
const URGENT: u8 = 8;
const BACKGROUND: u8 = 48;

/// The time that a background line takes.
const WORK: Duration = Duration::from_micros(100);

/// Lets no connection out of a turn for longer than its level deserves.
async fn serve(listener: TcpListener) -> io::Result<()> {
    let listener = Async::new(listener)?;
    loop {
        let (stream, _) = listener.read_with(|listener| listener.accept()).await?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let connection = async {
            // A client that goes away ends its connection and nothing else.
            let _ = converse(stream).await;
        };
        match try_spawn(Builder::new().priority(URGENT).name("connection"), connection) {
            Ok(handle) => handle.detach(),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

async fn converse(stream: TcpStream) -> io::Result<()> {
    let stream = Async::new(stream)?;
    let mut first = [0];
    stream.read_exact(&mut first).await?;
    let urgent = first[0] == b'!';
    if let (false, Some(id)) = (urgent, current_id()) {
        set_priority(id, BACKGROUND);
    }
    let mut line = Vec::new();
    loop {
        let mut byte = [0; 256];
        let read = stream.read_with(|mut stream| stream.read(&mut byte)).await?;
        if read == 0 {
            return Ok(());
        }
        line.extend_from_slice(&byte[..read]);
        while let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            let rest = line.split_off(end + 1);
            if !urgent {
                work();
            }
            stream.write_all(&line).await?;
            line = rest;
        }
    }
}

fn work() {
    let start = Instant::now();
    while start.elapsed() < WORK {
        std::hint::black_box(start);
    }
}

fn listen(address: &str) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A client that sends a line, waits for the answer, and again; returns the round trips.
fn client(address: SocketAddr, kind: u8, rounds: usize, stop: &AtomicBool) -> io::Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.write_all(&[kind])?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut times = Vec::new();
    let mut answer = String::new();
    for _ in 0..rounds {
        let start = Instant::now();
        stream.write_all(b"hello\n")?;
        answer.clear();
        reader.read_line(&mut answer)?;
        assert_eq!(answer, "hello\n");
        times.push(start.elapsed());
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(times)
}

/// Round trips of one measured connection of `kind` beside `crowd` background connections; and how many lines the
/// crowd had answered meanwhile.
fn measure(address: SocketAddr, kind: u8, crowd: usize) -> (Vec<Duration>, u64) {
    let stop = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicU64::new(0));
    let crowd: Vec<_> = (0..crowd)
        .map(|_| {
            let (stop, answered) = (stop.clone(), answered.clone());
            thread::spawn(move || {
                let times = client(address, b'.', usize::MAX, &stop).expect("the server answers");
                answered.fetch_add(times.len() as u64, Ordering::Relaxed);
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(100));
    let mut times = client(address, kind, 300, &AtomicBool::new(false)).expect("the server answers");
    stop.store(true, Ordering::Relaxed);
    crowd.into_iter().for_each(|client| client.join().expect("no client panics"));
    times.sort();
    (times, answered.load(Ordering::Relaxed))
}

fn demo() -> io::Result<()> {
    let listener = listen("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || Executor::new(1).block_on(async { run(listener).await }));
    println!("round trips of one connection, in microseconds: median, 99th percentile, longest");
    for (name, kind, crowd) in [("idle", b'!', 0), ("full, urgent", b'!', 48), ("full, background", b'.', 48)]
    {
        let (times, answered) = measure(address, kind, crowd);
        let at = |part: usize| times[(times.len() - 1) * part / 100].as_micros();
        println!("{name:18} {:8} {:8} {:8}   ({answered} lines of the crowd)", at(50), at(99), at(100));
    }
    Ok(())
}

async fn run(listener: TcpListener) -> io::Result<()> {
    let serving = try_spawn(Builder::new().priority(ACCEPTING).name("accept"), serve(listener));
    serving.map_err(io::Error::other)?.await.map_err(io::Error::other)?
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["demo"] => demo(),
        ["serve", address] => Executor::new(2).block_on(run(listen(address)?)),
        _ => {
            eprintln!("usage: echo serve ADDRESS | echo demo");
            std::process::exit(2);
        }
    }
}
