//! Looking through keyrings.

use crate::keys::{DEPTH_MAX, Key, KeyError, KeyKind, KeyUser, Keys, Reached, Serial, rights};

/// The aim of a search.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// This key, whatever its state.
    Serial(Serial),
    /// A key of this type and description that can be used.
    Named(KeyKind, &'a [u8]),
}

impl Wanted<'_> {
    /// Whether a key is the one; an error if it is and cannot be used.
    fn is<P>(self, key: &Key<P>, who: &KeyUser<'_>, is_possessed: bool) -> Result<bool, KeyError> {
        match self {
            Self::Serial(serial) if key.serial() != serial => return Ok(false),
            Self::Serial(_) => {}
            Self::Named(kind, description) => {
                if !key.is(kind, description) {
                    return Ok(false);
                }
                // An invalid key counts as revoked here.
                key.check(who.now_s).map_err(|error| match error {
                    KeyError::NoKey => KeyError::Revoked,
                    error => error,
                })?;
            }
        }
        if key.allows(who, is_possessed, rights::SEARCH) { Ok(true) } else { Err(KeyError::Access) }
    }
}

/// A keyring that a search is in, and the link to look at next.
type Level = (Serial, usize);

impl<P: Clone> Keys<P> {
    /// Searches a keyring and those in it, as far as whoever asks may.
    ///
    /// # Errors
    /// [`KeyError::NotDirectory`], [`KeyError::Access`]; [`KeyError::NoKey`] if nothing is found, or why what was found
    /// cannot be used.
    pub fn search(
        &mut self,
        top: Reached,
        wanted: Wanted<'_>,
        who: &KeyUser<'_>,
    ) -> Result<Serial, KeyError> {
        let ring = self.key(top.serial)?;
        if ring.kind != KeyKind::Keyring {
            return Err(KeyError::NotDirectory);
        }
        if !ring.allows(who, top.is_possessed, rights::SEARCH) {
            return Err(KeyError::Access);
        }
        if wanted.is(ring, who, top.is_possessed)? {
            return Ok(top.serial);
        }
        self.searches = self.searches.wrapping_add(1);
        let mut failed = KeyError::NoKey;
        let mut levels: [Level; DEPTH_MAX + 1] = [(0, 0); DEPTH_MAX + 1];
        let mut depth = 1;
        levels[0] = (top.serial, 0);
        if let Some(found) = self.search_in(top.serial, wanted, who, top.is_possessed, &mut failed) {
            return Ok(found);
        }
        while depth > 0 {
            let (ring, next) = levels[depth - 1];
            let Some(&link) = self.key(ring)?.links.get(next) else {
                depth -= 1;
                continue;
            };
            levels[depth - 1].1 += 1;
            let search = self.searches;
            let inner = self.key_mut(link)?;
            let is_known = inner.visited.0 == search;
            // Seen less deep, more of what is in it can be reached.
            let is_searched = inner.kind == KeyKind::Keyring
                && (!is_known || depth < inner.visited.1)
                && inner.allows(who, top.is_possessed, rights::SEARCH);
            if !is_searched || depth > DEPTH_MAX {
                continue;
            }
            inner.visited = (search, depth);
            let mut look = || self.search_in(link, wanted, who, top.is_possessed, &mut failed);
            if let Some(found) = (!is_known).then(&mut look).flatten() {
                return Ok(found);
            }
            levels[depth] = (link, 0);
            depth += 1;
        }
        Err(failed)
    }

    /// Looks at the links of one keyring.
    fn search_in(
        &self,
        ring: Serial,
        wanted: Wanted<'_>,
        who: &KeyUser<'_>,
        is_possessed: bool,
        failed: &mut KeyError,
    ) -> Option<Serial> {
        let ring = self.key(ring).ok().filter(|ring| !ring.is_revoked && !ring.is_invalid)?;
        ring.links.iter().copied().find(|&link| {
            let Ok(key) = self.key(link) else { return false };
            wanted.is(key, who, is_possessed).unwrap_or_else(|error| {
                *failed = error;
                false
            })
        })
    }

    /// Searches the keyrings of whoever asks, one after the other.
    ///
    /// # Errors
    /// As [`Keys::search`].
    pub fn search_anchors(&mut self, wanted: Wanted<'_>, who: &KeyUser<'_>) -> Result<Serial, KeyError> {
        let mut failed = KeyError::NoKey;
        for &serial in who.anchors.iter().flatten() {
            match self.search(Reached { serial, is_possessed: true }, wanted, who) {
                Ok(found) => return Ok(found),
                Err(KeyError::NoKey) => {}
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// A keyring by its description, for whoever may search it.
    #[must_use]
    pub fn ring_named(&self, description: &[u8], who: &KeyUser<'_>) -> Option<Serial> {
        let mut rings = self.slots.iter().flatten().filter(|key| key.is(KeyKind::Keyring, description));
        let is_open =
            |key: &Key<P>| !key.is_revoked && !key.is_invalid && key.allows(who, false, rights::SEARCH);
        rings.find(|key| is_open(key)).map(|key| key.serial())
    }

    /// Checks that a keyring may be linked to another: that there comes no circle of it, and no nesting too deep.
    pub(super) fn check_nesting(&mut self, outer: Serial, inner: Serial) -> Result<(), KeyError> {
        self.searches = self.searches.wrapping_add(1);
        let mut levels: [Level; DEPTH_MAX + 1] = [(0, 0); DEPTH_MAX + 1];
        let mut depth = 1;
        levels[0] = (inner, 0);
        if inner == outer {
            return Err(KeyError::Deadlock);
        }
        while depth > 0 {
            let (ring, next) = levels[depth - 1];
            // A circle is told before a nesting too deep, as in Linux.
            if next == 0 && self.key(ring)?.links.contains(&outer) {
                return Err(KeyError::Deadlock);
            }
            let Some(&link) = self.key(ring)?.links.get(next) else {
                depth -= 1;
                continue;
            };
            levels[depth - 1].1 += 1;
            let search = self.searches;
            let inner = self.key_mut(link)?;
            // Only at a greater depth is there news in it, so no keyring is walked more than `DEPTH_MAX` times.
            let is_known = inner.visited.0 == search && inner.visited.1 >= depth;
            if inner.kind != KeyKind::Keyring || is_known {
                continue;
            }
            if depth > DEPTH_MAX {
                return Err(KeyError::TooDeep);
            }
            inner.visited = (search, depth);
            levels[depth] = (link, 0);
            depth += 1;
        }
        Ok(())
    }
}
