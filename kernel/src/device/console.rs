//! The virtio console device with several ports, virtio 1.2 section 5.3.
//!
//! Each port is a pair of queues ([`Port`]); a further pair carries control messages. The device announces ports after
//! the driver's `DEVICE_READY`; a port carries data once both sides have opened it. The device drops a control
//! message for which it finds no buffer, so buffers are posted before it is told that the driver is ready, and are
//! given back at once.

use alloc::vec::Vec;

use heddle_abi::boot::port::COUNT;
use heddle_kernel_core::fallible::push_reserved;
use virtio_drivers::transport::{DeviceType, Transport};

use crate::device::port::{Buffers, Port};
use crate::device::virtio;
use crate::device::virtio::{BufferQueue, Direction, QUEUE_LENGTH, Registers};
use crate::error::Errno;
use crate::sync::SpinLock;

/// Queues of the control messages.
const CONTROL_RECEIVE: u16 = 2;
const CONTROL_TRANSMIT: u16 = 3;
/// A control message: `id: u32`, `event: u16`, `value: u16`; `PORT_NAME` is followed by the name.
const MESSAGE_BYTES: usize = 8;
/// Room for a message with a name.
const CONTROL_BUFFER_BYTES: usize = 64;

const DEVICE_READY: u16 = 0;
const PORT_ADD: u16 = 1;
const PORT_REMOVE: u16 = 2;
const PORT_READY: u16 = 3;
const PORT_OPEN: u16 = 6;

bitflags::bitflags! {
    /// The features that this driver knows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct ConsoleFeatures: u64 {
        const MULTIPORT = 1 << 1;
        const VERSION_1 = 1 << 32;
    }
}

/// The state of a port, as the control messages report it.
#[derive(Clone, Copy, Default)]
struct ConsoleState {
    /// The device has it.
    added: bool,
    /// The guest has opened it, or will as soon as the device has it.
    opened: bool,
}

struct Control {
    receive: BufferQueue,
    transmit: BufferQueue,
    states: [ConsoleState; COUNT as usize],
}

/// The device.
pub struct Console {
    registers: Registers,
    control: SpinLock<Control>,
    /// From port 1 on: port 0 is not used, and gets no queues.
    ports: Vec<Port>,
    /// Its interrupt line.
    pub irq: u32,
}

impl Console {
    /// Finds the device and starts it.
    ///
    /// # Errors
    /// `ENODEV` (there is none, or not one with enough ports), `ENOMEM`.
    pub fn find() -> Result<Self, Errno> {
        let virtio::VirtioDevice { mut transport, registers, irq, .. } =
            virtio::find(DeviceType::Console).ok_or(Errno::ENODEV)?;
        let features = transport.begin_init(ConsoleFeatures::all());
        let port_count: u32 = transport.read_config_space(4).map_err(|_| Errno::ENODEV)?;
        if features != ConsoleFeatures::all() || port_count < COUNT {
            ::log::error!("virtio console: {features:?}, {port_count} ports");
            return Err(Errno::ENODEV);
        }
        let mut receive = BufferQueue::new(&mut transport, CONTROL_RECEIVE, Direction::Receive)?;
        let mut transmit = BufferQueue::new(&mut transport, CONTROL_TRANSMIT, Direction::Transmit)?;
        receive.allocate(QUEUE_LENGTH, CONTROL_BUFFER_BYTES)?;
        transmit.allocate(QUEUE_LENGTH, MESSAGE_BYTES)?;
        transmit.set_interrupts(false);
        let mut ports = Vec::new();
        ports.try_reserve_exact(COUNT as usize - 1).map_err(|_| Errno::ENOMEM)?;
        for number in 1..COUNT as usize {
            let index = first_queue(number);
            let receive = BufferQueue::new(&mut transport, index, Direction::Receive)?;
            let transmit = BufferQueue::new(&mut transport, index + 1, Direction::Transmit)?;
            push_reserved(&mut ports, Port::new(registers, index, receive, transmit));
        }
        transport.finish_init();
        // Dropping it would reset the device.
        core::mem::forget(transport);
        let control = Control { receive, transmit, states: [ConsoleState::default(); COUNT as usize] };
        Ok(Self { registers, control: SpinLock::new(control), ports, irq })
    }

    /// Tells the device that control messages can come; to be called once interrupts are handled.
    pub fn ready(&self) {
        let mut control = self.control.lock();
        for buffer in 0..QUEUE_LENGTH {
            control.receive.post(buffer, CONTROL_BUFFER_BYTES);
        }
        self.registers.notify(CONTROL_RECEIVE);
        self.send(&mut control, 0, DEVICE_READY, 1);
    }

    /// A port, 1 to 5.
    pub fn port(&self, number: u32) -> &Port {
        &self.ports[(number as usize).wrapping_sub(1) % self.ports.len()]
    }

    /// Opens a port, as soon as the device has it.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn open(&self, number: u32, buffers: Buffers) -> Result<(), Errno> {
        self.port(number).start(buffers)?;
        let mut control = self.control.lock();
        let state = &mut control.states[number as usize % COUNT as usize];
        state.opened = true;
        if state.added {
            self.send(&mut control, number, PORT_OPEN, 1);
        }
        Ok(())
    }

    /// Ends the interrupt condition; for the handler.
    pub fn acknowledge(&self) {
        self.registers.acknowledge_interrupt();
    }

    /// Looks at everything that the device has done and wakes the tasks that wait for it.
    pub fn serve(&self) {
        self.receive_control();
        for port in &self.ports {
            port.interrupted();
        }
    }

    fn receive_control(&self) {
        let mut control = self.control.lock();
        let mut received = false;
        while let Some((buffer, length)) = control.receive.take_used() {
            received = true;
            let bytes = control.receive.bytes_mut(buffer);
            if let Some(&message) = bytes[..length].first_chunk::<MESSAGE_BYTES>() {
                let [a, b, c, d, event_low, event_high, ..] = message;
                let event = u16::from_le_bytes([event_low, event_high]);
                self.handle(&mut control, u32::from_le_bytes([a, b, c, d]), event);
            }
            control.receive.post(buffer, CONTROL_BUFFER_BYTES);
        }
        if received && control.receive.should_notify() {
            self.registers.notify(CONTROL_RECEIVE);
        }
    }

    fn handle(&self, control: &mut Control, number: u32, event: u16) {
        let Some(state) = control.states.get_mut(number as usize) else { return };
        match event {
            PORT_ADD => {
                state.added = true;
                let opened = state.opened;
                self.send(control, number, PORT_READY, 1);
                if opened {
                    self.send(control, number, PORT_OPEN, 1);
                }
            }
            PORT_REMOVE => state.added = false,
            // Names, sizes, and opened ports on the other side: the control port reports what matters of it.
            _ => {}
        }
    }

    fn send(&self, control: &mut Control, number: u32, event: u16, value: u16) {
        while control.transmit.take_used().is_some() {}
        let Some(buffer) = control.transmit.free_buffer() else {
            ::log::error!("virtio console: no buffer for control message {event} of port {number}");
            return;
        };
        let bytes = control.transmit.bytes_mut(buffer);
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes[4..6].copy_from_slice(&event.to_le_bytes());
        bytes[6..8].copy_from_slice(&value.to_le_bytes());
        control.transmit.post(buffer, MESSAGE_BYTES);
        self.registers.notify(CONTROL_TRANSMIT);
    }
}

/// The receive queue of a port; the next one sends.
const fn first_queue(port: usize) -> u16 {
    2 * (port as u16 + 1)
}
