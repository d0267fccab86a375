//! A program on monoio with its driver for `io_uring` and no other: connections, files, timers. Its output depends
//! neither on time nor on the order in which requests end.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use monoio::fs::{File, OpenOptions};
use monoio::io::{AsyncReadRent, AsyncReadRentExt, AsyncWriteRent, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use monoio::time::{sleep, timeout};
use monoio::{IoUringDriver, RuntimeBuilder};

const CLIENTS: u32 = 24;
const MESSAGES: u32 = 40;
const PIECES: u64 = 64;
const PIECE: usize = 16 << 10;

fn main() -> ExitCode {
    let runtime = RuntimeBuilder::<IoUringDriver>::new().with_entries(256).enable_timer().build();
    let mut runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            println!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let results = runtime.block_on(async {
        [
            ("echo over TCP", tcp().await),
            ("echo over a unix socket", unix().await),
            ("pieces of a file", pieces().await),
            ("timers", timers().await),
            ("a read that is given up", given_up().await),
        ]
    });
    let mut status = ExitCode::SUCCESS;
    for (name, result) in results {
        match result {
            Ok(text) => println!("{name}: {text}"),
            Err(error) => {
                println!("{name}: FAILED: {error}");
                status = ExitCode::FAILURE;
            }
        }
    }
    status
}

/// Sends back what comes, until there is no more.
async fn echo(mut stream: impl AsyncReadRent + AsyncWriteRent) -> io::Result<u64> {
    let (mut total, mut buffer) = (0, Vec::with_capacity(4096));
    loop {
        let (count, read) = stream.read(buffer).await;
        let count = count?;
        if count == 0 {
            return Ok(total);
        }
        total += count as u64;
        let (written, mut read) = stream.write_all(read).await;
        written?;
        read.clear();
        buffer = read;
    }
}

/// Asks `MESSAGES` times and checks each answer; returns the bytes.
async fn ask(mut stream: impl AsyncReadRent + AsyncWriteRent, client: u32) -> io::Result<u64> {
    let mut total = 0;
    for message in 0..MESSAGES {
        let text: Vec<u8> = (0..=message * 7 + client).map(|byte| (byte ^ client) as u8).collect();
        let expected = text.clone();
        let (written, text) = stream.write_all(text).await;
        written?;
        let (read, answer) = stream.read_exact(text).await;
        read?;
        if answer != expected {
            return Err(io::Error::other("another answer"));
        }
        total += answer.len() as u64;
    }
    stream.shutdown().await?;
    Ok(total)
}

async fn tcp() -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| monoio::spawn(async move { ask(TcpStream::connect(address).await?, client).await }))
        .collect();
    let mut servers = Vec::new();
    for _ in 0..CLIENTS {
        servers.push(monoio::spawn(echo(listener.accept().await?.0)));
    }
    let (mut asked, mut answered) = (0, 0);
    for client in clients {
        asked += client.await?;
    }
    for server in servers {
        answered += server.await?;
    }
    Ok(format!("{asked} bytes asked, {answered} answered"))
}

async fn unix() -> io::Result<String> {
    let path = std::env::temp_dir().join(format!("rings-{}", std::process::id()));
    // Not monoio's own `bind`, which asks for SO_REUSEPORT: Linux refuses that for such sockets.
    let listener = UnixListener::from_std(std::os::unix::net::UnixListener::bind(&path)?)?;
    let asking = path.clone();
    let client = monoio::spawn(async move { ask(UnixStream::connect(asking).await?, 3).await });
    let answered = echo(listener.accept().await?.0).await?;
    std::fs::remove_file(path)?;
    Ok(format!("{} bytes asked, {answered} answered", client.await?))
}

/// The bytes of a piece of the file.
fn piece(number: u64) -> Vec<u8> {
    (0..PIECE as u64).map(|at| (at * 31 + number * 17) as u8).collect()
}

/// Writes a file in pieces, all at once and the last first, and reads them back.
async fn pieces() -> io::Result<String> {
    let path = std::env::temp_dir().join(format!("rings-file-{}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).await?;
    let file = std::rc::Rc::new(file);
    let writers: Vec<_> = (0..PIECES)
        .rev()
        .map(|number| {
            let file = file.clone();
            monoio::spawn(async move { file.write_all_at(piece(number), number * PIECE as u64).await.0 })
        })
        .collect();
    for writer in writers {
        writer.await?;
    }
    file.sync_all().await?;
    let length = std::fs::metadata(&path)?.len();
    let again = File::open(&path).await?;
    let mut same = 0;
    for number in 0..PIECES {
        let (read, found) = again.read_exact_at(vec![0; PIECE], number * PIECE as u64).await;
        read?;
        same += u64::from(found == piece(number));
    }
    let (end, _) = again.read_at(vec![0; 10], length).await;
    again.close().await?;
    std::fs::remove_file(path)?;
    Ok(format!("{length} bytes, {same} pieces are the same, {} bytes behind the end", end?))
}

/// Sleeps end in the order of their lengths.
async fn timers() -> io::Result<String> {
    let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let sleepers: Vec<_> = [300_u64, 20, 160, 90]
        .map(|length_ms| {
            let order = order.clone();
            monoio::spawn(async move {
                sleep(Duration::from_millis(length_ms)).await;
                order.borrow_mut().push(length_ms);
            })
        })
        .into_iter()
        .collect();
    for sleeper in sleepers {
        sleeper.await;
    }
    Ok(format!("{:?}", order.borrow()))
}

/// A read that nothing answers is dropped, and the connection goes on.
async fn given_up() -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?).await?;
    let mut server = listener.accept().await?.0;
    let first = timeout(Duration::from_millis(20), server.readable(false)).await;
    let (written, _) = client.write_all(b"late").await;
    written?;
    let (read, text) = server.read_exact(vec![0; 4]).await;
    read?;
    Ok(format!("given up: {}, then {}", first.is_err(), String::from_utf8_lossy(&text)))
}
