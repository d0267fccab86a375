//! From the firmware's jump to [`crate::main`]: the PVH start information, then this CPU's tables, in that order.
//!
//! `unsafe` here: structures at physical addresses that the loader names, and a variable of entry.s.
#![allow(unsafe_code)]

use core::arch::global_asm;

use crate::arch::x86_64::{
    descriptor, direct, float, interrupt, local, mitigations, paging, paravirt, stray, time,
};
use crate::boot;
use crate::boot::Region;

global_asm!(include_str!("entry.s"), options(att_syntax, raw));

/// `struct hvm_start_info` of the PVH boot protocol.
#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    module_count: u32,
    modules: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

/// `struct hvm_memmap_table_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MapEntry {
    address: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

unsafe extern "C" {
    static heddle_entry_counter: u64;
}

const START_MAGIC: u32 = 0x336e_c578;
const KIND_USABLE: u32 = 1;

#[unsafe(no_mangle)]
extern "C" fn heddle_start(start_info: u32) -> ! {
    local::install(0);
    copy_start_info(u64::from(start_info));
    direct::choose();
    descriptor::install(0);
    paging::install();
    mitigations::install();
    direct::install();
    paravirt::install();
    stray::install();
    float::install();
    interrupt::install_machine();
    interrupt::install_local(0);
    // SAFETY: entry.s has written it, and nobody does again.
    time::install(unsafe { heddle_entry_counter });
    crate::main()
}

/// Copies what the loader left, which lies in memory that is soon given out.
fn copy_start_info(address: u64) {
    // SAFETY: the PVH protocol promises the structure at this physical address, and the direct map covers it.
    let info = unsafe { paging::direct_map::<StartInfo>(address).read_unaligned() };
    if info.magic != START_MAGIC {
        return;
    }
    if info.command_line != 0 {
        let text: *const u8 = paging::direct_map(info.command_line);
        // SAFETY: the protocol promises a string that ends with a zero byte; the bound holds if it does not.
        let length = (0..boot::COMMAND_LINE_BYTES).take_while(|&at| unsafe { *text.add(at) } != 0).count();
        // SAFETY: those bytes were just read.
        boot::set_command_line(unsafe { core::slice::from_raw_parts(text, length) });
    }
    let entries: *const MapEntry = paging::direct_map(info.memory_map);
    // QEMU's last entry is empty.
    let usable = (0..info.memory_map_entries as usize)
        // SAFETY: the protocol promises so many entries.
        .map(|index| unsafe { entries.add(index).read_unaligned() })
        .filter(|entry| entry.kind == KIND_USABLE && entry.size > 0)
        .map(|entry| Region { start: entry.address, end: entry.address.saturating_add(entry.size) });
    let memory_end = usable.clone().map(|region| region.end).max().unwrap_or(0);
    let mut table_bytes = paging::direct_map_table_bytes(memory_end);
    for mut region in usable {
        // The tables are taken from the end of a region that is mapped from the start. The machine's loader puts
        // nothing there if there is memory above it.
        if table_bytes > 0 && region.end <= paging::BOOT_MAP_BYTES && region.end - region.start > table_bytes
        {
            region.end = (region.end & !(paging::PAGE_SIZE as u64 - 1)) - table_bytes;
            paging::extend_direct_map(region.end, table_bytes);
            table_bytes = 0;
        }
        region.end = region.end.min(paging::direct_map_end());
        if region.start < region.end {
            boot::add_region(region);
        }
    }
}
