//! Heddle and Linux as peers over a bad link: a relay of this host carries the frames between two machines, and loses,
//! repeats, damages and delays some of them by seed.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{ANSWER_LIMIT, RETRY, expect, text};
use crate::guest::Kernel;
use crate::testing::process::{RUN_TIMEOUT, heddle_run, run, wait};

/// Bytes of the length that QEMU sends before each frame.
const LENGTH_BYTES: usize = 4;
/// How long a frame is late if no others come.
const LATE: Duration = Duration::from_millis(4);
/// How many others overtake a late frame at most.
const OVERTAKERS: usize = 3;

/// How bad a link is, in parts of 1000.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Frames that never arrive.
    pub lost: u64,
    /// Frames that arrive twice.
    pub repeated: u64,
    /// Frames with a wrong bit.
    pub damaged: u64,
    /// Frames that others overtake.
    pub late: u64,
}

/// One direction of the link.
struct Direction {
    from: UnixStream,
    to: UnixStream,
    faults: Faults,
    random: u64,
    /// Bytes that make no whole frame yet.
    rest: Vec<u8>,
    late: Vec<Vec<u8>>,
}

impl Direction {
    /// SplitMix64.
    const fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    const fn happens(&mut self, parts: u64) -> bool {
        self.draw() % 1000 < parts
    }

    fn carry(&mut self, mut frame: Vec<u8>) -> std::io::Result<()> {
        if self.happens(self.faults.lost) {
            return Ok(());
        }
        if self.happens(self.faults.damaged) && frame.len() > LENGTH_BYTES {
            let at = LENGTH_BYTES + self.draw() as usize % (frame.len() - LENGTH_BYTES);
            frame[at] ^= 1 << (self.draw() % 8);
        }
        if self.happens(self.faults.late) {
            self.late.push(frame);
            return if self.late.len() > OVERTAKERS { self.catch_up() } else { Ok(()) };
        }
        self.to.write_all(&frame)?;
        if self.happens(self.faults.repeated) {
            self.to.write_all(&frame)?;
        }
        Ok(())
    }

    /// Late frames arrive.
    fn catch_up(&mut self) -> std::io::Result<()> {
        for frame in std::mem::take(&mut self.late) {
            self.to.write_all(&frame)?;
        }
        Ok(())
    }

    /// Carries frames until one of the machines ends.
    fn run(mut self) -> std::io::Result<()> {
        self.from.set_read_timeout(Some(LATE))?;
        let mut bytes = [0; 65_536];
        loop {
            match self.from.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(count) => self.rest.extend_from_slice(&bytes[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    self.catch_up()?;
                }
                Err(error) => return Err(error),
            }
            while let Some(&length) = self.rest.first_chunk::<LENGTH_BYTES>() {
                let end = LENGTH_BYTES + u32::from_be_bytes(length) as usize;
                if self.rest.len() < end {
                    break;
                }
                let frame = self.rest.drain(..end).collect();
                self.carry(frame)?;
            }
        }
    }
}

/// Sockets of two machines, which go at the end.
struct Paths([PathBuf; 2]);

impl Paths {
    fn new(name: &str) -> Self {
        let place = |end: &str| {
            let path = std::env::temp_dir().join(format!("heddle-bad-{}-{name}-{end}", std::process::id()));
            let _ = std::fs::remove_file(&path);
            path
        };
        Self([place("a"), place("b")])
    }
}

impl Drop for Paths {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Joins the machine that listens at `first` with the one that will come to `second`.
///
/// # Errors
/// How it failed.
pub fn join(first: &Path, second: &Path, faults: Faults, seed: u64) -> Result<(), String> {
    let deadline = Instant::now() + RUN_TIMEOUT;
    let one = loop {
        match UnixStream::connect(first) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > deadline => return Err(text(error)),
            Err(_) => sleep(RETRY),
        }
    };
    let listener = UnixListener::bind(second).map_err(text)?;
    std::thread::spawn(move || -> std::io::Result<()> {
        let (other, _) = listener.accept()?;
        let ends = [(one.try_clone()?, other.try_clone()?, seed), (other, one, !seed)];
        for (from, to, random) in ends {
            let direction = Direction { from, to, faults, random, rest: Vec::new(), late: Vec::new() };
            // A machine that ends closes its socket, which ends both directions.
            std::thread::spawn(move || direction.run());
        }
        Ok(())
    });
    Ok(())
}

/// The server's part: bytes that come back reversed, over both versions of IP; bytes for a reader that takes its time;
/// and bytes for one that goes away in the middle, until that is noticed.
const SERVE: &str = "import socket, sys
def listener(family, port):
    return socket.create_server(('' if family == socket.AF_INET else '::', port), family=family)
count = int(sys.argv[1])
data = bytes(i % 251 for i in range(count))
both = [listener(family, 7000) for family in (socket.AF_INET, socket.AF_INET6)]
slow, gone = listener(socket.AF_INET, 7001), listener(socket.AF_INET, 7002)
for s in both:
    c, name = s.accept(); got = b''
    while more := c.recv(65536): got += more
    c.sendall(got[::-1]); c.close(); print(name[0], len(got), flush=True)
c, _ = slow.accept(); c.sendall(data); c.close(); print('sent', flush=True)
c, _ = gone.accept()
try:
    while True: c.sendall(data)
except (ConnectionResetError, BrokenPipeError): print('reset', flush=True)
";

/// The client's part.
const ASK: &str = "import socket, struct, sys, time
def connect(address, port, buffer=None):
    for attempt in range(300):
        try:
            c = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET)
            if buffer: c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            c.settimeout(None if attempt > 250 else 60); c.connect((address, port)); return c
        except OSError as error: last = error; c.close(); time.sleep(0.1)
    raise last
count = int(sys.argv[1])
data = bytes(i % 251 for i in range(count))
for address in ('10.0.3.1', 'fd00:3::1'):
    c = connect(address, 7000); c.settimeout(None); c.sendall(data); c.shutdown(socket.SHUT_WR); answer = b''
    while more := c.recv(65536): answer += more
    print(answer == data[::-1], flush=True)
c = connect('10.0.3.1', 7001, 4096); c.settimeout(None); time.sleep(2); answer = b''
while more := c.recv(65536): answer += more
print(answer == data, flush=True)
c = connect('10.0.3.1', 7002); c.settimeout(None)
for _ in range(10): c.recv(1000)
c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); c.close(); print('gone', flush=True)
time.sleep(5)
";

/// A server on one kernel and a client on the other, over a bad link.
///
/// # Errors
/// How it failed.
pub fn peers(server: Kernel, client: Kernel, bytes: u32, faults: Faults, seed: u64) -> Result<(), String> {
    let paths = Paths::new(server.name());
    let [first_path, second_path] = &paths.0;
    let nets = paths.0.each_ref().map(|path| format!("socket={}", path.display()));
    let count = bytes.to_string();
    let arguments = |net: usize, program| {
        ["--net", nets[net].as_str(), "--deb", "python3", "--", "python3", "-c", program, count.as_str()]
    };
    let mut first = heddle_run(server, &arguments(0, SERVE)).map_err(text)?;
    let mut first = first.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(text)?;
    let answer = join(first_path, second_path, faults, seed).and_then(|()| {
        let second = heddle_run(client, &arguments(1, ASK));
        second.and_then(|mut second| run(&mut second, b"", RUN_TIMEOUT)).map_err(text)
    });
    let ended = wait(&mut first, ANSWER_LIMIT);
    let mut served = String::new();
    first.stdout.take().map(|mut stdout| stdout.read_to_string(&mut served));
    let answer = answer.map_err(|error| format!("{error}; the server said {served:?}"))?;
    let complaint = String::from_utf8_lossy(&answer.stderr).into_owned();
    expect(answer.text(), String::from("True\nTrue\nTrue\ngone\n"))
        .map_err(|error| format!("{error}; {complaint}; the server said {served:?}"))?;
    expect(ended, Some(0))?;
    expect(served, format!("10.0.3.2 {bytes}\nfd00:3::2 {bytes}\nsent\nreset\n"))
}

/// A link that is bad now and then.
const RATHER_BAD: Faults = Faults { lost: 15, repeated: 10, damaged: 5, late: 20 };
/// One that loses a frame in twenty.
const BAD: Faults = Faults { lost: 50, repeated: 20, damaged: 10, late: 50 };
const BYTES: u32 = 100_000;
const BYTES_LONG: u32 = 1_000_000;

/// The short form: this kernel serves.
pub fn as_server(kernel: Kernel) -> Result<(), String> {
    peers(kernel, Kernel::Linux, BYTES, RATHER_BAD, 1)
}

/// The short form: this kernel asks.
pub fn as_client(kernel: Kernel) -> Result<(), String> {
    peers(Kernel::Linux, kernel, BYTES, RATHER_BAD, 2)
}

/// The long form, in both roles.
pub fn at_length(kernel: Kernel) -> Result<(), String> {
    for seed in 1..=3 {
        peers(kernel, Kernel::Linux, BYTES_LONG, BAD, seed)
            .map_err(|error| format!("seed {seed}: {error}"))?;
        peers(Kernel::Linux, kernel, BYTES_LONG, BAD, seed)
            .map_err(|error| format!("seed {seed}: {error}"))?;
    }
    Ok(())
}
