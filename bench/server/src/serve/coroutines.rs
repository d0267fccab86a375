//! Three coroutines of heddle-rt a connection, all at the connection's level; asynchronous calls.

use std::net;
use std::sync::Arc;

use heddle_rt::net::{TcpListener, TcpStream};
use heddle_rt::wait::{Receiver, Sender, channel};
use heddle_rt::{Builder, SpawnBuilder, current_id, preempted, set_priority, should_yield, try_spawn};

use super::{Options, QUEUE, READ_BYTES};
use crate::wire::{Framer, Message};
use crate::work;

/// The level of the most urgent connections where priorities count: behind ordinary threads, where the machine's order
/// is exact. The next priority is a level further.
const URGENT_LEVEL: u8 = 46;

/// Takes connections for ever.
pub fn serve(listener: net::TcpListener, options: Options) -> Result<(), String> {
    let builder = Builder::new().threads(options.processors).strict(options.is_strict);
    builder.run(async move {
        let text = |error: std::io::Error| error.to_string();
        let listener = TcpListener::from_std(listener).map_err(text)?;
        loop {
            let (stream, _) = listener.accept().await.map_err(text)?;
            stream.set_nodelay(true).map_err(text)?;
            let connection = async move {
                let _ = receive(&Arc::new(stream), options).await;
            };
            try_spawn(SpawnBuilder::new(), connection).map_err(|error| error.to_string())?.detach();
        }
    })
}

/// The receiver, which starts the other two at the first message.
async fn receive(stream: &Arc<TcpStream>, options: Options) -> Result<(), String> {
    let mut framer = Framer::default();
    let mut buffer = vec![0; READ_BYTES];
    let mut requests: Option<Sender<Message>> = None;
    loop {
        let (length, read) = stream.read(buffer).await;
        buffer = read;
        let length = length.map_err(|error| error.to_string())?;
        if length == 0 {
            return Ok(());
        }
        framer.push(&buffer[..length]);
        while let Some(request) = framer.next()? {
            let queue = match &requests {
                Some(queue) => queue,
                None => {
                    let mut parts = SpawnBuilder::new();
                    if options.has_priorities {
                        let level = URGENT_LEVEL + request.priority;
                        parts = parts.priority(level);
                        if let Some(id) = current_id() {
                            set_priority(id, level);
                        }
                    }
                    requests.insert(start_others(stream, parts)?)
                }
            };
            queue.send(request).await.map_err(|_| "the worker has ended")?;
        }
    }
}

fn start_others(stream: &Arc<TcpStream>, parts: SpawnBuilder) -> Result<Sender<Message>, String> {
    let (requests, to_do) = channel(QUEUE);
    let (replies, to_send) = channel(QUEUE);
    let worker = async move {
        let _ = compute(&to_do, &replies).await;
    };
    let stream = stream.clone();
    let sender = async move {
        let _ = send(&stream, &to_send).await;
    };
    try_spawn(parts, worker).map_err(|error| error.to_string())?.detach();
    try_spawn(parts, sender).map_err(|error| error.to_string())?.detach();
    Ok(requests)
}

async fn compute(requests: &Receiver<Message>, replies: &Sender<Message>) -> Result<(), String> {
    while let Some(request) = requests.recv().await {
        if should_yield() {
            preempted().await;
        }
        replies.send(work::answer(&request)?).await.map_err(|_| "the sender has ended")?;
    }
    Ok(())
}

async fn send(stream: &TcpStream, replies: &Receiver<Message>) -> Result<(), String> {
    let mut bytes = Vec::new();
    while let Some(reply) = replies.recv().await {
        bytes.clear();
        reply.encode(&mut bytes);
        let (result, sent) = stream.write_all(bytes).await;
        result.map_err(|error| error.to_string())?;
        bytes = sent;
    }
    Ok(())
}
