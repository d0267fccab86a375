//! Figures that the paper could not show.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use heddle_bench_programs::arguments::Arguments;
use heddle_bench_programs::measure::report;

use super::{MS_NS, Server, lead, loaded, print, text};
use crate::load::{Arrival, Class, Load};
use crate::wire::{Framer, Kind, Message};
use crate::work;

const ROWS: u16 = 20;
/// Connections of each class.
const EACH: usize = 16;
/// Priorities of connections that wait for nobody, of those between, and of those that wait for all.
const URGENT: u8 = 0;
const MIDDLE: u8 = 3;
const LAST: u8 = 7;
/// How long an answer is waited for that does not come.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Connections that together send this part of `capacity`.
fn class(priority: u8, capacity: f64, percent: f64) -> Class {
    let interval_ns = (EACH as f64 * 1e9 * 100.0 / (capacity * percent)) as u64;
    Class { connections: EACH, priority, arrival: Arrival::Open { interval_ns }, is_locked: false }
}

/// A load of these classes.
fn load(arguments: &Arguments, at: SocketAddr, classes: Vec<Class>) -> Result<Load, String> {
    let measured_ns = arguments.number("ms", 500)? * MS_NS;
    Ok(Load { at, classes, rows: ROWS, warm_up_ns: measured_ns / 5, measured_ns, seed: 3 })
}

/// The server's capacity, in replies a second.
fn capacity(arguments: &Arguments, at: SocketAddr) -> Result<f64, String> {
    let arrival = Arrival::Closed { period_ns: 0 };
    let class = Class { connections: EACH, priority: MIDDLE, arrival, is_locked: false };
    Ok(loaded(&load(arguments, at, vec![class])?)?.throughput(None))
}

/// Urgent connections at a tenth of the capacity, alone and beside a flood of three times the capacity.
pub fn flood(arguments: &Arguments) -> Result<(), String> {
    let server = Server::start(arguments, &["priorities=1"])?;
    lead(arguments)?;
    let capacity = capacity(arguments, server.at)?;
    let urgent = class(URGENT, capacity, 10.0);
    let alone = loaded(&load(arguments, server.at, vec![urgent])?)?;
    print("flood-alone", 1, &alone.since_due[0]);
    let flood = class(LAST, capacity, 300.0);
    let beside = loaded(&load(arguments, server.at, vec![urgent, flood])?)?;
    print("flood-beside", 1, &beside.since_due[0]);
    Ok(())
}

/// Urgent and least urgent connections share a lock, and others between them want all of the processor.
pub fn lock(arguments: &Arguments) -> Result<(), String> {
    let server = Server::start(arguments, &["priorities=1"])?;
    lead(arguments)?;
    let capacity = capacity(arguments, server.at)?;
    let locked = |priority| Class { is_locked: true, ..class(priority, capacity, 10.0) };
    let alone = loaded(&load(arguments, server.at, vec![locked(URGENT)])?)?;
    print("lock-alone", 1, &alone.since_due[0]);
    let classes = vec![locked(URGENT), locked(LAST), class(MIDDLE, capacity, 150.0)];
    let beside = loaded(&load(arguments, server.at, classes)?)?;
    print("lock-beside", 1, &beside.since_due[0]);
    Ok(())
}

/// Two servers, one strict and one relaxed: the urgent connections of each beside a flood on the other.
pub fn two(arguments: &Arguments) -> Result<(), String> {
    let strict = Server::start(arguments, &["priorities=1", "strict=1"])?;
    let relaxed = Server::start(arguments, &["priorities=1", "strict=0"])?;
    lead(arguments)?;
    let capacity = capacity(arguments, strict.at)?;
    for (name, urgent, other) in [("strict", &strict, &relaxed), ("relaxed", &relaxed, &strict)] {
        let of_urgent = load(arguments, urgent.at, vec![class(URGENT, capacity, 10.0)])?;
        print(&format!("two-{name}-alone"), 1, &loaded(&of_urgent)?.since_due[0]);
        let flood = load(arguments, other.at, vec![class(LAST, capacity, 200.0)])?;
        let beside = std::thread::scope(|scope| {
            let flooding = scope.spawn(|| loaded(&flood));
            let beside = loaded(&of_urgent)?;
            flooding.join().map_err(|_| "a thread panicked")??;
            Ok::<_, String>(beside)
        })?;
        print(&format!("two-{name}-beside"), 1, &beside.since_due[0]);
    }
    Ok(())
}

/// A connection that is used by hand.
struct Client {
    stream: TcpStream,
    framer: Framer,
    priority: u8,
}

impl Client {
    fn connect(at: SocketAddr, priority: u8) -> Result<Self, String> {
        let stream = TcpStream::connect(at).map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(text)?;
        let mut client = Client { stream, framer: Framer::default(), priority };
        client.send(Kind::Matrix, priority, 0, work::matrix(ROWS, 1))?;
        client.reply()?;
        Ok(client)
    }

    fn send(&mut self, kind: Kind, priority: u8, number: u64, text: Vec<u8>) -> Result<(), String> {
        let mut bytes = Vec::new();
        Message { kind, priority, rows: ROWS, number, text }.encode(&mut bytes);
        self.stream.write_all(&bytes).map_err(self::text)
    }

    fn reply(&mut self) -> Result<Message, String> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(message) = self.framer.next()? {
                return Ok(message);
            }
            match self.stream.read(&mut buffer).map_err(text)? {
                0 => return Err("the server has ended the connection".to_owned()),
                length => self.framer.push(&buffer[..length]),
            }
        }
    }

    /// Gives another connection a priority.
    fn change(&mut self, other: u16, priority: u8) -> Result<(), String> {
        self.send(Kind::Priority, priority, other.into(), Vec::new())?;
        self.reply().map(drop)
    }
}

/// A request of the least urgent kind is stuck behind others that want all of the processor, until an urgent connection
/// raises its priority: from the change to the reply.
pub fn raise(arguments: &Arguments) -> Result<(), String> {
    let rounds = arguments.number("n", 20)?;
    let server = Server::start(arguments, &["priorities=1"])?;
    lead(arguments)?;
    let capacity = capacity(arguments, server.at)?;
    let measured_ns = (rounds + 2) * 10 * MS_NS;
    let flood = Load { measured_ns, ..load(arguments, server.at, vec![class(MIDDLE, capacity, 200.0)])? };
    let mut urgent = Client::connect(server.at, URGENT)?;
    let mut stuck = Client::connect(server.at, LAST)?;
    let port = stuck.stream.local_addr().map_err(text)?.port();
    let mut delays: Vec<u128> = std::thread::scope(|scope| {
        let flooding = scope.spawn(|| loaded(&flood));
        std::thread::sleep(Duration::from_millis(20));
        let mut delays = Vec::new();
        for _ in 0..rounds {
            stuck.send(Kind::Matrix, stuck.priority, 0, work::matrix(ROWS, 1))?;
            std::thread::sleep(Duration::from_millis(5));
            let begin = Instant::now();
            urgent.change(port, URGENT)?;
            stuck.reply()?;
            delays.push(begin.elapsed().as_nanos());
            urgent.change(port, LAST)?;
        }
        flooding.join().map_err(|_| "a thread panicked")??;
        Ok::<_, String>(delays)
    })?;
    delays.sort_unstable();
    for (name, rank) in [("median", 50), ("max", 100)] {
        let place = (delays.len() * rank / 100).saturating_sub(1);
        report(&format!("raise-{name}-1"), rounds, delays[place]);
    }
    Ok(())
}
