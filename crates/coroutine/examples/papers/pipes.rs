//! Experiment B: a chain of pipes.

use heddle_coroutine::io::Async;
use heddle_coroutine::{Builder, block_on, try_spawn_local};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::thread;

/// Both ends of `number + 1` pipes; the soft limit of open files is raised to the hard one first.
fn pipes(number: usize) -> (Vec<File>, Vec<File>) {
    raise_limit();
    (0..=number).map(|_| pipe()).unzip()
}

/// The end to read from and the end to write to.
fn pipe() -> (File, File) {
    let mut ends = [0; 2];
    #[allow(unsafe_code)]
    // SAFETY: the call writes two descriptors, which nobody else owns.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0, "no pipe; see `ulimit -Hn`");
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    }
}

fn raise_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    #[allow(unsafe_code)]
    // SAFETY: both calls only read and write the structure.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
}

fn make_nonblocking(reader: &File) {
    #[allow(unsafe_code)]
    // SAFETY: sets a flag of an open descriptor.
    unsafe {
        libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
    }
}

pub fn coroutines(number: usize, bytes: usize) {
    let (readers, writers) = pipes(number);
    readers.iter().for_each(make_nonblocking);
    let mut readers = readers.into_iter();
    let mut writers = writers.into_iter();
    let mut first = writers.next().expect("one pipe more than coroutines");
    block_on(async {
        let mut handles = Vec::with_capacity(number);
        for (at, mut to) in writers.enumerate() {
            let from = readers.next().expect("as many readers");
            let builder = Builder::new().priority(if at == 0 { 0 } else { 32 });
            let body = async move {
                let mut buffer = vec![0; bytes];
                fill(from, &mut buffer).await;
                to.write_all(&buffer).expect("room in the pipe");
            };
            handles.push(try_spawn_local(builder, body).expect("memory"));
        }
        first.write_all(&vec![7; bytes]).expect("room in the pipe");
        drop(first);
        let mut buffer = vec![0; bytes];
        fill(readers.next().expect("the last"), &mut buffer).await;
        assert!(buffer.iter().all(|byte| *byte == 7));
        for handle in handles {
            handle.await.expect("no coroutine panics");
        }
    });
}

/// Reads as much as `buffer` holds.
async fn fill(from: File, buffer: &mut [u8]) {
    Async::new(from).expect("a pollable pipe").read_exact(buffer).await.expect("a writer");
}

pub fn threads(number: usize, bytes: usize) {
    let (readers, writers) = pipes(number);
    let mut readers = readers.into_iter();
    let mut writers = writers.into_iter();
    let mut first = writers.next().expect("one pipe more than threads");
    let mut handles = Vec::with_capacity(number);
    for mut to in writers {
        let mut from = readers.next().expect("as many readers");
        let body = move || {
            let mut buffer = vec![0; bytes];
            from.read_exact(&mut buffer).expect("a writer");
            to.write_all(&buffer).expect("room in the pipe");
        };
        handles.push(thread::Builder::new().stack_size(64 << 10).spawn(body).expect("a thread"));
    }
    first.write_all(&vec![7; bytes]).expect("room in the pipe");
    drop(first);
    let mut buffer = vec![0; bytes];
    readers.next().expect("the last").read_exact(&mut buffer).expect("a writer");
    assert!(buffer.iter().all(|byte| *byte == 7));
    handles.into_iter().for_each(|handle| handle.join().expect("no thread panics"));
}
