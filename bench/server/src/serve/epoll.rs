//! A thread per processor, each with an epoll instance and its share of the connections. Receiver, worker and sender
//! are steps of the thread's loop, with queues between them. Where priorities count, the loop looks for new requests
//! before each unit of work, and does the most urgent one.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use heddle_bench_programs::measure::pin;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;

use super::{Options, QUEUE, READ_BYTES};
use crate::wire::{Framer, Kind, Message, PRIORITIES};
use crate::work;

/// Reports that are taken from the kernel at once.
const EVENTS: usize = 256;
/// The report that connections have been handed over.
const NEWS: u64 = u64::MAX;

/// The lock that requests of the kind `Locked` hold.
static LOCK: Mutex<()> = Mutex::new(());

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The way of new connections to a thread.
struct Door {
    waiting: Mutex<Vec<TcpStream>>,
    bell: EventFd,
}

/// Takes connections for ever, and gives them to the threads in turn.
pub fn serve(listener: &TcpListener, options: Options) -> Result<(), String> {
    let mut doors = Vec::new();
    for processor in 0..options.processors {
        let door = Arc::new(Door { waiting: Mutex::new(Vec::new()), bell: EventFd::new().map_err(text)? });
        doors.push(door.clone());
        thread::spawn(move || {
            let done = pin(processor).and_then(|()| Loop::new(&door, options)?.run());
            if let Err(error) = done {
                eprintln!("{error}");
                std::process::exit(1);
            }
        });
    }
    for door in doors.iter().cycle() {
        let (stream, _) = listener.accept().map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        stream.set_nonblocking(true).map_err(text)?;
        door.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        door.bell.write(1).map_err(text)?;
    }
    Ok(())
}

/// A connection.
struct Connection {
    stream: TcpStream,
    framer: Framer,
    requests: VecDeque<Message>,
    /// Bytes of replies that are not sent yet.
    unsent: Vec<u8>,
    sent: usize,
    priority: u8,
    /// It is in a queue of connections with work.
    is_queued: bool,
    /// The events that are asked for.
    asked: EpollFlags,
}

impl Connection {
    fn has_room(&self) -> bool {
        self.requests.len() < QUEUE && self.unsent.len() - self.sent < QUEUE * READ_BYTES
    }

    /// The receiver. `false`: it is over.
    fn receive(&mut self, buffer: &mut [u8], options: Options) -> Result<bool, String> {
        match self.stream.read(buffer) {
            Ok(0) => Ok(false),
            Ok(length) => {
                self.framer.push(&buffer[..length]);
                while let Some(request) = self.framer.next()? {
                    if request.kind == Kind::Priority {
                        // Another thread may have that connection.
                        return Ok(false);
                    }
                    if options.has_priorities {
                        self.priority = request.priority;
                    }
                    self.requests.push_back(request);
                }
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
            Err(_) => Ok(false),
        }
    }

    /// The worker: one request.
    fn compute(&mut self) -> Result<(), String> {
        if let Some(request) = self.requests.pop_front() {
            let _guard = (request.kind == Kind::Locked).then(|| LOCK.lock());
            work::answer(&request)?.encode(&mut self.unsent);
        }
        Ok(())
    }

    /// The sender, as far as there is room. `false`: it is over.
    fn send(&mut self) -> bool {
        while self.sent < self.unsent.len() {
            match self.stream.write(&self.unsent[self.sent..]) {
                Ok(length) => self.sent += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        self.unsent.clear();
        self.sent = 0;
        true
    }
}

struct Loop<'a> {
    door: &'a Door,
    options: Options,
    epoll: Epoll,
    connections: Vec<Option<Connection>>,
    /// Connections with requests, by priority.
    work: [VecDeque<usize>; PRIORITIES as usize],
}

impl<'a> Loop<'a> {
    fn new(door: &'a Door, options: Options) -> Result<Self, String> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(text)?;
        epoll.add(door.bell.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, NEWS)).map_err(text)?;
        let work = std::array::from_fn(|_| VecDeque::new());
        Ok(Loop { door, options, epoll, connections: Vec::new(), work })
    }

    fn run(mut self) -> Result<(), String> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let is_idle = self.work.iter().all(VecDeque::is_empty);
            let timeout = if is_idle { EpollTimeout::NONE } else { EpollTimeout::ZERO };
            let count = match self.epoll.wait(&mut events, timeout) {
                Err(nix::Error::EINTR) => 0,
                count => count.map_err(text)?,
            };
            for event in &events[..count] {
                match event.data() {
                    NEWS => self.welcome()?,
                    number => self.attend(number as usize, event.events(), &mut buffer)?,
                }
            }
            while let Some(number) = self.work.iter_mut().find_map(VecDeque::pop_front) {
                self.compute(number)?;
                if self.options.has_priorities {
                    break;
                }
            }
        }
    }

    fn welcome(&mut self) -> Result<(), String> {
        self.door.bell.read().map_err(text)?;
        let waiting = std::mem::take(&mut *self.door.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for stream in waiting {
            let asked = EpollFlags::EPOLLIN;
            let number = self.connections.len() as u64;
            self.epoll.add(stream.as_fd(), EpollEvent::new(asked, number)).map_err(text)?;
            self.connections.push(Some(Connection {
                stream,
                framer: Framer::default(),
                requests: VecDeque::new(),
                unsent: Vec::new(),
                sent: 0,
                priority: 0,
                is_queued: false,
                asked,
            }));
        }
        Ok(())
    }

    fn attend(&mut self, number: usize, events: EpollFlags, buffer: &mut [u8]) -> Result<(), String> {
        let Some(connection) = &mut self.connections[number] else { return Ok(()) };
        let mut lives = true;
        if events.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            lives = connection.receive(buffer, self.options)?;
        }
        if events.contains(EpollFlags::EPOLLOUT) {
            lives &= connection.send();
        }
        self.settle(number, lives)
    }

    fn compute(&mut self, number: usize) -> Result<(), String> {
        let Some(connection) = &mut self.connections[number] else { return Ok(()) };
        connection.is_queued = false;
        connection.compute()?;
        let lives = connection.send();
        self.settle(number, lives)
    }

    /// Queues what has work, and asks for what is missing; ends what is over.
    fn settle(&mut self, number: usize, lives: bool) -> Result<(), String> {
        let Some(connection) = &mut self.connections[number] else { return Ok(()) };
        if !lives {
            self.connections[number] = None;
            return Ok(());
        }
        if !connection.requests.is_empty() && !connection.is_queued {
            connection.is_queued = true;
            self.work[usize::from(connection.priority)].push_back(number);
        }
        let mut asked = EpollFlags::empty();
        asked.set(EpollFlags::EPOLLIN, connection.has_room());
        asked.set(EpollFlags::EPOLLOUT, connection.sent < connection.unsent.len());
        if asked != connection.asked {
            connection.asked = asked;
            let mut event = EpollEvent::new(asked, number as u64);
            self.epoll.modify(connection.stream.as_fd(), &mut event).map_err(text)?;
        }
        Ok(())
    }
}
