//! Internet sockets: TCP listeners and streams, UDP sockets.
//!
//! Each wraps the standard library's type, for options and addresses ([`TcpStream::get_ref`]). Everything that may wait
//! is an asynchronous call of this crate: on Heddle it is carried out by the kernel's coroutines, at the level of the
//! coroutine that waits for it; on Linux it is an attempt, with epoll between two.
//!
//! Buffers are owned while a call is in flight, and come back with its result. Methods take `&self`, so a socket in an
//! `Arc` is read by one coroutine and written by another.
//!
//! ```
//! use heddle_rt::net::{TcpListener, TcpStream};
//!
//! #[heddle_rt::main(threads = 2)]
//! async fn main() -> std::io::Result<()> {
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     let address = listener.local_addr()?;
//!     let server = heddle_rt::spawn(async move {
//!         let (stream, _) = listener.accept().await?;
//!         let (length, mut buffer) = stream.read(vec![0; 16]).await;
//!         buffer.truncate(length?);
//!         stream.write_all(buffer).await.0
//!     });
//!     let stream = TcpStream::connect(address).await?;
//!     stream.write_all("hello").await.0?;
//!     let (result, echo) = stream.read_exact(vec![0; 5]).await;
//!     result?;
//!     assert_eq!(echo, b"hello");
//!     server.await.unwrap()
//! }
//! ```
//!
//! A host's name is looked up by the calling thread, as the standard library does; addresses need no look-up.

mod address;
mod tcp;
mod udp;

use crate::{calls, heddle};
use std::io;
use std::os::fd::AsFd;

pub use address::PeerAddress;
pub use tcp::{TcpListener, TcpStream};
pub use udp::UdpSocket;

/// The longest message of which an attempt is made before it is handed to the kernel.
const SMALL_BYTES: usize = 16 << 10;

/// Sends as much of a small message as there is room for. There nearly always is, and a call that cannot wait costs
/// less than one that can: nothing has to be kept for it. `None`: it is to be one that can, or one of a batch; or the
/// coroutine has to give way first.
fn send_now(socket: impl AsFd, bytes: &[u8]) -> Option<io::Result<usize>> {
    if bytes.len() > SMALL_BYTES || !heddle::is_free() {
        return None;
    }
    let sent = calls::send_sync(socket, bytes, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
    (!matches!(&sent, Err(error) if error.kind() == io::ErrorKind::WouldBlock)).then_some(sent)
}
