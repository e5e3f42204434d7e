//! Credentials that change while a client is connected: a `CredentialsProvider`.

use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redisson_lock::{Credentials, CredentialsProvider, Error, LockClient};
use test_support::{
    Cluster, Control, Events, SERVICE, Sentinels, TestServer, eventually, ms, tokio,
};
use tracing::Level;

const USER: &str = "locker";

/// A password that can be changed, and who has asked for it.
#[derive(Debug, Default)]
struct Vault {
    password: Mutex<String>,
    user: Mutex<String>,
    /// The ports that it was asked for.
    asked_for: Mutex<Vec<u16>>,
    /// No credentials for these.
    open: Vec<u16>,
    refresh: Option<Duration>,
}

impl Vault {
    fn new(password: &str) -> Self {
        Self {
            password: Mutex::new(password.to_owned()),
            user: Mutex::new(USER.to_owned()),
            ..Self::default()
        }
    }

    fn set(&self, password: &str) {
        *self.password.lock().expect("unpoisoned") = password.to_owned();
    }

    fn ports(&self) -> BTreeSet<u16> {
        let asked_for = self.asked_for.lock().expect("unpoisoned");
        asked_for.iter().copied().collect()
    }

    fn fetched(&self) -> usize {
        self.asked_for.lock().expect("unpoisoned").len()
    }
}

/// What a client is given of it.
#[derive(Debug)]
struct Asked(Arc<Vault>);

impl CredentialsProvider for Asked {
    fn fetch<'a>(
        &'a self,
        server: &'a str,
    ) -> Pin<
        Box<
            dyn Future<Output = Result<Option<Credentials>, Box<dyn StdError + Send + Sync>>>
                + Send
                + 'a,
        >,
    > {
        let vault = &self.0;
        let port = server.rsplit(':').next().and_then(|port| port.parse().ok());
        let port = port.expect("a port");
        vault.asked_for.lock().expect("unpoisoned").push(port);
        let password = vault.password.lock().expect("unpoisoned").clone();
        let user = vault.user.lock().expect("unpoisoned").clone();
        let given = !vault.open.contains(&port);
        Box::pin(async move {
            // A vault is somewhere else.
            tokio::task::yield_now().await;
            Ok(given.then(|| Credentials::new(Some(&user), password)))
        })
    }

    fn refresh_interval(&self) -> Option<Duration> {
        self.0.refresh
    }
}

fn permit(control: &mut Control, password: &str) {
    permit_user(control, USER, password);
}

fn permit_user(control: &mut Control, user: &str, password: &str) {
    let password = format!(">{password}");
    control.run(&[
        "ACL",
        "SETUSER",
        user,
        "resetpass",
        "on",
        &password,
        "~*",
        "&*",
        "+@all",
    ]);
}

fn end_connections(control: &mut Control) {
    control.run(&["CLIENT", "KILL", "USER", USER]);
}

async fn connect(url: &str, vault: &Arc<Vault>) -> Result<LockClient, Error> {
    // The provider is asked instead.
    let url = url.replace("://", "://nobody:none@");
    let builder = LockClient::builder().command_timeout(ms(1_000));
    let builder = builder.credentials_provider(Asked(Arc::clone(vault)));
    builder.connect(&url).await
}

async fn locks(client: &LockClient, name: &str) {
    let lock = client.lock(name).retry_for(ms(10_000));
    let guard = lock.lock().await.expect("free");
    guard.unlock().await.expect("held");
}

#[tokio::test]
async fn a_connection_that_is_replaced_uses_the_password_of_now() {
    let server = TestServer::new();
    let mut control = server.control();
    permit(&mut control, "first");
    let vault = Arc::new(Vault::new("first"));
    let client = connect(&server.url(), &vault).await.expect("connected");
    let guard = client.lock("stock:42").lock().await.expect("free");

    permit(&mut control, "second");
    vault.set("second");
    let before = vault.fetched();
    end_connections(&mut control);
    eventually("the connection asks again", ms(10_000), || {
        vault.fetched() > before
    })
    .await;
    locks(&client, "stock:43").await;
    guard.unlock().await.expect("still held");

    // The old password is what is refused, and nothing else.
    permit(&mut control, "third");
    end_connections(&mut control);
    let refused = client.lock("stock:42").lock().await;
    assert!(matches!(refused, Err(Error::Auth { .. })), "{refused:?}");
    vault.set("third");
    let connected = || client.is_connected();
    eventually("it is connected again", ms(10_000), connected).await;
    locks(&client, "stock:42").await;
    let refused = connect(&server.url(), &Arc::new(Vault::new("second"))).await;
    assert!(matches!(refused, Err(Error::Auth { .. })), "{refused:?}");
    control.run(&["ACL", "DELUSER", USER]);
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_provider_that_sends_its_password_again_now_and_then_disturbs_nobody() {
    let server = TestServer::new();
    permit(&mut server.control(), "first");
    let vault = Arc::new(Vault {
        refresh: Some(ms(20)),
        ..Vault::new("first")
    });
    let client = connect(&server.url(), &vault).await.expect("connected");
    let other = server.client().await;
    for nth in 0..20 {
        let guard = other.lock("stock:42").lock().await.expect("free");
        let lock = client.lock("stock:42");
        let waiting = tokio::spawn(async move { lock.lock().await });
        let fetched = vault.fetched();
        let waits = || client.stats().subscriptions == 1 && vault.fetched() > fetched + 1;
        eventually("it waits, and the password was sent", ms(10_000), waits).await;
        guard.unlock().await.expect("held");
        let woken = tokio::time::timeout(ms(5_000), waiting).await;
        let guard = woken.expect("woken").expect("no panic");
        guard.expect("free").unlock().await.expect("held");
        assert_eq!(client.stats().reconnects_total, 0, "{nth}");
    }
    client.close(Duration::ZERO).await;
    other.close(Duration::ZERO).await;
}

#[tokio::test]
async fn every_connection_gets_the_credentials_of_now_and_keeps_its_own_if_they_are_refused() {
    let events = Events::of_all_threads();
    let server = TestServer::new();
    let mut control = server.control();
    permit(&mut control, "first");
    permit_user(&mut control, "successor", "first");
    let vault = Arc::new(Vault {
        refresh: Some(ms(20)),
        ..Vault::new("first")
    });
    let client = connect(&server.url(), &vault).await.expect("connected");
    *vault.user.lock().expect("unpoisoned") = "successor".to_owned();
    eventually("the connection has the new user", ms(10_000), || {
        let connections = control.run(&["CLIENT", "LIST"]);
        connections.matches("user=successor").count() == 1 && !connections.contains(USER)
    })
    .await;
    vault.set("wrong");
    let refused = "the credentials of a connection could not be renewed";
    events.comes(Level::WARN, refused).await;
    locks(&client, "stock:42").await;
    assert_eq!(client.stats().reconnects_total, 0);
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn every_node_of_a_cluster_is_asked_for_and_the_one_that_is_replaced_again() {
    let cluster = Cluster::start(false).await;
    let ports: BTreeSet<u16> = (0..3).map(|nth| cluster.port(nth)).collect();
    for nth in 0..3 {
        permit(&mut cluster.control(nth), "first");
    }
    let vault = Arc::new(Vault::new("first"));
    let client = connect(&cluster.url(), &vault).await.expect("connected");
    for nth in 0..3 {
        locks(&client, &cluster.key_at(nth, "stock")).await;
    }
    assert_eq!(vault.ports(), ports);
    for nth in 0..3 {
        permit(&mut cluster.control(nth), "second");
    }
    vault.set("second");
    vault.asked_for.lock().expect("unpoisoned").clear();
    for nth in 0..3 {
        end_connections(&mut cluster.control(nth));
    }
    for nth in 0..3 {
        locks(&client, &cluster.key_at(nth, "stock")).await;
    }
    assert_eq!(vault.ports(), ports);
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_provider_is_asked_for_sentinels_too_by_their_address() {
    let servers = Sentinels::start().await;
    for nth in 0..3 {
        permit(&mut servers.control(nth), "first");
    }
    let url = servers.url();
    let digits = url.split(|letter: char| !letter.is_ascii_digit());
    let open: Vec<u16> = digits
        .filter_map(|port| port.parse().ok().filter(|port| *port > 1_000))
        .collect();
    assert!(url.contains(SERVICE) && open.len() == 3, "{url}");
    let vault = Arc::new(Vault {
        open: open.clone(),
        ..Vault::new("first")
    });
    let client = connect(&url, &vault).await.expect("connected");
    locks(&client, "stock:42").await;
    let asked = vault.ports();
    assert!(open.iter().all(|port| asked.contains(port)), "{asked:?}");
    assert!(asked.len() > open.len(), "and for the primary: {asked:?}");
    client.close(Duration::ZERO).await;
}
