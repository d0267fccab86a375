//! ioctls of terminals, ioctl_tty(2).

use alloc::sync::Arc;

use heddle_kernel_core::signal::Signal;
use heddle_tty::{Character, Output, Termios};
use linux_raw_sys::general::{
    CAP_SYS_ADMIN, TCIFLUSH, TCIOFF, TCIOFLUSH, TCION, TCOFLUSH, TCOOFF, TCOON, TIOCPKT_FLUSHWRITE,
    TIOCPKT_IOCTL, termios, termios2,
};
use linux_raw_sys::ioctl;

use crate::call::Call;
use crate::error::{Errno, TryResult};
use crate::tty::program::discard_output;
use crate::tty::state::{Effects, TtyState, WindowSize};
use crate::tty::{Terminal, job};
use crate::wait::queue::Events;

/// Which side of a terminal a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TerminalSide {
    /// A program's.
    Program,
    /// The master of a pseudoterminal: its requests are about the program's side, and job control doesn't bind it.
    Master,
}

/// `struct termios` in bytes, and `struct termios2`, which adds the speeds.
pub(super) const BASIC_BYTES: usize = 36;
const FULL_BYTES: usize = 44;
const CHARACTERS_START: usize = 17;
/// The old `struct termio` in bytes, without the padding at its end: the lower halves of the flags, and the line
/// discipline with eight characters.
const SHORT_BYTES: usize = 17;
const SHORT_LINE: usize = 8;

/// Carries a request out.
pub(super) fn ioctl(
    terminal: &Arc<Terminal>,
    side: TerminalSide,
    call: &Call<'_>,
    request: u32,
    argument: usize,
) -> TryResult<usize> {
    match request {
        // Output is processed when it is written, and there is no line that a break could be sent on.
        ioctl::TCSBRK | ioctl::TCSBRKP | ioctl::TIOCSBRK | ioctl::TIOCCBRK => {
            may_change(terminal, side, call)?;
            Ok(0)
        }
        ioctl::TCXONC | ioctl::TCFLSH => {
            may_change(terminal, side, call)?;
            let effects = if request == ioctl::TCXONC {
                control_flow(terminal, argument as u32)?
            } else {
                flush(terminal, argument as u32)?
            };
            terminal.apply(effects);
            Ok(0)
        }
        ioctl::TIOCGWINSZ => {
            let WindowSize { rows, columns, width, height } = terminal.state.lock().window;
            store(call, argument, &halves([rows, columns, width, height]))
        }
        ioctl::TIOCSWINSZ => {
            let mut bytes = [0; 8];
            load(call, argument, &mut bytes)?;
            let [rows, columns, width, height] =
                core::array::from_fn(|index| u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]));
            terminal.set_window(WindowSize { rows, columns, width, height });
            Ok(0)
        }
        ioctl::FIONREAD | ioctl::TIOCOUTQ => {
            let state = terminal.state.lock();
            let is_input = (request == ioctl::FIONREAD) == (side == TerminalSide::Program);
            let count = if is_input { state.discipline.available_bytes() } else { state.output.len() };
            drop(state);
            store(call, argument, &(count as u32).to_le_bytes())
        }
        ioctl::TIOCEXCL | ioctl::TIOCNXCL => {
            terminal.state.lock().exclusive = request == ioctl::TIOCEXCL;
            Ok(0)
        }
        ioctl::TIOCGEXCL => {
            let exclusive = terminal.state.lock().exclusive;
            store(call, argument, &u32::from(exclusive).to_le_bytes())
        }
        ioctl::TIOCGDEV => store(call, argument, &(terminal.device as u32).to_le_bytes()),
        ioctl::TIOCGETD => store(call, argument, &[0; 4]),
        ioctl::TIOCSETD => {
            let mut discipline = [0; 4];
            load(call, argument, &mut discipline)?;
            if discipline == [0; 4] { Ok(0) } else { Err(Errno::EINVAL.into()) }
        }
        ioctl::TIOCSTI => type_in(terminal, side, call, argument),
        _ => settings_ioctl(terminal, side, call, request, argument),
    }
}

/// Requests about the terminal's settings.
fn settings_ioctl(
    terminal: &Arc<Terminal>,
    side: TerminalSide,
    call: &Call<'_>,
    request: u32,
    argument: usize,
) -> TryResult<usize> {
    match request {
        ioctl::TCGETS => store(call, argument, &settings(terminal)[..BASIC_BYTES]),
        ioctl::TCGETS2 => store(call, argument, &settings(terminal)),
        ioctl::TCSETS | ioctl::TCSETSW | ioctl::TCSETSF => {
            let mut bytes = [0; FULL_BYTES];
            load(call, argument, &mut bytes[..BASIC_BYTES])?;
            may_change(terminal, side, call)?;
            let current = *terminal.state.lock().discipline.termios();
            set(terminal, current.with_basic(&decode(&bytes)), request == ioctl::TCSETSF);
            Ok(0)
        }
        ioctl::TCSETS2 | ioctl::TCSETSW2 | ioctl::TCSETSF2 => {
            let mut bytes = [0; FULL_BYTES];
            load(call, argument, &mut bytes)?;
            may_change(terminal, side, call)?;
            let basic = decode(&bytes);
            let speed = |start: usize| word(&bytes, start);
            let speeds = Termios {
                input_speed: speed(BASIC_BYTES),
                output_speed: speed(BASIC_BYTES + 4),
                ..Termios::DEFAULT
            };
            set(terminal, speeds.with_basic(&basic), request == ioctl::TCSETSF2);
            Ok(0)
        }
        ioctl::TCGETA => store(call, argument, &encode_short(terminal)),
        ioctl::TCSETA | ioctl::TCSETAW | ioctl::TCSETAF => {
            let mut short = [0; SHORT_BYTES];
            load(call, argument, &mut short)?;
            may_change(terminal, side, call)?;
            let current = *terminal.state.lock().discipline.termios();
            let basic = decode(&with_short(encode(current), &short));
            set(terminal, current.with_basic(&basic), request == ioctl::TCSETAF);
            Ok(0)
        }
        ioctl::TIOCGLCKTRMIOS => {
            let kept = terminal.state.lock().kept;
            store(call, argument, &kept)
        }
        ioctl::TIOCSLCKTRMIOS => {
            if !call.thread.credentials().is_capable(CAP_SYS_ADMIN) {
                return Err(Errno::EPERM.into());
            }
            let mut kept = [0; BASIC_BYTES];
            load(call, argument, &mut kept)?;
            terminal.state.lock().kept = kept;
            Ok(0)
        }
        _ => job_ioctl(terminal, side, call, request, argument),
    }
}

/// Requests about sessions and process groups.
fn job_ioctl(
    terminal: &Arc<Terminal>,
    side: TerminalSide,
    call: &Call<'_>,
    request: u32,
    argument: usize,
) -> TryResult<usize> {
    let thread = call.thread;
    match request {
        ioctl::TIOCGPGRP | ioctl::TIOCGSID => {
            if side == TerminalSide::Program && !job::is_controlling(terminal, thread) {
                return Err(Errno::ENOTTY.into());
            }
            let state = terminal.state.lock();
            let (session, foreground) = (state.session, state.foreground);
            drop(state);
            let number = match request {
                ioctl::TIOCGPGRP => foreground,
                _ if session == 0 => return Err(Errno::ENOTTY.into()),
                _ => session,
            };
            store(call, argument, &thread.process.shown(number).to_le_bytes())
        }
        ioctl::TIOCSPGRP => {
            let mut bytes = [0; 4];
            load(call, argument, &mut bytes)?;
            job::set_foreground(terminal, thread, thread.process.named(i32::from_le_bytes(bytes)))?;
            Ok(0)
        }
        // By the other side too it is the program's side that becomes the terminal.
        ioctl::TIOCSCTTY => {
            job::set_controlling(terminal, thread, argument == 1)?;
            Ok(0)
        }
        ioctl::TIOCNOTTY if side == TerminalSide::Program => {
            job::give_up(terminal, thread)?;
            Ok(0)
        }
        ioctl::TIOCVHANGUP if side == TerminalSide::Program => {
            if !thread.credentials().is_capable(CAP_SYS_ADMIN) {
                return Err(Errno::EPERM.into());
            }
            terminal.hang_up(false);
            Ok(0)
        }
        _ => Err(Errno::ENOTTY.into()),
    }
}

/// `TIOCSTI`: a byte as if it had been typed, by whose terminal it is. A byte that finds no room is lost, as on a line.
fn type_in(terminal: &Terminal, side: TerminalSide, call: &Call<'_>, address: usize) -> TryResult<usize> {
    if side == TerminalSide::Master {
        // Its input is what programs print.
        return Err(Errno::EIO.into());
    }
    if !job::is_controlling(terminal, call.thread) && !call.thread.credentials().is_capable(CAP_SYS_ADMIN) {
        return Err(Errno::EPERM.into());
    }
    let mut byte = [0];
    load(call, address, &mut byte)?;
    terminal.line_input(&byte);
    Ok(0)
}

/// A program in the background that changes the terminal is stopped.
fn may_change(terminal: &Terminal, side: TerminalSide, call: &Call<'_>) -> Result<(), Errno> {
    match side {
        TerminalSide::Program => job::check(terminal, call.thread, Signal::TTOU),
        TerminalSide::Master => Ok(()),
    }
}

fn set(terminal: &Terminal, termios: Termios, flush: bool) {
    let mut state = terminal.state.lock();
    if flush {
        state.discard_input();
    }
    let was_stopped = state.discipline.is_stopped();
    let TtyState { discipline, output, kept, .. } = &mut *state;
    let termios = keep_some(*discipline.termios(), termios, kept);
    discipline.set_termios(termios, output);
    if was_stopped != state.discipline.is_stopped() {
        state.note_flow();
    }
    if termios.local.contains(heddle_tty::LocalModes::EXTPROC) {
        state.note(TIOCPKT_IOCTL);
    }
    drop(state);
    // The set of ready events may have changed.
    terminal.apply(Effects::all());
}

/// `TCXONC`.
fn control_flow(terminal: &Terminal, action: u32) -> Result<Effects, Errno> {
    let mut state = terminal.state.lock();
    let TtyState { discipline, output, .. } = &mut *state;
    let changed = match action {
        TCOOFF => discipline.stop_by_program(),
        TCOON => discipline.start_by_program(output),
        TCIOFF | TCION => {
            let which = if action == TCIOFF { Character::Stop } else { Character::Start };
            let byte = discipline.termios().character(which);
            if byte != 0 && output.room() > 0 {
                output.put(&[byte]);
            }
            false
        }
        _ => return Err(Errno::EINVAL),
    };
    if changed {
        state.note_flow();
    }
    Ok(Effects::all())
}

/// `TCFLSH`.
fn flush(terminal: &Terminal, which: u32) -> Result<Effects, Errno> {
    let mut effects = Effects::default();
    let mut state = terminal.state.lock();
    if !matches!(which, TCIFLUSH | TCOFLUSH | TCIOFLUSH) {
        return Err(Errno::EINVAL);
    }
    if which != TCOFLUSH {
        state.discard_input();
        effects.line = Some(Events::all());
    }
    if which != TCIFLUSH {
        discard_output(&mut state.output, &mut effects);
        state.note(TIOCPKT_FLUSHWRITE);
    }
    Ok(effects)
}

/// Settings with those of before where they are to stay: each bit of the flags, and each character as a whole.
fn keep_some(before: Termios, wanted: Termios, kept: &[u8; BASIC_BYTES]) -> Termios {
    if *kept == [0; BASIC_BYTES] {
        return wanted;
    }
    let (before, mut bytes) = (encode(before), encode(wanted));
    for (index, &keep) in kept.iter().enumerate() {
        let is_flag = index < CHARACTERS_START - 1;
        let mask = if is_flag || keep == 0 { keep } else { u8::MAX };
        bytes[index] = bytes[index] & !mask | before[index] & mask;
    }
    wanted.with_basic(&decode(&bytes))
}

fn settings(terminal: &Terminal) -> [u8; FULL_BYTES] {
    let termios = *terminal.state.lock().discipline.termios();
    encode(termios)
}

fn encode(termios: Termios) -> [u8; FULL_BYTES] {
    let full = termios2::from(termios);
    let mut bytes = [0; FULL_BYTES];
    let flags = [full.c_iflag, full.c_oflag, full.c_cflag, full.c_lflag];
    for (chunk, flag) in bytes.chunks_exact_mut(4).zip(flags) {
        chunk.copy_from_slice(&flag.to_le_bytes());
    }
    bytes[CHARACTERS_START - 1] = full.c_line;
    bytes[CHARACTERS_START..BASIC_BYTES].copy_from_slice(&full.c_cc);
    bytes[BASIC_BYTES..BASIC_BYTES + 4].copy_from_slice(&full.c_ispeed.to_le_bytes());
    bytes[BASIC_BYTES + 4..].copy_from_slice(&full.c_ospeed.to_le_bytes());
    bytes
}

/// The `struct termio` that `TCGETA` returns.
fn encode_short(terminal: &Terminal) -> [u8; SHORT_BYTES] {
    let full = settings(terminal);
    let mut short = [0; SHORT_BYTES];
    for (half, flags) in short[..SHORT_LINE].chunks_exact_mut(2).zip(full.chunks_exact(4)) {
        half.copy_from_slice(&flags[..2]);
    }
    short[SHORT_LINE..].copy_from_slice(&full[CHARACTERS_START - 1..][..SHORT_BYTES - SHORT_LINE]);
    short
}

/// Replaces what `struct termio` carries; the upper halves of the flags and the other characters stay.
fn with_short(mut full: [u8; FULL_BYTES], short: &[u8; SHORT_BYTES]) -> [u8; FULL_BYTES] {
    for (half, flags) in short[..SHORT_LINE].chunks_exact(2).zip(full.chunks_exact_mut(4)) {
        flags[..2].copy_from_slice(half);
    }
    full[CHARACTERS_START - 1..][..SHORT_BYTES - SHORT_LINE].copy_from_slice(&short[SHORT_LINE..]);
    full
}

fn decode(bytes: &[u8; FULL_BYTES]) -> termios {
    let mut characters = [0; BASIC_BYTES - CHARACTERS_START];
    characters.copy_from_slice(&bytes[CHARACTERS_START..BASIC_BYTES]);
    termios {
        c_iflag: word(bytes, 0),
        c_oflag: word(bytes, 4),
        c_cflag: word(bytes, 8),
        c_lflag: word(bytes, 12),
        c_line: bytes[CHARACTERS_START - 1],
        c_cc: characters,
    }
}

fn word(bytes: &[u8; FULL_BYTES], start: usize) -> u32 {
    u32::from_le_bytes([bytes[start], bytes[start + 1], bytes[start + 2], bytes[start + 3]])
}

fn halves(values: [u16; 4]) -> [u8; 8] {
    let mut bytes = [0; 8];
    for (chunk, value) in bytes.chunks_exact_mut(2).zip(values) {
        chunk.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Copies a result to the program.
pub(super) fn store(call: &Call<'_>, address: usize, bytes: &[u8]) -> TryResult<usize> {
    call.thread.space().write_bytes(address, bytes)?;
    Ok(0)
}

/// Copies an argument from the program.
pub(super) fn load(call: &Call<'_>, address: usize, bytes: &mut [u8]) -> TryResult<()> {
    call.thread.space().read_bytes(address, bytes)?;
    Ok(())
}
