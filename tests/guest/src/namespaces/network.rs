//! Network namespaces, network_namespaces(7): interfaces, ports, abstract names, settings, and what rights count for.
#![allow(unsafe_code, reason = "requests about interfaces have no safe form")]

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

use crate::harness::{OrFail, Outcome};
use crate::mounts::Stage;
use crate::mounts::namespace::{apart, ask, clone_with, link};
use crate::namespaces::users::{become_root_inside, errno, leave_as};
use crate::{expect, expect_eq};

crate::tests! {
    a_new_network_has_a_loopback_that_is_down
    a_loopback_goes_up_and_down
    the_loopback_of_the_first_network_stays
    ports_are_the_namespaces_own
    abstract_names_are_the_namespaces_own
    paths_lead_to_sockets_of_others
    a_socket_stays_in_its_namespace
    a_network_lives_by_its_socket
    lists_are_the_namespaces_own
    settings_are_the_namespaces_own
    a_network_is_made_with_a_child
    a_network_is_entered
    requests_about_the_loopback_change_it
    rights_count_in_the_owner
    networks_are_counted
    many_networks_come_and_go
    sockets_tell_their_network
}

const NS_GET_NSTYPE: u64 = 0xb703;
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const LOOPBACK_V6: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::LOCALHOST), 0);

fn leave() -> Outcome {
    unshare(CloneFlags::CLONE_NEWNET).or_fail()
}

/// A `struct ifreq` about `lo`.
#[repr(C, align(8))]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

fn flags_of_loopback(number: u64, flags: u16) -> Result<u16, Errno> {
    let mut request = Request { name: [0; 16], flags, rest: [0; 22] };
    request.name[..2].copy_from_slice(b"lo");
    let datagrams = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::empty(), None)?;
    // SAFETY: the structure that both requests are about.
    Errno::result(unsafe { libc::ioctl(datagrams.as_raw_fd(), number, &raw mut request) })?;
    Ok(request.flags)
}

fn is_up() -> Result<bool, Errno> {
    Ok(flags_of_loopback(libc::SIOCGIFFLAGS, 0)? & 1 != 0)
}

fn set_up(is_up: bool) -> Result<(), Errno> {
    flags_of_loopback(libc::SIOCSIFFLAGS, u16::from(is_up)).map(drop)
}

/// Connects a socket to a port of 127.0.0.1.
fn connect_to(socket: i32, port: u16) -> Result<i32, Errno> {
    let to = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be() },
        sin_zero: [0; 8],
    };
    let length = size_of::<libc::sockaddr_in>() as u32;
    // SAFETY: an address of this length.
    Errno::result(unsafe { libc::connect(socket, (&raw const to).cast(), length) })
}

/// A byte there and back over TCP.
fn exchange(address: SocketAddr) -> Outcome {
    let listener = TcpListener::bind(address).or_fail()?;
    let mut client = TcpStream::connect(listener.local_addr().or_fail()?).or_fail()?;
    let (mut server, _) = listener.accept().or_fail()?;
    client.write_all(b"x").or_fail()?;
    let mut byte = [0];
    server.read_exact(&mut byte).or_fail()?;
    expect_eq!(byte, *b"x");
    Ok(())
}

fn a_new_network_has_a_loopback_that_is_down() -> Outcome {
    apart(|| {
        let before = link("net")?;
        expect!(before.starts_with("net:["));
        leave()?;
        expect!(link("net")? != before);
        expect_eq!(is_up(), Ok(false));
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        expect_eq!(
            TcpStream::connect(to).map(drop).map_err(|error| errno(&error)),
            Err(Some(Errno::ENETUNREACH))
        );
        let bound = TcpListener::bind(LOOPBACK_V6).map(drop).map_err(|error| errno(&error));
        expect_eq!(bound, Err(Some(Errno::EADDRNOTAVAIL)));
        let any = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).or_fail()?;
        expect_eq!(any.send_to(b"x", to).map_err(|error| errno(&error)), Err(Some(Errno::ENETUNREACH)));
        let devices = fs::read_to_string("/proc/net/dev").or_fail()?;
        expect_eq!(devices.lines().filter(|line| line.contains(": ")).count(), 1);
        expect_eq!(fs::read_to_string("/proc/net/if_inet6").or_fail()?, "");
        Ok(())
    })
}

fn a_loopback_goes_up_and_down() -> Outcome {
    apart(|| {
        leave()?;
        set_up(true).or_fail()?;
        expect_eq!(is_up(), Ok(true));
        exchange(LOOPBACK)?;
        exchange(LOOPBACK_V6)?;
        expect_eq!(fs::read_to_string("/proc/net/if_inet6").or_fail()?.lines().count(), 1);
        set_up(false).or_fail()?;
        expect_eq!(is_up(), Ok(false));
        expect_eq!(fs::read_to_string("/proc/net/if_inet6").or_fail()?, "");
        set_up(true).or_fail()?;
        exchange(LOOPBACK)?;
        exchange(LOOPBACK_V6)
    })
}

fn the_loopback_of_the_first_network_stays() -> Outcome {
    apart(|| {
        leave()?;
        set_up(true).or_fail()?;
        set_up(false).or_fail()
    })?;
    expect_eq!(is_up(), Ok(true));
    exchange(LOOPBACK)
}

fn ports_are_the_namespaces_own() -> Outcome {
    let outside = TcpListener::bind(LOOPBACK).or_fail()?;
    let address = outside.local_addr().or_fail()?;
    apart(|| {
        leave()?;
        set_up(true).or_fail()?;
        expect_eq!(
            TcpStream::connect(address).map(drop).map_err(|error| error.kind()),
            Err(ErrorKind::ConnectionRefused)
        );
        let inside = TcpListener::bind(address).or_fail()?;
        let datagrams = UdpSocket::bind(address).or_fail()?;
        expect_eq!(datagrams.send_to(b"x", address).or_fail()?, 1);
        TcpStream::connect(address).or_fail()?;
        inside.accept().map(drop).or_fail()
    })?;
    outside.set_nonblocking(true).or_fail()?;
    expect_eq!(outside.accept().map(drop).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    Ok(())
}

fn abstract_name(name: &str) -> Result<UnixAddress, String> {
    UnixAddress::from_abstract_name(name).or_fail()
}

fn abstract_names_are_the_namespaces_own() -> Outcome {
    let name = abstract_name("heddle-network-namespace")?;
    let _outside = UnixListener::bind_addr(&name).or_fail()?;
    apart(|| {
        leave()?;
        let refused = UnixStream::connect_addr(&name).map(drop).map_err(|error| error.kind());
        expect_eq!(refused, Err(ErrorKind::ConnectionRefused));
        let inside = UnixListener::bind_addr(&name).or_fail()?;
        UnixStream::connect_addr(&name).or_fail()?;
        inside.accept().map(drop).or_fail()?;
        let taken = UnixListener::bind_addr(&name).map(drop).map_err(|error| error.kind());
        expect_eq!(taken, Err(ErrorKind::AddrInUse));
        Ok(())
    })?;
    UnixStream::connect_addr(&name).map(drop).or_fail()
}

fn paths_lead_to_sockets_of_others() -> Outcome {
    let stage = Stage::new("network-paths")?;
    let path = stage.directory("one")?.join("socket");
    let outside = UnixListener::bind(&path).or_fail()?;
    apart(|| {
        leave()?;
        let mut stream = UnixStream::connect(&path).or_fail()?;
        stream.write_all(b"x").or_fail()
    })?;
    let mut byte = [0];
    outside.accept().or_fail()?.0.read_exact(&mut byte).or_fail()?;
    expect_eq!(byte, *b"x");
    Ok(())
}

fn a_socket_stays_in_its_namespace() -> Outcome {
    let outside = TcpListener::bind(LOOPBACK).or_fail()?;
    let address = outside.local_addr().or_fail()?;
    apart(|| {
        let first = fs::File::open("/proc/self/ns/net").or_fail()?;
        let before = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).or_fail()?;
        leave()?;
        let stream = TcpStream::from(before);
        connect_to(stream.as_raw_fd(), address.port()).or_fail()?;
        // A connection that is accepted is where the listener is.
        set_up(true).or_fail()?;
        let inside = TcpListener::bind(LOOPBACK).or_fail()?;
        let client = TcpStream::connect(inside.local_addr().or_fail()?).or_fail()?;
        setns(&first, CloneFlags::CLONE_NEWNET).or_fail()?;
        let (mut server, _) = inside.accept().or_fail()?;
        (&client).write_all(b"x").or_fail()?;
        let mut byte = [0];
        server.read_exact(&mut byte).or_fail()?;
        exchange(LOOPBACK)
    })?;
    outside.accept().map(drop).or_fail()
}

fn a_network_lives_by_its_socket() -> Outcome {
    apart(|| {
        let first = fs::File::open("/proc/self/ns/net").or_fail()?;
        leave()?;
        set_up(true).or_fail()?;
        let listener = TcpListener::bind(LOOPBACK).or_fail()?;
        let address = listener.local_addr().or_fail()?;
        let client = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).or_fail()?;
        setns(&first, CloneFlags::CLONE_NEWNET).or_fail()?;
        connect_to(client.as_raw_fd(), address.port()).or_fail()?;
        listener.accept().map(drop).or_fail()
    })
}

fn lists_are_the_namespaces_own() -> Outcome {
    let _tcp = TcpListener::bind(LOOPBACK).or_fail()?;
    let _name = UnixListener::bind_addr(&abstract_name("heddle-network-list")?).or_fail()?;
    let read = |path: &str| fs::read_to_string(path).or_fail();
    let listed = |text: &str| text.contains("heddle-network-list");
    apart(|| {
        let outer = std::process::id();
        expect!(listed(&read("/proc/net/unix")?));
        expect!(read("/proc/net/tcp")?.lines().count() > 1);
        apart(|| {
            leave()?;
            expect!(!listed(&read("/proc/net/unix")?));
            expect_eq!(read("/proc/net/tcp")?.lines().count(), 1);
            // Those of another process are of its namespace.
            expect!(listed(&read(&format!("/proc/{outer}/net/unix"))?));
            expect!(read(&format!("/proc/{outer}/net/tcp"))?.lines().count() > 1);
            set_up(true).or_fail()?;
            let _inside = TcpListener::bind(LOOPBACK).or_fail()?;
            expect_eq!(read("/proc/net/tcp")?.lines().count(), 2);
            Ok(())
        })
    })
}

fn settings_are_the_namespaces_own() -> Outcome {
    let name = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    let before = fs::read_to_string(name).or_fail()?;
    apart(|| {
        leave()?;
        expect_eq!(fs::read_to_string(name).or_fail()?, "1024\n");
        fs::write(name, "80").or_fail()?;
        expect_eq!(fs::read_to_string(name).or_fail()?, "80\n");
        Ok(())
    })?;
    expect_eq!(fs::read_to_string(name).or_fail()?, before);
    Ok(())
}

fn a_network_is_made_with_a_child() -> Outcome {
    fn inside() -> i32 {
        let is_down = is_up() == Ok(false);
        i32::from(!is_down)
    }
    expect_eq!(clone_with(libc::CLONE_NEWNET, inside), Ok(0));
    expect_eq!(is_up(), Ok(true));
    Ok(())
}

fn a_network_is_entered() -> Outcome {
    apart(|| {
        let first = fs::File::open("/proc/self/ns/net").or_fail()?;
        let outside = link("net")?;
        expect_eq!(ask(&first, NS_GET_NSTYPE), Ok(libc::CLONE_NEWNET));
        leave()?;
        let inside = link("net")?;
        let second = fs::File::open("/proc/self/ns/net").or_fail()?;
        expect_eq!(setns(&first, CloneFlags::CLONE_NEWIPC), Err(Errno::EINVAL));
        setns(&first, CloneFlags::CLONE_NEWNET).or_fail()?;
        expect_eq!(link("net")?, outside);
        setns(&second, CloneFlags::empty()).or_fail()?;
        expect_eq!(link("net")?, inside);
        Ok(())
    })
}

/// Sends a message about `lo` and returns the errno of the answer.
fn ask_route(kind: u16, flags: u16, body: &[u8]) -> Result<i32, Errno> {
    let asking =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::empty(), SockProtocol::NetlinkRoute)?;
    let mut message = Vec::new();
    message.extend(u32::try_from(16 + body.len()).map_err(|_| Errno::EINVAL)?.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((flags | 5).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    sendto(asking.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = [0; 1024];
    let length = recv(asking.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let code = answer.get(16..20).filter(|_| length >= 20).and_then(|bytes| bytes.try_into().ok());
    Ok(-i32::from_ne_bytes(code.ok_or(Errno::EINVAL)?))
}

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const CREATE_EXCL: u16 = 0x600;

/// A `struct ifaddrmsg` with 127.0.0.1/8 of the interface of index 1.
fn address_body() -> Vec<u8> {
    let mut body = vec![2, 8, 0, 254];
    body.extend(1_u32.to_ne_bytes());
    for kind in [2_u16, 1] {
        body.extend(8_u16.to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend([127, 0, 0, 1]);
    }
    body
}

fn link_body(is_up: bool) -> Vec<u8> {
    let mut body = vec![0; 16];
    body[4] = 1;
    body[8] = is_up.into();
    body[12] = 1;
    body
}

fn requests_about_the_loopback_change_it() -> Outcome {
    apart(|| {
        leave()?;
        // In this order, as bubblewrap does it.
        expect_eq!(ask_route(RTM_NEWADDR, CREATE_EXCL, &address_body()), Ok(0));
        expect_eq!(ask_route(RTM_NEWADDR, CREATE_EXCL, &address_body()), Ok(libc::EEXIST));
        expect_eq!(ask_route(RTM_NEWLINK, 0, &link_body(true)), Ok(0));
        expect_eq!(is_up(), Ok(true));
        exchange(LOOPBACK)?;
        expect_eq!(ask_route(RTM_DELADDR, 0, &address_body()), Ok(0));
        expect_eq!(ask_route(RTM_DELADDR, 0, &address_body()), Ok(libc::EADDRNOTAVAIL));
        let bound = TcpListener::bind(LOOPBACK).map(drop).map_err(|error| errno(&error));
        expect_eq!(bound, Err(Some(Errno::EADDRNOTAVAIL)));
        expect_eq!(ask_route(RTM_NEWLINK, 0, &link_body(false)), Ok(0));
        expect_eq!(is_up(), Ok(false));
        Ok(())
    })
}

fn rights_count_in_the_owner() -> Outcome {
    apart(|| {
        become_root_inside()?;
        // The network is the machine's still.
        expect_eq!(set_up(true), Err(Errno::EPERM));
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 81)).map(drop).map_err(|error| errno(&error));
        expect_eq!(bound, Err(Some(Errno::EACCES)));
        let raw =
            || socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), SockProtocol::Icmp).map(drop);
        expect_eq!(raw(), Err(Errno::EPERM));
        expect_eq!(ask_route(RTM_NEWLINK, 0, &link_body(true)), Ok(libc::EPERM));
        let first = fs::File::open("/proc/self/ns/net").or_fail()?;
        leave()?;
        set_up(true).or_fail()?;
        expect_eq!(ask_route(RTM_NEWLINK, 0, &link_body(true)), Ok(0));
        exchange(SocketAddr::from((Ipv4Addr::LOCALHOST, 81)))?;
        expect_eq!(raw(), Ok(()));
        // It may not go back.
        expect_eq!(setns(&first, CloneFlags::CLONE_NEWNET), Err(Errno::EPERM));
        Ok(())
    })
}

fn networks_are_counted() -> Outcome {
    apart(|| {
        leave_as(0, 0)?;
        fs::write("/proc/sys/user/max_net_namespaces", "1").or_fail()?;
        leave()?;
        let _kept = fs::File::open("/proc/self/ns/net").or_fail()?;
        expect_eq!(unshare(CloneFlags::CLONE_NEWNET), Err(Errno::ENOSPC));
        Ok(())
    })
}

fn many_networks_come_and_go() -> Outcome {
    apart(|| {
        for _ in 0..100 {
            leave()?;
            set_up(true).or_fail()?;
            exchange(LOOPBACK)?;
        }
        // One that waits for the end of another's connection goes as well.
        let listener = TcpListener::bind(LOOPBACK).or_fail()?;
        let client = TcpStream::connect(listener.local_addr().or_fail()?).or_fail()?;
        let number = client.as_raw_fd();
        // SAFETY: a copy of the descriptor, which is closed with the program.
        let copy = unsafe { libc::dup(number) };
        expect!(copy >= 0);
        // SAFETY: it was just made.
        drop(unsafe { OwnedFd::from_raw_fd(copy) });
        leave()
    })
}

fn sockets_tell_their_network() -> Outcome {
    const SO_NETNS_COOKIE: i32 = 71;
    let cookie = |socket: &dyn AsRawFd| -> Result<u64, Errno> {
        let (mut value, mut length) = (0_u64, 8);
        let place = (&raw mut value).cast();
        // SAFETY: a number with its length.
        let result = unsafe {
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, place, &raw mut length)
        };
        Errno::result(result).map(|_| value)
    };
    let own = cookie(&UdpSocket::bind(LOOPBACK).or_fail()?).or_fail()?;
    let (stays, _) = UnixStream::pair().or_fail()?;
    expect_eq!(cookie(&stays), Ok(own));
    expect!(own != 0);
    apart(|| {
        leave()?;
        let (other, _) = UnixStream::pair().or_fail()?;
        let cookie_there = cookie(&other).or_fail()?;
        expect!(cookie_there != own && cookie_there != 0);
        let socket =
            socket(AddressFamily::Inet6, SockType::Stream, SockFlag::empty(), SockProtocol::Tcp).or_fail()?;
        expect_eq!(cookie(&socket), Ok(cookie_there));
        expect_eq!(cookie(&stays), Ok(own));
        Ok(())
    })
}
