//! One terminal.

use alloc::sync::Arc;

use heddle_kernel_core::signal::{Information, Signal};
use heddle_tty::{LineDiscipline, Received, SignalRequests, Termios};

use crate::error::Errno;
use crate::fs::File;
use crate::memory::fallible;
use crate::sync::SpinLock;
use crate::tty::control::BASIC_BYTES;
use crate::tty::output::OutputQueue;
use crate::tty::program::TerminalFile;
use crate::wait::queue::{Events, WaitQueue};
use crate::{process, signal};

/// Output that Linux's pseudoterminals keep when a signal character throws output away: the part that the master's side
/// has already taken over.
const PTY_KEPT_BYTES: usize = 4096;
/// The most input that waits for a program to read; more is refused.
const WAITING_BYTES: usize = 256;

/// A size in characters and pixels: `struct winsize`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowSize {
    pub rows: u16,
    pub columns: u16,
    pub width: u16,
    pub height: u16,
}

/// Everything that changes about a terminal.
pub(super) struct TtyState {
    pub discipline: LineDiscipline,
    pub output: OutputQueue,
    /// Input that the discipline had no room for.
    waiting: [u8; WAITING_BYTES],
    waiting_length: usize,
    pub window: WindowSize,
    /// The session that it controls, 0 for none.
    pub session: i32,
    /// The foreground process group, 0 for none.
    pub foreground: i32,
    /// How often it was hung up; files that were opened before the last time are dead.
    pub hang_ups: u32,
    /// The line is gone for good.
    pub line_closed: bool,
    /// Files that are open on the program's side, dead ones too: the master sees the end when the last one is closed.
    pub open_files: usize,
    /// Whether there ever was one.
    pub was_open: bool,
    /// `TIOCSPTLCK`: can't be opened yet.
    pub locked: bool,
    /// `TIOCEXCL`: can't be opened again.
    pub exclusive: bool,
    /// The settings that stay as they are, in the form of `struct termios`: `TIOCSLCKTRMIOS`.
    pub kept: [u8; BASIC_BYTES],
    /// `TIOCPKT`: the master wants to be told of changes, and which there are.
    pub packet: Option<u8>,
    /// The progress of a read that waits for `VMIN` and `VTIME`.
    pub reading: ReadState,
    /// A coroutine waits for that moment.
    pub timer_runs: bool,
}

/// A read that waits, not line by line. Concurrent readers of one terminal share it, as they share the input.
#[derive(Clone, Copy, Default)]
pub(super) struct ReadState {
    /// How many bytes it wants at least.
    pub wanted: usize,
    /// How many there were when it last looked.
    pub seen: usize,
    /// When it ends with what there is, on the monotonic clock; 0 for never.
    pub deadline_ns: u64,
}

impl ReadState {
    pub const fn is_late(&self, now_ns: u64) -> bool {
        self.deadline_ns != 0 && self.deadline_ns <= now_ns
    }
}

/// A terminal.
pub struct Terminal {
    /// Its device number.
    pub(super) device: u64,
    pub(super) state: SpinLock<TtyState>,
    /// The program's side: `IN` when something was typed, `OUT` when there is room for output.
    pub(super) program: WaitQueue,
    /// The line's side: `IN` when there is output to show, `OUT` when there is room for input.
    pub(super) line: WaitQueue,
}

/// Whom a change concerns; told after the terminal was unlocked.
#[derive(Default)]
#[must_use]
pub(super) struct Effects {
    pub signals: SignalRequests,
    pub foreground: i32,
    pub program: Option<Events>,
    pub line: Option<Events>,
}

impl Effects {
    /// Tells both sides to look again at everything.
    pub fn all() -> Self {
        Self { program: Some(Events::all()), line: Some(Events::all()), ..Self::default() }
    }

    fn add(&mut self, received: Received, state: &mut TtyState) {
        self.signals |= received.signals;
        self.foreground = state.foreground;
        if received.flushed {
            state
                .note(linux_raw_sys::general::TIOCPKT_FLUSHREAD | linux_raw_sys::general::TIOCPKT_FLUSHWRITE);
        }
        if received.flow_changed {
            state.note_flow();
            self.program = Some(Events::all());
        }
    }
}

impl TtyState {
    /// Feeds input to the discipline; keeps what it has no room for, as far as that goes. Returns how much was taken.
    fn input(&mut self, bytes: &[u8], effects: &mut Effects) -> usize {
        self.feed_waiting(effects);
        if self.waiting_length > 0 {
            return 0;
        }
        let received = self.discipline.receive(bytes, &mut self.output);
        effects.add(received, self);
        let rest = &bytes[received.consumed..];
        let kept = rest.len().min(WAITING_BYTES);
        self.waiting[..kept].copy_from_slice(&rest[..kept]);
        self.waiting_length = kept;
        received.consumed + kept
    }

    /// Feeds what was kept; to be called when a program has read something.
    pub fn feed_waiting(&mut self, effects: &mut Effects) {
        if self.waiting_length == 0 {
            return;
        }
        let received = self.discipline.receive(&self.waiting[..self.waiting_length], &mut self.output);
        self.waiting.copy_within(received.consumed..self.waiting_length, 0);
        self.waiting_length -= received.consumed;
        effects.add(received, self);
        if received.consumed > 0 {
            effects.line = Some(Events::all());
        }
    }

    pub fn accepts_input(&self) -> bool {
        self.waiting_length == 0
    }

    /// Whether a program can write.
    pub fn accepts_output(&self) -> bool {
        !self.discipline.is_stopped() && self.output.program_room() > 0
    }

    /// Whether a read that had to wait should look again.
    pub fn can_answer_blocked_read(&self) -> bool {
        if self.discipline.reads_lines() {
            return self.discipline.is_readable();
        }
        let available = self.discipline.available_bytes();
        available >= self.reading.wanted.max(1)
            || self.reading.deadline_ns != 0 && available != self.reading.seen
            || self.reading.is_late(crate::arch::time::now_ns())
    }

    /// Forgets what was typed and not read.
    pub fn discard_input(&mut self) {
        self.discipline.discard_input();
        self.waiting_length = 0;
        self.note(linux_raw_sys::general::TIOCPKT_FLUSHREAD);
    }

    /// Notes a change for the master in packet mode.
    pub fn note(&mut self, bits: u32) {
        if let Some(noted) = &mut self.packet {
            *noted |= bits as u8;
        }
    }

    /// Notes that output was stopped or restarted.
    pub fn note_flow(&mut self) {
        use linux_raw_sys::general::{TIOCPKT_START, TIOCPKT_STOP};
        let (now, before) = match self.discipline.is_stopped() {
            true => (TIOCPKT_STOP, TIOCPKT_START),
            false => (TIOCPKT_START, TIOCPKT_STOP),
        };
        if let Some(noted) = &mut self.packet {
            *noted = *noted & !(before as u8) | now as u8;
        }
    }
}

impl Terminal {
    /// A terminal of this device number.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn new(device: u64, is_pty: bool) -> Result<Arc<Self>, Errno> {
        let settings = if is_pty { Termios::PSEUDO_TERMINAL } else { Termios::DEFAULT };
        let discipline = LineDiscipline::try_with(settings).map_err(|_| Errno::ENOMEM)?;
        let state = TtyState {
            discipline,
            output: OutputQueue::try_new(if is_pty { PTY_KEPT_BYTES } else { 0 })?,
            waiting: [0; WAITING_BYTES],
            waiting_length: 0,
            window: WindowSize::default(),
            session: 0,
            foreground: 0,
            hang_ups: 0,
            line_closed: false,
            open_files: 0,
            was_open: false,
            locked: is_pty,
            exclusive: false,
            kept: [0; BASIC_BYTES],
            packet: None,
            reading: ReadState::default(),
            timer_runs: false,
        };
        fallible::try_arc(Self {
            device,
            state: SpinLock::new(state),
            program: WaitQueue::new(),
            line: WaitQueue::new(),
        })
    }

    /// Input from the line; returns how many bytes were taken, 0 when a program has to read first.
    pub fn line_input(&self, bytes: &[u8]) -> usize {
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        let taken = state.input(bytes, &mut effects);
        if state.discipline.is_readable() {
            effects.program.get_or_insert(Events::empty()).insert(Events::IN | Events::RDNORM);
        }
        if !state.output.is_empty() {
            effects.line = Some(Events::IN | Events::RDNORM);
        }
        drop(state);
        self.apply(effects);
        taken
    }

    /// Hands output to the line: `take` gets bytes and returns how many it took. Returns their number.
    pub fn line_output(&self, mut take: impl FnMut(&[u8]) -> usize) -> usize {
        let mut state = self.state.lock();
        let mut taken = 0;
        loop {
            let piece = state.output.first();
            let length = piece.len();
            if length == 0 {
                break;
            }
            let count = take(piece);
            state.output.consume(count);
            taken += count;
            if count < length {
                break;
            }
        }
        let TtyState { discipline, output, .. } = &mut *state;
        discipline.flush_echo(output);
        let wakes = taken > 0 && state.accepts_output();
        drop(state);
        if wakes {
            self.program.wake(Events::OUT | Events::WRNORM);
        }
        taken
    }

    /// Whether the line can give input.
    pub fn accepts_input(&self) -> bool {
        self.state.lock().accepts_input()
    }

    /// Whether there is output for the line.
    pub fn has_output(&self) -> bool {
        !self.state.lock().output.is_empty()
    }

    /// Whether the line is gone for good.
    pub fn is_line_closed(&self) -> bool {
        self.state.lock().line_closed
    }

    /// Changes the size; programs in the foreground are told if it is another one.
    pub fn set_window(&self, window: WindowSize) {
        let mut state = self.state.lock();
        let before = core::mem::replace(&mut state.window, window);
        let foreground = state.foreground;
        drop(state);
        if before != window {
            send(foreground, Signal::WINCH);
        }
    }

    /// The line is gone, or the session's leader: every open file is dead from now on, and the session is told. With
    /// `for_good` the line never comes back.
    pub fn hang_up(&self, for_good: bool) {
        let mut state = self.state.lock();
        state.hang_ups = state.hang_ups.wrapping_add(1);
        state.line_closed |= for_good;
        state.exclusive = false;
        state.discard_input();
        let (session, foreground) = (state.session, state.foreground);
        (state.session, state.foreground) = (0, 0);
        drop(state);
        if let Some(session) = process::table::session(session) {
            drop(session.set_terminal(None));
        }
        if let Some(leader) = process::table::process(session) {
            for signal in [Signal::HUP, Signal::CONT] {
                // Neither is a realtime signal, so there is always room.
                let _ = signal::send_to_process(&leader, Information::kernel(signal));
            }
        }
        send(foreground, Signal::HUP);
        send(foreground, Signal::CONT);
        self.apply(Effects::all());
    }

    /// Tells everyone whom a change concerns.
    pub(super) fn apply(&self, effects: Effects) {
        for (request, signal) in [
            (SignalRequests::INTERRUPT, Signal::INT),
            (SignalRequests::QUIT, Signal::QUIT),
            (SignalRequests::SUSPEND, Signal::TSTP),
        ] {
            if effects.signals.contains(request) {
                send(effects.foreground, signal);
            }
        }
        if let Some(events) = effects.program {
            self.program.wake(events);
        }
        if let Some(events) = effects.line {
            self.line.wake(events);
        }
    }
}

/// Sends a signal of the kernel to a process group; 0 is nobody.
pub(super) fn send(group: i32, signal: Signal) {
    if group != 0 {
        // The group may have ended meanwhile.
        let _ = signal::send_to_group(group, Information::kernel(signal));
    }
}

impl process::ControllingTerminal for Terminal {
    fn device(&self) -> u64 {
        self.device
    }

    fn foreground_group(&self) -> i32 {
        self.state.lock().foreground
    }

    fn adopt(&self, session: i32, foreground_group: i32) {
        let mut state = self.state.lock();
        (state.session, state.foreground) = (session, foreground_group);
    }

    fn release(&self, hang_up: bool) {
        // A pseudoterminal outlives its session, as on Linux: its end is its master's.
        if hang_up && self.device == crate::tty::CONSOLE_DEVICE {
            return self.hang_up(false);
        }
        let mut state = self.state.lock();
        let foreground = state.foreground;
        (state.session, state.foreground) = (0, 0);
        drop(state);
        send(foreground, Signal::HUP);
        if !hang_up {
            send(foreground, Signal::CONT);
        }
    }

    fn hang_up(&self) {
        Self::hang_up(self, false);
    }

    fn open(self: Arc<Self>) -> Result<Arc<dyn File>, Errno> {
        TerminalFile::reopen(self)
    }
}
