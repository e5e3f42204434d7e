//! The value that a script returned.

use crate::redis::Reply;

/// What the script of a [guarded write](crate::HoldHandle::eval) returned, as Redis turns Lua values into replies: a
/// number loses its fraction, `true` is 1, `false` is nil (0 after `redis.setresp(3)`), and a list ends before its
/// first nil.
///
/// # Examples
///
/// ```
/// use redisson_lock::Value;
/// let value = Value::List(vec![Value::Int(1), Value::Text("a".to_owned())]);
/// assert_eq!(value.as_list().map(<[_]>::len), Some(2));
/// assert_eq!(Value::Int(7).as_int(), Some(7));
/// assert_eq!(Value::Nil.as_str(), None);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Nothing.
    Nil,
    /// A whole number.
    Int(i64),
    /// A text, or a status such as `OK`.
    Text(String),
    /// A text that is not UTF-8.
    Bytes(Vec<u8>),
    /// Several values. A map is a list of names and values.
    List(Vec<Self>),
}

impl Value {
    /// Returns whether it is nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// assert!(redisson_lock::Value::Nil.is_nil());
    /// ```
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }

    /// Returns the number, if it is one. Redis stores texts, so `GET` returns no number.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(redisson_lock::Value::Int(7).as_int(), Some(7));
    /// ```
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the text, if it is one and UTF-8.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(redisson_lock::Value::Nil.as_str(), None);
    /// ```
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the text as it is, UTF-8 or not.
    ///
    /// # Examples
    ///
    /// ```
    /// let value = redisson_lock::Value::Bytes(vec![0xff]);
    /// assert_eq!(value.as_bytes(), Some(&[0xff][..]));
    /// ```
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text.as_bytes()),
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the values of a list.
    ///
    /// # Examples
    ///
    /// ```
    /// let value = redisson_lock::Value::List(vec![]);
    /// assert_eq!(value.as_list(), Some(&[][..]));
    /// ```
    pub fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::List(values) => Some(values),
            _ => None,
        }
    }

    pub(super) fn read(reply: Reply) -> Self {
        match reply {
            Reply::Nil => Self::Nil,
            Reply::Number(number) => Self::Int(number),
            Reply::Text(text) => Self::Text(text),
            Reply::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
            Reply::List(items) => Self::List(items.into_iter().map(Self::read).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::test;

    #[test]
    fn a_value_is_read_as_what_it_is_and_as_nothing_else() {
        let list = vec![Value::Nil];
        type Read<'a> = (bool, Option<i64>, Option<&'a str>, Option<&'a [u8]>, bool);
        let rows: [(Value, Read<'_>); 5] = [
            (Value::Nil, (true, None, None, None, false)),
            (Value::Int(7), (false, Some(7), None, None, false)),
            (
                Value::Text("a".to_owned()),
                (false, None, Some("a"), Some(b"a"), false),
            ),
            (
                Value::Bytes(vec![0xff]),
                (false, None, None, Some(&[0xff]), false),
            ),
            (Value::List(list.clone()), (false, None, None, None, true)),
        ];
        for (value, wanted) in &rows {
            let list = value.as_list().map(<[_]>::to_vec) == Some(list.clone());
            let read = (value.is_nil(), value.as_int(), value.as_str());
            let read = (read.0, read.1, read.2, value.as_bytes(), list);
            assert_eq!(&read, wanted, "{value:?}");
        }
    }
}
