//! Starting the other processors.
//!
//! QEMU's microvm describes them neither by ACPI nor by a table: their number comes from its firmware-configuration
//! device, and they have the APIC ids that follow the boot processor's 0.
//!
//! `unsafe` here: the trampoline's copy, the firmware's ports, and the variables that smp.s reads.
#![allow(unsafe_code)]

use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use ::x86_64::instructions::port::Port;

use crate::arch::x86_64::local::MAX_CPUS;
use crate::arch::x86_64::{cpu, descriptor, float, interrupt, local, mitigations, paging, paravirt, time};

global_asm!(include_str!("smp.s"), options(att_syntax, raw));

/// Physical address of the trampoline's copy; the start-up interrupt names its page.
const TRAMPOLINE: u64 = 0x8000;
const FIRMWARE_SELECTOR: u16 = 0x510;
const FIRMWARE_DATA: u16 = 0x511;
const FIRMWARE_CPU_COUNT: u16 = 5;
const COMMAND_INIT: u32 = 0x4500;
const COMMAND_STARTUP: u32 = 0x4600;
const START_TIMEOUT_NS: u64 = 10_000_000_000;

unsafe extern "C" {
    static heddle_trampoline: u8;
    static heddle_trampoline_end: u8;
    static heddle_ap_number: AtomicU64;
    static heddle_ap_stack: AtomicU64;
}

/// How many processors have come up.
static STARTED: AtomicUsize = AtomicUsize::new(1);
/// Whether they may continue: the identity map is gone.
static RELEASED: AtomicBool = AtomicBool::new(false);

/// The function that the other processors run once they are set up.
static ENTRY: spin::Once<fn() -> !> = spin::Once::new();

/// Starts the other processors, which then run `entry`, on stacks of frames from `zeroed_frame`, which are never freed.
/// The boot processor calls this once, with everything set up that they may use.
pub fn start_others(entry: fn() -> !, zeroed_frame: fn() -> Option<u64>) {
    ENTRY.call_once(|| entry);
    let wanted = firmware_cpu_count().min(MAX_CPUS);
    if wanted <= 1 {
        return;
    }
    let source = &raw const heddle_trampoline;
    let length = &raw const heddle_trampoline_end as usize - source as usize;
    // SAFETY: memory below 1 MiB is never given out, and nothing else is at the trampoline's page.
    unsafe { core::ptr::copy_nonoverlapping(source, paging::direct_map(TRAMPOLINE), length) };
    paging::set_identity_map(true);
    for id in 1..wanted {
        if !start(id, zeroed_frame) {
            ::log::warn!("CPU {id} does not start");
            break;
        }
    }
    paging::set_identity_map(false);
    cpu::set_count(STARTED.load(Ordering::Acquire));
    RELEASED.store(true, Ordering::Release);
}

fn start(id: usize, zeroed_frame: fn() -> Option<u64>) -> bool {
    let Some(stack) = paging::map_stack(id, zeroed_frame) else { return false };
    if !paging::map_exception_stacks(id, zeroed_frame) {
        return false;
    }
    // SAFETY: both are atomics in the kernel's data; the processor that reads them is started below.
    unsafe {
        heddle_ap_number.store(id as u64, Ordering::SeqCst);
        heddle_ap_stack.store(stack as u64, Ordering::SeqCst);
    }
    interrupt::send(id as u32, COMMAND_INIT);
    interrupt::send(id as u32, COMMAND_STARTUP | (TRAMPOLINE >> 12) as u32);
    let deadline = time::now_ns() + START_TIMEOUT_NS;
    while STARTED.load(Ordering::Acquire) == id {
        if time::now_ns() > deadline {
            // If it still came, it would find neither the identity map nor a stack of its own.
            interrupt::send(id as u32, COMMAND_INIT);
            return STARTED.load(Ordering::Acquire) != id;
        }
        core::hint::spin_loop();
    }
    true
}

fn firmware_cpu_count() -> usize {
    // SAFETY: QEMU's firmware-configuration ports; a machine without them reads as ones.
    unsafe {
        Port::<u16>::new(FIRMWARE_SELECTOR).write(FIRMWARE_CPU_COUNT);
        let mut data = Port::<u8>::new(FIRMWARE_DATA);
        let count = u16::from_le_bytes([data.read(), data.read()]);
        if count == u16::MAX { 1 } else { usize::from(count) }
    }
}

#[unsafe(no_mangle)]
extern "C" fn heddle_ap_start(id: usize) -> ! {
    local::install(id);
    descriptor::install(id);
    mitigations::install_cpu();
    paravirt::install_cpu(id);
    float::install();
    interrupt::install_local(id);
    STARTED.store(id + 1, Ordering::Release);
    while !RELEASED.load(Ordering::Acquire) {
        core::hint::spin_loop();
    }
    // Drops what the identity map left.
    // SAFETY: the boot root lives as long as the machine.
    unsafe { paging::load_root(paging::boot_root()) };
    paging::install_tags();
    ENTRY.get().expect("set before the first processor was started")()
}
