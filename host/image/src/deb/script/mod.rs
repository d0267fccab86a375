//! Reading shell scripts without running them: the simple commands in them whose words can be told.
//!
//! Variables that are set to known words and loops over known words are followed; conditions are not looked at, both
//! branches count. A command with a word that depends on anything else is left out. The result is used for
//! nothing but links, copies and accounts, where too much does no harm.

mod lexer;

use std::collections::HashMap;

use lexer::{Piece, Token};

/// How deeply loops are followed, and how many commands are looked at: scripts are foreign.
const DEPTH_LIMIT: usize = 8;
const COMMAND_LIMIT: usize = 100_000;

/// The simple commands of `script` in order, each as its words.
pub fn commands(script: &str) -> Vec<Vec<String>> {
    let mut run = Run { variables: HashMap::new(), commands: Vec::new(), steps: 0 };
    run.variables.insert("1".to_owned(), Some("configure".to_owned()));
    let tokens = lexer::tokens(script);
    let lines: Vec<&[Token]> =
        tokens.split(|token| *token == Token::End).filter(|line| !line.is_empty()).collect();
    run.lines(&lines, 0);
    run.commands
}

struct Run {
    /// The values of variables; `None` if the value can't be determined.
    variables: HashMap<String, Option<String>>,
    commands: Vec<Vec<String>>,
    steps: usize,
}

impl Run {
    fn lines(&mut self, lines: &[&[Token]], depth: usize) {
        let mut next = 0;
        while let Some(line) = lines.get(next) {
            next += 1;
            self.steps += 1;
            if self.steps > COMMAND_LIMIT {
                return;
            }
            let line = skip_keywords(line);
            if plain(line.first()) == Some("for") && depth < DEPTH_LIMIT {
                let length = loop_length(&lines[next..]);
                let body = &lines[next..next + length];
                next += length;
                self.each(line, body, depth);
            } else {
                self.command(line);
            }
        }
    }

    /// `for NAME in WORDS` with the lines up to its `done`.
    fn each(&mut self, line: &[Token], body: &[&[Token]], depth: usize) {
        let Some(name) = plain(line.get(1)) else {
            return;
        };
        let values: Option<Vec<Vec<String>>> = line.iter().skip(3).map(|word| self.expand(word)).collect();
        for value in values.unwrap_or_default().into_iter().flatten() {
            self.variables.insert(name.to_owned(), Some(value));
            self.lines(body, depth + 1);
        }
        self.variables.insert(name.to_owned(), None);
    }

    fn command(&mut self, line: &[Token]) {
        let mut words = line;
        while let Some((Token::Word(pieces), rest)) = words.split_first() {
            let Some((name, value)) = assignment(pieces) else {
                break;
            };
            let value = self.expand(&Token::Word(value)).map(|words| words.join(" "));
            // A branch that computes a value is the exception to the value that stands there plainly.
            if value.is_some() || !self.variables.contains_key(&name) {
                self.variables.insert(name, value);
            }
            words = rest;
        }
        let words: Option<Vec<Vec<String>>> = words.iter().map(|word| self.expand(word)).collect();
        let words = words.map(|words| words.concat()).unwrap_or_default();
        if words.first().is_some_and(|program| program == "unset") {
            self.variables.extend(words.iter().skip(1).map(|name| (name.clone(), Some(String::new()))));
        } else if !words.is_empty() {
            self.commands.push(words);
        }
    }

    /// The words that a word becomes, or nothing if that can't be told.
    fn expand(&self, token: &Token) -> Option<Vec<String>> {
        let Token::Word(pieces) = token else {
            return None;
        };
        let mut words = vec![String::new()];
        let mut quoted_any = false;
        for piece in pieces {
            match piece {
                Piece::Text(text) => {
                    quoted_any = true;
                    words.last_mut()?.push_str(text);
                }
                Piece::Variable(name, quoted) => {
                    let value = self.variables.get(name)?.as_ref()?;
                    if *quoted {
                        quoted_any = true;
                        words.last_mut()?.push_str(value);
                    } else {
                        let mut parts = value.split_whitespace();
                        words.last_mut()?.push_str(parts.next().unwrap_or(""));
                        words.extend(parts.map(str::to_owned));
                    }
                }
                Piece::Unknown => return None,
            }
        }
        words.retain(|word| quoted_any || !word.is_empty());
        Some(words)
    }
}

/// The text of a word that consists of nothing else.
fn plain(token: Option<&Token>) -> Option<&str> {
    match token {
        Some(Token::Word(pieces)) => match pieces.as_slice() {
            [Piece::Text(text)] => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// Drops words that only say when the rest of the line is run.
fn skip_keywords(mut line: &[Token]) -> &[Token] {
    const KEYWORDS: [&str; 10] = ["if", "then", "else", "elif", "do", "while", "until", "!", "{", "exec"];
    while plain(line.first()).is_some_and(|word| KEYWORDS.contains(&word)) {
        line = &line[1..];
    }
    line
}

/// How many lines there are to the `done` that ends a loop.
fn loop_length(lines: &[&[Token]]) -> usize {
    let mut depth = 1;
    for (index, line) in lines.iter().enumerate() {
        let first = plain(line.first());
        let inner = plain(skip_keywords(line).first());
        if inner == Some("for") || matches!(first, Some("while" | "until")) {
            depth += 1;
        } else if first == Some("done") {
            depth -= 1;
        }
        if depth == 0 {
            return index;
        }
    }
    lines.len()
}

/// Name and value of a word that sets a variable.
fn assignment(pieces: &[Piece]) -> Option<(String, Vec<Piece>)> {
    let Some(Piece::Text(text)) = pieces.first() else {
        return None;
    };
    let (name, rest) = text.split_once('=')?;
    let is_name = |name: &str| {
        !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let quoted = |piece: &Piece| match piece {
        // An assigned value is not split, quoted or not.
        Piece::Variable(name, _) => Piece::Variable(name.clone(), true),
        other => other.clone(),
    };
    let value = [Piece::Text(rest.to_owned())].into_iter().chain(pieces[1..].iter().map(quoted));
    is_name(name).then(|| (name.to_owned(), value.collect()))
}

#[cfg(test)]
mod tests {
    use super::commands;

    fn words(script: &str) -> Vec<String> {
        commands(script).into_iter().map(|words| words.join(" ")).collect()
    }

    #[test]
    fn plain_commands() {
        assert_eq!(words("a b 'c d' \"e f\"\n# x\ng;h &&i|j\n"), ["a b c d e f", "g", "h", "i", "j"]);
        assert_eq!(words("a \\\n  --b c\n"), ["a --b c"]);
        assert_eq!(words("if [ -x /f ]; then a b; else c; fi"), ["a b", "c", "fi"]);
        assert_eq!(
            words("case $1 in configure|x) a;; esac"),
            ["case configure in configure", "x", "a", "esac"]
        );
    }

    #[test]
    fn variables_and_loops() {
        assert_eq!(words("d=/usr/bin n=\"x y\"; u $d/${n} \"$n\""), ["u /usr/bin/x y x y"]);
        assert_eq!(words("for i in a b; do\n u $i-1\ndone\nv"), ["u a-1", "u b-1", "done", "v"]);
        let nested = "for i in 1 2; do for j in 3; do u $i$j; done; done; w";
        assert_eq!(words(nested).iter().filter(|line| line.starts_with('u')).count(), 2);
        assert!(words(nested).contains(&"w".to_owned()));
    }

    #[test]
    fn values_that_some_branch_computes() {
        let script = "p=17 s=x; if a; then p=$(expr $p - 1); fi
            for i in java jar; do unset s t || true; if b; then s=\"--slave \\\n\t$i\"; fi; u $i $p $s $t; done";
        let lines: Vec<String> = words(script).into_iter().filter(|line| line.starts_with('u')).collect();
        assert_eq!(lines, ["u java 17 --slave java", "u jar 17 --slave jar"]);
    }

    #[test]
    fn unknown_results_are_left_out() {
        assert_eq!(words("a $(b c)\nd `e`\nf $g\nh *\nx=$(y)\nu $x\nok"), ["ok"]);
        assert_eq!(words("for i in $(ls); do u $i; done; ok"), ["done", "ok"]);
        assert_eq!(words("a \"${b:-c}\"; ok"), ["ok"]);
    }

    #[test]
    fn damaged_scripts_end() {
        for script in
            ["'", "\"", "$", "${", "$(", "`", "\\", "for i in 1; do x", "for", "for i", "a=", "(", "é'ü"]
        {
            commands(script);
        }
        let bomb = "for i in 1 2 3 4 5 6 7 8 9 0; do\n".repeat(9);
        assert!(commands(&bomb).len() <= super::COMMAND_LIMIT);
    }
}
