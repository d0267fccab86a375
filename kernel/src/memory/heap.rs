//! Heap.
#![allow(unsafe_code)]
struct Null;
// SAFETY: never returns memory.
unsafe impl core::alloc::GlobalAlloc for Null {
    unsafe fn alloc(&self, _: core::alloc::Layout) -> *mut u8 {
        core::ptr::null_mut()
    }
    unsafe fn dealloc(&self, _: *mut u8, _: core::alloc::Layout) {}
}
#[global_allocator]
static HEAP: Null = Null;
