//! The options of prctl(2) that only Heddle has.

/// Sets the isolation of the calling program, its children and what they execute: second argument 0 (as the machine), 1
/// (none), 2 (user), 3 (private), 5 (keys: a program that runs already is apart as with 3, and what it executes gets a
/// key). Less than it has needs `CAP_SYS_ADMIN`.
/// `EOPNOTSUPP`: the machine's isolation is `direct`, in which nothing is protected.
pub const PR_SET_ISOLATION: u32 = 0x4844_4c01;
/// Returns what [`PR_SET_ISOLATION`] has set.
pub const PR_GET_ISOLATION: u32 = 0x4844_4c02;
