//! Allocations that may fail.
use crate::error::Errno;
use alloc::{boxed::Box, sync::Arc};
/// Box.
pub fn try_box<T>(value: T) -> Result<Box<T>, Errno> {
    Ok(Box::new(value))
}
/// Arc.
pub fn try_arc<T>(value: T) -> Result<Arc<T>, Errno> {
    Ok(Arc::new(value))
}
