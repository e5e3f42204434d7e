//! Commands and answers as bytes.

/// A command that is answered with this line.
pub(crate) fn answering(line: &str) -> Vec<u8> {
    let script = match line.split_at(1) {
        ("-", _) => "return redis.error_reply(ARGV[1])",
        _ => "return tonumber(ARGV[1])",
    };
    command(&["EVAL", script, "0", &line[1..]])
}

pub(crate) fn command(words: &[&str]) -> Vec<u8> {
    let body: String = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()))
        .collect();
    format!("*{}\r\n{body}", words.len()).into_bytes()
}

/// The first command in the bytes, and its length.
pub(crate) fn parse(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let line = |from: usize| {
        let end = bytes[from..].windows(2).position(|pair| pair == b"\r\n")? + from;
        let number: usize = std::str::from_utf8(&bytes[from + 1..end])
            .ok()?
            .parse()
            .ok()?;
        Some((number, end + 2))
    };
    if bytes.is_empty() {
        return None;
    }
    let (count, mut at) = line(0)?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        if at >= bytes.len() {
            return None;
        }
        let (length, start) = line(at)?;
        let word = bytes.get(start..start + length)?;
        words.push(String::from_utf8_lossy(word).into_owned());
        at = start + length + 2;
    }
    (at <= bytes.len()).then_some((words, at))
}
