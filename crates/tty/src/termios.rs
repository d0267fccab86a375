//! Terminal settings, with the names and bits of termios(3).
#![allow(missing_docs, reason = "termios(3) explains each name")]

use bitflags::bitflags;
use linux_raw_sys::general as linux;

bitflags! {
    /// `c_iflag`: the processing of bytes that come from the line.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InputModes: u32 {
        const IGNBRK = linux::IGNBRK;
        const BRKINT = linux::BRKINT;
        const PARMRK = linux::PARMRK;
        const ISTRIP = linux::ISTRIP;
        const INLCR = linux::INLCR;
        const IGNCR = linux::IGNCR;
        const ICRNL = linux::ICRNL;
        const IUCLC = linux::IUCLC;
        const IXON = linux::IXON;
        const IXANY = linux::IXANY;
        const IXOFF = linux::IXOFF;
        const IUTF8 = linux::IUTF8;
        const _ = !0;
    }

    /// `c_oflag`: the processing of bytes that programs write.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OutputModes: u32 {
        const OPOST = linux::OPOST;
        const OLCUC = linux::OLCUC;
        const ONLCR = linux::ONLCR;
        const OCRNL = linux::OCRNL;
        const ONOCR = linux::ONOCR;
        const ONLRET = linux::ONLRET;
        const XTABS = linux::XTABS;
        const _ = !0;
    }

    /// `c_lflag`: editing, echo, signals.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LocalModes: u32 {
        const ISIG = linux::ISIG;
        const ICANON = linux::ICANON;
        const ECHO = linux::ECHO;
        const ECHOE = linux::ECHOE;
        const ECHOK = linux::ECHOK;
        const ECHONL = linux::ECHONL;
        const NOFLSH = linux::NOFLSH;
        const TOSTOP = linux::TOSTOP;
        const ECHOCTL = linux::ECHOCTL;
        const ECHOPRT = linux::ECHOPRT;
        const ECHOKE = linux::ECHOKE;
        const IEXTEN = linux::IEXTEN;
        const EXTPROC = linux::EXTPROC;
        const _ = !0;
    }
}

/// Index of a special character in [`Termios::characters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Character {
    Interrupt = linux::VINTR,
    Quit = linux::VQUIT,
    Erase = linux::VERASE,
    Kill = linux::VKILL,
    EndOfFile = linux::VEOF,
    Time = linux::VTIME,
    Minimum = linux::VMIN,
    Start = linux::VSTART,
    Stop = linux::VSTOP,
    Suspend = linux::VSUSP,
    EndOfLine = linux::VEOL,
    Reprint = linux::VREPRINT,
    WordErase = linux::VWERASE,
    LiteralNext = linux::VLNEXT,
    EndOfLine2 = linux::VEOL2,
}

/// The value of a special character that is switched off.
pub(crate) const DISABLED: u8 = 0;

/// The settings of a terminal: `struct termios2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Termios {
    /// `c_iflag`.
    pub input: InputModes,
    /// `c_oflag`.
    pub output: OutputModes,
    /// `c_cflag`; remembered, without effect here.
    pub control: u32,
    /// `c_lflag`.
    pub local: LocalModes,
    /// `c_line`; remembered, without effect here.
    pub line: u8,
    /// `c_cc`, see [`Character`].
    pub characters: [u8; linux::NCCS as usize],
    /// `c_ispeed` in baud.
    pub input_speed: u32,
    /// `c_ospeed` in baud.
    pub output_speed: u32,
}

impl Termios {
    /// The initial settings of a pseudoterminal, which has no line to hang up.
    pub const PSEUDO_TERMINAL: Self =
        Self { control: Self::DEFAULT.control & !linux::HUPCL, ..Self::DEFAULT };

    /// A terminal's initial settings.
    pub const DEFAULT: Self = Self {
        input: InputModes::ICRNL.union(InputModes::IXON),
        output: OutputModes::OPOST.union(OutputModes::ONLCR),
        control: linux::B38400 | linux::CS8 | linux::CREAD | linux::HUPCL,
        local: LocalModes::ISIG
            .union(LocalModes::ICANON)
            .union(LocalModes::ECHO)
            .union(LocalModes::ECHOE)
            .union(LocalModes::ECHOK)
            .union(LocalModes::ECHOCTL)
            .union(LocalModes::ECHOKE)
            .union(LocalModes::IEXTEN),
        line: 0,
        characters: {
            let mut characters = [0; linux::NCCS as usize];
            characters[Character::Interrupt as usize] = control(b'C');
            characters[Character::Quit as usize] = control(b'\\');
            characters[Character::Erase as usize] = 0x7f;
            characters[Character::Kill as usize] = control(b'U');
            characters[Character::EndOfFile as usize] = control(b'D');
            characters[Character::Minimum as usize] = 1;
            characters[Character::Start as usize] = control(b'Q');
            characters[Character::Stop as usize] = control(b'S');
            characters[Character::Suspend as usize] = control(b'Z');
            characters[Character::Reprint as usize] = control(b'R');
            characters[13] = control(b'O');
            characters[Character::WordErase as usize] = control(b'W');
            characters[Character::LiteralNext as usize] = control(b'V');
            characters
        },
        input_speed: 38400,
        output_speed: 38400,
    };

    /// The value of a special character or parameter.
    #[must_use]
    pub const fn character(&self, which: Character) -> u8 {
        self.characters[which as usize]
    }

    /// Whether `byte` is this special character; a disabled one never is.
    pub(crate) const fn is(&self, byte: u8, which: Character) -> bool {
        byte != DISABLED && byte == self.character(which)
    }

    /// Whether input is edited line by line.
    #[must_use]
    pub const fn is_canonical(&self) -> bool {
        self.local.contains(LocalModes::ICANON)
    }

    /// Replaces what `struct termios` (`TCSETS`) carries; the speeds stay.
    #[must_use]
    pub const fn with_basic(self, basic: &linux::termios) -> Self {
        Self {
            input: InputModes::from_bits_retain(basic.c_iflag),
            output: OutputModes::from_bits_retain(basic.c_oflag),
            control: basic.c_cflag,
            local: LocalModes::from_bits_retain(basic.c_lflag),
            line: basic.c_line,
            characters: basic.c_cc,
            ..self
        }
    }

    /// The `struct termios` that `TCGETS` returns.
    #[must_use]
    pub const fn to_basic(&self) -> linux::termios {
        linux::termios {
            c_iflag: self.input.bits(),
            c_oflag: self.output.bits(),
            c_cflag: self.control,
            c_lflag: self.local.bits(),
            c_line: self.line,
            c_cc: self.characters,
        }
    }
}

impl From<linux::termios2> for Termios {
    fn from(full: linux::termios2) -> Self {
        Self {
            input: InputModes::from_bits_retain(full.c_iflag),
            output: OutputModes::from_bits_retain(full.c_oflag),
            control: full.c_cflag,
            local: LocalModes::from_bits_retain(full.c_lflag),
            line: full.c_line,
            characters: full.c_cc,
            input_speed: full.c_ispeed,
            output_speed: full.c_ospeed,
        }
    }
}

impl From<Termios> for linux::termios2 {
    fn from(termios: Termios) -> Self {
        Self {
            c_iflag: termios.input.bits(),
            c_oflag: termios.output.bits(),
            c_cflag: termios.control,
            c_lflag: termios.local.bits(),
            c_line: termios.line,
            c_cc: termios.characters,
            c_ispeed: termios.input_speed,
            c_ospeed: termios.output_speed,
        }
    }
}

/// The byte that Ctrl and this key give.
const fn control(key: u8) -> u8 {
    key & 0x1f
}
