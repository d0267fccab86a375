//! Input from the line, on its way to programs.

use bitflags::bitflags;

use crate::discipline::LineDiscipline;
use crate::echo::Echo;
use crate::input::CAPACITY_BYTES;
use crate::output::{Output, is_control, is_echoing, to_lower};
use crate::termios::{Character, DISABLED, InputModes, LocalModes};

bitflags! {
    /// Signals to be sent to the terminal's foreground process group.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SignalRequests: u8 {
        /// `SIGINT`.
        const INTERRUPT = 1;
        /// `SIGQUIT`.
        const QUIT = 2;
        /// `SIGTSTP`.
        const SUSPEND = 4;
    }
}

/// The result of receiving bytes from the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// How many bytes were taken. The rest has to wait until a program has read something.
    pub consumed: usize,
    /// Signals to send.
    pub signals: SignalRequests,
    /// A signal character threw away input and pending output.
    pub flushed: bool,
    /// Output was stopped or restarted: programs that print must try again.
    pub flow_changed: bool,
}

impl LineDiscipline {
    /// Takes bytes from the line. Echo goes to `output`, or waits in here if it has no room.
    pub fn receive(&mut self, bytes: &[u8], output: &mut impl Output) -> Received {
        self.flush_echo(output);
        let mut received = Received::default();
        for &byte in bytes {
            if !self.make_room() {
                break;
            }
            received.consumed += 1;
            self.receive_byte(byte, &mut received, output);
        }
        received
    }

    /// Makes room for what one byte can become, or says that there is none. In a line that isn't finished and
    /// has reached its longest, each byte replaces the one before, so that it can still be finished or edited.
    fn make_room(&mut self) -> bool {
        let free = CAPACITY_BYTES - self.input.len();
        let marks = self.termios.input.contains(InputModes::PARMRK);
        let room = if marks { free.div_ceil(3) } else { free };
        if room > 1 {
            return true;
        }
        let unfinished = self.termios.is_canonical() && self.input.finished == self.input.tail;
        if unfinished && room == 0 {
            self.input.head -= 1;
        }
        unfinished
    }

    fn receive_byte(&mut self, byte: u8, received: &mut Received, output: &mut impl Output) {
        let termios = self.termios;
        let mut byte = if termios.input.contains(InputModes::ISTRIP) { byte & 0x7f } else { byte };
        if termios.input.contains(InputModes::IUCLC) && termios.local.contains(LocalModes::IEXTEN) {
            byte = to_lower(byte);
        }
        if core::mem::take(&mut self.literal_next) {
            return self.receive_text(byte, received, output);
        }
        if termios.local.contains(LocalModes::EXTPROC) {
            return self.input.push(byte);
        }
        if self.control_flow(byte, received, output) || self.request_signal(byte, received, output) {
            return;
        }
        match byte {
            b'\r' if termios.input.contains(InputModes::IGNCR) => {
                return self.restart_on_any(received, output);
            }
            b'\r' if termios.input.contains(InputModes::ICRNL) => byte = b'\n',
            b'\n' if termios.input.contains(InputModes::INLCR) => byte = b'\r',
            _ => return self.receive_mapped(byte, received, output),
        }
        self.restart_on_any(received, output);
        if !(termios.is_canonical() && self.edit(byte, output)) {
            self.receive_unused(byte, output);
        }
    }

    fn receive_mapped(&mut self, byte: u8, received: &mut Received, output: &mut impl Output) {
        if self.termios.is_canonical() && self.is_editing(byte) {
            self.restart_on_any(received, output);
            if !self.edit(byte, output) {
                self.receive_unused(byte, output);
            }
        } else {
            self.receive_text(byte, received, output);
        }
    }

    /// A byte that was translated and turned out to have no meaning in editing: as text, but a newline echoes as one.
    fn receive_unused(&mut self, byte: u8, output: &mut impl Output) {
        if is_echoing(&self.termios) {
            self.finish_erasing(output);
            if byte == b'\n' {
                self.show(Echo::Byte(b'\n'), output);
            } else {
                self.mark_line_start(output);
                self.show_char(byte, output);
            }
        }
        self.push_text(byte);
    }

    /// A byte without special meaning.
    fn receive_text(&mut self, byte: u8, received: &mut Received, output: &mut impl Output) {
        self.restart_on_any(received, output);
        if is_echoing(&self.termios) {
            self.finish_erasing(output);
            self.mark_line_start(output);
            self.show_char(byte, output);
        }
        self.push_text(byte);
    }

    fn push_text(&mut self, byte: u8) {
        if byte == 0xff && self.termios.input.contains(InputModes::PARMRK) {
            self.input.push(byte);
        }
        self.input.push(byte);
    }

    /// Start and stop characters.
    fn control_flow(&mut self, byte: u8, received: &mut Received, output: &mut impl Output) -> bool {
        if !self.termios.input.contains(InputModes::IXON) {
            return false;
        }
        if self.termios.is(byte, Character::Start) {
            self.restart(received, output);
        } else if self.termios.is(byte, Character::Stop) {
            received.flow_changed |= !self.stopped;
            self.stopped = true;
        } else {
            return false;
        }
        true
    }

    fn restart(&mut self, received: &mut Received, output: &mut impl Output) {
        received.flow_changed |= self.resume();
        self.flush_echo(output);
    }

    fn restart_on_any(&mut self, received: &mut Received, output: &mut impl Output) {
        if self.termios.input.contains(InputModes::IXON | InputModes::IXANY) {
            self.restart(received, output);
        }
    }

    /// Characters that send signals.
    fn request_signal(&mut self, byte: u8, received: &mut Received, output: &mut impl Output) -> bool {
        if !self.termios.local.contains(LocalModes::ISIG) {
            return false;
        }
        let request = if self.termios.is(byte, Character::Interrupt) {
            SignalRequests::INTERRUPT
        } else if self.termios.is(byte, Character::Quit) {
            SignalRequests::QUIT
        } else if self.termios.is(byte, Character::Suspend) {
            SignalRequests::SUSPEND
        } else {
            return false;
        };
        received.signals |= request;
        if !self.termios.local.contains(LocalModes::NOFLSH) {
            self.echo.clear();
            output.discard();
            self.discard_input();
            received.flushed = true;
        }
        if self.termios.input.contains(InputModes::IXON) {
            received.flow_changed |= self.resume();
        }
        if is_echoing(&self.termios) {
            self.show_char(byte, output);
        }
        self.flush_echo(output);
        true
    }

    /// Shows a typed character, control characters other than tab as `^X` where that is asked for.
    pub(crate) fn show_char(&mut self, byte: u8, output: &mut impl Output) {
        let caret = self.termios.local.contains(LocalModes::ECHOCTL) && is_control(byte) && byte != b'\t';
        self.show(if caret { Echo::Caret(byte) } else { Echo::Byte(byte) }, output);
    }

    pub(crate) fn mark_line_start(&mut self, output: &mut impl Output) {
        if self.input.finished == self.input.head {
            self.show(Echo::LineStart, output);
        }
    }

    /// Ends a line. An end of file is a line end that reads as nothing.
    pub(crate) fn end_line(&mut self, byte: u8) {
        self.input.push_line_end(byte);
    }

    pub(crate) fn end_file(&mut self) {
        self.input.push_line_end(DISABLED);
    }
}
