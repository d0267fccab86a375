//! Three threads a connection. On Linux and on Heddle a priority is one of `SCHED_FIFO`.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::{Options, QUEUE, READ_BYTES};
use crate::realtime;
use crate::wire::{Framer, Kind, Message};
use crate::work;

const STACK_BYTES: usize = 64 << 10;

/// The lock that requests of the kind `Locked` hold.
static LOCK: Mutex<()> = Mutex::new(());
/// The threads of each connection, by its client's port.
static PARTS: Mutex<Option<HashMap<u64, Vec<i32>>>> = Mutex::new(None);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes connections for ever.
pub fn serve(listener: &TcpListener, options: Options) -> Result<(), String> {
    if options.has_priorities {
        // New connections before all requests.
        realtime::take_urgency(0, true)?;
    }
    loop {
        let (stream, _) = listener.accept().map_err(|error| format!("accept: {error}"))?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        start(move || {
            let _ = receive(&Arc::new(stream), options);
        })?;
    }
}

fn start(part: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(part);
    thread.map(drop).map_err(|error| format!("a thread: {error}"))
}

/// The receiver, which starts the other two at the first message.
fn receive(stream: &Arc<TcpStream>, options: Options) -> Result<(), String> {
    let mut framer = Framer::default();
    let mut buffer = [0; READ_BYTES];
    let mut requests: Option<SyncSender<Message>> = None;
    let client = stream.peer_addr().map_err(|error| error.to_string())?.port();
    loop {
        let length = (&**stream).read(&mut buffer).map_err(|error| error.to_string())?;
        if length == 0 {
            return Ok(());
        }
        framer.push(&buffer[..length]);
        while let Some(request) = framer.next()? {
            let queue = match &requests {
                Some(queue) => queue,
                None => {
                    let part = Part {
                        client: client.into(),
                        urgency: options.has_priorities.then_some(request.priority),
                    };
                    part.begin()?;
                    requests.insert(start_others(stream, part)?)
                }
            };
            if request.kind == Kind::Priority {
                change(request.number, request.priority)?;
            }
            queue.send(request).map_err(|_| "the worker has ended")?;
        }
    }
}

/// Gives the threads of another connection a priority.
fn change(client: u64, priority: u8) -> Result<(), String> {
    let parts = locked(&PARTS);
    let threads = parts.as_ref().and_then(|parts| parts.get(&client)).ok_or("no such connection")?;
    threads.iter().try_for_each(|&thread| realtime::set_urgency(thread, priority))
}

/// A thread of a connection, which takes its place in the order when it begins.
#[derive(Clone, Copy)]
struct Part {
    client: u64,
    urgency: Option<u8>,
}

impl Part {
    fn begin(self) -> Result<(), String> {
        let Some(priority) = self.urgency else { return Ok(()) };
        let thread = nix::unistd::gettid().as_raw();
        locked(&PARTS).get_or_insert_default().entry(self.client).or_default().push(thread);
        realtime::take_urgency(priority, false)
    }
}

fn start_others(stream: &Arc<TcpStream>, part: Part) -> Result<SyncSender<Message>, String> {
    let (requests, to_do) = sync_channel(QUEUE);
    let (replies, to_send) = sync_channel(QUEUE);
    start(move || {
        let _ = part.begin().and_then(|()| compute(&to_do, &replies));
    })?;
    let stream = stream.clone();
    start(move || {
        let _ = part.begin().and_then(|()| send(&stream, &to_send));
    })?;
    Ok(requests)
}

fn compute(requests: &Receiver<Message>, replies: &SyncSender<Message>) -> Result<(), String> {
    while let Ok(request) = requests.recv() {
        let guard = (request.kind == Kind::Locked).then(|| locked(&LOCK));
        let reply = work::answer(&request)?;
        drop(guard);
        replies.send(reply).map_err(|_| "the sender has ended")?;
    }
    Ok(())
}

fn send(mut stream: &TcpStream, replies: &Receiver<Message>) -> Result<(), String> {
    let mut bytes = Vec::new();
    while let Ok(reply) = replies.recv() {
        bytes.clear();
        reply.encode(&mut bytes);
        stream.write_all(&bytes).map_err(|error| error.to_string())?;
    }
    Ok(())
}
