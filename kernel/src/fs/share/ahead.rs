//! Questions about several files of a directory at once.
//!
//! A question costs the host two wake-ups and the guest a wait, whatever it is about. So who asks for one name after
//! the other has further ones asked for in the same breath, in the order of the directory's listing, and who opens one
//! small file after the other has them read. How many, [`AskedAhead`] says: who needs a few files gets a few more. The
//! caller waits for its own answer; the others count if they come in a short time, and are asked for again otherwise.
//! A file that was read ahead is like one that was read: it counts as long as the host says, and is opened without the
//! host.
//!
//! [`AskedAhead`]: heddle_kernel_core::ninep::ahead::AskedAhead

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use heddle_kernel_core::ninep::{Attributes, Failure, MessageWriter, NO_FID, Qid, Reader, kind};
use linux_raw_sys::general as linux;

use crate::device::share::{BATCH_MAX, GiveUp, RequestBatch, SMALL_BYTES};
use crate::error::Errno;
use crate::fs::share::asking::asked_attributes;
use crate::fs::share::file::ask_to_read;
use crate::fs::share::filled::FilledPages;
use crate::fs::share::names::{NamePlan, NameQuestion};
use crate::fs::share::node::SharedNode;
use crate::fs::share::pages::{PAGE, PagesMark};
use crate::fs::share::{Fid, Server, handle};
use crate::fs::{Dentry, FileType};
use crate::sched;

/// Longest file that is read when it is opened.
const SMALL_FILE: u64 = SMALL_PAGES as u64 * PAGE;
const SMALL_PAGES: usize = 4;

/// The answers of a batch, by the questions' places.
type Answers<T> = [Option<Result<T, Errno>>; BATCH_MAX];

impl Server {
    /// Makes requests of one kind at once, one for each place that is wanted. The first is waited for, and has an
    /// answer.
    fn call_all<T>(
        &self,
        (request, bytes): (u8, usize),
        is_wanted: impl Fn(usize) -> bool,
        give_up: impl Fn(usize) -> GiveUp,
        write: impl Fn(usize, &mut MessageWriter<'_>),
        mut read: impl FnMut(usize, &mut Reader<'_>) -> Result<T, Failure>,
    ) -> Answers<T> {
        sched::poll_interrupts();
        let mut answers = [const { None }; BATCH_MAX];
        let mut batch = RequestBatch::new();
        for place in (0..BATCH_MAX).filter(|&place| is_wanted(place)) {
            let begun = if place == 0 {
                self.exchange().begin()
            } else {
                self.exchange().begin_ahead(bytes).ok_or(Errno::EAGAIN)
            };
            let made = begun.and_then(|mut made| {
                let tag = made.number() as u16;
                let mut writer = MessageWriter::new(made.request(), request, tag);
                write(place, &mut writer);
                let length = writer.finish().ok_or(Errno::ENAMETOOLONG)?;
                Ok((made, length))
            });
            match made {
                Ok((made, length)) => batch.set(place, made, length, give_up(place)),
                Err(error) => answers[place] = Some(Err(error)),
            }
        }
        for (place, made) in batch.exchange().into_iter().enumerate() {
            let Some(made) = made else { continue };
            let reply = made.and_then(|made| {
                let reader = &mut Reader::of_reply(made.reply(), request)?;
                Ok(read(place, reader)?)
            });
            answers[place] = Some(reply);
        }
        answers
    }
}

/// Names.
impl SharedNode {
    /// Asks the host for a name in this directory of which nothing is known, and for further ones.
    ///
    /// # Errors
    /// The host's.
    pub(super) fn find_with_others(
        &self,
        this: &Arc<Dentry>,
        name: &[u8],
        asked: &NameQuestion,
    ) -> Result<Arc<Dentry>, Errno> {
        let plan = self.state.plan_names(name);
        let (mut names, mut count) = ([name; BATCH_MAX], 1);
        for other in plan.iter().flat_map(NamePlan::names) {
            names[count] = other;
            count += 1;
        }
        let names = &names[..count];
        let mut found = self.walk_all(names)?;
        let attributes = self.attributes_of_all(&found);
        let mut own = None;
        for (place, answer) in attributes.into_iter().enumerate() {
            let (Some(answer), Some((fid, _))) = (answer, found[place].take()) else { continue };
            if place == 0 {
                own = Some(Self::with_attributes(fid, &asked.question, &answer?)?.entry_at(this, name)?);
            } else if let Ok(answer) = answer {
                self.keep_ahead(this, names[place], (fid, &answer), asked);
            }
        }
        own.ok_or(Errno::ENOENT)
    }

    /// Handles of the files of these names, of which the first must be there.
    fn walk_all(&self, names: &[&[u8]]) -> Result<[Option<(Fid, Qid)>; BATCH_MAX], Errno> {
        let server = self.server();
        let mut fids = [const { None }; BATCH_MAX];
        fids[0] = Some(server.fid()?);
        for place in fids.iter_mut().take(names.len()).skip(1) {
            *place = server.fid().ok();
        }
        // A handle that comes too late has to be given back.
        let number = |place: usize| fids[place].as_ref().map(|fid: &Fid| fid.number);
        let give_up = |place| number(place).map_or(GiveUp::Forget, GiveUp::Tell);
        let write = |place: usize, writer: &mut MessageWriter<'_>| {
            writer.u32(self.fid.number);
            writer.u32(number(place).unwrap_or(NO_FID));
            writer.u16(1);
            writer.string(names.get(place).unwrap_or(&b".".as_slice()));
        };
        let read = |_: usize, reader: &mut Reader<'_>| match reader.u16()? {
            1 => reader.whole_qid().map(Some),
            _ => Ok(None),
        };
        let mut found = [const { None }; BATCH_MAX];
        let is_wanted = |place| number(place).is_some();
        let answers = server.call_all((kind::WALK, SMALL_BYTES), is_wanted, give_up, write, read);
        for (place, answer) in answers.into_iter().enumerate() {
            let (Some(answer), Some(fid)) = (answer, fids[place].take()) else { continue };
            match answer {
                Ok(Some(qid)) => found[place] = Some((fid.live(), qid)),
                Err(error) if place == 0 => return Err(error),
                _ => {}
            }
        }
        if found[0].is_some() { Ok(found) } else { Err(Errno::ENOENT) }
    }

    /// The attributes of files that were found. Those of which something is known already are asked for by themselves.
    fn attributes_of_all(&self, found: &[Option<(Fid, Qid)>; BATCH_MAX]) -> Answers<Attributes> {
        let server = self.server();
        let is_wanted = |place: usize| match &found[place] {
            Some((_, qid)) => place == 0 || !server.knows(qid.number),
            None => false,
        };
        let write = |place: usize, writer: &mut MessageWriter<'_>| {
            let Some((fid, qid)) = &found[place] else { return };
            writer.u32(fid.number);
            writer.u64(asked_attributes(qid.is_directory || server.knows(qid.number)));
        };
        let read = |_: usize, reader: &mut Reader<'_>| Attributes::read(reader);
        server.call_all((kind::GETATTR, SMALL_BYTES), is_wanted, |_| GiveUp::Forget, write, read)
    }

    /// Keeps a name that was asked for ahead, if there is memory for it and nobody has found it meanwhile.
    fn keep_ahead(
        &self,
        this: &Arc<Dentry>,
        name: &[u8],
        (fid, attributes): (Fid, &Attributes),
        asked: &NameQuestion,
    ) {
        let made = Self::with_attributes(fid, &asked.question, attributes);
        let Ok(entry) = made.and_then(|node| node.entry_at(this, name)) else { return };
        let mut is_new = false;
        self.state.answer_name(asked, |names| is_new = names.insert_ahead(name, &entry).unwrap_or(false));
        self.server().count_names(isize::from(is_new));
    }
}

/// Bytes.
impl SharedNode {
    /// Whether the file is to be read when it is opened.
    fn is_to_be_read(&self) -> bool {
        let size = self.state.settled_size(self.server());
        let is_small = size.is_some_and(|size| (1..=SMALL_FILE).contains(&size));
        self.kind == FileType::Regular && is_small && self.state.pages.is_empty() && self.server().has_room()
    }

    /// Opens the file of an entry on the host to be read. If it is small, it is read at once, and further ones of its
    /// directory may be.
    ///
    /// # Errors
    /// The host's; `ESTALE` if it has another file of that name.
    pub(super) fn open_and_read(self: &Arc<Self>, entry: &Arc<Dentry>) -> Result<Fid, Errno> {
        if !self.is_to_be_read() {
            return handle::open(self, linux::O_RDONLY);
        }
        let mut nodes = [const { None }; BATCH_MAX];
        let directory = entry.parent().and_then(|above| self.sibling(&above.node).ok());
        if let Some(directory) = &directory {
            let entries = directory.state.plan_reads();
            let others = entries.iter().flatten().filter_map(|other| self.sibling(&other.node).ok());
            let mut others = others.filter(|other| other.number != self.number && other.is_to_be_read());
            nodes[1..].fill_with(|| others.next());
        }
        nodes[0] = Some(self.clone());
        let mut files = SmallFiles::new(self.server(), nodes)?;
        files.open()?;
        let count = files.read();
        files.ask_generations();
        if let Some(directory) = directory {
            directory.state.add_read_ahead(count);
        }
        let fid = files.fids[0].take().ok_or(Errno::EIO)?;
        if !files.is_confirmed[0] {
            // All that is known is to be about the file that was opened.
            self.ask_after_walk(GiveUp::Forget)?;
        }
        Ok(fid)
    }
}

/// Small files that are opened and read together. The first is the one that somebody wants to open.
struct SmallFiles<'a> {
    server: &'a Arc<Server>,
    nodes: [Option<Arc<SharedNode>>; BATCH_MAX],
    /// Handles of those with which all went well so far.
    fids: [Option<Fid>; BATCH_MAX],
    /// Whether the host has opened the files that are known, as they are known.
    is_confirmed: [bool; BATCH_MAX],
    /// The states of what is kept of them, from before they were opened.
    marks: [Option<PagesMark>; BATCH_MAX],
}

impl<'a> SmallFiles<'a> {
    /// Gets handles.
    fn new(server: &'a Arc<Server>, nodes: [Option<Arc<SharedNode>>; BATCH_MAX]) -> Result<Self, Errno> {
        let mut fids = [const { None }; BATCH_MAX];
        fids[0] = Some(server.fid()?);
        for (fid, _) in fids.iter_mut().zip(&nodes).skip(1).filter(|(_, node)| node.is_some()) {
            *fid = server.fid().ok();
        }
        let number = |place: usize| fids[place].as_ref().map(|fid: &Fid| fid.number);
        let give_up = |place| number(place).map_or(GiveUp::Forget, GiveUp::Tell);
        let write = |place: usize, writer: &mut MessageWriter<'_>| {
            let (Some(number), Some(node)) = (number(place), &nodes[place]) else { return };
            writer.u32(node.fid.number);
            writer.u32(number);
            writer.u16(0);
        };
        let read = |_: usize, reader: &mut Reader<'_>| reader.u16();
        let is_wanted = |place| number(place).is_some();
        let answers = server.call_all((kind::WALK, SMALL_BYTES), is_wanted, give_up, write, read);
        for (place, answer) in answers.into_iter().enumerate() {
            let fid = fids[place].take();
            match answer {
                Some(Ok(_)) => fids[place] = fid.map(Fid::live),
                Some(Err(error)) if place == 0 => return Err(error),
                _ => {}
            }
        }
        let marks = nodes.each_ref().map(|node| node.as_ref().map(|node| node.state.pages.mark()));
        Ok(Self { server, nodes, fids, is_confirmed: [false; BATCH_MAX], marks })
    }

    /// Has the host open the files. The others are left alone if they are not as they are known.
    fn open(&mut self) -> Result<(), Errno> {
        let write = |place: usize, writer: &mut MessageWriter<'_>| {
            let Some(fid) = &self.fids[place] else { return };
            writer.u32(fid.number);
            writer.u32(linux::O_RDONLY);
        };
        let read = |_: usize, reader: &mut Reader<'_>| reader.qid_and_version();
        let is_wanted = |place: usize| self.fids[place].is_some();
        let give_up = |_| GiveUp::Forget;
        let answers = self.server.call_all((kind::OPEN, SMALL_BYTES), is_wanted, give_up, write, read);
        for (place, answer) in answers.into_iter().enumerate() {
            let Some(node) = &self.nodes[place] else { continue };
            match answer {
                Some(Ok((number, version))) if number == node.number => {
                    self.is_confirmed[place] = node.state.is_confirmed(version);
                }
                Some(Ok(_)) if place == 0 => return Err(Errno::ESTALE),
                Some(Err(error)) if place == 0 => return Err(error),
                _ => {}
            }
            if place > 0 && !self.is_confirmed[place] {
                self.fids[place] = None;
            }
        }
        Ok(())
    }

    /// Reads the files that are as they are known. How many of the others were.
    fn read(&self) -> usize {
        let size = |place: usize| -> Option<u64> {
            let known = self.nodes[place].as_ref()?.state.last()?;
            Some(known.size).filter(|size| self.is_confirmed[place] && (1..=SMALL_FILE).contains(size))
        };
        let write = |place: usize, writer: &mut MessageWriter<'_>| {
            let (Some(fid), Some(size)) = (&self.fids[place], size(place)) else { return };
            ask_to_read(writer, fid, 0, size as usize);
        };
        let is_wanted = |place: usize| self.fids[place].is_some() && size(place).is_some();
        let give_up = |_| GiveUp::Forget;
        let bytes = SMALL_FILE as usize + SMALL_BYTES;
        let read = |_: usize, reader: &mut Reader<'_>| FilledPages::<SMALL_PAGES>::read(reader);
        let answers = self.server.call_all((kind::READ, bytes), is_wanted, give_up, write, read);
        let mut count = 0;
        for (place, answer) in answers.into_iter().enumerate() {
            let (Some(Ok(filled)), Some(size)) = (answer, size(place)) else { continue };
            let (Some(node), Some(mark)) = (&self.nodes[place], &self.marks[place]) else { continue };
            let kept = node.state.pages.keep(self.server, mark, 0, filled, size as usize);
            if place > 0 && kept > 0 {
                node.state.is_read_ahead.store(true, Ordering::Relaxed);
                count += 1;
            }
        }
        count
    }

    /// Asks for the generations of the files, without which they are not opened without the host.
    fn ask_generations(&self) {
        let question = self.server.question();
        let wanted = |place: usize| {
            let is_read = self.is_confirmed[place] && self.fids[place].is_some();
            self.nodes[place].as_ref().filter(|node| is_read && !node.state.has_asked_generation())
        };
        let write = |place: usize, writer: &mut MessageWriter<'_>| {
            let Some(node) = wanted(place) else { return };
            writer.u32(node.fid.number);
            writer.u64(asked_attributes(true));
        };
        let is_wanted = |place| wanted(place).is_some();
        let give_up = |_| GiveUp::Forget;
        let read = |_: usize, reader: &mut Reader<'_>| Attributes::read(reader);
        let answers = self.server.call_all((kind::GETATTR, SMALL_BYTES), is_wanted, give_up, write, read);
        for (place, answer) in answers.into_iter().enumerate() {
            if let (Some(Ok(answer)), Some(node)) = (answer, wanted(place)) {
                // If it is another file, whoever uses it finds out.
                if node.accept(&question, &answer).is_ok() {
                    node.state.note_generation_asked(&question);
                }
            }
        }
    }
}
