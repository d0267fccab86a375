//! Tests of this crate.

use super::*;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

/// A page whose bytes can be written through any of its references, as a frame's can.
type TestPage = Rc<RefCell<Vec<u8>>>;
type Queue = PageQueue<TestPage>;

fn page() -> TestPage {
    Rc::new(RefCell::new(vec![0; PAGE_BYTES]))
}

fn bytes(page: &TestPage, range: Range<usize>) -> Vec<u8> {
    page.borrow()[range].to_vec()
}

/// Writes in place, as a small write does.
fn write(queue: &mut Queue, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() && queue.room() > 0 {
        let Some((last, free)) = queue.tail() else {
            queue.add(page()).unwrap();
            continue;
        };
        let count = free.len().min(bytes.len() - written);
        last.borrow_mut()[free.start..free.start + count].copy_from_slice(&bytes[written..written + count]);
        queue.commit(count);
        written += count;
    }
    written
}

/// Pages that a writer fills beside the queue.
fn parcel(bytes: &[u8]) -> Vec<(TestPage, usize)> {
    let fill = |part: &[u8]| {
        let page = page();
        page.borrow_mut()[..part.len()].copy_from_slice(part);
        (page, part.len())
    };
    bytes.chunks(PAGE_BYTES).map(fill).collect()
}

fn read(queue: &mut Queue, count: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while out.len() < count {
        let Some((first, range)) = queue.head() else { break };
        let length = range.len().min(count - out.len());
        out.extend(bytes(first, range.start..range.start + length));
        queue.consume(length);
    }
    out
}

fn contents(queue: &Queue) -> Vec<u8> {
    queue.parts().flat_map(|(page, range)| bytes(page, range)).collect()
}

/// Numbers that look random.
struct Numbers(u32);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as usize % below
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let seed = self.0;
        (0..self.next(most)).map(|index| (index as u32 ^ seed >> 3) as u8).collect()
    }
}

/// Copies under way beside a queue: of at most one reader, and of writers.
#[derive(Default)]
struct Beside {
    parcels: Vec<Vec<(TestPage, usize)>>,
    borrowed: Option<Vec<u8>>,
}

/// A queue beside a plain vector, with everything that can be done to it in any order.
fn act(numbers: &mut Numbers, queue: &mut Queue, model: &mut Vec<u8>, beside: &mut Beside) {
    match numbers.next(8) {
        0 | 1 => {
            let bytes = numbers.bytes(9000);
            let written = write(queue, &bytes);
            model.extend(&bytes[..written]);
        }
        2 => {
            let mut bytes = numbers.bytes(20_000);
            bytes.truncate(queue.room());
            queue.reserve(bytes.len());
            beside.parcels.push(parcel(&bytes));
        }
        3 if !beside.parcels.is_empty() => {
            let chosen = numbers.next(beside.parcels.len());
            let parcel = beside.parcels.swap_remove(chosen);
            queue.unreserve(parcel.iter().map(|(_, count)| count).sum());
            // A fault may have left the last pages out.
            let kept = if numbers.next(4) == 0 { numbers.next(parcel.len() + 1) } else { parcel.len() };
            queue.reserve_places(kept).unwrap();
            for (page, count) in parcel.into_iter().take(kept) {
                model.extend(bytes(&page, 0..count));
                queue.append(page, count);
            }
        }
        4 if beside.borrowed.is_none() => {
            let count = numbers.next(9000);
            let expected: Vec<u8> = model.drain(..count.min(model.len())).collect();
            assert_eq!(read(queue, count), expected);
        }
        5 if beside.borrowed.is_none() && !queue.is_empty() => {
            let (mut out, most) = (Vec::new(), 1 + numbers.next(30_000));
            queue.borrow(|page, range| {
                out.extend(bytes(page, range));
                out.len() < most
            });
            out.truncate(most);
            beside.borrowed = Some(out);
        }
        6 => {
            if let Some(borrowed) = beside.borrowed.take() {
                assert_eq!(borrowed, model[..borrowed.len()]);
                let count = numbers.next(borrowed.len() + 1);
                queue.take_borrowed(count);
                model.drain(..count);
            }
        }
        _ => {
            queue.set_capacity([8192, 65_536, 100_000][numbers.next(3)]);
        }
    }
}

#[test]
fn behaves_like_a_vector_whatever_is_under_way() {
    for seed in 0..if cfg!(miri) { 2 } else { 40 } {
        let mut numbers = Numbers(seed);
        let (mut queue, mut model, mut beside) = (Queue::new(65_536), Vec::new(), Beside::default());
        for _ in 0..if cfg!(miri) { 100 } else { 2000 } {
            act(&mut numbers, &mut queue, &mut model, &mut beside);
            assert_eq!(queue.len(), model.len());
            let reserved: usize = beside.parcels.iter().flatten().map(|(_, count)| count).sum();
            assert!(queue.room() == 0 || queue.room() + queue.len() + reserved == queue.capacity());
        }
        assert_eq!(contents(&queue), model);
    }
}

#[test]
fn shared_bytes_stay_as_they_are() {
    for seed in 100..if cfg!(miri) { 102 } else { 110 } {
        let mut numbers = Numbers(seed);
        let mut queues = [Queue::new(65_536), Queue::new(20_000)];
        let mut models = [Vec::new(), Vec::new()];
        let mut beside = [Beside::default(), Beside::default()];
        for _ in 0..if cfg!(miri) { 100 } else { 1000 } {
            let one = numbers.next(2);
            act(&mut numbers, &mut queues[one], &mut models[one], &mut beside[one]);
            if numbers.next(4) == 0 {
                let [first, second] = &mut queues;
                let (source, target) = if one == 0 { (first, second) } else { (second, first) };
                let count = source.share_into(target, numbers.next(30_000)).unwrap();
                let shared = models[one][..count].to_vec();
                models[1 - one].extend(shared);
            }
            for (queue, model) in queues.iter().zip(&models) {
                assert_eq!(&contents(queue), model);
            }
        }
    }
}

#[test]
fn an_empty_queue_keeps_one_page() {
    let mut queue = Queue::new(65_536);
    assert_eq!(queue.pages(), 0);
    assert_eq!(write(&mut queue, &[1; 60_000]), 60_000);
    assert_eq!(queue.pages(), 15);
    assert_eq!(read(&mut queue, 60_000).len(), 60_000);
    assert_eq!(queue.pages(), 1);
    // A shared one is not its own to keep.
    let mut other = Queue::new(65_536);
    write(&mut queue, &[1; 100]);
    assert_eq!(queue.share_into(&mut other, 50), Ok(50));
    assert_eq!(read(&mut queue, 100).len(), 100);
    assert_eq!(queue.pages(), 0);
}

#[test]
fn the_capacity_never_goes_below_the_contents() {
    let mut queue = Queue::new(65_536);
    write(&mut queue, &[7; 5000]);
    assert!(!queue.set_capacity(4096));
    assert!(queue.set_capacity(8192));
    queue.reserve(3000);
    assert!(!queue.set_capacity(4096 * 2 - 200));
    assert_eq!(write(&mut queue, &[7; 5000]), 192);
    assert!(read(&mut queue, 9000).iter().all(|&byte| byte == 7));
}

#[test]
fn what_is_taken_out_leaves_the_promises() {
    let mut queue = Queue::new(65_536);
    write(&mut queue, &[7; 5000]);
    queue.reserve(3000);
    let taken = queue.take();
    assert_eq!((taken.len(), queue.len(), queue.room()), (5000, 0, 62_536));
}
