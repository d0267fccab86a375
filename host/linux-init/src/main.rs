//! Process 1 of the Linux guest.
//!
//! The host tool boots Debian's kernel with this program as the whole initial file system, beside the modules that
//! the machine's devices need. It makes the root image and a writable layer the root, and then does for the
//! program what the Heddle kernel does: the [`heddle_abi::control`] protocol, streams over virtio-serial, a
//! pseudo-terminal where the host has a terminal. So Linux can answer for every test and experiment.

mod arp;
mod container;
mod dhcp;
mod network;
mod ports;
mod program;
mod root;
mod session;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::system::{RebootCommand, reboot};

/// Where the host tool puts the modules, named so that their alphabetical order is the order to load them in.
const MODULES: &str = "/modules";

fn main() {
    let mut arguments = std::env::args().skip(1);
    if let (Some(heddle_linux_init::COMMAND), Some(task)) = (arguments.next().as_deref(), arguments.next()) {
        std::process::exit(container::run(&task));
    }
    let Err(error) = run();
    eprintln!("heddle-init: {error:#}");
    rustix::fs::sync();
    // The host takes a machine that ends without a word for crashed, and shows the line above.
    let _ = reboot(RebootCommand::PowerOff);
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn run() -> Result<std::convert::Infallible> {
    root::mount_early()?;
    load_modules()?;
    let ports = ports::open_all()?;
    root::switch()?;
    root::mount_shares()?;
    let lease = network::configure()?;
    let mut session = session::Session::receive_start(ports, lease)?;
    session.run()?;
    loop {
        // The host ends the machine once it has all of the program's output.
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn load_modules() -> Result<()> {
    let mut paths = std::fs::read_dir(MODULES)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>())
        .context(MODULES)?;
    paths.sort();
    for path in paths {
        load_module(&path).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn load_module(path: &Path) -> Result<()> {
    let file = std::fs::File::open(path)?;
    rustix::system::finit_module(&file, c"", 0)?;
    Ok(())
}
