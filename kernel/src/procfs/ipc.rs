//! Files of `/proc` about System V's IPC and POSIX message queues: the objects, and their limits.

use crate::error::Errno;
use crate::ipc::limits::IpcLimit;
use crate::ipc::{limits, message, semaphore, shared_memory};
use crate::procfs::{Subject, Text};

type Shown = Result<(), Errno>;

pub fn queues(_: &Subject, text: &mut Text) -> Shown {
    message::show(text).map_err(|_| Errno::ENOMEM)
}

pub fn semaphores(_: &Subject, text: &mut Text) -> Shown {
    semaphore::show(text).map_err(|_| Errno::ENOMEM)
}

pub fn segments(_: &Subject, text: &mut Text) -> Shown {
    shared_memory::show(text).map_err(|_| Errno::ENOMEM)
}

/// The numbers that a program writes, as many as there are limits.
fn set(limits: &[&IpcLimit], text: &[u8]) -> Shown {
    let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
    let mut words = text.split_ascii_whitespace();
    for limit in limits {
        let Some(word) = words.next() else { return Ok(()) };
        limit.set(word.parse().map_err(|_| Errno::EINVAL)?)?;
    }
    Ok(())
}

macro_rules! limit_files {
    ($($show:ident $set:ident $limit:ident;)*) => {
        $(
            pub fn $show(_: &Subject, text: &mut Text) -> Shown {
                text.line(format_args!("{}\n", limits::$limit.get()))
            }

            pub fn $set(_: &Subject, text: &[u8]) -> Shown {
                set(&[&limits::$limit], text)
            }
        )*
    };
}

limit_files! {
    show_msgmax set_msgmax MSGMAX;
    show_msgmnb set_msgmnb MSGMNB;
    show_msgmni set_msgmni MSGMNI;
    show_mq_messages set_mq_messages MQ_MSG_DEFAULT;
    show_mq_messages_max set_mq_messages_max MQ_MSG_MAX;
    show_mq_queues set_mq_queues MQ_QUEUES_MAX;
    show_mq_size set_mq_size MQ_MSGSIZE_DEFAULT;
    show_mq_size_max set_mq_size_max MQ_MSGSIZE_MAX;
    show_shmall set_shmall SHMALL;
    show_shmmax set_shmmax SHMMAX;
    show_shmmni set_shmmni SHMMNI;
}

/// The four limits of semaphores, in the order of proc(5).
const SEM: [&IpcLimit; 4] = [&limits::SEMMSL, &limits::SEMMNS, &limits::SEMOPM, &limits::SEMMNI];

pub fn show_sem(_: &Subject, text: &mut Text) -> Shown {
    let [most, all, row, sets] = SEM.map(IpcLimit::get);
    text.line(format_args!("{most}\t{all}\t{row}\t{sets}\n"))
}

pub fn set_sem(_: &Subject, text: &[u8]) -> Shown {
    set(&SEM, text)
}
