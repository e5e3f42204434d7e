//! As whom connections authenticate.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::redis::transport::BoxFuture;

/// A user and a password.
///
/// # Examples
///
/// ```
/// let credentials = redisson_lock::Credentials::new(Some("locker"), "secret");
/// assert_eq!(format!("{credentials:?}"), "Credentials(…)");
/// ```
#[derive(Clone)]
pub struct Credentials {
    /// `None`: the default user.
    pub(crate) user: Option<String>,
    pub(crate) password: String,
}

impl Credentials {
    /// A user, or `None` for the default one, and its password.
    ///
    /// # Examples
    ///
    /// ```
    /// let credentials = redisson_lock::Credentials::new(None, "secret");
    /// ```
    pub fn new(user: Option<&str>, password: impl Into<String>) -> Self {
        let (user, password) = (user.map(Into::into), password.into());
        Self { user, password }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

/// Supplies credentials that change, such as those of a vault or tokens that expire; see
/// [`credentials_provider`](crate::LockClientBuilder::credentials_provider).
///
/// # Examples
///
/// ```
/// use std::error::Error;
/// use std::pin::Pin;
/// use redisson_lock::{Credentials, CredentialsProvider};
///
/// #[derive(Debug)]
/// struct Vault;
///
/// impl CredentialsProvider for Vault {
///     fn fetch<'a>(
///         &'a self,
///         _server: &'a str,
///     ) -> Pin<Box<dyn Future<Output = Result<Option<Credentials>, Box<dyn Error + Send + Sync>>> + Send + 'a>> {
///         Box::pin(async {
///             let token = std::fs::read_to_string("/run/secrets/redis")?;
///             Ok(Some(Credentials::new(Some("locker"), token)))
///         })
///     }
/// }
/// ```
pub trait CredentialsProvider: fmt::Debug + Send + Sync + 'static {
    /// Returns the credentials for a server, by its address as `host:port` or the path of its socket. `None`: it asks for
    /// none. Called for each new connection, to sentinels and nodes of a cluster too, within the command timeout.
    ///
    /// # Errors
    ///
    /// With an error there is no connection, and an error of the client has its text.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when the command timeout is over, or the client needs the connection no longer.
    #[allow(
        clippy::type_complexity,
        reason = "no alias: it is what users implement"
    )]
    fn fetch<'a>(
        &'a self,
        server: &'a str,
    ) -> BoxFuture<'a, Result<Option<Credentials>, Box<dyn StdError + Send + Sync>>>;

    /// Returns how long after a connection was authenticated it is authenticated again. Default `None`: never. Needed
    /// only where the server ends connections whose credentials are old.
    fn refresh_interval(&self) -> Option<Duration> {
        None
    }
}
