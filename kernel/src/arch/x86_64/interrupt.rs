//! Local APIC, I/O APIC, and the handlers of interrupts.
//!
//! Registers are reached through the direct map: the firmware's memory-type registers make them uncached.
//! `unsafe` here: those registers, and function pointers kept as integers.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ::x86_64::instructions::port::Port;

use crate::arch::x86_64::{cpu, local, paging, time};

const LOCAL_APIC: u64 = 0xfee0_0000;
const IO_APIC: u64 = 0xfec0_0000;
/// Pins of the I/O APIC.
pub const LINES: usize = 24;

/// Vector of pin 0; the others follow.
const VECTOR_DEVICE: u8 = 32;
const VECTOR_TIMER: u8 = 0xf0;
const VECTOR_KICK: u8 = 0xf1;
const VECTOR_SPURIOUS: u8 = 0xff;

const REGISTER_ID: u64 = 0x20;
const REGISTER_TASK_PRIORITY: u64 = 0x80;
const REGISTER_END: u64 = 0xb0;
const REGISTER_SPURIOUS: u64 = 0xf0;
const REGISTER_COMMAND: u64 = 0x300;
const REGISTER_COMMAND_HIGH: u64 = 0x310;
const REGISTER_LOCAL_TIMER: u64 = 0x320;
const REGISTER_LOCAL_PIN0: u64 = 0x350;
const REGISTER_LOCAL_PIN1: u64 = 0x360;
const REGISTER_TIMER_COUNT: u64 = 0x380;
const REGISTER_TIMER_NOW: u64 = 0x390;
const REGISTER_TIMER_DIVIDE: u64 = 0x3e0;
const MASKED: u32 = 1 << 16;
const LEVEL_TRIGGERED: u32 = 1 << 15;
const DIVIDE_BY_ONE: u32 = 0xb;
const COMMAND_PENDING: u32 = 1 << 12;

static HANDLERS: [AtomicUsize; LINES] = [const { AtomicUsize::new(0) }; LINES];
/// Interrupts of each line.
static TAKEN: [AtomicU64; LINES] = [const { AtomicU64::new(0) }; LINES];

fn read(register: u64) -> u32 {
    // SAFETY: a register of this CPU's local APIC, mapped by the direct map.
    unsafe { paging::direct_map::<u32>(LOCAL_APIC + register).read_volatile() }
}

fn write(register: u64, value: u32) {
    // SAFETY: as in `read`; the callers write only what the manual allows.
    unsafe { paging::direct_map::<u32>(LOCAL_APIC + register).write_volatile(value) }
}

fn write_io(index: u32, value: u32) {
    // SAFETY: the I/O APIC's select and window registers, written by one CPU at a time: at the start, and from
    // `register`, which the boot processor calls while it sets devices up.
    unsafe {
        paging::direct_map::<u32>(IO_APIC).write_volatile(index);
        paging::direct_map::<u32>(IO_APIC + 0x10).write_volatile(value);
    }
}

/// Sets up this CPU's local APIC.
pub(super) fn install_local(id: usize) {
    write(REGISTER_TASK_PRIORITY, 0);
    write(REGISTER_LOCAL_PIN0, MASKED);
    write(REGISTER_LOCAL_PIN1, MASKED);
    write(REGISTER_TIMER_DIVIDE, DIVIDE_BY_ONE);
    write(REGISTER_LOCAL_TIMER, u32::from(VECTOR_TIMER));
    write(REGISTER_SPURIOUS, 0x100 | u32::from(VECTOR_SPURIOUS));
    local::of(id).apic_id.store(read(REGISTER_ID) >> 24, Ordering::Relaxed);
}

/// Silences the old interrupt controllers and masks every pin.
pub(super) fn install_machine() {
    for port in [0x21u16, 0xa1] {
        // SAFETY: masks every line of an 8259.
        unsafe { Port::<u8>::new(port).write(0xff) };
    }
    for pin in 0..LINES as u32 {
        write_io(0x10 + 2 * pin, MASKED);
        write_io(0x11 + 2 * pin, 0);
    }
}

/// Calls `handler` at every interrupt of line `irq`, on the boot processor, and unmasks the line.
///
/// The line is level-triggered: the handler acknowledges the device, or is called again at once. The device is
/// acknowledged before its queue is looked at. Handlers must not lock, allocate or free.
///
/// # Panics
/// If the line does not exist: a bug of the driver.
pub fn register(irq: u32, handler: fn()) {
    HANDLERS[irq as usize].store(handler as usize, Ordering::Release);
    write_io(0x11 + 2 * irq, local::of(0).apic_id.load(Ordering::Relaxed) << 24);
    write_io(0x10 + 2 * irq, LEVEL_TRIGGERED | (u32::from(VECTOR_DEVICE) + irq));
}

/// Whether this CPU runs an interrupt handler.
#[must_use]
pub fn is_in_handler() -> bool {
    local::current().in_handler.load(Ordering::Relaxed)
}

/// Runs `body` as an interrupt handler would run: for the test that shows that the checking build notices.
#[cfg(feature = "checking")]
pub fn provoke_handler(body: impl FnOnce()) {
    let local = local::current();
    let before = local.in_handler.swap(true, Ordering::Relaxed);
    body();
    local.in_handler.store(before, Ordering::Relaxed);
}

/// How many interrupts all CPUs have taken.
#[must_use]
pub fn count() -> u64 {
    let of_cpus: u64 = (0..cpu::count()).map(|number| timers(number) + kicks(number)).sum();
    of_cpus + (0..LINES).filter_map(taken_of).sum::<u64>()
}

/// How many of its timer a CPU has taken.
#[must_use]
pub fn timers(cpu: usize) -> u64 {
    local::of(cpu).timers.load(Ordering::Relaxed)
}

/// How many of other CPUs a CPU has taken.
#[must_use]
pub fn kicks(cpu: usize) -> u64 {
    local::of(cpu).kicks.load(Ordering::Relaxed)
}

/// How many of a line's the boot processor has taken; `None` if the line has no handler.
#[must_use]
pub fn taken_of(line: usize) -> Option<u64> {
    let is_used = HANDLERS.get(line)?.load(Ordering::Relaxed) != 0;
    is_used.then(|| TAKEN[line].load(Ordering::Relaxed))
}

/// Counts one. The same interrupt's come one after another.
fn add_one(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Runs the handler of an interrupt vector and acknowledges it.
pub(super) fn dispatch(vector: u8) {
    let local = local::current();
    let before = local.in_handler.swap(true, Ordering::Relaxed);
    match vector {
        VECTOR_TIMER => {
            add_one(&local.timers);
            write(REGISTER_END, 0);
            time::expired();
        }
        VECTOR_KICK => {
            add_one(&local.kicks);
            write(REGISTER_END, 0);
        }
        VECTOR_SPURIOUS => {}
        _ => {
            let line = usize::from(vector.wrapping_sub(VECTOR_DEVICE));
            let handler = HANDLERS.get(line).map_or(0, |handler| handler.load(Ordering::Acquire));
            if handler != 0 {
                add_one(&TAKEN[line]);
                // SAFETY: the slot holds nothing but zero and what `register` stored, a `fn()`.
                let handler = unsafe { core::mem::transmute::<usize, fn()>(handler) };
                handler();
            }
            write(REGISTER_END, 0);
        }
    }
    local.in_handler.store(before, Ordering::Relaxed);
}

/// Starts the one-shot timer: an interrupt after `ticks` of 1 ns; 0 stops it.
pub(super) fn start_timer(ticks: u32) {
    write(REGISTER_TIMER_COUNT, ticks);
}

/// The timer's remaining count.
pub(super) fn timer_now() -> u32 {
    read(REGISTER_TIMER_NOW)
}

/// Sends the kick interrupt to a CPU.
pub(super) fn send_kick(cpu: usize) {
    send(local::of(cpu).apic_id.load(Ordering::Relaxed), 0x4000 | u32::from(VECTOR_KICK));
}

/// Sends an interprocessor interrupt with this command word.
pub(super) fn send(apic_id: u32, command: u32) {
    while read(REGISTER_COMMAND) & COMMAND_PENDING != 0 {
        core::hint::spin_loop();
    }
    write(REGISTER_COMMAND_HIGH, apic_id << 24);
    write(REGISTER_COMMAND, command);
}
