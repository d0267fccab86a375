//! A web server as Rust programmers write them, on tokio and hyper, with as many threads as the machine has processors.
//!
//! Port 3000 speaks HTTP: `/numbers` are the numbers to 100,000, a line each; `/pieces` are the same in pieces, whose
//! number nobody says before; what is posted to `/echo` comes back while it is still coming; what is posted to `/note`
//! is what `/note` then answers. Port 3001 has no protocol: it sends back what comes, in capitals, until the client has
//! sent all of it.

use std::convert::Infallible;
use std::fmt::Write;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Channel, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const WEB_PORT: u16 = 3000;
const PLAIN_PORT: u16 = 3001;
/// How long a client may take to ask.
const QUESTION_LIMIT: Duration = Duration::from_secs(60);
/// Bytes of a piece of `/pieces`, and pieces that may wait for a slow client.
const PIECE_BYTES: usize = 4000;
const PIECES_WAITING: usize = 4;

type Body = BoxBody<Bytes, hyper::Error>;
type Failure = Box<dyn std::error::Error + Send + Sync>;

struct Site {
    numbers: Bytes,
    note: Mutex<Bytes>,
}

fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never: Infallible| match never {}).boxed()
}

impl Site {
    /// The numbers, sent by another task as the client takes them.
    fn pieces(&self) -> Body {
        let (mut sender, body) = Channel::new(PIECES_WAITING);
        let mut rest = self.numbers.clone();
        tokio::spawn(async move {
            while !rest.is_empty() {
                let piece = rest.split_to(rest.len().min(PIECE_BYTES));
                if sender.send_data(piece).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
        });
        body.boxed()
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
        let note = || self.note.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let body = match (request.method(), request.uri().path()) {
            (&Method::GET, "/numbers") => whole(self.numbers.clone()),
            (&Method::GET, "/pieces") => self.pieces(),
            (&Method::POST, "/echo") => request.into_body().boxed(),
            (&Method::GET, "/note") => whole(note().clone()),
            (&Method::POST, "/note") => {
                let told = request.into_body().collect().await?.to_bytes();
                *note() = told;
                whole(Bytes::new())
            }
            _ => {
                let mut response = Response::new(whole(Bytes::new()));
                *response.status_mut() = StatusCode::NOT_FOUND;
                return Ok(response);
            }
        };
        Ok(Response::new(body))
    }
}

async fn serve_web(stream: TcpStream, site: Arc<Site>) -> Result<(), hyper::Error> {
    let service = service_fn(move |request| {
        let site = site.clone();
        async move { site.answer(request).await }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(QUESTION_LIMIT);
    builder.serve_connection(TokioIo::new(stream), service).await
}

async fn serve_plain(mut stream: TcpStream) -> std::io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    let mut bytes = vec![0; 16 << 10];
    loop {
        match reader.read(&mut bytes).await? {
            0 => return writer.shutdown().await,
            count => {
                bytes[..count].make_ascii_uppercase();
                writer.write_all(&bytes[..count]).await?;
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut numbers = String::new();
    for number in 1..=100_000 {
        writeln!(numbers, "{number}")?;
    }
    let site = Arc::new(Site { numbers: Bytes::from(numbers), note: Mutex::default() });
    let bind = |port| TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    let (web, plain) = (bind(WEB_PORT).await?, bind(PLAIN_PORT).await?);
    loop {
        // A client that goes away in the middle is its own concern.
        tokio::select! {
            accepted = web.accept() => {
                let (stream, _) = accepted?;
                stream.set_nodelay(true)?;
                tokio::spawn(serve_web(stream, site.clone()));
            }
            accepted = plain.accept() => {
                tokio::spawn(serve_plain(accepted?.0));
            }
        }
    }
}
