//! Why there is no TLS connection, and what to do about it.

/// What rustls says in this text, which is the `Debug` of its error inside that of an I/O error. `None`: the
/// problem is another one than TLS.
pub(crate) fn tls_problem(text: &str) -> Option<&'static str> {
    let found = TEXTS.iter().find(|(words, _)| text.contains(words));
    found.map(|&(_, problem)| problem)
}

/// The part of such a text that rustls has written.
pub(super) fn tls_cause(text: &str) -> &str {
    let inside = text
        .split_once("error: ")
        .and_then(|(_, inside)| inside.strip_suffix(" }"));
    inside.unwrap_or(text)
}

/// The first that occurs in a text counts.
const TEXTS: [(&str, &str); 17] = [
    // A CA that was replaced under its old name signs with another key.
    ("InvalidCertificate(BadSignature", UNKNOWN_AUTHORITY),
    ("InvalidCertificate(UnknownIssuer", UNKNOWN_AUTHORITY),
    ("InvalidCertificate(NotValidForName", WRONG_NAME),
    ("InvalidCertificate(Expired", EXPIRED),
    ("InvalidCertificate(NotValidYet", NOT_YET_VALID),
    ("UnsupportedCertVersion", OLD_VERSION),
    ("InvalidCertificate(", OTHER),
    // What the server says of the client's certificate, or of none.
    ("AlertReceived(CertificateRequired", CLIENT_CERTIFICATE),
    ("AlertReceived(BadCertificate", CLIENT_CERTIFICATE),
    ("AlertReceived(CertificateExpired", CLIENT_CERTIFICATE),
    ("AlertReceived(CertificateUnknown", CLIENT_CERTIFICATE),
    ("AlertReceived(UnknownCA", CLIENT_CERTIFICATE),
    ("AlertReceived(", OTHER),
    ("error: InvalidMessage(", NOT_TLS),
    ("error: PeerIncompatible(", OTHER),
    ("error: PeerMisbehaved(", OTHER),
    ("InvalidDnsNameError", WRONG_NAME),
];

const UNKNOWN_AUTHORITY: &str = "its certificate is from an authority that is not trusted; give the certificate of that authority with `Tls::ca`";
const WRONG_NAME: &str = "its certificate is for other names than the one it is checked against; connect to one of those, or give one with `Tls::server_name`";
const EXPIRED: &str = "its certificate has expired; renew it, or set the clock of this machine";
const NOT_YET_VALID: &str =
    "its certificate is not valid yet; set the clock of this machine, or of the one that made it";
const OLD_VERSION: &str = "its certificate has version 1 of X.509; issue one of version 3, which `openssl x509 -req` does with `-extfile`";
const CLIENT_CERTIFICATE: &str = "it does not accept the certificate of this client, or asks for one; give one from an authority that it trusts with `Tls::client_certificate`";
const NOT_TLS: &str =
    "what answers there does not speak TLS; check the port, or begin the URL with redis://";
const OTHER: &str = "client and server do not agree on TLS; the cause says why";
