//! Listing the directories of `/proc`.

use heddle_kernel_core::decimal::Decimal;

use crate::error::Errno;
use crate::fs::FileType;
use crate::fs::inode::{Inode, Listed};
use crate::process;
use crate::procfs::{ProcNode, Subject, What, table};

/// Positions above this one are of numbers, those below of names in the table.
const NUMBERS: u64 = 1 << 32;

pub(super) fn list(
    node: &ProcNode,
    cookie: u64,
    visit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<(), Errno> {
    if node.kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    if node.is_process() && !node.subject.is_open() {
        return Err(Errno::EPERM);
    }
    // A directory of a process that is gone is one that was removed.
    if node.subject.pid.is_some() {
        node.subject.process().map_err(|_| Errno::ENOENT)?;
    }
    for (index, item) in node.items().iter().enumerate().skip(usize::try_from(cookie).unwrap_or(usize::MAX)) {
        let name = if node.shows(item) { item.name } else { &[] };
        let child = ProcNode { item, subject: node.subject.clone() };
        let inode = ProcNode::inode(item, &node.subject);
        if !visit(Listed { name, inode, kind: child.kind(), next: index as u64 + 1 }) {
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
                let rules = node.subject.rules.clone();
                let subject = Subject { pid: Some(process.pid), view, rules, ..Subject::NOTHING };
                if !subject.is_shown() {
                    let hidden = Listed {
                        name: &[],
                        inode: 0,
                        kind: FileType::Directory,
                        next: NUMBERS + next as u64,
                    };
                    if visit(hidden) {
                        continue;
                    }
                    break;
                }
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
        let digits = Decimal::new(u64::from(number.unsigned_abs()));
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
