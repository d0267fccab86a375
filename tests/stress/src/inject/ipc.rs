//! Calls on System V's shared memory, semaphores and message queues, and on POSIX message queues.

use super::{Shot, close, must, path, sys};

super::cases! {
    shared_memory attach semaphores semaphore_operation message_queue send_message receive_message open_queue
    send_to_queue receive_from_queue
}

type Outcome = Result<(), String>;

const BYTES: usize = 20_000;
const MODE: i32 = libc::IPC_CREAT | 0o600;

/// A message: its type, and text.
const MESSAGE: [u64; 40] = [1; 40];
const TEXT_BYTES: usize = 8 * 39;

fn remove(result: i64) -> Outcome {
    must("removing", result).map(|_| ())
}

fn shared_memory(shot: &mut Shot) -> Outcome {
    let segment = shot.fire(|| sys!(SYS_shmget, libc::IPC_PRIVATE, BYTES, MODE))?;
    let mut status = [0u64; 16];
    let pointer = status.as_mut_ptr();
    shot.fire(|| sys!(SYS_shmctl, segment, libc::IPC_STAT, pointer))?;
    remove(sys!(SYS_shmctl, segment, libc::IPC_RMID, 0))
}

fn attach(shot: &mut Shot) -> Outcome {
    let segment = must("shmget", sys!(SYS_shmget, libc::IPC_PRIVATE, BYTES, MODE))?;
    let start = shot.fire(|| sys!(SYS_shmat, segment, 0, 0))?;
    shot.fire(|| sys!(SYS_shmdt, start))?;
    remove(sys!(SYS_shmctl, segment, libc::IPC_RMID, 0))
}

fn semaphores(shot: &mut Shot) -> Outcome {
    let set = shot.fire(|| sys!(SYS_semget, libc::IPC_PRIVATE, 10, MODE))?;
    let values = [1u16; 10];
    shot.fire(|| sys!(SYS_semctl, set, 0, libc::SETALL, values.as_ptr()))?;
    remove(sys!(SYS_semctl, set, 0, libc::IPC_RMID, 0))
}

fn semaphore_operation(shot: &mut Shot) -> Outcome {
    let set = must("semget", sys!(SYS_semget, libc::IPC_PRIVATE, 10, MODE))?;
    let up = libc::sembuf { sem_num: 1, sem_op: 2, sem_flg: libc::SEM_UNDO as i16 };
    let down = libc::sembuf { sem_op: -2, ..up };
    shot.fire(|| sys!(SYS_semop, set, &raw const up, 1))?;
    shot.fire(|| sys!(SYS_semop, set, &raw const down, 1))?;
    remove(sys!(SYS_semctl, set, 0, libc::IPC_RMID, 0))
}

fn message_queue(shot: &mut Shot) -> Outcome {
    let queue = shot.fire(|| sys!(SYS_msgget, libc::IPC_PRIVATE, MODE))?;
    remove(sys!(SYS_msgctl, queue, libc::IPC_RMID, 0))
}

fn send_message(shot: &mut Shot) -> Outcome {
    let queue = must("msgget", sys!(SYS_msgget, libc::IPC_PRIVATE, MODE))?;
    let message = MESSAGE;
    shot.fire(|| sys!(SYS_msgsnd, queue, message.as_ptr(), TEXT_BYTES, 0))?;
    remove(sys!(SYS_msgctl, queue, libc::IPC_RMID, 0))
}

fn receive_message(shot: &mut Shot) -> Outcome {
    let queue = must("msgget", sys!(SYS_msgget, libc::IPC_PRIVATE, MODE))?;
    let mut message = MESSAGE;
    // Two, because a message whose copy failed is gone, as in Linux.
    for _ in 0..2 {
        must("msgsnd", sys!(SYS_msgsnd, queue, message.as_ptr(), TEXT_BYTES, 0))?;
    }
    let pointer = message.as_mut_ptr();
    shot.fire(|| sys!(SYS_msgrcv, queue, pointer, TEXT_BYTES, 0, 0))?;
    remove(sys!(SYS_msgctl, queue, libc::IPC_RMID, 0))
}

const QUEUE: &str = "heddle-inject";

fn opened_queue() -> i64 {
    // Eight messages of at most 512 bytes.
    let limits = [0i64, 8, 512, 0, 0, 0, 0, 0];
    sys!(SYS_mq_open, path(QUEUE).as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o600, limits.as_ptr())
}

fn unlink_queue() -> Outcome {
    remove(sys!(SYS_mq_unlink, path(QUEUE).as_ptr()))
}

fn open_queue(shot: &mut Shot) -> Outcome {
    close(shot.fire(opened_queue)?)?;
    unlink_queue()
}

fn send_to_queue(shot: &mut Shot) -> Outcome {
    let queue = must("mq_open", opened_queue())?;
    shot.fire(|| sys!(SYS_mq_timedsend, queue, MESSAGE.as_ptr(), TEXT_BYTES, 3, 0))?;
    shot.fire(|| sys!(SYS_mq_notify, queue, 0))?;
    close(queue)?;
    unlink_queue()
}

fn receive_from_queue(shot: &mut Shot) -> Outcome {
    let queue = must("mq_open", opened_queue())?;
    // Two, as above.
    for _ in 0..2 {
        must("mq_timedsend", sys!(SYS_mq_timedsend, queue, MESSAGE.as_ptr(), TEXT_BYTES, 3, 0))?;
    }
    let (mut text, mut priority) = ([0u8; 512], 0u32);
    let (text, priority) = (text.as_mut_ptr(), &raw mut priority);
    shot.fire(|| sys!(SYS_mq_timedreceive, queue, text, 512, priority, 0))?;
    close(queue)?;
    unlink_queue()
}

/// Removes all objects of System V and the message queue.
pub fn remove_all() {
    /// By index instead of identifier.
    const SHM_STAT: i32 = 13;
    /// No more objects of a kind have been made.
    const INDEX_END: i32 = 4096;
    let mut room = [0u64; 32];
    for index in 0..INDEX_END {
        let segment = sys!(SYS_shmctl, index, SHM_STAT, room.as_mut_ptr());
        if segment >= 0 {
            let _ = sys!(SYS_shmctl, segment, libc::IPC_RMID, 0);
        }
        let set = sys!(SYS_semctl, index, 0, libc::SEM_STAT, room.as_mut_ptr());
        if set >= 0 {
            let _ = sys!(SYS_semctl, set, 0, libc::IPC_RMID, 0);
        }
        let queue = sys!(SYS_msgctl, index, libc::MSG_STAT, room.as_mut_ptr());
        if queue >= 0 {
            let _ = sys!(SYS_msgctl, queue, libc::IPC_RMID, 0);
        }
    }
    let _ = sys!(SYS_mq_unlink, path(QUEUE).as_ptr());
}
