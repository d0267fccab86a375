//! Files of `/proc` about System V's IPC and POSIX message queues: the objects, and their limits.

use crate::error::Errno;
use crate::ipc::limits::{IpcLimit, IpcLimits};
use crate::ipc::namespace::IpcNamespace;
use crate::ipc::{message, semaphore, shared_memory};
use crate::process::Credentials;
use crate::process::namespaces::Namespaces;
use crate::procfs::Text;

type Shown = Result<(), Errno>;

pub fn queues(namespaces: &Namespaces, who: &Credentials, text: &mut Text) -> Shown {
    message::show(&*IpcNamespace::among(namespaces)?, &namespaces.pids, who, text).map_err(|_| Errno::ENOMEM)
}

pub fn semaphores(namespaces: &Namespaces, who: &Credentials, text: &mut Text) -> Shown {
    semaphore::show(&*IpcNamespace::among(namespaces)?, who, text).map_err(|_| Errno::ENOMEM)
}

pub fn segments(namespaces: &Namespaces, who: &Credentials, text: &mut Text) -> Shown {
    shared_memory::show(&*IpcNamespace::among(namespaces)?, &namespaces.pids, who, text)
        .map_err(|_| Errno::ENOMEM)
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
            pub fn $show(namespaces: &Namespaces, _: &Credentials, text: &mut Text) -> Shown {
                text.line(format_args!("{}\n", IpcNamespace::among(namespaces)?.limits.$limit.get()))
            }

            pub fn $set(namespaces: &Namespaces, text: &[u8]) -> Shown {
                set(&[&IpcNamespace::among(namespaces)?.limits.$limit], text)
            }
        )*
    };
}

limit_files! {
    show_msgmax set_msgmax msgmax;
    show_msgmnb set_msgmnb msgmnb;
    show_msgmni set_msgmni msgmni;
    show_mq_messages set_mq_messages mq_msg_default;
    show_mq_messages_max set_mq_messages_max mq_msg_max;
    show_mq_queues set_mq_queues mq_queues_max;
    show_mq_size set_mq_size mq_msgsize_default;
    show_mq_size_max set_mq_size_max mq_msgsize_max;
    show_shmall set_shmall shmall;
    show_shmmax set_shmmax shmmax;
    show_shmmni set_shmmni shmmni;
}

macro_rules! wanted_files {
    ($($show:ident $set:ident $objects:ident;)*) => {
        $(
            pub fn $show(namespaces: &Namespaces, _: &Credentials, text: &mut Text) -> Shown {
                let wanted = IpcNamespace::among(namespaces)?.$objects.lock().wanted();
                text.line(format_args!("{}\n", wanted.unwrap_or(-1)))
            }

            pub fn $set(namespaces: &Namespaces, text: &[u8]) -> Shown {
                let word = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?.trim_ascii();
                let id = word.parse().ok().filter(|&id: &i32| id >= 0).ok_or(Errno::EINVAL)?;
                IpcNamespace::among(namespaces)?.$objects.lock().want(id);
                Ok(())
            }
        )*
    };
}

wanted_files! {
    show_msg_next_id set_msg_next_id queues;
    show_sem_next_id set_sem_next_id sets;
    show_shm_next_id set_shm_next_id segments;
}

/// The four limits of semaphores, in the order of proc(5).
const fn of_semaphores(limits: &IpcLimits) -> [&IpcLimit; 4] {
    [&limits.semmsl, &limits.semmns, &limits.semopm, &limits.semmni]
}

pub fn show_sem(namespaces: &Namespaces, _: &Credentials, text: &mut Text) -> Shown {
    let ipc = IpcNamespace::among(namespaces)?;
    let [most, all, row, sets] = of_semaphores(&ipc.limits).map(IpcLimit::get);
    text.line(format_args!("{most}\t{all}\t{row}\t{sets}\n"))
}

pub fn set_sem(namespaces: &Namespaces, text: &[u8]) -> Shown {
    set(&of_semaphores(&IpcNamespace::among(namespaces)?.limits), text)
}
