//! hyper and rustls over streams of heddle-coroutine, in its executors: requests, bodies that come in pieces, and ends.

use bytes::Bytes;
use heddle_coroutine::io::Async;
use heddle_coroutine::time::timeout;
use heddle_coroutine::{Executor, LocalExecutor, spawn};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::error::Error;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// A test that hangs fails after this.
const LIMIT: Duration = Duration::from_secs(60);

/// Sends the body back, and says how long it was.
async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let answer = match body.collect().await {
        Ok(body) => {
            let body = body.to_bytes();
            Response::builder()
                .header("x-length", body.len())
                .header("x-path", parts.uri.path())
                .body(Full::new(body))
        }
        Err(_) => Response::builder().status(StatusCode::BAD_REQUEST).body(Full::default()),
    };
    Ok(answer.expect("a response of plain headers"))
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Outcome {
    Ok(server::Builder::new().serve_connection(TokioIo::new(stream), service_fn(echo)).await?)
}

/// Requests with bodies of several sizes over one connection, which ends after them.
async fn ask(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Outcome {
    let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await?;
    let connection = spawn(connection);
    for size in [0, 1, 4096, 3 << 20] {
        let body: Vec<u8> = (0..size).map(|byte| byte as u8).collect();
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("/{size}"))
            .header("host", "heddle")
            .body(Full::new(Bytes::from(body.clone())))?;
        let answer = sender.send_request(request).await?;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["x-length"], size.to_string());
        assert_eq!(answer.headers()["x-path"], format!("/{size}"));
        assert!(answer.into_body().collect().await?.to_bytes() == body);
    }
    drop(sender);
    Ok(connection.await.map_err(|_| "the connection's coroutine has panicked")??)
}

/// Both ends of a TLS connection over `one` and `other`.
fn tls() -> Result<(TlsConnector, TlsAcceptor), Box<dyn Error + Send + Sync>> {
    let made = rcgen::generate_simple_self_signed(["heddle.test".to_owned()])?;
    let certificate = made.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let server =
        ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key.into())?;
    Ok((TlsConnector::from(Arc::new(client)), TlsAcceptor::from(Arc::new(server))))
}

fn name() -> Result<ServerName<'static>, Box<dyn Error + Send + Sync>> {
    Ok(ServerName::try_from("heddle.test")?)
}

#[test]
fn hyper_over_unix_sockets_on_one_thread() -> Outcome {
    let (one, other) = UnixStream::pair()?;
    LocalExecutor::new().block_on(async {
        let serving = spawn(serve(Async::new(one)?));
        timeout(LIMIT, ask(Async::new(other)?)).await??;
        serving.await.map_err(|_| "the server has panicked")?
    })
}

#[test]
fn hyper_over_tcp_on_several_threads() -> Outcome {
    const CLIENTS: usize = 8;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    Executor::new(2).block_on(async {
        let listener = Async::new(listener)?;
        let serving = spawn(async move {
            let mut connections = Vec::new();
            for _ in 0..CLIENTS {
                let (stream, _) = listener.accept().await?;
                connections.push(spawn(serve(stream)));
            }
            for connection in connections {
                connection.await.map_err(|_| "a server has panicked")??;
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| spawn(async move { ask(Async::<TcpStream>::connect(address).await?).await }))
            .collect();
        for client in clients {
            timeout(LIMIT, client).await?.map_err(|_| "a client has panicked")??;
        }
        serving.await.map_err(|_| "the listener has panicked")?
    })
}

#[test]
fn rustls_carries_both_directions_and_ends() -> Outcome {
    let (connector, acceptor) = tls()?;
    let (one, other) = UnixStream::pair()?;
    Executor::new(2).block_on(async {
        let serving = spawn(async move {
            let mut stream = acceptor.accept(Async::new(one)?).await?;
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await?;
            stream.write_all(&all).await?;
            stream.shutdown().await?;
            Ok::<_, std::io::Error>(all.len())
        });
        let asking = async {
            let mut stream = connector.connect(name()?, Async::new(other)?).await?;
            let sent: Vec<u8> = (0..300_000_u32).map(|number| (number % 251) as u8).collect();
            stream.write_all(&sent).await?;
            stream.shutdown().await?;
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await?;
            assert!(all == sent);
            Ok::<_, Box<dyn Error + Send + Sync>>(sent.len())
        };
        let sent = timeout(LIMIT, asking).await??;
        assert_eq!(serving.await.map_err(|_| "the server has panicked")??, sent);
        Ok(())
    })
}

#[test]
fn hyper_over_rustls() -> Outcome {
    let (connector, acceptor) = tls()?;
    let (one, other) = UnixStream::pair()?;
    Executor::new(2).block_on(async {
        let serving = spawn(async move { serve(acceptor.accept(Async::new(one)?).await?).await });
        let asking = async { ask(connector.connect(name()?, Async::new(other)?).await?).await };
        timeout(LIMIT, asking).await??;
        match serving.await.map_err(|_| "the server has panicked")? {
            // The client closes as soon as it has all, so that the server's own close may find nobody.
            Err(error) if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_shutdown) => {
                Ok(())
            }
            ended => ended,
        }
    })
}
