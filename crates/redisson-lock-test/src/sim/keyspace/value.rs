//! What a key holds, by type.

use super::Stored;

/// In order of arrival, as in a small Redis hash.
pub(super) type Hash = Vec<(String, String)>;
pub(super) type List = Vec<String>;
/// By score, and members of one score by their bytes.
pub(super) type SortedSet = Vec<(f64, String)>;

/// What one key holds.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) enum Value {
    Text(String),
    Hash(Hash),
    List(List),
    SortedSet(SortedSet),
}

impl Value {
    /// What TYPE answers.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Hash(_) => "hash",
            Self::List(_) => "list",
            Self::SortedSet(_) => "zset",
        }
    }

    /// A key with nothing in it does not stay. A text is something even if it has no bytes.
    fn is_empty(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Hash(fields) => fields.is_empty(),
            Self::List(items) => items.is_empty(),
            Self::SortedSet(members) => members.is_empty(),
        }
    }

    /// As one line, for comparisons.
    pub(super) fn shown(&self) -> String {
        let words: Vec<String> = match self {
            Self::Text(text) => vec!["text".to_owned(), text.clone()],
            Self::Hash(fields) => fields
                .iter()
                .map(|(field, value)| format!("{field} {value}"))
                .collect(),
            Self::List(items) => items.clone(),
            Self::SortedSet(members) => members
                .iter()
                .map(|(score, member)| format!("{member} {}", score_text(*score)))
                .collect(),
        };
        words.join(" ")
    }
}

/// As Redis writes a score.
pub(super) fn score_text(score: f64) -> String {
    format!("{score}")
}

/// One of the types.
pub(super) trait Content: Default {
    fn wrap(self) -> Value;
    fn of(value: &Value) -> Option<&Self>;
    fn of_mut(value: &mut Value) -> Option<&mut Self>;
}

macro_rules! content {
    ($($type:ty = $variant:ident;)*) => {
        $(impl Content for $type {
            fn wrap(self) -> Value {
                Value::$variant(self)
            }

            fn of(value: &Value) -> Option<&Self> {
                match value {
                    Value::$variant(content) => Some(content),
                    _ => None,
                }
            }

            fn of_mut(value: &mut Value) -> Option<&mut Self> {
                match value {
                    Value::$variant(content) => Some(content),
                    _ => None,
                }
            }
        })*
    };
}

content! {
    String = Text;
    Hash = Hash;
    List = List;
    SortedSet = SortedSet;
}

impl super::Keyspace {
    /// What a key holds, if it is there. Fails if it is of another type.
    pub(super) fn read<T: Content>(&self, key: &str) -> Result<Option<&T>, String> {
        let stored = self.keys.get(key);
        let content = stored.map(|stored| T::of(&stored.value).ok_or(WRONG_TYPE));
        content.transpose().map_err(str::to_owned)
    }

    /// Changes what a key holds, or makes the key; afterwards it is only there if something is in it.
    pub(super) fn write<T: Content, R>(
        &mut self,
        key: &str,
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, String> {
        let stored = self.keys.entry(key.to_owned()).or_insert_with(|| Stored {
            value: T::default().wrap(),
            expires_at: None,
        });
        let content = T::of_mut(&mut stored.value).ok_or(WRONG_TYPE)?;
        let done = change(content);
        if stored.value.is_empty() {
            self.keys.remove(key);
        }
        Ok(done)
    }
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
