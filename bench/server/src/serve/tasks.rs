//! Three tokio tasks a connection. Tokio has no priorities.

use std::net;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{Options, QUEUE, READ_BYTES};
use crate::wire::{Framer, Kind, Message};
use crate::work;

/// The lock that requests of the kind `Locked` hold.
static LOCK: Mutex<()> = Mutex::const_new(());

/// Takes connections for ever. On one processor tokio's executor for one thread is the faster one.
pub fn serve(listener: net::TcpListener, options: Options) -> Result<(), String> {
    let mut builder = match options.processors {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(options.processors).enable_io().build();
    let text = |error: std::io::Error| error.to_string();
    runtime.map_err(text)?.block_on(async move {
        listener.set_nonblocking(true).map_err(text)?;
        let listener = TcpListener::from_std(listener).map_err(text)?;
        loop {
            let (stream, _) = listener.accept().await.map_err(text)?;
            stream.set_nodelay(true).map_err(text)?;
            let (reader, writer) = stream.into_split();
            let (requests, to_do) = channel(QUEUE);
            let (replies, to_send) = channel(QUEUE);
            tokio::spawn(receive(reader, requests));
            tokio::spawn(compute(to_do, replies));
            tokio::spawn(send(writer, to_send));
        }
    })
}

async fn receive(mut stream: OwnedReadHalf, requests: Sender<Message>) -> Result<(), String> {
    let mut framer = Framer::default();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let length = stream.read(&mut buffer).await.map_err(|error| error.to_string())?;
        if length == 0 {
            return Ok(());
        }
        framer.push(&buffer[..length]);
        while let Some(request) = framer.next()? {
            requests.send(request).await.map_err(|_| "the worker has ended")?;
        }
    }
}

async fn compute(mut requests: Receiver<Message>, replies: Sender<Message>) -> Result<(), String> {
    while let Some(request) = requests.recv().await {
        let reply = match request.kind {
            Kind::Priority => return Err("tasks have no priority".to_owned()),
            Kind::Locked => {
                let _guard = LOCK.lock().await;
                work::answer(&request)?
            }
            _ => work::answer(&request)?,
        };
        replies.send(reply).await.map_err(|_| "the sender has ended")?;
    }
    Ok(())
}

async fn send(mut stream: OwnedWriteHalf, mut replies: Receiver<Message>) -> Result<(), String> {
    let mut bytes = Vec::new();
    while let Some(reply) = replies.recv().await {
        bytes.clear();
        reply.encode(&mut bytes);
        stream.write_all(&bytes).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}
