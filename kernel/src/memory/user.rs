//! User memory.
/// Fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// Where.
    pub address: usize,
    /// Whether it was a write.
    pub write: bool,
}
