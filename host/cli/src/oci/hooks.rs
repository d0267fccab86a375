//! Hooks: programs of the host that a bundle wants run at points of a container's life.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oci_spec::runtime::Hook;

/// How often a hook with a time limit is looked at.
const PERIOD: Duration = Duration::from_millis(5);

/// Runs hooks one after the other, each with the container's state on its standard input.
///
/// # Errors
/// The first that fails or takes too long; those after it do not run.
pub fn run(hooks: Option<&Vec<Hook>>, state: &str) -> Result<()> {
    for hook in hooks.into_iter().flatten() {
        run_one(hook, state).with_context(|| format!("hook {}", hook.path().display()))?;
    }
    Ok(())
}

fn run_one(hook: &Hook, state: &str) -> Result<()> {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(hook.path());
    if let Some((name, arguments)) = hook.args().as_ref().and_then(|arguments| arguments.split_first()) {
        command.arg0(name).args(arguments);
    }
    command.env_clear();
    command.envs(hook.env().iter().flatten().filter_map(|variable| variable.split_once('=')));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().context("starting it")?;
    if let Some(mut input) = child.stdin.take() {
        // One that does not read its input is content without.
        let _ = input.write_all(state.as_bytes());
    }
    let limit = hook.timeout().and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    let status = wait(&mut child, limit)?;
    if !status.success() {
        bail!("{status}");
    }
    Ok(())
}

fn wait(child: &mut Child, limit: Option<Duration>) -> Result<std::process::ExitStatus> {
    let Some(limit) = limit else { return child.wait().context("waiting for it") };
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().context("waiting for it")? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            bail!("it takes more than {} s", limit.as_secs());
        }
        std::thread::sleep(PERIOD);
    }
}
