//! The source of an error about a server: which server it was, and what it said or did.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use super::refusal::RefusalKind;

/// The cause of an error, for people and logs.
pub(crate) type Source = Box<dyn StdError + Send + Sync>;

/// The message of a server, or how the connection to it ended. The error of which this is the source names the
/// server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cause {
    /// Host and port, or the path of a socket. `None`: no server was chosen yet.
    pub(super) server: Option<Arc<str>>,
    /// The meaning of the text, if it is a refusal.
    pub(crate) refusal: Option<RefusalKind>,
    pub(crate) text: String,
    /// There was an answer, but it came too late.
    is_late: bool,
    /// The lock that it is about.
    pub(super) lock: Option<Arc<str>>,
    /// The other servers that were tried, and what became of that.
    pub(super) others: Vec<(Arc<str>, String)>,
    /// Of several servers that were asked together, how many have answered.
    pub(super) quorum: Option<Quorum>,
    /// Who has announced the address of a server that is not reached, if it was not given.
    pub(super) announced_by: Option<&'static str>,
    /// The server is a sentinel, which has credentials of its own.
    pub(super) is_sentinel: bool,
}

/// Of several servers that were asked together too few have answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quorum {
    pub(crate) answered: usize,
    pub(crate) asked: usize,
    pub(crate) needed: usize,
}

impl Cause {
    pub(crate) fn new(server: Option<Arc<str>>, text: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            server,
            text: text.into(),
            ..Self::default()
        })
    }

    pub(crate) fn at(server: &Arc<str>, text: impl Into<String>) -> Box<Self> {
        Self::new(Some(Arc::clone(server)), text)
    }

    pub(crate) fn refused(server: &Arc<str>, kind: RefusalKind, text: String) -> Box<Self> {
        Box::new(Self {
            refusal: Some(kind),
            ..*Self::at(server, text)
        })
    }

    /// Adds the other servers that were tried.
    pub(crate) fn among(self, others: Vec<(Arc<str>, String)>) -> Box<Self> {
        Box::new(Self { others, ..self })
    }

    /// Adds who has announced the address, to which there is no connection.
    pub(crate) fn announced(self, by: Option<&'static str>) -> Box<Self> {
        Box::new(Self {
            announced_by: by,
            ..self
        })
    }

    /// Adds that too few servers have answered, and why the others have not.
    pub(super) fn of_quorum(self, quorum: Quorum, others: Vec<(Arc<str>, String)>) -> Box<Self> {
        Box::new(Self {
            quorum: Some(quorum),
            others,
            ..self
        })
    }

    /// The answer came, but too late.
    pub(crate) fn late(server: Option<Arc<str>>, text: &str) -> Box<Self> {
        Box::new(Self {
            is_late: true,
            ..*Self::new(server, text)
        })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            Some(server) if !self.others.is_empty() => write!(f, "{server}: {}", self.text)?,
            _ => f.write_str(&self.text)?,
        }
        let mut others = self.others.iter();
        others.try_for_each(|(server, text)| write!(f, "; {server}: {text}"))
    }
}

impl StdError for Cause {}

/// Whether an answer came, but too late.
pub(super) fn is_late(source: &Source) -> bool {
    cause(source).is_some_and(|cause| cause.is_late)
}

/// The lock that the error is about, if it says which.
pub(super) fn lock(source: &Source) -> Option<&str> {
    cause(source)?.lock.as_deref()
}

/// Adds the lock that the error is about.
pub(super) fn about(source: Source, lock: &str) -> Source {
    Box::new(Cause {
        lock: Some(lock.into()),
        ..known(source)
    })
}

pub(super) fn known(source: Source) -> Cause {
    match source.downcast::<Cause>() {
        Ok(cause) => *cause,
        Err(other) => *Cause::new(None, other.to_string()),
    }
}

/// The refusal of the server, if it was one.
pub(super) fn refusal(source: &Source) -> Option<&RefusalKind> {
    cause(source)?.refusal.as_ref()
}

pub(super) fn cause(source: &Source) -> Option<&Cause> {
    let source: &(dyn StdError + 'static) = &**source;
    source.downcast_ref()
}
