//! Slabs over memory of the host.

use super::*;
use crate::frame::Buddy;
use std::alloc::{Layout, alloc, dealloc};
use std::cell::RefCell;
use std::vec::Vec;

const FRAMES: usize = 64;

struct Machine {
    memory: NonNull<u8>,
    descriptors: &'static [Descriptor],
    buddy: RefCell<Buddy<'static>>,
}

const LAYOUT: Layout = match Layout::from_size_align(FRAMES * FRAME, FRAME) {
    Ok(layout) => layout,
    Err(_) => panic!(),
};

impl Machine {
    fn new() -> Self {
        let descriptors = Vec::leak((0..FRAMES).map(|_| Descriptor::new()).collect());
        let mut buddy = Buddy::new(descriptors);
        buddy.release_range(0, FRAMES as u32);
        // SAFETY: the layout is not empty.
        let memory = NonNull::new(unsafe { alloc(LAYOUT) }).unwrap();
        Self { memory, descriptors, buddy: RefCell::new(buddy) }
    }

    fn free(&self) -> usize {
        self.buddy.borrow().free()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`.
        unsafe { dealloc(self.memory.as_ptr(), LAYOUT) };
    }
}

impl Source for Machine {
    fn allocate(&self) -> Option<u32> {
        self.buddy.borrow_mut().allocate(0)
    }
    fn release(&self, index: u32) {
        self.buddy.borrow_mut().release(index, 0);
    }
    fn descriptor(&self, index: u32) -> &Descriptor {
        &self.descriptors[index as usize]
    }
    fn memory(&self, index: u32) -> NonNull<u8> {
        // SAFETY: inside the allocation.
        unsafe { self.memory.add(index as usize * FRAME) }
    }
    fn index(&self, address: NonNull<u8>) -> u32 {
        ((address.as_ptr() as usize - self.memory.as_ptr() as usize) / FRAME) as u32
    }
}

#[test]
fn classes_fit_size_and_alignment() {
    assert_eq!(class_of(1, 1), Some(0));
    assert_eq!(class_of(17, 8), Some(1));
    assert_eq!(class_of(100, 64).map(|class| SIZES[class]), Some(128));
    assert_eq!(class_of(33, 32).map(|class| SIZES[class]), Some(64));
    assert_eq!(class_of(2048, 2048).map(|class| SIZES[class]), Some(2048));
    assert_eq!(class_of(2049, 8), None);
    assert_eq!(class_of(8, 4096), None);
    for (number, size) in SIZES.iter().enumerate() {
        assert_eq!(class_of(*size, 16), Some(number));
    }
}

#[test]
fn objects_keep_their_contents_and_all_frames_come_back() {
    let machine = Machine::new();
    for (number, &size) in SIZES.iter().enumerate() {
        let mut class = SizeClass::new(number);
        let mut objects = Vec::new();
        let mut stamp = 0u8;
        for round in 0..3 {
            for _ in 0..300 {
                let Some(object) = class.allocate(&machine) else { break };
                assert_eq!(object.as_ptr() as usize % 16, 0);
                stamp = stamp.wrapping_add(1);
                // SAFETY: the object is `size` bytes of ours.
                unsafe { object.as_ptr().write_bytes(stamp, size) };
                objects.push((object, stamp));
            }
            // Every second one in the first rounds, all in the last.
            let mut keep = Vec::new();
            for (position, (object, stamp)) in objects.drain(..).enumerate() {
                // SAFETY: still ours.
                let bytes = unsafe { core::slice::from_raw_parts(object.as_ptr(), size) };
                assert!(bytes.iter().all(|&byte| byte == stamp), "class {size} was overwritten");
                if round < 2 && position % 2 == 0 {
                    keep.push((object, stamp));
                } else {
                    // SAFETY: from this class, and not used again.
                    unsafe { class.release(&machine, object) };
                }
            }
            objects = keep;
        }
        assert!(machine.free() >= FRAMES - 1, "at most one slab is kept");
        class.drain(&machine);
        assert_eq!(machine.free(), FRAMES);
    }
}

#[test]
fn a_class_uses_every_frame_and_then_says_no() {
    let machine = Machine::new();
    let mut class = SizeClass::new(class_of(2048, 1).unwrap());
    let objects: Vec<_> = (0..).map_while(|_| class.allocate(&machine)).collect();
    assert_eq!(objects.len(), 2 * FRAMES);
    for object in objects {
        // SAFETY: from this class, and not used again.
        unsafe { class.release(&machine, object) };
    }
    class.drain(&machine);
    assert_eq!(machine.free(), FRAMES);
}
