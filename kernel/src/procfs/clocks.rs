//! `/proc/PID/timens_offsets`: the offsets of a time namespace, time_namespaces(7).

use heddle_kernel_core::time_offsets::{self, OffsetError};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::process::{Credentials, time_namespace};
use crate::procfs::{Subject, Text};
use crate::time::Clock;

/// The offsets of the namespace that the process's children are in.
pub fn offsets(subject: &Subject, text: &mut Text) -> Result<(), Errno> {
    let known = time_namespace::offsets(&subject.thread()?.namespaces().times_of_children);
    for (name, offset_ns) in [("monotonic", known.monotonic_ns), ("boottime", known.boottime_ns)] {
        let (seconds, nanoseconds) = time_offsets::parts(offset_ns);
        text.line(format_args!("{name:<10} {seconds:>10} {nanoseconds:>9}\n"))?;
    }
    Ok(())
}

/// Sets them, before a process is in the namespace.
pub fn set_offsets(subject: &Subject, opener: &Credentials, bytes: &[u8]) -> Result<(), Errno> {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    let namespaces = subject.thread()?.namespaces();
    let times = &namespaces.times_of_children;
    if !opener.is_capable_in(&time_namespace::owner(times), linux::CAP_SYS_TIME) {
        return Err(Errno::EPERM);
    }
    let now_ns = Clock::Monotonic.now_ns();
    let changed = |known: time_offsets::TimeOffsets| {
        known.changed(text, now_ns).map_err(|error| match error {
            OffsetError::Invalid => Errno::EINVAL,
            OffsetError::OutOfRange => Errno::ERANGE,
        })
    };
    match times {
        // Programs are in the first one.
        None => changed(time_offsets::TimeOffsets::default()).and(Err(Errno::EACCES)),
        Some(times) => times.change(changed),
    }
}
