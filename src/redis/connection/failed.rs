//! Why there is no connection: an error that names every server that was tried.

use std::fmt;
use std::sync::Arc;

use crate::error::{Cause, Error, Operation, RefusalKind, tls_problem};
use crate::redis::settings::Settings;
use crate::redis::transport::ConnectionError;

/// Attempts that failed, each with its server, in the order in which the servers were given.
#[derive(Debug, Default)]
pub(in crate::redis) struct Failed {
    attempts: Vec<(Arc<str>, ConnectionError)>,
    /// Who has announced the addresses, if they were not given.
    announced_by: Option<&'static str>,
}

impl Failed {
    pub(in crate::redis) fn announced(by: Option<&'static str>) -> Self {
        Self {
            announced_by: by,
            ..Self::default()
        }
    }

    pub(in crate::redis) fn add(&mut self, server: Arc<str>, problem: ConnectionError) {
        self.attempts.push((server, problem));
    }

    /// Whether a server refused for this reason.
    pub(in crate::redis) fn has_refusal(&self, kind: &RefusalKind) -> bool {
        let mut problems = self.attempts.iter();
        problems.any(|(_, problem)| matches!(problem, ConnectionError::Refused(refusal) if refusal.kind == *kind))
    }

    /// Whether a server refuses this client until an operator changes that.
    pub(in crate::redis) fn is_lasting(&self) -> bool {
        let mut problems = self.attempts.iter();
        problems.any(|(_, problem)| problem.is_lasting())
    }

    /// The error about the first server that answered, or else about the first: an answer says more than none.
    pub(in crate::redis) fn into_error(self, settings: &Settings) -> Error {
        let mut problems = self.attempts.iter();
        if problems.any(|(_, problem)| matches!(problem, ConnectionError::NoSockets)) {
            return Error::NoRuntime;
        }
        let cause = self.into_cause(settings);
        Error::of_connection(Operation::Connecting, "+@connection", cause)
    }

    /// The cause of that error, which is made later.
    pub(in crate::redis) fn into_cause(mut self, settings: &Settings) -> Box<Cause> {
        let has_answered =
            |problem: &ConnectionError| matches!(problem, ConnectionError::Refused(_));
        let mut attempts = self.attempts.iter();
        let about = attempts.position(|(_, problem)| has_answered(problem));
        if self.attempts.is_empty() {
            self.add(Arc::clone(&settings.address), ConnectionError::no_owner());
        }
        let (server, problem) = self.attempts.remove(about.unwrap_or(0));
        let tls = settings.uses_tls();
        let others = self.attempts.into_iter();
        let others = others
            .map(|(server, problem)| (server, explained(problem, tls).to_string()))
            .collect();
        let cause = explained(problem, tls).into_cause(&server);
        cause.among(others).announced(self.announced_by)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (server, problem)) in self.attempts.iter().enumerate() {
            let separator = if nth > 0 { "; " } else { "" };
            write!(f, "{separator}{server}: {problem}")?;
        }
        Ok(())
    }
}

/// Why the only connection could not be made.
pub(in crate::redis) fn connect_error(settings: &Settings, problem: ConnectionError) -> Error {
    let mut failed = Failed::default();
    failed.add(Arc::clone(&settings.address), problem);
    failed.into_error(settings)
}

/// Explains, as a sentence, why a connection failed without a message of the server.
pub(in crate::redis) fn explained(problem: ConnectionError, tls: bool) -> ConnectionError {
    match problem {
        ConnectionError::Lost(text) if text == WEB_SERVER => {
            ConnectionError::unusable(RefusalKind::WebServer, text)
        }
        ConnectionError::Timeout(text) | ConnectionError::Lost(text)
            if tls_problem(&text).is_none() =>
        {
            ConnectionError::Lost(sentence(&text, tls))
        }
        problem => problem,
    }
}

fn sentence(said: &str, tls: bool) -> String {
    let hung_up = [
        "unexpected end of file",
        "Connection reset by peer",
        "tls handshake eof",
        HUNG_UP,
    ];
    let hung_up = hung_up.iter().any(|start| said.starts_with(start));
    match (hung_up, tls) {
        (true, false) => "the server closed the connection without an answer; if it expects TLS, the URL begins with \
             rediss://"
            .to_owned(),
        (true, true) => "the server closed the connection without an answer; if it asks for a client certificate, give one \
             with `Tls::client_certificate`"
            .to_owned(),
        // A server takes what TLS begins with for part of a line.
        (false, true) if said == TOO_LONG => {
            format!("{said}; if the server does not expect TLS there, the URL begins with redis://")
        }
        (false, _) => said.to_owned(),
    }
}

/// An error without the arguments of its command: names that a log need not have.
pub(super) fn without_arguments(text: &str) -> &str {
    text.split_once(", with args beginning with")
        .map_or(text, |(text, _)| text)
}

pub(super) const HUNG_UP: &str = "the server has closed the connection";

pub(super) const WEB_SERVER: &str = "the server has sent HTTP or HTML";

pub(super) const TOO_LONG: &str = "connecting took too long";

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::test;

    #[test]
    fn only_what_an_operator_has_to_change_is_lasting() {
        let mut failed = Failed::default();
        failed.add("a:1".into(), ConnectionError::Lost(HUNG_UP.to_owned()));
        assert!(!failed.is_lasting());
        let refused = "WRONGPASS invalid username-password pair or user is disabled.";
        failed.add("b:1".into(), ConnectionError::refused(refused.to_owned()));
        assert!(failed.is_lasting());
    }
}
