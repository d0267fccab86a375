//! The guest's state of a file in a shared folder, the same for all nodes of that file.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use heddle_kernel_core::ninep::Attributes;
use heddle_kernel_core::ninep::knowledge::{FileQuestion, Judgement, Knowledge};

use crate::error::Errno;
use crate::fs::Dentry;
use crate::fs::lock::FileLocks;
use crate::fs::pipe::Pipe;
use crate::fs::share::handle::{Handle, LazyHandles};
use crate::fs::share::kept::wall_seconds;
use crate::fs::share::mapped::Mapped;
use crate::fs::share::names::{AHEAD_MAX, Hand, KnownName, NamePlan, NameQuestion, Names, OldName, Taken};
use crate::fs::share::node::SharedNode;
use crate::fs::share::pages::SharedPages;
use crate::fs::share::{Fid, Server};
use crate::memory::space::unmap_shared;
use crate::memory::{MapSource, writeback};
use crate::sched;
use crate::sched::Priority;
use crate::sched::detour::{DetourGuard, DetourLock};
use crate::sync::SpinLock;
use crate::time::now_ns;

/// The state of a file, while it has a node.
pub struct FileState {
    server: Weak<Server>,
    number: u64,
    /// The moment at which it was made.
    pub born: u64,
    /// The advisory locks.
    pub locks: FileLocks,
    /// Open descriptions that may write; below zero, how many programs run from it.
    writers: AtomicI32,
    /// The pipe of a FIFO, while somebody has it open.
    pipe: SpinLock<Weak<Pipe>>,
    mapped: SpinLock<Weak<Mapped>>,
    /// Whoever reads or writes bytes holds it, until the host has answered: others see all of a write or nothing of it,
    /// and what the host has and what is kept of it here change in the same order.
    contents: DetourLock,
    kept: SpinLock<CachedFile>,
    /// The bytes that are kept.
    pub pages: SharedPages,
    pub lazy: SpinLock<LazyHandles>,
    /// The node by which the host was asked last.
    node: SpinLock<Weak<SharedNode>>,
    /// Handles of the file that the host has opened.
    held: AtomicUsize,
    /// How often bytes that were written through mappings were lost; in the lower half the last error, and whether it
    /// was told.
    losses: AtomicU64,
    /// It was read ahead, and nobody has opened it yet.
    pub is_read_ahead: AtomicBool,
}

/// The last loss was told.
const LOSS_TOLD: u64 = 1 << 16;

/// The things kept of a file besides its bytes.
#[derive(Default)]
struct CachedFile {
    attributes: Knowledge,
    names: Names,
    /// Where a symbolic link leads.
    target: Option<Arc<Vec<u8>>>,
    /// Another state has the number, so nobody would find names here to drop them.
    is_parted: bool,
    /// The host was asked for the file's generation.
    is_generation_asked: bool,
}

/// The result of the guest's own change for a name.
pub enum Outcome<'a> {
    /// It is this entry now.
    Present(&'a Arc<Dentry>),
    /// It is gone.
    Absent,
    /// It is another entry than before.
    Other,
    /// Nobody knows.
    Unknown,
}

impl FileState {
    pub fn new(server: &Arc<Server>, number: u64) -> Self {
        Self {
            server: Arc::downgrade(server),
            number,
            born: server.next_moment(),
            locks: FileLocks::new(),
            writers: AtomicI32::new(0),
            pipe: SpinLock::new(Weak::new()),
            mapped: SpinLock::new(Weak::new()),
            contents: DetourLock::new(),
            kept: SpinLock::new(CachedFile::default()),
            pages: SharedPages::new(),
            lazy: SpinLock::new(LazyHandles::default()),
            node: SpinLock::new(Weak::new()),
            held: AtomicUsize::new(0),
            losses: AtomicU64::new(0),
            is_read_ahead: AtomicBool::new(false),
        }
    }

    /// The host has opened the file once more.
    pub fn hold(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes that back.
    pub fn let_go(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }

    /// The host was asked by this node.
    pub fn found_by(&self, node: &Arc<SharedNode>) {
        let before = core::mem::replace(&mut *self.node.lock(), Arc::downgrade(node));
        drop(before);
    }

    /// A node by which the file was found, if there is one and the host does not have the file open, so that another
    /// may have its number by now.
    pub fn unheld_node(&self) -> Option<Arc<SharedNode>> {
        if self.held.load(Ordering::Relaxed) > 0 || self.lazy.lock().is_opened() {
            return None;
        }
        self.node.lock().upgrade()
    }

    /// Whether there are handles by which the file was opened without the host, and the bytes have to stay.
    pub fn is_lazy(&self) -> bool {
        self.lazy.lock().is_pinning()
    }

    /// Bytes that were written through mappings could not be stored, and are lost.
    pub fn note_loss(&self, error: Errno) {
        let next = |losses: u64| Some(((losses >> 32) + 1) << 32 | u64::from(error.0));
        // The closure never refuses.
        let _ = self.losses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// How many losses an open file need not tell of that is opened now: all, but for one that nobody has told of.
    pub fn told_losses(&self) -> u64 {
        let losses = self.losses.load(Ordering::Relaxed);
        let is_untold = losses != 0 && losses & LOSS_TOLD == 0;
        (losses >> 32) - u64::from(is_untold)
    }

    /// The last loss, and how many there were, for an open file that has told of so many.
    pub fn tell_loss(&self, told: u64) -> Option<(u64, Errno)> {
        let losses = self.losses.load(Ordering::Relaxed);
        if losses >> 32 == told {
            return None;
        }
        self.losses.fetch_or(LOSS_TOLD, Ordering::Relaxed);
        Some((losses >> 32, Errno(losses as u16)))
    }

    /// Waits until nobody else reads or writes bytes.
    ///
    /// # Errors
    /// `EINTR`: the thread was killed meanwhile.
    pub fn lock_contents(&self) -> Result<DetourGuard<'_>, Errno> {
        self.contents.lock_killably().ok_or(Errno::EINTR)
    }

    /// The same for what has to be stored, whatever becomes of the thread.
    pub fn lock_contents_to_store(&self) -> DetourGuard<'_> {
        self.contents.lock()
    }

    /// Counts an open description that may write.
    pub fn begin_writing(&self) -> Result<(), Errno> {
        self.count(|count| (count >= 0).then_some(count + 1))
    }

    /// Counts a program that runs from the file.
    pub fn begin_executing(&self) -> Result<(), Errno> {
        self.count(|count| (count <= 0).then_some(count - 1))
    }

    fn count(&self, change: impl FnMut(i32) -> Option<i32>) -> Result<(), Errno> {
        let counted = self.writers.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change);
        counted.map(drop).map_err(|_| Errno::ETXTBSY)
    }

    /// Takes back what was counted last.
    pub fn end_writing(&self) {
        self.writers.fetch_sub(1, Ordering::Release);
    }

    /// The same for a program.
    pub fn end_executing(&self) {
        self.writers.fetch_add(1, Ordering::Release);
    }

    /// The pipe, made if nobody has the FIFO open.
    pub fn pipe(&self) -> Result<Arc<Pipe>, Errno> {
        let mut current = self.pipe.lock();
        if let Some(pipe) = current.upgrade() {
            return Ok(pipe);
        }
        let pipe = Pipe::new(true)?;
        *current = Arc::downgrade(&pipe);
        Ok(pipe)
    }

    /// The source of the file's mappings.
    pub fn source(&self) -> Option<Arc<dyn MapSource>> {
        let source = self.mapped.lock().upgrade()?;
        Some(source)
    }

    /// The source of the file's mappings, if there are any.
    pub fn mapping(&self) -> Option<Arc<Mapped>> {
        self.mapped.lock().upgrade()
    }

    /// A handle that the host has opened, if the file is mapped.
    pub fn mapped_fid(&self) -> Option<Arc<Fid>> {
        let mapped = self.mapped.lock().upgrade()?;
        mapped.reader().opened_fid().cloned()
    }

    /// This is the source of the file's mappings from now on, unless there is another.
    pub fn adopt(&self, source: &Arc<Mapped>) {
        let mut mapped = self.mapped.lock();
        if mapped.strong_count() == 0 {
            *mapped = Arc::downgrade(source);
        }
    }

    /// The source of the file's mappings, made for the first of them.
    pub fn map(
        &self,
        node: &Arc<SharedNode>,
        handle: &Arc<Handle>,
        may_write: bool,
    ) -> Result<Arc<dyn MapSource>, Errno> {
        // A mapped file must stay to be had, whatever becomes of the name.
        handle.fid()?;
        let mut mapped = self.mapped.lock();
        let known = mapped.upgrade();
        let is_new = known.is_none();
        let source = match known {
            Some(source) => source,
            None => Mapped::new(node.clone(), handle.clone())?,
        };
        *mapped = Arc::downgrade(&source);
        drop(mapped);
        if may_write {
            source.store_by(handle);
        }
        let source: Arc<dyn MapSource> = source;
        if is_new {
            writeback::register(&source)?;
        }
        Ok(source)
    }
}

impl FileState {
    /// The attributes, if no question is needed.
    pub fn current(&self, server: &Server) -> Option<Attributes> {
        self.kept.lock().attributes.current(&server.horizon()).copied()
    }

    /// Whether the names that are kept, and the length, need no question.
    pub fn is_current(&self, server: &Server) -> bool {
        self.kept.lock().attributes.is_current_but_for_own_changes(&server.horizon())
    }

    /// Whether a file that the host has just found, of this version, is this one as it is known.
    pub fn is_confirmed(&self, version: u32) -> bool {
        self.kept.lock().attributes.is_confirmed(version)
    }

    /// The length, if no question is needed.
    pub fn current_size(&self, server: &Server) -> Option<u64> {
        let kept = self.kept.lock();
        let is_current = kept.attributes.is_current_but_for_own_changes(&server.horizon());
        kept.attributes.last().filter(|_| is_current).map(|known| known.size)
    }

    /// The length, if no question is needed and the file has not been changed or made lately.
    pub fn settled_size(&self, server: &Server) -> Option<u64> {
        let kept = self.kept.lock();
        let is_settled = kept.attributes.is_settled();
        kept.attributes.current(&server.horizon()).filter(|_| is_settled).map(|known| known.size)
    }

    /// The attributes as they were last.
    pub fn last(&self) -> Option<Attributes> {
        self.kept.lock().attributes.last().copied()
    }

    /// Whether an answer is about the file that is known, for sure.
    pub fn is_unchanged(&self, answer: &Attributes) -> bool {
        self.kept.lock().attributes.is_unchanged(answer)
    }

    /// Whether a question about the file is to be one for its generation as well.
    pub fn wants_generation(&self) -> bool {
        self.kept.lock().attributes.wants_generation()
    }

    /// Adds the generation to an answer to a question that was not for it. Whether the host has to be asked for it.
    pub fn lacks_generation(&self, answer: &mut Attributes) -> bool {
        self.kept.lock().attributes.lacks_generation(answer)
    }

    /// Whether the host was asked for the file's generation.
    pub fn has_asked_generation(&self) -> bool {
        self.kept.lock().is_generation_asked
    }

    /// The host has answered a question for the generation, which counts if the answer was kept.
    pub fn note_generation_asked(&self, question: &FileQuestion) {
        let mut kept = self.kept.lock();
        kept.is_generation_asked |= kept.attributes.asked_ns() == question.asked_ns;
    }

    /// The attributes, if no question is needed about type, permissions and owners.
    pub fn access(&self, server: &Server) -> Option<Attributes> {
        self.kept.lock().attributes.access(&server.horizon()).copied()
    }

    /// Whether the host has answered a question about the file within this time.
    pub fn was_heard_of(&self, within_ns: u64) -> bool {
        let asked_ns = self.kept.lock().attributes.asked_ns();
        now_ns().saturating_sub(asked_ns) < within_ns
    }

    /// Keeps the server's answer.
    pub fn learn(&self, question: &FileQuestion, answer: &Attributes) -> Judgement {
        let mut kept = self.kept.lock();
        let has_generation =
            |kept: &CachedFile| kept.attributes.last().is_some_and(|of| of.generation.is_some());
        let had_generation = has_generation(&kept);
        let judgement = kept.attributes.learn(question, answer);
        if had_generation && !has_generation(&kept) {
            kept.is_generation_asked = false;
        }
        if judgement == Judgement::Same {
            return Judgement::Same;
        }
        let old = (kept.names.distrust(), kept.target.take());
        drop(kept);
        drop(old);
        self.pages.distrust();
        // Not upgraded here: the end of the last mapping stores what was written, for which the caller may hold a lock.
        let mapped = self.mapped.lock().clone();
        if mapped.strong_count() > 0 {
            // Whoever has old pages mapped asks for them anew. Without memory for that they go on with the old ones.
            let _ = sched::spawn(Priority::KERNEL, async move {
                if let Some(source) = mapped.upgrade() {
                    let source: Arc<dyn MapSource> = source;
                    unmap_shared(&source, 0..u64::MAX).await;
                }
            });
        }
        Judgement::Changed
    }

    /// Where a symbolic link leads, if that needs no question.
    pub fn target(&self, server: &Server) -> Option<Arc<Vec<u8>>> {
        let kept = self.kept.lock();
        let is_current = kept.attributes.is_current_but_for_own_changes(&server.horizon());
        kept.target.clone().filter(|_| is_current)
    }

    /// Keeps the answer to a question where a symbolic link leads.
    pub fn set_target(&self, target: &Arc<Vec<u8>>) {
        let old = self.kept.lock().target.replace(target.clone());
        drop(old);
    }

    /// The guest asks for other permissions or owners.
    pub fn change_access(&self) {
        self.kept.lock().attributes.change_access();
    }

    /// Notes a change by the guest, before it is asked for and when it is done; the moment.
    pub fn change(&self, server: &Server) -> u64 {
        let moment = server.next_moment();
        self.kept.lock().attributes.change(moment, wall_seconds());
        moment
    }

    /// The guest has made the file this long. An answer to an earlier question does not count from here on.
    pub fn set_size(&self, server: &Server, size: u64) {
        let mut kept = self.kept.lock();
        kept.attributes.change(server.next_moment(), wall_seconds());
        kept.attributes.set_size(size);
    }

    /// The guest has written up to this place, likewise.
    pub fn grow(&self, server: &Server, end: u64) {
        let mut kept = self.kept.lock();
        kept.attributes.change(server.next_moment(), wall_seconds());
        kept.attributes.grow(end);
    }

    /// The file has a name more, or one less.
    pub fn count_name(&self, server: &Server, more: bool) {
        let moment = server.next_moment();
        let mut kept = self.kept.lock();
        kept.attributes.change(moment, wall_seconds());
        kept.attributes.count_name(more);
    }

    /// The next use is to ask.
    pub fn expire(&self, server: &Server) {
        let moment = server.next_moment();
        self.kept.lock().attributes.expire(moment);
    }

    /// Relies on nothing any more: a change was asked for, and may happen at any time.
    pub fn doubt(&self, server: &Server) {
        self.doubt_before(server.next_moment());
    }

    /// Relies on no answer to a question that was put before this moment.
    pub fn doubt_before(&self, moment: u64) {
        let mut kept = self.kept.lock();
        kept.attributes.forget(moment);
        kept.is_generation_asked = false;
        let listing = kept.names.distrust();
        drop(kept);
        drop(listing);
    }
}

/// Names.
impl FileState {
    /// The state of a name, as far as it is kept.
    pub fn find_name(&self, name: &[u8]) -> KnownName {
        self.kept.lock().names.find(name)
    }

    /// Keeps no further names. Whether there are any.
    pub fn part(&self) -> bool {
        let mut kept = self.kept.lock();
        kept.is_parted = true;
        kept.names.has_any()
    }

    /// The listing, if it is kept.
    pub fn listing(&self) -> Option<Arc<Vec<u8>>> {
        self.kept.lock().names.listing()
    }

    /// A question about a name.
    pub fn ask_name(&self, server: &Server) -> NameQuestion {
        let question = server.question();
        NameQuestion { question, generation: self.kept.lock().names.generation() }
    }

    /// Keeps an answer, unless the directory has changed since the question.
    pub fn answer_name(&self, asked: &NameQuestion, update: impl FnOnce(&mut Names)) {
        let mut kept = self.kept.lock();
        let is_kept = kept.attributes.changed_at() <= asked.question.begun
            && kept.names.generation() == asked.generation
            && !kept.is_parted;
        if is_kept {
            update(&mut kept.names);
        }
    }

    /// Further names to ask for with one that is not known.
    pub fn plan_names(&self, name: &[u8]) -> Option<NamePlan> {
        self.kept.lock().names.plan_names(name)
    }

    /// Entries of files that may be read with one of which no bytes are kept.
    pub fn plan_reads(&self) -> [OldName; AHEAD_MAX] {
        self.kept.lock().names.plan_reads()
    }

    /// So many files were read ahead.
    pub fn add_read_ahead(&self, count: usize) {
        self.kept.lock().names.read_ahead().add(count);
    }

    /// A file that was read ahead is opened.
    pub fn use_read_ahead(&self) {
        self.kept.lock().names.read_ahead().use_one();
    }

    /// Ends a change of a name in this directory that began at a moment. If others changed the directory meanwhile,
    /// nobody knows whose change came last. The moment of the end; zero in that case.
    pub fn changed_name(&self, server: &Server, began: u64, name: &[u8], outcome: Outcome<'_>) -> u64 {
        let moment = server.next_moment();
        let mut kept = self.kept.lock();
        let is_alone = kept.attributes.changed_at() == began;
        kept.attributes.change(moment, wall_seconds());
        let listing = kept.names.set_listing(None);
        let (mut old, mut count, mut is_kept) = (None, 0, true);
        // The entry of a name stays as long as it may be right: announcements find the file by it.
        if !matches!(outcome, Outcome::Unknown) {
            old = kept.names.remove(name);
            count -= isize::from(old.is_some());
        }
        match outcome {
            Outcome::Present(_) if kept.is_parted => is_kept = false,
            Outcome::Present(entry) => {
                is_kept = kept.names.insert(name, entry.clone()).is_ok();
                count += isize::from(is_kept);
            }
            // One that is not kept is asked for.
            Outcome::Absent => _ = kept.names.insert_absent(name),
            Outcome::Other | Outcome::Unknown => {}
        }
        if !is_alone || matches!(outcome, Outcome::Unknown) {
            kept.names.distrust_name(name);
        }
        drop(kept);
        server.count_names(count);
        if !is_kept {
            server.has_lost_name();
        }
        drop((listing, old.take()));
        if is_alone { moment } else { 0 }
    }

    /// Somebody else may have changed a name in this directory.
    pub fn distrust_name(&self, name: &[u8]) {
        let mut kept = self.kept.lock();
        kept.names.distrust_name(name);
        let listing = kept.names.set_listing(None);
        drop(kept);
        drop(listing);
    }

    /// Forgets an entry, if it is still the one of its name.
    pub fn forget_entry(&self, server: &Server, entry: &Arc<Dentry>) {
        let old = self.kept.lock().names.remove_entry(entry);
        server.count_names(-isize::from(old.is_some()));
        drop(old);
    }

    /// Forgets some names that nobody uses; how many they were, and whether there may be more.
    pub fn forget_names(&self, server: &Server, forced: bool, hand: &mut Hand) -> (usize, bool) {
        let Taken { entries, are_more } = self.kept.lock().names.take_some(forced, hand);
        let count = entries.iter().flatten().count();
        server.count_names(-(count as isize));
        (count, are_more)
    }

    /// Forgets a name, whoever uses its entry; whether there was one.
    pub fn forget_any_name(&self, server: &Server) -> bool {
        let old: OldName = self.kept.lock().names.pop();
        server.count_names(-isize::from(old.is_some()));
        old.is_some()
    }

    /// Drops some of the bytes that are kept; how many pages, and whether there may be more. A file that was opened
    /// without the host keeps its bytes, which may be had nowhere else.
    pub fn forget_pages(&self, server: &Server, forced: bool) -> (usize, bool) {
        let lazy = self.lazy.lock();
        if lazy.is_pinning() { (0, false) } else { self.pages.take_some(server, forced) }
    }
}

impl Drop for FileState {
    fn drop(&mut self) {
        let Some(server) = self.server.upgrade() else { return };
        self.pages.hand_over(&server);
        server.forget_state(self.number);
    }
}
