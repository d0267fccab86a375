//! Published ports of IPv6 addresses: connections and datagrams are passed on to a port of the loopback, which QEMU
//! forwards into the guest.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, sleep};
use std::time::Duration;

/// The stack of a thread that copies.
const STACK_BYTES: usize = 128 << 10;
/// Pause after a failure that is likely to come again, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an answer to a datagram is waited for.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// The largest datagram.
const DATAGRAM_BYTES: usize = 65_535;
/// Senders of datagrams whose answers are waited for at a time.
const SENDERS_MAX: usize = 1024;

/// A socket at the published port.
#[derive(Debug)]
pub enum Listener {
    /// For connections.
    Tcp(TcpListener),
    /// For datagrams.
    Udp(UdpSocket),
}

impl Listener {
    /// Its address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr(),
            Self::Udp(socket) => socket.local_addr(),
        }
    }
}

/// A published port, and the one of the loopback to which it leads.
#[derive(Debug)]
pub struct Relay {
    listener: Listener,
    to: SocketAddrV4,
}

impl Relay {
    pub fn new(listener: Listener, to: SocketAddrV4) -> Self {
        Self { listener, to }
    }

    /// Serves the port as long as this process lives.
    pub fn start(self) {
        let to = self.to;
        spawn(move || match self.listener {
            Listener::Tcp(listener) => accept(&listener, to),
            Listener::Udp(socket) => receive(&Arc::new(socket), to),
        });
    }
}

/// A thread that the process does not wait for. Without one its socket closes, which the other side sees.
fn spawn(work: impl FnOnce() + Send + 'static) {
    let _ = Builder::new().name(String::from("relay")).stack_size(STACK_BYTES).spawn(work);
}

fn accept(listener: &TcpListener, to: SocketAddrV4) {
    loop {
        let Ok((outer, _)) = listener.accept() else {
            sleep(PAUSE);
            continue;
        };
        spawn(move || {
            let _ = connect(outer, to);
        });
    }
}

/// Copies both ways until both have ended.
fn connect(outer: TcpStream, to: SocketAddrV4) -> io::Result<()> {
    let inner = TcpStream::connect(to)?;
    for stream in [&outer, &inner] {
        stream.set_nodelay(true)?;
    }
    let (from, into) = (outer.try_clone()?, inner.try_clone()?);
    spawn(move || copy(from, into));
    copy(inner, outer);
    Ok(())
}

fn copy(mut from: TcpStream, mut into: TcpStream) {
    if io::copy(&mut from, &mut into).is_err() {
        let _ = from.shutdown(Shutdown::Both);
    }
    let _ = into.shutdown(Shutdown::Write);
}

/// The senders of datagrams, each with the socket of the loopback that stands for it.
type Senders = Arc<Mutex<HashMap<SocketAddr, Arc<UdpSocket>>>>;

fn receive(outer: &Arc<UdpSocket>, to: SocketAddrV4) {
    let senders = Senders::default();
    let mut buffer = vec![0; DATAGRAM_BYTES];
    loop {
        let Ok((length, sender)) = outer.recv_from(&mut buffer) else {
            sleep(PAUSE);
            continue;
        };
        // A datagram may be lost.
        if let Ok(inner) = socket_of(&senders, sender, outer, to) {
            let _ = inner.send(&buffer[..length]);
        }
    }
}

fn socket_of(
    senders: &Senders,
    sender: SocketAddr,
    outer: &Arc<UdpSocket>,
    to: SocketAddrV4,
) -> io::Result<Arc<UdpSocket>> {
    let mut known = senders.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(inner) = known.get(&sender) {
        return Ok(Arc::clone(inner));
    }
    if known.len() >= SENDERS_MAX {
        return Err(io::ErrorKind::QuotaExceeded.into());
    }
    let inner = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    inner.connect(to)?;
    inner.set_read_timeout(Some(ANSWER_LIMIT))?;
    let inner = Arc::new(inner);
    known.insert(sender, Arc::clone(&inner));
    let (outer, senders, answers) = (Arc::clone(outer), Arc::clone(senders), Arc::clone(&inner));
    spawn(move || {
        let mut buffer = vec![0; DATAGRAM_BYTES];
        while let Ok(length) = answers.recv(&mut buffer) {
            let _ = outer.send_to(&buffer[..length], sender);
        }
        senders.lock().unwrap_or_else(PoisonError::into_inner).remove(&sender);
    });
    Ok(inner)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn v4(address: SocketAddr) -> SocketAddrV4 {
        match address {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(_) => panic!("{address}"),
        }
    }

    #[test]
    fn streams_go_both_ways_and_end_one_by_one() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let outer = TcpListener::bind("[::1]:0").unwrap();
        let at = outer.local_addr().unwrap();
        Relay::new(Listener::Tcp(outer), v4(server.local_addr().unwrap())).start();
        let mut client = TcpStream::connect(at).unwrap();
        let mut served = server.accept().unwrap().0;
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        served.read_to_string(&mut text).unwrap();
        assert_eq!(text, "question");
        served.write_all(b"answer").unwrap();
        drop(served);
        text.clear();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "answer");
    }

    #[test]
    fn datagrams_find_their_senders() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let outer = UdpSocket::bind("[::1]:0").unwrap();
        let at = outer.local_addr().unwrap();
        Relay::new(Listener::Udp(outer), v4(server.local_addr().unwrap())).start();
        let clients = ["a", "b"].map(|name| (name, UdpSocket::bind("[::1]:0").unwrap()));
        for (name, client) in &clients {
            client.send_to(name.as_bytes(), at).unwrap();
        }
        let mut buffer = [0; 16];
        for _ in 0..clients.len() {
            let (length, sender) = server.recv_from(&mut buffer).unwrap();
            server.send_to(&buffer[..length], sender).unwrap();
        }
        for (name, client) in &clients {
            let (length, _) = client.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], name.as_bytes());
        }
    }
}
