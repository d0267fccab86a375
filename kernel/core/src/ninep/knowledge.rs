//! The attributes of a file that a client keeps, and how long it may rely on them.
//!
//! A server answers questions and tells nothing by itself, so an answer is relied on for a time, or until somebody who
//! watches the server's files says that they changed. Then the client asks again, and the answer says whether what it
//! keeps of the file, bytes or names, is still right: its times and its length are compared with those of before.
//!
//! - Changes by the client move the times too. After them a new time is no evidence of anybody else's change, unless it
//!   is later than the client's last one. Somebody else who follows the client at once is not told from it, so such an
//!   answer counts for the client's only as long as the client's change is young, is asked about again soon, and then
//!   counts as somebody else's.
//! - Times have steps of some milliseconds. A file whose times are younger than that may be changed again without a
//!   trace, so what is kept of it counts as changed once more at the next question.
//! - Changes and answers cross. Each change gets a moment of a clock that counts changes; an answer to a question
//!   that was put before the last change is not kept.

use crate::ninep::Attributes;

/// How much younger than now the times of a file must not be for its next change to be seen in them, in seconds: their
/// step; and how much later than the client's change its own trace may be, as far as the clocks differ.
const STEP_SECONDS: u64 = 2;

/// The attributes that a client keeps of a file.
#[derive(Clone, Debug, Default)]
pub struct Knowledge {
    attributes: Option<Attributes>,
    asked_ns: u64,
    epoch: u64,
    /// The moment of the client's last change.
    changed_at: u64,
    /// The moment since which nothing is relied on that was asked before.
    expired_at: u64,
    /// The client has changed the file since the question, the last time at this time of the clock on the wall.
    is_changed: bool,
    changed_seconds: u64,
    /// The next change by others will show in the times.
    is_settled: bool,
    /// The times may be those of a change by others that came right after the client's.
    is_doubtful: bool,
    /// The client has changed permissions or owners since the question.
    is_access_changed: bool,
}

/// A question to the server.
#[derive(Clone, Copy, Debug)]
pub struct FileQuestion {
    /// The moment before it was put.
    pub begun: u64,
    /// The time before it was put, in nanoseconds.
    pub asked_ns: u64,
    /// The number of announcements of changes before it was put.
    pub epoch: u64,
    /// Whether changes by others are announced.
    pub is_watched: bool,
    /// The time of the clock on the wall, in seconds since 1970.
    pub wall_seconds: u64,
    /// The server's clock at that time, as [`ServerClock::seconds`].
    pub server_seconds: u64,
}

/// The clock by which a server sets the times of its files, as far as it has shown it: this one is never ahead of it.
/// The client's own may be, and then a file whose times are young would seem to have been as it is for long.
#[derive(Clone, Copy, Debug)]
pub struct ServerClock {
    seconds: u64,
    shown_ns: u64,
}

impl Default for ServerClock {
    fn default() -> Self {
        Self::new()
    }
}

impl ServerClock {
    /// A clock of which nothing is known.
    #[must_use]
    pub const fn new() -> Self {
        Self { seconds: 0, shown_ns: 0 }
    }

    /// The server's clock has shown this time, and shows no earlier one.
    pub fn show(&mut self, seconds: u64, now_ns: u64) {
        if seconds > self.seconds(now_ns) {
            *self = Self { seconds, shown_ns: now_ns };
        }
    }

    /// The time that the server's clock shows at least. The clocks may run at speeds that differ by one in a thousand.
    #[must_use]
    pub const fn seconds(&self, now_ns: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.shown_ns);
        self.seconds + (passed_ns - passed_ns.div_ceil(1000)) / 1_000_000_000
    }
}

/// The limits of what may be relied on.
#[derive(Clone, Copy, Debug)]
pub struct Horizon {
    /// The time.
    pub now_ns: u64,
    /// How old an answer may be.
    pub valid_ns: u64,
    /// The same for a file that others may change without an announcement, because it is no directory and has several
    /// names, or may have changed right after the client.
    pub valid_doubtful_ns: u64,
    /// How many announcements of changes there were.
    pub epoch: u64,
}

/// The meaning of an answer for bytes and names that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// They are right.
    Same,
    /// They may be others by now.
    Changed,
}

impl Knowledge {
    fn is_young(&self, horizon: &Horizon) -> bool {
        let is_directory = |of: &Attributes| of.mode & 0o170_000 == 0o040_000;
        let is_linked = self.attributes.as_ref().is_some_and(|known| known.links > 1 && !is_directory(known));
        let is_doubtful = is_linked || self.is_doubtful;
        let valid_ns = if is_doubtful { horizon.valid_doubtful_ns } else { horizon.valid_ns };
        horizon.epoch == self.epoch && horizon.now_ns.saturating_sub(self.asked_ns) < valid_ns
    }

    /// The attributes, if they may be relied on.
    #[must_use]
    pub fn current(&self, horizon: &Horizon) -> Option<&Attributes> {
        self.attributes.as_ref().filter(|_| !self.is_changed && self.is_young(horizon))
    }

    /// Whether an answer is young enough for what is kept beside the attributes, where the client's own changes are
    /// kept as well.
    #[must_use]
    pub fn is_current_but_for_own_changes(&self, horizon: &Horizon) -> bool {
        self.attributes.is_some() && self.is_young(horizon)
    }

    /// The attributes, if type, permissions and owners in them may be relied on.
    #[must_use]
    pub fn access(&self, horizon: &Horizon) -> Option<&Attributes> {
        self.attributes.as_ref().filter(|_| !self.is_access_changed && self.is_young(horizon))
    }

    /// Whether the file has been as it is for some time, and by nobody's change that the times do not show.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.is_settled && !self.is_changed
    }

    /// When the last answer was asked for.
    #[must_use]
    pub const fn asked_ns(&self) -> u64 {
        self.asked_ns
    }

    /// The attributes as they were last, with what the client has changed of length and names.
    #[must_use]
    pub const fn last(&self) -> Option<&Attributes> {
        self.attributes.as_ref()
    }

    /// Whether a file that the host has just found by its name and number is the one that is known, as it is known. The
    /// version says nothing of the client's own changes since.
    #[must_use]
    pub fn is_confirmed(&self, version: u32) -> bool {
        !self.is_changed && self.attributes.as_ref().is_some_and(|known| known.version == version)
    }

    /// Whether an answer is about the file that is known, for sure, because its change time says that nobody has
    /// changed it: one that had its number later would have a later one. A change time that was young when it was
    /// learnt
    /// says nothing.
    #[must_use]
    pub fn is_unchanged(&self, answer: &Attributes) -> bool {
        let is_directory = answer.mode & 0o170_000 == 0o040_000;
        self.is_settled
            && !is_directory
            && self.attributes.as_ref().is_some_and(|known| {
                (known.number, known.mode, known.changed) == (answer.number, answer.mode, answer.changed)
            })
    }

    /// Whether a question about the file is to be one for its generation as well: it is known, and the file has
    /// changed.
    #[must_use]
    pub fn wants_generation(&self) -> bool {
        self.is_changed && self.attributes.as_ref().is_some_and(|known| known.generation.is_some())
    }

    /// Adds the generation to an answer to a question that was not for it, if it is known and the file is the same for
    /// sure. Whether the server has to be asked for it.
    pub fn lacks_generation(&self, answer: &mut Attributes) -> bool {
        let Some(generation) = self.attributes.as_ref().and_then(|known| known.generation) else {
            return false;
        };
        if answer.generation.is_none() && self.is_unchanged(answer) {
            answer.generation = Some(generation);
        }
        answer.generation.is_none()
    }

    /// Keeps an answer, unless it is older than the client's last change.
    pub fn learn(&mut self, question: &FileQuestion, answer: &Attributes) -> Judgement {
        let is_directory = answer.mode & 0o170_000 == 0o040_000;
        // Names in a directory come by announcements, too, which the answer may not know yet.
        let is_late = self.changed_at > question.begun || is_directory && self.expired_at > question.begun;
        if is_late {
            return Judgement::Same;
        }
        let is_near = |seconds: u64| seconds <= self.changed_seconds.saturating_add(STEP_SECONDS);
        let is_by_client =
            self.is_changed && is_near(answer.changed.0) && (is_directory || is_near(question.wall_seconds));
        // Changes by others at the same time are not seen in a directory's times, and one lost name stays lost.
        let is_own =
            |before: &Attributes| if is_directory { question.is_watched } else { before.size == answer.size };
        let evidence = |of: &Attributes| (of.size, of.modified, of.changed);
        let mut is_doubtful = false;
        let judgement = match &self.attributes {
            None => Judgement::Same,
            // One doubtful answer does not follow another: the client may change the file all the time.
            Some(before) if is_by_client && is_own(before) && !self.is_doubtful => {
                is_doubtful = !is_directory;
                Judgement::Same
            }
            Some(_) if self.is_changed => Judgement::Changed,
            Some(before) if self.is_settled && evidence(before) == evidence(answer) => Judgement::Same,
            Some(_) => Judgement::Changed,
        };
        let mut known = *answer;
        self.lacks_generation(&mut known);
        self.is_doubtful = is_doubtful;
        self.is_access_changed = false;
        // Names are announced one by one where there are announcements.
        let is_announced = is_directory && question.is_watched;
        self.is_settled = is_announced
            || !is_doubtful && answer.changed.0.saturating_add(STEP_SECONDS) < question.server_seconds;
        self.attributes = Some(known);
        self.asked_ns = question.asked_ns;
        // An answer that has expired is kept all the same, and asked for again.
        self.epoch = if self.expired_at > question.begun { u64::MAX } else { question.epoch };
        self.is_changed = false;
        judgement
    }

    /// Notes a change by the client: before it is asked for, and when it is done.
    pub const fn change(&mut self, moment: u64, wall_seconds: u64) {
        self.changed_at = moment;
        self.is_changed = true;
        self.changed_seconds = wall_seconds;
    }

    /// The client has asked for other permissions or owners.
    pub const fn change_access(&mut self) {
        self.is_access_changed = true;
    }

    /// The moment of the last change, the client's or one that it was told of.
    #[must_use]
    pub fn changed_at(&self) -> u64 {
        self.changed_at.max(self.expired_at)
    }

    /// The client has made the file this long.
    pub fn set_size(&mut self, size: u64) {
        if let Some(attributes) = &mut self.attributes {
            attributes.size = size;
        }
    }

    /// The client has written up to this place.
    pub fn grow(&mut self, end: u64) {
        if let Some(attributes) = &mut self.attributes {
            attributes.size = attributes.size.max(end);
        }
    }

    /// The client has given the file a name more, or one less. How many it has, if that is known.
    pub fn count_name(&mut self, more: bool) -> Option<u64> {
        let attributes = self.attributes.as_mut()?;
        attributes.links = if more { attributes.links + 1 } else { attributes.links.saturating_sub(1) };
        Some(attributes.links)
    }

    /// Relies on nothing any more.
    pub fn forget(&mut self, moment: u64) {
        *self = Self { changed_at: moment.max(self.changed_at), ..Self::default() };
    }

    /// The next use is to ask. The answer to a question that was put before this moment is not relied on, though it is
    /// kept: it is younger than what is known of a file that had the number before.
    pub const fn expire(&mut self, moment: u64) {
        self.expired_at = moment;
        self.epoch = u64::MAX;
    }
}
