//! The machine's network as this host sees it: published ports, outgoing connections, two machines on one link.

mod bad_link;
mod dhcp;
pub mod long;
mod web;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::process::{Output, RUN_TIMEOUT, heddle_run, run, wait};
use super::streams::Test;
use crate::guest::Kernel;

/// All tests of this module.
pub const TESTS: [Test; 21] = [
    ("a published port leads to nginx", published),
    ("a published port leads to nginx with two workers on two processors", published_on_two),
    ("a published port leads to a python server on four processors", published_on_four),
    ("a server on tokio and hyper", |kernel| web::serve(kernel, "1")),
    ("a server on tokio and hyper on two processors", |kernel| web::serve(kernel, "2")),
    ("a server on tokio and hyper on four processors", |kernel| web::serve(kernel, "4")),
    ("a published port of an IPv6 address", published_v6),
    ("a published UDP port", published_udp),
    ("a taken port is refused before the start", taken),
    ("the guest reaches this host", outgoing),
    ("without a network there is the loopback", none),
    ("two machines on a socket, this kernel listening", joined_as_server),
    ("two machines on a socket, this kernel connecting", joined_as_client),
    ("two machines over a bad link, this kernel listening", bad_link::as_server),
    ("two machines over a bad link, this kernel connecting", bad_link::as_client),
    ("an address by DHCP from QEMU's server", dhcp::of_qemu),
    ("an address by DHCP that is renewed, ends and comes again", dhcp::of_a_server),
    ("an address by DHCP that another machine has", dhcp::of_a_taken_address),
    ("an address by DHCP is given back", dhcp::given_back),
    ("an address by DHCP over a bad link", dhcp::over_a_bad_link),
    ("an address by DHCP that nobody gives", dhcp::of_nobody),
];

/// The pause between attempts to reach a guest.
const RETRY: Duration = Duration::from_millis(100);
/// How long an answer from a guest is waited for.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn expect<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found:?}, expected {expected:?}")) }
}

/// A machine that runs until it is dropped.
struct Server(Child);

impl Server {
    fn start(kernel: Kernel, arguments: &[&str]) -> Result<Self, String> {
        let mut command = heddle_run(kernel, arguments).map_err(text)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        Ok(Self(command.spawn().map_err(text)?))
    }

    /// The first success of `attempt`, as long as the machine runs.
    fn until<R>(&mut self, mut attempt: impl FnMut() -> Result<R, String>) -> Result<R, String> {
        let deadline = Instant::now() + RUN_TIMEOUT;
        loop {
            let last = match attempt() {
                Ok(result) => return Ok(result),
                Err(error) => error,
            };
            if let Some(status) = self.0.try_wait().map_err(text)? {
                return Err(format!("the machine ended ({status}): {last}"));
            }
            if Instant::now() > deadline {
                return Err(last);
            }
            sleep(RETRY);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A TCP port of this host that was free a moment ago.
fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(text)?;
    Ok(listener.local_addr().map_err(text)?.port())
}

/// A connection whose reads end.
fn connect(address: SocketAddr) -> Result<TcpStream, String> {
    let stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT).map_err(text)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(text)?;
    Ok(stream)
}

/// Asks for a file over a connection that stays. Returns its contents.
fn get(stream: &mut BufReader<TcpStream>, path: &str) -> Result<Vec<u8>, String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: guest\r\n\r\n");
    stream.get_mut().write_all(request.as_bytes()).map_err(text)?;
    let mut length = None;
    let mut line = String::new();
    stream.read_line(&mut line).map_err(text)?;
    if !line.contains(" 200 ") {
        return Err(format!("answered {line:?}"));
    }
    while line.trim() != "" {
        line.clear();
        if stream.read_line(&mut line).map_err(text)? == 0 {
            return Err(String::from("the answer was cut off"));
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().ok();
        }
    }
    let mut body = vec![0; length.ok_or("no length")?];
    stream.read_exact(&mut body).map_err(text)?;
    Ok(body)
}

fn get_once(address: SocketAddr, path: &str) -> Result<Vec<u8>, String> {
    get(&mut BufReader::new(connect(address)?), path)
}

/// Asks a server at `address` for the numbers to 100,000 in all the ways that browsers do, `askers` at a time.
fn check_numbers(server: &mut Server, address: SocketAddr, keeps: bool, askers: usize) -> Result<(), String> {
    let numbers: Vec<u8> = (1..=100_000).flat_map(|number| format!("{number}\n").into_bytes()).collect();
    expect(server.until(|| get_once(address, "/numbers"))? == numbers, true)?;
    if keeps {
        let mut stream = BufReader::new(connect(address)?);
        for _ in 0..3 {
            expect(get(&mut stream, "/numbers")? == numbers, true)?;
        }
    }
    std::thread::scope(|scope| {
        let askers: Vec<_> = (0..askers).map(|_| scope.spawn(|| get_once(address, "/numbers"))).collect();
        for asker in askers {
            let answer = asker.join().map_err(|_| String::from("a thread panicked"))?;
            expect(answer? == numbers, true)?;
        }
        Ok(())
    })
}

/// Runs nginx with the numbers to 100,000 and asks for them.
fn nginx(kernel: Kernel, processors: &str) -> Result<(), String> {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let publish = format!("{address}:80");
    let script = "seq 1 100000 > /var/www/html/numbers; sed -i s/auto/2/ /etc/nginx/nginx.conf; \
                  exec nginx -g 'daemon off;'";
    let arguments =
        ["--smp", processors, "-p", &publish, "--deb", "nginx-light,sed", "--", "sh", "-c", script];
    let mut server = Server::start(kernel, &arguments)?;
    check_numbers(&mut server, address, true, 8)
}

fn published(kernel: Kernel) -> Result<(), String> {
    nginx(kernel, "1")
}

fn published_on_two(kernel: Kernel) -> Result<(), String> {
    nginx(kernel, "2")
}

fn published_on_four(kernel: Kernel) -> Result<(), String> {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let publish = format!("{address}:8000");
    let script = "mkdir /tmp/www; seq 1 100000 > /tmp/www/numbers; cd /tmp/www; exec python3 -m http.server";
    let arguments = ["--smp", "4", "-p", &publish, "--deb", "python3", "--", "sh", "-c", script];
    let mut server = Server::start(kernel, &arguments)?;
    // Python's server has a backlog of 5: a connection beyond that waits for QEMU to send its SYN again.
    check_numbers(&mut server, address, false, 4)
}

fn published_v6(kernel: Kernel) -> Result<(), String> {
    let address: SocketAddr = format!("[::1]:{}", free_port()?).parse().map_err(text)?;
    let publish = format!("{address}:80");
    let script = "mkdir /www; seq 1 100000 > /www/numbers; exec busybox httpd -f -p 80 -h /www";
    let arguments = ["-p", &publish, "--deb", "busybox", "--", "sh", "-c", script];
    let mut server = Server::start(kernel, &arguments)?;
    check_numbers(&mut server, address, false, 8)
}

fn published_udp(kernel: Kernel) -> Result<(), String> {
    let port = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).map_err(text)?.port();
    let publish = format!("127.0.0.1:{port}:5000/udp");
    let script = "import socket\n\
                  s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
                  s.bind((\"\", 5000))\n\
                  while True:\n    data, name = s.recvfrom(65536)\n    s.sendto(data.upper(), name)\n";
    let mut server =
        Server::start(kernel, &["-p", &publish, "--deb", "python3", "--", "python3", "-c", script])?;
    let socket = UdpSocket::bind("127.0.0.1:0").map_err(text)?;
    socket.set_read_timeout(Some(Duration::from_millis(300))).map_err(text)?;
    let mut ask = |question: &[u8]| {
        server.until(|| {
            socket.send_to(question, ("127.0.0.1", port)).map_err(text)?;
            let mut answer = [0; 2048];
            let (length, _) = socket.recv_from(&mut answer).map_err(text)?;
            Ok(answer[..length].to_vec())
        })
    };
    expect(ask(b"question")?, b"QUESTION".to_vec())?;
    // An answer to a question that was asked twice may still come.
    let long = vec![b'a'; 1400];
    let answer = ask(&long)?;
    let answer = if answer == b"QUESTION" { ask(&long)? } else { answer };
    expect(answer == vec![b'A'; 1400], true)
}

/// Runs a script to its end; its output, if it ends well.
fn run_script(kernel: Kernel, options: &[&str], script: &str) -> Result<String, String> {
    let arguments = [options, &["--", "bash", "-c", script]].concat();
    let mut command = heddle_run(kernel, &arguments).map_err(text)?;
    let output = run(&mut command, b"", RUN_TIMEOUT).map_err(text)?;
    match output {
        Output { status: Some(0), .. } => Ok(output.text()),
        Output { status, .. } => {
            Err(format!("{status:?}: {} {}", output.text(), String::from_utf8_lossy(&output.stderr)))
        }
    }
}

fn outgoing(kernel: Kernel) -> Result<(), String> {
    outgoing_with(kernel, &[])
}

fn outgoing_with(kernel: Kernel, options: &[&str]) -> Result<(), String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
    let port = listener.local_addr().map_err(text)?.port();
    let answering = std::thread::spawn(move || -> std::io::Result<usize> {
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let mut question = vec![0; 200_000];
        stream.read_exact(&mut question)?;
        stream.write_all(&vec![b'y'; 300_000])?;
        Ok(question.iter().filter(|&&byte| byte == b'x').count())
    });
    let script = format!(
        "exec 3<>/dev/tcp/10.0.2.2/{port} && head -c 200000 /dev/zero | tr '\\0' x >&3 && tr -d '\\n' <&3 | wc -c"
    );
    let options = [options, &["--deb", "bash,coreutils"]].concat();
    let output = run_script(kernel, &options, &script)?;
    expect(output.trim(), "300000")?;
    let asked = answering.join().map_err(|_| String::from("a thread panicked"))?;
    expect(asked.map_err(text)?, 200_000)
}

fn taken(kernel: Kernel) -> Result<(), String> {
    let holder = TcpListener::bind("127.0.0.1:0").map_err(text)?;
    let publish = format!("{}:80", holder.local_addr().map_err(text)?);
    let mut command = heddle_run(kernel, &["-p", &publish, "true"]).map_err(text)?;
    let output = run(&mut command, b"", RUN_TIMEOUT).map_err(text)?;
    expect(output.status, Some(crate::STATUS_TOOL_FAILED.into()))?;
    expect(output.complaints().contains("the port is taken"), true)
}

fn none(kernel: Kernel) -> Result<(), String> {
    let script = "ls /sys/class/net; cat /proc/cmdline | grep -c heddle.net=; (exec 3<>/dev/tcp/10.0.2.2/80) 2>&1 | \
                  sed 's/.*: //' | head -1; exit 0";
    let output = run_script(kernel, &["--net", "none"], script)?;
    expect(output, String::from("lo\n0\nNetwork is unreachable\n"))
}

/// A server on one kernel and a client on the other, with the names of the link's addresses.
fn joined(server: Kernel, client: Kernel) -> Result<(), String> {
    let path = std::env::temp_dir().join(format!("heddle-link-{}-{}", std::process::id(), server.name()));
    let net = format!("socket={}", path.display());
    let serve = "import socket\n\
                 for family, address in ((socket.AF_INET, '0.0.0.0'), (socket.AF_INET6, '::')):\n    \
                 s = socket.create_server((address, 7000), family=family)\n    \
                 c, name = s.accept()\n    data = b''\n    \
                 while more := c.recv(65536): data += more\n    \
                 c.sendall(data[::-1])\n    c.close(); s.close()\n    print(name[0], len(data), flush=True)\n";
    let ask = "import socket, time\n\
               data = bytes(i % 251 for i in range(300000))\n\
               for address in ('10.0.3.1', 'fd00:3::1'):\n    \
               for attempt in range(300):\n        try:\n            \
               c = socket.create_connection((address, 7000), timeout=20)\n            break\n        \
               except OSError as error:\n            last = error; time.sleep(0.1)\n    \
               else: raise last\n    \
               c.sendall(data); c.shutdown(socket.SHUT_WR)\n    answer = b''\n    \
               while more := c.recv(65536): answer += more\n    print(answer == data[::-1])\n";
    let mut first = heddle_run(server, &["--net", &net, "--deb", "python3", "--", "python3", "-c", serve])
        .map_err(text)?;
    let mut first = first.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(text)?;
    let deadline = Instant::now() + RUN_TIMEOUT;
    while !path.exists() && Instant::now() < deadline {
        sleep(RETRY);
    }
    let second = heddle_run(client, &["--net", &net, "--deb", "python3", "--", "python3", "-c", ask]);
    let answer = second.and_then(|mut second| run(&mut second, b"", RUN_TIMEOUT)).map_err(text);
    let ended = wait(&mut first, ANSWER_LIMIT);
    let mut served = String::new();
    first.stdout.take().map(|mut stdout| stdout.read_to_string(&mut served));
    let answer = answer?;
    expect(answer.text(), String::from("True\nTrue\n"))
        .map_err(|error| format!("{error}; {}", String::from_utf8_lossy(&answer.stderr)))?;
    expect(ended, Some(0))?;
    expect(served, String::from("10.0.3.2 300000\nfd00:3::2 300000\n"))
}

fn joined_as_server(kernel: Kernel) -> Result<(), String> {
    joined(kernel, Kernel::Linux)
}

fn joined_as_client(kernel: Kernel) -> Result<(), String> {
    joined(Kernel::Linux, kernel)
}
