//! The network's tests of the long tier: servers of other languages, programs of Debian that this host reaches, and
//! many connections.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Server, bad_link, check_numbers, expect, free_port, run_script, text};
use crate::guest::Kernel;
use crate::testing::Verdict;
use crate::testing::process::{RUN_TIMEOUT, run};

/// A server in Go, whose runtime talks to the kernel without a C library.
const GO_SERVER: &str = "package main\n\
    import (\"fmt\"; \"net/http\")\n\
    func main() {\n\
    http.HandleFunc(\"/numbers\", func(w http.ResponseWriter, r *http.Request) {\n\
    w.Header().Set(\"Content-Length\", \"588895\")\n\
    for i := 1; i <= 100000; i++ { fmt.Fprintln(w, i) } })\n\
    panic(http.ListenAndServe(\":3000\", nil)) }\n";

/// A server on Node.
const NODE_SERVER: &str = "require('http').createServer((request, response) => {
    let text = ''; for (let i = 1; i <= 100000; i++) text += i + '\\n';
    response.setHeader('Content-Length', text.length); response.end(text); }).listen(3000);";

/// A test with its name.
pub type NamedTest = (&'static str, fn(Kernel) -> Verdict);

/// All tests of this module; one is skipped where this host has not what it needs.
pub const TESTS: [NamedTest; 7] = [
    ("a published port leads to a server in Go", go),
    ("a published port leads to Node's server", |kernel| node(kernel).into()),
    ("a published port leads to sshd", |kernel| shell(kernel).into()),
    ("a published port leads to git's servers", |kernel| git(kernel).into()),
    ("ten thousand connections at once on 512 MiB", |kernel| many_at_once(kernel).into()),
    ("a million bytes over a link that loses one frame in twenty", |kernel| {
        bad_link::at_length(kernel).into()
    }),
    ("a hundred thousand connections leave no memory behind", |kernel| many_in_turn(kernel).into()),
];

/// Builds a server in a folder of its own, and asks it for the numbers. `make` writes its files and gives the command
/// that builds it and the place of the program.
fn built(
    kernel: Kernel,
    language: &str,
    make: impl Fn(&Path) -> std::io::Result<(Command, &'static str)>,
) -> Verdict {
    let folder = std::env::temp_dir().join(format!("heddle-{language}-{}", std::process::id()));
    let build = || -> std::io::Result<Option<String>> {
        std::fs::create_dir_all(&folder)?;
        let (mut build, program) = make(&folder)?;
        let is_built = build.current_dir(&folder).stdout(Stdio::null()).status()?.success();
        Ok(is_built.then(|| folder.join(program).to_string_lossy().into_owned()))
    };
    let verdict = match build() {
        Err(error) => Verdict::Skipped(format!("{language}: {error}")),
        Ok(None) => Verdict::Skipped(format!("{language}: this host cannot build the server")),
        Ok(Some(program)) => serve_numbers(kernel, &["--smp", "2"], &[&program]).into(),
    };
    let _ = std::fs::remove_dir_all(&folder);
    verdict
}

fn go(kernel: Kernel) -> Verdict {
    built(kernel, "go", |folder| {
        std::fs::write(folder.join("main.go"), GO_SERVER)?;
        let mut build = Command::new("go");
        build.args(["build", "-o", "server", "main.go"]).env("CGO_ENABLED", "0");
        Ok((build, "server"))
    })
}

fn node(kernel: Kernel) -> Result<(), String> {
    serve_numbers(kernel, &["--smp", "2", "--memory", "512", "--deb", "nodejs"], &["node", "-e", NODE_SERVER])
}

/// Runs a server of the numbers at port 3000, and asks for them.
fn serve_numbers(kernel: Kernel, options: &[&str], program: &[&str]) -> Result<(), String> {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let publish = format!("{address}:3000");
    let mut server = Server::start(kernel, &[&["-p", &publish], options, &["--"], program].concat())?;
    check_numbers(&mut server, address, true, 8)
}

/// The start of sshd in the guest, with a key of this host as the only one that it lets in. It needs `KEY`.
const SHELL_SERVER: &str = "mkdir -p /run/sshd; mkdir -p -m 700 /root/.ssh; \
    ssh-keygen -q -t ed25519 -N '' -f /tmp/host; echo \"$KEY\" > /root/.ssh/authorized_keys; \
    chmod 600 /root/.ssh/authorized_keys; ";

/// A key of this host, in a folder that is removed at the end.
struct KeyFolder(std::path::PathBuf);

impl KeyFolder {
    fn new() -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("heddle-keys-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(text)?;
        let made = Self(folder);
        let mut make = Command::new("ssh-keygen");
        make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(made.0.join("key"));
        expect(run(&mut make, b"", RUN_TIMEOUT).map_err(text)?.status, Some(0))?;
        Ok(made)
    }

    fn public(&self) -> Result<String, String> {
        std::fs::read_to_string(self.0.join("key.pub")).map(|key| key.trim().to_owned()).map_err(text)
    }

    /// The options of ssh that name the key, and trust the guest.
    fn options(&self) -> String {
        format!(
            "-q -F none -i {} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes",
            self.0.join("key").display()
        )
    }
}

impl Drop for KeyFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a script of this host; its output, if it ends well.
fn here(script: &str) -> Result<String, String> {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    let output = run(&mut command, b"", RUN_TIMEOUT).map_err(text)?;
    match output.status {
        Some(0) => Ok(output.text()),
        status => Err(format!("{status:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn shell(kernel: Kernel) -> Result<(), String> {
    let keys = KeyFolder::new()?;
    let port = free_port()?;
    let (publish, key) = (format!("127.0.0.1:{port}:22"), format!("KEY={}", keys.public()?));
    let script = format!(
        "{SHELL_SERVER} exec /usr/sbin/sshd -D -f /dev/null -h /tmp/host -o UsePAM=no -o StrictModes=no \
         -o 'Subsystem=sftp internal-sftp'"
    );
    let packages = "openssh-server,openssh-client,bash,coreutils";
    let arguments = ["--smp", "2", "-p", &publish, "-e", &key, "--deb", packages, "--", "sh", "-c", &script];
    let mut server = Server::start(kernel, &arguments)?;
    let options = keys.options();
    let answer =
        server.until(|| here(&format!("ssh {options} -p {port} root@127.0.0.1 'echo $((6 * 7))'")))?;
    expect(answer.trim(), "42")?;
    let folder = keys.0.display();
    let copied = here(&format!(
        "seq 1 200000 > {folder}/sent && scp {options} -P {port} {folder}/sent root@127.0.0.1:/tmp/copy && \
         scp {options} -P {port} root@127.0.0.1:/tmp/copy {folder}/back && cmp {folder}/sent {folder}/back && echo same"
    ))?;
    expect(copied.trim(), "same")?;
    let sorted = here(&format!("ssh {options} -p {port} root@127.0.0.1 'tac | head -1' < {folder}/sent"))?;
    expect(sorted.trim(), "200000")
}

fn git(kernel: Kernel) -> Result<(), String> {
    let keys = KeyFolder::new()?;
    let (shell_port, web_port) = (free_port()?, free_port()?);
    let publish = [format!("127.0.0.1:{shell_port}:22"), format!("127.0.0.1:{web_port}:8000")];
    let key = format!("KEY={}", keys.public()?);
    let script = format!(
        "{SHELL_SERVER} export HOME=/root; git config --global user.name A; git config --global user.email a@b; \
         git config --global init.defaultBranch main; git init -q /srv/work; cd /srv/work; seq 1 50000 > numbers; \
         git add .; git commit -qm first; git clone -q --bare /srv/work /srv/served.git; \
         git -C /srv/served.git update-server-info; /usr/sbin/sshd -f /dev/null -h /tmp/host -o UsePAM=no \
         -o StrictModes=no; cd /srv; exec python3 -m http.server 8000"
    );
    let packages = "openssh-server,openssh-client,bash,coreutils,git,python3";
    let arguments = [
        "--smp",
        "2",
        "-p",
        &publish[0],
        "-p",
        &publish[1],
        "-e",
        &key,
        "--deb",
        packages,
        "--",
        "sh",
        "-c",
        &script,
    ];
    let mut server = Server::start(kernel, &arguments)?;
    let (folder, options) = (keys.0.display(), keys.options());
    server.until(|| here(&format!("git clone -q http://127.0.0.1:{web_port}/served.git {folder}/web")))?;
    let by_shell = format!(
        "GIT_SSH_COMMAND='ssh {options}' git clone -q ssh://root@127.0.0.1:{shell_port}/srv/served.git {folder}/shell"
    );
    here(&by_shell)?;
    let same =
        here(&format!("cmp {folder}/web/numbers {folder}/shell/numbers && tail -1 {folder}/web/numbers"))?;
    expect(same.trim(), "50000")
}

/// Ten thousand connections within the machine, of which each carries a byte both ways, once all are open.
const MANY_AT_ONCE: &str = "import resource, socket, threading
COUNT = 10000
resource.setrlimit(resource.RLIMIT_NOFILE, (2 * COUNT + 100, 2 * COUNT + 100))
listener = socket.create_server(('127.0.0.1', 7000), backlog=1024)
accepted = []
def accept():
    for _ in range(COUNT): accepted.append(listener.accept()[0])
thread = threading.Thread(target=accept)
thread.start()
clients = [socket.create_connection(('127.0.0.1', 7000)) for _ in range(COUNT)]
thread.join()
for client in clients: client.sendall(b'x')
for server in accepted: server.sendall(server.recv(1).upper())
print(sum(client.recv(1) == b'X' for client in clients))
";

fn many_at_once(kernel: Kernel) -> Result<(), String> {
    let program = format!("python3 -c \"{MANY_AT_ONCE}\"");
    let options = ["--memory", "512", "--smp", "2", "--deb", "python3,bash"];
    expect(run_script(kernel, &options, &program)?.trim(), "10000")
}

/// Connections one after the other, to five ports, ended by either end in turn; and the memory before and after.
const MANY_IN_TURN: &str = "import socket
listeners = [socket.create_server(('127.0.0.1', 7000 + n)) for n in range(5)]
def rounds(count):
    for n in range(count):
        client = socket.create_connection(('127.0.0.1', 7000 + n % 5))
        server = listeners[n % 5].accept()[0]
        client.sendall(b'question')
        server.recv(8)
        first, last = (client, server) if n % 2 else (server, client)
        first.close()
        last.close()
def free():
    fields = dict(line.split(':') for line in open('/proc/meminfo'))
    return int(fields['MemFree'].split()[0])
rounds(20000)
before = free()
rounds(100000)
lost = before - free()
print('lost', lost) if lost > 8192 else print('nothing is lost')
";

fn many_in_turn(kernel: Kernel) -> Result<(), String> {
    let program = format!("python3 -c \"{MANY_IN_TURN}\"");
    let output = run_script(kernel, &["--memory", "512", "--deb", "python3,bash"], &program)?;
    expect(output.trim(), "nothing is lost")
}
