//! Allocations that can fail, in the shape of the standard library's that cannot.
//!
//! Those of boxes, vectors and queues are `heddle_kernel_core`'s. `Arc` and `BTreeMap` have no form that reports
//! failure: the frames that they may need are this CPU's before they are called ([`heap::reserve`]).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use heddle_kernel_core::fallible;

use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::memory::heap;

/// Two reference counts.
const ARC_HEADER_BYTES: usize = 16;
/// The nodes that one insertion into a `BTreeMap` may split, and a new root: nodes hold at least five entries but the
/// root, and eight levels hold more entries than the machine has memory for.
const MAP_ALLOCATIONS: usize = 8;

/// Makes at most `count` allocations of at most a page each, for which there is memory.
///
/// # Errors
/// `ENOMEM`.
pub fn reserved<R>(count: usize, allocate: impl FnOnce() -> R) -> Result<R, Errno> {
    #[cfg(feature = "checking")]
    let before = crate::memory::fault_injection::promise(0);
    let reserved = heap::reserve(count).map(|()| allocate());
    // The unused rest of the promise is no promise to others.
    #[cfg(feature = "checking")]
    crate::memory::fault_injection::promise(before);
    reserved
}

/// `Arc::new`.
///
/// # Errors
/// `ENOMEM`; the value is dropped.
pub fn try_arc<T>(value: T) -> Result<Arc<T>, Errno> {
    try_arc_with(|| value)
}

/// `Arc::new` of a value that is only made if there is memory for it. Making it allocates nothing.
///
/// # Errors
/// `ENOMEM`.
#[expect(clippy::disallowed_methods, reason = "the memory is reserved")]
pub fn try_arc_with<T>(make: impl FnOnce() -> T) -> Result<Arc<T>, Errno> {
    const { assert!(size_of::<T>() + ARC_HEADER_BYTES <= PAGE_SIZE, "a frame holds it") };
    reserved(1, || Arc::new(make()))
}

/// `BTreeMap::insert`.
///
/// # Errors
/// `ENOMEM`; key and value are dropped.
#[expect(clippy::disallowed_methods, reason = "the memory is reserved")]
pub fn try_insert<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: V) -> Result<Option<V>, Errno> {
    const { assert!(11 * (size_of::<K>() + size_of::<V>()) + 14 * size_of::<usize>() <= PAGE_SIZE) };
    reserved(MAP_ALLOCATIONS, || map.insert(key, value))
}

/// `Box::new`.
///
/// # Errors
/// `ENOMEM`; the value is dropped.
pub fn try_box<T>(value: T) -> Result<Box<T>, Errno> {
    Ok(fallible::try_box(value)?)
}

/// `Vec::push`.
///
/// # Errors
/// `ENOMEM`; the value is dropped.
pub fn try_push<T>(vector: &mut Vec<T>, value: T) -> Result<(), Errno> {
    Ok(fallible::try_push(vector, value)?)
}

/// A vector with a copy of a slice.
///
/// # Errors
/// `ENOMEM`.
pub fn try_to_vec<T: Clone>(slice: &[T]) -> Result<Vec<T>, Errno> {
    Ok(fallible::try_to_vec(slice)?)
}

/// `Vec::with_capacity`.
///
/// # Errors
/// `ENOMEM`.
pub fn try_with_capacity<T>(capacity: usize) -> Result<Vec<T>, Errno> {
    Ok(fallible::try_with_capacity(capacity)?)
}

/// A vector of `length` copies of a value.
///
/// # Errors
/// `ENOMEM`.
pub fn try_filled<T: Clone>(value: T, length: usize) -> Result<Vec<T>, Errno> {
    let mut vector = Vec::new();
    fallible::try_resize(&mut vector, length, value)?;
    Ok(vector)
}

/// `str::to_owned`.
///
/// # Errors
/// `ENOMEM`.
#[expect(clippy::disallowed_methods, reason = "the memory is reserved")]
pub fn try_string(text: &str) -> Result<String, Errno> {
    let mut string = String::new();
    string.try_reserve_exact(text.len()).map_err(|_| Errno::ENOMEM)?;
    string.push_str(text);
    Ok(string)
}
