//! Why there is no TLS connection, and what to do about it.

use std::fmt;

/// Why there is no TLS connection to a server.
///
/// # Examples
///
/// ```
/// let problem = redisson_lock::TlsProblem::Expired;
/// assert_eq!(
///     problem.to_string(),
///     "its certificate has expired; renew it, or set the clock of this machine"
/// );
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TlsProblem {
    /// Nobody whom the client trusts has signed the server's certificate.
    UnknownAuthority,
    /// The server's certificate is for other names than the one it is checked against.
    WrongName,
    /// The server's certificate has expired.
    Expired,
    /// The server's certificate is valid from a later time on.
    NotYetValid,
    /// The server asks for a client certificate, or does not accept the one it was given.
    ClientCertificate,
    /// Something answers, in another protocol than TLS.
    NotTls,
    /// Anything else: the source says what.
    Other,
}

impl TlsProblem {
    /// What rustls says in this text, which is the `Debug` of its error inside that of an I/O error. `None`: the
    /// problem is another one than TLS.
    pub(crate) fn of(text: &str) -> Option<Self> {
        TEXTS
            .iter()
            .find(|(words, _)| text.contains(words))
            .map(|&(_, problem)| problem)
    }

    /// The part of such a text that rustls has written.
    pub(crate) fn cause(text: &str) -> &str {
        let inside = text
            .split_once("error: ")
            .and_then(|(_, inside)| inside.strip_suffix(" }"));
        inside.unwrap_or(text)
    }
}

/// The first that occurs in a text counts.
const TEXTS: [(&str, TlsProblem); 16] = [
    // A CA that was replaced under its old name signs with another key.
    (
        "InvalidCertificate(BadSignature",
        TlsProblem::UnknownAuthority,
    ),
    (
        "InvalidCertificate(UnknownIssuer",
        TlsProblem::UnknownAuthority,
    ),
    ("InvalidCertificate(NotValidForName", TlsProblem::WrongName),
    ("InvalidCertificate(Expired", TlsProblem::Expired),
    ("InvalidCertificate(NotValidYet", TlsProblem::NotYetValid),
    ("InvalidCertificate(", TlsProblem::Other),
    // What the server says of the client's certificate, or of none.
    (
        "AlertReceived(CertificateRequired",
        TlsProblem::ClientCertificate,
    ),
    (
        "AlertReceived(BadCertificate",
        TlsProblem::ClientCertificate,
    ),
    (
        "AlertReceived(CertificateExpired",
        TlsProblem::ClientCertificate,
    ),
    (
        "AlertReceived(CertificateUnknown",
        TlsProblem::ClientCertificate,
    ),
    ("AlertReceived(UnknownCA", TlsProblem::ClientCertificate),
    ("AlertReceived(", TlsProblem::Other),
    ("error: InvalidMessage(", TlsProblem::NotTls),
    ("error: PeerIncompatible(", TlsProblem::Other),
    ("error: PeerMisbehaved(", TlsProblem::Other),
    ("InvalidDnsNameError", TlsProblem::WrongName),
];

impl fmt::Display for TlsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownAuthority => {
                "its certificate is from an authority that is not trusted; give the certificate of that authority with \
                 `Tls::ca`"
            }
            Self::WrongName => {
                "its certificate is for other names than the one it is checked against; connect to one of those, or give \
                 one with `Tls::server_name`"
            }
            Self::Expired => {
                "its certificate has expired; renew it, or set the clock of this machine"
            }
            Self::NotYetValid => {
                "its certificate is not valid yet; set the clock of this machine, or of the one that made it"
            }
            Self::ClientCertificate => {
                "it does not accept the certificate of this client, or asks for one; give one from an authority that it \
                 trusts with `Tls::client_certificate`"
            }
            Self::NotTls => {
                "what answers there does not speak TLS; check the port, or begin the address with redis://"
            }
            Self::Other => "client and server do not agree on TLS; the cause says why",
        })
    }
}
