//! A terminal as programs have it open.

use alloc::sync::Arc;

use heddle_kernel_core::signal::Signal;
use heddle_tty::{Character, LocalModes};

use crate::call::Call;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::{File, FileType, IoBuffer, Metadata, OpenFile};
use crate::memory::fallible;
use crate::process::Thread;
use crate::sched::Priority;
use crate::sync::SpinGuard;
use crate::tty::output::OutputQueue;
use crate::tty::state::{Effects, ReadState, TtyState};
use crate::tty::{CONSOLE_DEVICE, Terminal, control, job};
use crate::wait::queue::{Events, Watch};
use crate::{sched, time};

/// Bytes that are copied at a time from a program.
const PIECE_BYTES: usize = 256;
/// The most that one attempt prints: a longer write lets others run in between.
const ATTEMPT_BYTES: usize = 4096;
/// The unit of `VTIME`.
const DECISECOND_NS: u64 = 100_000_000;

/// One opening of a terminal on its program's side.
pub struct TerminalFile {
    pub(super) terminal: Arc<Terminal>,
    /// The terminal's count of hang-ups when this was opened.
    hang_ups: u32,
}

impl TerminalFile {
    /// Opens a terminal.
    ///
    /// # Errors
    /// `EIO` (locked, or its line is gone), `ENOMEM`.
    pub fn open(terminal: &Arc<Terminal>) -> Result<Arc<dyn File>, Errno> {
        let state = terminal.state.lock();
        if state.locked || state.line_closed {
            return Err(Errno::EIO);
        }
        Ok(fallible::try_arc(Self::count(terminal.clone(), state))?)
    }

    /// Opens the controlling terminal, whatever its state.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn reopen(terminal: Arc<Terminal>) -> Result<Arc<dyn File>, Errno> {
        let state = terminal.state.lock();
        Ok(fallible::try_arc(Self::count(terminal.clone(), state))?)
    }

    /// Counts a new file while the terminal is locked, so that a hang-up comes before or after it.
    fn count(terminal: Arc<Terminal>, mut state: SpinGuard<'_, TtyState>) -> Self {
        state.open_files += 1;
        state.was_open = true;
        Self { terminal, hang_ups: state.hang_ups }
    }

    pub(super) fn is_hung_up(&self, state: &TtyState) -> bool {
        state.hang_ups != self.hang_ups
    }

    /// Whether a read of at most `limit` bytes can be answered now (with nothing, if nothing is there), according to
    /// lines, `VMIN` and `VTIME`. A read that can't leaves everything where it is.
    fn can_answer(&self, state: &mut TtyState, limit: usize) -> bool {
        if state.discipline.reads_lines() {
            return state.discipline.is_readable();
        }
        let termios = state.discipline.termios();
        let minimum = usize::from(termios.character(Character::Minimum)).min(limit);
        let time_ns = u64::from(termios.character(Character::Time)) * DECISECOND_NS;
        let available = state.discipline.available_bytes();
        let wanted = if time_ns == 0 { minimum } else { minimum.max(1) };
        if available >= wanted {
            state.reading = ReadState::default();
            return true;
        }
        let now = time::now_ns();
        let is_late = state.reading.is_late(now);
        // With a minimum the time runs from byte to byte, without one from the beginning.
        let starts =
            if minimum > 0 { available != state.reading.seen } else { state.reading.deadline_ns == 0 };
        state.reading.seen = available;
        state.reading.wanted = wanted;
        if is_late && !(starts && minimum > 0) {
            state.reading = ReadState::default();
            return true;
        }
        if time_ns > 0 && starts {
            state.reading.deadline_ns = now + time_ns;
            self.start_timer(state);
        }
        false
    }

    /// Makes sure that a coroutine wakes readers at the deadline.
    fn start_timer(&self, state: &mut TtyState) {
        if state.timer_runs {
            return;
        }
        let terminal = self.terminal.clone();
        let timer = async move {
            loop {
                let deadline = {
                    let mut state = terminal.state.lock();
                    state.timer_runs =
                        !state.reading.is_late(time::now_ns()) && state.reading.deadline_ns != 0;
                    if !state.timer_runs {
                        break;
                    }
                    state.reading.deadline_ns
                };
                time::sleep_until(deadline).await;
            }
            terminal.program.wake(Events::IN | Events::RDNORM);
        };
        // Without memory for the timer the read ends at once rather than never.
        match sched::spawn(Priority::KERNEL, timer) {
            Ok(_) => state.timer_runs = true,
            Err(_) => state.reading.deadline_ns = time::now_ns(),
        }
    }
}

impl File for TerminalFile {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        let limit = buffer.remaining();
        if limit == 0 {
            return Ok(0);
        }
        let mut effects = Effects::default();
        let mut fault = None;
        let mut state = self.terminal.state.lock();
        if self.is_hung_up(&state) {
            return Ok(0);
        }
        if !self.can_answer(&mut state, limit) {
            return Err(TryError::WouldBlock);
        }
        let moved = state.discipline.read(limit, &mut |bytes| {
            let before = buffer.done();
            fault = buffer.copy_out(bytes).err();
            buffer.done() - before
        });
        state.feed_waiting(&mut effects);
        drop(state);
        self.terminal.apply(effects);
        fault.map_or(Ok(moved), |fault| Err(fault.into()))
    }

    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        let start = buffer.done();
        let mut result = Ok(());
        let mut state = self.terminal.state.lock();
        if self.is_hung_up(&state) || state.line_closed {
            return Err(Errno::EIO.into());
        }
        let TtyState { discipline, output, .. } = &mut *state;
        discipline.flush_echo(output);
        let goes_on = |buffer: &IoBuffer<'_>| buffer.remaining() > 0 && buffer.done() - start < ATTEMPT_BYTES;
        while result.is_ok() && goes_on(buffer) && !discipline.is_stopped() {
            let mut piece = [0; PIECE_BYTES];
            let length = output.program_room().min(PIECE_BYTES);
            let before = buffer.done();
            result = buffer.copy_in(&mut piece[..length]).map(drop);
            // There is room for whatever these bytes become, so all of them are taken.
            let count = buffer.done() - before;
            if discipline.write(&piece[..count], output) == 0 {
                break;
            }
        }
        let moved = buffer.done() - start;
        let wanted = buffer.remaining();
        drop(state);
        if moved > 0 {
            self.terminal.line.wake(Events::IN | Events::RDNORM);
        }
        result?;
        if moved == 0 && wanted > 0 { Err(TryError::WouldBlock) } else { Ok(moved) }
    }

    fn before_transfer(&self, thread: &Arc<Thread>, events: Events) -> Result<(), Errno> {
        if events.contains(Events::IN) {
            return job::check(&self.terminal, thread, Signal::TTIN);
        }
        let stops = self.terminal.state.lock().discipline.termios().local.contains(LocalModes::TOSTOP);
        if stops { job::check(&self.terminal, thread, Signal::TTOU) } else { Ok(()) }
    }

    fn can_go_on(&self, open: &OpenFile, watch: &Watch, events: Events) -> Result<bool, Errno> {
        let ready = self.poll(open, Some(watch), events)?;
        let state = self.terminal.state.lock();
        let can_read = events.contains(Events::IN) && state.can_answer_blocked_read();
        Ok(can_read || ready.intersects(events | Events::ERR | Events::HUP))
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.terminal.program.watch(watch, events)?;
        }
        let state = self.terminal.state.lock();
        if self.is_hung_up(&state) || state.line_closed {
            return Ok(Events::all());
        }
        let mut ready = Events::empty();
        ready.set(Events::IN | Events::RDNORM, state.discipline.is_ready());
        ready.set(Events::OUT | Events::WRNORM, state.accepts_output());
        Ok(ready)
    }

    fn ioctl(&self, call: &Call<'_>, _: &OpenFile, request: u32, argument: usize) -> TryResult<usize> {
        let is_dead = self.is_hung_up(&self.terminal.state.lock());
        if is_dead {
            let is_group = request == linux_raw_sys::ioctl::TIOCSPGRP;
            return Err(if is_group { Errno::ENOTTY } else { Errno::EIO }.into());
        }
        control::ioctl(&self.terminal, control::TerminalSide::Program, call, request, argument)
    }

    fn metadata(&self) -> Metadata {
        let device = self.terminal.device;
        Metadata { special: device, permissions: 0o620, ..Metadata::anonymous(FileType::Character, device) }
    }

    fn name(&self) -> &'static str {
        if self.terminal.device == CONSOLE_DEVICE { "/dev/console" } else { "/dev/pts" }
    }
}

impl Drop for TerminalFile {
    fn drop(&mut self) {
        let mut state = self.terminal.state.lock();
        state.open_files -= 1;
        let is_last = state.open_files == 0;
        drop(state);
        if is_last {
            self.terminal.line.wake(Events::all());
        }
    }
}

/// Empties the queue of output and wakes writers (`TCOFLUSH`).
pub(super) fn discard_output(output: &mut OutputQueue, effects: &mut Effects) {
    output.clear();
    effects.program = Some(Events::OUT | Events::WRNORM);
}
