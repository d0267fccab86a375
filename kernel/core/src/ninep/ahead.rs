//! How many names of a directory a client asks for at once, when it goes through one.
//!
//! A client that looks at each file of a directory asks as many questions as there are files, one after the other, and
//! each costs two parties a wake-up. So the client asks about further names in the same breath, in the order in which
//! the directory lists them. One that looks at a few files only does not get much that it does not need: as much as it
//! has looked at, and [`SPARE`] more.

/// How many files may have been asked for that nobody needed, beyond those that somebody did need.
const SPARE: usize = 16;

/// The progress through one directory's listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedAhead {
    /// Files of the directory that somebody needed.
    needed: usize,
    /// Files that were asked for ahead, and that nobody has needed yet.
    unused: usize,
    /// Where in the listing the next one comes, in bytes.
    pub at: usize,
}

impl AskedAhead {
    /// Somebody needs a file that was asked for ahead.
    pub const fn use_one(&mut self) {
        self.unused = self.unused.saturating_sub(1);
        self.needed = self.needed.saturating_add(1);
    }

    /// Somebody needs a file that nobody asked for; how many to ask for with it, at most.
    pub fn miss(&mut self, most: usize) -> usize {
        let first = self.needed.saturating_mul(2);
        let spare = self.needed.saturating_add(SPARE).saturating_sub(self.unused);
        self.needed = self.needed.saturating_add(1);
        most.min(first).min(spare)
    }

    /// So many were asked for ahead.
    pub const fn add(&mut self, count: usize) {
        self.unused = self.unused.saturating_add(count);
    }

    /// One that nobody needed is no longer known.
    pub const fn lose_one(&mut self) {
        self.unused = self.unused.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::AskedAhead;

    /// Questions of a client that needs the files of these numbers of a directory with so many, and files that were
    /// asked for.
    fn go(files: usize, needed: impl Iterator<Item = usize>) -> (usize, usize) {
        let (mut ahead, mut known, mut unused) =
            (AskedAhead::default(), vec![false; files], vec![false; files]);
        let (mut questions, mut asked) = (0, 0);
        for number in needed {
            if known[number] {
                if core::mem::take(&mut unused[number]) {
                    ahead.use_one();
                }
                continue;
            }
            let more = ahead.miss(11);
            (known[number], questions, asked) = (true, questions + 1, asked + 1);
            let mut added = 0;
            while added < more && ahead.at < files {
                if !known[ahead.at] {
                    (known[ahead.at], unused[ahead.at]) = (true, true);
                    added += 1;
                }
                ahead.at += 1;
            }
            ahead.add(added);
            asked += added;
        }
        (questions, asked)
    }

    #[test]
    fn a_whole_directory_takes_few_questions() {
        let (questions, asked) = go(1000, 0..1000);
        assert!(questions < 100, "{questions}");
        assert_eq!(asked, 1000);
        // In any order.
        let (questions, asked) = go(1000, (0..1000).map(|number| number * 617 % 1000));
        assert!(questions < 520, "{questions}");
        assert_eq!(asked, 1000);
    }

    #[test]
    fn a_few_files_take_few_more() {
        for needed in [1, 2, 5, 20, 100] {
            let (_, asked) = go(100_000, (0..needed).map(|number| 99_999 - number * 7));
            assert!(asked <= 2 * needed + super::SPARE, "{needed}: {asked}");
        }
    }
}
