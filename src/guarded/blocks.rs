//! Whether a text of Lua is whole by itself, so that it can be the body of a function.
//!
//! Not a parser: it reads Lua's words as Lua does and counts the blocks that they open and close. A text with another
//! mistake is refused by the server, as a whole, before any of it runs.

/// What is wrong with a text, and on which line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) line: usize,
    pub(super) what: &'static str,
}

/// Checks that each block and each text ends, and that nothing ends which did not begin: that `end` would be the one
/// of the function around it, and what follows would run also when the lock is lost.
pub(super) fn check(source: &str) -> Result<(), Problem> {
    let mut reader = Reader {
        rest: source.as_bytes(),
        line: 1,
    };
    let mut open = Vec::new();
    while let Some(word) = reader.word()? {
        match word {
            b"function" | b"do" | b"if" | b"repeat" => open.push(reader.line),
            b"end" | b"until" if open.pop().is_none() => {
                let what = "it closes a block that it has not opened";
                return Err(Problem {
                    line: reader.line,
                    what,
                });
            }
            _ => {}
        }
    }
    match open.pop() {
        Some(line) => {
            let what = "it has a block without an end";
            Err(Problem { line, what })
        }
        None => Ok(()),
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    line: usize,
}

impl<'a> Reader<'a> {
    fn skip(&mut self, count: usize) {
        let (skipped, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.line += skipped.iter().filter(|byte| **byte == b'\n').count();
        self.rest = rest;
    }

    /// The next name, keyword or number; comments and texts are left out.
    fn word(&mut self) -> Result<Option<&'a [u8]>, Problem> {
        loop {
            match self.rest {
                [] => return Ok(None),
                [b'-', b'-', ..] => {
                    self.skip(2);
                    if !self.long_text()? {
                        // Lua takes a carriage return for the end of a line too.
                        let end = self.rest.iter().position(|byte| b"\n\r".contains(byte));
                        self.skip(end.unwrap_or(self.rest.len()));
                    }
                }
                [b'[', ..] => {
                    if !self.long_text()? {
                        self.skip(1);
                    }
                }
                [quote @ (b'"' | b'\''), ..] => self.text(*quote)?,
                [byte, ..] if is_of_word(*byte) => {
                    let end = self.rest.iter().position(|byte| !is_of_word(*byte));
                    let (word, _) = self.rest.split_at(end.unwrap_or(self.rest.len()));
                    self.skip(word.len());
                    return Ok(Some(word));
                }
                _ => self.skip(1),
            }
        }
    }

    fn text(&mut self, quote: u8) -> Result<(), Problem> {
        let line = self.line;
        self.skip(1);
        loop {
            match self.rest {
                [] => break,
                [b'\\', ..] => self.skip(2),
                [byte, ..] => {
                    self.skip(1);
                    if *byte == quote {
                        return Ok(());
                    }
                }
            }
        }
        let what = "it has a text without an end";
        Err(Problem { line, what })
    }

    /// Skips what is in `[[…]]` or `[=[…]=]`, if that comes next.
    fn long_text(&mut self) -> Result<bool, Problem> {
        let line = self.line;
        let Some(level) = level(self.rest, b'[') else {
            return Ok(false);
        };
        self.skip(level + 2);
        while !self.rest.is_empty() {
            if level_is(self.rest, level) {
                self.skip(level + 2);
                return Ok(true);
            }
            self.skip(1);
        }
        let what = "it has a text or a comment without an end";
        Err(Problem { line, what })
    }
}

/// How many `=` are between two of these brackets, with which the text begins.
fn level(text: &[u8], bracket: u8) -> Option<usize> {
    let (first, rest) = text.split_first()?;
    let level = rest.iter().take_while(|byte| **byte == b'=').count();
    (*first == bracket && rest.get(level) == Some(&bracket)).then_some(level)
}

fn level_is(text: &[u8], wanted: usize) -> bool {
    level(text, b']') == Some(wanted)
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_texts() {
        for source in [
            "",
            "return 1",
            "if a then return 1 elseif b then return 2 else return 3 end",
            "for n = 1, 3 do while true do break end end",
            "repeat local a = 1 until a",
            "local f = function() return function() end end",
            "-- end",
            "--[[ end\n end ]] return 1 -- end",
            "--[==[ end ]] ]=] end ]==]",
            "--[ end\nreturn 1",
            "return 'end', \"end\", [[ end ]], [=[ ]] end ]=]",
            r"return 'it\'s end', '\\', 'end'",
            "local ended, _end, end_, end1 = a[b[1]], t.x",
            "return a[ [[end]] ]",
            "-- the \r return 1",
            "return 'end\\\nend'",
        ] {
            assert_eq!(check(source), Ok(()), "{source}");
        }
    }

    #[test]
    fn what_would_leave_the_function_around_it() {
        let closes = "it closes a block that it has not opened";
        for (line, source) in [
            (1, "return 1 end redis.call('set', 'a', 1) do"),
            (2, "if a then b() end\nend"),
            (1, "until true"),
            (1, "--[[ ]] end"),
            (1, "-- a comment \r end"),
            (2, "-- a comment\nend --"),
            (1, "return '\\\\' end --'"),
            (1, "return [==[ ]=] ]==] end"),
            (1, "return a[b]end"),
            (1, "return (1)end"),
        ] {
            let what = closes;
            assert_eq!(check(source), Err(Problem { line, what }), "{source}");
        }
    }

    #[test]
    fn what_has_no_end() {
        for (line, source) in [
            (1, "if a then\nreturn 1"),
            (2, "\nfunction f() if a then end"),
            (1, "--[[ a\ncomment"),
            (1, "return [=[ ]]"),
            (2, "\nreturn 'a"),
            (1, "return \"a\\\""),
            (1, "repeat"),
        ] {
            let found = check(source).expect_err(source);
            assert_eq!(found.line, line, "{source}: {found:?}");
        }
    }
}
