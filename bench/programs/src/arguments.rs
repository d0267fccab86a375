//! `NAME=VALUE` arguments.

/// The arguments of the command line, by name.
pub struct Arguments(Vec<(String, String)>);

impl Arguments {
    /// Splits each word at its first `=`.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let pair = |word: String| match word.split_once('=') {
            Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
            None => Err(format!("'{word}' is not NAME=VALUE")),
        };
        words.map(pair).collect::<Result<_, _>>().map(Self)
    }

    /// The value of `name`, or `default`.
    pub fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.0.iter().find(|(key, _)| key == name).map_or(default, |(_, value)| value)
    }

    /// The number called `name`, or `default`.
    pub fn number(&self, name: &str, default: u64) -> Result<u64, String> {
        let text = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        text.map_or(Ok(default), |text| text.parse().map_err(|_| format!("'{text}' is not a number")))
    }
}
