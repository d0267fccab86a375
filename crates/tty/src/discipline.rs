//! The state of one terminal, and what programs do with it.

use alloc::collections::TryReserveError;

use crate::echo::{Echo, EchoQueue};
use crate::input::InputQueue;
use crate::output::{Cursor, Output};
use crate::termios::{Character, InputModes, LocalModes, Termios};

/// The line discipline between a terminal's line and its programs.
#[derive(Debug)]
pub struct LineDiscipline {
    pub(crate) termios: Termios,
    pub(crate) input: InputQueue,
    pub(crate) cursor: Cursor,
    pub(crate) echo: EchoQueue,
    /// An erased text is being shown between `\` and `/` (`ECHOPRT`).
    pub(crate) erasing: bool,
    /// The next byte is taken literally.
    pub(crate) literal_next: bool,
    /// Output is stopped, by the stop character or by a program.
    pub(crate) stopped: bool,
    /// Output was stopped by a program (`TCOOFF`): the start character doesn't restart it.
    pub(crate) stopped_by_program: bool,
}

impl LineDiscipline {
    /// A terminal with [`Termios::DEFAULT`].
    ///
    /// # Errors
    /// There is no memory for its buffers.
    pub fn try_new() -> Result<Self, TryReserveError> {
        Self::try_with(Termios::DEFAULT)
    }

    /// A terminal with these settings.
    ///
    /// # Errors
    /// There is no memory for its buffers.
    pub fn try_with(termios: Termios) -> Result<Self, TryReserveError> {
        Ok(Self {
            termios,
            input: InputQueue::try_new()?,
            cursor: Cursor::default(),
            echo: EchoQueue::try_new()?,
            erasing: false,
            literal_next: false,
            stopped: false,
            stopped_by_program: false,
        })
    }

    /// The settings.
    #[must_use]
    pub const fn termios(&self) -> &Termios {
        &self.termios
    }

    /// Changes the settings. Input that was typed in the other mode becomes readable: as one line when lines are
    /// switched on, byte by byte when they are switched off. Readers and writers have to look again.
    pub fn set_termios(&mut self, termios: Termios, output: &mut impl Output) {
        let old = core::mem::replace(&mut self.termios, termios);
        if (old.local ^ termios.local).intersects(LocalModes::ICANON | LocalModes::EXTPROC) {
            self.input.set_lines(termios.is_canonical());
            self.erasing = false;
            self.literal_next = false;
        }
        if old.input.contains(InputModes::IXON) && !termios.input.contains(InputModes::IXON) {
            self.resume();
        }
        self.flush_echo(output);
    }

    /// Processes bytes that a program prints; returns how many were taken: fewer than all when the line's room ends,
    /// none while output is stopped.
    pub fn write(&mut self, bytes: &[u8], output: &mut impl Output) -> usize {
        self.flush_echo(output);
        if self.stopped || !self.echo.is_empty() {
            return 0;
        }
        self.cursor.write(&self.termios, bytes, output)
    }

    /// Whether [`LineDiscipline::write`] takes nothing because output is stopped.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Shows echo that had no room; to be called when the line has taken bytes.
    pub fn flush_echo(&mut self, output: &mut impl Output) {
        while let Some(echo) = self.echo.first() {
            if self.stopped || !self.cursor.echo(&self.termios, echo, output) {
                return;
            }
            self.echo.pop();
        }
    }

    pub(crate) fn show(&mut self, echo: Echo, output: &mut impl Output) {
        let now = !self.stopped && self.echo.is_empty();
        if !(now && self.cursor.echo(&self.termios, echo, output)) {
            self.echo.push(echo);
        }
    }

    /// How many bytes a read finds now (`FIONREAD`).
    #[must_use]
    pub fn available_bytes(&self) -> usize {
        if self.reads_lines() { self.input.finished_len() } else { self.input.len() }
    }

    /// Whether a read finds something: a byte, a line, or an end of file.
    #[must_use]
    pub const fn is_readable(&self) -> bool {
        if self.reads_lines() {
            self.input.finished != self.input.tail
        } else {
            self.input.head != self.input.tail
        }
    }

    /// Whether poll(2) reports input: as [`LineDiscipline::is_readable`], but a minimum (`VMIN` without `VTIME`) has
    /// to be there.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        let minimum = self.termios.character(Character::Minimum) as usize;
        if self.reads_lines() || self.termios.character(Character::Time) != 0 || minimum == 0 {
            return self.is_readable();
        }
        self.input.len() >= minimum
    }

    /// Whether reads end at line ends.
    #[must_use]
    pub const fn reads_lines(&self) -> bool {
        self.termios.is_canonical() && !self.termios.local.contains(LocalModes::EXTPROC)
    }

    /// Takes at most `limit` bytes of input, in line mode at most the rest of one line, and hands them to `accept`,
    /// which returns how many it could take. Returns the sum; 0 from a [readable](Self::is_readable) terminal is an end
    /// of file. The caller implements `VMIN` and `VTIME`, which are about waiting.
    pub fn read(&mut self, limit: usize, accept: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        if self.reads_lines() { self.input.take_line(limit, accept) } else { self.input.take(limit, accept) }
    }

    /// Forgets what was typed and not read (`TCIFLUSH`).
    pub fn discard_input(&mut self) {
        self.input.clear();
        self.erasing = false;
    }

    /// Stops output on behalf of a program (`TCOOFF`); returns whether that changed anything.
    pub fn stop_by_program(&mut self) -> bool {
        let change = !self.stopped_by_program;
        self.stopped_by_program = true;
        self.stopped = true;
        change
    }

    /// Restarts output on behalf of a program (`TCOON`), if a program stopped it; returns whether it did.
    pub fn start_by_program(&mut self, output: &mut impl Output) -> bool {
        let change = core::mem::take(&mut self.stopped_by_program);
        if change {
            self.resume();
            self.flush_echo(output);
        }
        change
    }

    /// Restarts output unless a program stopped it; returns whether it was stopped.
    pub(crate) fn resume(&mut self) -> bool {
        let resumed = self.stopped && !self.stopped_by_program;
        if resumed {
            self.stopped = false;
        }
        resumed
    }
}
