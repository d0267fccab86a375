//! Further programs that the host starts in the running machine: `heddle_abi::control::programs`.
//!
//! A program sees ordinary pipes or a pseudoterminal. Coroutines of the kernel hold their other ends and move bytes
//! between these and the port, within the windows of the protocol:
//!
//! ```text
//!   receive ── INPUT ──▶ inbox ── pump_input ──▶ pipe or master ──▶ program
//!      port ◀── OUTPUT ─────────── pump_output ◀── pipe or master ◀── program
//! ```
//!
//! The receiver never waits for a program: what the host may send fits the inbox.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use heddle_abi::boot::port;
use heddle_abi::control::programs::{
    OUTPUT_HEAD_BYTES, PIECE_BYTES, PROGRAMS_MAX, Piece, Short, Taken, WINDOW_BYTES, Window, kind, number_of,
    output_head, put_ended, scope,
};
use heddle_abi::control::{self, Descriptor, Ending, Small, Start, stream};
use heddle_kernel_core::fallible::{extend_back_reserved, push_reserved, resize_reserved};
use heddle_kernel_core::signal::{Information, Signal};

use crate::device::Port;
use crate::device::console::Console;
use crate::device::port::Buffers;
use crate::error::{Errno, TryError};
use crate::fs::pipe::{self, CAPACITY_LIMIT};
use crate::fs::{DescriptorTable, IoBuffer, OpenFile, StatusFlags, share};
use crate::memory::fallible::try_arc;
use crate::process::{ControllingTerminal, Credentials, Process, table};
use crate::sched::Priority;
use crate::session::launch::LaunchError;
use crate::session::{HOST, ending, host, launch};
use crate::signal::{send_to_group, send_to_process};
use crate::sync::SpinLock;
use crate::tty::pty::Pair;
use crate::tty::{Terminal, console};
use crate::wait::engine::kernel_answer;
use crate::wait::queue::{Events, WaitQueue};
use crate::{device, process, sched, syscall, time};

/// The port carries the streams of all programs.
const BUFFERS: Buffers =
    Buffers { receive_count: 16, receive_bytes: 4096, transmit_count: 8, transmit_bytes: 4096 };
/// Signals to all processes are sent so many at a time.
const SIGNALS_BETWEEN_YIELDS: usize = 64;
/// Bytes of input that are moved at a time.
const INPUT_PIECE_BYTES: usize = 512;
/// How long a coroutine without memory to wait sleeps before it looks again.
const NO_MEMORY_NS: u64 = 1_000_000;
/// A message with output.
const BUFFER_BYTES: usize = OUTPUT_HEAD_BYTES + PIECE_BYTES;

/// Streams from the program to the host.
const OUTPUTS: [u32; 3] = [stream::STDOUT, stream::STDERR, stream::TTY];

/// The programs that were started here and have not ended.
static PROGRAMS: SpinLock<Vec<Arc<Guest>>> = SpinLock::new(Vec::new());
static IS_OPEN: AtomicBool = AtomicBool::new(false);

/// One program, as the host's side of it.
struct Guest {
    number: u32,
    port: &'static Port,
    state: SpinLock<GuestState>,
    /// Notified after every change of the state.
    changed: WaitQueue,
}

struct GuestState {
    /// Input that the program's pipe or terminal has not taken yet, at most a window.
    inbox: VecDeque<u8>,
    input_ended: bool,
    /// The windows of the streams, by the order of [`OUTPUTS`].
    windows: [Window; 3],
    /// Nobody reads the stream.
    closed: [bool; 3],
    /// How many streams are still moved to the host.
    outputs_left: u32,
    has_ended: bool,
    process: Option<Arc<Process>>,
    terminal: Option<Arc<Terminal>>,
}

/// The kernel's ends of a program's streams.
#[derive(Default)]
struct Ends {
    input: Option<Arc<OpenFile>>,
    outputs: [Option<Arc<OpenFile>>; 3],
}

/// Opens the port and starts to receive. A host that asks twice is answered once.
pub fn open(console: &'static Console) {
    if IS_OPEN.swap(true, Ordering::AcqRel) {
        return;
    }
    let opened = console
        .open(port::PROGRAMS, BUFFERS)
        .and_then(|()| sched::spawn(Priority::KERNEL, receive(console.port(port::PROGRAMS))).map(drop));
    if let Err(error) = opened {
        ::log::error!("host: no further programs can be started: {error:?}");
    }
}

async fn receive(port: &'static Port) {
    while let Some((message, payload)) = host::receive(port).await {
        if message == control::kind::START {
            let Some(number) = number_of(&payload) else { continue };
            if let Err(error) = begin(number, port, payload) {
                send_ended(port, number, Ending::NotStarted(error.0.into())).await;
            }
        } else if message == kind::SIGNAL {
            if let Some(Short { number, words: [signal, scope] }) = Short::parse(&payload) {
                send_signal(number, signal, scope).await;
            }
        } else if let Some(guest) = number_of(&payload).and_then(find) {
            guest.handle(message, &payload);
        }
    }
}

fn find(number: u32) -> Option<Arc<Guest>> {
    PROGRAMS.lock().iter().find(|guest| guest.number == number).cloned()
}

/// Registers a program, whose input may follow at once, and starts the coroutine that starts it.
fn begin(number: u32, port: &'static Port, payload: Vec<u8>) -> Result<(), Errno> {
    let mut inbox = VecDeque::new();
    inbox.try_reserve_exact(WINDOW_BYTES as usize).map_err(|_| Errno::ENOMEM)?;
    let state = GuestState {
        inbox,
        input_ended: false,
        windows: [Window::default(); 3],
        closed: [false; 3],
        outputs_left: 0,
        has_ended: false,
        process: None,
        terminal: None,
    };
    let guest = try_arc(Guest { number, port, state: SpinLock::new(state), changed: WaitQueue::new() })?;
    let mut programs = PROGRAMS.lock();
    if programs.iter().any(|other| other.number == number) {
        return Err(Errno::EEXIST);
    }
    if programs.len() >= PROGRAMS_MAX {
        return Err(Errno::EAGAIN);
    }
    programs.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    push_reserved(&mut programs, guest.clone());
    drop(programs);
    sched::spawn(Priority::KERNEL, run(guest, payload)).map(drop).inspect_err(|_| forget(number))
}

fn forget(number: u32) {
    let mut programs = PROGRAMS.lock();
    let index = programs.iter().position(|guest| guest.number == number);
    let forgotten = index.map(|index| programs.swap_remove(index));
    drop(programs);
    drop(forgotten);
}

/// Starts a program, waits for its end, and tells the host once its output has been sent.
async fn run(guest: Arc<Guest>, payload: Vec<u8>) {
    let ending = match start(&guest, payload).await {
        Ok(process) => {
            let mut started = Small::new();
            let words = [process.pid.cast_unsigned(), 0];
            if (Short { number: guest.number, words }).put(&mut started, kind::STARTED).is_ok() {
                host::send(guest.port, &started).await;
            }
            let status = process.wait_for_end().await;
            guest.state.lock().has_ended = true;
            guest.changed.wake(Events::all());
            device::wait(&guest.changed, || guest.state.lock().outputs_left == 0).await;
            ending(status)
        }
        Err(error) => error.into(),
    };
    // The host may use the number again as soon as it has read the message.
    forget(guest.number);
    send_ended(guest.port, guest.number, ending).await;
}

async fn send_ended(port: &Port, number: u32, ending: Ending) {
    let mut message = Small::new();
    if put_ended(&mut message, number, ending).is_ok() {
        host::send(port, &message).await;
    }
}

async fn start(guest: &Arc<Guest>, payload: Vec<u8>) -> Result<Arc<Process>, LaunchError> {
    let start = Start::parse(&payload).ok_or(Errno::EINVAL)?;
    share::announce();
    let (descriptors, ends, terminal) = connect(&start)?;
    guest.state.lock().terminal.clone_from(&terminal);
    let terminal = terminal.map(|terminal| -> Arc<dyn ControllingTerminal> { terminal });
    let program = launch::prepare(&start, descriptors, terminal)?;
    drop(payload);
    let process = process::start(program, syscall::thread_loop::spawn).await?;
    guest.state.lock().process = Some(process.clone());
    if let Some(input) = ends.input {
        sched::spawn(Priority::KERNEL, pump_input(guest.clone(), input))?;
    }
    for (index, output) in ends.outputs.into_iter().enumerate() {
        if let Some(output) = output {
            guest.state.lock().outputs_left += 1;
            sched::spawn(Priority::KERNEL, pump_output(guest.clone(), index, output))
                .inspect_err(|_| guest.state.lock().outputs_left -= 1)?;
        }
    }
    Ok(process)
}

/// Makes the program's standard descriptors, and keeps their other ends.
fn connect(start: &Start<'_>) -> Result<(DescriptorTable, Ends, Option<Arc<Terminal>>), Errno> {
    let table = DescriptorTable::new();
    let mut ends = Ends::default();
    let has_terminal = start.descriptors.contains(&Descriptor::Terminal);
    let pair = has_terminal.then(|| Pair::new(start.user, start.group)).transpose()?;
    if let Some(pair) = &pair {
        pair.terminal.set_window(console::window(start.window.rows, start.window.columns));
        ends.input = Some(pair.master.clone());
        ends.outputs[2] = Some(pair.master.clone());
    }
    for (index, descriptor) in start.descriptors.iter().enumerate() {
        let open = match (descriptor, &pair) {
            (Descriptor::Closed, _) => continue,
            (Descriptor::Terminal, Some(pair)) => pair.program.clone(),
            _ => {
                let (read, write) = pipe::pair(&Credentials::ROOT, StatusFlags::empty())?;
                if index == 0 {
                    ends.input = Some(write);
                    read
                } else {
                    ends.outputs[index - 1] = Some(read);
                    write
                }
            }
        };
        table.add(open, index, index + 1, false)?;
    }
    Ok((table, ends, pair.map(|pair| pair.terminal)))
}

impl Guest {
    fn handle(&self, message: u32, payload: &[u8]) {
        let mut state = self.state.lock();
        match message {
            kind::INPUT => {
                let Some(piece) = Piece::parse(payload) else { return };
                // A host that sends more than its window loses the rest.
                let room = WINDOW_BYTES as usize - state.inbox.len();
                extend_back_reserved(&mut state.inbox, &piece.bytes[..piece.bytes.len().min(room)]);
            }
            kind::END | kind::CLOSE | kind::CREDIT => {
                let Some(Short { words: [number, bytes], .. }) = Short::parse(payload) else { return };
                match (message, OUTPUTS.iter().position(|&output| output == number)) {
                    (kind::CREDIT, Some(index)) => state.windows[index].grant(bytes),
                    (kind::CREDIT, None) => {}
                    (kind::END, None) => state.input_ended = true,
                    // A terminal whose input has ended hangs up, as one that nobody sees.
                    (_, Some(index)) => {
                        state.closed[index] = true;
                        state.input_ended |= OUTPUTS[index] == stream::TTY;
                    }
                    (_, None) => {}
                }
            }
            kind::WINDOW_SIZE => {
                let terminal = state.terminal.clone();
                drop(state);
                if let (Some(terminal), Some(Short { words: [rows, columns], .. })) =
                    (terminal, Short::parse(payload))
                {
                    terminal.set_window(console::window(rows, columns));
                }
                return;
            }
            // A host that knows more than this kernel.
            _ => return,
        }
        drop(state);
        self.changed.wake(Events::all());
    }
}

impl Guest {
    /// Moves some of the inbox into the program's pipe or terminal; nothing if nobody reads it any more.
    fn give_input(&self, file: &OpenFile) -> Option<usize> {
        let mut piece = [0; INPUT_PIECE_BYTES];
        let state = self.state.lock();
        let length = state.inbox.len().min(piece.len());
        piece.iter_mut().zip(&state.inbox).for_each(|(byte, &waiting)| *byte = waiting);
        drop(state);
        let moved = match file.file.write(file, &mut IoBuffer::kernel_in(&piece[..length]), 0) {
            Ok(moved) => moved,
            Err(TryError::WouldBlock) => 0,
            Err(_) => return None,
        };
        self.state.lock().inbox.drain(..moved);
        Some(moved)
    }

    /// Fills `frame` with a message of some output, within the stream's window, and says how many bytes of output there
    /// are; nothing at the end of the stream.
    fn take_output(&self, index: usize, file: &OpenFile, frame: &mut [u8]) -> Option<usize> {
        let limit = self.state.lock().windows[index].piece_bytes();
        let (head, bytes) = frame.split_at_mut(OUTPUT_HEAD_BYTES);
        match file.file.read(file, &mut IoBuffer::kernel_out(&mut bytes[..limit]), 0) {
            Ok(moved @ 1..) => {
                self.state.lock().windows[index].spend(moved);
                head.copy_from_slice(&output_head(self.number, OUTPUTS[index], moved));
                Some(moved)
            }
            Err(TryError::WouldBlock) => Some(0),
            _ => None,
        }
    }
}

async fn send_signal(number: u32, signal: u32, whom: u32) {
    let Some(signal) = i32::try_from(signal).ok().and_then(Signal::new) else { return };
    let information = Information::kernel(signal);
    if whom == scope::MACHINE {
        for (index, process) in table::each_process().enumerate() {
            if process.pid != table::REAPER_PID {
                // A queued realtime signal may find no room.
                let _ = send_to_process(&process, information);
            }
            if index % SIGNALS_BETWEEN_YIELDS == SIGNALS_BETWEEN_YIELDS - 1 {
                sched::yield_now().await;
            }
        }
        return;
    }
    let process = match number {
        // The first program leads a group of its own number.
        0 => table::process(HOST.group.load(Ordering::Acquire)),
        _ => find(number).and_then(|guest| guest.state.lock().process.clone()),
    };
    let Some(process) = process else { return };
    // The process may have ended meanwhile.
    let _ = match whom {
        scope::GROUP => send_to_group(process.group().id, information),
        _ => send_to_process(&process, information),
    };
}

/// The next action of a pump.
enum PumpStep {
    /// Move bytes.
    Move,
    /// Stop.
    Stop,
}

/// Waits for `check`; without memory to wait, looks again from time to time.
async fn step(
    guest: &Guest,
    file: &OpenFile,
    events: Events,
    check: impl Fn(Events) -> Option<PumpStep>,
) -> PumpStep {
    loop {
        let found = kernel_answer(|watch| {
            guest.changed.watch(watch, Events::all())?;
            Ok(check(file.file.poll(file, Some(watch), events)?))
        });
        match found.await {
            Ok(step) => return step,
            Err(_) => time::sleep_until(time::now_ns() + NO_MEMORY_NS).await,
        }
    }
}

/// Moves what the host has sent to the program.
async fn pump_input(guest: Arc<Guest>, file: Arc<OpenFile>) {
    let number = guest.number;
    let mut taken = Taken::default();
    loop {
        let next = step(&guest, &file, Events::OUT | Events::WRNORM, |ready| {
            let state = guest.state.lock();
            match (state.has_ended, state.inbox.is_empty(), state.input_ended) {
                (true, ..) | (_, true, true) => Some(PumpStep::Stop),
                (_, true, false) => None,
                _ if ready.contains(Events::ERR) => Some(PumpStep::Stop),
                _ => ready.contains(Events::OUT).then_some(PumpStep::Move),
            }
        });
        if matches!(next.await, PumpStep::Stop) {
            return;
        }
        let Some(moved) = guest.give_input(&file) else { return };
        if let Some(bytes) = taken.add(moved) {
            let mut message = Small::new();
            if (Short { number, words: [stream::STDIN, bytes] }).put(&mut message, kind::CREDIT).is_ok() {
                host::send(guest.port, &message).await;
            }
        }
    }
}

/// Moves what the program writes to the host, and tells it of the end.
async fn pump_output(guest: Arc<Guest>, index: usize, file: Arc<OpenFile>) {
    let mut frame = Vec::new();
    while frame.try_reserve_exact(BUFFER_BYTES).is_err() {
        time::sleep_until(time::now_ns() + NO_MEMORY_NS).await;
    }
    resize_reserved(&mut frame, BUFFER_BYTES, 0);
    // The output of a process that has ended fits its pipe; its descendants may write on.
    let mut left_after_end = CAPACITY_LIMIT;
    loop {
        let next = step(&guest, &file, Events::IN | Events::RDNORM, |ready| {
            let state = guest.state.lock();
            let can_read = ready.intersects(Events::IN | Events::HUP | Events::ERR);
            if state.closed[index] || state.has_ended && (!can_read || left_after_end == 0) {
                return Some(PumpStep::Stop);
            }
            (can_read && state.windows[index].piece_bytes() > 0).then_some(PumpStep::Move)
        });
        if matches!(next.await, PumpStep::Stop) {
            break;
        }
        let Some(moved) = guest.take_output(index, &file, &mut frame) else { break };
        if moved > 0 {
            left_after_end -= if guest.state.lock().has_ended { moved.min(left_after_end) } else { 0 };
            host::send_bytes(guest.port, &frame[..OUTPUT_HEAD_BYTES + moved]).await;
        }
    }
    // From here on a program that still writes gets an error.
    drop(file);
    let mut message = Small::new();
    if (Short { number: guest.number, words: [OUTPUTS[index], 0] }).put(&mut message, kind::END).is_ok() {
        host::send(guest.port, &message).await;
    }
    guest.state.lock().outputs_left -= 1;
    guest.changed.wake(Events::all());
}
