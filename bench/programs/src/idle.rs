//! The memory of idle processes: `idle n=PROCESSES with=fork|exec`.
//!
//! Makes them, lets each say that it is ready and then wait for the end of a pipe, and compares what memory the kernel
//! says is free, before and with all of them. Prints the bytes a process, what of them are its own pages and page
//! tables, and what it costs beyond its pages.
#![allow(unsafe_code, reason = "fork has no safe form")]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use nix::fcntl::OFlag;
use nix::unistd::{ForkResult, Pid, fork, pipe2};

use crate::arguments::Arguments;
use crate::measure::report_bytes;

/// Makes the processes, looks, and ends them.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let count = arguments.number("n", 1000)?;
    let with = arguments.text("with", "exec");
    if arguments.text("role", "") == "child" {
        return wait_for_end().map_err(|error| error.to_string());
    }
    let text = |error: nix::errno::Errno| error.to_string();
    // Each waits until the writing end is closed everywhere, and the ends that they inherit are their own to close.
    let (end_reader, end_writer) = pipe2(OFlag::O_CLOEXEC).map_err(text)?;
    let (ready_reader, ready_writer) = pipe2(OFlag::O_CLOEXEC).map_err(text)?;
    let mut group = Group { exec: Vec::new(), forked: Vec::new() };
    // The first brings what all share: it is not counted.
    group.add(with, &end_reader, &end_writer, &ready_writer).map_err(|error| error.to_string())?;
    await_ready(&ready_reader, 1)?;
    let before = free_bytes()?;
    for _ in 0..count {
        group.add(with, &end_reader, &end_writer, &ready_writer).map_err(|error| error.to_string())?;
    }
    await_ready(&ready_reader, count)?;
    let after = free_bytes()?;
    let counts = std::fs::read_to_string("/proc/heddle/pages").ok();
    let own: Vec<Own> =
        group.pids().skip(1).map(|pid| own(pid, counts.as_deref())).collect::<Result<_, _>>()?;
    drop(end_writer);
    group.wait()?;
    let each = |bytes: u64| bytes / count.max(1);
    let total = before.saturating_sub(after);
    let pages = own.iter().map(|own| own.pages).sum();
    report_bytes(&format!("idle-{with}-process"), each(total));
    report_bytes(&format!("idle-{with}-own-pages"), each(pages));
    report_bytes(&format!("idle-{with}-page-tables"), each(own.iter().map(|own| own.tables).sum()));
    report_bytes(&format!("idle-{with}-beyond-pages"), each(total.saturating_sub(pages)));
    Ok(())
}

struct Group {
    exec: Vec<Child>,
    forked: Vec<Pid>,
}

impl Group {
    fn add(
        &mut self,
        with: &str,
        end_reader: &OwnedFd,
        end_writer: &OwnedFd,
        ready_writer: &OwnedFd,
    ) -> Result<(), std::io::Error> {
        match with {
            "exec" => {
                let mut command = Command::new("/proc/self/exe");
                command.args(["idle", "role=child"]).stdin(end_reader.try_clone()?);
                self.exec.push(command.stdout(ready_writer.try_clone()?).stderr(Stdio::null()).spawn()?);
            }
            "fork" => {
                // SAFETY: there is one thread.
                match unsafe { fork() }? {
                    ForkResult::Child => {
                        let _ = nix::unistd::close(std::os::fd::AsRawFd::as_raw_fd(end_writer));
                        let _ = nix::unistd::write(ready_writer, b"r");
                        let _ = nix::unistd::read(end_reader, &mut [0]);
                        // SAFETY: `_exit` has no preconditions.
                        unsafe { libc::_exit(0) }
                    }
                    ForkResult::Parent { child } => self.forked.push(child),
                }
            }
            _ => return Err(std::io::Error::other(format!("unknown way '{with}'"))),
        }
        Ok(())
    }

    fn pids(&self) -> impl Iterator<Item = u32> {
        let forked = self.forked.iter().map(|pid| pid.as_raw().unsigned_abs());
        self.exec.iter().map(Child::id).chain(forked)
    }

    fn wait(self) -> Result<(), String> {
        for mut child in self.exec {
            child.wait().map_err(|error| error.to_string())?;
        }
        for child in self.forked {
            nix::sys::wait::waitpid(child, None).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

fn wait_for_end() -> Result<(), std::io::Error> {
    let mut output = std::io::stdout();
    output.write_all(b"r")?;
    output.flush()?;
    std::io::stdin().read(&mut [0]).map(drop)
}

fn await_ready(reader: &OwnedFd, count: u64) -> Result<(), String> {
    let mut left = count as usize;
    while left > 0 {
        match nix::unistd::read(reader, &mut [0; 64][..left.min(64)]) {
            Ok(0) => return Err("a process ended early".to_owned()),
            Ok(read) => left -= read,
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

/// Memory that only one process uses, in bytes.
struct Own {
    pages: u64,
    tables: u64,
}

/// By Heddle's counts of all processes, or by what Linux shows of each mapping.
fn own(pid: u32, counts: Option<&str>) -> Result<Own, String> {
    const PAGE_BYTES: u64 = 4096;
    if let Some(text) = counts {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{pid} "))?.split_once(' '));
        let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
        let (pages, tables) = line.ok_or("a process without a line")?;
        return Ok(Own { pages: number(pages)? * PAGE_BYTES, tables: number(tables)? * PAGE_BYTES });
    }
    let sum = |file: &str, name: &str| {
        let text =
            std::fs::read_to_string(format!("/proc/{pid}/{file}")).map_err(|error| error.to_string())?;
        let kilobytes = text.lines().filter_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
        Ok::<u64, String>(
            kilobytes.filter_map(|number| number.trim().parse::<u64>().ok()).sum::<u64>() * 1024,
        )
    };
    Ok(Own { pages: sum("smaps", "Private_Dirty:")?, tables: sum("status", "VmPTE:")? })
}

/// Memory that nobody uses, by the kernel's count.
fn free_bytes() -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|error| error.to_string())?;
    let free = text.lines().find_map(|line| line.strip_prefix("MemFree:")?.trim().strip_suffix(" kB"));
    free.and_then(|free| free.trim().parse::<u64>().ok())
        .map(|free| free * 1024)
        .ok_or_else(|| "no MemFree".into())
}
