//! Sockets within the machine: `net n=ITERATIONS what=echo|connect|stream|idle [via=tcp|udp|unix] [bytes=N]
//! [connections=N] [idle=N]`; `net what=serve` serves the host instead, until it is ended. The
//! other side is a process of its own, which `role=peer at=ADDRESS` makes of it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::arguments::Arguments;
use crate::measure::{allow_descriptors, repeat, report};

/// Bytes of a piece of a stream.
const PIECE_BYTES: usize = 64 << 10;
/// Connections that are used beside the idle ones.
const BUSY: u64 = 10;
const LOOPBACK: (&str, u16) = ("127.0.0.1", 0);

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Runs what the arguments say.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let iterations = arguments.number("n", 1000)?;
    let what = arguments.text("what", "echo");
    if arguments.text("role", "") == "peer" {
        return match what {
            "echo" => echo_peer(arguments),
            "stream" => stream_peer(arguments, iterations),
            "idle" => idle_peer(arguments),
            _ => Err(format!("no peer for {what}")),
        };
    }
    match what {
        "echo" => echo(arguments, iterations),
        "connect" => connect(iterations),
        "stream" => stream(arguments, iterations),
        "idle" => idle(arguments, iterations),
        "serve" => serve(),
        _ => Err(format!("unknown: what={what}")),
    }
}

/// Starts the other side, with the same words.
fn start_peer(words: &[String]) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(text)?;
    let mut command = Command::new(program);
    command.arg("net").arg("role=peer").args(words).stdin(Stdio::null());
    command.spawn().map_err(text)
}

fn finish(mut peer: Child) -> Result<(), String> {
    let status = peer.wait().map_err(text)?;
    if status.success() { Ok(()) } else { Err(format!("the peer ended: {status}")) }
}

/// Sends a message and waits until it has come back.
fn round_trip(stream: &mut (impl Read + Write), message: &mut [u8]) -> Result<(), std::io::Error> {
    stream.write_all(message)?;
    stream.read_exact(message)
}

fn echo(arguments: &Arguments, iterations: u64) -> Result<(), String> {
    let bytes = arguments.number("bytes", 1)? as usize;
    let via = arguments.text("via", "tcp");
    let name = format!("{via}-{bytes}");
    let mut message = vec![7; bytes];
    let words = |at: String| [format!("via={via}"), format!("bytes={bytes}"), format!("at={at}")];
    match via {
        "tcp" => {
            let listener = TcpListener::bind(LOOPBACK).map_err(text)?;
            let peer = start_peer(&words(listener.local_addr().map_err(text)?.to_string()))?;
            let (mut stream, _) = listener.accept().map_err(text)?;
            stream.set_nodelay(true).map_err(text)?;
            repeat(&name, iterations, || round_trip(&mut stream, &mut message))?;
            drop(stream);
            finish(peer)
        }
        "udp" => {
            let socket = UdpSocket::bind(LOOPBACK).map_err(text)?;
            let peer = start_peer(&words(socket.local_addr().map_err(text)?.to_string()))?;
            let (_, sender) = socket.recv_from(&mut message).map_err(text)?;
            socket.connect(sender).map_err(text)?;
            repeat(&name, iterations, || {
                socket.send(&message)?;
                socket.recv(&mut message).map(drop)
            })?;
            // An empty message ends it.
            socket.send(&[]).map_err(text)?;
            finish(peer)
        }
        "unix" => {
            let path = format!("/tmp/heddle-bench-{}", std::process::id());
            let listener = UnixListener::bind(&path).map_err(text)?;
            let peer = start_peer(&words(path.clone()))?;
            let (mut stream, _) = listener.accept().map_err(text)?;
            std::fs::remove_file(&path).map_err(text)?;
            repeat(&name, iterations, || round_trip(&mut stream, &mut message))?;
            drop(stream);
            finish(peer)
        }
        _ => Err(format!("unknown: via={via}")),
    }
}

fn echo_peer(arguments: &Arguments) -> Result<(), String> {
    let mut message = vec![0; arguments.number("bytes", 1)? as usize];
    let at = arguments.text("at", "");
    match arguments.text("via", "tcp") {
        "tcp" => {
            let mut stream = TcpStream::connect(at).map_err(text)?;
            stream.set_nodelay(true).map_err(text)?;
            answer_all(&mut stream, &mut message)
        }
        "unix" => answer_all(&mut UnixStream::connect(at).map_err(text)?, &mut message),
        _ => {
            let socket = UdpSocket::bind(LOOPBACK).map_err(text)?;
            socket.connect(at).map_err(text)?;
            socket.send(&message).map_err(text)?;
            loop {
                let length = socket.recv(&mut message).map_err(text)?;
                if length == 0 {
                    return Ok(());
                }
                socket.send(&message[..length]).map_err(text)?;
            }
        }
    }
}

/// Sends every message back until there are no more.
fn answer_all(stream: &mut (impl Read + Write), message: &mut [u8]) -> Result<(), String> {
    while stream.read_exact(message).is_ok() {
        stream.write_all(message).map_err(text)?;
    }
    Ok(())
}

/// Connecting, accepting and closing both ends.
fn connect(iterations: u64) -> Result<(), String> {
    let listener = TcpListener::bind(LOOPBACK).map_err(text)?;
    let address = listener.local_addr().map_err(text)?;
    repeat("tcp-connect", iterations, || {
        let client = TcpStream::connect(address)?;
        let (server, _) = listener.accept()?;
        drop(client);
        drop(server);
        Ok::<(), std::io::Error>(())
    })
}

/// Pieces from the peer over some connections at once, a thread for each.
fn stream(arguments: &Arguments, iterations: u64) -> Result<(), String> {
    let connections = arguments.number("connections", 1)?.max(1);
    let listener = TcpListener::bind(LOOPBACK).map_err(text)?;
    let each = iterations.div_ceil(connections);
    let at = listener.local_addr().map_err(text)?;
    let words = [
        "what=stream".to_owned(),
        format!("n={each}"),
        format!("connections={connections}"),
        format!("at={at}"),
    ];
    let peer = start_peer(&words)?;
    let accepted = (0..connections).map(|_| listener.accept().map(|(stream, _)| stream));
    let streams: Vec<TcpStream> = accepted.collect::<Result<_, _>>().map_err(text)?;
    let begin = Instant::now();
    let received: u64 = std::thread::scope(|scope| {
        let readers: Vec<_> = streams.iter().map(|stream| scope.spawn(|| read_all(stream))).collect();
        readers.into_iter().map(|reader| reader.join().unwrap_or(0)).sum()
    });
    let elapsed = begin.elapsed().as_nanos();
    finish(peer)?;
    if received != each * connections * PIECE_BYTES as u64 {
        return Err(format!("{received} bytes came"));
    }
    report(&format!("tcp-stream-{connections}"), each * connections, elapsed);
    Ok(())
}

/// Tells the peer to begin, and reads until the end. Returns the number of bytes.
fn read_all(mut stream: &TcpStream) -> u64 {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut received = 0;
    if stream.write_all(b"b").is_err() {
        return 0;
    }
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        received += count as u64;
    }
    received
}

fn stream_peer(arguments: &Arguments, pieces: u64) -> Result<(), String> {
    let at: SocketAddr = arguments.text("at", "").parse().map_err(text)?;
    let send = move || -> Result<(), std::io::Error> {
        let mut stream = TcpStream::connect(at)?;
        let buffer = vec![7; PIECE_BYTES];
        stream.read_exact(&mut [0])?;
        (0..pieces).try_for_each(|_| stream.write_all(&buffer))
    };
    let senders: Vec<_> =
        (0..arguments.number("connections", 1)?).map(|_| std::thread::spawn(send)).collect();
    for sender in senders {
        sender.join().map_err(|_| "a thread panicked")?.map_err(text)?;
    }
    Ok(())
}

/// Round trips over a few connections of a peer that has many.
fn idle(arguments: &Arguments, iterations: u64) -> Result<(), String> {
    let idle = arguments.number("idle", 1000)?;
    let count = idle + BUSY;
    allow_descriptors(count + 16)?;
    let listener = TcpListener::bind(LOOPBACK).map_err(text)?;
    let at = listener.local_addr().map_err(text)?;
    let peer = start_peer(&["what=idle".to_owned(), format!("idle={idle}"), format!("at={at}")])?;
    let mut streams = Vec::new();
    for _ in 0..count {
        let (stream, _) = listener.accept().map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        streams.push(stream);
    }
    // The busy ones are spread among the others.
    let mut busy: Vec<TcpStream> = Vec::new();
    for number in (0..BUSY).rev() {
        busy.push(streams.swap_remove((number * count / BUSY) as usize));
    }
    let mut next = 0;
    let step = || {
        next = (next + 1) % busy.len();
        round_trip(&mut busy[next], &mut [7])
    };
    repeat(&format!("tcp-beside-{idle}"), iterations, step)?;
    drop((busy, streams));
    finish(peer)
}

fn idle_peer(arguments: &Arguments) -> Result<(), String> {
    let count = arguments.number("idle", 1000)? + BUSY;
    allow_descriptors(count + 16)?;
    let at: SocketAddr = arguments.text("at", "").parse().map_err(text)?;
    let epoll = Epoll::new(EpollCreateFlags::empty()).map_err(text)?;
    let mut streams = Vec::new();
    for number in 0..count {
        let stream = TcpStream::connect(at).map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        epoll.add(stream.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, number)).map_err(text)?;
        streams.push(stream);
    }
    let mut events = [EpollEvent::empty(); 16];
    loop {
        let ready = epoll.wait(&mut events, EpollTimeout::NONE).map_err(text)?;
        for event in &events[..ready] {
            let mut stream = &streams[event.data() as usize];
            let mut byte = [0];
            // The first to end says that all is over.
            if !matches!(stream.read(&mut byte), Ok(1)) {
                return Ok(());
            }
            stream.write_all(&byte).map_err(text)?;
        }
    }
}

/// Serves the host: sends back what comes over TCP and UDP on one port, takes what comes on another until it ends.
fn serve() -> Result<(), String> {
    const ECHO: (&str, u16) = ("0.0.0.0", 7000);
    const SINK: (&str, u16) = ("0.0.0.0", 7001);
    let datagrams = UdpSocket::bind(ECHO).map_err(text)?;
    std::thread::spawn(move || {
        let mut message = vec![0; PIECE_BYTES];
        while let Ok((length, sender)) = datagrams.recv_from(&mut message) {
            let _ = datagrams.send_to(&message[..length], sender);
        }
    });
    let sink = TcpListener::bind(SINK).map_err(text)?;
    std::thread::spawn(move || {
        for stream in sink.incoming().flatten() {
            std::thread::spawn(move || take_all(stream));
        }
    });
    let echo = TcpListener::bind(ECHO).map_err(text)?;
    for stream in echo.incoming() {
        let mut stream = stream.map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        std::thread::spawn(move || {
            let mut message = vec![0; PIECE_BYTES];
            while let Ok(count @ 1..) = stream.read(&mut message) {
                if stream.write_all(&message[..count]).is_err() {
                    return;
                }
            }
        });
    }
    Ok(())
}

/// Reads to the end, and says so.
fn take_all(mut stream: TcpStream) {
    let mut buffer = vec![0; PIECE_BYTES];
    while let Ok(1..) = stream.read(&mut buffer) {}
    let _ = stream.write_all(b"e");
}
