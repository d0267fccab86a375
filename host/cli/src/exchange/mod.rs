//! How other commands reach a running machine: the process that runs it listens on a socket, and passes messages on
//! between its clients and the machine's port for further programs ([`heddle_abi::control::programs`]).
//!
//! ```text
//!   heddle exec ── socket ──┐
//!   heddle exec ── socket ──┼── Exchange ── port ── kernel
//!   heddle stop ── socket ──┘
//! ```
//!
//! A client speaks the guest's own protocol. Its program is number 1 to it ([`OWN`]) and has another number in the
//! guest; number 0 is the machine's first program for all. Windows reach from the client to the guest, so what waits
//! here is at most a window for each stream, and no slow client holds another up.

pub mod client;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use anyhow::{Context, Result};
use heddle_abi::control::programs::{Short, kind, number_of, put_ended, scope, set_number};
use heddle_abi::control::{self, Ending, HEADER_BYTES, Sink, stream};
use heddle_streams::{Message, Messages, Outbox};
use rustix::event::PollFlags;
use rustix::io::Errno;

/// The number of a client's program, to the client.
pub const OWN: u32 = 1;
/// Kinds of messages that only this process answers; their payload is a [`Short`].
pub mod request {
    /// Start the machine's first program, which waits for that.
    pub const BEGIN: u32 = 64;
    /// End the machine at once.
    pub const END: u32 = 65;
}

/// Clients are not read while so much waits for the guest.
const WAITING_MAX_BYTES: usize = 256 << 10;

/// Something that the session has to do for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientRequest {
    /// Start the program.
    Begin,
    /// Tell the guest to open its port.
    OpenPrograms,
    /// Send the first program's group a signal.
    Signal(u32),
    /// End the machine.
    End,
}

/// One connection.
#[derive(Debug)]
struct Connected {
    socket: UnixStream,
    messages: Messages,
    outbox: Outbox,
    /// The number of its program in the guest.
    number: Option<u32>,
    /// It waits for the start of the first program.
    awaits_start: bool,
    is_gone: bool,
}

/// The listening socket, the connections, and what waits for the guest.
#[derive(Debug)]
pub struct Exchange {
    listener: UnixListener,
    clients: Vec<Connected>,
    /// Programs whose client has left, until they end.
    orphans: HashMap<u32, ()>,
    from_guest: Messages,
    to_guest: Outbox,
    next_number: u32,
    is_open: bool,
    /// Whether the kernel takes further programs.
    takes_programs: bool,
}

impl Exchange {
    /// Answers on this socket. A kernel that takes no programs but the first is sent signals over the control port.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn new(listener: UnixListener, takes_programs: bool) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            clients: Vec::new(),
            orphans: HashMap::new(),
            from_guest: Messages::default(),
            to_guest: Outbox::default(),
            next_number: OWN,
            is_open: false,
            takes_programs,
        })
    }

    /// The descriptors to poll, and for what.
    pub fn interests<'s>(
        &'s self,
        port: &'s UnixStream,
    ) -> impl Iterator<Item = (BorrowedFd<'s>, PollFlags)> + 's {
        let wants = |outbox: &Outbox| if outbox.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        let reads_clients = self.to_guest.len() < WAITING_MAX_BYTES;
        let clients = self.clients.iter().map(move |client| {
            let read = if reads_clients { PollFlags::IN } else { PollFlags::empty() };
            (client.socket.as_fd(), read | wants(&client.outbox))
        });
        let guest = (port.as_fd(), PollFlags::IN | wants(&self.to_guest));
        [(self.listener.as_fd(), PollFlags::IN), guest].into_iter().chain(clients)
    }

    /// Moves all that can be moved now, and returns what is left for the session to do.
    ///
    /// # Errors
    /// If the guest violates the protocol.
    pub fn serve(&mut self, port: &UnixStream) -> Result<Vec<ClientRequest>> {
        let mut requests = Vec::new();
        while let Ok((socket, _)) = self.listener.accept() {
            if socket.set_nonblocking(true).is_ok() {
                self.clients.push(Connected {
                    socket,
                    messages: Messages::default(),
                    outbox: Outbox::default(),
                    number: None,
                    awaits_start: false,
                    is_gone: false,
                });
            }
        }
        self.read_guest(port)?;
        for index in 0..self.clients.len() {
            self.read_client(index, &mut requests)?;
        }
        let _ = self.to_guest.drain(port);
        for client in &mut self.clients {
            if client.outbox.drain(&client.socket).is_err() {
                client.is_gone = true;
            }
        }
        self.bury()?;
        Ok(requests)
    }

    /// Tells those who have asked for the first program's start that it runs.
    pub fn tell_start(&mut self) {
        for client in self.clients.iter_mut().filter(|client| client.awaits_start) {
            client.awaits_start = false;
            let started = Short { number: 0, words: [0, 0] };
            if started.put(&mut client.outbox, kind::STARTED).is_ok() {
                // The rest of a full socket is sent later.
                let _ = client.outbox.drain(&client.socket);
            }
        }
    }

    fn read_guest(&mut self, port: &UnixStream) -> Result<()> {
        // The end of the port is the end of the machine, which is noticed elsewhere.
        let _ = self.from_guest.fill(port);
        while let Some(mut message) =
            self.from_guest.take().ok().context("malformed message from the guest")?
        {
            let number = number_of(&message.payload).context("malformed message from the guest")?;
            let client = self.clients.iter_mut().find(|client| client.number == Some(number));
            let has_ended = message.kind == kind::ENDED;
            if let Some(client) = client {
                set_number(&mut message.payload, OWN);
                forward(&message, &mut client.outbox);
                if has_ended {
                    client.number = None;
                }
            } else if has_ended {
                self.orphans.remove(&number);
            }
        }
        Ok(())
    }

    fn read_client(&mut self, index: usize, requests: &mut Vec<ClientRequest>) -> Result<()> {
        if self.to_guest.len() >= WAITING_MAX_BYTES {
            return Ok(());
        }
        let client = &mut self.clients[index];
        if !matches!(client.messages.fill(&client.socket), Ok(true)) {
            client.is_gone = true;
        }
        loop {
            match self.clients[index].messages.take() {
                Ok(Some(message)) => self.handle(index, message, requests)?,
                Ok(None) => return Ok(()),
                Err(_) => {
                    self.clients[index].is_gone = true;
                    return Ok(());
                }
            }
        }
    }

    fn handle(
        &mut self,
        index: usize,
        mut message: Message,
        requests: &mut Vec<ClientRequest>,
    ) -> Result<()> {
        let Some(number) = number_of(&message.payload) else { return Ok(()) };
        match message.kind {
            request::BEGIN => {
                self.clients[index].awaits_start = true;
                requests.push(ClientRequest::Begin);
            }
            request::END => requests.push(ClientRequest::End),
            kind::SIGNAL if number == 0 && !self.takes_programs => {
                if let Some(Short { words: [signal, _], .. }) = Short::parse(&message.payload) {
                    requests.push(ClientRequest::Signal(signal));
                }
            }
            control::kind::START => {
                if !self.takes_programs {
                    let ending = Ending::NotStarted(Errno::NOSYS.raw_os_error().cast_unsigned());
                    put_ended(&mut self.clients[index].outbox, OWN, ending).ok().context("message")?;
                    return Ok(());
                }
                let number = self.free_number();
                self.clients[index].number = Some(number);
                set_number(&mut message.payload, number);
                self.open(requests);
                forward(&message, &mut self.to_guest);
            }
            _ => {
                let number = if number == 0 { Some(0) } else { self.clients[index].number };
                // Messages after a program's end come too late.
                let Some(number) = number else { return Ok(()) };
                set_number(&mut message.payload, number);
                self.open(requests);
                forward(&message, &mut self.to_guest);
            }
        }
        Ok(())
    }

    fn open(&mut self, requests: &mut Vec<ClientRequest>) {
        if !std::mem::replace(&mut self.is_open, true) {
            requests.push(ClientRequest::OpenPrograms);
        }
    }

    fn free_number(&mut self) -> u32 {
        loop {
            let number = self.next_number;
            self.next_number = number.wrapping_add(1).max(OWN);
            let is_taken = self.clients.iter().any(|client| client.number == Some(number));
            if !is_taken && !self.orphans.contains_key(&number) {
                return number;
            }
        }
    }

    /// Forgets the clients that have left. Their programs live on without anybody at the other end of their streams.
    fn bury(&mut self) -> Result<()> {
        for client in self.clients.extract_if(.., |client| client.is_gone) {
            let Some(number) = client.number else { continue };
            self.orphans.insert(number, ());
            let closing = [
                (kind::END, stream::STDIN),
                (kind::CLOSE, stream::STDOUT),
                (kind::CLOSE, stream::STDERR),
                (kind::CLOSE, stream::TTY),
            ];
            for (kind, stream) in closing {
                let message = Short { number, words: [stream, 0] };
                message.put(&mut self.to_guest, kind).ok().context("message")?;
            }
        }
        Ok(())
    }
}

impl Drop for Exchange {
    /// Tells the clients whose programs end with the machine.
    fn drop(&mut self) {
        const KILLED: Ending = Ending::Signaled(9);
        for client in &mut self.clients {
            if client.number.is_some() && put_ended(&mut client.outbox, OWN, KILLED).is_ok() {
                let _ = client.outbox.drain(&client.socket);
            }
        }
    }
}

/// Appends a message to what waits.
fn forward(message: &Message, outbox: &mut Outbox) {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&u32::try_from(message.payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    header[4..].copy_from_slice(&message.kind.to_le_bytes());
    // An outbox grows as needed.
    let _ = outbox.put(&header).and_then(|()| outbox.put(&message.payload));
}

/// A request to the process that runs a machine, or a signal for its first program.
///
/// # Errors
/// The error of writing.
pub fn send_signal(socket: &UnixStream, signal: u32, all: bool) -> io::Result<()> {
    let whom = if all { scope::MACHINE } else { scope::PROCESS };
    send(socket, kind::SIGNAL, [signal, whom])
}

/// Sends one of [`request`].
///
/// # Errors
/// The error of writing.
pub fn send_request(socket: &UnixStream, request: u32) -> io::Result<()> {
    send(socket, request, [0, 0])
}

fn send(socket: &UnixStream, kind: u32, words: [u32; 2]) -> io::Result<()> {
    let mut outbox = Outbox::default();
    // An outbox grows as needed.
    let _ = (Short { number: 0, words }).put(&mut outbox, kind);
    outbox.drain(socket)
}
