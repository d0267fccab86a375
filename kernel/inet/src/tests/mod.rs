//! Engines on a simulated link, with a simulated clock.

mod dhcp;
mod local;
mod malformed;
mod misbehaving;
mod over_link;
mod puppet;
#[cfg(heddle_shuttle)]
mod schedules;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::address::Endpoint;
use crate::engine::Engine;
use crate::error::{InetError, MoveError};
use crate::interface::InterfaceAddress;
use crate::link::{Link, LinkCapabilities, LinkFull, TransmitOffload};
use crate::platform::{OutOfMemory, Platform, Readiness, Waiters};
use crate::tcp::{Reading, TcpSocket, Work};

const MILLISECOND_NS: u64 = 1_000_000;

thread_local! {
    static NOW_NS: Cell<u64> = const { Cell::new(1_000_000_000) };
    static RANDOM: Cell<u64> = const { Cell::new(1) };
    static WORKERS: RefCell<Vec<Worker>> = const { RefCell::new(Vec::new()) };
}

struct Worker {
    socket: Arc<TcpSocket<Simulated>>,
    next_ns: Option<u64>,
}

struct Simulated;

#[derive(Default)]
struct Noted {
    has_work: AtomicBool,
    woken: AtomicU32,
}

impl Waiters for Noted {
    fn wake(&self, ready: Readiness) {
        self.woken.fetch_or(ready.bits(), Ordering::Relaxed);
    }

    fn work(&self) {
        self.has_work.store(true, Ordering::Relaxed);
    }
}

fn random() -> u64 {
    // SplitMix64.
    let state = RANDOM.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    RANDOM.set(state);
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

impl Platform for Simulated {
    type Waiters = Noted;
    type Alarm = ();

    fn now_ns() -> u64 {
        NOW_NS.get()
    }

    fn random(bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&random().to_le_bytes()[..piece.len()]);
        }
    }

    fn reserved<R>(_: usize, make: impl FnOnce() -> R) -> Result<R, OutOfMemory> {
        Ok(make())
    }

    fn stripe() -> usize {
        NOW_NS.get() as usize
    }

    fn waiters() -> Result<Arc<Noted>, OutOfMemory> {
        Ok(Arc::default())
    }

    fn tick_at((): &(), _: u64) {}

    fn start_worker(socket: Arc<TcpSocket<Self>>) -> Result<(), OutOfMemory> {
        socket.waiters().work();
        WORKERS.with_borrow_mut(|all| all.push(Worker { socket, next_ns: None }));
        Ok(())
    }
}

/// One end of the link: frames that were sent wait here.
struct Wire {
    mac: [u8; 6],
    capabilities: LinkCapabilities,
    sent: Mutex<VecDeque<(Vec<u8>, TransmitOffload)>>,
    room: usize,
    was_refused: AtomicBool,
}

impl Link for Wire {
    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn capabilities(&self) -> LinkCapabilities {
        self.capabilities
    }

    fn transmit(&self, frame: &[u8], offload: TransmitOffload) -> Result<(), LinkFull> {
        let mut sent = self.sent.lock().unwrap();
        if sent.len() >= self.room {
            self.was_refused.store(true, Ordering::Relaxed);
            return Err(LinkFull);
        }
        assert!(frame.len() <= 1514 || offload.segmentation.is_some());
        sent.push_back((frame.to_vec(), offload));
        Ok(())
    }
}

/// How bad the link is, in parts of 1000.
#[derive(Clone, Copy, Default)]
struct Faults {
    lost: u64,
    repeated: u64,
    corrupted: u64,
    /// Frames take up to so much longer, and so overtake one another.
    jitter_ns: u64,
}

struct Host {
    engine: Arc<Engine<Simulated>>,
    link: &'static Wire,
}

/// Two hosts on one link.
struct Net {
    hosts: [Host; 2],
    /// Frames under way: when they arrive, where, and whether their checksums need no check.
    under_way: Vec<(u64, usize, Vec<u8>, bool)>,
    faults: Faults,
    /// How long a frame takes, and of how many one is lost on its way to the second host; 0 for none.
    delay_ns: u64,
    lost_of: u64,
    losses_max: u64,
    carried: u64,
    /// The longest that time passes at once, for programs that look now and then.
    step_ns: u64,
}

const V4: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];
const V6: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)),
];
/// How long a frame takes.
const DELAY_NS: u64 = 50_000;

/// Runs the workers that have something to do.
fn work() -> bool {
    let workers = WORKERS.with_borrow_mut(core::mem::take);
    let mut was_busy = false;
    for mut worker in workers {
        let is_due = worker.next_ns.is_some_and(|next_ns| next_ns <= NOW_NS.get());
        if worker.socket.waiters().has_work.swap(false, Ordering::Relaxed) || is_due {
            was_busy = true;
            match worker.socket.work() {
                Work::Again => worker.socket.waiters().work(),
                Work::At(next_ns) => worker.next_ns = next_ns,
                Work::Over => continue,
            }
        }
        WORKERS.with_borrow_mut(|all| all.push(worker));
    }
    was_busy
}

impl Net {
    fn new(seed: u64, faults: Faults) -> Self {
        Self::with(seed, faults, LinkCapabilities::default())
    }

    fn with(seed: u64, faults: Faults, capabilities: LinkCapabilities) -> Self {
        RANDOM.set(seed);
        NOW_NS.set(1_000_000_000);
        WORKERS.with_borrow_mut(Vec::clear);
        let hosts = [0, 1].map(|number: usize| {
            let engine = Engine::new(()).unwrap();
            let link: &'static Wire = Box::leak(Box::new(Wire {
                mac: [2, 0, 0, 0, 0, number as u8 + 1],
                capabilities,
                sent: Mutex::default(),
                room: 64,
                was_refused: AtomicBool::new(false),
            }));
            let addresses = [
                InterfaceAddress { address: V4[number], prefix: 24 },
                InterfaceAddress { address: V6[number], prefix: 64 },
            ];
            engine.configure(link, &addresses, &[]).unwrap();
            Host { engine, link }
        });
        Self {
            hosts,
            under_way: Vec::new(),
            faults,
            delay_ns: DELAY_NS,
            lost_of: 0,
            losses_max: u64::MAX,
            carried: 0,
            step_ns: u64::MAX,
        }
    }

    fn socket(&self, host: usize) -> Arc<TcpSocket<Simulated>> {
        TcpSocket::new(&self.hosts[host].engine, false, 0).unwrap()
    }

    fn chance(parts: u64) -> bool {
        random() % 1000 < parts
    }

    fn carry(&mut self) {
        for from in 0..2 {
            loop {
                let next = self.hosts[from].link.sent.lock().unwrap().pop_front();
                let Some((frame, offload)) = next else { break };
                for frame in cut(frame, offload) {
                    self.carried += u64::from(from == 0);
                    let is_turn = from == 0
                        && self.lost_of > 0
                        && self.losses_max > 0
                        && self.carried.is_multiple_of(self.lost_of);
                    self.losses_max -= u64::from(is_turn);
                    let copies = if is_turn || Self::chance(self.faults.lost) {
                        0
                    } else {
                        1 + usize::from(Self::chance(self.faults.repeated))
                    };
                    for _ in 0..copies {
                        let mut frame = frame.clone();
                        let mut checked = offload.checksum.is_some();
                        if Self::chance(self.faults.corrupted) {
                            let at = random() as usize % frame.len();
                            frame[at] ^= 1 << (random() % 8);
                            checked = false;
                        }
                        let jitter =
                            if self.faults.jitter_ns > 0 { random() % self.faults.jitter_ns } else { 0 };
                        self.under_way.push((
                            NOW_NS.get() + self.delay_ns + jitter,
                            1 - from,
                            frame,
                            checked,
                        ));
                    }
                }
            }
            if self.hosts[from].link.was_refused.swap(false, Ordering::Relaxed) {
                self.hosts[from].engine.link_has_room();
            }
        }
    }

    /// Does everything that is due now. Returns when something is due next.
    fn settle(&mut self) -> Option<u64> {
        loop {
            let mut was_busy = false;
            self.carry();
            let now_ns = NOW_NS.get();
            let (due, later): (Vec<_>, Vec<_>) =
                core::mem::take(&mut self.under_way).into_iter().partition(|frame| frame.0 <= now_ns);
            self.under_way = later;
            for (_, to, frame, checked) in due {
                was_busy = true;
                self.hosts[to].engine.receive(&frame, checked);
            }
            was_busy |= work();
            if !was_busy {
                break;
            }
        }
        let ticks = self.hosts.iter().filter_map(|host| host.engine.tick());
        let frames = self.under_way.iter().map(|frame| frame.0);
        let workers: Vec<u64> =
            WORKERS.with_borrow(|all| all.iter().filter_map(|worker| worker.next_ns).collect());
        ticks.chain(frames).chain(workers).min()
    }

    /// Lets time pass until `done`, or nothing more can happen. Returns whether it is done.
    fn run(&mut self, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end_ns = NOW_NS.get() + 3_600_000 * MILLISECOND_NS;
        loop {
            let next_ns = self.settle();
            if done(self) {
                return true;
            }
            let next = self.settle().or(next_ns);
            match next {
                Some(next_ns) if next_ns < end_ns => {
                    let most_ns = NOW_NS.get().saturating_add(self.step_ns);
                    NOW_NS.set(next_ns.min(most_ns).max(NOW_NS.get() + 1));
                }
                _ => return done(self),
            }
        }
    }

    /// A connection from the first host to the second, by addresses of one version.
    fn connect(&mut self, addresses: [IpAddr; 2], port: u16) -> [Arc<TcpSocket<Simulated>>; 2] {
        let is_v6 = !addresses[0].is_ipv4();
        let listener = TcpSocket::new(&self.hosts[1].engine, is_v6, 0).unwrap();
        listener.bind(Endpoint::new(addresses[1], port)).unwrap();
        listener.listen(16).unwrap();
        let client = TcpSocket::new(&self.hosts[0].engine, is_v6, 0).unwrap();
        let target = Endpoint::new(addresses[1], port);
        assert_eq!(client.connect(target, false), Err(InetError::InProgress));
        let mut accepted = None;
        assert!(self.run(|_| {
            accepted = accepted.take().or_else(|| listener.accept().ok());
            accepted.is_some() && client.readiness().contains(Readiness::OUT)
        }));
        assert_eq!(client.connect(target, false), Ok(()));
        listener.close();
        [client, accepted.unwrap()]
    }
}

/// The frames that a device makes of one.
fn cut(frame: Vec<u8>, offload: TransmitOffload) -> Vec<Vec<u8>> {
    let Some(segmentation) = offload.segmentation else { return vec![frame] };
    let (head, data) = frame.split_at(segmentation.header_bytes);
    let header_bytes = segmentation.header_bytes;
    let mut pieces = Vec::new();
    for (number, part) in data.chunks(segmentation.segment_bytes).enumerate() {
        let mut piece = [head, part].concat();
        let offset = (number * segmentation.segment_bytes) as u32;
        let ip = crate::ip::ETHERNET_BYTES;
        let tcp = if segmentation.is_v6 { ip + 40 } else { ip + 20 };
        let number_at = u32::from_be_bytes(piece[tcp + 4..tcp + 8].try_into().unwrap()).wrapping_add(offset);
        piece[tcp + 4..tcp + 8].copy_from_slice(&number_at.to_be_bytes());
        if offset as usize + part.len() < data.len() {
            // Only the last has FIN and PSH.
            piece[tcp + 13] &= !9;
        }
        let length = (header_bytes - ip + part.len()) as u16;
        if segmentation.is_v6 {
            piece[ip + 4..ip + 6].copy_from_slice(&(length - 40).to_be_bytes());
        } else {
            piece[ip + 2..ip + 4].copy_from_slice(&length.to_be_bytes());
            piece[ip + 10..ip + 12].fill(0);
            let sum = crate::ip::checksum(&piece[ip..ip + 20]);
            piece[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
        }
        pieces.push(piece);
    }
    pieces
}

fn send(socket: &TcpSocket<Simulated>, bytes: &[u8]) -> Result<usize, InetError> {
    let mut rest = bytes;
    let result = socket.send(bytes.len(), |free| -> Result<usize, ()> {
        let count = free.len().min(rest.len());
        free[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        Ok(count)
    });
    result.map_err(reason)
}

fn receive(socket: &TcpSocket<Simulated>, most: usize) -> Result<Vec<u8>, InetError> {
    let mut bytes = Vec::new();
    let result = socket.receive(Reading::First, |part| -> Result<usize, ()> {
        let count = part.len().min(most - bytes.len());
        bytes.extend_from_slice(&part[..count]);
        Ok(count)
    });
    result.map(|_| bytes).map_err(reason)
}

fn reason(error: MoveError<()>) -> InetError {
    match error {
        MoveError::Inet(error) => error,
        MoveError::Copy(()) => unreachable!("the copies of tests don't fail"),
    }
}

/// Bytes that tell where they belong.
fn pattern(length: usize, salt: u64) -> Vec<u8> {
    (0..length as u64).map(|at| ((at ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}
