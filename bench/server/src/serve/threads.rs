//! Three threads a connection. On Linux and on Heddle a priority is one of `SCHED_FIFO`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use super::{Options, QUEUE, READ_BYTES};
use crate::realtime;
use crate::wire::{Framer, Message};
use crate::work;

const STACK_BYTES: usize = 64 << 10;

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
                    let urgency = options.has_priorities.then_some(request.priority);
                    take(urgency)?;
                    requests.insert(start_others(stream, urgency)?)
                }
            };
            queue.send(request).map_err(|_| "the worker has ended")?;
        }
    }
}

fn take(urgency: Option<u8>) -> Result<(), String> {
    urgency.map_or(Ok(()), |priority| realtime::take_urgency(priority, false))
}

fn start_others(stream: &Arc<TcpStream>, urgency: Option<u8>) -> Result<SyncSender<Message>, String> {
    let (requests, to_do) = sync_channel(QUEUE);
    let (replies, to_send) = sync_channel(QUEUE);
    start(move || {
        let _ = take(urgency);
        let _ = compute(&to_do, &replies);
    })?;
    let stream = stream.clone();
    start(move || {
        let _ = take(urgency);
        let _ = send(&stream, &to_send);
    })?;
    Ok(requests)
}

fn compute(requests: &Receiver<Message>, replies: &SyncSender<Message>) -> Result<(), String> {
    while let Ok(request) = requests.recv() {
        replies.send(work::answer(&request)?).map_err(|_| "the sender has ended")?;
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
