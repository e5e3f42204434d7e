//! Settings of the connections.

use super::LockClientBuilder;
use crate::redis::Credentials;

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

    /// As whom to ask the sentinels, which have users of their own: a user, or `None` for the default one,
    /// and a password. Default: as nobody. Those in the address are for the primary and its replicas.
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
