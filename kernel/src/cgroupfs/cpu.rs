//! The files of the controller of processor time.

use core::sync::atomic::Ordering;
use heddle_kernel_core::cgroup::cpu::{nice_of_weight, parse_weight, weight_of_nice};

use crate::cgroupfs::file::{Showing, WriteProgress, Writing};
use crate::error::Errno;
use crate::process::control_group::bandwidth;

type Shown = Result<Option<u64>, Errno>;
type Stored = Result<WriteProgress, Errno>;

pub(super) fn show_weight(showing: &mut Showing<'_>) -> Shown {
    let weight = showing.group.cpu.weight.load(Ordering::Relaxed);
    showing.text.line(format_args!("{weight}\n"))?;
    Ok(None)
}

pub(super) fn store_weight(writing: Writing<'_>) -> Stored {
    let weight = parse_weight(writing.text).ok_or(Errno::EINVAL)?.map_err(|_| Errno::ERANGE)?;
    writing.group.cpu.weight.store(weight, Ordering::Relaxed);
    Ok(WriteProgress::Done)
}

pub(super) fn show_nice(showing: &mut Showing<'_>) -> Shown {
    let nice = nice_of_weight(showing.group.cpu.weight.load(Ordering::Relaxed));
    showing.text.line(format_args!("{nice}\n"))?;
    Ok(None)
}

pub(super) fn store_nice(writing: Writing<'_>) -> Stored {
    let nice: i64 = writing.text.parse().map_err(|_| Errno::EINVAL)?;
    let weight = weight_of_nice(nice).ok_or(Errno::ERANGE)?;
    writing.group.cpu.weight.store(weight, Ordering::Relaxed);
    Ok(WriteProgress::Done)
}

pub(super) fn show_max(showing: &mut Showing<'_>) -> Shown {
    showing.text.line(format_args!("{}\n", showing.group.bandwidth.limit()))?;
    Ok(None)
}

pub(super) fn store_max(writing: Writing<'_>) -> Stored {
    let limit = writing.group.bandwidth.limit().changed(writing.text).ok_or(Errno::EINVAL)?;
    bandwidth::set(writing.group, limit)?;
    Ok(WriteProgress::Done)
}

/// The lines of `cpu.stat` about the limit. No time is kept for bursts.
pub(super) fn show_throttling(showing: &mut Showing<'_>) -> Result<(), Errno> {
    let [periods, throttled, us] = showing.group.bandwidth.counts();
    showing
        .text
        .line(format_args!("nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {us}\n"))?;
    showing.text.bytes(b"nr_bursts 0\nburst_usec 0\n")
}
