//! Addresses by DHCP: of QEMU's own server, of busybox's in a second machine, and of none.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{RETRY, bad_link, expect, outgoing_with, text};
use crate::guest::Kernel;
use crate::testing::process::{RUN_TIMEOUT, heddle_run, run};

/// Shows what a lease has set up.
const SETTINGS: &str =
    "address() { busybox ip -4 -o addr show eth0 | busybox sed -n 's/.* inet \\([0-9./]*\\).*/\\1/p'; }
    address; busybox ip route show default | busybox sed -n 's/default via \\([0-9.]*\\).*/\\1/p'
    busybox ip route | busybox sed -n 's/^\\(10.7.0.0.16 via [0-9.]*\\).*/\\1/p'
    busybox cat /etc/resolv.conf; busybox hostname; busybox cat /sys/class/net/eth0/mtu; ";

/// Waits for the address, which comes after the program's start where machines are slow.
const ARRIVAL: &str =
    "until busybox ip -4 -o addr show eth0 | busybox grep -q inet; do busybox sleep 0.2; done; ";

/// Goes on to show the address and the MTU, now and whenever they change.
const WATCH: &str = "last=
    while busybox sleep 0.2; do
        now=$(address); now=\"${now:-none} $(busybox cat /sys/class/net/eth0/mtu)\"
        [ \"$now\" = \"$last\" ] || echo \"now $now\"; last=$now
    done";

/// A server with few addresses to give, for some seconds at a time. Each line of input stops it, and shows its leases,
/// or starts it again. Its router is for clients that don't know of other routes.
const SERVE: &str = "busybox cat > /tmp/conf <<'END'
start 10.0.3.50
end 10.0.3.LAST
interface eth0
min_lease 4
lease_file /tmp/leases
pidfile /tmp/pid
option subnet 255.255.255.0
option router 10.0.3.1
option dns 10.0.3.1 10.0.3.9
option domain example.net
option hostname given
option mtu 1400
option staticroutes 0.0.0.0/0 10.0.3.7, 10.7.0.0/16 10.0.3.8
option lease SECONDS
END
    : > /tmp/leases
    while
        busybox udhcpd -f -a 100 /tmp/conf 2>&1 &
        read line
    do
        kill $!; wait $!; busybox dumpleases -f /tmp/leases; echo stopped; read line || break
    done";

/// The settings of that server.
const GIVEN: [&str; 8] = [
    "10.0.3.50/24",
    "10.0.3.7",
    "10.7.0.0/16 via 10.0.3.8",
    "search example.net",
    "nameserver 10.0.3.1",
    "nameserver 10.0.3.9",
    "given",
    "1400",
];

/// A machine that is told and heard while it runs.
struct Talker {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Talker {
    fn start(kernel: Kernel, arguments: &[&str]) -> Result<Self, String> {
        let mut command = heddle_run(kernel, arguments).map_err(text)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().map_err(text)?;
        let (sender, lines) = channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                // Nobody hears what comes after the test.
                lines.for_each(|line| drop(sender.send(line)));
            });
        }
        Ok(Self { input: child.stdin.take(), child, lines })
    }

    fn line(&self) -> Result<String, String> {
        self.lines.recv_timeout(RUN_TIMEOUT).map_err(|error| format!("no line: {error}"))
    }

    /// Waits until `is_it` says so of a line.
    fn until(&self, what: &str, mut is_it: impl FnMut(&str) -> bool) -> Result<(), String> {
        let deadline = Instant::now() + RUN_TIMEOUT;
        let mut heard = Vec::new();
        while Instant::now() < deadline {
            let line = self.line().map_err(|error| format!("{what}: {error} after {heard:?}"))?;
            if is_it(&line) {
                return Ok(());
            }
            heard.push(line);
        }
        Err(format!("{what}: only {heard:?}"))
    }

    fn tell(&mut self, line: &str) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("no input")?;
        writeln!(input, "{line}").map_err(text)
    }

    /// The settings that its first lines show.
    fn settings(&self) -> Result<(), String> {
        let lines = (0..GIVEN.len()).map(|_| self.line()).collect::<Result<Vec<_>, _>>()?;
        expect(lines, GIVEN.map(str::to_owned).to_vec())
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The place of a link's socket, which is removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("heddle-dhcp-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn net(&self) -> String {
        format!("socket={}", self.0.display())
    }

    /// Waits until a machine listens here.
    fn wait(&self) {
        let deadline = Instant::now() + RUN_TIMEOUT;
        while !self.0.exists() && Instant::now() < deadline {
            sleep(RETRY);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn server(place: &Place, seconds: u32) -> Result<Talker, String> {
    server_with(place, seconds, 1, "")
}

/// A server of so many addresses from 10.0.3.50 on, in a machine that does something before.
fn server_with(place: &Place, seconds: u32, addresses: u8, before: &str) -> Result<Talker, String> {
    let serve = SERVE.replace("SECONDS", &seconds.to_string()).replace("LAST", &(49 + addresses).to_string());
    let script = format!("{before}\n{serve}");
    let net = place.net();
    let server = ["--net", &net, "--deb", "busybox", "--", "sh", "-c", &script];
    let server = Talker::start(Kernel::Linux, &server)?;
    place.wait();
    server.until("the server's start", |line| line.contains("started"))?;
    Ok(server)
}

/// QEMU's user network gives the address that is fixed otherwise.
///
/// # Errors
/// How it failed.
pub fn of_qemu(kernel: Kernel) -> Result<(), String> {
    let options = ["--net", "user", "--address", "dhcp", "--deb", "busybox"];
    let output = super::run_script(kernel, &options, SETTINGS)?;
    expect(output, String::from("10.0.2.15/24\n10.0.2.2\nnameserver 10.0.2.3\nheddle\n1500\n"))?;
    outgoing_with(kernel, &["--address", "dhcp"])
}

/// A lease of a few seconds is renewed, ends with its server, and comes again with it.
///
/// # Errors
/// How it failed.
pub fn of_a_server(kernel: Kernel) -> Result<(), String> {
    let place = Place::new(kernel.name());
    let mut server = server(&place, 12)?;
    let (net, script) = (place.net(), format!("{ARRIVAL}{SETTINGS}{WATCH}"));
    let client = ["--net", &net, "--address", "dhcp", "--deb", "busybox", "--", "sh", "-c", &script];
    let client = Talker::start(kernel, &client)?;
    client.settings()?;
    let mut is_second = false;
    server.until("a renewal", |line| {
        let is_acknowledged = line.contains("sending ACK");
        std::mem::replace(&mut is_second, is_acknowledged) && is_acknowledged
    })?;
    server.tell("stop")?;
    client.until("the end of the lease", |line| line == "now none 1500")?;
    server.tell("start")?;
    client.until("another lease", |line| line == "now 10.0.3.50/24 1400")
}

/// The server's machine itself has the first address: the client hears of it, declines the address, and gets another.
///
/// # Errors
/// How it failed.
pub fn of_a_taken_address(kernel: Kernel) -> Result<(), String> {
    let place = Place::new(&format!("{}-taken", kernel.name()));
    let take = "busybox ip addr add 10.0.3.50/24 dev eth0";
    let _server = server_with(&place, 600, 2, take)?;
    let (net, script) = (place.net(), format!("{ARRIVAL}{SETTINGS}{WATCH}"));
    let client = ["--net", &net, "--address", "dhcp", "--deb", "busybox", "--", "sh", "-c", &script];
    let client = Talker::start(kernel, &client)?;
    client.until("another address", |line| line == "now 10.0.3.51/24 1400")
}

/// A machine that ends gives its address back.
///
/// # Errors
/// How it failed.
pub fn given_back(kernel: Kernel) -> Result<(), String> {
    let place = Place::new(&format!("{}-end", kernel.name()));
    let mut server = server(&place, 3600)?;
    let net = place.net();
    let options = ["--net", &net, "--address", "dhcp", "--deb", "busybox"];
    let output = super::run_script(kernel, &options, SETTINGS)?;
    expect(output.lines().next(), Some("10.0.3.50/24"))?;
    server.tell("stop")?;
    server.until("the lease's end", |line| line.contains("10.0.3.50") && line.contains("expired"))
}

/// Messages are lost, repeated, damaged and late.
///
/// # Errors
/// How it failed.
pub fn over_a_bad_link(kernel: Kernel) -> Result<(), String> {
    let places = [Place::new(&format!("{}-a", kernel.name())), Place::new(&format!("{}-b", kernel.name()))];
    let _server = server(&places[0], 600)?;
    let faults = bad_link::Faults { lost: 150, repeated: 100, damaged: 50, late: 50 };
    bad_link::join(&places[0].0, &places[1].0, faults, 1)?;
    let (net, script) = (places[1].net(), format!("{SETTINGS}{WATCH}"));
    let client = ["--net", &net, "--address", "dhcp", "--deb", "busybox", "--", "sh", "-c", &script];
    let client = Talker::start(kernel, &client)?;
    client.until("a lease", |line| line == "now 10.0.3.50/24 1400")
}

/// Without a server, the program starts after a while, and its user hears why it has no address.
///
/// # Errors
/// How it failed.
pub fn of_nobody(kernel: Kernel) -> Result<(), String> {
    let place = Place::new(&format!("{}-alone", kernel.name()));
    let net = place.net();
    let script = "busybox ip -4 -o addr show eth0; echo ran";
    let arguments = ["--net", &net, "--address", "dhcp", "--deb", "busybox", "--", "sh", "-c", script];
    let mut command = heddle_run(kernel, &arguments).map_err(text)?;
    let output = run(&mut command, b"", RUN_TIMEOUT + Duration::from_secs(10)).map_err(text)?;
    expect(output.text(), String::from("ran\n"))?;
    expect(output.status, Some(0))?;
    let line = "heddle: no DHCP server has answered for 10 s; the program starts without an IPv4 address";
    expect(output.complaints(), line.to_owned())
}
