//! Epoll on internet sockets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::{connection, listener};
use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    levels_stay
    edges_are_told_once
    a_listener_wakes_one
    ends_are_told
    many_sockets_in_one_instance
}

fn wait(epoll: &Epoll, timeout_ms: u16) -> Result<Vec<(u64, EpollFlags)>, String> {
    let mut events = [EpollEvent::empty(); 64];
    let count = epoll.wait(&mut events, EpollTimeout::from(timeout_ms)).or_fail()?;
    Ok(events[..count].iter().map(|event| (event.data(), event.events())).collect())
}

fn levels_stay() -> Outcome {
    let (mut client, mut server) = connection()?;
    let epoll = Epoll::new(EpollCreateFlags::empty()).or_fail()?;
    epoll.add(&server, EpollEvent::new(EpollFlags::EPOLLIN, 1)).or_fail()?;
    expect_eq!(wait(&epoll, 0)?, []);
    client.write_all(b"abc").or_fail()?;
    for _ in 0..2 {
        expect_eq!(wait(&epoll, 1000)?, [(1, EpollFlags::EPOLLIN)]);
    }
    server.read_exact(&mut [0; 3]).or_fail()?;
    expect_eq!(wait(&epoll, 0)?, []);
    Ok(())
}

fn edges_are_told_once() -> Outcome {
    let (mut client, mut server) = connection()?;
    let epoll = Epoll::new(EpollCreateFlags::empty()).or_fail()?;
    let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
    epoll.add(&server, EpollEvent::new(interest, 1)).or_fail()?;
    expect_eq!(wait(&epoll, 1000)?, [(1, EpollFlags::EPOLLOUT)]);
    expect_eq!(wait(&epoll, 0)?, []);
    for _ in 0..2 {
        client.write_all(b"abc").or_fail()?;
        expect_eq!(wait(&epoll, 1000)?, [(1, EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT)]);
        expect_eq!(wait(&epoll, 0)?, []);
    }
    server.read_exact(&mut [0; 6]).or_fail()?;
    Ok(())
}

fn a_listener_wakes_one() -> Outcome {
    let (listener, address) = listener()?;
    let instances: Result<Vec<Epoll>, String> = (0..3)
        .map(|_| {
            let epoll = Epoll::new(EpollCreateFlags::empty()).or_fail()?;
            let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLEXCLUSIVE;
            epoll.add(&listener, EpollEvent::new(interest, 1)).or_fail()?;
            Ok(epoll)
        })
        .collect();
    let _client = TcpStream::connect(address).or_fail()?;
    let told =
        instances?.iter().filter(|epoll| wait(epoll, 0).is_ok_and(|events| !events.is_empty())).count();
    expect!(told >= 1);
    listener.accept().or_fail()?;
    Ok(())
}

fn ends_are_told() -> Outcome {
    let (client, server) = connection()?;
    let epoll = Epoll::new(EpollCreateFlags::empty()).or_fail()?;
    let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
    epoll.add(&server, EpollEvent::new(interest, 1)).or_fail()?;
    client.shutdown(Shutdown::Write).or_fail()?;
    expect_eq!(wait(&epoll, 1000)?, [(1, interest)]);
    server.shutdown(Shutdown::Write).or_fail()?;
    expect_eq!(wait(&epoll, 1000)?, [(1, interest | EpollFlags::EPOLLHUP)]);
    Ok(())
}

fn many_sockets_in_one_instance() -> Outcome {
    let epoll = Epoll::new(EpollCreateFlags::empty()).or_fail()?;
    let mut sockets = Vec::new();
    for number in 0..50 {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
        epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, number)).or_fail()?;
        sockets.push(socket);
    }
    let one = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    for number in [3_usize, 33] {
        one.send_to(b"x", sockets[number].local_addr().or_fail()?).or_fail()?;
    }
    let mut told: Vec<u64> = wait(&epoll, 1000)?.into_iter().map(|event| event.0).collect();
    told.sort_unstable();
    expect_eq!(told, [3, 33]);
    expect!(sockets[0].as_raw_fd() >= 0);
    Ok(())
}
