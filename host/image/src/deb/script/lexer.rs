//! The words of a shell script.

/// A token of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    Word(Vec<Piece>),
    /// A newline, `;`, `&&`, `|`, a parenthesis: where a command ends.
    End,
}

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    /// The value of a variable; split into words if it isn't quoted.
    Variable(String, bool),
    /// The result of something that would have to be run.
    Unknown,
}

/// Cuts a script into words and ends of commands.
pub fn tokens(script: &str) -> Vec<Token> {
    Lexer { rest: script, tokens: Vec::new(), word: None }.run()
}

/// A script being cut.
struct Lexer<'a> {
    rest: &'a str,
    tokens: Vec<Token>,
    word: Option<Vec<Piece>>,
}

impl Lexer<'_> {
    fn run(mut self) -> Vec<Token> {
        while let Some(next) = self.next() {
            match next {
                '\\' => match self.next() {
                    Some('\n') | None => {}
                    Some(other) => self.text(other),
                },
                '\'' => {
                    self.push(Piece::Text(String::new()));
                    while let Some(inner) = self.next().filter(|&inner| inner != '\'') {
                        self.text(inner);
                    }
                }
                '"' => self.quoted(),
                '$' => self.variable(false),
                '`' => {
                    self.skip_to('`');
                    self.push(Piece::Unknown);
                }
                '#' if self.word.is_none() => {
                    self.skip_to('\n');
                    self.end();
                }
                ' ' | '\t' => self.end_word(),
                '\n' | ';' | '&' | '|' | '(' | ')' => self.end(),
                // Redirections are left in as words that name no command's argument of interest.
                '*' | '?' | '[' => self.push(Piece::Unknown),
                other => self.text(other),
            }
        }
        self.end();
        self.tokens
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.rest = &self.rest[next.len_utf8()..];
        Some(next)
    }

    fn skip_to(&mut self, end: char) {
        while self.next().is_some_and(|next| next != end) {}
    }

    fn push(&mut self, piece: Piece) {
        self.word.get_or_insert_default().push(piece);
    }

    fn text(&mut self, character: char) {
        let word = self.word.get_or_insert_default();
        match word.last_mut() {
            Some(Piece::Text(text)) => text.push(character),
            _ => word.push(Piece::Text(character.to_string())),
        }
    }

    fn end_word(&mut self) {
        self.tokens.extend(self.word.take().map(Token::Word));
    }

    fn end(&mut self) {
        self.end_word();
        self.tokens.push(Token::End);
    }

    fn quoted(&mut self) {
        self.push(Piece::Text(String::new()));
        while let Some(next) = self.next() {
            match next {
                '"' => return,
                '$' => self.variable(true),
                '`' => {
                    self.skip_to('`');
                    self.push(Piece::Unknown);
                }
                '\\' => match self.next() {
                    Some('\n') | None => {}
                    Some(other @ ('$' | '`' | '"' | '\\')) => self.text(other),
                    Some(other) => {
                        self.text('\\');
                        self.text(other);
                    }
                },
                other => self.text(other),
            }
        }
    }

    /// Reads what follows a dollar sign.
    fn variable(&mut self, quoted: bool) {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if let Some(rest) = self.rest.strip_prefix('{') {
            let length = rest.find('}').unwrap_or(rest.len());
            let name = &rest[..length];
            let piece = if name.chars().all(is_name) {
                Piece::Variable(name.to_owned(), quoted)
            } else {
                Piece::Unknown
            };
            self.rest = rest.get(length + 1..).unwrap_or("");
            self.push(piece);
        } else if self.rest.starts_with('(') {
            let mut depth = 0usize;
            while let Some(next) = self.next() {
                match next {
                    '(' => depth += 1,
                    ')' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
            }
            self.push(Piece::Unknown);
        } else {
            let length = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
            let (name, rest) = self.rest.split_at(length);
            if name.is_empty() {
                self.push(Piece::Unknown);
            } else {
                let piece = Piece::Variable(name.to_owned(), quoted);
                self.rest = rest;
                self.push(piece);
            }
        }
    }
}
