//! The server under a load from elsewhere: from this host through a published port, and from a second machine, which
//! is Linux's for all sides.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

use super::SIDES;
use crate::bench::guest::Line;
use crate::bench::machines;
use crate::bench::plan::Effort;
use crate::bench::record::Record;
use crate::bench::side::Side;
use crate::bench::{Interrupt, PROGRAM_FOLDER};
use crate::guest::Kernel;
use crate::paths;

const PORT: u16 = 7100;
const MEMORY_MIB: &str = "512";
/// The two ends of a link between machines.
const SERVER_ADDRESS: &str = "10.0.3.1/24";
const LOAD_ADDRESS: &str = "10.0.3.2/24";

/// The sides of a quick run.
const GOALS: [&str; 3] = ["heddle", "linux-threads", "linux-tokio"];

/// Loads a side's server with the program, by these arguments.
type Load = fn(&Side, &Path, &[String]) -> Result<Vec<Line>>;

/// A machine that serves, and ends with this value.
struct FarServer(Child);

impl Drop for FarServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run_in(kernel: Kernel, network: &[&str], program: &Path) -> Result<Command> {
    let mut command = Command::new(crate::paths::own_program()?);
    command.args(["run", "--kernel", kernel.name(), "--memory", MEMORY_MIB]).args(network);
    command.args(["--bare", "--"]).arg(program).stdin(Stdio::null());
    Ok(command)
}

fn serve(side: &Side, network: &[&str], program: &Path) -> Result<FarServer> {
    let mut command = run_in(side.kernel, network, program)?;
    command.arg("serve").arg(format!("at=0.0.0.0:{PORT}")).args(side.words.split_whitespace());
    Ok(FarServer(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("starting a machine")?))
}

fn lines(output: &Output) -> Result<Vec<Line>> {
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(Line::parse).collect())
}

/// From this host.
fn from_host(side: &Side, program: &Path, words: &[String]) -> Result<Vec<Line>> {
    let free: SocketAddr = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let _machine = serve(side, &["-p", &format!("{free}:{PORT}")], program)?;
    let output = Command::new(program).arg("load").arg(format!("at={free}")).args(words).output()?;
    lines(&output)
}

/// From a second machine.
fn from_machine(side: &Side, program: &Path, words: &[String]) -> Result<Vec<Line>> {
    /// Each pair of machines has a link of its own, because a machine that was told to end may still hold the last.
    static LINKS: AtomicU32 = AtomicU32::new(0);
    let link = LINKS.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("heddle-bench-link-{}-{link}", std::process::id()));
    let net = format!("socket={}", path.display());
    let _machine = serve(side, &["--net", &net, "--address", SERVER_ADDRESS], program)?;
    let mut load = run_in(Kernel::Linux, &["--net", &net, "--address", LOAD_ADDRESS], program)?;
    let address = SERVER_ADDRESS.split('/').next().unwrap_or_default();
    let output = load.arg("load").arg(format!("at={address}:{PORT}")).args(words).output()?;
    lines(&output)
}

/// Runs all sides.
///
/// # Errors
/// If the user interrupted. A side that fails is noted.
pub fn run(effort: Effort, record: &mut Record, interrupt: &Interrupt) -> Result<()> {
    let program = paths::repository()?.join(PROGRAM_FOLDER).join(super::PROGRAM);
    let ways: [(&str, Load); 2] = [("host", from_host), ("machine", from_machine)];
    for (way, measure) in ways {
        // A quick run shows the goals' sides.
        let is_wanted = |side: &Side| effort != Effort::Quick || GOALS.contains(&side.name);
        for side in SIDES.into_iter().filter(is_wanted) {
            for connections in effort.choose(&[64][..], &[1, 64], &[1, 16, 64, 256]) {
                interrupt.check()?;
                crate::say!("from the {way}: {}, {connections} connections", side.name);
                let words = [format!("n={connections}"), format!("ms={}", effort.choose(1000, 3000, 10_000))];
                match measure(&side, &program, &words) {
                    Ok(lines) => {
                        lines.into_iter().for_each(|line| machines::take_from(record, way, side, line));
                    }
                    Err(error) => {
                        record
                            .note(format!("from the {way}, {}: absent: {connections}: {error:#}", side.name));
                    }
                }
            }
        }
    }
    interrupt.check()
}
