//! Terminals: size, resizing, raw mode, keys that are signals, and a terminal that is as before afterwards.

use heddle_abi::control::WindowSize;
use rustix::termios::{LocalModes, Termios};

use super::process::{RUN_TIMEOUT, heddle_run};
use super::pseudo_terminal::PseudoTerminal;
use super::streams::{Test, all_gone, machines};
use crate::guest::Kernel;

const WINDOW: WindowSize = WindowSize { rows: 33, columns: 101 };
const LARGER: WindowSize = WindowSize { rows: 44, columns: 132 };
const CONTROL_C: &[u8] = b"\x03";
const CONTROL_D: &[u8] = b"\x04";
const CONTROL_Z: &[u8] = b"\x1a";

/// All tests of this module.
pub const TESTS: [Test; 10] = [
    ("the program sees a terminal of the right size, and its new size", size_and_resize),
    ("typed lines are edited, echoed and ended", typed_lines),
    ("control-C interrupts the program", control_c),
    ("control-Z stops a job", control_z),
    ("jobs go to the background and come back", jobs),
    ("a password is read from the terminal whatever standard input is", from_controlling_terminal),
    ("a terminal inside the terminal", nested),
    ("raw mode brings keys one by one", raw_mode),
    ("the terminal is as before afterwards", restored),
    ("closing the terminal leaves no machine behind", closed),
];

fn start(kernel: Kernel, arguments: &[&str]) -> Result<PseudoTerminal, String> {
    let command = heddle_run(kernel, arguments).map_err(|error| format!("{error:#}"))?;
    PseudoTerminal::start(command, WINDOW).map_err(|error| error.to_string())
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}

fn ends_with(terminal: &mut PseudoTerminal, status: i32) -> Result<(), String> {
    match terminal.wait(RUN_TIMEOUT) {
        Some(found) if found == status => Ok(()),
        found => Err(format!("status {found:?}, expected {status}")),
    }
}

fn size_and_resize(kernel: Kernel) -> Result<(), String> {
    let script =
        "tty -s && stty size; trap 'stty size; exit 9' WINCH; echo ready; while :; do sleep 0.1; done";
    let mut terminal = start(kernel, &["bash", "-c", script])?;
    terminal.expect("33 101\r\n", RUN_TIMEOUT)?;
    terminal.expect("ready", RUN_TIMEOUT)?;
    terminal.resize(LARGER).map_err(text)?;
    terminal.expect("44 132\r\n", RUN_TIMEOUT)?;
    ends_with(&mut terminal, 9)
}

fn typed_lines(kernel: Kernel) -> Result<(), String> {
    let mut terminal = start(kernel, &["sh", "-c", "echo ready; cat; exit 4"])?;
    terminal.expect("ready\r\n", RUN_TIMEOUT)?;
    terminal.write(b"helko\x7f\x7flo\n").map_err(text)?;
    terminal.expect("\r\nhello\r\n", RUN_TIMEOUT)?;
    terminal.write(CONTROL_D).map_err(text)?;
    ends_with(&mut terminal, 4)
}

fn control_c(kernel: Kernel) -> Result<(), String> {
    // Not a shell: dash loses an interrupt that comes while it starts a program, on Linux too.
    let mut terminal = start(kernel, &["cat"])?;
    terminal.write(b"ready\n").map_err(text)?;
    terminal.expect("ready\r\nready", RUN_TIMEOUT)?;
    terminal.write(CONTROL_C).map_err(text)?;
    ends_with(&mut terminal, 130)
}

fn control_z(kernel: Kernel) -> Result<(), String> {
    let mut terminal = start(kernel, &["bash", "--norc", "-i"])?;
    terminal.expect("# ", RUN_TIMEOUT)?;
    // Without a fork after it says so: dash loses a signal that comes while it starts a program.
    terminal.write(b"sh -c 'echo rea''dy; exec sleep 1000'\n").map_err(text)?;
    terminal.expect("ready\r\n", RUN_TIMEOUT)?;
    terminal.write(CONTROL_Z).map_err(text)?;
    terminal.expect("Stopped", RUN_TIMEOUT)?;
    terminal.expect("# ", RUN_TIMEOUT)?;
    // Until bash has seen the end of the job it refuses to exit, but only once.
    terminal.write(b"kill -KILL %1; exit 6\nexit 6\n").map_err(text)?;
    ends_with(&mut terminal, 6)
}

fn jobs(kernel: Kernel) -> Result<(), String> {
    let mut terminal = start(kernel, &["bash", "--norc", "-i"])?;
    terminal.expect("# ", RUN_TIMEOUT)?;
    // A job in the background that reads is stopped; in the foreground it gets its line.
    terminal.write(b"cat &\n").map_err(text)?;
    terminal.expect("# ", RUN_TIMEOUT)?;
    terminal.write(b"until jobs | grep Stop; do sleep 0.1; done\n").map_err(text)?;
    terminal.expect("Stopped", RUN_TIMEOUT)?;
    terminal.expect("# ", RUN_TIMEOUT)?;
    terminal.write(b"fg\n").map_err(text)?;
    terminal.expect("cat\r\n", RUN_TIMEOUT)?;
    terminal.write(b"to the job\n").map_err(text)?;
    terminal.expect("to the job\r\nto the job\r\n", RUN_TIMEOUT)?;
    terminal.write(CONTROL_D).map_err(text)?;
    terminal.expect("# ", RUN_TIMEOUT)?;
    terminal.write(b"exit 8\n").map_err(text)?;
    ends_with(&mut terminal, 8)
}

fn from_controlling_terminal(kernel: Kernel) -> Result<(), String> {
    let script = "echo piped | { stty -echo </dev/tty; printf 'password: '; read -r word </dev/tty; \
                  stty echo </dev/tty; read -r line; echo; echo \"<$word $line>\"; }; tty; exit 5";
    let mut terminal = start(kernel, &["bash", "-c", script])?;
    terminal.expect("password: ", RUN_TIMEOUT)?;
    terminal.write(b"secret\n").map_err(text)?;
    terminal.expect("\r\n<secret piped>\r\n/dev/", RUN_TIMEOUT)?;
    ends_with(&mut terminal, 5)
}

fn nested(kernel: Kernel) -> Result<(), String> {
    let script = "stty size; tty; echo ready; cat; exit 7";
    let mut terminal = start(kernel, &["script", "-qec", script, "/dev/null"])?;
    terminal.expect("33 101\r\n/dev/pts/", RUN_TIMEOUT)?;
    // All output is there before the input is echoed.
    terminal.expect("ready\r\n", RUN_TIMEOUT)?;
    terminal.write(b"through both\n").map_err(text)?;
    terminal.expect("through both\r\nthrough both\r\n", RUN_TIMEOUT)?;
    terminal.write(CONTROL_D).map_err(text)?;
    ends_with(&mut terminal, 7)
}

fn raw_mode(kernel: Kernel) -> Result<(), String> {
    let script = "stty raw -echo; echo ready; dd bs=1 count=3 2>/dev/null | od -An -c; stty sane; exit 3";
    let mut terminal = start(kernel, &["sh", "-c", script])?;
    terminal.expect("ready", RUN_TIMEOUT)?;
    terminal.write(b"a\x03\r").map_err(text)?;
    terminal.expect("a 003  \\r", RUN_TIMEOUT)?;
    ends_with(&mut terminal, 3)
}

fn flags(modes: &Termios) -> impl PartialEq + use<> {
    (modes.input_modes, modes.output_modes, modes.control_modes, modes.local_modes)
}

fn restored(kernel: Kernel) -> Result<(), String> {
    let mut terminal = start(kernel, &["sh", "-c", "echo ready; read -r x; kill -KILL $$"])?;
    terminal.expect("ready", RUN_TIMEOUT)?;
    let during = terminal.modes().map_err(text)?;
    if during.local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG) {
        return Err(String::from("the host's terminal is not raw meanwhile"));
    }
    terminal.write(b"\n").map_err(text)?;
    ends_with(&mut terminal, 137)?;
    let after = terminal.modes().map_err(text)?;
    let fresh = PseudoTerminal::start(std::process::Command::new("true"), WINDOW).map_err(text)?;
    if flags(&after) != flags(&fresh.modes().map_err(text)?) {
        return Err(String::from("the modes differ from those of a new terminal"));
    }
    Ok(())
}

fn closed(kernel: Kernel) -> Result<(), String> {
    let mut terminal = start(kernel, &["sh", "-c", "echo ready; sleep 1000"])?;
    terminal.expect("ready", RUN_TIMEOUT)?;
    let machines = machines(terminal.child());
    if machines.len() != 1 {
        return Err(format!("{} machines run, expected one", machines.len()));
    }
    match terminal.close(RUN_TIMEOUT) {
        Some(129) => all_gone(&machines),
        status => Err(format!("status {status:?}, expected 129 for SIGHUP")),
    }
}
