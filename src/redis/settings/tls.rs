//! Connections by TLS: whom to trust, as whom, and which name a server's certificate must have.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::error::Error;

/// Settings of TLS, for [`LockClientBuilder::tls`](crate::LockClientBuilder::tls) and an address that begins with
/// `rediss://` or `valkeys://`. What is left out has its default; an address needs none of them if its server has a
/// certificate that the platform trusts.
///
/// Certificates and keys are PEM, as bytes or in files. Files are read when the client connects for the first time, and
/// not again.
///
/// # Examples
///
/// ```no_run
/// # async fn run() -> Result<(), redisson_lock::Error> {
/// use redisson_lock::{LockClient, Tls};
/// let tls = Tls::new()
///     .ca_file("/etc/redis/ca.pem")
///     .client_certificate_files("/etc/redis/orders.pem", "/etc/redis/orders.key");
/// let client = LockClient::builder().tls(tls).connect("rediss://redis.example:6380").await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
#[must_use = "settings do nothing until a builder has them"]
pub struct Tls {
    #[cfg_attr(
        feature = "serde",
        serde(rename = "ca_file", skip_serializing_if = "is_no_file")
    )]
    ca: Option<Pem>,
    #[cfg_attr(
        feature = "serde",
        serde(rename = "certificate_file", skip_serializing_if = "is_no_file")
    )]
    certificate: Option<Pem>,
    #[cfg_attr(
        feature = "serde",
        serde(rename = "key_file", skip_serializing_if = "is_no_file")
    )]
    key: Option<Pem>,
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    server_name: Option<String>,
}

/// Where a certificate or a key is. A configuration names files; PEM that was given as bytes is not serialized.
#[derive(Clone)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(untagged, from = "PathBuf")
)]
enum Pem {
    #[cfg_attr(feature = "serde", serde(skip))]
    Bytes(Arc<[u8]>),
    File(PathBuf),
}

#[cfg(feature = "serde")]
impl From<PathBuf> for Pem {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

#[cfg(feature = "serde")]
fn is_no_file(pem: &Option<Pem>) -> bool {
    !matches!(pem, Some(Pem::File(_)))
}

impl Tls {
    /// The defaults: the authorities that the platform trusts, no client certificate, and the host of the URL as
    /// the name of the server.
    ///
    /// # Examples
    ///
    /// ```
    /// let tls = redisson_lock::Tls::new();
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Certificates of the authorities to trust, in the place of the platform's. Default: the platform's, on Linux those
    /// that OpenSSL finds, `SSL_CERT_FILE` and `SSL_CERT_DIR` included.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run() -> std::io::Result<()> {
    /// let tls = redisson_lock::Tls::new().ca(std::fs::read("/etc/redis/ca.pem")?);
    /// # Ok(()) }
    /// ```
    pub fn ca(self, pem: impl AsRef<[u8]>) -> Self {
        let ca = Some(Pem::Bytes(pem.as_ref().into()));
        Self { ca, ..self }
    }

    /// Sets [`ca`](Self::ca) from a file.
    ///
    /// # Examples
    ///
    /// ```
    /// let tls = redisson_lock::Tls::new().ca_file("/etc/redis/ca.pem");
    /// ```
    pub fn ca_file(self, path: impl Into<PathBuf>) -> Self {
        let ca = Some(Pem::File(path.into()));
        Self { ca, ..self }
    }

    /// The certificate of this client, with those between it and an authority that the server trusts, and its private
    /// key (PKCS #8, PKCS #1 or SEC1, not encrypted). Default: none.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(secret: &[u8]) -> std::io::Result<()> {
    /// let certificate = std::fs::read("/etc/redis/orders.pem")?;
    /// let tls = redisson_lock::Tls::new().client_certificate(certificate, secret);
    /// # Ok(()) }
    /// ```
    pub fn client_certificate(self, pem: impl AsRef<[u8]>, key_pem: impl AsRef<[u8]>) -> Self {
        Self {
            certificate: Some(Pem::Bytes(pem.as_ref().into())),
            key: Some(Pem::Bytes(key_pem.as_ref().into())),
            ..self
        }
    }

    /// Sets [`client_certificate`](Self::client_certificate) from two files.
    ///
    /// # Examples
    ///
    /// ```
    /// let tls = redisson_lock::Tls::new().client_certificate_files("/etc/redis/orders.pem", "/etc/redis/orders.key");
    /// ```
    pub fn client_certificate_files(
        self,
        path: impl Into<PathBuf>,
        key_path: impl Into<PathBuf>,
    ) -> Self {
        Self {
            certificate: Some(Pem::File(path.into())),
            key: Some(Pem::File(key_path.into())),
            ..self
        }
    }

    /// The name that the certificate of every server must have, sentinels included. Default: the host that the server is
    /// known by, after [`map_addresses`](crate::LockClientBuilder::map_addresses). One that a cluster or a sentinel knows by its IP address alone is checked against the first host of the
    /// address that was given to connect to; if that is an IP address too, against its own.
    ///
    /// # Examples
    ///
    /// ```
    /// let tls = redisson_lock::Tls::new().server_name("redis.example");
    /// ```
    pub fn server_name(self, name: impl Into<String>) -> Self {
        let server_name = Some(name.into());
        Self {
            server_name,
            ..self
        }
    }

    /// What makes connections by TLS.
    pub(super) fn client(&self) -> Result<TlsClient, Error> {
        if let Some(name) = &self.server_name
            && ServerName::try_from(name.as_str()).is_err()
        {
            return Err(invalid(format!("server_name: `{name}` is no host name")));
        }
        Ok(TlsClient {
            connector: Arc::new(self.client_config()?).into(),
            names: TlsNames::First,
        })
    }

    /// The name that the certificate of every server must have.
    pub(super) fn name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// With a provider of its own: rustls has one for the process only if one is compiled in, and only one.
    fn client_config(&self) -> Result<ClientConfig, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|problem| invalid(problem.to_string()))?
            .with_root_certificates(self.roots()?);
        let (certificate, key) = match (&self.certificate, &self.key) {
            (None, None) => return Ok(config.with_no_client_auth()),
            (Some(certificate), Some(key)) => (certificate, key),
            (Some(_), None) | (None, Some(_)) => {
                let problem = "a client certificate and its key go together".to_owned();
                return Err(invalid(problem));
            }
        };
        let chain = certificate.certificates("client certificate")?;
        let key = key.key()?;
        config.with_client_auth_cert(chain, key).map_err(|problem| {
            let is_old = problem.to_string().contains("UnsupportedCertVersion");
            invalid(match is_old {
                true => "client certificate: it has version 1 of X.509; give one of version 3"
                    .to_owned(),
                false => format!("client certificate and key cannot be used together: {problem}"),
            })
        })
    }

    fn roots(&self) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        let Some(ca) = &self.ca else {
            // One that cannot be read, or means nothing to rustls, is no reason to do without the others.
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            return match roots.is_empty() {
                false => Ok(roots),
                true => Err(invalid(
                    "the platform has no certificates of authorities: give one with `Tls::ca`"
                        .to_owned(),
                )),
            };
        };
        for certificate in ca.certificates("ca")? {
            let added = roots.add(certificate);
            added.map_err(|problem| invalid(format!("ca: {problem}")))?;
        }
        Ok(roots)
    }
}

impl Pem {
    fn read(&self, what: &str) -> Result<Arc<[u8]>, Error> {
        match self {
            Self::Bytes(bytes) => Ok(Arc::clone(bytes)),
            Self::File(path) => {
                let read = std::fs::read(path);
                let read = read.map_err(|problem| {
                    invalid(format!(
                        "{what}: {} cannot be read: {problem}",
                        path.display()
                    ))
                });
                Ok(read?.into())
            }
        }
    }

    fn certificates(&self, what: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
        let bytes = self.read(what)?;
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        match read {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            Ok(_) | Err(_) => Err(invalid(format!(
                "{what}: it has no certificate, which in PEM begins with -----BEGIN CERTIFICATE-----"
            ))),
        }
    }

    /// No message quotes what was read.
    fn key(&self) -> Result<PrivateKeyDer<'static>, Error> {
        let bytes = self.read("key")?;
        let key = PrivateKeyDer::from_pem_slice(&bytes);
        key.map_err(|_| {
            invalid(
                "key: it has no private key that is not encrypted, which in PEM begins with -----BEGIN PRIVATE KEY-----, \
                 -----BEGIN RSA PRIVATE KEY----- or -----BEGIN EC PRIVATE KEY-----"
                    .to_owned(),
            )
        })
    }
}

/// Makes connections by TLS.
#[derive(Clone)]
pub(super) struct TlsClient {
    pub(super) connector: TlsConnector,
    pub(super) names: TlsNames,
}

/// The names of servers that are known by their IP addresses alone.
#[derive(Clone)]
pub(super) enum TlsNames {
    /// Their IP addresses.
    #[cfg_attr(not(feature = "fred"), allow(dead_code, reason = "of a fred client"))]
    Own,
    /// The first host that was given, unless that is an IP address too.
    First,
    /// What this says of an IP address and the first host; otherwise their IP addresses.
    #[cfg_attr(not(feature = "fred"), allow(dead_code, reason = "of a fred client"))]
    Custom(Arc<NameFunction>),
}

type NameFunction = dyn Fn(&IpAddr, &str) -> Option<String> + Send + Sync;

impl TlsClient {
    /// Which name the certificate of the server at this host must have, if none was given.
    pub(super) fn name_of(&self, host: &str, first_host: &str) -> String {
        let Ok(ip) = host.parse::<IpAddr>() else {
            return host.to_owned();
        };
        let name = match &self.names {
            TlsNames::Own => None,
            TlsNames::First if first_host.parse::<IpAddr>().is_ok() => None,
            TlsNames::First => Some(first_host.to_owned()),
            TlsNames::Custom(name) => name(&ip, first_host),
        };
        name.unwrap_or_else(|| host.to_owned())
    }
}

pub(super) fn invalid(problem: String) -> Error {
    Error::InvalidConfig {
        what: "tls",
        problem,
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(_) => f.write_str("Pem(…)"),
            Self::File(path) => path.fmt(f),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ca,
            certificate,
            key,
            server_name,
        } = self;
        f.debug_struct("Tls")
            .field("ca", ca)
            .field("certificate", certificate)
            .field("key", key)
            .field("server_name", server_name)
            .finish()
    }
}
