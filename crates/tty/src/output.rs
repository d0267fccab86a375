//! Output of programs, on its way to the line.

use crate::echo::Echo;
use crate::termios::{InputModes, LocalModes, OutputModes, Termios};

/// Where processed bytes go.
pub trait Output {
    /// How many bytes [`Output::put`] takes now.
    fn room(&self) -> usize;

    /// Appends bytes; the caller has asked for [`Output::room`].
    fn put(&mut self, bytes: &[u8]);

    /// Drops what the line has not seen yet.
    fn discard(&mut self);
}

/// How many bytes a byte can become: a tab at the left edge.
pub const WORST_EXPANSION: usize = 8;

const BLANKS: [u8; WORST_EXPANSION] = [b' '; WORST_EXPANSION];

/// Where the cursor is, as far as tabs and erasing need to know.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    column: u32,
    /// The column at which the line that is being typed starts.
    line_start: u32,
}

impl Cursor {
    /// Writes bytes that a program printed; returns how many fitted.
    pub(crate) fn write(&mut self, termios: &Termios, bytes: &[u8], output: &mut impl Output) -> usize {
        if !termios.output.contains(OutputModes::OPOST) {
            let count = bytes.len().min(output.room());
            output.put(&bytes[..count]);
            return count;
        }
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..bytes.len().min(done.saturating_add(output.room()))];
            let run = self.plain_run(termios, rest);
            output.put(&rest[..run]);
            done += run;
            if run == rest.len() || !self.put(termios, rest[run], output) {
                break;
            }
            done += 1;
        }
        done
    }

    /// The length of the longest prefix that goes out as it is; moves the cursor over it.
    fn plain_run(&mut self, termios: &Termios, bytes: &[u8]) -> usize {
        if termios.output.contains(OutputModes::OLCUC) {
            return 0;
        }
        let run = bytes.iter().position(|&byte| is_control(byte)).unwrap_or(bytes.len());
        let wide = bytes[..run].iter().filter(|&&byte| !is_continuation(termios, byte)).count();
        self.column = self.column.wrapping_add(wide as u32);
        run
    }

    /// Processes one byte; false if there is no room for what it becomes.
    fn put(&mut self, termios: &Termios, byte: u8, output: &mut impl Output) -> bool {
        let modes = termios.output;
        let room = output.room();
        if room == 0 {
            return false;
        }
        let mut byte = byte;
        match byte {
            b'\n' => {
                if modes.contains(OutputModes::ONLRET) {
                    self.column = 0;
                }
                if modes.contains(OutputModes::ONLCR) {
                    if room < 2 {
                        return false;
                    }
                    *self = Self::default();
                    output.put(b"\r\n");
                    return true;
                }
                self.line_start = self.column;
            }
            b'\r' if modes.contains(OutputModes::ONOCR) && self.column == 0 => return true,
            b'\r' if modes.contains(OutputModes::OCRNL) => {
                byte = b'\n';
                if modes.contains(OutputModes::ONLRET) {
                    *self = Self::default();
                }
            }
            b'\r' => *self = Self::default(),
            b'\t' => {
                let width = 8 - (self.column & 7);
                if modes.contains(OutputModes::XTABS) {
                    if room < width as usize {
                        return false;
                    }
                    self.column = self.column.wrapping_add(width);
                    output.put(&BLANKS[..width as usize]);
                    return true;
                }
                self.column = self.column.wrapping_add(width);
            }
            0x08 => self.back(),
            _ if is_control(byte) => {}
            _ => {
                if modes.contains(OutputModes::OLCUC) {
                    byte = to_upper(byte);
                }
                if !is_continuation(termios, byte) {
                    self.column = self.column.wrapping_add(1);
                }
            }
        }
        output.put(&[byte]);
        true
    }

    /// Shows what an echo asks for; false if there is no room for it.
    pub(crate) fn echo(&mut self, termios: &Termios, echo: Echo, output: &mut impl Output) -> bool {
        match echo {
            // 0xff, the escape byte of Linux's echo buffer, escapes processing, too.
            Echo::Byte(byte) if byte != 0xff && termios.output.contains(OutputModes::OPOST) => {
                self.put(termios, byte, output)
            }
            Echo::Byte(byte) => {
                if output.room() == 0 {
                    return false;
                }
                self.column = self.column.wrapping_add(u32::from(byte == 0xff));
                output.put(&[byte]);
                true
            }
            Echo::Caret(byte) => {
                if output.room() < 2 {
                    return false;
                }
                output.put(&[b'^', byte ^ 0x40]);
                self.column = self.column.wrapping_add(2);
                true
            }
            Echo::StepBack => {
                self.back();
                true
            }
            Echo::LineStart => {
                self.line_start = self.column;
                true
            }
            Echo::EraseTab { columns, after_tab } => {
                let base = if after_tab { 0 } else { self.line_start };
                let width = 8 - (base.wrapping_add(u32::from(columns)) & 7);
                if output.room() < width as usize {
                    return false;
                }
                for _ in 0..width {
                    output.put(b"\x08");
                    self.back();
                }
                true
            }
        }
    }

    fn back(&mut self) {
        self.column = self.column.saturating_sub(1);
    }
}

/// Whether a byte is one that echoes as `^X`.
pub(crate) const fn is_control(byte: u8) -> bool {
    byte < 0x20 || byte == 0x7f
}

/// Whether a byte continues a character of several bytes.
pub(crate) const fn is_continuation(termios: &Termios, byte: u8) -> bool {
    termios.input.contains(InputModes::IUTF8) && byte & 0xc0 == 0x80
}

/// Whether typed bytes are shown at all.
pub(crate) const fn is_echoing(termios: &Termios) -> bool {
    termios.local.contains(LocalModes::ECHO)
}

/// Upper case in Latin-1, as Linux's terminals see it: ß and ÿ are taken along.
pub(crate) const fn to_upper(byte: u8) -> u8 {
    match byte {
        b'a'..=b'z' | 0xdf..=0xf6 | 0xf8..=0xff => byte - 0x20,
        _ => byte,
    }
}

/// Lower case in Latin-1.
pub(crate) const fn to_lower(byte: u8) -> u8 {
    match byte {
        b'A'..=b'Z' | 0xc0..=0xd6 | 0xd8..=0xde => byte + 0x20,
        _ => byte,
    }
}
