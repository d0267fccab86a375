//! Questions about a file's attributes.
//!
//! The generation says whether the host's answer is about the file that is known here, or about another that has its
//! number by now. To tell it, the host opens the file, which costs more than the rest of the answer, and may disturb
//! who has a lease on it. So it is asked for where it is needed: of directories, and of files that are opened without
//! the host, before that and whenever they have changed. An answer by which nothing has changed needs none.

use heddle_kernel_core::ninep::knowledge::{FileQuestion, Judgement};
use heddle_kernel_core::ninep::{Attributes, GETATTR_BASIC, GETATTR_GENERATION, MessageWriter, kind};

use crate::device::share::GiveUp;
use crate::error::Errno;
use crate::fs::FileType;
use crate::fs::share::kept::VALID_NS;
use crate::fs::share::node::SharedNode;
use crate::fs::share::{Fid, handle};

/// The attributes to ask for.
pub(super) const fn asked_attributes(with_generation: bool) -> u64 {
    if with_generation { GETATTR_BASIC | GETATTR_GENERATION } else { GETATTR_BASIC }
}

/// Asks the host for a file's attributes. The generation costs it an opening of the file.
pub(super) fn attributes(give_up: GiveUp, fid: &Fid, with_generation: bool) -> Result<Attributes, Errno> {
    let write = |writer: &mut MessageWriter<'_>| {
        writer.u32(fid.number);
        writer.u64(asked_attributes(with_generation));
    };
    fid.server.call_or(give_up, kind::GETATTR, write, Attributes::read)
}

impl SharedNode {
    /// Asks the host for the attributes.
    ///
    /// # Errors
    /// The host's; `ESTALE` if it has another file of that name.
    pub(super) fn ask(&self, give_up: GiveUp) -> Result<Attributes, Errno> {
        self.fid.probe(give_up)?;
        self.ask_after_walk(give_up)
    }

    /// The same, where the host has just answered a walk to the file.
    pub(super) fn ask_after_walk(&self, give_up: GiveUp) -> Result<Attributes, Errno> {
        self.ask_for(give_up, self.kind == FileType::Directory || self.state.wants_generation())
    }

    /// Asks for the generation of a file that is to be opened without the host.
    pub(super) fn ask_generation(&self) -> Result<(), Errno> {
        self.probe_if_old()?;
        self.ask_for(GiveUp::Forget, true).map(drop)
    }

    fn ask_for(&self, give_up: GiveUp, with_generation: bool) -> Result<Attributes, Errno> {
        let answer = self.try_to_ask(give_up, with_generation);
        if matches!(answer, Err(Errno::ENOENT | Errno::ESTALE)) {
            // The host has taken the name away, and may tell so later: whoever looks the name up again is to ask.
            self.state.expire(self.server());
        }
        answer
    }

    fn try_to_ask(&self, give_up: GiveUp, mut with_generation: bool) -> Result<Attributes, Errno> {
        let question = self.server().question();
        let mut answer = attributes(give_up, &self.fid, with_generation)?;
        if !with_generation && self.state.lacks_generation(&mut answer) {
            with_generation = true;
            answer = attributes(give_up, &self.fid, true)?;
        }
        self.accept(&question, &answer)?;
        if with_generation {
            self.state.note_generation_asked(&question);
        }
        Ok(answer)
    }

    /// Takes an answer of the host's about this file.
    ///
    /// # Errors
    /// `ESTALE`: it is about another.
    pub(super) fn accept(&self, question: &FileQuestion, answer: &Attributes) -> Result<(), Errno> {
        let is_other = |known: Attributes| known.is_same_file(answer) == Some(false);
        if answer.number != self.number || self.state.last().is_some_and(is_other) {
            return Err(Errno::ESTALE);
        }
        self.server().show_time(answer);
        if self.state.learn(question, answer) == Judgement::Changed {
            // The bytes that are kept are no longer those of who has opened the file without the host.
            handle::open_for_lazy(self);
        }
        Ok(())
    }

    /// Before a request that changes the file, likewise, unless the host was heard of lately.
    pub(super) fn probe_if_old(&self) -> Result<(), Errno> {
        if self.state.was_heard_of(VALID_NS) { Ok(()) } else { self.fid.probe(GiveUp::Forget) }
    }

    /// Makes sure that what is kept of this directory's names is right.
    ///
    /// # Errors
    /// Those of asking the host.
    pub(super) fn refresh(&self) -> Result<(), Errno> {
        if self.state.is_current(self.server()) {
            return Ok(());
        }
        match self.ask(GiveUp::Forget) {
            // A directory that was removed has no names.
            Err(Errno::ESTALE) => Err(Errno::ENOENT),
            result => result.map(drop),
        }
    }
}
