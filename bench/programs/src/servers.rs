//! Debian's servers and the programs that load them, over the loopback: `servers n=REQUESTS what=redis`,
//! `servers n=SECONDS what=nginx`.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::arguments::Arguments;
use crate::measure::report;

const REDIS_PORT: u16 = 6379;
const NGINX_PORT: u16 = 8080;
/// Connections of the load.
const CONNECTIONS: &str = "16";
const START_LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);
const NGINX_FOLDER: &str = "/tmp/heddle-nginx";

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Runs what the arguments say.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let count = arguments.number("n", 1)?;
    match arguments.text("what", "") {
        "redis" => redis(count),
        "nginx" => nginx(count),
        what => Err(format!("unknown: what={what}")),
    }
}

/// A server that ends with this value.
struct Server(Child);

impl Server {
    /// Starts a server and waits until its port answers.
    fn start(command: &mut Command, port: u16) -> Result<Self, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self(command.spawn().map_err(|error| format!("{program}: {error}"))?);
        let deadline = Instant::now() + START_LIMIT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > deadline {
                return Err(format!("{program} does not answer"));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nginx's workers end with their master's orderly end only.
        let id = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        let _ = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// The output of a program.
fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn redis(count: u64) -> Result<(), String> {
    let mut server = Command::new("redis-server");
    server.args(["--save", "", "--port", &REDIS_PORT.to_string()]);
    let _server = Server::start(&mut server, REDIS_PORT)?;
    let mut load = Command::new("redis-benchmark");
    load.args(["--csv", "-t", "set,get", "-c", CONNECTIONS, "-n", &count.to_string()]);
    let table = output(&mut load)?;
    // Lines of "NAME","requests per second",…
    for name in ["SET", "GET"] {
        let mut lines = table.lines().map(|line| line.split(',').map(|field| field.trim_matches('"')));
        let rate =
            lines.find_map(|mut fields| (fields.next() == Some(name)).then(|| fields.next()).flatten());
        let rate: f64 = rate.ok_or_else(|| format!("redis-benchmark: no {name}"))?.parse().map_err(text)?;
        report(&format!("redis-{}", name.to_lowercase()), count, (count as f64 / rate * 1e9) as u128);
    }
    Ok(())
}

fn nginx(seconds: u64) -> Result<(), String> {
    std::fs::create_dir_all(NGINX_FOLDER).map_err(text)?;
    std::fs::write(format!("{NGINX_FOLDER}/index.html"), "x".repeat(1024)).map_err(text)?;
    let path = format!("{NGINX_FOLDER}/nginx.conf");
    let configuration = format!(
        "daemon off; worker_processes 2; pid {NGINX_FOLDER}/pid; error_log {NGINX_FOLDER}/error.log;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; keepalive_requests 1000000;\n\
         server {{ listen {NGINX_PORT}; root {NGINX_FOLDER}; }} }}\n"
    );
    std::fs::write(&path, configuration).map_err(text)?;
    let _server = Server::start(Command::new("/usr/sbin/nginx").args(["-c", &path]), NGINX_PORT)?;
    let mut load = Command::new("wrk");
    load.args(["-t", "1", "-c", CONNECTIONS, "-d", &format!("{seconds}s")]);
    let table = output(load.arg(format!("http://127.0.0.1:{NGINX_PORT}/index.html")))?;
    // "Requests/sec:   1234.56", after "N requests in 1.00s, 1.23MB read".
    let field = |wanted: &str| table.lines().find_map(|line| line.trim().strip_prefix(wanted));
    let rate: f64 = field("Requests/sec:").ok_or("wrk: no rate")?.trim().parse().map_err(text)?;
    if table.contains("Socket errors") || table.contains("Non-2xx") {
        return Err(format!("wrk: {table}"));
    }
    let count = (rate * seconds as f64) as u64;
    report("nginx", count, (count as f64 / rate * 1e9) as u128);
    Ok(())
}
