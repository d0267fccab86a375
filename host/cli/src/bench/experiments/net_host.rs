//! `net-host`: this host and a guest, through published ports and QEMU's network stack.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Experiment, Kind};
use crate::bench::goal::{Goal, Wanted};
use crate::bench::guest::cargo_build;
use crate::bench::progress::{Progress, Step};
use crate::bench::record::{Figure, Record, Scale};
use crate::bench::side::{HEDDLE, LINUX, MEMORY_BYTES};
use crate::bench::{Effort, Interrupt, Request};
use crate::guest::MIB;
use crate::paths;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "net-host",
    summary: "the same between this host and a guest, through published ports",
    kind: Kind::Own(run),
    checked: None,
};

const START_LIMIT: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);
/// Bytes of a piece of a stream.
const PIECE_BYTES: usize = 64 << 10;

/// The guest's servers, `net what=serve`: what comes back, and what only takes.
const GUEST_ECHO: u16 = 7000;
const GUEST_SINK: u16 = 7001;

/// A machine with servers, and where this host reaches them.
struct Guest {
    child: Child,
    echo: SocketAddr,
    sink: SocketAddr,
    datagrams: SocketAddr,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port of this host that was free a moment ago.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

impl Guest {
    fn start(kernel: &str, program: &Path) -> Result<Self> {
        let (echo, sink, datagrams) = (free_address()?, free_address()?, free_address()?);
        let mut command = Command::new(crate::paths::own_program()?);
        command.args(["run", "--kernel", kernel, "--memory", &(MEMORY_BYTES / MIB).to_string()]);
        command.args(["-p", &format!("{echo}:{GUEST_ECHO}"), "-p", &format!("{sink}:{GUEST_SINK}")]);
        command.args(["-p", &format!("{datagrams}:{GUEST_ECHO}/udp"), "--bare", "--"]);
        command.arg(program).args(["net", "what=serve"]);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("starting a machine")?;
        let mut guest = Self { child, echo, sink, datagrams };
        let deadline = Instant::now() + START_LIMIT;
        while guest.exchange(&mut [7]).is_err() {
            if Instant::now() > deadline || guest.child.try_wait()?.is_some() {
                bail!("{kernel}: the guest's servers do not answer");
            }
            std::thread::sleep(PAUSE);
        }
        Ok(guest)
    }

    fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.echo, ANSWER_LIMIT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        Ok(stream)
    }

    /// One round trip over a connection of its own.
    fn exchange(&self, message: &mut [u8]) -> Result<()> {
        let mut stream = self.connect()?;
        stream.write_all(message)?;
        Ok(stream.read_exact(message)?)
    }

    /// The nanoseconds of one of `count` round trips of `bytes` bytes.
    fn round_trips(&self, bytes: usize, count: u64) -> Result<f64> {
        let mut stream = self.connect()?;
        let mut message = vec![7; bytes];
        time_each(count, || {
            stream.write_all(&message)?;
            Ok(stream.read_exact(&mut message)?)
        })
    }

    fn datagrams(&self, bytes: usize, count: u64) -> Result<f64> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(self.datagrams)?;
        socket.set_read_timeout(Some(ANSWER_LIMIT))?;
        let mut message = vec![7; bytes];
        time_each(count, || {
            socket.send(&message)?;
            Ok(socket.recv(&mut message).map(drop)?)
        })
    }

    /// The nanoseconds of one of `count` pieces that go to the guest, until it has them all.
    fn stream(&self, count: u64) -> Result<f64> {
        let mut stream = TcpStream::connect_timeout(&self.sink, ANSWER_LIMIT)?;
        stream.set_read_timeout(Some(START_LIMIT))?;
        let piece = vec![7; PIECE_BYTES];
        let begin = Instant::now();
        for _ in 0..count {
            stream.write_all(&piece)?;
        }
        stream.shutdown(std::net::Shutdown::Write)?;
        stream.read_exact(&mut [0])?;
        Ok(begin.elapsed().as_nanos() as f64 / count as f64)
    }
}

/// The mean nanoseconds of a step, after a warm-up of a tenth.
fn time_each(count: u64, mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    (0..count.div_ceil(10)).try_for_each(|_| step())?;
    let begin = Instant::now();
    (0..count).try_for_each(|_| step())?;
    Ok(begin.elapsed().as_nanos() as f64 / count as f64)
}

fn run(request: &Request, runs: usize, record: &mut Record, interrupt: &Interrupt) -> Result<Vec<Goal>> {
    let repository = paths::repository()?;
    cargo_build(&repository, &["--release", "--package", "heddle-bench-programs"], interrupt)?;
    let program = repository.join("target/release/heddle-bench-programs");
    let sides: Vec<_> =
        (0..runs).flat_map(|round| if round % 2 == 0 { [HEDDLE, LINUX] } else { [LINUX, HEDDLE] }).collect();
    let progress = Progress::new(sides.iter().map(|side| Step::new(side.name.to_owned())).collect())?;
    for side in sides {
        interrupt.check()?;
        progress.begin();
        let guest = Guest::start(side.kernel.name(), &program)?;
        measure(&guest, request.effort, side.name, record, interrupt)?;
        progress.end();
    }
    let figures = ["tcp-1", "tcp-1024", "udp-1", "udp-1024", "tcp-connect", "tcp-stream"];
    Ok(figures.map(|figure| Goal::new(figure, Scale::Emulated, Wanted::Ratio(1.0))).into())
}

fn measure(
    guest: &Guest,
    effort: Effort,
    side: &str,
    record: &mut Record,
    interrupt: &Interrupt,
) -> Result<()> {
    let rounds = effort.choose(200, 1000, 5000);
    let pieces = effort.choose(100, 500, 2000);
    let figures: [(&str, &dyn Fn() -> Result<f64>); 6] = [
        ("tcp-1", &|| guest.round_trips(1, rounds)),
        ("tcp-1024", &|| guest.round_trips(1024, rounds)),
        ("udp-1", &|| guest.datagrams(1, rounds)),
        ("udp-1024", &|| guest.datagrams(1024, rounds)),
        // With a round trip, because QEMU accepts before the guest does.
        ("tcp-connect", &|| time_each(rounds / 5, || guest.exchange(&mut [7]))),
        ("tcp-stream", &|| guest.stream(pieces)),
    ];
    for (name, figure) in figures {
        interrupt.check()?;
        match figure() {
            Ok(nanoseconds) => record.add(Figure {
                name: name.to_owned(),
                side: side.to_owned(),
                samples: vec![nanoseconds],
                ..Figure::new(Scale::Emulated)
            }),
            Err(error) => record.note(format!("{side}: absent: {name}: {error}")),
        }
    }
    Ok(())
}
