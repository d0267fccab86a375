//! Listing the directories of `/proc`.

use crate::error::Errno;
use crate::fs::FileType;
use crate::fs::inode::{Inode, Listed};
use crate::process;
use crate::procfs::{ProcNode, Subject, What, table};

/// Positions above this one are of numbers, those below of names in the table.
const NUMBERS: u64 = 1 << 32;

/// A number as text, without memory.
struct PidDigits([u8; 12], usize);

impl PidDigits {
    fn new(number: i32) -> Self {
        let mut digits = Self([0; 12], 12);
        let mut rest = number.unsigned_abs();
        loop {
            digits.1 -= 1;
            digits.0[digits.1] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                return digits;
            }
        }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.0[self.1..]
    }
}

pub(super) fn list(
    node: &ProcNode,
    cookie: u64,
    visit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<(), Errno> {
    if node.kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    for (index, item) in node.items().iter().enumerate().skip(usize::try_from(cookie).unwrap_or(usize::MAX)) {
        let child = ProcNode { item, subject: node.subject.clone() };
        let inode = ProcNode::inode(item, &node.subject);
        if !visit(Listed { name: item.name, inode, kind: child.kind(), next: index as u64 + 1 }) {
            return Ok(());
        }
    }
    let mut next = i32::try_from(cookie.saturating_sub(NUMBERS)).unwrap_or(i32::MAX);
    loop {
        let (number, item, subject) = match &node.item.what {
            What::Processes(_) => {
                let view = node.subject.view.clone();
                let found = match &view {
                    None => process::table::next_process(next).map(|process| (process.pid, process)),
                    Some(namespace) => namespace.next_process(next),
                };
                let Some((number, process)) = found else { break };
                next = number.saturating_add(1);
                let subject = Subject { pid: Some(process.pid), view, ..Subject::NOTHING };
                (number, &table::PROCESS, subject)
            }
            What::Threads => {
                let Some(thread) = node.subject.process()?.next_thread(next) else { break };
                let tid = thread.tid();
                next = tid.saturating_add(1);
                let shown = node.subject.shown(tid);
                (shown, &table::THREAD, Subject { tid: Some(tid), ..node.subject.clone() })
            }
            What::Descriptors(item) => {
                let table = match node.subject.thread() {
                    Ok(thread) => thread.descriptors(),
                    // A process without threads, such as the first one, has none open.
                    Err(_) if node.subject.process().is_ok() => break,
                    Err(error) => return Err(error),
                };
                let Some(index) = table.next_in_use(next as usize) else { break };
                let descriptor = i32::try_from(index).map_err(|_| Errno::EIO)?;
                next = descriptor.saturating_add(1);
                (descriptor, *item, Subject { descriptor: Some(descriptor), ..node.subject.clone() })
            }
            _ => break,
        };
        let digits = PidDigits::new(number);
        let listed = Listed {
            name: digits.as_bytes(),
            inode: ProcNode::inode(item, &subject),
            kind: ProcNode { item, subject }.kind(),
            next: NUMBERS + next as u64,
        };
        if !visit(listed) {
            break;
        }
    }
    Ok(())
}
