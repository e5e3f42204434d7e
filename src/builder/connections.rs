//! Settings of the connections.

use std::time::Duration;

use super::LockClientBuilder;
#[cfg(feature = "tls-rustls")]
use crate::redis::Tls;
use crate::redis::{Credentials, Wanted};
use crate::wire::Announce;

impl LockClientBuilder {
    /// Number of command connections; all commands of one lock use the same one. Default 1; 1 to
    /// 16.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::LockClient::builder().connections(2);
    /// ```
    pub fn connections(self, connections: usize) -> Self {
        Self {
            connections,
            ..self
        }
    }

    /// Whether to `CLIENT KILL` a lost connection before using its replacement. Default on.
    ///
    /// Needs `+client|info +client|kill`. Switch it off behind a proxy that shares connections
    /// between clients; the page of guarantees lists the risks without it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::LockClient::builder().connection_fence(false);
    /// ```
    pub fn connection_fence(self, connection_fence: bool) -> Self {
        Self {
            connection_fence,
            ..self
        }
    }

    /// What its connections are called in `CLIENT LIST`: printable ASCII without spaces. Default none;
    /// needs `+client|setname`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::LockClient::builder().client_name("orders-7");
    /// ```
    pub fn client_name(self, client_name: impl Into<String>) -> Self {
        let client_name = Some(client_name.into());
        Self {
            client_name,
            ..self
        }
    }

    /// How the clients of a cluster tell each other that a lock is free. Default [`Announce::Auto`]; ignored
    /// outside a cluster.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use redisson_lock::{Announce, LockClient};
    /// let builder = LockClient::builder().announce(Announce::Sharded);
    /// ```
    pub fn announce(self, announce: Announce) -> Self {
        Self { announce, ..self }
    }

    /// Sets how many replicas, 1 to 8, must acknowledge every lock that does not set its own
    /// [`sync_replicas`](crate::Lock::sync_replicas), and within how long: 10 ms to the command timeout. Default:
    /// the client waits for none.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::LockClient::builder().sync_replicas(2, Duration::from_millis(100));
    /// ```
    pub fn sync_replicas(self, replicas: u32, within: Duration) -> Self {
        let sync_replicas = Some(Wanted { replicas, within });
        Self {
            sync_replicas,
            ..self
        }
    }

    /// Whom to trust and as whom to connect, for an address that begins with `rediss://` or `valkeys://`; see [`Tls`].
    /// Default: its defaults.
    ///
    /// Connecting fails with [`Error::InvalidConfig`](crate::Error::InvalidConfig) if something is wrong with them, if the
    /// address asks for no TLS, or with a fred client, which has TLS settings of its own.
    ///
    /// # Examples
    ///
    /// ```
    /// use redisson_lock::{LockClient, Tls};
    /// let builder = LockClient::builder().tls(Tls::new().ca_file("/etc/redis/ca.pem"));
    /// ```
    #[cfg(feature = "tls-rustls")]
    pub fn tls(self, tls: Tls) -> Self {
        let tls = Some(tls);
        Self { tls, ..self }
    }

    /// Sets the credentials for the sentinels, which have users of their own: a user, or `None` for the default one,
    /// and a password. Default: `sentinelUsername` and `sentinelPassword` of the address, or none. User and password
    /// before the host are for the primary and its replicas.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::LockClient::builder().sentinel_credentials(None, "secret");
    /// ```
    pub fn sentinel_credentials(self, user: Option<&str>, password: impl Into<String>) -> Self {
        let sentinel_credentials = Some(Credentials {
            user: user.map(Into::into),
            password: password.into(),
        });
        Self {
            sentinel_credentials,
            ..self
        }
    }
}
