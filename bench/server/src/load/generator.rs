//! The generator's loop.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::time::{ClockId, clock_gettime};

use super::connection::{Connection, Pending, Texts};
use super::schedule::{Arrival, Schedule};
use super::{Load, Outcome};

/// Reports that are taken from the kernel at once.
const EVENTS: usize = 128;
const BUFFER_BYTES: usize = 64 << 10;
/// How long replies are waited for when no more requests are due.
const DRAIN_MAX_NS: u64 = 120_000_000_000;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

/// Waits for events until a moment by the clock.
fn wait(epoll: &Epoll, events: &mut [EpollEvent], until_ns: u64) -> Result<usize, String> {
    let left = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
    let time = libc::timespec { tv_sec: left.as_secs() as libc::time_t, tv_nsec: left.subsec_nanos().into() };
    #[allow(unsafe_code, reason = "epoll_pwait2, for a wait in nanoseconds")]
    // SAFETY: the events and the time live through the call, and there is no signal mask.
    let count = unsafe {
        libc::epoll_pwait2(
            std::os::fd::AsRawFd::as_raw_fd(&epoll.0),
            events.as_mut_ptr().cast(),
            i32::try_from(events.len()).unwrap_or(i32::MAX),
            &raw const time,
            std::ptr::null(),
        )
    };
    match usize::try_from(count) {
        Ok(count) => Ok(count),
        Err(_) if nix::Error::last() == nix::Error::EINTR => Ok(0),
        Err(_) => Err(text(std::io::Error::last_os_error())),
    }
}

pub struct Generator<'a> {
    load: &'a Load,
    epoll: Epoll,
    connections: Vec<Connection>,
    /// By class.
    texts: Vec<Texts>,
    /// When what is due next.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// From when latencies count, and until when requests are due.
    begin_ns: u64,
    end_ns: u64,
    outcome: Outcome,
}

impl<'a> Generator<'a> {
    /// Makes the connections.
    pub fn new(load: &'a Load) -> Result<Self, String> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(text)?;
        let mut connections = Vec::new();
        // The classes take turns, as far as they have connections.
        let most = load.classes.iter().map(|class| class.connections).max().unwrap_or(0);
        for row in 0..most {
            for (index, class) in load.classes.iter().enumerate().filter(|(_, class)| row < class.connections)
            {
                let number = connections.len() as u64;
                let stream =
                    TcpStream::connect(load.at).map_err(|error| format!("connection {number}: {error}"))?;
                stream.set_nodelay(true).map_err(text)?;
                stream.set_nonblocking(true).map_err(text)?;
                epoll.add(stream.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, number)).map_err(text)?;
                let schedule = Schedule::new(class.arrival, load.seed, number);
                connections.push(Connection::new(stream, index, schedule));
            }
        }
        let texts = load.classes.iter().map(|class| Texts::new(load.rows, class));
        Ok(Generator {
            load,
            epoll,
            connections,
            texts: texts.collect::<Result<_, _>>()?,
            due: BinaryHeap::new(),
            begin_ns: u64::MAX,
            end_ns: 0,
            outcome: Outcome::new(load)?,
        })
    }

    pub fn run(mut self) -> Result<Outcome, String> {
        self.greet()?;
        let start_ns = now_ns();
        self.begin_ns = start_ns + self.load.warm_up_ns;
        self.end_ns = self.begin_ns + self.load.measured_ns;
        for (number, connection) in self.connections.iter_mut().enumerate() {
            connection.next_due_ns = start_ns + connection.schedule.first_ns();
            self.due.push(Reverse((connection.next_due_ns, number)));
        }
        let limit_ns = self.end_ns + DRAIN_MAX_NS;
        self.turn_until(limit_ns)?;
        self.give_up();
        Ok(self.outcome)
    }

    /// A request and its reply on each connection, which are not measured: the server makes what serves it.
    fn greet(&mut self) -> Result<(), String> {
        let now_ns = now_ns();
        for number in 0..self.connections.len() {
            self.send(number, now_ns, now_ns)?;
            // Not all at once: a few hundred are under way at a time.
            if number % EVENTS == 0 {
                self.turn_until(now_ns + DRAIN_MAX_NS)?;
            }
        }
        self.turn_until(now_ns + DRAIN_MAX_NS)?;
        let missing: usize = self.connections.iter().map(|connection| connection.pending.len()).sum();
        if missing > 0 { Err(format!("{missing} connections do not answer")) } else { Ok(()) }
    }

    /// Sends what is due and takes what comes, until nothing is due or under way, or that moment.
    fn turn_until(&mut self, limit_ns: u64) -> Result<(), String> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut done = Vec::new();
        loop {
            let mut now_ns = now_ns();
            while let Some(&Reverse((due_ns, number))) = self.due.peek()
                && due_ns <= now_ns
            {
                self.due.pop();
                self.send_due(number, due_ns, now_ns)?;
            }
            if self.outcome.sent == self.outcome.replied + self.outcome.failed && self.due.is_empty()
                || now_ns > limit_ns
            {
                return Ok(());
            }
            let next_ns = self.due.peek().map_or(limit_ns, |next| next.0.0.min(limit_ns));
            let count = wait(&self.epoll, &mut events, next_ns)?;
            for event in &events[..count] {
                let number = event.data() as usize;
                let connection = &mut self.connections[number];
                if event.events().contains(EpollFlags::EPOLLOUT) {
                    connection.flush();
                }
                let texts = &self.texts[connection.class];
                connection.receive(texts, &mut buffer, &mut done)?;
                if !done.is_empty() {
                    now_ns = self::now_ns();
                    for pending in done.drain(..) {
                        self.record(number, pending, now_ns)?;
                    }
                }
                self.settle(number)?;
            }
        }
    }

    fn send(&mut self, number: usize, due_ns: u64, now_ns: u64) -> Result<(), String> {
        let connection = &mut self.connections[number];
        if connection.is_over {
            return Ok(());
        }
        self.outcome.sent += 1;
        let texts = &mut self.texts[connection.class];
        connection.send(texts, Pending { due_ns, sent_ns: now_ns });
        self.settle(number)
    }

    /// A request is due. In an open loop the next one is known, too.
    fn send_due(&mut self, number: usize, due_ns: u64, now_ns: u64) -> Result<(), String> {
        self.send(number, due_ns, now_ns)?;
        let class = self.connections[number].class;
        if let Arrival::Open { .. } = self.load.classes[class].arrival {
            self.plan_next(number, due_ns);
        }
        Ok(())
    }

    fn plan_next(&mut self, number: usize, after_ns: u64) {
        let connection = &mut self.connections[number];
        let next_ns = after_ns + connection.schedule.next_ns();
        if next_ns < self.end_ns && !connection.is_over {
            self.due.push(Reverse((next_ns, number)));
        }
    }

    /// A reply has come.
    fn record(&mut self, number: usize, pending: Pending, now_ns: u64) -> Result<(), String> {
        let class = self.connections[number].class;
        self.outcome.replied += 1;
        if self.begin_ns == u64::MAX {
            return Ok(());
        }
        if (self.begin_ns..self.end_ns).contains(&now_ns) {
            self.outcome.in_time[class] += 1;
        }
        if pending.due_ns >= self.begin_ns && pending.due_ns < self.end_ns {
            let since_due = &mut self.outcome.since_due[class];
            since_due.saturating_record(now_ns.saturating_sub(pending.due_ns).max(1));
            self.outcome.since_sent.saturating_record(now_ns.saturating_sub(pending.sent_ns).max(1));
        }
        match self.load.classes[class].arrival {
            Arrival::Open { .. } => {}
            Arrival::Closed { period_ns: 0 } if now_ns < self.end_ns => self.send(number, now_ns, now_ns)?,
            Arrival::Closed { period_ns: 0 } => {}
            Arrival::Closed { period_ns } if now_ns < self.end_ns => {
                self.plan_next(number, pending.due_ns);
                debug_assert!(period_ns > 0);
            }
            Arrival::Closed { period_ns } => {
                // A request that was due and could not be sent has waited so long at least.
                let mut due_ns = pending.due_ns + period_ns;
                while due_ns < self.end_ns {
                    if due_ns >= self.begin_ns {
                        let since_due = &mut self.outcome.since_due[class];
                        since_due.saturating_record(now_ns.saturating_sub(due_ns).max(1));
                    }
                    due_ns += period_ns;
                }
            }
        }
        Ok(())
    }

    /// Asks for room while something waits for it, and ends what is over.
    fn settle(&mut self, number: usize) -> Result<(), String> {
        let connection = &mut self.connections[number];
        if connection.is_over {
            let failed = connection.pending.len() as u64;
            if failed > 0 || connection.waits_for_room {
                connection.pending.clear();
                connection.waits_for_room = false;
                self.outcome.failed += failed;
            }
            let _ = self.epoll.delete(connection.stream.as_fd());
            return Ok(());
        }
        if connection.has_unsent() != connection.waits_for_room {
            connection.waits_for_room = connection.has_unsent();
            let mut asked = EpollFlags::EPOLLIN;
            asked.set(EpollFlags::EPOLLOUT, connection.waits_for_room);
            let mut event = EpollEvent::new(asked, number as u64);
            self.epoll.modify(connection.stream.as_fd(), &mut event).map_err(text)?;
        }
        Ok(())
    }

    /// Ends the connections; what is still without a reply is lost, and counted by [`Outcome::check`].
    fn give_up(&mut self) {
        self.connections.clear();
    }
}
