//! perf_event_open(2): what a program asks to have counted, and how counts are told.

#[cfg(test)]
mod tests;

/// The length of `struct perf_event_attr` as of Linux 5.13.
pub const ATTRIBUTE_BYTES: usize = 128;
/// Its first length.
pub const FIRST_ATTRIBUTE_BYTES: u32 = 64;

/// The type of events that the kernel itself counts: `PERF_TYPE_SOFTWARE`.
const TYPE_SOFTWARE: u32 = 1;
/// A bit of `sample_type`, and the first bits of that and of `read_format` that have no meaning.
const SAMPLE_READ: u64 = 1 << 4;
const SAMPLE_END: u64 = 1 << 25;
const FORMAT_END: u64 = 1 << 5;

/// Bits of the flags.
mod flag {
    pub const DISABLED: u64 = 1 << 0;
    pub const INHERIT: u64 = 1 << 1;
    pub const PINNED: u64 = 1 << 2;
    pub const EXCLUSIVE: u64 = 1 << 3;
    pub const EXCLUDE_USER: u64 = 1 << 4;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const FREQUENCY: u64 = 1 << 10;
    pub const ENABLE_ON_EXEC: u64 = 1 << 12;
    pub const INHERIT_THREAD: u64 = 1 << 35;
    pub const REMOVE_ON_EXEC: u64 = 1 << 36;
    pub const SIGTRAP: u64 = 1 << 37;
    pub const RESERVED: u64 = !((1 << 38) - 1);
}

/// Bits of `read_format`.
mod format {
    pub const TIME_ENABLED: u64 = 1 << 0;
    pub const TIME_RUNNING: u64 = 1 << 1;
    pub const ID: u64 = 1 << 2;
    pub const GROUP: u64 = 1 << 3;
    pub const LOST: u64 = 1 << 4;
}

/// Something that the kernel counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftwareEvent {
    /// Nanoseconds on a processor.
    Clock,
    /// Page faults, all of which are resolved from memory.
    PageFaults,
    /// The processor was given to somebody else.
    ContextSwitches,
    /// The thread went on on another processor.
    Migrations,
    /// Events that never happen here (faults that wait for a disk, those of alignment and emulation), and those that
    /// count nothing.
    Nothing,
}

/// The arguments cannot be meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeError {
    /// `EINVAL`.
    Invalid,
    /// `ENOENT`: nothing here counts such events.
    Unknown,
}

/// A request: the event that is to be counted, and how it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventAttributes {
    kind: u32,
    config: u64,
    /// The period or frequency of samples.
    pub sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
}

impl EventAttributes {
    /// Reads the structure, filled up with zeros.
    ///
    /// # Errors
    /// [`AttributeError::Invalid`].
    pub fn parse(bytes: &[u8; ATTRIBUTE_BYTES]) -> Result<Self, AttributeError> {
        const CONFIG: usize = 8;
        const SAMPLE_PERIOD: usize = 16;
        const SAMPLE_TYPE: usize = 24;
        const READ_FORMAT: usize = 32;
        const FLAGS: usize = 40;
        const RESERVED_2: core::ops::Range<usize> = 110..112;
        const RESERVED_3: core::ops::Range<usize> = 116..120;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(word)
        };
        let own = Self {
            kind: word(0) as u32,
            config: word(CONFIG),
            sample_period: word(SAMPLE_PERIOD),
            sample_type: word(SAMPLE_TYPE),
            read_format: word(READ_FORMAT),
            flags: word(FLAGS),
        };
        let is_reserved_used = own.flags & flag::RESERVED != 0
            || bytes[RESERVED_2].iter().chain(&bytes[RESERVED_3]).any(|&byte| byte != 0);
        let is_contradiction = own.has(flag::INHERIT_THREAD) && !own.has(flag::INHERIT)
            || own.has(flag::REMOVE_ON_EXEC) && own.has(flag::ENABLE_ON_EXEC)
            // A sample has no place for the counts of several.
            || own.has(flag::INHERIT) && own.sample_type & SAMPLE_READ != 0
            || own.has(flag::SIGTRAP) && !own.has(flag::REMOVE_ON_EXEC);
        if is_reserved_used
            || own.sample_type >= SAMPLE_END
            || own.read_format >= FORMAT_END
            || is_contradiction
        {
            return Err(AttributeError::Invalid);
        }
        Ok(own)
    }

    const fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// The event.
    ///
    /// # Errors
    /// [`AttributeError::Unknown`].
    pub const fn event(&self) -> Result<SoftwareEvent, AttributeError> {
        if self.kind != TYPE_SOFTWARE {
            return Err(AttributeError::Unknown);
        }
        Ok(match self.config {
            0 | 1 => SoftwareEvent::Clock,
            2 | 5 => SoftwareEvent::PageFaults,
            3 => SoftwareEvent::ContextSwitches,
            4 => SoftwareEvent::Migrations,
            6..=11 => SoftwareEvent::Nothing,
            _ => return Err(AttributeError::Unknown),
        })
    }

    /// Whether the period of samples is a frequency, in hertz.
    #[must_use]
    pub const fn is_frequency(&self) -> bool {
        self.has(flag::FREQUENCY)
    }

    /// Whether it counts only once it has been enabled.
    #[must_use]
    pub const fn is_disabled(&self) -> bool {
        self.has(flag::DISABLED)
    }

    /// Whether a program that is executed enables it.
    #[must_use]
    pub const fn is_enabled_by_exec(&self) -> bool {
        self.has(flag::ENABLE_ON_EXEC)
    }

    /// Whether a program that is executed is not counted any more.
    #[must_use]
    pub const fn is_removed_by_exec(&self) -> bool {
        self.has(flag::REMOVE_ON_EXEC)
    }

    /// Whether children are counted that are made from now on, threads of the same process among them.
    #[must_use]
    pub const fn is_inherited(&self) -> bool {
        self.has(flag::INHERIT)
    }

    /// Whether of children only threads are counted.
    #[must_use]
    pub const fn is_for_threads(&self) -> bool {
        self.has(flag::INHERIT_THREAD)
    }

    /// Whether what happens in the kernel counts.
    #[must_use]
    pub const fn counts_kernel(&self) -> bool {
        !self.has(flag::EXCLUDE_KERNEL)
    }

    /// Whether the event can be a member of a group that another leads.
    #[must_use]
    pub const fn may_follow(&self) -> bool {
        !self.has(flag::PINNED) && !self.has(flag::EXCLUSIVE)
    }

    /// Whether a read tells of the whole group.
    #[must_use]
    pub const fn tells_group(&self) -> bool {
        self.read_format & format::GROUP != 0
    }

    /// Whether a count that grows by this event counts: switches and migrations happen in the kernel, faults in the
    /// program; a clock is not asked.
    #[must_use]
    pub const fn counts(&self, event: SoftwareEvent) -> bool {
        match event {
            SoftwareEvent::Clock => true,
            SoftwareEvent::PageFaults => !self.has(flag::EXCLUDE_USER),
            SoftwareEvent::ContextSwitches | SoftwareEvent::Migrations => self.counts_kernel(),
            SoftwareEvent::Nothing => false,
        }
    }

    fn times(&self, times: EventTimes) -> impl Iterator<Item = u64> + use<> {
        let enabled = (self.read_format & format::TIME_ENABLED != 0).then_some(times.enabled_ns);
        let running = (self.read_format & format::TIME_RUNNING != 0).then_some(times.running_ns);
        enabled.into_iter().chain(running)
    }

    /// The words that a read gives, of one event or of a group.
    pub fn told<'a>(&'a self, times: EventTimes, counts: &'a [EventCount]) -> impl Iterator<Item = u64> + 'a {
        let is_group = self.tells_group();
        let each = counts.iter().flat_map(move |count| {
            let own_times = (!is_group).then(|| self.times(times));
            let id = (self.read_format & format::ID != 0).then_some(count.id);
            let lost = (self.read_format & format::LOST != 0).then_some(0);
            core::iter::once(count.value).chain(own_times.into_iter().flatten()).chain(id).chain(lost)
        });
        let head = is_group.then(|| core::iter::once(counts.len() as u64).chain(self.times(times)));
        head.into_iter().flatten().chain(each)
    }
}

/// How long an event was enabled, and how long it counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventTimes {
    /// How long it was enabled.
    pub enabled_ns: u64,
    /// How long of that it counted.
    pub running_ns: u64,
}

/// A count, and the number of its event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCount {
    /// The count.
    pub value: u64,
    /// The event's number.
    pub id: u64,
}
