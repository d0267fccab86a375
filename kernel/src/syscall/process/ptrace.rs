//! ptrace(2).

use alloc::sync::Arc;
use heddle_kernel_core::protection_key::KeyRights;
use heddle_kernel_core::signal::{Information, Signal, SignalSet};
use heddle_kernel_core::signal_state::{Resume, StopKind, TraceOptions, TraceStop};
use linux_raw_sys::ptrace as requests;

use crate::arch::float::{key_rights_place, with_key_rights};
use crate::arch::{UserContext, debug, float, protection_key};
use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::memory::space::RemoteAccess;
use crate::memory::{Space, fallible};
use crate::process::thread::Tracee;
use crate::process::{Thread, table, trace};
use crate::sched;
use crate::signal::{self, PendingWork};
use crate::syscall::{Call, SyscallResult, pending, user};

const WORD: usize = size_of::<u64>();

/// A request on a traced thread, with its arguments.
#[derive(Clone)]
struct TraceRequest {
    caller: Caller,
    tracee: Arc<Thread>,
    number: u32,
    address: usize,
    data: usize,
}

/// ptrace(2).
pub fn ptrace(call: &mut Call<'_>) -> SyscallResult {
    let (number, tid, address, data) = (call.uint(0), call.int(1), call.word(2), call.word(3));
    let thread = call.thread;
    if number == requests::PTRACE_TRACEME {
        trace::attach_to_parent(thread)?;
        return Ok(0.into());
    }
    let tracee = table::thread(thread.process.named(tid)).ok_or(Errno::ESRCH)?;
    match number {
        requests::PTRACE_ATTACH => {
            trace::attach(thread, &tracee, TraceOptions::empty(), false)?;
            return Ok(0.into());
        }
        requests::PTRACE_SEIZE => {
            if address != 0 {
                return Err(Errno::EIO.into());
            }
            // Linux's answer to bad options differs between the two requests that set them.
            let options = options(data).map_err(|_| Errno::EIO)?;
            trace::attach(thread, &tracee, options, true)?;
            return Ok(0.into());
        }
        _ => {}
    }
    let is_own = tracee.tracer().is_some_and(|tracer| Arc::ptr_eq(&tracer, thread));
    if !is_own {
        return Err(Errno::ESRCH.into());
    }
    let request = TraceRequest { caller: thread.clone(), tracee, number, address, data };
    match number {
        requests::PTRACE_KILL => {
            // Only a queued realtime signal can be refused.
            let _ = signal::send_to_thread(&request.tracee, Information::user(Signal::KILL, 0, 0));
            return Ok(0.into());
        }
        requests::PTRACE_INTERRUPT => {
            if !request.with(|tracee| Ok(tracee.trace.is_seized))? {
                return Err(Errno::EIO.into());
            }
            request.tracee.process.signal_state().interrupt(&request.tracee);
            return Ok(0.into());
        }
        _ => {}
    }
    if request.stop().is_none() {
        return Err(Errno::ESRCH.into());
    }
    let is_memory = matches!(
        number,
        requests::PTRACE_PEEKTEXT
            | requests::PTRACE_PEEKDATA
            | requests::PTRACE_POKETEXT
            | requests::PTRACE_POKEDATA
    );
    if !is_memory && request.tracee.cpu().is_none() {
        return Ok(request.carry_out()?.into());
    }
    pending(async move {
        // It has told of its stop, and is about to leave its CPU.
        while request.tracee.cpu().is_some() {
            sched::yield_now().await;
        }
        if is_memory {
            return request.transfer_word().await;
        }
        let caller = request.caller.clone();
        user::resolve_attempt(&caller.space(), || caller.is_dying(), |_| request.carry_out()).await
    })
}

fn options(data: usize) -> Result<TraceOptions, Errno> {
    u32::try_from(data).ok().and_then(TraceOptions::from_bits).ok_or(Errno::EINVAL)
}

fn signal(data: usize) -> Result<Option<Signal>, Errno> {
    if data > Signal::COUNT {
        return Err(Errno::EIO);
    }
    Ok(Signal::new(data as i32))
}

/// Copies between a buffer and the memory of a program, which need not be the caller's; returns how much was copied.
/// Memory that is short is waited for until `is_over`.
///
/// # Errors
/// The first byte could not be copied: `EFAULT`; `ENOMEM`.
pub async fn read_memory(
    space: &Space,
    address: usize,
    bytes: &mut [u8],
    access: RemoteAccess,
    is_over: impl Fn() -> bool,
) -> Result<usize, Errno> {
    let mut done = 0;
    while done < bytes.len() {
        let at = address.wrapping_add(done);
        let length = (bytes.len() - done).min(PAGE_BYTES - at % PAGE_BYTES);
        match space.read_remote(at, &mut bytes[done..done + length], access, &is_over).await {
            Ok(()) => done += length,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// As [`read_memory`], the other way.
///
/// # Errors
/// As there.
pub async fn write_memory(
    space: &Space,
    address: usize,
    bytes: &[u8],
    access: RemoteAccess,
    is_over: impl Fn() -> bool,
) -> Result<usize, Errno> {
    let mut done = 0;
    while done < bytes.len() {
        let at = address.wrapping_add(done);
        let length = (bytes.len() - done).min(PAGE_BYTES - at % PAGE_BYTES);
        match space.write_remote(at, &bytes[done..done + length], access, &is_over).await {
            Ok(()) => done += length,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

const PAGE_BYTES: usize = 4096;

impl TraceRequest {
    fn with<R>(&self, access: impl FnOnce(&mut Tracee) -> Result<R, Errno>) -> Result<R, Errno> {
        self.tracee.with_tracee(|tracee| tracee.map_or(Err(Errno::ESRCH), access))
    }

    /// The stop that the thread is in.
    fn stop(&self) -> Option<TraceStop> {
        self.with(|tracee| Ok(tracee.trace.stop().copied())).unwrap_or(None)
    }

    /// The tracee's memory of one word.
    async fn transfer_word(&self) -> Result<usize, Errno> {
        let space = self.tracee.space();
        let mut bytes = [0; WORD];
        let is_dying = || self.caller.is_dying();
        let is_read = matches!(self.number, requests::PTRACE_PEEKTEXT | requests::PTRACE_PEEKDATA);
        let done = if is_read {
            read_memory(&space, self.address, &mut bytes, RemoteAccess::Forced, is_dying).await
        } else {
            bytes = self.data.to_ne_bytes();
            write_memory(&space, self.address, &bytes, RemoteAccess::Forced, is_dying).await
        };
        if done != Ok(WORD) {
            return Err(Errno::EIO);
        }
        if is_read {
            let data = self.data;
            self.caller.resolve(|space| space.write_bytes(data, &bytes)).await?;
        }
        Ok(0)
    }

    /// All requests that need no memory of the tracee. It is stopped, and on no CPU.
    fn carry_out(&self) -> TryResult<usize> {
        let space = self.caller.space();
        match self.number {
            requests::PTRACE_CONT => self.resume(Resume::Run)?,
            requests::PTRACE_SYSCALL => self.resume(Resume::ToCall)?,
            requests::PTRACE_SINGLESTEP => self.resume(Resume::Step)?,
            requests::PTRACE_SYSEMU => self.resume(Resume::Emulate)?,
            requests::PTRACE_SYSEMU_SINGLESTEP => self.resume(Resume::EmulateStep)?,
            requests::PTRACE_DETACH => trace::detach(&self.tracee, signal(self.data)?),
            requests::PTRACE_LISTEN => {
                let is_seized = self.with(|tracee| Ok(tracee.trace.is_seized))?;
                let state = self.tracee.process.signal_state();
                if !is_seized || state.listen(&self.tracee).is_err() {
                    return Err(Errno::EIO.into());
                }
            }
            requests::PTRACE_SETOPTIONS | requests::PTRACE_OLDSETOPTIONS => {
                let options = options(self.data)?;
                self.with(|tracee| {
                    tracee.trace.options = options;
                    Ok(())
                })?;
            }
            requests::PTRACE_GETEVENTMSG => {
                let message = self.with(|tracee| Ok(tracee.trace.message))?;
                space.write(self.data, &message)?;
            }
            requests::PTRACE_GETSIGINFO => {
                let information = self.stop().and_then(|stop| stop.information).ok_or(Errno::EINVAL)?;
                space.write(self.data, &information.to_words())?;
            }
            requests::PTRACE_SETSIGINFO => self.set_information(&space)?,
            requests::PTRACE_GETSIGMASK => {
                self.check_mask_size()?;
                space.write(self.data, &self.tracee.mask_for_frame().0)?;
            }
            requests::PTRACE_SETSIGMASK => {
                self.check_mask_size()?;
                let mask = SignalSet(space.read(self.data)?);
                let _ = self.tracee.forget_saved_mask();
                self.tracee.set_blocked(mask);
            }
            requests::PTRACE_PEEKSIGINFO => return self.peek_signals(&space),
            requests::PTRACE_PEEKUSR => {
                let value = self.user_word()?;
                space.write(self.data, &value)?;
            }
            requests::PTRACE_POKEUSR => self.set_user_word()?,
            requests::PTRACE_GETREGS => space.write(self.data, &self.registers()?)?,
            requests::PTRACE_SETREGS => {
                let words: [u64; debug::REGISTER_WORDS] = space.read(self.data)?;
                self.set_registers(&words)?;
            }
            requests::PTRACE_GETFPREGS => {
                let bytes = self.tracee.with_float(|float| float_head(float.as_bytes()));
                space.write_bytes(self.data, &bytes)?;
            }
            requests::PTRACE_SETFPREGS => {
                let mut bytes = [0; FLOAT_HEAD_BYTES];
                space.read_bytes(self.data, &mut bytes)?;
                self.set_float(&bytes)?;
            }
            requests::PTRACE_GETREGSET | requests::PTRACE_SETREGSET => self.register_set(&space)?,
            requests::PTRACE_ARCH_PRCTL => {
                let (operation, address) = (self.data as u32, self.address);
                let value = self.change(|context| crate::arch::control(context, operation, address))?;
                if let Some(value) = value {
                    space.write(address, &value)?;
                }
            }
            requests::PTRACE_GET_SYSCALL_INFO => return self.call_information(&space),
            _ => return Err(Errno::EIO.into()),
        }
        Ok(0)
    }

    fn resume(&self, resume: Resume) -> Result<(), Errno> {
        let signal = signal(self.data)?;
        let mut state = self.tracee.process.signal_state();
        state.resume_traced(&self.tracee, resume, signal).map_err(|_| Errno::ESRCH)
    }

    /// Changes the registers that the thread goes on with.
    fn change<R>(&self, change: impl FnOnce(&mut UserContext) -> Result<R, Errno>) -> Result<R, Errno> {
        self.with(|tracee| {
            tracee.is_changed = true;
            change(&mut tracee.context)
        })
    }

    fn registers(&self) -> Result<[u64; debug::REGISTER_WORDS], Errno> {
        self.with(|tracee| Ok(debug::registers(&tracee.context, tracee.is_step_forced)))
    }

    fn set_registers(&self, words: &[u64]) -> Result<(), Errno> {
        self.change(|context| {
            words
                .iter()
                .enumerate()
                .try_for_each(|(index, &value)| debug::set_register(context, index, value))
        })
    }

    fn set_float(&self, bytes: &[u8]) -> Result<(), Errno> {
        self.tracee.with_float(|float| {
            let mut whole = fallible::try_to_vec(float.as_bytes())?;
            let length = bytes.len().min(whole.len());
            whole[..length].copy_from_slice(&bytes[..length]);
            float.set_bytes(&whole);
            Ok(())
        })
    }

    /// `PTRACE_PEEKUSER`.
    fn user_word(&self) -> Result<u64, Errno> {
        let offset = self.address;
        if !offset.is_multiple_of(WORD) || offset >= debug::USER_BYTES {
            return Err(Errno::EIO);
        }
        let index = offset / WORD;
        if index < debug::REGISTER_WORDS {
            return Ok(self.registers()?[index]);
        }
        match offset.checked_sub(debug::DEBUG_OFFSET) {
            Some(offset) if offset < debug::REGISTERS * WORD => {
                self.with(|tracee| Ok(tracee.debug.get(offset / WORD)))
            }
            _ => Ok(0),
        }
    }

    /// `PTRACE_POKEUSER`.
    fn set_user_word(&self) -> Result<(), Errno> {
        let (offset, value) = (self.address, self.data as u64);
        if !offset.is_multiple_of(WORD) || offset >= debug::USER_BYTES {
            return Err(Errno::EIO);
        }
        let index = offset / WORD;
        if index < debug::REGISTER_WORDS {
            return self.change(|context| debug::set_register(context, index, value));
        }
        let Some(offset) = offset.checked_sub(debug::DEBUG_OFFSET) else { return Err(Errno::EIO) };
        let is_active = self.with(|tracee| {
            tracee.debug.set(offset / WORD, value)?;
            Ok(tracee.debug.is_active())
        })?;
        if is_active {
            self.tracee.add_work(PendingWork::DEBUG);
        } else {
            self.tracee.remove_work(PendingWork::DEBUG);
        }
        Ok(())
    }

    fn set_information(&self, space: &Space) -> TryResult<()> {
        let words: [u64; 16] = space.read(self.data)?;
        let number = words[0] as i32;
        let is_set = self.with(|tracee| {
            let before = tracee.trace.stop().and_then(|stop| stop.information);
            let Some(before) = before else { return Ok(false) };
            let signal = Signal::new(number).unwrap_or(before.signal);
            Ok(tracee.trace.set_information(Information::from_words(signal, &words)))
        })?;
        if is_set { Ok(()) } else { Err(Errno::EINVAL.into()) }
    }

    fn check_mask_size(&self) -> Result<(), Errno> {
        if self.address == size_of::<SignalSet>() { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// `PTRACE_PEEKSIGINFO`: signals that are pending for the thread, or its process.
    fn peek_signals(&self, space: &Space) -> TryResult<usize> {
        const SHARED: u32 = 1;
        let [from, rest] = user::read_words(space, self.address)?;
        let (flags, count) = (rest as u32, (rest >> 32) as i32);
        if flags & !SHARED != 0 || count < 0 {
            return Err(Errno::EINVAL.into());
        }
        let mut done = 0;
        while done < count as usize {
            let index = usize::try_from(from).unwrap_or(usize::MAX).saturating_add(done);
            let found = self.tracee.queued_signal(index, flags & SHARED != 0);
            let Some(information) = found else { break };
            let address = self.data.wrapping_add(done * Information::BYTES);
            match space.write(address, &information.to_words()) {
                Ok(()) => done += 1,
                Err(fault) if done == 0 => return Err(fault.into()),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// `PTRACE_GETREGSET`, `PTRACE_SETREGSET`.
    fn register_set(&self, space: &Space) -> TryResult<()> {
        const GENERAL: usize = 1;
        const FLOAT: usize = 2;
        const EXTENDED: usize = 0x202;
        let [base, length] = user::read_words(space, self.data)?;
        let (base, length) = (base as usize, length as usize);
        let is_get = self.number == requests::PTRACE_GETREGSET;
        let (size, unit) = match self.address {
            GENERAL => (debug::REGISTER_WORDS * WORD, WORD),
            FLOAT => (FLOAT_HEAD_BYTES, 4),
            EXTENDED => (float::visible_bytes(), WORD),
            _ => return Err(Errno::EINVAL.into()),
        };
        if !length.is_multiple_of(unit) {
            return Err(Errno::EINVAL.into());
        }
        let length = length.min(size);
        match (self.address, is_get) {
            (GENERAL, true) => {
                let registers = self.registers()?;
                for (index, word) in registers.iter().take(length / WORD).enumerate() {
                    space.write(base.wrapping_add(index * WORD), word)?;
                }
            }
            (GENERAL, false) => {
                let mut words = [0; debug::REGISTER_WORDS];
                for (index, word) in words.iter_mut().take(length / WORD).enumerate() {
                    *word = space.read(base.wrapping_add(index * WORD))?;
                }
                self.set_registers(&words[..length / WORD])?;
            }
            (_, true) => {
                let rights = self.tracee.key_rights();
                let mut bytes = self.tracee.with_float(|float| with_key_rights(float.as_bytes(), rights))?;
                if self.address == EXTENDED {
                    // Where Linux says which components there are.
                    bytes[SOFTWARE_OFFSET..SOFTWARE_OFFSET + WORD]
                        .copy_from_slice(&float::visible_components().to_ne_bytes());
                }
                space.write_bytes(base, &bytes[..length])?;
            }
            (set, false) => {
                // A part of the extended state is none.
                if set == EXTENDED && length != size {
                    return Err(Errno::EFAULT.into());
                }
                let mut bytes = fallible::try_filled(0, length)?;
                space.read_bytes(base, &mut bytes)?;
                self.set_float(&bytes)?;
                if set == EXTENDED && protection_key::are_on() {
                    // As the processor does, Linux takes what is missing for 0.
                    let place =
                        key_rights_place(&bytes).and_then(|offset| bytes.get(offset..)?.first_chunk());
                    self.tracee
                        .set_key_rights(KeyRights(place.map_or(0, |&bytes| u32::from_ne_bytes(bytes))));
                }
            }
        }
        space.write(self.data.wrapping_add(WORD), &(length as u64))?;
        Ok(())
    }

    /// `PTRACE_GET_SYSCALL_INFO`: the address is the size, the result the size of all there is.
    fn call_information(&self, space: &Space) -> TryResult<usize> {
        const HEAD_BYTES: usize = 24;
        const ENTRY_BYTES: usize = 80;
        const EXIT_BYTES: usize = 33;
        let registers = self.registers()?;
        let context = self.with(|tracee| Ok(tracee.context.clone()))?;
        let mut bytes = [0; ENTRY_BYTES];
        let mut put = |offset: usize, value: u64| {
            bytes[offset..offset + WORD].copy_from_slice(&value.to_ne_bytes());
        };
        let (kind, length) = match self.stop().map(|stop| stop.kind) {
            Some(StopKind::CallEntry) => {
                put(HEAD_BYTES, context.syscall_number() as u64);
                for index in 0..6 {
                    put(HEAD_BYTES + WORD * (index + 1), context.argument(index) as u64);
                }
                (linux_raw_sys::ptrace::PTRACE_SYSCALL_INFO_ENTRY, ENTRY_BYTES)
            }
            Some(StopKind::CallExit) => {
                let result = context.result();
                put(HEAD_BYTES, result as u64);
                put(HEAD_BYTES + WORD, u64::from(result > ERRORS_FROM));
                (linux_raw_sys::ptrace::PTRACE_SYSCALL_INFO_EXIT, EXIT_BYTES)
            }
            _ => (linux_raw_sys::ptrace::PTRACE_SYSCALL_INFO_NONE, HEAD_BYTES),
        };
        put(0, u64::from(kind) | u64::from(debug::AUDIT_ARCHITECTURE) << 32);
        put(WORD, registers[debug::IP_WORD]);
        put(2 * WORD, registers[debug::SP_WORD]);
        space.write_bytes(self.data, &bytes[..length.min(self.address)])?;
        Ok(length)
    }
}

/// Results above are errors, negated.
const ERRORS_FROM: usize = usize::MAX - 4095;
/// The state of the floating-point registers without its extended part.
const FLOAT_HEAD_BYTES: usize = 512;
const SOFTWARE_OFFSET: usize = 464;

fn float_head(bytes: &[u8]) -> [u8; FLOAT_HEAD_BYTES] {
    let mut head = [0; FLOAT_HEAD_BYTES];
    head.copy_from_slice(&bytes[..FLOAT_HEAD_BYTES]);
    head
}
