//! Runs the scripts that clients send as Redis would: Lua 5.1, `redis.call`, `redis.pcall`, and
//! Redis's rules for replies.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use mlua::{Function, Lua, MultiValue, Table, Value};
use parking_lot::Mutex;

use super::keyspace::{Answer, Keyspace};
use redisson_lock::test_util::Reply;

/// A Lua state that works on one keyspace.
pub struct Interpreter {
    lua: Lua,
    loaded: HashMap<String, Script>,
}

struct Script {
    name: Arc<str>,
    function: Function,
}

impl fmt::Debug for Interpreter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interpreter").finish_non_exhaustive()
    }
}

impl Interpreter {
    pub fn new(keyspace: &Arc<Mutex<Keyspace>>) -> Self {
        let lua = Lua::new();
        let redis = lua.create_table().expect("a table");
        for (name, protected) in [("call", false), ("pcall", true)] {
            let keyspace = Arc::clone(keyspace);
            let call = lua.create_function(move |lua, words: MultiValue| {
                call(lua, &keyspace, words, protected)
            });
            redis.set(name, call.expect("a function")).expect("a field");
        }
        lua.globals().set("redis", redis).expect("a global");
        Self {
            lua,
            loaded: HashMap::new(),
        }
    }

    pub(super) fn is_loaded(&self, sha: &str) -> bool {
        self.loaded.contains_key(sha)
    }

    /// What a loaded script calls itself in its first line.
    pub(super) fn name(&self, sha: &str) -> Arc<str> {
        Arc::clone(&self.loaded[sha].name)
    }

    /// What SCRIPT FLUSH does.
    pub(super) fn forget_all(&mut self) {
        self.loaded.clear();
    }

    /// What EVAL does before it runs: the script is known by its hash from then on.
    pub fn load(&mut self, source: &str) -> String {
        let sha = sha1_smol::Sha1::from(source).digest().to_string();
        if !self.is_loaded(&sha) {
            let function = self
                .lua
                .load(source)
                .set_name("@user_script")
                .into_function();
            let script = Script {
                name: name(source).into(),
                function: function.expect("the scripts are valid Lua"),
            };
            self.loaded.insert(sha.clone(), script);
        }
        sha
    }

    /// Runs a loaded script; `Err` has the server's words.
    pub fn run(&self, sha: &str, keys: &[String], args: &[String]) -> Result<Reply, String> {
        let globals = self.lua.globals();
        let list = |words: &[String]| {
            self.lua
                .create_sequence_from(words.iter().map(String::as_str))
        };
        globals
            .set("KEYS", list(keys).expect("a list"))
            .expect("a global");
        globals
            .set("ARGV", list(args).expect("a list"))
            .expect("a global");
        match self.loaded[sha].function.call::<Value>(()) {
            Ok(value) => reply(&value),
            Err(error) => {
                let (text, line) = match server_error(&error) {
                    Some(CommandError { text, line }) => (text.clone(), *line),
                    None => (format!("ERR {error}"), 1),
                };
                Err(format!("{text} script: {sha}, on @user_script:{line}."))
            }
        }
    }
}

/// `-- acquire.lua: …` is the script `acquire`, whatever stands before that line. Without the folder of the kind.
fn name(source: &str) -> &str {
    let mut names = source.lines().filter_map(|line| {
        let (name, _) = line.strip_prefix("-- ")?.split_once(".lua: ")?;
        name.rsplit('/').next()
    });
    names.next_back().unwrap_or("another script")
}

/// An error that a command raised inside a script.
#[derive(Debug)]
struct CommandError {
    text: String,
    /// Of the call in the script.
    line: usize,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for CommandError {}

fn server_error(error: &mlua::Error) -> Option<&CommandError> {
    match error {
        mlua::Error::CallbackError { cause, .. } => server_error(cause),
        error => error.downcast_ref(),
    }
}

fn call(
    lua: &Lua,
    keyspace: &Mutex<Keyspace>,
    words: MultiValue,
    protected: bool,
) -> mlua::Result<Value> {
    let words: Vec<String> = words.iter().map(word).collect::<mlua::Result<_>>()?;
    let answer = keyspace.lock().call(&words);
    match answer {
        Ok(answer) => in_lua(lua, answer),
        Err(text) if protected => {
            let error = lua.create_table()?;
            error.set("err", text)?;
            Ok(Value::Table(error))
        }
        Err(text) => {
            let line = lua.inspect_stack(1, |caller| caller.current_line());
            let line = line.flatten().unwrap_or(1);
            Err(mlua::Error::external(CommandError { text, line }))
        }
    }
}

fn in_lua(lua: &Lua, answer: Answer) -> mlua::Result<Value> {
    Ok(match answer {
        // What Redis answers as nil is false in Lua.
        Answer::Nil => Value::Boolean(false),
        Answer::Number(number) => Value::Number(number as f64),
        Answer::Text(text) => Value::String(lua.create_string(text)?),
        Answer::Status(text) => Value::Table(lua.create_table_from([("ok", text)])?),
        Answer::List(items) => {
            let items = items.into_iter().map(|item| in_lua(lua, item));
            let items = items.collect::<mlua::Result<Vec<_>>>()?;
            Value::Table(lua.create_sequence_from(items)?)
        }
    })
}

/// A number becomes a word without a fraction if it has none.
fn word(value: &Value) -> mlua::Result<String> {
    match value {
        Value::String(text) => Ok(text.to_str()?.to_owned()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Number(number) if number.fract() == 0.0 => Ok(format!("{number:.0}")),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(mlua::Error::external(CommandError {
            text: "ERR Lua redis lib command arguments must be strings or integers".to_owned(),
            line: 1,
        })),
    }
}

/// Redis's conversion: numbers are cut to integers, a list ends at its first nil.
fn reply(value: &Value) -> Result<Reply, String> {
    Ok(match value {
        Value::Nil | Value::Boolean(false) => Reply::Nil,
        Value::Boolean(true) => Reply::Number(1),
        Value::Integer(number) => Reply::Number(*number),
        Value::Number(number) => Reply::Number(*number as i64),
        Value::String(text) => Reply::Text(text.to_string_lossy()),
        Value::Table(table) => return table_reply(table),
        other => Reply::Text(format!("{other:?}")),
    })
}

fn table_reply(table: &Table) -> Result<Reply, String> {
    if let Ok(Some(error)) = table.raw_get::<Option<String>>("err") {
        return Err(error);
    }
    if let Ok(Some(status)) = table.raw_get::<Option<String>>("ok") {
        return Ok(Reply::Text(status));
    }
    let items = table.sequence_values::<Value>();
    items
        .map(|item| reply(&item.expect("a value")))
        .collect::<Result<_, _>>()
        .map(Reply::List)
}
