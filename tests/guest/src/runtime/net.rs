//! heddle-rt's sockets over the loopback.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::sync::Arc;

use heddle_rt::net::{TcpListener, TcpStream, UdpSocket};
use heddle_rt::{Builder, SpawnBuilder, spawn, try_spawn, yield_now};

use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    tcp_echoes_over_many_connections
    tcp_moves_megabytes_both_ways_at_once
    tcp_ends_are_told_apart
    tcp_calls_are_dropped_at_any_moment
    udp_datagrams_keep_their_bounds_and_senders
    urgent_connections_are_served_first
}

fn tcp_echoes_over_many_connections() -> Outcome {
    const CONNECTIONS: usize = 200;
    Builder::new().threads(2).run(async {
        let listener = TcpListener::bind("127.0.0.1:0").or_fail()?;
        let address = listener.local_addr().or_fail()?;
        let server = spawn(async move {
            for _ in 0..CONNECTIONS {
                let (stream, peer) = listener.accept().await?;
                assert_eq!(peer, stream.peer_addr()?);
                spawn(async move {
                    let mut buffer = vec![0; 64];
                    while let (Ok(length @ 1..), mut read) = stream.read(buffer).await {
                        read.truncate(length);
                        let Ok(()) = stream.write_all(read).await.0 else { return };
                        buffer = vec![0; 64];
                    }
                })
                .detach();
            }
            std::io::Result::Ok(())
        });
        let mut clients = Vec::new();
        for number in 0..CONNECTIONS {
            clients.push(spawn(async move {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                for round in 0..20_u8 {
                    let message = vec![number as u8 ^ round; 33];
                    stream.write_all(message.clone()).await.0?;
                    let (result, echo) = stream.read_exact(vec![0; 33]).await;
                    result?;
                    assert_eq!(echo, message);
                }
                std::io::Result::Ok(())
            }));
        }
        for client in clients {
            client.await.or_fail()?.or_fail()?;
        }
        server.await.or_fail()?.or_fail()
    })
}

fn tcp_moves_megabytes_both_ways_at_once() -> Outcome {
    const BYTES: usize = 4 << 20;
    Builder::new().threads(2).run(async {
        let addresses: [std::net::SocketAddr; 2] =
            ["[::1]:0".parse().or_fail()?, "127.0.0.1:0".parse().or_fail()?];
        let listener = TcpListener::bind(&addresses[..]).or_fail()?;
        let accepting = spawn({
            let address = listener.local_addr().or_fail()?;
            async move { TcpStream::connect(address).await }
        });
        let (one, _) = listener.accept().await.or_fail()?;
        let other = accepting.await.or_fail()?.or_fail()?;
        let data: Arc<[u8]> = (0..BYTES).map(|place| (place / 251) as u8).collect();
        let mut tasks = Vec::new();
        for end in [Arc::new(one), Arc::new(other)] {
            let (writer, sent) = (end.clone(), data.clone());
            tasks.push(spawn(async move {
                writer.write_all(sent).await.0?;
                writer.shutdown(Shutdown::Write)
            }));
            let expected = data.clone();
            tasks.push(spawn(async move {
                let (result, got) = end.read_exact(vec![0; BYTES]).await;
                result?;
                assert!(got[..] == expected[..]);
                assert_eq!(end.read(vec![0; 1]).await.0?, 0);
                Ok(())
            }));
        }
        for task in tasks {
            task.await.or_fail()?.or_fail()?;
        }
        Ok(())
    })
}

fn tcp_ends_are_told_apart() -> Outcome {
    Builder::new().threads(1).run(async {
        let listener = TcpListener::bind("127.0.0.1:0").or_fail()?;
        let address = listener.local_addr().or_fail()?;
        let client = TcpStream::connect(address).await.or_fail()?;
        let (server, peer) = listener.accept().await.or_fail()?;
        expect_eq!(peer, client.local_addr().or_fail()?);
        server.write_all("abc").await.0.or_fail()?;
        drop(server);
        // All bytes come before the end, and an end in the midst is an error.
        let (result, got) = client.read_exact(vec![0; 5]).await;
        expect_eq!(result.map_err(|error| error.kind()), Err(ErrorKind::UnexpectedEof));
        expect_eq!(&got[..3], b"abc");
        // The first bytes to a socket that is gone are answered by a reset; then it is an error and no signal.
        let mut result = Ok(());
        for _ in 0..100 {
            result = client.write_all("more").await.0;
            if result.is_err() {
                break;
            }
            heddle_rt::nanosleep(std::time::Duration::from_millis(1).into()).await.or_fail()?;
        }
        let kind = result.map_err(|error| error.kind());
        expect!(matches!(kind, Err(ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)));
        drop(listener);
        let refused = TcpStream::connect(address).await.map_err(|error| error.kind());
        expect_eq!(refused.err(), Some(ErrorKind::ConnectionRefused));
        Ok(())
    })
}

/// No byte and no connection is lost with the future that would have had it.
fn tcp_calls_are_dropped_at_any_moment() -> Outcome {
    Builder::new().threads(2).run(async {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").or_fail()?);
        let address = listener.local_addr().or_fail()?;
        for round in 0..100_u32 {
            let waiting = spawn({
                let listener = listener.clone();
                async move { listener.accept().await.map(drop) }
            });
            for _ in 0..round % 3 {
                yield_now().await;
            }
            waiting.abort();
            expect!(waiting.await.is_err_and(|error| error.is_cancelled()));
            let client = TcpStream::connect(address).await.or_fail()?;
            let (server, _) = listener.accept().await.or_fail()?;
            expect_eq!(server.peer_addr().or_fail()?, client.local_addr().or_fail()?);
            let reading = spawn(async move { server.read(vec![0; 16]).await.0 });
            for _ in 0..round % 4 {
                yield_now().await;
            }
            if round % 2 == 0 {
                client.write_all("some").await.0.or_fail()?;
            }
            reading.abort();
            match reading.await {
                Ok(result) => expect_eq!(result.or_fail()?, 4),
                Err(error) => expect!(error.is_cancelled()),
            }
        }
        Ok(())
    })
}

fn udp_datagrams_keep_their_bounds_and_senders() -> Outcome {
    Builder::new().threads(2).run(async {
        let one = UdpSocket::bind("127.0.0.1:0").or_fail()?;
        let other = UdpSocket::bind("127.0.0.1:0").or_fail()?;
        let at = one.local_addr().or_fail()?;
        let echo = spawn(async move {
            for _ in 0..50 {
                let (result, mut buffer) = one.recv_from(vec![0; 2000]).await;
                let (length, sender) = result?;
                buffer.truncate(length);
                one.send_to(buffer, sender).await.0?;
            }
            std::io::Result::Ok(())
        });
        for number in 0..25_usize {
            expect_eq!(other.send_to(vec![1; number], at).await.0.or_fail()?, number);
            let (result, _) = other.recv_from(vec![0; 2000]).await;
            expect_eq!(result.or_fail()?, (number, at));
        }
        other.connect(at).or_fail()?;
        for number in 0..25_usize {
            expect_eq!(other.send(vec![2; number * 40]).await.0.or_fail()?, number * 40);
            let (length, buffer) = other.recv(vec![0; 2000]).await;
            expect_eq!(length.or_fail()?, number * 40);
            expect!(buffer[..number * 40].iter().all(|byte| *byte == 2));
        }
        echo.await.or_fail()?.or_fail()
    })
}

/// All connections have a request when the one thread looks, and the least urgent had it first.
fn urgent_connections_are_served_first() -> Outcome {
    Builder::new().threads(1).priority(43).run(async {
        let listener = TcpListener::bind("127.0.0.1:0").or_fail()?;
        let address = listener.local_addr().or_fail()?;
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let (mut clients, mut tasks) = (Vec::new(), Vec::new());
        for level in [42, 36, 40, 30, 38] {
            let client = std::net::TcpStream::connect(address).or_fail()?;
            let (server, _) = listener.accept().await.or_fail()?;
            let order = order.clone();
            let serving = async move {
                let _ = server.read(vec![0; 8]).await;
                if let Ok(mut order) = order.lock() {
                    order.push(level);
                }
            };
            tasks.push(try_spawn(SpawnBuilder::new().priority(level), serving).or_fail()?);
            clients.push(client);
        }
        // Each waits for its request.
        heddle_rt::nanosleep(std::time::Duration::from_millis(5).into()).await.or_fail()?;
        for mut client in clients {
            std::io::Write::write_all(&mut client, b"request").or_fail()?;
        }
        // On several processors the kernel reads on another one; the one thread does not look meanwhile.
        std::thread::sleep(std::time::Duration::from_millis(50));
        for task in tasks {
            task.await.or_fail()?;
        }
        expect_eq!(*order.lock().or_fail()?, [30, 36, 38, 40, 42]);
        Ok(())
    })
}
