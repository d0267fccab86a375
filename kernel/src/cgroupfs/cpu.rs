//! The files of the controller of processor time.

use core::sync::atomic::Ordering;
use heddle_kernel_core::cgroup::Controllers;
use heddle_kernel_core::cgroup::cpu::{nice_of_weight, parse_weight, weight_of_nice};

use crate::cgroupfs::file::{Showing, WriteProgress, Writing};
use crate::error::Errno;

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
    let limit = showing.group.cpu.limit();
    showing.text.line(format_args!("{limit}\n"))?;
    Ok(None)
}

pub(super) fn store_max(writing: Writing<'_>) -> Stored {
    let limit = writing.group.cpu.limit().changed(writing.text).ok_or(Errno::EINVAL)?;
    writing.group.cpu.set_limit(limit);
    Ok(WriteProgress::Done)
}

/// The lines of `cpu.stat` where the controller is.
pub(super) fn show_account(showing: &mut Showing<'_>) -> Result<(), Errno> {
    if showing.group.is_root() || !showing.group.controllers().contains(Controllers::CPU) {
        return Ok(());
    }
    let account = showing.group.cpu.account();
    let (periods, throttled) = (account.periods, account.throttled_periods);
    let throttled_us = account.throttled_ns / 1000;
    showing.text.line(format_args!(
        "nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {throttled_us}\nnr_bursts 0\nburst_usec 0\n"
    ))
}
