//! Local APIC, I/O APIC, and the handlers of interrupts.
//!
//! Registers are reached through the direct map: the firmware's memory-type registers make them uncached.
//! `unsafe` here: those registers, and function pointers kept as integers.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use ::x86_64::instructions::port::Port;
use heddle_abi::boot::KEY_CLEAR_CPUID;

use crate::arch::x86_64::user::{read_register, write_register};
use crate::arch::x86_64::{cpu, local, paging, paravirt, time};
use crate::boot;

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

/// Whether the local APICs' registers are model-specific ones (x2APIC), which a virtual machine reaches faster than
/// addresses.
static BY_REGISTERS: AtomicBool = AtomicBool::new(false);
/// Whether the timers count to a value of the time-stamp counter.
static BY_COUNTER: AtomicBool = AtomicBool::new(false);
/// The local APIC's address and its modes; its registers by number, 16 bytes of addresses each; the timer's deadline.
const REGISTER_BASE: u32 = 0x1b;
const BASE_X2APIC: u64 = 1 << 10;
const FIRST_REGISTER: u32 = 0x800;
const DEADLINE: u32 = 0x6e0;
const TIMER_BY_COUNTER: u32 = 1 << 18;

fn read(register: u64) -> u32 {
    if BY_REGISTERS.load(Ordering::Relaxed) {
        return read_register(FIRST_REGISTER + (register >> 4) as u32).unwrap_or(0) as u32;
    }
    // SAFETY: a register of this CPU's local APIC, mapped by the direct map.
    unsafe { paging::direct_map::<u32>(LOCAL_APIC + register).read_volatile() }
}

fn write(register: u64, value: u32) {
    if BY_REGISTERS.load(Ordering::Relaxed) {
        // SAFETY: as below.
        unsafe { write_register(FIRST_REGISTER + (register >> 4) as u32, value.into()) };
        return;
    }
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

/// Decides how local APICs are reached.
fn choose_registers() {
    const X2APIC: u32 = 1 << 21;
    const DEADLINE_TIMER: u32 = 1 << 24;
    let features = core::arch::x86_64::__cpuid(1).ecx;
    let has = |bit, name| features & bit != 0 && !boot::is_listed(KEY_CLEAR_CPUID, name);
    BY_REGISTERS.store(has(X2APIC, "x2apic") && read_register(REGISTER_BASE).is_some(), Ordering::Relaxed);
    BY_COUNTER.store(has(DEADLINE_TIMER, "tsc_deadline_timer"), Ordering::Relaxed);
}

/// Sets up this CPU's local APIC.
pub(super) fn install_local(id: usize) {
    if id == 0 {
        choose_registers();
    }
    if BY_REGISTERS.load(Ordering::Relaxed) {
        let base = read_register(REGISTER_BASE).unwrap_or(0);
        // SAFETY: the processor has the mode, and nothing has used the addresses yet.
        if !unsafe { write_register(REGISTER_BASE, base | BASE_X2APIC) } {
            BY_REGISTERS.store(false, Ordering::Relaxed);
        }
    }
    write(REGISTER_TASK_PRIORITY, 0);
    write(REGISTER_LOCAL_PIN0, MASKED);
    write(REGISTER_LOCAL_PIN1, MASKED);
    write(REGISTER_TIMER_DIVIDE, DIVIDE_BY_ONE);
    write(REGISTER_LOCAL_TIMER, u32::from(VECTOR_TIMER));
    write(REGISTER_SPURIOUS, 0x100 | u32::from(VECTOR_SPURIOUS));
    let number = read(REGISTER_ID);
    let number = if BY_REGISTERS.load(Ordering::Relaxed) { number } else { number >> 24 };
    local::of(id).apic_id.store(number, Ordering::Relaxed);
    if id != 0 {
        install_timer();
    }
}

/// Has this CPU's timer count to a value of the time-stamp counter from here on, where it can.
pub(super) fn install_timer() {
    if counts_to_deadline() {
        write(REGISTER_LOCAL_TIMER, TIMER_BY_COUNTER | u32::from(VECTOR_TIMER));
        // The deadline is written by another way than the mode, and must not come first.
        fence(Ordering::SeqCst);
    }
}

/// Whether timers are set by [`set_deadline`].
pub(super) fn counts_to_deadline() -> bool {
    BY_COUNTER.load(Ordering::Relaxed)
}

/// Sets the timer for a value of the time-stamp counter.
pub(super) fn set_deadline(counts: u64) {
    // SAFETY: the processor has the register.
    unsafe { write_register(DEADLINE, counts) };
}

/// Tells the local APIC that the interrupt in service is over.
fn end() {
    if !paravirt::end_interrupt() {
        write(REGISTER_END, 0);
    }
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
            end();
            time::expired();
        }
        VECTOR_KICK => {
            add_one(&local.kicks);
            end();
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
            end();
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

/// Sends the kick interrupt to a set of CPUs, one bit each.
pub(super) fn send_kicks(cpus: u64) {
    if cpus.count_ones() > 1 && paravirt::interrupt_all(cpus, u32::from(VECTOR_KICK)) {
        return;
    }
    (0..cpu::count()).filter(|cpu| cpus >> cpu & 1 != 0).for_each(send_kick);
}

/// Sends an interprocessor interrupt with this command word.
pub(super) fn send(apic_id: u32, command: u32) {
    if BY_REGISTERS.load(Ordering::Relaxed) {
        // The write does not wait for stores before it, which the other CPU is to see.
        fence(Ordering::SeqCst);
        let register = FIRST_REGISTER + (REGISTER_COMMAND >> 4) as u32;
        // SAFETY: as in `write`.
        unsafe { write_register(register, u64::from(apic_id) << 32 | u64::from(command)) };
        return;
    }
    while read(REGISTER_COMMAND) & COMMAND_PENDING != 0 {
        core::hint::spin_loop();
    }
    write(REGISTER_COMMAND_HIGH, apic_id << 24);
    write(REGISTER_COMMAND, command);
}
