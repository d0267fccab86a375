//! Pseudoterminals: terminals whose line is a file, the master.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::ioctl;

use crate::call::Call;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::inode::{Contents, Opening, device_number};
use crate::fs::{File, FileType, IoBuffer, Metadata, OpenFile, StatusFlags, devices};
use crate::memory::fallible;
use crate::process::Credentials;
use crate::sync::SpinLock;
use crate::tty::control::{TerminalSide, load, store};
use crate::tty::instance::InstanceNode;
use crate::tty::{MAJOR, MAJOR_PTY, MINOR_MASTER, Terminal, control};
use crate::wait::queue::{Events, Watch};

use heddle_kernel_core::fallible::push_reserved;

/// How many pseudoterminals there can be at a time.
pub const LIMIT: usize = 4096;
/// The most that may be open at once: `kernel.pty.max`.
pub static TERMINALS_MAX: AtomicU32 = AtomicU32::new(LIMIT as u32);

/// Bytes that are copied at a time from the master's program.
const PIECE_BYTES: usize = 256;
/// The most that one attempt types: each byte goes through the line editor, so a longer write lets others run in
/// between.
const ATTEMPT_BYTES: usize = 1024;
/// Permissions of a new pseudoterminal: its owner, and the group of terminals may write.
const PERMISSIONS: u32 = 0o620;

/// Pseudoterminals whose master is open, by number.
static OPEN: SpinLock<Vec<Option<Arc<Terminal>>>> = SpinLock::new(Vec::new());

/// The pseudoterminal of this number.
///
/// # Errors
/// `EIO`: it has no master.
pub(super) fn find(number: u32) -> Result<Arc<Terminal>, Errno> {
    OPEN.lock().get(number as usize).and_then(Clone::clone).ok_or(Errno::EIO)
}

/// `/dev/ptmx`: makes a pseudoterminal and opens its master.
///
/// # Errors
/// `ENOSPC` (there are too many), `ENOMEM`.
pub(super) fn open_master(opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
    let credentials = opening.thread.map(|thread| thread.credentials());
    let who = credentials.as_deref().unwrap_or(&Credentials::ROOT);
    let mut master = number()?;
    let device = device_number(MAJOR_PTY, master.number as u32);
    master.node = InstanceNode::new(opening.place, master.number, device, who)?;
    if master.node.is_none() {
        master.publish()?;
        devices::give(PtyPath::of(master.number).as_bytes(), who.fsuid, who.fsgid)?;
    }
    Ok(fallible::try_arc(master)?)
}

/// How many are open.
pub fn open_count() -> usize {
    OPEN.lock().iter().flatten().count()
}

/// A pseudoterminal without a file.
fn number() -> Result<Master, Errno> {
    let mut open = OPEN.lock();
    let number = open.iter().position(Option::is_none).unwrap_or(open.len());
    // As in Linux, one less than the setting says.
    if number + 1 >= TERMINALS_MAX.load(Ordering::Relaxed) as usize {
        return Err(Errno::ENOSPC);
    }
    let device = device_number(MAJOR_PTY, number as u32);
    let terminal = Terminal::new(device, true)?;
    if number == open.len() {
        open.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        push_reserved(&mut open, None);
    }
    open[number] = Some(terminal.clone());
    drop(open);
    // From here on, dropping the master gives the number back.
    Ok(Master { terminal, number, node: None })
}

/// A pseudoterminal that the kernel makes for a program: dropping the master hangs it up.
pub struct Pair {
    /// The line's side.
    pub master: Arc<OpenFile>,
    /// The program's side.
    pub program: Arc<OpenFile>,
    /// The terminal itself.
    pub terminal: Arc<Terminal>,
}

impl Pair {
    /// Makes a pseudoterminal of this user.
    ///
    /// # Errors
    /// `ENOSPC` (there are too many), `ENOMEM`.
    pub fn new(user: u32, group: u32) -> Result<Self, Errno> {
        let master = number()?;
        master.publish()?;
        let path = PtyPath::of(master.number);
        devices::give(path.as_bytes(), user, group)?;
        let terminal = master.terminal.clone();
        terminal.state.lock().locked = false;
        let master = fallible::try_arc(OpenFile::new(fallible::try_arc(master)?, StatusFlags::RDWR))?;
        let file = crate::tty::TerminalFile::open(&terminal)?;
        let program = crate::tty::open_file(file, path.as_bytes(), StatusFlags::RDWR)?;
        Ok(Self { master, program, terminal })
    }
}

/// The line's side of a pseudoterminal.
struct Master {
    terminal: Arc<Terminal>,
    number: usize,
    /// Its file, where it is not in `/dev/pts`.
    node: Option<InstanceNode>,
}

impl Master {
    /// Makes its file in `/dev/pts`.
    fn publish(&self) -> Result<(), Errno> {
        let device = device_number(MAJOR_PTY, self.number as u32);
        let contents = Contents::Device(FileType::Character, device);
        devices::publish(PtyPath::of(self.number).as_bytes(), PERMISSIONS, contents)
    }

    /// Whether every program has closed the terminal again.
    fn is_abandoned(&self) -> bool {
        let state = self.terminal.state.lock();
        state.was_open && state.open_files == 0
    }

    /// In packet mode, the byte that goes before the data: what has changed, or that there is data.
    fn take_packet_byte(&self) -> Option<u8> {
        let mut state = self.terminal.state.lock();
        let has_output = !state.output.is_empty();
        let noted = state.packet.as_mut()?;
        (*noted != 0 || has_output).then(|| core::mem::take(noted))
    }
}

impl File for Master {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        if buffer.remaining() == 0 {
            return Ok(0);
        }
        let start = buffer.done();
        if let Some(byte) = self.take_packet_byte() {
            if let Err(fault) = buffer.copy_out(&[byte]) {
                self.terminal.state.lock().note(u32::from(byte));
                return Err(fault.into());
            }
            if byte != 0 {
                return Ok(1);
            }
        }
        let mut fault = None;
        self.terminal.line_output(|bytes| {
            let before = buffer.done();
            fault = buffer.copy_out(bytes).err();
            buffer.done() - before
        });
        let moved = buffer.done() - start;
        match fault {
            Some(fault) => Err(fault.into()),
            None if moved > 0 => Ok(moved),
            None if self.is_abandoned() => Err(Errno::EIO.into()),
            None => Err(TryError::WouldBlock),
        }
    }

    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        let start = buffer.done();
        let mut result = Ok(());
        let goes_on = |buffer: &IoBuffer<'_>| buffer.remaining() > 0 && buffer.done() - start < ATTEMPT_BYTES;
        while result.is_ok() && goes_on(buffer) && self.terminal.accepts_input() {
            let mut piece = [0; PIECE_BYTES];
            let before = buffer.done();
            result = buffer.copy_in(&mut piece).map(drop);
            // Input that the discipline has no room for is kept, and a piece fits.
            let _ = self.terminal.line_input(&piece[..buffer.done() - before]);
        }
        result?;
        let moved = buffer.done() - start;
        if moved == 0 && buffer.remaining() > 0 { Err(TryError::WouldBlock) } else { Ok(moved) }
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.terminal.line.watch(watch, events)?;
        }
        let state = self.terminal.state.lock();
        let has_packet = state.packet.is_some_and(|noted| noted != 0);
        let mut ready = Events::empty();
        ready.set(Events::IN | Events::RDNORM, has_packet || !state.output.is_empty());
        ready.set(Events::PRI, has_packet);
        ready.set(Events::OUT | Events::WRNORM, state.accepts_input());
        ready.set(Events::HUP, state.was_open && state.open_files == 0);
        Ok(ready)
    }

    fn ioctl(&self, call: &Call<'_>, _: &OpenFile, request: u32, argument: usize) -> TryResult<usize> {
        match request {
            ioctl::TIOCGPTN => store(call, argument, &(self.number as u32).to_le_bytes()),
            ioctl::TIOCSPTLCK => {
                let mut bytes = [0; 4];
                load(call, argument, &mut bytes)?;
                self.terminal.state.lock().locked = bytes != [0; 4];
                Ok(0)
            }
            ioctl::TIOCGPTLCK => {
                let locked = self.terminal.state.lock().locked;
                store(call, argument, &u32::from(locked).to_le_bytes())
            }
            ioctl::TIOCPKT => {
                let mut bytes = [0; 4];
                load(call, argument, &mut bytes)?;
                let mut state = self.terminal.state.lock();
                state.packet = (bytes != [0; 4]).then(|| state.packet.unwrap_or(0));
                Ok(0)
            }
            ioctl::TIOCGPKT => {
                let packet = self.terminal.state.lock().packet.is_some();
                store(call, argument, &u32::from(packet).to_le_bytes())
            }
            ioctl::TIOCGPTPEER => self.open_peer(call, argument),
            ioctl::TIOCSIG => self.signal(argument),
            _ => control::ioctl(&self.terminal, TerminalSide::Master, call, request, argument),
        }
    }

    fn metadata(&self) -> Metadata {
        let device = device_number(MAJOR, MINOR_MASTER);
        Metadata { special: device, permissions: 0o666, ..Metadata::anonymous(FileType::Character, device) }
    }

    fn name(&self) -> &'static str {
        "/dev/ptmx"
    }
}

impl Master {
    /// `TIOCGPTPEER`: opens the program's side without its path; `argument` has the flags of open(2).
    fn open_peer(&self, call: &Call<'_>, argument: usize) -> TryResult<usize> {
        let flags = StatusFlags::from_bits_retain(argument as u32);
        let close_on_exec = argument as u32 & linux_raw_sys::general::O_CLOEXEC != 0;
        let file = crate::tty::open(&self.terminal, Some(call.thread), argument as u32)?;
        let open = match &self.node {
            Some(node) => fallible::try_arc(OpenFile::at(file, flags, node.place().clone()))?,
            None => crate::tty::open_file(file, PtyPath::of(self.number).as_bytes(), flags)?,
        };
        let limit = call.thread.process.descriptor_limit();
        let descriptor = call.thread.descriptors().add(open, 0, limit, close_on_exec)?;
        Ok(descriptor as usize)
    }

    /// `TIOCSIG`: sends a signal to the foreground group, as a signal character would.
    fn signal(&self, number: usize) -> TryResult<usize> {
        use heddle_kernel_core::signal::Signal;
        let signal = i32::try_from(number).ok().and_then(Signal::new);
        let signal = signal.filter(|signal| [Signal::INT, Signal::QUIT, Signal::TSTP].contains(signal));
        let foreground = self.terminal.state.lock().foreground;
        crate::tty::state::send(foreground, signal.ok_or(Errno::EINVAL)?);
        Ok(0)
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        if self.node.take().is_none() {
            // The node may be gone, or never have come to be.
            let _ = devices::withdraw(PtyPath::of(self.number).as_bytes());
        }
        let gone = OPEN.lock().get_mut(self.number).and_then(Option::take);
        drop(gone);
        self.terminal.hang_up(true);
    }
}

/// `/dev/pts/N`.
#[derive(Default)]
struct PtyPath {
    bytes: [u8; 24],
    length: usize,
}

impl PtyPath {
    fn of(number: usize) -> Self {
        let mut path = Self::default();
        // The longest number fits.
        let _ = write!(path, "/dev/pts/{number}");
        path
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Write for PtyPath {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(core::fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}
