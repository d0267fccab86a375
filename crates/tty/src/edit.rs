//! Editing the line that is being typed.

use crate::discipline::LineDiscipline;
use crate::echo::Echo;
use crate::output::{Output, is_continuation, is_control, is_echoing};
use crate::termios::{Character, InputModes, LocalModes};

/// How much an editing character erases.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Erase {
    Character,
    Word,
    Line,
}

impl LineDiscipline {
    /// Whether a byte means something to the editor.
    pub(crate) fn is_editing(&self, byte: u8) -> bool {
        let extended = self.termios.local.contains(LocalModes::IEXTEN);
        let is = |which| self.termios.is(byte, which);
        byte == b'\n'
            || is(Character::Erase)
            || is(Character::Kill)
            || is(Character::EndOfFile)
            || is(Character::EndOfLine)
            || extended
                && (is(Character::WordErase)
                    || is(Character::LiteralNext)
                    || is(Character::EndOfLine2)
                    || is_echoing(&self.termios) && is(Character::Reprint))
    }

    /// Does what an editing character asks for; false if the byte isn't one.
    pub(crate) fn edit(&mut self, byte: u8, output: &mut impl Output) -> bool {
        let termios = self.termios;
        let extended = termios.local.contains(LocalModes::IEXTEN);
        let echoing = is_echoing(&termios);
        let is = |which| termios.is(byte, which);
        if is(Character::Erase) {
            self.erase(Erase::Character, output);
        } else if is(Character::WordErase) && (extended || is(Character::Kill)) {
            self.erase(Erase::Word, output);
        } else if is(Character::Kill) {
            self.kill(output);
        } else if extended && is(Character::LiteralNext) {
            self.literal_next = true;
            if echoing {
                self.finish_erasing(output);
                if termios.local.contains(LocalModes::ECHOCTL) {
                    self.show(Echo::Byte(b'^'), output);
                    self.show(Echo::Byte(0x08), output);
                }
            }
        } else if extended && echoing && is(Character::Reprint) {
            self.reprint(byte, output);
        } else if byte == b'\n' {
            if echoing || termios.local.contains(LocalModes::ECHONL) {
                self.show(Echo::Byte(b'\n'), output);
            }
            self.end_line(byte);
        } else if is(Character::EndOfFile) {
            self.end_file();
        } else if is(Character::EndOfLine) || extended && is(Character::EndOfLine2) {
            if echoing {
                self.mark_line_start(output);
                self.show_char(byte, output);
            }
            if byte == 0xff && termios.input.contains(InputModes::PARMRK) {
                self.input.push(byte);
            }
            self.end_line(byte);
        } else {
            return false;
        }
        true
    }

    /// Shows the line again, on a line of its own.
    fn reprint(&mut self, byte: u8, output: &mut impl Output) {
        self.finish_erasing(output);
        self.show_char(byte, output);
        self.show(Echo::Byte(b'\n'), output);
        for position in self.input.finished..self.input.head {
            self.show_char(self.input.byte(position), output);
        }
    }

    fn kill(&mut self, output: &mut impl Output) {
        if self.input.head == self.input.finished {
            return;
        }
        let local = self.termios.local;
        if !local.contains(LocalModes::ECHO) {
            self.input.head = self.input.finished;
            return;
        }
        if local.contains(LocalModes::ECHOK | LocalModes::ECHOKE | LocalModes::ECHOE) {
            return self.erase(Erase::Line, output);
        }
        self.input.head = self.input.finished;
        self.finish_erasing(output);
        self.show_char(self.termios.character(Character::Kill), output);
        if local.contains(LocalModes::ECHOK) {
            self.show(Echo::Byte(b'\n'), output);
        }
    }

    fn erase(&mut self, what: Erase, output: &mut impl Output) {
        if self.input.head == self.input.finished {
            return;
        }
        let mut in_word = false;
        while self.input.head != self.input.finished {
            let end = self.input.head;
            let Some(start) = (self.input.finished..end)
                .rev()
                .find(|&position| !is_continuation(&self.termios, self.input.byte(position)))
            else {
                break;
            };
            let first = self.input.byte(start);
            if what == Erase::Word {
                if is_word(first) {
                    in_word = true;
                } else if in_word {
                    break;
                }
            }
            self.input.head = start;
            if is_echoing(&self.termios) {
                self.show_erased(what, start, end, output);
            }
            if what == Erase::Character {
                break;
            }
        }
        if self.input.head == self.input.finished && is_echoing(&self.termios) {
            self.finish_erasing(output);
        }
    }

    /// Takes the character from `start` to `end` off the screen, or shows that it was erased.
    fn show_erased(&mut self, what: Erase, start: usize, end: usize, output: &mut impl Output) {
        let local = self.termios.local;
        let first = self.input.byte(start);
        if local.contains(LocalModes::ECHOPRT) {
            if !self.erasing {
                self.show(Echo::Byte(b'\\'), output);
                self.erasing = true;
            }
            self.show_char(first, output);
            for position in start + 1..end {
                self.show(Echo::Byte(self.input.byte(position)), output);
                self.show(Echo::StepBack, output);
            }
        } else if what == Erase::Character && !local.contains(LocalModes::ECHOE) {
            self.show_char(self.termios.character(Character::Erase), output);
        } else if first == b'\t' {
            self.show_erased_tab(output);
        } else {
            let shown_as_caret = local.contains(LocalModes::ECHOCTL);
            let columns = match is_control(first) {
                true if shown_as_caret => 2,
                true => 0,
                false => 1,
            };
            for byte in b"\x08 \x08".iter().cycle().take(3 * columns) {
                self.show(Echo::Byte(*byte), output);
            }
        }
    }

    /// How far to go back over a tab depends on the text between it and the tab before, or the line's start.
    fn show_erased_tab(&mut self, output: &mut impl Output) {
        let mut columns = 0usize;
        let mut after_tab = false;
        for position in (self.input.finished..self.input.head).rev() {
            let byte = self.input.byte(position);
            if byte == b'\t' {
                after_tab = true;
                break;
            }
            if is_control(byte) {
                columns += if self.termios.local.contains(LocalModes::ECHOCTL) { 2 } else { 0 };
            } else if !is_continuation(&self.termios, byte) {
                columns += 1;
            }
        }
        self.show(Echo::EraseTab { columns: (columns & 7) as u8, after_tab }, output);
    }

    pub(crate) fn finish_erasing(&mut self, output: &mut impl Output) {
        if core::mem::take(&mut self.erasing) {
            self.show(Echo::Byte(b'/'), output);
        }
    }
}

/// Whether a byte belongs to a word: letters (those of Latin-1 too), digits, and the underscore.
const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0xc0 && byte != 0xd7 && byte != 0xf7
}
