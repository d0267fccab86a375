//! `/proc/sys/net`: settings that an administrator changes, and their effect.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;

use nix::errno::Errno;
use nix::sys::wait::WaitStatus;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use super::{bind, connect, get, raw_socket, ready, set};
use crate::harness::{OrFail, Outcome, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    who_may_change_them
    wrong_values_change_nothing
    ports_come_from_the_range
    unprivileged_ports
    new_sockets_begin_with_them
    a_backlog_has_a_bound
    buffers_have_a_bound
    addresses_of_others
    groups_that_may_ping
    datagrams_that_may_wait
    an_orphan_s_patience
}

const NOBODY: u32 = 65_534;

/// A setting that gets its value back in the end.
struct Setting {
    path: String,
    old: String,
}

impl Setting {
    fn open(name: &str) -> Result<Self, String> {
        let path = format!("/proc/sys/net/{name}");
        let old = fs::read_to_string(&path).or_fail()?;
        Ok(Self { path, old })
    }

    fn with(name: &str, value: &str) -> Result<Self, String> {
        let setting = Self::open(name)?;
        setting.write(value).map_err(|error| format!("{name}: {error}"))?;
        Ok(setting)
    }

    fn write(&self, value: &str) -> nix::Result<()> {
        fs::write(&self.path, value).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
    }

    fn read(&self) -> Result<String, String> {
        Ok(fs::read_to_string(&self.path).or_fail()?.trim_end().to_owned())
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, &self.old);
    }
}

/// Whether a process of another user, who is in no group but his own, finds `body` to be true.
fn as_nobody(body: impl FnOnce() -> bool) -> Result<bool, String> {
    let status = in_child(|| {
        let (group, user) = (Gid::from_raw(NOBODY), Uid::from_raw(NOBODY));
        let is_changed = setgroups(&[]).is_ok()
            && setresgid(group, group, group).is_ok()
            && setresuid(user, user, user).is_ok();
        if is_changed { i32::from(body()) } else { 2 }
    })?;
    match status {
        WaitStatus::Exited(_, answer @ 0..=1) => Ok(answer == 1),
        other => Err(format!("{other:?}")),
    }
}

fn here(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn who_may_change_them() -> Outcome {
    let setting = Setting::open("ipv4/tcp_keepalive_time")?;
    expect!(as_nobody(|| setting.write("100") == Err(Errno::EACCES))?);
    expect!(as_nobody(|| fs::read_to_string(&setting.path).is_ok())?);
    expect_eq!(setting.write("100"), Ok(()));
    expect_eq!(setting.read()?, "100");
    Ok(())
}

fn wrong_values_change_nothing() -> Outcome {
    for (name, wrong) in [
        ("core/somaxconn", "-1"),
        ("ipv4/ip_default_ttl", "0"),
        ("ipv4/ip_default_ttl", "256"),
        ("ipv4/ip_local_port_range", "50000 40000"),
        ("ipv4/ip_local_port_range", "100 40000"),
        ("ipv4/ip_local_port_range", "40000 70000"),
        ("ipv4/ip_unprivileged_port_start", "40000"),
        ("ipv4/tcp_syn_retries", "0"),
        ("ipv4/tcp_syn_retries", "128"),
        ("ipv4/tcp_synack_retries", "many"),
    ] {
        let setting = Setting::open(name)?;
        let before = setting.read()?;
        expect_eq!((name, wrong, setting.write(wrong)), (name, wrong, Err(Errno::EINVAL)));
        expect_eq!((name, setting.read()?), (name, before));
    }
    let algorithm = Setting::open("ipv4/tcp_congestion_control")?;
    expect_eq!(algorithm.write("no-such-name"), Err(Errno::ENOENT));
    Ok(())
}

fn ports_come_from_the_range() -> Outcome {
    let range = Setting::with("ipv4/ip_local_port_range", "40000 40001")?;
    expect_eq!(range.read()?, "40000\t40001");
    let one = UdpSocket::bind(here(0)).or_fail()?;
    let other = UdpSocket::bind(here(0)).or_fail()?;
    let mut ports = [one.local_addr().or_fail()?.port(), other.local_addr().or_fail()?.port()];
    ports.sort_unstable();
    expect_eq!(ports, [40_000, 40_001]);
    let third = raw_socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    expect_eq!(bind(&third, here(0)), Err(Errno::EADDRINUSE));
    let listener = TcpListener::bind(here(0)).or_fail()?;
    expect!((40_000..=40_001).contains(&listener.local_addr().or_fail()?.port()));
    let client = TcpStream::connect(listener.local_addr().or_fail()?).or_fail()?;
    expect!((40_000..=40_001).contains(&client.local_addr().or_fail()?.port()));
    Ok(())
}

fn unprivileged_ports() -> Outcome {
    let denied = |error: std::io::Error| error.raw_os_error() == Some(libc::EACCES);
    expect!(as_nobody(|| UdpSocket::bind(here(700)).is_err_and(denied))?);
    let start = Setting::with("ipv4/ip_unprivileged_port_start", "700")?;
    expect_eq!(start.read()?, "700");
    expect!(as_nobody(|| UdpSocket::bind(here(700)).is_ok())?);
    expect!(as_nobody(|| UdpSocket::bind(here(699)).is_err_and(denied))?);
    Ok(())
}

fn new_sockets_begin_with_them() -> Outcome {
    let before = raw_socket(libc::AF_INET6, libc::SOCK_STREAM)?;
    let _settings = [
        Setting::with("ipv4/tcp_keepalive_time", "11")?,
        Setting::with("ipv4/tcp_keepalive_intvl", "12")?,
        Setting::with("ipv4/tcp_keepalive_probes", "13")?,
        Setting::with("ipv4/tcp_syn_retries", "4")?,
        Setting::with("ipv4/tcp_fin_timeout", "15")?,
        Setting::with("ipv4/ip_default_ttl", "16")?,
        Setting::with("ipv6/bindv6only", "1")?,
        Setting::with("ipv4/tcp_congestion_control", "reno")?,
    ];
    let socket = raw_socket(libc::AF_INET6, libc::SOCK_STREAM)?;
    for (level, option, value) in [
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 11),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 12),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 13),
        (libc::IPPROTO_TCP, libc::TCP_SYNCNT, 4),
        (libc::IPPROTO_TCP, libc::TCP_LINGER2, 15),
        (libc::IPPROTO_IP, libc::IP_TTL, 16),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1),
    ] {
        expect_eq!((option, get(&socket, level, option)), (option, Ok(value)));
    }
    expect_eq!(get(&before, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY), Ok(0));
    let mut name = [0_u8; 16];
    let mut length = 16;
    // SAFETY: both live through the call.
    let result = unsafe {
        libc::getsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&socket),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    expect_eq!((result, &name[..4]), (0, b"reno".as_slice()));
    Ok(())
}

fn a_backlog_has_a_bound() -> Outcome {
    let _bound = Setting::with("core/somaxconn", "1")?;
    let listener = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    bind(&listener, here(0)).or_fail()?;
    // SAFETY: the call takes no pointers.
    let result = unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&listener), 100) };
    expect_eq!(result, 0);
    let listener = TcpListener::from(listener);
    let address = listener.local_addr().or_fail()?;
    let knock = || -> Result<_, String> {
        let client = raw_socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
        let _ = connect(&client, address);
        Ok((ready(&client, libc::POLLOUT), client))
    };
    // Two may wait where one was asked for.
    let (one, _first) = knock()?;
    let (two, _second) = knock()?;
    let (three, _third) = knock()?;
    expect_eq!((one, two, three), (libc::POLLOUT, libc::POLLOUT, 0));
    Ok(())
}

fn buffers_have_a_bound() -> Outcome {
    let _bounds = [Setting::with("core/wmem_max", "100000")?, Setting::with("core/rmem_max", "50000")?];
    let socket = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    for (option, doubled) in [(libc::SO_SNDBUF, 200_000), (libc::SO_RCVBUF, 100_000)] {
        set(&socket, libc::SOL_SOCKET, option, 1 << 20).or_fail()?;
        expect_eq!((option, get(&socket, libc::SOL_SOCKET, option)), (option, Ok(doubled)));
    }
    Ok(())
}

fn addresses_of_others() -> Outcome {
    let foreign = SocketAddr::from((Ipv4Addr::new(203, 0, 113, 1), 0));
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
        expect_eq!(bind(&raw_socket(libc::AF_INET, kind)?, foreign), Err(Errno::EADDRNOTAVAIL));
        let _allowed = Setting::with("ipv4/ip_nonlocal_bind", "1")?;
        expect_eq!(bind(&raw_socket(libc::AF_INET, kind)?, foreign), Ok(()));
    }
    Ok(())
}

fn groups_that_may_ping() -> Outcome {
    // SAFETY: the calls take no pointers.
    let open = || unsafe {
        let number = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP);
        let result = Errno::result(number);
        libc::close(number);
        result.map(drop)
    };
    let groups = Setting::with("ipv4/ping_group_range", "0 100")?;
    expect_eq!(open(), Ok(()));
    expect!(as_nobody(|| open() == Err(Errno::EACCES))?);
    groups.write("0 65534").or_fail()?;
    expect!(as_nobody(|| open() == Ok(()))?);
    groups.write("9 5").or_fail()?;
    expect_eq!(groups.read()?, "1\t0");
    expect_eq!(open(), Err(Errno::EACCES));
    Ok(())
}

fn datagrams_that_may_wait() -> Outcome {
    let _bound = Setting::with("unix/max_dgram_qlen", "2")?;
    let path = format!("/tmp/datagrams-{}", std::process::id());
    let receiver = UnixDatagram::bind(&path).or_fail()?;
    let sender = UnixDatagram::unbound().or_fail()?;
    sender.set_nonblocking(true).or_fail()?;
    let sent = (0..10).take_while(|_| sender.send_to(b"x", &path).is_ok()).count();
    drop(receiver);
    fs::remove_file(&path).or_fail()?;
    expect_eq!(sent, 3);
    Ok(())
}

fn an_orphan_s_patience() -> Outcome {
    let socket = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    for (asked, kept) in [(5, 5), (-7, -1), (1000, 120), (0, 60)] {
        set(&socket, libc::IPPROTO_TCP, libc::TCP_LINGER2, asked).or_fail()?;
        expect_eq!((asked, get(&socket, libc::IPPROTO_TCP, libc::TCP_LINGER2)), (asked, Ok(kept)));
    }
    Ok(())
}
