//! Job control: which processes may use a terminal now.

use alloc::sync::Arc;

use heddle_kernel_core::signal::{Information, Signal};

use crate::error::Errno;
use crate::process::{ControllingTerminal as _, Session, Thread};
use crate::tty::Terminal;
use crate::{process, signal};

/// Whether the terminal controls the thread's session.
pub(super) fn is_controlling(terminal: &Terminal, thread: &Thread) -> bool {
    let controlling = thread.process.session().terminal();
    controlling.is_some_and(|controlling| controlling.device() == terminal.device)
}

/// Checks that the thread's process group is in the foreground of its controlling terminal. If not, the group is sent
/// `signal` (`SIGTTIN` or `SIGTTOU`), unless the thread ignores or blocks it.
///
/// # Errors
/// `ERESTARTSYS` (the signal was sent), `EIO` (it would stop a group that nobody could continue, or a reader ignores
/// it).
pub(super) fn check(terminal: &Terminal, thread: &Thread, signal: Signal) -> Result<(), Errno> {
    let group = thread.process.group();
    let foreground = terminal.foreground_group();
    if foreground == 0 || foreground == group.id || !is_controlling(terminal, thread) {
        return Ok(());
    }
    let is_ignored =
        thread.blocked().contains(signal) || thread.process.actions().lock().get(signal).ignores(signal);
    if is_ignored {
        return if signal == Signal::TTIN { Err(Errno::EIO) } else { Ok(()) };
    }
    if process::is_orphaned(&thread.process) {
        return Err(Errno::EIO);
    }
    // The caller is in the group, so there is one.
    let _ = signal::send_to_group(group.id, Information::kernel(signal));
    Err(Errno::ERESTARTSYS)
}

/// Makes the terminal the controlling one of the thread's session, if the thread leads a session without a terminal
/// and the terminal controls none.
pub(super) fn adopt_if_free(terminal: &Arc<Terminal>, thread: &Thread) {
    let session = thread.process.session();
    let is_free = terminal.state.lock().session == 0;
    if is_free && session.id == thread.process.pid && session.terminal().is_none() {
        adopt(terminal, &session, thread);
    }
}

/// `TIOCSCTTY`.
///
/// # Errors
/// `EPERM`.
pub(super) fn set_controlling(terminal: &Arc<Terminal>, thread: &Thread, steal: bool) -> Result<(), Errno> {
    let session = thread.process.session();
    let is_leader = session.id == thread.process.pid;
    let current = terminal.state.lock().session;
    if is_leader && current == session.id {
        return Ok(());
    }
    if !is_leader || session.terminal().is_some() {
        return Err(Errno::EPERM);
    }
    if current != 0 {
        if !(steal && thread.credentials().is_capable(linux_raw_sys::general::CAP_SYS_ADMIN)) {
            return Err(Errno::EPERM);
        }
        if let Some(loser) = process::table::session(current) {
            drop(loser.set_terminal(None));
        }
    }
    adopt(terminal, &session, thread);
    Ok(())
}

fn adopt(terminal: &Arc<Terminal>, session: &Session, thread: &Thread) {
    drop(session.set_terminal(Some(terminal.clone())));
    terminal.adopt(session.id, thread.process.group().id);
}

/// `TIOCNOTTY`. The session has one controlling terminal for all its processes, so only its leader can give it up; for
/// others, which lose nothing but a name in `/proc`, it is a success without effect.
///
/// # Errors
/// `ENOTTY`: it isn't the controlling terminal.
pub(super) fn give_up(terminal: &Terminal, thread: &Thread) -> Result<(), Errno> {
    if !is_controlling(terminal, thread) {
        return Err(Errno::ENOTTY);
    }
    let session = thread.process.session();
    if session.id == thread.process.pid {
        drop(session.set_terminal(None));
        terminal.release(false);
    }
    Ok(())
}

/// `TIOCSPGRP`.
///
/// # Errors
/// `ENOTTY`, `EINVAL`, `ESRCH`, `EPERM`, or those of [`check`].
pub(super) fn set_foreground(terminal: &Terminal, thread: &Thread, group: i32) -> Result<(), Errno> {
    check(terminal, thread, Signal::TTOU)
        .map_err(|error| if error == Errno::EIO { Errno::ENOTTY } else { error })?;
    let session = thread.process.session();
    if !is_controlling(terminal, thread) || terminal.state.lock().session != session.id {
        return Err(Errno::ENOTTY);
    }
    if group < 0 {
        return Err(Errno::EINVAL);
    }
    let found = process::table::group(group).ok_or(Errno::ESRCH)?;
    if found.session.id != session.id {
        return Err(Errno::EPERM);
    }
    terminal.state.lock().foreground = group;
    Ok(())
}
