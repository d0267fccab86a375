//! A connection of the load generator: what is under way, and whether replies are right.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use super::Class;
use super::schedule::Schedule;
use crate::wire::{self, HEADER_BYTES, Kind, Message};
use crate::work;

/// Different matrices, which take turns.
const MATRICES: usize = 4;
/// Where the number is in a header.
const NUMBER: std::ops::Range<usize> = 8..16;

/// Requests as bytes, and the replies that they must have.
#[derive(Debug)]
pub struct Texts {
    requests: Vec<Vec<u8>>,
    replies: Vec<Vec<u8>>,
}

impl Texts {
    /// For matrices of so many rows on a connection of this class.
    pub fn new(rows: u16, class: &Class) -> Result<Self, String> {
        let (priority, kind) = (class.priority, if class.is_locked { Kind::Locked } else { Kind::Matrix });
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        for seed in 0..MATRICES as u64 {
            let text = work::matrix(rows, seed * 77 + 1);
            let request = Message { kind, priority, rows, number: 0, text };
            let mut bytes = Vec::new();
            request.encode(&mut bytes);
            requests.push(bytes);
            let mut bytes = Vec::new();
            work::answer(&request)?.encode(&mut bytes);
            replies.push(bytes);
        }
        Ok(Texts { requests, replies })
    }
}

/// A request that has no reply yet.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// When it was due.
    pub due_ns: u64,
    /// When it was sent.
    pub sent_ns: u64,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    pub stream: TcpStream,
    /// The number of its class.
    pub class: usize,
    pub schedule: Schedule,
    pub pending: VecDeque<Pending>,
    /// When the next request is due.
    pub next_due_ns: u64,
    /// The numbers of the next request and the next reply.
    next_request: u64,
    next_reply: u64,
    /// Bytes that the socket had no room for.
    unsent: Vec<u8>,
    /// The beginning of a reply.
    input: Vec<u8>,
    /// Whether the generator waits for room in the socket.
    pub waits_for_room: bool,
    pub is_over: bool,
}

impl Connection {
    pub fn new(stream: TcpStream, class: usize, schedule: Schedule) -> Self {
        Connection {
            stream,
            class,
            schedule,
            pending: VecDeque::new(),
            next_due_ns: 0,
            next_request: 0,
            next_reply: 0,
            unsent: Vec::new(),
            input: Vec::new(),
            waits_for_room: false,
            is_over: false,
        }
    }

    /// Sends the next request, or as much of it as there is room for.
    pub fn send(&mut self, texts: &mut Texts, pending: Pending) {
        let request = &mut texts.requests[self.next_request as usize % MATRICES];
        request[NUMBER].copy_from_slice(&self.next_request.to_le_bytes());
        self.next_request += 1;
        self.pending.push_back(pending);
        if !self.unsent.is_empty() {
            self.unsent.extend_from_slice(request);
            return;
        }
        match self.stream.write(request) {
            Ok(length) => self.unsent.extend_from_slice(&request[length..]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.unsent.extend_from_slice(request),
            Err(_) => self.is_over = true,
        }
    }

    /// Sends what is left.
    pub fn flush(&mut self) {
        match self.stream.write(&self.unsent) {
            Ok(length) => drop(self.unsent.drain(..length)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.is_over = true,
        }
    }

    /// Whether something waits for room.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Reads what is there; gives the requests that have their replies now.
    pub fn receive(
        &mut self,
        texts: &Texts,
        buffer: &mut [u8],
        done: &mut Vec<Pending>,
    ) -> Result<(), String> {
        let length = match self.stream.read(buffer) {
            Ok(0) => {
                self.is_over = true;
                return Ok(());
            }
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(_) => {
                self.is_over = true;
                return Ok(());
            }
        };
        let mut bytes = &buffer[..length];
        while !bytes.is_empty() {
            let expected = &texts.replies[self.next_reply as usize % MATRICES];
            let missing = expected.len() - self.input.len();
            let Some((piece, rest)) = bytes.split_at_checked(missing) else {
                self.input.extend_from_slice(bytes);
                break;
            };
            let is_right = if self.input.is_empty() {
                is_reply(piece, expected, self.next_reply)
            } else {
                self.input.extend_from_slice(piece);
                is_reply(&self.input, expected, self.next_reply)
            };
            self.input.clear();
            bytes = rest;
            if !is_right {
                return Err(format!("reply {} is wrong", self.next_reply));
            }
            self.next_reply += 1;
            done.push(self.pending.pop_front().ok_or("a reply that nobody asked for")?);
        }
        Ok(())
    }
}

fn is_reply(bytes: &[u8], expected: &[u8], number: u64) -> bool {
    bytes[..NUMBER.start] == expected[..NUMBER.start]
        && bytes[NUMBER] == number.to_le_bytes()
        && bytes[HEADER_BYTES..] == expected[HEADER_BYTES..]
}

const _: () = assert!(NUMBER.end == wire::HEADER_BYTES);
