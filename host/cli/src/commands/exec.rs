//! `heddle exec`: a further program in a machine that runs.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::run::environment;
use crate::exchange::client::{self, Connections};
use crate::machines::{MachineEntry, Registry};
use crate::session::{Program, Streams};
use crate::user;

/// Runs PROGRAM in a machine that `run --name` has started.
#[derive(Clone, Debug, clap::Args)]
pub struct ExecOptions {
    /// Pass standard input on.
    #[arg(short, long)]
    pub interactive: bool,
    /// Give the program a terminal, which is this one.
    #[arg(short, long)]
    pub tty: bool,
    /// Set a variable of the program's environment; KEY alone takes the value that it has here.
    #[arg(short = 'e', long = "env", value_name = "KEY[=VALUE]")]
    pub environment: Vec<OsString>,
    /// The program's working directory in the guest.
    #[arg(short = 'w', long = "workdir", value_name = "DIR", default_value = "/")]
    pub directory: PathBuf,
    /// The user and group, by name or number.
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub user: Option<String>,
    /// The machine.
    pub name: String,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM ARGS")]
    pub program: Vec<OsString>,
}

/// Runs the command and says with which status to end.
///
/// # Errors
/// If the machine does not run, or its end comes first.
pub fn execute(options: &ExecOptions) -> Result<u8> {
    let entry = Registry::of_user()?.find(&options.name)?;
    if options.tty && !std::io::stdin().is_terminal() {
        bail!("-t: standard input is no terminal");
    }
    let user =
        options.user.as_deref().map(|user| user::parse(user, |path| read(&entry, path))).transpose()?;
    let user = user.unwrap_or_default();
    let program = Program {
        path: options.program[0].clone().into_vec(),
        directory: OsString::from(&options.directory).into_vec(),
        arguments: options.program.iter().map(|argument| argument.clone().into_vec()).collect(),
        environment: environment(&options.environment, user.home.as_deref())?,
        identity: user.identity,
    };
    let socket = entry.connect().with_context(|| options.name.clone())?;
    let connections = Connections { has_input: options.interactive, is_terminal: options.tty };
    let ending = client::run(socket, &program, Streams::inherited()?, connections, || {})?;
    client::exit_status(ending, &options.program[0].to_string_lossy())
}

/// Reads a file of the guest: one that its programs may have changed is known only there.
fn read(entry: &MachineEntry, path: &str) -> Result<Vec<u8>> {
    client::capture(entry.connect()?, &["/bin/cat", path])
        .with_context(|| format!("reading the guest's {path}"))
}
