//! Allocations that can fail, in the shape of the standard library's that cannot.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::error::Errno;
use crate::memory::heap;

/// Two reference counts.
const ARC_HEADER_BYTES: usize = 16;

/// Allocates at most `bytes`, which are there.
fn reserved<R>(bytes: usize, allocate: impl FnOnce() -> R) -> Result<R, Errno> {
    #[cfg(feature = "checking")]
    let before = crate::memory::fault_injection::promise(0);
    let reserved = heap::reserve(bytes).map(|()| allocate());
    // The unused rest of the promise is no promise to others.
    #[cfg(feature = "checking")]
    crate::memory::fault_injection::promise(before);
    reserved
}

/// `Box::new`.
///
/// # Errors
/// `ENOMEM`; the value is dropped.
pub fn try_box<T>(value: T) -> Result<Box<T>, Errno> {
    reserved(size_of::<T>(), || Box::new(value))
}

/// `Arc::new`.
///
/// # Errors
/// `ENOMEM`; the value is dropped.
pub fn try_arc<T>(value: T) -> Result<Arc<T>, Errno> {
    try_arc_with(|| value)
}

/// `Arc::new` of a value that is only made if there is memory for it.
///
/// # Errors
/// `ENOMEM`.
pub fn try_arc_with<T>(make: impl FnOnce() -> T) -> Result<Arc<T>, Errno> {
    reserved(size_of::<T>() + ARC_HEADER_BYTES, || Arc::new(make()))
}

/// `Vec::push`.
///
/// # Errors
/// `ENOMEM`; the value is dropped.
pub fn try_push<T>(vector: &mut Vec<T>, value: T) -> Result<(), Errno> {
    vector.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    vector.push(value);
    Ok(())
}

/// `BTreeMap::insert`.
///
/// # Errors
/// `ENOMEM`; key and value are dropped.
pub fn try_insert<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: V) -> Result<Option<V>, Errno> {
    // An insertion may split a node on every level; nodes hold eleven entries and twelve links, and four levels hold
    // more entries than the machine has memory for.
    let bytes = 4 * (11 * (size_of::<K>() + size_of::<V>()) + 13 * size_of::<usize>());
    reserved(bytes, || map.insert(key, value))
}

/// A vector with a copy of a slice.
///
/// # Errors
/// `ENOMEM`.
pub fn try_to_vec<T: Clone>(slice: &[T]) -> Result<Vec<T>, Errno> {
    let mut vector = try_with_capacity(slice.len())?;
    vector.extend_from_slice(slice);
    Ok(vector)
}

/// `Vec::with_capacity`.
///
/// # Errors
/// `ENOMEM`.
pub fn try_with_capacity<T>(capacity: usize) -> Result<Vec<T>, Errno> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(capacity).map_err(|_| Errno::ENOMEM)?;
    Ok(vector)
}

/// A vector of `length` copies of a value.
///
/// # Errors
/// `ENOMEM`.
pub fn try_filled<T: Clone>(value: T, length: usize) -> Result<Vec<T>, Errno> {
    let mut vector = try_with_capacity(length)?;
    vector.resize(length, value);
    Ok(vector)
}

/// `str::to_owned`.
///
/// # Errors
/// `ENOMEM`.
pub fn try_string(text: &str) -> Result<String, Errno> {
    let mut string = String::new();
    string.try_reserve_exact(text.len()).map_err(|_| Errno::ENOMEM)?;
    string.push_str(text);
    Ok(string)
}
