//! The text: pages of made-up words, the same in every run.

use std::collections::BTreeMap;

/// How often each word occurs.
pub type Counts = BTreeMap<String, usize>;

const SYLLABLES: [&str; 12] = ["ka", "lo", "mi", "ne", "pu", "ra", "se", "ti", "vo", "wa", "xi", "zu"];
pub const PAGES: u64 = 96;
const WORDS_OF_PAGE: usize = 300;

/// Numbers that look random (xorshift).
pub struct Numbers(u64);

impl Numbers {
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A page.
pub fn page(number: u64) -> String {
    let mut numbers = Numbers::new(number + 1);
    let mut text = String::new();
    for _ in 0..WORDS_OF_PAGE {
        for _ in 0..=numbers.next() % 2 {
            text.push_str(SYLLABLES[(numbers.next() % SYLLABLES.len() as u64) as usize]);
        }
        text.push(' ');
    }
    text
}

/// The words of a text.
pub fn count(text: &str) -> Counts {
    let mut counts = Counts::new();
    add(&mut counts, text);
    counts
}

/// The same, added to others.
pub fn add(counts: &mut Counts, text: &str) {
    for word in text.split_whitespace() {
        match counts.get_mut(word) {
            Some(count) => *count += 1,
            None => drop(counts.insert(word.to_owned(), 1)),
        }
    }
}

pub fn merge(into: &mut Counts, from: Counts) {
    for (word, count) in from {
        *into.entry(word).or_default() += count;
    }
}

/// All pages, counted by one thread: what every other way must find.
pub fn expected() -> &'static Counts {
    static COUNTS: std::sync::OnceLock<Counts> = std::sync::OnceLock::new();
    COUNTS.get_or_init(|| {
        let mut counts = Counts::new();
        (0..PAGES).for_each(|number| add(&mut counts, &page(number)));
        counts
    })
}

/// The text that is printed of counts.
pub fn describe(counts: &Counts) -> String {
    let total: usize = counts.values().sum();
    let most = counts.iter().max_by_key(|(word, count)| (**count, std::cmp::Reverse((*word).clone())));
    let (word, count) = most.map_or(("", 0), |(word, count)| (word.as_str(), *count));
    format!("{total} words, {} different, {count} times {word}", counts.len())
}
