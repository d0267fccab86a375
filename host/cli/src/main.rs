//! The Heddle host tool.

use std::process::ExitCode;

use heddle_cli::STATUS_TOOL_FAILED;
use heddle_cli::commands::Arguments;

fn main() -> ExitCode {
    let arguments = match Arguments::of_process() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(STATUS_TOOL_FAILED) } else { ExitCode::SUCCESS };
        }
    };
    ExitCode::from(arguments.execute().unwrap_or_else(|error| {
        heddle_cli::say!("{error:#}");
        STATUS_TOOL_FAILED
    }))
}
