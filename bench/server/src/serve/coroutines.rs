//! Three coroutines of heddle-rt a connection, all at the connection's level; asynchronous calls.

use std::collections::HashMap;
use std::net;
use std::sync::{Arc, Mutex, PoisonError};

use heddle_rt::net::{TcpListener, TcpStream};
use heddle_rt::wait::{self, Receiver, Sender, channel};
use heddle_rt::{Builder, Id, SpawnBuilder, current_id, preempted, set_priority, should_yield, try_spawn};

use super::{Options, QUEUE, READ_BYTES};
use crate::wire::{Framer, Kind, Message};
use crate::work::Answer;

/// The level of the most urgent connections where priorities count: behind ordinary threads, where the machine's order
/// is exact. The next priority is a level further.
const URGENT_LEVEL: u8 = 46;

/// State that the connections of a server share.
struct Shared {
    /// The lock that requests of the kind `Locked` hold.
    lock: wait::Mutex<()>,
    /// The coroutines of each connection, by its client's port.
    parts: Mutex<HashMap<u64, Vec<Id>>>,
}

impl Shared {
    fn parts<T>(&self, with: impl FnOnce(&mut HashMap<u64, Vec<Id>>) -> T) -> T {
        with(&mut self.parts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives the coroutines of another connection a priority, wherever they wait.
    fn change(&self, client: u64, priority: u8) -> Result<(), String> {
        let ids = self.parts(|parts| parts.get(&client).cloned()).ok_or("no such connection")?;
        ids.into_iter().for_each(|id| set_priority(id, URGENT_LEVEL + priority));
        Ok(())
    }
}

/// Takes connections for ever.
pub fn serve(listener: net::TcpListener, options: Options) -> Result<(), String> {
    let builder = Builder::new().threads(options.processors).strict(options.is_strict);
    builder.run(async move {
        let text = |error: std::io::Error| error.to_string();
        let listener = TcpListener::from_std(listener).map_err(text)?;
        let shared = Arc::new(Shared { lock: wait::Mutex::new(()), parts: Mutex::default() });
        loop {
            let (stream, client) = listener.accept().await.map_err(text)?;
            stream.set_nodelay(true).map_err(text)?;
            let connection = Connection { stream, client: client.port().into(), shared: shared.clone() };
            let connection = async move {
                let _ = receive(&Arc::new(connection), options).await;
            };
            try_spawn(SpawnBuilder::new(), connection).map_err(|error| error.to_string())?.detach();
        }
    })
}

struct Connection {
    stream: TcpStream,
    client: u64,
    shared: Arc<Shared>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.parts(|parts| parts.remove(&self.client));
    }
}

/// The receiver, which starts the other two at the first message.
async fn receive(connection: &Arc<Connection>, options: Options) -> Result<(), String> {
    let mut framer = Framer::default();
    let mut buffer = vec![0; READ_BYTES];
    let mut requests: Option<Sender<Message>> = None;
    loop {
        let (length, read) = connection.stream.read(buffer).await;
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
                    requests.insert(start_others(connection, parts)?)
                }
            };
            if request.kind == Kind::Priority {
                connection.shared.change(request.number, request.priority)?;
            }
            queue.send(request).await.map_err(|_| "the worker has ended")?;
        }
    }
}

fn start_others(connection: &Arc<Connection>, parts: SpawnBuilder) -> Result<Sender<Message>, String> {
    let (requests, to_do) = channel(QUEUE);
    let (replies, to_send) = channel(QUEUE);
    let shared = connection.shared.clone();
    let worker = async move {
        let _ = compute(&shared, &to_do, &replies).await;
    };
    let stream = connection.clone();
    let sender = async move {
        let _ = send(&stream.stream, &to_send).await;
    };
    let worker = try_spawn(parts, worker).map_err(|error| error.to_string())?;
    let sender = try_spawn(parts, sender).map_err(|error| error.to_string())?;
    let ids = [Some(worker.id()), Some(sender.id()), current_id()];
    connection.shared.parts(|all| all.insert(connection.client, ids.into_iter().flatten().collect()));
    worker.detach();
    sender.detach();
    Ok(requests)
}

async fn compute(
    shared: &Shared,
    requests: &Receiver<Message>,
    replies: &Sender<Message>,
) -> Result<(), String> {
    while let Some(request) = requests.recv().await {
        let reply = if request.kind == Kind::Locked {
            let _guard = shared.lock.lock().await;
            answer(&request).await?
        } else {
            answer(&request).await?
        };
        replies.send(reply).await.map_err(|_| "the sender has ended")?;
    }
    Ok(())
}

/// Lets what is more urgent go first between two rows.
async fn answer(request: &Message) -> Result<Message, String> {
    let mut answer = Answer::to(request)?;
    while answer.step() {
        if should_yield() {
            preempted().await;
        }
    }
    Ok(answer.finish())
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
