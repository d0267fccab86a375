//! Objects smaller than a frame (Bonwick 1994, without constructors).
//!
//! A slab is one frame cut into objects of one size. Its descriptor holds everything there is to know: the class, the
//! number of objects in use and the first free one (both in the count word), and the links of the list of slabs that
//! have free objects. Free objects hold the number of the next free one in their first two bytes. So a slab has no
//! header, and objects of 2^k bytes fill it completely.
//!
//! A [`SizeClass`] keeps at most one slab without objects; more go back to the source at once.
//!
//! `unsafe` here: the two-byte links inside free objects.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use crate::frame::descriptor::{Descriptor, NONE};

/// Bytes of a frame.
const FRAME: usize = crate::frame::FRAME_BYTES as usize;
/// No object, as a link.
const END: u32 = 0xffff;

/// Sizes of the classes; each is a multiple of 16, and a power of two is aligned to itself.
pub const SIZES: [usize; 13] = [16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 1360, 2048];

/// The class for objects of `size` bytes aligned to `align`; `None` if they need whole frames.
#[must_use]
pub fn class_of(size: usize, align: usize) -> Option<usize> {
    let size = if align <= 16 { size } else { size.max(align).checked_next_power_of_two()? };
    // A power of two from 64 on is a class of its own, so the smallest class that fits is aligned as well.
    BY_SIZE.get(size.div_ceil(16)).map(|&class| class as usize)
}

/// The class for each size, in steps of 16 bytes.
const BY_SIZE: [u8; SIZES[SIZES.len() - 1] / 16 + 1] = {
    let mut table = [0; SIZES[SIZES.len() - 1] / 16 + 1];
    let mut step = 0;
    let mut class = 0;
    while step < table.len() {
        if step * 16 > SIZES[class] {
            class += 1;
        }
        table[step] = class as u8;
        step += 1;
    }
    table
};

/// Where slabs come from.
pub trait Source {
    /// A frame for a slab.
    fn allocate(&self) -> Option<u32>;
    /// Takes a frame back.
    fn release(&self, index: u32);
    /// A frame's descriptor.
    fn descriptor(&self, index: u32) -> &Descriptor;
    /// A frame's memory: valid for reads and writes of a whole frame, aligned to it, until released.
    fn memory(&self, index: u32) -> NonNull<u8>;
    /// The frame that an address of such memory lies in.
    fn index(&self, address: NonNull<u8>) -> u32;
}

/// Memory use of a heap, or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Frames held.
    pub frames: usize,
    /// Bytes in use in them.
    pub bytes: usize,
}

/// The slabs of one size.
#[derive(Debug)]
pub struct SizeClass {
    number: usize,
    /// First slab with a free object.
    head: u32,
    /// A slab without objects, kept for the next allocation; it is in no list.
    spare: u32,
    /// Frames that slabs of this class are made of, the spare one included.
    slabs: usize,
    /// Objects in use.
    objects: usize,
}

impl SizeClass {
    /// SizeClass `number` of [`SIZES`], without slabs.
    #[must_use]
    pub const fn new(number: usize) -> Self {
        Self { number, head: NONE, spare: NONE, slabs: 0, objects: 0 }
    }

    const fn size(&self) -> usize {
        SIZES[self.number]
    }

    const fn capacity(&self) -> u32 {
        (FRAME / self.size()) as u32
    }

    /// How many frames the class holds, and how many bytes of them are objects in use.
    #[must_use]
    pub const fn usage(&self) -> Usage {
        Usage { frames: self.slabs, bytes: self.objects * self.size() }
    }

    /// Takes an object; `None` if the source has no frame.
    pub fn allocate(&mut self, source: &impl Source) -> Option<NonNull<u8>> {
        if self.head == NONE {
            let fresh = if self.spare == NONE { self.create(source)? } else { self.spare };
            self.spare = NONE;
            self.link(source, fresh);
        }
        let slab = self.head;
        let descriptor = source.descriptor(slab);
        let (first, used) = unpack(descriptor);
        // SAFETY: `first` is a free object of this slab (the list starts there and ends with END, and a slab in the
        // list is not full), so its bytes are inside the frame and not in use.
        let (object, next) = unsafe {
            let object = source.memory(slab).add(first as usize * self.size());
            (object, u32::from(object.cast::<u16>().read()))
        };
        pack(descriptor, next, used + 1);
        if next == END {
            self.unlink(source, slab);
        }
        self.objects += 1;
        Some(object)
    }

    /// Gives an object back.
    ///
    /// # Safety
    /// The object came from [`SizeClass::allocate`] of this class and source, and is not used any more.
    pub unsafe fn release(&mut self, source: &impl Source, object: NonNull<u8>) {
        let slab = source.index(object);
        let descriptor = source.descriptor(slab);
        let (first, used) = unpack(descriptor);
        let number = (object.as_ptr() as usize % FRAME / self.size()) as u32;
        // SAFETY: the caller gives the object up; its first bytes are the slab's from here.
        unsafe { object.cast::<u16>().write(first as u16) };
        pack(descriptor, number, used - 1);
        self.objects -= 1;
        if first == END {
            self.link(source, slab);
        }
        if used == 1 {
            self.unlink(source, slab);
            if self.spare == NONE {
                self.spare = slab;
            } else {
                self.slabs -= 1;
                source.release(slab);
            }
        }
    }

    /// Gives the kept slab back to the source.
    pub fn drain(&mut self, source: &impl Source) {
        if self.spare != NONE {
            self.slabs -= 1;
            source.release(self.spare);
            self.spare = NONE;
        }
    }

    fn create(&mut self, source: &impl Source) -> Option<u32> {
        let slab = source.allocate()?;
        self.slabs += 1;
        let memory = source.memory(slab);
        let capacity = self.capacity();
        for number in 0..capacity {
            let next = if number + 1 == capacity { END } else { number + 1 };
            // SAFETY: the frame is new and this function's own, and the object lies inside it.
            unsafe { memory.add(number as usize * self.size()).cast::<u16>().write(next as u16) };
        }
        let descriptor = source.descriptor(slab);
        descriptor.set_slab(self.number);
        pack(descriptor, 0, 0);
        Some(slab)
    }

    fn link(&mut self, source: &impl Source, slab: u32) {
        let descriptor = source.descriptor(slab);
        descriptor.next.store(self.head, Relaxed);
        descriptor.previous.store(NONE, Relaxed);
        if self.head != NONE {
            source.descriptor(self.head).previous.store(slab, Relaxed);
        }
        self.head = slab;
    }

    fn unlink(&mut self, source: &impl Source, slab: u32) {
        let descriptor = source.descriptor(slab);
        let (next, previous) = (descriptor.next.load(Relaxed), descriptor.previous.load(Relaxed));
        if next != NONE {
            source.descriptor(next).previous.store(previous, Relaxed);
        }
        if previous == NONE {
            self.head = next;
        } else {
            source.descriptor(previous).next.store(next, Relaxed);
        }
    }
}

fn unpack(descriptor: &Descriptor) -> (u32, u32) {
    let word = descriptor.packed();
    (word & 0xffff, word >> 16)
}

fn pack(descriptor: &Descriptor, first: u32, used: u32) {
    descriptor.set_packed(used << 16 | first);
}

#[cfg(all(test, not(heddle_loom)))]
mod tests;
