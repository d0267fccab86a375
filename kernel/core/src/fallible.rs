//! Allocations that can fail, in the shape of the standard library's that cannot.
//!
//! The standard library's forms are forbidden in the kernel (`kernel/clippy.toml`), because a failure there ends the
//! machine. A vector whose capacity was reserved by its owner is filled by [`push_reserved`] and its like.
//!
//! `unsafe` here: boxes are made of memory from the allocator.
#![allow(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "each is called behind a reservation in the same function")]

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::mem::MaybeUninit;

/// There is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocError;

/// Memory for a value.
///
/// # Errors
/// [`AllocError`].
pub fn try_box_uninit<T>() -> Result<Box<MaybeUninit<T>>, AllocError> {
    let layout = Layout::new::<T>();
    if layout.size() == 0 {
        // Nothing is allocated for it.
        return Ok(Box::new(MaybeUninit::uninit()));
    }
    // SAFETY: the layout is not of size 0.
    let memory = unsafe { alloc::alloc::alloc(layout) }.cast::<MaybeUninit<T>>();
    if memory.is_null() {
        return Err(AllocError);
    }
    // SAFETY: just allocated by the global allocator, with the layout of the type, and owned by nobody else.
    Ok(unsafe { Box::from_raw(memory) })
}

/// `Box::new`.
///
/// # Errors
/// [`AllocError`]; the value is dropped.
pub fn try_box<T>(value: T) -> Result<Box<T>, AllocError> {
    Ok(Box::write(try_box_uninit()?, value))
}

/// Takes the value out of its box, which can be used again.
pub fn vacate<T>(full: Box<T>) -> (T, Box<MaybeUninit<T>>) {
    let memory = Box::into_raw(full);
    // SAFETY: the box is valid for reads, and below it counts as uninitialized, so that the value has one owner.
    let value = unsafe { memory.read() };
    // SAFETY: the memory of a box of the same layout; `MaybeUninit` asks nothing of its contents.
    (value, unsafe { Box::from_raw(memory.cast()) })
}

/// A vector that was filled as far as it was reserved, as a slice: nothing is allocated anew.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the memory is taken over as it is")]
pub fn into_box<T>(full: Vec<T>) -> Box<[T]> {
    debug_assert!(full.len() == full.capacity(), "it has the room that it needs");
    full.into_boxed_slice()
}

/// `Vec::push`.
///
/// # Errors
/// [`AllocError`]; the value is dropped.
#[inline]
pub fn try_push<T>(vector: &mut Vec<T>, value: T) -> Result<(), AllocError> {
    vector.try_reserve(1).map_err(|_| AllocError)?;
    vector.push(value);
    Ok(())
}

/// `Vec::push` of a vector that has room, which its owner reserved.
///
/// # Panics
/// If it has none.
#[inline]
pub fn push_reserved<T>(vector: &mut Vec<T>, value: T) {
    assert!(vector.len() < vector.capacity(), "room was reserved");
    vector.push(value);
}

/// `Vec::insert` of a vector that has room, which its owner reserved.
///
/// # Panics
/// If it has none.
#[inline]
pub fn insert_reserved<T>(vector: &mut Vec<T>, index: usize, value: T) {
    assert!(vector.len() < vector.capacity(), "room was reserved");
    vector.insert(index, value);
}

/// `VecDeque::push_back` of a queue that has room, which its owner reserved.
///
/// # Panics
/// If it has none.
#[inline]
pub fn push_back_reserved<T>(queue: &mut VecDeque<T>, value: T) {
    assert!(queue.len() < queue.capacity(), "room was reserved");
    queue.push_back(value);
}

/// `VecDeque::push_front` of a queue that has room, which its owner reserved.
///
/// # Panics
/// If it has none.
#[inline]
pub fn push_front_reserved<T>(queue: &mut VecDeque<T>, value: T) {
    assert!(queue.len() < queue.capacity(), "room was reserved");
    queue.push_front(value);
}

/// `Vec::resize` of a vector that has room, which its owner reserved.
///
/// # Panics
/// If it has too little.
#[inline]
pub fn resize_reserved<T: Clone>(vector: &mut Vec<T>, length: usize, value: T) {
    assert!(length <= vector.capacity(), "room was reserved");
    vector.resize(length, value);
}

/// `VecDeque::insert`; at an index that is at most its length.
///
/// # Errors
/// [`AllocError`]; the value is dropped.
#[inline]
pub fn try_insert_at<T>(queue: &mut VecDeque<T>, index: usize, value: T) -> Result<(), AllocError> {
    queue.try_reserve(1).map_err(|_| AllocError)?;
    queue.insert(index, value);
    Ok(())
}

/// `Vec::with_capacity`.
///
/// # Errors
/// [`AllocError`].
pub fn try_with_capacity<T>(capacity: usize) -> Result<Vec<T>, AllocError> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(capacity).map_err(|_| AllocError)?;
    Ok(vector)
}

/// `Vec::extend_from_slice` of a vector that has room, which its owner reserved.
///
/// # Panics
/// If it has too little.
#[inline]
pub fn extend_reserved<T: Clone>(vector: &mut Vec<T>, slice: &[T]) {
    assert!(slice.len() <= vector.capacity() - vector.len(), "room was reserved");
    vector.extend_from_slice(slice);
}

/// `Vec::extend` of a vector that has room, which its owner reserved.
///
/// # Panics
/// If it has too little.
#[inline]
pub fn extend_items_reserved<T>(vector: &mut Vec<T>, items: impl IntoIterator<Item = T>) {
    for item in items {
        push_reserved(vector, item);
    }
}

/// `VecDeque::extend` by a slice, of a queue that has room, which its owner reserved.
///
/// # Panics
/// If it has too little.
#[inline]
pub fn extend_back_reserved<T: Copy>(queue: &mut VecDeque<T>, slice: &[T]) {
    assert!(slice.len() <= queue.capacity() - queue.len(), "room was reserved");
    queue.extend(slice);
}

/// `Vec::resize`.
///
/// # Errors
/// [`AllocError`]; the vector is as it was.
#[inline]
pub fn try_resize<T: Clone>(vector: &mut Vec<T>, length: usize, value: T) -> Result<(), AllocError> {
    vector.try_reserve(length.saturating_sub(vector.len())).map_err(|_| AllocError)?;
    vector.resize(length, value);
    Ok(())
}

/// `slice::to_vec`.
///
/// # Errors
/// [`AllocError`].
pub fn try_to_vec<T: Clone>(slice: &[T]) -> Result<Vec<T>, AllocError> {
    let mut vector = try_with_capacity(slice.len())?;
    vector.extend_from_slice(slice);
    Ok(vector)
}

/// `Iterator::collect` into a vector.
///
/// # Errors
/// [`AllocError`].
pub fn try_collect<T>(items: impl Iterator<Item = T>) -> Result<Vec<T>, AllocError> {
    let mut vector = try_with_capacity(items.size_hint().0)?;
    for item in items {
        try_push(&mut vector, item)?;
    }
    Ok(vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_can_be_used_again() {
        let boxed = try_box([1_u64; 4]).unwrap();
        let address = boxed.as_ptr();
        let (value, empty) = vacate(boxed);
        assert_eq!(value, [1; 4]);
        let again = Box::write(empty, [2; 4]);
        assert_eq!((again.as_ptr(), *again), (address, [2; 4]));
    }

    #[test]
    fn values_without_size_take_nothing() {
        assert_eq!(*try_box(()).unwrap(), ());
    }

    #[test]
    fn a_value_is_dropped_once() {
        let count = std::rc::Rc::new(());
        let (value, empty) = vacate(try_box(count.clone()).unwrap());
        drop(empty);
        assert_eq!(std::rc::Rc::strong_count(&count), 2);
        drop(value);
        assert_eq!(std::rc::Rc::strong_count(&count), 1);
    }

    #[test]
    fn a_length_above_the_address_space_is_refused() {
        let mut vector = std::vec![0_u8; 3];
        assert_eq!(try_resize(&mut vector, usize::MAX, 0), Err(AllocError));
        assert_eq!(try_with_capacity::<u64>(usize::MAX), Err(AllocError));
        assert_eq!(vector, [0; 3]);
    }
}
