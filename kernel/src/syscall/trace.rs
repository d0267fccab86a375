//! `heddle.strace=1`: a record in the log for every system call, by the layout of [`heddle_abi::trace`].
//!
//! Memory that a call reads is copied when it begins, because it may change while the call is on its way, and memory
//! that it has written when it ends. The host tool makes of it what strace(1) prints.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use heddle_abi::trace::{
    self, Argument, EXIT, LIST_MAX, MESSAGE_BYTES, Memory, Moment, TEXT_MAX, UNFINISHED, UNKNOWN,
    VECTOR_BYTES,
};

use crate::arch::UserContext;
use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::process::Thread;
use crate::process::logged_call::{LoggedCall, MemoryText};
use crate::signal::PendingWork;

static ENABLED: AtomicBool = AtomicBool::new(false);

/// Numbers of unknown calls that were logged already, a bit each.
static LOGGED: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// Bytes that are copied in one step.
const CHUNK: usize = 64;

/// Switches tracing on, before there are threads.
pub fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// Lets a new thread's calls be noted, if they are to be.
pub fn attach(thread: &Thread) {
    if ENABLED.load(Ordering::Relaxed) {
        thread.add_work(PendingWork::LOGGED);
    }
}

/// Notes the beginning of a call.
pub async fn begins(thread: &Arc<Thread>, context: &UserContext) {
    let number = context.syscall_number();
    let arguments = core::array::from_fn(|index| context.argument(index));
    // Without memory the call has no record.
    let Ok(mut call) = LoggedCall::new(number, arguments) else { return };
    copy(thread, &mut call, Moment::Entry, 0).await;
    drop(thread.replace_logged_call(Some(call)));
}

/// Writes the record of a call that has ended.
#[inline]
pub fn finished(thread: &Arc<Thread>, result: &Result<usize, Errno>) {
    if ENABLED.load(Ordering::Relaxed) {
        write_finished(thread, *result);
    }
}

#[cold]
fn write_finished(thread: &Arc<Thread>, result: Result<usize, Errno>) {
    let Some(mut call) = thread.replace_logged_call(None) else { return };
    if let Ok(value) = result {
        // The call has just written there: the copies wait for no page, and leave out what is missing.
        let mut copies = core::pin::pin!(copy(thread, &mut call, Moment::Exit, value));
        let mut poll_context = core::task::Context::from_waker(core::task::Waker::noop());
        let _ = copies.as_mut().poll(&mut poll_context);
    }
    let value = result.unwrap_or_else(Errno::to_result);
    write(thread, &call, format_args!("{value:x}"));
}

/// Writes the record of the call that a thread is in when it ends.
pub fn ended(thread: &Arc<Thread>) {
    if let Some(call) = thread.replace_logged_call(None) {
        write(thread, &call, format_args!("{UNFINISHED}"));
    }
    if thread.work().contains(PendingWork::LOGGED) {
        let (tid, now_ns) = (thread.tid(), crate::arch::time::now_ns());
        ::log::info!("strace {tid} {now_ns} 0 {EXIT} {}", thread.last_status().to_wait_status());
    }
}

fn write(thread: &Arc<Thread>, call: &LoggedCall, result: core::fmt::Arguments<'_>) {
    let [a, b, c, d, e, f] = call.arguments;
    let (tid, start_ns, memory) = (thread.tid(), call.start_ns, call.memory.as_str());
    let name = crate::arch::syscall_name(call.number).unwrap_or(UNKNOWN);
    let duration_ns = crate::arch::time::now_ns().saturating_sub(start_ns);
    ::log::info!(
        "strace {tid} {start_ns} {duration_ns} {name} {a:x} {b:x} {c:x} {d:x} {e:x} {f:x} {result} {memory}"
    );
}

/// Copies the memory that the arguments stand for at this moment.
async fn copy(thread: &Arc<Thread>, call: &mut LoggedCall, moment: Moment, result: usize) {
    let arguments = call.arguments;
    let kinds = crate::arch::syscall_name(call.number).and_then(trace::arguments).unwrap_or(&[]);
    for (kind, address) in kinds.iter().zip(arguments) {
        if address == 0 {
            continue;
        }
        let memory = &mut call.memory;
        match kind.memory(moment, &arguments, result) {
            Memory::Nothing => {}
            Memory::Text => copy_text(thread, memory, address).await,
            Memory::Texts => copy_texts(thread, memory, address, *kind == Argument::Environment).await,
            Memory::Bytes(length) => copy_bytes(thread, memory, address, length).await,
            Memory::Vectors(count) => copy_vectors(thread, memory, address, count).await,
            Memory::Message => copy_message(thread, memory, address).await,
        }
    }
}

/// Bytes at an address; `None` where the program has none.
async fn bytes_at<const N: usize>(thread: &Arc<Thread>, address: usize, length: usize) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let length = length.min(N);
    thread.resolve(|space| space.read_bytes(address, &mut bytes[..length])).await.ok()?;
    Some(bytes)
}

async fn word_at(thread: &Arc<Thread>, address: usize) -> Option<usize> {
    bytes_at(thread, address, size_of::<usize>()).await.map(usize::from_ne_bytes)
}

async fn copy_bytes(thread: &Arc<Thread>, memory: &mut MemoryText, address: usize, length: usize) {
    for start in (0..length).step_by(CHUNK) {
        let count = CHUNK.min(length - start);
        let at = address.wrapping_add(start);
        let Some(bytes) = bytes_at::<CHUNK>(thread, at, count).await else { return };
        memory.add(at, &bytes[..count]);
    }
}

/// Copies a string with the zero byte at its end.
async fn copy_text(thread: &Arc<Thread>, memory: &mut MemoryText, address: usize) {
    let end = address.saturating_add(TEXT_MAX);
    let mut at = address;
    while at < end {
        let count = CHUNK.min(end - at).min(PAGE_SIZE - at % PAGE_SIZE);
        let Some(bytes) = bytes_at::<CHUNK>(thread, at, count).await else { return };
        let bytes = &bytes[..count];
        if let Some(zero) = bytes.iter().position(|&byte| byte == 0) {
            memory.add(at, &bytes[..=zero]);
            return;
        }
        memory.add(at, bytes);
        at += count;
    }
}

async fn copy_texts(thread: &Arc<Thread>, memory: &mut MemoryText, list: usize, is_count_enough: bool) {
    for index in 0..LIST_MAX {
        let at = list.wrapping_add(index * size_of::<usize>());
        let Some(text) = word_at(thread, at).await else { return };
        memory.add(at, &text.to_ne_bytes());
        if text == 0 {
            return;
        }
        if !is_count_enough {
            copy_text(thread, memory, text).await;
        }
    }
}

async fn copy_vectors(thread: &Arc<Thread>, memory: &mut MemoryText, vectors: usize, count: usize) {
    for index in 0..count {
        let at = vectors.wrapping_add(index * VECTOR_BYTES);
        let Some(base) = word_at(thread, at).await else { return };
        let Some(length) = word_at(thread, at.wrapping_add(size_of::<usize>())).await else { return };
        memory.add(at, &base.to_ne_bytes());
        memory.add(at.wrapping_add(size_of::<usize>()), &length.to_ne_bytes());
        copy_bytes(thread, memory, base, length.min(trace::BYTES_MAX)).await;
    }
}

/// Copies a msghdr and what it points to.
async fn copy_message(thread: &Arc<Thread>, memory: &mut MemoryText, address: usize) {
    let Some(header) = bytes_at::<MESSAGE_BYTES>(thread, address, MESSAGE_BYTES).await else { return };
    memory.add(address, &header);
    let (words, _) = header.as_chunks::<{ size_of::<usize>() }>();
    let word = |index: usize| words.get(index).copied().map_or(0, usize::from_ne_bytes);
    let (name, name_bytes, vectors, count) = (word(0), word(1) & 0xffff_ffff, word(2), word(3));
    if name != 0 {
        copy_bytes(thread, memory, name, name_bytes.min(trace::BYTES_MAX)).await;
    }
    copy_vectors(thread, memory, vectors, count.min(LIST_MAX)).await;
}

/// Notes a call that the kernel doesn't have, once per number.
pub fn unknown(number: usize) {
    let bit = 1 << (number % 64);
    let word = LOGGED.get(number / 64);
    if word.is_none_or(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0) && number < LOGGED.len() * 64
    {
        match crate::arch::syscall_name(number) {
            Some(name) => ::log::warn!("unknown system call {name}"),
            None => ::log::warn!("unknown system call {number}"),
        }
    }
}
