//! The keyrings of processes and users, keyrings(7).
//!
//! All keys are in one table ([`heddle_kernel_core::keys`]). Here is who holds which of them: a process its session's
//! keyring and its own, and one for each thread; each user two, made when they are first asked for.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, Ordering};
use heddle_kernel_core::keys::{KeyError, KeyKind, KeyLimits, KeyUser, Keys, NewKey, Quota, Reached, Serial};
use smallvec::SmallVec;

use crate::error::Errno;
use crate::memory::fallible;
use crate::process::{Credentials, Process, Thread};
use crate::sync::SpinLock;

/// The table; a payload is shared with whoever reads it.
pub type KeyTable = Keys<Arc<Vec<u8>>>;

/// All keys.
pub static KEYS: SpinLock<KeyTable> = SpinLock::new(Keys::new());
/// The keyrings of users: user, keyring, session's keyring.
static USERS: SpinLock<Vec<(u32, Serial, Serial)>> = SpinLock::new(Vec::new());

/// Keys and bytes of a user, and of the superuser: `/proc/sys/kernel/keys`.
pub static KEYS_LIMIT: AtomicU32 = AtomicU32::new(200);
pub static BYTES_LIMIT: AtomicU32 = AtomicU32::new(20_000);
pub static ROOT_KEYS_LIMIT: AtomicU32 = AtomicU32::new(1_000_000);
pub static ROOT_BYTES_LIMIT: AtomicU32 = AtomicU32::new(25_000_000);

/// The group of keyrings that have none, and the number that programs see for it.
const NO_GROUP: u32 = u32::MAX;
const OVERFLOW_GROUP: u32 = 65_534;

/// A key's group as programs see it.
#[must_use]
pub const fn shown_group(gid: u32) -> u32 {
    if gid == NO_GROUP { OVERFLOW_GROUP } else { gid }
}

/// Permissions of the keyrings that come by themselves: all for the possessor, and for the user …
const RING_OF_THREAD: u32 = 0x3f01_0000;
const RING_OF_SESSION: u32 = 0x3f03_0000;
const RING_OF_USER: u32 = 0x1f3f_0000;
/// … and of a session that a program joins.
const RING_JOINED: u32 = 0x3f13_0000;

/// The keyrings of a process.
#[derive(Default)]
pub struct ProcessKeys {
    session: Option<Serial>,
    process: Option<Serial>,
    threads: Vec<(Weak<Thread>, Serial)>,
    /// Where `request_key` puts what it makes: `KEY_REQKEY_DEFL_`.
    pub default_ring: u32,
}

impl Drop for ProcessKeys {
    fn drop(&mut self) {
        let own = [self.session, self.process].into_iter().flatten();
        for serial in own.chain(self.threads.iter().map(|&(_, serial)| serial)) {
            KEYS.lock().release(serial);
        }
    }
}

/// A keyring that belongs to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of keyrings(7)")]
pub enum OwnRing {
    Thread,
    Process,
    Session,
    User,
    UserSession,
}

/// The error that a program sees.
#[must_use]
pub const fn errno(error: KeyError) -> Errno {
    match error {
        KeyError::Access => Errno::EACCES,
        KeyError::NoKey => Errno::ENOKEY,
        KeyError::Revoked => Errno::EKEYREVOKED,
        KeyError::Expired => Errno::EKEYEXPIRED,
        KeyError::NotDirectory => Errno::ENOTDIR,
        KeyError::NoEntry => Errno::ENOENT,
        KeyError::Invalid => Errno::EINVAL,
        KeyError::Quota => Errno::EDQUOT,
        KeyError::Deadlock => Errno::EDEADLK,
        KeyError::TooDeep => Errno::ELOOP,
        KeyError::TableFull => Errno::ENFILE,
        KeyError::NotSupported => Errno::EOPNOTSUPP,
        KeyError::NoMemory => Errno::ENOMEM,
    }
}

/// The limits of users as they are now.
#[must_use]
pub fn limits() -> KeyLimits {
    let quota = |keys: &AtomicU32, bytes: &AtomicU32| Quota {
        keys: keys.load(Ordering::Relaxed),
        bytes: bytes.load(Ordering::Relaxed),
    };
    KeyLimits { root: quota(&ROOT_KEYS_LIMIT, &ROOT_BYTES_LIMIT), others: quota(&KEYS_LIMIT, &BYTES_LIMIT) }
}

/// The caller of an operation on keys.
pub struct KeyCaller<'a> {
    thread: &'a Arc<Thread>,
    /// Its credentials.
    pub credentials: Arc<Credentials>,
    anchors: [Option<Serial>; 3],
}

/// A thread as it was when it began to look at keys.
pub struct KeyViewer {
    credentials: Arc<Credentials>,
    anchors: [Option<Serial>; 3],
}

impl KeyViewer {
    /// As the table sees it.
    #[must_use]
    pub fn user(&self) -> KeyUser<'_> {
        key_user(&self.credentials, self.anchors)
    }
}

fn key_user(credentials: &Credentials, anchors: [Option<Serial>; 3]) -> KeyUser<'_> {
    KeyUser {
        uid: credentials.fsuid,
        gid: credentials.fsgid,
        groups: credentials.supplementary_groups(),
        anchors,
        now_s: now_s(),
    }
}

impl<'a> KeyCaller<'a> {
    /// A thread as it is now.
    #[must_use]
    pub fn new(thread: &'a Arc<Thread>) -> Self {
        let credentials = thread.credentials();
        let mut anchors = [None; 3];
        if let Some(keys) = thread.process.keys().as_ref() {
            anchors = [keys.of_thread(thread), keys.process, keys.session];
        }
        let user = anchors[2].is_none().then(|| user_rings(credentials.uid)).flatten();
        anchors[2] = anchors[2].or_else(|| user.map(|(_, session)| session));
        Self { thread, credentials, anchors }
    }

    /// As the table sees it.
    #[must_use]
    pub fn user(&self) -> KeyUser<'_> {
        key_user(&self.credentials, self.anchors)
    }

    /// The caller as one who only looks at keys, later on too.
    #[must_use]
    pub fn viewer(self) -> KeyViewer {
        KeyViewer { credentials: self.credentials, anchors: self.anchors }
    }

    fn new_ring(&self, name: &[u8], gid: u32, permissions: u32) -> Result<Serial, Errno> {
        let uid = self.credentials.uid;
        let new = NewKey { kind: KeyKind::Keyring, description: name, uid, gid, permissions };
        KEYS.lock().make(&new, None, limits()).map_err(errno)
    }

    /// A keyring for a session, which nobody has joined.
    ///
    /// # Errors
    /// `EDQUOT`, `ENFILE`, `ENOMEM`.
    pub fn new_session(&self, name: Option<&[u8]>) -> Result<Serial, Errno> {
        match name {
            Some(name) => self.new_ring(name, self.credentials.gid, RING_JOINED),
            None => self.new_ring(b"_ses", self.credentials.gid, RING_OF_SESSION),
        }
    }

    /// One of the caller's keyrings. Without `make`, only one that is there; but a session always has one.
    ///
    /// # Errors
    /// `ENOKEY`, `EDQUOT`, `ENFILE`, `ENOMEM`.
    pub fn own(&mut self, ring: OwnRing, make: bool) -> Result<Serial, Errno> {
        let kept = match ring {
            OwnRing::Thread => self.anchors[0],
            OwnRing::Process => self.anchors[1],
            OwnRing::Session => self.thread.process.keys().as_ref().and_then(|keys| keys.session),
            OwnRing::User => return self.make_user_rings().map(|(ring, _)| ring),
            OwnRing::UserSession => return self.make_user_rings().map(|(_, ring)| ring),
        };
        // A session of its own is made when somebody means to change the one that all of a user's sessions share.
        let is_shared = |session| USERS.lock().iter().any(|&(_, _, shared)| shared == session);
        match kept {
            Some(kept) if ring == OwnRing::Session && make && is_shared(kept) => {}
            Some(kept) => return Ok(kept),
            None if ring == OwnRing::Session => {
                let shared = self.make_user_rings()?.1;
                if !make {
                    KEYS.lock().hold(shared).map_err(errno)?;
                    return self.install(ring, None, shared);
                }
            }
            None if !make => return Err(Errno::ENOKEY),
            None => {}
        }
        let gid = self.credentials.gid;
        let made = match ring {
            OwnRing::Thread => self.new_ring(b"_tid", gid, RING_OF_THREAD)?,
            OwnRing::Process => self.new_ring(b"_pid", gid, RING_OF_THREAD)?,
            _ => self.new_session(None)?,
        };
        self.install(ring, kept, made)
    }

    /// Makes a keyring, of which the caller holds a reference, the one of the process's session.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn join(&mut self, session: Serial) -> Result<Serial, Errno> {
        let old = self.thread.process.change_keys(|keys| Ok(keys.session.replace(session)));
        self.installed(old, session)
    }

    /// Makes a keyring, of which the caller holds a reference, one of its own, unless another thread has put one in the
    /// place of `kept` meanwhile: then that one is the answer.
    fn install(&mut self, ring: OwnRing, kept: Option<Serial>, made: Serial) -> Result<Serial, Errno> {
        let old = self.thread.process.change_keys(|keys| {
            let place = match ring {
                OwnRing::Session => &mut keys.session,
                OwnRing::Process => &mut keys.process,
                _ => return keys.set_thread(self.thread, made),
            };
            Ok(if *place == kept { place.replace(made) } else { Some(made) })
        });
        self.installed(old, made)?;
        Ok(match ring {
            OwnRing::Thread => self.anchors[0],
            OwnRing::Process => self.anchors[1],
            _ => self.anchors[2],
        }
        .unwrap_or(made))
    }

    /// Lets go of the keyring that is out of use, which is the new one if it could not be kept.
    fn installed(&mut self, old: Result<Option<Serial>, Errno>, new: Serial) -> Result<Serial, Errno> {
        let old = old.inspect_err(|_| KEYS.lock().release(new))?;
        if let Some(old) = old {
            KEYS.lock().release(old);
        }
        *self = Self::new(self.thread);
        Ok(new)
    }

    /// The two keyrings of the caller's user.
    fn make_user_rings(&mut self) -> Result<(Serial, Serial), Errno> {
        let uid = self.credentials.uid;
        if let Some(rings) = user_rings(uid) {
            return Ok(rings);
        }
        let name = |prefix: &str| {
            let mut name = Name::default();
            let _ = write!(name, "{prefix}{uid}");
            self.new_ring(&name.0, NO_GROUP, RING_OF_USER)
        };
        let ring = name("_uid.")?;
        let session = name("_uid_ses.").inspect_err(|_| KEYS.lock().release(ring))?;
        let forget = || {
            let mut keys = KEYS.lock();
            keys.release(session);
            keys.release(ring);
        };
        let linked = KEYS.lock().link(session, ring, limits());
        linked.map_err(errno).inspect_err(|_| forget())?;
        let mut users = USERS.lock();
        if let Some(&(_, ring, session)) = users.iter().find(|user| user.0 == uid) {
            drop(users);
            forget();
            return Ok((ring, session));
        }
        let kept = fallible::try_push(&mut users, (uid, ring, session));
        drop(users);
        kept.inspect_err(|_| forget())?;
        *self = Self::new(self.thread);
        Ok((ring, session))
    }

    /// The key that a number names, one of the special ones or a serial, without a look at its state.
    ///
    /// # Errors
    /// `EINVAL`, `ENOKEY`, and those of [`KeyCaller::own`].
    pub fn reach(&mut self, id: i32, make: bool) -> Result<Reached, Errno> {
        let ring = match id {
            -1 => OwnRing::Thread,
            -2 => OwnRing::Process,
            -3 => OwnRing::Session,
            -4 => OwnRing::User,
            -5 => OwnRing::UserSession,
            -8 | -7 => return Err(Errno::ENOKEY),
            ..=0 => return Err(Errno::EINVAL),
            serial => return KEYS.lock().reach(serial, &self.user()).map_err(errno),
        };
        Ok(Reached { serial: self.own(ring, make)?, is_possessed: true })
    }
}

/// A short text.
#[derive(Default)]
struct Name(SmallVec<[u8; 24]>);

impl Write for Name {
    #[expect(clippy::disallowed_methods, reason = "there is room")]
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.0.try_reserve(text.len()).map_err(|_| core::fmt::Error)?;
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Seconds of real time.
#[must_use]
pub fn now_s() -> u64 {
    crate::time::Clock::Realtime.now_ns() / 1_000_000_000
}

fn user_rings(uid: u32) -> Option<(Serial, Serial)> {
    USERS.lock().iter().find(|user| user.0 == uid).map(|&(_, ring, session)| (ring, session))
}

impl ProcessKeys {
    /// The keyring of the session, if there is one.
    #[must_use]
    pub const fn session(&self) -> Option<Serial> {
        self.session
    }

    fn of_thread(&self, thread: &Arc<Thread>) -> Option<Serial> {
        let own = self.threads.iter().find(|(owner, _)| core::ptr::eq(owner.as_ptr(), Arc::as_ptr(thread)));
        own.map(|&(_, serial)| serial)
    }

    /// Gives a thread a keyring; returns one that nobody has any more.
    fn set_thread(&mut self, thread: &Arc<Thread>, serial: Serial) -> Result<Option<Serial>, Errno> {
        let entry = (Arc::downgrade(thread), serial);
        let is_free = |(owner, _): &(Weak<Thread>, Serial)| {
            owner.strong_count() == 0 || core::ptr::eq(owner.as_ptr(), Arc::as_ptr(thread))
        };
        if let Some(place) = self.threads.iter().position(is_free) {
            let (_, old) = core::mem::replace(&mut self.threads[place], entry);
            return Ok(Some(old));
        }
        fallible::try_push(&mut self.threads, entry)?;
        Ok(None)
    }
}

impl Process {
    /// Changes the keyrings of the process, which have a place from then on.
    ///
    /// # Errors
    /// `ENOMEM`, and the error of `change`.
    pub fn change_keys<R>(
        &self,
        change: impl FnOnce(&mut ProcessKeys) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let spare = fallible::try_box(ProcessKeys::default())?;
        change(self.keys().get_or_insert(spare))
    }

    /// A new process has its parent's session.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn inherit_keys(&self, parent: &Self) -> Result<(), Errno> {
        // It is held before another thread can join another session and let go of this one.
        let inherited = parent.keys().as_ref().map(|keys| {
            let held = keys.session.filter(|&session| KEYS.lock().hold(session).is_ok());
            (held, keys.default_ring)
        });
        let Some((held, default_ring)) = inherited else { return Ok(()) };
        let kept = self.change_keys(|keys| {
            (keys.session, keys.default_ring) = (held, default_ring);
            Ok(())
        });
        kept.inspect_err(|_| {
            if let Some(session) = held {
                KEYS.lock().release(session);
            }
        })
    }

    /// A new program has the session and nothing else.
    pub fn drop_program_keys(&self) {
        let mut old = ProcessKeys::default();
        if let Some(keys) = self.keys().as_mut() {
            old.process = keys.process.take();
            old.threads = core::mem::take(&mut keys.threads);
        }
        drop(old);
    }
}

/// The place of [`ProcessKeys`] in a process.
pub type KeysPlace = Option<Box<ProcessKeys>>;
