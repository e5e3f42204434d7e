//! Certificates of a test, and servers that have them.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use test_support::{Server, TempDir, temporary_folder};

/// A certificate with its key, in PEM.
pub(crate) struct Issued {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Who signs certificates.
pub(crate) struct Authority(pub(crate) CertifiedIssuer<'static, KeyPair>);

/// From one year up to another one.
pub(crate) type Years = [i32; 2];
pub(crate) const NOW: Years = [2020, 2100];

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for these hosts, IP addresses included.
    pub(crate) fn issue(&self, hosts: &[&str], valid: Years) -> Issued {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("hosts");
        let [from, to] = valid.map(|year| rcgen::date_time_ymd(year, 1, 1));
        (params.not_before, params.not_after) = (from, to);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Issued {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// Files of a test, gone with it.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(temporary_folder())
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.into_os_string().into_string().expect("text")
    }

    /// The settings of a server with this certificate, that lets everybody in.
    pub(crate) fn settings(&self, authority: &Authority, server: &Issued) -> Vec<String> {
        [
            (
                "--tls-cert-file",
                self.write("server.pem", &server.certificate),
            ),
            ("--tls-key-file", self.write("server.key", &server.key)),
            ("--tls-ca-cert-file", self.write("ca.pem", &authority.pem())),
            ("--tls-auth-clients", "no".to_owned()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
    }
}

pub(crate) fn words(settings: &[String]) -> Vec<&str> {
    settings.iter().map(String::as_str).collect()
}

/// A server with a certificate for these hosts, its authority, and its files.
pub(crate) fn server_for(hosts: &[&str], valid: Years) -> (Server, Authority, Folder) {
    let (authority, folder) = (Authority::new("shop"), Folder::new());
    let settings = folder.settings(&authority, &authority.issue(hosts, valid));
    let server = Server::start_with_tls(&words(&settings));
    (server, authority, folder)
}

pub(crate) fn address(host: &str, server: &Server) -> String {
    format!(
        "rediss://{host}:{}",
        server.tls_port.expect("started with one")
    )
}
