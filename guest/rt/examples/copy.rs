//! Copies files into a directory, all at once and in pieces, by coroutines of a background level; a more urgent one
//! tells every second how far they are.
//!
//! `cargo run --release --example copy -- FILE... DIRECTORY`

use heddle_rt::{AbortOnDrop, SpawnBuilder, try_spawn};
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PIECE: usize = 256 << 10;

#[heddle_rt::main]
async fn main() -> io::Result<()> {
    let mut names: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Some(directory) = names.pop().filter(|_| !names.is_empty()) else {
        eprintln!("copy FILE... DIRECTORY");
        std::process::exit(2);
    };
    let copied = Arc::new(AtomicU64::new(0));
    let progress = copied.clone();
    let telling = try_spawn(SpawnBuilder::new().priority(8).name("progress"), async move {
        loop {
            let _ = heddle_rt::nanosleep(Duration::from_secs(1).into()).await;
            eprintln!("{} bytes", progress.load(Ordering::Relaxed));
        }
    });
    let _telling = AbortOnDrop::new(telling.map_err(io::Error::other)?);
    let mut copies = Vec::new();
    for name in names {
        let from = PathBuf::from(name);
        let to = Path::new(&directory).join(from.file_name().unwrap_or_default());
        let copied = copied.clone();
        let copy = async move {
            let result = copy(&from, &to, &copied).await;
            (from, result)
        };
        copies
            .push(try_spawn(SpawnBuilder::new().priority(40).name("copy"), copy).map_err(io::Error::other)?);
    }
    for copy in copies {
        let (from, result) = copy.await.map_err(|_| io::Error::other("a copy has panicked"))?;
        result.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", from.display())))?;
    }
    println!("{} bytes", copied.load(Ordering::Relaxed));
    Ok(())
}

async fn copy(from: &Path, to: &Path, copied: &AtomicU64) -> io::Result<()> {
    let source = heddle_rt::open(path(from)?, libc::O_RDONLY, 0).await?;
    let target = heddle_rt::open(path(to)?, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC, 0o666).await?;
    let (mut buffer, mut position) = (vec![0; PIECE], 0);
    loop {
        let (length, filled) = heddle_rt::read_at(source.as_fd(), buffer, position).await;
        let length = length?;
        if length == 0 {
            return heddle_rt::close(target.into()).await;
        }
        buffer = filled;
        buffer.truncate(length);
        let (written, whole) = heddle_rt::write_at(target.as_fd(), buffer, position).await;
        let written = written?;
        position += written as u64;
        copied.fetch_add(written as u64, Ordering::Relaxed);
        buffer = whole;
        buffer.resize(PIECE, 0);
    }
}

fn path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}
