//! A kernel that panics, and how the tool explains it: a machine whose root image is not where the kernel was told.

use anyhow::{Context, Result, bail};
use heddle_abi::boot::KEY_IMAGE;
use heddle_image::{Cache, ImageRequest};

use crate::crash;
use crate::guest::{self, Choices, Kernel};
use crate::log::Log;
use crate::machine::Machine;
use crate::session::{self, End, Program, Streams};

/// An address of memory that holds no image.
const NOWHERE: &str = "0x2000000";

fn panic() -> Result<crash::Crash> {
    let image = Cache::of_user()?.image(&ImageRequest::new("true"), &mut |_| {})?;
    let mut configuration = guest::configure(&Choices::new(Kernel::Heddle), &image)?;
    let told = format!("{KEY_IMAGE}={:#x}", image.start());
    if !configuration.command_line.contains(&told) {
        bail!("the command line says nothing of the image: {}", configuration.command_line);
    }
    let untrue = format!("{KEY_IMAGE}={NOWHERE}");
    configuration.command_line = configuration.command_line.replace(&told, &untrue);
    let log = Log::in_memory().context("the log")?;
    let (mut machine, ports) = Machine::start(&configuration, &log)?;
    let program = Program {
        path: b"/bin/true".to_vec(),
        identity: session::Identity::default(),
        directory: b"/".to_vec(),
        arguments: vec![b"true".to_vec()],
        environment: Vec::new(),
    };
    let null = || std::fs::File::options().read(true).write(true).open("/dev/null");
    let streams = Streams { stdin: null()?.into(), stdout: null()?.into(), stderr: null()?.into() };
    let report = session::run(&mut machine, ports, &program, streams, session::Options::default())?;
    let End::Machine(status) = report.end else { bail!("it ended otherwise: {:?}", report.end) };
    let symbols = guest::symbols(Kernel::Heddle, false)?;
    Ok(crash::explain(status, &machine.errors(), &log.text(), symbols.as_deref()))
}

/// The test.
///
/// # Errors
/// The part that is missing in the explanation.
pub fn test() -> Result<(), String> {
    let crash = panic().map_err(|error| format!("{error:#}"))?;
    let text = crash.lines.join("\n");
    if !crash.is_guest || !text.starts_with("kernel panic: ") {
        return Err(format!("no panic: {text}"));
    }
    if !text.contains("kernel/src/") {
        return Err(format!("no source line of the kernel: {text}"));
    }
    Ok(())
}
