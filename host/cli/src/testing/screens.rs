//! Programs that draw on the whole screen, as a person uses them and as Debian packages them: a pager, an editor, a
//! table that refreshes itself, and a terminal multiplexer.

use heddle_abi::control::WindowSize;

use super::process::{RUN_TIMEOUT, heddle_run};
use super::pseudo_terminal::PseudoTerminal;
use super::streams::Test;
use crate::guest::Kernel;

const WINDOW: WindowSize = WindowSize { rows: 24, columns: 80 };
const ESCAPE: &[u8] = b"\x1b";
const PREFIX: &[u8] = b"\x02";

/// All tests of this module.
pub const TESTS: [Test; 4] =
    [("less", pager), ("vim-tiny", editor), ("top", self_refreshing), ("tmux", multiplexer)];

/// A shell on a terminal, in a root with the packages named.
struct Screen(PseudoTerminal);

impl Screen {
    fn start(kernel: Kernel, packages: &str, script: &str) -> Result<Self, String> {
        let arguments =
            ["--deb", packages, "--env", "TERM=xterm", "--env", "LC_ALL=C.UTF-8", "--", "bash", "-c", script];
        let command = heddle_run(kernel, &arguments).map_err(|error| format!("{error:#}"))?;
        PseudoTerminal::start(command, WINDOW).map(Self).map_err(|error| error.to_string())
    }

    fn expect(&mut self, text: &str) -> Result<(), String> {
        self.0.expect(text, RUN_TIMEOUT)
    }

    /// Types `keys`, and waits until the screen shows `text`.
    fn after(&mut self, keys: &[u8], text: &str) -> Result<(), String> {
        self.0.write(keys).map_err(|error| error.to_string())?;
        self.expect(text)
    }

    /// Types `keys`, which end everything with status 3.
    fn ends(mut self, keys: &[u8]) -> Result<(), String> {
        self.0.write(keys).map_err(|error| error.to_string())?;
        match self.0.wait(RUN_TIMEOUT) {
            Some(3) => Ok(()),
            status => Err(format!("status {status:?}, expected 3")),
        }
    }
}

fn pager(kernel: Kernel) -> Result<(), String> {
    let mut screen = Screen::start(
        kernel,
        "bash,less,ncurses-base",
        "seq -f 'line %g' 500 >/tmp/lines; less /tmp/lines; exit 3",
    )?;
    screen.expect("line 23")?;
    screen.after(b" ", "line 46")?;
    screen.after(b"/line 321\n", "line 343")?;
    screen.after(b"G", "(END)")?;
    screen.ends(b"q")
}

fn editor(kernel: Kernel) -> Result<(), String> {
    let script =
        "echo second >/tmp/text; vim.tiny /tmp/text; sed 's/^/in the file: /' /tmp/text; read; exit 3";
    let mut screen = Screen::start(kernel, "bash,sed,vim-tiny,ncurses-base", script)?;
    screen.expect("second")?;
    screen.after(b"Ofirst", "first")?;
    screen.after(&[ESCAPE, b":wq\n"].concat(), "in the file: first\r\nin the file: second")?;
    screen.ends(b"\n")
}

fn self_refreshing(kernel: Kernel) -> Result<(), String> {
    let mut screen = Screen::start(
        kernel,
        "bash,coreutils,procps,ncurses-base",
        "sleep 1000 & top -d 1; kill %1; exit 3",
    )?;
    screen.expect("load average")?;
    screen.expect("sleep")?;
    // Once more, by itself.
    screen.expect("top - ")?;
    screen.ends(b"q")
}

fn multiplexer(kernel: Kernel) -> Result<(), String> {
    let script = "tmux -f /dev/null new-session -s here 'bash --norc'; echo back; \
                  tmux attach; tmux list-sessions || exit 3";
    let mut screen = Screen::start(kernel, "bash,coreutils,tmux,ncurses-base", script)?;
    screen.after(b"echo in''side\n", "inside")?;
    screen.after(&[PREFIX, b"%"].concat(), "# ")?;
    screen.after(b"tmux list-panes | wc -l | sed s/^/panes=/\n", "panes=2")?;
    screen.after(&[PREFIX, b"d"].concat(), "back")?;
    // Attached again: what is on the screen is drawn anew.
    screen.expect("panes=2")?;
    screen.ends(b"tmux kill-server\n")
}
