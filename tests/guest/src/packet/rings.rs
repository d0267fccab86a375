//! Rings of packet sockets.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::expect_eq;
use crate::harness::{OrFail, Outcome};
use crate::packet::{IPV4, SOL_PACKET, datagrams, get, listener, receive, set, socket};

crate::tests! {
    a_ring_takes_packets
    rings_that_are_refused
}

const RING: i32 = 5;
const VERSION: i32 = 10;

/// The memory of a ring.
struct Mapped(*mut libc::c_void, usize);

impl Mapped {
    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at + 4 <= self.1);
        // SAFETY: inside of the mapping, and aligned.
        unsafe { &*self.0.byte_add(at).cast() }
    }

    fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.1);
        // SAFETY: inside of the mapping; the kernel writes nothing to a frame that has not been given back.
        unsafe { std::slice::from_raw_parts(self.0.byte_add(at).cast::<u8>(), length) }.to_vec()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

fn map(socket: &OwnedFd, length: usize) -> Result<Mapped, Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, socket.as_raw_fd(), 0)
    };
    if at == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(Mapped(at, length)) }
}

fn a_ring_takes_packets() -> Outcome {
    const FRAME: usize = 1024;
    const STATUS_USER: u32 = 1;
    for version in [0, 1] {
        let made = listener(libc::SOCK_RAW, IPV4)?;
        set(&made, SOL_PACKET, VERSION, &version).or_fail()?;
        expect_eq!(get(&made, SOL_PACKET, 11, version), Ok(32));
        set(&made, SOL_PACKET, RING, &[4096, 2, FRAME as u32, 8]).or_fail()?;
        let ring = map(&made, 2 * 4096).or_fail()?;
        let ready = || {
            let mut polled = [PollFd::new(made.as_fd(), PollFlags::POLLIN)];
            poll(&mut polled, PollTimeout::ZERO).map(|count| count == 1)
        };
        let (sender, _receiver, _) = datagrams()?;
        expect_eq!(ready(), Ok(false));
        for number in 0..9_u8 {
            sender.send(&[number; 100]).or_fail()?;
        }
        expect_eq!(ready(), Ok(true));
        // One more than there is room for: it is counted.
        expect_eq!(get(&made, SOL_PACKET, 6, [0_u32; 2]), Ok([9, 1]));
        let (length_at, place_at) = if version == 0 { (8, 16) } else { (4, 12) };
        for number in 0..8_u8 {
            let frame = usize::from(number) * FRAME;
            expect_eq!(ring.word(frame).load(Ordering::Acquire) & STATUS_USER, STATUS_USER);
            let length = ring.word(frame + length_at).load(Ordering::Relaxed);
            expect_eq!((length, ring.word(frame + length_at + 4).load(Ordering::Relaxed)), (142, 142));
            let places = ring.word(frame + place_at).load(Ordering::Relaxed);
            let (link, network) = ((places & 0xffff) as usize, (places >> 16) as usize);
            expect_eq!((link, network), (80 - 14, 80));
            expect_eq!(ring.bytes(frame + network + 28, 100), vec![number; 100]);
            expect_eq!(ring.bytes(frame + 32, 4), [17, 0, 8, 0]);
            ring.word(frame).store(0, Ordering::Release);
        }
        expect_eq!(ready(), Ok(false));
        // The ring goes on from its beginning.
        sender.send(b"next").or_fail()?;
        expect_eq!(ring.word(0).load(Ordering::Acquire) & STATUS_USER, STATUS_USER);
        expect_eq!(receive(&made, 64, libc::MSG_DONTWAIT).err(), Some(Errno::EAGAIN));
    }
    Ok(())
}

fn rings_that_are_refused() -> Outcome {
    let made = socket(libc::SOCK_RAW, IPV4).or_fail()?;
    let ring = |request: [u32; 4]| set(&made, SOL_PACKET, RING, &request);
    expect_eq!(map(&made, 4096).err(), Some(Errno::EINVAL));
    expect_eq!(set(&made, SOL_PACKET, VERSION, &9), Err(Errno::EINVAL));
    expect_eq!(get(&made, SOL_PACKET, 11, 9), Err(Errno::EINVAL));
    expect_eq!(set(&made, SOL_PACKET, RING, &0_u32), Err(Errno::EINVAL));
    expect_eq!(ring([1000, 1, 1000, 1]), Err(Errno::EINVAL));
    expect_eq!(ring([4096, 1, 1000, 4]), Err(Errno::EINVAL));
    expect_eq!(ring([4096, 1, 32, 128]), Err(Errno::EINVAL));
    expect_eq!(ring([4096, 1, 1024, 3]), Err(Errno::EINVAL));
    expect_eq!(ring([0, 0, 0, 1]), Err(Errno::EINVAL));
    expect_eq!(ring([4096, 1, 1024, 4]), Ok(()));
    expect_eq!(ring([4096, 1, 1024, 4]), Err(Errno::EBUSY));
    expect_eq!(set(&made, SOL_PACKET, VERSION, &1), Err(Errno::EBUSY));
    expect_eq!(ring([0; 4]), Ok(()));
    expect_eq!(map(&made, 4096).err(), Some(Errno::EINVAL));
    Ok(())
}
