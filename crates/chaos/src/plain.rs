//! One command at a time to a server that may not answer.

use std::time::Duration;

use test_support::Control;

/// A server that runs answers by then.
pub const ANSWERS_WITHIN: Duration = Duration::from_millis(300);

pub fn connect(port: u16, limit: Duration) -> Result<redis::Connection, String> {
    let problem = |error: redis::RedisError| format!("port {port}: {error}");
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).map_err(problem)?;
    let connection = client.get_connection_with_timeout(limit).map_err(problem)?;
    connection.set_read_timeout(Some(limit)).map_err(problem)?;
    Ok(connection)
}

/// The answer as text, or why there is none.
pub fn query(port: u16, words: &[&str]) -> Result<String, String> {
    query_within(port, words, ANSWERS_WITHIN)
}

/// The same of a server that runs, however busy the machine is.
pub fn order(port: u16, words: &[&str]) -> Result<String, String> {
    query_within(port, words, Duration::from_secs(5))
}

pub fn query_within(port: u16, words: &[&str], limit: Duration) -> Result<String, String> {
    let connection = connect(port, limit)?;
    let answer = Control { connection }.try_run(words);
    answer.map_err(|error| format!("port {port}: {}: {error}", words.join(" ")))
}

/// Whether these fields are in these hashes.
pub fn have(port: u16, fields: &[(String, String)]) -> Result<Vec<bool>, String> {
    let mut pipe = redis::pipe();
    for (key, field) in fields {
        pipe.cmd("HEXISTS").arg(key).arg(field);
    }
    let limit = Duration::from_secs(2);
    let answers = pipe.query::<Vec<bool>>(&mut connect(port, limit)?);
    answers.map_err(|error| format!("port {port}: {error}"))
}

/// The keys without an expiry.
pub fn without_expiry(port: u16) -> Result<Vec<String>, String> {
    let limit = Duration::from_secs(2);
    let mut connection = connect(port, limit)?;
    let problem = |error: redis::RedisError| format!("port {port}: {error}");
    let keys = redis::cmd("KEYS").arg("*").query(&mut connection);
    let keys: Vec<String> = keys.map_err(problem)?;
    let mut pipe = redis::pipe();
    for key in &keys {
        pipe.cmd("PTTL").arg(key);
    }
    if keys.is_empty() {
        return Ok(keys);
    }
    let left: Vec<i64> = pipe.query(&mut connection).map_err(problem)?;
    let for_ever = keys.into_iter().zip(left).filter(|(_, left)| *left == -1);
    Ok(for_ever.map(|(key, _)| key).collect())
}

/// Whether a replica has everything that its primary has said so far; if not, what is missing.
pub fn is_behind(replica: u16, primary: u16) -> Option<String> {
    let field = |info: &str, name: &str| {
        info.lines()
            .find_map(|line| Some(line.trim_end().strip_prefix(name)?.to_owned()))
    };
    let both = || {
        let said = query(primary, &["INFO", "REPLICATION"])?;
        Ok((said, query(replica, &["INFO", "REPLICATION"])?))
    };
    let (said, has) = match both() {
        Ok(both) => both,
        Err::<_, String>(problem) => return Some(problem),
    };
    if field(&has, "master_link_status:").as_deref() != Some("up") {
        return Some(format!(
            "the replica at port {replica} is not connected to its primary"
        ));
    }
    if field(&has, "master_port:") != Some(primary.to_string()) {
        return Some(format!(
            "the replica at port {replica} has another primary than port {primary}"
        ));
    }
    let number = |offset: Option<String>| offset.and_then(|offset| offset.parse::<u64>().ok());
    let said = number(field(&said, "master_repl_offset:"));
    let has = number(field(&has, "slave_repl_offset:"));
    (has < said).then(|| format!("the replica at port {replica} lies behind: {has:?} of {said:?}"))
}
